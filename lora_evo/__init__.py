"""Breed LoRA adapters in weight space.

    import lora_evo as le
    child = le.crossover([le.load("a"), le.load("b")], "dare", seed=0)
    child.measures
    le.save(child, "c")

Names are imported when they are first used, so that importing the package does not load torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lora_evo import crossovers, lowrank, measure, mutations
    from lora_evo.adapter import Adapter, LoraFactors
    from lora_evo.api import crossover, mutate
    from lora_evo.errors import AdapterError, LoraEvoError, OperatorError
    from lora_evo.lowrank import Delta
    from lora_evo.measure import compare, inspect
    from lora_evo.operators import Spec, all_operators, operator
    from lora_evo.peft_format import load, save

_HOMES = {
    "Adapter": "adapter",
    "LoraFactors": "adapter",
    "crossover": "api",
    "mutate": "api",
    "AdapterError": "errors",
    "LoraEvoError": "errors",
    "OperatorError": "errors",
    "Delta": "lowrank",
    "compare": "measure",
    "inspect": "measure",
    "Spec": "operators",
    "all_operators": "operators",
    "operator": "operators",
    "load": "peft_format",
    "save": "peft_format",
}
_MODULES = ("crossovers", "lowrank", "measure", "mutations", "operators", "peft_format")

__all__ = [
    "Adapter",
    "AdapterError",
    "Delta",
    "LoraEvoError",
    "LoraFactors",
    "OperatorError",
    "Spec",
    "all_operators",
    "compare",
    "crossover",
    "crossovers",
    "inspect",
    "load",
    "lowrank",
    "measure",
    "mutate",
    "mutations",
    "operator",
    "save",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"lora_evo.{_HOMES[name]}"), name)
    if name in _MODULES:
        return import_module(f"lora_evo.{name}")
    raise AttributeError(f"module 'lora_evo' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
