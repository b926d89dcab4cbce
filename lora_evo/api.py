"""The two verbs: mutate one parent, cross several. Both are `breeding.breed` with a check of the operator's kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lora_evo.adapter import Adapter
from lora_evo.breeding import breed
from lora_evo.errors import OperatorError
from lora_evo.operators import Operator, get


def mutate(parent: Adapter, operator: str | Operator, *, seed: int, **call: Any) -> Adapter:
    """A child of one parent; see `breeding.breed` for the arguments."""
    return breed([parent], _of_kind(operator, "mutation"), seed=seed, **call)


def crossover(parents: Sequence[Adapter], operator: str | Operator, *, seed: int, **call: Any) -> Adapter:
    """A child of several parents; see `breeding.breed` for the arguments."""
    return breed(parents, _of_kind(operator, "crossover"), seed=seed, **call)


def _of_kind(operator: str | Operator, kind: str) -> Operator:
    chosen = get(operator) if isinstance(operator, str) else operator
    if chosen.kind not in (kind, "control"):
        verb = "mutate" if chosen.kind == "mutation" else "crossover"
        raise OperatorError(f"{chosen.name} is a {chosen.kind}; use {verb}")
    return chosen
