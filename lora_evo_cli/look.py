"""`lora-evo ops`, `inspect` and `compare`: looking without changing anything."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from math import hypot, sqrt
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lora_evo_cli import show

if TYPE_CHECKING:
    from lora_evo.adapter import Adapter
    from lora_evo.measure import ModuleReport
    from lora_evo.operators import Operator

Folder = Annotated[str, typer.Argument(help="A PEFT folder or hub id.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    examples = "[bold]Examples[/bold]\n\n"
    app.command(epilog=f"{examples}$ lora-evo ops\n\n$ lora-evo ops dare")(ops)
    app.command(epilog=f"{examples}$ lora-evo inspect my-lora\n\n$ lora-evo inspect my-lora --json | jq .norm")(inspect)
    app.command(epilog=f"{examples}$ lora-evo compare my-lora child")(compare)


def _operator_names(incomplete: str) -> list[str]:
    from lora_evo.operators import all_operators

    return [name for name in all_operators() if name.startswith(incomplete)]


def ops(
    name: Annotated[
        str | None, typer.Argument(help="One operator: its formula and parameters.", autocompletion=_operator_names)
    ] = None,
    as_json: show.Json = False,
) -> None:
    """List the operators, or explain one."""
    from lora_evo.operators import all_operators, get

    if name is not None:
        op = get(name)
        show.print_json(_described(op)) if as_json else _explain(op)
        return
    kinds = ("mutation", "crossover", "control")
    operators = sorted(all_operators().values(), key=lambda op: (kinds.index(op.kind), op.name))
    if as_json:
        show.print_json({"operators": [_described(op) for op in operators]})
        return
    rows = [[op.name, op.kind, _parents(op), ", ".join(p.name for p in op.params), op.summary] for op in operators]
    show.table(["operator", "kind", "parents", "parameters", "what it does"], rows)


def _parents(op: "Operator") -> str:
    if op.max_parents == op.min_parents:
        return str(op.min_parents)
    return f"{op.min_parents}+" if op.max_parents is None else f"{op.min_parents}-{op.max_parents}"


def _described(op: "Operator") -> dict[str, Any]:
    params = [{**asdict(p), "type": p.type.__name__} for p in op.params]
    facts = {"min_parents": op.min_parents, "max_parents": op.max_parents, "exact": op.exact, "extras": op.extras}
    return {"name": op.name, "kind": op.kind, **facts, "summary": op.summary, "doc": op.doc, "parameters": params}


def _explain(op: "Operator") -> None:
    from lora_evo_cli.options import bounds, shown

    typer.echo(f"{op.name}: {op.kind}, {_parents(op)} parent(s)\n\n{op.doc}\n")
    rows = [["--" + p.name.replace("_", "-"), shown(p.default), p.help + bounds(p), ", ".join(p.choices) or "-"] for p in op.params]
    show.table(["parameter", "default", "meaning", "choices"], rows)
    option = next((f" --{p.name} {shown(p.default)}" for p in op.params if p.type is float and p.default is not None), "")
    verb, parents = ("mutate", "my-lora") if op.kind == "mutation" else ("crossover", "lora-a lora-b")
    typer.echo(f"\nExample: lora-evo {verb} {parents} -o child --op {op.name}{option} --seed 0")


def inspect(adapter: Folder, as_json: show.Json = False, quiet: show.Quiet = False) -> None:
    """Show an adapter's modules: rank, scale, norm, spectrum; and what else it holds."""
    from lora_evo.peft_format import load

    loaded = load(adapter)
    show.warn(loaded.warnings)
    reports = reports_of(loaded, quiet)
    whole = _whole(loaded, reports)
    rows = [{**asdict(report), "alpha": _alpha(loaded, report)} for report in reports]
    if as_json:
        show.print_json({**whole, "by_module": rows})
        return
    show.table(
        ["module", "out x in", "rank", "alpha", "scale", "norm", "top singular values", "eff. rank", "|B|/|A|", "dtype"],
        [
            [r["module"], "{} x {}".format(*r["shape"]), r["rank"], r["alpha"], r["scale"], r["norm"],
             r["spectrum"][:3], r["effective_rank"], r["balance"], r["dtype"]]
            for r in rows
        ],
    )  # fmt: skip
    extras = ", ".join(f"{n} {kind}" for kind, n in whole["extras"].items())
    show.facts(
        [
            ("", " "),
            ("adapter", whole["adapter"]),
            ("base model", whole["base_model"]),
            ("modules", whole["modules"]),
            ("parameters", f"{whole['parameters']:,}"),
            ("size", show.size(whole["bytes"])),
            ("norm", show.number(whole["norm"])),
            ("other tensors", extras),
            ("bred by", whole["operator"]),
        ]
    )


def reports_of(adapter: "Adapter", quiet: bool) -> "list[ModuleReport]":
    """The library's reports, module by module so that progress can be shown."""
    from lora_evo.measure import inspect as look_into

    reports = []
    with show.progress(f"inspecting {adapter.name}", quiet) as tell:
        for i, (name, factors) in enumerate(adapter.modules.items()):
            reports += look_into(replace(adapter, modules={name: factors}))
            if tell:
                tell(i + 1, len(adapter.modules))
    return reports


def _alpha(adapter: "Adapter", report: "ModuleReport") -> float:
    rank = adapter.layout(report.module).config_rank(report.rank)
    return round(report.scale * (sqrt(rank) if adapter.config["use_rslora"] else rank), 9)


def _whole(adapter: "Adapter", reports: "list[ModuleReport]") -> dict[str, Any]:
    tensors = [t for f in adapter.modules.values() for t in (f.A, f.B)] + [e.tensor for e in adapter.extras.values()]
    return {
        "adapter": adapter.name,
        "files": list(adapter.source),
        "base_model": adapter.config["base_model_name_or_path"],
        "modules": len(reports),
        "parameters": sum(t.numel() for t in tensors),
        "bytes": adapter.nbytes,
        "norm": hypot(*(r.norm for r in reports)),
        "extras": dict(Counter(extra.kind for extra in adapter.extras.values())),
        "ties": dict(adapter.ties),
        "operator": adapter.lineage.operator if adapter.lineage else None,
        "warnings": list(adapter.warnings),
    }


def compare(a: Folder, b: Folder, as_json: show.Json = False, quiet: show.Quiet = False) -> None:
    """Compare two adapters by module and in total: cosine, relative difference, principal angles."""
    from lora_evo.measure import compare as measured
    from lora_evo.peft_format import load

    first, second = load(a), load(b)
    show.warn((*first.warnings, *second.warnings))
    with show.waiting(f"comparing {first.name} and {second.name}", quiet):
        rows, total = measured(first, second)
    angles = {side: sorted(a for row in rows for a in getattr(row, side)) for side in ("column_angles", "row_angles")}
    only = [sorted(x.modules.keys() - y.modules.keys()) for x, y in ((first, second), (second, first))]
    whole = {"cosine": total.parent_cosines[0], "difference": total.relative_change}
    if as_json:
        counts = {"matched": len(rows), "only_in_a": only[0], "only_in_b": only[1]}
        show.print_json(
            {"a": first.name, "b": second.name, **whole, **angles, **counts, "by_module": [asdict(row) for row in rows]}
        )
        return
    show.table(
        ["module", "cosine", "difference", "column angles", "row angles"],
        [[r.module, r.cosine, r.difference, _range(r.column_angles), _range(r.row_angles)] for r in rows],
    )
    show.facts(
        [
            ("", " "),
            ("cosine", show.number(whole["cosine"])),
            ("difference", f"{show.number(whole['difference'])} (|b - a| / |a|)"),
            *((side.replace("_", " "), _range(both)) for side, both in angles.items()),
            ("modules", f"{len(rows)} matched, {len(only[0]) + len(only[1])} unmatched"),
            (f"only in {first.name}", ", ".join(only[0][:3]) + (", ..." if len(only[0]) > 3 else "")),
            (f"only in {second.name}", ", ".join(only[1][:3]) + (", ..." if len(only[1]) > 3 else "")),
        ]
    )


def _range(angles: Sequence[float]) -> str:
    return f"{angles[0]:.1f} to {angles[-1]:.1f} deg" if angles else "-"
