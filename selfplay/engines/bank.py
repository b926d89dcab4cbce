"""The factors of all members, stacked: one row of one matrix for each member.

Clipping, the optimizer and copying work on rows; the modules see views. Always float32, whatever the base computes in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lora_evo import Adapter, LoraFactors
from lora_evo.errors import LoraEvoError
from lora_evo.peft_format.config import DEFAULTS
from lora_evo.seeding import stream


class MemberError(LoraEvoError):
    """A member that cannot be let in, or is not there."""


@dataclass(frozen=True)
class Place:
    """Where a module's factors lie in a row: A [rank, width_in], and B [width_out, rank] right behind it."""

    start: int
    rank: int
    width_in: int
    width_out: int

    @property
    def middle(self) -> int:
        """Where B starts."""
        return self.start + self.rank * self.width_in

    @property
    def stop(self) -> int:
        """Behind the end of B."""
        return self.middle + self.width_out * self.rank

    def A(self, rows: Tensor) -> Tensor:
        """A of one row [size], or of several [n, size]: a view."""
        return rows[..., self.start : self.middle].unflatten(-1, (self.rank, self.width_in))

    def B(self, rows: Tensor) -> Tensor:
        """B of one row or several: a view."""
        return rows[..., self.middle : self.stop].unflatten(-1, (self.width_out, self.rank))


class Bank:
    """Slots for members' factors.

    Args:
        widths: module path -> (in, out).
        rank, alpha: of every member; the scale is alpha / rank.
        slots: members at one time.
        config: what a member's adapter_config.json says beside rank, alpha and target modules.

    Attributes:
        weights: [slots, size], float32.
        grads: the same shape; filled by backward passes, emptied by the learner.
        route: whose rows stand where in the batch now being computed: (slot, rows), slot -1 for the base alone.
    """

    def __init__(
        self,
        widths: Mapping[str, tuple[int, int]],
        rank: int,
        alpha: float,
        slots: int,
        device: str = "cpu",
        config: Mapping[str, object] | None = None,
    ) -> None:
        self.rank, self.alpha, self.scale = rank, alpha, alpha / rank
        self.config = {**DEFAULTS, **(config or {})}
        self.places: dict[str, Place] = {}
        end = 0
        for name, (width_in, width_out) in widths.items():
            self.places[name] = Place(end, rank, width_in, width_out)
            end = self.places[name].stop
        self.weights = torch.zeros(slots, end, device=device)
        self.grads = torch.zeros(0, end, device=device)
        self.slot_of: dict[str, int] = {}
        self.route: Sequence[tuple[int, int]] = ()

    def learn(self) -> None:
        """Make room for gradients; sampling alone needs none."""
        if not len(self.grads):
            self.grads = torch.zeros_like(self.weights)

    def slot(self, name: str | None) -> int:
        """A member's row; -1 for None, the base.

        Raises:
            MemberError: if there is no such member.
        """
        if name is None:
            return -1
        if name not in self.slot_of:
            raise MemberError(f"no member {name}; there are {', '.join(self.slot_of) or 'none'}")
        return self.slot_of[name]

    def fresh(self, name: str, seed: int) -> None:
        """Let a new member in: B zero, A as PEFT draws it, uniform within 1 / sqrt(in)."""
        row = torch.zeros(self.weights.shape[1])
        for module, place in self.places.items():
            drawn = stream(seed, "fresh", module).random(place.rank * place.width_in, dtype="float32")
            row[place.start : place.middle] = (2 * torch.from_numpy(drawn) - 1) / place.width_in**0.5
        self.weights[self._room(name)] = row.to(self.weights.device)

    def put(self, name: str, adapter: Adapter) -> None:
        """Let a member in, or give it new weights. A smaller rank is filled up with zeros.

        Raises:
            MemberError: if the adapter does not fit the bank, or no slot is free; the bank is then as it was.
        """
        self._check(name, adapter)
        row = torch.zeros(self.weights.shape[1])
        for module, factors in adapter.modules.items():
            place = self.places[module]
            place.A(row)[: factors.rank] = factors.A
            place.B(row)[:, : factors.rank] = factors.B.float() * (factors.scale / self.scale)
        self.weights[self._room(name)] = row.to(self.weights.device)

    def drop(self, name: str) -> None:
        """Let a member go."""
        self.weights[self.slot(name)] = 0
        del self.slot_of[name]

    def adapter(self, name: str) -> Adapter:
        """A copy of a member as an adapter in memory."""
        row = self.weights[self.slot(name)].cpu().clone()
        modules = {
            module: LoraFactors(place.A(row).clone(), place.B(row).clone(), self.scale) for module, place in self.places.items()
        }
        return Adapter(modules, {**self.config, "r": self.rank, "lora_alpha": self.alpha}, name=name)

    def _room(self, name: str) -> int:
        if name not in self.slot_of:
            free = sorted(set(range(len(self.weights))) - set(self.slot_of.values()))
            if not free:
                raise MemberError(f"{name}: all {len(self.weights)} slots are taken; drop a member first")
            self.slot_of[name] = free[0]
        return self.slot_of[name]

    def _check(self, name: str, adapter: Adapter) -> None:
        if adapter.extras or adapter.ties:
            kinds = sorted({str(extra.kind) for extra in adapter.extras.values()}) or ["tied embedding"]
            raise MemberError(f"{name}: {adapter.name} has more than LoRA factors ({', '.join(kinds)}), which no member may have")
        for module, factors in adapter.modules.items():
            if module not in self.places:
                raise MemberError(f"{name}: {adapter.name} adapts {module}, which members here do not; targets must agree")
            place = self.places[module]
            if factors.A.ndim != 2 or factors.widths != (place.width_out, place.width_in):
                raise MemberError(
                    f"{name}: {module} of {adapter.name} is {factors.widths[0]} x {factors.widths[1]}, "
                    f"here it is {place.width_out} x {place.width_in}: another base?"
                )
            if factors.rank > self.rank:
                raise MemberError(f"{name}: {module} of {adapter.name} has rank {factors.rank}, members here have {self.rank}")
