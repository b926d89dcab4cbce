"""Replacement carried out: children are bred from the engine's adapters, in memory, and take their victims' places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import lora_evo
from lora_evo import Adapter
from lora_evo.errors import LoraEvoError
from selfplay.population import Population
from selfplay.replacement import Replacement, plan, replaced
from selfplay.table import Child, Table


def replace_worst(table: Table, population: Population, step: int) -> tuple[Population, list[Child]]:
    """The population after the round of this step, if one is due; the engine and the learner follow."""
    rules = table.config.replacement
    if table.config.population.single_agent:
        return population, []
    planned = plan(population, step, rules, table.rng("replace", step))
    bred = [_bred(table, one) for one in planned]  # all before the first victim goes: a lone member is its own parent
    for child, adapter in bred:
        table.engine.drop(child.done.victim)
        table.learner.forget(child.done.victim)
        table.engine.put(child.done.child, adapter)
        table.learner.forget(child.done.child)
    return replaced(population, [child.done for child, _ in bred], step), [child for child, _ in bred]


def _bred(table: Table, planned: Replacement) -> tuple[Child, Adapter]:
    parents = [table.engine.adapter(name) for name in planned.parents]
    done, why = planned, ""
    try:
        adapter = _child(parents, planned.operator, planned.seed, dict(planned.params))
    except LoraEvoError as error:  # a fresh adapter, whose delta is zero: nothing to mutate
        done, why = replace(planned, operator="copy_parent", params={}, parents=planned.parents[-1:]), str(error)
        adapter = _child(parents[-1:], "copy_parent", planned.seed, {})
    params = dict(adapter.lineage.params) if adapter.lineage else {}
    return Child(done, why, adapter.measures, params), adapter


def _child(parents: Sequence[Adapter], operator: str, seed: int, params: dict[str, Any]) -> Adapter:
    if len(parents) == 1:
        return lora_evo.mutate(parents[0], operator, seed=seed, **params)
    return lora_evo.crossover(parents, operator, seed=seed, **params)
