"""Problems of mathematics: a question and an answer in numbers or LaTeX, compared by `math-verify`."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

from selfplay.exams import reading
from selfplay.exams.problem import Answer, ExamError, Question, Row, Suite
from selfplay.referee import Referee, Status, Verdict

STOP = ("\nQuestion:", "\n\nQ:")
SECONDS = 5
"""For reading an answer, and for each comparison."""
LONGEST = 4000
"""Characters that are read: an answer stands at the end."""
_MARKED = re.compile(r"####\s*(.+)")
_FINAL = re.compile(r"(?:final answer|answer)\s*(?:is|:)\s*", re.IGNORECASE)


class Maths(Suite):
    """A suite of such problems.

    Args:
        name, about, hub: see `Suite`.
        asked: names of the field with the question, the first that is there counts.
        answered: the same for the answer.
        max_tokens: see `Suite`.
    """

    def __init__(
        self,
        name: str,
        about: str,
        hub: tuple[str, str | None, str],
        asked: tuple[str, ...] = ("problem", "question", "Problem"),
        answered: tuple[str, ...] = ("answer", "final_answer", "Answer", "solution"),
        max_tokens: int = 2048,
    ) -> None:
        self.name, self.about, self.hub, self.max_tokens = name, about, hub, max_tokens
        self.asked, self.answered = asked, answered

    def question(self, row: Row, number: int) -> Question:
        """See `Suite.question`."""
        text, answer = str(_field(row, self.asked)), _answer(_field(row, self.answered))
        id = next((str(row[key]) for key in ("unique_id", "id", "ID", "idx", "task_id") if key in row), str(number))
        chat = f"{text}\n\nReason step by step, and write your final answer within \\boxed{{}}."
        return Question(id, chat, f"Question: {text}\nAnswer:", STOP, answer, number)

    def grade(self, referee: Referee, answers: Sequence[Answer]) -> list[Verdict]:
        """See `Suite.grade`. No program is run: the referee is not asked."""
        return [graded(answer.question.facts, answer.text) for answer in answers]

    def gold(self, question: Question) -> str:
        """See `Suite.gold`."""
        return f" \\boxed{{{question.facts}}}"


def graded(gold: str, text: str) -> Verdict:
    """The verdict on a text, by its last boxed answer, or else by what stands at its end."""
    read, verify = _library()
    wanted = read(f"\\boxed{{{gold}}}") or read(f"${gold}$") or read(gold)
    if not wanted:
        return Verdict(Status.INFRA_ERROR, f"math-verify cannot read the suite's own answer: {gold}"[:160])
    found = read(final(reading.said(text))[-LONGEST:])
    if not found:
        return Verdict(Status.BAD_FORMAT, "no answer found")
    try:
        right = bool(verify(wanted, found))
    except Exception as error:  # sympy raises what it likes on what a model wrote
        return Verdict(Status.WRONG, f"cannot be compared: {type(error).__name__}")
    return Verdict(Status.OK if right else Status.WRONG)


def final(text: str) -> str:
    """The part of a text that holds its final answer: the last boxed one, what follows `####` or `answer is`, or all of it."""
    start = text.rfind("\\boxed{")
    if start >= 0:
        return text[start : _closing(text, start + len("\\boxed{"))]
    if marked := _MARKED.findall(text):
        return str(marked[-1])
    said = list(_FINAL.finditer(text))
    return text[said[-1].end() :] if said else text


def _closing(text: str, at: int) -> int:
    """Behind the brace that closes the one before `at`."""
    depth = 1
    while at < len(text) and depth:
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        at += 1
    return at


def _field(row: Row, names: Sequence[str]) -> Any:
    found = [row[name] for name in names if row.get(name) not in (None, "")]
    if not found:
        raise KeyError(" or ".join(names))
    return found[0]


def _answer(value: Any) -> str:
    """The answer in a field: itself, the first of a list, what stands behind `####`, or what a solution has in its box."""
    text = str(value[0] if isinstance(value, list) else value).strip()
    if marked := _MARKED.findall(text):
        return str(marked[-1]).replace(",", "").strip()
    if "\\boxed{" in text:
        boxed = final(text)
        return boxed.removeprefix("\\boxed{").removesuffix("}")
    return text.strip("$")


def _library() -> tuple[Callable[[str], list[Any]], Callable[[Any, Any], bool]]:
    """How to read and how to compare.

    Time is kept by an alarm, which only the main thread can set: elsewhere it would run without an end.
    """
    try:
        from math_verify import parse, verify
    except ImportError:
        raise ExamError("problems of mathematics need math-verify: pip install 'lora-evo[eval]'") from None
    if threading.current_thread() is not threading.main_thread():
        raise ExamError("answers of mathematics are compared in the main thread only: math-verify keeps time by an alarm")
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # it logs what it cannot read, whole
    return (lambda text: list(parse(text, parsing_timeout=SECONDS))), (lambda a, b: bool(verify(a, b, timeout_seconds=SECONDS)))


ALL = (
    Maths("gsm8k", "1319 word problems with a number", ("openai/gsm8k", "main", "test"), max_tokens=512),
    Maths("math500", "500 competition problems", ("HuggingFaceH4/MATH-500", None, "test"), answered=("answer",)),
    Maths("aime24", "AIME 2024, 30 problems", ("HuggingFaceH4/aime_2024", None, "train"), max_tokens=8192),
    Maths("aime25", "AIME 2025, 30 problems", ("math-ai/aime25", None, "test"), max_tokens=8192),
    Maths("amc23", "AMC 2023, 40 problems", ("math-ai/amc23", None, "test"), max_tokens=4096),
    Maths("minerva", "272 problems of science", ("math-ai/minervamath", None, "test")),
    Maths("olympiadbench", "olympiad problems with a final answer", ("math-ai/olympiadbench", None, "test"), max_tokens=4096),
)
