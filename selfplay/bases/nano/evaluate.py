"""How good a base or its members are: `python -m selfplay.bases.nano.evaluate [--base nano]`.

Proposals: the share that the referee accepts. Answers: the share that is right, of several at temperature 1, on problems drawn
as the corpus is but from another seed, in all and by their number of steps, and on the held-out ones.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from lora_evo.seeding import stream
from selfplay.asking import proposal_stop
from selfplay.bases.nano.heldout import heldout
from selfplay.bases.nano.texts import STEPS, TASKS, programs, solved
from selfplay.engines import Request, Sampling
from selfplay.engines.torch_engine import TorchEngine
from selfplay.exams.asking import Plan, chunks, wanted, written
from selfplay.exams.nano import NanoHeldout, questions
from selfplay.exams.problem import Answer
from selfplay.referee import Referee
from selfplay.tasks import Problem, Written, validate

FRESH_SEED = 2_000_003


def fresh(referee: Referee, each: int, steps: Sequence[float] = STEPS) -> list[Problem]:
    """Problems like the corpus's, from another seed, `each` of every kind; `steps` as in `programs`."""
    rng = stream(FRESH_SEED, "nano", "fresh")
    ready = solved(referee, programs(FRESH_SEED, 0, 2 * each + 20, steps))[:each]
    return [one.problem(kind, rng) for kind in TASKS for one in ready]


def solve_rates(
    engine: TorchEngine,
    referee: Referee,
    problems: Sequence[Problem],
    members: Sequence[str | None],
    answers: int = 4,
    seed: int = 0,
    temperature: float = 1.0,
) -> dict[str | None, dict[str, float]]:
    """The share of right answers by member and kind, as `lora-evo eval --suite nano-heldout` asks and judges."""
    suite, plan = NanoHeldout(), Plan(answers, (), temperature, seed, batch=512)
    asked = wanted(suite.name, questions(problems), members, answers)
    right: dict[tuple[str | None, str], list[bool]] = {}
    for part in chunks(asked, "compact", plan.batch):
        completions = written(engine, part, "compact", plan, suite.max_tokens)
        verdicts = suite.grade(referee, [Answer(w.question, c.text, "compact") for w, c in zip(part, completions, strict=True)])
        for w, verdict in zip(part, verdicts, strict=True):
            right.setdefault((w.member, w.question.facts.kind), []).append(verdict.ok)
    kinds = dict.fromkeys(p.kind for p in problems)
    return {m: {kind: sum(right[m, kind]) / len(right[m, kind]) for kind in kinds} for m in members}


def valid_shares(engine: TorchEngine, referee: Referee, member: str | None = None, each: int = 100) -> dict[str, float]:
    """The share of valid proposals by kind, with one reference in the prompt."""
    ready = solved(referee, programs(FRESH_SEED, 1, 2 * each + 20))
    rng = stream(FRESH_SEED, "nano", "proposals")
    found = {}
    for kind, task in TASKS.items():
        subjects = [one.drawn.program for one in ready[each : 2 * each]]
        prompts = [task.proposal_prompt("compact", [ready[i].problem(kind, rng)], subjects[i]) for i in range(len(subjects))]
        requests = [Request(member, engine.prompt(text, "compact"), i) for i, text in enumerate(prompts)]
        completions = engine.generate(requests, Sampling(1.0, 192, proposal_stop("compact")))
        written = [Written(task, c.text, s) for c, s in zip(completions, subjects, strict=True)]
        results = validate(referee, written, "compact")
        found[kind] = sum(isinstance(r, Problem) for r in results) / len(results)
    return found


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Measure nano.")
    parser.add_argument("--base", default="nano")
    parser.add_argument("--each", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    engine = TorchEngine(chosen.base, slots=1)
    with Referee() as referee:
        found = {
            "valid proposals": valid_shares(engine, referee, each=chosen.each),
            "solved, like the corpus": solve_rates(engine, referee, fresh(referee, chosen.each), [None])[None],
            "solved, held out": solve_rates(engine, referee, heldout(), [None])[None],
            "... likeliest tokens": solve_rates(engine, referee, heldout(), [None], 1, temperature=0.0)[None],
        }
        for count in range(1, len(STEPS)):
            problems = fresh(referee, chosen.each // 2, [float(i == count) for i in range(len(STEPS))])
            found[f"solved, steps: {count}"] = solve_rates(engine, referee, problems, [None])[None]
    if chosen.json:
        print(json.dumps(found))
        return
    for what, rates in found.items():
        print(f"{what:26}" + "  ".join(f"{kind} {rate:.2f}" for kind, rate in rates.items()))


if __name__ == "__main__":
    main()
