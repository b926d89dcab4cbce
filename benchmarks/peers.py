"""Against PEFT and populora on a 7B adapter, in memory: `python -m benchmarks.peers [--layers 28] [--no-svd] [--json]`.

Needs peft, and populora 0.4.5 (`pip install populora==0.4.5`; without it those columns stay empty). Seconds are medians of
alternating runs without files. PEFT needs the base model in memory, so its rows are one layer, multiplied by the number of
layers; its dense `svd` is run once on one module of each distinct shape, k, q and gate, and multiplied by their count.

Errors are of layer 0's k_proj against a dense float64 reference, relative Frobenius norm: to the exact delta, and to its
best rank-32 approximation, which is what a child of rank 32 can be at best.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor, nn

import lora_evo as le
from benchmarks.qwen import LAYERS, SHAPES, write_adapter

ETA = 1.25
PROBE = "model.layers.0.self_attn.k_proj"
Matrix = tuple[Tensor, Tensor, float]


def main() -> None:
    """Print two tables, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-svd", action="store_true", help="leave out PEFT's dense svd, which takes minutes")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folders = [write_adapter(Path(scratch) / f"parent{i}", i, layers=options.layers) for i in (1, 2)]
        parents = [le.load(folder) for folder in folders]
        shared = against_populora(parents, options.repeats)
        peft = against_peft(parents, folders, options)
    if options.json:
        print(json.dumps({"populora": shared, "peft": peft}))
        return
    print(f"populora, whole adapters of {options.layers} layers in memory")
    show(shared, ("ours", "theirs", "ratio", "our_error", "their_error", "our_error_to_best", "their_error_to_best"))
    print(f"\nPEFT, one layer times {options.layers}")
    show(peft, ("ours", "theirs", "ratio", "our_error", "their_error", "our_error_to_best", "their_error_to_best"))


def show(rows: dict[str, dict[str, float]], columns: tuple[str, ...]) -> None:
    """A table with a dash where there is no figure."""
    print(f"{'operator':18}" + "".join(f"{c:>20}" for c in columns))
    for name, row in rows.items():
        print(f"{name:18}" + "".join(f"{row[c]:20.4g}" if c in row else f"{'-':>20}" for c in columns))


def timed(jobs: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each job, taken in turn after one warm-up."""
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(repeats + 1):
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


# ---------------------------------------------------------------- populora


def against_populora(parents: list[le.Adapter], repeats: int) -> dict[str, dict[str, float]]:
    """Every operator that both have."""
    try:
        from populora import operators as theirs
    except ImportError:
        theirs = None
    population = stacked(parents) if theirs else None
    pair, child, one = torch.tensor([[0, 1]]), torch.tensor([2]), torch.tensor([2])
    peer: dict[str, Callable[[], object]] = {}
    if theirs:
        peer = {
            "svd_perturb": lambda: theirs.mutation_svd_structured(population, one),
            "mask_components": lambda: theirs.mutation_component_masking(population, one),
            "gaussian": lambda: theirs.mutation_full_gaussian(population, one),
            "layer_noise": lambda: theirs.mutation_layer_selective_gaussian(population, one),
            "dare": lambda: theirs.crossover_dare(population, pair, child),
            "layer_choice": lambda: theirs.crossover_layer_wise(population, pair, child),
            "svd_subspace": lambda: theirs.crossover_svd_subspace(population, pair, child),
            "extrapolate": lambda: theirs.crossover_extrapolative(population, pair, child, eta_min=ETA, eta_max=ETA),
            "linear": lambda: theirs.crossover_average(population, pair, child),
            "copy_parent": lambda: theirs.crossover_clone(population, pair[:, :1], child),
        }
    ours = {f"our {name}": lambda name=name: bred(name, parents) for name in le.all_operators()}
    seconds = timed(ours | peer, repeats)
    rows = {}
    for name in le.all_operators():
        row = {"ours": seconds[f"our {name}"]}
        if name in peer:
            row |= {"theirs": seconds[name], "ratio": seconds[name] / row["ours"]}
        if name in ("linear", "extrapolate"):
            weights = (0.5, 0.5) if name == "linear" else (1 - ETA, ETA)
            row |= prefixed("our", errors(bred(name, parents).modules[PROBE], parents, weights))
            if peer:
                peer[name]()
                row |= prefixed("their", errors(individual(population, 2), parents, weights))
        rows[name] = row
    return rows


def bred(name: str, parents: list[le.Adapter]) -> le.Adapter:
    """A child in memory."""
    operator = le.all_operators()[name]
    group = parents[:1] if operator.kind == "mutation" or name == "copy_parent" else parents
    return operator(group, seed=0, **({"eta": ETA} if name == "extrapolate" else {}))


def stacked(parents: list[le.Adapter]) -> SimpleNamespace:
    """What populora's operators act on: [individuals, in, r] and [individuals, out, r], the third to be overwritten."""
    down, up = {}, {}
    for name in parents[0].modules:
        pair = [p.modules[name] for p in parents]
        key = name.replace(".", "_")
        down[key] = nn.Parameter(torch.stack([f.A.mT.contiguous() for f in (*pair, pair[0])]), requires_grad=False)
        up[key] = nn.Parameter(torch.stack([f.B for f in (*pair, pair[0])]), requires_grad=False)
    return SimpleNamespace(weight_down=down, weight_up=up, device=torch.device("cpu"))


def individual(population: SimpleNamespace, i: int) -> Matrix:
    """One individual's probe module as (A, B, scale); populora knows no scale, so the parents' is lent to it."""
    key = PROBE.replace(".", "_")
    return population.weight_down[key][i].mT, population.weight_up[key][i], 64 / 32


# ---------------------------------------------------------------- PEFT


def against_peft(parents: list[le.Adapter], folders: list[Path], options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """`linear`, `dare_linear` and the default `svd` of add_weighted_adapter, with weights 0.5 and 0.5."""
    whole = {name: lambda name=name: bred(name, parents) for name in ("linear", "dare")}
    ours = timed(whole, options.repeats)
    rows = {}
    for kind, name in (("linear", "linear"), ("dare_linear", "dare")):
        model = one_layer(folders, list(SHAPES))
        counter = iter(range(1000))
        job = {"": lambda kind=kind, model=model, counter=counter: combine(model, kind, f"child{next(counter)}")}
        theirs = timed(job, options.repeats)[""] * options.layers
        rows[kind] = {"ours": ours[name], "theirs": theirs, "ratio": theirs / ours[name]}
        if kind == "linear":
            rows[kind] |= prefixed("our", errors(bred("linear", parents).modules[PROBE], parents, (0.5, 0.5)))
            rows[kind] |= prefixed("their", errors(combined(model, "child0"), parents, (0.5, 0.5)))
    if not options.no_svd:
        seconds, delta = dense_svd(folders)
        rows["svd"] = {"ours": ours["linear"], "theirs": seconds * options.layers}
        rows["svd"]["ratio"] = rows["svd"]["theirs"] / ours["linear"]
        rows["svd"] |= prefixed("our", errors(bred("linear", parents).modules[PROBE], parents, (0.5, 0.5)))
        rows["svd"] |= prefixed("their", errors(delta, parents, (0.5, 0.5)))
    return rows


def dense_svd(folders: list[Path]) -> tuple[float, Matrix]:
    """Seconds of one layer by PEFT's default svd, from one module of each distinct shape; and the child's k_proj."""
    total, probe = 0.0, None
    for name, count in (("self_attn.k_proj", 2), ("self_attn.q_proj", 2), ("mlp.gate_proj", 3)):
        model = one_layer(folders, [name])
        start = time.perf_counter()
        combine(model, "svd", "child")
        total += count * (time.perf_counter() - start)
        probe = probe or combined(model, "child")
    assert probe is not None
    return total, probe


def one_layer(folders: list[Path], names: list[str]) -> nn.Module:
    """Layer 0 as a bare module in bfloat16, with both parents loaded by PEFT."""
    from peft import LoraConfig, get_peft_model
    from safetensors.torch import load_file

    layer = nn.ModuleDict(
        {n.split(".")[1]: nn.Linear(w, o, bias=False, dtype=torch.bfloat16) for n, (o, w) in SHAPES.items() if n in names}
    )
    config = LoraConfig(r=32, lora_alpha=64, target_modules=list(layer))
    model = get_peft_model(layer, config, adapter_name="a", autocast_adapter_dtype=False)
    model.add_adapter("b", config)
    for adapter, folder in zip(("a", "b"), folders, strict=True):
        tensors = load_file(folder / "adapter_model.safetensors")
        for n in names:
            module = model.base_model.model[n.split(".")[1]]
            for letter in ("A", "B"):
                stored = tensors[f"base_model.model.model.layers.0.{n}.lora_{letter}.weight"]
                getattr(module, f"lora_{letter}")[adapter].weight.data = stored.clone()
    return model


def combine(model: nn.Module, kind: str, child: str) -> None:
    """PEFT's merger."""
    extra = {"density": 0.3} if "dare" in kind else {}
    model.add_weighted_adapter(["a", "b"], [0.5, 0.5], child, combination_type=kind, **extra)


def combined(model: nn.Module, child: str) -> Matrix:
    """The child's k_proj."""
    module = model.base_model.model["k_proj"]
    return module.lora_A[child].weight.data, module.lora_B[child].weight.data, module.scaling[child]


# ---------------------------------------------------------------- errors


def errors(child: Matrix, parents: list[le.Adapter], weights: tuple[float, float]) -> dict[str, float]:
    """Relative distance to the exact sum, and to its best rank-32 approximation."""
    exact = sum(w * dense(p.modules[PROBE]) for w, p in zip(weights, parents, strict=True))
    U, s, V = torch.linalg.svd(exact, full_matrices=False)
    best = (U[:, :32] * s[:32]) @ V[:32]
    found = dense(child)
    return {"error": float((found - exact).norm() / exact.norm()), "error_to_best": float((found - best).norm() / best.norm())}


def dense(factors: Matrix) -> Tensor:
    """The delta in float64."""
    A, B, scale = factors
    return scale * B.double() @ A.double()


def prefixed(word: str, values: dict[str, float]) -> dict[str, float]:
    """The same under longer names."""
    return {f"{word}_{name}": value for name, value in values.items()}


if __name__ == "__main__":
    main()
