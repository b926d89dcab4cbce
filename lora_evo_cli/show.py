"""What goes to the terminal: tables and one JSON object on stdout, warnings and progress on stderr."""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]

Progress = Callable[[int, int], None]
Facts = list[tuple[str, Any]]
PIPE_WIDTH = 200
PATIENCE = 2.0
"""Seconds after which, and then every so often, something slow says how far it is."""


def console(stderr: bool = False) -> Console:
    """A terminal that prints text as it is: file names are no markup. Pipes get whole lines."""
    out = Console(stderr=stderr, markup=False, highlight=False, emoji=False)
    if not out.is_terminal:
        out.width = PIPE_WIDTH
    return out


def print_json(value: Any) -> None:
    """One JSON object on stdout."""
    typer.echo(json.dumps(value, indent=2, default=str))


def warn(notes: Iterable[str]) -> None:
    """Warnings, one a line, on stderr."""
    for note in notes:
        typer.echo(f"lora-evo: warning: {note}", err=True)


def facts(pairs: Facts) -> None:
    """Names and values in two columns; pairs without a value are left out."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in pairs:
        if value not in (None, ""):
            grid.add_row(name, str(value))
    console().print(grid)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table: the first column is a name, columns of numbers are set right."""
    rows = [[number(cell) for cell in row] for row in rows]
    grid = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for i, column in enumerate(columns):
        numeric = i > 0 and all(row[i][:1] in "-0123456789" for row in rows)
        grid.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        grid.add_row(*row)
    console().print(grid)


def number(value: Any) -> str:
    """A cell: floats to four digits, lists by commas, `-` for what does not exist."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(number, value))
    return str(value)


def settings(params: dict[str, Any]) -> str:
    """Parameters as `name=value`; those that are unset are left out."""
    return " ".join(f"{name}={number(value).replace(', ', ',')}" for name, value in params.items() if value is not None)


def size(n: int) -> str:
    """Bytes for people."""
    value, units = float(n), ["bytes", "KiB", "MiB", "GiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{n} bytes" if units[0] == "bytes" else f"{value:.1f} {units[0]}"


@contextmanager
def progress(what: str, quiet: bool) -> Iterator[Progress | None]:
    """A callback (done, total): a bar on a terminal, a line now and then in a log, None if quiet."""
    if quiet:
        yield None
    elif sys.stderr.isatty():
        from rich.progress import Progress as Bars

        with Bars(console=console(stderr=True), transient=True) as bars:
            task = bars.add_task(what, total=None)
            yield lambda done, total: bars.update(task, completed=done, total=total)
    else:
        yield _lines(what)


@contextmanager
def waiting(what: str, quiet: bool) -> Iterator[None]:
    """Says what takes so long, where the library does not tell how far it is."""
    timer = threading.Timer(PATIENCE, lambda: typer.echo(f"{what} ...", err=True))
    if not quiet:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _lines(what: str) -> Progress:
    last = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= PATIENCE and done < total:
            last = time.monotonic()
            typer.echo(f"{what}: {done} of {total}", err=True)

    return tell
