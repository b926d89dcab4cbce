"""Values as typed JSON text: the only form in which a value leaves or enters a worker.

None, bool, int, float, str and list stand for themselves; every other kind is an object with one key:
`{"t": [..]}` tuple, `{"d": [[key, value], ..]}` dict in its own order, `{"s": [..]}` set, `{"z": [..]}` frozenset,
`{"b": "hex"}` bytes, `{"c": [re, im]}` complex. Types are compared by identity and nothing a program wrote is ever called,
so subclasses, instances, functions and generators are no values, however they describe themselves.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

_dumps = json.dumps
_NUMBERS = (int, float)


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


class NotAValueError(Exception):
    """Something that is no plain literal; the message names its kind."""


class TooLargeError(Exception):
    """A value over the limits; the message says which."""


class _Packer:
    """One walk over one value, with what is left of its budget."""

    __slots__ = ("canonical", "int_bits", "nodes", "text")

    def __init__(self, limits: ValueLimits, canonical: bool) -> None:
        self.nodes = limits.nodes
        self.text = limits.text
        self.int_bits = limits.int_bits
        self.canonical = canonical

    def pack(self, value: Any, depth: int) -> Any:
        kind = type(value)
        self.nodes -= 1
        if self.nodes < 0:
            raise TooLargeError("too many parts")
        if kind is str:
            return self.string(value)
        if kind is int:
            if value.bit_length() > self.int_bits:
                raise TooLargeError("an integer with too many digits")
            return value
        if value is None or kind is bool:
            return value
        if kind is float:
            return value + 0.0 if self.canonical else value  # -0.0 + 0.0 is 0.0
        if depth <= 0:
            raise TooLargeError("too deep")
        return self.container(value, kind, depth - 1)

    def string(self, value: str) -> str:
        self.text -= len(value)
        if self.text < 0:
            raise TooLargeError("too much text")
        return value

    def container(self, value: Any, kind: type, depth: int) -> Any:
        if kind is list:
            return [self.pack(x, depth) for x in self.sized(value)]
        if kind is tuple:
            return {"t": [self.pack(x, depth) for x in self.sized(value)]}
        if kind is dict:
            pairs = [[self.pack(k, depth), self.pack(v, depth)] for k, v in self.sized(value).items()]
            return {"d": sorted(pairs, key=_first) if self.canonical else pairs}
        if kind is set or kind is frozenset:
            parts = sorted([self.pack(x, depth) for x in self.sized(value)], key=_dumps)
            return {"s" if kind is set else "z": parts}
        if kind is bytes:
            self.string(value)
            return {"b": value.hex()}
        if kind is complex:
            return {"c": [self.pack(value.real, depth), self.pack(value.imag, depth)]}
        raise NotAValueError(type.__dict__["__name__"].__get__(kind))

    def sized(self, value: Any) -> Any:
        if len(value) > self.nodes:
            raise TooLargeError("too many parts")
        return value


def _first(pair: list[Any]) -> str:
    return _dumps(pair[0])


def encode(value: Any, limits: ValueLimits | None = None) -> str:
    """The value as typed JSON, dicts in their own order: `decode` gives it back, types and all.

    Raises:
        NotAValueError: for anything that is not built of plain literals.
        TooLargeError: for a value over the limits.
    """
    limits = limits or ValueLimits()
    return _dumps(_Packer(limits, False).pack(value, limits.depth))


def canonical(value: Any, limits: ValueLimits | None = None) -> str:
    """One text per class of equal values.

    Types matter (True is not 1, 1 is not 1.0), nan equals nan, 0.0 equals -0.0, the order of sets and dicts does not matter.

    Raises:
        NotAValueError, TooLargeError: as `encode`.
    """
    limits = limits or ValueLimits()
    return _dumps(_Packer(limits, True).pack(value, limits.depth))


def decode(text: str | bytes, limits: ValueLimits | None = None) -> Any:
    """The value of a typed JSON text, which may come from anybody.

    Raises:
        NotAValueError: for text that `encode` never writes.
        TooLargeError: for a value over the limits.
    """
    limits = limits or ValueLimits()
    try:
        return _unpack(json.loads(text), limits, limits.depth)
    except (ValueError, TypeError, RecursionError, KeyError) as error:
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
