"""What adapters cost vLLM: `python -m benchmarks.vllm [--base nano] [--rows 64] [--rounds 5] [--json]`.

The same prompts go to the base alone, and mixed to 1, 4 and 8 members with random factors, in turns: tokens a second, and the
ratio to the base in the same round. Needs vLLM (docs/vllm.md); on a GPU give `--device cuda`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch

from selfplay import presets
from selfplay.bases.nano.heldout import heldout
from selfplay.bases.nano.texts import TASKS
from selfplay.engines import Request, Sampling
from selfplay.engines.torch_engine import TorchEngine
from selfplay.engines.vllm_engine import VllmEngine

SIZES = (0, 1, 4, 8)
"""Members that answer; 0 is the base alone."""
TOKENS = 64


def engines(base: str, device: str) -> tuple[TorchEngine, VllmEngine]:
    """Both with the same members."""
    config = presets.preset("laptop", [f"base={base}", "engine=vllm", f"device={device}"])
    home = TorchEngine(base, slots=max(SIZES), rank=config.lora.rank, alpha=config.lora.alpha, device=device)
    sampler = VllmEngine(config, max(SIZES))
    for i in range(max(SIZES)):
        home.fresh(f"m{i}", i)
        adapter, generator = home.adapter(f"m{i}"), torch.Generator().manual_seed(i)
        for factors in adapter.modules.values():
            factors.B.copy_(0.01 * torch.randn(factors.B.shape, generator=generator))
        home.put(f"m{i}", adapter)
        sampler.put(f"m{i}", adapter)
    return home, sampler


def speed(engine: TorchEngine | VllmEngine, rows: int, members: int, seed: int) -> float:
    """Completion tokens a second. Equal prompts are few, so a cache of prefixes helps nobody more than others."""
    texts = [TASKS[p.kind].answer_prompt(p, "compact") for p in heldout()[:rows]]
    who = [None if not members else f"m{i % members}" for i in range(rows)]
    requests = [Request(m, engine.prompt(t, "compact"), seed * rows + i) for i, (m, t) in enumerate(zip(who, texts, strict=True))]
    begun = time.perf_counter()
    written = engine.generate(requests, Sampling(1.0, TOKENS))
    return sum(len(c.tokens) for c in written) / (time.perf_counter() - begun)


def measured(base: str, device: str, rows: int, rounds: int) -> list[dict[str, float]]:
    """One row for each number of members: medians over rounds, the first of which warms up."""
    home, sampler = engines(base, device)
    try:
        found = [{n: speed(sampler, rows, n, r) for n in SIZES} | {-1: speed(home, rows, 8, r)} for r in range(rounds + 1)][1:]
    finally:
        sampler.close()
    return [
        {
            "members": n,
            "tokens/s": statistics.median(of[n] for of in found),
            "of the base alone": statistics.median(of[n] / of[0] for of in found),
            "of the embedded engine with 8": statistics.median(of[n] / of[-1] for of in found),
        }
        for n in SIZES
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--base", default="nano")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    rows = measured(chosen.base, chosen.device, chosen.rows, chosen.rounds)
    if chosen.json:
        print(json.dumps(rows))
        return
    print("| " + " | ".join(rows[0]) + " |")
    print("|---" * len(rows[0]) + "|")
    for row in rows:
        print(f"| {row['members']:.0f} | {row['tokens/s']:.0f} | " + " | ".join(f"{v:.2f}" for v in list(row.values())[2:]) + " |")


if __name__ == "__main__":
    main()
