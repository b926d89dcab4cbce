"""Members and the population: immutable state; every change makes a new population."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from selfplay.ratings import Rating

Role = Literal["teacher", "student"]
ROLES: tuple[Role, Role] = ("teacher", "student")


@dataclass(frozen=True)
class Birth:
    """Where a member comes from. Founders have no parents and no operator."""

    step: int = 0
    parents: tuple[str, ...] = ()
    operator: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0


@dataclass(frozen=True)
class Member:
    """One adapter in one role. Names are never used again, so that no engine serves an old adapter under a new one's name."""

    name: str
    role: Role
    rating: Rating = field(default_factory=Rating)
    birth: Birth = field(default_factory=Birth)

    def age(self, step: int) -> int:
        """Steps since birth."""
        return step - self.birth.step


@dataclass(frozen=True)
class Population:
    """All members, teachers first, and the number of names given out so far for each role."""

    members: tuple[Member, ...]
    named: Mapping[Role, int]

    @staticmethod
    def founded(teachers: int, students: int) -> Population:
        """A population of founders.

        Raises:
            ValueError: if a role is empty.
        """
        sizes: dict[Role, int] = {"teacher": teachers, "student": students}
        for role, size in sizes.items():
            if size < 1:
                raise ValueError(f"the number of {role}s is {size}, it must be at least 1")
        return Population(tuple(Member(name(role, i), role) for role in ROLES for i in range(sizes[role])), sizes)

    def of(self, role: Role) -> tuple[Member, ...]:
        """The members of a role, in order."""
        return tuple(m for m in self.members if m.role == role)

    def __getitem__(self, wanted: str) -> Member:
        for member in self.members:
            if member.name == wanted:
                return member
        raise KeyError(f"no member {wanted}")

    def rated(self, ratings: Mapping[str, Rating]) -> Population:
        """With new ratings for the members named."""
        return replace(self, members=tuple(replace(m, rating=ratings.get(m.name, m.rating)) for m in self.members))

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"members": [asdict(m) for m in self.members], "named": dict(self.named)}

    @staticmethod
    def from_dict(stored: Mapping[str, Any]) -> Population:
        """From what `as_dict` made."""
        return Population(tuple(_member(m) for m in stored["members"]), dict(stored["named"]))


def name(role: Role, number: int) -> str:
    """A member's name: `t0`, `s0`, ..."""
    return f"{role[0]}{number}"


def ranked(members: Iterable[Member]) -> list[Member]:
    """Best first, by the conservative rating; equals by age, then by name."""
    return sorted(members, key=lambda m: (-m.rating.conservative, m.birth.step, len(m.name), m.name))


def _member(stored: Mapping[str, Any]) -> Member:
    birth = {**stored["birth"], "parents": tuple(stored["birth"]["parents"])}
    return Member(stored["name"], stored["role"], Rating(**stored["rating"]), Birth(**birth))
