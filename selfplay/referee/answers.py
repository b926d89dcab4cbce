"""The referee's side of the messages: jobs out, answers in."""

from __future__ import annotations

import marshal
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from selfplay.referee.inside import wire


class Outcome(NamedTuple):
    """How a program's process ended.

    Attributes:
        exit: its exit state, negative for a signal.
        late: whether it was killed at the end of its wall time.
        ended: whether it says that it came to its end.
        whole: whether the page's length made sense.
        cpu: seconds of processor time.
        peak: kilobytes of memory.
        page: the records.
    """

    exit: int
    late: bool
    ended: bool
    whole: bool
    cpu: float
    peak: int
    page: bytes


def frame(body: bytes) -> bytes:
    """One message to send."""
    return wire.LENGTH.pack(len(body)) + body


def job(program: str, inputs: Sequence[bytes], entry: str | None, calls: int, wall_seconds: float, without: Sequence[str]) -> bytes:
    """The body of a job; `inputs` are argument tuples in `marshal` form."""
    return marshal.dumps((program, list(inputs), entry, calls, wall_seconds, list(without)))


def read(body: bytes) -> Outcome | str:
    """An answer; a text says why the worker failed.

    Raises:
        ValueError: for bytes that no worker sends.
    """
    if body[:1] == wire.FAILURE:
        return body[1:].decode("utf-8", "replace")
    if body[:1] != b"O" or len(body) < wire.OUTCOME.size:
        raise ValueError("no answer")
    _, state, late, ended, whole, cpu, peak = wire.OUTCOME.unpack_from(body)
    return Outcome(state, late, ended, whole, cpu, peak, body[wire.OUTCOME.size :])


def records(page: bytes) -> Iterator[tuple[int, bytes]]:
    """The records of a program's process, in order.

    Raises:
        ValueError: if the bytes are not whole records of known kinds.
    """
    at = 0
    while at < len(page):
        if at + wire.RECORD.size > len(page):
            raise ValueError("half a record")
        kind, size = wire.RECORD.unpack_from(page, at)
        at += wire.RECORD.size
        if kind > wire.NO_ENTRY or at + size > len(page):
            raise ValueError("no record")
        yield kind, page[at : at + size]
        at += size
