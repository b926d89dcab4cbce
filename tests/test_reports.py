"""Twenty-five public reports about combining adapters with other tools, each as the smallest input and the right outcome."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from adapters import (
    CONFIG,
    PREFIX,
    VARIANTS,
    WEIGHTS,
    base_with,
    best,
    dense,
    files_in,
    gap,
    hand_config,
    hand_folder,
    hand_tensors,
    load_peft,
    outputs,
    peft_outputs,
    rewritten,
    same_bits,
    same_factors,
    write_folder,
)
from safetensors.torch import load_file

import lora_evo as le
from lora_evo.adapter import LoraFactors
from lora_evo.breeding import breed, breed_into, plan
from lora_evo.errors import AdapterError, OperatorError
from lora_evo.lowrank import join


def deltas(adapter: le.Adapter) -> dict[str, np.ndarray]:
    return {name: dense(f) for name, f in adapter.modules.items()}


def runs(folder: Path, base: str = "llama") -> None:
    """PEFT computes from a folder what its deltas say."""
    says = outputs(base_with(le.load(folder), base), base)
    assert (peft_outputs(folder, base) - says).abs().max() < 2e-5


def test_report_01_rslora_keeps_its_strength(peft_made, tmp_path):
    """huggingface/peft#3761, #3449: a child of rsLoRA adapters is sqrt(r) too strong, and the parents' order decides."""
    a, b = le.load(peft_made("rslora")), le.load(peft_made("plain", 2))
    for operator, params in (("linear", {"weights": (0.5, 0.5)}), ("extrapolate", {}), ("layer_choice", {}), ("svd_subspace", {})):
        le.save(le.crossover([a, a], operator, seed=0, **params), tmp_path / operator)
        child = deltas(le.load(tmp_path / operator))
        assert all(gap(child[n], W) < 1e-6 for n, W in deltas(a).items())
    found = []
    for i, pair in enumerate(permutations((a, b))):
        le.save(le.crossover(pair, "linear", seed=0, rank=12), tmp_path / f"mixed{i}")
        runs(tmp_path / f"mixed{i}")
        found.append(deltas(le.load(tmp_path / f"mixed{i}")))
    x, y = deltas(a), deltas(b)
    for n in x:
        assert gap(found[0][n], (x[n] + y[n]) / 2) < 1e-6
        assert gap(found[1][n], found[0][n]) < 1e-6


def test_report_02_ranks_per_module_survive(peft_made, tmp_path):
    """huggingface/peft#3737, #3744, #2550: the child's configuration loses its rank pattern, or keeps a stale one."""
    parents = [le.load(peft_made("patterns", s)) for s in (1, 2)]
    cases = {"same": (parents, None), "uniform": (parents, 7), "other": ([parents[0], le.load(peft_made("plain", 2))], None)}
    for name, (group, rank) in cases.items():
        le.save(le.crossover(group, "linear", seed=0, rank=rank), tmp_path / name)
        runs(tmp_path / name)
    assert json.loads((tmp_path / "same" / CONFIG).read_text())["rank_pattern"]
    for name in ("uniform", "other"):
        assert json.loads((tmp_path / name / CONFIG).read_text())["rank_pattern"] == {}


def test_report_03_weights_act_on_the_product(peft_made):
    """huggingface/peft#1155, #643: weights reach one factor only, so that [1, 0] is not the first parent."""
    a, b = (le.load(peft_made("plain", s)) for s in (1, 2))
    first = le.crossover([a, b], "linear", seed=0, weights=(1, 0))
    assert all(same_factors(first.modules[n], a.modules[n]) for n in a.modules)
    x, y = deltas(a), deltas(b)
    exact, cut = (deltas(le.crossover([a, b], "linear", seed=0, weights=(0.5, 0.5), rank=r)) for r in (12, None))
    for n in x:
        assert gap(exact[n], (x[n] + y[n]) / 2) < 1e-6
        assert gap(cut[n], best((x[n] + y[n]) / 2, 6)) < 1e-5


@pytest.mark.parametrize("weights", [(1, -1), (-1, 1), (-1, -1), (-0.5, 2)])
def test_report_04_negative_weights(weights, peft_made, tmp_path):
    """huggingface/peft#2796, #2918: the sign of a weight is lost, and nobody notices because only factors are compared."""
    a, b = (le.load(peft_made("plain", s)) for s in (1, 2))
    le.save(le.crossover([a, b], "linear", seed=0, weights=weights, rank=12), tmp_path / "child")
    child = deltas(le.load(tmp_path / "child"))
    assert all(gap(child[n], weights[0] * W + weights[1] * deltas(b)[n]) < 1e-6 for n, W in deltas(a).items())
    runs(tmp_path / "child")


def test_report_05_a_sum_of_ranks_is_lossless(peft_made):
    """kohya-ss/sd-scripts#839: even at the sum of the ranks an SVD merge is not exact, since values are clamped."""
    a, b = le.load(peft_made("plain")), le.load(peft_made("small", 2))
    for rank in (9, 14):
        child = le.crossover([a, b], "linear", seed=0, weights=(1.0, 1.0), rank=rank)
        assert all(gap(W, deltas(a)[n] + deltas(b)[n]) < 1e-6 for n, W in deltas(child).items())
        assert child.measures.kept_energy == pytest.approx(1, abs=1e-9)
    big = {k: 100 * t for k, t in hand_tensors(3).items()}
    spiky = LoraFactors(*(big[f"{PREFIX}model.layers.0.self_attn.q_proj.lora_{x}.weight"] for x in "AB"), 1.0)
    assert gap(dense(le.operators.get("linear").on_factors([spiky, spiky], seed=0, weights=(1, 0.5))), 1.5 * dense(spiky)) < 1e-6


@pytest.mark.parametrize("operator", ["dare", "layer_choice", "svd_subspace", "extrapolate", "linear"])
def test_report_06_parents_of_unequal_rank(operator, peft_made, tmp_path):
    """laksjdjf/cgem156-ComfyUI#14, oobabooga/text-generation-webui#5631: 'size 64 must match 32'."""
    a, b = le.load(peft_made("plain")), le.load(peft_made("small", 2))
    for i, pair in enumerate(permutations((a, b))):
        child = le.crossover(pair, operator, seed=0)
        assert {f.rank for f in child.modules.values()} == {6}
        le.save(child, tmp_path / f"{i}")
        runs(tmp_path / f"{i}")


def test_report_07_memory_is_inputs_and_one_module():
    """bmaltais/kohya_ss#1486: merging three adapters runs out of memory, because the dense product is formed."""
    wide = 30_000  # a dense product would take 3.6 GB, and its SVD far more
    gen = torch.Generator().manual_seed(0)
    parents = [LoraFactors(torch.randn(4, wide, generator=gen), torch.randn(wide, 4, generator=gen), 1.0) for _ in range(3)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name in ("linear", "dare", "layer_choice"):
        le.operators.get(name).on_factors(parents, seed=0)
    le.operators.get("svd_perturb").on_factors(parents[:1], seed=0)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < 200e6


def test_report_08_arguments_are_checked_before_files_are_read(pair, tmp_path):
    """bmaltais/kohya_ss#2318: the merge of three dies on the type of its own arguments, after the work began."""
    parents = [le.load(f) for f in (*pair, pair[0])]
    for f in pair:
        (f / WEIGHTS).write_bytes(b"")  # any use of the weights would fail otherwise than by the message
    with pytest.raises(OperatorError, match="weights is"):
        plan(parents, "linear", seed=0, weights=(0.2, "x", 0.3))
    with pytest.raises(OperatorError, match="2 weights for 3 parents"):
        plan(parents, "linear", seed=0, weights=(1, 2))
    assert plan(parents, "linear", seed=0, weights=[1, 2, 0.5]).params["weights"] == (1.0, 2.0, 0.5)


def test_report_09_a_rank_above_the_width(peft_made, tmp_path):
    """kohya-ss/sd-scripts#325: rank 512 for a layer of width 320 is an index error after minutes."""
    a, b = (le.load(peft_made("rank_above_width", s)) for s in (1, 2))
    for name, child in (
        ("mutant", le.mutate(a, "svd_perturb", seed=0)),
        ("mean", le.crossover([a, b], "linear", seed=0)),
        ("asked", le.crossover([le.load(peft_made("plain")), le.load(peft_made("plain", 2))], "linear", seed=0, rank=512)),
    ):
        le.save(child, tmp_path / name)
        runs(tmp_path / name)
    assert {f.rank for f in child.modules.values()} == {32}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("operator", ["svd_subspace", "dare", "linear", "svd_perturb", "mask_components", "gaussian"])
def test_report_10_half_precision(dtype, operator, peft_made, tmp_path):
    """arcee-ai/mergekit#525: no singular value decomposition in bfloat16."""
    parents = [le.load(rewritten(peft_made("plain", s), tmp_path / f"{s}", tensor=lambda k, t: t.to(dtype))) for s in (1, 2)]
    group = parents[: le.operators.get(operator).max_parents or 2]
    child = breed(group, operator, seed=0)
    assert {t.dtype for f in child.modules.values() for t in (f.A, f.B)} == {dtype}
    wide = [le.Adapter({n: LoraFactors(f.A.float(), f.B.float(), f.scale) for n, f in p.modules.items()}, p.config) for p in group]
    exact = breed(wide, operator, seed=0)
    for n in child.modules:
        assert gap(dense(child.modules[n]), dense(exact.modules[n])) < (0.02 if dtype == torch.bfloat16 else 0.004)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_report_11_a_diverged_adapter(value, peft_made, tmp_path):
    """huggingface/peft#2368: NaN is found late, in a long trace."""
    key = f"{PREFIX}model.layers.0.self_attn.q_proj.lora_B.weight"
    folder = rewritten(peft_made("plain"), tmp_path / "bad", tensor=lambda k, t: t.fill_(value) if k == key else t)
    with pytest.raises(AdapterError, match=r"bad.*model\.layers\.0\.self_attn\.q_proj.*factor B.*diverged"):
        breed_into(plan([le.load(folder)], "svd_perturb", seed=0), tmp_path / "child")
    assert [p.name for p in tmp_path.iterdir()] == ["bad"]


def test_report_12_empty_tensors_of_zero_3(peft_made, tmp_path):
    """huggingface/accelerate#3508, peft#2500, peft#2892, trl#4416, DeepSpeed#7900: tensors of size 0 are saved."""
    folder = rewritten(peft_made("plain"), tmp_path / "zero3", tensor=lambda k, t: torch.empty(0) if "lora_A" in k else t)
    with pytest.raises(AdapterError, match=r"zero3.*lora_A.*empty.*ZeRO-3"):
        le.load(folder)


@pytest.mark.parametrize("name", ["default", "lora", "lora_A", "my_adapter"])
def test_report_13_an_adapters_name_in_the_keys(name, peft_made, tmp_path):
    """huggingface/peft#2699: with a name left in the keys everything is missing, and the model acts like its base."""
    folder = rewritten(peft_made("plain"), tmp_path / "named", key=lambda k: k.replace(".weight", f".{name}.weight"))
    plain, named = le.load(peft_made("plain")), le.load(folder)
    assert all(same_factors(named.modules[n], plain.modules[n]) for n in plain.modules)
    le.save(le.crossover([named], "copy_parent", seed=0), tmp_path / "child")
    assert torch.equal(peft_outputs(tmp_path / "child", "llama"), peft_outputs(peft_made("plain"), "llama"))


@pytest.mark.parametrize("name", ["saved_head", "seqcls"])
def test_report_14_whole_modules_beside_the_deltas(name, peft_made, tmp_path):
    """ggml-org/llama.cpp#11554, vllm-project/vllm#9280: adapters with heads or embeddings; here they travel, by a rule."""
    base, parents = VARIANTS[name][0], [le.load(peft_made(name, s)) for s in (1, 2)]
    saved = [k for k, e in parents[0].extras.items() if e.kind == "full_weight"]
    assert saved
    le.save(le.crossover(parents, "linear", seed=0), tmp_path / "child")
    stored = load_file(tmp_path / "child" / WEIGHTS)
    for key in saved:
        x, y = (p.extras[key].tensor for p in parents)
        assert torch.allclose(stored[key], (x + y) / 2, atol=1e-7)
    runs(tmp_path / "child", base)
    todo = plan(parents, "linear", seed=0)
    assert set(saved) <= set(todo.extras)


def test_report_15_both_patterns_at_once(peft_made):
    """huggingface/peft#2194, #2195: with a rank pattern and an alpha pattern the wrong entry is taken."""
    adapter, model = le.load(peft_made("patterns")), load_peft(peft_made("patterns"), "llama")
    for name, f in adapter.modules.items():
        layer = model.base_model.model.get_submodule(name)
        assert f.scale == pytest.approx(layer.scaling["default"], rel=1e-12)
        assert f.rank == layer.r["default"]
    scales = {name: f.scale for name, f in adapter.modules.items()}
    assert scales["model.layers.0.self_attn.q_proj"] == 5 / 2
    assert scales["model.layers.1.self_attn.q_proj"] == 5 / 6
    assert scales["model.layers.1.self_attn.v_proj"] == pytest.approx(40 / 9)


def test_report_16_the_childs_rank_is_the_parents(peft_made):
    """vllm-project/vllm#2847, unslothai/unsloth#2097: a merged adapter's rank is above what the server allows."""
    parents = [le.load(peft_made("plain", s)) for s in (1, 2)]
    for operator in ("dare", "linear", "svd_subspace", "extrapolate", "layer_choice"):
        child = le.crossover(parents, operator, seed=0)
        assert {f.rank for f in child.modules.values()} == {child.config["r"]} == {6}
    child = le.crossover(parents, "linear", seed=0, rank=2)
    assert {f.rank for f in child.modules.values()} == {child.config["r"]} == {2}
    assert child.measures.kept_energy < 1


def test_report_17_dora(peft_made, tmp_path):
    """vllm-project/vllm#6983, huggingface/peft#3761: magnitudes are dropped in silence."""
    parents = [le.load(peft_made("dora", s)) for s in (1, 2)]
    for operator in ("linear", "dare", "extrapolate", "svd_subspace"):
        with pytest.raises(AdapterError, match=r"dora.*DoRA.*layer_choice"):
            le.crossover(parents, operator, seed=0)
    for group, operator in ((parents, "layer_choice"), (parents[:1], "copy_parent"), (parents[:1], "svd_perturb")):
        le.save(breed(group, operator, seed=0), tmp_path / operator)
        assert sum("magnitude" in k for k in load_file(tmp_path / operator / WEIGHTS)) == 8
        runs(tmp_path / operator)


def test_report_18_seconds_and_not_hours():
    """OpenAccess-AI-Collective/axolotl#1427, huggingface/peft#817: a merge takes hours."""
    gen = torch.Generator().manual_seed(0)
    parents = [LoraFactors(torch.randn(32, 3584, generator=gen), torch.randn(3584, 32, generator=gen), 1.0) for _ in range(2)]
    start = time.perf_counter()
    le.operators.get("linear").on_factors(parents, seed=0)
    assert time.perf_counter() - start < 4  # the dense decomposition of one such layer takes eight


def test_report_19_a_seed_settles_everything(peft_made, tmp_path):
    """wkpark/sd-webui-model-mixer#139: random dropping cannot be repeated."""
    parents = [le.load(peft_made("plain", s)) for s in (1, 2)]
    for i, threads in enumerate((1, 3)):
        torch.manual_seed(i)
        np.random.seed(i)
        torch.rand(i + 1)
        before = torch.get_rng_state(), np.random.get_state()[2]
        breed_into(plan(parents, "dare", seed=7), tmp_path / f"{i}", threads=threads)
        assert torch.equal(torch.get_rng_state(), before[0])
        assert np.random.get_state()[2] == before[1]
    assert files_in(tmp_path / "0") == files_in(tmp_path / "1")
    breed_into(plan(parents, "dare", seed=8), tmp_path / "other")
    assert files_in(tmp_path / "other")[WEIGHTS] != files_in(tmp_path / "0")[WEIGHTS]


def test_report_20_metadata_and_recipe(peft_made, tmp_path):
    """hako-mikan/sd-webui-supermerger#157, #43, AUTOMATIC1111/stable-diffusion-webui#9312: a merge forgets where it is from."""
    notes = {"format": "pt", "ss_network_alpha": "16", "note": "keep me"}
    a = le.load(rewritten(peft_made("plain"), tmp_path / "a", metadata=notes))
    b = le.load(peft_made("plain", 2))
    le.save(le.crossover([a, b], "dare", seed=3, drop=0.5), tmp_path / "child")
    child = le.load(tmp_path / "child")
    assert child.metadata == {"ss_network_alpha": "16", "note": "keep me"}
    assert (child.lineage.operator, child.lineage.seed, child.lineage.params["drop"]) == ("dare", 3, 0.5)
    assert [len(p.sha256) for p in child.lineage.parents] == [64, 64]
    card = (tmp_path / "child" / "README.md").read_text()
    for text in ("dare", "seed 3", '"drop": 0.5', *(p.sha256 for p in child.lineage.parents)):
        assert text in card


def test_report_21_half_stays_half(peft_made, tmp_path):
    """kohya-ss/musubi-tuner#45, huggingface/peft#2421, #701: a merged file is twice as large as its parents."""
    folders = [rewritten(peft_made("plain", s), tmp_path / f"{s}", tensor=lambda k, t: t.bfloat16()) for s in (1, 2)]
    parents = [le.load(f) for f in folders]
    for operator in ("linear", "dare", "layer_choice", "svd_subspace"):
        child = le.crossover(parents, operator, seed=0)
        assert child.nbytes == parents[0].nbytes
        assert {t.dtype for f in child.modules.values() for t in (f.A, f.B)} == {torch.bfloat16}
    assert le.crossover(parents, "linear", seed=0, dtype="float32").nbytes == 2 * parents[0].nbytes


@pytest.mark.parametrize("kind", ["pissa", "olora"])
def test_report_22_adapters_that_rewrite_the_base(kind, peft_made):
    """huggingface/peft#2184, #2186, transformers#34468: PiSSA and OLoRA beside another adapter give garbage."""
    special, plain = le.load(peft_made(kind)), le.load(peft_made("plain"))
    for pair in ((special, plain), (plain, special), (special, special)):
        for operator in ("linear", "dare", "svd_subspace"):
            with pytest.raises(AdapterError, match=f"{kind}.*rewrites the base"):
                le.crossover(pair, operator, seed=0)
    with pytest.raises(AdapterError, match="rewrites the base"):
        le.mutate(special, "svd_perturb", seed=0)
    converted = le.Adapter(special.modules, {**special.config, "init_lora_weights": True}, name="converted")
    assert le.crossover([converted, plain], "linear", seed=0).modules


def test_report_23_two_folders_are_enough(pair, tmp_path):
    """huggingface/transformers#42113, hiyouga/LLaMA-Factory#2038, meta-pytorch/torchtune#1179: no ready way to combine adapters."""
    code = (
        "import sys, lora_evo as le\n"
        "le.save(le.crossover([le.load(x) for x in sys.argv[1:3]], 'linear', seed=0, weights=(0.7, 0.3)), sys.argv[3])\n"
        "print(sorted({'transformers', 'peft', 'accelerate', 'scipy', 'huggingface_hub'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, pair), str(tmp_path / "child")], check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]"  # no base model, and nothing that could load one
    child = deltas(le.load(tmp_path / "child"))
    x, y = (deltas(le.load(f)) for f in pair)
    assert all(gap(child[n], best(0.7 * x[n] + 0.3 * y[n], 4)) < 1e-5 for n in x)


def test_report_24_patterns_that_match_nothing(tmp_path):
    """huggingface/peft#3582, #3588: a pattern that names no module passes in silence."""
    config = hand_config(r=4, rank_pattern={"^q_proj": 2, "v_proj": 4}, alpha_pattern={"k_proj": 3})
    adapter = le.load(write_folder(tmp_path / "odd", hand_tensors(r=4), config))
    assert {f.rank for f in adapter.modules.values()} == {4}
    for pattern, noted in (("^q_proj", True), ("k_proj", True), ("v_proj", False)):
        assert any(repr(pattern) in w for w in adapter.warnings) == noted
    le.save(le.mutate(adapter, "svd_perturb", seed=0), tmp_path / "child")
    assert le.load(tmp_path / "child").warnings == ()
    runs(tmp_path / "child")


def test_report_25_other_key_names_are_not_skipped(peft_made, tmp_path):
    """larsupb/LoRA-Merger-ComfyUI#4, bmaltais/kohya_ss#2975: adapters with other key names have no effect."""
    a = le.load(peft_made("plain"))
    b = le.load(rewritten(peft_made("plain", 2), tmp_path / "bare", key=lambda k: k.removeprefix(PREFIX)))
    child = le.crossover([a, b], "linear", seed=0, rank=12)
    assert all(gap(W, (deltas(a)[n] + deltas(b)[n]) / 2) < 1e-6 for n, W in deltas(child).items())
    elsewhere = le.load(rewritten(peft_made("plain", 2), tmp_path / "vlm", key=lambda k: k.replace("layers", "vision.blocks")))
    with pytest.raises(AdapterError, match="no module in common"):
        le.crossover([a, elsewhere], "linear", seed=0)
    partly = le.load(peft_made("regex"))
    missing = plan([a, partly], "linear", seed=0).missing
    assert len(missing) == 8  # seven attention projections that the second lacks, one down_proj that the first lacks
    assert sorted({who for names in missing.values() for who in names}) == sorted({a.name, partly.name})


# ---------------------------------------------------------------- more of the same classes


def test_repeated_merging_equals_merging_at_once(pair, tmp_path):
    """huggingface/peft#1904, #1040: merging one after the other differs from merging all at once."""
    a, b = (le.load(f) for f in pair)
    c = le.load(hand_folder(tmp_path / "c", 3))
    once = le.crossover([a, b, c], "linear", seed=0, weights=(1, 1, 1), rank=12)
    two = le.crossover([a, b], "linear", seed=0, weights=(1, 1), rank=12)
    three = le.crossover([two, c], "linear", seed=0, weights=(1, 1), rank=12)
    assert all(gap(W, deltas(three)[n]) < 1e-6 for n, W in deltas(once).items())


def test_empty_patterns(tmp_path):
    """huggingface/peft#3238: an empty rank pattern."""
    folder = hand_folder(tmp_path / "a", rank_pattern={}, alpha_pattern={})
    le.save(le.mutate(le.load(folder), "svd_perturb", seed=0), tmp_path / "child")
    assert json.loads((tmp_path / "child" / CONFIG).read_text())["rank_pattern"] == {}


def test_a_bred_adapter_is_not_its_base(peft_made, tmp_path):
    """unslothai/unsloth#869, #2142, #2009: the merged model is the base."""
    le.save(le.crossover([le.load(peft_made("plain", s)) for s in (1, 2)], "dare", seed=0), tmp_path / "child")
    from adapters import base_model

    assert (peft_outputs(tmp_path / "child", "llama") - outputs(base_model("llama"), "llama")).abs().max() > 1e-2


def test_the_sum_of_one_module_is_the_sum_of_dense_matrices():
    """The yardstick of the others: products are compared, never factors."""
    gen = torch.Generator().manual_seed(0)
    factors = [LoraFactors(torch.randn(3, 8, generator=gen), torch.randn(9, 3, generator=gen), s) for s in (2.0, 0.5)]
    a, b = join(factors)
    B, A = (a + 2.0 * b).factors()
    assert gap((B @ A).numpy(), dense(factors[0]) + 2 * dense(factors[1])) < 1e-6
    assert not same_bits(B, factors[0].B)
