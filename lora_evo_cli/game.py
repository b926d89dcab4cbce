"""`lora-evo selfplay run` and what goes with it: resume, export, match, presets."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from selfplay.config import Config
    from selfplay.runs import Run

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.", show_default=False)]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one key: learner.lr=3e-4. May be repeated.", show_default=False),
]
EXAMPLES = "[bold]Examples[/bold]\n\n"


class Terminated(BaseException):
    """SIGTERM has come."""


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command(
        epilog=f"{EXAMPLES}$ lora-evo selfplay run -o my-run\n\n"
        "$ lora-evo selfplay run --preset single-agent --set steps=200 -o alone\n\n"
        "$ lora-evo selfplay run --config game.yaml --set learner.lr=3e-4 --set seed=1 -o my-run",
    )(run)
    app.command(epilog=f"{EXAMPLES}$ lora-evo selfplay resume my-run\n\n$ lora-evo selfplay resume my-run --steps 500")(resume)
    app.command(epilog=f"{EXAMPLES}$ lora-evo selfplay export my-run best-student -o student")(export)
    app.command(epilog=f"{EXAMPLES}$ lora-evo selfplay match my-run best-teacher s2 --kind deduction -n 2")(match)
    app.command(epilog=f"{EXAMPLES}$ lora-evo selfplay presets\n\n$ lora-evo selfplay presets laptop > game.yaml")(presets)


def run(
    output: Annotated[Path, typer.Option("-o", "--output", metavar="RUN", help="The run's folder.", show_default=False)],
    config: Annotated[Path | None, typer.Option("--config", metavar="FILE", help="A YAML file.", show_default=False)] = None,
    preset: Annotated[str | None, typer.Option("--preset", metavar="NAME", help="See `presets`; laptop if left out.")] = None,
    changes: Changes = None,
    as_json: Json = False,
) -> None:
    """Play: co-evolve teachers and students on one base, step by step."""
    from selfplay.runs import begun

    _play(begun(_config(config, preset, changes or []), output), output, as_json)


def resume(
    run: RunFolder,
    steps: Annotated[int | None, typer.Option(min=1, help="Play up to this step.", show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """Go on with a run from its newest checkpoint, to the bit as if it had never stopped."""
    from selfplay.runs import resumed

    _play(resumed(run, steps), run, as_json)


def export(
    run: RunFolder,
    member: Annotated[str, typer.Argument(metavar="MEMBER", help="A name, best-student or best-teacher.", show_default=False)],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FOLDER", help="The PEFT folder.", show_default=False)],
    force: Annotated[bool, typer.Option("--force", help="Replace an adapter folder that is there.")] = False,
    as_json: Json = False,
) -> None:
    """Write a member of the newest checkpoint as an ordinary PEFT adapter."""
    import lora_evo
    from selfplay.looking import adapter_folder

    name, folder = adapter_folder(run, member)
    lora_evo.save(lora_evo.load(folder), output, force=force)
    _say({"member": name, "folder": str(output)}, f"{name} -> {output}", as_json)


def match(
    run: RunFolder,
    teacher: Annotated[str, typer.Argument(metavar="TEACHER", help="A name, or best-teacher.", show_default=False)],
    student: Annotated[str, typer.Argument(metavar="STUDENT", help="A name, or best-student.", show_default=False)],
    kind: Annotated[list[str] | None, typer.Option(help="Only problems of this kind.", show_default=False)] = None,
    count: Annotated[int, typer.Option("-n", min=1, help="Proposals of each kind.")] = 2,
    seed: Annotated[int, typer.Option(min=0, help="Another seed, other problems.")] = 0,
    as_json: Json = False,
) -> None:
    """Watch one teacher face one student, problem by problem, as of the newest checkpoint."""
    from selfplay import events
    from selfplay.looking import chosen, faced, restored

    with restored(run) as (table, state):
        names = chosen(state.population, teacher), chosen(state.population, student)
        proposed, answered = faced(table, state, *names, kind or list(table.tasks), count, seed)
    problems = [events.proposal(state.step, p) for p in proposed]
    for problem in problems:
        problem["answers"] = [events.answer(state.step, a) for a in answered if a.to.id == problem["id"]]
    found = {"teacher": names[0], "student": names[1], "step": state.step, "problems": problems}
    _say(found, "\n\n".join(map(_told, problems)), as_json)


def presets(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Show this one.", show_default=False)] = None,
    whole: Annotated[bool, typer.Option("--whole", help="With all defaults.")] = False,
    as_json: Json = False,
) -> None:
    """List the presets, or show one."""
    from selfplay import presets as known

    if name is None:
        _say(known.names(), "\n".join(f"{one:14} {about}" for one, about in known.names().items()), as_json)
        return
    text = known.dumps(known.preset(name)) if whole else known.text(name)
    _say(known.preset(name).tree() if as_json else {}, text.rstrip("\n"), as_json)


def _config(file: Path | None, preset: str | None, changes: list[str]) -> Config:
    from selfplay import presets as known
    from selfplay.tree import ConfigError

    if file is not None and preset is not None:
        raise ConfigError("--config and --preset exclude each other")
    return known.read(file, changes) if file is not None else known.preset(preset or "laptop", changes)


def _play(opening: AbstractContextManager[Run], folder: Path, as_json: bool) -> None:
    from selfplay.progress import shown
    from selfplay.runs import play

    try:
        with _terminable(), opening as run, shown(run.table.config.steps, run.state.ledger.total().completion_tokens) as watcher:
            play(run, watcher)
    except (KeyboardInterrupt, Terminated) as stop:
        if (folder / "journal.jsonl").exists():
            typer.echo(f"nothing is lost; go on with: lora-evo selfplay resume {folder}", err=True)
        raise typer.Exit(130 if isinstance(stop, KeyboardInterrupt) else 143) from None
    except OSError as error:
        if not (folder / "journal.jsonl").exists():
            raise
        said = f"{error.strerror or error}. The run is whole up to its newest checkpoint; lora-evo selfplay resume {folder}"
        raise OSError(error.errno, said, error.filename or str(folder)) from None
    page = _page(folder)
    _finish(run, folder, page, as_json)


def _page(folder: Path) -> Path:
    from lora_evo_cli.report_page import write
    from selfplay.report import run_page, summarised

    page = folder / "report.html"
    with redirect_stdout(sys.stderr):
        write(page, run_page(summarised(folder)))
    return page


def _finish(run: Run, folder: Path, page: Path, as_json: bool) -> None:
    from selfplay.looking import chosen
    from selfplay.recompute import last_summary

    population = run.state.population
    best = {word: chosen(population, word) for word in ("best-teacher", "best-student")}
    found = {"run": str(folder), "report": str(page), "best": best, **last_summary(folder / "journal.jsonl")}
    lines = (
        f"{run.state.step} steps: {folder}",
        f"report: {page}",
        f"best student {best['best-student']}: lora-evo selfplay export {folder} best-student -o student",
    )
    _say(found, "\n".join(lines), as_json)


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends a run as Ctrl-C does: with everything closed."""

    def end(number: int, frame: Any) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _told(problem: dict[str, Any]) -> str:
    """A problem and its answers for people."""
    if problem["status"] != "ok":
        return f"{problem['id']}: no problem ({problem['status']} {problem['reason']})\n{_indented(problem['text'])}"
    head = (
        f"{problem['id']}: solved {problem['rho']:.2f}, pays {problem['reward']:.2f}"
        if problem["rho"] is not None
        else "not judged"
    )
    shown = [head, _indented(problem["program"])]
    shown += [f"  f({x}) = {y}" for x, y in zip(problem["inputs"], problem["outputs"], strict=True)]
    shown += [f"  {problem['message']}"] if problem["message"] else []
    shown += [f"  {answer['status']:12} {' / '.join(answer['text'].strip().splitlines())}" for answer in problem["answers"]]
    return "\n".join(shown)


def _indented(text: str) -> str:
    return "\n".join(f"  | {line}" for line in text.strip("\n").splitlines())


def _say(found: dict[str, Any], text: str, as_json: bool) -> None:
    typer.echo(json.dumps(found) if as_json else text)
