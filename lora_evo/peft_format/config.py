"""adapter_config.json: the fields that change the mathematics, and the child's configuration."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from math import sqrt
from pathlib import Path
from typing import Any

from lora_evo.adapter import Layout, LoraFactors
from lora_evo.errors import AdapterError

FILE = "adapter_config.json"
MAX_RANK = 4096
"""A Gram matrix grows with the square of the rank; no published adapter comes near."""

DEFAULTS: dict[str, Any] = {
    "peft_type": "LORA",
    "task_type": None,
    "base_model_name_or_path": None,
    "inference_mode": True,
    "r": 8,
    "lora_alpha": 8,
    "lora_dropout": 0.0,
    "target_modules": None,
    "target_parameters": None,
    "exclude_modules": None,
    "layers_to_transform": None,
    "layers_pattern": None,
    "rank_pattern": {},
    "alpha_pattern": {},
    "use_rslora": False,
    "use_dora": False,
    "use_qalora": False,
    "use_bdlora": None,
    "fan_in_fan_out": False,
    "bias": "none",
    "lora_bias": False,
    "modules_to_save": None,
    "trainable_token_indices": None,
    "ensure_weight_tying": False,
    "init_lora_weights": True,
    "alora_invocation_tokens": None,
    "layer_replication": None,
    "kasa_config": None,
    "velora_config": None,
    "monteclora_config": None,
    "arrow_config": None,
}
"""PEFT's defaults for what the toolkit looks at; fields beyond these travel untouched."""


def read(folder: Path) -> dict[str, Any]:
    """The configuration with defaults for what is absent or null.

    Raises:
        AdapterError: if it is missing, not JSON, not LoRA, or has an impossible rank or alpha.
    """
    path = folder / FILE
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise AdapterError(_missing(folder)) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise AdapterError(f"{path}: not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise AdapterError(f"{path}: holds {type(raw).__name__}, a JSON object is needed")
    if "peft_type" not in raw and "lora_parameters" in raw:
        raise AdapterError(f"{path}: an MLX adapter, not PEFT; convert it to PEFT first")
    config = {**DEFAULTS, **{k: v for k, v in raw.items() if v is not None or k not in DEFAULTS}}
    if config["peft_type"] != "LORA":
        raise AdapterError(f"{path}: peft_type is {config['peft_type']!r}; only LORA adapters can be bred")
    _check(path, config)
    return config


def pattern_value(patterns: Mapping[str, Any], module: str, default: Any) -> Any:
    """The first pattern's value whose regular expression matches the path or its end at a dot, as PEFT looks it up."""
    for pattern, value in patterns.items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return default


def config_rank(config: Mapping[str, Any], module: str) -> int:
    """The rank the configuration gives a module."""
    return pattern_value(config["rank_pattern"], _target(module), config["r"])


def scale_of(config: Mapping[str, Any], module: str, rank: int) -> float:
    """lora_alpha / r, or lora_alpha / sqrt(r) under rsLoRA, with the module's own alpha and rank."""
    alpha = pattern_value(config["alpha_pattern"], _target(module), config["lora_alpha"])
    return float(alpha / (sqrt(rank) if config["use_rslora"] else rank))


def unmatched_patterns(config: Mapping[str, Any], modules: Iterable[str]) -> list[str]:
    """Pattern entries that match no module: PEFT passes over them in silence."""
    targets = [_target(m) for m in modules]
    patterns = [*config["rank_pattern"], *config["alpha_pattern"]]
    return sorted({p for p in patterns if not any(pattern_value({p: True}, t, False) for t in targets)})


def with_exact_patterns(
    config: Mapping[str, Any], modules: Mapping[str, LoraFactors], layouts: Mapping[str, Layout]
) -> dict[str, Any]:
    """The configuration with patterns that say of each module what holds, and cannot overlap.

    JSON sorts keys and the first match wins, so overlapping patterns can change meaning between writing and reading.
    """
    root = sqrt if config["use_rslora"] else float
    ranks, alphas = {}, {}
    for name, factors in modules.items():
        rank = layouts.get(name, Layout()).config_rank(factors.rank)
        pattern = re.escape(_target(name)).replace(r"\-", "-")
        if rank != config["r"]:
            ranks[pattern] = rank
        alpha = factors.scale * root(rank)
        if abs(alpha - config["lora_alpha"]) > 1e-9 * abs(alpha):
            alphas[pattern] = float(f"{alpha:.12g}")
    return {**config, "rank_pattern": ranks, "alpha_pattern": alphas}


def uniform(config: Mapping[str, Any], rank: int, scale: float, modules: Iterable[str] | None) -> dict[str, Any]:
    """The configuration with one rank and one scale, which every runtime serves; `modules` as exact targets if given."""
    alpha = scale * rank
    changed: dict[str, Any] = {
        "r": rank,
        "lora_alpha": int(alpha) if alpha == int(alpha) else alpha,
        "rank_pattern": {},
        "alpha_pattern": {},
        "use_rslora": False,
    }
    if modules is not None:
        exact = sorted({_target(m) for m in modules})
        changed |= {"target_modules": exact, "exclude_modules": None, "layers_to_transform": None, "layers_pattern": None}
    return {**config, **changed}


def dumps(config: Mapping[str, Any]) -> str:
    """The file's text: sorted keys and sorted sets, the same bytes each time."""
    unordered = {"target_modules", "modules_to_save", "exclude_modules", "target_parameters"}
    plain = {k: sorted(v) if k in unordered and isinstance(v, list | set | tuple) else v for k, v in config.items()}
    return json.dumps(plain, indent=2, sort_keys=True) + "\n"


def _target(module: str) -> str:
    """The name PEFT targets for a module: what is wrapped inside a wrapped layer comes with it."""
    return module.split(".base_layer")[0]


def _check(path: Path, config: dict[str, Any]) -> None:
    for name in ("rank_pattern", "alpha_pattern"):
        if not isinstance(config[name], dict):
            raise AdapterError(f"{path}: {name} is {config[name]!r}, an object is needed")
        for pattern in config[name]:
            try:
                re.compile(rf"(.*\.)?({pattern})$")
            except re.error as error:
                raise AdapterError(f"{path}: {name} key {pattern!r} is no regular expression: {error}") from None
    for name in ("target_parameters", "modules_to_save"):
        names = config[name]
        if names is not None and not (isinstance(names, list) and all(isinstance(n, str) for n in names)):
            raise AdapterError(f"{path}: {name} is {names!r}, a list of names is needed")
    blocks = config["use_bdlora"]
    if blocks and not (isinstance(blocks, dict) and isinstance(blocks.get("nblocks"), int) and blocks["nblocks"] > 0):
        raise AdapterError(f"{path}: use_bdlora is {blocks!r}, an object with a number of nblocks is needed")
    for rank in (config["r"], *config["rank_pattern"].values()):
        if not isinstance(rank, int) or isinstance(rank, bool) or not 1 <= rank <= MAX_RANK:
            raise AdapterError(f"{path}: rank {rank!r} is not a whole number from 1 to {MAX_RANK}")
    for alpha in (config["lora_alpha"], *config["alpha_pattern"].values()):
        if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not 0 < abs(alpha) < float("inf"):
            raise AdapterError(f"{path}: lora_alpha {alpha!r} is not a finite number other than 0")


def _missing(folder: Path) -> str:
    named = sorted(p.parent.name for p in folder.glob(f"*/{FILE}"))
    if named:
        return f"{folder}: holds the named adapters {', '.join(named)}; give the folder of one, {folder / named[0]}"
    found = ", ".join(sorted(p.name for p in folder.iterdir())[:6]) or "nothing"
    return f"{folder}: no {FILE} (found: {found}); a PEFT adapter folder has one, kohya and diffusers files must be converted first"
