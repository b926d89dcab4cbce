"""`lora-evo selfplay`: the game, and the simulation of its rules."""

from __future__ import annotations

import json
import math
from typing import Annotated, Any

import typer

from lora_evo_cli import game, plan, report_page

app = typer.Typer(name="selfplay", no_args_is_help=True, help="Co-evolve a population of adapters.")


@app.callback()
def options() -> None:
    """Co-evolve a population of adapters."""


@app.command(
    epilog="[bold]Examples[/bold]\n\n"
    "$ lora-evo selfplay simulate\n\n"
    "$ lora-evo selfplay simulate --teachers 64 --students 64 --steps 100\n\n"
    "$ lora-evo selfplay simulate --every 0   (no replacement)",
)
def simulate(
    teachers: Annotated[int, typer.Option(help="Teachers.")] = 4,
    students: Annotated[int, typer.Option(help="Students.")] = 4,
    steps: Annotated[int, typer.Option(help="Steps.")] = 500,
    seed: Annotated[int, typer.Option(help="Seed.")] = 0,
    proposals: Annotated[int, typer.Option(help="Proposals of each teacher for each task kind and step.")] = 4,
    answers: Annotated[int, typer.Option(help="Answers to each valid problem.")] = 8,
    valid: Annotated[float, typer.Option(help="Share of proposals that are valid.")] = 0.7,
    every: Annotated[int, typer.Option(help="Steps between replacements; 0: none.")] = 10,
    fraction: Annotated[float, typer.Option(help="Share of each role that is replaced.")] = 0.25,
    prompt_tokens: Annotated[int, typer.Option(help="Tokens of a prompt, for the plan.")] = 300,
    completion_tokens: Annotated[int, typer.Option(help="Tokens of a completion, for the plan.")] = 250,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Play without models: members with a hidden skill. Shows what ratings, matching and replacement do, and plans sizes."""
    from dataclasses import replace

    from lora_evo.errors import LoraEvoError
    from selfplay.replacement import ReplacementRules
    from selfplay.simulate import Scene
    from selfplay.simulate import simulate as play

    try:
        rules = ReplacementRules(every=every, fraction=fraction)
        scene = Scene(teachers, students, steps, seed, 3, proposals, answers, valid, replacement=rules)
        scene = replace(scene, prompt_tokens=prompt_tokens, completion_tokens=completion_tokens)
        found = play(scene)
        uniform = play(replace(scene, matching="uniform"))
    except ValueError as error:
        raise LoraEvoError(str(error)) from None
    found["evenness_uniform"] = uniform["evenness"]
    if as_json:
        typer.echo(json.dumps(found))
    else:
        _print(found)


game.register(app)
plan.register(app)
report_page.register(app)


def _print(found: dict[str, Any]) -> None:
    correlation = found["rank_correlation"]
    typer.echo(f"{found['scene']['steps']} steps in {found['seconds']:.1f} s, {found['replacements']} members replaced")
    shown = "no role has two members" if math.isnan(correlation) else f"{correlation:.2f}"
    typer.echo(f"TrueSkill's order against the hidden order, rank correlation: {shown}")
    typer.echo(
        f"evenness of pairs, p (1 - p), at most 0.25: {found['evenness']:.3f}; uniform matching: {found['evenness_uniform']:.3f}"
    )
    for role in ("teacher", "student"):
        typer.echo(f"mean hidden skill of {role}s: {found['mean_skill_start'][role]:+.2f} -> {found['mean_skill_end'][role]:+.2f}")
    typer.echo("per step, on average:")
    for name, value in found["per_step"].items():
        typer.echo(f"  {name.replace('_', ' '):20} {value:14,.0f}")
