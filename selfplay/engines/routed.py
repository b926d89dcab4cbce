"""A linear layer that many members share: one product with the frozen weight, then each row's own low-rank part.

Gradients of the factors are added to the bank while the backward pass runs. No autograd graph goes through the stacked
factors, so memory and time do not grow with the number of members.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lora_evo.errors import LoraEvoError
from selfplay.engines.bank import Bank, Place

Segments = list[tuple[int, int, int]]
"""(slot, first row, behind the last row)."""


class RoutedLinear(nn.Module):
    """y = W x + b + scale B_m A_m x, with m the member whose row x is."""

    def __init__(self, base: nn.Linear, bank: Bank, place: Place) -> None:
        super().__init__()
        self.base, self.bank, self.place = base, bank, place

    @property
    def weight(self) -> Tensor:
        """The frozen weight; some models look at it."""
        return self.base.weight

    def forward(self, x: Tensor) -> Tensor:
        """[batch, time, in] to [batch, time, out]; the batch is ordered as the bank's route says."""
        rows = x.reshape(-1, x.shape[-1])
        segments = _segments(self.bank, rows.shape[0])
        if torch.is_grad_enabled() and rows.requires_grad:
            y = _Routed.apply(rows, self, segments)
        else:
            y, _ = _forward(rows, self, segments)
        return y.view(*x.shape[:-1], -1)


def _segments(bank: Bank, rows: int) -> Segments:
    total = sum(count for _, count in bank.route)
    each, rest = divmod(rows, max(total, 1))
    if rest or not total:
        raise LoraEvoError(
            f"a layer got {rows} rows for {total} sequences: layers that see only a part of the tokens (mixtures of experts) "
            "cannot be adapted; leave them out of lora.targets"
        )
    found, start = [], 0
    for slot, count in bank.route:
        stop = start + count * each
        if slot >= 0:
            found.append((slot, start, stop))
        start = stop
    return found


def _forward(x: Tensor, layer: RoutedLinear, segments: Segments) -> tuple[Tensor, Tensor]:
    """The output, and A_m x for the backward pass."""
    weights, place, scale = layer.bank.weights, layer.place, layer.bank.scale
    y = nn.functional.linear(x, layer.base.weight, layer.base.bias)
    h = x.new_empty(x.shape[0], place.rank, dtype=torch.float32)
    for slot, start, stop in segments:
        row = weights[slot]
        torch.mm(x[start:stop].float(), place.A(row).t(), out=h[start:stop])
        if y.dtype == torch.float32:
            y[start:stop].addmm_(h[start:stop], place.B(row).t(), alpha=scale)
        else:
            y[start:stop] += torch.mm(h[start:stop], place.B(row).t()).mul_(scale).to(y.dtype)
    return y, h


class _Routed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: RoutedLinear, segments: Segments) -> Tensor:
        y, h = _forward(x, layer, segments)
        ctx.save_for_backward(x, h)
        ctx.layer, ctx.segments = layer, segments
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        x, h = ctx.saved_tensors
        layer = ctx.layer
        bank, place = layer.bank, layer.place
        dx = dy @ layer.base.weight
        for slot, start, stop in ctx.segments:
            row, grad = bank.weights[slot], bank.grads[slot]
            d = dy[start:stop].float()
            dh = torch.mm(d, place.B(row)).mul_(bank.scale)
            place.B(grad).addmm_(d.t(), h[start:stop], alpha=bank.scale)
            place.A(grad).addmm_(dh.t(), x[start:stop].float())
            if dx.dtype == torch.float32:
                dx[start:stop].addmm_(dh, place.A(row))
            else:
                dx[start:stop] += torch.mm(dh, place.A(row)).to(dx.dtype)
        return dx, None, None


def adapted(model: Any, targets: str | tuple[str, ...]) -> dict[str, nn.Linear]:
    """The linear layers that members adapt.

    Args:
        targets: `all-linear`: all but the output head, as in PEFT; or the last parts of module names.

    Raises:
        LoraEvoError: if a name fits nothing, or something that is not `nn.Linear`.
    """
    head = model.get_output_embeddings()
    modules = {name: m for name, m in model.named_modules() if m is not head}
    if targets == "all-linear":
        found = {name: m for name, m in modules.items() if isinstance(m, nn.Linear)}
    else:
        wanted = (targets,) if isinstance(targets, str) else tuple(targets)
        found = {}
        for target in wanted:
            fitting = {name: m for name, m in modules.items() if name == target or name.endswith(f".{target}")}
            wrong = [f"{name} ({type(m).__name__})" for name, m in fitting.items() if not isinstance(m, nn.Linear)]
            if wrong or not fitting:
                raise LoraEvoError(f"lora.targets: {target} names {wrong[0] if wrong else 'no module'}; linear layers are adapted")
            found |= fitting
    if not found:
        raise LoraEvoError("lora.targets: the base has no linear layer to adapt")
    return found


def attach(model: nn.Module, bank: Bank, layers: dict[str, nn.Linear]) -> None:
    """Put routed layers in the place of linear ones."""
    for name, layer in layers.items():
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, RoutedLinear(layer, bank, bank.places[name]))
