"""`lora-evo selfplay plan`: what a game will need, before it is played."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lora_evo_cli import game, show

if TYPE_CHECKING:
    from selfplay.config import Config
    from selfplay.plan import Plan
    from selfplay.plan.memory import Memory

Tabled = dict[int, dict[int, "Plan"]]
LETTERS = {"decoding": "D", "learning": "L", "referee": "R", "swaps": "S", "disk": "C", "bookkeeping": "B"}


def register(app: typer.Typer) -> None:
    """Add the command of this file."""
    app.command(
        epilog=f"{game.EXAMPLES}$ lora-evo selfplay plan --preset populora-7b --gpus 8\n\n"
        "$ lora-evo selfplay plan --preset populora-7b --gpus 8 --set lora.rank=64 --rate memory=141e9\n\n"
        "$ lora-evo selfplay plan --like my-run --set population.teachers=16 --set population.students=16"
    )(plan)


def plan(
    config: Annotated[Path | None, typer.Option("--config", metavar="FILE", help="A YAML file.", show_default=False)] = None,
    preset: Annotated[str | None, typer.Option("--preset", metavar="NAME", help="See `presets`; laptop if left out.")] = None,
    changes: game.Changes = None,
    gpus: Annotated[int, typer.Option(help="GPUs that sample.")] = 1,
    like: Annotated[
        Path | None,
        typer.Option("--like", metavar="RUN", help="Take lengths and costs from a run; its configuration too, if none is named."),
    ] = None,
    rates: Annotated[
        list[str] | None,
        typer.Option(
            "--rate", metavar="NAME=VALUE", help="Change one rate: bandwidth=4.8e12. May be repeated.", show_default=False
        ),
    ] = None,
    as_json: game.Json = False,
) -> None:
    """Plan: memory, tokens and seconds of a step, and what is full first. Nothing is loaded or downloaded."""
    with show.waiting("reading the shape of the base", quiet=False):
        made, tabled, notes = _planned(config, preset, changes or [], gpus, like, rates or [])
    if as_json:
        show.print_json({**made.as_dict(), "notes": notes, "table": _cells(tabled)})
        return
    _head(made)
    _memory(made)
    _step(made)
    _table(tabled)
    _rates(made)
    show.warn((*notes, *made.problems))


def _planned(
    file: Path | None, preset: str | None, changes: list[str], gpus: int, like: Path | None, chosen: Iterable[str]
) -> tuple[Plan, Tabled, list[str]]:
    from selfplay import plan as planning
    from selfplay.plan import measured, rates

    run = measured.watched(like) if like else None
    config = _config(file, preset, changes, run.config if run else None)
    base, notes = planning.geometry(config.base, config.lora.targets), list[str]()
    known = rates.assumed(config)
    if run:
        known, notes = measured.like(config, base, known, run)
    known = rates.given(known, chosen)
    made, tabled = planning.plan(config, base, known, gpus), planning.table(config, base, known)
    if made.expected.seconds is None:
        notes.append("how fast a CPU is only a run can tell: play a few steps and give it with --like; no seconds are planned")
    return made, tabled, notes


def _config(file: Path | None, preset: str | None, changes: list[str], played: Config | None) -> Config:
    from selfplay.config import checked
    from selfplay.tree import changed

    if played is None or file is not None or preset is not None:
        return game._config(file, preset, changes)
    return checked(changed(played.tree(), changes))


def _head(made: Plan) -> None:
    config, base, layout = made.config, made.base, made.layout
    alone = config.population.single_agent
    who = "a single agent" if alone else f"{config.population.teachers} teachers and {config.population.students} students"
    engine = "torch: one process writes and learns"
    if config.engine == "vllm":
        engine = f"vLLM samples on {made.gpus} GPU{'s' * (made.gpus > 1)}, {layout.learners} of them learn"
    first, expected = made.first, made.expected
    share = ""
    if expected.seconds and first and first != "memory":
        from selfplay.plan.seconds import by_resource

        share = f", {by_resource(dict(expected.seconds))[first] / (expected.total or 1):.0%} of a step"
    show.facts(
        [
            ("base", f"{base.base}, {_many(base.parameters)} weights in {config.dtype} (shape: {base.source})"),
            ("members", f"{who}, rank {config.lora.rank}: {_many(base.adapter_size(config.lora.rank))} numbers each"),
            ("engine", engine),
            ("full first", f"{first}{share}" if first else "unknown: no seconds are planned"),
            (
                "memory",
                f"{made.memory_total(made.bound) / 1e9:.4g} GB at the peak on all, at the bound; {made.room / 1e9:.4g} GB a device",
            ),
        ]
    )


def _many(n: int) -> str:
    return f"{n / 1e9:.3g} billion" if n >= 1e9 else f"{n / 1e6:.3g} million"


def _memory(made: Plan) -> None:
    sides = [("learns" if made.config.engine == "vllm" else "device", made.bound.learning, made.expected.learning)]
    if made.bound.sampling and made.expected.sampling:
        sides.append(("only samples", made.bound.sampling, made.expected.sampling))
    for label, bound, expected in sides:
        title = "memory, GB" if label == "device" else f"memory of a GPU that {label}, GB"
        typer.echo()
        show.table([title, "when", "bound", "expected", "how"], [*_parts(bound, expected), *_sums(bound, expected)])


def _parts(bound: Memory, expected: Memory) -> list[list[Any]]:
    pairs = zip(bound.parts, expected.parts, strict=True)
    return [
        [a.what, a.when, a.bytes / 1e9, b.bytes / 1e9, "counted" if a.counted else "estimated"] for a, b in pairs
    ]  # fmt: skip


def _sums(bound: Memory, expected: Memory) -> list[list[Any]]:
    return [
        [f"all while {when}", "", bound.during(when) / 1e9, expected.during(when) / 1e9, ""]
        for when in ("sampling", "learning")
        if bound.during(when)
    ]


def _step(made: Plan) -> None:
    bound, expected = made.bound.load, made.expected.load
    names = ("requests", "prompt_tokens", "completion_tokens", "trained_tokens", "programs")
    rows = [[name.replace("_", " "), *(f"{getattr(load, name):,.0f}" for load in (bound, expected))] for name in names]
    typer.echo()
    show.table(["a step", "bound", "expected"], rows)
    if made.bound.seconds and made.expected.seconds:
        phases = [[name, made.bound.seconds[name], made.expected.seconds[name]] for name in made.bound.seconds]
        typer.echo()
        show.table(["seconds of a step", "bound", "expected"], [*phases, ["all", made.bound.total, made.expected.total]])


def _table(tabled: Tabled) -> None:
    gpus = list(next(iter(tabled.values())))
    timed = next(iter(tabled.values()))[gpus[0]].expected.seconds is not None
    typer.echo()
    what = "expected seconds of a step" if timed else "GB of a device at the bound"
    rows = [[f"{n}+{n}", *(cell(made) for made in row.values())] for n, row in tabled.items()]
    show.table([what, *(f"{n} GPU{'s' * (n > 1)}" for n in gpus)], rows)
    legend = ", ".join(f"{letter} {name}" for name, letter in LETTERS.items())
    typer.echo(f"the slowest: {legend}; ! does not fit at the bound")


def cell(made: Plan) -> str:
    """A plan in a table: seconds and what is slowest, or bytes; and whether it fits."""
    slowest, total = made.expected.slowest, made.expected.total
    shown = f"{made.bound.peak / 1e9:.3g}" if total is None else f"{total:,.0f} {LETTERS[slowest or '']}"
    if total is not None and total < 100:
        shown = f"{total:.3g} {LETTERS[slowest or '']}"
    return shown + (" !" if made.problems else "")


def _cells(tabled: Tabled) -> list[dict[str, Any]]:
    return [
        {
            "members": f"{n}+{n}", "gpus": gpus, "seconds": made.expected.total, "slowest": made.expected.slowest,
            "first": made.first, "peak": made.bound.peak, "fits": not made.problems,
        }
        for n, row in tabled.items()
        for gpus, made in row.items()
    ]  # fmt: skip


def _rates(made: Plan) -> None:
    rows = [[name, f"{rate.value:.4g}", rate.unit, rate.kind, rate.source] for name, rate in made.rates.items()]
    typer.echo()
    show.table(["rate (--rate)", "value", "unit", "kind", "source"], rows)
