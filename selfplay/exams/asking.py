"""Asking an engine: all members of a population in the same batches, chunk by chunk, the same chunks whatever happens between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from selfplay.engines import Completion, Engine, Request, Sampling
from selfplay.exams.problem import ExamError, Question
from selfplay.tasks import Style


@dataclass(frozen=True)
class Plan:
    """How an exam is answered.

    Attributes:
        samples: answers to each question.
        ks: which pass@k are estimated from them; each at most `samples`.
        temperature: 0: the likeliest token, so one sample says all.
        seed: of samples, intervals and halves.
        max_tokens: of an answer; None: as the suite says.
        batch: answers that are written, and kept, at a time.
    """

    samples: int = 1
    ks: tuple[int, ...] = (1,)
    temperature: float = 0.0
    seed: int = 0
    max_tokens: int | None = None
    batch: int = 128

    def __post_init__(self) -> None:
        for k in self.ks:
            if not 1 <= k <= self.samples:
                raise ExamError(f"pass@{k} needs at least {k} samples, there are {self.samples}: --samples {k}, or a smaller --k")
        if self.samples > 1 and self.temperature == 0:
            raise ExamError(f"{self.samples} samples at temperature 0 are all the same; give --temperature, 0.8 say")
        if self.temperature < 0:
            raise ExamError(f"temperature is {self.temperature}, it must be 0 or more")


@dataclass(frozen=True)
class Wanted:
    """One answer that is wanted; `member` None is the base alone."""

    suite: str
    question: Question
    member: str | None
    sample: int

    @property
    def key(self) -> tuple[str, str, str | None, int]:
        """What it is known by."""
        return self.suite, self.question.id, self.member, self.sample


def wanted(suite: str, questions: Sequence[Question], members: Sequence[str | None], samples: int) -> list[Wanted]:
    """All answers to a suite's questions: those that end alike together, and members side by side."""
    ends = list(dict.fromkeys(q.stop for q in questions))
    ordered = sorted(questions, key=lambda q: ends.index(q.stop))
    return [Wanted(suite, q, member, i) for q in ordered for member in members for i in range(samples)]


def chunks(given: Sequence[Wanted], style: Style, size: int) -> Iterator[Sequence[Wanted]]:
    """Up to `size` answers at a time that end alike."""
    start = 0
    while start < len(given):
        stop = start + 1
        while stop < min(len(given), start + size) and (style == "chat" or given[stop].question.stop == given[start].question.stop):
            stop += 1
        yield given[start:stop]
        start = stop


def written(engine: Engine, given: Sequence[Wanted], style: Style, plan: Plan, max_tokens: int) -> list[Completion]:
    """One completion for each, in one call. All members get the same seeds: equal adapters give equal answers."""
    prompts = {w.question.id: engine.prompt(w.question.prompt(style), style) for w in given}
    requests = [Request(w.member, prompts[w.question.id], seed_of(plan.seed, w.question.number, w.sample)) for w in given]
    stop = given[0].question.stop if style == "compact" else ()
    return engine.generate(requests, Sampling(plan.temperature, max_tokens, stop))


def seed_of(seed: int, number: int, sample: int) -> int:
    """The seed of one sample of one question."""
    return (seed * 100_003 + number) * 1_009 + sample
