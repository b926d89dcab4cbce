"""The command line in process: `main(argv)` returns the exit code, stdout and stderr are captured."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lora_evo_cli import show
from lora_evo_cli.main import app, main

ATTENTION = ("q_proj", "v_proj")


def write_adapter(folder: Path, seed: int, targets=ATTENTION, rank=4, base="org/base", nan=False, **config) -> Path:
    g = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(2):
        for target in targets:
            stem = f"base_model.model.model.layers.{layer}.self_attn.{target}"
            tensors[f"{stem}.lora_A.weight"] = torch.randn(rank, 16, generator=g)
            tensors[f"{stem}.lora_B.weight"] = torch.randn(12, rank, generator=g) * 0.1
    if nan:
        next(reversed(tensors.values()))[0, 0] = float("nan")
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    fields = {"peft_type": "LORA", "r": rank, "lora_alpha": 8, "target_modules": list(targets), "base_model_name_or_path": base}
    (folder / "adapter_config.json").write_text(json.dumps({**fields, **config}))
    return folder


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory with two adapters, `a` and `b`."""
    monkeypatch.chdir(tmp_path)
    write_adapter(tmp_path / "a", 1)
    write_adapter(tmp_path / "b", 2)
    return tmp_path


@pytest.fixture
def run(here, capsys):
    """Runs a command line; gives (exit code, stdout, stderr)."""

    def call(line: str, *more: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([*line.split(), *more])
        return code, *capsys.readouterr()

    return call


def ok_json(result) -> dict:
    code, out, err = result
    assert code == 0, err
    return json.loads(out)


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "adapter_model.safetensors")


def names(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()}


# mutate and crossover


def test_mutate_writes_the_child_and_reports_it(run, here):
    code, out, err = run("mutate a -o child --op svd_perturb --strength 0.2 --seed 7")
    assert (code, err) == (0, "")
    assert names(here / "child") == {"adapter_model.safetensors", "adapter_config.json", "README.md"}
    for word in ("svd_perturb", "strength=0.2", "4 matched, 0 unmatched", "float32", "relative change", "kept energy", "cosines"):
        assert word in out


def test_json_is_one_object_that_tells_what_was_done(run, here):
    report = ok_json(run("mutate a -o child --op gaussian --strength 0.2 --seed 7 --modules q_proj --json"))
    assert (report["operator"], report["seed"], report["params"]["strength"]) == ("gaussian", 7, 0.2)
    assert (report["modules"], report["matched"], report["bred"], report["unmatched"]) == (4, 4, 2, {})
    assert report["ranks"] == [4]
    assert report["bytes"] == sum(t.nbytes for t in tensors(here / "child").values())
    assert 0 < report["measures"]["relative_change"] < 0.2
    a, child = tensors(here / "a"), tensors(here / "child")
    assert {key.split(".")[-3] for key in a if not torch.equal(a[key], child[key])} == {"q_proj"}


def test_the_seed_decides_the_child(run, here):
    for name, seed in (("x", 1), ("y", 1), ("z", 2)):
        run(f"mutate a -o {name} --op svd_perturb --seed {seed}")
    files = [(here / n / "adapter_model.safetensors").read_bytes() for n in "xyz"]
    assert files[0] == files[1] != files[2]


def test_a_drawn_seed_is_told_and_recorded(run):
    code, out, err = run("mutate a -o x --op svd_perturb --json")
    seed = json.loads(out)["seed"]
    assert code == 0
    assert f"seed {seed} drawn" in err
    assert ok_json(run("lineage x --json"))["seed"] == seed


@pytest.mark.parametrize("weights", ["-0.4,1", "0.25,0.75"])
def test_weights_are_used_as_given(run, here, weights):
    first, second = map(float, weights.split(","))
    ok_json(run(f"crossover a b -o c --op linear --weights={weights} --rank 8 --seed 0 --json"))
    for module in ("0.self_attn.q_proj", "1.self_attn.v_proj"):
        a, b, c = (delta(here / n, module) for n in "abc")
        torch.testing.assert_close(c, first * a + second * b, atol=1e-4, rtol=1e-4)


def delta(folder: Path, module: str) -> torch.Tensor:
    config, t = json.loads((folder / "adapter_config.json").read_text()), tensors(folder)
    stem = f"base_model.model.model.layers.{module}"
    return config["lora_alpha"] / config["r"] * t[f"{stem}.lora_B.weight"] @ t[f"{stem}.lora_A.weight"]


def test_normalize_divides_weights_by_their_sum(run):
    report = ok_json(run("crossover a b -o c --op dare --weights 3,1 --normalize --seed 0 --json"))
    assert report["params"]["weights"] == [0.75, 0.25]


def test_normalize_refuses_a_sum_of_zero_and_operators_without_weights(run, here):
    code, _, err = run("crossover a b -o c --op dare --weights=-1,1 --normalize")
    assert code == 2
    assert "sum to 0" in err
    code, _, err = run("crossover a b -o c --op svd_subspace --normalize")
    assert code == 2
    assert "weights" in err
    assert not (here / "c").exists()


def test_controls_serve_in_both_commands(run, here):
    assert run("mutate a -o m --op copy_parent --seed 0")[0] == 0
    assert run("crossover a b -o c --op copy_parent --seed 0")[0] == 0
    for child in ("m", "c"):
        assert all(torch.equal(t, tensors(here / "a")[key]) for key, t in tensors(here / child).items())


def test_n_children_have_consecutive_seeds_and_are_those_of_single_calls(run, here):
    report = ok_json(run("mutate a -o kids/k -n 3 --op svd_perturb --seed 5 --json"))
    assert [c["seed"] for c in report["children"]] == [5, 6, 7]
    assert [Path(c["folder"]).name for c in report["children"]] == ["k-0", "k-1", "k-2"]
    run("mutate a -o single --op svd_perturb --seed 6")
    assert (here / "kids/k-1/adapter_model.safetensors").read_bytes() == (here / "single/adapter_model.safetensors").read_bytes()


def test_n_children_in_words(run):
    code, out, _ = run("crossover a b -o k -n 2 --op extrapolate --seed 5")
    assert code == 0
    assert all(f"k-{i}" in out for i in range(2))


def test_all_targets_are_checked_before_breeding(run, here):
    write_adapter(here / "k-2", 3)
    code, out, err = run("mutate a -o k -n 3 --op svd_perturb --seed 5")
    assert (code, out) == (2, "")
    assert "k-2 exists" in err
    assert names(here) == {"a", "b", "k-2"}


def test_dry_run_tells_and_writes_nothing(run, here):
    write_adapter(here / "wide", 3, targets=(*ATTENTION, "o_proj"))
    report = ok_json(run("crossover a wide -o sub/c --op extrapolate --seed 1 --rank 6 --dtype bfloat16 --dry-run --json"))
    assert (report["matched"], len(report["unmatched"]), report["ranks"], report["dtypes"]) == (4, 2, [6], ["bfloat16"])
    assert report["bytes"] == 6 * (16 + 12) * 6 * 2
    assert 1 <= report["params"]["eta"] <= 1.5
    assert report["folder"] == "sub/c"
    code, out, _ = run("crossover a wide -o sub/c --op extrapolate --seed 1 -n 2 --dry-run")
    assert code == 0
    assert "4 matched, 2 unmatched" in out
    assert "c-1" in out
    assert names(here) == {"a", "b", "wide"}


def test_force_replaces_an_adapter_and_nothing_else(run, here):
    line = "mutate a -o c --op svd_perturb --seed 0"
    assert run(line)[0] == 0
    before = (here / "c/adapter_model.safetensors").read_bytes()
    code, _, err = run(line + " --strength 0.3")
    assert code == 2
    assert "--force" in err
    assert (here / "c/adapter_model.safetensors").read_bytes() == before
    assert run(line + " --strength 0.3 --force")[0] == 0
    assert (here / "c/adapter_model.safetensors").read_bytes() != before
    (here / "notes").mkdir()
    (here / "notes/text").touch()
    assert run("mutate a -o notes --op svd_perturb --seed 0 --force")[0] == 2
    assert names(here / "notes") == {"text"}


def test_force_with_n_does_not_replace_a_parent(run, here):
    (here / "a").rename(here / "k-1")
    code, _, err = run("mutate k-1 -o k -n 2 --op svd_perturb --force")
    assert code == 2
    assert "k-1 is a parent" in err
    assert names(here) == {"b", "k-1"}


def test_overrides_reach_their_modules(run, here):
    report = ok_json(run("mutate a -o c --op gaussian --seed 0 --override v_proj:strength=0,absolute=none --json"))
    assert report["overrides"] == {"v_proj": {"strength": 0.0, "absolute": None}}
    a, c = tensors(here / "a"), tensors(here / "c")
    assert {key.split(".")[-3] for key in a if not torch.equal(a[key], c[key])} == {"q_proj"}


def test_override_values_may_hold_commas(run):
    report = ok_json(run("crossover a b -o c --op dare --seed 0 --override q_proj:weights=1,0,drop=0.5 --dry-run --json"))
    assert report["overrides"] == {"q_proj": {"weights": [1.0, 0.0], "drop": 0.5}}


def test_flags_of_bool_parameters(run):
    report = ok_json(run("mutate a -o c --op mask_components --rescale --drop 0.5 --seed 0 --json"))
    assert report["params"]["rescale"] is True
    assert report["measures"]["norm"] == pytest.approx(ok_json(run("inspect a --json"))["norm"], rel=1e-4)


# config files


def test_config_gives_defaults_and_the_command_line_wins(run, here):
    text = "op: gaussian\nstrength: 2e-1\nseed: 3\nmodules: [q_proj, '!model.layers.0.*']\noverrides:\n  q_proj: {strength: 0.05}\n"
    (here / "recipe.yaml").write_text(text)
    report = ok_json(run("mutate a -o c --config recipe.yaml --seed 4 --dry-run --json"))
    assert (report["operator"], report["seed"], report["params"]["strength"]) == ("gaussian", 4, 0.2)
    assert (report["bred"], report["overrides"]) == (1, {"q_proj": {"strength": 0.05}})
    report = ok_json(
        run("mutate a -o c --config recipe.yaml --strength 0.3 --modules v_proj --override v_proj:strength=0 --dry-run --json")
    )
    assert (report["params"]["strength"], report["bred"], report["overrides"]) == (0.3, 2, {"v_proj": {"strength": 0.0}})


def test_config_in_json_with_lists_and_switches(run, here):
    recipe = {"op": "dare", "weights": [-1, 2], "output": "c", "dry-run": True, "children": 2, "seed": 0, "rank": None}
    (here / "recipe.json").write_text(json.dumps(recipe, indent="\t"))
    report = ok_json(run("crossover a b --config recipe.json --json"))
    assert report["children"][0]["params"]["weights"] == [-1.0, 2.0]
    assert len(report["children"]) == 2
    assert not (here / "c-0").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("op: gaussian\nstrenght: 0.1", "'strenght'"),
        ("op: gaussian\ndrop: 0.1", "gaussian has no parameter 'drop'"),
        ("op: gaussian\nseed: 1.5", "--seed"),
        ("op: gaussian\noverrides: {q_proj: 3}", "q_proj"),
        ("op: [", "recipe.yaml"),
        ("just text", "mapping"),
    ],
)
def test_bad_config(run, here, text, message):
    (here / "recipe.yaml").write_text(text)
    code, out, err = run("mutate a -o c --config recipe.yaml")
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert not (here / "c").exists()


# errors


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("mutate a -o c", "--op is missing; the operators are gaussian, layer_noise, mask_components, svd_perturb"),
        ("mutate a -o c --op dare", "lora-evo crossover"),
        ("crossover a b -o c --op gaussian", "lora-evo mutate"),
        ("mutate a -o c --op nonsense", "svd_perturb"),
        ("mutate a -o c --op svd_perturb --drop 0.3", "svd_perturb has no parameter 'drop'; it has strength, space"),
        ("mutate a -o c --op svd_perturb --strength 2", "at most 1"),
        ("mutate a -o c --op svd_perturb --strength much", "'much'"),
        ("mutate a -o c --op svd_perturb --space somewhere", "delta, factor"),
        ("mutate a -o c --op svd_perturb --eta 1", "--eta"),
        ("mutate a -o c --op svd_perturb --seed -1", "--seed"),
        ("mutate a -o c --op svd_perturb --rank 0", "--rank"),
        ("mutate a -o c --op svd_perturb -n 0", "-n"),
        ("mutate a -o c --op svd_perturb --dtype int8", "int8"),
        ("mutate a -o c --op svd_perturb --device tpu", "cpu, cuda or auto"),
        ("mutate a -o c --op svd_perturb --modules nothing", "'nothing'"),
        ("mutate a -o c --op svd_perturb --override q_proj", "GLOB:name=value"),
        ("mutate a -o c --op svd_perturb --config absent.yaml", "absent.yaml"),
        ("mutate a --op svd_perturb", "--output"),
        ("mutate absent/from/here -o c --op svd_perturb", "absent/from/here"),
        ("crossover a b -o c --op dare --weights 1,2,3", "3 number(s) for 2 parent"),
        ("crossover a -o c --op dare", "2 or more"),
        ("crossover a b a -o c --op extrapolate", "needs weights"),
        ("ops nonsense", "nonsense"),
        ("plot a -o c.txt", ".png or .svg"),
        ("lineage a --among absent", "absent"),
        ("nonsense", "nonsense"),
    ],
)
def test_bad_calls(run, here, line, message):
    code, out, err = run(line)
    assert (code, out) == (2, "")
    assert message in err
    assert err.splitlines()[-1].startswith("lora-evo: ")
    assert "Traceback" not in err
    assert names(here) == {"a", "b"}


def test_the_call_is_checked_before_a_file_is_read(run):
    _, _, err = run("crossover absent also-absent -o c --op dare --weights 1 --json")
    assert "--weights" in err


def test_a_nan_parent_leaves_nothing_behind(run, here):
    write_adapter(here / "bad", 3, nan=True)
    for line in ("mutate bad -o c --op svd_perturb --seed 0 --json", "mutate bad -o c -n 2 --op gaussian --seed 0"):
        code, out, err = run(line)
        assert (code, out) == (2, "")
        assert "NaN" in err
        assert names(here) == {"a", "b", "bad"}


def test_no_common_module(run, here):
    write_adapter(here / "other", 3, targets=("k_proj",))
    for line in ("crossover a other -o c --op dare", "compare a other"):
        code, out, err = run(line)
        assert (code, out) == (2, "")
        assert "no module in common" in err


def test_strict_and_base_mismatch(run, here):
    write_adapter(here / "wide", 3, targets=(*ATTENTION, "o_proj"))
    write_adapter(here / "foreign", 4, base="org/other")
    line = "crossover a wide -o c --op linear --seed 0 --dry-run"
    assert (run(line)[0], run(line + " --strict")[0]) == (0, 2)
    line = "crossover a foreign -o c --op linear --seed 0 --dry-run"
    assert (run(line)[0], run(line + " --allow-base-mismatch")[0]) == (2, 0)


def test_adapter_warnings_go_to_stderr(run, here):
    write_adapter(here / "odd", 3, rank_pattern={"nowhere": 2})
    code, out, err = run("mutate odd -o c --op svd_perturb --seed 0 --json")
    assert code == 0
    assert "warning" in err
    assert "'nowhere'" in err
    json.loads(out)


def test_other_failures_are_exit_1(run, here, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device", "somewhere")

    monkeypatch.setattr("lora_evo.peft_format.write._put", full)
    code, out, err = run("mutate a -o c --op svd_perturb --seed 0")
    assert (code, out, err) == (1, "", "lora-evo: somewhere: No space left on device\n")
    assert names(here) == {"a", "b"}


def test_debug_shows_the_traceback(run, monkeypatch):
    monkeypatch.setattr("lora_evo.peft_format.load", lambda _: {}["gone"])
    code, _, err = run("inspect a")
    assert (code, err) == (1, "lora-evo: KeyError: 'gone'; --debug shows where\n")
    for line in ("inspect a --debug", "--debug inspect a"):
        code, _, err = run(line)
        assert code == 1
        assert "Traceback" in err


def test_ctrl_c_is_130_and_leaves_nothing(run, here, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("lora_evo.peft_format.write._put", stop)
    code, out, err = run("mutate a -o c --op svd_perturb --seed 0")
    assert (code, out) == (130, "")
    assert "interrupted" in err
    assert names(here) == {"a", "b"}


def test_progress_lines_in_a_log_and_quiet(run, monkeypatch):
    monkeypatch.setattr(show, "PATIENCE", 0.0)
    _, _, err = run("mutate a -o x --op svd_perturb --seed 0")
    assert "breeding x: 1 of 4" in err
    code, out, err = run("mutate a -o y --op svd_perturb --seed 0 --quiet")
    assert (code, err) == (0, "")
    assert "svd_perturb" in out


# looking


def test_ops_lists_every_operator(run):
    _, out, _ = run("ops")
    listed = ok_json(run("ops --json"))["operators"]
    assert {op["name"] for op in listed} >= {"svd_perturb", "dare", "layer_choice", "copy_parent"}
    assert all(op["name"] in out and op["summary"] in out for op in listed)


def test_ops_explains_one(run):
    code, out, _ = run("ops svd_perturb")
    assert code == 0
    assert "dW = U S V'" in out
    assert "--strength" in out
    assert "lora-evo mutate my-lora -o child --op svd_perturb --strength 0.1" in out
    params = {p["name"]: p for p in ok_json(run("ops dare --json"))["parameters"]}
    assert params["drop"] | {"default": 0.7, "low": 0, "high": 0.99, "type": "float"} == params["drop"]


def test_inspect(run, here):
    report = ok_json(run("inspect a --json"))
    modules = report["by_module"]
    assert (report["modules"], len(modules), report["parameters"]) == (4, 4, 4 * 4 * (16 + 12))
    assert report["base_model"] == "org/base"
    first = modules[0]
    assert (first["rank"], first["alpha"], first["scale"], first["shape"], first["dtype"]) == (4, 8, 2.0, [12, 16], "float32")
    wanted = torch.linalg.svdvals(delta(here / "a", "0.self_attn.q_proj"))[:4]
    torch.testing.assert_close(torch.tensor(first["spectrum"]), wanted, atol=1e-5, rtol=1e-5)
    assert report["norm"] ** 2 == pytest.approx(sum(m["norm"] ** 2 for m in modules))
    code, out, _ = run("inspect a")
    assert code == 0
    assert all(m["module"] in out for m in modules)


def test_inspect_gives_alpha_under_rslora(run, here):
    write_adapter(here / "rs", 3, use_rslora=True)
    first = ok_json(run("inspect rs --json"))["by_module"][0]
    assert (first["scale"], first["alpha"]) == (4.0, 8.0)


def test_compare(run, here):
    same = ok_json(run("compare a a --json"))
    assert same["cosine"] == pytest.approx(1)
    assert (same["difference"], same["matched"]) == (0, 4)
    write_adapter(here / "wide", 3, targets=(*ATTENTION, "o_proj"))
    report = ok_json(run("compare a wide --json"))
    assert (report["matched"], report["only_in_a"], len(report["only_in_b"])) == (4, [], 2)
    d = [torch.cat([delta(here / n, f"{i}.self_attn.{t}").flatten() for i in range(2) for t in ATTENTION]) for n in ("a", "wide")]
    more = sum(delta(here / "wide", f"{i}.self_attn.o_proj").square().sum() for i in range(2))
    assert report["cosine"] == pytest.approx(float(d[0] @ d[1] / d[0].norm() / (d[1].square().sum() + more).sqrt()), rel=1e-4)
    code, out, _ = run("compare a wide")
    assert code == 0
    assert "4 matched, 2 unmatched" in out
    assert "only in wide" in out


def test_lineage_follows_parents(run, here):
    run("mutate a -o m --op svd_perturb --seed 1")
    run("crossover m b -o c --op dare --seed 2 --weights 0.3,0.7")
    run("crossover c m -o d --op linear --seed 3")
    story = ok_json(run("lineage d --json"))
    c, m = story["parents"]
    assert (story["operator"], story["seed"], c["operator"], c["params"]["weights"]) == ("linear", 3, "dare", [0.3, 0.7])
    assert m["told_above"]
    assert c["parents"][0]["parents"][0]["folder"] == str(here / "a")
    assert len(story["parents"][0]["sha256"]) == 64
    (here / "elsewhere").mkdir()
    (here / "b").rename(here / "elsewhere/b")
    code, out, _ = run("lineage d")
    assert code == 0
    assert f"b, not found here: sha256 {c['parents'][1]['sha256']}" in out
    assert "see above" in out
    assert ok_json(run("lineage c --among elsewhere --json"))["parents"][1]["folder"] == "elsewhere/b"
    assert ok_json(run("lineage d --depth 0 --json"))["parents"][0]["folder"] is None


def test_lineage_of_an_adapter_that_was_not_bred(run):
    code, out, _ = run("lineage a")
    assert code == 0
    assert "no lineage" in out
    assert ok_json(run("lineage a --json"))["operator"] is None


def test_plot(run, here):
    pytest.importorskip("matplotlib")
    assert run("plot a b -o out/x.png")[0] == 0
    assert (here / "out/x.png").read_bytes().startswith(b"\x89PNG")
    assert run("plot a -o x.svg")[0] == 0
    drawing = (here / "x.svg").read_text()
    assert drawing.rstrip().endswith("</svg>")
    assert "<dc:date>" not in drawing  # the same picture has the same bytes
    assert names(here) == {"a", "b", "out", "x.svg"}
    assert names(here / "out") == {"x.png"}


def test_plot_without_matplotlib(run, here, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, err = run("plot a -o x.png")
    assert (code, out) == (1, "")
    assert "pip install 'lora-evo[report]'" in err
    assert names(here) == {"a", "b"}


# help


def test_version(run):
    code, out, _ = run("--version")
    assert code == 0
    assert out.startswith("lora-evo 0.")


@pytest.mark.parametrize("name", ["mutate", "crossover", "ops", "inspect", "compare", "lineage", "plot"])
def test_help_shows_an_example_on_one_line(run, name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    epilog = next(c.epilog for c in app.registered_commands if name in (c.name, c.callback.__name__))
    wanted = {line for line in epilog.splitlines() if line.startswith("$ lora-evo")}
    code, out, _ = run(f"{name} --help")
    assert code == 0
    assert wanted
    assert wanted <= {line.strip() for line in out.splitlines()}


def test_help_lists_the_operators_parameters(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    _, mutate, _ = run("mutate --help")
    _, crossover, _ = run("crossover --help")
    assert "--strength" in mutate
    assert "gaussian 0.15" in mutate
    assert "--eta" not in mutate
    assert "--eta" in crossover
    assert "from 0 to 0.99 (dare; default 0.7)" in crossover


def test_help_does_not_import_torch():
    script = (
        "import sys\nfrom lora_evo_cli.main import main\n"
        "assert main(['--help']) == 0 and 'numpy' not in sys.modules\n"
        "assert main(['mutate', '--help']) == 0 and main(['ops']) == 0 and 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_op_names_are_completed():
    env = {**os.environ, "_LORA_EVO_COMPLETE": "complete_bash", "COMP_WORDS": "lora-evo crossover --op d", "COMP_CWORD": "3"}
    call = [sys.executable, "-c", "from lora_evo_cli.main import main; main([])"]
    done = subprocess.run(call, env=env, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["dare"], done.stderr
