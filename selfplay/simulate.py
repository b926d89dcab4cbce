"""The rules without models: members with a hidden skill play, so that one can see whether the rules find and raise it.

A teacher's skill is how hard its problems are; a student's is how hard a problem it can solve. A student of skill s solves a
problem of difficulty d with probability 1 / (1 + exp(d - s)); a problem's difficulty is its teacher's skill plus noise.
Nobody learns: whatever moves is the work of replacement, where a child's skill is its parents' mean plus noise.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from lora_evo.seeding import stream
from selfplay.matchmaking import Matching, pairs
from selfplay.population import ROLES, Member, Population, Role
from selfplay.ratings import OutcomeRule, outcome, updated, win_probability
from selfplay.replacement import ReplacementRules, plan, replaced


@dataclass(frozen=True)
class Scene:
    """What is simulated.

    Attributes:
        teachers, students: how many.
        steps: of the game.
        seed: of everything.
        kinds: task kinds.
        proposals: of each teacher for each kind and step.
        answers: of the matched student to each valid problem.
        valid: share of proposals that are valid.
        hidden: standard deviation of the founders' hidden skill; of a problem's difficulty around its teacher's; of a
            child's skill around its parents'.
        prompt_tokens, completion_tokens: of one completion, for the plan.
        matching, rule, replacement: the rules.
    """

    teachers: int = 4
    students: int = 4
    steps: int = 500
    seed: int = 0
    kinds: int = 3
    proposals: int = 4
    answers: int = 8
    valid: float = 0.7
    hidden: tuple[float, float, float] = (1.5, 1.0, 0.5)
    prompt_tokens: int = 300
    completion_tokens: int = 250
    matching: Matching = "even"
    rule: OutcomeRule = "expected"
    replacement: ReplacementRules = field(default_factory=ReplacementRules)

    def __post_init__(self) -> None:
        for label in ("teachers", "students", "steps", "kinds", "proposals", "answers"):
            if getattr(self, label) < 1:
                raise ValueError(f"{label} is {getattr(self, label)}, it must be at least 1")
        if not 0 <= self.valid <= 1:
            raise ValueError(f"valid is {self.valid}, it must be between 0 and 1")


def load(scene: Scene) -> dict[str, float]:
    """What one step costs: rollouts, tokens, and programs the referee runs (processes), on average."""
    proposals = scene.teachers * scene.kinds * scene.proposals
    answers = proposals * scene.valid * scene.answers
    executed = answers * (max(scene.kinds - 1, 0) / scene.kinds if scene.kinds else 0)  # deduction is judged by value
    rollouts = proposals + answers
    return {
        "rollouts": rollouts,
        "prompt_tokens": rollouts * scene.prompt_tokens,
        "completion_tokens": rollouts * scene.completion_tokens,
        "referee_programs": 2 * proposals + executed,
        "tokens_per_member": rollouts * scene.completion_tokens / (scene.teachers + scene.students),
    }


@dataclass
class _World:
    """The state of a simulation."""

    population: Population
    skill: dict[str, float]
    evenness: list[float] = field(default_factory=list)
    means: list[dict[Role, float]] = field(default_factory=list)
    agreement: list[float] = field(default_factory=list)
    replaced: int = 0


def simulate(scene: Scene) -> dict[str, Any]:
    """Play, and say how well the rules did.

    Returns:
        `rank_correlation`: of TrueSkill's order with the hidden order inside each role, at the end of every tenth of the run,
        mean over roles of two or more (nan if there is none); `evenness`: mean of p (1 - p) over matches by hidden skill, 0.25
        at most; `mean_skill_start`, `mean_skill_end` by role; `replacements`; `seconds`; and `per_step`, the load.
    """
    start = time.perf_counter()
    founding = stream(scene.seed, "simulate", "founders")
    population = Population.founded(scene.teachers, scene.students)
    world = _World(population, {m.name: float(founding.normal(0, scene.hidden[0])) for m in population.members})
    world.means.append(_means(world))
    every = max(scene.steps // 10, 1)
    for step in range(1, scene.steps + 1):
        _matches(world, scene, stream(scene.seed, "simulate", "step", str(step)))
        if step % every == 0:
            world.agreement.append(_agreement(world))
        _replace(world, scene, step)
        world.means.append(_means(world))
    agreement = [a for a in world.agreement if not math.isnan(a)]
    return {
        "scene": asdict(scene),
        "rank_correlation": float(np.mean(agreement)) if agreement else math.nan,
        "evenness": float(np.mean(world.evenness)),
        "mean_skill_start": world.means[0],
        "mean_skill_end": world.means[-1],
        "replacements": world.replaced,
        "per_step": load(scene),
        "seconds": time.perf_counter() - start,
    }


def _matches(world: _World, scene: Scene, rng: np.random.Generator) -> None:
    teachers, students = (world.population.of(role) for role in ROLES)
    chosen = pairs([t.rating for t in teachers], [s.rating for s in students], rng, scene.matching)
    for t, s in chosen:
        teacher, student = world.population[teachers[t].name], world.population[students[s].name]
        gap = world.skill[student.name] - world.skill[teacher.name]
        world.evenness.append(_logistic(gap) * (1 - _logistic(gap)))
        rate, valid = _match(gap, scene, rng)
        won = outcome(rate, win_probability(student.rating, teacher.rating), valid, scene.rule)
        ratings = dict(zip((student.name, teacher.name), updated(student.rating, teacher.rating, won), strict=True))
        world.population = world.population.rated(ratings)


def _match(gap: float, scene: Scene, rng: np.random.Generator) -> tuple[float | None, int]:
    """The solve rate over all valid problems of a match, and how many there were."""
    valid = int(rng.binomial(scene.kinds * scene.proposals, scene.valid))
    if not valid:
        return None, 0
    solved = [rng.binomial(scene.answers, _logistic(gap - scene.hidden[1] * float(rng.normal()))) for _ in range(valid)]
    return float(np.sum(solved)) / (valid * scene.answers), valid


def _replace(world: _World, scene: Scene, step: int) -> None:
    planned = plan(world.population, step, scene.replacement, stream(scene.seed, "simulate", "replace", str(step)))
    for r in planned:
        noise = float(stream(r.seed, "simulate", "child").normal(0, scene.hidden[2]))
        world.skill[r.child] = float(np.mean([world.skill[p] for p in r.parents])) + noise
    world.population = replaced(world.population, planned, step)
    world.replaced += len(planned)


def _means(world: _World) -> dict[Role, float]:
    return {role: float(np.mean([world.skill[m.name] for m in world.population.of(role)])) for role in ROLES}


def _agreement(world: _World) -> float:
    found = [_rank_correlation(world.population.of(role), world.skill) for role in ROLES]
    known = [f for f in found if not math.isnan(f)]
    return float(np.mean(known)) if known else math.nan


def _rank_correlation(members: tuple[Member, ...], skill: dict[str, float]) -> float:
    """Spearman's, of the ratings' means with the hidden skills."""
    if len(members) < 2:
        return math.nan
    ranks = [np.argsort(np.argsort(v)) for v in ([m.rating.mu for m in members], [skill[m.name] for m in members])]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0
