"""HumanEval+ and MBPP+: EvalPlus's many inputs, judged by the value that the canonical solution returns on each.

The format is that of EvalPlus's releases (`base_input`, `plus_input`). What equal means follows EvalPlus: equal values, floats
within a tolerance, and a few problems with a rule of their own.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from selfplay.exams import humaneval, reading
from selfplay.exams.problem import Answer, Question, Row, Suite
from selfplay.exams.programs import listed, values
from selfplay.referee import Referee, Status, Verdict

TOLERANCE = 1e-6
RELATIVE = 1e-7
AS_SETS = frozenset(
    [
        "similar_elements",
        "find_char_long",
        "common_in_nested_lists",
        "extract_singly",
        "larg_nnum",
        "intersection_array",
        "find_dissimilar",
        "Diff",
    ]
)
"""Functions of MBPP+ whose list or tuple has no order."""
EXISTS = frozenset(["check_str", "text_match_three", "text_starta_endb"])
"""Functions of MBPP+ that may return anything that is not None for yes."""


@dataclass(frozen=True)
class Inputs:
    """What a problem is judged by.

    Attributes:
        canonical: source of the solution, whole.
        given: what stands before an answer.
        written: the solution as an answer.
        calls: argument tuples.
        atol: tolerance for floats; 0 stands for TOLERANCE.
    """

    entry: str
    canonical: str
    given: str
    written: str
    calls: tuple[tuple[Any, ...], ...]
    atol: float

    @property
    def view(self) -> str:
        """How returned values are looked at."""
        return "exists" if self.entry in EXISTS else "value"


class Plus(Suite):
    """What both have in common."""

    def grade(self, referee: Referee, answers: Sequence[Answer]) -> list[Verdict]:
        """See `Suite.grade`."""
        asked: dict[str, Inputs] = {answer.question.id: answer.question.facts for answer in answers}
        jobs = [(f.canonical, f.entry, f.calls, f.view) for f in asked.values()]
        jobs += [(self.source(a), a.question.facts.entry, a.question.facts.calls, a.question.facts.view) for a in answers]
        ran = values(referee, jobs)
        expected = {id: listed(verdict, len(asked[id].calls)) for id, verdict in zip(asked, ran, strict=False)}
        written = ran[len(asked) :]
        return [judged(a.question.facts, expected[a.question.id], v) for a, v in zip(answers, written, strict=True)]

    def source(self, answer: Answer) -> str:
        """The program that an answer makes."""
        raise NotImplementedError

    def gold(self, question: Question) -> str:
        """See `Suite.gold`."""
        facts: Inputs = question.facts
        return facts.written


class HumanEvalPlus(Plus):
    """HumanEval with EvalPlus's inputs."""

    name = "humaneval+"
    about = "HumanEval with EvalPlus's inputs"
    hub = ("evalplus/humanevalplus", None, "test")

    def question(self, row: Row, number: int) -> Question:
        """See `Suite.question`."""
        prompt, entry, solution = str(row["prompt"]), str(row["entry_point"]), str(row["canonical_solution"])
        facts = Inputs(entry, prompt + solution, prompt, solution, calls_of(row), float(row["atol"]))
        return Question(str(row["task_id"]), humaneval.asked(prompt), prompt, humaneval.STOP, facts, number)

    def source(self, answer: Answer) -> str:
        """See `Plus.source`."""
        facts: Inputs = answer.question.facts
        return humaneval.source(facts.given, facts.entry, answer)


class MbppPlus(Plus):
    """MBPP with EvalPlus's inputs."""

    name = "mbpp+"
    about = "MBPP with EvalPlus's inputs"
    hub = ("evalplus/mbppplus", None, "test")

    def question(self, row: Row, number: int) -> Question:
        """See `Suite.question`. JSON has no tuples: the arguments take the types they have in the row's assertions."""
        prompt, entry, solution = str(row["prompt"]), str(row["entry_point"]), str(row["canonical_solution"])
        examples = arguments(str(row.get("assertion", "")), entry)
        calls = tuple(tuple(typed(x, [e[i] for e in examples if i < len(e)]) for i, x in enumerate(call)) for call in calls_of(row))
        chat = f"Write a Python function for this task, in one block of Python.\n\n```python\n{prompt.strip()}\n```"
        stop = ('\n"""', "\nassert", "\nprint(", "\nif __name__", "\n```", "\n# Test")
        facts = Inputs(entry, solution, "", solution, calls, float(row["atol"]))
        return Question(str(row["task_id"]), chat, prompt, stop, facts, number)

    def source(self, answer: Answer) -> str:
        """See `Plus.source`."""
        return reading.program(answer.text, answer.question.facts.entry)


def calls_of(row: Row) -> tuple[tuple[Any, ...], ...]:
    """The argument tuples of a row, the base's first.

    Raises:
        ValueError: for the form that has numpy scripts instead of inputs.
    """
    if "base_input" not in row:
        raise ValueError("no base_input: this is the form whose tests are numpy scripts; use the JSONL that EvalPlus releases")
    return tuple(tuple(call) for call in [*row["base_input"], *(row["plus_input"] or ())])


def arguments(assertion: str, entry: str) -> list[list[Any]]:
    """The literal arguments with which assertions call a function."""
    found = []
    for node in ast.walk(ast.parse(assertion)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == entry:
            try:
                found.append([ast.literal_eval(x) for x in node.args])
            except ValueError:
                continue  # not literal: tells nothing
    return found


def typed(value: Any, like: Sequence[Any], outer: type = list) -> Any:
    """A value from JSON with the types that examples have in its place; deeper than they go, as around it (`outer`)."""
    if isinstance(value, list):
        shown = [e for e in like if isinstance(e, list | tuple | set | frozenset)]
        kind: type = next((k for k in (tuple, set) if any(isinstance(e, k) for e in shown)), list if shown else outer)
        return kind([typed(x, [y for e in shown for y in e], kind) for x in value])
    if isinstance(value, dict):
        keys = [k for e in like if isinstance(e, dict) for k in e]
        inner = [v for e in like if isinstance(e, dict) for v in e.values()]
        return {_number(k, keys): typed(v, inner) for k, v in value.items()}
    if isinstance(value, str) and like and all(isinstance(e, int | float | complex) for e in like):
        return _complex(value)
    return value


def _complex(text: str) -> Any:
    """Where numbers are expected, text is a complex number: JSON has none."""
    try:
        return complex(text)
    except ValueError:
        return text


def _number(key: str, like: Sequence[Any]) -> Any:
    """A key of a JSON object, which is always text, as the number it may have been."""
    try:
        return int(key) if any(type(k) is int for k in like) else key
    except ValueError:
        return key


def judged(facts: Inputs, expected: list[Any] | Verdict, verdict: Verdict) -> Verdict:
    """The verdict on what a program returned."""
    if isinstance(expected, Verdict):
        return expected.turned(Status.INFRA_ERROR, f"its own solution: {expected.status} {expected.reason}".strip())
    found = listed(verdict, len(facts.calls))
    if isinstance(found, Verdict):
        return found
    for number, (call, value, wanted) in enumerate(zip(facts.calls, found, expected, strict=True), 1):
        if not agrees(facts, call, value, wanted):
            return verdict.turned(Status.WRONG, f"input {number}")
    return verdict


def agrees(facts: Inputs, call: tuple[Any, ...], value: Any, wanted: Any) -> bool:
    """Whether a value is right on a call."""
    try:
        return _agrees(facts, call, value, wanted)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return False


def _agrees(facts: Inputs, call: tuple[Any, ...], value: Any, wanted: Any) -> bool:
    if facts.entry == "find_zero":  # any root is right
        return abs(sum(c * math.pow(value, i) for i, c in enumerate(call[0]))) <= facts.atol
    if facts.entry in AS_SETS:
        return set(value) == set(wanted)
    if value == wanted or facts.entry == "are_equivalent" or (facts.entry == "sum_div" and value == 0):
        return True
    if facts.entry == "surface_Area" and abs(value - _pyramid(*call)) <= facts.atol:
        return True
    if facts.entry == "digit_distance_nums" and value == _digits_apart(*call):
        return True
    atol = facts.atol or (TOLERANCE if _floats(wanted) else 0.0)
    if not atol or type(value) is not type(wanted):
        return False
    if isinstance(wanted, list | tuple) and len(value) != len(wanted):
        return False
    return bool(np.allclose(value, wanted, rtol=RELATIVE, atol=atol))


def _floats(value: Any) -> bool:
    return type(value) is float or (isinstance(value, list | tuple) and bool(value) and all(type(x) is float for x in value))


def _pyramid(base: float, height: float) -> int:
    """Surface of a square pyramid, the height taken from base to top."""
    return round(base**2 + 2 * base * math.hypot(base / 2, height))


def _digits_apart(one: int, two: int) -> int:
    """Sum of the distances of digits, the shorter number filled with zeros from the left."""
    width = max(len(str(one)), len(str(two)))
    return sum(abs(int(a) - int(b)) for a, b in zip(str(one).zfill(width), str(two).zfill(width), strict=True))
