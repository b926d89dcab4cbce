"""Mutations: one parent, one child of the same rank. Each is one short function on deltas (`lowrank.Delta`).

`strength` is relative: the asked Frobenius distance between child and parent over the parent's norm, module by module, so
one value means the same on every adapter. 0 is the identity, bit for bit. A module whose delta is zero stays as it is.

`space="factor"` acts on A and B as they are stored; the child then depends on how the delta was split into factors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import numpy as np

from lora_evo.operators import Params, Scene, Spec, operator
from lora_evo.places import layer_of

if TYPE_CHECKING:
    from lora_evo.lowrank import Delta

Space = Annotated[Literal["delta", "factor"], Spec("act on the delta B @ A (default) or on A and B as stored")]
Strength = Annotated[float, Spec("relative size of the change, |child - parent| / |parent|", low=0, high=1)]
Granularity = Annotated[Literal["module", "layer"], Spec("draw for single modules or for whole layers")]
Absolute = Annotated[
    float | None,
    Spec("Frobenius norm of each module's change, instead of strength; the only way to mutate a fresh adapter (B = 0)", low=0),
]


@operator("mutation")
def svd_perturb(parents: Sequence[Delta], rng: np.random.Generator, *, strength: Strength = 0.1, space: Space = "delta") -> Delta:
    """Jitter the singular values and turn the singular vectors a little.

    dW = U S V' becomes (U R) (S exp(eps z)) (V Q)', with z standard normal and R, Q exactly orthogonal: Cayley transforms
    of eps times a random skew matrix with entries of variance 1 / (k - 1), so values and both sets of vectors move alike.
    eps is solved for, so that the change has the asked strength. The child keeps A; row and column spaces stay.

    Source: PopuLoRA's spectral mutation; `space="factor"` does the same to the stored components B[:, i] A[i, :].
    """
    parent, norm = parents[0], parents[0].norm()
    if strength == 0 or norm == 0:
        return parent
    middle = _middle(parent, space)
    live = np.diagonal(middle, axis1=-2, axis2=-1) != 0
    z = rng.standard_normal(live.shape)
    turns = [_skew(rng, live) for _ in range(2)]

    def middle_at(eps: float) -> np.ndarray:
        R, Q = (_cayley(eps * K) for K in turns)
        return R @ (middle * np.exp(eps * z)[..., None, :]) @ Q.swapaxes(-1, -2)

    def change_of(moved: np.ndarray) -> float:
        if space == "delta":  # between orthonormal vectors the norm is the middle's
            return float(np.linalg.norm(moved - middle))
        return _through(parent, moved, space).distance(parent)

    slope = change_of(middle + middle * z[..., None, :] + turns[0] @ middle - middle @ turns[1])
    return _through(parent, _reached(strength * norm, middle_at, change_of, slope), space)


@operator("mutation")
def mask_components(
    parents: Sequence[Delta],
    rng: np.random.Generator,
    *,
    drop: Annotated[float, Spec("share of the components to drop, rounded up; one always stays", low=0, high=1)] = 0.3,
    rescale: Annotated[bool, Spec("scale the rest so that the norm stays")] = False,
    space: Space = "delta",
) -> Delta:
    """Drop a random set of singular components.

    dW = sum s_i u_i v_i' loses ceil(drop k) of its k components, the same number in every module. The child keeps A, so
    that dropped directions can be learned again: B moves first. `space="factor"` drops stored components B[:, i] A[i, :].

    Source: PopuLoRA's component masking; drop 0.3 from the peer package.
    """
    parent, middle = parents[0], _middle(parents[0], space)
    values = np.diagonal(middle, axis1=-2, axis2=-1)
    live = (values != 0).sum(-1, keepdims=True)
    dropped = np.minimum(np.ceil(drop * live - 1e-9), live - 1)
    lot = np.where(values != 0, rng.random(values.shape), np.inf)
    keep = lot.argsort(-1).argsort(-1) >= dropped
    if keep.all():
        return parent
    child = _through(parent, middle * keep[..., None, :], space)
    return parent.norm() / child.norm() * child if rescale else child


@operator("mutation")
def gaussian(
    parents: Sequence[Delta],
    rng: np.random.Generator,
    *,
    strength: Strength = 0.15,
    absolute: Absolute = None,
    space: Space = "delta",
) -> Delta:
    """Add Gaussian noise along the rank-r matrices.

    The balanced factors U sqrt(S) and sqrt(S) V' each get independent normal entries: noise in the tangent space of the
    matrices of rank r, whatever factors are stored. Its size is solved for, so that the change has the asked strength.
    With B = 0 only B gets noise, of the absolute size. `space="factor"` adds noise of `strength` times its own root mean
    square to each stored factor.

    Source: PopuLoRA's full-tensor noise; strength 0.15 from the peer package.
    """
    parent, norm = parents[0], parents[0].norm()
    if (strength == 0 and absolute is None) or absolute == 0:
        return parent
    if norm == 0:
        return _fresh(parent, absolute, rng) if absolute else parent
    span = parent.span.extend_by_noise(parent.rank, rng)
    spectrum = parent.spectrum
    root = np.sqrt(spectrum.s)
    to_B, to_A = root[..., :, None] * spectrum.own_V, spectrum.own_U * root[..., None, :]
    if space == "factor":
        to_B, to_A = _stored_noise(parent, *span.widths)

    def child_at(eps: float) -> Delta:
        left = np.concatenate([parent.left, eps * to_B], -2)
        return replace(parent, span=span, left=left, right=np.concatenate([parent.right, eps * to_A], -1))

    if space == "factor" and absolute is None:
        return child_at(strength)
    slope = float(np.sqrt(sum(span.widths) * spectrum.s.sum()))
    return _reached(absolute or strength * norm, child_at, parent.distance, slope)


def _some_places(params: Params, scene: Scene) -> tuple[Params, dict[str, Params]]:
    """Strength 0 for all but a random share of the modules or layers, at least one."""
    unit = layer_of if params["granularity"] == "layer" else str
    units = sorted({unit(module) for module in scene.modules})
    noisy = set(scene.rng.permutation(units)[: ceil(params["fraction"] * len(units) - 1e-9)].tolist())
    still = {"strength": 0.0, "absolute": None}
    return params, {module: still for module in scene.modules if unit(module) not in noisy}


@operator("mutation", prepare=_some_places)
def layer_noise(
    parents: Sequence[Delta],
    rng: np.random.Generator,
    *,
    strength: Strength = 0.1,
    fraction: Annotated[float, Spec("share of the modules (or layers) that get noise, rounded up", low=0, high=1)] = 0.33,
    granularity: Granularity = "module",
    absolute: Absolute = None,
    space: Space = "delta",
) -> Delta:
    """Add Gaussian noise to a random share of the modules; the others stay bit-identical.

    The noise is `gaussian`'s, of the asked relative size in each module it reaches.

    Source: PopuLoRA's layer-selective noise; fraction 0.33 and strength 0.1 from the peer package.
    """
    return gaussian.formula(parents, rng, strength=strength, absolute=absolute, space=space)


T = TypeVar("T")


def _reached(size: float, path: Callable[[float], T], size_of: Callable[[T], float], slope: float) -> T:
    """The point of a path whose change has that size, within 2%; size_of(path(eps)) starts as slope * eps.

    Fixed-point steps eps *= size / found: one or two are enough. A path that saturates before `size` gives a late point.
    """
    eps = size / slope
    for _ in range(24):
        point = path(eps)
        found = size_of(point)
        if found == 0 or abs(found - size) <= 0.02 * size or eps > 1e6:
            break
        eps *= size / found
    return point


def _middle(parent: Delta, space: str) -> np.ndarray:
    """The diagonal matrix of the components: singular values, or ones for the stored components. [*, k, k]"""
    s = parent.spectrum.s if space == "delta" else np.ones((*parent.left.shape[:-2], parent.rank))
    return s[..., None] * np.eye(parent.rank)


def _through(parent: Delta, middle: np.ndarray, space: str) -> Delta:
    """The delta with that matrix between its singular vectors, or between its stored factors."""
    if space == "delta":
        return parent.spectrum.compose(middle)
    return replace(parent, left=parent.left @ middle)


def _skew(rng: np.random.Generator, live: np.ndarray) -> np.ndarray:
    k = live.shape[-1]
    upper = np.triu(rng.standard_normal((*live.shape, k)), 1) / np.sqrt(max(1, k - 1))
    return (upper - upper.swapaxes(-1, -2)) * (live[..., None, :] & live[..., :, None])


def _cayley(K: np.ndarray) -> np.ndarray:
    """The orthogonal matrix (I - K/2)^-1 (I + K/2) of a skew K."""
    eye = np.eye(K.shape[-1])
    return np.linalg.solve(eye - K / 2, eye + K / 2)


def _fresh(parent: Delta, absolute: float, rng: np.random.Generator) -> Delta:
    """Noise on B alone: with B = 0 the tangent space is all E A."""
    span = parent.span.extend_by_noise(parent.rank, rng)
    blocks, k = parent.left.shape[:-2], parent.rank
    pick = np.eye(k + parent.span.size)[:, parent.span.size :]
    right = np.concatenate([parent.right, np.zeros((*blocks, k, k))], -1)
    child = replace(parent, span=span, left=np.broadcast_to(pick, (*blocks, *pick.shape)), right=right)
    norm = child.norm()
    return absolute / norm * child if norm > 0 else parent


def _stored_noise(parent: Delta, out: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    B, A = parent.factor_norms()
    blocks, eye = int(np.prod(parent.left.shape[:-2])), np.eye(parent.rank)
    shape = (*parent.left.shape[:-2], *eye.shape)
    size_B, size_A = B / np.sqrt(blocks * out * parent.rank), A / np.sqrt(blocks * width * parent.rank)
    return np.broadcast_to(size_B * eye, shape), np.broadcast_to(size_A * eye, shape)
