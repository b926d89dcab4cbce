"""The policy-gradient formulas, token by token. Everything is a tensor of one value for each kept token.

Sources: PPO's clipped surrogate; DAPO's asymmetric range (clip-higher); the k3 estimate of the KL divergence; Dr. GRPO's
constant denominator; truncated importance sampling between sampler and trainer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

Normalise = Literal["token", "sequence", "constant"]


def surrogate(ratio: Tensor, advantage: Tensor, low: float, high: float) -> Tensor:
    """min(k A, clip(k, 1 - low, 1 + high) A), to be made large."""
    return torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)


def clipped(ratio: Tensor, advantage: Tensor, low: float, high: float) -> Tensor:
    """Where the clipping takes the gradient away."""
    return ((advantage > 0) & (ratio > 1 + high)) | ((advantage < 0) & (ratio < 1 - low))


def k3(logprob: Tensor, reference: Tensor) -> Tensor:
    """exp(d) - d - 1 with d = reference - logprob: an estimate of KL(policy, reference) that is never negative."""
    d = reference - logprob
    return d.exp() - d - 1


def importance(trainer: Tensor, sampler: Tensor, cap: float) -> Tensor:
    """min(trainer / sampler, cap), a constant weight for tokens drawn by an engine that computes a little differently."""
    return (trainer - sampler).exp().clamp(max=cap).detach()


def token_weights(lengths: Sequence[int], how: Normalise, longest: int) -> list[float]:
    """The weight of each token of each completion of one member; what they sum to is the loss.

    Args:
        lengths: tokens of each completion, all of which count, those without a signal too.
        how: `token`: all tokens weigh the same and sum to one; `sequence`: all completions do; `constant`: the sum over
            tokens is divided by completions x `longest`, so that long ones are not favoured.
        longest: tokens a completion may have.
    """
    if how == "token":
        return [1 / sum(lengths)] * len(lengths)
    if how == "sequence":
        return [1 / (len(lengths) * length) for length in lengths]
    return [1 / (len(lengths) * longest)] * len(lengths)
