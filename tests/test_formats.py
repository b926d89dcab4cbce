"""PEFT folders in and out: what PEFT computes from a child is what we say the child is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from adapters import (
    ATTN,
    CONFIG,
    PREFIX,
    VARIANTS,
    WEIGHTS,
    base_with,
    dense,
    files_in,
    gap,
    hand_config,
    hand_folder,
    hand_tensors,
    load_peft,
    original_outputs,
    outputs,
    peft_outputs,
    rank_needed,
    rewritten,
    same_bits,
    same_factors,
    write_folder,
    write_peft,
)
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import lora_evo as le
from lora_evo.adapter import Adapter
from lora_evo.breeding import breed, breed_into, plan
from lora_evo.errors import AdapterError
from lora_evo.folders import appearing
from lora_evo.lineage import Lineage, Parent, digest
from lora_evo.measure import Measures

REWRITES = {"pissa", "olora", "kasa"}
PLAIN = sorted(VARIANTS.keys() - REWRITES)
MUTABLE = sorted(VARIANTS.keys() - REWRITES - {"fresh"})
SUMMABLE = sorted(set(MUTABLE) - {"dora"})


def close(a: torch.Tensor, b: torch.Tensor, tolerance: float = 2e-5) -> None:
    assert (a - b).abs().max() <= tolerance * max(1.0, float(b.abs().max()))


# ---------------------------------------------------------------- one parent


@pytest.mark.parametrize("name", PLAIN)
def test_our_reading_is_pefts(name, peft_made):
    base = VARIANTS[name][0]
    folder = peft_made(name)
    close(outputs(base_with(le.load(folder), base), base), original_outputs(folder, base))


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_a_copy_says_what_its_parent_says(name, peft_made, tmp_path):
    folder, base = peft_made(name), VARIANTS[name][0]
    le.save(le.crossover([le.load(folder)], "copy_parent", seed=0), tmp_path / "copy")
    assert torch.equal(peft_outputs(tmp_path / "copy", base), original_outputs(folder, base))
    before, after = load_file(folder / WEIGHTS), load_file(tmp_path / "copy" / WEIGHTS)
    assert before.keys() == after.keys()
    assert all(same_bits(before[key], after[key]) for key in before)


@pytest.mark.parametrize("name", MUTABLE)
def test_peft_runs_a_mutant_as_its_deltas_say(name, peft_made, tmp_path):
    folder, base = peft_made(name), VARIANTS[name][0]
    child = le.mutate(le.load(folder), "gaussian", seed=3, strength=0.4)
    le.save(child, tmp_path / "child")
    found = peft_outputs(tmp_path / "child", base)
    close(found, outputs(base_with(child, base), base))
    close(found, outputs(base_with(le.load(tmp_path / "child"), base), base))
    assert (found - original_outputs(folder, base)).abs().max() > 1e-6
    old, new = (json.loads((f / CONFIG).read_text()) for f in (folder, tmp_path / "child"))
    for field in ("r", "lora_alpha", "use_rslora", "bias", "task_type", "fan_in_fan_out", "layers_to_transform"):
        assert old[field] == new[field], field
    assert sorted(old["modules_to_save"] or []) == sorted(new["modules_to_save"] or [])


@pytest.mark.parametrize("operator", ["svd_perturb", "mask_components", "layer_noise"])
@pytest.mark.parametrize("name", ["patterns", "bdlora", "mixtral", "convs", "tied_pair", "lora_bias", "dora", "embedding"])
def test_other_mutations_of_odd_layouts(name, operator, peft_made, tmp_path):
    base = VARIANTS[name][0]
    child = le.mutate(le.load(peft_made(name)), operator, seed=5)
    le.save(child, tmp_path / "child")
    close(peft_outputs(tmp_path / "child", base), outputs(base_with(child, base), base))


@pytest.mark.parametrize("name", MUTABLE)
def test_mutation_leaves_what_is_no_delta(name, peft_made):
    parent = le.load(peft_made(name))
    child = le.mutate(parent, "svd_perturb", seed=0, strength=0.2)
    assert child.extras.keys() == parent.extras.keys()
    assert all(same_bits(child.extras[k].tensor, parent.extras[k].tensor) for k in parent.extras)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2])
def test_storage_dtypes(dtype, peft_made, tmp_path):
    folder = rewritten(peft_made("plain"), tmp_path / "parent", tensor=lambda k, t: t.to(dtype))
    parent = le.load(folder)
    copy = le.save(le.mutate(parent, "gaussian", seed=1, strength=0), tmp_path / "copy")
    assert all(same_bits(t, load_file(folder / WEIGHTS)[k]) for k, t in load_file(copy / WEIGHTS).items())
    child = le.mutate(parent, "gaussian", seed=1, strength=0.5)
    le.save(child, tmp_path / "child")
    assert {t.dtype for t in load_file(tmp_path / "child" / WEIGHTS).values()} == {dtype}
    close(peft_outputs(tmp_path / "child", "llama"), outputs(base_with(child, "llama"), "llama"))
    wide = {torch.float8_e4m3fn: 0.2, torch.float8_e5m2: 0.3}.get(dtype, 0.02)
    for name, factors in child.modules.items():
        change = np.linalg.norm(dense(factors) - dense(parent.modules[name])) / np.linalg.norm(dense(parent.modules[name]))
        assert change == pytest.approx(0.5, rel=wide), name


def test_mixed_dtypes_in_one_file(peft_made, tmp_path):
    mixed = rewritten(peft_made("plain"), tmp_path / "mixed", tensor=lambda k, t: t.bfloat16() if "lora_A" in k else t)
    child = le.mutate(le.load(mixed), "svd_perturb", seed=0)
    assert {(f.A.dtype, f.B.dtype) for f in child.modules.values()} == {(torch.bfloat16, torch.float32)}


@pytest.mark.parametrize("dtype", ["bfloat16", "bf16", torch.float16, "float32", "torch.float64"])
def test_dtype_can_be_asked_for(dtype, peft_made, tmp_path):
    child = le.mutate(le.load(peft_made("plain")), "svd_perturb", seed=0, dtype=dtype)
    le.save(child, tmp_path / "child")
    (found,) = {t.dtype for t in load_file(tmp_path / "child" / WEIGHTS).values()}
    assert found in (torch.bfloat16, torch.float16, torch.float32, torch.float64)
    assert str(dtype).removeprefix("torch.").replace("bf16", "bfloat16") == str(found).removeprefix("torch.")


def test_a_value_that_does_not_fit_the_asked_dtype_is_refused(tmp_path):
    big = {k: t * 1e6 if k.endswith("B.weight") else t for k, t in hand_tensors(0, dtype=torch.bfloat16).items()}
    parent = le.load(write_folder(tmp_path / "big", big, hand_config()))
    for operator in ("copy_parent", "svd_perturb"):
        with pytest.raises(AdapterError, match=r"q_proj.*float16"):
            breed([parent], operator, seed=0, dtype="float16")


# ---------------------------------------------------------------- several parents


def expected_sum(a: Adapter, b: Adapter, weights: tuple[float, float]) -> dict[str, np.ndarray]:
    total = {}
    for adapter, w in ((a, weights[0]), (b, weights[1])):
        for name, f in adapter.modules.items():
            total[name] = total.get(name, 0.0) + w * dense(f)
    return total


@pytest.mark.parametrize("name", SUMMABLE)
def test_sum_at_full_rank_is_exact_and_peft_runs_it(name, peft_made, tmp_path):
    base = VARIANTS[name][0]
    a, b = (le.load(peft_made(name, seed)) for seed in (1, 2))
    child = le.crossover([a, b], "linear", seed=0, weights=(0.7, -0.2), rank=rank_needed(a, b))
    le.save(child, tmp_path / "child")
    wanted = expected_sum(a, b, (0.7, -0.2))
    stored = le.load(tmp_path / "child")
    assert stored.modules.keys() == wanted.keys()
    for module, delta in wanted.items():
        assert gap(dense(stored.modules[module]), delta) < 1e-6, module
    assert child.measures.kept_energy == pytest.approx(1, abs=1e-9)
    close(peft_outputs(tmp_path / "child", base), outputs(base_with(child, base), base))


UNEQUAL = [
    ("plain", "small"),
    ("plain", "rslora"),
    ("patterns", "plain"),
    ("patterns", "patterns_rslora"),
    ("plain", "all_linear"),
    ("regex", "plain"),
    ("one_layer", "plain"),
    ("excluded", "all_linear"),
    ("default_targets", "alpha_float"),
    ("embedding", "plain"),
    ("lm_head", "small"),
    ("rank_above_width", "plain"),
    ("all_override", "small"),
    ("saved_head", "plain"),
    ("tokens", "plain"),
    ("saved_norm", "rank_one"),
]


@pytest.mark.parametrize(("first", "second"), UNEQUAL)
def test_unequal_parents(first, second, peft_made, tmp_path):
    parents = [le.load(peft_made(first, 1)), le.load(peft_made(second, 2))]
    wanted = expected_sum(*parents, (0.5, 0.5))
    for rank, tolerance in ((rank_needed(*parents), 1e-6), (None, None)):
        child = le.crossover(parents, "linear", seed=0, rank=rank)
        le.save(child, tmp_path / f"child-{rank}")
        assert child.modules.keys() == wanted.keys()
        if tolerance:
            assert all(gap(dense(child.modules[n]), wanted[n]) < tolerance for n in wanted)
        close(peft_outputs(tmp_path / f"child-{rank}", "llama"), outputs(base_with(child, "llama"), "llama"))
    config = json.loads((tmp_path / "child-None" / CONFIG).read_text())
    ranks = {f.rank for f in child.modules.values()}
    assert ranks == {config["r"]} == {max(f.rank for p in parents for f in p.modules.values())}
    assert not config["rank_pattern"]
    assert not config["alpha_pattern"]
    assert len({f.scale for f in child.modules.values()}) == 1


@pytest.mark.parametrize("operator", ["dare", "layer_choice", "svd_subspace", "extrapolate"])
@pytest.mark.parametrize("pair", [("plain", "small"), ("patterns", "all_linear"), ("embedding", "regex")])
def test_every_crossover_takes_unequal_parents(operator, pair, peft_made, tmp_path):
    parents = [le.load(peft_made(pair[0], 1)), le.load(peft_made(pair[1], 2))]
    child = le.crossover(parents, operator, seed=4)
    le.save(child, tmp_path / "child")
    close(peft_outputs(tmp_path / "child", "llama"), outputs(base_with(child, "llama"), "llama"))


@pytest.mark.parametrize("operator", ["dare", "layer_choice", "svd_subspace", "extrapolate", "linear"])
@pytest.mark.parametrize("name", ["convs", "bdlora", "mixtral", "qwen3moe", "mha", "gpt2", "tied_pair", "patterns_rslora"])
def test_every_crossover_of_odd_layouts(operator, name, peft_made, tmp_path):
    base = VARIANTS[name][0]
    child = le.crossover([le.load(peft_made(name, s)) for s in (1, 2)], operator, seed=4)
    le.save(child, tmp_path / "child")
    close(peft_outputs(tmp_path / "child", base), outputs(base_with(child, base), base))


def test_layer_choice_of_dora_carries_magnitudes(peft_made, tmp_path):
    parents = [le.load(peft_made("dora", s)) for s in (1, 2)]
    child = le.crossover(parents, "layer_choice", seed=1)
    assert {e.kind for e in child.extras.values()} == {"magnitude"}
    sources = set()
    for key, extra in child.extras.items():
        (source,) = [i for i, p in enumerate(parents) if same_factors(child.modules[extra.module], p.modules[extra.module])]
        assert same_bits(extra.tensor, parents[source].extras[key].tensor)
        sources.add(source)
    assert sources == {0, 1}
    le.save(child, tmp_path / "child")
    close(peft_outputs(tmp_path / "child", "llama"), outputs(base_with(child, "llama"), "llama"))


def test_a_child_of_equal_parents_is_a_drop_in(peft_made):
    a, b = (le.load(peft_made("rslora", s)) for s in (1, 2))
    child = le.crossover([a, b], "dare", seed=0)
    assert dict(child.config) == dict(a.config)


def test_patterns_of_a_child_name_each_module_exactly(peft_made):
    parent = le.load(peft_made("patterns"))
    child = le.mutate(parent, "svd_perturb", seed=0)
    from lora_evo.peft_format.config import pattern_value

    for patterns in (child.config["rank_pattern"], child.config["alpha_pattern"]):
        assert patterns
        for module in child.modules:
            hits = [p for p in patterns if pattern_value({p: True}, module, False)]
            assert len(hits) <= 1
    assert [(f.rank, f.scale) for f in child.modules.values()] == [(f.rank, f.scale) for f in parent.modules.values()]


@given(alpha=st.floats(1e-7, 1e7), r=st.integers(1, 8), rslora=st.booleans())
def test_any_alpha_survives_the_way_through_a_pattern(tmp_path_factory, alpha, r, rslora):
    root = tmp_path_factory.mktemp("alpha")
    hand_folder(root / "parent", r=r, alpha_pattern={r"layers\.1\..*": alpha}, use_rslora=rslora)
    parent = le.load(root / "parent")
    le.save(le.mutate(parent, "svd_perturb", seed=0), root / "child")
    child = le.load(root / "child")
    for name, f in child.modules.items():
        assert f.scale == pytest.approx(parent.modules[name].scale, rel=1e-8)


def test_moe_with_a_rank_pattern(tmp_path):
    folder = write_peft(tmp_path / "moe", "mixtral", 1, rank_pattern={"q_proj": 5}, alpha_pattern={"q_proj": 3})
    child = le.mutate(le.load(folder), "gaussian", seed=0)
    le.save(child, tmp_path / "child")
    close(peft_outputs(tmp_path / "child", "mixtral"), outputs(base_with(child, "mixtral"), "mixtral"))


def test_moe_at_another_rank(peft_made, tmp_path):
    parents = [le.load(peft_made("mixtral", s)) for s in (1, 2)]
    for rank in (1, 3):
        child = le.crossover(parents, "linear", seed=0, rank=rank)
        le.save(child, tmp_path / f"child{rank}")
        stored = le.load(tmp_path / f"child{rank}")
        assert all(same_factors(stored.modules[n], child.modules[n]) for n in child.modules)
        close(peft_outputs(tmp_path / f"child{rank}", "mixtral"), outputs(base_with(child, "mixtral"), "mixtral"))


def test_tied_ends_stay_tied(peft_made, tmp_path):
    child = le.mutate(le.load(peft_made("tied_pair")), "gaussian", seed=0)
    le.save(child, tmp_path / "child")
    stored = load_file(tmp_path / "child" / WEIGHTS)
    assert torch.equal(stored[f"{PREFIX}lm_head.lora_A.weight"], stored[f"{PREFIX}model.embed_tokens.lora_embedding_B"].T)
    assert torch.equal(stored[f"{PREFIX}lm_head.lora_B.weight"], stored[f"{PREFIX}model.embed_tokens.lora_embedding_A"].T)


# ---------------------------------------------------------------- what is no delta


@pytest.mark.parametrize(
    "name", ["saved_head", "saved_norm", "saved_tied", "tokens", "bias_all", "bias_lora_only", "seqcls", "normed"]
)
def test_values_are_averaged_with_normalised_weights(name, peft_made):
    a, b = (le.load(peft_made(name, s)) for s in (1, 2))
    child = le.crossover([a, b], "linear", seed=0, weights=(1.5, 0.5))
    assert child.extras.keys() == a.extras.keys()
    for key, extra in child.extras.items():
        x, y = (p.extras[key].tensor.double() for p in (a, b))
        assert torch.allclose(extra.tensor.double(), 0.75 * x + 0.25 * y, rtol=1e-6, atol=1e-7), key


def test_a_bias_of_b_is_summed_like_a_delta(peft_made):
    a, b = (le.load(peft_made("lora_bias", s)) for s in (1, 2))
    child = le.crossover([a, b], "linear", seed=0, weights=(1.5, -0.5))
    for key, extra in child.extras.items():
        x, y = (p.modules[extra.module].scale * p.extras[key].tensor for p in (a, b))
        assert torch.allclose(child.modules[extra.module].scale * extra.tensor, 1.5 * x - 0.5 * y, atol=1e-6)


def test_a_bias_of_b_follows_the_childs_scale(tmp_path):
    a = write_peft(tmp_path / "a", "lora_bias", 1)
    b = write_peft(tmp_path / "b", "lora_bias", 2, lora_alpha=30)
    parents = [le.load(a), le.load(b)]
    child = le.crossover(parents, "extrapolate", seed=0, eta=1.0)
    le.save(child, tmp_path / "child")
    close(peft_outputs(tmp_path / "child", "llama_bias"), peft_outputs(b, "llama_bias"))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_extras_that_only_one_parent_has_are_not_lost(order, peft_made):
    folders = [peft_made("saved_head", 1), peft_made("plain", 2)]
    parents = [le.load(folders[i]) for i in order]
    owner = le.load(folders[0])
    for operator in ("linear", "dare", "svd_subspace", "layer_choice", "copy_parent"):
        child = le.crossover(parents, operator, seed=0)
        assert sorted(child.config["modules_to_save"]) == ["embed_tokens", "lm_head"]
        assert all(same_bits(child.extras[k].tensor, owner.extras[k].tensor) for k in owner.extras), operator


def test_keep_policy_takes_the_first_parents_values(peft_made):
    a, b = (le.load(peft_made("saved_head", s)) for s in (1, 2))
    child = le.crossover([a, b], "svd_subspace", seed=0)
    assert all(same_bits(child.extras[k].tensor, a.extras[k].tensor) for k in a.extras)


def test_choose_policy_draws_a_parent_for_values_too(peft_made):
    a, b = (le.load(peft_made("saved_head", s)) for s in (1, 2))
    seen = set()
    for seed in range(8):
        child = le.crossover([a, b], "layer_choice", seed=seed)
        for key, extra in child.extras.items():
            (source,) = [i for i, p in enumerate((a, b)) if same_bits(extra.tensor, p.extras[key].tensor)]
            seen.add(source)
    assert seen == {0, 1}


def test_weights_that_cancel_have_no_mean_of_values(peft_made):
    a, b = (le.load(peft_made("saved_head", s)) for s in (1, 2))
    with pytest.raises(AdapterError, match="weights sum to 0"):
        le.crossover([a, b], "linear", seed=0, weights=(1, -1))
    same = le.crossover([a, a], "linear", seed=0, weights=(1, -1))
    assert all(same_bits(same.extras[k].tensor, a.extras[k].tensor) for k in a.extras)


def test_extrapolate_to_the_end_takes_that_parents_values_too(tmp_path):
    parents = []
    for seed in (1, 2):
        head = {f"{PREFIX}lm_head.weight": torch.randn(64, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))}
        config = hand_config(modules_to_save=["lm_head"])
        parents.append(le.load(write_folder(tmp_path / str(seed), {**hand_tensors(seed), **head}, config)))
    for eta, source in ((1.0, parents[1]), (0.0, parents[0])):
        child = le.crossover(parents, "extrapolate", seed=0, eta=eta)
        assert all(same_bits(child.extras[k].tensor, source.extras[k].tensor) for k in source.extras), eta


def test_whole_numbers_among_saved_modules_travel(peft_made, tmp_path):
    """The counter of a batch norm in modules_to_save is an integer, and no factor."""
    child = le.mutate(le.load(peft_made("normed")), "svd_perturb", seed=0)
    le.save(child, tmp_path / "child")
    before, after = load_file(peft_made("normed") / WEIGHTS), load_file(tmp_path / "child" / WEIGHTS)
    whole = [k for k, t in before.items() if not t.is_floating_point()]
    assert whole
    assert all(same_bits(before[k], after[k]) for k in whole)


# ---------------------------------------------------------------- spellings


SPELLINGS = {
    "adapter name": lambda k: k.replace(".weight", ".default.weight"),
    "adapter called lora": lambda k: k.replace(".weight", ".lora.weight"),
    "no prefix": lambda k: k.removeprefix(PREFIX),
    "half a prefix": lambda k: k.removeprefix("base_model."),
    "compiled": lambda k: PREFIX + "_orig_mod." + k.removeprefix(PREFIX),
    "compiled outside": lambda k: "_orig_mod." + k,
}


@pytest.mark.parametrize("spelling", sorted(SPELLINGS))
def test_spellings_are_normalised(spelling, peft_made, tmp_path):
    plain = le.load(peft_made("plain"))
    other = le.load(rewritten(peft_made("plain"), tmp_path / "other", key=SPELLINGS[spelling]))
    assert other.modules.keys() == plain.modules.keys()
    assert all(same_factors(other.modules[n], plain.modules[n]) for n in plain.modules)
    le.save(other, tmp_path / "again")
    assert load_file(tmp_path / "again" / WEIGHTS).keys() == load_file(peft_made("plain") / WEIGHTS).keys()


@pytest.mark.parametrize(
    ("name", "base"), [("saved_head", "llama"), ("tokens", "llama"), ("embedding", "llama"), ("bias_all", "qwen2")]
)
def test_an_adapters_name_in_keys_of_values(name, base, peft_made, tmp_path):
    """A raw state dict keeps the adapter's name, and the wrapper of a saved module."""

    def raw(key: str) -> str:
        if ".lora_embedding_" in key or key.endswith("trainable_tokens_delta"):
            return f"{key}.default"
        if key.endswith((f"{PREFIX}lm_head.weight", "embed_tokens.weight")):
            return key.replace(".weight", ".modules_to_save.default.weight")
        return key.replace("lora_A.", "lora_A.default.").replace("lora_B.", "lora_B.default.")

    adapter = le.load(rewritten(peft_made(name), tmp_path / "raw", key=raw))
    le.save(adapter, tmp_path / "again")
    assert torch.equal(peft_outputs(tmp_path / "again", base), peft_outputs(peft_made(name), base))


def test_a_language_model_inside_another_is_another_module(peft_made, tmp_path):
    def nested(key: str) -> str:
        return key.replace("model.model.model.", "model.model.language_model.")

    folder = rewritten(peft_made("plain"), tmp_path / "vlm", key=nested)
    assert all(n.startswith("language_model.layers.") for n in le.load(folder).modules)


def shards(folder: Path, source: Path) -> Path:
    folder.mkdir()
    tensors = load_file(source / WEIGHTS)
    keys, weight_map = sorted(tensors), {}
    for i in range(3):
        name = f"adapter_model-{i + 1:05d}-of-00003.safetensors"
        save_file({k: tensors[k] for k in keys[i::3]}, folder / name, metadata={"format": "pt", f"note{i}": "x"})
        weight_map |= dict.fromkeys(keys[i::3], name)
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (folder / CONFIG).write_bytes((source / CONFIG).read_bytes())
    return folder


def test_shards(peft_made, tmp_path):
    whole, parts = le.load(peft_made("plain")), le.load(shards(tmp_path / "parts", peft_made("plain")))
    assert list(parts.modules) == list(whole.modules)
    assert all(same_factors(parts.modules[n], whole.modules[n]) for n in whole.modules)
    assert len(parts.source) == 3
    assert parts.metadata == {"note0": "x", "note1": "x", "note2": "x"}
    child = le.mutate(parts, "svd_perturb", seed=0)
    assert child.lineage.parents[0].sha256 == digest(parts)


def test_modules_are_in_natural_order(tmp_path):
    adapter = le.load(write_folder(tmp_path / "deep", hand_tensors(layers=12), hand_config()))
    assert [int(n.split(".")[2]) for n in adapter.modules][::2] == list(range(12))


# ---------------------------------------------------------------- configuration


def test_unknown_fields_are_kept(pair, tmp_path):
    config = hand_config(from_the_future={"x": [3, 1, 2]}, revision="abc", lora_dropout=0.05)
    parent = write_folder(tmp_path / "odd", hand_tensors(), config)
    le.save(le.mutate(le.load(parent), "svd_perturb", seed=0), tmp_path / "child")
    child = json.loads((tmp_path / "child" / CONFIG).read_text())
    assert {k: child[k] for k in config} == config
    le.save(le.crossover([le.load(parent), le.load(pair[0])], "linear", seed=0), tmp_path / "two")
    assert json.loads((tmp_path / "two" / CONFIG).read_text())["from_the_future"] == {"x": [3, 1, 2]}


def test_null_and_absent_fields_mean_the_default(tmp_path):
    nulls = hand_config(rank_pattern=None, alpha_pattern=None, use_rslora=None, bias=None, modules_to_save=None)
    folder = write_folder(tmp_path / "nulls", hand_tensors(), nulls)
    adapter = le.load(folder)
    assert {f.scale for f in adapter.modules.values()} == {2.0}
    le.save(le.mutate(adapter, "svd_perturb", seed=0), tmp_path / "child")
    peft_outputs(tmp_path / "child", "llama")


def test_a_minimal_config_loads_in_peft_after_breeding(tmp_path):
    folder = hand_folder(tmp_path / "old", r=5, alpha=3.5)
    child = le.mutate(le.load(folder), "gaussian", seed=0, strength=0.3)
    le.save(child, tmp_path / "child")
    close(peft_outputs(tmp_path / "child", "llama"), outputs(base_with(child, "llama"), "llama"))


def test_missing_alpha_and_rank_are_noted(tmp_path):
    for absent, value in (("lora_alpha", {"r": 4}), ("r", {"lora_alpha": 8})):
        config = {k: v for k, v in hand_config().items() if k not in ("r", "lora_alpha")} | value
        adapter = le.load(write_folder(tmp_path / absent, hand_tensors(), config))
        assert any(absent in w for w in adapter.warnings)


def test_ranks_are_read_from_tensors(tmp_path):
    folder = write_folder(tmp_path / "odd", hand_tensors(r=3), hand_config(r=16, alpha=6))
    adapter = le.load(folder)
    assert {(f.rank, f.scale) for f in adapter.modules.values()} == {(3, 2.0)}
    assert any("another rank" in w for w in adapter.warnings)
    le.save(le.mutate(adapter, "svd_perturb", seed=0), tmp_path / "child")
    peft_outputs(tmp_path / "child", "llama")


def test_bytes_do_not_depend_on_the_hash_seed(tmp_path):
    hand_folder(tmp_path / "a", 1, target_modules=["v_proj", "q_proj"], modules_to_save=None)
    hand_folder(tmp_path / "b", 2, r=2)
    code = (
        "import sys, lora_evo as le\n"
        "a, b = le.load('a'), le.load('b')\n"
        "le.save(le.mutate(a, 'svd_perturb', seed=0), f'mutant{sys.argv[1]}')\n"
        "le.save(le.crossover([a, b], 'linear', seed=0), f'uniform{sys.argv[1]}')\n"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", code, seed], cwd=tmp_path, env={**os.environ, "PYTHONHASHSEED": seed})
        for seed in ("1", "77")
    ]
    assert [process.wait() for process in running] == [0, 0]
    for kind in ("mutant", "uniform"):
        assert files_in(tmp_path / f"{kind}1") == files_in(tmp_path / f"{kind}77")


# ---------------------------------------------------------------- bytes


@pytest.mark.parametrize(("operator", "how"), [("gaussian", {}), ("dare", {}), ("layer_choice", {}), ("svd_subspace", {"rank": 5})])
def test_the_same_bytes_on_any_number_of_threads_and_either_way(operator, how, peft_made, tmp_path):
    parents = [le.load(peft_made("all_linear", s)) for s in (1, 2)]
    parents = parents[:1] if operator == "gaussian" else parents
    folders = []
    for threads in (1, 2, 4):
        le.save(breed(parents, operator, seed=9, threads=threads, **how), tmp_path / f"saved{threads}")
        breed_into(plan(parents, operator, seed=9, **how), tmp_path / f"streamed{threads}", threads=threads)
        folders += [files_in(tmp_path / f"{kind}{threads}") for kind in ("saved", "streamed")]
    assert all(folder == folders[0] for folder in folders)
    assert folders[0].keys() == {CONFIG, WEIGHTS, "README.md"}


def test_breed_into_with_extras_and_ties(peft_made, tmp_path):
    for name in ("tied_pair", "saved_head", "mixtral", "convs"):
        parents = [le.load(peft_made(name, s)) for s in (1, 2)]
        le.save(breed(parents, "linear", seed=1), tmp_path / f"{name}-a")
        returned = breed_into(plan(parents, "linear", seed=1), tmp_path / f"{name}-b")
        assert files_in(tmp_path / f"{name}-a") == files_in(tmp_path / f"{name}-b")
        assert returned.measures == breed(parents, "linear", seed=1).measures


def test_key_order_in_the_file_does_not_matter(peft_made, tmp_path):
    source = peft_made("plain")
    raw = (source / WEIGHTS).read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    text = json.dumps(dict(sorted(header.items(), reverse=True))).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    (tmp_path / "turned").mkdir()
    (tmp_path / "turned" / WEIGHTS).write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + size :])
    (tmp_path / "turned" / CONFIG).write_bytes((source / CONFIG).read_bytes())
    a, b = (le.mutate(le.load(f), "gaussian", seed=1) for f in (source, tmp_path / "turned"))
    assert list(a.modules) == list(b.modules)
    assert all(same_factors(a.modules[n], b.modules[n]) for n in a.modules)


def test_the_file_is_plain_safetensors(pair, tmp_path):
    le.save(le.mutate(le.load(pair[0]), "svd_perturb", seed=0), tmp_path / "child")
    raw = (tmp_path / "child" / WEIGHTS).read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    ends = sorted(tuple(e["data_offsets"]) for k, e in header.items() if k != "__metadata__")
    assert size % 8 == 0
    assert ends[0][0] == 0
    assert ends[-1][1] == len(raw) - 8 - size
    assert all(a[1] == b[0] for a, b in pairwise(ends))
    with safe_open(tmp_path / "child" / WEIGHTS, "pt") as file:
        assert file.metadata()["format"] == "pt"


# ---------------------------------------------------------------- metadata and lineage


def test_foreign_metadata_is_kept(tmp_path):
    notes = {"format": "pt", "ss_network_alpha": "16", "note": "naïve ☃ text"}
    write_folder(tmp_path / "a", hand_tensors(1), hand_config(), notes)
    write_folder(tmp_path / "b", hand_tensors(2), hand_config(), {"format": "pt", "of": "b"})
    a, b = le.load(tmp_path / "a"), le.load(tmp_path / "b")
    assert a.metadata == {k: v for k, v in notes.items() if k != "format"}
    le.save(le.crossover([a, b], "linear", seed=0), tmp_path / "child")
    child = le.load(tmp_path / "child")
    assert child.metadata == a.metadata
    assert [dict(p.metadata) for p in child.lineage.parents] == [dict(a.metadata), {"of": "b"}]


def test_lineage_round_trip(pair, tmp_path):
    parents = [le.load(f) for f in pair]
    call = {"weights": (0.25, 0.75), "overrides": {"*.0.*": {"drop": 0.5}}, "modules": ["q_proj"]}
    child = le.crossover(parents, "dare", seed=2**70, **call)
    le.save(child, tmp_path / "child")
    found = le.load(tmp_path / "child").lineage
    assert (found.operator, found.seed, found.modules) == ("dare", 2**70, ("q_proj",))
    assert list(found.params["weights"]) == [0.25, 0.75]
    assert found.params["drop"] == 0.7
    assert found.overrides == {"*.0.*": {"drop": 0.5}}
    assert [p.name for p in found.parents] == ["mum", "dad"]
    import hashlib

    assert [p.sha256 for p in found.parents] == [hashlib.sha256((f / WEIGHTS).read_bytes()).hexdigest() for f in pair]
    assert found.measures.kept_energy == pytest.approx(child.measures.kept_energy, rel=1e-5)
    assert found.dumps() == child.lineage.dumps()
    assert str(tmp_path) not in (tmp_path / "child" / "README.md").read_text() + found.dumps()


def test_a_child_can_be_bred_again_from_its_lineage(pair, tmp_path):
    parents = [le.load(f) for f in pair]
    le.save(le.crossover(parents, "extrapolate", seed=5), tmp_path / "first")
    told = le.load(tmp_path / "first").lineage
    params = {k: tuple(v) if isinstance(v, list) else v for k, v in told.params.items()}
    le.save(le.crossover(parents, told.operator, seed=told.seed, **params), tmp_path / "second")
    assert load_file(tmp_path / "first" / WEIGHTS).keys() == load_file(tmp_path / "second" / WEIGHTS).keys()
    assert (tmp_path / "first" / WEIGHTS).read_bytes() == (tmp_path / "second" / WEIGHTS).read_bytes()


numbers = st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.floats(1e8, 1e17))


@given(st.one_of(st.none(), numbers), st.lists(st.one_of(st.none(), numbers), min_size=1, max_size=3), numbers, numbers)
def test_room_for_any_measures(change, cosines, energy, norm):
    """The header is written last into room that was kept for it: no measures may need more."""
    parents = tuple(Parent("p", "0" * 64, {}) for _ in cosines)
    lineage = Lineage("linear", 0, {}, {}, (), parents, {}, Measures(change, tuple(cosines), energy, norm))
    assert len(lineage.widest().dumps()) >= len(lineage.dumps())


def test_digest_follows_the_file(pair):
    a, b = le.load(pair[0]), le.load(pair[1])
    assert digest(a) != digest(b)
    before = digest(a)
    changed = {k: 2 * t for k, t in load_file(pair[0] / WEIGHTS).items()}
    save_file(changed, pair[0] / WEIGHTS)
    assert digest(le.load(pair[0])) != before


# ---------------------------------------------------------------- folders


def test_an_existing_folder_is_refused_and_untouched(pair, tmp_path):
    child = le.mutate(le.load(pair[0]), "svd_perturb", seed=0)
    before = files_in(pair[1])
    with pytest.raises(AdapterError, match="dad exists"):
        le.save(child, pair[1])
    assert files_in(pair[1]) == before
    le.save(child, pair[1], force=True)
    assert files_in(pair[1]) != before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dad", "mum"]


def test_a_parent_can_be_replaced_by_its_child(pair, tmp_path):
    a, b = (le.load(f) for f in pair)
    le.save(le.crossover([a, b], "linear", seed=0), tmp_path / "wanted")
    breed_into(plan([a, b], "linear", seed=0), pair[0], force=True)
    assert files_in(pair[0]) == files_in(tmp_path / "wanted")


def test_force_replaces_nothing_but_adapters(pair, tmp_path):
    child = le.mutate(le.load(pair[0]), "svd_perturb", seed=0)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("years of work")
    (tmp_path / "file").write_text("x")
    for name in ("thesis", "file"):
        with pytest.raises(AdapterError, match="not an adapter folder"):
            le.save(child, tmp_path / name, force=True)
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "years of work"
    (tmp_path / "empty").mkdir()
    le.save(child, tmp_path / "empty", force=True)
    le.load(tmp_path / "empty")


def test_a_link_is_replaced_and_its_target_is_not(pair, tmp_path):
    (tmp_path / "latest").symlink_to(pair[1])
    before = files_in(pair[1])
    le.save(le.mutate(le.load(pair[0]), "svd_perturb", seed=0), tmp_path / "latest", force=True)
    assert files_in(pair[1]) == before
    assert files_in(tmp_path / "latest") != before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dad", "latest", "mum"]


def test_an_adapter_is_not_lost_when_its_replacement_cannot_be_moved(pair, tmp_path, monkeypatch):
    rename, before = os.rename, files_in(pair[1])

    def full(source: os.PathLike, target: os.PathLike) -> None:
        if str(source).endswith(".partial"):
            raise OSError("no space left on device")
        rename(source, target)

    monkeypatch.setattr(os, "rename", full)
    child = le.mutate(le.load(pair[0]), "svd_perturb", seed=0)
    with pytest.raises(OSError, match="no space"):
        le.save(child, pair[1], force=True)
    assert files_in(pair[1]) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dad", "mum"]


def test_a_folder_that_came_in_between_is_not_replaced(tmp_path):
    wanted = appearing(tmp_path / "a" / "b")
    (wanted.__enter__() / "mine").touch()
    (tmp_path / "a" / "b").mkdir()
    (tmp_path / "a" / "b" / "theirs").touch()
    with pytest.raises(OSError, match="not empty"):
        wanted.__exit__(None, None, None)
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*"))] == ["a", "a/b", "a/b/theirs"]


def test_numbers_of_numpy_in_a_call(pair, tmp_path):
    child = breed([le.load(pair[0])], "svd_perturb", seed=np.int64(3), overrides={"q_proj": {"strength": np.float32(0.25)}})
    le.save(child, tmp_path / "child")
    found = le.load(tmp_path / "child").lineage
    assert (found.seed, dict(found.overrides["q_proj"])) == (3, {"strength": 0.25})


def test_parents_of_the_folder_are_made(pair, tmp_path):
    le.save(le.mutate(le.load(pair[0]), "svd_perturb", seed=0), tmp_path / "a" / "b" / "c")
    le.load(tmp_path / "a" / "b" / "c")


def test_a_failure_midway_leaves_nothing(pair, tmp_path):
    tensors = hand_tensors(3)
    last = f"{PREFIX}model.layers.1.self_attn.v_proj.lora_A.weight"
    tensors[last][0, 0] = float("nan")
    broken = le.load(write_folder(tmp_path / "broken", tensors, hand_config()))
    before = sorted(tmp_path.iterdir())
    with pytest.raises(AdapterError, match="NaN"):
        breed_into(plan([broken], "gaussian", seed=0), tmp_path / "child")
    assert sorted(tmp_path.iterdir()) == before
    kept = files_in(pair[1])
    with pytest.raises(AdapterError, match="NaN"):
        breed_into(plan([broken], "gaussian", seed=0), pair[1], force=True)
    assert files_in(pair[1]) == kept
    assert sorted(tmp_path.iterdir()) == before


def test_an_interrupt_leaves_nothing(pair, tmp_path):
    def stop(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        breed_into(plan([le.load(pair[0])], "gaussian", seed=0), tmp_path / "child", progress=stop)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dad", "mum"]


def test_progress_counts_every_module(pair):
    seen = []
    breed([le.load(pair[0])], "gaussian", seed=0, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


# ---------------------------------------------------------------- reading is lazy


def test_reading_maps_and_does_not_copy(tmp_path):
    tensors = {k: torch.zeros(1024, t.shape[1]) if "B." in k else t for k, t in hand_tensors(r=512).items()}
    folder = write_folder(tmp_path / "large", tensors, hand_config(r=512))
    adapter = le.load(folder)
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("no /proc")
    spans = []
    for line in maps.read_text().splitlines():
        if line.endswith(str(folder / WEIGHTS)):
            low, high = line.split()[0].split("-")
            spans.append((int(low, 16), int(high, 16)))
    for factors in adapter.modules.values():
        for tensor in (factors.A, factors.B):
            assert any(low <= tensor.data_ptr() < high for low, high in spans)


def test_expert_and_convolution_factors_are_views(peft_made):
    for name in ("mixtral", "convs", "bdlora"):
        adapter = le.load(peft_made(name))
        for module, f in adapter.modules.items():
            A, B = adapter.layout(module).stored(f.A, f.B)
            again = adapter.layout(module).matrices(A, B)
            assert torch.equal(again[0], f.A)
            assert torch.equal(again[1], f.B)


def test_peft_finds_every_key_of_a_saved_load(peft_made, tmp_path):
    for name in ("patterns", "mixtral", "embedding_bare"):
        le.save(le.load(peft_made(name)), tmp_path / name)
        load_peft(tmp_path / name, VARIANTS[name][0])


def test_target_lists_stay_lists(peft_made):
    child = le.mutate(le.load(peft_made("plain")), "svd_perturb", seed=0)
    assert sorted(child.config["target_modules"]) == sorted(ATTN)
