"""The form a child is stored in: rank, scale and dtype per module, and the configuration that says so.

A child of parents with equal configurations keeps that configuration and is a drop-in for them. Otherwise it gets one rank
and one scale for all modules, which every runtime can serve.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lora_evo.adapter import Adapter, Layout, LoraFactors
from lora_evo.errors import AdapterError, OperatorError
from lora_evo.lowrank import Delta
from lora_evo.peft_format import config as peft_config

TARGETS = ("target_modules", "target_parameters", "exclude_modules", "layers_to_transform", "layers_pattern")
_FP8 = tuple(getattr(torch, name) for name in dir(torch) if name.startswith("float8_"))


class Form(NamedTuple):
    """How one module's child is stored: rank (of each block), scale, dtypes of A and B."""

    rank: int
    scale: float
    dtypes: tuple[torch.dtype, torch.dtype]


@dataclass(frozen=True)
class ChildShape:
    """The form of a whole child.

    Attributes:
        sizes: module -> (out, in, leading dimensions).
    """

    ranks: Mapping[str, int]
    scales: Mapping[str, float]
    dtypes: Mapping[str, tuple[torch.dtype, torch.dtype]]
    layouts: Mapping[str, Layout]
    ties: Mapping[str, str]
    config: Mapping[str, Any]
    outer: Mapping[str, tuple[torch.Size, int, int]]

    def form(self, module: str) -> Form:
        """How one module is stored."""
        return Form(self.ranks[module], self.scales[module], self.dtypes[module])

    @property
    def sizes(self) -> dict[str, LoraFactors]:
        """Every module's factors as meta tensors: shapes and dtypes without memory."""
        sizes = {}
        for name, rank in self.ranks.items():
            (blocks, out, width), (dtype_A, dtype_B) = self.outer[name], self.dtypes[name]
            A = torch.empty((*blocks, rank, width), dtype=dtype_A, device="meta")
            B = torch.empty((*blocks, out, rank), dtype=dtype_B, device="meta")
            sizes[name] = LoraFactors(A, B, self.scales[name])
        return sizes


def child_shape(parents: Sequence[Adapter], rank: int | None, dtype: torch.dtype | str | None) -> ChildShape:
    """The form of a child of these parents.

    Args:
        rank: for all modules; the parents' own by default, their largest where they differ.
        dtype: for all factors; per module the parents' by default.
    """
    first = parents[0]
    samples = {name: [p.modules[name] for p in parents if name in p.modules] for p in parents for name in p.modules}
    layouts = {name: p.layout(name) for p in parents for name in p.modules}
    if rank is None and all(_alike(first, other) for other in parents[1:]):
        ranks = {name: f.rank for name, f in first.modules.items()}
        scales = {name: f.scale for name, f in first.modules.items()}
        config = peft_config.with_exact_patterns(first.config, first.modules, first.layouts)
    else:
        ranks, scales, config = _uniform(parents, samples, layouts, rank)
    wanted = dtype_named(dtype)
    return ChildShape(
        ranks=ranks,
        scales=scales,
        dtypes={n: (wanted, wanted) if wanted else (_joint(f.A for f in s), _joint(f.B for f in s)) for n, s in samples.items()},
        layouts={name: layout for name, layout in layouts.items() if layout != Layout()},
        ties=first.ties,
        config={**config, **_joint_fields(parents), "inference_mode": True},
        outer={name: (s[0].A.shape[:-2], *s[0].widths) for name, s in samples.items()},
    )


def stored(
    child: Delta, parents: Sequence[Delta], factors: Sequence[LoraFactors], form: Form, rng: np.random.Generator
) -> LoraFactors:
    """A child's factors at their rank, scale and dtype.

    A child that is a parent is stored as it was. One that shares a parent's A keeps it bit for bit. Any other gets the
    parents' balance |B| / |A| (geometric mean), on which the learning rates of the two factors depend.
    """
    same = next((f for f, parent in zip(factors, parents, strict=True) if child is parent), None)
    host = next((f for f, parent in zip(factors, parents, strict=True) if _same_rows(child, parent)), None)
    if same is not None:
        A, B = same.A, same.B if same.scale == form.scale else same.B.to(child.span.B[0]) * (same.scale / form.scale)
    elif host is not None:
        A, B = host.A, child.span.columns(child.left * (abs(host.scale) ** 0.5 / form.scale))
    else:
        b = _balance(child, parents, form.scale)
        A, B = child.span.rows(child.right / b), child.span.columns(child.left * (b / form.scale))
    A, B = _padded(A, B, form.rank, rng)
    device = factors[0].A.device
    dtype_A, dtype_B = form.dtypes
    return LoraFactors(_cast(A, dtype_A).to(device), _cast(B, dtype_B).to(device), form.scale)


def dtype_named(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """A floating dtype by its torch name, `bfloat16` or `torch.bfloat16`; bf16, fp16, fp32 too."""
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype
    short = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}
    found = getattr(torch, short.get(dtype, dtype.removeprefix("torch.")), None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise OperatorError(f"dtype {dtype!r} is not one of bfloat16, float16, float32, float64, float8_e4m3fn, float8_e5m2")
    return found


def _alike(a: Adapter, b: Adapter) -> bool:
    """Equal in everything that shapes a child: targets, modules, ranks and scales."""
    if any(_set(a.config.get(field)) != _set(b.config.get(field)) for field in (*TARGETS, "use_rslora")):
        return False
    if a.modules.keys() != b.modules.keys():
        return False
    return all(f.rank == b.modules[name].rank and f.scale == b.modules[name].scale for name, f in a.modules.items())


def _uniform(
    parents: Sequence[Adapter], samples: Mapping[str, list[LoraFactors]], layouts: Mapping[str, Layout], rank: int | None
) -> tuple[dict[str, int], dict[str, float], dict[str, Any]]:
    config_ranks = [layouts[name].config_rank(f.rank) for name, fs in samples.items() for f in fs]
    if rank is None:
        rank = max(config_ranks)
    else:
        if rank < 1:
            raise OperatorError(f"rank is {rank}, it must be at least 1")
        rank = min(rank, max(layouts[n].config_rank(min(fs[0].widths)) for n, fs in samples.items()))
    ranks = {}
    for name in samples:
        shared = layouts[name].config_rank(1)
        if rank % shared:
            raise AdapterError(f"module {name}: its {shared} blocks cannot share rank {rank} evenly")
        ranks[name] = rank // shared
    found = {f.scale for fs in samples.values() for f in fs}
    scale = found.pop() if len(found) == 1 else 1.0
    same_targets = all(
        p.modules.keys() == parents[0].modules.keys()
        and all(_set(p.config.get(t)) == _set(parents[0].config.get(t)) for t in TARGETS)
        for p in parents
    )
    linear = [name for name in samples if layouts[name].kind != "experts"]
    config = peft_config.uniform(parents[0].config, rank, scale, None if same_targets else linear)
    return ranks, dict.fromkeys(samples, scale), config


def _joint_fields(parents: Sequence[Adapter]) -> dict[str, Any]:
    """Fields in which parents may differ because the child can have what any of them has."""
    configs = [p.config for p in parents]
    saved = sorted({name for c in configs for name in c.get("modules_to_save") or ()})
    biases = ("none", "lora_only", "all")
    return {
        "modules_to_save": saved or None,
        "lora_bias": any(c.get("lora_bias") for c in configs),
        "bias": max((c.get("bias") or "none" for c in configs), key=lambda b: biases.index(b) if b in biases else 0),
        **{
            f: next((c[f] for c in configs if c.get(f)), None)
            for f in ("trainable_token_indices", "task_type", "base_model_name_or_path")
        },
    }


def _joint(tensors) -> torch.dtype:
    dtypes = list(dict.fromkeys(t.dtype for t in tensors))
    if len(dtypes) == 1:
        return dtypes[0]
    wide = [torch.bfloat16 if d in _FP8 else d for d in dtypes]
    joint = wide[0]
    for d in wide[1:]:
        joint = torch.promote_types(joint, d)
    return joint


def _balance(child: Delta, parents: Sequence[Delta], scale: float) -> float:
    norms = [p.factor_norms() for p in parents if p.rank]
    ratios = [log(B / A) for B, A in norms if B > 0 and A > 0]
    B, A = child.factor_norms()
    if not ratios or B == 0 or A == 0:
        return 1.0
    return float(np.sqrt(np.exp(np.mean(ratios)) * abs(scale) * A / B))


def _same_rows(child: Delta, parent: Delta) -> bool:
    """Whether `right @ A` is the parent's, so that its A can stay as it is."""
    own, more = child.right[..., : parent.span.size], child.right[..., parent.span.size :]
    return np.array_equal(own, parent.right) and not more.any()


def _padded(A: Tensor, B: Tensor, rank: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """More components: B gets zero columns, A random rows as a fresh LoRA has, so that they can be learned."""
    more = rank - A.shape[-2]
    if more <= 0:
        return A, B
    bound = A.shape[-1] ** -0.5
    rows = rng.uniform(-bound, bound, (*A.shape[:-2], more, A.shape[-1]))
    wide = torch.promote_types(A.dtype, torch.float32) if A.dtype not in _FP8 else torch.float32
    A = torch.cat([A.to(wide), torch.as_tensor(rows).to(A.device, wide)], -2)
    return A, torch.nn.functional.pad(B.to(torch.float32) if B.dtype in _FP8 else B, (0, more))


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    limit = torch.finfo(dtype).max
    if limit < torch.finfo(tensor.dtype).max * 0.9 and (largest := float(tensor.float().abs().max())) > limit:
        raise AdapterError(f"a value of {largest:.3g} does not fit {dtype}; ask for a wider dtype")
    return tensor.to(dtype)


def _set(value: Any) -> Any:
    return frozenset(map(str, value)) if isinstance(value, list | set | tuple) else value or None
