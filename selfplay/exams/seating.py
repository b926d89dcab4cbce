"""The engine of an exam: one base with all adapters beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import lora_evo
from lora_evo import Adapter
from lora_evo.lineage import digest
from selfplay.engines.torch_engine import TorchEngine
from selfplay.exams.problem import ExamError


def loaded(given: Sequence[str]) -> dict[str, Adapter]:
    """Adapters by name: the folder's, or the path as given where two folders have the same name.

    Raises:
        AdapterError: for an adapter that cannot be read.
        ExamError: for one that is given twice.
    """
    short = [Path(one).name or one for one in given]
    names = [name if short.count(name) == 1 else one for name, one in zip(short, given, strict=True)]
    if len(set(names)) < len(names):
        raise ExamError(f"an adapter is given twice: {next(n for n in names if names.count(n) > 1)}")
    return {name: lora_evo.load(one) for name, one in zip(names, given, strict=True)}


def digests(adapters: Mapping[str, Adapter]) -> dict[str, str]:
    """What tells adapters apart."""
    return {name: digest(adapter) for name, adapter in adapters.items()}


def opened(base: str, adapters: Mapping[str, Adapter], device: str = "cpu", dtype: str = "float32") -> TorchEngine:
    """The embedded engine with all adapters let in, at the largest rank among them.

    Raises:
        LoraEvoError: for a base that cannot be had, and an adapter that does not fit it.
    """
    ranks = [factors.rank for adapter in adapters.values() for factors in adapter.modules.values()]
    rank = max(ranks, default=1)
    how = {"slots": max(1, len(adapters)), "rank": rank, "alpha": rank, "device": device, "dtype": dtype}
    engine = TorchEngine(base, **how)  # type: ignore[arg-type]
    for name, adapter in adapters.items():
        engine.put(name, adapter)
    return engine
