"""`lora-evo lineage`: where an adapter comes from, as far back as its ancestors' folders are found."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.tree import Tree

from lora_evo_cli import show

if TYPE_CHECKING:
    from lora_evo.adapter import Adapter


def register(app: typer.Typer) -> None:
    """Add the command of this file."""
    app.command(
        epilog="[bold]Examples[/bold]\n\n$ lora-evo lineage child\n\n$ lora-evo lineage child --among old-adapters --json",
    )(lineage)


def lineage(
    child: Annotated[str, typer.Argument(help="A PEFT folder or hub id.", show_default=False)],
    among: Annotated[
        Path | None,
        typer.Option(metavar="DIR", exists=True, file_okay=False, help="Where to look for ancestors. Default: beside the child."),
    ] = None,
    depth: Annotated[int, typer.Option(min=0, max=200, help="How many generations to follow.")] = 50,
    as_json: show.Json = False,
) -> None:
    """Show how an adapter was bred, and its ancestors."""
    from lora_evo.peft_format import load

    adapter = load(child)
    beside = among or (Path(adapter.source[0]).parent.parent if Path(child).is_dir() else None)
    folders = [folder for folder in sorted(beside.iterdir()) if folder.is_dir()] if beside else []
    story = {"name": adapter.name, "folder": str(Path(adapter.source[0]).parent), **_story(adapter, folders, depth, set())}
    if as_json:
        show.print_json(story)
    elif adapter.lineage is None:
        typer.echo(f"{adapter.name} has no lineage: it was not bred by lora-evo")
    else:
        tree = Tree(f"{_label(story)}\n{show.settings(story['versions'])}")
        _grow(tree, story)
        show.console().print(tree)


def _story(adapter: "Adapter", folders: list[Path], depth: int, told: set[str]) -> dict[str, Any]:
    """An adapter's lineage with that of its parents inside. Each ancestor's own is told once, however often it appears."""
    from lora_evo.lineage import ancestors
    from lora_evo.peft_format import load

    if adapter.lineage is None:
        return {"operator": None, "parents": []}
    record = asdict(adapter.lineage)
    found = ancestors(adapter, folders) if depth else {}
    for parent in record["parents"]:
        sha = parent["sha256"]
        parent["folder"] = str(found[sha]) if sha in found else None
        parent["told_above"] = sha in told
        if sha in found and sha not in told:
            told.add(sha)
            parent |= _story(load(found[sha]), folders, depth - 1, told)
    return record


def _label(story: dict[str, Any]) -> str:
    """One adapter on one line, with the measures of its birth below."""
    where = f" ({story['sha256'][:12]})" if "sha256" in story else ""
    if story.get("told_above"):
        return f"{story['name']}{where}, see above"
    if story["folder"] is None:
        return f"{story['name']}, not found here: sha256 {story['sha256']}"
    if story["operator"] is None:
        return f"{story['name']}{where}, not bred"
    params = show.settings(story["params"])
    lines = [f"{story['name']}{where}, {story['operator']}, seed {story['seed']}, {params}"]
    if story["modules"]:
        lines.append(f"modules {', '.join(story['modules'])}")
    lines += [f"override {glob}: {show.settings(some)}" for glob, some in story["overrides"].items()]
    if measures := story["measures"]:
        lines.append(show.settings({name.replace("_", " "): value for name, value in measures.items()}))
    return "\n".join(lines)


def _grow(tree: Tree, story: dict[str, Any]) -> None:
    for parent in story.get("parents", ()):
        _grow(tree.add(_label(parent)), parent)
