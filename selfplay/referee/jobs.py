"""From what a process left behind to verdicts: one program, several inputs, possibly several processes."""

from __future__ import annotations

import marshal
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from selfplay.referee import answers
from selfplay.referee.encoding import ValueLimits, canonical, decode, encode
from selfplay.referee.inside import wire
from selfplay.referee.inside.codec import NotAValueError, TooLargeError
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
    """A run on its way: the verdicts so far, in the order of its inputs, and how often a worker died under it.

    `equipped` says whether it needs a worker that has the importable modules loaded.
    """

    run: Run
    limits: Limits
    degraded: tuple[str, ...] = ()
    verdicts: list[Verdict] = field(default_factory=list)
    deaths: int = 0
    inputs: list[bytes] = field(default_factory=list)
    equipped: bool = False

    def prepare(self) -> None:
        """Pack the inputs, and judge at once what cannot be sent."""
        self.equipped = "import" in self.run.program
        if len(self.run.program) > self.limits.program_chars:
            self.refuse(Status.TOO_LARGE, "the program's text is too long")
            return
        try:
            for arguments in self.run.inputs:
                encode(tuple(arguments), self.limits.value)
                self.inputs.append(marshal.dumps(tuple(arguments), 2))  # 2: without references, so nothing is shared
        except TooLargeError as error:
            self.refuse(Status.TOO_LARGE, f"input: {error}")
        except NotAValueError as error:
            self.refuse(Status.NOT_A_VALUE, f"input: {error}")

    @property
    def done(self) -> bool:
        """Whether every input has its verdict."""
        return len(self.verdicts) >= len(self.run.inputs)

    def message(self) -> bytes:
        """What a worker gets: the inputs that have no verdict yet."""
        todo = self.inputs[len(self.verdicts) :]
        run = self.run
        return answers.job(run.program, todo, run.entry, run.calls, self.limits.wall_seconds, sorted(run.without))

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

    def take(self, end: answers.Outcome | str) -> None:
        """Turn one process's end into verdicts. What is still missing afterwards needs another process.

        Args:
            end: how the process ended, or why the worker could not run it.
        """
        if isinstance(end, str):
            self.refuse(Status.INFRA_ERROR, end)
            return
        if end.exit == wire.BARE and not self.equipped:
            self.equipped = True
            return
        cost = (end.cpu, end.peak / 1024)
        missing = len(self.run.inputs) - len(self.verdicts)
        try:
            if not end.whole:
                raise ValueError
            found = list(answers.records(end.page))
            if end.ended and len(found) == 1 and found[0][0] in _OF_THE_PROGRAM and missing * self.run.calls != 1:
                self.verdicts += [self._verdict([found[0]], cost)] * missing
                return
            groups = [found[i : i + self.run.calls] for i in range(0, len(found), self.run.calls)]
            if len(groups) > missing or (end.ended and len(found) != missing * self.run.calls):
                raise ValueError
        except ValueError:
            self._end(Status.TAMPERED, "what it left is not what a run leaves", cost)
            return
        whole = [group for group in groups if len(group) == self.run.calls]
        self.verdicts += [self._verdict(group, cost) for group in whole]
        if not self.done and (not whole or not _again(end)):
            status, reason = self._cause(end)
            if status is not Status.KILLED:
                self._end(status, reason, cost)
            else:
                self.worker_died()  # perhaps the machine was short of memory: once more

    def _end(self, status: Status, reason: str, cost: tuple[float, float]) -> None:
        """The verdict of the input that the process was on when it ended."""
        self.verdicts.append(Verdict(status, reason, None, *cost, self.degraded))

    def _cause(self, end: answers.Outcome) -> tuple[Status, str]:
        state = end.exit
        if end.late:
            return Status.TIMEOUT, "wall time"
        if state == -_XCPU or (state == -_KILL and end.cpu >= self.limits.cpu_seconds):
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


def _again(end: answers.Outcome) -> bool:
    """Whether the input a process ended on deserves a process of its own: it may have been charged for those before it."""
    return bool(end.late) or end.exit < 0 or end.exit == wire.FULL


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
        if len(text) > min(limits.nodes, limits.text):  # a shorter text cannot hold too much
            encode(value, limits)
    except NotAValueError:
        return None, Status.TAMPERED
    except TooLargeError:
        return None, Status.TOO_LARGE
    return value, None
