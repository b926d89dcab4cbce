"""What a run has cost, for each member and in total, and what a single agent may spend to be compared fairly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Literal


@dataclass(frozen=True)
class Cost:
    """Counts that add up. Seconds are not among them: they are shared by all in a batch, and differ from machine to machine.

    Attributes:
        rollouts: completions sampled.
        prompt_tokens, completion_tokens: read and written.
        trained_tokens: tokens of completions that went through an update.
        programs: processes the referee ran.
    """

    rollouts: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    trained_tokens: int = 0
    programs: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})


@dataclass(frozen=True)
class Ledger:
    """Costs by member's name; the dead stay in it."""

    by_member: Mapping[str, Cost]

    @staticmethod
    def empty() -> Ledger:
        """Nothing spent."""
        return Ledger({})

    def charge(self, member: str, cost: Cost) -> Ledger:
        """With a cost added to a member's."""
        return Ledger({**self.by_member, member: self.by_member.get(member, Cost()) + cost})

    def total(self, members: Iterable[str] | None = None) -> Cost:
        """The sum over some members, or all."""
        return sum((self.by_member[m] for m in (self.by_member if members is None else members)), Cost())

    def as_dict(self) -> dict[str, dict[str, int]]:
        """For JSON."""
        return {name: asdict(cost) for name, cost in self.by_member.items()}

    @staticmethod
    def from_dict(stored: Mapping[str, Mapping[str, int]]) -> Ledger:
        """From what `as_dict` made."""
        return Ledger({name: Cost(**cost) for name, cost in stored.items()})


def fair_budget(ledger: Ledger, slots: int, how: Literal["adapter", "total"]) -> int:
    """Tokens a single agent may sample to be compared with a population.

    Args:
        ledger: the population's.
        slots: places in the population, both roles together; children spend from the place they took.
        how: as much as one place on average, or as much as all together.

    Raises:
        ValueError: if there is no place.
    """
    if slots < 1:
        raise ValueError(f"slots is {slots}, it must be at least 1")
    tokens = ledger.total().completion_tokens
    return tokens if how == "total" else tokens // slots
