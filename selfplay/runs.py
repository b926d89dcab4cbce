"""A run and its folder: begin one, go on with one, play it to its end."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lora_evo.errors import LoraEvoError
from lora_evo.folders import appearing
from selfplay import checkpoint, events, journal, loop, presets, writers
from selfplay.bases import style_of
from selfplay.config import MAY_CHANGE, Config, checked, differences
from selfplay.engines.opening import opened
from selfplay.engines.torch_engine import TorchEngine
from selfplay.events import Event
from selfplay.files import replaced
from selfplay.founding import founded, founding_seed
from selfplay.learner import Learner
from selfplay.referee import Referee, RefereeError
from selfplay.table import State, Table
from selfplay.tasks import Style


class RunError(LoraEvoError):
    """A run that cannot begin or go on: why, and what to do."""


class Watcher(Protocol):
    """Who looks on."""

    def phase(self, step: int, name: str) -> None:
        """A phase begins."""

    def played(self, step: Event, seconds: Mapping[str, float]) -> None:
        """A step is over, journaled and saved; `step` is its event."""


@dataclass
class Run:
    """A run that is being played."""

    folder: Path
    table: Table
    state: State
    journal: journal.Journal
    writers: list[writers.Writer]


@contextmanager
def seated(given: Config) -> Iterator[Table]:
    """Engine, learner and referee for a configuration, whose style is settled by then.

    Raises:
        LoraEvoError: for a base, device, writer or machine that cannot serve.
    """
    writers.check(given)
    _check_device(given.device)
    slots = 1 if given.population.single_agent else given.population.teachers + given.population.students
    lora, sampling = given.lora, given.sampling
    engine = TorchEngine(
        given.base, slots=slots, rank=lora.rank, alpha=lora.alpha, targets=lora.targets, device=given.device, dtype=given.dtype,
        sequences=given.sequences,
    )  # fmt: skip
    style = _style(given, engine)
    _check_room(given, engine)
    longest = max(sampling.proposal_tokens, sampling.answer_tokens)
    learner = Learner(engine, given.learner, sampling.temperature, longest)
    referee = Referee(given.referee.settings)
    try:
        referee.start()
    except RefereeError as error:
        raise RunError(f"{error} (referee.allow_degraded=true)") from None
    with referee, opened(given, engine, slots) as sampler:
        yield Table(given.with_changes(style=style), engine, sampler, learner, referee, given.game.tasks, style)


@contextmanager
def begun(given: Config, folder: Path) -> Iterator[Run]:
    """A new run; its folder appears once everything is ready, with a checkpoint of step 0 in it.

    Raises:
        LoraEvoError: if the folder exists, or anything cannot be had; nothing is left behind then.
    """
    _check_free(folder)
    with seated(given) as table:
        state, seeding = founded(table)
        with appearing(folder) as partial:
            (partial / "config.yaml").write_text(presets.dumps(table.config), encoding="utf-8")
            seeds = {m.name: founding_seed(table, m.name) for m in state.population.members}
            first = journal.dumps([events.start(table, state.population, seeds), *seeding])
            (partial / "journal.jsonl").write_bytes(first)
            checkpoint.save(partial / "checkpoints", table, state, len(first))
        with _opened(folder, table, state) as run:
            yield run


@contextmanager
def resumed(folder: Path, steps: int | None = None) -> Iterator[Run]:
    """A run that goes on from its newest checkpoint, to the bit as if it had never stopped.

    Args:
        steps: play up to this step instead of the configured one.

    Raises:
        LoraEvoError: if the configuration or the base is another one, or a file is damaged.
    """
    newest = checkpoint.latest(folder)
    saved = checkpoint.read(newest)
    given = _unchanged(folder, saved)
    if steps is not None:
        if steps < saved.step:
            raise RunError(f"{folder} has played {saved.step} steps; --steps {steps} is behind it")
        given = given.with_changes(steps=steps)
    with seated(given) as table:
        check_base(given, saved, table.engine)
        state = checkpoint.load(newest, table)
        with _opened(folder, table, state) as run:
            if steps is not None:
                replaced(folder / "config.yaml", presets.dumps(table.config))
            run.journal.truncate(saved.journal_bytes)
            _forget_timings(folder / "timings.jsonl", saved.step)
            yield run


def play(run: Run, watcher: Watcher, timer: Callable[[], float] = time.perf_counter) -> None:
    """Play a run up to its last step: after each one the journal first, then the checkpoint.

    Args:
        timer: see `loop.Clock`.
    """
    settings, last = run.table.config.checkpoint, run.table.config.steps
    while run.state.step < last:
        number, begun_at = run.state.step + 1, timer()
        clock = loop.Clock(lambda phase, number=number: watcher.phase(number, phase), timer)  # type: ignore[misc]
        run.state, happened = loop.step(run.table, run.state, clock)
        with clock("journal"):
            run.journal.append(happened)
        if number % settings.every == 0 or number == last:
            with clock("checkpoint"):
                checkpoint.save(run.folder / "checkpoints", run.table, run.state, run.journal.size)
        seconds = {**clock.seconds, "total": timer() - begun_at}
        _note(run, happened[-1], seconds)
        watcher.played(happened[-1], seconds)
    run.journal.append([events.end(last)])


def read_config(folder: Path) -> Config:
    """The configuration of a run's folder."""
    if not folder.is_dir():
        raise RunError(f"{folder} is no folder of a run")
    return presets.read(folder / "config.yaml")


def _note(run: Run, step: Event, seconds: Mapping[str, float]) -> None:
    rounded = {name: round(value, 4) for name, value in seconds.items()}
    with (run.folder / "timings.jsonl").open("a") as file:
        file.write(json.dumps({"step": step["step"], **rounded}) + "\n")
    for writer in run.writers:
        writer.write(step["step"], {**writers.figures(step), "seconds": seconds["total"]})


@contextmanager
def _opened(folder: Path, table: Table, state: State) -> Iterator[Run]:
    with ExitStack() as stack:
        book = journal.Journal(folder / "journal.jsonl")
        stack.callback(book.close)
        others = writers.opened(table.config, folder)
        for writer in others:
            stack.callback(writer.close)
        yield Run(folder, table, state, book, others)


def _style(given: Config, engine: TorchEngine) -> Style:
    if given.style == "chat" and not engine.has_chat:
        raise RunError(f"style is chat, but the tokenizer of {given.base} has no chat template; use compact")
    return given.style or style_of(given.base, engine.has_chat)


def _check_device(device: str) -> None:
    import torch

    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not there[device.partition(":")[0]]:
        raise RunError(f"device is {device}, which torch does not find on this machine")


def _check_room(given: Config, engine: TorchEngine) -> None:
    """A base has only so many positions."""
    longest = max(given.sampling.proposal_tokens, given.sampling.answer_tokens)
    room = getattr(engine.model.config.get_text_config(), "max_position_embeddings", None)
    if room and given.sampling.prompt_tokens + longest > room:
        raise RunError(
            f"sampling.prompt_tokens {given.sampling.prompt_tokens} and completions of {longest} tokens need "
            f"{given.sampling.prompt_tokens + longest} positions; {given.base} has {room}"
        )


def _check_free(folder: Path) -> None:
    if folder.exists():
        hint = f"; go on with it: lora-evo selfplay resume {folder}" if (folder / "journal.jsonl").exists() else ""
        raise RunError(f"{folder} exists{hint}")


def check_base(given: Config, saved: checkpoint.Saved, engine: TorchEngine) -> None:
    """See that a checkpoint was taken on this base."""
    if saved.base_digest != engine.base_digest:
        raise RunError(
            f"{given.base} is not the base this run was played on: its weights have the digest {engine.base_digest[:12]}..., "
            f"the run's {saved.base_digest[:12]}..."
        )


def _unchanged(folder: Path, saved: checkpoint.Saved) -> Config:
    """The folder's configuration, if it still plays the same game."""
    given = read_config(folder)
    if given.digest != saved.config_digest:
        began = next(journal.read(folder / "journal.jsonl"))
        changed = differences(checked(began["config"]), given)
        raise RunError(
            f"{folder / 'config.yaml'} is not what this run was begun with: {'; '.join(changed)}. "
            f"Only {', '.join(MAY_CHANGE)} may change; begin another run for other values"
        )
    if given.steps < saved.step:
        raise RunError(f"{folder} has played {saved.step} steps, its config.yaml says {given.steps}")
    return given


def _forget_timings(file: Path, step: int) -> None:
    if not file.exists():
        return
    kept = []
    for line in file.read_text().splitlines():
        with suppress(ValueError, KeyError, TypeError):
            kept += [line] if json.loads(line)["step"] <= step else []
    replaced(file, "".join(line + "\n" for line in kept))
