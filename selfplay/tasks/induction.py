"""Induction: some examples of a program and a message are given, the program is asked for.

The teacher writes inputs and a message for a program that exists already. Half of the examples are shown, the other half
decides: the student's program must be right on all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from selfplay.referee import Run, Status, Verdict, against, canonical, literal
from selfplay.tasks import formats, wording
from selfplay.tasks.base import FormatError, Problem, Proposal, Style, Task

MESSAGE = 400
"""Characters of a message; more is cut off."""


class Induction(Task):
    """Examples to program.

    Args:
        examples: inputs a teacher has to write, even, at least 2.
    """

    name = "induction"
    needs_subject = True

    def __init__(self, examples: int = 6) -> None:
        if examples < 2 or examples % 2:
            raise ValueError(f"examples is {examples}, it must be even and at least 2")
        self.examples = examples

    def proposal_prompt(self, style: Style, references: Sequence[Problem], subject: str | None = None) -> str:
        """See `Task.proposal_prompt`."""
        subject = _given(subject).strip("\n")
        if style == "compact":
            shown = "".join(f"# new {self.name}\n{r.program.strip(chr(10))}\n{_lines(r)}\n\n" for r in references)
            return f"{shown}# new {self.name}\n{subject}\n"
        return (
            f"Here is a Python program.\n\n{wording.fenced('python', subject)}\n\n"
            f"Write {self.examples} different inputs for f and a short message, so that a clever reader who sees half of the "
            "inputs with their outputs, and the message, can work out what f does. Do not write the program into the message.\n\n"
            f"Think first. Then write, inside <answer> and </answer>, {self.examples} blocks tagged input, each with the arguments "
            "of one call as they stand between the parentheses, and one block tagged message."
        )

    def parse_proposal(self, text: str, style: Style, subject: str | None = None) -> Proposal:
        """See `Task.parse_proposal`."""
        if style == "chat":
            found = formats.blocks(text)
        else:
            head, found = formats.labelled(text, ("in", "msg"))
            if head.strip():
                raise FormatError("a line without a label")
        names = {"input": "input", "in": "input", "message": "message", "msg": "message"}
        inputs = [formats.arguments(body) for tag, body in found if names.get(tag) == "input"]
        messages = [body.strip() for tag, body in found if names.get(tag) == "message"]
        if len(inputs) < self.examples:
            raise FormatError(f"{len(inputs)} inputs instead of {self.examples}")
        if len(messages) != 1:
            raise FormatError("not exactly one message")
        chosen = tuple(inputs[-self.examples :])
        if len({canonical(x) for x in chosen}) < len(chosen):
            raise FormatError("the same input twice")
        return Proposal(_given(subject), chosen, messages[0][:MESSAGE])

    def answer_prompt(self, problem: Problem, style: Style) -> str:
        """See `Task.answer_prompt`. Only the first half of the examples is in it."""
        half = len(problem.inputs) // 2
        pairs = list(zip(problem.inputs[:half], problem.outputs[:half], strict=True))
        if style == "compact":
            shown = "".join(f"in: {wording.call(x)}\nout: {literal(y)}\n" for x, y in pairs)
            return f"# {self.name}\n{shown}msg: {' '.join(problem.message.split())}\n"
        shown = "\n\n".join(f"{wording.fenced('input', wording.call(x))}\n{wording.fenced('output', literal(y))}" for x, y in pairs)
        return (
            f"A function f gives these outputs for these arguments:\n\n{shown}\n\nA hint: {problem.message}\n\n"
            "Write a Python program that defines f. It is tried on other inputs too.\n\n"
            f"{wording.RULES}\n\nThink first. Then write the program in a block tagged python inside <answer> and </answer>."
        )

    def parse_answer(self, problem: Problem, text: str, style: Style) -> str:
        """See `Task.parse_answer`."""
        if style == "chat":
            return formats.program(formats.block(text, "python"))
        return formats.program(formats.labelled(text.split("\n\n", 1)[0] if text.strip() else text, ())[0])

    def answer_run(self, problem: Problem, answer: Any) -> Run:
        """See `Task.answer_run`: the hidden half, each input twice."""
        return Run(answer, problem.inputs[len(problem.inputs) // 2 :], calls=2)

    def grade(self, problem: Problem, answer: Any, verdicts: Sequence[Verdict]) -> Verdict:
        """See `Task.grade`: OK only if all hidden examples are."""
        half = len(problem.inputs) // 2
        graded = [against(v, y) for v, y in zip(verdicts, problem.outputs[half:], strict=True)]
        for verdict in graded:
            if verdict.blameless:
                return verdict
        return next((v for v in graded if v.status is not Status.OK), graded[0])

    def seed_problem(self) -> Problem:
        """The identity."""
        values = ("Hello World", 1, [2, 3], None, (4.5, "x"), {"a": 1}, True, b"b", *range(2, self.examples))[: self.examples]
        return Problem(self.name, "def f(x):\n    return x\n", tuple((v,) for v in values), values, "Gives back what it gets.")


def _given(subject: str | None) -> str:
    if subject is None:
        raise ValueError("induction needs a program to work on: pass subject")
    return subject


def _lines(problem: Problem) -> str:
    return "\n".join([*(f"in: {wording.call(x)}" for x in problem.inputs), f"msg: {' '.join(problem.message.split())}"])
