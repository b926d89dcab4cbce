"""How a child relates to its parents, and what an adapter looks like from inside."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from lora_evo.adapter import Adapter, LoraFactors
from lora_evo.errors import AdapterError
from lora_evo.lowrank import Delta, join
from lora_evo.span import Small
from lora_evo.threads import single_threaded_products


@dataclass(frozen=True)
class Moments:
    """Inner products of one module's child and parents. They add up over modules, distances and cosines do not."""

    child: float
    parents: tuple[float, ...]
    inner: tuple[float, ...]
    change: float
    wanted: float

    def __add__(self, other: Moments) -> Moments:
        return Moments(
            self.child + other.child,
            tuple(a + b for a, b in zip(self.parents, other.parents, strict=True)),
            tuple(a + b for a, b in zip(self.inner, other.inner, strict=True)),
            self.change + other.change,
            self.wanted + other.wanted,
        )

    @property
    def measures(self) -> Measures:
        """The ratios of these sums."""
        return Measures(
            relative_change=_ratio(sqrt(self.change), sqrt(self.parents[0])),
            parent_cosines=tuple(
                _ratio(inner, sqrt(self.child * parent)) for inner, parent in zip(self.inner, self.parents, strict=True)
            ),
            kept_energy=1.0 if self.wanted == 0 else min(1.0, self.child / self.wanted),
            norm=sqrt(self.child),
        )


@dataclass(frozen=True)
class Measures:
    """A child against its parents, before rounding to the storage dtype.

    Attributes:
        relative_change: |child - first parent| / |first parent|, Frobenius norms of deltas; None if that parent is zero.
        parent_cosines: cosine of the angle between the child's delta and each parent's; None where one is zero.
        kept_energy: |child|^2 over |what the operator asked for|^2: what truncation to the child's rank has left.
        norm: the Frobenius norm of the child's delta.
    """

    relative_change: float | None
    parent_cosines: tuple[float | None, ...]
    kept_energy: float
    norm: float


def moments(child: Delta, wanted: Delta, parents: Sequence[Delta]) -> Moments:
    """The inner products of a truncated child, of what was wanted, and of the parents."""
    return Moments(
        child=child.energy,
        parents=tuple(p.energy for p in parents),
        inner=tuple(child.inner(p) for p in parents),
        change=child.distance(parents[0]) ** 2,
        wanted=wanted.energy,
    )


@dataclass(frozen=True)
class ModuleReport:
    """One module of an adapter.

    Attributes:
        rank, scale, dtype, shape: as stored; shape is (out, in) of the delta.
        norm: Frobenius norm of the delta.
        spectrum: its singular values, falling; of all blocks together where there are several.
        effective_rank: exp of the entropy of the normalised singular values (Roy and Vetterli 2007).
        balance: |B| / |A|, Frobenius norms of the stored factors; None where A is zero.
    """

    module: str
    rank: int
    scale: float
    dtype: str
    shape: tuple[int, int]
    norm: float
    spectrum: tuple[float, ...]
    effective_rank: float
    balance: float | None


def inspect(adapter: Adapter) -> list[ModuleReport]:
    """A report per module, in the adapter's order.

    Raises:
        AdapterError: for values that are not finite.
    """
    with single_threaded_products():
        return [_report(adapter, name, factors) for name, factors in adapter.modules.items()]


@dataclass(frozen=True)
class ModuleComparison:
    """Two adapters in one module.

    Attributes:
        cosine: of the two deltas; None where one is zero.
        difference: |a - b| / |a|; None where a is zero.
        column_angles, row_angles: principal angles in degrees between the two column (row) spaces, rising.
    """

    module: str
    cosine: float | None
    difference: float | None
    column_angles: tuple[float, ...]
    row_angles: tuple[float, ...]


def compare(a: Adapter, b: Adapter) -> tuple[list[ModuleComparison], Measures]:
    """Each common module of two adapters, and the whole: `b` as a child of `a` and itself.

    A module that only one of them has counts as zero in the other, for the whole.

    Raises:
        AdapterError: if they have no module in common, or shapes differ.
    """
    if not set(a.modules) & set(b.modules):
        raise AdapterError(f"{a.name} and {b.name} have no module in common: {_some(a.modules)} against {_some(b.modules)}")
    rows, total = [], None
    with single_threaded_products():
        for name in sorted(set(a.modules) | set(b.modules)):
            first, second = located_join([a, b], name)
            both = moments(second, second, [first, second])
            total = both if total is None else total + both
            if name in a.modules and name in b.modules:
                rows.append(_comparison(name, first, second, both))
    assert total is not None
    return rows, total.measures


def located_join(adapters: Sequence[Adapter], module: str, device: str | None = None) -> list[Delta]:
    """`lowrank.join` for one module of whole adapters; an absent module is a zero delta. Errors name file and module."""
    present = next(a.modules[module] for a in adapters if module in a.modules)
    try:
        return join([a.modules.get(module) or zero(present) for a in adapters], device)
    except AdapterError as error:
        names = ", ".join(a.name for a in adapters)
        raise AdapterError(f"{names}: module {module}: {error}") from None


def zero(like: LoraFactors) -> LoraFactors:
    """A delta of rank 0 with that shape."""
    return LoraFactors(like.A[..., :0, :], like.B[..., :0], 1.0)


def _report(adapter: Adapter, name: str, factors: LoraFactors) -> ModuleReport:
    (delta,) = located_join([adapter], name)
    s = np.sort(delta.spectrum.s.reshape(-1))[::-1]
    B, A = delta.factor_norms()
    return ModuleReport(
        module=name,
        rank=factors.rank,
        scale=factors.scale,
        dtype=str(factors.A.dtype).removeprefix("torch."),
        shape=factors.widths,
        norm=float(np.sqrt(np.sum(s**2))),
        spectrum=tuple(s.tolist()),
        effective_rank=effective_rank(s),
        balance=_ratio(B, A),
    )


def effective_rank(s: Small) -> float:
    """Exp of the entropy of s / sum(s); 0 for a zero spectrum."""
    p = s[s > 0] / s.sum() if s.sum() > 0 else s[:0]
    return float(np.exp(-np.sum(p * np.log(p)))) if len(p) else 0.0


def _comparison(name: str, a: Delta, b: Delta, both: Moments) -> ModuleComparison:
    whole = both.measures
    return ModuleComparison(
        module=name,
        cosine=whole.parent_cosines[0],
        difference=whole.relative_change,
        column_angles=_angles(a.spectrum.U, b.spectrum.U.swapaxes(-1, -2), a.span.gram_B),
        row_angles=_angles(a.spectrum.V.swapaxes(-1, -2), b.spectrum.V, a.span.gram_A),
    )


def _angles(U: Small, W: Small, gram: Small) -> tuple[float, ...]:
    """Angles between the spans of U's columns and W's rows in the metric of the Gram matrix."""
    cosines = np.linalg.svd(U.swapaxes(-1, -2) @ gram @ W.swapaxes(-1, -2), compute_uv=False)
    ranks = np.minimum(np.any(U != 0, -2).sum(-1), np.any(W != 0, -1).sum(-1))
    kept = np.concatenate(
        [np.atleast_1d(c)[:r] for c, r in zip(cosines.reshape(-1, cosines.shape[-1]), np.ravel(ranks), strict=True)]
    )
    return tuple(np.sort(np.degrees(np.arccos(np.clip(kept, -1, 1)))).tolist())


def _ratio(a: float, b: float) -> float | None:
    return a / b if b > 0 else None


def _some(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)[:3]) + ", ..."
