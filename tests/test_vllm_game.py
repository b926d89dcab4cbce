"""A whole game on vLLM, by the command line: played, broken off, gone on with."""

import subprocess
import time
from pathlib import Path

import psutil
import pytest
from games import called, command, environment, run_command

from selfplay import checkpoint
from selfplay.journal import read

pytest.importorskip("vllm", reason="vLLM IS NOT INSTALLED HERE: make test-vllm makes an environment that has it")
pytestmark = pytest.mark.slow


def test_a_game_is_played_and_gone_on_with(tmp_path):
    folder = tmp_path / "run"
    begun = called(run_command(folder, "engine=vllm", "steps=3", "learner.lr=0.01"))
    assert begun.returncode == 0, begun.stderr
    gone_on = called(command("resume", folder, "--steps", "5"))
    assert gone_on.returncode == 0, gone_on.stderr
    assert checkpoint.read(checkpoint.latest(folder)).step == 5
    updates = [event for event in read(folder / "journal.jsonl") if event["event"] == "update" and event["samples"]]
    assert {event["step"] for event in updates} == {1, 2, 3, 4, 5}
    assert any(event["grad_norm"] > 0 for event in updates)
    assert all(event["mismatch"] < 1e-2 for event in updates)


def test_a_killed_game_leaves_no_vllm_behind_and_is_gone_on_with(tmp_path):
    """SIGKILL of the game alone: vLLM's processes end by themselves, and the next engine removes what was served."""
    folder, before = tmp_path / "run", _served()
    with subprocess.Popen(run_command(folder, "engine=vllm", "steps=500"), env=environment(), stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and not (folder / "timings.jsonl").exists():
            time.sleep(0.05)
        started = psutil.Process(process.pid).children(recursive=True)
        served = _served() - before
        process.kill()
    assert served
    assert any("vllm" in one.name().lower() for one in started if one.is_running())
    assert psutil.wait_procs(started, timeout=60)[1] == []
    step = checkpoint.read(checkpoint.latest(folder)).step
    gone_on = called(command("resume", folder, "--steps", step + 1))
    assert gone_on.returncode == 0, gone_on.stderr
    assert checkpoint.read(checkpoint.latest(folder)).step == step + 1
    assert not served & _served()


def _served():
    return set(Path("/dev/shm").glob("lora-evo-*"))
