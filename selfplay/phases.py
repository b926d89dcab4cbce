"""The phases of a step, in the paper's order. Each takes values and gives values; `loop.step` is the order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from selfplay.accounting import Cost, Ledger
from selfplay.advantages import advantages
from selfplay.asking import answer_stop, asked, proposal_stop, written
from selfplay.complexity import measure
from selfplay.engines import Completion, Request
from selfplay.matchmaking import pairs
from selfplay.population import Population
from selfplay.ratings import Outcome, outcome, updated, win_probability
from selfplay.referee import Status, Verdict
from selfplay.rewards import student_reward, teacher_reward
from selfplay.table import Answered, Match, Proposed, Rated, State, Table
from selfplay.tasks import Problem, Written, solve_rate
from selfplay.tasks import judge as judged
from selfplay.tasks import validate as validated
from selfplay.updates import Sample, Update


def match(table: Table, state: State, step: int) -> list[Match]:
    """One student for each teacher."""
    if table.config.population.single_agent:
        alone = state.population.members[0].name
        return [Match(alone, alone, 0.5)]
    teachers, students = state.population.of("teacher"), state.population.of("student")
    rng = table.rng("match", step)
    chosen = pairs([t.rating for t in teachers], [s.rating for s in students], rng, table.config.game.matching)
    return [Match(teachers[t].name, students[s].name, win_probability(students[s].rating, teachers[t].rating)) for t, s in chosen]


def propose(table: Table, state: State, matches: Sequence[Match], step: int | str) -> list[Proposed]:
    """Every teacher writes some problems of each kind, several to one prompt."""
    game, wanted = table.config.game, []
    for one in matches:
        for kind in table.tasks:
            for p in range(game.prompts):
                group = f"{step}-{one.teacher}-{kind}-{p}"
                prompt, subject = asked(table, state.buffers, kind, group)
                wanted += [(f"{group}-{i}", one, kind, group, prompt, subject) for i in range(game.proposals)]
    requests = [Request(one.teacher, prompt, table.number("propose", name)) for name, one, _, _, prompt, _ in wanted]
    stops = [proposal_stop(table.style)] * len(requests)
    completions = written(table, requests, stops, table.config.sampling.proposal_tokens)
    return [Proposed(*of, completion) for of, completion in zip(wanted, completions, strict=True)]


def validate(table: Table, proposed: Sequence[Proposed]) -> list[Proposed]:
    """The referee says which proposals are problems; those that no student could be shown are none."""
    texts = [Written(table.tasks[p.kind], p.completion.text, p.subject) for p in proposed]
    return [_validated(table, p, found) for p, found in zip(proposed, validated(table.referee, texts, table.style), strict=True)]


def solve(table: Table, proposed: Sequence[Proposed]) -> list[Answered]:
    """The matched student answers every problem several times."""
    wanted = [(p, i) for p in proposed if p.problem for i in range(table.config.game.answers)]
    requests = [Request(p.match.student, p.question, table.number("answer", p.id, p.match.student, i)) for p, i in wanted]
    stops = [answer_stop(p.kind, table.style) for p, _ in wanted]
    completions = written(table, requests, stops, table.config.sampling.answer_tokens)
    return [Answered(p, completion) for (p, _), completion in zip(wanted, completions, strict=True)]


def judge(table: Table, answered: Sequence[Answered]) -> list[Answered]:
    """The referee says which answers are right."""
    texts = [(table.tasks[a.to.kind], a.to.problem, a.completion.text) for a in answered if a.to.problem]
    found, seen = [], set()
    for a, verdict in zip(answered, judged(table.referee, texts, table.style), strict=True):
        ran = verdict.peak_mb > 0 and (a.to.id, a.completion.text) not in seen  # equal answers are run once
        seen.add((a.to.id, a.completion.text))
        found.append(replace(a, verdict=verdict, programs=int(ran)))
    return found


def reward(table: Table, proposed: Sequence[Proposed], answered: Sequence[Answered]) -> tuple[list[Proposed], list[Answered]]:
    """What everything was worth: rewards, and advantages inside (member, role, kind). A failure of the referee pays nothing."""
    rules = table.config.rewards
    paid = [replace(a, reward=student_reward(a.verdict, rules)) for a in answered if a.verdict]
    verdicts: dict[str, list[Verdict]] = {}
    for a in paid:
        verdicts.setdefault(a.to.id, []).append(a.verdict)  # type: ignore[arg-type]
    rhos = {name: solve_rate(of) for name, of in verdicts.items()}
    proposed = [replace(p, rho=rhos.get(p.id), reward=teacher_reward(p.found, rhos.get(p.id), rules)) for p in proposed if p.found]
    groups = [p.group for p in proposed] + [a.to.id for a in paid]
    cells = [(p.match.teacher, "teacher", p.kind) for p in proposed] + [(a.to.match.student, "student", a.to.kind) for a in paid]
    everything: list[Proposed | Answered] = [*proposed, *paid]
    rewards = [math.nan if x.reward is None else x.reward for x in everything]
    worth = advantages(rewards, groups, table.config.learner.loss, cells).tolist()
    return (
        [replace(p, advantage=w) for p, w in zip(proposed, worth, strict=False)],
        [replace(a, advantage=w) for a, w in zip(paid, worth[len(proposed) :], strict=True)],
    )


def remember(state: State, proposed: Sequence[Proposed]) -> list[Proposed]:
    """Problems go into the buffers and the archive."""
    return [_remembered(state, p, p.problem) if p.problem else p for p in proposed]


def learn(table: Table, proposed: Sequence[Proposed], answered: Sequence[Answered]) -> dict[str, Update]:
    """One update of every member from all that it wrote; samples the referee failed on teach nothing."""
    samples = [_sample(p.match.teacher, p.prompt, p) for p in proposed if p.reward is not None]
    samples += [_sample(a.to.match.student, a.to.question, a) for a in answered if a.reward is not None]
    return table.learner.update(samples)


def rate(
    table: Table, population: Population, matches: Sequence[Match], proposed: Sequence[Proposed], answered: Sequence[Answered]
) -> tuple[Population, list[Rated]]:
    """Who won each match, and the ratings after it."""
    rated: list[Rated] = []
    if table.config.population.single_agent:
        return population, rated
    for one in matches:
        rate, valid, result = _result(table, one, proposed, answered)
        student, teacher = updated(population[one.student].rating, population[one.teacher].rating, result)
        population = population.rated({one.student: student, one.teacher: teacher})
        rated.append(Rated(one, rate, valid, result, teacher, student))
    return population, rated


def charge(ledger: Ledger, proposed: Iterable[Proposed], answered: Iterable[Answered], updates: dict[str, Update]) -> Ledger:
    """The ledger with a step's costs."""
    for p in proposed:
        ledger = ledger.charge(p.match.teacher, _cost(p.prompt, p.completion, p.programs))
    for a in answered:
        ledger = ledger.charge(a.to.match.student, _cost(a.to.question, a.completion, a.programs))
    for member, update in updates.items():
        ledger = ledger.charge(member, Cost(trained_tokens=update.trained_tokens))
    return ledger


def _validated(table: Table, p: Proposed, found: Problem | Verdict) -> Proposed:
    ran = isinstance(found, Problem) or found.peak_mb > 0
    programs = len(table.config.referee.hash_seeds) if ran else 0
    if isinstance(found, Verdict):
        return replace(p, found=found, programs=programs)
    question = table.engine.prompt(table.tasks[p.kind].answer_prompt(found, table.style), table.style)
    if len(question) > table.config.sampling.prompt_tokens:
        too_long = Verdict(Status.TOO_LARGE, f"a student's prompt would have {len(question)} tokens")
        return replace(p, found=too_long, programs=programs)
    return replace(p, found=found, question=question, programs=programs, complexity=measure(found.program))


def _remembered(state: State, p: Proposed, problem: Problem) -> Proposed:
    assert p.complexity is not None
    return replace(p, new=state.buffers.add(problem), new_cell=state.archive.add(p.complexity, p.id, p.reward or 0.0))


def _sample(member: str, prompt: tuple[int, ...], x: Proposed | Answered) -> Sample:
    return Sample(member, prompt, x.completion.tokens, x.completion.logprobs, x.advantage, x.completion.truncated)


def _result(
    table: Table, one: Match, proposed: Sequence[Proposed], answered: Sequence[Answered]
) -> tuple[float | None, int, Outcome | None]:
    """A match's solve rate, its number of problems, and who won."""
    own, game = [p for p in proposed if p.match == one], table.config.game
    rate = solve_rate([a.verdict for a in answered if a.verdict and a.to.match == one])
    valid = sum(1 for p in own if p.problem)
    if not valid and any(p.blameless for p in own):
        return rate, valid, None  # the referee's failure is no win for the student
    return rate, valid, outcome(rate, one.expected, valid, game.rule, game.band)


def _cost(prompt: Sequence[int], completion: Completion, programs: int) -> Cost:
    return Cost(rollouts=1, prompt_tokens=len(prompt), completion_tokens=len(completion.tokens), programs=programs)
