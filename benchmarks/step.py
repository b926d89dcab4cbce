"""Where a step's time goes: `python -m benchmarks.step [RUN] [--steps 8] [--base nano] [--json]`.

Reads the timings of a run, or plays a short one with the default settings first. The model is `propose`, `solve` and `learn`; all
else (referee, parsing, rating, replacement, journal, checkpoint) is what the game adds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

MODEL = ("propose", "solve", "learn")


def shares(timings: Path) -> dict[str, float]:
    """Median seconds of each phase after the first step, which warms up, and the share that is not the model."""
    steps = [json.loads(line) for line in timings.read_text().splitlines()][1:]
    phases = list(dict.fromkeys(name for step in steps for name in step if name != "step"))
    found = {name: statistics.median(step.get(name, 0.0) for step in steps) for name in phases}
    beside = [1 - sum(step[name] for name in MODEL) / step["total"] for step in steps]
    return {**found, "share beside the model": statistics.median(beside)}


def played(base: str, steps: int, changes: Sequence[str], folder: Path) -> Path:
    """The timings of a short run."""
    settings = [f"base={base}", f"steps={steps}", *changes]
    words = [word for setting in settings for word in ("--set", setting)]
    subprocess.run([sys.executable, "-m", "lora_evo_cli.main", "selfplay", "run", *words, "-o", str(folder)], check=True)
    return folder / "timings.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("--base", default="nano")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        timings = chosen.run / "timings.jsonl" if chosen.run else None
        found = shares(timings or played(chosen.base, chosen.steps, chosen.set, Path(folder) / "run"))
    if chosen.json:
        print(json.dumps(found))
        return
    for phase, value in found.items():
        print(f"{phase:24} {value:8.3f}")


if __name__ == "__main__":
    main()
