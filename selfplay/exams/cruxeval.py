"""CRUXEval: the output of a function on an input is asked for, or an input for an output.

Answers are read as literals, never evaluated. Equal means what `==` means in the published assertions, on plain values.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from selfplay.exams import reading
from selfplay.exams.problem import Answer, Question, Row, Suite
from selfplay.exams.programs import listed, values
from selfplay.referee import Referee, Status, Verdict
from selfplay.tasks import FormatError, formats

_MARKED = re.compile(r"\[ANSWER\](.*?)(?:\[/ANSWER\]|\Z)", re.DOTALL)
_EXAMPLE = "def f(a, b):\n    return [a, b, a + b]"
STOP = ("[/ANSWER]", "\n[PYTHON]")


class CruxEval(Suite):
    """What both have in common: an assertion with a gap.

    Attributes:
        ask: the user's wish.
        gap: the assertion's text from the literals of the call and of the value.
    """

    hub = ("cruxeval-org/cruxeval", None, "test")
    max_tokens = 256
    ask: str
    gap: str

    def question(self, row: Row, number: int) -> Question:
        """See `Suite.question`."""
        code, given, output = str(row["code"]), str(row["input"]), str(row["output"])
        formats.value(output)
        shown = f"{code}\nassert {self.gap.format(given=given, output=output)}"
        example = f"{_EXAMPLE}\nassert {self.gap.format(given='1, 2', output='[1, 2, 3]')}"
        ask = f"{self.ask} Put the assertion between [ANSWER] and [/ANSWER]."
        return Question(str(row["id"]), *_texts(ask, shown, example), STOP, (code, given, output), number)

    def gold(self, question: Question) -> str:
        """See `Suite.gold`."""
        _, given, output = question.facts
        return f"assert f({given}) == {output}"


class CruxEvalOutput(CruxEval):
    """Output prediction."""

    name = "cruxeval-o"
    about = "the output of 800 short functions (CRUXEval)"
    ask = "Complete the assertion with a literal: the value that f returns."
    gap = "f({given}) == ??"

    def grade(self, referee: Referee, answers: Sequence[Answer]) -> list[Verdict]:
        """See `Suite.grade`. Nothing has to be run."""
        return [_output(answer) for answer in answers]


class CruxEvalInput(CruxEval):
    """Input prediction: any input that gives the output is right."""

    name = "cruxeval-i"
    about = "an input for an output of 800 short functions (CRUXEval)"
    ask = "Complete the assertion with literal arguments that make it true."
    gap = "f(??) == {output}"

    def grade(self, referee: Referee, answers: Sequence[Answer]) -> list[Verdict]:
        """See `Suite.grade`."""
        found: dict[int, Verdict] = {}
        jobs = []
        for i, answer in enumerate(answers):
            if not _literal(answer.question.facts[1]):
                found[i] = Verdict(Status.INFRA_ERROR, "its published input is an expression, not a literal")
                continue
            try:
                jobs.append((i, formats.arguments(_arguments(answer.text))))
            except FormatError as error:
                found[i] = error.verdict
        ran = values(referee, [(answers[i].question.facts[0], "f", [arguments], "value") for i, arguments in jobs])
        for (i, _), verdict in zip(jobs, ran, strict=True):
            value = listed(verdict, 1)
            wanted = formats.value(answers[i].question.facts[2])
            right = isinstance(value, list) and value[0] == wanted
            found[i] = verdict if right or not isinstance(value, list) else verdict.turned(Status.WRONG, "another value")
        return [found[i] for i in range(len(answers))]


def _texts(ask: str, shown: str, example: str) -> tuple[str, str]:
    """The question in both styles, with one worked example."""
    worked = f"[PYTHON]\n{example}\n[/PYTHON]\n[ANSWER]\nassert f(1, 2) == [1, 2, 3]\n[/ANSWER]"
    own = f"[PYTHON]\n{shown}\n[/PYTHON]\n"
    return f"{ask}\n\nAn example:\n\n{worked}\n\nYours:\n\n{own}", f"{ask}\n\n{worked}\n\n{own}[ANSWER]\n"


def _marked(text: str) -> str:
    """What stands between the marks, if there are any."""
    text = reading.said(text)
    return str((_MARKED.findall(text) or [text])[-1]).strip()


def _output(answer: Answer) -> Verdict:
    _, given, output = answer.question.facts
    text = _marked(answer.text)
    head = f"f({given}) =="
    text = (
        text[text.rfind(head) + len(head) :] if head in text else text.rpartition(" == ")[2] if text.startswith("assert") else text
    )
    try:
        value = formats.value(text.strip())
    except FormatError as error:
        return error.verdict
    right = value == formats.value(output)
    return Verdict(Status.OK if right else Status.WRONG, "" if right else "another value", value)


def _literal(given: str) -> bool:
    try:
        formats.arguments(given)
    except FormatError:
        return False
    return True


def _arguments(text: str) -> str:
    """The text between the parentheses of the answer's call of f: up to the one that closes it."""
    text = _marked(text)
    text = text.removeprefix("assert").strip()
    if not text.startswith("f("):
        return text
    for end in (i for i, c in enumerate(text) if c == ")"):
        try:
            formats.arguments(text[2:end])
        except FormatError:
            continue
        return text[2:end]
    return text
