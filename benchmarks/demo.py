"""Breed two real adapters, end to end: `python -m benchmarks.demo [--out demo-out] [--seconds 60] [--base NAME] [--json]`.

Trains two LoRA adapters with PEFT, each on a task of its own in an answer format that no base has seen; mutates the first,
crosses both with every crossover in the registry and with `linear`; writes every child as a PEFT folder, loads it back with
PEFT and scores it on held-out examples of both tasks. Prints one table:

- seconds: training for the parents, breeding and writing for the children;
- change: relative change, |child - parent a| / |parent a|, Frobenius norms of the deltas;
- cos a, cos b: cosines to the parents; kept: energy left after truncation to the parents' rank;
- loss: cross-entropy per answer token, in nats; right: share of answers with every token the model's first choice.
"""

# ruff: noqa: E402  what libraries read when they are imported is set before
from __future__ import annotations

import argparse
import json
import math
import os
import random
import string
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that spin are 10 times slower on a machine with other work
warnings.simplefilter("ignore")  # of libraries, about their own future

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

import lora_evo as le
from selfplay import bases

RANK, LEARNING_RATE, BATCH, HELD_OUT = 16, 2e-3, 8, 32
MUTATIONS = ("svd_perturb", "gaussian")
SEED = 0

Example = tuple[str, str]


@dataclass(frozen=True)
class Task:
    """Questions with one right answer, any number of them.

    Attributes:
        draw: a random question and its answer.
        held_out: examples that training never sees.
    """

    name: str
    draw: Callable[[random.Random], Example]
    held_out: tuple[Example, ...]

    @classmethod
    def of(cls, draw: Callable[[random.Random], Example]) -> Task:
        """The task of a function, under its name."""
        rng = random.Random(f"held out {draw.__name__}")
        return cls(draw.__name__, draw, tuple(draw(rng) for _ in range(HELD_OUT)))

    def training(self) -> Iterator[Example]:
        """Random examples without end, none of them held out."""
        rng = random.Random(f"training {self.name}")
        while True:
            if (example := self.draw(rng)) not in self.held_out:
                yield example


@dataclass(frozen=True)
class Row:
    """One line of the table; None where it does not apply."""

    seconds: float | None = None
    change: float | None = None
    cos_a: float | None = None
    cos_b: float | None = None
    kept: float | None = None
    loss_a: float = math.nan
    loss_b: float = math.nan
    right_a: float = math.nan
    right_b: float = math.nan


def sort(rng: random.Random) -> Example:
    """Three numbers in rising order: `Sort: 52 17 80` is `<17|52|80>`."""
    numbers = rng.sample(range(10, 100), 3)
    return f"Sort: {' '.join(map(str, numbers))}\n", f"<{'|'.join(map(str, sorted(numbers)))}>"


def backwards(rng: random.Random) -> Example:
    """Five letters in reverse: `Backwards: k r a o z` is `z-o-a-r-k.`."""
    letters = rng.choices(string.ascii_lowercase, k=5)
    return f"Backwards: {' '.join(letters)}\n", f"{'-'.join(reversed(letters))}."


def main(arguments: list[str] | None = None) -> None:
    """Print the table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="where the adapters go (demo-out)")
    parser.add_argument("--seconds", type=float, default=60, help="training time of each parent (60)")
    parser.add_argument("--base", default="smollm2-135m", help=f"{', '.join(bases.names())} or a model folder (smollm2-135m)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        result = demo(options.base, options.out, options.seconds)
    except (le.LoraEvoError, OSError) as error:
        sys.exit(f"demo: {error}")
    (options.out / "demo.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result) if options.json else table(result))


def demo(base: str, out: Path, seconds: float) -> dict[str, Any]:
    """Train, breed, score: the base's name, the tasks, and the rows by name."""
    base, path = found(base)
    lab = Lab(path, Task.of(sort), Task.of(backwards))
    out.mkdir(parents=True, exist_ok=True)
    rows = {"base": lab.scored(Row())}
    for seed, name, task in ((1, "parent-a", lab.task_a), (2, "parent-b", lab.task_b)):
        say(f"{name}: training on {task.name!r} for {seconds:g} s")
        lab.train(task, out / name, seconds, seed)
        rows[name] = lab.score(out / name, Row(seconds=seconds))
    parents = [le.load(out / "parent-a"), le.load(out / "parent-b")]
    crossovers = [o.name for o in le.all_operators().values() if o.kind == "crossover"]
    for operator in [*MUTATIONS, *crossovers, "linear"]:
        row = breed(parents, operator, out / operator)
        rows[operator] = lab.score(out / operator, row)
    tasks = {"a": " -> ".join(lab.task_a.held_out[0]), "b": " -> ".join(lab.task_b.held_out[0])}
    return {"base": base, "out": str(out), "tasks": tasks, "rows": {name: asdict(row) for name, row in rows.items()}}


def found(base: str) -> tuple[str, str]:
    """The base's name and folder; the tiny random Llama where a packaged base cannot be had."""
    try:
        return base, bases.resolve(base)
    except bases.BaseError as error:
        say(f"{error}\nUsing {bases.TINY} instead: random weights, so the adapters learn little, but every step is the same.")
        return bases.TINY, bases.resolve(bases.TINY)


def breed(parents: list[le.Adapter], operator: str, folder: Path) -> Row:
    """Breed a child, write it, and say how it relates to its parents."""
    say(f"{operator}: breeding")
    start = time.perf_counter()
    chosen = le.all_operators()[operator]
    child = chosen(parents[: chosen.max_parents], seed=SEED)
    le.save(child, folder, force=True)
    seconds = time.perf_counter() - start
    assert child.measures is not None
    cosines = (*child.measures.parent_cosines, None)
    return Row(seconds, child.measures.relative_change, cosines[0], cosines[1], child.measures.kept_energy)


class Lab:
    """A base model, and the two tasks that adapters are trained and scored on."""

    def __init__(self, path: str, task_a: Task, task_b: Task):
        self.model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(path)
        self.task_a, self.task_b = task_a, task_b

    def train(self, task: Task, folder: Path, seconds: float, seed: int) -> None:
        """Train an adapter for that long, on all linear layers, and save it as PEFT does."""
        torch.manual_seed(seed)
        config = LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules="all-linear", task_type="CAUSAL_LM")
        adapted, examples = get_peft_model(self.model, config), task.training()
        optimizer = torch.optim.AdamW([p for p in adapted.parameters() if p.requires_grad])
        start, steps = time.monotonic(), 0
        while (spent := time.monotonic() - start) < seconds or not steps:
            optimizer.param_groups[0]["lr"] = LEARNING_RATE * min(1, (steps + 1) / 5) * max(0.1, 1 - spent / seconds)
            loss, _ = self.loss(adapted, [next(examples) for _ in range(BATCH)])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            if spent // 10 < (time.monotonic() - start) // 10:
                say(f"  {time.monotonic() - start:3.0f} s, step {steps}: loss {loss.item():.3f}")
        adapted.save_pretrained(str(folder))
        self.model = adapted.unload()

    def score(self, folder: Path, row: Row) -> Row:
        """The row with the losses of an adapter that PEFT loads from its folder."""
        adapted = PeftModel.from_pretrained(self.model, folder)
        row = self.scored(row, adapted)
        self.model = adapted.unload()
        return row

    @torch.no_grad()
    def scored(self, row: Row, model: Any = None) -> Row:
        """The row with the losses of a model, the bare base by default."""
        model = (model or self.model).eval()
        (loss_a, right_a), (loss_b, right_b) = (self.loss(model, task.held_out) for task in (self.task_a, self.task_b))
        return replace(row, loss_a=loss_a.item(), loss_b=loss_b.item(), right_a=right_a, right_b=right_b)

    def loss(self, model: Any, examples: list[Example] | tuple[Example, ...]) -> tuple[torch.Tensor, float]:
        """Mean loss per answer token, and the share of answers that are right to the last token.

        Answers end in one column, so that the model's head works on answers alone.
        """
        pairs = [(self.ids(question), [*self.ids(answer), self.tokenizer.eos_token_id]) for question, answer in examples]
        width, kept = max(len(q) + len(a) for q, a in pairs), max(len(a) for _, a in pairs)
        ids = torch.tensor([[self.tokenizer.pad_token_id] * (width - len(q) - len(a)) + q + a for q, a in pairs])
        mask = torch.tensor([[0] * (width - len(q) - len(a)) + [1] * len(q + a) for q, a in pairs])
        labels = torch.tensor([[-100] * (kept - len(a)) + a for _, a in pairs])
        logits = model(input_ids=ids, attention_mask=mask, logits_to_keep=kept + 1).logits[:, :-1]
        right = (logits.argmax(-1) == labels) | (labels < 0)
        return cross_entropy(logits.flatten(0, 1), labels.flatten()), right.all(1).float().mean().item()

    def ids(self, text: str) -> list[int]:
        """The tokens of a text, without marks of begin or end."""
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]


def table(result: dict[str, Any]) -> str:
    """The result for people."""
    columns = list(asdict(Row()))
    lines = [
        f"{result['base']}, LoRA rank {RANK} on all linear layers; {HELD_OUT} held-out examples a task",
        *(f"task {letter}: {example!r}" for letter, example in result["tasks"].items()),
        "",
        f"{'':12}" + "".join(f"{name.replace('_', ' '):>8}" for name in columns),
    ]
    for name, row in result["rows"].items():
        lines.append(f"{name:12}" + "".join(cell(column, row[column]) for column in columns))
    return "\n".join([*lines, "", f"Adapters, all of them PEFT folders: {result['out']}/"])


def cell(column: str, value: float | None) -> str:
    """One number, 8 wide."""
    if value is None:
        return f"{'-':>8}"
    return f"{value:8.0%}" if column.startswith("right") else f"{value:8.2f}" if column == "seconds" else f"{value:8.3f}"


def say(text: str) -> None:
    """Progress, beside the result."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
