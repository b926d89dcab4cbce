"""Nothing is lost: real processes are killed for real, disks fill up, files are damaged, configurations and bases change."""

import json
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from games import BASE, Silent, beginning, called, forked, left, played, run_command, tiniest

import lora_evo
from lora_evo.errors import LoraEvoError
from selfplay import checkpoint, journal
from selfplay.bases import tiny_llama
from selfplay.runs import begun, play, resumed

pytestmark = pytest.mark.slow
STEPS = 4


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """A run that nothing has disturbed, by a process of its own."""
    folder = tmp_path_factory.mktemp("unbroken") / "run"
    done = called(run_command(folder, f"steps={STEPS}"))
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def copy(unbroken, tmp_path):
    """One's own copy of it."""
    return Path(shutil.copytree(unbroken, tmp_path / "run"))


def go_on(folder, steps=None):
    with resumed(folder, steps) as run:
        play(run, Silent())


def step_of(folder):
    return checkpoint.read(checkpoint.latest(folder)).step


def test_killed_at_any_moment_a_run_goes_on_to_the_bit(unbroken, tmp_path):
    rng, folder, kills = random.Random(int(time.time())), tmp_path / "run", 0
    for _ in range(40):
        begin = ["resume", folder] if folder.exists() else beginning(folder, f"steps={STEPS}")
        process = forked(tmp_path / "said", "selfplay", *begin)
        if kills < 4 and _reaches(process, folder):
            time.sleep(rng.uniform(0, 0.5))
            process.kill()
            process.join()
            kills += process.exitcode == -signal.SIGKILL
        else:
            process.join(300)
            assert process.exitcode == 0, (tmp_path / "said").read_text()
            break
    assert kills >= 3
    assert left(folder) == left(unbroken)


def _reaches(process, folder):
    """Wait until the process has played something; False if it has ended."""
    before = (folder / "journal.jsonl").stat().st_mtime_ns if folder.exists() else 0
    while process.is_alive():
        if folder.exists() and (folder / "journal.jsonl").stat().st_mtime_ns > before:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("where", ["before the rename", "after it", "in the journal"])
def test_killed_in_the_middle_of_a_write(unbroken, copy, where):
    """The states that a kill can leave behind, made by hand."""
    newest = checkpoint.latest(copy)
    if where == "before the rename":
        newest.rename(newest.with_name(f".{newest.name}.partial"))
        (newest.with_name(f".{newest.name}.partial") / "state.json").write_text("{")
    elif where == "in the journal":
        shutil.rmtree(newest)
        os.truncate(copy / "journal.jsonl", (copy / "journal.jsonl").stat().st_size - 40)
    go_on(copy)
    assert left(copy) == left(unbroken)


def test_what_a_kill_left_of_old_checkpoints_goes_with_the_next(copy):
    folder = copy / "checkpoints"
    (min(folder.iterdir()) / "state.json").unlink()
    (folder / ".step-000002.partial").mkdir()
    go_on(copy, STEPS + 2)
    assert sorted(path.name for path in folder.iterdir()) == [f"step-{n:06d}" for n in (STEPS + 1, STEPS + 2)]


def test_more_steps_are_the_same_as_more_steps_at_once(unbroken, tmp_path):
    folder = played(tmp_path / "run", tiniest("steps=2"))
    go_on(folder, STEPS)
    ours, theirs = left(folder), left(unbroken)
    lines = ours.pop("journal.jsonl").splitlines()[1:], theirs.pop("journal.jsonl").splitlines()[1:]
    assert lines[0] == lines[1]  # but for the first: it says how many steps were planned
    assert ours == theirs
    assert (folder / "config.yaml").read_text() == (unbroken / "config.yaml").read_text()


def test_timings_are_those_of_the_steps_that_count(copy):
    shutil.rmtree(checkpoint.latest(copy))
    go_on(copy)
    assert [json.loads(line)["step"] for line in (copy / "timings.jsonl").read_text().splitlines()] == list(range(1, STEPS + 1))


def test_checkpoints_are_complete_and_only_the_newest_are_kept(unbroken):
    kept = sorted(path.name for path in (unbroken / "checkpoints").iterdir())
    assert kept == ["step-000003", "step-000004"]
    newest = checkpoint.latest(unbroken)
    names = [m.name for m in checkpoint.read(newest).population.members]
    assert sorted(path.name for path in (newest / "adapters").iterdir()) == sorted(names)
    assert sorted(path.stem for path in (newest / "optimizer").iterdir()) == sorted(names)
    for name in names:
        assert lora_evo.load(newest / "adapters" / name).config["base_model_name_or_path"] == BASE


def test_checkpoints_now_and_then(unbroken, tmp_path):
    folder = tmp_path / "run"
    with begun(tiniest("steps=3", "checkpoint.every=2"), folder) as run:
        play(run, Silent())
    assert step_of(folder) == 3
    shutil.rmtree(checkpoint.latest(folder))
    assert step_of(folder) == 2
    go_on(folder, STEPS)
    ours, theirs = (
        {
            k: v
            for k, v in left(of).items()
            if k.startswith(("checkpoints/step-000004/adapters", "checkpoints/step-000004/optimizer"))
        }
        for of in (folder, unbroken)
    )
    assert ours == theirs != {}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("lr: 0.001", "lr: 0.5", "learner.lr: 0.001 -> 0.5"),
        ("seed: 0", "seed: 3", "seed: 0 -> 3"),
        ("rank: 2", "rank: 4", "lora.rank: 2 -> 4"),
        ("lr: 0.001", "lrr: 0.001", "learner.lrr: no such key"),
    ],
)
def test_a_changed_configuration_is_refused(copy, old, new, said):
    text = (copy / "config.yaml").read_text()
    assert old in text
    (copy / "config.yaml").write_text(text.replace(old, new, 1))
    before = left(copy)
    with pytest.raises(LoraEvoError, match=said):
        go_on(copy)
    assert left(copy) == before


def test_what_changes_nothing_may_change(copy):
    text = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(text.replace("keep: 2", "keep: 1").replace(f"steps: {STEPS}", f"steps: {STEPS + 1}"))
    go_on(copy)
    assert [path.name for path in (copy / "checkpoints").iterdir()] == [f"step-{STEPS + 1:06d}"]


def test_fewer_steps_than_were_played_are_refused(copy):
    with pytest.raises(LoraEvoError, match=f"has played {STEPS} steps"):
        go_on(copy, 2)


def test_another_base_is_refused(tmp_path):
    base = tmp_path / "base"
    shutil.copytree(tiny_llama(), base)
    folder = played(tmp_path / "run", tiniest("steps=1", f"base={base}", "style=compact"))
    weights = next(base.glob("*.safetensors"))
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(LoraEvoError, match="is not the base this run was played on"):
        go_on(folder, 2)


@pytest.mark.parametrize(
    "damage",
    ["state.json", "buffers.json", "archive.npz", "optimizer/*", "adapters/*/adapter_model.safetensors", "adapters/*/*.json"],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_serves(unbroken, copy, damage):
    newest = checkpoint.latest(copy)
    file = next(newest.glob(damage))
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(LoraEvoError, match=r"step-000004 is damaged .*; remove it to go on"):
        go_on(copy)
    shutil.rmtree(newest)
    go_on(copy)
    assert left(copy) == left(unbroken)


def test_a_journal_that_has_lost_lines_is_refused(copy):
    os.truncate(copy / "journal.jsonl", 3000)
    with pytest.raises(LoraEvoError, match="it is damaged"):
        go_on(copy)


def test_a_folder_that_is_no_run(tmp_path):
    for folder in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(LoraEvoError, match="no folder of a run"):
            go_on(folder)


def test_a_run_is_played_by_one_process(copy):
    with resumed(copy, STEPS + 1), pytest.raises(LoraEvoError, match="another process is playing"):
        go_on(copy, STEPS + 1)


def ended(said, folder, *changes, **limits):
    """The exit code of a game played to its end, and what it said."""
    process = forked(said, "selfplay", *beginning(folder, *changes), **limits)
    process.join(300)
    return process.exitcode, said.read_text()


def test_a_disk_that_is_full_from_the_start_leaves_nothing(tmp_path):
    code, said = ended(tmp_path / "said", tmp_path / "runs" / "run", "steps=2", largest=3000)
    assert code == 1
    assert "Traceback" not in said
    assert {path.name for path in tmp_path.iterdir()} == {"said", "said.out"}


def test_a_journal_that_cannot_grow_loses_nothing(tmp_path):
    changes = (f"steps={STEPS}", "lora.rank=1", "lora.targets=q_proj", "game.seeding=0", "archive.cells=2")
    whole = played(tmp_path / "whole", tiniest(*changes))
    room = (whole / "journal.jsonl").stat().st_size * 4 // 5
    biggest = max(p.stat().st_size for p in (whole / "checkpoints").rglob("*") if p.is_file())
    assert biggest < room
    code, said = ended(tmp_path / "said", tmp_path / "run", *changes, largest=room)
    assert "journal.jsonl" in said
    _full_then_whole(code, said, tmp_path / "run", whole)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk")
def test_a_disk_that_fills_up_loses_nothing(unbroken, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    one = sum(path.stat().st_blocks * 512 for path in checkpoint.latest(unbroken).rglob("*"))
    size = int(one * 2.6)  # two checkpoints fit, a third beside them does not
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(disk)], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        code, said = ended(tmp_path / "said", disk / "run", f"steps={STEPS}")
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        _full_then_whole(code, said, disk / "run", unbroken)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def _full_then_whole(code, said, folder, unbroken):
    assert code == 1, said
    assert f"lora-evo selfplay resume {folder}" in said
    assert "Traceback" not in said
    assert step_of(folder) < STEPS
    go_on(folder)
    assert left(folder) == left(unbroken)


def test_every_event_of_a_resumed_run_is_whole(copy):
    go_on(copy, STEPS + 1)
    events = list(journal.read(copy / "journal.jsonl"))
    assert [e["step"] for e in events if e["event"] == "step"] == list(range(1, STEPS + 2))
    assert [e["event"] for e in events].count("end") == 1
