"""Tasks of `reasoning-gym`, generated here from a seed and scored by the package's own rules."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from selfplay.exams import reading
from selfplay.exams.problem import Answer, ExamError, Question, Row, Suite
from selfplay.referee import Referee, Status, Verdict

UNSOUND = ("boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour")
"""Tasks that score the answer they publish 0: there is nothing to be right about."""
EVALUATING = (
    "binary_matrix", "bitwise_arithmetic", "codeio", "composite", "countdown", "intermediate_integration", "n_queens",
    "polynomial_multiplication", "puzzle24", "simple_integration", "spiral_matrix", "string_insertion",
)  # fmt: skip
"""Tasks whose scoring evaluates text as Python, or may (composite has the others inside): code of a model, so they are left out."""
TASKS = (
    "basic_arithmetic", "binary_alternation", "caesar_cipher", "chain_sum", "count_bits", "count_primes", "decimal_chain_sum",
    "fraction_simplification", "gcd", "knights_knaves", "lcm", "leg_counting", "letter_counting", "number_sequence", "products",
    "spell_backward", "syllogism", "word_sequence_reversal",
)  # fmt: skip
"""What the plain suite asks of."""
EACH, SEED = 20, 42
_ANSWER = re.compile(r"<answer>(.*?)(?:</answer>|\Z)", re.DOTALL)


class Reasoning(Suite):
    """`reasoning-gym`, or one task of it as `reasoning-gym:TASK`.

    Args:
        tasks: names in the package.
        each: questions of every task.

    Raises:
        ExamError: for tasks that cannot be scored here.
    """

    about = f"{EACH} questions of {len(TASKS)} tasks of reasoning-gym; reasoning-gym:TASK for one of them (no data needed)"
    needs_data = False

    def __init__(self, tasks: Sequence[str] = TASKS, each: int = EACH) -> None:
        self.name = "reasoning-gym" if tuple(tasks) == TASKS else f"reasoning-gym:{','.join(tasks)}"
        self.tasks, self.each = tuple(tasks), each
        for task in tasks:
            if task in UNSOUND:
                raise ExamError(f"{task} scores its own answer 0, so it is left out ({', '.join(UNSOUND)} do)")
            if task in EVALUATING:
                raise ExamError(f"{task} is scored by evaluating the answer, so it is left out ({', '.join(EVALUATING)} are)")
        self._scorers: dict[str, Any] = {}

    def rows(self) -> list[Row]:
        """See `Suite.rows`."""
        return [{"task": task, "place": i, **self._scorer(task)[i]} for task in self.tasks for i in range(self.each)]

    def question(self, row: Row, number: int) -> Question:
        """See `Suite.question`."""
        text = str(row["question"])
        chat = f"{text}\n\nThink first. Then write the answer alone between <answer> and </answer>."
        return Question(f"{row['task']}/{row['place']}", chat, f"Question: {text}\nAnswer:", ("\nQuestion:",), dict(row), number)

    def grade(self, referee: Referee, answers: Sequence[Answer]) -> list[Verdict]:
        """See `Suite.grade`. Scores below 1, which some tasks give for a part, are wrong."""
        return [self._graded(answer) for answer in answers]

    def gold(self, question: Question) -> str:
        """See `Suite.gold`."""
        return f" {question.facts['answer']}"

    def _graded(self, answer: Answer) -> Verdict:
        found = _ANSWER.findall(reading.said(answer.text))
        if not found and answer.style == "chat":
            return Verdict(Status.BAD_FORMAT, "no <answer>")
        text = (found or [answer.text])[-1].strip()
        facts = answer.question.facts
        try:
            score = float(self._scorer(facts["task"]).score_answer(answer=text, entry=facts))
        except Exception as error:  # some scorers raise on what they cannot read
            return Verdict(Status.WRONG, f"cannot be scored: {type(error).__name__}")
        return Verdict(Status.OK if score == 1.0 else Status.WRONG, "" if score == 1.0 else f"score {score:g}", text)

    def _scorer(self, task: str) -> Any:
        if task not in self._scorers:
            try:
                import reasoning_gym
                from reasoning_gym.factory import DATASETS
            except ImportError:
                raise ExamError("reasoning-gym is not installed: pip install 'lora-evo[eval]'") from None
            if task not in DATASETS:
                raise ExamError(f"reasoning-gym has no task {task!r}; it has {', '.join(sorted(DATASETS))}")
            self._scorers[task] = reasoning_gym.create_dataset(task, size=self.each, seed=SEED)
        return self._scorers[task]
