"""Bringing members from the embedded engine, where they live and learn, to the sampler that writes their completions."""

from __future__ import annotations

from selfplay.engines.torch_engine import TorchEngine
from selfplay.population import Population
from selfplay.table import Table


def serve(table: Table, population: Population) -> None:
    """A sampler beside the engine gets every member as it is now, and forgets those that are no more.

    A sampler tells by the weights whether it has a member already: nobody has to say what has changed.
    """
    sampler = table.sampler
    if isinstance(sampler, TorchEngine):
        return
    sampler.wake()
    for gone in set(sampler.members) - {m.name for m in population.members}:
        sampler.drop(gone)
    for member in population.members:
        sampler.put(member.name, table.engine.adapter(member.name))


def rest(table: Table) -> None:
    """A sampler beside the engine gives back the memory of a GPU that the learner needs too."""
    if not isinstance(table.sampler, TorchEngine):
        table.sampler.sleep()
