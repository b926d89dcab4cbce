"""Looking at a run without changing it: who is best, a member as a folder, one teacher against one student."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from selfplay import checkpoint, phases
from selfplay.population import Population, Role, ranked
from selfplay.ratings import win_probability
from selfplay.runs import RunError, check_base, read_config, seated
from selfplay.serving import serve
from selfplay.table import Answered, Match, Proposed, State, Table
from selfplay.tree import near

BEST: dict[str, Role] = {"best-student": "student", "best-teacher": "teacher"}
"""Words for the member of a role with the highest mu - 3 sigma."""


@contextmanager
def restored(run: Path) -> Iterator[tuple[Table, State]]:
    """A run's table and newest state."""
    newest = checkpoint.latest(run)
    saved = checkpoint.read(newest)
    given = read_config(run).with_changes(writers=())
    with seated(given) as table:
        check_base(given, saved, table.engine)
        yield table, checkpoint.load(newest, table)


def chosen(population: Population, wanted: str) -> str:
    """The name of a living member: as it is, or by a word such as `best-student`.

    Raises:
        RunError: if there is none.
    """
    names = [m.name for m in population.members]
    if wanted in BEST:
        return ranked(population.of(BEST[wanted]) or population.members)[0].name
    if wanted not in names:
        raise RunError(f"no member {wanted!r} is alive{near(wanted, names)}; there are {', '.join([*names, *BEST])}")
    return wanted


def adapter_folder(run: Path, wanted: str) -> tuple[str, Path]:
    """A member's name and its PEFT folder in the newest checkpoint."""
    newest = checkpoint.latest(run)
    name = chosen(checkpoint.read(newest).population, wanted)
    return name, newest / "adapters" / name


def faced(
    table: Table, state: State, teacher: str, student: str, kinds: Sequence[str], count: int, seed: int
) -> tuple[list[Proposed], list[Answered]]:
    """One teacher's problems and one student's answers, judged and paid as in the game; nobody learns.

    Args:
        count: proposals of each kind.
        seed: another one gives other problems.
    """
    unknown = [kind for kind in kinds if kind not in table.tasks]
    if unknown:
        raise RunError(f"{unknown[0]!r} is not played in this run; there are {', '.join(table.tasks)}")
    game = {**table.config.tree()["game"], "prompts": 1, "proposals": count}
    tasks = {kind: task for kind, task in table.tasks.items() if kind in kinds} or table.tasks
    table = replace(table, config=table.config.with_changes(game=game), tasks=tasks)
    one, two = state.population[teacher].rating, state.population[student].rating
    match = Match(teacher, student, win_probability(two, one))
    serve(table, state.population)
    proposed = phases.validate(table, phases.propose(table, state, [match], f"look-{seed}"))
    return phases.reward(table, proposed, phases.judge(table, phases.solve(table, proposed)))
