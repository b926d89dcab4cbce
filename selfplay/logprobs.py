"""Log-probabilities of chosen tokens. A learner has nothing larger than logits, so of them only the gradient is a second copy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

ROWS = 256
"""Logits that are in float32 at one time."""


def chosen(logits: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """Log-probability of each row's target, [rows], float32.

    Args:
        logits: [rows, vocabulary], of any dtype; the gradient has it too.
        targets: [rows].
    """
    found: Tensor = _Chosen.apply(logits, targets, temperature)
    return found


def _softened(logits: Tensor, temperature: float) -> Iterator[Tensor]:
    """Log-softmax of some rows after the others."""
    for part in logits.split(ROWS):
        yield torch.log_softmax(part.float() / temperature, -1)


class _Chosen(torch.autograd.Function):
    """What the backward pass needs of the softmax it computes again."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, temperature: float) -> Tensor:
        ctx.save_for_backward(logits, targets)
        ctx.temperature = temperature
        parts = zip(_softened(logits, temperature), targets.split(ROWS), strict=True)
        return torch.cat([logprob.gather(-1, target[:, None])[:, 0] for logprob, target in parts])

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor, None, None]:
        logits, targets = ctx.saved_tensors
        found, slopes = torch.empty_like(logits), (given[0] / ctx.temperature)[:, None]
        parts = zip(*(t.split(ROWS) for t in (found, slopes, targets[:, None])), _softened(logits, ctx.temperature), strict=True)
        for into, slope, target, logprob in parts:
            into.copy_(logprob.exp_().mul_(-slope).scatter_add_(-1, target, slope))
        return found, None, None
