"""Several runs side by side: those that differ in nothing but the seed become one line with a band."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from selfplay.archive import FEATURES
from selfplay.report.reading import ReportError
from selfplay.report.summary import ROLES, UPDATE_FIELDS, summarised
from selfplay.report.tally import plain

Curve = list[float | None]
POINTS = 200
"""On an axis of tokens, where the runs of a group have no points in common."""
IGNORED = ("seed", "device", "writers", "referee", "checkpoint")
"""What may differ in one group: none of it changes the game."""


def compared(runs: Sequence[Path]) -> dict[str, Any]:
    """What the page of a comparison shows.

    Raises:
        ReportError: for fewer than two runs, for a run without a finished step, and as `summarised`.
    """
    if len(runs) < 2:
        raise ReportError("compare needs at least two runs; `report` shows one")
    summaries = [summarised(run, problems=0) for run in runs]
    for run, summary in zip(runs, summaries, strict=True):
        if not summary["steps"]:
            raise ReportError(f"{run}: no finished step yet, so there is nothing to compare")
    groups = grouped(summaries)
    labels = labelled([summaries[own[0]] for own in groups])
    lines = [{"label": label, **group([summaries[i] for i in own])} for label, own in zip(labels, groups, strict=True)]
    rows = [row(summaries[i], label) for label, own in zip(labels, groups, strict=True) for i in own]
    made: dict[str, Any] = plain({"groups": lines, "runs": rows})
    return made


def grouped(summaries: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """Places of runs with the same rules and base, in order of appearance."""
    found: dict[str, list[int]] = {}
    for i, summary in enumerate(summaries):
        run = summary["run"]
        rules = {key: value for key, value in run["config"].items() if key not in IGNORED}
        found.setdefault(json.dumps([rules, run["digest"]], sort_keys=True), []).append(i)
    return list(found.values())


def labelled(summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for each: what differs between their configurations, or the folder's name if that says nothing."""
    flat = [_flat(summary["run"]["config"]) for summary in summaries]
    keys = dict.fromkeys(key for one in flat for key in one)
    telling = [k for k in keys if k.partition(".")[0] not in IGNORED and len({json.dumps(one.get(k)) for one in flat}) > 1]
    short = {
        k: k.rpartition(".")[2] if [x.rpartition(".")[2] for x in telling].count(k.rpartition(".")[2]) == 1 else k for k in telling
    }
    names = [", ".join(f"{short[key]}={_brief(one.get(key))}" for key in telling[:4]) for one in flat]
    return [name if name and names.count(name) == 1 else summary["name"] for name, summary in zip(names, summaries, strict=True)]


def curves(summary: Mapping[str, Any]) -> dict[str, Curve]:
    """All that is one number a step, updates by role among them."""
    found: dict[str, Curve] = dict(summary["series"])
    for role, fields in summary["updates"]["roles"].items():
        means = {name: fields[name]["mean"] for name in UPDATE_FIELDS}
        found |= {f"{name}_{role}": mean for name, mean in means.items() if any(mean) or (name != "kl" and set(mean) != {None})}
    return found


def group(summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One line of each curve over both axes, as far as the shortest run goes: mean, lowest and highest over the seeds."""
    length = min(len(summary["steps"]) for summary in summaries)
    steps = summaries[0]["steps"][:length]
    found = [{name: curve[:length] for name, curve in curves(summary).items()} for summary in summaries]
    shared = [name for name in found[0] if all(name in one for one in found)]
    spent = [_numbers(one["tokens"]) for one in found]
    grid = shared_axis(spent)
    return {
        "seeds": [summary["run"]["seed"] for summary in summaries],
        "runs": [summary["name"] for summary in summaries],
        "steps": {"x": steps, **{name: band([one[name] for one in found]) for name in shared}},
        "tokens": {"x": grid.tolist()}
        | {name: band([onto(grid, s, one[name]) for s, one in zip(spent, found, strict=True)]) for name in shared},
    }


def shared_axis(spent: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Amounts of tokens that all runs have been at: those of a lone run, else evenly spaced ones."""
    if len(spent) == 1:
        return spent[0]
    low, high = max(run[0] for run in spent), min(run[-1] for run in spent)
    return np.linspace(low, max(low, high), POINTS)


def band(over: Sequence[Sequence[float | None]]) -> dict[str, Curve]:
    """Mean, lowest and highest at each place of curves of one length, over those that have a value there."""
    found: dict[str, Curve] = {"mean": [], "low": [], "high": []}
    for values in zip(*over, strict=True):
        known = [value for value in values if value is not None]
        found["mean"].append(sum(known) / len(known) if known else None)
        found["low"].append(min(known, default=None))
        found["high"].append(max(known, default=None))
    return found


def onto(grid: np.ndarray[Any, Any], x: np.ndarray[Any, Any], y: Sequence[float | None]) -> Curve:
    """A curve at other places, straight between its points; places without a value are passed over, beyond its ends is None."""
    values = _numbers(y)
    known = ~np.isnan(values)
    if not known.any():
        return [None] * len(grid)
    at = np.interp(grid, x[known], values[known], left=np.nan, right=np.nan)
    return [None if np.isnan(value) else float(value) for value in at]


def row(summary: Mapping[str, Any], label: str) -> dict[str, Any]:
    """A run's line in the table."""
    of, last = summary["figures"], {name: summary["series"][name][-1] for name in FEATURES if name in summary["series"]}
    named = {"name": summary["name"], "group": label, "seed": summary["run"]["seed"], "planned": summary["run"]["planned"]}
    shares = {name: of[name]["recent"] for name in ("solve_rate", "valid")}
    rest = {name: of[name] for name in ("window", "steps", "coverage", "tokens", "seconds", "replaced")}
    return {**named, **shares, **rest, **last}


def charts() -> list[dict[str, Any]]:
    """Which curves are drawn where: section, title, unit of the axis, curves."""
    shares = {"clipped", "dead", "truncated"}
    names = {"grad_norm": "Gradient norm", "entropy": "Entropy", "clipped": "Clipped tokens", "dead": "Groups without a signal"}
    names |= {"mismatch": "Trainer against sampler", "truncated": "Completions cut off", "kl": "Divergence from the base"}
    units = {
        "grad_norm": "norm before clipping",
        "entropy": "nats per token",
        "mismatch": "|Δ log p| per token",
        "kl": "nats per token",
    }
    found = [
        _chart("Learning", "Solve rate", "share of answers", "solve_rate", share=True),
        *(_chart("Learning", f"Solve rate, {k}", "share of answers", f"solve_{k}", share=True) for k in _kinds()),
        _chart("Learning", "Valid proposals", "share of proposals", "valid", share=True),
        _chart("Learning", "Coverage", "share of archive cells", "coverage", share=True),
    ]
    of = {"ast_depth": "AST depth", "cyclomatic": "Cyclomatic complexity", "lines": "Lines of code", "variables": "Variables"}
    found += [_chart("Complexity", title, "mean of valid problems", name) for name, title in of.items()]
    for role in ROLES:
        found.append(_chart("Members", f"Rating of {role}s", "mean μ of the living", f"rating_{role}"))
        found.append(_chart("Members", f"Reward of {role}s", "mean reward", f"reward_{role}"))
    for name in UPDATE_FIELDS:
        for role in (*ROLES, "both"):
            of_whom = "" if role == "both" else f", {role}s"
            found.append(_chart("Updates", names[name] + of_whom, units.get(name, "share"), f"{name}_{role}", share=name in shares))
    found.append(_chart("Cost", "Completion tokens", "tokens since the start", "tokens"))
    found.append(_chart("Cost", "Time", "seconds since the start", "seconds"))
    return found


def _kinds() -> list[str]:
    from selfplay.tasks import all_tasks

    return list(all_tasks())


def _chart(section: str, title: str, unit: str, curve: str, share: bool = False) -> dict[str, Any]:
    return {"section": section, "title": title, "unit": unit, "curve": curve, "share": share}


def _numbers(values: Sequence[float | None]) -> np.ndarray[Any, Any]:
    return np.array([np.nan if value is None else value for value in values], dtype=float)


def _flat(tree: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= _flat(value, f"{where}{key}.") if isinstance(value, Mapping) else {f"{where}{key}": value}
    return found


def _brief(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 30 else f"{text[:27]}..."
