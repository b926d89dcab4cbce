"""How long a step takes: seconds of every phase, from the load, the rates and this model.

- Writing is a decode step after the other. A step reads the base and the adapters of its members once (`step_seconds`);
  every token costs its arithmetic and the reading of the keys and values before it (`token_seconds`). Prompts cost arithmetic.
- A GPU writes `sequences` completions at a time. The embedded engine waits for the longest of each batch; vLLM fills up
  what has ended, and waits for the longest once.
- Learning is arithmetic: forward, backward without gradients of the base, and again forward where activations are not kept.
- Nothing overlaps, as in `loop.step`.
"""

from __future__ import annotations

from selfplay.config import Config
from selfplay.plan.geometry import Geometry
from selfplay.plan.load import Asked, Lengths, Load
from selfplay.plan.memory import FLOAT32, Layout, members, served_bytes
from selfplay.plan.rates import DERIVED, PHYSICAL, Rate, Rates
from selfplay.replacement import deaths

RESOURCES = {
    "decoding": ("propose", "solve"),
    "referee": ("validate", "judge"),
    "learning": ("learn",),
    "swaps": ("serve",),
    "disk": ("checkpoint",),
    "bookkeeping": ("replace", "rest"),
}
"""What is busy in which phases."""


def with_costs(config: Config, base: Geometry, layout: Layout, rates: Rates, lengths: Lengths) -> dict[str, Rate]:
    """Rates with the model's costs: as measured or given, and then what they would follow from is left out; else derived.

    A CPU's are never derived.
    """
    if all(name in rates for name in DERIVED):
        return {name: rate for name, rate in rates.items() if name not in PHYSICAL}
    if config.device == "cpu":
        return dict(rates)
    worked = {
        "step_seconds": _step_seconds(config, base, layout, rates),
        "token_seconds": _token_seconds(config, base, rates, lengths),
        "learned_seconds": _learned_seconds(config, base, rates, lengths),
    }
    made = {name: Rate(value, DERIVED[name], "derived", "hardware and geometry") for name, value in worked.items()}
    return {**rates, **{name: rate for name, rate in made.items() if name not in rates}}


def seconds(config: Config, base: Geometry, layout: Layout, load: Load, rates: Rates) -> dict[str, float] | None:
    """Of each phase of a step, by its name in a run's timings where it has one; None if a cost is not known."""
    if any(name not in rates for name in DERIVED):
        return None
    value = {name: rate.value for name, rate in rates.items()}
    teachers, students = members(config)
    everyone, own = teachers + students, base.adapter_size(config.lora.rank) * FLOAT32
    workers = config.referee.workers or value["cores"] * (layout.gpus if config.device != "cpu" else 1)
    judged = workers * value["programs"]
    served = 0.0 if config.engine == "torch" else 2 * everyone * served_bytes(config, base) / value["swap"]
    return {
        "propose": _writing(config, layout, load.propose, teachers, value),
        "validate": load.propose.programs / judged,
        "solve": _writing(config, layout, load.solve, students or teachers, value),
        "judge": load.solve.programs / judged,
        "learn": load.learned_tokens * value["learned_seconds"] / layout.learners,
        "serve": served,
        "replace": _children(config) * own / value["breeding"],
        "checkpoint": 3 * everyone * own / value["disk"] / config.checkpoint.every,
        "rest": load.requests * value["bookkeeping"],
    }


def by_resource(phases: dict[str, float]) -> dict[str, float]:
    """Seconds of each resource."""
    return {name: sum(phases[phase] for phase in busy) for name, busy in RESOURCES.items()}


def decode_steps(config: Config, waves: float, longest: float, mean: float) -> float:
    """Steps one after the other in which completions of such lengths are written, `sequences` of them a wave."""
    return waves * longest if config.engine == "torch" else (waves - 1) * mean + longest


def _writing(config: Config, layout: Layout, asked: Asked, own: int, value: dict[str, float]) -> float:
    """Seconds of one phase of sampling; `own` members take part."""
    each = asked.requests / layout.gpus
    if not each:
        return 0.0
    waves = max(each / layout.at_once(config, asked, own), 1.0)
    steps = decode_steps(config, waves, asked.longest, asked.completion)
    tokens = (asked.completion_tokens + asked.read_tokens) / layout.gpus
    return steps * value["step_seconds"] + tokens * value["token_seconds"]


def _children(config: Config) -> float:
    """Bred in a step, on average. The only member of a role stays."""
    rules = config.replacement
    if not rules.every or config.population.single_agent:
        return 0.0
    return sum(deaths(n, rules) for n in members(config)) / rules.every


def _step_seconds(config: Config, base: Geometry, layout: Layout, rates: Rates) -> float:
    """Base and adapters are read once for all rows; the embedded engine has its adapters in float32."""
    if config.engine == "torch":
        held, overhead = max(members(config)) * base.adapter_size(config.lora.rank) * FLOAT32, rates["embedded_overhead"]
    else:
        held, overhead = min(max(members(config)), layout.slots) * served_bytes(config, base), rates["step_overhead"]
    speed = rates["bandwidth"].value * rates["bandwidth_used"].value
    return (base.weight_bytes(config.dtype) + held) / speed + overhead.value


def _token_seconds(config: Config, base: Geometry, rates: Rates, lengths: Lengths) -> float:
    """Two operations a weight, and keys and values of half of the longer text."""
    work = 2 * (base.multiplied + base.adapter_size(config.lora.rank)) / (_flops(config, rates) * rates["flops_sampling"].value)
    context = max(lengths.proposal_prompt + lengths.proposal / 2, lengths.answer_prompt + lengths.answer / 2)
    return work + context * base.cache_bytes(config.dtype) / (rates["bandwidth"].value * rates["bandwidth_used"].value)


def _learned_seconds(config: Config, base: Geometry, rates: Rates, lengths: Lengths) -> float:
    """Passes over the base, attention included, in its dtype; over the adapters in float32, with gradients of theirs."""
    rules = config.learner
    again = int(rules.checkpointing)
    passes = 2 + again + int(rules.kl > 0)  # forward, backward to the inputs, and forward again
    context = max(lengths.proposal_prompt + lengths.proposal, lengths.answer_prompt + lengths.answer) / 2
    attention = 2 * context * base.heads * base.head_size * base.layers  # q k and p v, a multiplication each
    used = rates["flops_learning"].value
    whole = 2 * passes * (base.multiplied + attention) / (_flops(config, rates) * used)
    members_own = 2 * (3 + again) * base.adapter_size(config.lora.rank) / (rates["float32_flops"].value * used)
    return whole + members_own


def _flops(config: Config, rates: Rates) -> float:
    return rates["flops" if config.dtype == "bfloat16" else "float32_flops"].value
