"""From verdicts to figures: each member with intervals, and the population as mean, best, worst and best as chosen elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from selfplay.exams.metrics import halves, interval, pass_at_k
from selfplay.exams.run import Exam, Graded, Paper
from selfplay.referee import Status, Verdict

BASE = "base"
"""What the base is called in tables."""
Figure = dict[str, Any]


def results(exam: Exam, graded: Graded, texts: Mapping[Any, Mapping[str, Any]]) -> dict[str, Any]:
    """Everything that was found, ready for JSON."""
    return {"exam": exam.as_dict(), "suites": {p.suite.name: of_suite(exam, p, graded, texts) for p in exam.papers}}


def of_suite(exam: Exam, paper: Paper, graded: Graded, texts: Mapping[Any, Mapping[str, Any]]) -> dict[str, Any]:
    """One suite's figures. A question on which the referee failed for anybody counts for nobody, and is named with the reason."""
    name, ks, seed = paper.suite.name, exam.plan.ks, exam.plan.seed
    verdicts = {member: [graded[name, q.id, member] for q in paper.questions] for member in exam.takers}
    excluded = _excluded(paper, verdicts)
    kept = [i for i, q in enumerate(paper.questions) if q.id not in excluded]
    ids = [paper.questions[i].id for i in kept]
    right = {m: [sum(v.ok for v in of[i]) for i in kept] for m, of in verdicts.items()}
    values = {k: {m: [pass_at_k(exam.plan.samples, c, k) for c in of] for m, of in right.items()} for k in ks}
    members = {
        member or BASE: {
            **{f"pass@{k}": figure(values[k][member], seed) for k in ks},
            "cut_off": _share(texts[name, i, member, j]["finish"] == "length" for i in ids for j in range(exam.plan.samples)),
            "tokens": sum(texts[name, i, member, j]["tokens"] for i in ids for j in range(exam.plan.samples)),
            "verdicts": dict(Counter(v.status.value for i in kept for v in verdicts[member][i]).most_common()),
        }
        for member in exam.takers
    }
    adapters = list(exam.members)
    return {
        "questions": len(ids),
        "excluded": excluded,
        "style": exam.style_of(paper.suite),
        "members": members,
        "population": population({k: {m: values[k][m] for m in adapters} for k in ks}, ids, seed) if len(adapters) > 1 else None,
        "solved": {"ids": ids, **{member or BASE: right[member] for member in exam.takers}},
        "imports_refused": _imports(v for of in verdicts.values() for i in kept for v in of[i]),
    }


def figure(values: Sequence[float], seed: int) -> Figure:
    """A mean over problems and its 95 % interval; None where there is no problem."""
    if not values:
        return {"mean": None, "low": None, "high": None}
    low, high = interval(values, seed)
    return {"mean": sum(values) / len(values), "low": low, "high": high}


def population(values: Mapping[int, Mapping[str, Sequence[float]]], ids: Sequence[str], seed: int) -> dict[str, Any]:
    """The rows of a population.

    `best` and `worst` are told by the very problems they are reported on, so they are extremes, not estimates. `chosen` is the
    member that is best on one half of the problems, reported on the other half. All are by pass@k of the smallest k.
    """
    first = values[min(values)]
    names = list(first)
    mean = {name: sum(first[name]) for name in names}
    pick, report = halves(ids, seed)
    elected = max(names, key=lambda name: sum(first[name][i] for i in pick))
    best, worst = max(names, key=mean.__getitem__), min(names, key=mean.__getitem__)
    averaged = {k: [sum(column) / len(names) for column in zip(*of.values(), strict=True)] for k, of in values.items()}
    return {
        "mean": {f"pass@{k}": figure(averaged[k], seed) for k in values},
        "best": {"member": best, **{f"pass@{k}": figure(of[best], seed) for k, of in values.items()}},
        "worst": {"member": worst, **{f"pass@{k}": figure(of[worst], seed) for k, of in values.items()}},
        "chosen": {
            "member": elected,
            "chosen_on": len(pick),
            "reported_on": len(report),
            **{f"pass@{k}": figure([of[elected][i] for i in report], seed) for k, of in values.items()},
        },
    }


def markdown(found: Mapping[str, Any]) -> str:
    """The tables as Markdown."""
    lines: list[str] = []
    for name, suite in found["suites"].items():
        columns = [f"pass@{k}" for k in found["exam"]["ks"]]
        left = f", {len(suite['excluded'])} left out" if suite["excluded"] else ""
        lines += [f"## {name}", "", f"{suite['questions']} questions{left}, {suite['style']} prompts.", ""]
        lines += ["| | " + " | ".join(columns) + " | cut off | no answer |", "|---|" + "---|" * (len(columns) + 2)]
        lines += [f"| {_row(*row, columns)} |" for row in rows(suite)]
        lines += ["", *(f"Left out: {id}: {reason}." for id, reason in suite["excluded"].items())]
        if suite["imports_refused"]:
            lines.append("Imports that are not to be had here: " + _counted(suite["imports_refused"]) + ".")
        lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def rows(suite: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """The rows of a suite's table: label and figures."""
    found = [(str(name), of) for name, of in suite["members"].items()]
    of = suite["population"]
    if of is not None:
        chosen = of["chosen"]
        found += [("**population**, mean", of["mean"])]
        found += [(f"**population**, {which}: {of[which]['member']}", of[which]) for which in ("best", "worst")]
        label = f"**population**, best on {chosen['chosen_on']} questions, reported on the other {chosen['reported_on']}"
        found.append((f"{label}: {chosen['member']}", chosen))
    return found


def _row(label: str, of: Mapping[str, Any], columns: Sequence[str]) -> str:
    cells = [shown(of[column]) for column in columns]
    more = ["", ""]
    if "verdicts" in of:
        total = sum(of["verdicts"].values())
        silent = of["verdicts"].get(Status.BAD_FORMAT.value, 0)
        more = [f"{100 * of['cut_off']:.0f} %" if total else "", f"{100 * silent / total:.0f} %" if total else ""]
    return " | ".join([label, *cells, *more])


def shown(figure: Figure) -> str:
    """A figure in per cent with its interval."""
    if figure["mean"] is None:
        return "no questions"
    return f"{100 * figure['mean']:.1f} [{100 * figure['low']:.1f}, {100 * figure['high']:.1f}]"


def _excluded(paper: Paper, verdicts: Mapping[str | None, Sequence[Sequence[Verdict]]]) -> dict[str, str]:
    found = {}
    for i, question in enumerate(paper.questions):
        failed = [v for of in verdicts.values() for v in of[i] if v.blameless]
        if failed:
            found[question.id] = failed[0].reason
    return found


def _imports(verdicts: Any) -> dict[str, int]:
    """How many answers failed for a module that is not there, by what the verdict says."""
    missing = [v.reason for v in verdicts if v.reason.startswith(("ModuleNotFoundError", "ForbiddenImport", "ImportError"))]
    return dict(Counter(missing).most_common())


def _counted(found: Mapping[str, int]) -> str:
    return "; ".join(f"{what} ({count})" for what, count in found.items())


def _share(flags: Any) -> float:
    found = list(flags)
    return sum(found) / len(found) if found else 0.0
