"""What co-evolution does, on nano: `python -m benchmarks.dynamics -o FOLDER [--steps 60] [--seeds 3] [--jobs 2] [--json]`.

Four ways to spend the same number of tokens, each with several seeds:

- `population`: 4 teachers and 4 students, the worst replaced by children of the others;
- `frozen`: the same without replacement;
- `pair`: 1 teacher and 1 student, four times as many steps;
- `single`: one adapter in both roles, four times as many steps.

So the total compute is matched at the end; after a quarter of its steps a pair or a single agent has spent as much as one
place of the population, which is the match per adapter. Students answer the held-out problems that no member sees, several
times each at temperature 1. Runs are ordinary run folders: what is there is not played again, what was broken off goes on,
and `lora-evo selfplay compare FOLDER/*` draws them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

import lora_evo as le
from selfplay.bases.nano.evaluate import solve_rates
from selfplay.bases.nano.heldout import heldout
from selfplay.engines.torch_engine import TorchEngine
from selfplay.journal import read
from selfplay.referee import Referee

WAYS: dict[str, tuple[str, int, tuple[str, ...]]] = {
    "population": ("laptop", 1, ()),
    "frozen": ("laptop", 1, ("replacement.every=0",)),
    "pair": ("laptop", 4, ("population.teachers=1", "population.students=1", "replacement.every=0")),
    "single": ("single-agent", 4, ()),
}
"""Way -> preset, how many times the population's steps, changes."""
METRICS = ("ast depth", "cyclomatic", "lines", "variables")
ANSWERS = 2
"""To each held-out problem, of each student."""


def play(folder: Path, way: str, seed: int, steps: int, changes: Sequence[str]) -> None:
    """Play a run, or go on with it."""
    preset, times, own = WAYS[way]
    total = steps * times
    if finished(folder):
        return
    if folder.exists():
        command = ["resume", str(folder)]
    else:
        every = [f"steps={total}", f"seed={seed}", f"checkpoint.every={total // 4}", "checkpoint.keep=100", *own, *changes]
        command = ["run", "--preset", preset, *(word for change in every for word in ("--set", change)), "-o", str(folder)]
    print(f"{folder.name}: {total} steps", file=sys.stderr, flush=True)
    done = subprocess.run(
        [sys.executable, "-m", "lora_evo_cli.main", "selfplay", *command],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{folder.name}: {done.stderr[-2000:]}")


def finished(folder: Path) -> bool:
    """Whether a run came to its end."""
    journal = folder / "journal.jsonl"
    return journal.exists() and any(event["event"] == "end" for event in read(journal))


def exam(folder: Path, step: int) -> dict[str, dict[str, float]]:
    """Held-out solve rates by student and kind after a step; kept in the run's folder."""
    file = folder / f"heldout-{step}.json"
    if not file.exists():
        adapters = folder / "checkpoints" / f"step-{step:06d}" / "adapters"
        members = sorted(p.name for p in adapters.iterdir() if p.name[0] != "t")
        engine = TorchEngine("nano", slots=len(members))
        for member in members:
            engine.put(member, le.load(adapters / member))
        with Referee() as referee:
            rates = solve_rates(engine, referee, heldout(), members, ANSWERS)
        file.write_text(json.dumps(rates))
    found: dict[str, dict[str, float]] = json.loads(file.read_text())
    return found


def course(folder: Path) -> dict[str, float]:
    """First and last quarter of a run: what the journal says of its own problems."""
    steps = [event for event in read(folder / "journal.jsonl") if event["event"] == "step"]
    updates = [event for event in read(folder / "journal.jsonl") if event["event"] == "update"]
    quarter = max(1, len(steps) // 4)
    found: dict[str, float] = {}
    for label, part in (("start", steps[:quarter]), ("end", steps[-quarter:])):
        found[f"solve rate, {label}"] = _mean(s["solve_rate"] for s in part)
        found[f"valid, {label}"] = _mean(s["valid"] for s in part)
        for i, metric in enumerate(METRICS):
            found[f"{metric}, {label}"] = _mean(s["complexity"][i] for s in part if s["complexity"])
        numbers = {s["step"] for s in part}
        found[f"entropy, {label}"] = _mean(u["entropy"] for u in updates if u["step"] in numbers and u["samples"])
    rates = [s["solve_rate"] for s in steps if s["solve_rate"] is not None]
    found["solve rate, deviation"] = statistics.pstdev(rates)
    found["coverage"] = steps[-1]["coverage"]
    found["tokens"] = steps[-1]["cost"]["completion_tokens"]
    return found


def measured(folder: Path, total: int) -> dict[str, float]:
    """A run in figures: held-out rates of mean, best and worst student by kind, and its course."""
    found = course(folder)
    for step, label in ((total, ""), (total // 4, ", a quarter of the run")):
        rates = exam(folder, step)
        kinds = list(next(iter(rates.values())))
        overall = [_mean(student.values()) for student in rates.values()]
        found[f"held out{label}"] = _mean(overall)
        found[f"held out, best{label}"] = max(overall)
        found[f"held out, worst{label}"] = min(overall)
        for kind in kinds:
            found[f"held out {kind}{label}"] = _mean(student[kind] for student in rates.values())
    return found


def base_rates(answers: int) -> dict[str, float]:
    """The base on the same problems."""
    engine = TorchEngine("nano", slots=1)
    with Referee() as referee:
        rates = solve_rates(engine, referee, heldout(), [None], answers)[None]
    return {"held out": _mean(rates.values()), **{f"held out {kind}": rate for kind, rate in rates.items()}}


def _mean(values: Any) -> float:
    known = [v for v in values if v is not None]
    return statistics.fmean(known) if known else float("nan")


def table(found: Mapping[str, Sequence[Mapping[str, float]]], base: Mapping[str, float]) -> list[str]:
    """Mean over seeds, and the smallest and largest in brackets."""
    labels = list(dict.fromkeys(label for runs in found.values() for run in runs for label in run))
    lines = ["| | base | " + " | ".join(found) + " |", "|---" * (len(found) + 2) + "|"]
    for label in labels:
        cells = []
        for runs in found.values():
            values = [run[label] for run in runs if label in run]
            digits = 0 if label == "tokens" else 3
            shown = f"{statistics.fmean(values):.{digits}f} [{min(values):.{digits}f}, {max(values):.{digits}f}]" if values else ""
            cells.append(shown)
        known = f"{base[label]:.3f}" if label in base else ""
        lines.append(f"| {label} | {known} | " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=60, help="of a population, divisible by 4")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for all runs, learner.lr=0.002 say")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    chosen.output.mkdir(parents=True, exist_ok=True)
    todo = [(way, seed) for seed in range(chosen.seeds) for way in chosen.ways]
    with ThreadPoolExecutor(chosen.jobs) as pool:
        list(pool.map(lambda t: play(chosen.output / f"{t[0]}-{t[1]}", *t, chosen.steps, chosen.set), todo))
    torch.set_num_threads(chosen.jobs)
    found = {
        way: [measured(chosen.output / f"{way}-{seed}", chosen.steps * WAYS[way][1]) for seed in range(chosen.seeds)]
        for way in chosen.ways
    }
    base = base_rates(4 * ANSWERS)
    if chosen.json:
        print(json.dumps({"steps": chosen.steps, "set": chosen.set, "base": base, "runs": found}))
    else:
        print("\n".join(table(found, base)))


if __name__ == "__main__":
    main()
