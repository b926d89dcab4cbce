"""The commands, as a user calls them."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lora_evo_cli.referee import app as referee
from lora_evo_cli.selfplay import app as selfplay
from selfplay.tasks.files import FileError

SQUARE = "def f(x):\n    return x * x\n"
LINES = [
    ({"id": 1, "program": SQUARE, "input": "3"}, "ok"),
    ({"program": SQUARE, "input": "3", "output": "9"}, "ok"),
    ({"code": SQUARE, "input": "3", "output": "8"}, "wrong"),
    ({"program": SQUARE, "input": "3", "answer": "9"}, "ok"),
    ({"program": SQUARE, "input": "3", "answer": "9.0", "kind": "deduction"}, "wrong"),
    ({"program": SQUARE, "input": "3", "output": "9", "answer": "nine"}, "bad_format"),
    ({"program": SQUARE, "output": "9", "answer": "-3", "kind": "abduction"}, "ok"),
    ({"program": SQUARE, "input": "3", "answer": "-3", "kind": "abduction"}, "ok"),
    ({"program": SQUARE, "output": "9", "answer": "4", "kind": "abduction"}, "wrong"),
    ({"program": SQUARE, "output": "9", "answer": "5) or (True", "kind": "abduction"}, "bad_format"),
    ({"inputs": ["1", "2"], "outputs": ["1", "4"], "answer": SQUARE, "kind": "induction"}, "ok"),
    ({"inputs": ["1", "2"], "outputs": ["1", "5"], "answer": SQUARE, "kind": "induction"}, "wrong"),
    ({"program": "while True: pass\n" + SQUARE, "input": "3"}, "timeout"),
    ({"program": "import os\n" + SQUARE, "input": "3"}, "forbidden_import"),
    ({"program": "assert 1 == 2", "entry": None}, "raised"),
    ({"program": "def f():\n    return 1"}, "ok"),
]


def call(app, *arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_run(tmp_path):
    file = tmp_path / "answers.jsonl"
    file.write_text("\n".join(json.dumps(row) for row, _ in LINES) + "\n\n")
    done = call(referee, "run", file, "-o", tmp_path / "out.jsonl", "--cpu-seconds", 1)
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [r["status"] for r in rows] == [status for _, status in LINES]
    assert rows[0] == {"line": 1, "id": 1, "status": "ok", "reason": "", "value": "9"}
    assert "forbidden_import" in done.output
    assert "line 3: wrong" in done.output
    as_json = call(referee, "run", file, "--json", "--cpu-seconds", 1)
    assert [json.loads(line)["status"] for line in as_json.stdout.splitlines()] == [status for _, status in LINES]


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        '{"program": 3}',
        '{"program": "x", "input": "f()"}',
        '{"program": "x", "input": 3}',
        "�",
        '{"program": "x", "kind": "x"}',
        '{"program": "x", "inputs": ["1", "2"], "output": "1"}',
        '{"program": "x", "answer": 3}',
        '{"answer": "x", "kind": "induction"}',
        '{"program": "x", "input": "1", "output": "x"}',
        '{"program": "x", "inputs": []}',
    ],
)
def test_bad_files(tmp_path, text):
    file = tmp_path / "bad.jsonl"
    file.write_text(json.dumps(LINES[0][0]) + "\n" + text)
    done = call(referee, "run", file)
    assert isinstance(done.exception, FileError)
    assert "line 2" in str(done.exception)


def test_no_file(tmp_path):
    assert isinstance(call(referee, "run", tmp_path / "none.jsonl").exception, FileError)


def test_check():
    done = call(referee, "check", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["all layers"]["missing"] == []
    assert {"network", "files", "signals"} <= set(found["none of these"]["missing"])
    text = call(referee, "check").output
    assert "seccomp" in text
    assert "all guarantees hold" in text


def test_simulate():
    done = call(selfplay, "simulate", "--steps", 30, "--json")
    found = json.loads(done.stdout)
    assert found["per_step"]["rollouts"] > 0
    assert "rank correlation" in call(selfplay, "simulate", "--steps", 30, "--teachers", 1, "--students", 2).output


@pytest.fixture
def data():
    folder = os.environ.get("LORA_EVO_DATA")
    if not folder or not (Path(folder) / "cruxeval-500.jsonl").exists():
        pytest.skip("LOUD: no CRUXEval; set LORA_EVO_DATA to its folder")
    return Path(folder)


def test_cruxeval_outputs(data):
    """Every published output, under two hash seeds."""
    from benchmarks.programs import cruxeval
    from selfplay.referee import Referee, Run, equal

    samples = cruxeval(data)
    with Referee() as made:
        verdicts = made.validate([Run(s.program, [s.arguments]) for s in samples])
    wrong = [i for i, ((v,), s) in enumerate(zip(verdicts, samples, strict=True)) if not (v.ok and equal(v.value, s.expected))]
    assert wrong == []
    assert len(samples) == 500
