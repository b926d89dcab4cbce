"""A worker: a keeper, and below it the zygote, which forks one process per program and outlives them all.

The keeper never touches a program. It waits for either end: when the referee goes, it ends the zygote; when the zygote
goes, it sweeps up what was left. The zygote keeps no expected value and no other program: only the job it is on.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import gc
import mmap
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Collection
from typing import Any, NoReturn

from selfplay.referee.inside import codec, kernel, runner, wire
from selfplay.referee.inside.jail import ON, Jail

CLOCK = time.monotonic
NOT_SET_UP = 78
"""Exit state of a process that could not put its layers on. A program can exit so too: `able` tells them apart."""
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
import math

def f(x):
    return [f"{x:>5}", {"a": (1.5, True)}, {math.pi}, b"x"]
"""


def main(descriptor: int) -> None:
    """Entry of a worker's first process: `descriptor` is its end of the socket pair."""
    line = socket.socket(fileno=descriptor)
    config = receive(line)
    if config is None:
        return
    referee = open_process(os.getppid())
    sys.modules.setdefault("_hashlib", None)  # type: ignore[arg-type]  # OpenSSL would triple the memory to fork
    for name in config["imports"]:
        __import__(name)
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
    line.close()
    keep(child, referee, whole=jail.said.get("pid_namespace") == ON)


def warm_up() -> None:
    """Run what every program's process runs, so that forks find it loaded, specialised and shared."""
    for name in ENCODINGS:
        "x".encode(name).decode(name)
    page = mmap.mmap(-1, 1 << 16)
    job = {"program": WARM, "inputs": [codec.encode((3,))], "calls": 2, "entry": "f"}
    for _ in range(16):
        runner.play(job, page, frozenset(("math",)), codec.ValueLimits())
    builtins.__import__ = runner.REAL_IMPORT
    del sys.modules["program"]
    page.close()


def open_process(pid: int) -> int:
    """A descriptor that becomes readable when the process ends; -1 where the kernel has none."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return -1


def keep(child: int, referee: int, whole: bool) -> None:
    """Wait until the zygote or the referee is gone, then leave nothing behind."""
    zygote = open_process(child)
    parent = os.getppid()
    if zygote >= 0 and referee >= 0:
        select.select([zygote, referee], [], [])
    else:
        while os.waitpid(child, os.WNOHANG)[0] == 0 and os.getppid() == parent:
            time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    sweep(in_namespace=False, thorough=not whole)


def serve(line: socket.socket, config: dict[str, Any], jail: Jail) -> None:
    """The zygote's life: report the layers, then one job after the other until the line closes."""
    os.setsid()
    kernel.adopt_orphans()
    jail.close()
    kernel.die_with_parent()
    page = mmap.mmap(-1, wire.HEADER.size + config["limits"]["result_bytes"])
    allowed = frozenset(config["imports"])
    limits = codec.ValueLimits(**config["limits"]["value"])
    prove(jail, "landlock", jail.ruleset >= 0)
    prove(jail, "seccomp", jail.filter is not None)
    line.sendall(wire.frame({"layers": jail.said, "landlock": scope(jail)}))
    gc.collect()
    gc.freeze()
    gc.disable()
    while (job := receive(line)) is not None:
        line.sendall(answer(job, line, page, jail, allowed, limits))


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


def scope(jail: Jail) -> str:
    """Landlock's reach, for the report."""
    return kernel.landlock_scope() if jail.ruleset >= 0 else ""


def answer(
    job: dict[str, Any], line: socket.socket, page: mmap.mmap, jail: Jail, allowed: frozenset[str], limits: codec.ValueLimits
) -> bytes:
    """Run one job in a process of its own and say how it ended."""
    wire.HEADER.pack_into(page, 0, 0, 0)
    start = CLOCK()
    try:
        pid = os.fork()
    except OSError as error:
        return wire.frame({"infra": f"fork: {error.strerror}"})
    if pid == 0:
        play(job, line, page, jail, allowed, limits)
    status, usage, late = outlast(pid, start + job["wall_seconds"])
    sweep(in_namespace=jail.said.get("pid_namespace") == ON, thorough=jail.said.get("seccomp") != ON or "without" in job)
    state = os.waitstatus_to_exitcode(status)
    if state == NOT_SET_UP and (refused := able(jail)):
        return wire.frame({"infra": f"a layer failed: {refused}"})
    used, end = wire.HEADER.unpack_from(page)
    size = min(used, len(page) - wire.HEADER.size)
    body = page[wire.HEADER.size : wire.HEADER.size + size]
    page[: wire.HEADER.size + size] = bytes(wire.HEADER.size + size)
    return wire.frame(
        {
            "exit": state,
            "late": late,
            "ended": end == wire.END,
            "whole": size == used,
            "cpu": usage.ru_utime + usage.ru_stime,
            "peak": usage.ru_maxrss,
        },
        body,
    )


def play(
    job: dict[str, Any], line: socket.socket, page: mmap.mmap, jail: Jail, allowed: frozenset[str], limits: codec.ValueLimits
) -> NoReturn:
    """The program's process, from its first instruction to its last."""
    state = NOT_SET_UP
    try:
        line.close()
        jail.enter(job.get("without", ()))
        state = 1
        state = runner.play(job, page, allowed, limits)
    finally:
        os._exit(state)


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
    """Kill and reap every process that is left below this one."""
    if in_namespace and thorough:
        with contextlib.suppress(OSError):
            os.kill(-1, signal.SIGKILL)
    while True:
        if thorough and not in_namespace:
            for pid in children():
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0 if thorough else os.WNOHANG)
        except ChildProcessError:
            return
        except OSError as error:
            if error.errno != errno.EINTR:
                raise
        if not thorough:
            return


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


def receive(line: socket.socket) -> dict[str, Any] | None:
    """The next message from the referee; None when it has gone. Reads not one byte further."""
    head = exactly(line, wire.LENGTH.size)
    if head is None:
        return None
    body = exactly(line, *wire.LENGTH.unpack(head))
    return None if body is None else wire.unframe(body)[0]


def exactly(line: socket.socket, size: int) -> bytes | None:
    """`size` bytes, or None at the end of the line."""
    parts = bytearray()
    while len(parts) < size:
        part = line.recv(min(size - len(parts), 1 << 20))
        if not part:
            return None
        parts += part
    return bytes(parts)
