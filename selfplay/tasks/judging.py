"""Whole batches of texts in front of the referee: proposals become problems, answers become verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from selfplay.referee import Referee, Run, Status, Verdict
from selfplay.tasks.base import FormatError, Problem, Proposal, Style, Task


@dataclass(frozen=True)
class Written:
    """A text by a model: a proposal of a task kind, on a subject where the kind needs one."""

    task: Task
    text: str
    subject: str | None = None


def validate(referee: Referee, written: Sequence[Written], style: Style) -> list[Problem | Verdict]:
    """What each proposal is: a problem, if the referee says so, or the verdict against it. All are run in one batch."""
    proposals: list[Proposal | Verdict] = []
    for item in written:
        try:
            proposals.append(item.task.parse_proposal(item.text, style, item.subject))
        except FormatError as error:
            proposals.append(error.verdict)
    runs = [w.task.proposal_run(p) for w, p in zip(written, proposals, strict=True) if isinstance(p, Proposal)]
    verdicts = iter(referee.validate(runs))
    return [w.task.accept(p, next(verdicts)) if isinstance(p, Proposal) else p for w, p in zip(written, proposals, strict=True)]


def judge(referee: Referee, answers: Sequence[tuple[Task, Problem, str]], style: Style) -> list[Verdict]:
    """The verdict on each answer's text. All are run in one batch; equal answers to one problem are run once."""
    parsed: list[tuple[Any, Verdict | None]] = []
    for task, problem, text in answers:
        try:
            parsed.append((task.parse_answer(problem, text, style), None))
        except FormatError as error:
            parsed.append((None, error.verdict))
    runs: dict[str, Run] = {}
    keys: list[str | None] = []
    for (task, problem, _), (answer, against_it) in zip(answers, parsed, strict=True):
        run = None if against_it else task.answer_run(problem, answer)
        keys.append(None if run is None else repr((run.program, run.inputs, run.calls, run.entry)))
        if run is not None:
            runs[keys[-1] or ""] = run
    found = dict(zip(runs, referee.run(list(runs.values())), strict=True))
    graded = []
    for (task, problem, _), (answer, against_it), key in zip(answers, parsed, keys, strict=True):
        graded.append(against_it or task.grade(problem, answer, found[key] if key is not None else ()))
    return graded


def solve_rate(verdicts: Sequence[Verdict]) -> float | None:
    """The share of right answers among those that were judged; None if the referee failed on all of them."""
    judged = [v.status is Status.OK for v in verdicts if not v.blameless]
    return sum(judged) / len(judged) if judged else None
