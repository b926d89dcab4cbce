"""The command line of the game: what it prints, what it leaves, how it ends."""

import json
import os
import re
import signal
import time
from dataclasses import fields
from pathlib import Path

import pytest
from games import TINIEST, beginning, forked, left, played, small, tiniest

import lora_evo
from lora_evo_cli.main import main
from selfplay import checkpoint, presets
from selfplay.learner import LearnRules
from selfplay.replacement import Breed, ReplacementRules
from selfplay.rewards import RewardRules

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return played(tmp_path_factory.mktemp("cli") / "run", small("steps=2", "game.kinds=[deduction, abduction]"))


def sets(*changes):
    return [word for change in changes for word in ("--set", change)]


def test_presets_are_listed_and_shown(capsys):
    assert main(["selfplay", "presets"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in presets.names())
    assert main(["selfplay", "presets", "smollm2"]) == 0
    assert capsys.readouterr().out.rstrip("\n") == presets.text("smollm2").rstrip("\n")
    assert main(["selfplay", "presets", "smollm2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["base"] == "smollm2-135m"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--set", "learner.lrr=1"], "did you mean learner.lr?"),
        (["--preset", "labtop"], "did you mean laptop?"),
        (["--preset", "laptop", "--config", "x.yaml"], "exclude each other"),
        (["--config", "x.yaml"], "x.yaml cannot be read"),
        (["--set", "base=./nowhere"], "nowhere"),
        (["--set", "device=cuda:7"], "device is cuda:7, which torch does not find"),
        (["--set", "base=tiny-llama", "--set", "sampling.answer_tokens=9000"], "positions; tiny-llama has 2048"),
        (["--set", "base=tiny-llama", "--set", "lora.targets=[nothing]"], "nothing"),
    ],
)
def test_a_start_that_fails_leaves_nothing(given, said, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["selfplay", "run", "-o", str(tmp_path / "a" / "run"), *given]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_writer_that_is_not_there_is_an_error_before_the_start(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("selfplay.writers.find_spec", lambda name: None)
    assert main(["selfplay", "run", "-o", str(tmp_path / "run"), "--set", "writers=wandb"]) == 2
    assert "pip install wandb" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_is_left_alone(run, tmp_path, capsys):
    before = left(run)
    assert main(["selfplay", "run", "-o", str(run)]) == 2
    assert f"go on with it: lora-evo selfplay resume {run}" in capsys.readouterr().err
    assert left(run) == before
    assert main(["selfplay", "run", "-o", str(tmp_path)]) == 2
    assert "exists" in capsys.readouterr().err


def test_json_is_one_object_and_nothing_else(tmp_path, capsys):
    changes = [*TINIEST, "steps=2"]
    assert main(["selfplay", "run", "-o", str(tmp_path / "run"), *sets(*changes), "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["step"] == 2
    assert Path(found["report"]).read_text().startswith("<!")
    assert set(found["best"]) == {"best-teacher", "best-student"}
    assert [line.split("  ")[0] for line in err.splitlines() if line.startswith("step")] == ["step 1/2", "step 2/2"]
    assert main(["selfplay", "resume", str(tmp_path / "run"), "--steps", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 3


def test_an_exported_member_is_the_one_of_the_checkpoint(run, tmp_path, capsys):
    names = [m.name for m in checkpoint.read(checkpoint.latest(run)).population.members]
    for wanted in (names[0], "best-student", "best-teacher"):
        folder = tmp_path / wanted
        assert main(["selfplay", "export", str(run), wanted, "-o", str(folder), "--json"]) == 0
        name = json.loads(capsys.readouterr().out)["member"]
        assert name in names
        ours, theirs = lora_evo.load(folder), lora_evo.load(checkpoint.latest(run) / "adapters" / name)
        assert all(ours.modules[m].B.equal(theirs.modules[m].B) for m in theirs.modules)
    assert main(["selfplay", "export", str(run), names[0], "-o", str(tmp_path / names[0])]) == 2
    assert "--force" in capsys.readouterr().err
    assert main(["selfplay", "export", str(run), names[0], "-o", str(tmp_path / names[0]), "--force"]) == 0
    assert main(["selfplay", "export", str(run), "t99", "-o", str(tmp_path / "x")]) == 2
    assert "no member 't99' is alive" in capsys.readouterr().err


def test_an_exported_member_loads_in_peft(run, tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from selfplay.bases import resolve

    assert main(["selfplay", "export", str(run), "best-student", "-o", str(tmp_path / "student")]) == 0
    base = AutoModelForCausalLM.from_pretrained(resolve(presets.read(run / "config.yaml").base))
    model = PeftModel.from_pretrained(base, str(tmp_path / "student"))
    assert any("lora_B" in name for name, _ in model.named_parameters())


def test_a_match_is_shown_problem_by_problem(run, capsys):
    assert main(["selfplay", "match", str(run), "best-teacher", "best-student", "--kind", "deduction", "-n", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [p["kind"] for p in found["problems"]] == ["deduction"] * 2
    assert all(len(p["answers"]) == (3 if p["status"] == "ok" else 0) for p in found["problems"])
    assert main(["selfplay", "match", str(run), "best-teacher", "best-student", "-n", "1"]) == 0
    shown = capsys.readouterr().out
    assert "-deduction-0-0: " in shown
    assert "-abduction-0-0: " in shown


def test_a_report_and_a_comparison(run, tmp_path, capsys):
    assert main(["selfplay", "report", str(run), "-o", str(tmp_path / "page.html")]) == 0
    assert main(["selfplay", "compare", str(run), str(run), "-o", str(tmp_path / "compare.html")]) == 0
    assert (tmp_path / "page.html").stat().st_size > 1000
    assert (tmp_path / "compare.html").stat().st_size > 1000


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_run_in_order(number, code, tmp_path):
    folder, said = tmp_path / "run", tmp_path / "said"
    process = forked(said, "selfplay", *beginning(folder, "steps=500"))
    while process.is_alive() and not (folder / "timings.jsonl").exists():
        time.sleep(0.05)
    os.kill(process.pid, number)
    process.join(60)
    err = said.read_text()
    assert (process.exitcode, said.with_suffix(".out").read_text()) == (code, ""), err
    assert f"go on with: lora-evo selfplay resume {folder}" in err
    assert "Traceback" not in err
    assert not [path for path in (folder / "checkpoints").iterdir() if path.name.startswith(".")]
    step = checkpoint.read(checkpoint.latest(folder)).step
    assert main(["selfplay", "resume", str(folder), "--steps", str(step + 2)]) == 0
    assert checkpoint.read(checkpoint.latest(folder)).step == step + 2


def test_tensorboard_gets_the_figures(tmp_path):
    pytest.importorskip("tensorboard")
    folder = played(tmp_path / "run", tiniest("steps=1", "writers=tensorboard"))
    assert list((folder / "tensorboard").iterdir())


def test_what_the_documentation_shows_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parent.parent / "docs" / "game.md").read_text()
    for block in re.findall(r"```python\n(.*?)```", page, re.S):
        exec(compile(block, "docs/game.md", "exec"), {})
    assert (tmp_path / "my-run" / "journal.jsonl").exists()
    whole = presets.dumps(presets.preset("laptop"))
    for key in re.findall(r"^ *([a-z_]+):", whole, re.M):
        assert f"`{key}`" in page or key in OF_RULES, key


OF_RULES = {f.name for rules in (RewardRules, ReplacementRules, LearnRules, Breed) for f in fields(rules)}
