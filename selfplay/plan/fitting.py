"""What does not fit, by how much, and what to change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from selfplay.config import Config
from selfplay.plan.geometry import Geometry
from selfplay.plan.load import bounds, load
from selfplay.plan.memory import Layout, Memory, When, learning_gpu, sampling_gpu

PHASES: tuple[When, When] = ("sampling", "learning")


def problems(config: Config, base: Geometry, layout: Layout, room: float) -> Iterator[str]:
    """A sentence for everything that will not work when all is as long as it may be.

    Args:
        room: bytes of a device that may be filled.
    """
    sampling = config.sampling
    longest = max(sampling.proposal_tokens, sampling.answer_tokens)
    needed = sampling.prompt_tokens + longest
    if base.positions and needed > base.positions:
        yield (
            f"a prompt of {sampling.prompt_tokens} and a completion of {longest} tokens need {needed} positions, "
            f"{base.base} has {base.positions}: the game will not start; lower sampling.*_tokens"
        )
    for when in PHASES:
        yield from _overflow("a GPU that learns", lambda c: learning_gpu(c, base, layout, load(c, bounds(c))), config, when, room)
    if layout.gpus > layout.learners:
        yield from _overflow(
            "a GPU that only samples", lambda c: sampling_gpu(c, base, layout, load(c, bounds(c))), config, "sampling", room
        )


def _overflow(where: str, memory_of: Callable[[Config], Memory], config: Config, when: When, room: float) -> Iterator[str]:
    memory = memory_of(config)
    over = memory.during(when) - room
    if over <= 0:
        return
    part = max((p for p in memory.parts if p.when in ("always", when)), key=lambda p: p.bytes)
    always = sum(p.bytes for p in memory.parts if p.when == "always")
    remedy = _remedy(config, lambda changed: memory_of(changed).during(when) <= room, when)
    yield (
        f"memory of {where}, while {when}: {over / 1e9:.1f} GB too much. The largest part is {part.what}, {part.bytes / 1e9:.1f} "
        f"GB; what is always there takes {always / 1e9:.1f} GB of {room / 1e9:.1f}. {remedy}"
    )


def _remedy(config: Config, fits: Callable[[Config], bool], when: When) -> str:
    """One change that suffices, the mildest first; or what there is beside it."""
    if when == "sampling":
        rows = _largest(config.sequences, lambda n: fits(config.model_copy(update={"sequences": n})))
        if rows:
            return f"sequences={rows} would fit"
    else:
        rules = config.learner
        if not rules.checkpointing and fits(_learning(config, replace(rules, checkpointing=True))):
            return "learner.checkpointing=true would fit"
        tokens = _largest(rules.tokens_per_batch, lambda n: fits(_learning(config, replace(rules, tokens_per_batch=n))))
        if tokens:
            return f"learner.tokens_per_batch={tokens} would fit"
    return _beside(config, when)


def _beside(config: Config, when: When) -> str:
    """What can be changed where rows and batches are not enough."""
    ways = [
        "lower sampling.*_tokens or lora.rank",
        "take fewer members or a smaller base",
        "take GPUs with more memory (--rate memory)",
    ]
    if config.dtype != "bfloat16":
        ways.insert(0, "set dtype=bfloat16")
    change = "sequences" if when == "sampling" else "learner.tokens_per_batch"
    return f"Lowering {change} alone is not enough: {', '.join(ways[:-1])}, or {ways[-1]}"


def _learning(config: Config, rules: object) -> Config:
    return config.model_copy(update={"learner": rules})


def _largest(most: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to `most` that fits, if all smaller ones do too; 0 if none."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
