"""What a step works with: the table it is played on, its state, and what passes from phase to phase."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lora_evo.measure import Measures
from lora_evo.seeding import stream
from selfplay.accounting import Ledger
from selfplay.archive import Archive
from selfplay.complexity import Complexity
from selfplay.config import Config
from selfplay.engines import Completion, Sampler
from selfplay.engines.torch_engine import TorchEngine
from selfplay.learner import Learner
from selfplay.population import Population
from selfplay.ratings import Outcome, Rating
from selfplay.referee import Referee, Verdict
from selfplay.replacement import Replacement
from selfplay.tasks import Buffers, Problem, Style, Task


@dataclass(frozen=True)
class Table:
    """What is played with: it outlives the steps.

    Attributes:
        engine: where the members live and learn.
        sampler: who writes completions: the engine itself, or vLLM, which `serving.serve` brings the members to.
    """

    config: Config
    engine: TorchEngine
    sampler: TorchEngine | Sampler
    learner: Learner
    referee: Referee
    tasks: dict[str, Task]
    style: Style

    def rng(self, *labels: object) -> np.random.Generator:
        """The random stream of one thing, by its name."""
        return stream(self.config.seed, *map(str, labels))

    def number(self, *labels: object) -> int:
        """The seed of one random thing, by its name."""
        return int(self.rng(*labels).integers(2**63))


@dataclass(frozen=True)
class State:
    """What is played on. Population and ledger are values; buffers and archive grow in place."""

    step: int
    population: Population
    buffers: Buffers
    archive: Archive
    ledger: Ledger


@dataclass(frozen=True)
class Match:
    """A teacher, the student who gets its problems, and the probability that the student wins."""

    teacher: str
    student: str
    expected: float


@dataclass(frozen=True)
class Proposed:
    """One proposal on its way through a step.

    Attributes:
        id: of the proposal; `group` is that of its prompt.
        prompt: tokens that asked for it; `subject` the program it is about, where its kind has one.
        found: the problem, or the verdict against it; None before validation.
        question: tokens that ask a student for the answer.
        programs: processes the referee ran for it.
        new, new_cell: whether the buffer did not have it, and whether it is the first of its cell in the archive.
        rho: the share of right answers; None if there is none to judge.
        reward: None if the referee failed.
    """

    id: str
    match: Match
    kind: str
    group: str
    prompt: tuple[int, ...]
    subject: str | None
    completion: Completion
    found: Problem | Verdict | None = None
    question: tuple[int, ...] = ()
    programs: int = 0
    complexity: Complexity | None = None
    new: bool = False
    new_cell: bool = False
    rho: float | None = None
    reward: float | None = None
    advantage: float = 0.0

    @property
    def problem(self) -> Problem | None:
        """The problem, if it is one."""
        return self.found if isinstance(self.found, Problem) else None

    @property
    def blameless(self) -> bool:
        """Whether the referee failed on it."""
        return isinstance(self.found, Verdict) and self.found.blameless


@dataclass(frozen=True)
class Answered:
    """One answer to a problem on its way through a step."""

    to: Proposed
    completion: Completion
    verdict: Verdict | None = None
    programs: int = 0
    reward: float | None = None
    advantage: float = 0.0


@dataclass(frozen=True)
class Rated:
    """What a match came to, and both ratings after it; `result` None says that it tells nothing."""

    match: Match
    solve_rate: float | None
    valid: int
    result: Outcome | None
    teacher: Rating
    student: Rating


@dataclass(frozen=True)
class Child:
    """A replacement as it was carried out.

    Attributes:
        done: as planned, or as `copy_parent` where the planned operator had nothing to act on.
        why: the reason for that; empty otherwise.
        measures: of the child against its parents.
        params: as the operator resolved them.
    """

    done: Replacement
    why: str
    measures: Measures | None
    params: dict[str, Any]
