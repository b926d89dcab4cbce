"""Values: encoding is the identity on types and values, equality is an equivalence, parsers never fail in their own way."""

import contextlib
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfplay.referee import (
    NotAValueError,
    TooLargeError,
    ValueLimits,
    canonical,
    decode,
    encode,
    equal,
    literal,
    parse_arguments,
    parse_literal,
)

hashable_scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers(allow_nan=True)
)
hashables = st.recursive(hashable_scalars, lambda x: st.tuples(x, x) | st.frozensets(x, max_size=4), max_leaves=8)
values = st.recursive(
    hashables,
    lambda x: st.lists(x, max_size=4) | st.tuples(x) | st.dictionaries(hashables, x, max_size=4) | st.sets(hashables, max_size=4),
    max_leaves=12,
)


def same(a, b):
    """Identity on types and values, written apart from the code under test."""
    if type(a) is not type(b):
        return False
    if type(a) is float:
        return math.isnan(a) if math.isnan(b) else a == b and math.copysign(1, a) == math.copysign(1, b)
    if type(a) is complex:
        return same(a.real, b.real) and same(a.imag, b.imag)
    if type(a) in (list, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if type(a) is dict:
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a.items(), b.items(), strict=True))
    if type(a) in (set, frozenset):
        left, rest = list(a), list(b)
        for x in left:
            match = next((i for i, y in enumerate(rest) if same(x, y)), None)
            if match is None:
                return False
            rest.pop(match)
        return not rest
    return a == b


@given(values)
def test_encode_then_decode_is_the_identity(value):
    assert same(decode(encode(value)), value)


@given(values)
def test_literal_then_parse_is_equal(value):
    assert equal(parse_literal(literal(value)), value)


@given(st.lists(values, max_size=3))
def test_arguments_then_parse_is_equal(args):
    assert equal(parse_arguments(", ".join(map(literal, args))), tuple(args))


@given(values, values, values)
def test_equality_is_an_equivalence(a, b, c):
    assert equal(a, a)
    assert equal(a, b) == equal(b, a)
    if equal(a, b) and equal(b, c):
        assert equal(a, c)


@given(st.dictionaries(hashables, values, max_size=5), st.randoms())
def test_order_of_dicts_does_not_matter(value, random):
    items = list(value.items())
    random.shuffle(items)
    assert equal(dict(items), value)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (True, 1),
        (1, 1.0),
        ([1], (1,)),
        ({1}, frozenset({1})),
        ("1", 1),
        (b"a", "a"),
        (None, False),
        ({1: 2}, {True: 2}),
        (1j, 1),
        ({}, set()),
        (0, False),
        ("", None),
        ([{1}], [frozenset({1})]),
    ],
)
def test_types_matter(a, b):
    assert not equal(a, b)


def test_nan_and_zero():
    assert equal(float("nan"), -float("nan"))
    assert equal([float("nan")], [float("inf") - float("inf")])
    assert equal(0.0, -0.0)
    assert not equal(float("inf"), float("-inf"))


@settings(max_examples=300)
@given(st.text(max_size=200) | st.text(alphabet="()[]{},:'\"\\0123456789eEjJ.+-_ nainftrueNoTF#\n", max_size=60))
def test_parsers_never_raise_otherwise(text):
    for parse in (parse_literal, parse_arguments, decode):
        with contextlib.suppress(NotAValueError, TooLargeError):
            canonical(parse(text), ValueLimits(nodes=10**6, depth=100, text=10**6))


@pytest.mark.parametrize(
    "text", ["1 + 1", "True or f(0)", "5) or (True", "x", "f(1)", "lambda: 1", "[i for i in 'a']", "'a' 'b'.x"]
)
def test_nothing_is_evaluated(text):
    with pytest.raises(NotAValueError):
        parse_literal(text)


@pytest.mark.parametrize(
    "text", ["5) or (True", "1)(2", "1) + f(2", "a=1", "*[1]", "**{}", "__import__('os')", "f", "1 #\n) (", ")"]
)
def test_arguments_are_not_pasted(text):
    with pytest.raises(NotAValueError):
        parse_arguments(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("", ()), ("1, 'a'", (1, "a")), ("(1, 2)", ((1, 2),)), ("(1), 2,", (1, 2)), ("[1, 2] # two", ([1, 2],)), ("\n1\n", (1,))],
)
def test_arguments(text, value):
    assert equal(parse_arguments(text), value)


@pytest.mark.parametrize(
    "text", ["(" * 300, "-" * 5000 + "1", "9" * 5000, "[" * 60 + "]" * 60, "'" + "a" * 300_000 + "'", "1" + "+1" * 3000, "1e999j"]
)
def test_bombs_in_text(text):
    try:
        parse_literal(text)
    except (NotAValueError, TooLargeError):
        return
    assert text == "1e999j"


def test_limits_have_their_own_error():
    for value in (1 << 10_000, "a" * 300_000, list(range(30_000)), [[[[[]]]]] * 5000):
        with pytest.raises(TooLargeError):
            encode(value)
    deep: list = []
    for _ in range(100):
        deep = [deep]
    with pytest.raises(TooLargeError):
        encode(deep)


@pytest.mark.parametrize(
    "text", ["", "{", '{"t": 1}', '{"d": [[[1], 2]]}', '{"s": [1, 1]}', '{"q": []}', '{"t": [], "s": []}', '{"b": "x"}']
)
def test_decode_refuses_what_encode_never_writes(text):
    with pytest.raises(NotAValueError):
        decode(text)


def test_no_class_of_the_users_is_a_value():
    class Equal(int):
        def __eq__(self, other):
            raise AssertionError("called")

        __hash__ = int.__hash__

        def __repr__(self):
            raise AssertionError("called")

    for value in (Equal(1), [Equal(1)], {Equal(1): 2}, Ellipsis, range(3), object(), len, (x for x in [])):
        with pytest.raises(NotAValueError):
            encode(value)
