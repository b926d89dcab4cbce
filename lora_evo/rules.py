"""Which adapters may be bred with each other, and by which operator."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

from lora_evo.adapter import Adapter
from lora_evo.errors import AdapterError
from lora_evo.operators import Operator

MUST_AGREE = (
    "use_dora",
    "use_qalora",
    "use_bdlora",
    "fan_in_fan_out",
    "kasa_config",
    "velora_config",
    "monteclora_config",
    "arrow_config",
    "alora_invocation_tokens",
    "layer_replication",
    "ensure_weight_tying",
    "target_parameters",
)
"""Fields that change what the tensors mean: parents that differ in one are different kinds of adapter."""

_REWRITES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")


def check_parents(
    parents: Sequence[Adapter], operator: Operator, *, allow_base_mismatch: bool = False, strict: bool = False
) -> None:
    """Refuse what cannot be bred.

    Raises:
        AdapterError: for different bases, kinds or shapes, no common module, or a variant the operator has no answer for.
    """
    operator.check_parents(len(parents))
    first = parents[0]
    for a, b in combinations(parents, 2):
        if not allow_base_mismatch:
            _same_base(a, b)
        _same_kind(a, b)
    for other in parents[1:]:
        _same_modules(first, other, strict)
    for parent in parents:
        _variant(parent, operator)


def base_of(adapter: Adapter) -> str | None:
    """The base model the configuration names."""
    return adapter.config.get("base_model_name_or_path") or None


def _same_base(a: Adapter, b: Adapter) -> None:
    if base_of(a) and base_of(b) and base_of(a) != base_of(b):
        raise AdapterError(
            f"the parents have different bases: {a.name} {base_of(a)!r}, {b.name} {base_of(b)!r}; "
            "--allow-base-mismatch (allow_base_mismatch=True) breeds them all the same"
        )


def _same_kind(a: Adapter, b: Adapter) -> None:
    for field in MUST_AGREE:
        values = [_plain(x.config.get(field), unordered=field == "target_parameters") for x in (a, b)]
        if values[0] != values[1]:
            raise AdapterError(f"{a.name} and {b.name} differ in {field}: {values[0]} and {values[1]}")
    rows = [_plain(x.config.get("trainable_token_indices")) for x in (a, b)]
    if all(rows) and rows[0] != rows[1]:
        raise AdapterError(f"{a.name} and {b.name} differ in trainable_token_indices: {rows[0]} and {rows[1]}")
    inits = [_base_rewrite(x) for x in (a, b)]
    if inits[0] != inits[1]:
        raise AdapterError(
            f"{a.name} has init_lora_weights {a.config.get('init_lora_weights')!r}, {b.name} "
            f"{b.config.get('init_lora_weights')!r}: the first kind rewrites the base, so they do not share one. {_CONVERT}"
        )


def _same_modules(a: Adapter, b: Adapter, strict: bool) -> None:
    common = a.modules.keys() & b.modules.keys()
    if not common:
        raise AdapterError(
            f"{a.name} and {b.name} have no module in common: {next(iter(a.modules))} ... and {next(iter(b.modules))} ..."
        )
    alone = sorted(a.modules.keys() ^ b.modules.keys())
    if strict and alone:
        raise AdapterError(f"--strict: {len(alone)} modules are not in both {a.name} and {b.name}: {alone[0]} ...")
    for name in sorted(common):
        if a.layout(name) != b.layout(name):
            raise AdapterError(f"module {name}: {a.name} stores it as {a.layout(name)}, {b.name} as {b.layout(name)}")
        shapes = [(x.modules[name].A.shape[:-2], x.modules[name].widths) for x in (a, b)]
        if shapes[0] != shapes[1]:
            raise AdapterError(
                f"module {name}: shapes differ, (out, in) is {shapes[0][1]} in {a.name} and {shapes[1][1]} in {b.name}"
            )


_CONVERT = (
    "Convert it to a plain LoRA first (PEFT: save_pretrained(..., path_initial_model_for_weight_conversion=INIT)), "
    "or use copy_parent or layer_choice among adapters of one kind"
)


def _variant(adapter: Adapter, operator: Operator) -> None:
    if operator.exact:
        return
    if init := _base_rewrite(adapter):
        raise AdapterError(f"{adapter.name}: init_lora_weights={init!r} rewrites the base, so B @ A is not its delta. {_CONVERT}")
    only = "only copy_parent and layer_choice breed it"
    if adapter.config.get("kasa_config"):
        raise AdapterError(f"{adapter.name}: KaSA puts a diagonal between B and A and rewrites the base; {only}")
    if adapter.config.get("use_qalora"):
        raise AdapterError(f"{adapter.name}: QA-LoRA pools its inputs; {only}")
    if adapter.config.get("use_dora") and operator.kind != "mutation":
        raise AdapterError(
            f"{adapter.name}: DoRA normalises base plus delta, so {operator.name} of deltas is not {operator.name} of the "
            "models; layer_choice, copy_parent and all mutations (magnitudes kept) breed it"
        )


def _base_rewrite(adapter: Adapter) -> str | None:
    init = adapter.config.get("init_lora_weights")
    return init if isinstance(init, str) and init.lower().startswith(_REWRITES_BASE) else None


def _plain(value: Any, unordered: bool = False) -> Any:
    """None for everything that means off."""
    if unordered and isinstance(value, list):
        value = sorted(value, key=str)
    return value or None
