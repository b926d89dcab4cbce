"""Eight members against one, and against the usual way: `python -m benchmarks.population [--base nano] [--json]`.

The same prompts, the same number of completions, the same tokens to learn from, in one run and alternating:

- `many`: eight members of the embedded engine, mixed in every batch;
- `one`: one member of the embedded engine does all the work;
- `peft`: eight adapters of PEFT, one after the other: `generate` of transformers with a cache, then a padded forward and
  backward pass and torch's AdamW, in batches of as many tokens.

Ratios are medians over rounds of times in the same round. Memory is the peak of a process of its own that does one step.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import lora_evo as le
from benchmarks.programs import generated
from selfplay.bases import resolve
from selfplay.engines import Completion, Request, Sampling
from selfplay.engines.torch_engine import TorchEngine
from selfplay.learner import Learner, LearnRules, Sample
from selfplay.tasks import Problem, get

MEMBERS, PROBLEMS, ANSWERS, TOKENS = 8, 64, 8, 32
RANK, ALPHA = 8, 16
SAMPLING = Sampling(1.0, TOKENS)


def requests_of(engine: TorchEngine, members: Sequence[str]) -> list[Request]:
    """Each member answers its share of the problems, several times each."""
    style = "chat" if engine.has_chat else "compact"
    programs = generated(PROBLEMS, seed=3)
    problems = [Problem("deduction", p.program, (p.arguments,), (0,)) for p in programs]
    prompts = [engine.prompt(get("deduction").answer_prompt(problem, style), style) for problem in problems]
    return [Request(members[i % len(members)], p, 100 * i + g) for i, p in enumerate(prompts) for g in range(ANSWERS)]


def samples_of(requests: Sequence[Request], completions: Sequence[Completion]) -> list[Sample]:
    """With made-up advantages, none of them zero."""
    return [
        Sample(r.member or "", r.prompt, c.tokens, c.logprobs, 1.0 if i % 2 else -1.0)
        for i, (r, c) in enumerate(zip(requests, completions, strict=True))
    ]


class Embedded:
    """The embedded engine with some members."""

    def __init__(self, base: str, members: int) -> None:
        self.engine = TorchEngine(base, slots=members, rank=RANK, alpha=ALPHA)
        self.names = [f"m{i}" for i in range(members)]
        for i, name in enumerate(self.names):
            self.engine.fresh(name, i)
        self.learner = Learner(self.engine, LearnRules(lr=1e-5))
        self.requests = requests_of(self.engine, self.names)

    def sample(self) -> list[Completion]:
        return self.engine.generate(self.requests, SAMPLING)

    def learn(self, completions: Sequence[Completion]) -> None:
        self.learner.update(samples_of(self.requests, completions))


class OneByOne:
    """PEFT, as one would write it."""

    def __init__(self, base: str, embedded: Embedded) -> None:
        from peft import PeftModel
        from transformers import AutoModelForCausalLM

        self.requests, self.names = embedded.requests, embedded.names
        self.budget = embedded.learner.rules.tokens_per_batch
        self.pad = embedded.engine.tokenizer.pad_token_id or 0
        model = AutoModelForCausalLM.from_pretrained(resolve(base), dtype=torch.float32)
        with tempfile.TemporaryDirectory() as folder:
            for name in self.names:
                le.save(embedded.engine.adapter(name), Path(folder) / name)
            self.model = PeftModel.from_pretrained(model, Path(folder) / self.names[0], self.names[0], is_trainable=True)
            for name in self.names[1:]:
                self.model.load_adapter(Path(folder) / name, adapter_name=name, is_trainable=True)
        self.model.eval()
        self.optimizers = {}
        for name in self.names:
            self.model.set_adapter(name)
            self.optimizers[name] = torch.optim.AdamW([p for p in self.model.parameters() if p.requires_grad], lr=1e-5)

    def sample(self) -> int:
        """Tokens written."""
        written = 0
        for name in self.names:
            self.model.set_adapter(name)
            own = [r.prompt for r in self.requests if r.member == name]
            width = max(map(len, own))
            ids = torch.tensor([[self.pad] * (width - len(p)) + list(p) for p in own])
            mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in own])
            found = self.model.generate(
                input_ids=ids, attention_mask=mask, max_new_tokens=TOKENS, do_sample=True, top_k=0, top_p=1.0, temperature=1.0,
                pad_token_id=self.pad,
            )  # fmt: skip
            written += int((found[:, width:] != self.pad).sum())
        return written

    def learn(self, completions: Sequence[Completion]) -> None:
        for name in self.names:
            self.model.set_adapter(name)
            own = [
                (r.prompt, c.tokens, i) for i, (r, c) in enumerate(zip(self.requests, completions, strict=True)) if r.member == name
            ]
            own.sort(key=lambda s: len(s[0]) + len(s[1]))
            total = sum(len(tokens) for _, tokens, _ in own)
            rows = max(1, self.budget // (len(own[-1][0]) + len(own[-1][1])))
            for start in range(0, len(own), rows):
                self._backward(own[start : start + rows], total)
            own_parameters = [p for p in self.model.parameters() if p.requires_grad]
            torch.nn.utils.clip_grad_norm_(own_parameters, 1.0)
            self.optimizers[name].step()
            self.optimizers[name].zero_grad()

    def _backward(self, part: Sequence[tuple[tuple[int, ...], tuple[int, ...], int]], total: int) -> None:
        width = max(len(p) + len(c) for p, c, _ in part)
        ids = torch.tensor([[*p, *c] + [self.pad] * (width - len(p) - len(c)) for p, c, _ in part])
        mask = torch.tensor([[1] * (len(p) + len(c)) + [0] * (width - len(p) - len(c)) for p, c, _ in part])
        kept = torch.tensor([[0] * (len(p) - 1) + [1] * len(c) + [0] * (width - len(p) - len(c)) for p, c, _ in part])
        worth = torch.tensor([1.0 if i % 2 else -1.0 for *_, i in part])[:, None]
        logits = self.model(input_ids=ids, attention_mask=mask).logits[:, :-1].float()
        logprobs = -torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        ratio = (logprobs - logprobs.detach()).exp().view(len(part), -1)
        (-(ratio * worth * kept).sum() / total).backward()


def timed(call: Any, *args: Any) -> tuple[float, Any]:
    start = time.perf_counter()
    found = call(*args)
    return time.perf_counter() - start, found


def measure(base: str, rounds: int) -> dict[str, float]:
    """Seconds a thousand tokens, and ratios."""
    many, one = Embedded(base, MEMBERS), Embedded(base, 1)
    peft = OneByOne(base, many)
    each: dict[str, list[float]] = {}
    for round_ in range(rounds + 1):
        seconds: dict[str, float] = {}
        for label, engine in (("many", many), ("one", one)):
            seconds[f"{label} sampling"], completions = timed(engine.sample)
            written = sum(len(c.tokens) for c in completions)
            seconds[f"{label} sampling"] /= written / 1000
            seconds[f"{label} learning"] = timed(engine.learn, completions)[0] / (written / 1000)
            if label == "many":
                shared, shared_written = completions, written
        seconds["peft sampling"], written = timed(peft.sample)
        seconds["peft sampling"] /= written / 1000
        seconds["peft learning"] = timed(peft.learn, shared)[0] / (shared_written / 1000)
        for label in ("many", "one", "peft"):
            seconds[f"{label} step"] = seconds[f"{label} sampling"] + seconds[f"{label} learning"]
        print(f"round {round_}: " + ", ".join(f"{k} {v:.3f}" for k, v in seconds.items()), file=sys.stderr, flush=True)
        for label, value in seconds.items() if round_ else ():
            each.setdefault(label, []).append(value)
        for part in ("sampling", "learning", "step") if round_ else ():
            each.setdefault(f"many / one, {part}", []).append(seconds[f"many {part}"] / seconds[f"one {part}"])
            each.setdefault(f"peft / many, {part}", []).append(seconds[f"peft {part}"] / seconds[f"many {part}"])
    return {label: statistics.median(values) for label, values in each.items()}


def peak(base: str, members: int) -> float:
    """MiB at the peak of one step in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.population", "--base", base, "--peak", str(members)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--base", default="nano")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--peak", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.peak:
        alone = Embedded(chosen.base, chosen.peak)
        alone.learn(alone.sample())
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        return
    found = measure(chosen.base, chosen.rounds)
    many, one = peak(chosen.base, MEMBERS), peak(chosen.base, 1)
    found |= {"many MiB": many, "one MiB": one, "many / one, memory": many / one}
    if chosen.json:
        print(json.dumps({"base": chosen.base, "members": MEMBERS, "seconds_per_1000_tokens": found}))
        return
    for label, value in found.items():
        print(f"{label:28} {value:9.3f}")


if __name__ == "__main__":
    main()
