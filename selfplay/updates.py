"""What goes into an update and what comes out: samples, sums over their tokens, figures of each member."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from selfplay.engines.rows import Batch


@dataclass(frozen=True)
class Sample:
    """A completion and what it was worth.

    Attributes:
        member: who wrote it and learns from it.
        prompt, tokens: ids, as the engine read and wrote them.
        logprobs: the engine's, at the sampling temperature.
        advantage: 0 for a sample without a signal; it still counts in the denominators.
        truncated: whether it was cut off.
    """

    member: str
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    advantage: float
    truncated: bool = False


@dataclass(frozen=True)
class Update:
    """What an update did to a member.

    Attributes:
        loss: of the last epoch, before its step; 0 is normal at ratio 1, and says nothing.
        grad_norm: before clipping.
        entropy: nats a token, estimated by what was sampled.
        kl: from the base, k3, nats a token; 0 where it is not computed.
        ratio: smallest, mean and largest trainer / sampler probability of a token, uncorrected.
        mismatch: mean absolute difference of the trainer's and the sampler's log-probabilities.
        clipped: share of tokens whose gradient the clipping took, in the last epoch.
        truncated: share of completions that were cut off.
        trained_tokens: tokens of completions that went through the update.
        lr: used.
        skipped: why nothing was learned; empty if something was.
    """

    loss: float = 0.0
    grad_norm: float = 0.0
    entropy: float = 0.0
    kl: float = 0.0
    ratio: tuple[float, float, float] = (1.0, 1.0, 1.0)
    mismatch: float = 0.0
    clipped: float = 0.0
    truncated: float = 0.0
    trained_tokens: int = 0
    lr: float = 0.0
    skipped: str = ""


@dataclass(frozen=True)
class LiveSamples:
    """What the loss needs of the samples that have a signal, by their index.

    Attributes:
        advantages, weights, slots: one for each sample.
        starts: where each sample's tokens begin in `logprobs`, the sampler's.
    """

    advantages: Tensor
    weights: Tensor
    slots: Tensor
    starts: Tensor
    logprobs: Tensor

    @staticmethod
    def of(samples: Sequence[Sample], weights: Sequence[float], slots: Sequence[int], device: str) -> LiveSamples:
        """As tensors."""
        lengths = torch.tensor([len(s.tokens) for s in samples])
        columns = (
            torch.tensor([s.advantage for s in samples]),
            torch.tensor(weights),
            torch.tensor(slots),
            lengths.cumsum(0) - lengths,
            torch.tensor([lp for s in samples for lp in s.logprobs]),
        )
        return LiveSamples(*(column.to(device) for column in columns))

    def logprobs_of(self, batch: Batch) -> Tensor:
        """The sampler's, of the batch's targets: completions lie whole and in order in it."""
        new = torch.ones_like(batch.indices, dtype=torch.bool)
        new[1:] = batch.indices[1:] != batch.indices[:-1]
        places = torch.arange(len(batch.indices), device=new.device)
        begun = torch.where(new, places, 0).cummax(0).values
        return self.logprobs[self.starts[batch.indices] + places - begun]


class Tally:
    """Sums over tokens, by slot."""

    def __init__(self, slots: int, device: str) -> None:
        self.sums = {name: torch.zeros(slots, dtype=torch.float64, device=device) for name in _SUMMED}
        self.low = torch.zeros(slots, dtype=torch.float64, device=device)
        self.high = torch.zeros(slots, dtype=torch.float64, device=device)

    def add(self, slot: Tensor, *, log_ratio: Tensor, **columns: Tensor) -> None:
        """Add tokens: whose each is, log(trainer / sampler), and the other columns by name."""
        columns |= {"ratio": log_ratio.exp(), "mismatch": log_ratio.abs()}
        for name, column in columns.items():
            self.sums[name].index_add_(0, slot, column.detach().double())
        self.low.scatter_reduce_(0, slot, log_ratio.double(), "amin")
        self.high.scatter_reduce_(0, slot, log_ratio.double(), "amax")

    def of(self, slot: int) -> dict[str, float]:
        """A member's loss, tokens, means over them, and smallest and largest ratio."""
        tokens = float(self.sums["tokens"][slot])
        means = {name: float(sums[slot]) / tokens for name, sums in self.sums.items()}
        return means | {
            "loss": float(self.sums["loss"][slot]),
            "tokens": tokens,
            "low": float(self.low[slot].exp()),
            "high": float(self.high[slot].exp()),
        }


_SUMMED = ("loss", "tokens", "kl", "clipped", "ratio", "mismatch")


def summed_up(samples: Sequence[Sample], own: Sequence[int], weights: Sequence[float], figures: dict[str, float] | None) -> Update:
    """A member's update from its samples, their weights and, if it learned, its figures."""
    logprobs = [lp for i in own for lp in samples[i].logprobs]
    entropy = -sum(logprobs) / max(len(logprobs), 1)
    truncated = sum(samples[i].truncated for i in own) / len(own)
    if figures is None:
        kept = any(weights[i] for i in own)
        skipped = "no group had both good and bad" if kept else "every completion was cut off"
        return Update(entropy=entropy, truncated=truncated, skipped=skipped)
    return Update(
        loss=figures["loss"],
        grad_norm=figures["grad_norm"],
        entropy=entropy,
        kl=figures["kl"],
        ratio=(figures["low"], figures["ratio"], figures["high"]),
        mismatch=figures["mismatch"],
        clipped=figures["clipped"],
        truncated=truncated,
        trained_tokens=int(figures["tokens"]),
        lr=figures["lr"],
        skipped="" if figures["lr"] > 0 else "the gradient was not finite",
    )
