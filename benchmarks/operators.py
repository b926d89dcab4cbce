"""Time and memory of every operator on a 7B adapter: `python -m benchmarks.operators [--layers 28] [--repeats 5] [--json]`.

Each operator is timed whole: load the parents from their folders, breed, write the child's folder. Beside it, in the same
run and alternating: the I/O floor (read every byte of the same parents, write one child's bytes with safetensors) and the
roofline: the floor plus the unavoidable passes over the factors, each timed by plain torch with all its threads on the
parents' tensors in memory. Those are the conversion to float32 and one product for the Gram matrices (of all parents side
by side), one product for the factors that change and its conversion back, and for noise one `torch.randn`. (Without the
conversions torch multiplies bfloat16, which is slower.) Seconds are medians; floor, roofline and memory are ratios: seconds
over the floor, seconds over the roofline, peak memory over the parents' bytes (resident set of a fresh process, less what
it held before loading).
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import lora_evo as le
from benchmarks.qwen import LAYERS, write_adapter
from lora_evo.breeding import breed_into, plan

KEEPS_A = ("svd_perturb", "mask_components")
AS_STORED = ("layer_choice", "copy_parent")
NOISE = {"gaussian": 1.0, "layer_noise": 0.33}
RANK = 32


def main() -> None:
    """Print the table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--memory-of", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory_of:
        print(peak_growth(*options.memory_of))
        return
    with tempfile.TemporaryDirectory() as scratch:
        rows = measured(Path(scratch), options.layers, options.repeats)
    if options.json:
        print(json.dumps({"operators": rows}))
        return
    print(f"{options.layers} layers of Qwen2.5-7B, rank {RANK}, bfloat16, {torch.get_num_threads()} threads")
    print(f"{'operator':16} {'seconds':>8} {'/ floor':>8} {'/ roofline':>10} {'memory / parents':>17}")
    for name, row in rows.items():
        print(f"{name:16} {row['seconds']:8.2f} {row['floor']:8.2f} {row['roofline']:10.2f} {row['memory']:17.2f}")


def measured(scratch: Path, layers: int, repeats: int) -> dict[str, dict[str, float]]:
    """Every operator's row."""
    parents = [write_adapter(scratch / f"parent{i}", i, layers=layers) for i in (1, 2)]
    operators = le.all_operators()
    jobs: dict[str, Callable[[], object]] = {f"floor {n}": lambda n=n: floor(parents[:n], scratch / "floor") for n in (1, 2)}
    jobs |= passes(parents)
    jobs |= {name: lambda name=name: whole(name, parents, scratch / "child") for name in operators}
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(repeats + 1):
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            if turn:  # the first turn warms the page cache
                seconds[name].append(time.perf_counter() - start)
            shutil.rmtree(scratch / "child", ignore_errors=True)
    median = {name: statistics.median(times) for name, times in seconds.items()}
    rows = {}
    for name in operators:
        n = parent_count(name)
        ideal = median[f"floor {n}"] + sum(share * median[part] for part, share in unavoidable(name, n).items())
        size = sum(f.stat().st_size for p in parents[:n] for f in p.glob("*.safetensors"))
        rows[name] = {
            "seconds": median[name],
            "floor": median[name] / median[f"floor {n}"],
            "roofline": median[name] / ideal,
            "memory": fresh_peak(name, scratch) / size,
        }
    return rows


def parent_count(name: str) -> int:
    """One for mutations and the copy, two for crossovers and the mean."""
    return 1 if le.all_operators()[name].kind == "mutation" or name == "copy_parent" else 2


def whole(name: str, folders: list[Path], child: Path) -> None:
    """What `lora-evo mutate` and `lora-evo crossover` do."""
    parents = [le.load(folder) for folder in folders[: parent_count(name)]]
    breed_into(plan(parents, name, seed=0), child)


def floor(folders: list[Path], child: Path) -> None:
    """Read every byte of the parents, write as many bytes as one of them has."""
    for folder in folders:
        tensors = load_file(folder / "adapter_model.safetensors")
        for tensor in tensors.values():
            tensor.view(torch.int32).sum()
    child.mkdir(exist_ok=True)
    save_file(tensors, child / "adapter_model.safetensors", metadata={"format": "pt"})
    shutil.rmtree(child)


def passes(folders: list[Path]) -> dict[str, Callable[[], object]]:
    """Plain torch on the parents' tensors: Gram products, output products, normal draws."""
    stored = [load_file(folder / "adapter_model.safetensors") for folder in folders]
    names = [name for name in stored[0] if "lora_A" in name]
    mix = {n: torch.randn(n * RANK, RANK) for n in (1, 2)}
    jobs: dict[str, Callable[[], object]] = {}
    for n in (1, 2):
        A = [torch.cat([t[name] for t in stored[:n]], 0) for name in names]
        B = [torch.cat([t[name.replace("lora_A", "lora_B")] for t in stored[:n]], 1) for name in names]
        jobs[f"grams {n}"] = lambda A=A, B=B: [grams(a.float(), b.float()) for a, b in zip(A, B, strict=True)]
        wide_A, wide_B = [a.float() for a in A], [b.float() for b in B]
        jobs[f"output B {n}"] = lambda n=n, wide_B=wide_B: [(b @ mix[n]).bfloat16() for b in wide_B]
        jobs[f"output A {n}"] = lambda n=n, wide_A=wide_A: [(mix[n].T @ a).bfloat16() for a in wide_A]
    shapes = [stored[0][name].shape for name in stored[0]]
    jobs["normals"] = lambda: [torch.randn(shape) for shape in shapes]
    return jobs


def grams(A: torch.Tensor, B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One product each."""
    return B.T @ B, A @ A.T


def unavoidable(name: str, n: int) -> dict[str, float]:
    """The passes an operator cannot do without, and the share of the modules they concern."""
    if name in AS_STORED:
        return {f"grams {n}": 1.0}
    if name in KEEPS_A:
        return {"grams 1": 1.0, "output B 1": 1.0}
    share = NOISE.get(name, 1.0)
    parts = {f"grams {n}": 1.0, f"output B {n}": share, f"output A {n}": share}
    return parts | ({"normals": share} if name in NOISE else {})


def fresh_peak(name: str, scratch: Path) -> float:
    """Peak bytes of a fresh process that breeds one child."""
    command = [sys.executable, "-m", "benchmarks.operators", "--memory-of", name, str(scratch), str(parent_count(name))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout)


def peak_growth(name: str, scratch: str, count: str) -> int:
    """Peak resident bytes over what the process held before loading."""
    folders = [Path(scratch) / f"parent{i + 1}" for i in range(int(count))]
    child = Path(scratch) / "memory-child"
    le.all_operators()
    before = resident("VmRSS")
    whole(name, folders, child)
    shutil.rmtree(child)
    return resident("VmHWM") - before


def resident(field: str) -> int:
    """A line of this process's status, in bytes (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


if __name__ == "__main__":
    main()
