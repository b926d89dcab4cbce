"""pass@k and its intervals. Pure functions."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from math import comb

import numpy as np

from lora_evo.seeding import stream

RESAMPLES = 2000


def pass_at_k(samples: int, right: int, k: int) -> float:
    """The chance that at least one of k answers is right, without bias from samples >= k of them (Chen et al., 2107.03374).

    Raises:
        ValueError: for k outside 1 to samples, or right outside 0 to samples.
    """
    if not 1 <= k <= samples:
        raise ValueError(f"k is {k}, it must be from 1 to {samples}, the number of samples")
    if not 0 <= right <= samples:
        raise ValueError(f"right is {right}, it must be from 0 to {samples}")
    return 1.0 - comb(samples - right, k) / comb(samples, k)


def interval(values: Sequence[float], seed: int, confidence: float = 0.95) -> tuple[float, float]:
    """The percentile interval of the mean, by drawing problems with replacement; (nan, nan) for none.

    Args:
        values: one for each problem.
        seed: of the draws; equal seeds draw the same problems, so that members are compared on the same ones.
    """
    if not len(values):
        return float("nan"), float("nan")
    given = np.asarray(values, dtype=float)
    drawn = stream(seed, "bootstrap", str(len(given))).integers(len(given), size=(RESAMPLES, len(given)))
    low, high = np.quantile(given[drawn].mean(1), [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def halves(ids: Sequence[str], seed: int) -> tuple[list[int], list[int]]:
    """Places of two disjoint halves of the problems, by the digests of their ids: to choose on one, to report the other."""
    order = sorted(range(len(ids)), key=lambda i: hashlib.sha256(f"{seed}\0{ids[i]}".encode()).digest())
    return sorted(order[: len(ids) // 2]), sorted(order[len(ids) // 2 :])
