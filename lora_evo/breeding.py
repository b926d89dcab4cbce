"""From parents to child: check, plan, grow module by module on all cores, collect or write.

A `Plan` knows everything about the child but its numbers: modules, ranks, scales, dtypes, configuration. That is what
`--dry-run` shows, and what lets the writer put tensors in their place while others are still being computed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lora_evo import extras as extra_tensors
from lora_evo import lineage
from lora_evo.adapter import Adapter, Extra, LoraFactors
from lora_evo.errors import LoraEvoError, OperatorError
from lora_evo.lowrank import join
from lora_evo.measure import Measures, Moments, moments, zero
from lora_evo.operators import Operator, Params, Scene, get
from lora_evo.places import selected
from lora_evo.rules import check_parents
from lora_evo.seeding import stream
from lora_evo.shape import ChildShape, Form, child_shape, stored
from lora_evo.threads import single_threaded_products

Progress = Callable[[int, int], None]
Grown = tuple[str, LoraFactors, Moments]


@dataclass(frozen=True)
class Plan:
    """A child before it is computed.

    Attributes:
        params: shared parameters, as the operator resolved them; `local` what differs, by place.
        bred: the modules the operator acts on; the others are the first parent's.
        missing: modules that some parents lack, where they count as zero: name -> parents.
    """

    operator: Operator
    parents: tuple[Adapter, ...]
    seed: int
    params: Params
    local: Mapping[str, Params]
    bred: frozenset[str]
    missing: Mapping[str, tuple[str, ...]]
    shape: ChildShape
    patterns: tuple[str, ...]
    overrides: Mapping[str, Mapping[str, Any]]

    @cached_property
    def extras(self) -> dict[str, Extra]:
        """The child's tensors that are no deltas."""
        n = len(self.parents)
        weights = self.params.get("weights") or (1.0 / n,) * n
        choices = {place: params["choice"] for place, params in self.local.items() if "choice" in params}
        return extra_tensors.combined(self.operator.extras, self.parents, weights, choices, self.shape.scales)

    def child(self, modules: Mapping[str, LoraFactors], measures: Measures | None) -> Adapter:
        """The child as an adapter; without measures a draft, with blank digests."""
        remembered = tuple(
            lineage.Parent(p.name, lineage.digest(p) if measures else "0" * 64, dict(p.metadata)) for p in self.parents
        )
        params = {name: value for name, value in self.params.items() if value is not None}
        history = lineage.Lineage(
            self.operator.name, self.seed, params, self.overrides, self.patterns, remembered, lineage.versions(), measures
        )
        shape, first = self.shape, self.parents[0]
        return Adapter(
            modules, shape.config, shape.layouts, self.extras, shape.ties, name="child", metadata=first.metadata, lineage=history,
            measures=measures,
        )  # fmt: skip


def plan(
    parents: Sequence[Adapter],
    operator: Operator | str,
    *,
    seed: int,
    rank: int | None = None,
    dtype: torch.dtype | str | None = None,
    modules: Sequence[str] = (),
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
    strict: bool = False,
    allow_base_mismatch: bool = False,
    **params: Any,
) -> Plan:
    """Check a call and lay out the child; see `breed` for the arguments."""
    operator = get(operator) if isinstance(operator, str) else operator
    checked = operator.checked(params)
    check_parents(parents, operator, allow_base_mismatch=allow_base_mismatch, strict=strict)
    names = {name for p in parents for name in p.modules}
    places = tuple(sorted(names | {e.module for p in parents for e in p.extras.values()}))
    bred = frozenset(selected(names, modules)) if modules else frozenset(names)
    drawn = tuple(p for p in places if p in bred or p not in names)
    scene = Scene(len(parents), tuple(sorted(bred)), drawn, stream(seed, operator.name))
    shared, local = operator.prepared(checked, scene)
    special_params = {
        glob: {name: operator.param(name).checked(value) for name, value in some.items()}
        for glob, some in (overrides or {}).items()
    }
    for glob, special in special_params.items():
        for name in selected(bred, [glob]):
            local[name] = {**local.get(name, {}), **special}
    missing = {n: tuple(p.name for p in parents if n not in p.modules) for n in sorted(names)}
    return Plan(
        operator=operator,
        parents=tuple(parents),
        seed=int(seed),
        params=shared,
        local=local,
        bred=bred,
        missing={name: lacking for name, lacking in missing.items() if lacking},
        shape=child_shape(parents, rank, dtype),
        patterns=tuple(modules),
        overrides=special_params,
    )


def breed(
    parents: Sequence[Adapter],
    operator: Operator | str,
    *,
    device: str | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
    **call: Any,
) -> Adapter:
    """Breed a child in memory.

    Args:
        parents: adapters of one base; one for a mutation.
        operator: an operator or its name.
        seed: the child depends on the inputs and this number alone.
        rank: the child's rank; the parents' by default, the largest of them if they differ.
        dtype: of the child's factors; the parents' by default.
        modules: shell patterns of the modules to act on, `!pattern` to leave out; the others are the first parent's.
        overrides: pattern -> parameters for the modules it names.
        strict: refuse parents with different module sets.
        allow_base_mismatch: breed adapters of different bases.
        device: where the products run, "cuda" say; the CPU by default.
        threads: how many modules are computed at once; all cores by default. The child does not depend on it.
        progress: called with (modules done, modules in all).
        **params: the operator's own parameters.

    Raises:
        AdapterError: for parents that cannot be bred so.
        OperatorError: for parameters the operator does not take.
    """
    todo = plan(parents, operator, **call)
    grown = list(grow(todo, device=device, threads=threads, progress=progress))
    return todo.child({name: factors for name, factors, _ in grown}, _measured(todo, [m for *_, m in grown]))


def breed_into(todo: Plan, folder: str | Path, *, force: bool = False, **how: Any) -> Adapter:
    """Breed a child straight into a PEFT folder: modules are written while others are computed.

    The bytes are those of `save(breed(...), folder)`. `how` is `breed`'s device, threads and progress.

    Returns:
        The child without its modules: lineage, measures, configuration.
    """
    from lora_evo.peft_format.write import write

    done: list[Moments] = []

    def factors() -> Iterator[tuple[str, LoraFactors]]:
        for name, grown, module_moments in grow(todo, **how):
            done.append(module_moments)
            yield name, grown

    draft = todo.child({}, None)
    return write(folder, draft, todo.shape.sizes, factors(), lambda: todo.child({}, _measured(todo, done)), force=force)


def grow(todo: Plan, *, device: str | None = None, threads: int | None = None, progress: Progress | None = None) -> Iterator[Grown]:
    """The child's modules in the plan's order, computed ahead on all cores."""
    workers = threads or min(8, os.cpu_count() or 1)
    names = list(todo.shape.ranks)
    with single_threaded_products(), ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        futures = [pool.submit(_module, todo, name, device) for name in names[: 4 * workers]]
        hashing = [pool.submit(lineage.digest, parent) for parent in todo.parents]
        futures += [pool.submit(_module, todo, name, device) for name in names[4 * workers :]]
        try:
            for i, name in enumerate(names):
                factors, module_moments = futures[i].result()
                del futures[i].__dict__["_result"]  # the writer is done with it; memory stays flat
                yield name, factors, module_moments
                if progress:
                    progress(i + 1, len(names))
            for digest in hashing:
                digest.result()
        finally:
            pool.shutdown(cancel_futures=True)


def breed_factors(
    parents: Sequence[LoraFactors | tuple], operator: Operator, *, seed: int, rank: int | None = None, **params: Any
) -> LoraFactors:
    """`Operator.on_factors`."""
    factors = [LoraFactors(*p) for p in parents]
    scene = Scene(len(factors), ("",), ("",), stream(seed, operator.name))
    shared, local = operator.prepared(operator.checked(params), scene)
    first = factors[0]
    form = Form(rank or max(f.rank for f in factors), first.scale, (first.A.dtype, first.B.dtype))
    rng = stream(seed, operator.name, "")
    return child_of(operator, factors, form, rng, {**shared, **local.get("", {})})[0]


def child_of(
    operator: Operator | None,
    factors: Sequence[LoraFactors],
    form: Form,
    rng: np.random.Generator,
    params: Params,
    device: str | None = None,
) -> tuple[LoraFactors, Moments]:
    """One module's child, in its stored form; the first parent's where there is no operator."""
    parents = join(factors, device)
    if operator is None:
        wanted = parents[0]
    else:
        rank = {"rank": form.rank} if operator.wants_rank else {}
        wanted = operator.formula(parents, rng, **params, **rank)
    child = wanted if wanted.rank <= form.rank else wanted.truncated(form.rank)
    return stored(child, parents, factors, form, rng), moments(child, wanted, parents)


def _module(todo: Plan, name: str, device: str | None) -> tuple[LoraFactors, Moments]:
    present = next(p.modules[name] for p in todo.parents if name in p.modules)
    factors = [p.modules.get(name) or zero(present) for p in todo.parents]
    operator = todo.operator if name in todo.bred else None
    rng = stream(todo.seed, todo.operator.name, name)
    params = {**todo.params, **todo.local.get(name, {})}
    try:
        return child_of(operator, factors, todo.shape.form(name), rng, params, device)
    except LoraEvoError as error:
        files = ", ".join(p.source[0] if p.source else p.name for p in todo.parents)
        raise type(error)(f"{files}: module {name}: {error}") from None


def _measured(todo: Plan, done: Sequence[Moments]) -> Measures:
    """The child's measures; a mutation that had nothing to act on is an error, not a child."""
    total = done[0]
    for module_moments in done[1:]:
        total = total + module_moments
    if todo.operator.kind == "mutation" and total.parents[0] == total.child == 0 and todo.params.get("strength") != 0:
        raise OperatorError(
            f"{todo.parents[0].name}: every delta is zero (a fresh adapter has B = 0), so {todo.operator.name} has nothing "
            "to change; gaussian and layer_noise add noise of a given norm to it (--absolute NORM, absolute=NORM)"
        )
    return total.measures
