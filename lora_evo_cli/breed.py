"""`lora-evo mutate` and `lora-evo crossover`: from a command line to children in folders."""

import inspect
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lora_evo.errors import AdapterError, OperatorError
from lora_evo_cli import report, show
from lora_evo_cli.options import PANEL, argument, chosen, from_file, overrides, parameter_options, parameters, usable

if TYPE_CHECKING:
    from lora_evo.adapter import Adapter
    from lora_evo.breeding import Plan
    from lora_evo.operators import Operator

Parent = Annotated[str, typer.Argument(metavar="PARENT", help="A PEFT folder or hub id.", show_default=False)]
Parents = Annotated[list[str], typer.Argument(metavar="PARENT", help="PEFT folders or hub ids.", show_default=False)]
Normalize = Annotated[bool, typer.Option("--normalize", help="Divide --weights by their sum.", rich_help_panel=PANEL)]


def _names(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    operators = usable("mutation" if ctx.info_name == "mutate" else "crossover")
    return [(name, op.summary) for name, op in operators.items() if name.startswith(incomplete)]


@dataclass(frozen=True)
class Call:
    """The options that both commands have: typer reads this signature."""

    output: Annotated[Path, typer.Option("--output", "-o", metavar="CHILD", help="The child's folder.", show_default=False)]
    children: Annotated[
        int | None,
        typer.Option(
            "--children", "-n", min=1, metavar="N", help="Breed N children, CHILD-0 to CHILD-(N-1), with seeds SEED, SEED+1, ..."
        ),
    ] = None
    seed: Annotated[
        int | None, typer.Option(min=0, help="The child depends on it and the parents alone. Drawn and told if absent.")
    ] = None
    rank: Annotated[int | None, typer.Option(min=1, help="The child's rank. Default: the parents', or their largest.")] = None
    dtype: Annotated[str | None, typer.Option(help="bfloat16, float16, float32, ... Default: the parents'.")] = None
    modules: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB", help="Act on these modules only; !GLOB leaves out. Others stay the first parent's. Repeatable."
        ),
    ] = None
    override: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB:NAME=VALUE", help="Parameters for some modules: q_proj:drop=0.5; several by commas. Repeatable."
        ),
    ] = None
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", is_eager=True, callback=from_file,
            help="YAML or JSON: option names and values, overrides as a mapping. Options on the command line win.",
        ),
    ] = None  # fmt: skip
    strict: Annotated[bool, typer.Option("--strict", help="Refuse parents whose modules differ.")] = False
    allow_base_mismatch: Annotated[bool, typer.Option("--allow-base-mismatch", help="Breed adapters of different bases.")] = False
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace adapter folders that exist.")] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, write nothing.")] = False
    device: Annotated[str, typer.Option(metavar="cpu|cuda|auto", help="Where the large products run.")] = "cpu"
    threads: Annotated[int | None, typer.Option(min=1, help="Modules computed at once; the child does not depend on it.")] = None
    as_json: show.Json = False
    quiet: show.Quiet = False

    @property
    def folders(self) -> list[Path]:
        """Where the children go."""
        if self.children is None:
            return [self.output]
        return [Path(f"{self.output}-{i}") for i in range(self.children)]


def command(kind: str) -> Callable[..., None]:
    """The function that typer makes a command of: its options are `Call`'s and those of the operators of that kind."""
    op_help = f"The operator: {', '.join(usable(kind))}. Required; `lora-evo ops NAME` explains one."
    op = Annotated[str | None, typer.Option("--op", metavar="NAME", help=op_help, autocompletion=_names)]
    first = [argument("parent", Parent) if kind == "mutation" else argument("parents", Parents), argument("op", op, None)]
    shared = [p.replace(kind=p.KEYWORD_ONLY) for p in inspect.signature(Call).parameters.values()]
    params = parameter_options(kind)
    if kind == "crossover":
        params.append(argument("normalize", Normalize, False))

    def run(**values: Any) -> None:
        call = Call(**{p.name: values.pop(p.name) for p in shared})
        parents = values.pop("parents", None) or [values.pop("parent")]
        normalize = values.pop("normalize", False)
        operator = chosen(kind, values.pop("op"))
        operator.check_parents(len(parents))
        given = _weighted(operator, parameters(operator, values), len(parents), normalize)
        _breed(call, operator, parents, given)

    run.__signature__ = inspect.Signature([*first, *shared, *params])  # type: ignore[attr-defined]
    return run


def _weighted(operator: "Operator", params: dict[str, Any], parents: int, normalize: bool) -> dict[str, Any]:
    """Weights checked against the number of parents, and divided by their sum where that is asked."""
    if normalize:
        operator.param("weights")
    weights = params.get("weights")
    if weights is None:
        return params
    if len(weights) != parents:
        raise OperatorError(f"--weights has {len(weights)} number(s) for {parents} parent(s)")
    if not normalize:
        return params
    if abs(sum(weights)) < 1e-12:
        raise OperatorError(f"--normalize: the weights {show.number(weights)} sum to 0")
    return {**params, "weights": tuple(w / sum(weights) for w in weights)}


def _breed(call: Call, operator: "Operator", parents: list[str], params: dict[str, Any]) -> None:
    """Check everything, then load, plan and breed."""
    local = overrides(operator, call.override or [])
    seed = call.seed if call.seed is not None else secrets.randbelow(2**32)
    from lora_evo.breeding import plan
    from lora_evo.peft_format import load
    from lora_evo.shape import dtype_named

    dtype, device = dtype_named(call.dtype), _device(call.device)
    _check_targets(call, parents)
    if call.seed is None:
        typer.echo(f"lora-evo: seed {seed} drawn", err=True)
    group = [load(parent) for parent in parents]
    show.warn(note for parent in group for note in parent.warnings)
    plans = [
        plan(
            group, operator, seed=seed + i, rank=call.rank, dtype=dtype, modules=call.modules or (), overrides=local,
            strict=call.strict, allow_base_mismatch=call.allow_base_mismatch, **params,
        )
        for i in range(len(call.folders))
    ]  # fmt: skip
    if call.dry_run:
        report.planned(plans, call.folders, as_json=call.as_json, several=call.children is not None)
        return
    children = [_child(call, todo, folder, device) for todo, folder in zip(plans, call.folders, strict=True)]
    report.bred(plans, children, as_json=call.as_json, several=call.children is not None)


def _child(call: Call, todo: "Plan", folder: Path, device: str) -> "tuple[Path, Adapter, float]":
    from lora_evo.breeding import breed_into

    start = perf_counter()
    with show.progress(f"breeding {folder.name}", call.quiet) as progress:
        child = breed_into(todo, folder, force=call.force, device=device, threads=call.threads, progress=progress)
    return folder, child, perf_counter() - start


def _check_targets(call: Call, parents: list[str]) -> None:
    from lora_evo.peft_format.write import check_free

    homes = {Path(parent).resolve() for parent in parents}
    for folder in call.folders:
        check_free(folder, call.force)
        if call.children is not None and folder.resolve() in homes:
            raise AdapterError(f"{folder} is a parent: with -n it cannot be replaced while its other children are bred")


def _device(name: str) -> str:
    if name not in ("cpu", "cuda", "auto"):
        raise OperatorError(f"--device is {name!r}, it must be cpu, cuda or auto")
    if name == "cpu":
        return name
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if name == "cuda":
        raise OperatorError("--device cuda: torch finds no CUDA device here; --device auto falls back to the CPU")
    return "cpu"
