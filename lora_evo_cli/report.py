"""What `mutate` and `crossover` say: before breeding under `--dry-run`, and after it."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lora_evo_cli import show

if TYPE_CHECKING:
    from lora_evo.adapter import Adapter
    from lora_evo.breeding import Plan

Bred = tuple[Path, "Adapter", float]


def planned(plans: "Sequence[Plan]", folders: Sequence[Path], *, as_json: bool, several: bool) -> None:
    """What a dry run prints."""
    children = [{**_call(todo), "folder": str(folder)} for todo, folder in zip(plans, folders, strict=True)]
    if as_json:
        whole = {"dry_run": True, **_form(plans[0])}
        show.print_json({**whole, "children": children} if several else {**whole, **children[0]})
        return
    done = ("dry run", "nothing was written")
    if several:
        _several(plans[0], children, [], [done])
    else:
        show.facts([*_facts(plans[0]), *_child_facts(children[0]), done])


def bred(plans: "Sequence[Plan]", children: Sequence[Bred], *, as_json: bool, several: bool) -> None:
    """What a bred child, or several, looks like."""
    entries = [_child(todo, *child) for todo, child in zip(plans, children, strict=True)]
    if as_json:
        form = {**_form(plans[0]), "parents": _parents(plans[0], children[0][1])}
        show.print_json({**form, "children": entries} if several else {**form, **entries[0]})
        return
    if several:
        _several(plans[0], entries, ["relative change", "cosines", "kept energy", "norm"], [])
        return
    measures = entries[0]["measures"]
    show.facts(
        [
            *_facts(plans[0]),
            *_child_facts(entries[0]),
            ("relative change", show.number(measures["relative_change"])),
            ("parent cosines", show.number(measures["parent_cosines"])),
            ("kept energy", show.number(measures["kept_energy"])),
            ("norm", show.number(measures["norm"])),
            ("seconds", f"{entries[0]['seconds']:.2f}"),
        ]
    )


def _several(todo: "Plan", children: Sequence[dict[str, Any]], measured: Sequence[str], more: show.Facts) -> None:
    """What the children share, then a line for each: its seed, the parameters drawn for it, its measures."""
    drawn = [name for name, value in todo.params.items() if any(c["params"][name] != value for c in children)]
    shared = {name: value for name, value in todo.params.items() if name not in drawn}
    show.facts([*_facts(todo), ("parameters", show.settings(shared)), *more])
    rows = [[c["folder"], c["seed"], *(c["params"][n] for n in drawn), *c.get("measures", {}).values()] for c in children]
    show.table(["child", "seed", *drawn, *measured], rows)


def _child(todo: "Plan", folder: Path, child: "Adapter", seconds: float) -> dict[str, Any]:
    assert child.measures is not None
    return {**_call(todo), "folder": str(folder), "measures": asdict(child.measures), "seconds": round(seconds, 3)}


def _parents(todo: "Plan", child: "Adapter") -> list[dict[str, Any]]:
    assert child.lineage is not None
    remembered = zip(todo.parents, child.lineage.parents, strict=True)
    return [{"name": p.name, "sha256": r.sha256, "files": list(p.source)} for p, r in remembered]


def _call(todo: "Plan") -> dict[str, Any]:
    return {"seed": todo.seed, "params": todo.params}


def _form(todo: "Plan") -> dict[str, Any]:
    """What all children of a call have in common: operator, parents, modules and how they are stored."""
    shape = todo.shape
    extras = sum(extra.tensor.nbytes for extra in todo.extras.values())
    sizes = {name: f.A.nbytes + f.B.nbytes for name, f in shape.sizes.items()}
    return {
        "operator": todo.operator.name,
        "parents": [{"name": p.name, "files": list(p.source)} for p in todo.parents],
        "overrides": todo.overrides,
        "patterns": list(todo.patterns),
        "modules": len(shape.ranks),
        "matched": len(shape.ranks) - len(todo.missing),
        "unmatched": {name: list(lacking) for name, lacking in todo.missing.items()},
        "bred": len(todo.bred),
        "extras": len(todo.extras),
        "ranks": _distinct(shape.ranks.values()),
        "scales": _distinct(shape.scales.values()),
        "dtypes": sorted({str(dtype).removeprefix("torch.") for pair in shape.dtypes.values() for dtype in pair}),
        "bytes": sum(sizes.values()) + sum(sizes[embedding] for embedding in shape.ties.values()) + extras,
    }


def _child_facts(child: dict[str, Any]) -> show.Facts:
    return [("parameters", show.settings(child["params"])), ("seed", child["seed"]), ("folder", child["folder"])]


def _facts(todo: "Plan") -> show.Facts:
    form = _form(todo)
    left = form["modules"] - form["bred"]
    modules = f"{form['matched']} matched, {len(form['unmatched'])} unmatched"
    unmatched = [f"{name} (not in {', '.join(lacking)})" for name, lacking in list(form["unmatched"].items())[:3]]
    if len(form["unmatched"]) > 3:
        unmatched.append("...")
    return [
        ("operator", form["operator"]),
        ("parents", ", ".join(p["name"] for p in form["parents"])),
        ("modules", f"{modules}; {left} left as in {todo.parents[0].name}" if left else modules),
        ("unmatched", ", ".join(unmatched)),
        ("overrides", "; ".join(f"{glob}: {show.settings(dict(some))}" for glob, some in todo.overrides.items())),
        ("other tensors", form["extras"] or None),
        ("rank", show.number(form["ranks"])),
        ("scale", show.number(form["scales"])),
        ("dtype", show.number(form["dtypes"])),
        ("size", show.size(form["bytes"])),
    ]


def _distinct(values: Iterable[Any]) -> list[Any]:
    return sorted(set(values))
