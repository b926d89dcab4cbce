"""Processes that must not outlive this one, whatever ends it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from contextlib import suppress

import psutil

MOURN = 'cat >/dev/null; kill "$@" 2>/dev/null; sleep 5; kill -KILL "$@" 2>/dev/null'
"""A shell whose input ends when this process does, by SIGKILL too; then it ends the others."""


def descendants() -> set[psutil.Process]:
    """What this process has started and what those have; not what cleans up after Python's shared memory and ends by itself."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has ended since
            if not any("resource_tracker" in word for word in process.cmdline()):
                found.add(process)
    return found


def mourner(processes: Iterable[psutil.Process]) -> subprocess.Popen[bytes]:
    """Let these processes end with this one, until what is returned is killed."""
    command = ["sh", "-c", MOURN, "sh", *(str(process.pid) for process in processes)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
