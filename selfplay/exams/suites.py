"""The suites by name."""

from __future__ import annotations

from selfplay.exams import maths
from selfplay.exams.cruxeval import CruxEvalInput, CruxEvalOutput
from selfplay.exams.humaneval import HumanEval
from selfplay.exams.livecodebench import LiveCodeBench
from selfplay.exams.mbpp import Mbpp
from selfplay.exams.nano import NanoHeldout
from selfplay.exams.plus import HumanEvalPlus, MbppPlus
from selfplay.exams.problem import ExamError, Suite
from selfplay.exams.reasoning import Reasoning

_ALL: tuple[Suite, ...] = (
    HumanEval(), HumanEvalPlus(), Mbpp(), MbppPlus(), LiveCodeBench(), *maths.ALL, CruxEvalOutput(), CruxEvalInput(), Reasoning(),
    NanoHeldout(),
)  # fmt: skip
GROUPS = {"cruxeval": ("cruxeval-o", "cruxeval-i")}
"""Names that stand for several suites."""


def suites() -> dict[str, Suite]:
    """All suites."""
    return {one.name: one for one in _ALL}


def suite(name: str) -> Suite:
    """The suite of a name; `reasoning-gym:TASK` is one task of that package.

    Raises:
        ExamError: if there is none; it lists those that there are.
    """
    head, colon, task = name.partition(":")
    if head == "reasoning-gym" and colon:
        return Reasoning((task,))
    if name not in suites():
        raise ExamError(f"no suite {name!r}; there are {', '.join([*suites(), *GROUPS])} and reasoning-gym:TASK")
    return suites()[name]


def chosen(names: list[str]) -> list[Suite]:
    """The suites of names, each once; names of groups are taken apart."""
    flat = [one for name in names for one in GROUPS.get(name, (name,))]
    return [suite(name) for name in dict.fromkeys(flat)]
