"""What a run tells a plan: lengths from its journal, costs from its timings."""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from selfplay.asking import answer_stop
from selfplay.config import Config, checked
from selfplay.plan.geometry import Geometry
from selfplay.plan.load import style_of
from selfplay.plan.memory import FLOAT32, members
from selfplay.plan.rates import DERIVED, EXPECTED, HARDWARE, Rate, Rates
from selfplay.plan.seconds import decode_steps
from selfplay.report import reading
from selfplay.report.reading import Event, ReportError

PARSED = ("match", "reward", "rate", "journal")
"""Phases of a step that are bookkeeping."""


@dataclass
class Step:
    """Events of one finished step, and its seconds by phase."""

    proposals: list[Event] = field(default_factory=list)
    answers: list[Event] = field(default_factory=list)
    updates: list[Event] = field(default_factory=list)
    children: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def completion_tokens(self) -> int:
        """Written."""
        return sum(event["tokens"] for event in (*self.proposals, *self.answers))


@dataclass(frozen=True)
class Watched:
    """A run that was looked at."""

    folder: Path
    config: Config
    steps: Sequence[Step]

    @property
    def timed(self) -> list[Step]:
        """Steps with timings; the first, which warms up, only if there is no other."""
        found = [step for step in self.steps if step.seconds]
        return found[1:] or found


def watched(run: Path) -> Watched:
    """The finished steps of a run.

    Raises:
        ReportError: if the folder holds no run, a damaged one, or no finished step.
    """
    path = reading.journal_of(run)
    config, steps, finished = None, defaultdict[int, Step](Step), list[int]()
    lists = {"proposal": "proposals", "answer": "answers", "update": "updates"}
    try:
        for _, event in reading.lines(path):
            kind = event["event"]
            if kind == "start":
                config = checked(event["config"], str(path))
            elif kind in lists:
                getattr(steps[event["step"]], lists[kind]).append(event)
            elif kind == "replacement":
                steps[event["step"]].children += 1
            elif kind == "step":
                finished.append(event["step"])
        for row in reading.timings(run):
            steps[row["step"]].seconds = row
    except (KeyError, TypeError, AttributeError) as error:
        raise ReportError(f"{path}: {error} is missing; the file is damaged") from None
    if config is None or not finished:
        raise ReportError(f"{run} has no finished step to learn lengths from; play one first")
    return Watched(run, config, [steps[number] for number in finished])


def like(config: Config, base: Geometry, rates: Rates, run: Watched) -> tuple[dict[str, Rate], list[str]]:
    """Rates with what a run measured in their place, and what to know about that.

    Lengths are always taken, costs only from a run on the same base, device, dtype and engine.
    """
    found, notes, played = {**rates, **lengths_of(run)}, [], run.config
    if (played.base, style_of(played)) != (config.base, style_of(config)):
        notes.append(f"lengths are those of {played.base} in style {style_of(played)}; another base writes other texts")
    differing = [name for name in ("base", "device", "dtype", "engine") if getattr(played, name) != getattr(config, name)]
    if differing:
        notes.append(f"the timings of {run.folder} are of another {' and '.join(differing)}, so they are not used")
        return found, notes
    costs = costs_of(run, base, played.referee.workers or len(os.sched_getaffinity(0)))
    if not costs:
        notes.append(f"{run.folder} has no timings.jsonl, so seconds are not measured")
    return {**found, **costs}, notes


def lengths_of(run: Watched) -> dict[str, Rate]:
    """The lengths (`load.Lengths`) of a run, as means over all its steps. Of answers only if there were any."""
    proposals = [event for step in run.steps for event in step.proposals]
    answers = [event for step in run.steps for event in step.answers]
    written = sum(step.completion_tokens for step in run.steps)
    shown = sum(prompts_of(step.proposals, step.answers) for step in run.steps)
    found = {
        "valid": _mean(event["status"] == "ok" for event in proposals),
        "proposal_longest": _mean(_waited(run.config, step.proposals, batched=False) for step in run.steps),
        "trained": sum(event["tokens"] for step in run.steps for event in step.updates) / max(written, 1),
        "reread": sum(learned_prompts(run.config, step) for step in run.steps) / max(shown, 1),
    }
    if answers:
        found["answer_longest"] = _mean(_waited(run.config, step.answers, batched=True) for step in run.steps if step.answers)
    for name, events in (("proposal", proposals), ("answer", answers)) if answers else (("proposal", proposals),):
        found[name] = _mean(event["tokens"] for event in events)
        found[f"{name}_prompt"] = _mean(event["prompt_tokens"] for event in events)
        found[f"{name}_programs"] = _mean(event["programs"] for event in events)
    return {name: Rate(value, EXPECTED[name].unit, "measured", f"the journal of {run.folder}") for name, value in found.items()}


def costs_of(run: Watched, base: Geometry, workers: float) -> dict[str, Rate]:
    """What the timings of a run say of its machine; nothing if it has none.

    Args:
        base: of the run.
        workers: of its referee.
    """
    steps, own = run.timed, base.adapter_size(run.config.lora.rank) * FLOAT32
    if not steps:
        return {}
    seconds = {name: sum(step.seconds.get(name, 0.0) for step in steps) for name in steps[0].seconds}
    found = dict(zip(("step_seconds", "token_seconds"), _fitted(run, steps), strict=True))
    learned = sum(sum(u["tokens"] for u in step.updates) + learned_prompts(run.config, step) for step in steps)
    requests = sum(len(step.proposals) + len(step.answers) for step in steps)
    programs = sum(event["programs"] for step in steps for event in (*step.proposals, *step.answers))
    saved = sum(1 for step in steps if step.seconds.get("checkpoint")) * 3 * sum(members(run.config)) * own
    bred = sum(step.children for step in steps) * own
    for name, amount, spent in (
        ("programs", programs / workers, seconds["validate"] + seconds["judge"]),
        ("disk", saved, sum(step.seconds.get("checkpoint", 0.0) for step in steps)),
        ("breeding", bred, sum(step.seconds["replace"] for step in steps if step.children)),
    ):
        if amount and spent:
            found[name] = amount / spent
    if learned:
        found["learned_seconds"] = seconds["learn"] / (learned * run.config.learner.epochs)
    if requests:
        found["bookkeeping"] = sum(seconds.get(name, 0.0) for name in PARSED) / requests
    units = {**{name: rate.unit for name, rate in HARDWARE.items()}, **DERIVED}
    return {name: Rate(value, units[name], "measured", f"the timings of {run.folder}") for name, value in found.items()}


def prompts_of(proposals: Iterable[Event], answers: Iterable[Event]) -> int:
    """Prompt tokens that the engine reads: those of a group once."""
    groups = {_group(event): event["prompt_tokens"] for event in (*proposals, *answers)}
    return sum(groups.values())


def learned_prompts(config: Config, step: Step) -> int:
    """Prompt tokens that the learner reads: those of groups in which something has a signal."""
    live = [(_live(config, event), event) for event in (*step.proposals, *step.answers)]
    return prompts_of((event for is_live, event in live if is_live), ())


def _group(event: Event) -> str:
    return str(event["id"].rsplit("-", 1)[0] if event["event"] == "proposal" else event["problem"])


def _live(config: Config, event: Event) -> bool:
    if event["reward"] is None or (event["truncated"] and config.learner.mask_truncated):
        return False
    return bool(event["advantage"] or config.learner.kl)


def _waited(config: Config, events: Sequence[Event], batched: bool) -> float:
    """Decode steps of a phase if all were one wave: the longest of each batch, summed."""
    longest: dict[Any, int] = {}
    for event in events:
        stop = answer_stop(_kind(event), style_of(config)) if batched else ()
        longest[stop] = max(longest.get(stop, 0), event["tokens"])
    return float(sum(longest.values()))


def _kind(event: Event) -> str:
    """The kind of an answer's problem: the id is step-teacher-kind-prompt-number."""
    return str(event["problem"].split("-")[2])


def _fitted(run: Watched, steps: Sequence[Step]) -> tuple[float, float]:
    """Seconds a decode step and a token, neither below zero, by least squares over both phases of all steps."""
    rows, spent = [], []
    for step in steps:
        for phase, events, batched in (("propose", step.proposals, False), ("solve", step.answers, True)):
            if events:
                waves = ceil(len(events) / run.config.sequences)
                tokens = sum(event["tokens"] for event in events) + prompts_of(events, ())
                mean = _mean(event["tokens"] for event in events)
                rows.append((decode_steps(run.config, waves, _waited(run.config, events, batched), mean), tokens))
                spent.append(step.seconds[phase])
    asked, seconds = np.array(rows, dtype=float), np.array(spent)
    both, *_ = np.linalg.lstsq(asked, seconds, rcond=None)
    if (both >= 0).all():
        return float(both[0]), float(both[1])
    alone = [float(column @ seconds / (column @ column)) for column in asked.T]
    left = [float(((seconds - asked[:, i] * alone[i]) ** 2).sum()) for i in (0, 1)]
    return (alone[0], 0.0) if left[0] < left[1] else (0.0, alone[1])


def _mean(values: Iterable[float]) -> float:
    return statistics.fmean(values)
