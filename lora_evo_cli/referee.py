"""`lora-evo referee`: judge a file, and see what this machine can promise."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from selfplay.referee import Referee, Report, Settings, Verdict

app = typer.Typer(
    name="referee",
    no_args_is_help=True,
    help="Run programs written by a model, and judge answers. Assumes malice.",
)


@app.command(
    epilog="[bold]Examples[/bold]\n\n"
    "$ lora-evo referee run answers.jsonl\n\n"
    "$ lora-evo referee run answers.jsonl -o verdicts.jsonl --cpu-seconds 5\n\n"
    "$ lora-evo referee run answers.jsonl --json | jq .status",
)
def run(
    file: Annotated[Path, typer.Argument(help="JSONL: program, input, output, answer, kind on each line (docs/referee.md).")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write one verdict a line here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one verdict a line instead of the table.")] = False,
    workers: Annotated[int | None, typer.Option(help="Worker processes; one per core if left out.")] = None,
    cpu_seconds: Annotated[int, typer.Option(help="Processor time of a program, whole seconds.")] = 2,
    memory_mb: Annotated[int, typer.Option(help="Memory of a program.")] = 512,
    allow_degraded: Annotated[bool, typer.Option(help="Start although a guarantee cannot be had here.")] = False,
) -> None:
    """Judge every line of a file."""
    from selfplay.tasks import files

    lines = files.read(file)
    settings = _settings(workers, cpu_seconds, memory_mb, allow_degraded)
    with _started(settings) as referee:
        verdicts = files.judge_lines(referee, lines, _progress())
        missing = referee.degraded
    rows = [json.dumps(files.result(line, v)) for line, v in zip(lines, verdicts, strict=True)]
    if output is not None:
        output.write_text("".join(row + "\n" for row in rows))
    if as_json:
        typer.echo("\n".join(rows))
        return
    _summary(verdicts, missing)
    for line, v in [(x, v) for x, v in zip(lines, verdicts, strict=True) if not v.ok][:10]:
        typer.echo(f"  line {line.number}: {v.status} {v.reason}".rstrip())
    if output is not None:
        typer.echo(f"written: {output}")


@app.command(
    epilog="[bold]Examples[/bold]\n\n$ lora-evo referee check\n\n$ lora-evo referee check --json\n\n"
    "Exit code 1 if a guarantee is missing.",
)
def check(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Try to break every guarantee on this machine, and say which layers hold it."""
    from selfplay.referee.guarantees import FIXES
    from selfplay.referee.layers import examine

    found = examine()
    if as_json:
        typer.echo(json.dumps({name: report.as_dict() for name, report in found.items()}))
    else:
        _print_check(found, FIXES)
    if next(iter(found.values())).missing:
        raise typer.Exit(1)


def _settings(workers: int | None, cpu_seconds: int, memory_mb: int, allow_degraded: bool) -> Settings:
    from lora_evo.errors import LoraEvoError
    from selfplay.referee import Limits, Settings

    try:
        limits = Limits(cpu_seconds=cpu_seconds, wall_seconds=3.0 * cpu_seconds, memory_mb=memory_mb)
        return Settings(workers=workers, limits=limits, allow_degraded=allow_degraded)
    except ValueError as error:
        raise LoraEvoError(str(error)) from None


def _started(settings: Settings) -> Referee:
    from selfplay.referee import Referee, RefereeError

    referee = Referee(settings)
    try:
        referee.start()
    except RefereeError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    return referee


def _progress() -> Any:
    if not sys.stderr.isatty():
        return None

    def show(done: int, total: int) -> None:
        typer.echo(f"\r{done} of {total}", nl=done == total, err=True)

    return show


def _summary(verdicts: list[Verdict], missing: tuple[str, ...]) -> None:
    from selfplay.referee import MEANING

    counts = Counter(v.status for v in verdicts)
    for status, count in counts.most_common():
        typer.echo(f"{count:7} {status.value:18} {MEANING[status]}")
    if missing:
        typer.echo(f"DEGRADED: run without these guarantees: {', '.join(missing)}", err=True)


def _print_check(found: dict[str, Report], fixes: dict[str, str]) -> None:
    whole = next(iter(found.values()))
    typer.echo("Layers")
    for layer, said in whole.layers.items():
        hint = f"  (how to get it: {fixes[layer]})" if layer in whole.as_dict()["fixes"] else ""
        typer.echo(f"  {layer:20} {said}{f' ({whole.landlock})' if layer == 'landlock' and whole.landlock else ''}{hint}")
    typer.echo("Guarantees, and whether they hold with some layers only")
    typer.echo(f"  {'':12}" + "".join(f"{name:>18}" for name in found))
    for g in whole.guarantees:
        cells = ["holds" if next(x for x in report.guarantees if x.name == g.name).held else "broken" for report in found.values()]
        typer.echo(f"  {g.name:12}" + "".join(f"{cell:>18}" for cell in cells))
    typer.echo("Good: all guarantees hold." if not whole.missing else f"MISSING: {', '.join(whole.missing)}")
