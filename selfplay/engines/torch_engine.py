"""The embedded engine: one frozen base of transformers, all members beside it, in one process.

It samples, and it gives log-probabilities with gradients to the learner. What it does not do: continuous batching, paged
memory, several devices; that is what the engine for vLLM is for.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lora_evo import Adapter
from lora_evo.errors import LoraEvoError
from selfplay.bases import resolve
from selfplay.engines.bank import Bank
from selfplay.engines.base import Completion, Request, Sampling
from selfplay.engines.cache import GrowingCache
from selfplay.engines.endings import Endings
from selfplay.engines.prompts import prompt_ids
from selfplay.engines.routed import adapted, attach
from selfplay.engines.rows import Batch, attention_mask, route_of, seen
from selfplay.tasks import Style

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class TorchEngine:
    """See `Engine`.

    Args:
        base: a named base, a folder or a hub id.
        rank, alpha: of all members.
        targets: `all-linear`, or the last parts of module names.
        slots: members at one time.
        device: of the base and the members.
        dtype: the base's; members are float32.
        sequences: completions written at one time; more requests wait for their turn.

    Raises:
        LoraEvoError: for a base that cannot be had or adapted.
    """

    def __init__(
        self,
        base: str,
        *,
        slots: int,
        rank: int = 8,
        alpha: float = 16,
        targets: str | tuple[str, ...] = "all-linear",
        device: str = "cpu",
        dtype: str = "float32",
        sequences: int = 512,
    ) -> None:
        self.device, self.sequences = device, sequences
        self.model, self.tokenizer, folder = _loaded(base, dtype, device)
        layers = adapted(self.model, targets)
        widths = {name: (layer.in_features, layer.out_features) for name, layer in layers.items()}
        config = {
            "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base, "lora_dropout": 0.0, "bias": "none",
            "target_modules": sorted({name.rpartition(".")[2] for name in layers}), "inference_mode": True,
        }  # fmt: skip
        self.bank = Bank(widths, rank, alpha, slots, device, config)
        attach(self.model, self.bank, layers)
        self.base_digest = _digest(folder)
        self.endings = Endings.of(self.model, self.tokenizer)
        self._cache_name = "cache" if "cache" in inspect.signature(self.model.forward).parameters else "past_key_values"
        self._wanted: Tensor | None = None
        self.model.get_output_embeddings().register_forward_pre_hook(self._only_wanted)
        self.model.get_input_embeddings().register_forward_hook(_with_grad)

    # members

    @property
    def members(self) -> tuple[str, ...]:
        """Names, in the order they came."""
        return tuple(self.bank.slot_of)

    def fresh(self, name: str, seed: int) -> None:
        """Let a new member in, with B = 0."""
        self.bank.fresh(name, seed)

    def put(self, name: str, adapter: Adapter) -> None:
        """Let a member in, or give it new weights; see `Bank.put`."""
        self.bank.put(name, adapter)

    def drop(self, name: str) -> None:
        """Let a member go."""
        self.bank.drop(name)

    def adapter(self, name: str) -> Adapter:
        """A copy of a member, ready for `lora_evo.save`."""
        return self.bank.adapter(name)

    # text

    @property
    def has_chat(self) -> bool:
        """Whether the tokenizer has a chat template."""
        return bool(self.tokenizer.chat_template)

    def prompt(self, text: str, style: Style) -> tuple[int, ...]:
        """See `Engine.prompt`."""
        return prompt_ids(self.tokenizer, text, style)

    # sampling

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """One completion for each request, in order.

        Equal prompts of one member are read once. Each request has a random stream of its own, so its completion does not
        depend on its neighbours (but for rounding, which can differ with the shape of a batch).

        Raises:
            MemberError: for an unknown member.
        """
        slots = [self.bank.slot(r.member) for r in requests]
        if any(not r.prompt for r in requests):
            raise LoraEvoError("an empty prompt: a base without a start token needs some text to continue")
        order = sorted(range(len(requests)), key=lambda i: (slots[i], requests[i].prompt))
        found: dict[int, Completion] = {}
        with torch.inference_mode():
            for first in range(0, len(order), self.sequences):
                part = order[first : first + self.sequences]
                written = self._write([slots[i] for i in part], [requests[i] for i in part], sampling)
                found.update(zip(part, written, strict=True))
        return [found[i] for i in range(len(requests))]

    def _write(self, slots: Sequence[int], requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """Completions of requests that are ordered by slot and prompt."""
        chance = np.stack([np.random.Generator(np.random.Philox(key=r.seed)).random(sampling.max_tokens) for r in requests])
        chances = torch.from_numpy(chance).to(self.device)
        cache, logits, pads, width = self._read_prompts(slots, requests)
        tokens: list[list[int]] = [[] for _ in requests]
        logprobs: list[list[float]] = [[] for _ in requests]
        endings: list[str | None] = [None] * len(requests)
        alive = list(range(len(requests)))  # the rows of the batch; ended ones leave it now and then
        for step in range(sampling.max_tokens):
            chosen, logprob = _drawn(logits, chances[alive, step], sampling.temperature)
            for row, token, lp in zip(alive, chosen.tolist(), logprob.tolist(), strict=True):
                if endings[row] is None:
                    tokens[row].append(token)
                    logprobs[row].append(lp)
                    endings[row] = self.endings.found(tokens[row], sampling.stop)
            kept = [i for i, row in enumerate(alive) if endings[row] is None]
            if not kept or step == sampling.max_tokens - 1:
                break
            if len(kept) < 0.8 * len(alive):
                rows = torch.tensor(kept, device=self.device)
                cache.select(rows)
                chosen, pads = chosen[rows], pads[rows]
                alive = [alive[i] for i in kept]
            self.bank.route = route_of([slots[row] for row in alive])
            logits = self._next(chosen[:, None], cache, pads, width + step)
        return [self._completion(t, lp, e) for t, lp, e in zip(tokens, logprobs, endings, strict=True)]

    def _read_prompts(self, slots: Sequence[int], requests: Sequence[Request]) -> tuple[GrowingCache, Tensor, Tensor, int]:
        """Cache and logits behind each request's prompt, the empty places left of it, and the width of all."""
        keys = [(slot, request.prompt) for slot, request in zip(slots, requests, strict=True)]
        unique = {key: row for row, key in enumerate(dict.fromkeys(keys))}
        width = max(len(prompt) for _, prompt in unique)
        ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for _, prompt in unique], device=self.device)
        pads = torch.tensor([width - len(prompt) for _, prompt in unique], device=self.device)
        self.bank.route = route_of([slot for slot, _ in unique])
        cache = GrowingCache()
        last = torch.arange(1, len(unique) + 1, device=self.device) * width - 1
        with self._predicting(last):
            logits = self._next(ids, cache, pads, 0)
        rows = torch.tensor([unique[key] for key in keys], device=self.device)
        cache.select(rows)
        return cache, logits[rows], pads[rows], width

    def _next(self, ids: Tensor, cache: GrowingCache, pads: Tensor, past: int) -> Tensor:
        """Logits behind the last token of each row, [rows, vocabulary], float32."""
        time = torch.arange(past + ids.shape[1], device=self.device)
        positions = (time - pads[:, None]).clamp(min=0)
        allowed = (time >= pads[:, None])[:, None, :] & (time <= time[past:, None])
        logits = self._run(ids, positions[:, past:], allowed, positions, cache)
        return logits.flatten(0, 1).float() if self._wanted is not None else logits[:, -1].float()

    def _completion(self, tokens: list[int], logprobs: list[float], text: str | None) -> Completion:
        cut = text is None
        return Completion(
            tuple(tokens), tuple(logprobs), self.endings.text(tokens) if text is None else text, "length" if cut else "stop"
        )

    # what the learner needs

    def predicted(self, batch: Batch, slots: Sequence[int]) -> Tensor:
        """Logits of the batch's targets, [targets, vocabulary], in the base's dtype; with gradients where they are switched on.

        Args:
            batch: rows in the order of `slots`.
            slots: whose row each is.
        """
        self.bank.route = route_of(slots)
        with self._predicting(batch.sources):
            return self._run(batch.ids, batch.positions, seen(batch), batch.positions, None).flatten(0, 1)

    def _run(self, ids: Tensor, positions: Tensor, allowed: Tensor, keys: Tensor, cache: GrowingCache | None) -> Tensor:
        mask = attention_mask(self.model.config, allowed, positions, keys, self.model.dtype)
        how = {"use_cache": cache is not None, **({self._cache_name: cache} if cache is not None else {})}
        logits: Tensor = self.model(input_ids=ids, attention_mask=mask, position_ids=positions, **how).logits
        return logits

    @contextmanager
    def _predicting(self, places: Tensor) -> Iterator[None]:
        """Only these places, flat indices of the batch, go through the output head."""
        self._wanted = places
        try:
            yield
        finally:
            self._wanted = None

    def _only_wanted(self, head: torch.nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        if self._wanted is None:
            return given
        return given[0].flatten(0, 1)[self._wanted][None], *given[1:]


def _drawn(logits: Tensor, chances: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """One token a row by inverting the distribution function, and its log-probability at the temperature."""
    logprobs = torch.log_softmax(logits / temperature if temperature else logits, -1)
    if temperature:
        upto = logprobs.double().exp().cumsum(-1)
        chosen = torch.searchsorted(upto, (chances * upto[:, -1])[:, None], right=True)[:, 0].clamp(max=logits.shape[-1] - 1)
    else:
        chosen = logprobs.argmax(-1)
    return chosen, logprobs.gather(-1, chosen[:, None])[:, 0]


def _with_grad(module: torch.nn.Module, given: Any, embedded: Tensor) -> Tensor:
    """Frozen embeddings ask for no gradient, and without one no backward pass would reach the first layers."""
    return embedded.requires_grad_() if torch.is_grad_enabled() and not embedded.requires_grad else embedded


def _loaded(base: str, dtype: str, device: str) -> tuple[Any, Any, Path | None]:
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    if dtype not in DTYPES:
        raise LoraEvoError(f"dtype is {dtype!r}, it must be one of {', '.join(DTYPES)}")
    path = resolve(base)
    logging.disable_progress_bar()
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=DTYPES[dtype])
        tokenizer = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError, RuntimeError) as error:
        raise LoraEvoError(f"base {base}: {str(error).splitlines()[0]}") from None
    model.to(device).eval().requires_grad_(False)
    return model, tokenizer, Path(path) if Path(path).is_dir() else None


def _digest(folder: Path | None) -> str:
    """Of the base's weight files; empty for a hub id, whose revision is the hub's business."""
    if folder is None:
        return ""
    found = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as opened:
            found.update(hashlib.file_digest(opened, "sha256").digest())
    return found.hexdigest()
