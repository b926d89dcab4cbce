"""A value's text, as a program's process writes it: typed JSON, described in `selfplay.referee.encoding`.

Types are compared by identity and nothing a program wrote is ever called, so subclasses, instances, functions and
generators are no values, however they describe themselves.
"""

from __future__ import annotations

from _json import encode_basestring_ascii as _escaped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class NotAValueError(Exception):
    """Something that is no plain literal; the message names its kind."""


class TooLargeError(Exception):
    """A value over the limits; the message says which."""


_TAGS: dict[type[Any], str] = {list: "", tuple: '{"t": ', dict: '{"d": ', set: '{"s": ', frozenset: '{"z": '}
_FLOATS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def write(value: Any, budget: list[int], depth: int, canonical: bool) -> str:
    """The value's text.

    Args:
        value: anything.
        budget: what is left of parts and of text, and the bits an integer may have; used up on the way.
        depth: containers that may still be inside one another.
        canonical: one text for all equal values; otherwise dicts keep their order and zeros their sign.

    Raises:
        NotAValueError: for anything that is not built of plain literals.
        TooLargeError: when the budget or the depth is used up.
    """
    # One function on purpose: in a program's process every function touched is memory to copy.
    kind = type(value)
    budget[0] -= 1
    if budget[0] < 0:
        raise TooLargeError("too many parts")
    if kind is str or kind is bytes:
        budget[1] -= len(value)
        if budget[1] < 0:
            raise TooLargeError("too much text")
        return _escaped(value) if kind is str else f'{{"b": "{value.hex()}"}}'
    if kind is int:
        if value.bit_length() > budget[2]:
            raise TooLargeError("an integer with too many digits")
        return repr(value)
    if value is None or kind is bool:
        return "null" if value is None else "true" if value else "false"
    if kind is float:
        text = repr(value + 0.0 if canonical else value)  # -0.0 + 0.0 is 0.0
        return _FLOATS.get(text, text)
    if kind is complex:
        return f'{{"c": [{write(value.real, budget, depth, canonical)}, {write(value.imag, budget, depth, canonical)}]}}'
    if kind not in _TAGS:
        raise NotAValueError(type.__dict__["__name__"].__get__(kind))
    if depth <= 0 or len(value) > budget[0]:
        raise TooLargeError("too deep" if depth <= 0 else "too many parts")
    depth -= 1
    if kind is dict:
        parts = [f"[{write(k, budget, depth, canonical)}, {write(v, budget, depth, canonical)}]" for k, v in value.items()]
    else:
        parts = [write(x, budget, depth, canonical) for x in value]
    if kind is set or kind is frozenset or (canonical and kind is dict):
        parts.sort()
    return f"{_TAGS[kind]}[{', '.join(parts)}]{'' if kind is list else '}'}"
