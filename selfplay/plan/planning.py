"""The plan: what the rooms beside this one say, put together, and whether it fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lora_evo.errors import LoraEvoError
from selfplay.config import Config
from selfplay.plan.fitting import problems
from selfplay.plan.geometry import Geometry
from selfplay.plan.load import Load, bounds, load
from selfplay.plan.memory import Layout, Memory, learning_gpu, members, sampling_gpu
from selfplay.plan.rates import Rates, lengths
from selfplay.plan.seconds import by_resource, seconds, with_costs

SIZES = (1, 2, 4, 8, 16, 32)
"""Teachers and as many students, of the table."""

GPUS = (1, 2, 4, 8, 16, 32, 64)
"""GPUs of the table."""


@dataclass(frozen=True)
class View:
    """A step with one set of lengths.

    Attributes:
        learning, sampling: memory of a GPU that learns, and of one that only samples; None if all learn.
        seconds: by phase; None if there is no cost to tell.
    """

    load: Load
    learning: Memory
    sampling: Memory | None
    seconds: Mapping[str, float] | None

    @property
    def peak(self) -> float:
        """Bytes on the fullest GPU."""
        return max(memory.peak for memory in (self.learning, self.sampling) if memory)

    @property
    def total(self) -> float | None:
        """Seconds of the step."""
        return None if self.seconds is None else sum(self.seconds.values())

    @property
    def slowest(self) -> str | None:
        """The resource that is busy longest."""
        if self.seconds is None:
            return None
        busy = by_resource(dict(self.seconds))
        return max(busy, key=busy.__getitem__)


@dataclass(frozen=True)
class Plan:
    """What a configuration will need.

    Attributes:
        bound: with everything as long as it may be.
        expected: with lengths as assumed or measured.
        rates: all that it rests on, derived costs included.
        room: bytes of a GPU that may be filled.
        problems: what will not work, and what to change; empty if nothing.
    """

    config: Config
    base: Geometry
    gpus: int
    layout: Layout
    bound: View
    expected: View
    rates: Rates
    room: float
    problems: tuple[str, ...]

    @property
    def first(self) -> str | None:
        """What is full first: memory if it does not suffice, else the resource that is busy longest."""
        return "memory" if self.expected.peak > self.room else self.expected.slowest

    def memory_total(self, view: View) -> float:
        """Bytes at the peak, of all GPUs together."""
        others = self.gpus - self.layout.learners
        return self.layout.learners * view.learning.peak + others * (view.sampling.peak if view.sampling else 0.0)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        teachers, students = members(self.config)
        return {
            "base": {**asdict(self.base), "adapted": len(self.base.adapted)},
            "teachers": teachers, "students": students, "rank": self.config.lora.rank, "gpus": self.gpus,
            "learners": self.layout.learners, "engine": self.config.engine, "room": self.room,
            "bound": self._view(self.bound), "expected": self._view(self.expected), "first": self.first,
            "problems": list(self.problems), "rates": {name: asdict(rate) for name, rate in self.rates.items()},
        }  # fmt: skip

    def _view(self, view: View) -> dict[str, Any]:
        load = view.load
        counts = ("requests", "prompt_tokens", "completion_tokens", "trained_tokens", "learned_tokens", "programs")
        memory = {"learning": view.learning, "sampling": view.sampling}
        return {
            "load": {**asdict(load), **{name: getattr(load, name) for name in counts}},
            "memory": {name: _memory(of) for name, of in memory.items() if of},
            "peak": view.peak, "memory_total": self.memory_total(view),
            "seconds": None if view.seconds is None else {**view.seconds, "total": view.total},
        }  # fmt: skip


def plan(config: Config, base: Geometry, rates: Rates, gpus: int = 1) -> Plan:
    """A plan.

    Args:
        base: the geometry of the configuration's base.
        rates: `rates.assumed`, with what was measured or given in their place.
        gpus: the engine `torch` is on one; `vllm` samples on all.

    Raises:
        LoraEvoError: for GPUs that the configuration's engine and device cannot have.
    """
    _check(config, gpus)
    layout = _layout(config, rates, gpus)
    expecting = lengths(config, rates)
    rates = with_costs(config, base, layout, rates, expecting)
    bound, expected = (_view(config, base, layout, load(config, how), rates) for how in (bounds(config), expecting))
    room = rates["memory"].value * (1 - rates["reserved"].value)
    return Plan(config, base, gpus, layout, bound, expected, rates, room, tuple(problems(config, base, layout, room)))


def table(
    config: Config, base: Geometry, rates: Rates, sizes: Sequence[int] = SIZES, gpus: Sequence[int] = GPUS
) -> dict[int, dict[int, Plan]]:
    """Plans of populations of n teachers and n students, by n and by GPUs; the engine `torch` has one."""
    found: dict[int, dict[int, Plan]] = {}
    for n in sizes:
        population = {"teachers": n, "students": n, "single_agent": False}
        sized = config.with_changes(population=population)
        found[n] = {count: plan(sized, base, rates, count) for count in (gpus if config.engine == "vllm" else (1,))}
    return found


def _check(config: Config, gpus: int) -> None:
    if gpus < 1:
        raise LoraEvoError(f"gpus is {gpus}, it must be at least 1")
    if config.device == "cpu" and gpus > 1:
        raise LoraEvoError(f"{gpus} GPUs, but device is cpu; --set device=cuda plans for GPUs")
    if config.device == "cpu" and config.engine == "vllm":
        raise LoraEvoError("engine is vllm, which is planned on GPUs only, but device is cpu; --set device=cuda or engine=torch")
    if config.engine == "torch" and gpus > 1:
        raise LoraEvoError(f"{gpus} GPUs, but engine is torch, which is one process on one GPU; --set engine=vllm plans for more")
    if config.engine == "vllm" and config.vllm.tensor_parallel > 1:
        raise LoraEvoError(
            f"vllm.tensor_parallel is {config.vllm.tensor_parallel}, but a plan knows only bases that fit on one GPU; set it to 1"
        )


def _layout(config: Config, rates: Rates, gpus: int) -> Layout:
    if config.device == "cpu":
        return Layout(1, 1, sum(members(config)))
    return Layout(gpus, min(int(rates["learners"].value), gpus), int(rates["slots"].value))


def _view(config: Config, base: Geometry, layout: Layout, load: Load, rates: Rates) -> View:
    learning = learning_gpu(config, base, layout, load)
    sampling = sampling_gpu(config, base, layout, load) if layout.gpus > layout.learners else None
    return View(load, learning, sampling, seconds(config, base, layout, load, rates))


def _memory(memory: Memory) -> dict[str, Any]:
    parts = {part.what: {"when": part.when, "bytes": part.bytes, "counted": part.counted} for part in memory.parts}
    return {"parts": parts, "while sampling": memory.during("sampling"), "while learning": memory.during("learning")}
