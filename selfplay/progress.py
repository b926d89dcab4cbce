"""What one sees of a run on stderr: a live panel on a terminal, one line a step elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO

from selfplay.events import Event
from selfplay.runs import Watcher


class Figures:
    """What is known of the run's speed.

    Args:
        steps: the last step.
        spent: tokens sampled before this process began.
    """

    def __init__(self, steps: int, spent: int = 0) -> None:
        self.steps, self.spent = steps, spent
        self.seconds: list[float] = []

    def line(self, step: Event, seconds: Mapping[str, float]) -> str:
        """A step in one line."""
        tokens, self.spent = step["cost"]["completion_tokens"] - self.spent, step["cost"]["completion_tokens"]
        self.seconds.append(seconds["total"])
        parts = (
            f"step {step['step']}/{self.steps}",
            f"valid {share(step['valid'])}",
            f"solved {share(step['solve_rate'])}",
            f"cells {step['filled']}",
            f"{seconds['total']:.1f} s",
            f"{tokens / max(seconds['total'], 1e-9):,.0f} tokens/s",
            f"{duration(self.left(step['step']))} left",
        )
        return "  ".join(parts)

    def left(self, step: int) -> float:
        """Seconds to the end, from the last steps."""
        last = self.seconds[-20:]
        return (self.steps - step) * sum(last) / len(last)


class Lines:
    """One line a step."""

    def __init__(self, figures: Figures, stream: TextIO) -> None:
        self.figures, self.stream = figures, stream

    def phase(self, step: int, name: str) -> None:
        """See `Watcher`."""

    def played(self, step: Event, seconds: Mapping[str, float]) -> None:
        """See `Watcher`."""
        print(self.figures.line(step, seconds), file=self.stream, flush=True)


class Panel:
    """The running phase, the last step, and the ratings, in place."""

    def __init__(self, figures: Figures, live: Any) -> None:
        self.figures, self.live = figures, live
        self.last, self.table = "no step yet", ""

    def phase(self, step: int, name: str) -> None:
        """See `Watcher`."""
        self.live.update(f"step {step}/{self.figures.steps}: {name} ...\n{self.last}\n{self.table}".rstrip(), refresh=True)

    def played(self, step: Event, seconds: Mapping[str, float]) -> None:
        """See `Watcher`."""
        self.last = self.figures.line(step, seconds)
        self.table = ratings(step)
        self.live.update(f"{self.last}\n{self.table}", refresh=True)


@contextmanager
def shown(steps: int, spent: int = 0, stream: TextIO | None = None) -> Iterator[Watcher]:
    """A watcher for this stream, stderr if left out."""
    stream = stream or sys.stderr
    figures = Figures(steps, spent)
    if not stream.isatty():
        yield Lines(figures, stream)
        return
    from rich.console import Console
    from rich.live import Live

    with Live("", console=Console(file=stream, markup=False, highlight=False), auto_refresh=False) as live:
        yield Panel(figures, live)


def ratings(step: Event) -> str:
    """Members with their ratings, best first: `t0 29.4 ± 7.2`."""
    ranked = sorted(step["ratings"].items(), key=lambda one: -(one[1][0] - 3 * one[1][1]))
    return "  ".join(f"{name} {mu:.1f} ± {sigma:.1f}" for name, (mu, sigma) in ranked)


def share(value: float | None) -> str:
    """A share for people; a dash where there is none."""
    return "-" if value is None else f"{value:.2f}"


def duration(seconds: float) -> str:
    """Seconds for people."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
