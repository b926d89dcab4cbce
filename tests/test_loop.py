"""The game, played for real: what a step does, what it leaves in the journal, and what it makes of failures."""

import json
import math
from collections import Counter
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import pytest
from games import BASE, Silent, left, played, small, tiniest

from selfplay import journal, phases, recompute
from selfplay.bases import TINY
from selfplay.complexity import measure
from selfplay.engines import Completion
from selfplay.looking import chosen, faced, restored
from selfplay.population import Population
from selfplay.referee import Status, Verdict
from selfplay.runs import RunError, begun, play
from selfplay.table import Answered, Match, Proposed
from selfplay.tasks import Deduction

ORDER = ["match", "proposal", "answer", "rating", "update", "replacement", "step"]
needs_problems = pytest.mark.skipif(BASE == TINY, reason="random weights propose no valid problem")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of four steps, two of which replace members."""
    return played(tmp_path_factory.mktemp("games") / "run", small("steps=4"))


@pytest.fixture(scope="module")
def events(run):
    return list(journal.read(run / "journal.jsonl"))


def of(events, kind, step=None):
    return [e for e in events if e["event"] == kind and step in (None, e["step"])]


def test_events_come_in_the_order_of_the_step(events):
    assert (events[0]["event"], events[-1]) == ("start", {"event": "end", "step": 4})
    assert all(list(e)[:2] == ["event", "step"] for e in events)
    for step in range(1, 5):
        kinds = list(dict.fromkeys(e["event"] for e in events if e["step"] == step and e["event"] != "end"))
        assert kinds == [kind for kind in ORDER if kind in kinds]
        assert len([e for e in events if e["step"] == step and e["event"] == "step"]) == 1


def test_every_figure_can_be_computed_from_the_events_before_it(events):
    assert list(recompute.summaries(events)) == of(events, "step")


def test_every_teacher_proposes_every_kind_in_groups(events):
    for step in range(1, 5):
        matches = {m["teacher"]: m["student"] for m in of(events, "match", step)}
        assert sorted(matches.values()) == sorted(set(matches.values()))
        counts = Counter((p["teacher"], p["kind"]) for p in of(events, "proposal", step))
        assert counts == {(t, kind): 3 for t in matches for kind in ("deduction", "abduction", "induction")}
        assert all(p["student"] == matches[p["teacher"]] for p in of(events, "proposal", step))


def test_the_matched_student_answers_every_problem(events):
    problems = {p["id"]: p for p in of(events, "proposal")}
    answers = Counter(a["problem"] for a in of(events, "answer"))
    assert answers == {name: 3 for name, p in problems.items() if p["status"] == "ok"}
    assert all(a["student"] == problems[a["problem"]]["student"] for a in of(events, "answer"))


def test_rho_and_rewards_follow_from_the_answers(events):
    answers = of(events, "answer")
    for p in of(events, "proposal"):
        if p["status"] != "ok":
            assert (p["reward"], p["rho"], p["program"]) == (-1.0, None, None)
            continue
        right = [a["status"] == "ok" for a in answers if a["problem"] == p["id"]]
        assert p["rho"] == pytest.approx(sum(right) / 3)
        assert p["reward"] == pytest.approx(1 - p["rho"] if p["rho"] else 0.0)
        assert p["complexity"] == [int(x) for x in measure(p["program"]).features()]
    for a in answers:
        formless = a["status"] in ("bad_format", "syntax_error", "no_entry_function")
        assert a["reward"] == (1.0 if a["status"] == "ok" else -1.0 if formless else -0.5)


def test_groups_without_a_difference_have_no_advantage(events):
    groups: dict[str, list[tuple[float, float]]] = {}
    for p in of(events, "proposal"):
        groups.setdefault(p["id"].rpartition("-")[0], []).append((p["reward"], p["advantage"]))
    for a in of(events, "answer"):
        groups.setdefault(a["problem"] + "?", []).append((a["reward"], a["advantage"]))
    for group in groups.values():
        if len({reward for reward, _ in group}) == 1:
            assert all(advantage == 0 for _, advantage in group)
        else:
            assert max(group)[1] > min(group)[1]


def test_updates_say_what_was_learned_from(events):
    for u in of(events, "update"):
        assert all(math.isfinite(x) for x in (u["loss"], u["grad_norm"], u["entropy"], *u["ratio"]))
        assert bool(u["skipped"]) == (u["lr"] == 0)
        assert u["dead_groups"] <= u["groups"] <= max(u["samples"], 1)
        if not u["skipped"]:
            assert u["ratio"] == pytest.approx([1, 1, 1], abs=1e-3)


def test_children_take_the_places_of_the_worst(events):
    replacements = of(events, "replacement")
    assert [r["step"] for r in replacements] == [2, 2, 4, 4]
    names = set(of(events, "step", 4)[0]["ratings"])
    assert names == {m["name"] for m in events[0]["members"]} - {r["victim"] for r in replacements} | {
        r["child"] for r in replacements
    } - {r["victim"] for r in replacements}
    for r in replacements:
        assert of(events, "step", r["step"])[0]["ratings"][r["child"]] == [25.0, 25.0 / 3]
        later = [u for u in of(events, "update") if u["member"] == r["victim"] and u["step"] > r["step"]]
        assert not later


@needs_problems
def test_a_real_game_has_problems_answers_and_learning(events):
    assert any(p["new"] for p in of(events, "proposal"))
    assert of(events, "step", 4)[0]["filled"] > 0
    assert any(not u["skipped"] for u in of(events, "update"))
    assert any(not r["fallback"] for r in of(events, "replacement"))


def test_the_same_configuration_is_the_same_run_and_another_seed_is_not(tmp_path):
    first, second = (left(played(tmp_path / name, tiniest("steps=2"))) for name in ("a", "b"))
    assert first == second
    other = left(played(tmp_path / "c", tiniest("steps=2", "seed=1")))
    weights = [name for name in first.keys() & other.keys() if name.endswith("adapter_model.safetensors")]
    assert weights
    assert all(other[name] != first[name] for name in weights)
    assert other["journal.jsonl"] != first["journal.jsonl"]


def test_a_game_without_any_problem_goes_on(tmp_path):
    folder = played(tmp_path / "run", tiniest(f"base={TINY}", "steps=3"))
    events = list(journal.read(folder / "journal.jsonl"))
    assert b"NaN" not in (folder / "journal.jsonl").read_bytes()
    assert [s["solve_rate"] for s in of(events, "step")] == [None] * 3
    assert all(r["result"] == "student" for r in of(events, "rating"))
    assert {u["skipped"] for u in of(events, "update") if u["member"].startswith("s")} == {"no samples"}
    fallen = of(events, "replacement")[0]
    assert fallen["operator"] == "copy_parent"
    assert "every delta is zero" in fallen["fallback"]


def test_a_single_agent_plays_both_roles(tmp_path):
    config = small("steps=2", "population.teachers=1", "population.students=1", "population.single_agent=true")
    events = list(journal.read(played(tmp_path / "run", config) / "journal.jsonl"))
    assert events[0]["members"] == [{"name": "a0", "role": "both", "seed": events[0]["members"][0]["seed"]}]
    assert {(m["teacher"], m["student"]) for m in of(events, "match")} == {("a0", "a0")}
    assert not of(events, "rating")
    assert not of(events, "replacement")
    assert [u["member"] for u in of(events, "update")] == ["a0", "a0"]
    written = len(of(events, "proposal", 1)) + len(of(events, "answer", 1))
    assert of(events, "update", 1)[0]["samples"] == written
    assert list(recompute.summaries(events)) == of(events, "step")


def test_phases_are_told_in_order(tmp_path):
    watcher = Silent()
    with begun(tiniest("steps=1"), tmp_path / "run") as run:
        play(run, watcher, count().__next__)  # whoever asks the time finds it a second later
    names = [
        "match",
        "serve",
        "propose",
        "validate",
        "solve",
        "judge",
        "reward",
        "learn",
        "rate",
        "replace",
        "journal",
        "checkpoint",
    ]
    assert watcher.phases == [(1, name) for name in names]
    assert [s["step"] for s in watcher.steps] == [1]
    seconds = json.loads((tmp_path / "run" / "timings.jsonl").read_text())
    assert seconds == {"step": 1, **dict.fromkeys(names, 1), "total": 2 * len(names) + 1}


def test_references_give_way_to_the_prompts_limit(tmp_path):
    for limit, shown in ((768, 1), (8, 0)):
        with begun(tiniest("steps=1", f"sampling.prompt_tokens={limit}"), tmp_path / str(limit)) as run:
            (one, *_) = phases.propose(run.table, run.state, [Match("t0", "s0", 0.5)], 1)
            text = run.table.engine.tokenizer.decode(list(one.prompt))
            assert text.count("def f") == shown


INFRA = Verdict(Status.INFRA_ERROR, "the worker is gone")
MATCH = Match("t0", "s0", 0.5)
PROBLEM = Deduction().seed_problem()


def proposal(number, found):
    return Proposed(f"p{number}", MATCH, "deduction", "g", (1,), None, Completion((5,), (-1.0,), "x", "stop"), found)


def answer(to, verdict):
    return Answered(to, Completion((6,), (-1.0,), "y", "stop"), verdict)


def test_a_failure_of_the_referee_is_no_reward_no_rho_and_no_rating():
    table = SimpleNamespace(config=small())
    problem, lost, bad = proposal(0, PROBLEM), proposal(1, INFRA), proposal(2, Verdict(Status.SYNTAX_ERROR))
    verdicts = [Verdict(Status.OK), Verdict(Status.WRONG), INFRA]
    proposed, answered = phases.reward(table, [problem, lost, bad], [answer(problem, v) for v in verdicts])
    assert [p.reward for p in proposed] == [0.5, None, -1.0]
    assert proposed[0].rho == 0.5
    assert [a.reward for a in answered] == [1.0, -0.5, None]
    assert proposed[1].advantage == answered[2].advantage == 0.0
    assert all(x.advantage != 0 for x in (*proposed[::2], *answered[:2]))


@pytest.mark.parametrize(
    ("proposed", "verdicts", "result"),
    [
        ([proposal(0, INFRA)], [], None),
        ([proposal(0, Verdict(Status.RAISED))], [], "student"),
        ([proposal(0, PROBLEM)], [INFRA, INFRA], None),
        ([proposal(0, PROBLEM)], [Verdict(Status.OK), Verdict(Status.WRONG)], "draw"),
        ([proposal(0, PROBLEM)], [Verdict(Status.OK), INFRA], "student"),
        ([proposal(0, PROBLEM)], [Verdict(Status.WRONG), INFRA], "teacher"),
    ],
)
def test_who_wins_a_match(proposed, verdicts, result):
    table, population = SimpleNamespace(config=small()), Population.founded(1, 1)
    answered = [answer(proposed[0], v) for v in verdicts]
    after, (rated,) = phases.rate(table, population, [MATCH], proposed, answered)
    assert rated.result == result
    assert (after == population) == (result is None)


def test_infra_errors_teach_nothing(tmp_path):
    problem = replace(proposal(0, PROBLEM), question=(1, 2), reward=0.5)
    right, wrong, lost = (
        replace(answer(problem, v), reward=reward, advantage=advantage)
        for v, reward, advantage in ((Verdict(Status.OK), 1.0, 1.0), (Verdict(Status.WRONG), -0.5, -1.0), (INFRA, None, 0.0))
    )
    with begun(tiniest(), tmp_path / "run") as run:
        updates = phases.learn(run.table, [problem, proposal(1, INFRA)], [right, wrong, lost])
    assert updates["s0"].trained_tokens == 2
    assert updates["t0"].trained_tokens == 0


def test_one_teacher_against_one_student(run):
    before = left(run)
    with restored(run) as (table, state):
        teacher, student = chosen(state.population, "best-teacher"), chosen(state.population, "best-student")
        proposed, answered = faced(table, state, teacher, student, ["deduction", "induction"], 2, seed=0)
        with pytest.raises(RunError, match="'poetry' is not played in this run"):
            faced(table, state, teacher, student, ["poetry"], 2, seed=0)
        with pytest.raises(RunError, match="no member 'x' is alive"):
            chosen(state.population, "x")
    assert [p.kind for p in proposed] == ["deduction"] * 2 + ["induction"] * 2
    assert {p.match.teacher for p in proposed} == {teacher}
    assert len(answered) == 3 * sum(1 for p in proposed if p.problem)
    assert left(run) == before
