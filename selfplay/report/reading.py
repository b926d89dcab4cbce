"""Reading a run folder, also while the run is being played: a last line without its end is not read yet."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lora_evo.errors import LoraEvoError

Event = dict[str, Any]


class ReportError(LoraEvoError):
    """A journal that is missing or broken: names the file and the line."""


def journal_of(run: Path) -> Path:
    """The journal of a run folder; a journal's own path is taken as it is.

    Raises:
        ReportError: if there is none.
    """
    path = run / "journal.jsonl" if run.is_dir() else run
    if not path.is_file():
        what = "no such file or folder" if not run.exists() else "this folder has no journal.jsonl, so it is no run"
        raise ReportError(f"{run}: {what}; give the folder that `lora-evo selfplay run` wrote")
    return path


def lines(path: Path) -> Iterator[tuple[int, Event]]:
    """The objects of a JSONL file with their line numbers, one at a time.

    Raises:
        ReportError: for a line that is no JSON object, unless it is the last one and has no line end.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                found = json.loads(line)
            except (ValueError, RecursionError) as error:
                if not line.endswith(b"\n"):
                    return
                raise ReportError(f"{path}, line {number}: no JSON ({error}); the file is damaged") from None
            if not isinstance(found, dict):
                raise ReportError(f"{path}, line {number}: {type(found).__name__} instead of an object; the file is damaged")
            yield number, found


def timings(run: Path) -> list[Event]:
    """Wall seconds of each step by phase; empty if the run has none. A step that was played again counts as played last."""
    path = (run if run.is_dir() else run.parent) / "timings.jsonl"
    if not path.is_file():
        return []
    return list({row.get("step"): row for _, row in lines(path)}.values())
