"""Small games for tests: a base, a configuration, real processes, and what a run leaves behind."""

import multiprocessing
import os
import resource
import signal
import subprocess
import sys
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import torch

from lora_evo_cli.main import main
from selfplay import presets
from selfplay.bases import TINY, names
from selfplay.config import Config
from selfplay.events import Event
from selfplay.runs import begun, play

BASE = os.environ.get("LORA_EVO_TEST_BASE") or ("nano" if "nano" in names() else TINY)
"""A base that proposes some valid problems, where there is one."""

SMALL = (
    "population.teachers=2", "population.students=2", "game.proposals=3", "game.answers=3", "game.seeding=6",
    "replacement.every=2", "replacement.grace=0", "archive.cells=16", "referee.workers=2",
)  # fmt: skip
TINIEST = (
    f"base={BASE}", "style=compact", *SMALL, "game.kinds=[deduction]", "sampling.proposal_tokens=64", "sampling.answer_tokens=8",
    "lora.rank=2",
)  # fmt: skip


class Silent:
    """A watcher that says nothing, and remembers."""

    def __init__(self) -> None:
        self.phases: list[tuple[int, str]] = []
        self.steps: list[Event] = []

    def phase(self, step: int, name: str) -> None:
        self.phases.append((step, name))

    def played(self, step: Event, seconds: object) -> None:
        self.steps.append(step)


def small(*changes: str, base: str = BASE) -> Config:
    """A game of two and two on a base."""
    return presets.preset("laptop", [f"base={base}", *SMALL, *changes])


def tiniest(*changes: str) -> Config:
    """A game of one kind that takes a second a step."""
    return presets.preset("laptop", [*TINIEST, *changes])


def played(folder: Path, config: Config) -> Path:
    """A run from beginning to end."""
    with begun(config, folder) as run:
        play(run, Silent())
    return folder


def command(*arguments: str | Path) -> list[str]:
    """A command line of the game."""
    return [sys.executable, "-m", "lora_evo_cli.main", "selfplay", *map(str, arguments)]


def beginning(folder: Path, *changes: str) -> list[str | Path]:
    """What to say to `selfplay` to begin a tiniest game."""
    return ["run", "-o", folder, *(word for change in (*TINIEST, *changes) for word in ("--set", change))]


def run_command(folder: Path, *changes: str) -> list[str]:
    """The command line that begins it."""
    return command(*beginning(folder, *changes))


def environment() -> dict[str, str]:
    """One thread, no network."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def called(arguments: list[str], **how: object) -> subprocess.CompletedProcess[str]:
    """A command that is waited for."""
    return subprocess.run(arguments, capture_output=True, text=True, env=environment(), timeout=300, **how)  # type: ignore[call-overload,no-any-return]


FORKS = multiprocessing.get_context("forkserver")
"""Processes that are new and have imported everything already: that takes seconds, and is shown by `called`."""
FORKS.set_forkserver_preload(["lora_evo_cli.main", "selfplay.runs", "ribs.archives", "transformers.models.llama.modeling_llama"])


def forked(said: Path, *arguments: str | Path, largest: int = resource.RLIM_INFINITY) -> BaseProcess:
    """A command line in a process of its own, which has begun.

    Args:
        said: a file for its stderr; its stdout goes beside it, into one that ends in `.out`.
        largest: bytes of a file that it may write.
    """
    process = FORKS.Process(target=_command, args=([str(word) for word in arguments], said, largest))
    process.start()
    return process


def _command(arguments: list[str], said: Path, largest: int) -> None:
    for number, path in ((1, said.with_suffix(".out")), (2, said)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job is born deaf to it
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
    torch.set_num_threads(1)
    sys.exit(main(arguments))


def left(folder: Path) -> dict[str, bytes]:
    """All files of a run that must be the same in every run of its configuration: path -> bytes."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in ("timings.jsonl", "report.html")]
    return {str(path.relative_to(folder)): _bytes(path) for path in files}


def _bytes(path: Path) -> bytes:
    """A file's; of the arrays in it, where the format keeps the time of day beside them."""
    if path.suffix != ".npz":
        return path.read_bytes()
    with np.load(path) as arrays:
        return b"".join(name.encode() + arrays[name].tobytes() for name in arrays)
