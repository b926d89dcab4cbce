"""The judge of the game: runs programs a model wrote, and says what they are worth."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

from selfplay.referee.guarantees import Report, self_test
from selfplay.referee.jobs import Progress, Run
from selfplay.referee.limits import Settings
from selfplay.referee.pool import Pool
from selfplay.referee.values import canonical
from selfplay.referee.verdicts import Status, Verdict
from selfplay.referee.worker import RefereeError

log = logging.getLogger("selfplay.referee")

_SETTLED = (Status.TIMEOUT, Status.OUT_OF_MEMORY, Status.KILLED, Status.CRASHED, Status.TAMPERED)
"""Ends that say more than a difference between two runs does."""

ProgressCallback = Callable[[int, int], None]


class Referee(Pool):
    """A pool that has proven its promises on this machine, or was told to do without (`allow_degraded`).

    Attributes:
        report: the self-test's result, once started.
        degraded: guarantees waived; part of every verdict.
    """

    report: Report | None = None

    def __init__(self, settings: Settings | None = None) -> None:
        super().__init__(settings or Settings())

    def __enter__(self) -> Referee:
        self.start()
        return self

    def _ready(self) -> None:
        first = self._slots[0].worker
        keepers = [worker.process.pid for worker in self.workers]
        self.degraded = ()
        self.report = self_test(self._rehearse, keepers, first.layers, first.landlock, self.settings.limits.memory_mb)
        missing = self.report.missing
        if not missing:
            return
        fixes = "; ".join(f"{layer}: {how}" for layer, how in self.report.as_dict()["fixes"].items())
        if not self.settings.allow_degraded:
            raise RefereeError(
                f"this machine cannot guarantee: {', '.join(missing)}. Missing layers and how to get them: {fixes or 'none'}. "
                "allow_degraded starts all the same, and says so in every verdict"
            )
        self.degraded = missing
        log.warning("REFEREE DEGRADED: programs are run WITHOUT these guarantees: %s. %s", ", ".join(missing), fixes)

    def _rehearse(self, runs: Sequence[Run]) -> list[list[Verdict]]:
        items = [Progress(replace(run, hash_group=0), self.settings.limits) for run in runs]
        for item in items:
            item.prepare()
        self._play(items, lambda done, total: None)
        return [item.verdicts for item in items]

    def evaluate(
        self, program: str, inputs: Sequence[tuple[Any, ...]], entry: str | None = "f", progress: ProgressCallback | None = None
    ) -> list[Verdict]:
        """One verdict for each input, in one process as long as nothing goes wrong in it."""
        return self.run([Run(program, inputs, entry)], progress)[0]

    def validate(self, runs: Sequence[Run], progress: ProgressCallback | None = None) -> list[list[Verdict]]:
        """As `run`, and deterministic: a process under each hash seed, and two calls in each.

        A program whose state survives a call, or whose value depends on hashes, addresses, time or chance, is
        NONDETERMINISTIC on that input. Two seeds miss half of the programs that depend on the order of a set of two; name
        more of them in the settings to miss fewer.
        """
        groups = range(len(self.settings.hash_seeds))
        repeated = [replace(run, hash_group=group, calls=max(run.calls, 2)) for run in runs for group in groups]
        verdicts = self.run(repeated, progress)
        each = [verdicts[i : i + len(groups)] for i in range(0, len(verdicts), len(groups))]
        return [[reduce(agreed, of_input) for of_input in zip(*of_run, strict=True)] for of_run in each]


def agreed(first: Verdict, second: Verdict) -> Verdict:
    """One verdict of two runs of the same thing."""
    for verdict in (first, second):
        if verdict.blameless:
            return verdict
    if first.ok and second.ok:
        same = canonical(first.value) == canonical(second.value)
        return first if same else first.turned(Status.NONDETERMINISTIC, "two processes differ")
    for verdict in (first, second):
        if verdict.status in _SETTLED:
            return verdict
    if first.ok != second.ok:
        return replace(first, status=Status.NONDETERMINISTIC, reason="raised in one of two processes", value=None)
    return first


def against(verdict: Verdict, expected: Any) -> Verdict:
    """The verdict of an answer: OK stays only if the value is the expected one."""
    if not verdict.ok:
        return verdict
    same = canonical(verdict.value) == canonical(expected)
    return verdict if same else verdict.turned(Status.WRONG, "another value")
