"""Reading a model's text: the program in it."""

from __future__ import annotations

import re

_FENCE = re.compile(r"^[ \t]*```[ \t]*([\w+-]*)[^\n]*\n(.*?)(?:^[ \t]*```|\Z)", re.MULTILINE | re.DOTALL)
_THOUGHTS = re.compile(r"^.*</think>", re.DOTALL)


def said(text: str) -> str:
    """What stands behind the thoughts of a model that thinks aloud."""
    return _THOUGHTS.sub("", text)


def program(text: str, entry: str | None = None) -> str:
    """The program in a text: the last fenced block of Python, of those that define `entry` if one does; else the whole text.

    A block that was cut off goes to the end of the text.
    """
    text = said(text)
    found = [body for tag, body in _FENCE.findall(text) if tag.lower() in ("", "python", "py", "python3")]
    if not found:
        return text
    defining = [body for body in found if entry and re.search(rf"^\s*def\s+{re.escape(entry)}\b", body, re.MULTILINE)]
    return (defining or found)[-1]
