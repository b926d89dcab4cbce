"""A worker: a keeper, and below it the zygote, which forks one process per program and outlives them all.

The keeper never touches a program. It waits for either end: when the referee goes, it ends the zygote; when the zygote
goes, it sweeps up what was left. The zygote keeps no expected value and no other program: only the job it is on.
"""

from __future__ import annotations

import _signal as signal  # the plain one: `signal` brings `enum`, for every fork to carry
import _warnings
import contextlib
import gc
import marshal
import mmap
import os
import sys
import time

from selfplay.referee.inside import kernel, runner, wire
from selfplay.referee.inside.jail import ON, Jail

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

CLOCK = time.monotonic
ENCODINGS = (
    "ascii",
    "latin-1",
    "utf-7",
    "utf-8-sig",
    "utf-16",
    "utf-32",
    "cp437",
    "cp1252",
    "iso8859-15",
    "unicode_escape",
    "punycode",
)
WARM = """
def f(x):
    y = sorted(x + 1 for _ in range(2))
    return [f"{x:>5}", {"a": (1.5, True)}, {0.5}, b"x", y]
"""


def main(line: int) -> None:
    """Entry of a worker's first process: `line` is the descriptor of its end of the socket pair."""
    first = receive(line)
    if first is None:
        return
    config = marshal.loads(first)
    referee = open_process(os.getppid())
    if config["equipped"]:
        load(config["imports"])
    warm_up()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    jail = Jail(config["without"], config["limits"])
    kernel.adopt_orphans()
    jail.leave_namespaces()
    child = os.fork()
    if child == 0:
        if referee >= 0:
            os.close(referee)
        serve(line, config, jail)
        os._exit(0)
    os.close(line)
    keep(child, referee, whole=jail.said.get("pid_namespace") == ON)


def load(modules: list[str]) -> None:
    """Import what programs may import, at the least cost for every fork to come.

    Without OpenSSL, which takes more memory than all else; and without what modules want done after each fork: `random`
    would draw a new seed, a third of a fork's time. So chance is the
    same for all programs of a worker, and differs between workers.
    """
    sys.modules.setdefault("_hashlib", None)  # type: ignore[arg-type]
    real, os.register_at_fork = os.register_at_fork, lambda **_: None
    try:
        for name in modules:
            __import__(name)
        for name in ENCODINGS:
            "x".encode(name).decode(name)
    finally:
        os.register_at_fork = real


def warm_up() -> None:
    """Run what every program's process runs, so that forks find it loaded, specialised and shared."""
    _warnings.filters[:] = [("ignore", None, Warning, None, 0)]  # as -W ignore, without `warnings`
    page = mmap.mmap(-1, 1 << 16)
    stage = runner.Stage(frozenset(), False, (1000, 1000, 1000, 10))
    for _ in range(16):
        runner.play(WARM, [marshal.dumps((3,))], [(3,)], "f", 2, page, stage)
    stage.strike()
    page.close()


def open_process(pid: int) -> int:
    """A descriptor that becomes readable when the process ends; -1 where the kernel has none."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return -1


def keep(child: int, referee: int, whole: bool) -> None:
    """Wait until the zygote or the referee is gone, then leave nothing behind."""
    import select

    zygote = open_process(child)
    parent = os.getppid()
    if zygote >= 0 and referee >= 0:
        select.select([zygote, referee], [], [])
    else:
        while os.waitpid(child, os.WNOHANG)[0] == 0 and os.getppid() == parent:
            time.sleep(0.05)
    try:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    except OSError:
        pass
    sweep(in_namespace=False, thorough=not whole)


def serve(line: int, config: dict[str, Any], jail: Jail) -> None:
    """The zygote's life: report the layers, then one job after the other until the line closes."""
    os.setsid()
    kernel.adopt_orphans()
    jail.close()
    kernel.die_with_parent()
    page = mmap.mmap(-1, wire.HEADER.size + config["limits"]["result_bytes"])
    stage = runner.Stage(frozenset(config["imports"]), config["equipped"], config["value_limits"])
    prove(jail, "landlock", jail.ruleset >= 0)
    prove(jail, "seccomp", jail.filter is not None)
    jail.prepare()
    send(line, marshal.dumps((jail.said, kernel.landlock_scope() if jail.ruleset >= 0 else "")))
    gc.collect()
    kernel.trim_memory()
    gc.freeze()
    gc.disable()
    while (body := receive(line)) is not None:
        send(line, answer(marshal.loads(body), line, page, jail, stage))


def prove(jail: Jail, layer: str, made: bool) -> None:
    """Put a layer on in a process of its own, and note it as missing if that fails."""
    if not made:
        return
    refused = able(jail, {"seccomp", "landlock", "rlimits"} - {layer})
    if refused:
        jail.said[layer] = refused
        if layer == "seccomp":
            jail.filter = None
        else:
            os.close(jail.ruleset)
            jail.ruleset = -1


def able(jail: Jail, without: Collection[str] = ()) -> str:
    """Whether a process can put its layers on: empty, or why not."""
    pid = os.fork()
    if pid == 0:
        try:
            jail.enter(without)
        except OSError as error:
            os._exit(error.errno or 1)
        os._exit(0)
    state = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return "" if state == 0 else os.strerror(state) if state > 0 else f"signal {-state}"


def answer(job: list[Any], line: int, page: mmap.mmap, jail: Jail, stage: runner.Stage) -> bytes:
    """Run one job in a process of its own and say how it ended."""
    program, inputs, entry, calls, wall_seconds, without = job
    arguments = [marshal.loads(text) for text in inputs]
    deadline = CLOCK() + wall_seconds
    try:
        pid = os.fork()
    except OSError as error:
        return wire.FAILURE + f"fork: {error.strerror}".encode()
    if pid == 0:
        state = wire.NOT_SET_UP
        try:
            os.close(line)
            jail.enter(without)
            state = 1
            state = runner.play(program, inputs, arguments, entry, calls, page, stage)
        finally:
            os._exit(state)
    status, usage, late = outlast(pid, deadline)
    whole = jail.said["pid_namespace"] == ON
    if without or jail.filter is None:
        sweep(in_namespace=whole, thorough=True)
    state = os.waitstatus_to_exitcode(status)
    if state == wire.NOT_SET_UP and (refused := able(jail)):
        return wire.FAILURE + f"a layer failed: {refused}".encode()
    used, end = wire.HEADER.unpack_from(page)
    size = min(used, len(page) - wire.HEADER.size)
    body = page[wire.HEADER.size : wire.HEADER.size + size]
    page[: wire.HEADER.size + size] = bytes(wire.HEADER.size + size)
    cpu = usage.ru_utime + usage.ru_stime
    return wire.OUTCOME.pack(b"O", state, late, end == wire.END, size == used, cpu, usage.ru_maxrss) + body


def outlast(pid: int, deadline: float) -> tuple[int, Any, bool]:
    """Wait for the process, and kill it at the deadline: its status, its usage, and whether it was late."""
    late = False
    while True:
        done, status, usage = os.wait4(pid, os.WNOHANG)
        if done:
            return status, usage, late
        left = deadline - CLOCK()
        if left <= 0 and not late:
            late = True
            os.kill(pid, signal.SIGKILL)
        signal.sigtimedwait([signal.SIGCHLD], max(left, 0.05))


def sweep(in_namespace: bool, thorough: bool) -> None:
    """Kill and reap every process that is left below this one; not `thorough`: only reap what is there."""
    while True:
        try:
            if thorough and in_namespace:
                kill_all()
            elif thorough:
                for pid in children():
                    os.kill(pid, signal.SIGKILL)
            if os.waitpid(-1, 0 if thorough else os.WNOHANG)[0] == 0:
                return
        except ChildProcessError:
            return


def kill_all() -> None:
    """Kill everything else in this process namespace."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)


def children() -> list[int]:
    """Processes whose parent is this one, from /proc; orphans come here by adoption."""
    found = []
    me = str(os.getpid())
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    if file.read().rpartition(")")[2].split()[1] == me:
                        found.append(int(name))
            except OSError:
                pass
    return found


def send(line: int, body: bytes) -> None:
    """One message to the referee."""
    rest = memoryview(wire.LENGTH.pack(len(body)) + body)
    while rest:
        rest = rest[os.write(line, rest) :]


def receive(line: int) -> bytes | None:
    """The next message from the referee; None when it has gone. Reads not one byte further."""
    head = exactly(line, wire.LENGTH.size)
    return None if head is None else exactly(line, *wire.LENGTH.unpack(head))


def exactly(line: int, size: int) -> bytes | None:
    """`size` bytes, or None at the end of the line."""
    data = os.read(line, size)
    while data and len(data) < size:
        part = os.read(line, size - len(data))
        data = data + part if part else b""
    return data if data or not size else None
