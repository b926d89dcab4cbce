"""The tall factors of one module's parents, and the Gram matrices through which small matrices see them.

Tall products run on the factors' device; Gram matrices are float64 numpy arrays on the CPU. Those of half-precision
factors come from float32 products (a product of two bfloat16 numbers is exact in float32), those of float32 factors from
float64 products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lora_evo.adapter import LoraFactors
from lora_evo.errors import AdapterError

Small = NDArray[np.float64]


@dataclass(frozen=True)
class Span:
    """The columns of some factors B [*, out, r_i] side by side and the rows of their A [*, r_i, in] below each other.

    Leading dimensions are independent blocks: the experts of a mixture, the groups of a convolution. R is the sum of r_i.

    Attributes:
        gram_B: `B.T @ B`, [*, R, R].
        gram_A: `A @ A.T`, [*, R, R].
        probe: `A @ w` for a fixed vector w, [*, R]; it settles the signs of singular vectors. w has at most about 1,000
            entries that are not zero: enough to tell a vector from its opposite.
        exact: whether the Gram matrices come from float64 products.
    """

    B: tuple[Tensor, ...]
    A: tuple[Tensor, ...]
    gram_B: Small
    gram_A: Small
    probe: Small
    exact: bool

    @property
    def size(self) -> int:
        """R."""
        return self.gram_B.shape[-1]

    @property
    def blocks(self) -> tuple[int, ...]:
        """The leading dimensions."""
        return self.gram_B.shape[:-2]

    @property
    def widths(self) -> tuple[int, int]:
        """(out, in)."""
        return self.B[0].shape[-2], self.A[0].shape[-1]

    @property
    def resolution(self) -> float:
        """Singular values below this share of the largest are rounding, not content."""
        return 1e-7 if self.exact else 3e-4

    @cached_property
    def slices(self) -> list[slice]:
        """The columns of each B and the rows of each A among R."""
        ends = np.cumsum([0] + [A.shape[-2] for A in self.A]).tolist()
        return [slice(a, b) for a, b in pairwise(ends)]

    def columns(self, left: Small) -> Tensor:
        """`B @ left` for left [*, R, k]: [*, out, k]."""
        return _summed([_times(B, left[..., s, :]) for B, s in zip(self.B, self.slices, strict=True)])

    def rows(self, right: Small) -> Tensor:
        """`right @ A` for right [*, k, R]: [*, k, in]."""
        return _summed([_times(right[..., s], A) for A, s in zip(self.A, self.slices, strict=True)])

    def extend(self, factors: Sequence[tuple[Tensor, Tensor]]) -> Span:
        """The span with further pairs (B [*, out, k], A [*, k, in]), last."""
        B, A = (*self.B, *(b for b, _ in factors)), (*self.A, *(a for _, a in factors))
        first = len(self.B)
        gram_B, gram_A = _gram(B, self.exact, self.gram_B, first), _gram([a.mT for a in A], self.exact, self.gram_A, first)
        return Span(B, A, gram_B, gram_A, np.concatenate([self.probe, *map(_probe, A[first:])], -1), self.exact)

    def extend_by_noise(self, k: int, rng: np.random.Generator) -> Span:
        """The span with k columns and rows of standard normal noise, last."""
        (out, width), B, A = self.widths, self.B[0], self.A[0]
        return self.extend([(_normal((*self.blocks, out, k), B, rng), _normal((*self.blocks, k, width), A, rng))])


def span_of(factors: Sequence[LoraFactors], device: str | torch.device | None = None) -> Span:
    """The span of one module's parents.

    Raises:
        AdapterError: if shapes do not fit together, or a value is NaN or infinite.
    """
    _check_shapes(factors)
    device = device or factors[0].A.device
    dtypes = {t.dtype for f in factors for t in (f.A, f.B)}
    exact = any(dtype.itemsize > 2 for dtype in dtypes)
    span = _measured(factors, torch.float64 if torch.float64 in dtypes else torch.float32, device, exact)
    if not (np.isfinite(span.gram_A).all() and np.isfinite(span.gram_B).all()):
        _refuse_non_finite(factors)
        span = _measured(factors, torch.float64, device, exact)  # finite, but its squares are not in float32
    return span


def _measured(factors: Sequence[LoraFactors], dtype: torch.dtype, device: str | torch.device, exact: bool) -> Span:
    B = tuple(f.B.to(device, dtype).contiguous() for f in factors)
    A = tuple(f.A.to(device, dtype).contiguous() for f in factors)
    probe = np.concatenate([_probe(a) for a in A], -1)
    return Span(B, A, _gram(B, exact), _gram([a.mT for a in A], exact), probe, exact)


def _gram(planes: Sequence[Tensor], exact: bool, known: Small | None = None, first: int = 0) -> Small:
    """`X.T @ X` for X the planes [*, n, r_i] side by side; the block of the planes before `first` is known."""
    wide = [p.double() for p in planes] if exact else list(planes)
    ends = np.cumsum([0] + [p.shape[-1] for p in planes])
    gram = np.empty((*planes[0].shape[:-2], ends[-1], ends[-1]))
    if known is not None:
        gram[..., : ends[first], : ends[first]] = known
    for j in range(first, len(planes)):
        for i in range(j + 1):
            block = _product(wide[i].mT, wide[j]).cpu().double().numpy()
            rows, columns = slice(ends[i], ends[i + 1]), slice(ends[j], ends[j + 1])
            gram[..., rows, columns] = block
            gram[..., columns, rows] = block.swapaxes(-1, -2)
    return gram


def _times(X: Tensor | Small, Y: Tensor | Small) -> Tensor:
    """The product of a tall tensor and a small matrix, in the tensor's dtype and on its device."""
    tall = X if isinstance(X, Tensor) else Y
    assert isinstance(tall, Tensor)
    x, y = (m if isinstance(m, Tensor) else torch.from_numpy(np.ascontiguousarray(m)).to(tall) for m in (X, Y))
    return _product(x, y)


def _product(X: Tensor, Y: Tensor) -> Tensor:
    """On the CPU numpy multiplies: it does half the work of `X.T @ X`, and its BLAS is as fast as torch's or faster."""
    if X.device.type == "cpu":
        return torch.from_numpy(np.matmul(X.numpy(), Y.numpy()))
    return X @ Y


def _summed(terms: Sequence[Tensor]) -> Tensor:
    total = terms[0]
    for term in terms[1:]:
        total += term
    return total


def _probe(A: Tensor) -> Small:
    some = A[..., :: max(1, A.shape[-1] // 1024)].contiguous()
    return _times(some, _fixed_vector(some.shape[-1])).cpu().double().numpy()


@lru_cache(maxsize=64)
def _fixed_vector(width: int) -> Small:
    return np.cos(np.arange(width))


def _normal(shape: tuple[int, ...], like: Tensor, rng: np.random.Generator) -> Tensor:
    """Standard normals, drawn on the CPU so that every device breeds the same child. torch's generator is the fastest."""
    generator = torch.Generator().manual_seed(int(rng.integers(2**63)))
    return torch.empty(shape, dtype=torch.float32).normal_(generator=generator).to(like)


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
        whose = f" of parent {i + 1}" if len(factors) > 1 else ""
        for letter, tensor in (("A", f.A), ("B", f.B)):
            wide = tensor.float()
            if not torch.isfinite(wide).all():
                kind = "NaN" if torch.isnan(wide).any() else "Inf"
                raise AdapterError(f"factor {letter}{whose} holds {kind}; the adapter has diverged")
