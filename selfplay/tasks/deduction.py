"""Deduction: a program and an input are given, the output is asked for. Judged by value; nothing of the answer is run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from selfplay.referee import Status, Verdict, equal, literal
from selfplay.tasks import formats, wording
from selfplay.tasks.base import FormatError, Problem, Proposal, Style, Task


class Deduction(Task):
    """Program and input to output."""

    name = "deduction"
    asked = "work out the output by reading the program"

    def proposal_prompt(self, style: Style, references: Sequence[Problem], subject: str | None = None) -> str:
        """See `Task.proposal_prompt`."""
        if style == "compact":
            return wording.compact_examples(self.name, references) + f"# new {self.name}\n"
        return (
            f"Write a Python program and one input for it, so that it is hard, but possible, to {self.asked}.\n\n"
            f"{wording.RULES}\n\n"
            f"{wording.with_examples(references)}"
            "Think first. Then write your problem as two blocks inside <answer> and </answer>: the program in a block tagged "
            "python, the arguments of one call of f, as they stand between the parentheses, in a block tagged input."
        )

    def parse_proposal(self, text: str, style: Style, subject: str | None = None) -> Proposal:
        """See `Task.parse_proposal`."""
        if style == "chat":
            return Proposal(formats.program(formats.block(text, "python")), (formats.arguments(formats.block(text, "input")),))
        program, lines = formats.labelled(text, ("in",))
        if len(lines) != 1:
            raise FormatError("not exactly one line with in:")
        return Proposal(formats.program(program), (formats.arguments(lines[0][1]),))

    def answer_prompt(self, problem: Problem, style: Style) -> str:
        """See `Task.answer_prompt`."""
        given = wording.call(problem.inputs[0])
        if style == "compact":
            return f"# {self.name}\n{problem.program.strip(chr(10))}\nin: {given}\nout:"
        return (
            "What does f return?\n\n"
            f"{wording.fenced('python', problem.program)}\n\n"
            f"f is called with these arguments:\n\n{wording.fenced('input', given)}\n\n"
            "Think first. Then write the value as a Python literal, in a block tagged output inside <answer> and </answer>."
        )

    def parse_answer(self, problem: Problem, text: str, style: Style) -> Any:
        """See `Task.parse_answer`."""
        return formats.value(formats.first_line(text) if style == "compact" else formats.block(text, "output"))

    def grade(self, problem: Problem, answer: Any, verdicts: Sequence[Verdict]) -> Verdict:
        """See `Task.grade`."""
        right = equal(answer, problem.outputs[0])
        return Verdict(Status.OK if right else Status.WRONG, "" if right else f"not {literal(answer)[:80]}", answer)

    def seed_problem(self) -> Problem:
        """The identity."""
        return Problem(self.name, "def f(x):\n    return x\n", (("Hello World",),), ("Hello World",))
