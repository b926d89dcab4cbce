"""What the referee can say of a program or an answer: a closed list, and who is to blame."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """Every verdict there is. Decided by types, exit states and flags, never by searching a message."""

    OK = "ok"
    WRONG = "wrong"
    BAD_FORMAT = "bad_format"
    SYNTAX_ERROR = "syntax_error"
    NO_ENTRY_FUNCTION = "no_entry_function"
    FORBIDDEN_IMPORT = "forbidden_import"
    RAISED = "raised"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    EXITED = "exited"
    CRASHED = "crashed"
    KILLED = "killed"
    TAMPERED = "tampered"
    NONDETERMINISTIC = "nondeterministic"
    NOT_A_VALUE = "not_a_value"
    TOO_LARGE = "too_large"
    INFRA_ERROR = "infra_error"


MEANING = {
    Status.OK: "ran and returned a value; for an answer: right",
    Status.WRONG: "ran, but the value is not the expected one",
    Status.BAD_FORMAT: "the text does not have the form that was asked for",
    Status.SYNTAX_ERROR: "does not compile",
    Status.NO_ENTRY_FUNCTION: "defines no function of the asked name",
    Status.FORBIDDEN_IMPORT: "imports a module that is not on the list",
    Status.RAISED: "an exception left it",
    Status.TIMEOUT: "used up its processor or wall time",
    Status.OUT_OF_MEMORY: "asked for more memory than it may have",
    Status.EXITED: "ended its process without a result",
    Status.CRASHED: "was ended by a signal of its own making",
    Status.KILLED: "took its worker down, twice",
    Status.TAMPERED: "wrote over the place of the result",
    Status.NONDETERMINISTIC: "gave different values in different processes or calls",
    Status.NOT_A_VALUE: "returned something that is no plain literal",
    Status.TOO_LARGE: "the value or the text is over a limit",
    Status.INFRA_ERROR: "the referee itself failed: no reward, no rating, no solve rate may use this",
}


@dataclass(frozen=True)
class Verdict:
    """One judgement.

    Attributes:
        status: which of the closed list.
        reason: a short sentence or name for people; nothing is decided by it.
        value: the value returned, for OK and WRONG.
        cpu_seconds, peak_mb: of the process that ran it (shared by the inputs of one program); 0 where nothing ran.
        degraded: guarantees that this machine could not give and the user waived; empty on a healthy machine.
    """

    status: Status
    reason: str = ""
    value: Any = None
    cpu_seconds: float = 0.0
    peak_mb: float = 0.0
    degraded: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the status is OK."""
        return self.status is Status.OK

    @property
    def blameless(self) -> bool:
        """Whether the referee failed, not the program: such a verdict must not become a reward."""
        return self.status is Status.INFRA_ERROR

    def turned(self, status: Status, reason: str = "") -> Verdict:
        """The same run with another judgement."""
        return replace(self, status=status, reason=reason or self.reason)
