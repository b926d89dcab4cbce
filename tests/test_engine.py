"""The embedded engine against PEFT and transformers, one member at a time, and against itself alone."""

from pathlib import Path

import numpy as np
import pytest
import torch
from bases import FAMILIES, peft_folder, peft_model, write_base

import lora_evo as le
from lora_evo.errors import LoraEvoError
from selfplay.engines import Request, Sampling
from selfplay.engines.bank import MemberError
from selfplay.engines.rows import batch_of, batches, groups_of
from selfplay.engines.torch_engine import TorchEngine

RANK, ALPHA = 4, 8
TEXTS = ("def f(x):\n    return x", "in: 3\nout:", "# new deduction\n")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """`made(family)`: a base, three adapters by PEFT, and an engine that holds them."""
    found = {}

    def make(family: str, **how) -> tuple[Path, dict[str, Path], TorchEngine]:
        key = (family, *sorted(how.items()))
        if key not in found:
            root = tmp_path_factory.mktemp(family)
            base = write_base(root / "base", family)
            targets = how.pop("targets", "all-linear")
            adapters = {
                f"m{i}": peft_folder(base, root / f"m{i}", RANK, ALPHA, list(targets) if targets != "all-linear" else targets, i)
                for i in range(3)
            }
            engine = TorchEngine(str(base), slots=4, rank=RANK, alpha=ALPHA, targets=targets, **how)
            for name, folder in adapters.items():
                engine.put(name, le.load(folder))
            found[key] = base, adapters, engine
        return found[key]

    return make


def sequences(engine: TorchEngine, seed: int = 0) -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    """(member, prompt, completion) with uneven lengths and counts, some prompts shared, longer than the windows."""
    rng = np.random.default_rng(seed)
    return [
        (f"m{member}", engine.prompt(TEXTS[text], "compact"), tuple(rng.integers(2, 250, rng.integers(1, 14)).tolist()))
        for member, text in [(0, 0), (1, 0), (0, 0), (2, 1), (1, 2), (0, 0), (1, 0), (0, 1)]
    ]


def engine_logits(engine: TorchEngine, seqs, tokens: int = 10_000) -> list[torch.Tensor]:
    found: dict[int, list[torch.Tensor]] = {}
    groups = groups_of([engine.bank.slot(m) for m, _, _ in seqs], [p for _, p, _ in seqs], [c for *_, c in seqs], tokens)
    for part in batches(groups, tokens):
        batch = batch_of(part, "cpu")
        logits = engine.predicted(batch, [g.slot for g in part])
        for i in batch.indices.unique().tolist():
            found[i] = logits[batch.indices == i]
    return [found[i] for i in range(len(seqs))]


def peft_logits(model, member: str | None, prompt, completion) -> torch.Tensor:
    """One sequence alone, without padding."""
    ids = torch.tensor([[*prompt, *completion]])
    if member is None:
        with model.disable_adapter():
            logits = model(input_ids=ids).logits
    else:
        model.set_adapter(member)
        logits = model(input_ids=ids).logits
    return logits[0, len(prompt) - 1 : -1]


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_gradients_are_those_of_peft(made, family):
    base, adapters, engine = made(family)
    seqs = sequences(engine)
    peft = peft_model(base, adapters)
    engine.bank.learn()
    engine.bank.grads.zero_()
    ours = engine_logits(engine, seqs)
    total = sum(torch.log_softmax(o, -1).gather(1, torch.tensor(c)[:, None]).sum() for o, (*_, c) in zip(ours, seqs, strict=True))
    total.backward()
    peft.zero_grad()
    for (member, prompt, completion), o in zip(seqs, ours, strict=True):
        theirs = peft_logits(peft, member, prompt, completion)
        assert torch.allclose(o, theirs, atol=1e-5, rtol=1e-5), (o - theirs).abs().max()
        torch.log_softmax(theirs, -1).gather(1, torch.tensor(completion)[:, None]).sum().backward()
    for name, p in peft.named_parameters():
        if p.grad is None:
            continue
        module, _, rest = name.removeprefix("base_model.model.").partition(".lora_")
        factor, member, _ = rest.split(".")
        place, row = engine.bank.places[module], engine.bank.grads[engine.bank.slot(member)]
        mine = place.A(row) if factor == "A" else place.B(row)
        scale = float(p.grad.abs().max()) + 1e-6
        assert (mine - p.grad).abs().max() / scale < 1e-5, name
    assert all((engine.bank.grads[engine.bank.slot(m)] != 0).any() for m in adapters)


@pytest.mark.parametrize("targets", [("q_proj", "v_proj"), ("down_proj",), ("o_proj", "gate_proj")])
def test_any_choice_of_targets(made, targets):
    base, adapters, engine = made("qwen2", targets=targets)
    peft = peft_model(base, adapters)
    seqs = sequences(engine)
    with torch.no_grad():
        for (member, prompt, completion), o in zip(seqs, engine_logits(engine, seqs), strict=True):
            assert torch.allclose(o, peft_logits(peft, member, prompt, completion), atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3", "mistral"])
def test_greedy_completions_are_those_of_transformers(made, family):
    base, adapters, engine = made(family)
    peft = peft_model(base, adapters)
    prompts = [engine.prompt(text, "compact") for text in TEXTS]
    requests = [Request(m, p, 0) for p in prompts for m in (None, *adapters)]
    for request, found in zip(requests, engine.generate(requests, Sampling(0.0, 24)), strict=True):
        ids = torch.tensor([request.prompt])
        with torch.no_grad():
            if request.member is None:
                with peft.disable_adapter():
                    wanted = peft.generate(input_ids=ids, max_new_tokens=24, do_sample=False)
            else:
                peft.set_adapter(request.member)
                wanted = peft.generate(input_ids=ids, max_new_tokens=24, do_sample=False)
        assert list(found.tokens) == wanted[0, len(request.prompt) :].tolist()


def test_a_completion_does_not_depend_on_its_neighbours(made):
    _, _, engine = made("llama")
    prompts = [engine.prompt(text, "compact") for text in TEXTS]
    requests = [Request(("m0", "m1", "m2", None)[i % 4], prompts[i % 3], i) for i in range(40)]
    sampling = Sampling(1.0, 30, ("\n", "a"))
    together = engine.generate(requests, sampling)
    assert [engine.generate([r], sampling)[0].tokens for r in requests] == [c.tokens for c in together]
    backwards = engine.generate(requests[::-1], sampling)[::-1]
    assert [c.tokens for c in backwards] == [c.tokens for c in together]
    engine.sequences, whole = 7, engine.sequences
    try:
        assert [c.tokens for c in engine.generate(requests, sampling)] == [c.tokens for c in together]
    finally:
        engine.sequences = whole
    assert len({c.tokens for c in together}) > 30
    assert {c.finish for c in together} == {"stop", "length"}


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_sampled_logprobs_are_the_trainers_at_the_same_temperature(made, temperature):
    _, _, engine = made("qwen3")
    requests = [Request(f"m{i % 3}", engine.prompt(TEXTS[i % 3], "compact"), i) for i in range(12)]
    completions = engine.generate(requests, Sampling(temperature, 20))
    with torch.no_grad():
        logits = engine_logits(engine, [(r.member, r.prompt, c.tokens) for r, c in zip(requests, completions, strict=True)])
    for completion, o in zip(completions, logits, strict=True):
        logprobs = torch.log_softmax(o / temperature, -1).gather(1, torch.tensor(completion.tokens)[:, None])[:, 0]
        assert torch.allclose(logprobs, torch.tensor(completion.logprobs), atol=1e-5)


def test_samples_follow_the_distribution(made):
    _, _, engine = made("llama")
    prompt = engine.prompt("in:", "compact")
    drawn = [c.tokens[0] for c in engine.generate([Request("m0", prompt, i) for i in range(4000)], Sampling(0.7, 1))]
    with torch.no_grad():
        p = torch.softmax(engine_logits(engine, [("m0", prompt, (2,))])[0][0] / 0.7, -1).numpy()
    counts = np.bincount(drawn, minlength=len(p))
    likely = p * 4000 > 20
    z = (counts - 4000 * p)[likely] / np.sqrt(4000 * p * (1 - p))[likely]
    assert likely.sum() > 5
    assert np.abs(z).max() < 4.5
    assert 0.5 < np.mean(z**2) < 2


def test_stop_texts_end_tokens_and_truncation(made):
    _, _, engine = made("llama")
    prompt = engine.prompt("def", "compact")
    requests = [Request("m1", prompt, i) for i in range(60)]
    for completion in engine.generate(requests, Sampling(1.0, 40, ("e", "ab"))):
        decoded = engine.tokenizer.decode(completion.tokens, skip_special_tokens=True)
        assert "e" not in completion.text
        assert "ab" not in completion.text
        if completion.truncated:
            assert len(completion.tokens) == 40
            assert completion.text == decoded
        else:
            assert decoded.startswith(completion.text)
            assert completion.tokens[-1] == 1 or decoded[len(completion.text) :] in ("e", "ab")
        assert 1 not in completion.tokens[:-1]


def test_every_end_token_of_the_model_ends(made, tmp_path):
    """H8: a base whose generation config names two."""
    from transformers import GenerationConfig

    base = write_base(tmp_path / "two", "llama")
    GenerationConfig(eos_token_id=[1, 77], bos_token_id=0).save_pretrained(base)
    engine = TorchEngine(str(base), slots=1, rank=2)
    engine.fresh("m", 0)
    prompt = engine.prompt("x", "compact")
    found = engine.generate([Request("m", prompt, i) for i in range(300)], Sampling(1.5, 30))
    assert {c.tokens[-1] for c in found if not c.truncated} == {1, 77}
    assert all(77 not in c.tokens[:-1] and 1 not in c.tokens[:-1] for c in found)


def test_an_end_on_the_last_token_is_no_truncation(made):
    _, _, engine = made("llama")
    prompt = engine.prompt("x", "compact")
    for completion in engine.generate([Request("m0", prompt, i) for i in range(400)], Sampling(1.5, 1, ("q",))):
        ended = completion.tokens[-1] == 1 or engine.tokenizer.decode(completion.tokens) == "q"
        assert completion.truncated != ended


def test_prompts_have_one_start_token(made, tmp_path):
    """H9, with a template that writes one and a tokenizer that would add another."""
    _, _, engine = made("llama")
    assert engine.prompt("a", "compact")[:2] == (0, engine.tokenizer.encode("a", add_special_tokens=False)[0])
    chat = engine.prompt("hello", "chat")
    assert engine.tokenizer.decode(chat) == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert chat.count(0) == 2


def test_tokens_are_kept_as_sampled(made):
    """H22: the text of random bytes does not tokenise back to the same ids."""
    _, _, engine = made("llama")
    prompt = engine.prompt("x", "compact")
    found = engine.generate([Request("m0", prompt, i) for i in range(30)], Sampling(2.0, 20))
    again = [tuple(engine.tokenizer.encode(c.text, add_special_tokens=False)) for c in found]
    assert any(a != c.tokens for a, c in zip(again, found, strict=True))
    assert all(len(c.tokens) == len(c.logprobs) for c in found)


def test_members_go_out_as_peft_folders_and_come_back(made, tmp_path):
    base, adapters, engine = made("qwen2")
    le.save(engine.adapter("m0"), tmp_path / "m0")
    peft = peft_model(base, {"m0": tmp_path / "m0", "first": adapters["m0"]})
    prompt, completion = engine.prompt("abc", "compact"), (5, 6, 7)
    with torch.no_grad():
        assert torch.equal(peft_logits(peft, "m0", prompt, completion), peft_logits(peft, "first", prompt, completion))
    engine.put("copy", le.load(tmp_path / "m0"))
    assert torch.equal(engine.bank.weights[engine.bank.slot("copy")], engine.bank.weights[engine.bank.slot("m0")])
    engine.drop("copy")
    for child in (
        le.mutate(engine.adapter("m0"), "gaussian", seed=0),
        le.crossover([engine.adapter(m) for m in adapters], "linear", seed=0),
    ):
        engine.put("child", child)
        engine.drop("child")


def test_new_weights_are_used_at_once(made):
    """H1, H2, H3: no stale adapter."""
    _, _, engine = made("llama")
    prompt = engine.prompt("def f", "compact")
    before = engine.generate([Request("m0", prompt, 3)], Sampling(1.0, 20))
    saved = engine.adapter("m0")
    engine.put("m0", engine.adapter("m1"))
    assert engine.generate([Request("m0", prompt, 3)], Sampling(1.0, 20)) == engine.generate(
        [Request("m1", prompt, 3)], Sampling(1.0, 20)
    )
    engine.put("m0", saved)
    assert engine.generate([Request("m0", prompt, 3)], Sampling(1.0, 20)) == before
    engine.fresh("new", 1)
    base = engine.generate([Request(None, prompt, 3)], Sampling(1.0, 20))
    assert engine.generate([Request("new", prompt, 3)], Sampling(1.0, 20))[0].tokens == base[0].tokens
    engine.drop("new")
    with pytest.raises(MemberError, match="no member new"):
        engine.generate([Request("new", prompt, 3)], Sampling(1.0, 20))


def test_more_members_than_slots_is_said_before_anything_happens(made):
    """H24."""
    _, _, engine = made("llama")
    engine.fresh("m3", 0)
    with pytest.raises(MemberError, match="all 4 slots are taken"):
        engine.fresh("m4", 0)
    assert engine.members == ("m0", "m1", "m2", "m3")
    engine.drop("m3")


def test_what_does_not_fit_is_refused_by_name(made, tmp_path):
    base, _, engine = made("llama")
    wide = peft_folder(base, tmp_path / "wide", 16, 8, "all-linear", 0)
    before = engine.bank.weights.clone()
    with pytest.raises(MemberError, match="rank 16, members here have 4"):
        engine.put("m0", le.load(wide))
    other = TorchEngine(str(base), slots=2, rank=4, targets=("q_proj",))
    with pytest.raises(MemberError, match="targets must agree"):
        other.put("x", engine.adapter("m0"))
    tiny = TorchEngine("tiny-llama", slots=2, rank=4)
    with pytest.raises(MemberError, match="another base"):
        tiny.put("x", engine.adapter("m0"))
    assert torch.equal(engine.bank.weights, before)
    with pytest.raises(LoraEvoError, match="names no module"):
        TorchEngine(str(base), slots=1, targets=("nothing",))
    with pytest.raises(LoraEvoError, match="float16"):
        TorchEngine(str(base), slots=1, dtype="float16")
    with pytest.raises(LoraEvoError, match="no-such"):
        TorchEngine(str(tmp_path / "no-such"), slots=1)


def test_a_smaller_rank_and_another_alpha_give_the_same_delta(made, tmp_path):
    base, adapters, engine = made("llama")
    wider = TorchEngine(str(base), slots=3, rank=8, alpha=4)
    for name, folder in adapters.items():
        wider.put(name, le.load(folder))
    seqs = sequences(engine)
    with torch.no_grad():
        for a, b in zip(engine_logits(wider, seqs), engine_logits(engine, seqs), strict=True):
            assert torch.allclose(a, b, atol=1e-5)


def test_bfloat16_keeps_members_in_float32(made):
    base, adapters, engine = made("llama")
    half = TorchEngine(str(base), slots=3, rank=RANK, alpha=ALPHA, dtype="bfloat16")
    for name, folder in adapters.items():
        half.put(name, le.load(folder))
    assert half.bank.weights.dtype == torch.float32
    assert half.model.dtype == torch.bfloat16
    seqs = sequences(engine)
    half.bank.learn()
    logits = engine_logits(half, seqs)
    sum(o.sum() for o in logits).backward()
    assert half.bank.grads.abs().sum() > 0
    with torch.no_grad():
        for a, b in zip(logits, engine_logits(engine, seqs), strict=True):
            assert (a - b).abs().max() < 0.15
    assert len(half.generate([Request("m0", seqs[0][1], 0)], Sampling(1.0, 5))[0].tokens) >= 1
