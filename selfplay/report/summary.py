"""From a run folder to the plain summary that a page is made of. Lists over steps have one place for each finished step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from selfplay.archive import FEATURES
from selfplay.report import reading
from selfplay.report.problems import ANSWER_COLUMNS, COLUMNS, LIMIT, Problems
from selfplay.report.reading import Event, ReportError
from selfplay.report.tally import Mean, Tally, plain

Values = Sequence[float | None]

ROLES = ("teacher", "student")
UPDATE_FIELDS = ("grad_norm", "entropy", "clipped", "dead", "mismatch", "truncated", "kl")
OUTCOMES = {
    "teacher": ("solved less than half", "solved half and more", "solved always", "solved never", "invalid", "not judged"),
    "student": ("right", "wrong", "malformed", "not judged"),
}
VERDICTS_SHOWN = 7
"""Beyond so many kinds of verdict, the rarest become `others`."""


def summarised(run: Path, problems: int = LIMIT) -> dict[str, Any]:
    """What a run's page shows.

    Args:
        run: its folder, or its journal.
        problems: how many proposals at most come along with their texts.

    Raises:
        ReportError: if there is no journal, or it is damaged.
    """
    tally, timings = counted(run, problems), reading.timings(run)
    steps = [event["step"] for event in tally.steps]
    summary = {
        "name": run.resolve().name,
        "run": facts(tally),
        "members": members(tally),
        "steps": steps,
        "series": series(tally, timings),
        "pairs": pairs(tally),
        "ratings": ratings(tally),
        "mix": {
            "outcomes": {role: mix(tally.outcomes, role, steps, OUTCOMES[role]) for role in ROLES},
            "verdicts": {role: mix(tally.verdicts, role, steps, common(tally.verdicts, role)) for role in ROLES},
        },
        "updates": updates(tally),
        "tokens": tokens(tally),
        "phases": phases(timings, steps),
        "problems": {
            "columns": COLUMNS,
            "answers": ANSWER_COLUMNS,
            "rows": tally.problems.rows(steps[-1] if steps else 0),
            "seen": tally.problems.count(steps[-1] if steps else 0),
        },
    }
    summary["figures"] = figures(summary)
    made: dict[str, Any] = plain(summary)
    return made


def counted(run: Path, problems: int) -> Tally:
    """The tally of a run's journal.

    Raises:
        ReportError: see `summarised`.
    """
    path, tally = reading.journal_of(run), Tally(Problems(problems))
    for number, event in reading.lines(path):
        try:
            tally.add(event)
        except KeyError as error:
            kind = event.get("event", "")
            raise ReportError(f"{path}, line {number}: {f'the {kind} event' if kind else 'it'} lacks {error}") from None
        except (TypeError, ValueError, AttributeError) as error:
            raise ReportError(f"{path}, line {number}: the {event['event']} event is not of its form: {error}") from None
        if tally.start is None:
            raise ReportError(
                f"{path}, line {number}: the first event is {event['event']!r}, not 'start'; this is no journal of a run"
            )
    if tally.start is None:
        raise ReportError(f"{path}: empty; the run has not begun yet")
    return tally


def facts(tally: Tally) -> dict[str, Any]:
    """What was chosen, and how far it is."""
    start = tally.start or {}
    return {
        "version": start.get("version"),
        "base": start.get("base", {}).get("name"),
        "digest": start.get("base", {}).get("digest"),
        "config": start.get("config", {}),
        "seed": start.get("config", {}).get("seed"),
        "planned": start.get("config", {}).get("steps"),
        "ended": tally.ended,
    }


def members(tally: Tally) -> list[dict[str, Any]]:
    """Everyone who ever lived; a single agent's role is `both`. `place` is a founder's number, and that of all who follow it."""
    start = tally.start or {}
    alone = start.get("config", {}).get("population", {}).get("single_agent")
    found: dict[str, dict[str, Any]] = {}
    for one in start.get("members", []):
        founder: dict[str, Any] = {
            "role": "both" if alone else one["role"],
            "place": len(found),
            "born": 0,
            "died": None,
            "parents": [],
        }
        found.setdefault(one["name"], {"name": one["name"], **founder})
    for event in tally.replacements:
        victim, how = found[event["victim"]], ("operator", "fallback", "kept_energy", "relative_change", "parent_cosines")
        victim["died"] = event["step"]
        child = {"name": event["child"], "role": event["role"], "place": victim["place"], "born": event["step"], "died": None}
        found[event["child"]] = {**child, "parents": event["parents"], **{name: event.get(name) for name in how}}
    return list(found.values())


def series(tally: Tally, timings: Iterable[Event] = ()) -> dict[str, list[float | None]]:
    """Everything that is one number a step. `tokens` (completions) and `seconds` count up from the start."""
    steps = tally.steps
    numbers = [event["step"] for event in steps]
    found = {name: [event[name] for event in steps] for name in ("solve_rate", "valid", "coverage")}
    for i, feature in enumerate(FEATURES):
        found[feature] = [event["complexity"][i] if event.get("complexity") else None for event in steps]
    for kind in sorted({kind for kind, _ in tally.kinds}):
        found[f"solve_{kind}"] = [_value(tally.kinds.get((kind, step))) for step in numbers]
    roles = {member["name"]: member["role"] for member in members(tally)}
    for role in ROLES:
        found[f"reward_{role}"] = [_value(tally.rewards.get((role, step))) for step in numbers]
        found[f"rating_{role}"] = [_mean(mu for m, (mu, _) in e["ratings"].items() if roles.get(m) == role) for e in steps]
    found["tokens"] = [sum(cost["completion_tokens"] for cost in event["cost_by_member"].values()) for event in steps]
    found["seconds"] = _running({row["step"]: row.get("total") for row in timings}, numbers)
    return {name: values for name, values in found.items() if any(value is not None for value in values)}


def pairs(tally: Tally) -> dict[str, Any]:
    """Mean solve rate of each (teacher, student) over the problems between them, and how many problems and matches there were."""
    order = [member["name"] for member in members(tally)]
    met = set(tally.pairs) | set(tally.matches)
    teachers, students = ([name for name in order if any(name == pair[i] for pair in met)] for i in (0, 1))
    return {
        "teachers": teachers,
        "students": students,
        "solve": [[_value(tally.pairs.get((t, s))) for s in students] for t in teachers],
        "problems": [[tally.pairs[t, s].count if (t, s) in tally.pairs else 0 for s in students] for t in teachers],
        "matches": [[tally.matches[t, s] for s in students] for t in teachers],
    }


def ratings(tally: Tally) -> dict[str, dict[str, Any]]:
    """Each member's mu and sigma after each step of its life."""
    names = dict.fromkeys(name for event in tally.steps for name in event["ratings"])
    return {name: lifelong([e["ratings"].get(name) for e in tally.steps], ("mu", "sigma")) for name in names}


def lifelong(rows: Sequence[Any], fields: Sequence[str]) -> dict[str, Any]:
    """Columns over the steps of a life: `from` is the place of its first step; a row is a value for each field, or None."""
    held = [i for i, row in enumerate(rows) if row is not None]
    lived = rows[held[0] : held[-1] + 1] if held else []
    columns = {name: [None if row is None else row[k] for row in lived] for k, name in enumerate(fields)}
    return {"from": held[0] if held else 0, **columns}


def common(counts: Mapping[tuple[str, str, int], int], role: str) -> list[str]:
    """The labels of a role, `ok` first, then the most frequent, then `others` if there are many."""
    totals: dict[str, int] = {}
    for (of, label, _), count in counts.items():
        if of == role:
            totals[label] = totals.get(label, 0) + count
    order = sorted(totals, key=lambda label: (label != "ok", -totals[label], label))
    return order if len(order) <= VERDICTS_SHOWN else [*order[: VERDICTS_SHOWN - 1], "others"]


def mix(counts: Mapping[tuple[str, str, int], int], role: str, steps: Sequence[int], labels: Sequence[str]) -> dict[str, list[int]]:
    """Counts of each label in each step; labels that never occur are left out, those not named count as `others`."""
    place, found = {step: i for i, step in enumerate(steps)}, {label: [0] * len(steps) for label in labels}
    for (of, label, step), count in counts.items():
        if of == role and step in place:
            found[label if label in found else "others"][place[step]] += count
    return {label: values for label, values in found.items() if any(values)}


def updates(tally: Tally) -> dict[str, Any]:
    """Figures of updates, by member, and by role as mean, lowest and highest of its members. `dead` is the share of groups."""
    numbers = {event["step"]: i for i, event in enumerate(tally.steps)}
    rows: dict[str, list[Any]] = {}
    for event in tally.updates:
        if event["step"] in numbers:
            rows.setdefault(event["member"], [None] * len(numbers))[numbers[event["step"]]] = _update(event)
    role = {member["name"]: member["role"] for member in members(tally)}
    grouped = {of: [rows[name] for name in rows if role.get(name) == of] for of in dict.fromkeys(role.values())}
    roles = {of: {name: spread(own, k, len(numbers)) for k, name in enumerate(UPDATE_FIELDS)} for of, own in grouped.items() if own}
    return {"roles": roles, "members": {name: lifelong(row, UPDATE_FIELDS) for name, row in rows.items()}}


def spread(rows: Sequence[Sequence[Any]], field: int, length: int) -> dict[str, list[float | None]]:
    """Mean, lowest and highest of a field over members, at each of `length` steps."""
    found: dict[str, list[float | None]] = {"mean": [], "low": [], "high": []}
    for i in range(length):
        values = [row[i][field] for row in rows if row[i] is not None and row[i][field] is not None]
        found["mean"].append(_mean(values))
        found["low"].append(min(values, default=None))
        found["high"].append(max(values, default=None))
    return found


def tokens(tally: Tally) -> dict[str, dict[str, Any]]:
    """Completion tokens of each living member, counted up from its birth."""
    names = dict.fromkeys(name for event in tally.steps for name in event["ratings"])
    costs = [{name: event["cost_by_member"].get(name) for name in event["ratings"]} for event in tally.steps]
    rows = {name: [_spent(cost.get(name)) for cost in costs] for name in names}
    return {name: lifelong(row, ("tokens",)) for name, row in rows.items()}


def phases(timings: Iterable[Event], steps: Sequence[int]) -> dict[str, list[float | None]]:
    """Seconds of each phase in each step; `total` is left out."""
    rows = {row.get("step"): row for row in timings}
    names = dict.fromkeys(name for row in rows.values() for name in row if name not in ("step", "total"))
    return {name: [rows.get(step, {}).get(name) for step in steps] for name in names} if rows else {}


def figures(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The key figures. `recent` is the mean of the last steps, `early` that of the first; `window` says of how many."""
    series, steps = summary["series"], summary["steps"]
    window = max(1, min(10, len(steps) // 2))
    found: dict[str, Any] = {"window": window, "steps": len(steps), "proposals": summary["problems"]["seen"]}
    for name in ("solve_rate", "valid"):
        values = series.get(name, [])
        found[name] = {"recent": _mean(values[-window:]), "early": _mean(values[:window])}
    for name in ("coverage", "tokens", "seconds"):
        found[name] = series[name][-1] if name in series else None
    living = [member for member in summary["members"] if member["died"] is None]
    found["living"] = {role: sum(1 for m in living if m["role"] == role) for role in dict.fromkeys(m["role"] for m in living)}
    found["replaced"] = len(summary["members"]) - len(living)
    return found


def _update(event: Event) -> list[float | None] | None:
    if event.get("skipped"):
        return None
    dead = event["dead_groups"] / event["groups"] if event.get("groups") else None
    return [dead if name == "dead" else event.get(name) for name in UPDATE_FIELDS]


def _spent(cost: Mapping[str, Any] | None) -> list[int] | None:
    return None if cost is None else [cost["completion_tokens"]]


def _value(mean: Mean | None) -> float | None:
    return None if mean is None else mean.value


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _running(of: Mapping[int, float | None], steps: Sequence[int]) -> list[float | None]:
    """Sums up to each step; None where there is nothing to sum."""
    total, found = 0.0, list[float | None]()
    for step in steps:
        total += of.get(step) or 0.0
        found.append(total)
    return found if any(of.values()) else [None] * len(steps)
