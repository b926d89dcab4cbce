"""Reading models' texts: fenced blocks for the chat style, labelled lines for the compact one. Strict, and never by guessing.

Nothing here raises anything but FormatError, whatever the text.
"""

from __future__ import annotations

import re
from typing import Any

from selfplay.referee import NotAValueError, Status, TooLargeError, parse_arguments, parse_literal
from selfplay.tasks.base import FormatError

LONGEST = 60_000
"""Characters of a completion that are read; more is a format failure."""

_FENCE = re.compile(r"^[ \t]*```[ \t]*([A-Za-z]*)[ \t]*\n(.*?)^[ \t]*```[ \t]*$", re.MULTILINE | re.DOTALL)
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def blocks(text: str) -> list[tuple[str, str]]:
    """The fenced blocks as (tag, content), inside the last `<answer>` where there is one.

    Raises:
        FormatError: if the text is too long.
    """
    if len(text) > LONGEST:
        raise FormatError("the text is too long", Status.TOO_LARGE)
    answers = _ANSWER.findall(text)
    return [(tag.lower(), body.strip("\n")) for tag, body in _FENCE.findall((answers[-1] if answers else text) + "\n")]


def block(text: str, tag: str) -> str:
    """The one block of a tag; of several, the last.

    Raises:
        FormatError: if there is none.
    """
    found = [body for name, body in blocks(text) if name == tag]
    if not found:
        raise FormatError(f"no {tag} block")
    return found[-1]


def labelled(text: str, labels: tuple[str, ...]) -> tuple[str, list[tuple[str, str]]]:
    """A compact text: what stands before the first labelled line, and the labelled lines up to the first empty one after it.

    Raises:
        FormatError: if the text is too long, or a line between labelled ones has no label.
    """
    if len(text) > LONGEST:
        raise FormatError("the text is too long", Status.TOO_LARGE)
    head: list[str] = []
    found: list[tuple[str, str]] = []
    for line in text.split("\n"):
        label, colon, rest = line.partition(":")
        if colon and label in labels:
            found.append((label, rest.strip()))
        elif not found:
            head.append(line)
        elif not line.strip():
            break
        else:
            raise FormatError("a line without a label")
    return "\n".join(head).strip("\n"), found


def first_line(text: str) -> str:
    """The first line of a compact answer.

    Raises:
        FormatError: if the text is too long or the line is empty.
    """
    if len(text) > LONGEST:
        raise FormatError("the text is too long", Status.TOO_LARGE)
    line = text.lstrip(" ").split("\n", 1)[0].strip()
    if not line:
        raise FormatError("an empty answer")
    return line


def value(text: str) -> Any:
    """A literal.

    Raises:
        FormatError: for anything else.
    """
    try:
        return parse_literal(text)
    except NotAValueError as error:
        raise FormatError(str(error)) from None
    except TooLargeError as error:
        raise FormatError(str(error), Status.TOO_LARGE) from None


def arguments(text: str) -> tuple[Any, ...]:
    """Arguments of a call.

    Raises:
        FormatError: for anything else.
    """
    try:
        return parse_arguments(text)
    except NotAValueError as error:
        raise FormatError(str(error)) from None
    except TooLargeError as error:
        raise FormatError(str(error), Status.TOO_LARGE) from None


def program(text: str) -> str:
    """A program's text, ended by one newline.

    Raises:
        FormatError: if it is empty.
    """
    if not text.strip():
        raise FormatError("an empty program")
    return text.strip("\n") + "\n"
