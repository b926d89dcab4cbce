"""Abduction: a program and an output are given, an input that gives it is asked for. Any such input is right.

The answer is read as literals and handed to the program as values: nothing a student writes is run or pasted into code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from selfplay.referee import Run, Verdict, against, literal
from selfplay.tasks import formats, wording
from selfplay.tasks.base import Problem, Style
from selfplay.tasks.deduction import Deduction


class Abduction(Deduction):
    """Program and output to an input. Proposals have the form of deduction's."""

    name = "abduction"
    asked = "find an input that gives a known output"

    def answer_prompt(self, problem: Problem, style: Style) -> str:
        """See `Task.answer_prompt`."""
        wanted = literal(problem.outputs[0])
        if style == "compact":
            return f"# {self.name}\n{problem.program.strip(chr(10))}\nout: {wanted}\nin:"
        return (
            "With which arguments does f return this value? Any that do are right.\n\n"
            f"{wording.fenced('python', problem.program)}\n\n{wording.fenced('output', wanted)}\n\n"
            "Think first. Then write the arguments of the call, as they stand between the parentheses and as Python literals, "
            "in a block tagged input inside <answer> and </answer>."
        )

    def parse_answer(self, problem: Problem, text: str, style: Style) -> tuple[Any, ...]:
        """See `Task.parse_answer`."""
        return formats.arguments(formats.first_line(text) if style == "compact" else formats.block(text, "input"))

    def answer_run(self, problem: Problem, answer: Any) -> Run:
        """See `Task.answer_run`."""
        return Run(problem.program, (answer,))

    def grade(self, problem: Problem, answer: Any, verdicts: Sequence[Verdict]) -> Verdict:
        """See `Task.grade`."""
        return against(verdicts[0], problem.outputs[0])
