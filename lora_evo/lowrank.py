"""Linear algebra on factored matrices. Never a d x d matrix.

The deltas of one module, one per parent, live in one `Span`. Every sum, truncation or rotation of them is again
`B @ left @ right @ A` with small `left` [R, k] and `right` [k, R], so an operator is a map between small matrices. The
tall factors are read twice: once for the Gram matrices, once for the child's factors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt

import numpy as np
import torch
from torch import Tensor

from lora_evo.adapter import LoraFactors
from lora_evo.span import Small, Span, span_of


@dataclass(frozen=True)
class Delta:
    """A weight change inside a span: `B @ left @ right @ A`, `left` [*, R, k], `right` [*, k, R].

    Deltas of one module add, subtract and scale like the matrices they stand for; a sum has the components of both. A
    delta may lie in the beginning of another's span (`Span.extend`): they still add up.
    """

    span: Span
    left: Small
    right: Small

    @property
    def rank(self) -> int:
        """k: the components it is stored with."""
        return self.left.shape[-1]

    @cached_property
    def core(self) -> Small:
        """`left @ right`, [*, R, R]."""
        return self.left @ self.right

    def __add__(self, other: Delta) -> Delta:
        span = max(self.span, other.span, key=lambda s: s.size)
        a, b = self.inside(span), other.inside(span)
        return Delta(span, np.concatenate([a.left, b.left], -1), np.concatenate([a.right, b.right], -2))

    def __rmul__(self, factor: float) -> Delta:
        return replace(self, left=factor * self.left)

    def __sub__(self, other: Delta) -> Delta:
        return self + (-1.0) * other

    def inside(self, span: Span) -> Delta:
        """The same delta in a span that begins with its own."""
        more = span.size - self.span.size
        if not more:
            return self
        blocks = [(0, 0)] * len(span.blocks)
        left, right = [*blocks, (0, more), (0, 0)], [*blocks, (0, 0), (0, more)]
        return Delta(span, np.pad(self.left, left), np.pad(self.right, right))

    @cached_property
    def grams(self) -> tuple[Small, Small]:
        """The Gram matrices of its own factors, [*, k, k]: of the columns of `B @ left`, of the rows of `right @ A`."""
        return _T(self.left) @ self.span.gram_B @ self.left, self.right @ self.span.gram_A @ _T(self.right)

    @cached_property
    def energy(self) -> float:
        """The squared Frobenius norm over all blocks."""
        gram_B, gram_A = self.grams
        return max(0.0, float((gram_B * gram_A).sum()))

    def norm(self) -> float:
        """The Frobenius norm over all blocks."""
        return sqrt(self.energy)

    def inner(self, other: Delta) -> float:
        """The Frobenius inner product, summed over blocks."""
        span = max(self.span, other.span, key=lambda s: s.size)
        a, b = self.inside(span), other.inside(span)
        return float(((_T(a.left) @ span.gram_B @ b.left) * (a.right @ span.gram_A @ _T(b.right))).sum())

    def distance(self, other: Delta) -> float:
        """The Frobenius norm of the difference; exactly 0 between equals."""
        span = max(self.span, other.span, key=lambda s: s.size)
        gap = self.inside(span).core - other.inside(span).core
        return sqrt(max(0.0, float(((span.gram_B @ gap @ span.gram_A) * gap).sum())))

    def factor_norms(self) -> tuple[float, float]:
        """The Frobenius norms of the factors `B @ left` and `right @ A`."""
        gram_B, gram_A = (sqrt(max(0.0, float(gram.trace(axis1=-2, axis2=-1).sum()))) for gram in self.grams)
        return gram_B, gram_A

    @cached_property
    def spectrum(self) -> Spectrum:
        """The thin singular value decomposition, from the two Gram matrices.

        With A A' = L L' it is one symmetric eigenproblem, L' (B'B) L. A diagonal change of gauge (B D, D^-1 A) leaves that
        matrix as it is, so badly balanced factors cost no digits.
        """
        gram_B, gram_A = self.grams
        root = _root(gram_A)
        values, vectors = np.linalg.eigh(_T(root) @ gram_B @ root)
        s = np.sqrt(np.maximum(values[..., ::-1], 0.0))
        s = np.where(s > self.span.resolution * s[..., :1], s, 0.0)
        inverse = np.divide(1.0, s, out=np.zeros_like(s), where=s > 0)
        U = (root @ vectors[..., ::-1]) * inverse[..., None, :]
        V = inverse[..., :, None] * (_T(U) @ gram_B)
        signs = np.where((V @ self.right @ self.span.probe[..., None]) < 0, -1.0, 1.0)
        return Spectrum(self, s, U * _T(signs), signs * V)

    def truncated(self, rank: int) -> Delta:
        """The best approximation of at most that rank (Eckart-Young), balanced: `|B left|` = `|right A|`."""
        spectrum = self.spectrum
        kept = min(rank, int((spectrum.s != 0).sum(-1).max(initial=0)))
        root = np.sqrt(spectrum.s[..., :kept])
        return Delta(self.span, spectrum.U[..., :kept] * root[..., None, :], root[..., :, None] * spectrum.V[..., :kept, :])

    def factors(self) -> tuple[Tensor, Tensor]:
        """`B @ left` [*, out, k] and `right @ A` [*, k, in], in the span's dtype."""
        return self.span.columns(self.left), self.span.rows(self.right)


@dataclass(frozen=True)
class Spectrum:
    """The singular value decomposition of a delta: `U diag(s) V'`, s [*, k] falling.

    `U = (B @ delta.left) @ own_U` and `V' = own_V @ (delta.right @ A)`, both orthonormal but for components with s = 0,
    which are zero. Signs are such that V' w >= 0 for the span's fixed vector w: the same for every factorisation.
    """

    delta: Delta
    s: Small
    own_U: Small
    own_V: Small

    @property
    def U(self) -> Small:
        """The left singular vectors in span coordinates, [*, R, k]."""
        return self.delta.left @ self.own_U

    @property
    def V(self) -> Small:
        """The right singular vectors in span coordinates, [*, k, R]."""
        return self.own_V @ self.delta.right

    def compose(self, middle: Small) -> Delta:
        """`U @ middle @ V'` for a [*, k, k] middle. Keeps the delta's `right`, hence its A factor bit for bit."""
        return replace(self.delta, left=self.U @ middle @ self.own_V)

    def select(self, s: Small) -> Delta:
        """`U diag(s) V'` with other singular values; the zeros are left out, so the rank is their number."""
        kept = int((s != 0).sum(-1).max(initial=0))
        order = np.argsort(s == 0, axis=-1, kind="stable")[..., :kept]
        s = np.take_along_axis(s, order, -1)
        left = np.take_along_axis(self.U, order[..., None, :], -1) * np.sqrt(np.abs(s))[..., None, :]
        right = np.take_along_axis(self.V, order[..., :, None], -2) * (np.sign(s) * np.sqrt(np.abs(s)))[..., :, None]
        return Delta(self.delta.span, left, right)


def join(factors: Sequence[LoraFactors], device: str | torch.device | None = None) -> list[Delta]:
    """The deltas `scale * B @ A` of one module's parents, in their common span.

    Args:
        factors: per parent A [*, r, in], B [*, out, r] and a scale; ranks and dtypes may differ, r may be 0.
        device: where the tall products run; the first parent's by default.

    Raises:
        AdapterError: if shapes do not fit together, or a value is NaN or infinite.
    """
    return deltas_of(span_of(factors, device), [float(f.scale) for f in factors])


def deltas_of(span: Span, scales: Sequence[float]) -> list[Delta]:
    """The last pairs of a span as deltas; each factor carries the square root of the scale."""
    deltas = []
    for where, scale in zip(span.slices[-len(scales) :], scales, strict=True):
        rank = where.stop - where.start
        right = np.zeros((*span.blocks, rank, span.size))
        right[..., range(rank), range(where.start, where.stop)] = abs(scale) ** 0.5
        deltas.append(Delta(span, np.sign(scale) * _T(right), right))
    return deltas


def append(span: Span, factors: Sequence[tuple[Tensor, Tensor]]) -> list[Delta]:
    """The deltas `B @ A` of further pairs B [*, out, k], A [*, k, in], in a span that begins with this one."""
    return deltas_of(span.extend(factors), [1.0] * len(factors))


def _root(gram: Small) -> Small:
    """L with L L' = gram. Cholesky where it holds; for a singular gram, eigenvectors of its correlation matrix."""
    try:
        return np.asarray(np.linalg.cholesky(gram), np.float64)
    except np.linalg.LinAlgError:
        d = np.sqrt(np.maximum(np.diagonal(gram, axis1=-2, axis2=-1), 0.0))
        unit = np.where(d > 0, d, 1.0)
        values, vectors = np.linalg.eigh(gram / (unit[..., :, None] * unit[..., None, :]))
        return d[..., :, None] * vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]


def _T(matrix: Small) -> Small:
    return matrix.swapaxes(-1, -2)
