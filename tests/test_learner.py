"""The update of all members at once: as if each were alone, whatever the batch; and the defects that are known of others."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from bases import write_base

from selfplay.advantages import advantages
from selfplay.engines import Request, Sampling
from selfplay.engines.bank import MemberError
from selfplay.engines.torch_engine import TorchEngine
from selfplay.learner import Learner, LearnRules, Sample
from selfplay.logprobs import ROWS, chosen

MEMBERS = ("m0", "m1", "m2")
LOSSES = ("grpo", "dr_grpo", "reinforce_pp_baseline")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return str(write_base(tmp_path_factory.mktemp("learner") / "base", "qwen3"))


def engine_of(base: str, members=MEMBERS) -> TorchEngine:
    engine = TorchEngine(base, slots=len(members) + 1, rank=4, alpha=8)
    for i, name in enumerate(members):
        engine.fresh(name, i)
        row = engine.bank.weights[engine.bank.slot(name)]
        row += 0.05 * torch.from_numpy(np.random.default_rng(i).standard_normal(len(row), dtype="float32"))
    return engine


def samples_of(engine: TorchEngine, members=MEMBERS, seed: int = 0, temperature: float = 1.0) -> list[Sample]:
    """Two prompts and four completions each for every member; reward: share of small ids."""
    prompts = [engine.prompt(text, "compact") for text in ("def f(x):\n    return x", "in: 3\nout:")]
    requests = [Request(m, p, 1000 * seed + 10 * int(m[1:]) + g) for m in members for p in prompts for g in range(4)]
    found = engine.generate(requests, Sampling(temperature, 12))
    rewards = [sum(t < 128 for t in c.tokens) / len(c.tokens) for c in found]
    worth = advantages(rewards, [(r.member, r.prompt) for r in requests], "grpo")
    return [
        Sample(r.member, r.prompt, c.tokens, c.logprobs, float(a), c.truncated and i % 7 == 0)
        for i, (r, c, a) in enumerate(zip(requests, found, worth, strict=True))
    ]


def gradients(engine: TorchEngine, samples, rules: LearnRules, temperature: float = 1.0) -> torch.Tensor:
    """What an update adds up, and the weights as they were."""
    learner = Learner(engine, replace(rules, max_grad_norm=1e9, lr=0.0), temperature)
    before = engine.bank.weights.clone()
    learner.update(samples)
    assert torch.equal(engine.bank.weights, before)
    return engine.bank.grads.clone()


def reference(engine: TorchEngine, samples, rules: LearnRules, member: str, temperature: float = 1.0) -> torch.Tensor:
    """The gradient of the loss as written in the papers, one sequence at a time, through the embedded model alone."""
    own = [s for s in samples if s.member == member and not (s.truncated and rules.mask_truncated)]
    engine.bank.learn()
    engine.bank.grads.zero_()
    slot = engine.bank.slot(member)
    total = torch.zeros(())
    for s in own:
        engine.bank.route = [(slot, 1)]
        ids = torch.tensor([[*s.prompt, *s.tokens]])
        logits = engine.model(input_ids=ids).logits[0, len(s.prompt) - 1 : -1] / temperature
        logprob = torch.log_softmax(logits, -1).gather(1, torch.tensor(s.tokens)[:, None])[:, 0]
        ratio = (logprob - logprob.detach()).exp()
        sampler = torch.tensor(s.logprobs)
        per_token = -(logprob.detach() - sampler).exp().clamp(max=rules.importance_cap) * ratio * s.advantage
        if rules.kl:
            engine.bank.route = [(-1, 1)]
            with torch.no_grad():
                free = engine.model(input_ids=ids).logits[0, len(s.prompt) - 1 : -1] / temperature
                ref = torch.log_softmax(free, -1).gather(1, torch.tensor(s.tokens)[:, None])[:, 0]
            per_token = per_token + rules.kl * ((ref - logprob).exp() - (ref - logprob) - 1)
        if rules.loss == "grpo":
            total = total + per_token.mean() / len(own)
        elif rules.loss == "dr_grpo":
            total = total + per_token.sum() / (len(own) * 256)
        else:
            total = total + per_token.sum() / sum(len(x.tokens) for x in own)
    total.backward()
    return engine.bank.grads[slot].clone()


def likelihood(engine: TorchEngine, samples, member: str) -> float:
    """Mean log-probability of a member's samples, each times its advantage."""
    total = 0.0
    for s in (s for s in samples if s.member == member):
        engine.bank.route = [(engine.bank.slot(member), 1)]
        with torch.no_grad():
            logits = engine.model(input_ids=torch.tensor([[*s.prompt, *s.tokens]])).logits[0, len(s.prompt) - 1 : -1]
        logprobs = torch.log_softmax(logits, -1).gather(1, torch.tensor(s.tokens)[:, None])
        total += s.advantage * float(logprobs.mean())
    return total


def close(a: torch.Tensor, b: torch.Tensor, tolerance: float = 2e-5) -> bool:
    return bool((a - b).norm() <= tolerance * max(float(b.norm()), 1e-9))


@pytest.mark.parametrize("rows", [1, ROWS, 2 * ROWS + 3])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
def test_logprobs_in_parts_are_those_of_the_whole(rows, dtype, tolerance):
    """Values and gradients as of cross entropy in float32; of the logits nothing is kept but themselves."""
    kept: list[torch.Tensor] = []
    logits = (3 * torch.randn(rows, 50, generator=torch.Generator().manual_seed(rows))).to(dtype).requires_grad_()
    targets, slope = torch.arange(rows) % 50, torch.linspace(-1, 2, rows)
    expected = -torch.nn.functional.cross_entropy(logits.float() / 0.7, targets, reduction="none")
    (theirs,) = torch.autograd.grad(expected, logits, slope)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        found = chosen(logits, targets, 0.7)
    (ours,) = torch.autograd.grad(found, logits, slope)
    assert torch.equal(found, expected)
    assert ours.dtype == dtype
    assert close(ours.float(), theirs.float(), tolerance)
    assert {t.data_ptr() for t in kept} == {logits.data_ptr(), targets.data_ptr()}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kl", [0.0, 0.1])
def test_gradients_are_those_of_the_formula(base, loss, kl):
    engine = engine_of(base)
    samples = samples_of(engine)
    assert any(s.truncated for s in samples)
    rules = LearnRules(loss=loss, kl=kl)
    found = gradients(engine, samples, rules)
    for member in MEMBERS:
        assert close(found[engine.bank.slot(member)], reference(engine, samples, rules, member)), member


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("tokens", [1, 60, 150, 100_000])
def test_gradients_do_not_depend_on_the_split_into_batches(base, loss, tokens):
    """H10, with uneven lengths."""
    engine = engine_of(base)
    samples = samples_of(engine)
    whole = gradients(engine, samples, LearnRules(loss=loss))
    assert close(gradients(engine, samples, LearnRules(loss=loss, tokens_per_batch=tokens)), whole)
    assert close(gradients(engine, samples[::-1], LearnRules(loss=loss, tokens_per_batch=tokens)), whole)


def test_checkpointing_gives_the_same_gradients(base):
    """H20 and what reentrant checkpointing does to routed layers: all factors get theirs."""
    engine = engine_of(base)
    samples = samples_of(engine)
    plain = gradients(engine, samples, LearnRules())
    kept = gradients(engine, samples, LearnRules(checkpointing=True))
    assert close(kept, plain, 1e-6)
    for place in engine.bank.places.values():
        for member in MEMBERS:
            row = kept[engine.bank.slot(member)]
            assert place.A(row).abs().max() > 0
            assert place.B(row).abs().max() > 0
    assert not engine.model.training


def test_fresh_members_learn_in_every_module(base):
    """H20: B of every module moves in the first step, A cannot before."""
    engine = TorchEngine(base, slots=1, rank=4)
    engine.fresh("m0", 5)
    samples = samples_of(engine, ("m0",))
    Learner(engine, LearnRules(lr=1e-2)).update(samples)
    row = engine.bank.weights[0]
    assert all(place.B(row).abs().max() > 0 for place in engine.bank.places.values())


def test_together_is_the_same_as_alone(base):
    """H4: four updates of three members at once, and of each alone: weights, Adam state, figures."""
    engine = engine_of(base)
    learner = Learner(engine, LearnRules(lr=3e-3, epochs=2))
    solo = {m: engine_of(base) for m in MEMBERS}
    learners = {m: Learner(solo[m], LearnRules(lr=3e-3, epochs=2)) for m in MEMBERS}
    for step in range(4):
        samples = samples_of(engine, seed=step)
        together = learner.update(samples)
        for m in MEMBERS:
            alone = learners[m].update([s for s in samples if s.member == m])
            assert alone[m].grad_norm == pytest.approx(together[m].grad_norm, rel=1e-3)
            assert alone[m].trained_tokens == together[m].trained_tokens
    for m in MEMBERS:
        slot = engine.bank.slot(m)
        moved = (engine.bank.weights[slot] - engine_of(base).bank.weights[slot]).norm()
        assert (engine.bank.weights[slot] - solo[m].bank.weights[slot]).norm() < 2e-3 * moved
        assert close(learner.moments[0, slot], learners[m].moments[0, slot], 1e-2)


def test_a_member_without_samples_or_signal_is_left_alone(base):
    """H4, H5: bit for bit, optimizer state too."""
    engine = engine_of(base)
    learner = Learner(engine, LearnRules(lr=1e-2))
    learner.update(samples_of(engine))
    before, moments = engine.bank.weights.clone(), learner.moments.clone()
    samples = [replace(s, advantage=0.0) if s.member == "m1" else s for s in samples_of(engine, ("m0", "m1"), seed=1)]
    updates = learner.update(samples)
    assert updates["m1"].skipped == "no group had both good and bad"
    assert set(updates) == {"m0", "m1"}
    for m in ("m1", "m2"):
        assert torch.equal(engine.bank.weights[engine.bank.slot(m)], before[engine.bank.slot(m)])
        assert torch.equal(learner.moments[:, engine.bank.slot(m)], moments[:, engine.bank.slot(m)])
    assert not torch.equal(engine.bank.weights[engine.bank.slot("m0")], before[engine.bank.slot("m0")])


def test_everything_cut_off_teaches_nothing(base):
    """H14."""
    engine = engine_of(base)
    learner = Learner(engine, LearnRules())
    before = engine.bank.weights.clone()
    updates = learner.update([replace(s, truncated=True) for s in samples_of(engine)])
    assert {u.skipped for u in updates.values()} == {"every completion was cut off"}
    assert all(u.truncated == 1 and u.loss == 0 for u in updates.values())
    assert torch.equal(engine.bank.weights, before)
    kept = Learner(engine, LearnRules(mask_truncated=False)).update([replace(s, truncated=True) for s in samples_of(engine)])
    assert all(not u.skipped for u in kept.values())


def test_no_samples_no_update(base):
    assert Learner(engine_of(base), LearnRules()).update([]) == {}


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.5])
def test_ratios_are_one_without_an_update(base, temperature):
    """H6."""
    engine = engine_of(base)
    updates = Learner(engine, LearnRules(), temperature).update(samples_of(engine, temperature=temperature))
    for update in updates.values():
        assert update.ratio == pytest.approx((1, 1, 1), abs=1e-4)
        assert update.mismatch < 1e-5
        assert update.clipped == 0
    wrong = Learner(engine_of(base), LearnRules(), temperature * 1.3).update(samples_of(engine, temperature=temperature))
    assert all(u.mismatch > 1e-2 for u in wrong.values())


def test_a_sampler_that_differs_is_measured_and_corrected(base):
    """Log-probabilities that are off by 0.1 for every token: every token weighs exp(0.1) more, and not more than the cap."""
    engine = engine_of(base)
    samples = samples_of(engine)
    off = [replace(s, logprobs=tuple(lp - 0.1 for lp in s.logprobs)) for s in samples]
    plain, weighted = gradients(engine, samples, LearnRules()), gradients(engine, off, LearnRules())
    assert close(weighted, plain * float(np.exp(0.1)), 1e-4)
    assert close(gradients(engine, off, LearnRules(importance_cap=1.0)), plain, 1e-4)
    updates = Learner(engine, LearnRules()).update(off)
    assert updates["m0"].mismatch == pytest.approx(0.1, abs=1e-4)
    assert updates["m0"].ratio[1] == pytest.approx(np.exp(0.1), rel=1e-4)


def test_later_epochs_clip(base):
    engine = engine_of(base)
    updates = Learner(engine, LearnRules(lr=0.05, warmup=0, epochs=4)).update(samples_of(engine))
    assert any(u.clipped > 0 for u in updates.values())
    assert all(u.ratio == pytest.approx((1, 1, 1), abs=1e-4) for u in updates.values())


def test_clipping_is_each_members_own(base):
    """A hundred times the advantage for one member: its own step is the clipped one, the others' are what they were."""
    rules = LearnRules(lr=1e-2, warmup=0, max_grad_norm=0.01, epsilon=1.0)
    plain, loud = engine_of(base), engine_of(base)
    samples = samples_of(plain)
    a = Learner(plain, rules).update(samples)
    b = Learner(loud, rules).update([replace(s, advantage=100 * s.advantage) if s.member == "m0" else s for s in samples])
    assert b["m0"].grad_norm == pytest.approx(100 * a["m0"].grad_norm, rel=1e-3)
    for m in MEMBERS:
        slot = plain.bank.slot(m)
        assert torch.allclose(loud.bank.weights[slot], plain.bank.weights[slot], atol=1e-8)


def test_adam_by_an_independent_implementation(base):
    engine = engine_of(base, ("m0",))
    learner = Learner(engine, LearnRules(lr=2e-3, warmup=2, max_grad_norm=0.5))
    row = torch.nn.Parameter(engine.bank.weights[0].clone())
    adam = torch.optim.Adam([row], lr=2e-3, betas=(0.9, 0.95))
    for step in range(5):
        learner.update(samples_of(engine, ("m0",), seed=step))
        row.grad = engine.bank.grads[0].clone()  # clipped in place by the update
        adam.param_groups[0]["lr"] = 2e-3 * min(1, (step + 1) / 3)
        adam.step()
        assert float(row.grad.norm()) <= 0.5 * (1 + 1e-5)
        assert torch.allclose(engine.bank.weights[0], row, atol=1e-6)


def test_a_child_starts_anew(base):
    """A name that takes a dead member's row inherits neither moments nor the count of updates."""
    engine = engine_of(base)
    learner = Learner(engine, LearnRules(lr=1e-2, warmup=3))
    for step in range(3):
        learner.update(samples_of(engine, seed=step))
    slot = engine.bank.slot("m1")
    engine.drop("m1")
    learner.forget("m1")
    engine.fresh("m9", 9)
    assert engine.bank.slot("m9") == slot
    update = learner.update(samples_of(engine, ("m9",)))["m9"]
    assert update.lr == pytest.approx(1e-2 / 4)
    assert learner.updates["m9"] == 1
    grad = engine.bank.grads[slot]
    assert torch.allclose(learner.moments[0, slot], 0.1 * grad, atol=1e-9)


def test_state_goes_out_and_comes_back_to_the_bit(base, tmp_path):
    """H19."""
    engine = engine_of(base)
    learner = Learner(engine, LearnRules(lr=1e-2))
    for step in range(2):
        learner.update(samples_of(engine, seed=step))
    for m in MEMBERS:
        learner.save(m, tmp_path / f"{m}.safetensors")
    other = engine_of(base)
    again = Learner(other, LearnRules(lr=1e-2))
    for m in reversed(MEMBERS):
        other.drop(m)
    for m in reversed(MEMBERS):  # other rows than before
        other.put(m, engine.adapter(m))
        again.load(m, tmp_path / f"{m}.safetensors")
    samples = samples_of(engine, seed=5)
    assert samples == samples_of(other, seed=5)
    learner.update(samples)
    again.update(samples)
    for m in MEMBERS:
        assert torch.equal(engine.bank.weights[engine.bank.slot(m)], other.bank.weights[other.bank.slot(m)])
        assert torch.equal(learner.moments[:, engine.bank.slot(m)], again.moments[:, other.bank.slot(m)])
    assert learner.updates == again.updates


def test_a_gradient_that_is_not_finite_changes_nothing(base):
    engine = engine_of(base)
    learner = Learner(engine, LearnRules())
    before = engine.bank.weights.clone()
    samples = [replace(s, advantage=float("inf")) if s.member == "m0" and s.advantage else s for s in samples_of(engine)]
    updates = learner.update(samples)
    assert updates["m0"].skipped == "the gradient was not finite"
    slot = engine.bank.slot("m0")
    assert torch.equal(engine.bank.weights[slot], before[slot])
    assert not learner.moments[:, slot].any()
    assert not updates["m1"].skipped
    assert torch.isfinite(engine.bank.weights).all()


def test_a_step_makes_good_completions_likelier(base):
    """H1: for those who learn, by what the engine itself says of the same tokens; and nothing changes for the others."""
    engine = engine_of(base)
    samples = samples_of(engine)

    before = {m: likelihood(engine, samples, m) for m in MEMBERS}
    Learner(engine, LearnRules(lr=1e-2, warmup=0)).update([s for s in samples if s.member != "m2"])
    after = {m: likelihood(engine, samples, m) for m in MEMBERS}
    assert after["m0"] > before["m0"] + 0.01
    assert after["m1"] > before["m1"] + 0.01
    assert after["m2"] == before["m2"]


@pytest.mark.parametrize(
    "wrong", [{"lr": -1}, {"epochs": 0}, {"max_grad_norm": 0}, {"beta1": 1}, {"tokens_per_batch": 0}, {"importance_cap": 0}]
)
def test_rules_are_checked(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        LearnRules(**wrong)


def test_what_was_chosen_without_chance_is_refused(base):
    with pytest.raises(ValueError, match="temperature is 0"):
        Learner(engine_of(base), LearnRules(), 0.0)
    with pytest.raises(MemberError, match="no member m7"):
        Learner(engine_of(base), LearnRules()).update([Sample("m7", (1,), (2,), (-1.0,), 1.0)])
