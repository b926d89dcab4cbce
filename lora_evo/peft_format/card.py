"""The model card of an adapter, in the hub's conventions."""

from __future__ import annotations

import json
from typing import Any

from lora_evo.adapter import Adapter
from lora_evo.lineage import Lineage


def card(adapter: Adapter) -> str:
    """README.md: tags and base model in the front matter, then how the adapter was bred."""
    base = adapter.config.get("base_model_name_or_path")
    on_hub = isinstance(base, str) and base.count("/") == 1 and not base.startswith((".", "/", "~"))
    lines = ["---"]
    if on_hub:
        lines.append(f"base_model: {base}")
    lines += ["library_name: peft", "tags:", "- lora", "- lora-evo"]
    if on_hub:
        lines.append(f"- base_model:adapter:{base}")
    if adapter.lineage and len(adapter.lineage.parents) > 1:
        lines.append("- merge")
    lines += ["---", ""]
    return "\n".join(lines + _body(adapter, base)) + "\n"


def _body(adapter: Adapter, base: Any) -> list[str]:
    if adapter.lineage is None:
        return ["# LoRA adapter", "", f"A LoRA adapter for `{base}`."]
    lineage = adapter.lineage
    lines = [
        f"# LoRA adapter bred with {lineage.operator}",
        "",
        f"A LoRA adapter for `{base}`, made from other adapters in weight space by lora-evo; no training.",
        "",
        "| parent | SHA-256 of its weights | cosine to the child |",
        "|---|---|---|",
        *_parents(lineage),
        "",
        f"Operator `{lineage.operator}`, seed {lineage.seed}, parameters `{json.dumps(dict(lineage.params), sort_keys=True)}`.",
    ]
    if lineage.overrides or lineage.modules:
        chosen = {"modules": list(lineage.modules), "overrides": dict(lineage.overrides)}
        lines += ["", f"Restricted: `{json.dumps(chosen, sort_keys=True)}`."]
    if m := lineage.measures:
        change = "" if m.relative_change is None else f"Relative change to the first parent {m.relative_change:.4g}, "
        lines += ["", f"{change}kept energy {m.kept_energy:.4g}, norm {m.norm:.4g}."]
    return [*lines, "", "The full record is in the `lora_evo` entry of the safetensors header; `lora-evo lineage` prints it."]


def _parents(lineage: Lineage) -> list[str]:
    cosines = lineage.measures.parent_cosines if lineage.measures else (None,) * len(lineage.parents)
    return [
        f"| {p.name} | `{p.sha256}` | {'-' if c is None else f'{c:.4g}'} |" for p, c in zip(lineage.parents, cosines, strict=True)
    ]
