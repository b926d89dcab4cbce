"""Asking an engine: prompts for teachers, where completions end, batches."""

from __future__ import annotations

from collections.abc import Sequence

from selfplay.engines import Completion, Request, Sampling
from selfplay.table import Table
from selfplay.tasks import Buffers, Style


def asked(table: Table, buffers: Buffers, kind: str, name: str) -> tuple[tuple[int, ...], str | None]:
    """A teacher's prompt and the program it is about; references are left out until it fits."""
    rng, task = table.rng("prompt", name), table.tasks[kind]
    references = buffers.references(kind, table.config.game.references, rng)
    subject = None
    if task.needs_subject:
        sources = [k for k, t in table.tasks.items() if not t.needs_subject] or list(table.tasks)
        subject = buffers.subject(sources, rng)
    while True:
        prompt = table.engine.prompt(task.proposal_prompt(table.style, references, subject), table.style)
        if len(prompt) <= table.config.sampling.prompt_tokens or not references:
            return prompt, subject
        references = references[:-1]


def written(table: Table, requests: Sequence[Request], stops: Sequence[tuple[str, ...]], max_tokens: int) -> list[Completion]:
    """One completion for each request; requests with equal stop texts share a batch."""
    found: dict[int, Completion] = {}
    for stop in dict.fromkeys(stops):
        own = [i for i, of in enumerate(stops) if of == stop]
        sampling = Sampling(table.config.sampling.temperature, max_tokens, stop)
        found.update(zip(own, table.sampler.generate([requests[i] for i in own], sampling), strict=True))
    return [found[i] for i in range(len(requests))]


def proposal_stop(style: Style) -> tuple[str, ...]:
    """Where a compact proposal ends: at an empty line."""
    return ("\n\n",) if style == "compact" else ()


def answer_stop(kind: str, style: Style) -> tuple[str, ...]:
    """Where a compact answer ends: a program at an empty line, a value at the end of its line."""
    if style == "chat":
        return ()
    return ("\n\n",) if kind == "induction" else ("\n",)
