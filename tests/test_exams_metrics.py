"""pass@k, intervals and halves: against counting, against the definition, and by their properties."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfplay.exams.metrics import halves, interval, pass_at_k
from selfplay.exams.table import population


@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_draws_with_a_right_one(case):
    n, c, k = case
    drawn = list(combinations(range(n), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(min(d) < c for d in drawn) / len(drawn))


def test_pass_at_k_refuses_what_it_cannot_know():
    for n, c, k in ((3, 1, 4), (3, 1, 0), (3, 4, 1), (3, -1, 1)):
        with pytest.raises(ValueError, match="must be from"):
            pass_at_k(n, c, k)
    assert pass_at_k(10_000, 1, 100) == pytest.approx(0.01)


def test_intervals():
    values = [1.0] * 30 + [0.0] * 70
    low, high = interval(values, 0)
    assert interval(values, 0) == (low, high)
    assert interval(values, 1) != (low, high)
    deviation = (0.3 * 0.7 / 100) ** 0.5
    assert low == pytest.approx(0.3 - 1.96 * deviation, abs=0.03)
    assert high == pytest.approx(0.3 + 1.96 * deviation, abs=0.03)
    assert interval([0.5] * 7, 3) == (0.5, 0.5)
    assert np.isnan(interval([], 0)).all()


def test_intervals_cover():
    """Of many exams with a known truth, about 95 % have it inside."""
    rng = np.random.default_rng(0)
    inside = 0
    for i in range(200):
        low, high = interval((rng.random(80) < 0.4).astype(float), i)
        inside += low <= 0.4 <= high
    assert 0.88 <= inside / 200 <= 0.99


@given(st.lists(st.text(), unique=True, max_size=40), st.integers(0, 5))
def test_halves(ids, seed):
    one, two = halves(ids, seed)
    assert sorted(one + two) == list(range(len(ids)))
    assert 0 <= len(two) - len(one) <= 1
    mixed = ids[::-1]
    assert {ids[i] for i in one} == {mixed[i] for i in halves(mixed, seed)[0]}, "a question's half does not depend on the order"


def test_the_chosen_member_is_chosen_on_one_half_and_reported_on_the_other():
    ids = [str(i) for i in range(20)]
    pick, report = halves(ids, 0)
    good, other = [float(i in pick) for i in range(20)], [0.9 * (i in report) for i in range(20)]
    found = population({1: {"looks good": good, "is good": other}}, ids, 0)
    assert found["chosen"]["member"] == "looks good"
    assert found["chosen"]["pass@1"]["mean"] == 0.0
    assert found["best"]["member"] == "looks good"
    assert found["mean"]["pass@1"]["mean"] == pytest.approx((0.5 + 0.45) / 2)
