"""Linear algebra on factored matrices. Never a d x d matrix.

The deltas of one module, one per parent, live in one `Span`: the columns of all their B factors side by side and the rows
of all their A factors one below the other, R of each. Every sum, truncation or rotation of those deltas is again
`B @ left @ right @ A` with small `left` [R, k] and `right` [k, R], so an operator is a map between small matrices. The
tall factors are read twice: once for the Gram matrices `B.T @ B` and `A @ A.T`, once for the child's factors.

Leading dimensions are independent blocks: the experts of a mixture, the groups of a convolution.

Small matrices are float64 numpy arrays on the CPU. Gram matrices of half-precision factors come from float32 products (a
product of two bfloat16 numbers is exact in float32), those of float32 factors from float64 products.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lora_evo.adapter import LoraFactors
from lora_evo.errors import AdapterError

Small = NDArray[np.float64]


@dataclass(frozen=True)
class Span:
    """The joint space of some factors: `B` [*, out, R], `A` [*, R, in] and what is known of them.

    Attributes:
        gram_B: `B.T @ B`, [*, R, R].
        gram_A: `A @ A.T`, [*, R, R].
        probe: `A @ w` for a fixed vector w, [*, R]; it settles the signs of singular vectors.
        resolution: singular values below this share of the largest are rounding, not content.
    """

    B: Tensor
    A: Tensor
    gram_B: Small
    gram_A: Small
    probe: Small
    resolution: float

    @property
    def size(self) -> int:
        """R: the ranks of all its factors together."""
        return self.gram_B.shape[-1]

    def append(self, factors: Sequence[tuple[Tensor, Tensor]]) -> list[Delta]:
        """The deltas `B @ A` of further pairs B [*, out, k], A [*, k, in], in a span that also holds this one."""
        span = self.extend(torch.cat([B for B, _ in factors], -1), torch.cat([A for _, A in factors], -2))
        return span.slices([B.shape[-1] for B, _ in factors], [1.0] * len(factors), self.size)

    def slices(self, ranks: Sequence[int], scales: Sequence[float], start: int = 0) -> list[Delta]:
        """Consecutive columns and rows as deltas; each factor carries the square root of the scale."""
        deltas, eye, blocks = [], np.eye(self.size), self.gram_B.shape[:-2]
        for rank, scale in zip(ranks, scales, strict=True):
            right = np.broadcast_to(eye[start : start + rank], (*blocks, rank, self.size)) * np.sqrt(abs(scale))
            deltas.append(Delta(self, np.sign(scale) * _T(right), right))
            start += rank
        return deltas

    def extend(self, B: Tensor, A: Tensor) -> Span:
        """The span with further columns `B` [*, out, k] and rows `A` [*, k, in], last."""
        wide_B, wide_A = torch.cat([self.B, B], -1), torch.cat([self.A, A], -2)
        R, exact = self.size, self.resolution < 1e-6
        gram_B = _bordered(self.gram_B, _product(B.mT, wide_B, exact), R)
        gram_A = _bordered(self.gram_A, _product(A, wide_A.mT, exact), R)
        probe = np.concatenate([self.probe, _probe(A)], -1)
        return Span(wide_B, wide_A, gram_B, gram_A, probe, self.resolution)

    def extend_by_noise(self, k: int, rng: np.random.Generator) -> Span:
        """The span with k further columns and rows of standard normal noise."""
        B, A = self.B, self.A
        noise = [_normal((*B.shape[:-1], k), B, rng), _normal((*A.shape[:-2], k, A.shape[-1]), A, rng)]
        return self.extend(*noise)


@dataclass(frozen=True)
class Delta:
    """A weight change inside a span: `B @ left @ right @ A`, `left` [*, R, k], `right` [*, k, R].

    Deltas of one module add, subtract and scale like the matrices they stand for; a sum has the components of both.
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
        a, b = _same_span(self, other)
        left, right = np.concatenate([a.left, b.left], -1), np.concatenate([a.right, b.right], -2)
        return Delta(a.span, left, right)

    def __rmul__(self, factor: float) -> Delta:
        return replace(self, left=factor * self.left)

    def __sub__(self, other: Delta) -> Delta:
        return self + (-1.0) * other

    def inner(self, other: Delta) -> float:
        """The Frobenius inner product, summed over blocks."""
        a, b = _same_span(self, other)
        return float(np.sum((a.span.gram_B @ a.core @ a.span.gram_A) * b.core))

    def distance(self, other: Delta) -> float:
        """The Frobenius norm of the difference; exactly 0 between equals."""
        a, b = _same_span(self, other)
        gap = a.core - b.core
        return float(np.sqrt(max(0.0, np.sum((a.span.gram_B @ gap @ a.span.gram_A) * gap))))

    def norm(self) -> float:
        """The Frobenius norm over all blocks."""
        return float(np.sqrt(max(0.0, self.inner(self))))

    def factor_norms(self) -> tuple[float, float]:
        """The Frobenius norms of the factors `B @ left` and `right @ A`."""
        B = np.sum((self.span.gram_B @ self.left) * self.left)
        A = np.sum((self.right @ self.span.gram_A) * self.right)
        return float(np.sqrt(max(0.0, B))), float(np.sqrt(max(0.0, A)))

    @cached_property
    def spectrum(self) -> Spectrum:
        """The thin singular value decomposition, from the two Gram matrices.

        With A A' = L L' it is one symmetric eigenproblem, L' (B'B) L. A diagonal change of gauge (B D, D^-1 A) leaves that
        matrix as it is, so badly balanced factors cost no digits.
        """
        gram_B = _T(self.left) @ self.span.gram_B @ self.left
        gram_A = self.right @ self.span.gram_A @ _T(self.right)
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
        s = self.spectrum.s
        return self.spectrum.select(np.where(np.arange(self.rank) < rank, s, 0.0))

    def factors(self) -> tuple[Tensor, Tensor]:
        """`B @ left` [*, out, k] and `right @ A` [*, k, in], in the span's dtype."""
        B, A = self.span.B, self.span.A
        return B @ torch.as_tensor(self.left).to(B), torch.as_tensor(self.right).to(A) @ A


@dataclass(frozen=True)
class Spectrum:
    """The singular value decomposition of a delta: `U diag(s) V'`, s [*, k] falling.

    `U = (B @ delta.left) @ own_U` and `V' = own_V @ (delta.right @ A)`, both orthonormal but for components with s = 0,
    which are zero.
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
    _check_shapes(factors)
    device = device or factors[0].A.device
    dtypes = [t.dtype for f in factors for t in (f.A, f.B)]
    exact = any(dtype.itemsize > 2 for dtype in dtypes)
    dtype = torch.float64 if torch.float64 in dtypes else torch.float32
    span = _measured(factors, dtype, device, exact)
    if not (np.isfinite(span.gram_A).all() and np.isfinite(span.gram_B).all()):
        _refuse_non_finite(factors)
        span = _measured(factors, torch.float64, device, exact)
    return span.slices([f.rank for f in factors], [float(f.scale) for f in factors])


def at_strength(strength: float, parent: Delta, child_at: Callable[[float], Delta]) -> Delta:
    """The child on the path `child_at(eps)`, `child_at(0) = parent`, that lies `strength` parent norms away.

    Fixed-point steps eps *= wanted / found: paths are nearly linear at the start, so two or three are enough. A path that
    saturates before `strength` gives its last point.
    """
    wanted, eps = strength * parent.norm(), strength
    for _ in range(24):
        child = child_at(eps)
        found = child.distance(parent)
        if found == 0 or abs(found - wanted) <= 0.005 * wanted or eps > 40:
            break
        eps *= wanted / found
    return child


def _measured(factors: Sequence[LoraFactors], dtype: torch.dtype, device: str | torch.device, exact: bool) -> Span:
    B, A = _stacked([f.B for f in factors], -1, dtype, device), _stacked([f.A for f in factors], -2, dtype, device)
    return Span(B, A, _product(B.mT, B, exact), _product(A, A.mT, exact), _probe(A), 1e-7 if exact else 3e-4)


def _stacked(tensors: Sequence[Tensor], dim: int, dtype: torch.dtype, device: str | torch.device) -> Tensor:
    """Concatenation and conversion in one pass; torch.cat would convert each tensor first."""
    shape = list(tensors[0].shape)
    shape[dim] = sum(t.shape[dim] for t in tensors)
    out, start = torch.empty(shape, dtype=dtype, device=device), 0
    for t in tensors:
        out.narrow(dim, start, t.shape[dim]).copy_(t)
        start += t.shape[dim]
    return out


def _product(X: Tensor, Y: Tensor, exact: bool) -> Small:
    return (X.double() @ Y.double() if exact else X @ Y).cpu().double().numpy()


def _bordered(gram: Small, border: Small, R: int) -> Small:
    """The Gram matrix [gram, border'; border] from its old block and its new rows."""
    top = np.concatenate([gram, _T(border[..., :R])], -1)
    return np.concatenate([top, border], -2)


def _probe(A: Tensor) -> Small:
    w = torch.cos(torch.arange(A.shape[-1], dtype=torch.float64)).to(A)
    return (A @ w).cpu().double().numpy()


def _normal(shape: tuple[int, ...], like: Tensor, rng: np.random.Generator) -> Tensor:
    """Standard normals, drawn on the CPU so that every device breeds the same child. torch's generator is the fastest."""
    generator = torch.Generator().manual_seed(int(rng.integers(2**63)))
    return torch.empty(shape, dtype=torch.float32).normal_(generator=generator).to(like)


def _root(gram: Small) -> Small:
    """L with L L' = gram. Cholesky where it holds; for a singular gram, eigenvectors of its correlation matrix."""
    try:
        return np.asarray(np.linalg.cholesky(gram), np.float64)
    except np.linalg.LinAlgError:
        d = np.sqrt(np.maximum(np.diagonal(gram, axis1=-2, axis2=-1), 0.0))
        unit = np.where(d > 0, d, 1.0)
        values, vectors = np.linalg.eigh(gram / (unit[..., :, None] * unit[..., None, :]))
        return d[..., :, None] * vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]


def _same_span(a: Delta, b: Delta) -> tuple[Delta, Delta]:
    """Both in the larger of their spans, which holds the smaller one as its beginning."""
    if a.span.size < b.span.size:
        return _lifted(a, b.span), b
    return a, _lifted(b, a.span)


def _lifted(delta: Delta, span: Span) -> Delta:
    more = span.size - delta.span.size
    if not more:
        return delta
    pad = [(0, 0)] * (delta.left.ndim - 2)
    return Delta(span, np.pad(delta.left, [*pad, (0, more), (0, 0)]), np.pad(delta.right, [*pad, (0, 0), (0, more)]))


def _T(matrix: Small) -> Small:
    return np.swapaxes(matrix, -1, -2)


def _check_shapes(factors: Sequence[LoraFactors]) -> None:
    outer = {(f.B.shape[:-1], f.A.shape[:-2], f.A.shape[-1]) for f in factors}
    if len(outer) > 1:
        shapes = ", ".join(f"B {list(f.B.shape)} A {list(f.A.shape)}" for f in factors)
        raise AdapterError(f"the parents' shapes differ: {shapes}")
    for f in factors:
        if f.A.shape[-2] != f.B.shape[-1]:
            raise AdapterError(f"A {list(f.A.shape)} and B {list(f.B.shape)} do not share a rank")


def _refuse_non_finite(factors: Sequence[LoraFactors]) -> None:
    for i, f in enumerate(factors):
        for letter, tensor in (("A", f.A), ("B", f.B)):
            wide = tensor.float()
            if not torch.isfinite(wide).all():
                kind = "NaN" if torch.isnan(wide).any() else "Inf"
                raise AdapterError(f"factor {letter} of parent {i + 1} holds {kind}; the adapter has diverged")
