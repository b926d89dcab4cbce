"""Small Python programs by chance: typed steps, one after the other, each with a few words that say what it does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

KINDS = ("int", "ints", "text", "words", "table", "pair")

STEPS: dict[tuple[str, str], Sequence[tuple[str, str]]] = {
    ("int", "int"): (
        ("{x} + {c}", "add {c}"), ("{x} - {c}", "subtract {c}"), ("{x} * {d}", "times {d}"), ("{x} % {d}", "remainder by {d}"),
        ("{x} // {d}", "divide by {d}"), ("{c} - {x}", "from {c}"), ("abs({x})", "absolute"), ("max({x}, {c})", "at least {c}"),
        ("min({x}, {c})", "at most {c}"), ("{x} + {c} if {x} > {k} else {x} - {d}", "above {k} add {c} else subtract {d}"),
        ("if {x} > {c}:\n        {x} = {x} - {c}\n    else:\n        {x} = {x} * {d}", "above {c} subtract {c} else times {d}"),
        ("{y} = 0\n    for i in range({d}):\n        {y} += {x} + i", "sum from it up {d} times"),
        ("while {x} > {c}:\n        {x} = {x} - {c}", "subtract {c} while above {c}"),
    ),
    ("int", "ints"): (
        ("[{x}, {x} + {c}]", "list it and it plus {c}"), ("[{x} * i for i in range({d})]", "first {d} multiples"),
        ("[int(v) for v in str(abs({x}))]", "digits"), ("[{x}] * {d}", "repeat in list {d} times"),
    ),
    ("int", "text"): (("str({x})", "as text"), ("'{q}' * abs({x} % {d})", "letter {q} by remainder of {d}")),
    ("int", "pair"): (("({x}, {x} * {d})", "pair with times {d}"), ("({x} // {d}, {x} % {d})", "quotient and remainder by {d}")),
    ("ints", "int"): (
        ("sum({x})", "sum"), ("len({x})", "length"), ("max({x})", "largest"), ("min({x})", "smallest"), ("{x}[0]", "first"),
        ("{x}[-1]", "last"), ("{x}.count({c})", "count {c}"), ("max({x}) - min({x})", "range of values"),
        ("sum(v for v in {x} if v > {c})", "sum above {c}"), ("len([v for v in {x} if v % {d} == 0])", "how many divide by {d}"),
        ("{y} = 0\n    for v in {x}:\n        if v > {c}:\n            {y} += 1", "how many above {c}"),
        ("{y} = {c}\n    for v in {x}:\n        {y} = v - {y}", "fold from {c} by item minus total"),
        ("{y} = 0\n    for i, v in enumerate({x}):\n        {y} += i * v", "sum of index times item"),
    ),
    ("ints", "ints"): (
        ("[v + {c} for v in {x}]", "add {c} to each"), ("[v * {d} for v in {x}]", "each times {d}"),
        ("[v for v in {x} if v > {c}]", "keep above {c}"), ("[v for v in {x} if v % 2 == 0]", "keep even"),
        ("[v for v in {x} if v % 2 == 1]", "keep odd"), ("sorted({x})", "sort"), ("sorted({x}, reverse=True)", "sort down"),
        ("{x}[::-1]", "reverse"), ("{x}[{k}:]", "drop first {k}"), ("{x}[:-1]", "drop last"), ("{x}[:{d}]", "take {d}"),
        ("{x} + [{c}]", "append {c}"), ("[{c}] + {x}", "put {c} in front"), ("[abs(v) for v in {x}]", "each absolute"),
        ("sorted(set({x}))", "sort unique"), ("{x}[::2]", "every second"), ("[v % {d} for v in {x}]", "each remainder by {d}"),
        ("{y} = []\n    for v in {x}:\n        if v not in {y}:\n            {y}.append(v)", "drop repeated"),
        ("{y} = []\n    t = 0\n    for v in {x}:\n        t += v\n        {y}.append(t)", "running sum"),
    ),
    ("ints", "pair"): (("(min({x}), max({x}))", "smallest and largest"), ("(len({x}), sum({x}))", "length and sum")),
    ("ints", "words"): (("[str(v) for v in {x}]", "each as text"),),
    ("text", "text"): (
        ("{x}.upper()", "upper case"), ("{x}[::-1]", "reverse"), ("{x} + '{t}'", "add {t} behind"), ("'{t}' + {x}",
        "put {t} in front"),
        ("{x} * 2", "twice"), ("{x}.replace('{q}', '{r}')", "replace {q} by {r}"), ("{x}[{k}:]", "drop first {k}"),
        ("{x}[:{d}]", "take {d}"), ("''.join(sorted({x}))", "sort letters"), ("{x}.capitalize()", "capital first"),
        ("''.join(c for c in {x} if c in 'aeiou')", "keep vowels"), ("''.join(c for c in {x} if c != '{q}')", "drop {q}"),
        ("{x}[::2]", "every second"), ("{x}[-1] + {x}[:-1]", "rotate"),
        ("{y} = ''\n    for c in {x}:\n        {y} = c + {y}", "reverse by loop"),
    ),
    ("text", "int"): (
        ("len({x})", "length"), ("{x}.count('{q}')", "count {q}"), ("{x}.find('{q}')", "where is {q}"),
        ("{y} = 0\n    for c in {x}:\n        if c in 'aeiou':\n            {y} += 1", "how many vowels"),
        ("len(set({x}))", "how many different"),
    ),
    ("text", "words"): (("list({x})", "letters"), ("{x}.split('{q}')", "split at {q}"), ("[{x}, {x}[::-1]]", "it and its reverse")),
    ("text", "table"): (("{y} = {{}}\n    for c in {x}:\n        {y}[c] = {y}.get(c, 0) + 1", "count letters"),),
    ("words", "text"): (
        ("'-'.join({x})", "join by dash"), ("''.join({x})", "join"), ("{x}[0]", "first"), ("{x}[-1]", "last"),
        ("''.join([w[0] for w in {x}])", "initials"), ("max({x}, key=len)", "longest"),
    ),
    ("words", "words"): (
        ("sorted({x})", "sort"), ("{x}[::-1]", "reverse"), ("[w.upper() for w in {x}]", "each upper case"),
        ("[w for w in {x} if len(w) > {k}]", "keep longer than {k}"), ("{x} + ['{t}']", "append {t}"),
        ("[w + '{q}' for w in {x}]", "add {q} to each"), ("[w for w in {x} if '{q}' in w]", "keep with {q}"),
    ),
    ("words", "ints"): (("[len(w) for w in {x}]", "lengths"),),
    ("words", "int"): (("len({x})", "length"), ("sum(len(w) for w in {x})", "sum of lengths")),
    ("words", "table"): (("{{w: len(w) for w in {x}}}", "length of each"),),
    ("table", "int"): (
        ("sum({x}.values())", "sum of values"), ("len({x})", "length"), ("max({x}.values())", "largest value"),
        ("{x}.get('{q}', {c})", "value of {q} or {c}"),
    ),
    ("table", "words"): (("sorted({x})", "sorted keys"), ("[k for k in {x} if {x}[k] > {c}]", "keys above {c}")),
    ("table", "ints"): (("sorted({x}.values())", "sorted values"), ("[v + {c} for v in {x}.values()]", "values plus {c}")),
    ("table", "table"): (
        ("{{k: v + {c} for k, v in {x}.items()}}", "add {c} to values"), ("{{k: v * {d} for k, v in {x}.items()}}",
        "values times {d}"),
        ("{{k: v for k, v in {x}.items() if v > {c}}}", "keep values above {c}"),
    ),
    ("pair", "int"): (
        ("{x}[0] + {x}[1]", "sum of both"), ("{x}[0] * {x}[1]", "product of both"), ("{x}[0] - {x}[1]", "difference of both"),
        ("max({x})", "larger"),
    ),
    ("pair", "pair"): (("({x}[1], {x}[0])", "swap"), ("({x}[0] + {c}, {x}[1])", "add {c} to first"),
        ("({x}[0], {x}[1] * {d})", "second times {d}")),
    ("pair", "ints"): (("list({x})", "as list"), ("[{x}[0], {x}[1], {x}[0] + {x}[1]]", "both and sum")),
}  # fmt: skip
"""(from, to) -> expressions or statements over {x}, and the words for them. {y} is a new variable, {c}, {d}, {k} are numbers,
{q}, {r}, {t} letters."""

LETTERS = "abcdeilnorst"


@dataclass(frozen=True)
class Drawn:
    """A program, inputs for it, and what it does in words."""

    program: str
    inputs: tuple[tuple[Any, ...], ...]
    message: str
    steps: int


def draw(rng: np.random.Generator, steps: int, inputs: int = 8, longer: int = 0) -> Drawn:
    """A program of so many steps, none: it gives back what it gets.

    Args:
        inputs: different ones to draw for it; fewer where chance gives no more.
        longer: how much longer lists and texts are than usual.
    """
    kind = start = str(rng.choice(KINDS, p=(0.2, 0.3, 0.25, 0.1, 0.08, 0.07)))
    name = parameter = str(rng.choice(("x", "x", "x", "a", "s")))
    lines: list[str] = []
    words: list[str] = []
    number = ""
    for i in range(steps):
        kind, (template, said) = _step(kind, rng)
        constants = _constants(rng)
        if i == 0 and "{c}" in template and rng.random() < 0.3:
            number = constants["c"] = "n"
        text = template.format(x=name, y="y" if name != "y" else "z", **constants)
        words.append(said.format(**constants))
        if "\n" not in text:
            lines.append(f"{name} = {text}" if i < steps - 1 else f"return {text}")
            continue
        lines.append(text)
        name = ("y" if name != "y" else "z") if "{y}" in template else name
        lines += [f"return {name}"] if i == steps - 1 else []
    head = f"def f({parameter}, {number}):" if number else f"def f({parameter}):"
    given: dict[str, tuple[Any, ...]] = {}
    for _ in range(3 * inputs):
        first = value(start, rng, longer)
        values = (first, int(rng.integers(0, 10))) if number else (first,)
        given.setdefault(repr(values), values)
    program = "\n    ".join([head, *(lines or [f"return {name}"])]) + "\n"
    return Drawn(program, tuple(given.values())[:inputs], " then ".join(words) or "same", steps)


def value(kind: str, rng: np.random.Generator, longer: int = 0) -> Any:
    """An argument of a kind."""
    if kind == "int":
        return int(rng.integers(-9, 30))
    if kind == "ints":
        return [
            int(v)
            for v in rng.integers(-5 if rng.random() < 0.3 else 0, 10 if rng.random() < 0.7 else 30, rng.integers(2, 6) + longer)
        ]
    if kind == "pair":
        return (int(rng.integers(-9, 20)), int(rng.integers(0, 12)))
    if kind == "table":
        keys = rng.permutation(list(LETTERS))[: int(rng.integers(1, 4)) + longer // 2]
        return {str(k): int(rng.integers(0, 10)) for k in keys}
    if kind == "words":
        return [_letters(rng, 1, 4) for _ in range(int(rng.integers(1, 4)) + longer // 2)]
    return _letters(rng, 2 + longer, 7 + longer)


def _letters(rng: np.random.Generator, low: int, high: int) -> str:
    return "".join(LETTERS[i] for i in rng.integers(0, len(LETTERS), int(rng.integers(low, high))).tolist())


def _step(kind: str, rng: np.random.Generator) -> tuple[str, tuple[str, str]]:
    """A step from a kind: where to, and which; kinds with many steps come more often."""
    choices = [(to, step) for (source, to), steps in STEPS.items() if source == kind for step in steps]
    to, step = choices[int(rng.integers(len(choices)))]
    return to, step


def _constants(rng: np.random.Generator) -> dict[str, str]:
    c, d, k = (int(rng.integers(*r)) for r in ((1, 10), (2, 6), (1, 4)))
    q, r = (str(letter) for letter in rng.permutation(list(LETTERS))[:2])
    return {"c": str(c), "d": str(d), "k": str(k), "q": q, "r": r, "t": _letters(rng, 1, 3)}
