"""Checkpoints: the whole state of a run in one folder that appears whole or not at all.

`checkpoints/step-000012/` holds adapters/NAME (PEFT folders), optimizer/NAME.safetensors, buffers.json, archive.npz and
state.json. A process that is killed leaves at most a folder with a dot in front, which nobody reads.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

import lora_evo
from lora_evo.errors import LoraEvoError
from selfplay.accounting import Ledger
from selfplay.archive import Archive
from selfplay.population import Population
from selfplay.table import State, Table
from selfplay.tasks import Buffers

NAME = "step-{:06d}"


class CheckpointError(LoraEvoError):
    """A checkpoint that cannot be read: which, why, and what to do."""


@dataclass(frozen=True)
class Saved:
    """What state.json says.

    Attributes:
        journal_bytes: the journal's length when the checkpoint was taken.
        config_digest, base_digest: of what was played, and on which weights.
    """

    step: int
    population: Population
    ledger: Ledger
    journal_bytes: int
    config_digest: str
    base_digest: str


def save(folder: Path, table: Table, state: State, journal_bytes: int) -> Path:
    """Write the checkpoint of a state into a folder of checkpoints, and remove those that are too old.

    Raises:
        OSError: for a full disk, say; older checkpoints are then as they were.
    """
    wanted = folder / NAME.format(state.step)
    partial = folder / f".{wanted.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        _write(partial, table, state, journal_bytes)
        for path in (*partial.rglob("*"), partial):
            _sync(path)
        _remove(wanted)  # half of one, if anything
        os.rename(partial, wanted)
        _sync(folder)
    except (OSError, SafetensorError) as error:
        number, said = getattr(error, "errno", None) or errno.EIO, getattr(error, "strerror", None) or str(error)
        raise OSError(number, said, str(wanted)) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    kept = _whole(folder)[-table.config.checkpoint.keep :]
    for other in (*folder.glob("step-*"), *folder.glob(".step-*")):
        if other not in kept:
            _remove(other)
    return wanted


def latest(run: Path) -> Path:
    """The newest whole checkpoint of a run.

    Raises:
        CheckpointError: if there is none.
    """
    found = _whole(run / "checkpoints")
    if not found:
        raise CheckpointError(f"{run} is no folder of a run: it has no checkpoint")
    return found[-1]


def read(checkpoint: Path) -> Saved:
    """What state.json of a checkpoint says."""
    try:
        stored = json.loads((checkpoint / "state.json").read_text())
        return Saved(
            stored["step"],
            Population.from_dict(stored["population"]),
            Ledger.from_dict(stored["ledger"]),
            stored["journal_bytes"],
            stored["config_digest"],
            stored["base_digest"],
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _unreadable(checkpoint, error) from None


def load(checkpoint: Path, table: Table) -> State:
    """Bring a table to a checkpoint's state, and give that state.

    Raises:
        CheckpointError: if a file is missing or damaged.
    """
    saved = read(checkpoint)
    try:
        for member in saved.population.members:  # in this order every member gets the slot it had
            table.engine.put(member.name, lora_evo.load(checkpoint / "adapters" / member.name))
            table.learner.load(member.name, checkpoint / "optimizer" / f"{member.name}.safetensors")
        buffers, archive = Buffers.load(checkpoint / "buffers.json"), Archive.load(checkpoint / "archive.npz")
    except Exception as error:  # each format has its own ways to say that a file is damaged
        raise _unreadable(checkpoint, error) from None
    return State(saved.step, saved.population, buffers, archive, saved.ledger)


def _write(partial: Path, table: Table, state: State, journal_bytes: int) -> None:
    (partial / "optimizer").mkdir()
    for member in state.population.members:
        lora_evo.save(table.engine.adapter(member.name), partial / "adapters" / member.name)
        table.learner.save(member.name, partial / "optimizer" / f"{member.name}.safetensors")
    state.buffers.save(partial / "buffers.json")
    state.archive.save(partial / "archive.npz")
    stored: dict[str, Any] = {
        "step": state.step,
        "journal_bytes": journal_bytes,
        "config_digest": table.config.digest,
        "base_digest": table.engine.base_digest,
        "updates": {m.name: table.learner.updates.get(m.name, 0) for m in state.population.members},
        "population": state.population.as_dict(),
        "ledger": state.ledger.as_dict(),
    }
    (partial / "state.json").write_text(json.dumps(stored, indent=1))


def _whole(folder: Path) -> list[Path]:
    """Whole checkpoints, oldest first."""
    return sorted(path for path in folder.glob("step-*") if (path / "state.json").is_file())


def _remove(path: Path) -> None:
    """Remove a folder; half of it never stands under its name."""
    hidden = path if path.name.startswith(".") else path.with_name(f".{path.name}.old")
    if path.exists() and hidden != path:
        shutil.rmtree(hidden, ignore_errors=True)
        os.rename(path, hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unreadable(checkpoint: Path, error: Exception) -> CheckpointError:
    said = " ".join(str(error).split()) or type(error).__name__
    return CheckpointError(f"{checkpoint} is damaged ({said}); remove it to go on from the checkpoint before it")
