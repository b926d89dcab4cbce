"""What an adapter is in memory: per module a low-rank delta, and beside the deltas whatever else the file holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

    from lora_evo.lineage import Lineage
    from lora_evo.measure import Measures


class LoraFactors(NamedTuple):
    """One module's delta, `scale * B @ A`.

    Attributes:
        A: [*, r, in]. Leading dimensions are independent blocks (experts, groups), the same in A and B.
        B: [*, out, r].
        scale: lora_alpha / r, or lora_alpha / sqrt(r) under rsLoRA.
    """

    A: Tensor
    B: Tensor
    scale: float

    @property
    def rank(self) -> int:
        """r, of each block."""
        return self.A.shape[-2]

    @property
    def widths(self) -> tuple[int, int]:
        """Rows and columns of the delta: (out, in)."""
        return self.B.shape[-2], self.A.shape[-1]


LayoutKind = Literal["linear", "embedding", "conv", "experts", "blocks_out", "blocks_in"]


@dataclass(frozen=True)
class Layout:
    """How a module's factors lie in the file, and how they become matrices.

    | kind | stored A | stored B | delta |
    |---|---|---|---|
    | linear, embedding | [r, in] | [out, r] | B @ A |
    | conv | [r, in, *kernel] | [out, r, 1...] | B @ A over flattened kernels |
    | experts | [E r, in], expert by expert | [out, r E], rank by rank | one B @ A per expert |
    | blocks_out | [r, in, ...] | [out, r / n, ...] | output block i sees rank block i (grouped conv, BD-LoRA B) |
    | blocks_in | [r, in / n] | [out, r] | input block i feeds rank block i (BD-LoRA A) |
    """

    kind: LayoutKind = "linear"
    blocks: int = 1
    kernel: tuple[int, ...] = ()

    def matrices(self, A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
        """Stored tensors as A [*, r, in] and B [*, out, r]; views, never copies."""
        n = self.blocks
        if self.kernel:
            A, B = A.reshape(A.shape[0], -1), B.reshape(B.shape[0], -1)
        if self.kind == "experts":
            return A.reshape(n, -1, A.shape[-1]), B.reshape(B.shape[0], -1, n).permute(2, 0, 1)
        if self.kind == "blocks_out":
            return A.reshape(n, -1, A.shape[-1]), B.reshape(n, -1, B.shape[-1])
        if self.kind == "blocks_in":
            return A.reshape(n, -1, A.shape[-1]), B.reshape(B.shape[0], n, -1).transpose(0, 1)
        return A, B

    def stored(self, A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
        """The reverse of `matrices`."""
        if self.kind == "experts":
            B = B.permute(1, 2, 0).reshape(B.shape[-2], -1)
        elif self.kind == "blocks_in":
            B = B.transpose(0, 1).reshape(B.shape[-2], -1)
        elif self.kind == "blocks_out":
            B = B.reshape(-1, B.shape[-1])
        A = A.reshape(-1, A.shape[-1])
        if self.kernel:
            ones = (1,) * len(self.kernel)
            A = A.reshape(A.shape[0], A.shape[1] // prod(self.kernel), *self.kernel)
            B = B.reshape(*B.shape, *ones)
        return A.contiguous(), B.contiguous()

    def config_rank(self, rank: int) -> int:
        """The rank that PEFT's configuration gives for matrices of this rank: blocks share it, experts repeat it."""
        return rank * self.blocks if self.kind in ("blocks_out", "blocks_in") else rank


ExtraKind = Literal["lora_bias", "magnitude", "bias", "token_rows", "full_weight", "other"]


class Extra(NamedTuple):
    """A tensor that is not a factor.

    Attributes:
        module: the path of the module it belongs to.
        kind: `lora_bias` is a delta, times the module's scale; all others are values, not changes.
    """

    tensor: Tensor
    kind: ExtraKind
    module: str


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter as a value.

    Attributes:
        modules: module path in the base model -> factors.
        layouts: how each module's factors are stored; a module that is absent here is `linear`.
        extras: stored key -> what is not a factor (full weights, biases, DoRA magnitudes, token rows).
        config: adapter_config.json as a dictionary, with PEFT's defaults where the file is silent.
        ties: module path -> the embedding whose transposed factors it shares.
        name: what to call it in messages and lineage: the folder's name or the hub id.
        source: the files it was read from, or () for one made in memory.
        metadata: foreign entries of the file's header.
        lineage: how it was bred, if it was.
        measures: of a child just bred: distances to its parents.
        warnings: what a reader should know about the files.
    """

    modules: Mapping[str, LoraFactors]
    config: Mapping[str, Any]
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    extras: Mapping[str, Extra] = field(default_factory=dict)
    ties: Mapping[str, str] = field(default_factory=dict)
    name: str = "adapter"
    source: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    lineage: Lineage | None = None
    measures: Measures | None = None
    warnings: tuple[str, ...] = ()

    def layout(self, module: str) -> Layout:
        """How a module's factors are stored."""
        return self.layouts.get(module, Layout())

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        tensors = [t for f in self.modules.values() for t in (f.A, f.B)] + [e.tensor for e in self.extras.values()]
        return sum(t.nbytes for t in tensors)
