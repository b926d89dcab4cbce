"""Every operator against dense formulas, and against the symmetries that its definition promises."""

from __future__ import annotations

import random
from math import ceil
from typing import Annotated

import numpy as np
import pytest
import torch
from adapters import best, dense, gap, layered, memory_adapter, random_factors, regauged, same_bits, same_factors, write_peft
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import lora_evo as le
from lora_evo.adapter import Adapter, Extra, LoraFactors
from lora_evo.breeding import breed
from lora_evo.errors import AdapterError, OperatorError
from lora_evo.lowrank import join
from lora_evo.mutations import _cayley, _skew
from lora_evo.operators import OPERATORS, Param, Spec, all_operators, get, operator
from lora_evo.places import layer_of, selected
from lora_evo.seeding import stream

# operator, parameters, number of parents
CALLS = [
    ("svd_perturb", {}, 1),
    ("svd_perturb", {"strength": 0.5}, 1),
    ("gaussian", {}, 1),
    ("gaussian", {"strength": 0.5}, 1),
    ("gaussian", {"absolute": 2.0}, 1),
    ("layer_noise", {"fraction": 1.0}, 1),
    ("mask_components", {}, 1),
    ("mask_components", {"rescale": True}, 1),
    ("dare", {"drop": 0.4}, 2),
    ("dare", {"drop": 0.4}, 3),
    ("dare", {"drop": 0.4, "what": "factors"}, 2),
    ("dare", {"drop": 0.4, "what": "delta"}, 2),
    ("layer_choice", {}, 3),
    ("svd_subspace", {}, 2),
    ("svd_subspace", {"k": 1}, 2),
    ("extrapolate", {}, 2),
    ("extrapolate", {"weights": (0.5, -1.0, 2.0)}, 3),
    ("linear", {}, 2),
    ("linear", {"weights": (1.0, -1.0)}, 2),
    ("copy_parent", {}, 1),
]
IDS = [f"{name}-{n}-{'-'.join(map(str, params.values()))}" for name, params, n in CALLS]
every_call = pytest.mark.parametrize(("name", "params", "n"), CALLS, ids=IDS)
RANDOM = {"svd_perturb", "gaussian", "layer_noise", "mask_components", "dare", "layer_choice", "svd_subspace", "extrapolate"}

sizes = st.fixed_dictionaries(
    {"seed": st.integers(0, 10**6), "out": st.integers(5, 14), "width": st.integers(5, 14), "r": st.integers(2, 4)}
)
seeds = st.integers(0, 2**40)


def family(n: int, seed: int, blocks: tuple[int, ...] = (), dtype: torch.dtype = torch.float64, **size: int) -> list[LoraFactors]:
    scales = (2.0, 0.5, -1.5)
    return [random_factors(seed + 7919 * i, **size, scale=scales[i], blocks=blocks, dtype=dtype) for i in range(n)]


def gauge(seed: int, r: int, kind: str) -> np.ndarray:
    rng = np.random.default_rng([seed, 5])
    if kind == "diagonal":
        return np.diag(10.0 ** rng.uniform(-4, 4, r) * rng.choice([-1, 1], r))
    U, V = (np.linalg.qr(rng.standard_normal((r, r)))[0] for _ in range(2))
    return U @ np.diag(rng.uniform(0.3, 3, r)) @ V


def test_every_operator_is_called_here():
    assert {name for name, _, _ in CALLS} == set(all_operators())


# ---------------------------------------------------------------- symmetries


@every_call
@given(size=sizes, seed=seeds, kind=st.sampled_from(["full", "diagonal"]), double=st.booleans())
@settings(max_examples=12)
def test_the_factorisation_does_not_matter(name, params, n, size, seed, kind, double):
    dtype, tolerance = (torch.float64, 1e-5) if double else (torch.float32, 5e-3)
    parents = family(n, dtype=dtype, **size)
    others = [regauged(f, gauge(size["seed"] + i, size["r"], kind)) for i, f in enumerate(parents)]
    assume(all(gap(dense(a), dense(b)) < tolerance / 100 for a, b in zip(parents, others, strict=True)))
    assume(all(well_apart(f) for f in parents))
    a, b = (get(name).on_factors(p, seed=seed, **params) for p in (parents, others))
    assert gap(dense(a), dense(b)) < tolerance


def well_apart(f: LoraFactors) -> bool:
    """Singular values that are nearly equal have no vectors of their own."""
    s = np.linalg.svd(dense(f), compute_uv=False)[: f.rank]
    return bool((-np.diff(s) > 0.02 * s[0]).all() and s[-1] > 0.02 * s[0])


@every_call
@given(size=sizes, seed=seeds, c=st.floats(0.01, 100))
@settings(max_examples=8)
def test_the_split_of_the_scale_does_not_matter(name, params, n, size, seed, c):
    parents = family(n, **size)
    others = [LoraFactors(f.A * c, f.B, f.scale / c) for f in parents]
    a, b = (get(name).on_factors(p, seed=seed, **params) for p in (parents, others))
    assert gap(dense(a), dense(b)) < 1e-6


@pytest.mark.parametrize("name", ["linear", "extrapolate", "copy_parent", "layer_choice"])
@given(size=sizes, seed=seeds, more=st.integers(1, 3))
@settings(max_examples=6)
def test_idle_components_do_not_matter(name, size, seed, more):
    """Padding parent one with zero columns of B changes nothing that is a function of the delta."""
    parents, params = family(2, **size), {}
    first = parents[0]
    A = torch.cat([first.A, torch.randn(more, size["width"], generator=torch.Generator().manual_seed(1)).double()])
    padded = LoraFactors(A, torch.nn.functional.pad(first.B, (0, more)), first.scale)
    rank = size["r"] + more
    a = get(name).on_factors(parents, seed=seed, rank=rank, **params)
    b = get(name).on_factors([padded, *parents[1:]], seed=seed, rank=rank, **params)
    assert gap(dense(a), dense(b)) < 1e-6


@every_call
@pytest.mark.parametrize("blocks", [(), (3,)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_rank_dtype_and_seed(name, params, n, blocks, dtype):
    parents = family(n, 3, blocks, dtype, out=9, width=7, r=3)
    entry = get(name)
    child, again = (entry.on_factors(parents, seed=1, **params) for _ in range(2))
    assert child.A.shape == parents[0].A.shape
    assert child.B.shape == parents[0].B.shape
    assert (child.A.dtype, child.B.dtype) == (dtype, dtype)
    assert child.scale == parents[0].scale
    assert np.isfinite(dense(child)).all()
    assert same_factors(child, again)
    others = [entry.on_factors(parents, seed=seed, **params) for seed in range(2, 10)]
    differ = any(not same_factors(child, other) for other in others)
    assert differ == (name in RANDOM and "weights" not in params and "k" not in params)


@every_call
def test_blocks_are_independent_matrices(name, params, n):
    """A block of its own has the child that dense formulas give: no operator mixes blocks."""
    if name in RANDOM - {"extrapolate"}:
        pytest.skip("draws differ between one block and several")
    parents = family(n, 3, (3,), out=9, width=7, r=3)
    whole = dense(get(name).on_factors(parents, seed=1, **params))
    for i in range(3):
        alone = [LoraFactors(f.A[i], f.B[i], f.scale) for f in parents]
        assert gap(whole[i], dense(get(name).on_factors(alone, seed=1, **params))) < 1e-6


@pytest.mark.parametrize("name", ["svd_perturb", "gaussian", "layer_noise"])
@given(size=sizes, seed=seeds, dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]))
def test_strength_zero_is_the_parent_bit_for_bit(name, size, seed, dtype):
    (parent,) = family(1, dtype=dtype, **size)
    assert same_factors(get(name).on_factors([parent], seed=seed, strength=0), parent)


@pytest.mark.parametrize("name", ["svd_perturb", "gaussian", "layer_noise", "mask_components"])
def test_zero_size_is_the_identity_on_whole_adapters(name):
    parent = memory_adapter(1)
    child = le.mutate(parent, name, seed=0, **({"drop": 0} if name == "mask_components" else {"strength": 0}))
    assert all(same_factors(child.modules[n], parent.modules[n]) for n in parent.modules)
    assert child.measures.relative_change == 0


@pytest.mark.parametrize("name", ["svd_perturb", "gaussian", "layer_noise"])
@given(size=sizes, seed=seeds, strength=st.floats(0.001, 0.6))
def test_realised_strength(name, size, seed, strength):
    (parent,) = family(1, **size)
    child = get(name).on_factors([parent], seed=seed, strength=strength)
    found = np.linalg.norm(dense(child) - dense(parent)) / np.linalg.norm(dense(parent))
    assert found == pytest.approx(strength, rel=0.1)


@pytest.mark.parametrize("name", ["gaussian", "layer_noise"])
@given(size=sizes, seed=seeds)
def test_full_strength_of_noise(name, size, seed):
    (parent,) = family(1, **size)
    child = get(name).on_factors([parent], seed=seed, strength=1.0)
    assert np.linalg.norm(dense(child) - dense(parent)) / np.linalg.norm(dense(parent)) == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize("name", ["svd_perturb", "gaussian"])
@given(seed=seeds, strength=st.floats(0.01, 0.5))
def test_realised_strength_at_rank_one(name, seed, strength):
    parent = random_factors(seed % 1000, r=1, dtype=torch.float64)
    child = get(name).on_factors([parent], seed=seed, strength=strength)
    found = np.linalg.norm(dense(child) - dense(parent)) / np.linalg.norm(dense(parent))
    assert found == pytest.approx(strength, rel=0.1)


def test_the_childs_balance_is_the_parents():
    parent = random_factors(1, out=20, width=12, r=4)
    parent = LoraFactors(parent.A * 30, parent.B / 10, 2.0)
    for name, params, n in CALLS:
        if n == 1:
            child = get(name).on_factors([parent], seed=0, **params)
            ratio = [float(f.B.norm() / f.A.norm()) for f in (child, parent)]
            assert 0.4 < ratio[0] / ratio[1] < 2.5, name


# ---------------------------------------------------------------- svd_perturb


@given(size=sizes, seed=seeds, strength=st.floats(0.01, 0.5))
def test_svd_perturb_turns_inside_the_same_spaces(size, seed, strength):
    (parent,) = family(1, **size)
    assume(well_apart(parent))
    W, C = dense(parent), dense(get("svd_perturb").on_factors([parent], seed=seed, strength=strength))
    r = size["r"]
    U, s, V = (x[..., :r] if i < 2 else x[:r] for i, x in enumerate(np.linalg.svd(W)))
    middle = U.T @ C @ V.T
    assert gap(U @ middle @ V, C) < 1e-6
    # U R diag(s exp(eps z)) Q' V': its singular values tell eps, and the draw tells z
    z = stream(seed, "svd_perturb", "").standard_normal(r)
    found = np.linalg.svd(middle, compute_uv=False)
    eps = (np.log(found).sum() - np.log(s).sum()) / z.sum()
    assume(abs(z.sum()) > 0.3)
    assert gap(np.sort(s * np.exp(eps * z)), np.sort(found)) < 1e-4


@given(seed=seeds, k=st.integers(1, 12), size=st.floats(0, 30), dead=st.integers(0, 3))
def test_cayley_is_orthogonal(seed, k, size, dead):
    live = np.arange(k) < max(1, k - dead)
    K = size * _skew(np.random.default_rng(seed), live)
    R = _cayley(K)
    assert np.abs(R @ R.T - np.eye(k)).max() < 1e-9
    assert np.linalg.slogdet(R)[0] > 0
    assert np.array_equal(R[~live], np.eye(k)[~live])


def test_svd_perturb_keeps_a():
    (parent,) = family(1, 0, out=9, width=7, r=3, dtype=torch.float32)
    for name in ("svd_perturb", "mask_components"):
        assert same_bits(get(name).on_factors([parent], seed=0).A, parent.A)


# ---------------------------------------------------------------- mask_components


@given(size=sizes, seed=seeds, drop=st.floats(0, 1), rescale=st.booleans())
def test_mask_components_drops_the_right_number(size, seed, drop, rescale):
    (parent,) = family(1, **size)
    assume(well_apart(parent))
    r, W = size["r"], dense(parent)
    C = dense(get("mask_components").on_factors([parent], seed=seed, drop=drop, rescale=rescale))
    U, s, V = np.linalg.svd(W, full_matrices=False)
    middle = U[:, :r].T @ C @ V[:r].T
    kept = np.abs(np.diag(middle)) > 1e-6 * s[0]
    assert kept.sum() == max(1, r - ceil(drop * r - 1e-9))
    factor = np.linalg.norm(s[:r]) / np.linalg.norm(s[:r][kept]) if rescale else 1.0
    assert gap(C, (U[:, :r] * s[:r] * kept * factor) @ V[:r]) < 1e-6
    if rescale:
        assert np.linalg.norm(C) == pytest.approx(np.linalg.norm(W), rel=1e-6)


def test_masking_stored_components():
    (parent,) = family(1, 0, out=9, width=7, r=4)
    child = get("mask_components").on_factors([parent], seed=0, drop=0.5, space="factor")
    terms = [parent.scale * np.outer(parent.B[:, i], parent.A[i]) for i in range(4)]
    kept = np.linalg.lstsq(np.array([t.ravel() for t in terms]).T, dense(child).ravel(), rcond=None)[0]
    assert sorted(np.round(kept, 6).tolist()) == [0, 0, 1, 1]


def test_svd_perturb_of_stored_components_keeps_their_spaces():
    (parent,) = family(1, 0, out=9, width=7, r=3)
    W = dense(parent)
    C = dense(get("svd_perturb").on_factors([parent], seed=0, strength=0.3, space="factor"))
    U, _, V = np.linalg.svd(W)
    assert gap(U[:, :3] @ (U[:, :3].T @ C @ V[:3].T) @ V[:3], C) < 1e-6
    assert np.linalg.norm(C - W) / np.linalg.norm(W) == pytest.approx(0.3, rel=0.1)


def test_every_component_is_dropped_sometimes():
    (parent,) = family(1, 0, out=9, width=7, r=4)
    U, s, V = np.linalg.svd(dense(parent))
    counts, entry = np.zeros(4), get("mask_components")
    for seed in range(200):
        C = dense(entry.on_factors([parent], seed=seed, drop=0.5))
        counts += np.abs(np.diag(U[:, :4].T @ C @ V[:4].T)) < 1e-6 * s[0]
    assert (np.abs(counts - 100) < 40).all()  # 200 draws of one half: 40 is 5.7 standard deviations


# ---------------------------------------------------------------- gaussian, layer_noise


@given(size=sizes, seed=seeds)
def test_gaussian_noise_is_tangent(size, seed):
    (parent,) = family(1, **size)
    W = dense(parent)
    U, _, V = np.linalg.svd(W)
    r, normal = size["r"], []
    for strength in (0.02, 0.01):
        change = dense(get("gaussian").on_factors([parent], seed=seed, strength=strength)) - W
        normal.append(np.linalg.norm(U[:, r:].T @ change @ V[r:].T) / np.linalg.norm(change))
    assume(normal[0] > 1e-9)
    assert normal[0] < 0.25
    assert normal[1] / normal[0] == pytest.approx(0.5, rel=0.15)  # off the tangent space only to second order


def test_gaussian_noise_has_no_preferred_direction():
    (parent,) = family(1, 0, out=9, width=7, r=3)
    W = dense(parent)
    entry = get("gaussian")
    changes = np.array([dense(entry.on_factors([parent], seed=s, strength=0.05)) - W for s in range(300)])
    z = changes.mean(0) / (changes.std(0) / np.sqrt(len(changes)))
    assert np.abs(z).max() < 5.5
    assert np.sqrt((z**2).mean()) < 1.5


def test_factor_noise_is_relative_to_each_factor():
    parent = LoraFactors(50 * torch.randn(8, 400).double(), torch.randn(300, 8).double() / 30, 0.7)
    child = get("gaussian").on_factors([parent], seed=0, strength=0.2, space="factor")
    # stored at another balance: compare products of one changed and one old factor through the delta
    change = dense(child) - dense(parent)
    a, b = (float((f**2).mean().sqrt()) for f in (parent.A, parent.B))
    rng = np.random.default_rng(0)
    samples = []
    for _ in range(3):
        A = parent.A.numpy() + 0.2 * a * rng.standard_normal(parent.A.shape)
        B = parent.B.numpy() + 0.2 * b * rng.standard_normal(parent.B.shape)
        samples.append(np.linalg.norm(0.7 * B @ A - dense(parent)))
    assert np.linalg.norm(change) == pytest.approx(np.mean(samples), rel=0.1)
    # both factors moved, each by its own share
    U, _, V = np.linalg.svd(dense(parent), full_matrices=False)
    U, V = U[:, :8], V[:8]
    left, right = change - U @ (U.T @ change), change - (change @ V.T) @ V
    assert np.linalg.norm(left) > 0.3 * np.linalg.norm(change)
    assert np.linalg.norm(right) > 0.3 * np.linalg.norm(change)


def test_factor_noise_follows_the_factors_and_delta_noise_does_not():
    (parent,) = family(1, 0, out=9, width=7, r=3)
    other = regauged(parent, np.diag([1e3, 1.0, 1e-3]))
    for space, same in (("delta", True), ("factor", False)):
        a, b = (dense(get("gaussian").on_factors([p], seed=0, space=space)) for p in (parent, other))
        assert (gap(a, b) < 1e-6) == same


@given(
    fraction=st.floats(0.01, 1),
    seed=seeds,
    granularity=st.sampled_from(["module", "layer"]),
    layers=st.integers(1, 5),
)
@settings(max_examples=15)
def test_layer_noise_touches_the_right_share(fraction, seed, granularity, layers):
    parent = memory_adapter(1, layered(layers))
    child = le.mutate(parent, "layer_noise", seed=seed, fraction=fraction, granularity=granularity, strength=0.2)
    touched = [n for n in parent.modules if not same_factors(child.modules[n], parent.modules[n])]
    units = {layer_of(n) for n in touched} if granularity == "layer" else set(touched)
    total = layers if granularity == "layer" else len(parent.modules)
    assert len(units) == ceil(fraction * total - 1e-9)
    if granularity == "layer":
        assert len(touched) == 2 * len(units)
    for name in touched:
        W = dense(parent.modules[name])
        assert np.linalg.norm(dense(child.modules[name]) - W) / np.linalg.norm(W) == pytest.approx(0.2, rel=0.1)


@given(seed=seeds)
def test_layer_noise_counts_modules_and_not_what_is_saved_beside_them(seed):
    extras = {f"base_model.model.{n}.weight": Extra(torch.ones(3), "full_weight", n) for n in ("lm_head", "embed_tokens", "norm")}
    parent = memory_adapter(1, layered(1), extras=extras)
    child = le.mutate(parent, "layer_noise", seed=seed, fraction=0.5)
    assert sum(not same_factors(child.modules[n], parent.modules[n]) for n in parent.modules) == 1


@given(seed=seeds)
@settings(max_examples=10)
def test_layer_noise_stays_among_the_chosen_modules(seed):
    parent = memory_adapter(1, layered(3))
    child = le.mutate(parent, "layer_noise", seed=seed, fraction=0.33, modules=["q_proj"])
    touched = [n for n in parent.modules if not same_factors(child.modules[n], parent.modules[n])]
    assert len(touched) == 1
    assert touched[0].endswith("q_proj")


# ---------------------------------------------------------------- dare


def dare_reference(parents, weights, drop, what, seed):
    """The sum before truncation, from the docstring and the same draws."""
    rng, keep, total, masked = stream(seed, "dare", ""), 1 - drop, 0.0, []
    for w, f in zip(weights, parents, strict=True):
        U, s, V = (x[..., : f.rank] if i < 2 else x[: f.rank] for i, x in enumerate(np.linalg.svd(dense(f), full_matrices=False)))
        if what == "components":
            total = total + w * (U * s * (rng.random(s.shape) < keep) / keep) @ V
        elif what == "delta":
            total = total + w * dense(f) * (rng.random(dense(f).shape) < keep) / keep
        else:
            masked.append((w, U * np.sqrt(s), np.sqrt(s)[:, None] * V))
    for w, B, A in masked:
        q = keep**0.5
        mask_B, mask_A = (rng.random(x.shape, dtype=np.float32) < q for x in (B, A))
        total = total + w * (B * mask_B / q) @ (A * mask_A / q)
    return total


@pytest.mark.parametrize("what", ["components", "factors", "delta"])
@given(size=sizes, seed=seeds, drop=st.floats(0, 0.95), weights=st.lists(st.floats(-2, 2), min_size=2, max_size=3))
def test_dare_is_its_formula(what, size, seed, drop, weights):
    parents = family(len(weights), **size)
    assume(all(well_apart(f) for f in parents))
    wanted = dare_reference(parents, weights, drop, what, seed)
    full = min(size["out"], size["width"]) if what == "delta" else size["r"] * len(weights)
    for rank in (full, size["r"]):
        child = dense(get("dare").on_factors(parents, seed=seed, rank=rank, drop=drop, what=what, weights=weights))
        optimum = best(wanted, rank)
        error = np.linalg.norm(child - wanted)
        assert error <= np.linalg.norm(optimum - wanted) * (1 + 1e-5) + 1e-5 * (1e-9 + np.linalg.norm(wanted))


@pytest.mark.parametrize("what", ["components", "factors", "delta"])
def test_dare_is_unbiased(what):
    parents, weights = family(2, 11, out=6, width=5, r=2), (0.8, 0.5)
    wanted = sum(w * dense(f) for w, f in zip(weights, parents, strict=True))
    call = {"rank": 5 if what == "delta" else 4, "drop": 0.5, "what": what, "weights": weights}
    entry = get("dare")
    draws = np.array([dense(entry.on_factors(parents, seed=s, **call)) for s in range(300)])
    z = (draws.mean(0) - wanted) / (draws.std(0) / np.sqrt(len(draws)))
    assert np.abs(z).max() < 5
    assert np.sqrt((z**2).mean()) < 2


def test_dare_without_dropping_is_linear():
    parents = family(2, 5, out=9, width=7, r=3)
    a, b = (dense(get(name).on_factors(parents, seed=0, rank=6, **p)) for name, p in (("dare", {"drop": 0}), ("linear", {})))
    assert gap(a, b) < 1e-6


def test_dare_in_factor_space_masks_stored_factors():
    parents = [LoraFactors(f.A, f.B, 1.0) for f in family(2, 5, out=9, width=7, r=3)]
    rng, B, A = stream(4, "dare", ""), 0.0, 0.0
    for w, f in zip((0.5, 0.5), parents, strict=True):
        mask_B, mask_A = (rng.random(tuple(x.shape), dtype=np.float32) < 0.6 for x in (f.B, f.A))
        B, A = B + w**0.5 * f.B.numpy() * mask_B / 0.6, A + w**0.5 * f.A.numpy() * mask_A / 0.6
    child = get("dare").on_factors(parents, seed=4, drop=0.4, space="factor")
    assert gap(dense(child), B @ A) < 1e-6


def test_dense_dare_refuses_large_modules():
    wide = LoraFactors(torch.zeros(1, 2000), torch.zeros(2000, 1), 1.0)
    with pytest.raises(OperatorError, match="dense: 2000 x 2000"):
        get("dare").on_factors([wide, wide], seed=0, what="delta")


# ---------------------------------------------------------------- layer_choice


@given(seed=seeds, granularity=st.sampled_from(["module", "layer"]), n=st.integers(2, 4))
@settings(max_examples=15)
def test_layer_choice_takes_whole_modules_or_layers(seed, granularity, n):
    parents = [memory_adapter(i, layered(4)) for i in range(n)]
    child = le.crossover(parents, "layer_choice", seed=seed, granularity=granularity)
    origin = {}
    for name, factors in child.modules.items():
        (origin[name],) = [i for i, p in enumerate(parents) if same_factors(factors, p.modules[name])]
    if granularity == "layer":
        for i in range(4):
            assert len({o for name, o in origin.items() if layer_of(name) == f"model.layers.{i}"}) == 1


def test_layer_choice_follows_its_odds():
    parents = [memory_adapter(i, layered(50)) for i in range(3)]
    child = le.crossover(parents, "layer_choice", seed=0, weights=(0, 3, 1))
    counts = [sum(same_factors(child.modules[n], p.modules[n]) for n in child.modules) for p in parents]
    assert counts[0] == 0
    assert 58 < counts[1] < 92  # 100 draws of 3/4, four standard deviations
    assert sum(counts) == 100


# ---------------------------------------------------------------- svd_subspace


@given(size=sizes, seed=seeds, data=st.data())
def test_svd_subspace_is_its_formula(size, seed, data):
    parents = family(2, **size)
    assume(all(well_apart(f) for f in parents))
    r = size["r"]
    k = data.draw(st.integers(1, r - 1))
    W1, W2 = (dense(f) for f in parents)
    U, s, V = np.linalg.svd(W1, full_matrices=False)
    left, right = np.eye(size["out"]) - U[:, :k] @ U[:, :k].T, np.eye(size["width"]) - V[:k].T @ V[:k]
    outside = left @ W2 @ right
    fill = np.linalg.svd(outside, compute_uv=False)
    assume(r - k >= len(fill) or fill[r - k - 1] - fill[r - k] > 0.01 * fill[0])
    child = dense(get("svd_subspace").on_factors(parents, seed=seed, k=k))
    assert gap(child, best(W1, k) + best(outside, r - k)) < 1e-5
    # the spectrum is the union, and parent one's top k are singular triples of the child
    union = np.sort(np.concatenate([s[:k], fill[: r - k]]))[::-1]
    assert gap(np.linalg.svd(child, compute_uv=False)[:r], union) < 1e-5
    assert gap(child @ V[:k].T, U[:, :k] * s[:k]) < 1e-5


def test_svd_subspace_draws_k_over_the_whole_range():
    parents = family(2, 3, out=12, width=11, r=4)
    U, s, V = np.linalg.svd(dense(parents[0]))
    found = set()
    for seed in range(40):
        child = dense(get("svd_subspace").on_factors(parents, seed=seed))
        triples = [np.allclose(child @ V[i], s[i] * U[:, i], atol=1e-6 * s[0]) for i in range(4)]
        found.add(sum(triples))
        assert triples == sorted(triples, reverse=True)
    assert found == {1, 2, 3}


def test_svd_subspace_needs_room():
    parents = family(2, 3, out=9, width=7, r=3)
    with pytest.raises(OperatorError, match="below the child's rank"):
        get("svd_subspace").on_factors(parents, seed=0, k=3)


def test_svd_subspace_of_rank_one_is_one_parent():
    ones = family(2, 3, out=9, width=7, r=1)
    children = [get("svd_subspace").on_factors(ones, seed=seed) for seed in range(20)]
    chosen = [[gap(dense(child), dense(parent)) < 1e-6 for parent in ones] for child in children]
    assert all(sum(row) == 1 for row in chosen)
    assert {row.index(True) for row in chosen} == {0, 1}


def test_svd_subspace_of_stored_components():
    first, second = family(2, 3, out=9, width=7, r=3)
    child = get("svd_subspace").on_factors([first, second], seed=0, k=1, space="factor")
    wanted = first.scale * first.B[:, :1] @ first.A[:1] + second.scale * second.B[:, 1:] @ second.A[1:]
    assert gap(dense(child), wanted.numpy()) < 1e-6


# ---------------------------------------------------------------- sums


@given(size=sizes, weights=st.lists(st.floats(-3, 3), min_size=1, max_size=3), blocks=st.sampled_from([(), (2,)]))
def test_linear_is_the_sum_truncated_best(size, weights, blocks):
    parents = family(len(weights), blocks=blocks, **size)
    wanted = sum(w * dense(f) for w, f in zip(weights, parents, strict=True))
    for rank in (size["r"], size["r"] * len(weights)):
        child = dense(get("linear").on_factors(parents, seed=0, rank=rank, weights=weights))
        assert gap(child, best(wanted, rank)) < 1e-5 or np.linalg.norm(child - wanted) <= (1 + 1e-5) * np.linalg.norm(
            best(wanted, rank) - wanted
        )
        if rank == size["r"] * len(weights):
            assert gap(child, wanted) < 1e-6


@given(size=sizes, dtype=st.sampled_from([torch.float32, torch.bfloat16]), which=st.integers(0, 2))
def test_one_weight_of_one_is_that_parent_bit_for_bit(size, dtype, which):
    parents = [f._replace(scale=2.0) for f in family(3, dtype=dtype, **size)]
    weights = [float(i == which) for i in range(3)]
    for name in ("linear", "extrapolate"):
        assert same_factors(get(name).on_factors(parents, seed=0, weights=weights), parents[which])


@given(size=sizes, eta=st.floats(-2, 3))
def test_extrapolate_is_its_formula(size, eta):
    parents = family(2, **size)
    W1, W2 = (dense(f) for f in parents)
    child = get("extrapolate").on_factors(parents, seed=0, rank=2 * size["r"], eta=eta)
    assert gap(dense(child), W1 + eta * (W2 - W1)) < 1e-6


def test_extrapolate_at_its_ends():
    a, b = memory_adapter(1), memory_adapter(2)
    for eta, parent in ((0.0, a), (1.0, b)):
        child = le.crossover([a, b], "extrapolate", seed=0, eta=eta)
        assert all(same_factors(child.modules[n], parent.modules[n]) for n in parent.modules)


def test_extrapolate_draws_one_eta_for_the_whole_child():
    a, b = memory_adapter(1), memory_adapter(2)
    etas = set()
    for seed in range(12):
        child = le.crossover([a, b], "extrapolate", seed=seed, rank=6)
        eta = child.lineage.params["eta"]
        assert 1 <= eta <= 1.5
        for n in a.modules:
            W1, W2 = dense(a.modules[n]), dense(b.modules[n])
            assert gap(dense(child.modules[n]), W1 + eta * (W2 - W1)) < 1e-6
        etas.add(eta)
    assert len(etas) == 12


def test_the_default_is_the_mean():
    parents = [memory_adapter(i) for i in range(3)]
    child = le.crossover(parents, "linear", seed=0, rank=9)
    for n in child.modules:
        assert gap(dense(child.modules[n]), sum(dense(p.modules[n]) for p in parents) / 3) < 1e-6


def test_copy_parent_is_the_first():
    parents = [memory_adapter(i) for i in range(3)]
    for group in (parents[:1], parents):
        child = le.crossover(group, "copy_parent", seed=0)
        assert all(same_factors(child.modules[n], parents[0].modules[n]) for n in child.modules)


@pytest.mark.parametrize("weights", [(0.7, 0.3), (1.0, 0.0), (1.0, -1.0), (2.0, 0.5), (-0.5, -0.5)])
def test_factor_space_is_pefts_linear(weights, tmp_path):
    import peft
    from adapters import base_model

    folders = [write_peft(tmp_path / x, "plain", i, lora_alpha=a) for i, (x, a) in enumerate((("a", 12), ("b", 5)), 1)]
    model = peft.PeftModel.from_pretrained(base_model("llama"), str(folders[0]), adapter_name="a")
    model.load_adapter(str(folders[1]), adapter_name="b")
    model.add_weighted_adapter(["a", "b"], list(weights), "both", combination_type="linear")
    child = le.crossover([le.load(f) for f in folders], "linear", seed=0, weights=weights, space="factor")
    for name, factors in child.modules.items():
        layer = model.base_model.model.get_submodule(name)
        wanted = layer.get_delta_weight("both").detach().double().numpy()
        scale = max(np.linalg.norm(dense(le.load(f).modules[name])) for f in folders)
        assert np.linalg.norm(dense(factors) - wanted) < 1e-5 * scale


def test_factor_space_needs_one_rank():
    with pytest.raises(OperatorError, match="one rank"):
        get("linear").on_factors([random_factors(0, r=2), random_factors(1, r=3)], seed=0, space="factor")


# ---------------------------------------------------------------- zero, one, many


@pytest.mark.parametrize(("name", "n"), [(name, n) for name, p, n in CALLS if not p or name in ("dare", "svd_subspace")])
def test_zero_parents(name, n):
    """A fresh adapter (B = 0) is a delta like any other."""
    zero = [f._replace(B=torch.zeros_like(f.B)) for f in family(n, 0, out=9, width=7, r=3)]
    assert np.array_equal(dense(get(name).on_factors(zero, seed=0)), np.zeros((9, 7)))
    if n == 2:
        whole = family(2, 0, out=9, width=7, r=3)
        for mixed in ([whole[0], zero[1]], [zero[0], whole[1]]):
            child = dense(get(name).on_factors(mixed, seed=0))
            assert np.isfinite(child).all()


def test_a_fresh_adapter_cannot_be_mutated_multiplicatively():
    parent = memory_adapter(1)
    fresh = Adapter({n: f._replace(B=torch.zeros_like(f.B)) for n, f in parent.modules.items()}, parent.config, name="fresh")
    for name in ("svd_perturb", "gaussian", "layer_noise", "mask_components"):
        with pytest.raises(OperatorError, match=r"fresh.*every delta is zero.*absolute"):
            le.mutate(fresh, name, seed=0)
    for name in ("gaussian", "layer_noise"):
        child = le.mutate(fresh, name, seed=0, absolute=0.5)
        norms = [np.linalg.norm(dense(f)) for f in child.modules.values()]
        assert all(norm == pytest.approx(0.5, rel=1e-4) or norm == 0 for norm in norms)
        assert max(norms) > 0
        for n, norm in zip(child.modules, norms, strict=True):  # only B gets noise: the delta lies in A's rows
            rows = np.linalg.qr(fresh.modules[n].A.double().numpy().T)[0]
            assert gap(dense(child.modules[n]) @ rows @ rows.T, dense(child.modules[n])) < 1e-6 or norm == 0


def test_a_zero_module_among_others_stays_zero():
    parent = memory_adapter(1)
    first = next(iter(parent.modules))
    modules = {**parent.modules, first: parent.modules[first]._replace(B=torch.zeros_like(parent.modules[first].B))}
    for name in ("svd_perturb", "gaussian", "mask_components"):
        child = le.mutate(Adapter(modules, parent.config), name, seed=0)
        assert same_factors(child.modules[first], modules[first])


@pytest.mark.parametrize("n", [3, 5])
@pytest.mark.parametrize("name", ["dare", "layer_choice", "linear", "copy_parent"])
def test_many_parents(name, n):
    parents = [memory_adapter(i, r=2 + i % 2) for i in range(n)]
    child = le.crossover(parents, name, seed=0)
    assert {f.rank for f in child.modules.values()} == {3}
    assert len(child.measures.parent_cosines) == n


@given(size=sizes, seed=seeds)
@settings(max_examples=10)
def test_no_operator_minds_a_parent_twice(size, seed):
    (parent,) = family(1, **size)
    assume(well_apart(parent))
    for name, params, n in CALLS:
        if n == 2 and name not in ("dare",):
            child = dense(get(name).on_factors([parent, parent], seed=seed, **params))
            if params.get("weights"):
                assert np.linalg.norm(child) < 1e-6 * np.linalg.norm(dense(parent))
            else:
                assert gap(child, dense(parent)) < 1e-5, name


@every_call
def test_rank_one(name, params, n):
    parents = family(n, 3, out=9, width=7, r=1)
    if name == "svd_subspace":
        pytest.skip("needs two components")
    child = get(name).on_factors(parents, seed=0, **params)
    assert child.rank == 1
    assert np.isfinite(dense(child)).all()


@every_call
@pytest.mark.parametrize("rank", [2, 5])
def test_another_rank(name, params, n, rank):
    """At a lower rank the child is the best approximation of the child at full rank; at a higher one it can hold it."""
    parents = family(n, 3, out=9, width=7, r=3)
    child = get(name).on_factors(parents, seed=0, rank=rank, **params)
    assert child.rank == rank
    if name == "svd_subspace" or params.get("what") == "delta":
        return
    whole = dense(get(name).on_factors(parents, seed=0, rank=7 if params.get("what") == "delta" else 9, **params))
    assert gap(dense(child), best(whole, rank)) < 1e-5


@pytest.mark.parametrize("name", ["svd_perturb", "mask_components", "linear", "copy_parent"])
def test_more_rank_is_room_to_learn(name):
    """Added components have B = 0 and an A that is not: the delta is the same, and gradients reach it."""
    (parent,) = family(1, 3, out=9, width=7, r=3)
    child = get(name).on_factors([parent], seed=0, rank=5)
    added = child.B[:, 3:], child.A[3:]
    assert not added[0].any()
    assert (added[1].abs().sum(-1) > 0).all()
    assert gap(dense(child), dense(get(name).on_factors([parent], seed=0))) < 1e-6


# ---------------------------------------------------------------- deltas against dense matrices


@given(
    size=sizes,
    n=st.integers(1, 3),
    blocks=st.sampled_from([(), (2,), (2, 3)]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_algebra_of_deltas(size, n, blocks, dtype):
    factors = family(n, blocks=blocks, dtype=dtype, **size)
    deltas, matrices = join(factors), [dense(f) for f in factors]
    total, wanted = deltas[0], matrices[0]
    for i, (d, m) in enumerate(zip(deltas[1:], matrices[1:], strict=True)):
        total, wanted = total - (i + 0.5) * d, wanted - (i + 0.5) * m
    scale = np.linalg.norm(wanted)
    B, A = total.factors()
    assert gap(B.double().numpy() @ A.double().numpy(), wanted) < 1e-5
    assert total.norm() == pytest.approx(scale, rel=1e-6)
    assert total.distance(deltas[-1]) == pytest.approx(np.linalg.norm(wanted - matrices[-1]), rel=1e-6, abs=1e-6 * scale)
    assert total.distance(total) == 0
    assert (
        gap(total.spectrum.s[..., :5], np.linalg.svd(wanted, compute_uv=False)[..., : total.spectrum.s[..., :5].shape[-1]]) < 1e-5
    )
    assert total.factor_norms()[0] == pytest.approx(float(B.double().norm()), rel=1e-4)
    assert total.factor_norms()[1] == pytest.approx(float(A.double().norm()), rel=1e-4)
    for rank in (1, size["r"]):
        cut = total.truncated(rank)
        B, A = cut.factors()
        assert cut.rank <= rank
        error = np.linalg.norm(B.double().numpy() @ A.double().numpy() - wanted)
        assert error <= np.linalg.norm(best(wanted, rank) - wanted) * (1 + 1e-5) + 1e-5 * scale
        assert float(B.double().norm()) == pytest.approx(float(A.double().norm()), rel=1e-4)


@given(size=sizes)
def test_singular_vectors_are_orthonormal(size):
    (parent,) = family(1, **size)
    (delta,) = join([parent])
    spectrum = delta.spectrum
    U, V = spectrum.U, spectrum.V
    assert np.abs(U.T @ delta.span.gram_B @ U - np.eye(size["r"])).max() < 1e-7
    assert np.abs(V @ delta.span.gram_A @ V.T - np.eye(size["r"])).max() < 1e-7


def badly(kind: str, dtype: torch.dtype = torch.float32) -> list[LoraFactors]:
    """Two parents, ill-conditioned in one way."""
    rng = np.random.default_rng(3)
    out, width, r = 60, 40, 8
    U, V = (np.linalg.qr(rng.standard_normal((d, 2 * r)))[0] for d in (out, width))
    s = np.logspace(0, -6, r) if kind == "decades" else np.linspace(3, 1, r)
    B1, A1 = U[:, :r] * s, V[:, :r].T.copy()
    mix = np.linalg.qr(rng.standard_normal((r, r)))[0]
    B1, A1 = B1 @ mix, mix.T @ A1
    B2, A2 = rng.standard_normal((out, r)), rng.standard_normal((r, width))
    if kind == "unbalanced":
        B1[:, ::2] *= 1e4
        A1[::2] /= 1e4
    if kind == "huge":
        B1, A1 = B1 * 1e15, A1 * 1e-12
    if kind == "duplicate":
        B2, A2 = B1, A1
    if kind == "one zero":
        B2 = np.zeros_like(B2)
    return [LoraFactors(torch.tensor(A).to(dtype), torch.tensor(B).to(dtype), 1.0) for A, B in ((A1, B1), (A2, B2))]


@pytest.mark.parametrize("kind", ["decades", "unbalanced", "huge", "duplicate", "one zero"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ill_conditioned_parents(kind, dtype):
    """The right child is the best approximation of what the stored numbers say, bf16 or not."""
    parents = badly(kind, dtype)
    wide = [LoraFactors(f.A.float(), f.B.float(), 1.0) for f in parents]
    wanted = 0.7 * dense(parents[0]) + 0.3 * dense(parents[1])
    for rank in (8, 16):
        deltas = join(parents)
        B, A = (0.7 * deltas[0] + 0.3 * deltas[1]).truncated(rank).factors()
        child = B.double().numpy() @ A.double().numpy()
        assert gap(child, best(wanted, rank)) < (5e-6 if dtype == torch.float32 else 5e-4), rank
    child = get("linear").on_factors(wide, seed=0, rank=8, weights=(0.7, 0.3))
    assert gap(dense(child), best(wanted, 8)) < 5e-6


def test_small_singular_values_survive():
    parent = badly("decades")[0]
    s = join([parent])[0].spectrum.s
    exact = np.linalg.svd(dense(parent), compute_uv=False)[:8]
    assert np.abs(s / exact - 1).max() < 0.02


@pytest.mark.parametrize("kind", ["decades", "unbalanced", "huge"])
def test_a_minus_a(kind):
    parent = badly(kind)[0]
    size = np.linalg.norm(dense(parent))
    for name in ("linear", "extrapolate"):
        child = get(name).on_factors([parent, parent], seed=0, weights=(1, -1))
        assert np.linalg.norm(dense(child)) < 1e-6 * size
    a, b = join([parent, parent])
    assert (a - b).norm() < 1e-6 * size
    assert (a - b).truncated(3).norm() < 1e-6 * size


@pytest.mark.parametrize("kind", ["decades", "unbalanced"])
def test_mutation_of_ill_conditioned_parents(kind):
    parent = badly(kind)[0]
    W = dense(parent)
    for name in ("svd_perturb", "gaussian"):
        child = get(name).on_factors([parent], seed=0, strength=0.1)
        assert np.linalg.norm(dense(child) - W) / np.linalg.norm(W) == pytest.approx(0.1, rel=0.1)


def test_half_precision_keeps_what_it_can():
    parents = family(2, 3, out=40, width=30, r=4, dtype=torch.bfloat16)
    parents = [f._replace(scale=2.0) for f in parents]
    wanted = best(0.5 * dense(parents[0]) + 0.5 * dense(parents[1]), 4)
    child = get("linear").on_factors(parents, seed=0)
    assert gap(dense(child), wanted) < 2**-7


# ---------------------------------------------------------------- measures


def test_measures_are_those_of_the_dense_matrices():
    parents = [memory_adapter(i) for i in range(2)]
    child = le.crossover(parents, "linear", seed=0, weights=(0.9, 0.4))

    def flat(x: Adapter) -> np.ndarray:
        return np.concatenate([dense(f).ravel() for f in x.modules.values()])

    c, p = flat(child), [flat(x) for x in parents]
    m = child.measures
    assert m.norm == pytest.approx(np.linalg.norm(c), rel=1e-5)
    assert m.relative_change == pytest.approx(np.linalg.norm(c - p[0]) / np.linalg.norm(p[0]), rel=1e-5)
    for cosine, x in zip(m.parent_cosines, p, strict=True):
        assert cosine == pytest.approx(c @ x / np.linalg.norm(c) / np.linalg.norm(x), rel=1e-5)
    assert m.kept_energy == pytest.approx(np.sum(c**2) / np.sum((0.9 * p[0] + 0.4 * p[1]) ** 2), rel=1e-5)


def test_inspect_and_compare():
    a, b = memory_adapter(1, name="a"), memory_adapter(2, name="b")
    for report in le.inspect(a):
        W = dense(a.modules[report.module])
        s = np.linalg.svd(W, compute_uv=False)[:3]
        assert np.allclose(report.spectrum, s, rtol=1e-6)
        p = s / s.sum()
        assert report.effective_rank == pytest.approx(np.exp(-(p * np.log(p)).sum()), rel=1e-6)
        assert report.norm == pytest.approx(np.linalg.norm(W), rel=1e-6)
    rows, total = le.compare(a, b)
    for row in rows:
        x, y = (dense(z.modules[row.module]) for z in (a, b))
        assert row.cosine == pytest.approx((x * y).sum() / np.linalg.norm(x) / np.linalg.norm(y), rel=1e-5)
        U, W = (np.linalg.svd(z)[0][:, :3] for z in (x, y))
        angles = np.degrees(np.arccos(np.clip(np.linalg.svd(U.T @ W, compute_uv=False), -1, 1)))
        assert np.allclose(sorted(angles), row.column_angles, atol=1e-4)
    flat = [np.concatenate([dense(f).ravel() for f in x.modules.values()]) for x in (a, b)]
    assert total.relative_change == pytest.approx(np.linalg.norm(flat[0] - flat[1]) / np.linalg.norm(flat[0]), rel=1e-5)
    same, _ = le.compare(a, a)
    assert all(max(row.column_angles) < 1e-2 and row.cosine == pytest.approx(1) for row in same)


# ---------------------------------------------------------------- seeds and streams


@pytest.mark.parametrize("name", ["gaussian", "dare", "layer_choice", "svd_subspace"])
def test_global_generators_neither_matter_nor_move(name):
    parents = [memory_adapter(i) for i in range(1 if name == "gaussian" else 2)]

    def states() -> tuple:
        numbers = np.random.get_state()
        return torch.get_rng_state().tolist(), numbers[1].tolist(), numbers[2], random.getstate(), torch.get_num_threads()

    torch.manual_seed(1)
    before = states()
    a = breed(parents, name, seed=5)
    assert states() == before
    torch.manual_seed(2)
    np.random.seed(3)
    b = breed(parents, name, seed=5)
    assert all(same_factors(a.modules[n], b.modules[n]) for n in a.modules)


def test_a_modules_child_does_not_depend_on_the_others():
    names = layered(3)
    parent = memory_adapter(1, names)
    few = Adapter({n: parent.modules[n] for n in reversed(names[2:4])}, parent.config)
    for name in ("gaussian", "svd_perturb", "mask_components"):
        whole, part = (le.mutate(x, name, seed=4) for x in (parent, few))
        assert all(same_factors(whole.modules[n], part.modules[n]) for n in few.modules)


def test_modules_have_streams_of_their_own():
    same = random_factors(0)
    parent = memory_adapter(1, layered(2))
    child = le.mutate(Adapter(dict.fromkeys(parent.modules, same), parent.config), "gaussian", seed=0)
    assert len({dense(f).tobytes() for f in child.modules.values()}) == len(child.modules)


def test_streams():
    draws = {(s, labels): stream(s, *labels).random(2).tobytes() for s in (0, 1, 2**90) for labels in (("a",), ("a", "b"), ("ab",))}
    assert len(set(draws.values())) == len(draws)
    assert stream(3, "x").random() == stream(3, "x").random()
    with pytest.raises(ValueError, match="seed is -1"):
        stream(-1)


# ---------------------------------------------------------------- places


def test_layers():
    assert layer_of("model.layers.3.self_attn.q_proj") == "model.layers.3"
    assert layer_of("model.layers.31") == "model.layers.31"
    assert layer_of("lm_head") == "lm_head"
    assert layer_of("encoder.block.2.layer.0.k") == "encoder.block.2"


def test_patterns_select():
    names = layered(3)
    q = {n for n in names if n.endswith("q_proj")}
    assert selected(names, ["q_proj"]) == selected(names, ["*.q_proj"]) == q
    assert selected(names, ["!q_proj"]) == set(names) - q
    assert selected(names, ["model.layers.1.*"]) == set(names[2:4])
    assert selected(names, ["*", "!model.layers.0.*", "model.layers.0.mlp.up_proj"]) == set(names) - {names[0]}
    for pattern in ("nothing", "!nothing", "proj", "Q_PROJ"):
        with pytest.raises(OperatorError, match="names no module"):
            selected(names, [pattern])


def test_modules_outside_the_patterns_are_the_first_parents():
    parents = [memory_adapter(i) for i in range(2)]
    child = le.crossover(parents, "linear", seed=0, modules=["q_proj"])
    for n in child.modules:
        assert same_factors(child.modules[n], parents[0].modules[n]) == (not n.endswith("q_proj"))


def test_overrides_reach_the_modules_they_name():
    parent = memory_adapter(1)
    child = le.mutate(parent, "svd_perturb", seed=0, overrides={"*.0.*": {"strength": 0.5}, "up_proj": {"strength": 0}})
    for n in parent.modules:
        W = dense(parent.modules[n])
        change = np.linalg.norm(dense(child.modules[n]) - W) / np.linalg.norm(W)
        assert change == pytest.approx(0.0 if "up_proj" in n else 0.5 if ".0." in n else 0.1, rel=0.1)


# ---------------------------------------------------------------- parameters


def test_parameters_in_their_own_type():
    number = Param("x", float, 0.5, "", 0, 1)
    assert number.checked(1) == 1.0
    assert isinstance(number.checked(1), float)
    assert number.checked(np.float32(0.25)) == 0.25
    whole = Param("k", int, None, "", 1, optional=True)
    assert whole.checked(3.0) == 3
    assert whole.checked(None) is None
    assert whole.checked(np.int64(2)) == 2
    assert Param("w", tuple, None, "").checked(np.array([1, 2])) == (1.0, 2.0)


@pytest.mark.parametrize(
    ("param", "value"),
    [
        (Param("x", float, 0.5, "", 0, 1), 1.5),
        (Param("x", float, 0.5, "", 0, 1), -0.1),
        (Param("x", float, 0.5, ""), float("nan")),
        (Param("x", float, 0.5, ""), float("inf")),
        (Param("x", float, 0.5, ""), "0.5"),
        (Param("x", float, 0.5, ""), True),
        (Param("x", float, 0.5, ""), None),
        (Param("x", int, 1, ""), 1.5),
        (Param("x", int, 1, ""), float("inf")),
        (Param("x", int, 1, ""), float("nan")),
        (Param("x", int, 1, "", 1), 0),
        (Param("x", bool, False, ""), 1),
        (Param("x", str, "a", "", choices=("a", "b")), "c"),
        (Param("x", tuple, None, ""), 1.0),
        (Param("x", tuple, None, ""), "12"),
        (Param("x", tuple, None, ""), [1, None]),
        (Param("x", tuple, None, ""), [1, float("nan")]),
        (Param("x", tuple, None, "", 0), [1, -1]),
    ],
)
def test_parameters_out_of_type_or_range(param, value):
    with pytest.raises(OperatorError, match=r"x is .*must be"):
        param.checked(value)


def test_every_parameter_has_a_default_in_its_range_and_a_sentence():
    for entry in all_operators().values():
        assert entry.summary.endswith(".")
        for param in entry.params:
            assert param.help
            assert param.checked(param.default) == param.default


def test_an_operator_of_ones_own_is_checked_like_the_others():
    try:

        @operator("mutation")
        def doubled(parents, rng, *, times: Annotated[float, Spec("how much", low=1)] = 2.0):
            """Make it larger."""
            return times * parents[0]

        parent = memory_adapter(1)
        child = le.mutate(parent, "doubled", seed=0, times=3)
        assert all(gap(dense(child.modules[n]), 3 * dense(parent.modules[n])) < 1e-6 for n in parent.modules)
        with pytest.raises(OperatorError, match="at least 1"):
            le.mutate(parent, "doubled", seed=0, times=0)
    finally:
        OPERATORS.pop("doubled", None)


def test_on_factors_takes_plain_triples_and_refuses_misfits():
    f = random_factors(0)
    assert same_factors(get("copy_parent").on_factors([tuple(f)], seed=0), f)
    with pytest.raises(AdapterError, match="shapes differ"):
        get("linear").on_factors([f, random_factors(0, out=11)], seed=0)
    with pytest.raises(AdapterError, match="share a rank"):
        get("copy_parent").on_factors([LoraFactors(f.A, f.B[:, :2], 1.0)], seed=0)
