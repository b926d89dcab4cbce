"""What happens to tensors that are no deltas: full weights, biases, DoRA magnitudes, token rows. Nothing is dropped.

| policy | meaning | operators |
|---|---|---|
| keep | the first parent's, then what only later parents have | mutations, svd_subspace, copy_parent |
| choose | the parent's that the module came from | layer_choice |
| mean | the weighted mean, weights divided by their sum; the sum of deltas for lora_bias | dare, extrapolate, linear |

A tensor that is the same in all parents that have it stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from lora_evo.adapter import Adapter, Extra
from lora_evo.errors import AdapterError
from lora_evo.operators import ExtrasPolicy


def combined(
    policy: ExtrasPolicy,
    parents: Sequence[Adapter],
    weights: Sequence[float],
    choices: Mapping[str, int],
    scales: Mapping[str, float],
) -> dict[str, Extra]:
    """The child's extras.

    Args:
        weights: one per parent, for `mean`.
        choices: place -> parent, for `choose`.
        scales: the child's scale per module; a lora_bias is rescaled to it.

    Raises:
        AdapterError: if values differ in shape, are not finite, or have weights that sum to 0.
    """
    chosen: dict[str, Extra] = {}
    for key in sorted({key for parent in parents for key in parent.extras}):
        holders = [(i, parent) for i, parent in enumerate(parents) if key in parent.extras]
        _check(key, holders)
        first = holders[0][1].extras[key]
        if policy == "choose":
            holders = [h for h in holders if h[0] == choices.get(first.module, 0)]
            if not holders and first.kind == "lora_bias":
                continue
            holders = holders or [(i, parent) for i, parent in enumerate(parents) if key in parent.extras]
        if policy != "mean":
            holders = holders[:1]
        shares = [weights[i] if policy == "mean" else 1.0 for i, _ in holders]
        chosen[key] = _merged(key, holders, shares, scales)
    return chosen


def _merged(key: str, holders: list[tuple[int, Adapter]], shares: list[float], scales: Mapping[str, float]) -> Extra:
    first = holders[0][1].extras[key]
    tensors = [parent.extras[key].tensor for _, parent in holders]
    if first.kind == "lora_bias":
        target = scales[first.module]
        factors = [s * p.modules[first.module].scale / target for s, (_, p) in zip(shares, holders, strict=True)]
    elif all(torch.equal(t, tensors[0]) for t in tensors[1:]):
        return first
    elif abs(sum(shares)) < 1e-9:
        raise AdapterError(f"{key}: the weights sum to 0, so full weights have no mean; use layer_choice, or weights that sum to 1")
    else:
        factors = [s / sum(shares) for s in shares]
    present = [(f, t) for f, t in zip(factors, tensors, strict=True) if f != 0]
    if len(present) == 1 and present[0][0] == 1:
        return Extra(present[0][1], first.kind, first.module)
    total = sum((f * t.double() for f, t in present), torch.zeros_like(tensors[0], dtype=torch.float64))
    return Extra(torch.as_tensor(total).to(first.tensor.dtype), first.kind, first.module)


def _check(key: str, holders: list[tuple[int, Adapter]]) -> None:
    shapes = {tuple(parent.extras[key].tensor.shape) for _, parent in holders}
    if len(shapes) > 1:
        raise AdapterError(f"{key}: the parents' shapes differ: {', '.join(str(list(s)) for s in sorted(shapes))}")
    for _, parent in holders:
        if not torch.isfinite(parent.extras[key].tensor.float()).all():
            raise AdapterError(f"{parent.name}: {key} holds NaN or Inf")
