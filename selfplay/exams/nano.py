"""The held-out problems of nano: the game's own prompts, in the compact style, and the game's own judge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from selfplay.asking import answer_stop
from selfplay.exams.problem import Answer, Question, Row, Suite
from selfplay.referee import Referee, Settings, Verdict, literal
from selfplay.tasks import Problem, Task, judge, wording


class NanoHeldout(Suite):
    """300 problems that no member sees, 100 of every kind. At temperature 1 the mean is the solve rate of the benchmarks."""

    name = "nano-heldout"
    about = "nano's held-out problems, 100 of each kind (no data needed)"
    max_tokens = 128
    needs_data = False
    settings = Settings()
    styles = ("compact",)

    def rows(self) -> list[Row]:
        """See `Suite.rows`."""
        from selfplay.bases.nano.heldout import heldout

        return [problem.as_dict() for problem in heldout()]

    def question(self, row: Row, number: int) -> Question:
        """See `Suite.question`."""
        return asked(Problem.from_dict(dict(row)), number)

    def questions(self, rows: Sequence[Row]) -> list[Question]:
        """See `Suite.questions`."""
        return questions([Problem.from_dict(dict(row)) for row in rows])

    def grade(self, referee: Referee, answers: Sequence[Answer]) -> list[Verdict]:
        """See `Suite.grade`."""
        return judge(referee, [(_tasks()[a.question.facts.kind], a.question.facts, a.text) for a in answers], "compact")

    def gold(self, question: Question) -> str:
        """See `Suite.gold`."""
        problem: Problem = question.facts
        known = {
            "deduction": lambda: f" {literal(problem.outputs[0])}\n",
            "abduction": lambda: f" {wording.call(problem.inputs[0])}\n",
            "induction": lambda: problem.program,
        }
        return known[problem.kind]()


def asked(problem: Problem, number: int) -> Question:
    """A problem of the game as a question."""
    text = _tasks()[problem.kind].answer_prompt(problem, "compact")
    return Question(f"{problem.kind}/{number}", text, text, answer_stop(problem.kind, "compact"), problem, number)


def questions(problems: Sequence[Problem]) -> list[Question]:
    """Problems as questions, numbered within their kind."""
    seen: Counter[str] = Counter()
    found = []
    for problem in problems:
        found.append(asked(problem, seen[problem.kind]))
        seen[problem.kind] += 1
    return found


def _tasks() -> dict[str, Task]:
    from selfplay.bases.nano.texts import TASKS

    return TASKS
