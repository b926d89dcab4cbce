"""Sequences as rows of one batch: a prompt once, and behind it all completions that share it, which do not see each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Group:
    """Completions of one member to one prompt.

    Attributes:
        slot: the member's row in the bank; -1: the base.
        prompt: token ids, at least one.
        completions: token ids of each, at least one.
        indices: where the completions stand in the caller's list.
    """

    slot: int
    prompt: tuple[int, ...]
    completions: tuple[tuple[int, ...], ...]
    indices: tuple[int, ...]

    @property
    def length(self) -> int:
        """Tokens of the row."""
        return len(self.prompt) + sum(map(len, self.completions))


def groups_of(
    slots: Sequence[int], prompts: Sequence[tuple[int, ...]], completions: Sequence[tuple[int, ...]], longest: int
) -> list[Group]:
    """Sequences grouped by member and prompt; a group whose row would be longer than `longest` tokens is split."""
    found: dict[tuple[int, tuple[int, ...]], list[list[int]]] = {}
    for i, (slot, prompt) in enumerate(zip(slots, prompts, strict=True)):
        parts = found.setdefault((slot, prompt), [[]])
        if parts[-1] and len(prompt) + sum(len(completions[j]) for j in [*parts[-1], i]) > longest:
            parts.append([])
        parts[-1].append(i)
    return [
        Group(slot, prompt, tuple(completions[i] for i in part), tuple(part))
        for (slot, prompt), parts in found.items()
        for part in parts
    ]


def batches(groups: Sequence[Group], tokens: int) -> list[list[Group]]:
    """Groups of like length together, at most `tokens` a batch with padding (a single longer one alone), members in order."""
    made: list[list[Group]] = []
    for group in sorted(groups, key=lambda g: -g.length):
        if not made or (len(made[-1]) + 1) * made[-1][0].length > tokens:
            made.append([])
        made[-1].append(group)
    return [sorted(batch, key=lambda g: g.slot) for batch in made]


def route_of(slots: Sequence[int]) -> list[tuple[int, int]]:
    """Runs of equal slots: (slot, rows)."""
    route: list[tuple[int, int]] = []
    for slot in slots:
        if route and route[-1][0] == slot:
            route[-1] = (slot, route[-1][1] + 1)
        else:
            route.append((slot, 1))
    return route


@dataclass(frozen=True)
class Batch:
    """What a model needs for some groups.

    Attributes:
        ids, positions: [rows, time].
        part: [rows, time]: 0 in the prompt, i in the i-th completion, -1 where there is nothing.
        sources: flat indices into [rows * time] of the places that predict the completions' tokens, in order.
        targets: the tokens predicted.
        indices: the caller's index of the completion that each target belongs to.
    """

    ids: Tensor
    positions: Tensor
    part: Tensor
    sources: Tensor
    targets: Tensor
    indices: Tensor


def batch_of(groups: Sequence[Group], device: str) -> Batch:
    """Lay groups out, one a row, padded on the right."""
    time = max(group.length for group in groups)
    ids, positions, part = (torch.full((len(groups), time), fill, dtype=torch.long) for fill in (0, 0, -1))
    sources: list[int] = []
    targets: list[int] = []
    indices: list[int] = []
    for row, group in enumerate(groups):
        shared = len(group.prompt)
        ids[row, :shared] = torch.tensor(group.prompt)
        positions[row, :shared] = torch.arange(shared)
        part[row, :shared] = 0
        start = shared
        for number, (tokens, index) in enumerate(zip(group.completions, group.indices, strict=True), 1):
            stop = start + len(tokens)
            ids[row, start:stop] = torch.tensor(tokens, dtype=torch.long)
            positions[row, start:stop] = torch.arange(shared, shared + len(tokens))
            part[row, start:stop] = number
            sources += [row * time + shared - 1, *range(row * time + start, row * time + stop - 1)][: len(tokens)]
            targets += tokens
            indices += [index] * len(tokens)
            start = stop
    laid = (ids, positions, part, *(torch.tensor(x, dtype=torch.long) for x in (sources, targets, indices)))
    return Batch(*(t.to(device) for t in laid))


def seen(batch: Batch) -> Tensor:
    """[rows, time, time]: whether a place (second) may look at another (third): earlier, and in the prompt or its own part."""
    earlier = torch.ones(batch.ids.shape[1], batch.ids.shape[1], dtype=torch.bool, device=batch.ids.device).tril()
    looker, looked = batch.part[:, :, None], batch.part[:, None, :]
    return earlier & ((looked == 0) | (looked == looker))


def attention_mask(
    config: Any, allowed: Tensor, queries: Tensor, keys: Tensor, dtype: torch.dtype
) -> Tensor | Mapping[str, Tensor]:
    """The mask in the form a model of transformers takes ready-made.

    Args:
        config: the model's; says which layers have a window.
        allowed: [rows, queries, keys].
        queries, keys: positions, [rows, queries] and [rows, keys].
        dtype: of the model.
    """
    text = config.get_text_config()
    window = getattr(text, "sliding_window", None)
    kinds = set(getattr(text, "layer_types", None) or ())
    full = _additive(allowed, dtype)
    if not window or (kinds and "sliding_attention" not in kinds):
        return full
    near = _additive(allowed & (queries[:, :, None] - keys[:, None, :] < window), dtype)
    if not kinds:
        return near
    return {kind: near if kind == "sliding_attention" else full for kind in kinds}


def _additive(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(~allowed, torch.finfo(dtype).min)[:, None]
