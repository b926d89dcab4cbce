"""Rewards, advantages, ratings, matching, replacement, accounting: the rules of the game."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lora_evo.operators import get
from lora_evo.seeding import stream
from selfplay.accounting import Cost, Ledger, fair_budget
from selfplay.advantages import advantages
from selfplay.matchmaking import even_weights, pairs
from selfplay.population import Population, ranked
from selfplay.ratings import Rating, outcome, updated, win_probability
from selfplay.referee import Status, Verdict
from selfplay.replacement import CROSSOVERS, MUTATIONS, Breed, ReplacementRules, deaths, due, plan, replaced
from selfplay.rewards import student_reward, teacher_reward
from selfplay.tasks import Deduction

PROBLEM = Deduction().seed_problem()
R = [1, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0, 1]
GROUPS = [0] * 4 + [1] * 4 + [2] * 4
TOKENS = [3, 5, 2, 4, 1, 2, 3, 4, 6, 1, 1, 2]


# Rewards


def test_student_rewards():
    paid = {status: student_reward(Verdict(status)) for status in Status}
    assert paid[Status.OK] == 1
    assert paid[Status.INFRA_ERROR] is None
    assert {s for s, r in paid.items() if r == -1} == {Status.BAD_FORMAT, Status.SYNTAX_ERROR, Status.NO_ENTRY_FUNCTION}
    assert all(r == -0.5 for s, r in paid.items() if r not in (1, -1, None))


def test_teacher_rewards():
    """A reward of 0 stays 0, for problems nobody solves and for problems everybody solves."""
    assert teacher_reward(PROBLEM, 0.0) == 0
    assert teacher_reward(PROBLEM, 1.0) == 0
    assert teacher_reward(PROBLEM, 0.25) == 0.75
    assert teacher_reward(PROBLEM, None) is None
    assert teacher_reward(Verdict(Status.RAISED), None) == -1
    assert teacher_reward(Verdict(Status.INFRA_ERROR), None) is None
    with pytest.raises(ValueError):
        teacher_reward(PROBLEM, 1.5)


# Advantages: golden numbers of public implementations


def close(found, wanted, tolerance=2e-6):
    return np.testing.assert_allclose(found, wanted, atol=tolerance)


def test_grpo_golden():
    a = 0.865875
    close(advantages(R, GROUPS, "grpo"), [a, -a, -a, a, 0, 0, 0, 0, -0.4999, -0.4999, -0.4999, 1.4997], 1e-4)
    a, b, c = 0.9998, 0.577217, 1.731651
    close(advantages(R, GROUPS, "grpo", ddof=0), [a, -a, -a, a, 0, 0, 0, 0, -b, -b, -b, c], 1e-5)


def test_dr_grpo_golden():
    close(advantages(R, GROUPS, "dr_grpo"), [0.5, -0.5, -0.5, 0.5, 0, 0, 0, 0, -0.25, -0.25, -0.25, 0.75])


def test_reinforce_pp_baseline_golden():
    a, b, c = 1.309307, 0.654654, 1.963961
    close(advantages(R, GROUPS), [a, -a, -a, a, 0, 0, 0, 0, -b, -b, -b, c])
    a, a2, b, c = 1.307016, 1.232329, 0.597493, 1.941852
    close(advantages(R, GROUPS, weights=TOKENS), [a, -a2, -a2, a, 0, 0, 0, 0, -b, -b, -b, c])


def test_deviation_is_two_pass():
    close(advantages([1.0, 1.00001], [0, 0], "grpo", epsilon=1e-6), [-0.6196, 0.6196], 1e-3)
    for rewards in ([0, *[0.95] * 7], [1, 0, 0, 0]):
        for variant in ("grpo", "dr_grpo", "reinforce_pp_baseline"):
            assert np.abs(advantages(rewards, [0] * len(rewards), variant)).max() < 10


rewards = st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.25, 1.0, math.nan]), min_size=0, max_size=24)
variants = st.sampled_from(["grpo", "dr_grpo", "reinforce_pp_baseline"])


@settings(max_examples=200)
@given(rewards, variants, st.integers(1, 5), st.sampled_from(["zero", "cell"]))
def test_advantages_are_finite_and_sum_to_zero_in_groups(r, variant, size, singletons):
    groups = [i // size for i in range(len(r))]
    cells = [g % 2 for g in groups]
    a = advantages(r, groups, variant, cells, singletons=singletons)
    assert np.isfinite(a).all()
    assert all(a[i] == 0 for i, x in enumerate(r) if math.isnan(x))
    if singletons == "zero":
        for g in set(groups):
            assert abs(sum(a[i] for i in range(len(r)) if groups[i] == g)) < 1e-9


def test_groups_of_one():
    assert advantages([1, 0, 1], [0, 1, 2]).tolist() == [0, 0, 0]
    a = advantages([1, 0, 1, 0, 5], [0, 1, 2, 3, 4], cells=[0, 0, 0, 0, 1], singletons="cell")
    close(a, [1, -1, 1, -1, 0], 1e-6)


def test_dead_groups_and_empty_cells():
    assert advantages([1, 1, 0, 0], [0, 0, 1, 1]).tolist() == [0] * 4
    assert advantages([math.nan] * 3, [0, 0, 0]).tolist() == [0] * 3
    assert advantages([], []).tolist() == []


def test_cells_are_whitened_apart():
    both = advantages([1, 0, 10, 0], [0, 0, 1, 1], cells=["a", "a", "b", "b"])
    close(both, [1, -1, 1, -1], 1e-6)
    together = advantages([1, 0, 10, 0], [0, 0, 1, 1])
    assert abs(together[0]) < abs(together[2])


def test_bad_calls():
    with pytest.raises(ValueError, match="lengths"):
        advantages([1], [0, 1])
    with pytest.raises(ValueError, match="no variant"):
        advantages([1], [0], "ppo")  # type: ignore[arg-type]


# Ratings


def test_win_probability():
    assert win_probability(Rating(), Rating()) == pytest.approx(0.5)
    p = win_probability(Rating(30, 2), Rating(25, 3))
    assert p == pytest.approx(0.5 * (1 + math.erf(5 / math.sqrt(4 + 9 + 2 * (25 / 6) ** 2) / math.sqrt(2))))
    assert win_probability(Rating(25, 3), Rating(30, 2)) == pytest.approx(1 - p)


def test_updates_move_the_right_way():
    winner, loser = updated(Rating(), Rating(), "student")
    assert winner.mu == pytest.approx(29.39583, abs=1e-4)
    assert loser.mu == pytest.approx(20.60417, abs=1e-4)
    assert winner.sigma == pytest.approx(7.17147, abs=1e-4)
    assert updated(Rating(), Rating(), "teacher") == (loser, winner)
    drawn = updated(Rating(), Rating(), "draw")
    assert drawn[0].mu == pytest.approx(25)
    assert drawn[0].sigma < Rating().sigma
    high, low = updated(Rating(30, 2), Rating(20, 2), "draw")
    assert high.mu < 30
    assert low.mu > 20
    assert updated(Rating(), Rating(), None) == (Rating(), Rating())


def test_extreme_ratings_do_not_raise():
    for result in ("student", "teacher", "draw"):
        for pair in ((Rating(1253, 1.3), Rating(2038, 1.3)), (Rating(-5000, 0.1), Rating(9000, 0.1))):
            for rating in updated(*pair, result):
                assert math.isfinite(rating.mu)
                assert math.isfinite(rating.sigma)


def test_outcomes():
    assert outcome(0.6, 0.5, 3) == "student"
    assert outcome(0.4, 0.5, 3) == "teacher"
    assert outcome(0.5, 0.5, 3) == "draw"
    assert outcome(None, 0.5, 0) == "student"
    assert outcome(None, 0.5, 3) is None
    assert outcome(0.6, 0.9, 3) == "teacher"
    assert outcome(0.6, 0.9, 3, "majority") == "student"
    assert outcome(0.6, 0.9, 3, "majority", band=0.125) == "draw"


# Matching


@given(st.integers(0, 7), st.integers(1, 7), st.integers(0, 1000), st.sampled_from(["even", "uniform"]))
def test_everybody_plays_in_turn(teachers, students, seed, matching):
    chosen = pairs([Rating()] * teachers, [Rating(20 + i, 3) for i in range(students)], stream(seed, "match"), matching)
    assert [t for t, _ in chosen] == list(range(teachers))
    counts = [sum(s == k for _, s in chosen) for k in range(students)]
    assert max(counts) - min(counts) <= 1


def test_even_pairs_are_preferred():
    teachers, students = [Rating(25, 1)], [Rating(25, 1), Rating(45, 1)]
    chosen = [pairs(teachers, students, stream(i, "match"))[0][1] for i in range(300)]
    assert chosen.count(0) > 270
    uniform = [pairs(teachers, students, stream(i, "match"), "uniform")[0][1] for i in range(300)]
    assert 100 < uniform.count(0) < 200


def test_hopeless_pairs_still_match():
    far = [Rating(1e6, 1)] * 3
    assert even_weights(Rating(-1e6, 1), far).tolist() == [1, 1, 1]
    assert len(pairs([Rating(-1e6, 1)] * 3, far, stream(0, "match"))) == 3
    with pytest.raises(ValueError):
        pairs([Rating()], [], stream(0, "match"))


# Replacement

RULES = ReplacementRules()


@settings(max_examples=100)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 10_000), st.floats(0, 1), st.sampled_from(["keep", "mutate"]))
def test_plans_keep_sizes(teachers, students, seed, fraction, lone):
    rules = ReplacementRules(fraction=fraction, lone=lone)
    rng = stream(seed, "replace")
    population = Population.founded(teachers, students)
    names = {m.name for m in population.members}
    for step in range(1, 41):
        planned = plan(population, step, rules, rng)
        assert not planned or step % 10 == 0
        for r in planned:
            victims = {x.victim for x in planned}
            assert population[r.victim].role == r.role
            assert population[r.victim].age(step) >= 10
            assert len(set(r.parents)) == len(r.parents) == (2 if r.operator in {b.operator for b in CROSSOVERS} else 1)
            assert all(population[p].role == r.role for p in r.parents)
            assert not set(r.parents) & victims or lone == "mutate"
            assert r.child not in names
        names |= {r.child for r in planned}
        population = replaced(population, planned, step)
        assert len(population.of("teacher")) == teachers
        assert len(population.of("student")) == students
        assert len({m.name for m in population.members}) == teachers + students


def test_the_worst_dies():
    population = Population.founded(4, 4)
    population = population.rated({m.name: Rating(30, 2) for m in population.members})
    population = population.rated({"t2": Rating(10, 1), "s1": Rating(24, 8), "s3": Rating(20, 1)})
    planned = plan(population, 10, RULES, stream(0, "replace"))
    assert [r.victim for r in planned] == ["t2", "s1"]
    after = replaced(population, planned, 10)
    assert [m.name for m in after.of("teacher")] == ["t0", "t1", "t4", "t3"]
    child = after["t4"]
    assert child.rating == Rating()
    assert child.birth.parents == planned[0].parents
    assert child.birth.step == 10


def test_newcomers_have_grace():
    population = Population.founded(2, 2)
    population = replaced(population, plan(population, 10, RULES, stream(0, "r")), 10)
    young = [m.name for m in population.members if m.birth.step == 10]
    rules = ReplacementRules(grace=15)
    assert not {r.victim for r in plan(population, 20, rules, stream(1, "r"))} & set(young)
    everyone_young = ReplacementRules(grace=1000)
    assert plan(population, 20, everyone_young, stream(1, "r")) == []


def test_same_seed_same_plan():
    population = Population.founded(8, 8)
    plans = [plan(population, 10, RULES, stream(s, "replace")) for s in (1, 1, 2)]
    assert plans[0] == plans[1] != plans[2]


def test_counts():
    assert [deaths(n, RULES) for n in (1, 2, 3, 4, 8, 16)] == [0, 1, 1, 1, 2, 4]
    assert deaths(4, ReplacementRules(fraction=1.0)) == 3
    assert deaths(4, ReplacementRules(fraction=0.0)) == 0
    assert [s for s in range(31) if due(s, RULES)] == [10, 20, 30]
    assert not due(10, ReplacementRules(every=0))


def test_the_better_parent_comes_last():
    population = Population.founded(1, 6).rated({f"s{i}": Rating(20 + i, 1) for i in range(6)})
    rules = ReplacementRules(crossover=1.0)
    for seed in range(40):
        for r in plan(population, 10, rules, stream(seed, "x")):
            worse, better = (population[p].rating.mu for p in r.parents)
            assert better > worse


def test_operators_exist_and_weights_count():
    for breed, kind in [(b, "mutation") for b in MUTATIONS] + [(b, "crossover") for b in CROSSOVERS]:
        assert get(breed.operator).kind == kind
    only = ReplacementRules(crossover=0, mutations=(Breed("gaussian", 0.0), Breed("svd_perturb", 2.0, {"strength": 0.3})))
    drawn = [r for s in range(20) for r in plan(Population.founded(4, 4), 10, only, stream(s, "x"))]
    assert {(r.operator, r.params["strength"]) for r in drawn} == {("svd_perturb", 0.3)}


def test_a_lone_member():
    population = Population.founded(1, 1)
    assert plan(population, 10, RULES, stream(0, "x")) == []
    planned = plan(population, 10, ReplacementRules(lone="mutate", crossover=1.0), stream(0, "x"))
    assert [(r.victim, r.parents, r.child) for r in planned] == [("t0", ("t0",), "t1"), ("s0", ("s0",), "s1")]


@pytest.mark.parametrize(
    "bad", [{"every": -1}, {"fraction": 1.5}, {"crossover": -0.1}, {"mutations": ()}, {"crossovers": (Breed("dare", 0.0),)}]
)
def test_bad_rules(bad):
    with pytest.raises(ValueError):
        ReplacementRules(**bad)


def test_population_is_saved_and_restored():
    population = Population.founded(3, 2).rated({"t1": Rating(30, 2)})
    population = replaced(population, plan(population, 10, RULES, stream(0, "x")), 10)
    assert Population.from_dict(json.loads(json.dumps(population.as_dict()))) == population
    with pytest.raises(ValueError):
        Population.founded(0, 1)
    with pytest.raises(KeyError):
        population["t99"]


def test_ranking_is_total():
    population = Population.founded(12, 1)
    assert [m.name for m in ranked(population.of("teacher"))] == [f"t{i}" for i in range(12)]


# Accounting


def test_ledger():
    ledger = Ledger.empty().charge("t0", Cost(rollouts=2, completion_tokens=100)).charge("s0", Cost(8, 10, 300, 300, 8))
    ledger = ledger.charge("t0", Cost(rollouts=1, completion_tokens=50))
    assert ledger.by_member["t0"] == Cost(rollouts=3, completion_tokens=150)
    assert ledger.total() == Cost(11, 10, 450, 300, 8)
    assert ledger.total(["s0"]).completion_tokens == 300
    assert fair_budget(ledger, 2, "total") == 450
    assert fair_budget(ledger, 2, "adapter") == 225
    assert Ledger.from_dict(json.loads(json.dumps(ledger.as_dict()))) == ledger
    with pytest.raises(ValueError):
        fair_budget(ledger, 0, "total")
