"""What lies in a GPU's memory, in bytes: always, while completions are written, and while members learn.

The engine `torch` is one process on one GPU, whose base and members serve both. With `vllm` every GPU samples, with a base and
copies of the members of its own, which sleep while a GPU that also learns does so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from selfplay.config import Config
from selfplay.engines.cache import ROOM
from selfplay.logprobs import ROWS
from selfplay.plan.geometry import SIZES, Geometry
from selfplay.plan.load import Asked, Load

When = Literal["always", "sampling", "learning"]
FLOAT32 = 4


@dataclass(frozen=True)
class Part:
    """Something in memory; `what` is its name in tables, `counted` whether its tensors were counted or estimated."""

    what: str
    when: When
    bytes: float
    counted: bool = True


@dataclass(frozen=True)
class Memory:
    """All parts on one GPU."""

    parts: tuple[Part, ...]

    def during(self, when: When) -> float:
        """Bytes in a phase, those that are always there included."""
        return sum(part.bytes for part in self.parts if part.when in ("always", when))

    @property
    def peak(self) -> float:
        """Bytes in the phase that needs more."""
        return max(self.during("sampling"), self.during("learning"))

    @property
    def fullest(self) -> When:
        """That phase."""
        return "sampling" if self.during("sampling") > self.during("learning") else "learning"


@dataclass(frozen=True)
class Layout:
    """Who does what.

    Attributes:
        gpus: that sample.
        learners: of those, how many learn too.
        slots: adapters that one sampler holds for a batch.
    """

    gpus: int
    learners: int
    slots: int

    def at_once(self, config: Config, asked: Asked, members: int) -> int:
        """Completions that one GPU writes at a time. Members without a slot wait for the next wave."""
        held = 1.0 if config.engine == "torch" else min(1.0, self.slots / members)
        return min(math.ceil(asked.requests / self.gpus * held), config.sequences)


def members(config: Config) -> tuple[int, int]:
    """Teachers and students; a single agent counts once."""
    population = config.population
    return (1, 0) if population.single_agent else (population.teachers, population.students)


def served_bytes(config: Config, base: Geometry) -> int:
    """Of a member as vLLM holds it: in the base's dtype."""
    return base.adapter_size(config.lora.rank) * SIZES[config.dtype]


def learning_gpu(config: Config, base: Geometry, layout: Layout, load: Load) -> Memory:
    """A GPU that samples and learns."""
    own = sum(members(config)) * base.adapter_size(config.lora.rank) * FLOAT32
    parts = [
        Part("base", "always", base.weight_bytes(config.dtype)),
        Part("adapters", "always", own),
        Part("gradients", "always", own),
        Part("optimizer", "always", 2 * own),
        *_sampler(config, base, layout, load),
        *_update(config, base, load),
    ]
    return Memory(tuple(parts))


def sampling_gpu(config: Config, base: Geometry, layout: Layout, load: Load) -> Memory:
    """A GPU that only samples."""
    return Memory(tuple(_sampler(config, base, layout, load)))


def cache_bytes(config: Config, base: Geometry, rows: float, tokens: float) -> float:
    """Of keys and values with room for `tokens` in each row."""
    return rows * tokens * base.cache_bytes(config.dtype)


def _sampler(config: Config, base: Geometry, layout: Layout, load: Load) -> Iterator[Part]:
    teachers, students = members(config)
    if config.engine == "vllm":
        yield Part("sampler's base", "sampling", base.weight_bytes(config.dtype))
        yield Part("sampler's adapters", "sampling", min(teachers + students, layout.slots) * served_bytes(config, base))
    rows, rooms = zip(*_batches(config, layout, load), strict=True)
    yield Part("cache", "sampling", max(cache_bytes(config, base, *batch) for batch in zip(rows, rooms, strict=True)))
    yield Part("sampler's logits", "sampling", max(rows) * base.vocabulary * _DRAWN, counted=False)


def _batches(config: Config, layout: Layout, load: Load) -> list[tuple[int, float]]:
    """Rows and room of the largest batch of proposals and of answers."""
    teachers, students = members(config)
    propose, solve = _rows(config, load)
    return [
        (layout.at_once(config, load.propose, teachers), propose + ROOM),
        (layout.at_once(config, load.solve, students or teachers), solve + ROOM),
    ]


def _rows(config: Config, load: Load) -> tuple[float, float]:
    """Tokens of the longest proposal and of the longest answer, with their prompts."""
    sampling = config.sampling
    proposal = load.propose.prompt + min(load.propose.longest, sampling.proposal_tokens)
    return proposal, load.solve.prompt + min(load.solve.longest, sampling.answer_tokens)


def _update(config: Config, base: Geometry, load: Load) -> Iterator[Part]:
    """One pass of the learner: as many tokens as its budget allows, a single longer row, or all there is to learn."""
    size, rules = SIZES[config.dtype], config.learner
    tokens = min(max(rules.tokens_per_batch, *_rows(config, load)), load.learned_tokens / rules.epochs)
    layer = tokens * layer_bytes(base, config.lora.rank, config.dtype)
    kept = layer + base.layers * tokens * base.hidden * size if rules.checkpointing else base.layers * layer
    yield Part("activations", "learning", kept, counted=False)
    logits = tokens * 2 * size + min(tokens, ROWS) * _SOFTENED
    yield Part("logits", "learning", logits * base.vocabulary, counted=False)
    groups = (asked.prompt + each * asked.completion for asked, each in _groups(config, load))
    yield Part("attention mask", "learning", tokens * min(tokens, max(groups)) * (size + 3), counted=False)


def _groups(config: Config, load: Load) -> list[tuple[Asked, int]]:
    return [(load.propose, config.game.proposals), (load.solve, config.game.answers)]


def layer_bytes(base: Geometry, rank: int, dtype: str) -> float:
    """What the backward pass keeps of one layer for one token, without checkpointing.

    Both norms keep what they normalise in float32 and what they give; attention keeps q, its keys and values repeated for
    every head, and what it gives, twice; the gated block four times its width; each adapted layer A x in float32.
    """
    size, wide = SIZES[dtype], base.heads * base.head_size
    norms = 2 * base.hidden * (FLOAT32 + size)
    return norms + (5 * wide + 4 * base.mlp) * size + len(base.adapted) / base.layers * rank * FLOAT32


_DRAWN = 32
"""Bytes for each entry of the logits from which tokens are drawn: two in float32, three in float64 (`torch_engine._drawn`)."""

_SOFTENED = 8
"""Bytes for each entry of those of the learner's logits that are in float32 at one time, before and after the softmax. All are
kept in the base's dtype, and their gradient beside them (`logprobs.py`)."""
