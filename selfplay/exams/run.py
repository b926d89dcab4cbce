"""An exam and its folder: begun, or gone on with where it was broken off, graded, and told.

The folder holds `exam.json` (what is asked of whom), `completions.jsonl` (what was written, appended chunk by chunk) and, at the
end, `results.json`, `results.md` and `report.html`. A killed exam goes on at its first missing chunk, to the same result.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from selfplay import journal
from selfplay.engines import Engine
from selfplay.exams.asking import Plan, Wanted, chunks, wanted, written
from selfplay.exams.data import Data
from selfplay.exams.problem import Answer, ExamError, Question, Suite
from selfplay.files import replaced
from selfplay.referee import Referee, Verdict
from selfplay.tasks import Style

Watch = Callable[[int, int], None]
Graded = Mapping[tuple[str, str, str | None], list[Verdict]]
"""Verdicts by (suite, question, member), in the order of samples."""


@dataclass(frozen=True)
class Paper:
    """A suite with the questions that are asked of it."""

    suite: Suite
    questions: list[Question]
    data: Data


@dataclass(frozen=True)
class Exam:
    """What is asked of whom.

    Attributes:
        base: as given, and the digest of its weights.
        members: name -> digest of the adapter.
        with_base: whether the base answers as well.
        style: of prompts, for suites that leave it open.
    """

    base: tuple[str, str]
    members: Mapping[str, str]
    papers: Sequence[Paper]
    plan: Plan
    style: Style
    with_base: bool = False

    @property
    def takers(self) -> list[str | None]:
        """Who answers: the base first, then the members."""
        return [*([None] if self.with_base else []), *self.members]

    def style_of(self, suite: Suite) -> Style:
        """The style in which a suite is asked."""
        return self.style if self.style in suite.styles else suite.styles[0]

    def as_dict(self) -> dict[str, Any]:
        """For exam.json: two exams of the same dictionary have the same answers."""
        suites = {
            p.suite.name: {"data": p.data.source, "sha256": p.data.digest, "questions": len(p.questions)} for p in self.papers
        }
        return {
            "base": {"name": self.base[0], "sha256": self.base[1]},
            "members": dict(self.members),
            "with_base": self.with_base,
            "suites": suites,
            "style": self.style,
            **json.loads(json.dumps(asdict(self.plan))),
        }


def paper(suite: Suite, data: Data, limit: int | None = None) -> Paper:
    """A suite's paper; with a limit, so many questions spread evenly over the file, whose kinds often lie one behind the other."""
    asked = suite.questions(data.rows)
    count = min(limit or len(asked), len(asked))
    return Paper(suite, [asked[i * len(asked) // count] for i in range(count)], data)


def begun(exam: Exam, folder: Path) -> None:
    """Make the exam's folder, or see that it is this exam's.

    Raises:
        ExamError: if it holds something else.
    """
    file, given = folder / "exam.json", exam.as_dict()
    if file.is_file():
        try:
            there = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ExamError(f"{file} is damaged: {error}") from None
        other = [key for key in given if there.get(key) != given[key]]
        if other:
            raise ExamError(f"{folder} holds another exam (it differs in {', '.join(other)}); give another folder with -o")
        return
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ExamError(f"{folder} exists and is no exam; give another folder with -o")
    folder.mkdir(parents=True, exist_ok=True)
    replaced(file, json.dumps(given, indent=2) + "\n")


def answered(exam: Exam, folder: Path, engine: Engine, watch: Watch = lambda done, total: None) -> dict[Any, dict[str, Any]]:
    """What everybody wrote, by `Wanted.key`: what is in the folder is kept, the rest is asked for.

    Raises:
        ExamError: for completions of another exam.
    """
    path = folder / "completions.jsonl"
    book = journal.Journal(path)
    try:
        there = list(journal.read(path))
        found: dict[Any, dict[str, Any]] = {}
        total = sum(len(p.questions) for p in exam.papers) * len(exam.takers) * exam.plan.samples
        read = size = 0
        for part, style, max_tokens in _parts(exam):
            rows = there[read : read + len(part)]
            if [_key(row) for row in rows] != [w.key for w in part[: len(rows)]]:
                raise ExamError(f"{path}, line {read + 1}: no completion of this exam; move the folder away")
            if len(rows) < len(part):  # broken off: the chunk is asked for again, as a whole
                book.truncate(size)
                rows = [_row(w, c) for w, c in zip(part, written(engine, part, style, exam.plan, max_tokens), strict=True)]
                book.append(rows)
                there = []
            found.update((w.key, row) for w, row in zip(part, rows, strict=True))
            read, size = read + len(part), size + len(journal.dumps(rows))
            watch(len(found), total)
        return found
    finally:
        book.close()


def _parts(exam: Exam) -> list[tuple[Sequence[Wanted], Style, int]]:
    found: list[tuple[Sequence[Wanted], Style, int]] = []
    for own in exam.papers:
        style = exam.style_of(own.suite)
        asked = wanted(own.suite.name, own.questions, exam.takers, exam.plan.samples)
        found += [(part, style, exam.plan.max_tokens or own.suite.max_tokens) for part in chunks(asked, style, exam.plan.batch)]
    return found


def _row(w: Wanted, completion: Any) -> dict[str, Any]:
    named = {"suite": w.suite, "id": w.question.id, "member": w.member, "sample": w.sample}
    return {"event": "answer", **named, "text": completion.text, "finish": completion.finish, "tokens": len(completion.tokens)}


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in ("suite", "id", "member", "sample"))


def graded(exam: Exam, texts: Mapping[Any, Mapping[str, Any]]) -> Graded:
    """The verdict on every answer.

    Raises:
        RefereeError: if the referee cannot start.
    """
    found: dict[tuple[str, str, str | None], list[Verdict]] = defaultdict(list)
    for own in exam.papers:
        style, name = exam.style_of(own.suite), own.suite.name
        asked = wanted(name, own.questions, exam.takers, exam.plan.samples)
        with Referee(own.suite.settings) as referee:
            verdicts = own.suite.grade(referee, [Answer(w.question, texts[w.key]["text"], style) for w in asked])
        for w, verdict in zip(asked, verdicts, strict=True):
            found[name, w.question.id, w.member].append(verdict)
    return found
