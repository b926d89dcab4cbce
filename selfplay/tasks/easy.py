"""Five easy problems to begin with, for bases that need to be shown what a problem looks like.

In the compact style SmolLM2-135M proposes next to nothing valid after the identity alone, and one valid problem in three after
four of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from selfplay.tasks.base import Problem, Task
from selfplay.tasks.deduction import Deduction
from selfplay.tasks.induction import Induction

Case = tuple[tuple[Any, ...], Any]

PROGRAMS: tuple[tuple[str, str, tuple[Case, ...]], ...] = (
    ("def f(x):\n    return x * 2 + 1\n", "Doubles a number and adds one.", (((7,), 15), ((0,), 1), ((-3,), -5), ((10,), 21))),
    (
        "def f(s):\n    return s[::-1]\n",
        "Turns a text around.",
        ((("hello",), "olleh"), (("ab",), "ba"), (("",), ""), (("x y",), "y x")),
    ),
    (
        "def f(xs):\n    total = 0\n    for x in xs:\n        if x > 2:\n            total += x\n    return total\n",
        "Adds up what is above two.",
        ((([1, 5, 3],), 8), (([],), 0), (([2, 2],), 0), (([9, -1, 4],), 13)),
    ),
    (
        "def f(a, b):\n    return sorted(a + b)\n",
        "Puts two lists into one, sorted.",
        ((([3, 1], [2]), [1, 2, 3]), (([], [5, 4]), [4, 5]), (([0], [0]), [0, 0]), (([9], []), [9])),
    ),
    (
        "def f(s):\n    return len(s.split())\n",
        "Counts words.",
        ((("a b c",), 3), (("",), 0), (("one",), 1), (("to be or not",), 4)),
    ),
)


def easy_problems(task: Task) -> list[Problem]:
    """The five as problems of a kind; none for a kind of one's own, or for induction with more than four examples."""
    if isinstance(task, Induction):
        return [
            _problem(task.name, program, cases[: task.examples], message)
            for program, message, cases in PROGRAMS
            if task.examples <= 4
        ]
    if isinstance(task, Deduction):
        return [_problem(task.name, program, cases[:1], "") for program, _, cases in PROGRAMS]
    return []


def _problem(kind: str, program: str, cases: Sequence[Case], message: str) -> Problem:
    return Problem(kind, program, tuple(x for x, _ in cases), tuple(y for _, y in cases), message)
