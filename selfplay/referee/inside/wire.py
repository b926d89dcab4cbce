"""Messages between the referee and a worker, and what a program's process leaves in the shared page.

Referee to worker: a 4-byte length, then JSON. Worker to referee: a 4-byte length, one JSON line, then raw bytes.
The shared page belongs to one worker and is the only thing its program can hand over; it may hold anything.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

LENGTH = struct.Struct("<I")
HEADER = struct.Struct("<II")
"""Start of the shared page: bytes used by records, and whether the program's process came to its end (END)."""
RECORD = struct.Struct("<BI")
END = 0x0E0F1CE5

# What one record says of one input, or of the program as a whole when no input was reached.
VALUE, RAISED, NOT_A_VALUE, TOO_LARGE, MEMORY, FORBIDDEN, SYNTAX, NO_ENTRY = range(8)


def frame(message: dict[str, Any], tail: bytes = b"") -> bytes:
    """One message to send."""
    body = json.dumps(message).encode() + b"\n" + tail
    return LENGTH.pack(len(body)) + body


def unframe(body: bytes) -> tuple[dict[str, Any], bytes]:
    """A message and its tail.

    Raises:
        ValueError: for bytes that `frame` did not write.
    """
    head, _, tail = body.partition(b"\n")
    message = json.loads(head)
    if type(message) is not dict:
        raise ValueError("no message")
    return message, tail


def records(page: bytes) -> Iterator[tuple[int, bytes]]:
    """The records of a program's process, in order.

    Raises:
        ValueError: if the bytes are not whole records of known kinds.
    """
    at = 0
    while at < len(page):
        if at + RECORD.size > len(page):
            raise ValueError("half a record")
        kind, size = RECORD.unpack_from(page, at)
        at += RECORD.size
        if kind > NO_ENTRY or at + size > len(page):
            raise ValueError("no record")
        yield kind, page[at : at + size]
        at += size
