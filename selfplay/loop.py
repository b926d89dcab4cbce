"""The game. One step is one screen of code, in the paper's order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from selfplay import events, phases
from selfplay.children import replace_worst
from selfplay.events import Event
from selfplay.serving import rest, serve
from selfplay.table import Answered, Child, Match, Proposed, Rated, State, Table
from selfplay.updates import Update


class Clock:
    """Seconds by phase.

    Args:
        watch: called with a phase's name when it starts.
        timer: seconds that have passed; of the wall unless another is given.
    """

    def __init__(self, watch: Callable[[str], None] = lambda phase: None, timer: Callable[[], float] = time.perf_counter) -> None:
        self.watch, self.timer = watch, timer
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Measure a phase."""
        self.watch(phase)
        begun = self.timer()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + self.timer() - begun


def step(table: Table, state: State, clock: Clock) -> tuple[State, list[Event]]:
    """Play one step.

    Returns:
        The state after it, and its events for the journal.
    """
    number = state.step + 1
    with clock("match"):
        matches = phases.match(table, state, number)
    with clock("serve"):
        serve(table, state.population)
    with clock("propose"):
        proposed = phases.propose(table, state, matches, number)
    with clock("validate"):
        proposed = phases.validate(table, proposed)
    with clock("solve"):
        answered = phases.solve(table, proposed)
    with clock("judge"):
        answered = phases.judge(table, answered)
    with clock("reward"):
        proposed, answered = phases.reward(table, proposed, answered)
        proposed = phases.remember(state, proposed)
    with clock("learn"):
        rest(table)
        updates = phases.learn(table, proposed, answered)
        ledger = phases.charge(state.ledger, proposed, answered, updates)
    with clock("rate"):
        population, rated = phases.rate(table, state.population, matches, proposed, answered)
    with clock("replace"):
        after, children = replace_worst(table, population, number)
    state = State(number, after, state.buffers, state.archive, ledger)
    return state, _events(state, [m.name for m in population.members], matches, proposed, answered, rated, updates, children)


def _events(
    state: State,
    members: list[str],
    matches: list[Match],
    proposed: list[Proposed],
    answered: list[Answered],
    rated: list[Rated],
    updates: dict[str, Update],
    children: list[Child],
) -> list[Event]:
    """The step's lines, in the journal's order."""
    number = state.step
    return [
        *(events.match(number, one) for one in matches),
        *(events.proposal(number, p) for p in proposed),
        *(events.answer(number, a) for a in answered),
        *(events.rating(number, r) for r in rated),
        *(events.update(number, name, updates.get(name), proposed, answered) for name in members),
        *(events.replacement(number, child) for child in children),
        events.summary(state, proposed, answered),
    ]
