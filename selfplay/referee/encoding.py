"""Values as typed JSON text: the form in which a value leaves a worker, is stored and is compared.

None, bool, int, float, str and list stand for themselves; every other kind is an object with one key:
`{"t": [..]}` tuple, `{"d": [[key, value], ..]}` dict in its own order, `{"s": [..]}` set, `{"z": [..]}` frozenset,
`{"b": "hex"}` bytes, `{"c": [re, im]}` complex.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from selfplay.referee.inside.codec import NotAValueError, TooLargeError, write


@dataclass(frozen=True)
class ValueLimits:
    """The largest value that crosses the border.

    Attributes:
        nodes: scalars and containers together.
        depth: containers inside one another.
        text: characters and bytes of all strings together.
        int_bits: of each integer; 8192 bits are 2466 decimal digits.
    """

    nodes: int = 20_000
    depth: int = 40
    text: int = 200_000
    int_bits: int = 8192


_DEFAULT = ValueLimits()


def encode(value: Any, limits: ValueLimits = _DEFAULT) -> str:
    """The value as typed JSON, dicts in their own order: `decode` gives it back, types and all.

    Raises:
        NotAValueError: for anything that is not built of plain literals.
        TooLargeError: for a value over the limits.
    """
    return write(value, [limits.nodes, limits.text, limits.int_bits], limits.depth, False)


def canonical(value: Any, limits: ValueLimits = _DEFAULT) -> str:
    """One text per class of equal values.

    Types matter (True is not 1, 1 is not 1.0), nan equals nan, 0.0 equals -0.0, the order of sets and dicts does not matter.

    Raises:
        NotAValueError, TooLargeError: as `encode`.
    """
    return write(value, [limits.nodes, limits.text, limits.int_bits], limits.depth, True)


def decode(text: str | bytes, limits: ValueLimits = _DEFAULT) -> Any:
    """The value of a typed JSON text, which may come from anybody.

    Raises:
        NotAValueError: for text that `encode` never writes.
        TooLargeError: for a value over the limits.
    """
    try:
        return _unpack(json.loads(text), limits, limits.depth)
    except (ValueError, TypeError, RecursionError) as error:
        raise NotAValueError(f"malformed: {type(error).__name__}") from None


def _unpack(packed: Any, limits: ValueLimits, depth: int) -> Any:
    kind = type(packed)
    if kind is int:
        if packed.bit_length() > limits.int_bits:
            raise TooLargeError("an integer with too many digits")
        return packed
    if kind is str or packed is None or kind is bool or kind is float:
        return packed
    if depth <= 0:
        raise TooLargeError("too deep")
    depth -= 1
    if kind is list:
        return [_unpack(x, limits, depth) for x in packed]
    ((tag, body),) = packed.items()
    if tag == "b" and type(body) is str:
        return bytes.fromhex(body)
    if type(body) is not list:
        raise ValueError("no list")
    if tag == "d":
        return _distinct({_unpack(k, limits, depth): _unpack(v, limits, depth) for k, v in body}, body)
    parts = [_unpack(x, limits, depth) for x in body]
    if tag == "t":
        return tuple(parts)
    if tag == "s":
        return _distinct(set(parts), body)
    if tag == "z":
        return _distinct(frozenset(parts), body)
    if tag == "c":
        re, im = parts
        if type(re) is float and type(im) is float:
            return complex(re, im)
    raise ValueError("unknown tag")


def _distinct(made: Any, parts: list[Any]) -> Any:
    if len(made) != len(parts):
        raise ValueError("a key twice")
    return made
