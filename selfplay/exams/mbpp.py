"""MBPP: a sentence and three assertions are given, a function is asked for; judged by the published assertions."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Sequence

from selfplay.exams import reading
from selfplay.exams.problem import Answer, Question, Row, Suite
from selfplay.exams.programs import Tested, scripted
from selfplay.referee import Referee, Verdict

STOP = ("[DONE]", "\n```")


class Mbpp(Suite):
    """Both published forms: `text` and `code` (the whole), `prompt` and `code` (the sanitised)."""

    name = "mbpp"
    about = "Python functions from a sentence and three assertions"
    hub = ("google-research-datasets/mbpp", "sanitized", "test")

    def question(self, row: Row, number: int) -> Question:
        """See `Suite.question`."""
        code, tests = str(row["code"]), [str(test) for test in row["test_list"]]
        entry = tested(tests, code)
        setup = "\n".join([*row.get("test_imports", ()), str(row.get("test_setup_code", ""))])
        text = str(row["text"] if "text" in row else row["prompt"])
        shown = "\n".join(tests)
        chat = (
            f"Write a Python function for this task, in one block of Python.\n\n{text}\n\nIt must pass:\n\n```python\n{shown}\n```"
        )
        compact = f"Task: {text}\nTests:\n{shown}\n[BEGIN]\n"
        script = Tested(f"{code}\n{setup}\n", shown + "\n", entry)
        return Question(str(row["task_id"]), chat, compact, STOP, (code, script), number)

    def grade(self, referee: Referee, answers: Sequence[Answer]) -> list[Verdict]:
        """See `Suite.grade`."""
        return scripted(referee, [(a.question.facts[1], reading.program(a.text, a.question.facts[1].entry)) for a in answers])

    def gold(self, question: Question) -> str:
        """See `Suite.gold`."""
        return str(question.facts[0])


def tested(tests: Sequence[str], code: str) -> str:
    """The function that assertions call: the first name in them that the solution defines.

    Raises:
        ValueError: if there is none.
    """
    defined = set(re.findall(r"^def\s+(\w+)", code, re.MULTILINE))
    for test in tests:
        for node in ast.walk(ast.parse(test)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in defined:
                return node.func.id
    raise ValueError(f"its tests call nothing that its code defines ({', '.join(sorted(defined - set(dir(builtins))))})")
