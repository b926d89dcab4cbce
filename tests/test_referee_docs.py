"""The documents' own examples."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lora_evo_cli.referee import app
from selfplay.referee import Referee, Status
from selfplay.tasks import Problem, Written, all_tasks, get, judge, validate

DOCS = Path(__file__).parents[1] / "docs"


def blocks(name, tag):
    return re.findall(rf"^```{tag}\n(.*?)^```$", (DOCS / name).read_text(), re.MULTILINE | re.DOTALL)


def test_the_file_of_the_referee_page(tmp_path):
    (text,) = blocks("referee.md", "jsonl")
    (tmp_path / "answers.jsonl").write_text(text)
    done = CliRunner().invoke(app, ["run", str(tmp_path / "answers.jsonl"), "--json"])
    assert [json.loads(line)["status"] for line in done.stdout.splitlines()] == ["ok", "ok", "ok", "ok", "timeout"]


def test_the_python_of_the_pages():
    space = {}
    exec(blocks("referee.md", "python")[0], space)
    assert [v.value for v in space["verdicts"]] == [2, 3]
    assert len(space["batch"]) == 100
    space = {}
    exec(blocks("tasks.md", "python")[0], space)
    assert isinstance(space["problem"], Problem)
    assert [v.status for v in space["verdicts"]] == [Status.OK]


@pytest.fixture
def word_problems():
    from selfplay import tasks

    exec(blocks("tasks.md", "python")[1], {})
    yield get("word_problem")
    del tasks._TASKS["word_problem"]


def test_the_fourth_kind(word_problems):
    task = word_problems
    assert len(all_tasks()) == 4
    compact = "text: Bob buys 3 boxes of 4 eggs and breaks 2. How many are whole?\ncalc: 3 * 4 - 2\n"
    chat = "<answer>\n```text\nHow much is half of 5?\n```\n```calc\n5 / 2\n```\n</answer>"
    bad = ["text: x\n", "text: x\ncalc: 1 / 0\n", "text: x\ncalc: 'one'\n", "text: x\ncalc: __import__('os').getpid()\n"]
    with Referee() as referee:
        made = validate(referee, [Written(task, t) for t in (compact, *bad)], "compact")
        (other,) = validate(referee, [Written(task, chat)], "chat")
        texts = [" 10\n", " 10.0\n", " ten\n"]
        verdicts = judge(referee, [(task, made[0], t) for t in texts], "compact")
    assert made[0].outputs == (10,)
    assert other.outputs == (2.5,)
    assert [v.status for v in made[1:]] == [Status.BAD_FORMAT, Status.RAISED, Status.NOT_A_VALUE, Status.FORBIDDEN_IMPORT]
    assert [v.status for v in verdicts] == [Status.OK, Status.WRONG, Status.BAD_FORMAT]
    for style in ("chat", "compact"):
        assert "Ann" in task.proposal_prompt(style, [task.seed_problem()])
        assert "10" not in task.answer_prompt(made[0], style)
