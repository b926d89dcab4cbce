"""Crossovers: several parents, one child; and the two controls every informative operator has to beat.

Each is one short function on deltas of one module in their common span (`lowrank.Delta`). A sum has the components of all
its terms; the caller truncates to the child's rank, optimally, and reports the energy kept. `weights` are used as given.

`space="factor"` combines A and B as stored, the way PEFT's `linear` and `dare_linear` do: the weight and the scale enter
each factor by their square root, the sign enters A. The child's delta then holds cross terms of the parents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np

from lora_evo.errors import OperatorError
from lora_evo.mutations import Granularity, Space
from lora_evo.operators import Params, Scene, Spec, operator
from lora_evo.places import layer_of

if TYPE_CHECKING:
    from lora_evo.lowrank import Delta

Weights = Annotated[tuple[float, ...] | None, Spec("one per parent, used as given; 1/n each by default")]
Chances = Annotated[tuple[float, ...] | None, Spec("one per parent, the odds of each; equal by default", low=0)]


def _even_weights(params: Params, scene: Scene) -> tuple[Params, dict[str, Params]]:
    return {**params, "weights": _weights(params["weights"], scene.parents)}, {}


@operator("crossover", extras="mean", prepare=_even_weights)
def dare(
    parents: Sequence[Delta],
    rng: np.random.Generator,
    *,
    weights: Weights = None,
    drop: Annotated[float, Spec("rate at which parts of each parent are dropped", low=0, high=0.99)] = 0.7,
    what: Annotated[
        Literal["components", "factors", "delta"],
        Spec("what is dropped: singular components, entries of the balanced factors, or entries of the dense delta"),
    ] = "components",
    space: Space = "delta",
) -> Delta:
    """Drop parts of each parent at random, rescale the rest by 1 / (1 - drop), and add up by weight.

    Unbiased in expectation for every `what`, until the sum is truncated:

    - `components`: whole singular components; the sum rarely exceeds the child's rank.
    - `factors`: independent masks on both balanced factors, each keeping sqrt(1 - drop) of its entries.
    - `delta`: entries of the dense matrix, as the DARE paper does. Exact, but dense: for reference, up to 2^20 entries.

    `components` is the default by measurement: with drop 0.7 and two parents of rank 32 it keeps all the energy at a mean
    cosine of 0.39 to each parent, `factors` 98% at 0.38, `delta` only 43% (at 0.54) after truncation to the rank
    (`python -m benchmarks.behaviour`); and it is the only one that needs no second pass over the factors.
    `space="factor"` masks the stored factors, each at rate `drop`, like PEFT's dare_linear.

    Source: DARE (arXiv 2311.03099); drop 0.7 from the peer package.
    """
    weights = _weights(weights, len(parents))
    if space == "factor":
        return _factor_sum(_masked(parents, 1 - drop, rng), weights)
    if what == "components":
        return _sum([_some_components(p, 1 - drop, rng) for p in parents], weights)
    if what == "factors":
        balanced = [p.spectrum.select(p.spectrum.s) for p in parents]
        return _sum(_masked(balanced, (1 - drop) ** 0.5, rng), weights)
    return _dense_dare(parents, weights, 1 - drop, rng)


def _choices(params: Params, scene: Scene) -> tuple[Params, dict[str, Params]]:
    """One parent per module or layer, drawn for the whole child."""
    unit = layer_of if params["granularity"] == "layer" else str
    odds = _odds(_weights(params["weights"], scene.parents))
    units = sorted({unit(place) for place in scene.places})
    drawn = dict(zip(units, scene.rng.choice(scene.parents, size=len(units), p=odds).tolist(), strict=True))
    return params, {place: {"choice": drawn[unit(place)]} for place in scene.places}


@operator("crossover", exact=True, extras="choose", prepare=_choices)
def layer_choice(
    parents: Sequence[Delta],
    rng: np.random.Generator,
    *,
    weights: Chances = None,
    granularity: Granularity = "module",
    choice: int | None = None,
    space: Space = "delta",
) -> Delta:
    """Take every module (or whole layer) from one parent, chosen at random by weight.

    Bit-identical to that parent wherever the parents' ranks and scales agree, in either space. What belongs to a module,
    like a DoRA magnitude or a trained bias, comes with it.

    Source: PopuLoRA's layer selection.
    """
    if choice is None:
        choice = rng.choice(len(parents), p=_odds(_weights(weights, len(parents))))
    return parents[choice]


@operator("crossover", parents=(2, 2))
def svd_subspace(
    parents: Sequence[Delta],
    rng: np.random.Generator,
    *,
    k: Annotated[int | None, Spec("components of the first parent, 1 to rank - 1; drawn per module by default", low=1)] = None,
    rank: int,
    space: Space = "delta",
) -> Delta:
    """Keep the first parent's top k components, fill up from the second parent's part outside that subspace.

    child = top_k(dW1) + top_(rank - k)((I - U_k U_k') dW2 (I - V_k V_k')): the two parts are orthogonal on both sides, so
    the child's spectrum is the union of theirs. A module of rank 1 has nothing to split and comes whole from one of them.
    `space="factor"` takes the first k stored components of one parent and
    the stored components from k on of the other.

    Source: PopuLoRA's SVD subspace mixing; there the fill is the second parent's lower components, inside or outside.
    """
    if k is not None and k >= rank:
        raise OperatorError(f"k is {k}, it must be below the child's rank, {rank}")
    if rank == 1:
        return parents[int(rng.integers(2))]
    k = k or int(rng.integers(1, rank))
    first, second = parents
    if space == "factor":
        return _stored_part(first, 0, k) + _stored_part(second, k, rank)
    top = first.truncated(k)
    return top + _outside(second, first, top.rank).truncated(rank - top.rank)


def _extrapolation_weights(params: Params, scene: Scene) -> tuple[Params, dict[str, Params]]:
    """The weights (1 - eta, eta) where none are given, with one eta for the whole child."""
    if params["weights"] is not None:
        return _even_weights(params, scene)
    if scene.parents != 2:
        raise OperatorError(f"extrapolate with {scene.parents} parents needs weights")
    eta = params["eta"] if params["eta"] is not None else float(scene.rng.uniform(1.0, 1.5))
    return {**params, "eta": eta, "weights": (1.0 - eta, eta)}, {}


@operator("crossover", extras="mean", prepare=_extrapolation_weights)
def extrapolate(
    parents: Sequence[Delta],
    rng: np.random.Generator,
    *,
    eta: Annotated[float | None, Spec("step from the first parent; drawn from [1, 1.5] by default")] = None,
    weights: Annotated[tuple[float, ...] | None, Spec("any real weight per parent, instead of eta")] = None,
    space: Space = "delta",
) -> Delta:
    """Go from the first parent to the second and beyond: dW1 + eta (dW2 - dW1), the better parent second.

    eta 1 is the second parent, 0 the first. With n parents: sum of w_i dW_i for any real weights.

    Source: task arithmetic (arXiv 2212.04089), PopuLoRA's extrapolation; eta ~ U[1, 1.5] from the peer package.
    """
    if weights is None:
        eta = float(rng.uniform(1.0, 1.5)) if eta is None else eta
        weights = (1.0 - eta, eta)
    return linear.formula(parents, rng, weights=weights, space=space)


@operator("control", parents=(1, None), extras="mean", prepare=_even_weights)
def linear(parents: Sequence[Delta], rng: np.random.Generator, *, weights: Weights = None, space: Space = "delta") -> Delta:
    """The weighted sum of the parents: sum of w_i dW_i, by default their mean. A control.

    A parent of weight 0 has no part in it; one parent of weight 1 is that parent, bit for bit.
    """
    weights = _weights(weights, len(parents))
    return _factor_sum(parents, weights) if space == "factor" else _sum(parents, weights)


@operator("control", parents=(1, None), exact=True)
def copy_parent(parents: Sequence[Delta], rng: np.random.Generator, *, space: Space = "delta") -> Delta:
    """The first parent, bit for bit. A control."""
    return parents[0]


def _weights(weights: tuple[float, ...] | None, n: int) -> tuple[float, ...]:
    if weights is not None and len(weights) != n:
        raise OperatorError(f"{len(weights)} weights for {n} parents")
    return weights if weights is not None else (1.0 / n,) * n


def _odds(weights: Sequence[float]) -> np.ndarray:
    if sum(weights) <= 0:
        raise OperatorError(f"weights {tuple(weights)} are odds here: one must be above 0")
    return np.asarray(weights) / sum(weights)


def _sum(deltas: Sequence[Delta], weights: Sequence[float]) -> Delta:
    terms = [delta if w == 1 else w * delta for w, delta in zip(weights, deltas, strict=True) if w != 0]
    if not terms:
        return 0.0 * deltas[0]
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _some_components(delta: Delta, keep: float, rng: np.random.Generator) -> Delta:
    s = delta.spectrum.s
    return delta.spectrum.select(np.where(rng.random(s.shape) < keep, s / keep, 0.0))


def _masked(deltas: Sequence[Delta], keep: float, rng: np.random.Generator) -> list[Delta]:
    """The deltas with entries of both factors kept at that rate and scaled to the same expectation."""
    import torch

    from lora_evo.lowrank import append

    def masked(factor: torch.Tensor) -> torch.Tensor:
        kept = torch.as_tensor(rng.random(factor.shape, dtype=np.float32) < keep)
        return factor * kept.to(factor) / keep

    pairs = [delta.factors() for delta in deltas]
    return append(deltas[0].span, [(masked(B), masked(A)) for B, A in pairs])


def _dense_dare(parents: Sequence[Delta], weights: Sequence[float], keep: float, rng: np.random.Generator) -> Delta:
    import torch

    from lora_evo.lowrank import append

    pairs = [parent.factors() for parent in parents]
    out, width = pairs[0][0].shape[-2], pairs[0][1].shape[-1]
    if out * width > 2**20:
        raise OperatorError(f'what="delta" is dense: {out} x {width} is above 2^20 entries; "components" takes any size')
    total = torch.zeros(())
    for w, (B, A) in zip(weights, pairs, strict=True):
        dense = B @ A
        total = total + w / keep * dense * torch.as_tensor(rng.random(dense.shape) < keep).to(dense)
    U, s, V = torch.linalg.svd(total, full_matrices=False)
    root = s.sqrt()
    return append(parents[0].span, [(U * root[..., None, :], root[..., :, None] * V)])[0]


def _factor_sum(parents: Sequence[Delta], weights: Sequence[float]) -> Delta:
    """B = sum of sqrt(|w|) B_i and A = sum of sign(w) sqrt(|w|) A_i."""
    if len({p.rank for p in parents}) > 1:
        raise OperatorError('space="factor" needs parents of one rank; space="delta" takes any')
    left = sum(abs(w) ** 0.5 * p.left for w, p in zip(weights, parents, strict=True))
    right = sum(np.sign(w) * abs(w) ** 0.5 * p.right for w, p in zip(weights, parents, strict=True))
    return replace(parents[0], left=left, right=right)


def _stored_part(delta: Delta, start: int, stop: int) -> Delta:
    return replace(delta, left=delta.left[..., start:stop], right=delta.right[..., start:stop, :])


def _outside(delta: Delta, other: Delta, k: int) -> Delta:
    """The part of `delta` outside the other's top k singular vectors, on both sides."""
    U, V, span = other.spectrum.U[..., :k], other.spectrum.V[..., :k, :], delta.span
    left = delta.left - U @ (U.swapaxes(-1, -2) @ span.gram_B @ delta.left)
    right = delta.right - (delta.right @ span.gram_A @ V.swapaxes(-1, -2)) @ V
    return replace(delta, left=left, right=right)
