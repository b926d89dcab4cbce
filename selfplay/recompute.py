"""The figures of `step` events from the events before them: a second way to every number, for tests and for doubt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from selfplay.accounting import Cost, Ledger
from selfplay.config import Config, checked
from selfplay.events import Event, costs
from selfplay.journal import read
from selfplay.ratings import Rating, updated


@dataclass
class _Tally:
    """What has to be carried from step to step."""

    config: Config
    ratings: dict[str, Rating]
    buffers: dict[str, int]
    ledger: Ledger = field(default_factory=Ledger.empty)
    filled: int = 0


def summaries(events: Iterable[Event]) -> Iterator[Event]:
    """A `step` event for each of the journal's, computed anew from proposals, answers, ratings, updates and replacements."""
    tally: _Tally | None = None
    seen: list[Event] = []
    for event in events:
        if event["event"] == "start":
            config = checked(event["config"])
            tally = _Tally(config, {m["name"]: Rating() for m in event["members"]}, dict.fromkeys(config.game.kinds, 1))
        elif event["event"] == "seeding" and tally is not None:
            tally.buffers[event["kind"]] = min(1 + event["new"], tally.config.game.buffer)
        elif event["event"] == "step" and tally is not None:
            yield _summary(tally, event["step"], seen)
            seen = []
        else:
            seen.append(event)


def _summary(tally: _Tally, step: int, seen: list[Event]) -> Event:
    proposals, answers = (_of(seen, kind) for kind in ("proposal", "answer"))
    problems = [p for p in proposals if p["status"] == "ok"]
    judged = [p for p in proposals if p["status"] != "infra_error"]
    right = [a["status"] == "ok" for a in answers if a["status"] != "infra_error"]
    _count(tally, proposals, answers, seen)
    _rate(tally, seen)
    return {
        "event": "step", "step": step,
        "valid": len(problems) / len(judged) if judged else None,
        "solve_rate": sum(right) / len(right) if right else None,
        "coverage": tally.filled / tally.config.archive.cells, "filled": tally.filled,
        "buffers": dict(tally.buffers),
        "complexity": np.mean([[float(x) for x in p["complexity"]] for p in problems], axis=0).tolist() if problems else None,
        "ratings": {name: [r.mu, r.sigma] for name, r in tally.ratings.items()},
        **costs(tally.ledger),
    }  # fmt: skip


def _count(tally: _Tally, proposals: list[Event], answers: list[Event], seen: list[Event]) -> None:
    for p in proposals:
        tally.filled += p["new_cell"]
        tally.buffers[p["kind"]] = min(tally.buffers[p["kind"]] + p["new"], tally.config.game.buffer)
    for who, several in (("teacher", proposals), ("student", answers)):
        for one in several:
            cost = Cost(1, one["prompt_tokens"], one["tokens"], programs=one["programs"])
            tally.ledger = tally.ledger.charge(one[who], cost)
    for u in _of(seen, "update"):
        if u["samples"]:
            tally.ledger = tally.ledger.charge(u["member"], Cost(trained_tokens=u["tokens"]))


def _rate(tally: _Tally, seen: list[Event]) -> None:
    for r in _of(seen, "rating"):
        student, teacher = updated(tally.ratings[r["student"]], tally.ratings[r["teacher"]], r["result"])
        tally.ratings |= {r["student"]: student, r["teacher"]: teacher}
    for r in _of(seen, "replacement"):
        renamed = [(r["child"], Rating()) if name == r["victim"] else (name, old) for name, old in tally.ratings.items()]
        tally.ratings = dict(renamed)


def _of(seen: list[Event], kind: str) -> list[Event]:
    return [event for event in seen if event["event"] == kind]


def last_summary(path: Path) -> Event:
    """The last `step` event of a journal; empty if no step was played."""
    found: Event = {}
    for event in read(path):
        if event["event"] == "step":
            found = event
    return {key: value for key, value in found.items() if key != "event"}
