"""Files of problems and answers: one JSON object a line in, one verdict a line out.

Fields of a line: `program` (or `code`), and
- `input`: arguments as text (`1, 'a'`), or `inputs`: a list of such texts;
- `output` or `outputs`: the expected values as literals; left out: the program is only run;
- `answer`: a student's answer, judged as `kind` says: `deduction` (a literal), `abduction` (arguments), `induction`
  (a program, judged on all inputs). Without `kind` a line with an answer is a deduction;
- `id`: anything, given back; `entry`: the function, `f` if left out; null runs the text alone (asserts inside).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lora_evo.errors import LoraEvoError
from selfplay.referee import Referee, Run, Status, Verdict, against, equal, literal
from selfplay.tasks import formats
from selfplay.tasks.base import FormatError

KINDS = ("deduction", "abduction", "induction")


class FileError(LoraEvoError):
    """A line that is no problem; the message names file and line."""


@dataclass(frozen=True)
class Line:
    """One line, read.

    Attributes:
        number: in the file, from 1.
        row: as it stood.
        inputs: argument tuples.
        expected: outputs; None if none are given.
        answer: parsed; the verdict against it if it has no good form; None if there is none.
    """

    number: int
    row: dict[str, Any]
    inputs: tuple[tuple[Any, ...], ...]
    expected: tuple[Any, ...] | None
    answer: Any = None

    @property
    def kind(self) -> str:
        """What is asked for: one of KINDS, or `run`."""
        return self.row.get("kind", "deduction") if "answer" in self.row else "run"

    @property
    def program(self) -> str:
        """The given program, or the answer where that is the program."""
        given = self.answer if self.kind == "induction" else self.row.get("program", self.row.get("code"))
        return str(given)

    def runs(self) -> list[Run]:
        """What has to be run."""
        if isinstance(self.answer, Verdict) or (self.kind == "deduction" and self.expected is not None):
            return []
        inputs = (self.answer,) if self.kind == "abduction" else self.inputs
        given = [] if self.kind != "abduction" or self.expected is not None else [Run(self.program, self.inputs, self._entry)]
        return [Run(self.program, inputs, self._entry), *given]

    @property
    def _entry(self) -> str | None:
        entry: str | None = self.row.get("entry", "f")
        return entry

    def verdict(self, found: Sequence[Sequence[Verdict]]) -> Verdict:
        """The line's verdict: the first that is not OK, else the first."""
        if isinstance(self.answer, Verdict):
            return self.answer
        if not found:
            return self._of_literal((self.expected or (None,))[0])
        for verdict in (v for part in found for v in part):
            if not verdict.ok:
                return verdict
        if self.kind == "deduction":
            return self._of_literal(found[0][0].value)
        expected = self.expected or (tuple(v.value for v in found[1]) if len(found) > 1 else None)
        graded = [against(v, y) for v, y in zip(found[0], expected, strict=True)] if expected else list(found[0])
        return next((v for v in graded if not v.ok), graded[0])

    def _of_literal(self, value: Any) -> Verdict:
        right = equal(self.answer, value)
        return Verdict(Status.OK if right else Status.WRONG, "" if right else "another value", self.answer)


def read(path: Path) -> list[Line]:
    """All lines of a file.

    Raises:
        FileError: for a file that cannot be read or a line that is no problem.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path}: {error}") from None
    return [_line(path, i, line) for i, line in enumerate(text.splitlines(), 1) if line.strip()]


def _line(path: Path, number: int, text: str) -> Line:
    try:
        row = json.loads(text)
    except ValueError as error:
        raise FileError(f"{path}, line {number}: no JSON: {error}") from None
    try:
        return _read_row(number, row)
    except (ValueError, TypeError) as error:
        raise FileError(f"{path}, line {number}: {error}") from None


def _read_row(number: int, row: Any) -> Line:
    if not isinstance(row, dict):
        raise ValueError("no JSON object")
    kind = row.get("kind", "deduction")
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}, it must be one of {', '.join(KINDS)}")
    if not isinstance(row.get("program", row.get("code", "" if kind == "induction" else None)), str):
        raise ValueError("no program")
    given = _listed(row, "input", "inputs")
    inputs = tuple(formats.arguments(x) for x in given) if given is not None else ((),)
    outputs = _listed(row, "output", "outputs")
    expected = tuple(formats.value(x) for x in outputs) if outputs is not None else None
    if expected is not None and len(expected) != len(inputs):
        raise ValueError(f"{len(inputs)} inputs but {len(expected)} outputs")
    if "answer" in row and kind == "induction" and expected is None:
        raise ValueError("an induction needs outputs")
    if "answer" in row and kind == "abduction" and len(inputs) > 1:
        raise ValueError("an abduction has one output")
    return Line(number, row, inputs, expected, _answer(kind, row.get("answer")) if "answer" in row else None)


def _listed(row: dict[str, Any], one: str, many: str) -> list[str] | None:
    found = row.get(many, [row[one]] if one in row else None)
    if found is not None and not (isinstance(found, list) and found and all(isinstance(x, str) for x in found)):
        raise ValueError(f"{one} must be text, {many} a list of texts")
    return found


def _answer(kind: str, text: Any) -> Any:
    if not isinstance(text, str):
        raise ValueError("answer must be text")
    try:
        if kind == "induction":
            return formats.program(text)
        return formats.arguments(text) if kind == "abduction" else formats.value(text.strip())
    except FormatError as error:
        return error.verdict


def judge_lines(referee: Referee, lines: Iterable[Line], progress: Callable[[int, int], None] | None = None) -> list[Verdict]:
    """The verdict on each line, all run in one batch."""
    lines = list(lines)
    runs = [line.runs() for line in lines]
    found = iter(referee.run([run for part in runs for run in part], progress))
    return [line.verdict([next(found) for _ in part]) for line, part in zip(lines, runs, strict=True)]


def result(line: Line, verdict: Verdict) -> dict[str, Any]:
    """One line of the output."""
    row = {"line": line.number, **({"id": line.row["id"]} if "id" in line.row else {})}
    row |= {"status": verdict.status.value, "reason": verdict.reason}
    if verdict.ok or verdict.status is Status.WRONG:
        row["value"] = literal(verdict.value)
    if verdict.degraded:
        row["degraded"] = list(verdict.degraded)
    return row
