"""The demo, whole, on random weights."""

import json
import math
from pathlib import Path

import pytest

import lora_evo as le


def test_the_demo_runs_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("LORA_EVO_CACHE", str(tmp_path / "cache"))
    from benchmarks.demo import main  # which silences warnings

    main(["--base", "tiny-llama", "--seconds", "1", "--json", "--out", str(tmp_path / "out")])
    result = json.loads(capsys.readouterr().out)
    crossovers = {name for name, o in le.all_operators().items() if o.kind == "crossover"}
    assert set(result["rows"]) == {"base", "parent-a", "parent-b", "svd_perturb", "gaussian", "linear", *crossovers}
    for name, row in result["rows"].items():
        assert math.isfinite(row["loss_a"]), name
        assert math.isfinite(row["loss_b"]), name
        assert name == "base" or le.load(tmp_path / "out" / name).modules
    assert result["rows"]["parent-a"]["loss_a"] < result["rows"]["base"]["loss_a"]
    assert result["rows"]["parent-b"]["loss_b"] < result["rows"]["base"]["loss_b"]
