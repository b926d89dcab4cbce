"""What nano learns from: problems of all kinds in the compact style, judged by the referee, as token ids with weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lora_evo.seeding import stream
from selfplay.bases.nano.programs import Drawn, draw
from selfplay.referee import Referee, Run, canonical, literal
from selfplay.tasks import Abduction, Deduction, Induction, Problem, Task, wording

EXAMPLES = 4
TASKS: dict[str, Task] = {"deduction": Deduction(), "abduction": Abduction(), "induction": Induction(EXAMPLES)}
STEPS = (0.06, 0.5, 0.3, 0.1, 0.04)
"""Shares of programs with none (they give back what they get), one, two, three and four steps."""
LONGEST = 60
"""Characters of an output."""
VAGUE = 0.25
"""Share of messages that hide their numbers."""


@dataclass(frozen=True)
class Solved:
    """A program with what it gives."""

    drawn: Drawn
    inputs: tuple[tuple[Any, ...], ...]
    outputs: tuple[Any, ...]

    def problem(self, kind: str, rng: np.random.Generator) -> Problem:
        """A problem of a kind, with inputs by chance."""
        count = EXAMPLES if kind == "induction" else 1
        chosen = rng.permutation(len(self.inputs))[:count].tolist()
        message = self.drawn.message if kind == "induction" else ""
        if message and rng.random() < VAGUE:
            message = " ".join("some" if word.isdigit() else word for word in message.split())
        return Problem(
            kind, self.drawn.program, tuple(self.inputs[i] for i in chosen), tuple(self.outputs[i] for i in chosen), message
        )


def solved(referee: Referee, drawn: Sequence[Drawn]) -> list[Solved]:
    """Programs that run, with the inputs on which they do; those with too few of them, or with one output only, are left out."""
    found = []
    for program, verdicts in zip(drawn, referee.run([Run(d.program, d.inputs) for d in drawn]), strict=True):
        fine = [(x, v.value) for x, v in zip(program.inputs, verdicts, strict=True) if v.ok and len(literal(v.value)) <= LONGEST]
        if len(fine) >= EXAMPLES and len({canonical(y) for _, y in fine}) > 1:
            found.append(Solved(program, tuple(x for x, _ in fine), tuple(y for _, y in fine)))
    return found


def programs(seed: int, number: int, count: int, steps: Sequence[float] = STEPS, longer: int = 0) -> list[Drawn]:
    """The `number`-th portion of the endless row of programs that a seed stands for."""
    rng = stream(seed, "nano", "programs", str(number))
    sizes = rng.choice(np.arange(len(steps)), count, p=steps)
    return [draw(rng, int(size), longer=longer) for size in sizes]


def question(problem: Problem) -> tuple[str, str]:
    """A student's prompt, and a right answer to it."""
    task = TASKS[problem.kind]
    prompt = task.answer_prompt(problem, "compact")
    if problem.kind == "deduction":
        return prompt, f" {literal(problem.outputs[0])}\n"
    if problem.kind == "abduction":
        return prompt, f" {wording.call(problem.inputs[0])}\n"
    return prompt, problem.program + "\n"


def proposal(problem: Problem, references: Sequence[Problem]) -> tuple[str, str]:
    """A teacher's prompt, and a good proposal to it."""
    prompt = TASKS[problem.kind].proposal_prompt("compact", references, problem.program)
    lines = "".join(f"in: {wording.call(x)}\n" for x in problem.inputs)
    if problem.kind == "induction":
        return prompt, f"{lines}msg: {problem.message}\n\n"
    return prompt, f"{problem.program}{lines}\n"


def document(
    found: Sequence[Solved], i: int, rng: np.random.Generator, kinds: Sequence[float], proposals: float
) -> tuple[str, str]:
    """A text about the i-th program, prompt and completion, with shares of the kinds, and of proposals."""
    kind = str(rng.choice(list(TASKS), p=kinds))
    problem = found[i].problem(kind, rng)
    if rng.random() >= proposals:
        return question(problem)
    others = [found[j].problem(kind, rng) for j in rng.permutation(len(found))[: int(rng.integers(0, 3))] if j != i]
    return proposal(problem, others)
