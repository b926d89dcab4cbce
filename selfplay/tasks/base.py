"""What a task kind is: how to ask for a problem, how to ask for an answer, how to read both, and how to judge."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from selfplay.referee import Run, Status, Verdict, canonical, decode, encode
from selfplay.tasks.normal import normal_form

Style = Literal["chat", "compact"]
"""`chat`: the text of a user's message, for models that follow instructions; `compact`: a text to continue, for small ones."""


class FormatError(ValueError):
    """A text that does not have the form that was asked for: the verdict BAD_FORMAT, never an exception to a caller of `judge`."""

    def __init__(self, reason: str, status: Status = Status.BAD_FORMAT) -> None:
        super().__init__(reason)
        self.status = status

    @property
    def verdict(self) -> Verdict:
        """As a verdict."""
        return Verdict(self.status, str(self))


@dataclass(frozen=True)
class Proposal:
    """What a teacher wrote, read but not yet run.

    Attributes:
        program: source that defines the entry function `f`.
        inputs: argument tuples.
        message: words for the solver, where the kind has them.
    """

    program: str
    inputs: tuple[tuple[Any, ...], ...]
    message: str = ""


@dataclass(frozen=True)
class Problem:
    """A proposal that the referee has accepted.

    Attributes:
        kind: name of the task kind.
        program, inputs, message: as proposed.
        outputs: what the program returns on each input.
    """

    kind: str
    program: str
    inputs: tuple[tuple[Any, ...], ...]
    outputs: tuple[Any, ...]
    message: str = ""

    @property
    def form(self) -> str:
        """Equal for programs that differ in names, comments and layout only, on equal inputs."""
        return _digest(self.kind, normal_form(self.program), canonical(list(self.inputs)), self.message)

    @property
    def behaviour(self) -> str:
        """Equal for problems with the same inputs and outputs, whatever the program."""
        return _digest(self.kind, canonical(list(self.inputs)), canonical(list(self.outputs)))

    def as_dict(self) -> dict[str, Any]:
        """For JSON; values as typed text."""
        return {
            "kind": self.kind,
            "program": self.program,
            "inputs": [encode(x) for x in self.inputs],
            "outputs": [encode(x) for x in self.outputs],
            "message": self.message,
        }

    @staticmethod
    def from_dict(stored: dict[str, Any]) -> Problem:
        """From what `as_dict` made."""
        inputs, outputs = (tuple(decode(x) for x in stored[name]) for name in ("inputs", "outputs"))
        return Problem(stored["kind"], stored["program"], inputs, outputs, stored["message"])


class Task(ABC):
    """One task kind. A new kind is one subclass in one file, given to `register`."""

    name: str

    @abstractmethod
    def proposal_prompt(self, style: Style, references: Sequence[Problem], subject: str | None = None) -> str:
        """The text that asks a teacher for a problem.

        Args:
            style: how.
            references: problems to be different from.
            subject: a program to work on, for kinds whose `needs_subject` is set.
        """

    @abstractmethod
    def parse_proposal(self, text: str, style: Style, subject: str | None = None) -> Proposal:
        """Read a teacher's text.

        Raises:
            FormatError: for any other form.
        """

    needs_subject = False

    def proposal_run(self, proposal: Proposal) -> Run:
        """What the referee must find deterministic and fine."""
        return Run(proposal.program, proposal.inputs)

    def accept(self, proposal: Proposal, verdicts: Sequence[Verdict]) -> Problem | Verdict:
        """The problem, or the first verdict against it."""
        for verdict in verdicts:
            if not verdict.ok:
                return verdict
        outputs = tuple(verdict.value for verdict in verdicts)
        return Problem(self.name, proposal.program, proposal.inputs, outputs, proposal.message)

    @abstractmethod
    def answer_prompt(self, problem: Problem, style: Style) -> str:
        """The text that asks a student for an answer. It must not hold what the answer is judged by."""

    @abstractmethod
    def parse_answer(self, problem: Problem, text: str, style: Style) -> Any:
        """Read a student's text.

        Raises:
            FormatError: for any other form.
        """

    def answer_run(self, problem: Problem, answer: Any) -> Run | None:
        """What has to be run to judge the answer; None: nothing."""
        return None

    @abstractmethod
    def grade(self, problem: Problem, answer: Any, verdicts: Sequence[Verdict]) -> Verdict:
        """OK or WRONG, or what went wrong in running it. `verdicts` are those of `answer_run`."""

    @abstractmethod
    def seed_problem(self) -> Problem:
        """The problem that a buffer starts from."""


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]
