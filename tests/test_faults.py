"""Broken and foreign input: refused at once, in a sentence that names the file and the reason, and nothing is written."""

from __future__ import annotations

import contextlib
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from adapters import (
    CONFIG,
    PREFIX,
    WEIGHTS,
    files_in,
    hand_config,
    hand_folder,
    hand_tensors,
    memory_adapter,
    rewritten,
    same_factors,
    write_folder,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

import lora_evo as le
from lora_evo.adapter import Extra
from lora_evo.breeding import breed, breed_into, plan
from lora_evo.errors import AdapterError, LoraEvoError, OperatorError
from lora_evo.peft_format.config import DEFAULTS

Q0 = f"{PREFIX}model.layers.0.self_attn.q_proj.lora_"
V1 = f"{PREFIX}model.layers.1.self_attn.v_proj.lora_"


def raw_file(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def refuses(folder: Path, *words: str) -> None:
    """`load` raises AdapterError whose message has all the words, the folder's path among them."""
    with pytest.raises(AdapterError) as caught:
        le.load(folder)
    for word in (str(folder.name), *words):
        assert word in str(caught.value), (word, str(caught.value))


# ---------------------------------------------------------------- values


@pytest.mark.parametrize(("value", "word"), [(float("nan"), "NaN"), (float("inf"), "Inf"), (float("-inf"), "Inf")])
@pytest.mark.parametrize("key", [Q0 + "A.weight", V1 + "B.weight"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_values_that_are_not_finite(value, word, key, dtype, tmp_path):
    tensors = hand_tensors(1, dtype=dtype)
    tensors[key].view(-1)[-1] = value
    bad = le.load(write_folder(tmp_path / "bad", tensors, hand_config()))
    good = le.load(hand_folder(tmp_path / "good", 2, dtype=dtype))
    module = key.removeprefix(PREFIX).split(".lora_")[0]
    letter = key.split("lora_")[1][0]
    before = sorted(p.name for p in tmp_path.iterdir())
    calls: list[tuple[list, str, dict]] = [
        ([bad], "svd_perturb", {}),
        ([bad], "copy_parent", {}),
        ([bad], "gaussian", {"strength": 0}),
        ([good, bad], "linear", {"weights": (1, 0)}),
        ([bad, good], "layer_choice", {}),
        ([good, bad], "dare", {}),
    ]
    for parents, operator, params in calls:
        with pytest.raises(AdapterError) as caught:
            breed_into(plan(parents, operator, seed=0, **params), tmp_path / "child")
        for text in ("bad", WEIGHTS, module, word, f"factor {letter}"):
            assert text in str(caught.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == before
    with pytest.raises(AdapterError, match=module):
        le.inspect(bad)


def test_saved_values_that_are_not_finite(tmp_path):
    head = {f"{PREFIX}lm_head.weight": torch.full((4, 4), float("nan"))}
    bad = le.load(write_folder(tmp_path / "bad", {**hand_tensors(), **head}, hand_config(modules_to_save=["lm_head"])))
    for operator in ("svd_perturb", "copy_parent", "linear"):
        with pytest.raises(AdapterError, match=r"bad.*lm_head\.weight holds NaN"):
            breed_into(plan([bad], operator, seed=0), tmp_path / "child")
    assert not (tmp_path / "child").exists()


def test_large_but_finite_values_are_bred(tmp_path):
    tensors = {k: t * 1e25 if "B." in k else t * 1e-25 for k, t in hand_tensors(dtype=torch.float32).items()}
    parent = le.load(write_folder(tmp_path / "large", tensors, hand_config()))
    child = le.mutate(parent, "gaussian", seed=0)
    assert child.measures.relative_change == pytest.approx(0.15, rel=0.1)


# ---------------------------------------------------------------- the weights file


def test_a_truncated_file(tmp_path):
    folder = hand_folder(tmp_path / "cut")
    whole = (folder / WEIGHTS).read_bytes()
    for size in (0, 4, 8, 100, len(whole) // 2, len(whole) - 1):
        (folder / WEIGHTS).write_bytes(whole[:size])
        refuses(folder, WEIGHTS)


def good_header() -> dict[str, dict]:
    """Two tensors of one module: A [2, 4] and B [4, 2] in float32."""
    return {
        Q0 + "A.weight": {"dtype": "F32", "shape": [2, 4], "data_offsets": [0, 32]},
        Q0 + "B.weight": {"dtype": "F32", "shape": [4, 2], "data_offsets": [32, 64]},
    }


LIES: dict[str, Callable[[dict], Any]] = {
    "shape": lambda h: h[Q0 + "A.weight"].update(shape=[2, 5]),
    "negative shape": lambda h: h[Q0 + "A.weight"].update(shape=[-2, -4]),
    "huge shape": lambda h: h[Q0 + "A.weight"].update(shape=[2**62, 4]),
    "offsets past the end": lambda h: h[Q0 + "B.weight"].update(data_offsets=[32, 96]),
    "offsets backwards": lambda h: h[Q0 + "B.weight"].update(data_offsets=[64, 32]),
    "overlap": lambda h: h[Q0 + "B.weight"].update(data_offsets=[16, 48]),
    "hole": lambda h: h[Q0 + "A.weight"].update(data_offsets=[0, 16], shape=[1, 4]),
    "dtype": lambda h: h[Q0 + "A.weight"].update(dtype="F16"),
    "unknown dtype": lambda h: h[Q0 + "A.weight"].update(dtype="F99"),
    "no shape": lambda h: h[Q0 + "A.weight"].pop("shape"),
    "metadata": lambda h: h.update(__metadata__={"x": 5}),
}


@pytest.mark.parametrize("lie", sorted(LIES))
def test_a_header_that_lies(lie, tmp_path):
    header = good_header()
    folder = hand_folder(tmp_path / "liar", r=2)
    (folder / WEIGHTS).write_bytes(raw_file(header, bytes(64)))
    assert len(le.load(folder).modules) == 1
    LIES[lie](header)
    (folder / WEIGHTS).write_bytes(raw_file(header, bytes(64)))
    refuses(folder, WEIGHTS)


@pytest.mark.parametrize(
    "content", [b"not a file of tensors", raw_file(b"{"), raw_file(b"[]"), (2**60).to_bytes(8, "little"), raw_file({})]
)
def test_no_safetensors_at_all(content, tmp_path):
    folder = hand_folder(tmp_path / "odd")
    (folder / WEIGHTS).write_bytes(content)
    refuses(folder, WEIGHTS)


@pytest.mark.parametrize("half", ["A", "B"])
def test_a_missing_half(half, tmp_path):
    tensors = hand_tensors()
    del tensors[f"{Q0}{half}.weight"]
    refuses(
        write_folder(tmp_path / "half", tensors, hand_config()), WEIGHTS, "model.layers.0.self_attn.q_proj", "needs both A and B"
    )


@pytest.mark.parametrize("spelling", [Q0 + "A.default.weight", (Q0 + "A.weight").removeprefix(PREFIX), f"_orig_mod.{Q0}A.weight"])
def test_one_module_under_two_spellings(spelling, tmp_path):
    tensors = hand_tensors()
    tensors[spelling] = tensors[Q0 + "A.weight"].clone()
    refuses(write_folder(tmp_path / "twice", tensors, hand_config()), WEIGHTS, "twice", "layers.0.self_attn.q_proj")


def test_halves_that_do_not_fit(tmp_path):
    tensors = hand_tensors(r=4)
    tensors[Q0 + "A.weight"] = torch.ones(3, 32)
    refuses(
        write_folder(tmp_path / "odd", tensors, hand_config()), WEIGHTS, "model.layers.0.self_attn.q_proj", "[3, 32]", "[32, 4]"
    )
    tensors[Q0 + "A.weight"] = torch.ones(32)
    refuses(write_folder(tmp_path / "flat", tensors, hand_config()), WEIGHTS, "model.layers.0.self_attn.q_proj")


def test_an_absurd_rank_in_the_tensors(tmp_path):
    tensors = {Q0 + "A.weight": torch.zeros(4097, 2), Q0 + "B.weight": torch.zeros(2, 4097)}
    refuses(write_folder(tmp_path / "wide", tensors, hand_config()), WEIGHTS, "q_proj", "4097", "absurd")


def test_empty_tensors(tmp_path):
    tensors = {k: torch.zeros(0) if "lora_A" in k else t for k, t in hand_tensors().items()}
    refuses(write_folder(tmp_path / "zero3", tensors, hand_config()), WEIGHTS, "lora_A", "empty", "ZeRO-3")
    refuses(write_folder(tmp_path / "zero4", {**hand_tensors(), Q0 + "A.weight": torch.zeros(0, 32)}, hand_config()), "empty")


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8, torch.bool])
def test_whole_numbers_are_no_factors(dtype, tmp_path):
    tensors = {k: t.to(dtype) for k, t in hand_tensors().items()}
    refuses(write_folder(tmp_path / "ints", tensors, hand_config()), WEIGHTS, str(dtype))


def test_a_file_without_lora(tmp_path):
    refuses(write_folder(tmp_path / "head", {f"{PREFIX}lm_head.weight": torch.ones(2, 2)}, hand_config()), WEIGHTS, "no lora_A")


# ---------------------------------------------------------------- shards


def sharded(folder: Path, weight_map: Any) -> Path:
    folder.mkdir()
    tensors = hand_tensors()
    save_file(tensors, folder / "part-1.safetensors")
    (folder / CONFIG).write_text(json.dumps(hand_config()))
    (folder / f"{WEIGHTS}.index.json").write_text(weight_map if isinstance(weight_map, str) else json.dumps(weight_map))
    return folder


@pytest.mark.parametrize("name", ["../good/" + WEIGHTS, "part-2.safetensors", "/etc/passwd", "..", "", "sub/part-1.safetensors"])
def test_an_index_that_points_elsewhere(name, tmp_path):
    hand_folder(tmp_path / "good")
    refuses(sharded(tmp_path / "bad", {"weight_map": {Q0 + "A.weight": name}}), "index")


@pytest.mark.parametrize(
    "index",
    ["{", "[]", "5", '{"weight_map": {}}', '{"weight_map": null}', '{"weight_map": {"a": 5}}', '{"weight_map": {"a": null}}', "{}"],
)
def test_an_index_that_is_none(index, tmp_path):
    refuses(sharded(tmp_path / "bad", index), "index")


def test_an_absolute_path_in_the_index_is_not_followed(tmp_path):
    hand_folder(tmp_path / "good")
    refuses(sharded(tmp_path / "bad", {"weight_map": {"x": str(tmp_path / "good" / WEIGHTS)}}), "not in the folder")


# ---------------------------------------------------------------- the configuration


@pytest.mark.parametrize("text", ["", "{", "[]", "5", "null", '"text"', "\x00", '{"peft_type": "LORA"'])
def test_a_config_that_is_no_object(text, tmp_path):
    folder = hand_folder(tmp_path / "odd")
    (folder / CONFIG).write_text(text)
    refuses(folder, CONFIG)


def test_a_config_that_is_no_text(tmp_path):
    folder = hand_folder(tmp_path / "odd")
    (folder / CONFIG).write_bytes(b"\xff\xfe{\x00}\x00")
    refuses(folder, CONFIG, "not JSON")


@pytest.mark.parametrize("rank", [0, -1, "8", 10**9, 4097, 8.5, True, [8]])
@pytest.mark.parametrize("place", ["r", "rank_pattern"])
def test_absurd_ranks_in_the_config(rank, place, tmp_path):
    value = {"q_proj": rank} if place == "rank_pattern" else rank
    refuses(write_folder(tmp_path / "odd", hand_tensors(), hand_config(**{place: value})), CONFIG, "rank", repr(rank))


@pytest.mark.parametrize("alpha", [0, 0.0, float("nan"), float("inf"), "16", True, [1]])
@pytest.mark.parametrize("place", ["lora_alpha", "alpha_pattern"])
def test_absurd_alphas(alpha, place, tmp_path):
    value = {"q_proj": alpha} if place == "alpha_pattern" else alpha
    refuses(write_folder(tmp_path / "odd", hand_tensors(), {**hand_config(), place: value}), CONFIG, "lora_alpha")


@pytest.mark.parametrize("pattern", ["(", "[a", "*q_proj", "(?i)q_proj", "q_proj\\"])
@pytest.mark.parametrize("place", ["rank_pattern", "alpha_pattern"])
def test_a_pattern_that_is_no_regex(pattern, place, tmp_path):
    folder = write_folder(tmp_path / "odd", hand_tensors(), hand_config(**{place: {pattern: 4}}))
    refuses(folder, CONFIG, place, "regular expression")


@pytest.mark.parametrize("value", [[], "q_proj", 5, [["q_proj", 4]]])
def test_patterns_that_are_no_object(value, tmp_path):
    refuses(write_folder(tmp_path / "odd", hand_tensors(), hand_config(rank_pattern=value)), CONFIG, "rank_pattern")


@pytest.mark.parametrize("peft_type", ["LOHA", "LOKR", "ADALORA", "IA3", "OFT", "lora", 5, ""])
def test_other_kinds_of_adapter(peft_type, tmp_path):
    refuses(
        write_folder(tmp_path / "other", hand_tensors(), hand_config(peft_type=peft_type)), CONFIG, "peft_type", repr(peft_type)
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("target_parameters", 5),
        ("target_parameters", [None]),
        ("modules_to_save", "lm_head"),
        ("modules_to_save", [["lm_head"]]),
        ("use_bdlora", True),
        ("use_bdlora", {"nblocks": "2"}),
        ("use_bdlora", {"nblocks": 0}),
    ],
)
def test_fields_of_another_type(field, value, tmp_path):
    refuses(write_folder(tmp_path / "odd", hand_tensors(), hand_config(**{field: value})), CONFIG, field)


odd_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 9), st.floats(-2, 9), st.sampled_from(["", "x", "q_proj", "("])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.sampled_from(["q_proj", "nblocks", "("]), inner, max_size=2)
    ),
    max_leaves=4,
)


@given(field=st.sampled_from(sorted(DEFAULTS)), value=odd_values)
@settings(max_examples=60)
def test_any_value_of_any_field_is_read_or_refused(field, value, tmp_path_factory):
    root = tmp_path_factory.mktemp("fuzz")
    folder = write_folder(root / "odd", hand_tensors(), {**hand_config(), field: value})
    with contextlib.suppress(LoraEvoError):
        child = breed([le.load(folder)], "mask_components", seed=0)
        le.save(child, root / "child")
    if (root / "child").exists():
        again = le.load(root / "child")
        assert all(same_factors(again.modules[n], child.modules[n]) for n in child.modules)


LEAVES = ["lora_A", "lora_B", "lora_embedding_A", "lora_magnitude_vector", "lora_diag", "lora_down", "trainable_tokens_delta"]
PATHS = ["base_model", "model", "layers", "0", "q_proj", "base_layer", "token_adapter", "modules_to_save", "_orig_mod"]
key_parts = st.sampled_from([*LEAVES, *PATHS, "default", "weight", "bias"])


@given(
    keys=st.lists(st.lists(key_parts, min_size=1, max_size=6).map(".".join), max_size=3, unique=True),
    shape=st.sampled_from([(2, 4), (4, 2)]),
)
@settings(max_examples=100)
def test_any_key_is_read_or_refused(keys, shape, tmp_path_factory):
    root = tmp_path_factory.mktemp("fuzz")
    prefixed = {PREFIX + k if i else k: torch.ones(shape) * (i + 1) for i, k in enumerate(keys)}
    folder = write_folder(root / "odd", {**hand_tensors(), **prefixed}, hand_config())
    with contextlib.suppress(LoraEvoError):
        adapter = le.load(folder)
        le.save(breed([adapter], "copy_parent", seed=0), root / "child")
    if (root / "child").exists():
        again = le.load(root / "child")
        assert again.modules.keys() == adapter.modules.keys()
        assert again.extras.keys() == adapter.extras.keys()
        stored = 2 * len(adapter.modules) + len(adapter.extras)
        assert stored == len({**hand_tensors(), **prefixed})  # nothing is passed over


# ---------------------------------------------------------------- foreign forms


def test_no_config(tmp_path):
    folder = write_folder(tmp_path / "bare", hand_tensors(), None)
    refuses(folder, CONFIG, WEIGHTS)


def test_no_weights(tmp_path):
    folder = hand_folder(tmp_path / "bare")
    (folder / WEIGHTS).unlink()
    refuses(folder, WEIGHTS)


class Trap:
    """A pickle that makes a file when it is opened."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple:
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("name", ["adapter_model.bin", "adapter_model.pt"])
def test_a_pickle_is_not_opened(name, tmp_path):
    folder = hand_folder(tmp_path / "old")
    (folder / WEIGHTS).unlink()
    (folder / name).write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    refuses(folder, name, "pickle", "save_pretrained")
    assert not (tmp_path / "sprung").exists()


def test_kohya(tmp_path):
    stem = "lora_unet_down_blocks_0_attentions_0_proj_in"
    tensors = {
        f"{stem}.lora_down.weight": torch.ones(4, 8),
        f"{stem}.lora_up.weight": torch.ones(8, 4),
        f"{stem}.alpha": torch.tensor(4.0),
    }
    bare = tmp_path / "kohya"
    bare.mkdir()
    save_file(tensors, bare / "style.safetensors")
    refuses(bare, CONFIG, "style.safetensors", "kohya")
    refuses(write_folder(tmp_path / "dressed", tensors, hand_config()), WEIGHTS, "kohya", "convert")


def test_mlx(tmp_path):
    folder = tmp_path / "mlx"
    folder.mkdir()
    (folder / CONFIG).write_text(json.dumps({"fine_tune_type": "lora", "lora_parameters": {"rank": 8, "scale": 2.0}}))
    save_file({"model.layers.0.q_proj.lora_a": torch.ones(4, 2)}, folder / "adapters.safetensors")
    refuses(folder, CONFIG, "MLX")
    keys = {"model.layers.0.q_proj.lora_a": torch.ones(4, 2), "model.layers.0.q_proj.lora_b": torch.ones(2, 4)}
    refuses(write_folder(tmp_path / "keys", keys, hand_config()), WEIGHTS, "MLX")


@pytest.mark.parametrize("leaf", ["hada_w1_a", "lokr_w1", "lora_E"])
def test_keys_of_other_methods(leaf, tmp_path):
    tensors = {**hand_tensors(), f"{PREFIX}model.layers.0.self_attn.q_proj.{leaf}": torch.ones(2, 2)}
    refuses(write_folder(tmp_path / "other", tensors, hand_config()), WEIGHTS, leaf)


def test_keys_that_begin_in_no_known_way(tmp_path):
    tensors = {k.replace(PREFIX, "unet."): t for k, t in hand_tensors().items()}
    refuses(write_folder(tmp_path / "unet", tensors, hand_config()), WEIGHTS, "unet.model.layers.0", "base_model.model.")


def test_named_adapters(tmp_path):
    for name in ("alice", "bob"):
        hand_folder(tmp_path / "team" / name)
    refuses(tmp_path / "team", "alice, bob", str(tmp_path / "team" / "alice"))
    assert le.load(tmp_path / "team" / "bob").name == "bob"


def test_no_such_folder(tmp_path, monkeypatch):
    for source in (tmp_path / "nothing", "./nothing", "nothing", "a/b/c"):
        with pytest.raises(AdapterError, match="no such folder"):
            le.load(source)
    with pytest.raises(AdapterError, match=r"someone/else.*hub"):
        le.load("someone/else")
    for odd in ("my runs/last one", "a--b/c..d", "x/" + "y" * 200):
        with pytest.raises(AdapterError, match="no such folder"):
            le.load(odd)
    folder = hand_folder(tmp_path / "good")
    with pytest.raises(AdapterError, match="a file"):
        le.load(folder / WEIGHTS)
    (tmp_path / "empty").mkdir()
    refuses(tmp_path / "empty", CONFIG, "nothing")


def test_a_lineage_that_cannot_be_read(tmp_path):
    for text in ("{", "[]", "5", '{"operator": "x"}', '{"parents": [{"nobody": 1}]}'):
        folder = write_folder(tmp_path / f"odd{len(text)}", hand_tensors(), hand_config(), {"format": "pt", "lora_evo": text})
        refuses(folder, WEIGHTS, "lineage")


# ---------------------------------------------------------------- parents that do not fit


def no_child(parents: list, operator: str, tmp_path: Path, *words: str, kind: type = AdapterError, **call: Any) -> None:
    before = sorted(p.name for p in tmp_path.iterdir())
    ways: list[Callable[[], Any]] = [
        lambda: breed(parents, operator, seed=0, **call),
        lambda: breed_into(plan(parents, operator, seed=0, **call), tmp_path / "child"),
    ]
    for way in ways:
        with pytest.raises(kind) as caught:
            way()
        assert isinstance(caught.value, LoraEvoError)
        for word in words:
            assert word in str(caught.value), (word, str(caught.value))
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def loaded(tmp_path: Path, name: str, seed: int = 0, **config: Any) -> le.Adapter:
    return le.load(hand_folder(tmp_path / name, seed, **config))


@pytest.mark.parametrize("operator", ["linear", "dare", "layer_choice", "svd_subspace"])
def test_different_bases(operator, tmp_path):
    a, b = loaded(tmp_path, "a"), loaded(tmp_path, "b", 1, base_model_name_or_path="someone/else-7b")
    no_child([a, b], operator, tmp_path, "a", "tiny/llama", "someone/else-7b", "allow_base_mismatch")
    breed([a, b], operator, seed=0, allow_base_mismatch=True)


def test_different_bases_behind_a_parent_that_names_none(tmp_path):
    parents = [loaded(tmp_path, str(i), i, base_model_name_or_path=name) for i, name in enumerate((None, "x/one", "x/two"))]
    no_child(parents, "linear", tmp_path, "x/one", "x/two")
    assert breed(parents[:2], "linear", seed=0).config["base_model_name_or_path"] == "x/one"


def test_different_shapes(tmp_path):
    wide = {k: torch.cat([t, t], 1) if "q_proj.lora_A" in k else t for k, t in hand_tensors(1).items()}
    a, b = loaded(tmp_path, "a"), le.load(write_folder(tmp_path / "b", wide, hand_config()))
    for operator in ("linear", "layer_choice", "dare"):
        no_child([a, b], operator, tmp_path, "model.layers.0.self_attn.q_proj", "(32, 32)", "(32, 64)", "a", "b")


def test_different_shapes_in_later_parents(tmp_path):
    wide = {k: torch.cat([t, t], 1) if "v_proj.lora_A" in k else t for k, t in hand_tensors(1).items()}
    first = {k: t for k, t in hand_tensors(0).items() if "q_proj" in k}
    parents = [
        le.load(write_folder(tmp_path / "q", first, hand_config())),
        loaded(tmp_path, "narrow"),
        le.load(write_folder(tmp_path / "wide", wide, hand_config())),
    ]
    no_child(parents, "linear", tmp_path, "v_proj", "shapes differ")


def test_no_common_module(tmp_path):
    q = {k: t for k, t in hand_tensors(0).items() if "q_proj" in k}
    v = {k: t for k, t in hand_tensors(1).items() if "v_proj" in k}
    a, b = (le.load(write_folder(tmp_path / n, t, hand_config())) for n, t in (("a", q), ("b", v)))
    no_child([a, b], "linear", tmp_path, "no module in common", "q_proj", "v_proj")
    with pytest.raises(AdapterError, match="no module in common"):
        le.compare(a, b)


def test_strict(tmp_path):
    q = {k: t for k, t in hand_tensors(0).items() if "q_proj" in k}
    a, b = loaded(tmp_path, "a"), le.load(write_folder(tmp_path / "b", q, hand_config()))
    no_child([a, b], "linear", tmp_path, "strict", "2 modules", "v_proj", strict=True)
    todo = plan([a, b], "linear", seed=0)
    assert dict(todo.missing) == {f"model.layers.{i}.self_attn.v_proj": ("b",) for i in range(2)}
    breed([a, a], "linear", seed=0, strict=True)


@pytest.mark.parametrize(
    ("field", "one", "two"),
    [
        ("fan_in_fan_out", False, True),
        ("alora_invocation_tokens", [3, 4], [4, 3]),
        ("alora_invocation_tokens", None, [4]),
        ("layer_replication", [[0, 1], [1, 2]], [[1, 2], [0, 1]]),
        ("use_dora", False, True),
        ("trainable_token_indices", [1, 5], [1, 6]),
        ("trainable_token_indices", [1, 5], [5, 1]),
    ],
)
def test_parents_of_different_kinds(field, one, two, tmp_path):
    a, b = loaded(tmp_path, "a", 0, **{field: one}), loaded(tmp_path, "b", 1, **{field: two})
    for operator in ("linear", "layer_choice"):
        no_child([a, b], operator, tmp_path, field, "a", "b")


def test_kinds_are_compared_among_all_parents(tmp_path):
    parents = [loaded(tmp_path, str(i), i, trainable_token_indices=rows) for i, rows in enumerate((None, [1, 5], [1, 6]))]
    no_child(parents, "linear", tmp_path, "trainable_token_indices")


def test_the_order_of_a_set_is_no_difference(tmp_path):
    a = loaded(tmp_path, "a", target_parameters=["x.one", "x.two"])
    b = loaded(tmp_path, "b", target_parameters=["x.two", "x.one"])
    breed([a, b], "linear", seed=0)


def test_saved_values_of_different_shapes(tmp_path):
    parents = []
    for i, rows in enumerate((64, 72)):
        head = {f"{PREFIX}lm_head.weight": torch.ones(rows, 32)}
        parents.append(
            le.load(write_folder(tmp_path / str(i), {**hand_tensors(i), **head}, hand_config(modules_to_save=["lm_head"])))
        )
    no_child(parents, "linear", tmp_path, "lm_head.weight", "[64, 32]", "[72, 32]")


# ---------------------------------------------------------------- variants that an operator has no answer for


@pytest.mark.parametrize("init", ["pissa", "pissa_niter_4", "PiSSA", "olora", "corda", "loftq", "lora_ga"])
@pytest.mark.parametrize(
    "operator", ["linear", "dare", "extrapolate", "svd_subspace", "svd_perturb", "gaussian", "mask_components"]
)
def test_adapters_that_rewrite_the_base(init, operator, tmp_path):
    a, b = (loaded(tmp_path, n, i, init_lora_weights=init) for i, n in enumerate("ab"))
    group = [a] if get_kind(operator) == "mutation" else [a, b]
    no_child(group, operator, tmp_path, "a", init, "rewrites the base", "Convert", "copy_parent", "layer_choice")
    for exact in ("copy_parent", "layer_choice"):
        child = breed([a, b], exact, seed=0)
        assert child.config["init_lora_weights"] == init


def get_kind(operator: str) -> str:
    return le.all_operators()[operator].kind


def test_pissa_beside_plain(tmp_path):
    a, b = loaded(tmp_path, "a", 0, init_lora_weights="pissa"), loaded(tmp_path, "b", 1, init_lora_weights=True)
    for pair in ([a, b], [b, a]):
        no_child(pair, "layer_choice", tmp_path, "init_lora_weights", "'pissa'", "rewrites the base")


@pytest.mark.parametrize("init", [True, False, "gaussian", "orthogonal", "eva", None])
def test_harmless_initialisations(init, tmp_path):
    breed([loaded(tmp_path, "a", 0, init_lora_weights=init), loaded(tmp_path, "b", 1)], "linear", seed=0)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kasa_config": {"x": 1}}, ("KaSA", "copy_parent", "layer_choice")),
        ({"use_qalora": True}, ("QA-LoRA", "copy_parent", "layer_choice")),
    ],
)
def test_other_variants(fields, words, tmp_path):
    a, b = loaded(tmp_path, "a", 0, **fields), loaded(tmp_path, "b", 1, **fields)
    for operator in ("linear", "svd_perturb"):
        no_child([a] if operator == "svd_perturb" else [a, b], operator, tmp_path, "a", *words)
    breed([a, b], "layer_choice", seed=0)


def test_dora(tmp_path):
    parents = []
    for i, name in enumerate("ab"):
        sizes = {
            k.replace("lora_B.weight", "lora_magnitude_vector"): torch.ones(len(t)) + i
            for k, t in hand_tensors().items()
            if "_B" in k
        }
        folder = write_folder(tmp_path / name, {**hand_tensors(i), **sizes}, hand_config(use_dora=True))
        parents.append(le.load(folder))
    for operator in ("linear", "dare", "extrapolate", "svd_subspace"):
        no_child(parents, operator, tmp_path, "a", "DoRA", operator, "layer_choice", "copy_parent", "mutations")
    for operator in ("svd_perturb", "gaussian", "layer_noise", "mask_components", "copy_parent"):
        child = breed(parents[:1], operator, seed=0)
        assert len(child.extras) == 4
        assert all(torch.equal(e.tensor, parents[0].extras[k].tensor) for k, e in child.extras.items())


# ---------------------------------------------------------------- calls that are wrong


@pytest.mark.parametrize(
    ("operator", "n", "params", "words"),
    [
        ("svd_perturb", 1, {"strenght": 0.1}, ("svd_perturb", "'strenght'", "strength", "space")),
        ("copy_parent", 1, {"x": 1}, ("no parameter 'x'",)),
        ("svd_perturb", 1, {"strength": 1.5}, ("strength", "1.5", "at most 1")),
        ("svd_perturb", 1, {"strength": -0.1}, ("strength", "-0.1", "at least 0")),
        ("svd_perturb", 1, {"strength": "much"}, ("strength", "'much'", "float")),
        ("svd_perturb", 1, {"strength": None}, ("strength",)),
        ("svd_perturb", 1, {"space": "outer"}, ("space", "'outer'", "delta, factor")),
        ("layer_noise", 1, {"granularity": "row"}, ("granularity", "module, layer")),
        ("mask_components", 1, {"rescale": 1}, ("rescale", "bool")),
        ("dare", 2, {"drop": 1.0}, ("drop", "at most 0.99")),
        ("dare", 2, {"weights": (1, 2, 3)}, ("3 weights for 2 parents",)),
        ("dare", 3, {"weights": (1, 2)}, ("2 weights for 3 parents",)),
        ("linear", 2, {"weights": ()}, ("0 weights for 2 parents",)),
        ("linear", 2, {"weights": (1, float("nan"))}, ("weights", "finite")),
        ("layer_choice", 2, {"weights": (1, -1)}, ("weights", "at least 0")),
        ("layer_choice", 2, {"weights": (0, 0)}, ("above 0",)),
        ("extrapolate", 3, {}, ("3 parents needs weights",)),
        ("extrapolate", 3, {"eta": 1.0}, ("3 parents needs weights",)),
        ("svd_subspace", 2, {"k": 0}, ("k", "at least 1")),
        ("svd_subspace", 2, {"k": 1.5}, ("k", "int")),
        ("svd_subspace", 2, {"k": 3}, ("k is 3", "below the child's rank")),
        ("svd_subspace", 3, {}, ("svd_subspace takes 2 parent(s), 3 given",)),
        ("svd_perturb", 2, {}, ("svd_perturb takes 1 parent(s), 2 given",)),
        ("dare", 1, {}, ("dare takes 2 or more parent(s), 1 given",)),
        ("linear", 0, {}, ("linear takes 1 or more parent(s), 0 given",)),
        ("nothing", 1, {}, ("no operator 'nothing'", "svd_perturb", "linear")),
        ("svd_perturb", 1, {"rank": 0}, ("rank is 0",)),
        ("svd_perturb", 1, {"rank": -3}, ("rank is -3",)),
        ("svd_perturb", 1, {"dtype": "int8"}, ("int8", "bfloat16")),
        ("svd_perturb", 1, {"dtype": "floaty"}, ("floaty",)),
        ("svd_perturb", 1, {"modules": ["nowhere"]}, ("'nowhere'", "names no module")),
        ("svd_perturb", 1, {"overrides": {"nowhere": {"strength": 0.1}}}, ("'nowhere'", "names no module")),
        ("svd_perturb", 1, {"overrides": {"q_proj": {"strenght": 0.1}}}, ("'strenght'",)),
        ("svd_perturb", 1, {"overrides": {"q_proj": {"strength": 7}}}, ("strength", "at most 1")),
    ],
)
def test_wrong_calls(operator, n, params, words, tmp_path):
    no_child([memory_adapter(i) for i in range(n)], operator, tmp_path, *words, kind=OperatorError, **params)


def test_the_verbs_check_the_kind():
    a, b = memory_adapter(1), memory_adapter(2)
    with pytest.raises(OperatorError, match="dare is a crossover; use crossover"):
        le.mutate(a, "dare", seed=0)
    with pytest.raises(OperatorError, match="gaussian is a mutation; use mutate"):
        le.crossover([a, b], "gaussian", seed=0)
    assert same_factors(*(next(iter(x.modules.values())) for x in (le.mutate(a, "copy_parent", seed=0), a)))


def test_a_negative_seed(tmp_path):
    with pytest.raises(ValueError, match="seed is -1"):
        breed([memory_adapter(1)], "gaussian", seed=-1)


def test_a_rank_that_blocks_cannot_share(tmp_path):
    groups = {f"{PREFIX}conv.lora_A.weight": torch.ones(4, 4, 3, 3), f"{PREFIX}conv.lora_B.weight": torch.ones(8, 2, 1, 1)}
    parent = le.load(write_folder(tmp_path / "conv", groups, hand_config()))
    assert parent.layout("conv").blocks == 2
    no_child([parent], "linear", tmp_path, "conv", "2 blocks", "rank 3", rank=3)


def test_a_child_that_cannot_be_stored(tmp_path):
    parent = le.load(hand_folder(tmp_path / "a"))
    odd = torch.ones(2, dtype=torch.complex64)
    child = le.Adapter(parent.modules, parent.config, extras={"x": Extra(odd, "other", "x")})
    with pytest.raises(AdapterError, match=r"x: torch\.complex64 cannot be stored"):
        le.save(child, tmp_path / "child")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a"]


def test_loading_changes_nothing(tmp_path):
    folder = hand_folder(tmp_path / "a")
    before = files_in(folder)
    child = le.mutate(le.load(folder), "gaussian", seed=0)
    for factors in child.modules.values():
        factors.A.zero_()
    assert files_in(folder) == before
    assert rewritten(folder, tmp_path / "b").exists()
