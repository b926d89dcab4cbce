"""Rates: every number a plan rests on that is not in the configuration, with its unit, its kind and its source."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Literal

from lora_evo.errors import LoraEvoError
from selfplay.config import Config
from selfplay.plan.load import Lengths, bounds
from selfplay.tree import near

Kind = Literal["assumed", "measured", "given", "derived"]


@dataclass(frozen=True)
class Rate:
    """A number.

    Attributes:
        kind: `assumed` here, `measured` in a run or by a benchmark, `given` by the caller, or `derived` from others.
        source: a data sheet, a command, a run, or the reason.
    """

    value: float
    unit: str
    kind: Kind
    source: str


Rates = Mapping[str, Rate]

_SHEET = "NVIDIA H100 SXM, data sheet"
_UNMEASURED = "no GPU was at hand to measure it"

HARDWARE: dict[str, Rate] = {
    "memory": Rate(80e9, "bytes a GPU", "assumed", _SHEET),
    "reserved": Rate(0.1, "share of memory", "assumed", "context and fragmentation; " + _UNMEASURED),
    "bandwidth": Rate(3.35e12, "bytes/s", "assumed", _SHEET),
    "bandwidth_used": Rate(0.6, "share", "assumed", "of decoding; " + _UNMEASURED),
    "flops": Rate(989e12, "operations/s", "assumed", _SHEET + ", bfloat16, dense"),
    "float32_flops": Rate(67e12, "operations/s", "assumed", _SHEET + ", float32"),
    "flops_sampling": Rate(0.4, "share", "assumed", _UNMEASURED),
    "flops_learning": Rate(0.35, "share", "assumed", _UNMEASURED),
    "step_overhead": Rate(0.002, "s a decode step", "assumed", "launches and scheduling; " + _UNMEASURED),
    "embedded_overhead": Rate(
        0.04, "s a decode step", "assumed", "as step_overhead, of PyTorch one operation at a time; " + _UNMEASURED
    ),
    "learners": Rate(1, "GPUs that learn", "assumed", "as built: the learner is one process on one device"),
    "slots": Rate(16, "adapters in a sampler's batch", "assumed", _UNMEASURED),
    "swap": Rate(2e9, "bytes/s", "assumed", "adapters written to memory-backed files and read; " + _UNMEASURED),
    "cores": Rate(8, "referee cores a GPU", "assumed", "a usual node"),
    "programs": Rate(175, "programs/s a core", "measured", "python -m benchmarks.referee: 351 on two cores"),
    "breeding": Rate(1.2e8, "bytes of child/s", "measured", "python -m benchmarks.operators: 161 MB in 0.75 to 1.6 s, two cores"),
    "disk": Rate(1e9, "bytes/s", "assumed", "checkpoints on a local disk"),
    "bookkeeping": Rate(1e-4, "s a completion", "measured", "lora-evo selfplay plan --like RUN, of a run of the preset laptop"),
}
"""Of a GPU, and of the machine around it."""

PHYSICAL = ("bandwidth", "bandwidth_used", "flops", "float32_flops", "flops_sampling", "flops_learning", "step_overhead",
            "embedded_overhead")  # fmt: skip
"""What the model's costs are derived from."""

GPU = (*PHYSICAL, "learners", "slots", "swap")
"""What a plan for a CPU does not ask."""

EXPECTED: dict[str, Rate] = {
    "valid": Rate(0.7, "share of proposals", "assumed", "no run of this size was seen"),
    "proposal_prompt": Rate(800, "tokens", "assumed", "the wording and six short programs: 2,200 characters, three a token"),
    "proposal": Rate(1000, "tokens", "assumed", "what a summary of the paper says of a population's responses"),
    "answer_prompt": Rate(300, "tokens", "assumed", "the wording and one program: 350 to 980 characters"),
    "answer": Rate(1000, "tokens", "assumed", "as proposal"),
    "proposal_longest": Rate(math.inf, "tokens", "assumed", "in every batch one completion reaches its limit"),
    "answer_longest": Rate(math.inf, "tokens", "assumed", "as proposal_longest"),
    "trained": Rate(0.7, "share of completion tokens", "assumed", "groups of eight without a signal: 0.43 at a solve rate of 0.1"),
    "reread": Rate(0.7, "share of prompts", "assumed", "as trained"),
    "proposal_programs": Rate(2, "programs a proposal", "assumed", "a process under each hash seed"),
    "answer_programs": Rate(1, "programs an answer", "assumed", "all but deductions, which are judged by value"),
}
"""Lengths (`load.Lengths`), where no run says better; no more than the configuration allows."""

DERIVED = {"step_seconds": "s a decode step", "token_seconds": "s a token", "learned_seconds": "s a token"}
"""What the three costs of the model come to; a run measures them, otherwise they follow from hardware and geometry."""


def assumed(config: Config) -> dict[str, Rate]:
    """The rates before anything was measured. A CPU's memory is this machine's; how fast it is only a run can tell."""
    most = bounds(config)
    expected = {name: replace(rate, value=min(rate.value, getattr(most, name))) for name, rate in EXPECTED.items()}
    found = {**HARDWARE, **expected}
    if config.device == "cpu":
        found = {name: rate for name, rate in found.items() if name not in GPU}
        size = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        found["memory"] = Rate(size, "bytes", "measured", "this machine")
        cores = config.referee.workers or len(os.sched_getaffinity(0))
        found["cores"] = Rate(cores, "referee cores", "measured", "referee.workers, or this machine")
    return found


def given(rates: Rates, changes: Iterable[str]) -> dict[str, Rate]:
    """Rates with changes such as `bandwidth=2e12`.

    Raises:
        LoraEvoError: for a name that is none, or a value that cannot be.
    """
    found, units = dict(rates), {**{name: rate.unit for name, rate in rates.items()}, **DERIVED}
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals or name not in units:
            hint = near(name, units) if equals else ", bandwidth=2e12 say"
            raise LoraEvoError(f"--rate {change!r} names no rate{hint}; there are {', '.join(units)}")
        found[name] = Rate(_number(name, text, units[name]), units[name], "given", "--rate")
    return found


def lengths(config: Config, rates: Rates) -> Lengths:
    """Expected lengths, none above its bound."""
    most = bounds(config)
    return replace(most, **{f.name: min(rates[f.name].value, getattr(most, f.name)) for f in fields(most)})


def _number(name: str, text: str, unit: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise LoraEvoError(f"--rate {name} is {text!r}, it must be a number ({unit})") from None
    zero = name in EXPECTED or name in DERIVED or name in ("reserved", "step_overhead", "embedded_overhead", "bookkeeping")
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        raise LoraEvoError(f"--rate {name} is {text}, it must be a finite number {'of 0 or more' if zero else 'above 0'} ({unit})")
    if unit.startswith("share") and value > 1:
        raise LoraEvoError(f"--rate {name} is {text}, a share is at most 1")
    return value
