"""Coverage of the space of problems: a CVT archive over log-scaled complexity. It measures; it selects nothing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from selfplay.complexity import Complexity

FEATURES = ("ast_depth", "cyclomatic", "lines", "variables")
RANGES = ((3.0, 40.0), (1.0, 40.0), (1.0, 80.0), (1.0, 40.0))
"""Smallest and largest value of each feature that is told apart; beyond, it counts as the end of its range."""


class Archive:
    """Cells of a centroidal Voronoi tessellation, and the first and the most rewarding problem seen in each.

    Args:
        cells: how many.
        seed: of the centroids; the same seed gives the same cells everywhere.
        ranges: of each feature.
        centroids: cells made before, instead of `cells` and `seed`.
    """

    def __init__(
        self,
        cells: int = 512,
        seed: int = 0,
        ranges: Sequence[tuple[float, float]] = RANGES,
        centroids: NDArray[np.float64] | None = None,
    ) -> None:
        from ribs.archives import CVTArchive

        self.ranges = tuple((float(low), float(high)) for low, high in ranges)
        if any(not 0 <= low < high for low, high in self.ranges):
            raise ValueError(f"ranges are {self.ranges}, each must be two increasing numbers of 0 or more")
        if centroids is None:
            centroids = _centroids(cells, len(self.ranges), seed)
        self.centroids = centroids
        unit = [(0.0, 1.0)] * len(self.ranges)
        self._archive = CVTArchive(
            solution_dim=1, centroids=centroids, ranges=unit, extra_fields={"problem": ((), object)}, dtype=np.float64
        )
        self.added = 0

    def place(self, complexity: Complexity) -> NDArray[np.float64]:
        """Where a problem lies, each feature between 0 and 1 on a log scale. Never outside, never nan."""
        low, high = np.log1p(np.array(self.ranges)).T
        values = np.log1p(np.clip(np.nan_to_num(np.array(complexity.features()), nan=0.0, posinf=1e9), 0.0, 1e9))
        return np.clip((values - low) / (high - low), 0.0, 1.0)

    def add(self, complexity: Complexity, problem: str, worth: float = 0.0) -> bool:
        """Enter a problem; whether its cell was empty.

        Args:
            complexity: of its program.
            problem: a name or digest to find it by.
            worth: the cell keeps the problem with the most; nan and infinities count as 0.
        """
        worth = worth if np.isfinite(worth) else 0.0
        result = self._archive.add_single([float(self.added)], worth, self.place(complexity), problem=problem)
        self.added += 1
        return int(result["status"]) == 2

    @property
    def filled(self) -> int:
        """Cells that have been reached."""
        return int(self._archive.stats.num_elites)

    @property
    def coverage(self) -> float:
        """The share of cells that have been reached."""
        return self.filled / len(self.centroids)

    def cells(self) -> dict[int, tuple[str, float]]:
        """The problem and its worth in each filled cell."""
        data = self._archive.data(["index", "problem", "objective"])
        return {int(i): (str(p), float(w)) for i, p, w in zip(data["index"], data["problem"], data["objective"], strict=True)}

    def save(self, path: Path) -> None:
        """Write centroids and contents, atomically."""
        data = self._archive.data()
        aside = path.with_name(path.name + ".part")
        with aside.open("wb") as file:
            np.savez(
                file,
                centroids=self.centroids,
                ranges=np.array(self.ranges),
                added=self.added,
                measures=data["measures"],
                objective=data["objective"],
                solution=data["solution"],
                problem=np.array([str(p) for p in data["problem"]], dtype=str),
            )
        os.replace(aside, path)

    @staticmethod
    def load(path: Path) -> Archive:
        """Read what `save` wrote."""
        with np.load(path, allow_pickle=False) as data:
            archive = Archive(ranges=[tuple(r) for r in data["ranges"]], centroids=data["centroids"])
            if len(data["objective"]):
                problems = data["problem"].astype(object)
                archive._archive.add(data["solution"], data["objective"], data["measures"], problem=problems)
            archive.added = int(data["added"])
        return archive


def _centroids(cells: int, dimensions: int, seed: int) -> NDArray[np.float64]:
    from ribs.archives import k_means_centroids

    if cells < 1:
        raise ValueError(f"cells is {cells}, it must be at least 1")
    unit = [(0.0, 1.0)] * dimensions
    found, _ = k_means_centroids(centroids=cells, ranges=unit, samples=max(10 * cells, 1000), seed=seed)
    return np.asarray(found, dtype=np.float64)
