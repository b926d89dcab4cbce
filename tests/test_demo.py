"""The demo, whole, on random weights."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import lora_evo as le

ROOT = Path(__file__).parents[1]


def test_the_demo_runs_whole(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "benchmarks.demo",
        "--base",
        "tiny-llama",
        "--seconds",
        "1",
        "--json",
        "--out",
        str(tmp_path / "out"),
    ]
    environment = {**os.environ, "LORA_EVO_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    crossovers = {name for name, o in le.all_operators().items() if o.kind == "crossover"}
    assert set(result["rows"]) == {"base", "parent-a", "parent-b", "svd_perturb", "gaussian", "linear", *crossovers}
    for name, row in result["rows"].items():
        assert math.isfinite(row["loss_a"]), name
        assert math.isfinite(row["loss_b"]), name
        assert name == "base" or le.load(tmp_path / "out" / name).modules
    assert result["rows"]["parent-a"]["loss_a"] < result["rows"]["base"]["loss_a"]
    assert result["rows"]["parent-b"]["loss_b"] < result["rows"]["base"]["loss_b"]
