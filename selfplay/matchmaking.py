"""Who plays whom: prioritised fictitious self-play, which prefers even pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from selfplay.ratings import Rating, win_probability

Matching = Literal["even", "uniform"]


def pairs(
    teachers: Sequence[Rating], students: Sequence[Rating], rng: np.random.Generator, matching: Matching = "even"
) -> list[tuple[int, int]]:
    """One match for each teacher, as (teacher, student) indices, in the teachers' order.

    Teachers choose in random order. Students are drawn without replacement, with weight p (1 - p) for `even`; when none is
    left all come back, so every student plays if there are as many teachers, and none plays twice before all have played.

    Raises:
        ValueError: if there is no student.
    """
    if teachers and not students:
        raise ValueError("there are teachers but no student")
    chosen: dict[int, int] = {}
    pool: list[int] = []
    for teacher in rng.permutation(len(teachers)).tolist():
        pool = pool or list(range(len(students)))
        weights = np.ones(len(pool)) if matching == "uniform" else even_weights(teachers[teacher], [students[s] for s in pool])
        chosen[teacher] = pool.pop(int(rng.choice(len(pool), p=weights / weights.sum())))
    return sorted(chosen.items())


def even_weights(teacher: Rating, students: Sequence[Rating]) -> np.ndarray:
    """p (1 - p) for each student; all equal where every pair is hopeless."""
    p = np.array([win_probability(student, teacher) for student in students])
    weights = p * (1 - p)
    return weights if weights.sum() > 1e-12 else np.ones(len(p))
