"""What the referee promises, and the self-test that tries to break each promise in the very workers that will be used.

The attacks run as a program runs, after an escape from the courtesy checks, first with every layer on, then with the outer
layers left out one after the other: so the report can say which layer holds what when it stands alone.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from selfplay.referee.inside.jail import ON
from selfplay.referee.jobs import Run
from selfplay.referee.verdicts import Status, Verdict

PROMISES = {
    "network": "no network, no socket to anything on this machine",
    "files": "no file is read or written outside an empty folder",
    "signals": "no signal to, and no trace of, any other process",
    "processes": "no process outlives its program",
    "memory": "no more memory than the limit",
    "secrets": "nothing inherited: no environment, no descriptor",
}

FIXES = {
    "user_namespace": "allow unprivileged user namespaces (sysctl user.max_user_namespaces, "
    "kernel.apparmor_restrict_unprivileged_userns=0), or start as root",
    "network_namespace": "needs a user namespace or root with CAP_SYS_ADMIN",
    "ipc_namespace": "needs a user namespace or root with CAP_SYS_ADMIN",
    "pid_namespace": "needs a user namespace or root with CAP_SYS_ADMIN",
    "empty_root": "needs mount and process namespaces: a user namespace or root with CAP_SYS_ADMIN",
    "unprivileged": "start as an ordinary user, or give root CAP_SETUID",
    "no_new_privileges": "Linux 3.5 or newer",
    "rlimits": "raise the hard limits of the shell that starts the referee",
    "landlock": "Linux 5.13 or newer with landlock in the lsm= list (6.12 for signals)",
    "seccomp": "Linux with CONFIG_SECCOMP_FILTER on x86_64 or aarch64",
}
"""How to get a layer that is missing."""

ATTACKS = """
def attempt(name, act):
    try:
        return [name, True, str(act())[:40]]
    except BaseException as error:
        return [name, False, type(error).__name__ + " " + str(getattr(error, "errno", ""))]

def f(tcp, udp, abstract, pid, path, megabytes):
    guard = getattr(f.__globals__["__builtins__"], "__im" + "port__")
    m = guard.__globals__["sys"].modules
    os, ctypes = m["os"], m["ctypes"]
    libc = ctypes.CDLL(None, use_errno=True)

    def done(result):
        if result < 0:
            raise OSError(ctypes.get_errno(), "refused")
        return result

    def traced():
        done(libc.ptrace(16, os.getppid(), 0, 0))

    def reach(family, kind, address):
        s = done(libc.socket(family, kind, 0))
        done(libc.connect(s, address, len(address)))
        done(libc.send(s, b"x", 1, 0))

    def inet(port):
        return b"\\x02\\x00" + port.to_bytes(2, "big") + bytes([127, 0, 0, 1]) + bytes(8)

    def write(where):
        with open(where, "w") as file:
            file.write("x")

    def listing():
        if not os.listdir("/"):
            raise OSError(2, "empty")

    def inherited():
        found = [n for n in range(3, 64) if is_open(n)]
        if not found:
            raise OSError(9, "none")
        return found

    def is_open(n):
        try:
            os.fstat(n)
            return True
        except OSError:
            return False

    def environment():
        names = [n for n in os.environ if n not in ("PYTHONHASHSEED", "LC_CTYPE")]
        if not names:
            raise OSError(2, "none")
        return names

    def allocate():
        return len(bytearray(megabytes << 20))

    def leave_behind():
        if os.fork() == 0:
            os.setsid()
            while True:
                pass
            os._exit(0)

    return [
        attempt("secrets: descriptors", inherited),
        attempt("network: tcp", lambda: reach(2, 1, inet(tcp))),
        attempt("network: udp", lambda: reach(2, 2, inet(udp))),
        attempt("network: abstract unix socket", lambda: reach(1, 1, b"\\x01\\x00\\x00" + abstract)),
        attempt("files: read", lambda: open("/etc/passwd").read()),
        attempt("files: list the root", listing),
        attempt("files: write", lambda: write(path)),
        attempt("files: write here", lambda: write("left-here")),
        attempt("files: environment of another", lambda: open("/proc/%d/environ" % os.getppid()).read()),
        attempt("signals: to the worker", lambda: os.kill(os.getppid(), 0)),
        attempt("signals: to the referee", lambda: os.kill(pid, 0)),
        attempt("signals: trace the worker", traced),
        attempt("memory: over the limit", allocate),
        attempt("secrets: environment", environment),
        attempt("processes: fork and stay", leave_behind),
    ]
"""

STAGES: dict[str, frozenset[str]] = {
    "all layers": frozenset(),
    "without seccomp": frozenset({"seccomp"}),
    "without seccomp and landlock": frozenset({"seccomp", "landlock"}),
}


@dataclass(frozen=True)
class Guarantee:
    """One promise, tried.

    Attributes:
        held: with every layer on.
        stages: names of the STAGES in which it held.
        broken: attacks that succeeded with every layer on.
    """

    name: str
    held: bool
    stages: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """The self-test's result: what is active on this machine, and what it gives."""

    layers: dict[str, str]
    landlock: str
    guarantees: tuple[Guarantee, ...]
    attempts: dict[str, list[list[Any]]] = field(default_factory=dict)

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of guarantees that cannot be had here."""
        return tuple(g.name for g in self.guarantees if not g.held)

    def as_dict(self) -> dict[str, Any]:
        """For JSON and for a run's report."""
        return {
            "layers": self.layers,
            "landlock": self.landlock,
            "missing": list(self.missing),
            "guarantees": {
                g.name: {"promise": PROMISES[g.name], "held": g.held, "stages": list(g.stages), "broken": list(g.broken)}
                for g in self.guarantees
            },
            "fixes": {layer: FIXES[layer] for layer, said in self.layers.items() if _lacking(said)},
        }


def _lacking(said: str) -> bool:
    return said != ON and not said.startswith("not needed")


def self_test(
    play: Callable[[Sequence[Run]], list[list[Verdict]]],
    keepers: Sequence[int],
    layers: dict[str, str],
    landlock: str,
    memory_mb: int,
    stages: dict[str, frozenset[str]] = STAGES,
) -> Report:
    """Try to break every promise.

    Args:
        play: runs programs in the workers under test.
        keepers: process ids of the workers' first processes.
        layers, landlock: what the workers said.
        memory_mb: the limit that must hold.
        stages: which layers to leave out, by stage.
    """
    attempts: dict[str, list[list[Any]]] = {}
    with _Targets() as targets:
        for stage, without in stages.items():
            arguments = (*targets.arguments(), memory_mb)
            (verdict,) = play([Run(ATTACKS, [arguments], without=without)])[0]
            left = survivors(keepers)
            attempts[stage] = _judged(verdict, targets.wrote(), left)
    return Report(dict(layers), landlock, tuple(_guarantee(name, attempts) for name in PROMISES), attempts)


def _judged(verdict: Verdict, wrote: bool, left: list[int]) -> list[list[Any]]:
    """The attempts as [name, broken, detail]: a successful fork is no breach if nothing of it is left."""
    if verdict.status is Status.OUT_OF_MEMORY or not verdict.ok:
        return [[f"{name}: the self-test did not run", True, f"{verdict.status}: {verdict.reason}"] for name in PROMISES]
    rows = [list(row) for row in verdict.value]
    for row in rows:
        if row[0].startswith("processes"):
            row[1:] = [bool(left), f"left: {left}" if left else row[2]]
        if row[0] == "files: write" and wrote:
            row[1] = True
    return rows


def _guarantee(name: str, attempts: dict[str, list[list[Any]]]) -> Guarantee:
    held = []
    broken: list[str] = []
    for i, (stage, rows) in enumerate(attempts.items()):
        through = [row[0] for row in rows if row[0].startswith(name + ":") and row[1]]
        if not through:
            held.append(stage)
        elif i == 0:
            broken = through
    return Guarantee(name, not broken, tuple(held), tuple(broken))


def survivors(keepers: Sequence[int]) -> list[int]:
    """Processes below the workers that should not be there: all but one zygote for each keeper."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as file:
                    parent = int(file.read().rpartition(")")[2].split()[1])
            except OSError:
                continue
            parents.setdefault(parent, []).append(int(entry))
    found = []
    for keeper in keepers:
        zygotes = parents.get(keeper, [])
        found += zygotes[1:]
        for zygote in zygotes:
            found += parents.get(zygote, [])
    return found


class _Targets:
    """Things on this side that an attack would love to reach."""

    def __enter__(self) -> _Targets:
        self.tcp = socket.create_server(("127.0.0.1", 0))
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(("127.0.0.1", 0))
        self.name = f"lora-evo-{os.getpid()}-{id(self)}".encode()
        self.unix = socket.socket(socket.AF_UNIX)
        self.unix.bind(b"\0" + self.name)
        self.unix.listen(8)
        self.path = f"/tmp/lora-evo-self-test-{os.getpid()}"
        return self

    def __exit__(self, *_: object) -> None:
        for target in (self.tcp, self.udp, self.unix):
            target.close()
        self.wrote()

    def arguments(self) -> tuple[Any, ...]:
        """What the attack needs to know."""
        return self.tcp.getsockname()[1], self.udp.getsockname()[1], self.name, os.getpid(), self.path

    def wrote(self) -> bool:
        """Whether the attack left a file here; it is removed."""
        try:
            os.unlink(self.path)
        except OSError:
            return False
        return True
