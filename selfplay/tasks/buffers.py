"""Buffers of problems: shared, without duplicates, the newest kept, seeded with the identity, saved and restored."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from selfplay.files import replaced
from selfplay.tasks.base import Problem, Task


class Buffer:
    """Problems of one kind, oldest first.

    A problem is a duplicate if one of the same normal form on the same inputs is there, or one with the same inputs and
    outputs. A duplicate changes nothing. Beyond `capacity` the oldest goes.

    Args:
        capacity: at least 1.
    """

    def __init__(self, capacity: int = 16_384) -> None:
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}, it must be at least 1")
        self.capacity = capacity
        self._problems: dict[int, Problem] = {}
        self._keys: dict[str, int] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._problems)

    def __iter__(self) -> Iterator[Problem]:
        return iter(self._problems.values())

    def add(self, problem: Problem) -> bool:
        """Add a problem; whether it was new."""
        keys = problem.form, problem.behaviour
        if any(key in self._keys for key in keys):
            return False
        self._problems[self._next] = problem
        self._keys.update(dict.fromkeys(keys, self._next))
        self._next += 1
        while len(self._problems) > self.capacity:
            oldest = next(iter(self._problems))
            gone = self._problems.pop(oldest)
            for key in (gone.form, gone.behaviour):
                del self._keys[key]
        return True

    def sample(self, count: int, rng: np.random.Generator) -> list[Problem]:
        """Up to `count` different problems, uniformly."""
        problems = list(self._problems.values())
        return [problems[i] for i in rng.permutation(len(problems))[:count]]


class Buffers:
    """One buffer for each task kind, shared by all teachers."""

    def __init__(self, tasks: Iterable[Task], capacity: int = 16_384) -> None:
        self.of = {task.name: Buffer(capacity) for task in tasks}

    @staticmethod
    def seeded(tasks: Sequence[Task], capacity: int = 16_384) -> Buffers:
        """Buffers that hold each kind's seed problem."""
        buffers = Buffers(tasks, capacity)
        for task in tasks:
            buffers.add(task.seed_problem())
        return buffers

    def add(self, problem: Problem) -> bool:
        """Add a problem to its kind's buffer; whether it was new."""
        return self.of[problem.kind].add(problem)

    def references(self, kind: str, count: int, rng: np.random.Generator) -> list[Problem]:
        """Problems to show a teacher."""
        return self.of[kind].sample(count, rng)

    def subject(self, kinds: Sequence[str], rng: np.random.Generator) -> str:
        """A program to work on, from the union of some kinds' buffers.

        Raises:
            ValueError: if they are empty.
        """
        programs = list(dict.fromkeys(p.program for kind in kinds for p in self.of[kind]))
        if not programs:
            raise ValueError(f"no program in the buffers of {', '.join(kinds)}")
        return programs[rng.integers(len(programs))]

    def save(self, path: Path) -> None:
        """Write all problems, atomically."""
        stored = {
            kind: {"capacity": buffer.capacity, "problems": [problem.as_dict() for problem in buffer]}
            for kind, buffer in self.of.items()
        }
        replaced(path, json.dumps(stored))

    @staticmethod
    def load(path: Path) -> Buffers:
        """Read what `save` wrote."""
        buffers = Buffers(())
        for kind, stored in json.loads(path.read_text()).items():
            buffers.of[kind] = Buffer(stored["capacity"])
            for problem in stored["problems"]:
                buffers.of[kind].add(Problem.from_dict(problem))
        return buffers
