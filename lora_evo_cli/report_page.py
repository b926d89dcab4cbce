"""`lora-evo selfplay report` and `compare`: a run as a page, and several runs as one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from lora_evo_cli import show


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    examples = "[bold]Examples[/bold]\n\n"
    app.command(epilog=f"{examples}$ lora-evo selfplay report run\n\n$ lora-evo selfplay report run -o page.html --problems 500")(
        report
    )
    app.command(epilog=f"{examples}$ lora-evo selfplay compare run-a run-b -o compare.html\n\n$ lora-evo selfplay compare runs/*")(
        compare
    )


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder, finished or not.", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="The page; RUN/report.html if left out.", show_default=False),
    ] = None,
    problems: Annotated[int, typer.Option(min=0, help="Proposals that come with their texts, at most.")] = 20_000,
    as_json: show.Json = False,
) -> None:
    """Make a page of a run: one HTML file that opens anywhere and loads nothing."""
    from selfplay.report import run_page, summarised

    folder = run if run.is_dir() else run.parent
    page = folder / "report.html" if output is None else output
    summary = summarised(run, problems)
    size = write(page, run_page(summary))
    _say({"page": str(page), "bytes": size, "figures": summary["figures"]}, as_json)


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs, two or more.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The page.")] = Path("compare.html"),
    as_json: show.Json = False,
) -> None:
    """Lay runs over each other on one page; those that differ in nothing but the seed become one line with a band."""
    from selfplay.report import compared, comparison_page

    found = compared(runs)
    size = write(output, comparison_page(found))
    _say({"page": str(output), "bytes": size, "runs": found["runs"]}, as_json)


def write(path: Path, page: str) -> int:
    """A page into a file, whole or not at all; its size in bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(page)
        os.chmod(partial, 0o644)
        os.replace(partial, path)
    finally:
        Path(partial).unlink(missing_ok=True)
    return len(page.encode())


def _say(done: dict[str, Any], as_json: bool) -> None:
    if as_json:
        show.print_json(done)
    else:
        typer.echo(f"wrote {done['page']} ({done['bytes'] / 1e6:.1f} MB)")
