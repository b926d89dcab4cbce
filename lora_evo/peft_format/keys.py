"""The grammar of keys in adapter_model.safetensors.

PEFT writes `base_model.model.<module path>.<leaf>` and cuts the adapter's name out; other tools leave the name in, leave
the prefix out, or keep torch.compile's `_orig_mod.`. All of these are read; one form is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lora_evo.adapter import ExtraKind, LayoutKind
from lora_evo.errors import AdapterError

PREFIX = "base_model.model."
Role = Literal["A", "B", "embedding_A", "embedding_B"] | ExtraKind

_LEAVES: dict[str, Role] = {
    "lora_A": "A",
    "lora_B": "B",
    "lora_embedding_A": "embedding_A",
    "lora_embedding_B": "embedding_B",
    "lora_magnitude_vector": "magnitude",
    "lora_diag": "other",
    "lora_velora_embed": "other",
    "lora_monteclora_sampler": "other",
}
_FOREIGN = {
    "lora_down": "kohya (sd-scripts)",
    "lora_up": "kohya (sd-scripts)",
    "lora_a": "MLX",
    "lora_b": "MLX",
    "lora_E": "AdaLoRA",
    "hada_w1_a": "LoHa",
    "lokr_w1": "LoKr",
    "oft_r": "OFT",
}


@dataclass(frozen=True)
class Key:
    """A parsed key: `module` is the path in the base model, `stored` the key as PEFT writes it."""

    module: str
    role: Role
    stored: str


def parse(raw: str) -> Key:
    """What a key of an adapter file stands for.

    Raises:
        AdapterError: for the keys of other formats.
    """
    key = _prefixed(raw.replace("_orig_mod.", ""))
    parts = key.removeprefix(PREFIX).split(".")
    for i, part in enumerate(parts):
        if part in _FOREIGN:
            raise AdapterError(f"key {raw!r} is of a {_FOREIGN[part]} file, not of a PEFT LoRA; convert it first")
        if part in _LEAVES and i > 0:
            return _leaf(".".join(parts[:i]), part, parts[i + 1 :])
    if "trainable_tokens_delta" in parts[2:]:
        end = parts.index("trainable_tokens_delta") + 1
        return Key(".".join(parts[: end - 2]), "token_rows", PREFIX + ".".join(parts[:end]))
    if "modules_to_save" in parts[1:-2]:  # the wrapper and the adapter's name, which PEFT cuts out
        at = parts.index("modules_to_save")
        parts = parts[:at] + parts[at + 2 :]
        key = PREFIX + ".".join(parts)
    owner = ".".join(p for p in parts[:-1] if p != "base_layer")
    return Key(owner, "bias" if parts[-1] == "bias" else "full_weight", key)


def factor_keys(module: str, kind: LayoutKind) -> tuple[str, str]:
    """The keys of a module's A and B."""
    leaf = "lora_embedding_{}" if kind == "embedding" else "lora_{}.weight"
    return PREFIX + module + "." + leaf.format("A"), PREFIX + module + "." + leaf.format("B")


def _leaf(module: str, leaf: str, rest: list[str]) -> Key:
    role = _LEAVES[leaf]
    stem = f"{PREFIX}{module}.{leaf}"
    if role == "other":
        return Key(module, role, ".".join([stem, *rest]))
    end = rest[-1] if rest and rest[-1] in ("weight", "bias") else ""
    if role == "B" and end == "bias":
        return Key(module, "lora_bias", f"{stem}.bias")
    return Key(module, role, f"{stem}.weight" if leaf in ("lora_A", "lora_B") else stem)


def _prefixed(key: str) -> str:
    if key.startswith(PREFIX):
        return key
    if key.startswith("model.model."):
        return f"base_model.{key}"
    if key.startswith("model."):
        return PREFIX + key
    if any(f".{leaf}." in f".{key}." for leaf in _FOREIGN):
        return key
    if key.startswith("lora_"):
        raise AdapterError(f"key {key!r} is of a kohya (sd-scripts) file, not of a PEFT LoRA; convert it first")
    raise AdapterError(f"key {key!r} starts neither with {PREFIX!r} nor with 'model.': not a PEFT LoRA file")
