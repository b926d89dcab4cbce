"""The journal: what happened, one JSON object a line, appended step by step and flushed to the disk before anything else."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from lora_evo.errors import LoraEvoError

Event = dict[str, Any]


class JournalError(LoraEvoError):
    """A journal that cannot be read or written: which file, which line, why."""


class Journal:
    """A journal open for writing, by one process at a time.

    Args:
        path: of the file; made if it is not there.

    Raises:
        JournalError: if another process has it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO = path.open("ab", buffering=0)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise JournalError(f"{path}: another process is playing this run") from None

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return os.fstat(self._file.fileno()).st_size

    def append(self, events: Iterable[Event]) -> None:
        """Write events at once, and see them on the disk.

        Raises:
            OSError: for a full disk, say; the journal is then as it was.
        """
        data, before = dumps(events), self.size
        try:
            written = self._file.write(data)
            if written != len(data):
                raise OSError(errno.ENOSPC, "No space left on device")
            os.fsync(self._file.fileno())
        except OSError as error:
            self._file.truncate(before)
            raise OSError(error.errno, error.strerror, str(self.path)) from None

    def truncate(self, size: int) -> None:
        """Cut off what was written after a checkpoint.

        Raises:
            JournalError: if the journal is shorter than that.
        """
        if self.size < size:
            raise JournalError(f"{self.path} has {self.size} bytes, its checkpoint says {size}: it is damaged")
        self._file.truncate(size)
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


def dumps(events: Iterable[Event]) -> bytes:
    """Events as lines; numbers that are not finite become null."""
    return "".join(json.dumps(_finite(event), separators=(",", ":"), allow_nan=False) + "\n" for event in events).encode()


def read(path: Path) -> Iterator[Event]:
    """The events of a journal. A last line that was not written to its end is left out.

    Raises:
        JournalError: for any other line that is no event.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.endswith(b"\n"):
                    yield _event(path, number, line)
    except OSError as error:
        raise JournalError(f"{path} cannot be read: {error.strerror}") from None


def _event(path: Path, number: int, line: bytes) -> Event:
    try:
        event = json.loads(line)
    except ValueError:
        event = None
    if not isinstance(event, dict) or not isinstance(event.get("event"), str):
        raise JournalError(f"{path}, line {number}: no event of a run")
    return event


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(x) for key, x in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(x) for x in value]
    return value
