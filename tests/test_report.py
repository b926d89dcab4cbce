"""The page of a run and the page that compares runs: figures by hand, hostile texts, and both in a real browser."""

import json
import re
import time
from pathlib import Path

import chromium
import journals
import pytest

from lora_evo_cli import report_page
from lora_evo_cli.main import main
from selfplay.report import ReportError, compared, comparison_page, run_page, summarised
from selfplay.report.page import embedded
from selfplay.report.problems import ANSWER_COLUMNS, COLUMNS, LONGEST, Problems

TEXTS = {"program": "def f(x):\n    return x", "inputs": ["1"], "outputs": ["1"], "message": "", "text": "t", "truncated": False}


def proposal(step, id, kind, student, status, rho, reward, **changes) -> dict:
    of = {"event": "proposal", "step": step, "id": id, "teacher": "t0", "student": student, "kind": kind, "tokens": 10, **TEXTS}
    of |= {"status": status, "reason": "", "new": True, "new_cell": False, "rho": rho, "reward": reward, "complexity": [3, 1, 2, 1]}
    return {**of, **changes}


def answer(step, problem, student, status, reward, text=" 1") -> dict:
    of = {"event": "answer", "step": step, "problem": problem, "student": student, "text": text, "tokens": 2}
    return {**of, "truncated": False, "status": status, "reason": "", "reward": reward}


def update(step, member, grad, entropy, groups=2, dead=1, skipped="") -> dict:
    of = {"event": "update", "step": step, "member": member, "groups": groups, "dead_groups": dead, "grad_norm": grad}
    return {**of, "entropy": entropy, "clipped": 0.25, "mismatch": 0.125, "truncated": 0.5, "kl": 0.0, "skipped": skipped}


def closing(step, valid, rate, coverage, complexity, ratings, tokens) -> dict:
    of = {"event": "step", "step": step, "valid": valid, "solve_rate": rate, "coverage": coverage, "complexity": complexity}
    return {**of, "ratings": ratings, "cost_by_member": {name: {"completion_tokens": n} for name, n in tokens.items()}}


def small() -> list[dict]:
    """Two steps: t0 meets s0, then s2, which has replaced s1."""
    child = {"victim": "s1", "child": "s2", "role": "student", "parents": ["s0"], "operator": "gaussian", "kept_energy": 0.9}
    return [
        journals.start([("t0", "teacher"), ("s0", "student"), ("s1", "student")], seed=7, steps=4),
        {"event": "match", "step": 1, "teacher": "t0", "student": "s0", "expected": 0.5},
        proposal(1, "p1", "deduction", "s0", "ok", 0.5, 0.5),
        proposal(1, "p2", "deduction", "s0", "syntax_error", None, -1.0, program=None, inputs=None, outputs=None, complexity=None),
        proposal(1, "p3", "abduction", "s0", "ok", 1.0, 0.0),
        answer(1, "p1", "s0", "ok", 1.0),
        answer(1, "p1", "s0", "wrong", -0.5, " 2"),
        answer(1, "p3", "s0", "ok", 1.0),
        answer(1, "p3", "s0", "ok", 1.0),
        update(1, "t0", 0.5, 1.0),
        update(1, "s0", 1.5, 2.0, dead=0),
        update(1, "s1", 3.5, 4.0),
        {"event": "replacement", "step": 1, **child, "relative_change": 0.2, "parent_cosines": [0.8]},
        closing(1, 2 / 3, 0.75, 0.1, [3, 1, 2, 1], {"t0": [26, 8], "s0": [24, 8], "s2": [25, 8.5]}, {"t0": 30, "s0": 8}),
        {"event": "match", "step": 2, "teacher": "t0", "student": "s2", "expected": 0.5},
        proposal(2, "p4", "deduction", "s2", "ok", 0.0, 0.0),
        proposal(2, "p5", "induction", "s2", "infra_error", None, None),
        answer(2, "p4", "s2", "wrong", -0.5),
        answer(2, "p4", "s2", "bad_format", -1.0, "?"),
        update(2, "t0", 0.25, 0.5, groups=0, dead=0),
        update(2, "s2", 9.0, 9.0, skipped="no samples"),
        closing(2, 0.5, 0.0, 0.2, [5, 2, 3, 2], {"t0": [27, 7], "s0": [24, 8], "s2": [24, 8]}, {"t0": 50, "s0": 8, "s2": 6}),
        proposal(3, "p6", "deduction", "s0", "ok", 1.0, 0.0),
    ]


SECONDS = [{"step": 1, "propose": 1.5, "learn": 0.5, "total": 2.0}, {"step": 2, "propose": 2.0, "learn": 1.0, "total": 3.0}]


@pytest.fixture
def summary(tmp_path: Path) -> dict:
    return summarised(journals.write(tmp_path / "run", small(), SECONDS))


# the figures


def test_series_are_those_of_the_journal(summary):
    assert summary["steps"] == [1, 2]
    assert summary["series"] == {
        "solve_rate": [0.75, 0.0],
        "valid": [0.666667, 0.5],
        "coverage": [0.1, 0.2],
        "ast_depth": [3, 5],
        "cyclomatic": [1, 2],
        "lines": [2, 3],
        "variables": [1, 2],
        "solve_abduction": [1.0, None],
        "solve_deduction": [0.5, 0.0],
        "reward_teacher": [-0.166667, 0.0],  # (0.5 - 1 + 0) / 3; the referee's failure does not count
        "reward_student": [0.625, -0.75],  # (1 - 0.5 + 1 + 1) / 4, (-0.5 - 1) / 2
        "rating_teacher": [26, 27],
        "rating_student": [24.5, 24.0],
        "tokens": [38, 64],
        "seconds": [2.0, 5.0],
    }


def test_pairs_members_and_ratings(summary):
    assert summary["pairs"] == {
        "teachers": ["t0"],
        "students": ["s0", "s2"],
        "solve": [[0.75, 0.0]],
        "problems": [[2, 1]],
        "matches": [[1, 1]],
    }
    told = [(m["name"], m["role"], m["place"], m["born"], m["died"], m["parents"]) for m in summary["members"]]
    assert told == [
        ("t0", "teacher", 0, 0, None, []),
        ("s0", "student", 1, 0, None, []),
        ("s1", "student", 2, 0, 1, []),
        ("s2", "student", 2, 1, None, ["s0"]),
    ]
    assert (summary["members"][3]["operator"], summary["members"][3]["kept_energy"]) == ("gaussian", 0.9)
    assert summary["ratings"]["s2"] == {"from": 0, "mu": [25, 24], "sigma": [8.5, 8]}


def test_what_was_paid_and_judged(summary):
    assert summary["mix"]["outcomes"] == {
        "teacher": {
            "solved half and more": [1, 0],
            "solved always": [1, 0],
            "solved never": [0, 1],
            "invalid": [1, 0],
            "not judged": [0, 1],
        },
        "student": {"right": [3, 0], "wrong": [1, 1], "malformed": [0, 1]},
    }
    assert summary["mix"]["verdicts"] == {
        "teacher": {"ok": [2, 1], "infra_error": [0, 1], "syntax_error": [1, 0]},
        "student": {"ok": [3, 0], "wrong": [1, 1], "bad_format": [0, 1]},
    }


def test_updates_cost_and_phases(summary):
    roles = summary["updates"]["roles"]
    assert roles["student"]["grad_norm"] == {"mean": [2.5, None], "low": [1.5, None], "high": [3.5, None]}  # skipped: no figure
    assert roles["student"]["dead"]["mean"] == [0.25, None]  # 0 of 2 and 1 of 2
    assert roles["teacher"]["entropy"]["mean"] == [1.0, 0.5]
    assert roles["teacher"]["dead"]["mean"] == [0.5, None]  # no group, no share
    assert [roles["teacher"][name]["mean"][0] for name in ("clipped", "mismatch", "truncated", "kl")] == [0.25, 0.125, 0.5, 0.0]
    assert summary["updates"]["members"]["t0"]["grad_norm"] == [0.5, 0.25]
    assert summary["tokens"] == {
        "t0": {"from": 0, "tokens": [30, 50]},
        "s0": {"from": 0, "tokens": [8, 8]},
        "s2": {"from": 1, "tokens": [6]},
    }
    assert summary["phases"] == {"propose": [1.5, 2.0], "learn": [0.5, 1.0]}


def test_key_figures(summary):
    assert summary["figures"] == {
        "window": 1,
        "steps": 2,
        "proposals": 5,  # the one of step 3 is of no finished step
        "solve_rate": {"recent": 0.0, "early": 0.75},
        "valid": {"recent": 0.5, "early": 0.666667},
        "coverage": 0.2,
        "tokens": 64,
        "seconds": 5.0,
        "living": {"teacher": 1, "student": 2},
        "replaced": 1,
    }
    run = summary["run"]
    assert (run["base"], run["seed"], run["planned"], run["ended"], run["version"]) == ("nano", 7, 4, False, "0.1.0")


def test_problems_come_with_their_answers_counted(summary):
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in summary["problems"]["rows"]]
    assert [row["id"] for row in rows] == ["p1", "p2", "p3", "p4", "p5"]
    assert rows[0]["answers"] == [[" 1", "ok", "", 1.0, 1], [" 2", "wrong", "", -0.5, 1]]
    assert rows[2]["answers"] == [[" 1", "ok", "", 1.0, 2]]
    assert len(ANSWER_COLUMNS) == 5


def test_rare_verdicts_are_put_together(tmp_path):
    rare = ("raised", "timeout", "exited", "crashed", "killed", "tampered", "too_large")
    events = small()[:1] + [
        proposal(1, s, "deduction", "s0", s, None, -1.0) for s in rare for _ in range(len(rare) - rare.index(s))
    ]
    events += [proposal(1, "ok", "deduction", "s0", "ok", 1.0, 0.0), closing(1, 0.1, 1.0, 0.1, [1, 1, 1, 1], {"t0": [25, 8]}, {})]
    found = summarised(journals.write(tmp_path / "run", events))["mix"]["verdicts"]["teacher"]
    assert found == {"ok": [1], "raised": [7], "timeout": [6], "exited": [5], "crashed": [4], "killed": [3], "others": [3]}


# journals that are unfinished, short or broken


def test_a_torn_last_line_is_not_read_yet(tmp_path, summary):
    whole = (tmp_path / "run" / "journal.jsonl").read_bytes()
    (tmp_path / "run" / "journal.jsonl").write_bytes(whole + b'{"event":"answer","step":3,"probl')
    assert summarised(tmp_path / "run") == summary


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ('{"event":"start"', "empty"),
        ('{"event":"match","step":1,"teacher":"t0","student":"s0"}\n', "line 1: the first event is 'match', not 'start'"),
        ("START{broken}\nSTART", "line 2: no JSON"),
        ("START[1]\nSTART", "line 2: list instead of an object"),
        ('START{"event":"answer","step":1}\nSTART', "line 2: the answer event lacks"),
        ('START{"step":1}\nSTART', "line 2: it lacks 'event'"),
        ('START{"event":"proposal","step":1,"status":[]}\nSTART', "line 2: the proposal event"),
    ],
)
def test_a_broken_journal_is_refused_with_file_and_line(tmp_path, text, words):
    (tmp_path / "journal.jsonl").write_text(text.replace("START", json.dumps(small()[0]) + "\n"))
    with pytest.raises(ReportError, match=re.escape(words)) as caught:
        summarised(tmp_path)
    assert str(tmp_path / "journal.jsonl") in str(caught.value)


def test_no_run_is_refused(tmp_path):
    with pytest.raises(ReportError, match="no such file"):
        summarised(tmp_path / "nowhere")
    with pytest.raises(ReportError, match=r"no journal\.jsonl"):
        summarised(tmp_path)


def test_beyond_the_limit_problems_are_thinned_evenly():
    held = Problems(limit=300)
    for i in range(4000):
        held.proposal(proposal(1 + i // 40, f"{i}", "deduction", "s0", "ok", 1.0, 0.0))
    rows = held.rows(100)
    assert 100 < len(rows) <= 300
    assert held.count(100) == 4000
    assert held.count(50) == 2000
    halves = [sum(1 for row in rows if (row[1] <= 50) == early) for early in (True, False)]
    assert min(halves) > 0.35 * len(rows)
    assert not Problems(limit=0).rows(1)


def test_a_run_that_was_resumed_has_not_ended(tmp_path, summary):
    assert summary["run"]["ended"] is False
    events = [event for event in small() if event["step"] < 3]
    ended = [*events, {"event": "end", "step": 2}]
    assert summarised(journals.write(tmp_path / "a", ended))["run"]["ended"] is True
    assert summarised(journals.write(tmp_path / "b", [*ended, {**events[-1], "step": 3}]))["run"]["ended"] is False


def test_long_texts_are_cut():
    held = Problems()
    held.proposal(proposal(1, "a", "deduction", "s0", "ok", 1.0, 0.0, text="x" * (LONGEST + 1234)))
    assert held.rows(1)[0][COLUMNS.index("text")] == "x" * LONGEST + " [and 1,234 more characters]"


# comparing


def test_runs_of_one_config_are_one_group_with_a_band(tmp_path):
    def run(name, seed, rates, **changes):
        steps = [
            closing(i + 1, 0.5, r, 0.1, [1, 1, 1, 1], {"t0": [25, 8]}, {"t0": (seed + 1) * 100 * (i + 1)})
            for i, r in enumerate(rates)
        ]
        return journals.write(tmp_path / name, [journals.start([("t0", "teacher")], seed=seed, **changes), *steps])

    runs = [run("a", 0, [0.2, 0.4, 0.6, 0.8]), run("b", 1, [0.4, 0.8, None]), run("c", 5, [0.5], learner={"lr": 0.1})]
    found = compared(runs)
    first, second = found["groups"]
    assert (first["runs"], first["seeds"], second["runs"]) == (["a", "b"], [0, 1], ["c"])
    assert second["label"] == "loss=null, lr=0.1"
    assert first["steps"]["x"] == [1, 2, 3]  # as far as the shorter one
    rate = first["steps"]["solve_rate"]
    assert rate == {"mean": [0.3, 0.6, 0.6], "low": [0.2, 0.4, 0.6], "high": [0.4, 0.8, 0.6]}
    # tokens: run a is at 100, 200, 300, run b at 200, 400, 600 (its rate ends at 400); both have been at 200 to 300
    x, by_tokens = first["tokens"]["x"], first["tokens"]["solve_rate"]
    assert (x[0], x[-1]) == (200, 300)
    assert (by_tokens["low"][0], by_tokens["high"][0], by_tokens["mean"][-1]) == pytest.approx((0.4, 0.4, 0.6))
    assert second["tokens"]["x"] == [600]
    assert [row["name"] for row in found["runs"]] == ["a", "b", "c"]


def test_comparing_needs_two_runs_with_steps(tmp_path):
    run = journals.write(tmp_path / "a", small())
    with pytest.raises(ReportError, match="two runs"):
        compared([run])
    with pytest.raises(ReportError, match="no finished step"):
        compared([run, journals.write(tmp_path / "b", small()[:1])])


# hostile texts

HOSTILE = (
    "</script><script>document.title = 'broken'</script>",
    "<img src=x onerror=\"document.title = 'broken'\">",
    "<!--<script>",
    "\u2028\u2029\x00\x1b[31m\ud800 \u202e ]]> &lt; ${title} $script",
)


def hostile(folder: Path) -> Path:
    text = " ".join(HOSTILE)
    events = [event for event in small() if event["step"] < 2]
    for event in events:
        if event["event"] == "proposal":
            event |= {"text": text, "reason": text, "message": text}
            if event["program"]:
                event |= {"program": text, "inputs": [text], "outputs": [text]}
        elif event["event"] == "answer":
            event |= {"text": text, "reason": text}
        elif event["event"] == "start":
            event["config"]["base"] = event["base"]["name"] = text
    return journals.write(folder, events)


def test_hostile_texts_stay_inside_the_data(tmp_path):
    page = run_page(summarised(hostile(tmp_path / "run <img>")))
    assert page.isascii() or "\u2028" not in page
    assert page.count("<script") == page.count("</script>") == 2
    assert "onerror" not in page.replace('onerror=\\"document', "")
    assert "<img" not in page
    data = re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.S)
    assert data is not None
    rows = json.loads(data[1])["problems"]["rows"]
    assert rows[0][COLUMNS.index("program")] == " ".join(HOSTILE)
    page.encode("utf-8")


def test_embedded_json_is_plain():
    assert embedded({"a": "</script>\u2028&"}) == '{"a":"\\u003c/script\\u003e\\u2028\\u0026"}'


def test_a_page_asks_for_nothing(tmp_path):
    page = run_page(summarised(journals.write(tmp_path / "run", small())))
    assert not re.search(r"""(src|href)\s*=\s*["']?(?!data:,|#)[^"'>\s]""", page.split("<script id=")[0])
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")
    assert "default-src 'none'" in page


def test_no_script_writes_markup():
    for file in (Path(report_page.__file__).parent.parent / "selfplay" / "report").glob("*.js"):
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("):
            assert word not in file.read_text(), (file.name, word)


# the command line


def test_commands_write_pages(tmp_path, capsys):
    run = str(journals.write(tmp_path / "a", small()))
    assert main(["selfplay", "report", run]) == 0
    assert (tmp_path / "a" / "report.html").read_text().startswith("<!doctype html>")
    assert main(["selfplay", "report", run, "-o", str(tmp_path / "deep" / "page.html"), "--problems", "0"]) == 0
    assert '"rows":[]' in (tmp_path / "deep" / "page.html").read_text()
    assert main(["selfplay", "compare", run, run, "-o", str(tmp_path / "both.html")]) == 0
    assert "2 runs compared" in (tmp_path / "both.html").read_text()
    assert capsys.readouterr().out.count("wrote ") == 3


def test_commands_print_json(tmp_path, capsys):
    run = str(journals.write(tmp_path / "a", small()))
    assert main(["selfplay", "report", run, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["figures"]["tokens"] == 64
    assert main(["selfplay", "compare", run, run, "-o", str(tmp_path / "both.html"), "--json"]) == 0
    assert [row["tokens"] for row in json.loads(capsys.readouterr().out)["runs"]] == [64, 64]


def test_a_bad_call_exits_with_two(tmp_path, capsys):
    assert main(["selfplay", "report", str(tmp_path)]) == 2
    assert "journal.jsonl" in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()
    assert main(["selfplay", "compare", str(tmp_path)]) == 2
    assert "at least two runs" in capsys.readouterr().err


# in a browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if chromium.found() is None:
        pytest.skip("no chromium on the PATH: apt-get install chromium")
    made = chromium.Browser(tmp_path_factory.mktemp("profile"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, Path]:
    """The kinds of page there are."""
    root = tmp_path_factory.mktemp("pages")
    runs = {
        "whole": journals.played(root / "whole"),
        "alone": journals.played(root / "alone", steps=5, size=1, single=True, ended=False),
        "empty": journals.write(root / "empty", small()[:1]),
        "small": journals.write(root / "small", small(), SECONDS),
        "hostile": hostile(root / "hostile"),
    }
    found = {}
    for name, run in runs.items():
        found[name] = root / f"{name}.html"
        found[name].write_text(run_page(summarised(run)))
    seeds = [journals.played(root / f"seed{i}", seed=i, steps=12) for i in range(2)]
    other = journals.played(root / "other", steps=20, learner={"loss": "grpo"})
    found["compared"] = root / "compared.html"
    found["compared"].write_text(comparison_page(compared([*seeds, other])))
    return found


CHARTS = {"whole": 27, "alone": 25, "small": 27, "hostile": 25, "empty": 0, "compared": 28}
SHAPES = "[...document.querySelectorAll('figure svg')].every(s => s.querySelector('path, rect') && s.clientWidth > 100)"
FITS = "document.documentElement.scrollWidth <= window.innerWidth"


@pytest.mark.parametrize("name", CHARTS)
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_every_page_is_drawn_whole(browser, pages, name, width, dark):
    browser.show(pages[name], width=width, dark=dark)
    assert int(browser.look("document.body.dataset.charts")) == CHARTS[name]
    assert browser.look("document.querySelectorAll('figure svg').length") == CHARTS[name]
    assert browser.look(SHAPES)
    assert "NaN" not in browser.look("document.getElementById('main').innerHTML")
    assert browser.look(FITS)
    assert browser.look("document.documentElement.dataset.theme") == ("dark" if dark else "light")
    assert browser.problems == []
    assert browser.requests == [pages[name].as_uri()]


def test_the_theme_can_be_changed(browser, pages):
    browser.show(pages["small"])
    before = browser.look("getComputedStyle(document.body).backgroundColor")
    browser.look("document.getElementById('theme').click()")
    assert browser.look("document.documentElement.dataset.theme") == "dark"
    assert browser.look("getComputedStyle(document.body).backgroundColor") != before
    browser.look("document.getElementById('theme').click()")


def test_lineage_shows_operator_and_kept_energy(browser, pages):
    browser.show(pages["small"])
    assert browser.look("document.querySelectorAll('.life').length") == 4
    assert browser.look("document.querySelectorAll('.edge').length") == 1
    text = browser.look("document.querySelector('.edge').closest('svg').textContent")
    assert "s2 90%" in text
    assert "gaussian" in text


def test_lines_can_be_smoothed(browser, pages):
    browser.show(pages["whole"])
    line = "document.querySelector('svg .line').getAttribute('d')"
    before = browser.look(line)
    browser.look("(s => { s.value = '5'; s.dispatchEvent(new Event('input')) })(document.getElementById('smooth'))")
    assert browser.look(line) != before
    assert browser.look(line).count("L") == 59


def test_hostile_texts_are_shown_as_text(browser, pages):
    browser.show(pages["hostile"])
    assert browser.look("document.title") == "hostile: lora-evo run"
    assert browser.look("document.querySelectorAll('img, script').length") == 2
    shown = browser.look("document.getElementById('problems-list').textContent")
    assert HOSTILE[0] in shown
    assert HOSTILE[1] in shown
    assert "␀␛[31m" in shown
    assert "⟨U+202E⟩" in shown
    assert browser.problems == []


SEARCHES = {
    "": 5,
    "search=p3": 1,
    "search=DEF+return": 4,
    "search=nowhere": 0,
    "kind=deduction": 3,
    "status=ok": 3,
    "low=50&high=100": 2,
    "low=0&high=0": 1,
    "answer=bad_format": 1,
    "search=p&kind=deduction&status=ok": 2,
}


@pytest.mark.parametrize("asked", SEARCHES)
def test_search_by_the_address(browser, pages, asked):
    browser.show(pages["small"], f"#{asked}" if asked else "")
    assert int(browser.look("document.getElementById('problems-list').dataset.found")) == SEARCHES[asked]
    assert browser.look("document.querySelectorAll('.problem').length") == SEARCHES[asked]


def test_search_by_typing_turns_up_in_the_address(browser, pages):
    browser.show(pages["small"])
    field = "document.querySelector('input[type=search]')"
    browser.look(f"{field}.value = 'p4'; {field}.dispatchEvent(new Event('input'))")
    browser.wait("document.getElementById('problems-list').dataset.found === '1'")
    assert browser.look("location.hash") == "#search=p4"
    assert "p4" in browser.look("document.querySelector('.problem').textContent")


def test_pointing_at_a_chart_shows_its_values(browser, pages):
    browser.show(pages["small"])
    at = browser.look("(r => [r.right - 12, r.top + 60])(document.querySelector('figure svg').getBoundingClientRect())")
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=at[0], y=at[1])
    browser.wait("!document.getElementById('tip').hidden")
    assert browser.look("document.getElementById('tip').textContent") == "step 2Solve rate0%"


def test_a_comparison_changes_its_axis(browser, pages):
    browser.show(pages["compared"])
    unit = "[...document.querySelectorAll('figure svg .unit')].map(t => t.textContent)[1]"
    assert browser.look(unit) == "step"
    assert browser.look("document.querySelectorAll('.band').length") > 20
    browser.look("(s => { s.value = 'tokens'; s.dispatchEvent(new Event('input')) })(document.getElementById('axis'))")
    assert browser.look(unit) == "completion tokens"
    browser.show(pages["compared"], "#x=tokens")
    assert browser.look(unit) == "completion tokens"
    assert browser.look(SHAPES)
    assert browser.problems == []


def test_twenty_thousand_proposals_stay_quick(browser, tmp_path):
    run = journals.played(tmp_path / "run", steps=92, size=8, proposals=9, answers=2)
    page = tmp_path / "page.html"
    page.write_text(run_page(summarised(run)))
    started = time.monotonic()
    browser.show(page)
    assert time.monotonic() - started < 20
    assert int(browser.look("document.getElementById('problems-list').dataset.found")) == 92 * 8 * 3 * 9
    assert browser.look("document.querySelectorAll('.problem').length") == 20
    for words in ("search=zzz", "search=yyy"):  # the first one also makes the texts that are searched
        before = time.monotonic()
        browser.look(f"document.getElementById('problems-list').dataset.found = ''; location.hash = '#{words}'")
        browser.wait("document.getElementById('problems-list').dataset.found === '0'")
        assert time.monotonic() - before < 5
