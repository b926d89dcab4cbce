"""The referee: batches of runs in, verdicts out in order, over a few workers that may die at any time."""

from __future__ import annotations

import logging
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from selfplay.referee import answers
from selfplay.referee.inside.jail import ON
from selfplay.referee.jobs import Progress, Run
from selfplay.referee.limits import Settings
from selfplay.referee.verdicts import Verdict
from selfplay.referee.worker import START_SECONDS, RefereeError, Worker

log = logging.getLogger("selfplay.referee")

_QUEUED = 8
"""Runs sent ahead to one worker, so that it never waits for the referee."""
_NAP = 0.005
"""Seconds the referee sleeps while every worker has plenty to do, so that it wakes for several answers at once."""
_GRACE = 10.0
"""Seconds a worker may be silent beyond a program's wall time before it counts as dead."""
_START_FAILURES = 3


class Slot:
    """One place in the pool: its worker and the runs it has been sent, the first of which it is on."""

    def __init__(self, worker: Worker, group: int) -> None:
        self.worker = worker
        self.group = group
        self.sent: deque[tuple[int, Progress]] = deque()
        self.since = time.monotonic()
        self.writing = False

    def overdue(self, now: float) -> float:
        """Seconds until the worker counts as dead, negative once it does."""
        wall = self.sent[0][1].limits.wall_seconds
        return self.since + wall + _GRACE - now


class Pool:
    """Workers and the loop that feeds them: bare ones, and equipped ones as soon as a program imports something.

    `Referee` adds the self-test and the rules of judging.

    Use as a context manager, or call `close`. Calls from several threads are served one after the other. An exception in
    a call, Ctrl-C included, ends the workers; the next call starts new ones.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.degraded: tuple[str, ...] = ()
        self.replaced = 0
        self._lock = threading.Lock()
        self._slots: list[Slot] = []
        self._expected: frozenset[str] = frozenset()
        groups = len(settings.hash_seeds)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.size = settings.workers or max(groups, cores)

    def __enter__(self) -> Pool:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the workers, all at once, and wait until they serve.

        Raises:
            RefereeError: if they do not.
        """
        if self._slots:
            return
        try:
            self._add_slots(equipped=False)
            self._expected = _on(self._slots[0].worker)
            self._ready()
        except BaseException:
            self.close()
            raise

    def _add_slots(self, equipped: bool) -> list[Slot]:
        """Start a worker for each place, all at once."""
        seeds = self.settings.hash_seeds
        added = []
        for i in range(self.size):
            added.append(Slot(Worker(self.settings, seeds[i % len(seeds)], equipped), i % len(seeds)))
            self._slots.append(added[-1])
        for slot in added:
            slot.worker.hello(START_SECONDS)
        return added

    def _ready(self) -> None:
        """Called when new workers serve, before the first run."""

    def close(self) -> None:
        """End every worker with all its processes."""
        slots, self._slots = self._slots, []
        for slot in slots:
            slot.worker.kill()

    @property
    def workers(self) -> list[Worker]:
        """The live workers."""
        return [slot.worker for slot in self._slots]

    def run(self, runs: Sequence[Run], progress: Callable[[int, int], None] | None = None) -> list[list[Verdict]]:
        """The verdicts of all inputs of all runs, in order.

        Args:
            runs: any number.
            progress: called with how many runs are done, and how many there are.

        Raises:
            RefereeError: if workers can no longer be started; what is judged by then is lost.
        """
        with self._lock:
            items = [Progress(run, self.settings.limits) for run in runs]
            try:
                self.start()
                for item in items:
                    item.degraded = self.degraded
                    item.prepare()
                self._play(items, progress or (lambda done, total: None))
            except BaseException:
                self.close()
                raise
        return [item.verdicts for item in items]

    def _play(self, items: list[Progress], progress: Callable[[int, int], None]) -> None:
        waiting = _Queues(items, len(self.settings.hash_seeds))
        left = sum(not item.done for item in items)
        total = len(items)
        with selectors.DefaultSelector() as selector:
            for slot in self._slots:
                slot.sent.clear()
                slot.writing = False
                selector.register(slot.worker.line, selectors.EVENT_READ, slot)
            while left:
                if waiting.need_equipped() and not any(slot.worker.equipped for slot in self._slots):
                    for slot in self._add_slots(equipped=True):
                        selector.register(slot.worker.line, selectors.EVENT_READ, slot)
                for slot in self._slots:
                    if len(slot.sent) < _QUEUED:
                        self._feed(slot, waiting, selector)
                finished = self._wait(selector, waiting)
                left -= finished
                if finished:
                    progress(total - left, total)

    def _feed(self, slot: Slot, waiting: _Queues, selector: selectors.BaseSelector) -> None:
        """Send ahead what the slot may have."""
        if not slot.sent and slot.worker.served >= self.settings.recycle:
            self._replace(slot, waiting, selector)
        while len(slot.sent) < _QUEUED and (next_one := waiting.pop(slot.group, slot.worker.equipped)) is not None:
            if not slot.sent:
                slot.since = time.monotonic()
            slot.sent.append(next_one)
            try:
                slot.worker.send(next_one[1].message())
            except EOFError:
                return  # seen again, and dealt with, when its line is read
        if slot.worker.unsent != slot.writing:
            slot.writing = slot.worker.unsent
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if slot.writing else 0)
            selector.modify(slot.worker.line, events, slot)

    def _wait(self, selector: selectors.BaseSelector, waiting: _Queues) -> int:
        """Wait for something to happen; how many runs were finished by it."""
        if all(len(slot.sent) > _QUEUED // 2 for slot in self._slots if slot.sent):
            time.sleep(_NAP)  # everyone is busy for longer than this: take several answers at once
        now = time.monotonic()
        left = min((slot.overdue(now) for slot in self._slots if slot.sent), default=1.0)
        finished = 0
        for key, events in selector.select(max(left, 0.0)):
            slot = key.data
            try:
                if events & selectors.EVENT_WRITE:
                    slot.worker.flush()
                    self._feed(slot, waiting, selector)
                if events & selectors.EVENT_READ:
                    for body in slot.worker.arrived():
                        finished += self._taken(slot, waiting, body)
            except (EOFError, ValueError, IndexError):
                finished += self._died(slot, waiting, selector)
        now = time.monotonic()
        for slot in self._slots:
            if slot.sent and slot.overdue(now) < 0:
                finished += self._died(slot, waiting, selector)
        return finished

    def _taken(self, slot: Slot, waiting: _Queues, body: bytes) -> int:
        index, item = slot.sent[0]
        item.take(answers.read(body))
        slot.sent.popleft()
        slot.since = time.monotonic()
        slot.worker.served += 1
        if item.done:
            return 1
        waiting.push_back(index, item)
        return 0

    def _died(self, slot: Slot, waiting: _Queues, selector: selectors.BaseSelector) -> int:
        """Replace the worker; the run it was on has had its one chance, those behind it lose nothing."""
        finished = 0
        if slot.sent:
            index, item = slot.sent.popleft()
            if item.worker_died():
                waiting.push_back(index, item)
            else:
                finished = 1
        log.warning("a referee worker died and is replaced")
        self._replace(slot, waiting, selector)
        return finished

    def _replace(self, slot: Slot, waiting: _Queues, selector: selectors.BaseSelector) -> None:
        while slot.sent:
            waiting.push_back(*slot.sent.pop())
        selector.unregister(slot.worker.line)
        slot.worker.kill()
        self.replaced += 1
        for attempt in range(_START_FAILURES):
            try:
                slot.worker = Worker(self.settings, slot.worker.hash_seed, slot.worker.equipped)
                slot.worker.hello()
                if not self._expected <= _on(slot.worker):
                    slot.worker.kill()
                    raise RefereeError(f"a new worker lacks layers: {sorted(self._expected - _on(slot.worker))}")
                break
            except RefereeError:
                if attempt + 1 == _START_FAILURES:
                    raise
        slot.writing = False
        selector.register(slot.worker.line, selectors.EVENT_READ, slot)


class _Queues:
    """Runs that wait, by what they need: a hash seed or any, a bare or an equipped worker."""

    def __init__(self, items: list[Progress], groups: int) -> None:
        self.groups = groups
        self.waiting: dict[tuple[int | None, bool], deque[tuple[int, Progress]]] = {
            (group, equipped): deque() for group in (None, *range(groups)) for equipped in (False, True)
        }
        for index, item in enumerate(items):
            if not item.done:
                self._of(item).append((index, item))

    def _of(self, item: Progress) -> deque[tuple[int, Progress]]:
        group = item.run.hash_group
        return self.waiting[None if group is None else group % self.groups, item.equipped]

    def need_equipped(self) -> bool:
        """Whether a run waits for an equipped worker."""
        return any(queue for (_, equipped), queue in self.waiting.items() if equipped)

    def pop(self, group: int, equipped: bool) -> tuple[int, Progress] | None:
        """The next run for such a worker."""
        queue = self.waiting[group, equipped] or self.waiting[None, equipped]
        return queue.popleft() if queue else None

    def push_back(self, index: int, item: Progress) -> None:
        """Put a run at the head of its queue."""
        self._of(item).appendleft((index, item))


def _on(worker: Worker) -> frozenset[str]:
    """The layers that are on."""
    return frozenset(layer for layer, said in worker.layers.items() if said == ON)
