"""What a student learns alone, from problems drawn for it: `python -m benchmarks.ceiling [--steps 100] [--lr 1e-3] [--json]`.

No teacher and no population: every step the student answers problems with the steps and the lengths of the held-out ones, none
of whose programs is held out, and learns from its answers as in the game. What it gains on the held-out problems is about what a
perfect teacher could give it with the same number of answers, and says what to expect of a game.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence

from lora_evo.seeding import stream
from selfplay.advantages import advantages
from selfplay.asking import answer_stop
from selfplay.bases.nano.evaluate import solve_rates
from selfplay.bases.nano.heldout import LONGER, STEPS, heldout
from selfplay.bases.nano.texts import TASKS, Solved, programs, solved
from selfplay.engines import Request, Sampling
from selfplay.engines.torch_engine import TorchEngine
from selfplay.learner import Learner, LearnRules
from selfplay.referee import Referee
from selfplay.tasks import Problem, judge, normal_form
from selfplay.updates import Sample

SEED, STUDENT = 3_000_003, "s0"


def pool(referee: Referee, portions: int = 8) -> list[Solved]:
    """Programs like the held-out ones, and none of them."""
    forms = {normal_form(problem.program) for problem in heldout()}
    drawn = [one for number in range(portions) for one in programs(SEED, number, 300, STEPS, LONGER)]
    return [one for one in solved(referee, drawn) if normal_form(one.drawn.program) not in forms]


def answers(engine: TorchEngine, referee: Referee, problems: Sequence[Problem], each: int, seed: str) -> list[Sample]:
    """The student's answers to problems of one kind, with their advantages."""
    kind = problems[0].kind
    asked = [problem for problem in problems for _ in range(each)]
    prompts = [engine.prompt(TASKS[kind].answer_prompt(problem, "compact"), "compact") for problem in asked]
    seeds = stream(SEED, "answers", seed, kind).integers(2**63, size=len(asked)).tolist()
    requests = [Request(STUDENT, prompt, number) for prompt, number in zip(prompts, seeds, strict=True)]
    written = engine.generate(requests, Sampling(1.0, 128, answer_stop(kind, "compact")))
    verdicts = judge(referee, [(TASKS[kind], p, c.text) for p, c in zip(asked, written, strict=True)], "compact")
    worth = advantages([float(v.ok) for v in verdicts], [i // each for i in range(len(asked))]).tolist()
    return [
        Sample(STUDENT, prompt, c.tokens, c.logprobs, w, c.truncated) for prompt, c, w in zip(prompts, written, worth, strict=True)
    ]


def course(rules: LearnRules, steps: int, problems: int, each: int, every: int) -> list[dict[str, float]]:
    """Held-out solve rates by kind and the answers learned from, now and then; the base first."""
    engine = TorchEngine("nano", slots=1)
    engine.fresh(STUDENT, 0)
    learner = Learner(engine, rules)
    with Referee() as referee:
        ready = pool(referee)
        found = [_examined(engine, referee, 0, 0.0)]
        for step in range(1, steps + 1):
            rng, samples = stream(SEED, "step", str(step)), list[Sample]()
            for kind in TASKS:
                chosen = [ready[i].problem(kind, rng) for i in rng.permutation(len(ready))[:problems]]
                samples += answers(engine, referee, chosen, each, str(step))
            update = learner.update(samples)[STUDENT]
            print(f"step {step}: entropy {update.entropy:.3f}", file=sys.stderr, flush=True)
            if step % every == 0 or step == steps:
                found.append(_examined(engine, referee, step * len(samples), update.entropy))
    return found


def _examined(engine: TorchEngine, referee: Referee, learned: int, entropy: float) -> dict[str, float]:
    rates = solve_rates(engine, referee, heldout(), [STUDENT])[STUDENT]
    return {"answers": learned, **rates, "mean": statistics.fmean(rates.values()), "entropy": entropy}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--problems", type=int, default=32, help="of each kind in a step")
    parser.add_argument("--answers", type=int, default=8, help="to each problem")
    parser.add_argument("--every", type=int, default=20, help="steps between two exams")
    parser.add_argument("--lr", type=float, default=LearnRules.lr)
    parser.add_argument("--epochs", type=int, default=LearnRules.epochs)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    rules = LearnRules(lr=chosen.lr, epochs=chosen.epochs)
    found = course(rules, chosen.steps, chosen.problems, chosen.answers, chosen.every)
    if chosen.json:
        print(json.dumps(found))
        return
    print("| " + " | ".join(found[0]) + " |")
    print("|---" * len(found[0]) + "|")
    for row in found:
        print("| " + " | ".join(f"{value:.0f}" if name == "answers" else f"{value:.3f}" for name, value in row.items()) + " |")


if __name__ == "__main__":
    main()
