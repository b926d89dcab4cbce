"""The simulation: ratings find the hidden order, matching prefers even pairs, replacement raises the mean."""

from dataclasses import replace

import numpy as np
import pytest

from selfplay.replacement import ReplacementRules
from selfplay.simulate import Scene, load, simulate

SEEDS = range(2)


def mean(scene, key):
    return float(np.mean([simulate(replace(scene, seed=s))[key] for s in SEEDS]))


def test_the_rules_do_what_they_should():
    scene = Scene(teachers=6, students=6, steps=120)
    still = replace(scene, replacement=ReplacementRules(every=0))
    assert mean(still, "rank_correlation") > 0.85
    assert mean(scene, "rank_correlation") > 0.6
    assert mean(still, "evenness") > mean(replace(still, matching="uniform"), "evenness")
    for role in ("teacher", "student"):
        runs = [simulate(replace(scene, seed=s)) for s in SEEDS]
        assert all(r["mean_skill_end"][role] > r["mean_skill_start"][role] for r in runs)
        kept = simulate(still)
        assert kept["mean_skill_end"] == kept["mean_skill_start"]


@pytest.mark.parametrize(("teachers", "students"), [(1, 1), (1, 5), (5, 1), (3, 4)])
def test_any_sizes(teachers, students):
    found = simulate(Scene(teachers, students, steps=25))
    assert np.isfinite(found["evenness"])


def test_same_seed_same_run():
    runs = [simulate(Scene(steps=30, seed=s)) for s in (1, 1, 2)]
    for run in runs:
        del run["seconds"]
    assert runs[0] == runs[1] != runs[2]


def test_nothing_valid():
    assert simulate(Scene(steps=20, valid=0.0))["replacements"] > 0


def test_load():
    found = load(Scene(teachers=2, students=2, kinds=3, proposals=4, answers=8, valid=0.5))
    assert found["rollouts"] == 24 + 12 * 8
    assert found["referee_programs"] == 48 + 64


@pytest.mark.parametrize("bad", [{"teachers": 0}, {"steps": 0}, {"valid": 2.0}])
def test_bad_scenes(bad):
    with pytest.raises(ValueError):
        Scene(**bad)
