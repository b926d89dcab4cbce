"""Breed every adapter folder in a directory and let PEFT judge: `python -m benchmarks.variants DIR [--json]`.

For each folder: a mutant, and a cross with itself by each crossover. A child is right when PEFT loads it without a
complaint about keys and computes from it the deltas that the toolkit says it has. Refusals are quoted.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

import lora_evo as le
from lora_evo.adapter import Extra, Layout, LoraFactors

BREEDERS = ("svd_perturb", "mask_components", "gaussian", "layer_noise", "dare", "layer_choice", "svd_subspace", "extrapolate")


def main() -> None:
    """Print the table of variants, or the same as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = {}
    for folder in sorted(p for p in options.folder.iterdir() if p.is_dir() and not p.name.startswith("_")):
        rows[folder.name] = judged(folder)
        if not options.json:
            print(f"{folder.name:32} {rows[folder.name]['verdict']:8} {rows[folder.name]['detail']}"[:200], flush=True)
    if options.json:
        print(json.dumps({"variants": rows}))
    counts = {v: sum(r["verdict"] == v for r in rows.values()) for v in ("right", "loaded", "refused", "wrong")}
    print(f"{len(rows)} folders: {counts}", file=sys.stderr)
    sys.exit(1 if counts["wrong"] else 0)


def judged(folder: Path) -> dict[str, str]:
    """right: PEFT agrees with every child; loaded: bred, but no base on disk to ask PEFT; refused; wrong."""
    try:
        parent = le.load(folder)
    except le.AdapterError as error:
        return {"verdict": "refused", "detail": str(error).replace(str(folder), folder.name)}
    worst, refusals, asked = 0.0, [], 0
    for name in BREEDERS:
        operator = le.all_operators()[name]
        try:
            child = operator([parent] * operator.min_parents, seed=0)
        except le.LoraEvoError as error:
            refusals.append(f"{name}: {str(error).replace(str(folder), folder.name)}")
            continue
        with tempfile.TemporaryDirectory() as scratch:
            base = base_folder(child, folder.parent)
            error = peft_error(le.load(le.save(child, Path(scratch) / "child")), Path(scratch) / "child", base)
        if error is None:
            continue
        asked, worst = asked + 1, max(worst, error)
    if len(refusals) == len(BREEDERS):
        return {"verdict": "refused", "detail": refusals[0]}
    note = f"; refuses {', '.join(r.split(':')[0] for r in refusals)}" if refusals else ""
    if not asked:
        return {"verdict": "loaded", "detail": f"bred; PEFT was not asked: its base is not on disk{note}"}
    verdict = "right" if worst < tolerance(parent) else "wrong"
    return {"verdict": verdict, "detail": f"{asked} children, PEFT's deltas within {worst:.1e}{note}"}


def tolerance(adapter: le.Adapter) -> float:
    """PEFT multiplies in the storage dtype."""
    widest = max(f.A.dtype.itemsize for f in adapter.modules.values())
    return {1: 0.1, 2: 0.02}.get(widest, 1e-5)


def base_folder(child: le.Adapter, among: Path) -> Path:
    """The base as the configuration names it, or by its last name in the directory's `_base`."""
    named = Path(str(child.config["base_model_name_or_path"]))
    return named if named.is_dir() else among / "_base" / named.name


def peft_error(child: le.Adapter, folder: Path, base: Path) -> float | None:
    """The largest relative error between PEFT's deltas and the toolkit's; inf if a module is not found in PEFT's."""
    model = peft_model(base, folder, child.extras)
    if model is None:
        return None
    theirs = dict(peft_deltas(model))
    worst = 0.0
    for name, factors in child.modules.items():
        if name not in theirs:
            return float("inf")
        ours, peft = dense(factors, child.layout(name)), theirs[name].double()
        if child.config["fan_in_fan_out"] or (peft.ndim == 3 and ours.shape != peft.shape):
            peft = peft.mT  # the base stores this weight as [in, out]
        worst = max(worst, float((ours.reshape(-1) - peft.reshape(-1)).norm() / ours.norm().clamp_min(1e-30)))
    return worst


def peft_model(base: Path, folder: Path, extras: Mapping[str, Extra]) -> torch.nn.Module | None:
    """The child on its base, as PEFT loads it; None without a base on disk."""
    import transformers
    from peft import PeftModel

    if not (base / "config.json").exists():
        return None
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    kind = transformers.AutoConfig.from_pretrained(base).architectures[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = getattr(transformers, kind).from_pretrained(base)
        if rows := next((len(e.tensor) for k, e in extras.items() if k.endswith("embed_tokens.weight")), 0):
            model.resize_token_embeddings(rows)
        return PeftModel.from_pretrained(model, str(folder))


def peft_deltas(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """What PEFT would add to each base weight, by module path."""
    for path, layer in model.named_modules():
        if not hasattr(layer, "get_delta_weight"):
            continue
        name = path.removeprefix("base_model.model.")
        if getattr(layer, "lora_variant", {}).get("default").__class__.__name__ == "BdLoraLinearVariant":
            yield name, layer.lora_variant["default"]._get_bdlora_delta_weight(layer, "default").detach()
        elif "default" in (*layer.lora_A, *layer.lora_embedding_A):
            yield name, layer.get_delta_weight("default").detach()


def dense(factors: LoraFactors, layout: Layout) -> torch.Tensor:
    """The delta in float64, in the shape of the base weight as PEFT sees it (up to a reshape)."""
    blocks = factors.scale * factors.B.double() @ factors.A.double()
    if layout.kind == "embedding":
        return blocks.mT
    if layout.kind == "blocks_in":
        return torch.cat(list(blocks), -1)
    return blocks


if __name__ == "__main__":
    main()
