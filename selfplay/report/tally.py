"""One pass over a journal: what is counted on the way, so that a long run needs little memory."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from selfplay.report.problems import Problems
from selfplay.report.reading import Event
from selfplay.rewards import FORMAT_FAILURES

Key = tuple[str, str, int]
"""Role, label, step."""


@dataclass
class Mean:
    """A mean on the way."""

    total: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        """One more value."""
        self.total += value
        self.count += 1

    @property
    def value(self) -> float | None:
        """The mean; None of nothing."""
        return self.total / self.count if self.count else None


@dataclass
class Tally:
    """Counts and the small events of a journal. Texts go to `problems`, which keeps only as many as a page can hold.

    What a step adds to `matches`, `pairs` and `replacements` waits in `unfinished` until the step's own event, its last, comes.
    """

    problems: Problems
    start: Event | None = None
    ended: bool = False
    steps: list[Event] = field(default_factory=list)
    unfinished: list[Event] = field(default_factory=list)
    updates: list[Event] = field(default_factory=list)
    replacements: list[Event] = field(default_factory=list)
    matches: Counter[tuple[str, str]] = field(default_factory=Counter)
    pairs: dict[tuple[str, str], Mean] = field(default_factory=lambda: defaultdict(Mean))
    kinds: dict[tuple[str, int], Mean] = field(default_factory=lambda: defaultdict(Mean))
    verdicts: Counter[Key] = field(default_factory=Counter)
    outcomes: Counter[Key] = field(default_factory=Counter)
    rewards: dict[tuple[str, int], Mean] = field(default_factory=lambda: defaultdict(Mean))

    def add(self, event: Event) -> None:
        """Count one event; kinds of events that are not known here are passed over.

        Raises:
            KeyError, TypeError, ValueError: for an event that lacks something.
        """
        match event["event"]:
            case "start":
                self.start = event
            case "match" | "replacement":
                self.unfinished.append(event)
            case "proposal":
                self._proposal(event)
            case "answer":
                self._judged("student", event, answer_outcome(event))
                self.problems.answer(event)
            case "update":
                self.updates.append(event)
            case "step":
                self._finish(event)
            case "end":
                self.ended = True

    def _finish(self, event: Event) -> None:
        self.steps.append(event)
        self.ended = False  # a run that had ended may be resumed
        for one in self.unfinished:
            pair = one.get("teacher", ""), one.get("student", "")
            match one["event"]:
                case "match":
                    self.matches[pair] += 1
                case "replacement":
                    self.replacements.append(one)
                case _:
                    self.pairs[pair].add(one["rho"])
        self.unfinished.clear()

    def _proposal(self, event: Event) -> None:
        self._judged("teacher", event, proposal_outcome(event))
        rho, step = event["rho"], event["step"]
        if rho is not None and step > 0:
            self.unfinished.append({name: event[name] for name in ("event", "teacher", "student", "rho")})
            self.kinds[event["kind"], step].add(rho)
        self.problems.proposal(event)

    def _judged(self, role: str, event: Event, label: str) -> None:
        step, reward = event["step"], event["reward"]
        self.verdicts[role, event["status"], step] += 1
        self.outcomes[role, label, step] += 1
        if reward is not None:
            self.rewards[role, step].add(reward)


def proposal_outcome(event: Event) -> str:
    """What a proposal came to, by which it is paid."""
    if event["status"] != "ok":
        return "not judged" if event["reward"] is None else "invalid"
    rho = event["rho"]
    if rho is None:
        return "not judged"
    if rho in (0, 1):
        return "solved never" if rho == 0 else "solved always"
    return "solved less than half" if rho < 0.5 else "solved half and more"


def answer_outcome(event: Event) -> str:
    """What an answer came to, by which it is paid."""
    if event["reward"] is None:
        return "not judged"
    if event["status"] == "ok":
        return "right"
    return "malformed" if event["status"] in FORMAT_FAILURES else "wrong"


def plain(value: Any) -> Any:
    """For JSON that a browser reads: floats to six digits, None for what is no number."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if abs(value) < float("inf") else None
    if isinstance(value, dict):
        return {key: plain(v) for key, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, list | tuple) else value
