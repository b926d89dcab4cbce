"""Who dies, who breeds, and how: plans as pure functions of the population, the step and a random stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from selfplay.population import ROLES, Birth, Member, Population, Role, name, ranked


@dataclass(frozen=True)
class Breed:
    """One way to make a child, and how often it is taken against the others of its kind."""

    operator: str
    weight: float = 1.0
    params: Mapping[str, Any] = field(default_factory=dict)


MUTATIONS = tuple(Breed(operator) for operator in ("svd_perturb", "layer_noise", "mask_components", "gaussian"))
CROSSOVERS = tuple(Breed(operator) for operator in ("dare", "layer_choice", "svd_subspace", "extrapolate"))


@dataclass(frozen=True)
class ReplacementRules:
    """When and how members are replaced.

    Attributes:
        every: steps between rounds; 0: never.
        fraction: of each role that dies in a round, rounded down; at least 1 member, at most all but one.
        grace: members younger than this many steps are not culled; None: `every`.
        crossover: probability of crossover, where two parents are left.
        mutations, crossovers: what is drawn from, by weight.
        lone: what happens to the only member of a role: nothing, or it makes way for its own mutant.
    """

    every: int = 10
    fraction: float = 0.25
    grace: int | None = None
    crossover: float = 0.5
    mutations: tuple[Breed, ...] = MUTATIONS
    crossovers: tuple[Breed, ...] = CROSSOVERS
    lone: Literal["keep", "mutate"] = "keep"

    def __post_init__(self) -> None:
        if self.every < 0:
            raise ValueError(f"every is {self.every}, it must be 0 or more")
        for label, share in (("fraction", self.fraction), ("crossover", self.crossover)):
            if not 0 <= share <= 1:
                raise ValueError(f"{label} is {share}, it must be between 0 and 1")
        for label, table in (("mutations", self.mutations), ("crossovers", self.crossovers)):
            if any(b.weight < 0 for b in table) or not sum(b.weight for b in table) > 0:
                raise ValueError(f"{label} must have weights of 0 or more, and one above 0")

    @property
    def grace_steps(self) -> int:
        """The grace age."""
        return self.every if self.grace is None else self.grace


@dataclass(frozen=True)
class Replacement:
    """One death and one birth.

    Attributes:
        victim: who dies.
        child: the new member's name.
        role: of both.
        parents: one for a mutation, two for a crossover; the better one last.
        operator, params, seed: how the child is made.
    """

    victim: str
    child: str
    role: Role
    parents: tuple[str, ...]
    operator: str
    params: Mapping[str, Any]
    seed: int


def due(step: int, rules: ReplacementRules) -> bool:
    """Whether a round takes place after this many steps."""
    return rules.every > 0 and step > 0 and step % rules.every == 0


def deaths(size: int, rules: ReplacementRules) -> int:
    """How many members of a role of this size a round may take."""
    return min(max(1, int(size * rules.fraction)), size - 1) if rules.fraction > 0 else 0


def plan(population: Population, step: int, rules: ReplacementRules, rng: np.random.Generator) -> list[Replacement]:
    """The round after `step`: empty if none is due."""
    if not due(step, rules):
        return []
    planned: list[Replacement] = []
    for role in ROLES:
        number = population.named[role]
        for victim, survivors in _doomed(population.of(role), step, rules):
            planned.append(_replacement(victim, survivors, name(role, number), rules, rng))
            number += 1
    return planned


def _doomed(members: tuple[Member, ...], step: int, rules: ReplacementRules) -> list[tuple[Member, list[Member]]]:
    """Each victim with those who may breed, best first."""
    order = ranked(members)
    old = [m for m in order if m.age(step) >= rules.grace_steps]
    if len(members) == 1:
        return [(order[0], order)] if rules.lone == "mutate" and old and rules.fraction > 0 else []
    count = min(deaths(len(members), rules), len(old))
    victims = old[len(old) - count :]
    survivors = [m for m in order if m not in victims]
    return [(victim, survivors) for victim in victims]


def _replacement(
    victim: Member, survivors: list[Member], child: str, rules: ReplacementRules, rng: np.random.Generator
) -> Replacement:
    crossing = bool(rng.random() < rules.crossover) and len(survivors) > 1
    table = rules.crossovers if crossing else rules.mutations
    weights = np.array([b.weight for b in table], dtype=float)
    breed = table[int(rng.choice(len(table), p=weights / weights.sum()))]
    chosen = sorted(rng.choice(len(survivors), size=2 if crossing else 1, replace=False).tolist(), reverse=True)
    parents = tuple(survivors[i].name for i in chosen)  # survivors are best first, so the better parent comes last
    return Replacement(victim.name, child, victim.role, parents, breed.operator, dict(breed.params), int(rng.integers(2**31)))


def replaced(population: Population, planned: Sequence[Replacement], step: int) -> Population:
    """The population after the round: each child stands where its victim stood, with a fresh rating and its lineage."""
    children = {
        r.victim: Member(r.child, r.role, birth=Birth(step, r.parents, r.operator, dict(r.params), r.seed)) for r in planned
    }
    named = dict(population.named)
    for r in planned:
        named[r.role] += 1
    return replace(population, members=tuple(children.get(m.name, m) for m in population.members), named=named)
