"""Train nano from nothing: `python -m selfplay.bases.nano.train -o FOLDER [--minutes 60] [--seed 0]`.

Programs are drawn and run while the model learns; portion i of the corpus depends on (seed, i) alone. A checkpoint is
written every two minutes, whole or not at all; the same command goes on from it. The learning rate follows the minutes.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lora_evo.seeding import stream
from selfplay.bases.nano.programs import Drawn
from selfplay.bases.nano.texts import STEPS, document, programs, solved
from selfplay.bases.nano.tokenizer import tokenizer
from selfplay.referee import Referee

SIZE = (300, 1500)
"""Of a portion: programs drawn, and documents made of them."""


@dataclass(frozen=True)
class Lesson:
    """What portions are made of, up to one.

    Attributes:
        until: the first portion of the next lesson.
        steps: shares of programs with none, one, two, ... steps.
        kinds: shares of deduction, abduction and induction.
        proposals: share of proposals.
    """

    until: float
    steps: tuple[float, ...]
    kinds: tuple[float, float, float]
    proposals: float


LESSONS = (
    Lesson(12, (0.4, 0.6), (0.5, 0.3, 0.2), 0.0),
    Lesson(40, (0.1, 0.65, 0.25), (0.5, 0.3, 0.2), 0.1),
    Lesson(118, (0.02, 0.36, 0.34, 0.2, 0.08), (0.5, 0.3, 0.2), 0.2),
    Lesson(float("inf"), STEPS, (0.6, 0.3, 0.1), 0.12),
)
"""Copying first, then everything, then most of what is hardest: to run a program in the head."""
TOKENS = 2048
"""Of a batch, with padding."""
RATE = 1.5e-3
PROMPT = 0.2
"""Weight of a prompt's tokens; the point is to answer."""
SIZES: dict[str, Any] = {
    "hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 5, "num_attention_heads": 6, "num_key_value_heads": 3,
    "head_dim": 32, "max_position_embeddings": 1024, "tie_word_embeddings": True, "initializer_range": 0.05,
}  # fmt: skip

Document = tuple[list[int], int]
"""Token ids, and how many of them are the prompt's."""

_referee: Referee | None = None


def lesson_of(number: int) -> Lesson:
    """The lesson a portion belongs to."""
    return next(lesson for lesson in LESSONS if number < lesson.until)


def drawn(seed: int, number: int, count: int = SIZE[0]) -> list[Drawn]:
    """The programs of one portion."""
    return programs(seed, number, count, lesson_of(number).steps)


def portion(seed: int, number: int, size: tuple[int, int] = SIZE) -> list[Document]:
    """The documents of one portion, shuffled."""
    global _referee
    if _referee is None:
        _referee = Referee()
        _referee.start()
    texts = tokenizer()
    lesson = lesson_of(number)
    found = solved(_referee, drawn(seed, number, size[0]))
    rng = stream(seed, "nano", "documents", str(number))
    made = []
    for j in range(size[1]):
        prompt, completion = document(found, j % len(found), rng, lesson.kinds, lesson.proposals)
        head = texts.encode(prompt, add_special_tokens=False)
        tail = texts.encode(completion, add_special_tokens=False)
        made.append(([texts.bos_token_id, *head, *tail, texts.eos_token_id], len(head) + 1))
    return [made[j] for j in rng.permutation(len(made))]


def portions(seed: int, first: int, size: tuple[int, int]) -> Iterator[list[Document]]:
    """From the `first` on, made ahead in a process of their own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        ahead: list[Future[list[Document]]] = [pool.submit(portion, seed, first + i, size) for i in range(3)]
        number = first + 3
        while True:
            yield ahead.pop(0).result()
            ahead.append(pool.submit(portion, seed, number, size))
            number += 1


def batches(documents: list[Document], seed: int, number: int) -> Iterator[list[Document]]:
    """Documents of like length together, the batches in random order."""
    made: list[list[Document]] = []
    for one in sorted(documents, key=lambda d: -len(d[0])):
        if not made or (len(made[-1]) + 1) * len(made[-1][0][0]) > TOKENS:
            made.append([])
        made[-1].append(one)
    for i in stream(seed, "nano", "order", str(number)).permutation(len(made)):
        yield made[int(i)]


def loss_of(model: Any, batch: list[Document], prompt_weight: float = PROMPT) -> Tensor:
    """Mean loss a token; a prompt's tokens weigh less."""
    width = max(len(ids) for ids, _ in batch)
    ids, weight = torch.zeros(len(batch), width, dtype=torch.long), torch.zeros(len(batch), width)
    for row, (tokens, head) in enumerate(batch):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        weight[row, : len(tokens)] = 1.0
        weight[row, :head] = prompt_weight
    logits = model(input_ids=ids).logits[:, :-1]
    each = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    return (each * weight[:, 1:].flatten()).sum() / weight[:, 1:].sum()


def new_model(seed: int) -> Any:
    """Random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    texts = tokenizer()
    config = LlamaConfig(
        vocab_size=len(texts), bos_token_id=texts.bos_token_id, eos_token_id=texts.eos_token_id, pad_token_id=texts.pad_token_id,
        **SIZES,
    )  # fmt: skip
    torch.manual_seed(seed)
    return LlamaForCausalLM(config)  # its initializer_range is part of SIZES


def train(
    folder: Path,
    minutes: float,
    seed: int,
    steps: int = 0,
    size: tuple[int, int] = SIZE,
    watch: Callable[[dict[str, Any]], None] = lambda state: None,
) -> None:
    """Train for so many minutes in all (or `steps` batches), going on from what is in the folder.

    Args:
        size: of a portion.
        watch: called with the state after each portion, when it has been saved.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model = new_model(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.05)
    state: dict[str, Any] = {"portion": 0, "step": 0, "seconds": 0.0}
    if (folder / "state.pt").exists():
        saved = torch.load(folder / "state.pt", weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        state = saved["state"]
    end, saved_at, before = minutes * 60, time.monotonic(), state["seconds"]
    start, losses = time.monotonic(), []
    for documents in portions(seed, state["portion"], size):
        for batch in batches(documents, seed, state["portion"]):
            share = state["step"] / steps if steps else state["seconds"] / end
            for group in optimizer.param_groups:
                group["lr"] = RATE * min(1.0, (state["step"] + 1) / 200) * max(0.03, 1 - share)
            loss = loss_of(model, batch)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            state |= {"step": state["step"] + 1, "seconds": before + time.monotonic() - start}
        state["portion"] += 1
        over = state["step"] >= steps if steps else state["seconds"] >= end
        print(
            f"portion {state['portion']} step {state['step']} {state['seconds']:.0f} s loss {sum(losses) / len(losses):.4f}",
            flush=True,
        )
        losses = []
        if over or steps or time.monotonic() - saved_at > 120:
            save(folder, model, optimizer, state)
            saved_at = time.monotonic()
        watch(state)
        if over:
            return


def save(folder: Path, model: Any, optimizer: Any, state: dict[str, Any]) -> None:
    """The state to go on from, and the model as it is shipped."""
    aside = folder / "state.part"
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "state": state}, aside)
    os.replace(aside, folder / "state.pt")
    export(model, folder / "model")


def export(model: Any, folder: Path) -> None:
    """An ordinary model folder, in bfloat16."""
    import copy

    copy.deepcopy(model).bfloat16().save_pretrained(folder)
    tokenizer().save_pretrained(folder)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Train nano from nothing.")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0)
    chosen = parser.parse_args()
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    train(chosen.output, chosen.minutes, chosen.seed)


if __name__ == "__main__":
    main()
