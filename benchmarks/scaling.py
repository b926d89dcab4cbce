"""The tables of docs/scaling.md: `python -m benchmarks.scaling [--play] [--steps 6] [--json]`.

What is planned for the paper's preset on GPUs, and how that compares with what is published; no GPU is needed or measured.
With `--play` instead: games of several sizes are played on nano, one after the other, and the processor seconds of each are
compared with a plan that knows only the run of one size.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lora_evo_cli.plan import cell
from selfplay import presets
from selfplay.plan import GPUS, Geometry, Plan, geometry, plan, table
from selfplay.plan.measured import lengths_of, like, watched
from selfplay.plan.rates import Rate, assumed, given
from selfplay.progress import shown
from selfplay.runs import begun, play

ROOMY = ("sequences=64",)
"""What there is room for in 141 GB."""

H200 = ("memory=141e9", "bandwidth=4.8e12")
A100 = ("memory=80e9", "bandwidth=2.04e12", "flops=312e12", "float32_flops=19.5e12")
"""Data sheets of NVIDIA: H200 SXM (its arithmetic is that of the H100), and A100 80 GB SXM, of which the A800 is a variant."""

PAPER_RATIO = 1.31
AZR_SECONDS = (3 * 86400 / 500, 5 * 86400 / 500)
"""500 steps in three to five days on four A800."""

PLAYED = (1, 2, 4, 8)
CALIBRATED = (2, 4)
MODEL = (("write", ("propose", "solve")), ("learn", ("learn",)))


def rates_of(config: Any, changes: Sequence[str]) -> dict[str, Rate]:
    return given(assumed(config), changes)


def sized(changes: Sequence[str], rates: Sequence[str]) -> dict[int, dict[int, Plan]]:
    """Plans of all sizes and GPUs."""
    config = presets.preset("populora-7b", changes)
    return table(config, geometry(config.base), rates_of(config, rates))


def markdown(tabled: dict[int, dict[int, Plan]]) -> str:
    head = ["members", *(f"{n} GPU{'s' * (n > 1)}" for n in GPUS)]
    rows = [[f"{n}+{n}", *(cell(made) for made in row.values())] for n, row in tabled.items()]
    return rendered(head, rows)


def rendered(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def largest(base: Geometry, gigabytes: int, rank: int) -> int:
    """The largest power of two n for which n + n members fit on a GPU that learns, of eight; 0 if none."""
    found = sized([f"lora.rank={rank}"], [f"memory={gigabytes}e9"])
    return max((n for n, row in found.items() if not row[8].problems), default=0)


def published(base: Geometry) -> dict[str, Any]:
    """The model against what is published."""
    many, single = (presets.preset("populora-7b", changes) for changes in ([], ["population={single_agent: true}"]))
    equal = presets.preset("populora-7b", ["population={single_agent: true}", "game.prompts=64"])
    ratios = {}
    for learners in (1, 8):
        rates = rates_of(many, [f"learners={learners}"])
        whole, alone, as_much = (seconds(plan(config, base, rates, 8)) for config in (many, single, equal))
        ratios[learners] = {"four times the work": whole / alone, "the same work": whole / as_much}
    azr = {}
    for tokens in (250, 500, 1000):
        rates = rates_of(single, [*A100, "learners=4", f"proposal={tokens}", f"answer={tokens}"])
        azr[tokens] = seconds(plan(single, base, rates, 4))
    return {"4+4 over a single agent, 8 GPUs": ratios, "paper": PAPER_RATIO, "single agent, 4 A100": azr, "AZR": AZR_SECONDS}


def seconds(made: Plan) -> float:
    assert made.expected.total is not None
    return made.expected.total


def on_paper() -> dict[str, Any]:
    base = geometry(presets.preset("populora-7b").base)
    return {
        "H100, one learner": sized([], []),
        "H100, every GPU learns": sized([], [f"learners={max(GPUS)}"]),
        "H200, one learner": sized(ROOMY, H200),
        "largest": {rank: {room: largest(base, room, rank) for room in (80, 141, 192)} for rank in (8, 16, 32, 64)},
        "published": published(base),
    }


def on_nano(steps: int, sizes: Sequence[int], folder: Path) -> list[dict[str, Any]]:
    """Processor seconds of writing and learning in a step as played, and as planned from the run of one size."""
    runs = {n: watched(timed_by_processor(n, steps, folder / str(n))) for n in sizes}
    base, found = geometry("nano"), []
    for known in CALIBRATED:
        for n, run in runs.items():
            rates, _ = like(run.config, base, assumed(run.config), runs[known])
            planned, own = (of_model(plan(run.config, base, which)) for which in (rates, {**rates, **lengths_of(run)}))
            spent = {
                part: statistics.fmean(sum(step.seconds[name] for name in names) for step in run.timed) for part, names in MODEL
            }
            row: dict[str, Any] = {"planned from": f"{known}+{known}", "members": f"{n}+{n}"}
            row |= {name: value for part in spent for name, value in ((part, spent[part]), (f"{part} planned", planned[part]))}
            errors = [sum(of.values()) / sum(spent.values()) - 1 for of in (planned, own)]
            found.append({**row, "error": errors[0], "error with its own lengths": errors[1]})
    return found


def timed_by_processor(n: int, steps: int, folder: Path) -> Path:
    """Play a game whose phases are timed by what this process computes: neighbours on the machine do not count."""
    changes = [f"population.teachers={n}", f"population.students={n}", f"steps={steps}"]
    with begun(presets.preset("laptop", changes), folder) as run, shown(steps) as watcher:
        play(run, watcher, time.process_time)
    return folder


def of_model(made: Plan) -> dict[str, float]:
    """Seconds of the model's phases."""
    return {part: sum((made.expected.seconds or {})[name] for name in names) for part, names in MODEL}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--play", action="store_true")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    if chosen.play:
        with tempfile.TemporaryDirectory() as folder:
            rows = on_nano(chosen.steps, PLAYED, Path(folder))
        print(json.dumps(rows) if chosen.json else told(rows))
        return
    found = on_paper()
    tables = {name: tabled for name, tabled in found.items() if name not in ("largest", "published")}
    if chosen.json:
        cells = {name: {n: {g: seconds(p) for g, p in row.items()} for n, row in of.items()} for name, of in tables.items()}
        print(json.dumps({**found, **cells}))
        return
    for name, tabled in tables.items():
        print(f"{name}\n\n{markdown(tabled)}\n")
    rooms = [80, 141, 192]
    rows = [[str(rank), *(f"{n}+{n}" if n else "none" for n in row.values())] for rank, row in found["largest"].items()]
    print(rendered(["rank", *(f"{room} GB" for room in rooms)], rows), "\n")
    print(json.dumps(found["published"], indent=1))


def told(rows: Sequence[dict[str, Any]]) -> str:
    head = list(rows[0])
    return rendered(
        head,
        [
            [f"{row[k]:+.0%}" if "error" in k else f"{row[k]:.3g}" if isinstance(row[k], float) else row[k] for k in head]
            for row in rows
        ],
    )


if __name__ == "__main__":
    main()
