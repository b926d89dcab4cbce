"""Complexity and coverage."""
# ruff: noqa: E501

import numpy as np
import pytest

from selfplay.archive import Archive
from selfplay.complexity import Complexity, measure


@pytest.mark.parametrize(
    ("program", "cyclomatic"),
    [
        ("def f(x):\n    return x", 1),
        ("def f(a, b):\n    if a and b:\n        return 1", 3),
        ("def f(x):\n    return [i for i in x if i]", 3),
        ("def f(x):\n    def g(y):\n        if y:\n            return 1\n    return g(x)", 2),
        (
            "def f(x):\n    match x:\n        case 1:\n            pass\n        case 2:\n            pass\n        case _:\n            pass",
            3,
        ),
        ("def f(x):\n    try:\n        pass\n    except ValueError:\n        pass\n    finally:\n        pass", 2),
        ("def f(a, b):\n    assert a or b", 3),
        ("class C:\n    def m(self):\n        return 1", 1),
        ("if x:\n    f = lambda: 1", 2),
        ("", 1),
    ],
)
def test_cyclomatic(program, cyclomatic):
    assert measure(program).cyclomatic == cyclomatic


def test_agrees_with_radon_on_plain_functions():
    radon = pytest.importorskip("radon.complexity")
    from benchmarks.programs import generated

    for sample in generated(60):
        (block,) = radon.cc_visit(sample.program)
        assert measure(sample.program).cyclomatic == block.complexity


def test_lines_and_variables():
    program = 'def f(x, y=1):\n    """Doc\n    string."""\n\n    # comment\n    z = [\n        x,\n        y,\n    ]\n    for i in z:\n        z = i\n    return z\n'
    found = measure(program)
    assert found.lines == 8
    assert found.variables == 4
    assert measure("x = 1").ast_depth == 3
    assert measure("x = 1 + 2").ast_depth == 4


def test_no_program():
    with pytest.raises(ValueError, match="does not parse"):
        measure("def f(")


def test_coverage_grows_and_is_saved(tmp_path):
    archive = Archive(cells=64, seed=1)
    rng = np.random.default_rng(0)
    seen = []
    for i in range(200):
        complexity = Complexity(*(int(v) for v in rng.integers(1, 60, 4)))
        archive.add(complexity, f"p{i}", float(rng.normal()))
        seen.append(archive.coverage)
    assert seen == sorted(seen)
    assert 0.2 < seen[-1] <= 1
    archive.save(tmp_path / "archive.npz")
    again = Archive.load(tmp_path / "archive.npz")
    assert again.cells() == archive.cells()
    assert again.coverage == archive.coverage
    assert np.array_equal(again.centroids, archive.centroids)
    assert again.added == 200
    same = Complexity(5, 5, 5, 5)
    assert again.add(same, "x", 99.0) == archive.add(same, "x", 99.0)


def test_cells_come_from_the_seed():
    assert np.array_equal(Archive(16, seed=3).centroids, Archive(16, seed=3).centroids)
    assert not np.array_equal(Archive(16, seed=3).centroids, Archive(16, seed=4).centroids)


def test_places_are_inside_whatever_comes():
    archive = Archive(16)
    for complexity in (Complexity(0, 0, 0, 0), Complexity(10**9, 10**12, 10**9, 10**9), Complexity(-5, 1, 1, 1)):
        place = archive.place(complexity)
        assert ((place >= 0) & (place <= 1)).all()
        archive.add(complexity, "p", float("nan"))


def test_empty_archives_are_saved_too(tmp_path):
    archive = Archive(8)
    archive.save(tmp_path / "a.npz")
    assert Archive.load(tmp_path / "a.npz").filled == 0


@pytest.mark.parametrize("bad", [{"cells": 0}, {"ranges": ((2.0, 1.0),)}])
def test_bad_archives(bad):
    with pytest.raises(ValueError):
        Archive(**bad)
