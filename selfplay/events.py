"""What a step leaves in the journal: plain objects, no wall times, no paths. docs/game.md lists the fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import numpy as np

from selfplay.accounting import Ledger
from selfplay.population import Population
from selfplay.ratings import Rating
from selfplay.referee import literal
from selfplay.table import Answered, Child, Match, Proposed, Rated, State, Table
from selfplay.tasks import Problem
from selfplay.tasks.wording import call
from selfplay.updates import Update

Event = dict[str, Any]


def start(table: Table, population: Population, seeds: Mapping[str, int]) -> Event:
    """The first line: all that the rest depends on."""
    alone = table.config.population.single_agent
    members = [{"name": m.name, "role": "both" if alone else m.role, "seed": seeds[m.name]} for m in population.members]
    base = {"name": table.config.base, "digest": table.engine.base_digest}
    config = table.config.tree()
    return {"event": "start", "step": 0, "version": version("lora-evo"), "config": config, "base": base, "members": members}


def match(step: int, one: Match) -> Event:
    """Who meets whom."""
    return {"event": "match", "step": step, "teacher": one.teacher, "student": one.student, "expected": one.expected}


def proposal(step: int, p: Proposed) -> Event:
    """A proposal and what became of it."""
    return {
        "event": "proposal", "step": step, "id": p.id, "teacher": p.match.teacher, "student": p.match.student, "kind": p.kind,
        "text": p.completion.text, "prompt_tokens": len(p.prompt), "tokens": len(p.completion.tokens),
        "truncated": p.completion.truncated, "programs": p.programs, **_found(p), "new": p.new, "new_cell": p.new_cell,
        "rho": p.rho, "reward": p.reward, "advantage": p.advantage,
    }  # fmt: skip


def answer(step: int, a: Answered) -> Event:
    """An answer and its verdict."""
    assert a.verdict is not None
    return {
        "event": "answer", "step": step, "problem": a.to.id, "student": a.to.match.student, "text": a.completion.text,
        "prompt_tokens": len(a.to.question), "tokens": len(a.completion.tokens), "truncated": a.completion.truncated,
        "programs": a.programs, "status": a.verdict.status.value, "reason": a.verdict.reason, "reward": a.reward,
        "advantage": a.advantage,
    }  # fmt: skip


def rating(step: int, rated: Rated) -> Event:
    """How a match ended, and the ratings after it."""
    return {
        "event": "rating", "step": step, "teacher": rated.match.teacher, "student": rated.match.student,
        "solve_rate": rated.solve_rate, "valid": rated.valid, "expected": rated.match.expected, "result": rated.result,
        "teacher_rating": _pair(rated.teacher), "student_rating": _pair(rated.student),
    }  # fmt: skip


def update(step: int, member: str, done: Update | None, proposed: Sequence[Proposed], answered: Sequence[Answered]) -> Event:
    """What a member learned. A group is dead if nothing in it was better than the rest."""
    advantages: dict[str, list[float]] = {}
    for p in proposed:
        if p.match.teacher == member and p.reward is not None:
            advantages.setdefault(p.group, []).append(p.advantage)
    for a in answered:
        if a.to.match.student == member and a.reward is not None:
            advantages.setdefault(a.to.id, []).append(a.advantage)
    dead = sum(not any(group) for group in advantages.values())
    counts = {"samples": sum(map(len, advantages.values())), "groups": len(advantages), "dead_groups": dead}
    figures = asdict(done or Update(skipped="no samples"))
    tokens = figures.pop("trained_tokens")
    return {"event": "update", "step": step, "member": member, **counts, "tokens": tokens, **figures}


def replacement(step: int, child: Child) -> Event:
    """A death and a birth. `fallback` says why the operator is not the one that was drawn."""
    done, measures = child.done, child.measures
    return {
        "event": "replacement", "step": step, "victim": done.victim, "child": done.child, "role": done.role,
        "parents": list(done.parents), "operator": done.operator, "params": child.params, "seed": done.seed,
        "fallback": child.why, "kept_energy": measures.kept_energy if measures else None,
        "relative_change": measures.relative_change if measures else None,
        "parent_cosines": list(measures.parent_cosines) if measures else [],
    }  # fmt: skip


def summary(state: State, proposed: Sequence[Proposed], answered: Sequence[Answered]) -> Event:
    """The step in figures; costs are of the whole run so far."""
    judged = [p for p in proposed if not p.blameless]
    problems = [p for p in proposed if p.problem]
    right = [a.verdict.ok for a in answered if a.verdict and not a.verdict.blameless]
    features = [p.complexity.features() for p in problems if p.complexity]
    return {
        "event": "step", "step": state.step,
        "valid": len(problems) / len(judged) if judged else None,
        "solve_rate": sum(right) / len(right) if right else None,
        "coverage": state.archive.coverage, "filled": state.archive.filled,
        "buffers": {kind: len(buffer) for kind, buffer in state.buffers.of.items()},
        "complexity": np.mean(features, axis=0).tolist() if features else None,
        "ratings": {m.name: _pair(m.rating) for m in state.population.members},
        **costs(state.ledger),
    }  # fmt: skip


def costs(ledger: Ledger) -> Event:
    """What has been spent, in total and by member, the dead included."""
    return {"cost": asdict(ledger.total()), "cost_by_member": ledger.as_dict()}


def end(step: int) -> Event:
    """The last line of a run that came to its end."""
    return {"event": "end", "step": step}


def _found(p: Proposed) -> Event:
    if isinstance(p.found, Problem):
        problem = p.found
        complexity = [int(x) for x in p.complexity.features()] if p.complexity else None
        inputs, outputs = [call(x) for x in problem.inputs], [literal(y) for y in problem.outputs]
        return {
            "status": "ok", "reason": "", "program": problem.program, "inputs": inputs, "outputs": outputs,
            "message": problem.message, "complexity": complexity,
        }  # fmt: skip
    assert p.found is not None
    unknown = dict.fromkeys(("program", "inputs", "outputs", "message", "complexity"))
    return {"status": p.found.status.value, "reason": p.found.reason, **unknown}


def _pair(rating: Rating) -> list[float]:
    return [rating.mu, rating.sigma]
