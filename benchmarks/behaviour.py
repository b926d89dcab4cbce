"""What each operator does to a child, over its settings: `python -m benchmarks.behaviour [--json]`.

Two random parents with a falling spectrum (s_i = 1 / i), eight modules of 512 x 1024, rank 32, float32; mean over seeds.
The figures on the operator pages of the documentation are these.
"""

from __future__ import annotations

import argparse
import json
import statistics
from typing import Any

import numpy as np
import torch

import lora_evo as le
from lora_evo.adapter import LoraFactors
from lora_evo.peft_format.config import DEFAULTS
from lora_evo.seeding import stream

OUT, IN, RANK, MODULES = 512, 1024, 32, 8
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "svd_perturb": [{"strength": s} for s in (0.05, 0.1, 0.3)],
    "layer_noise": [{"fraction": f} for f in (0.33, 1.0)],
    "mask_components": [{"drop": d} for d in (0.1, 0.3, 0.5)] + [{"drop": 0.3, "rescale": True}],
    "gaussian": [{"strength": s} for s in (0.05, 0.15, 0.3)],
    "dare": [{"what": w, "drop": d} for w in ("components", "factors", "delta") for d in (0.3, 0.5, 0.7)],
    "layer_choice": [{}],
    "svd_subspace": [{"k": k} for k in (4, 16, 28)] + [{}],
    "extrapolate": [{"eta": e} for e in (0.5, 1.0, 1.25, 1.5)],
    "linear": [{}, {"weights": (0.7, 0.3)}, {"space": "factor"}],
    "copy_parent": [{}],
}


def main() -> None:
    """Print the table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    parents = [random_adapter(i) for i in (1, 2)]
    rows = [
        {"operator": name, "params": params, **behaviour(name, params, parents, options.seeds)}
        for name, settings in SETTINGS.items()
        for params in settings
    ]
    if options.json:
        print(json.dumps({"behaviour": rows}))
        return
    print(f"{'operator':16} {'parameters':40} {'change':>7} {'cosines':>14} {'kept':>6} {'norm':>6}")
    for row in rows:
        cosines = " ".join(f"{c:6.3f}" for c in row["cosines"])
        change, kept, norm = row["change"], row["kept"], row["norm"]
        print(f"{row['operator']:16} {row['params']!s:40} {change:7.3f} {cosines:>14} {kept:6.3f} {norm:6.3f}")


def behaviour(name: str, params: dict[str, Any], parents: list[le.Adapter], seeds: int) -> dict[str, Any]:
    """Mean measures of the children of some seeds; norm is relative to the first parent's."""
    operator = le.all_operators()[name]
    group = parents[:1] if operator.kind == "mutation" or name == "copy_parent" else parents
    measures = [m for seed in range(seeds) if (m := operator(group, seed=seed, **params).measures)]
    base = operator.formula and le.all_operators()["copy_parent"](parents[:1], seed=0).measures
    assert base is not None
    return {
        "change": statistics.mean(m.relative_change or 0.0 for m in measures),
        "cosines": np.mean([m.parent_cosines for m in measures], 0).tolist(),
        "kept": statistics.mean(m.kept_energy for m in measures),
        "norm": statistics.mean(m.norm for m in measures) / base.norm,
    }


def random_adapter(seed: int) -> le.Adapter:
    """Orthogonal directions, singular values 1 / i."""
    rng = stream(seed, "behaviour")
    modules = {}
    for i in range(MODULES):
        U, V = (np.linalg.qr(rng.standard_normal((n, RANK)))[0] for n in (OUT, IN))
        root = np.sqrt(1.0 / np.arange(1, RANK + 1))
        B, A = torch.from_numpy(U * root).float(), torch.from_numpy((V * root).T.copy()).float()
        modules[f"model.layers.{i}.proj"] = LoraFactors(A, B, 1.0)
    config = {**DEFAULTS, "r": RANK, "lora_alpha": RANK, "target_modules": ["proj"]}
    return le.Adapter(modules, config, name=f"random{seed}")


if __name__ == "__main__":
    main()
