"""Plain literals: equality, display, and parsing of what a model wrote.

A value is None, bool, int, float, complex, str, bytes, or a list, tuple, dict, set or frozenset of values. Text from a
model is parsed with Python's grammar and never evaluated.
"""

from __future__ import annotations

import ast
import math
import warnings
from typing import Any

from selfplay.referee.encoding import ValueLimits, canonical, decode, encode
from selfplay.referee.inside.codec import NotAValueError, TooLargeError

__all__ = [
    "NotAValueError",
    "TooLargeError",
    "ValueLimits",
    "canonical",
    "decode",
    "encode",
    "equal",
    "literal",
    "parse_arguments",
    "parse_literal",
]

_CONSTANTS = (int, float, complex, str, bytes, bool, type(None))
_NAMES = {"nan": math.nan, "inf": math.inf}
_WORDS = {"nan", "inf", "-inf", "+inf", "infinity", "-infinity"}
_LONGEST = 400_000
_LIMITS = ValueLimits()


def equal(a: Any, b: Any) -> bool:
    """Whether two values are the same: by type and content, nan equal to nan, no user code called.

    Raises:
        NotAValueError, TooLargeError: if either is no value.
    """
    return canonical(a) == canonical(b)


def literal(value: Any) -> str:
    """The value as Python source that `parse_literal` reads back; sets in canonical order, dicts in their own."""
    kind = type(value)
    if kind is float or kind is int or kind is str or kind is bytes or kind is bool or value is None:
        return repr(value)
    if kind is complex:
        return _complex(value)
    if kind is dict:
        return "{" + ", ".join(f"{literal(k)}: {literal(v)}" for k, v in value.items()) + "}"
    if kind is set or kind is frozenset:
        inner = ", ".join(literal(x) for x in sorted(value, key=canonical))
        braces = "{" + inner + "}" if value else ""
        return (braces or "set()") if kind is set else f"frozenset({braces})"
    if kind is list:
        return "[" + ", ".join(literal(x) for x in value) + "]"
    if kind is tuple:
        return "(" + ", ".join(literal(x) for x in value) + ("," if len(value) == 1 else "") + ")"
    raise NotAValueError(kind.__name__)


def _complex(value: complex) -> str:
    plain = math.isfinite(value.real) and math.isfinite(value.imag)
    if plain and math.copysign(1, value.real) > 0 and (value.imag or math.copysign(1, value.imag) > 0):
        return repr(value)
    return f"complex({value.real!r}, {value.imag!r})"


def parse_literal(text: str, limits: ValueLimits = _LIMITS) -> Any:
    """The value a text stands for.

    Python's literals, plus `set()`, `frozenset(...)`, `complex(a, b)`, `nan`, `inf` and `float('nan')`. Arithmetic is not
    evaluated, apart from signs and the sum in `1+2j`.

    Raises:
        NotAValueError: for anything else.
        TooLargeError: for a value over the limits.
    """
    return _checked(_value(_parsed(text.strip(), limits), limits.depth), limits)


def parse_arguments(text: str, limits: ValueLimits = _LIMITS) -> tuple[Any, ...]:
    """Positional arguments as one writes them in a call: `1, 'a', [2]`, or nothing at all.

    Raises:
        NotAValueError, TooLargeError: as `parse_literal`.
    """
    call = _parsed(f"f(\n{text}\n)", limits)
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.keywords:
        raise NotAValueError("not a list of arguments")
    if call.func.id != "f" or call.func.lineno != 1:
        raise NotAValueError("not a list of arguments")
    return _checked(tuple(_value(x, limits.depth) for x in call.args), limits)


def _parsed(text: str, limits: ValueLimits) -> ast.expr:
    if len(text) > min(_LONGEST, 2 * limits.text + 10 * limits.nodes):
        raise TooLargeError("too much text")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NotAValueError(f"not a literal: {type(error).__name__}") from None


def _checked(value: Any, limits: ValueLimits) -> Any:
    canonical(value, limits)
    return value


def _value(node: ast.expr, depth: int) -> Any:
    if depth < -1:
        raise TooLargeError("too deep")
    match node:
        case ast.Constant(value=value) if type(value) in _CONSTANTS:
            return value
        case ast.Name(id=name) if name in _NAMES:
            return _NAMES[name]
        case ast.List(elts=parts):
            return _values(parts, depth)
        case ast.Tuple(elts=parts):
            return tuple(_values(parts, depth))
        case ast.Set(elts=parts):
            return _hashable(set, _values(parts, depth))
        case ast.Dict(keys=keys, values=values) if None not in keys:
            pairs = zip(_values([k for k in keys if k], depth), _values(values, depth), strict=True)
            return _hashable(dict, list(pairs))
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
            return _signed(sign, _value(operand, depth - 1))
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
            return _sum(_value(left, depth - 1), op, _value(right, depth - 1))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            return _constructed(name, _values(args, depth))
    raise NotAValueError(f"not a literal: {type(node).__name__}")


def _values(nodes: list[ast.expr], depth: int) -> list[Any]:
    return [_value(x, depth - 1) for x in nodes]


def _hashable(kind: type, parts: list[Any]) -> Any:
    try:
        return kind(parts)
    except TypeError:
        raise NotAValueError(f"a {kind.__name__} of unhashable parts") from None


def _signed(sign: ast.unaryop, value: Any) -> Any:
    if type(value) not in (int, float, complex):
        raise NotAValueError("a sign before something that is no number")
    return -value if isinstance(sign, ast.USub) else value


def _sum(left: Any, op: ast.operator, right: Any) -> complex:
    if type(left) not in (int, float) or type(right) is not complex:
        raise NotAValueError("arithmetic is not a literal")
    try:
        return left + right if isinstance(op, ast.Add) else left - right
    except OverflowError:
        raise NotAValueError("a complex number out of range") from None


def _constructed(name: str, args: list[Any]) -> Any:
    match name, args:
        case "set", []:
            return set()
        case "frozenset", []:
            return frozenset()
        case "frozenset", [list() | tuple() | set() as parts]:
            return _hashable(frozenset, list(parts))
        case "float", [str() as word] if word.strip().lower() in _WORDS:
            return float(word)
        case "complex", [int() | float() as re, int() | float() as im] if bool not in (type(re), type(im)):
            try:
                return complex(re, im)
            except OverflowError:
                pass
    raise NotAValueError(f"a call of {name} is not a literal")
