"""Judging programs without letting them near what judges them.

A program runs in a process of its own, is called, and hands plain values over. Expected values, tests and assertions live
elsewhere: in this process, or, where a suite's tests are a script, in another of the referee's processes, in which the program is
replaced by a table of what it returned. So there is nothing that a program could patch, exit from, print or compare to pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from selfplay.referee import Referee, Run, Status, Verdict

CALLS = """
import sys

def plain(x):
    for kind in (bool, int, float, complex, str, bytes):
        if isinstance(x, kind):
            return kind(x)
    if isinstance(x, dict):
        return {plain(k): plain(v) for k, v in x.items()}
    for kind in (list, tuple, set, frozenset):
        if isinstance(x, kind):
            return kind([plain(y) for y in x])
    return x

def f(source, entry, calls, view):
    space = {"__name__": "program"}
    exec(compile(source, "program", "exec"), space)
    function = space[entry] if entry in space else getattr(space["Solution"](), entry)
    found = [function(*arguments) for arguments in calls]
    if view == "exists":
        found = [x if isinstance(x, bool) else x is not None for x in found]
    return plain(found)
"""
"""Call a program. Subclasses of plain types, Counter say, become what they equal; nothing else is let through."""

TESTS = """
import copy
import random

class Asked(BaseException):
    pass

def key(x):
    kind = type(x)
    if kind is list or kind is tuple:
        return kind.__name__ + "(" + ",".join(map(key, x)) + ")"
    if kind is set or kind is frozenset:
        return kind.__name__ + "(" + ",".join(sorted(map(key, x))) + ")"
    if kind is dict:
        return "dict(" + ",".join(key(k) + ":" + key(v) for k, v in x.items()) + ")"
    return repr(x)

def f(setup, tests, entry, table):
    random.seed(0)
    space = {"__name__": "tests"}
    exec(compile(setup, "setup", "exec"), space)
    calls, real = [], space.get(entry)
    known = None if table is None else {key(arguments): value for arguments, value in table}

    def candidate(*arguments):
        if known is not None and key(arguments) in known:
            return copy.deepcopy(known[key(arguments)])
        calls.append(copy.deepcopy(arguments))
        if known is None:
            return real(*arguments)
        raise Asked

    space[entry] = candidate
    try:
        exec(compile(tests, "tests", "exec"), space)
    except Asked:
        pass
    except AssertionError:
        return ["failed", calls]
    return ["passed" if known is None or not calls else "asked", calls]
"""
"""Run tests. Without a table the real solution is called and its calls are noted; with one nothing of a model is there."""

STDIN = """
import io
import sys

def f(source, text):
    written = io.BytesIO()
    sys.stdin = io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8")
    sys.stdout = out = io.TextIOWrapper(written, encoding="utf-8", write_through=True)
    try:
        exec(compile(source, "program", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    out.flush()
    return written.getvalue().decode("utf-8", "replace")
"""
"""Run a program that reads its standard input and prints."""

ROUNDS = 20
"""How often tests may ask for calls that their own solution did not need."""

Calls = Sequence[tuple[Any, ...]]


@dataclass(frozen=True)
class Tested:
    """A suite's test script.

    Attributes:
        setup: source that stands before the tests, the right solution included.
        tests: the script, which calls `entry`.
        entry: name of the function under test.
    """

    setup: str
    tests: str
    entry: str


@dataclass
class _Trial:
    """One answer before a script: what it returned so far."""

    script: Tested
    source: str
    asked: list[tuple[Any, ...]]
    table: list[tuple[tuple[Any, ...], Any]] = field(default_factory=list)
    verdict: Verdict | None = None

    def returned(self, verdict: Verdict) -> None:
        """Take what the program returned on what was asked."""
        values = listed(verdict, len(self.asked))
        if isinstance(values, Verdict):
            self.verdict = values
        else:
            self.table += zip(self.asked, values, strict=True)
            self.asked = []

    def tested(self, verdict: Verdict) -> None:
        """Take what the script said."""
        if not verdict.ok:
            self.verdict = verdict if verdict.blameless else verdict.turned(Status.WRONG, f"the tests: {verdict.reason}")
            return
        outcome, asked = verdict.value
        if outcome == "asked":
            self.asked = [tuple(arguments) for arguments in asked]
        else:
            self.verdict = verdict.turned(
                Status.OK if outcome == "passed" else Status.WRONG, "" if outcome == "passed" else outcome
            )


def values(referee: Referee, jobs: Sequence[tuple[str, str, Calls, str]]) -> list[Verdict]:
    """What programs return: one verdict for each (source, entry, calls, view), its value a list; equal jobs run once."""
    keys = [repr(job) for job in jobs]
    runs = {
        key: Run(CALLS, [(source, entry, list(calls), view)]) for key, (source, entry, calls, view) in zip(keys, jobs, strict=True)
    }
    found = dict(zip(runs, referee.run(list(runs.values())), strict=True))
    return [found[key][0] for key in keys]


def listed(verdict: Verdict, count: int) -> list[Any] | Verdict:
    """The values in a verdict of `values`, or the verdict against the program."""
    if not verdict.ok:
        return verdict
    if type(verdict.value) is not list or len(verdict.value) != count:
        return verdict.turned(Status.TAMPERED, "not one value for each call")
    return verdict.value


def scripted(referee: Referee, trials: Sequence[tuple[Tested, str]]) -> list[Verdict]:
    """The verdict of a test script on each source.

    The script is first run with its own solution, to learn which calls it makes. A script that fails with it, or whose calls are
    not made of plain values, cannot be used: INFRA_ERROR, which counts for nobody.
    """
    scripts = list(dict.fromkeys(script for script, _ in trials))
    noted = referee.run([Run(TESTS, [(s.setup, s.tests, s.entry, None)]) for s in scripts])
    learnt = dict(zip(scripts, (v for (v,) in noted), strict=True))
    open_trials = []
    for script, source in trials:
        first = learnt[script]
        trial = _Trial(script, source, [tuple(c) for c in first.value[1]] if first.ok else [])
        if not first.ok or first.value[0] != "passed":
            reason = f"its tests cannot be run with its own solution: {first.status} {first.reason}".strip()
            trial.verdict = first.turned(Status.INFRA_ERROR, reason)
        open_trials.append(trial)
    for _ in range(ROUNDS):
        todo = [t for t in open_trials if t.verdict is None]
        if not todo:
            break
        _round(referee, todo)
    return [t.verdict or Verdict(Status.INFRA_ERROR, "its tests never stop asking") for t in open_trials]


def _round(referee: Referee, todo: Sequence[_Trial]) -> None:
    found = values(referee, [(t.source, t.script.entry, t.asked, "value") for t in todo])
    for trial, verdict in zip(todo, found, strict=True):
        trial.returned(verdict)
    todo = [t for t in todo if t.verdict is None]
    scripts = [Run(TESTS, [(t.script.setup, t.script.tests, t.script.entry, t.table)]) for t in todo]
    for trial, (verdict,) in zip(todo, referee.run(scripts), strict=True):
        trial.tested(verdict)


@dataclass(frozen=True)
class Case:
    """One test of a program: what to run, and whether the value it gave is right."""

    run: Run
    right: Callable[[Any], bool]


def staged(referee: Referee, cases: Sequence[Sequence[Case]]) -> list[Verdict]:
    """The verdict on each program, test by test, each in a process of its own; who fails one is not run again."""
    found: list[Verdict] = [Verdict(Status.INFRA_ERROR, "no tests") if not own else Verdict(Status.OK) for own in cases]
    for number in range(max(map(len, cases), default=0)):
        alive = [i for i, own in enumerate(cases) if found[i].ok and number < len(own)]
        for i, (verdict,) in zip(alive, referee.run([cases[i][number].run for i in alive]), strict=True):
            if verdict.ok and not cases[i][number].right(verdict.value):
                verdict = verdict.turned(Status.WRONG, f"test {number + 1}")
            found[i] = verdict
    return found
