"""`lora-evo selfplay report` and `compare`: a run as a page, and several runs as one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer


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
) -> None:
    """Make a page of a run: one HTML file that opens anywhere and loads nothing."""
    from selfplay.report import run_page, summarised

    folder = run if run.is_dir() else run.parent
    write(folder / "report.html" if output is None else output, run_page(summarised(run, problems)))


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs, two or more.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The page.")] = Path("compare.html"),
) -> None:
    """Lay runs over each other on one page; those that differ in nothing but the seed become one line with a band."""
    from selfplay.report import compared, comparison_page

    write(output, comparison_page(compared(runs)))


def write(path: Path, page: str) -> None:
    """A page into a file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(page)
        os.chmod(partial, 0o644)
        os.replace(partial, path)
    finally:
        Path(partial).unlink(missing_ok=True)
    typer.echo(f"wrote {path} ({len(page.encode()) / 1e6:.1f} MB)")
