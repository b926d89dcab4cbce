"""`lora-evo base`: the models the game is played on."""

from __future__ import annotations

import json
from typing import Annotated

import typer

app = typer.Typer(name="base", no_args_is_help=True, help="Base models: which there are, fetch one, check one.")

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("list")
def list_bases(as_json: Json = False) -> None:
    """Name the bases that come with the package or that it can fetch."""
    from selfplay.bases import described

    rows = described()
    if as_json:
        typer.echo(json.dumps(rows))
        return
    for row in rows:
        typer.echo(f"{row['name']:14} {row['where']:12} {row['what']}")
    typer.echo("any other: a model folder, or a hub id (owner/name)")


@app.command(epilog="[bold]Example[/bold]\n\n$ lora-evo base fetch smollm2-135m")
def fetch(name: Annotated[str, typer.Argument(help="A name of `base list`.")], as_json: Json = False) -> None:
    """Bring a named base to this machine; later uses need no network."""
    from selfplay.bases import BaseError, names, resolve

    if name not in names():
        raise BaseError(f"no base {name!r} to fetch; there are {', '.join(names())}")
    folder = resolve(name)
    typer.echo(json.dumps({"name": name, "folder": folder}) if as_json else folder)


@app.command(
    epilog="[bold]Examples[/bold]\n\n$ lora-evo base check nano\n\n$ lora-evo base check ./my-model --json",
)
def check(base: Annotated[str, typer.Argument(help="A name, a model folder or a hub id.")], as_json: Json = False) -> None:
    """Load a base, write with it, and let one member learn once."""
    from selfplay.bases.check import check as checked

    found = checked(base)
    if as_json:
        typer.echo(json.dumps(found.as_dict()))
        return
    typer.echo(f"{found.base}: {found.architecture}, {found.parameters / 1e6:,.1f} million weights, in {found.folder}")
    typer.echo(f"a member of rank 8 on {found.layers} linear layers has {found.adapted / 1e6:.2f} million weights")
    typer.echo(f"head size {found.head_size}, {found.positions} positions, {found.style} prompts")
    typer.echo(f"one update {'moves every layer' if found.learned else 'does NOT move every layer'}")
    typer.echo("it writes:")
    typer.echo("\n".join(f"  {line}" for line in found.sample.splitlines()[:12]))
