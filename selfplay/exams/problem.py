"""What an exam is made of: questions, answers, and suites that ask the ones and grade the others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lora_evo.errors import LoraEvoError
from selfplay.referee import PURE_MODULES, Limits, Referee, Settings, ValueLimits, Verdict
from selfplay.tasks import Style

Row = Mapping[str, Any]


class ExamError(LoraEvoError):
    """An exam that cannot be held: what is wrong, in which file, what to do."""


IMPORTS = (
    *PURE_MODULES, "sys", "io", "random", "hashlib", "time", "datetime", "calendar", "queue", "types", "contextlib", "pprint",
)  # fmt: skip
EXAM_ROOM = Settings(
    imports=IMPORTS,
    limits=Limits(
        cpu_seconds=10,
        wall_seconds=30.0,
        memory_mb=2048,
        program_chars=400_000,
        result_bytes=1 << 26,
        value=ValueLimits(nodes=8_000_000, depth=200, text=32_000_000, int_bits=1 << 18),
    ),
)
"""Public programs read clocks and chance, and their tests are larger than the game's. The layers around them are the same."""


@dataclass(frozen=True)
class Question:
    """One problem, ready to be asked.

    Attributes:
        id: unique in its suite.
        chat: a user's message.
        compact: a text to continue.
        stop: where the continuation of `compact` ends.
        facts: what the suite grades by.
        number: what the seeds of samples depend on.
    """

    id: str
    chat: str
    compact: str
    stop: tuple[str, ...] = ()
    facts: Any = field(default=None, hash=False)
    number: int = 0

    def prompt(self, style: Style) -> str:
        """The text in a style."""
        return self.chat if style == "chat" else self.compact


@dataclass(frozen=True)
class Answer:
    """What was written to a question, and in which style it was asked."""

    question: Question
    text: str
    style: Style


class Suite(ABC):
    """A benchmark.

    Attributes:
        name: on the command line.
        about: a few words.
        max_tokens: of an answer.
        hub: data set, configuration and split for `datasets`; empty where there is none.
        needs_data: whether rows come from a file.
        settings: of the referee.
        styles: in which it can be asked.
    """

    name: str
    about: str
    max_tokens: int = 512
    hub: tuple[str, str | None, str] | None = None
    needs_data: bool = True
    settings: Settings = EXAM_ROOM
    styles: tuple[Style, ...] = ("chat", "compact")

    @abstractmethod
    def question(self, row: Row, number: int) -> Question:
        """A question from a row of the public file.

        Raises:
            KeyError, ValueError, TypeError: for a row that is not of the suite's form.
        """

    def questions(self, rows: Sequence[Row]) -> list[Question]:
        """All questions.

        Raises:
            ExamError: for a row that is not of the suite's form, and for an id that comes twice.
        """
        found: dict[str, Question] = {}
        for number, row in enumerate(rows):
            try:
                question = self.question(row, number)
            except KeyError as error:
                raise ExamError(
                    f"{self.name}, row {number + 1}: no field {str(error.args[0])!r}; it has {', '.join(row)}"
                ) from None
            except (ValueError, TypeError, SyntaxError) as error:
                raise ExamError(f"{self.name}, row {number + 1}: {error}") from None
            if question.id in found:
                raise ExamError(f"{self.name}, row {number + 1}: the id {question.id} comes twice")
            found[question.id] = question
        return list(found.values())

    @abstractmethod
    def grade(self, referee: Referee, answers: Sequence[Answer]) -> list[Verdict]:
        """A verdict on each answer. A question that cannot be graded here gets INFRA_ERROR, which counts for nobody."""

    @abstractmethod
    def gold(self, question: Question) -> str:
        """The suite's own solution, written as a continuation of `compact`: what must be right."""

    def rows(self) -> list[Row]:
        """The rows of a suite that needs no file."""
        raise ExamError(f"{self.name} needs data")
