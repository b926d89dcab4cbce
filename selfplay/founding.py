"""The state before the first step: founders, and buffers that the base has filled."""

from __future__ import annotations

from selfplay.accounting import Ledger
from selfplay.archive import Archive
from selfplay.asking import asked, proposal_stop, written
from selfplay.engines import Request
from selfplay.events import Event
from selfplay.population import Member, Population
from selfplay.table import State, Table
from selfplay.tasks import Buffers, Problem, Task, Written, easy_problems, validate

SINGLE = "a0"
"""The one adapter of a single agent."""


def founded(table: Table) -> tuple[State, list[Event]]:
    """Members with B = 0 and an A of their own, buffers with what the base can propose; and the events of that."""
    given = table.config
    if given.population.single_agent:
        population = Population((Member(SINGLE, "teacher"),), {"teacher": 1, "student": 0})
    else:
        population = Population.founded(given.population.teachers, given.population.students)
    for member in population.members:
        table.engine.fresh(member.name, founding_seed(table, member.name))
    tasks = sorted(table.tasks.values(), key=lambda task: task.needs_subject)  # those first that give others their subjects
    buffers = Buffers.seeded(list(table.tasks.values()), given.game.buffer)
    if given.game.start == "easy":
        for problem in (one for task in tasks for one in easy_problems(task)):
            buffers.add(problem)
    events = [_seeded(table, buffers, task) for task in tasks] if given.game.seeding else []
    archive = Archive(given.archive.cells, seed=table.number("archive") % 2**32)
    return State(0, population, buffers, archive, Ledger.empty()), events


def founding_seed(table: Table, name: str) -> int:
    """The seed of a founder's A."""
    return table.number("founder", name) % 2**31


def _seeded(table: Table, buffers: Buffers, task: Task) -> Event:
    """Let the base propose problems of a kind; the valid ones go into its buffer."""
    names = [f"seeding-{task.name}-{i}" for i in range(table.config.game.seeding)]
    prompts = [asked(table, buffers, task.name, name) for name in names]
    requests = [Request(None, prompt, table.number("propose", name)) for name, (prompt, _) in zip(names, prompts, strict=True)]
    stops = [proposal_stop(table.style)] * len(names)
    completions = written(table, requests, stops, table.config.sampling.proposal_tokens)
    texts = [Written(task, c.text, subject) for c, (_, subject) in zip(completions, prompts, strict=True)]
    found = [p for p in validate(table.referee, texts, table.style) if isinstance(p, Problem)]
    new = sum([buffers.add(problem) for problem in found if _fits(table, task, problem)])
    tokens = sum(len(c.tokens) for c in completions)
    counts = {"proposals": len(names), "tokens": tokens, "valid": len(found), "new": new}
    return {"event": "seeding", "step": 0, "kind": task.name, **counts}


def _fits(table: Table, task: Task, problem: Problem) -> bool:
    question = table.engine.prompt(task.answer_prompt(problem, table.style), table.style)
    return len(question) <= table.config.sampling.prompt_tokens
