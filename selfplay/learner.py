"""The update of every member at once: one forward and one backward pass over the shared base, each member's own gradient,
clipping, Adam state, warm-up and loss.

Nothing is shared between members but time: a member's update is the same with and without the others in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from selfplay.advantages import Variant
from selfplay.engines.rows import Batch, Group, batch_of, batches, groups_of
from selfplay.engines.torch_engine import TorchEngine
from selfplay.logprobs import chosen
from selfplay.losses import Normalise, clipped, importance, k3, surrogate, token_weights
from selfplay.updates import LiveSamples, Sample, Tally, Update, summed_up

__all__ = ["LearnRules", "Learner", "Sample", "Update"]

NORMALISE: dict[Variant, Normalise] = {"grpo": "sequence", "dr_grpo": "constant", "reinforce_pp_baseline": "token"}


@dataclass(frozen=True)
class LearnRules:
    """How members learn.

    Attributes:
        loss: which advantages (`advantages.py`) and, unless `normalise` says otherwise, which denominator.
        lr: Adam's, after warm-up.
        warmup: updates of a member over which its learning rate rises to `lr`; a child starts again.
        epochs: passes over the same samples, each one Adam step. With one, every ratio is 1 and nothing is clipped.
        clip_low, clip_high: the ratio's range is 1 - low to 1 + high.
        kl: weight of the divergence from the base; 0 computes none.
        normalise: see `token_weights`.
        max_grad_norm: of each member's own gradient.
        beta1, beta2, epsilon: Adam's.
        importance_cap: of the weight trainer / sampler; 1 where both are the same program.
        mask_truncated: completions that were cut off teach nothing.
        tokens_per_batch: rows x time of one pass, with padding; the gradient does not depend on it.
        checkpointing: compute activations twice instead of keeping them.
    """

    loss: Variant = "reinforce_pp_baseline"
    lr: float = 1e-3
    warmup: int = 3
    epochs: int = 1
    clip_low: float = 0.2
    clip_high: float = 0.28
    kl: float = 0.0
    normalise: Normalise | None = None
    max_grad_norm: float = 1.0
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    importance_cap: float = 2.0
    mask_truncated: bool = True
    tokens_per_batch: int = 4096
    checkpointing: bool = False

    def __post_init__(self) -> None:
        for label in ("lr", "kl", "clip_low", "clip_high", "warmup"):
            if getattr(self, label) < 0:
                raise ValueError(f"{label} is {getattr(self, label)}, it must be 0 or more")
        for label in ("epochs", "tokens_per_batch"):
            if getattr(self, label) < 1:
                raise ValueError(f"{label} is {getattr(self, label)}, it must be at least 1")
        for label in ("max_grad_norm", "importance_cap", "epsilon"):
            if not getattr(self, label) > 0:
                raise ValueError(f"{label} is {getattr(self, label)}, it must be above 0")
        for label in ("beta1", "beta2"):
            if not 0 <= getattr(self, label) < 1:
                raise ValueError(f"{label} is {getattr(self, label)}, it must be 0 or more and below 1")


class Learner:
    """Adam over the bank's rows.

    Args:
        engine: whose members learn.
        rules: how.
        temperature: at which completions were sampled.
        longest: tokens a completion may have, for `constant`.
    """

    def __init__(self, engine: TorchEngine, rules: LearnRules, temperature: float = 1.0, longest: int = 256) -> None:
        if not temperature > 0:
            raise ValueError(f"temperature is {temperature}; what was chosen without chance cannot be learned from")
        self.engine, self.rules, self.temperature, self.longest = engine, rules, temperature, longest
        self.bank = engine.bank
        self.bank.learn()
        self.moments = torch.zeros(2, *self.bank.weights.shape, device=self.bank.weights.device)
        self.updates: dict[str, int] = {}

    def update(self, samples: Sequence[Sample]) -> dict[str, Update]:
        """Let every member learn from its samples; what happened to each. A member without a signal keeps weights and state."""
        mine: dict[str, list[int]] = {}
        for i, sample in enumerate(samples):
            self.bank.slot(sample.member)
            mine.setdefault(sample.member, []).append(i)
        weights = self._weights(samples, mine)
        live = [i for i, w in enumerate(weights) if w and (samples[i].advantage or self.rules.kl)]
        learned = self._learn(samples, weights, live) if live else {}
        return {member: summed_up(samples, own, weights, learned.get(member)) for member, own in mine.items()}

    def forget(self, name: str) -> None:
        """Let a member's optimizer start anew, warm-up included."""
        self.updates.pop(name, None)

    def save(self, name: str, path: Path) -> None:
        """Write a member's optimizer state as one safetensors file."""
        first, second = self.moments[:, self.bank.slot(name)].cpu()
        if name not in self.updates:
            first, second = torch.zeros_like(first), torch.zeros_like(second)
        save_file({"first": first.clone(), "second": second.clone()}, path, {"updates": str(self.updates.get(name, 0))})

    def load(self, name: str, path: Path) -> None:
        """Read what `save` wrote."""
        with safe_open(path, "pt") as file:
            self.moments[:, self.bank.slot(name)] = torch.stack([file.get_tensor("first"), file.get_tensor("second")])
            self.updates[name] = int(file.metadata()["updates"])

    def _weights(self, samples: Sequence[Sample], mine: dict[str, list[int]]) -> list[float]:
        """The weight of each sample's tokens; 0 for those that teach nothing."""
        weights = [0.0] * len(samples)
        how = self.rules.normalise or NORMALISE[self.rules.loss]
        for own in mine.values():
            kept = [i for i in own if not (samples[i].truncated and self.rules.mask_truncated)]
            lengths = [len(samples[i].tokens) for i in kept]
            for i, weight in zip(kept, token_weights(lengths, how, self.longest), strict=True) if kept else ():
                weights[i] = weight
        return weights

    def _learn(self, samples: Sequence[Sample], weights: Sequence[float], live: Sequence[int]) -> dict[str, dict[str, float]]:
        """Passes and Adam steps; figures by member."""
        slots = [self.bank.slot(samples[i].member) for i in live]
        groups = groups_of(slots, [samples[i].prompt for i in live], [samples[i].tokens for i in live], self.rules.tokens_per_batch)
        todo = [(part, batch_of(part, self.engine.device)) for part in batches(groups, self.rules.tokens_per_batch)]
        data = LiveSamples.of([samples[i] for i in live], [weights[i] for i in live], slots, self.engine.device)
        old: list[Tensor | None] = [None] * len(todo)
        if self.rules.checkpointing:
            self.engine.model.gradient_checkpointing_enable({"use_reentrant": False})
            self.engine.model.train()  # without dropout it changes nothing but this
        for _ in range(self.rules.epochs):
            self.bank.grads.zero_()
            tally = Tally(len(self.bank.weights), self.engine.device)
            for i, (part, batch) in enumerate(todo):
                old[i] = self._pass(part, batch, data, old[i], tally)
            figures = {member: tally.of(self.bank.slot(member)) for member in dict.fromkeys(samples[i].member for i in live)}
            for member, figure in figures.items():
                figure |= self._step(member)
        self.engine.model.eval()
        return figures

    def _pass(self, part: Sequence[Group], batch: Batch, data: LiveSamples, old: Tensor | None, tally: Tally) -> Tensor:
        """Forward and backward over one batch; the log-probabilities before the first step."""
        rules, slots = self.rules, [group.slot for group in part]
        advantage, weight, slot = (t[batch.indices] for t in (data.advantages, data.weights, data.slots))
        sampler = data.logprobs_of(batch)
        reference = self._logprobs(batch, [-1] * len(slots), grad=False) if rules.kl else None
        logprob = self._logprobs(batch, slots, grad=True)
        before = logprob.detach() if old is None else old
        ratio = (logprob - before).exp()
        gain = importance(before, sampler, rules.importance_cap) * surrogate(ratio, advantage, rules.clip_low, rules.clip_high)
        penalty = k3(logprob, reference) if reference is not None else torch.zeros_like(gain)
        (weight * (rules.kl * penalty - gain)).sum().backward()
        tally.add(
            slot,
            loss=weight * (rules.kl * penalty - gain),
            tokens=torch.ones_like(weight),
            kl=penalty,
            clipped=clipped(ratio, advantage, rules.clip_low, rules.clip_high),
            log_ratio=before - sampler,
        )
        return before

    def _logprobs(self, batch: Batch, slots: Sequence[int], grad: bool) -> Tensor:
        with torch.set_grad_enabled(grad):
            return chosen(self.engine.predicted(batch, slots), batch.targets, self.temperature)

    def _step(self, member: str) -> dict[str, float]:
        """One Adam step of one member; a gradient that is not finite changes nothing."""
        slot, rules = self.bank.slot(member), self.rules
        grad = self.bank.grads[slot]
        norm = float(torch.linalg.vector_norm(grad))
        if not torch.isfinite(torch.tensor(norm)):
            return {"grad_norm": norm, "lr": 0.0}
        if member not in self.updates:
            self.moments[:, slot] = 0
        count = self.updates[member] = self.updates.get(member, 0) + 1
        lr = rules.lr * min(1.0, count / (rules.warmup + 1))
        first, second = self.moments[:, slot]
        grad *= min(1.0, rules.max_grad_norm / (norm + 1e-12))
        first.lerp_(grad, 1 - rules.beta1)
        second.mul_(rules.beta2).addcmul_(grad, grad, value=1 - rules.beta2)
        spread = (second / (1 - rules.beta2**count)).sqrt_().add_(rules.epsilon)
        self.bank.weights[slot].addcdiv_(first, spread, value=-lr / (1 - rules.beta1**count))
        return {"grad_norm": norm, "lr": lr}
