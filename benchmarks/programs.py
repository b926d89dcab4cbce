"""Programs to run: CRUXEval's from a data folder, and generated ones of the kind a small teacher writes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lora_evo.seeding import stream
from selfplay.referee import NotAValueError, parse_arguments, parse_literal


@dataclass(frozen=True)
class Sample:
    """A program with one input; `expected` is its published output, where there is one."""

    program: str
    arguments: tuple[Any, ...]
    expected: Any = None
    published: bool = False


def cruxeval(folder: Path) -> list[Sample]:
    """All rows. The few inputs that are expressions, not literals, become part of the program: this data is trusted.

    Raises:
        FileNotFoundError: if the folder lacks the file.
    """
    samples = []
    for line in (folder / "cruxeval-500.jsonl").read_text().splitlines():
        row = json.loads(line)
        program, expected = row["code"], parse_literal(row["output"])
        try:
            arguments = parse_arguments(row["input"])
        except NotAValueError:
            program += f"\n\n_inner = f\n\ndef f():\n    return _inner({row['input']})\n"
            arguments = ()
        samples.append(Sample(program, arguments, expected, True))
    return samples


LIST_STEPS = (
    "x = [v * {a} + {b} for v in x]",
    "x = [v for v in x if v % {c} != {b}]",
    "x = sorted(x, reverse={t})",
    "x = x[{b}:] + x[:{b}]",
    "x = list(dict.fromkeys(x))",
    "for i in range(len(x) - 1):\n        x[i] += x[i + 1] % {c}",
    "total = 0\n    for v in x:\n        total = total * {a} % 1009 + v\n    x.append(total)",
    "x = [max(x[: i + 1]) for i in range(len(x))]",
)
TEXT_STEPS = (
    "x = x.replace({u!r}, {v!r})",
    "x = ''.join(reversed(x))",
    "x = ''.join(c.upper() if i % {c} == 0 else c for i, c in enumerate(x))",
    "x = x[{b}:] + x[:{b}]",
    "seen = {{}}\n    for c in x:\n        seen[c] = seen.get(c, 0) + 1\n    x = ''.join(k * n for k, n in seen.items())",
    "x = ' '.join(sorted(x.split()))",
    "x = x.strip({u!r}) + str(len(x))",
)
ENDS = ("return x", "return len(x), x", "return {{'value': x, 'n': len(x)}}", "return set(x)", "return x[::2]")


def generated(count: int, seed: int = 0) -> list[Sample]:
    """Small functions over lists and strings, all different, the same for the same seed."""
    rng = stream(seed, "benchmark programs")
    return [_one(rng, i) for i in range(count)]


def _one(rng: np.random.Generator, i: int) -> Sample:
    text = bool(rng.integers(2))
    steps = TEXT_STEPS if text else LIST_STEPS
    lines = [f"n = {i}"]
    for _ in range(int(rng.integers(1, 6))):
        a, b, c = (int(rng.integers(*r)) for r in ((2, 6), (0, 3), (2, 5)))
        u, v = (chr(97 + int(rng.integers(8))) for _ in range(2))
        lines.append(str(steps[rng.integers(len(steps))]).format(a=a, b=b, c=c, u=u, v=v, t=bool(b)))
    lines.append(str(ENDS[rng.integers(len(ENDS))]).format())
    size = int(rng.integers(3, 12))
    given: Any = [int(v) for v in rng.integers(-9, 30, size)]
    if text:
        given = "".join(chr(97 + int(v)) for v in rng.integers(0, 8, 2 * size))
    return Sample("def f(x):\n    " + "\n    ".join(lines) + "\n", (given,))
