"""From what a process left behind to verdicts: one program, several inputs, possibly several processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from selfplay.referee.inside import wire
from selfplay.referee.inside.codec import NotAValueError, TooLargeError, ValueLimits, canonical, decode, encode
from selfplay.referee.inside.runner import FULL
from selfplay.referee.limits import Limits
from selfplay.referee.verdicts import Status, Verdict

_XCPU, _KILL = 24, 9
_STATUS = {
    wire.RAISED: Status.RAISED,
    wire.NOT_A_VALUE: Status.NOT_A_VALUE,
    wire.TOO_LARGE: Status.TOO_LARGE,
    wire.MEMORY: Status.OUT_OF_MEMORY,
    wire.FORBIDDEN: Status.FORBIDDEN_IMPORT,
    wire.SYNTAX: Status.SYNTAX_ERROR,
    wire.NO_ENTRY: Status.NO_ENTRY_FUNCTION,
}
_OF_THE_PROGRAM = (wire.SYNTAX, wire.NO_ENTRY, wire.FORBIDDEN, wire.RAISED, wire.MEMORY)


@dataclass(frozen=True)
class Run:
    """One program to run on some inputs.

    Attributes:
        program: Python source.
        inputs: argument tuples of plain values; one verdict each.
        entry: the function to call; None runs the program's text alone (asserts inside), once for each input.
        calls: times the function is called on each input, each time on fresh arguments; values must agree.
        hash_group: which of the referee's hash seeds to run under; None: any.
        without: layers to leave out for this run, for the self-test.
    """

    program: str
    inputs: Sequence[tuple[Any, ...]] = ((),)
    entry: str | None = "f"
    calls: int = 1
    hash_group: int | None = None
    without: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.calls < 1:
            raise ValueError(f"calls is {self.calls}, it must be at least 1")


@dataclass
class Progress:
    """A run on its way: the verdicts so far, in the order of its inputs, and how often a worker died under it."""

    run: Run
    limits: Limits
    degraded: tuple[str, ...] = ()
    verdicts: list[Verdict] = field(default_factory=list)
    deaths: int = 0
    inputs: list[str] = field(default_factory=list)

    def prepare(self) -> None:
        """Encode the inputs, and judge at once what cannot be sent."""
        if len(self.run.program) > self.limits.program_chars:
            self.refuse(Status.TOO_LARGE, "the program's text is too long")
            return
        try:
            self.inputs = [encode(tuple(x), self.limits.value) for x in self.run.inputs]
        except TooLargeError as error:
            self.refuse(Status.TOO_LARGE, f"input: {error}")
        except NotAValueError as error:
            self.refuse(Status.NOT_A_VALUE, f"input: {error}")

    @property
    def done(self) -> bool:
        """Whether every input has its verdict."""
        return len(self.verdicts) >= len(self.run.inputs)

    def message(self) -> dict[str, Any]:
        """What a worker gets: the inputs that have no verdict yet."""
        sent: dict[str, Any] = {
            "program": self.run.program,
            "inputs": self.inputs[len(self.verdicts) :],
            "entry": self.run.entry,
            "calls": self.run.calls,
            "wall_seconds": self.limits.wall_seconds,
        }
        if self.run.without:
            sent["without"] = sorted(self.run.without)
        return sent

    def refuse(self, status: Status, reason: str) -> None:
        """The same verdict for every input that has none."""
        missing = len(self.run.inputs) - len(self.verdicts)
        self.verdicts += [Verdict(status, reason, degraded=self.degraded)] * missing

    def worker_died(self) -> bool:
        """Count a death under this run; True if it may be tried again."""
        self.deaths += 1
        if self.deaths > 1:
            self.refuse(Status.KILLED, "its worker or process was killed twice")
        return not self.done

    def take(self, said: dict[str, Any], page: bytes) -> None:
        """Turn one process's end into verdicts. What is still missing afterwards needs another process.

        Raises:
            KeyError, TypeError: for a message that no worker sends.
        """
        if "infra" in said:
            self.refuse(Status.INFRA_ERROR, str(said["infra"]))
            return
        cost = (float(said["cpu"]), said["peak"] / 1024)
        missing = len(self.run.inputs) - len(self.verdicts)
        try:
            if not said["whole"]:
                raise ValueError
            found = list(wire.records(page))
            if said["ended"] and len(found) == 1 and found[0][0] in _OF_THE_PROGRAM and missing * self.run.calls != 1:
                self.verdicts += [self._verdict([found[0]], cost)] * missing
                return
            groups = [found[i : i + self.run.calls] for i in range(0, len(found), self.run.calls)]
            if len(groups) > missing or (said["ended"] and len(found) != missing * self.run.calls):
                raise ValueError
        except ValueError:
            self._end(Status.TAMPERED, "what it left is not what a run leaves", cost)
            return
        whole = [group for group in groups if len(group) == self.run.calls]
        self.verdicts += [self._verdict(group, cost) for group in whole]
        if not self.done and (not whole or not _again(said)):
            status, reason = self._cause(said)
            if status is not Status.KILLED:
                self._end(status, reason, cost)
            else:
                self.worker_died()  # perhaps the machine was short of memory: once more

    def _end(self, status: Status, reason: str, cost: tuple[float, float]) -> None:
        """The verdict of the input that the process was on when it ended."""
        self.verdicts.append(Verdict(status, reason, None, *cost, self.degraded))

    def _cause(self, said: dict[str, Any]) -> tuple[Status, str]:
        state = said["exit"]
        if said["late"]:
            return Status.TIMEOUT, "wall time"
        if state == -_XCPU or (state == -_KILL and said["cpu"] >= self.limits.cpu_seconds):
            return Status.TIMEOUT, "processor time"
        if state == -_KILL:
            return Status.KILLED, "SIGKILL from outside"
        if state < 0:
            return Status.CRASHED, f"signal {-state}"
        return Status.EXITED, f"exit state {state}"

    def _verdict(self, group: list[tuple[int, bytes]], cost: tuple[float, float]) -> Verdict:
        """One input's verdict from the records of its calls."""
        kind, text = group[0]
        if kind != wire.VALUE:
            reason = text.decode("utf-8", "replace")[:160]
            return Verdict(_STATUS[kind], reason, None, *cost, self.degraded)
        value, refused = _read(text, self.limits.value)
        if refused is not None:
            return Verdict(refused, "", None, *cost, self.degraded)
        if any(other != group[0] and not _same(other, value, self.limits.value) for other in group[1:]):
            return Verdict(Status.NONDETERMINISTIC, "two calls in one process differ", None, *cost, self.degraded)
        return Verdict(Status.OK, "", value, *cost, self.degraded)


def _again(said: dict[str, Any]) -> bool:
    """Whether the input a process ended on deserves a process of its own: it may have been charged for those before it."""
    return bool(said["late"]) or said["exit"] < 0 or said["exit"] == FULL


def _same(record: tuple[int, bytes], value: Any, limits: ValueLimits) -> bool:
    """Whether another call's record holds an equal value."""
    if record[0] != wire.VALUE:
        return False
    other, refused = _read(record[1], limits)
    return refused is None and canonical(other, limits) == canonical(value, limits)


def _read(text: bytes, limits: ValueLimits) -> tuple[Any, Status | None]:
    """A value from a record, which may hold anything."""
    try:
        value = decode(text, limits)
        encode(value, limits)
    except NotAValueError:
        return None, Status.TAMPERED
    except TooLargeError:
        return None, Status.TOO_LARGE
    return value, None
