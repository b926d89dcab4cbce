"""From rewards to advantages: group baselines, then, where the variant says so, whitening inside a cell.

A group is what answers one prompt; a cell is (member, role, task kind). Rewards of nan are samples that could not be judged:
they leave every mean and get the advantage 0. Groups without variance get 0 exactly, and so do groups of one unless they may
borrow their cell's mean. No result is ever nan or infinite.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Variant = Literal["grpo", "dr_grpo", "reinforce_pp_baseline"]
Floats = NDArray[np.float64]


def advantages(
    rewards: Sequence[float],
    groups: Sequence[Hashable],
    variant: Variant = "reinforce_pp_baseline",
    cells: Sequence[Hashable] | None = None,
    weights: Sequence[float] | None = None,
    singletons: Literal["zero", "cell"] = "zero",
    ddof: int | None = None,
    epsilon: float | None = None,
) -> Floats:
    """The advantage of each sample.

    Args:
        rewards: one for each sample; nan for those that could not be judged.
        groups: the group of each sample.
        variant: `grpo`: (r - mean) / (std + epsilon) in the group; `dr_grpo`: r - mean in the group;
            `reinforce_pp_baseline`: r - mean in the group, then divided by the standard deviation in the cell.
        cells: the cell of each sample; one for all if left out.
        weights: tokens of each sample, if the cell's mean and deviation are to count tokens instead of samples.
        singletons: groups of one are worth nothing, or are compared with the mean of their cell's groups of one.
        ddof: of the standard deviation; left out: 1 for `grpo`, 0 for whitening by samples, 1 by tokens.
        epsilon: added to the standard deviation; left out: 1e-4 for `grpo`, 1e-9 for whitening.

    Raises:
        ValueError: for an unknown variant, or lengths that differ.
    """
    r = np.asarray(rewards, dtype=np.float64)
    cell_list = list(cells) if cells is not None else [0] * len(r)
    w = np.ones(len(r)) if weights is None else np.asarray(weights, dtype=np.float64)
    if not len(r) == len(groups) == len(cell_list) == len(w):
        raise ValueError(f"lengths differ: {len(r)} rewards, {len(groups)} groups, {len(cell_list)} cells, {len(w)} weights")
    if variant not in ("grpo", "dr_grpo", "reinforce_pp_baseline"):
        raise ValueError(f"no variant {variant!r}; there are grpo, dr_grpo, reinforce_pp_baseline")
    alive = np.isfinite(r)
    centred, live = _centred(np.where(alive, r, 0.0), alive, groups, cell_list, singletons)
    if variant == "dr_grpo":
        return centred
    if variant == "grpo":
        return _scaled_by_group(centred, live, alive, groups, 1 if ddof is None else ddof, 1e-4 if epsilon is None else epsilon)
    default_ddof = 0 if weights is None else 1
    return _whitened(
        centred, live, alive, cell_list, w, default_ddof if ddof is None else ddof, 1e-9 if epsilon is None else epsilon
    )


def _members(labels: Sequence[Hashable], alive: NDArray[np.bool_]) -> list[NDArray[np.int64]]:
    found: dict[Hashable, list[int]] = {}
    for i, label in enumerate(labels):
        if alive[i]:
            found.setdefault(label, []).append(i)
    return [np.asarray(indices) for indices in found.values()]


def _centred(
    r: Floats, alive: NDArray[np.bool_], groups: Sequence[Hashable], cells: Sequence[Hashable], singletons: str
) -> tuple[Floats, NDArray[np.bool_]]:
    """Rewards less their baseline, and which samples have a signal."""
    centred, live, alone = np.zeros(len(r)), np.zeros(len(r), dtype=bool), np.zeros(len(r), dtype=bool)
    for group in _members(groups, alive):
        if len(group) == 1:
            alone[group] = True
        elif np.ptp(r[group]) > 0:
            centred[group], live[group] = r[group] - r[group].mean(), True
    if singletons == "cell":
        for cell in _members(cells, alone):
            if len(cell) > 1 and np.ptp(r[cell]) > 0:
                centred[cell], live[cell] = r[cell] - r[cell].mean(), True
    return centred, live


def _scaled_by_group(
    centred: Floats, live: NDArray[np.bool_], alive: NDArray[np.bool_], groups: Sequence[Hashable], ddof: int, epsilon: float
) -> Floats:
    scaled = centred.copy()
    for group in _members(groups, alive & live):
        if len(group) > ddof:
            scaled[group] /= np.sqrt(np.sum(centred[group] ** 2) / (len(group) - ddof)) + epsilon
    return scaled


def _whitened(
    centred: Floats,
    live: NDArray[np.bool_],
    alive: NDArray[np.bool_],
    cells: Sequence[Hashable],
    w: Floats,
    ddof: int,
    epsilon: float,
) -> Floats:
    white = np.zeros(len(centred))
    for cell in _members(cells, alive):
        total = w[cell].sum()
        if total <= ddof or not live[cell].any():
            continue
        mean = np.sum(w[cell] * centred[cell]) / total
        deviation = np.sqrt(np.sum(w[cell] * (centred[cell] - mean) ** 2) / (total - ddof))
        white[cell] = np.where(live[cell], (centred[cell] - mean) / (deviation + epsilon), 0.0)
    return white
