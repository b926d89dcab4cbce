"""vLLM for real, beside the embedded engine: `make test-vllm` on a CPU, or wherever `vllm` is installed."""

from collections import Counter

import numpy as np
import pytest
from scipy.stats import chi2_contingency, chisquare
from vllms import DEVICE, NAMES, TEXTS, config, drawn, embedded, memory, scores, ties

import lora_evo as le
from selfplay.engines import Request, Sampling
from selfplay.engines.bank import MemberError
from selfplay.engines.versions import ServeError

pytest.importorskip("vllm", reason="vLLM IS NOT INSTALLED HERE: make test-vllm makes an environment that has it")

LONG = "".join(f"def f(x):\n    return x + {i}\nin: {i}\nout: {2 * i}\n\n" for i in range(20))
"""More tokens than a block of any cache of prefixes."""


@pytest.fixture(scope="module")
def both():
    """The embedded engine and vLLM with the same eight members, of which vLLM holds two in a batch."""
    from selfplay.engines.vllm_engine import VllmEngine

    engine, sampler = embedded(), VllmEngine(config(), len(NAMES))
    for name in NAMES:
        sampler.put(name, engine.adapter(name))
    yield engine, sampler
    sampler.close()
    assert not sampler.versions.folder.exists()


def asked(engine, texts=TEXTS, members=(None, *NAMES), seeds=1):
    return [Request(m, engine.prompt(t, "compact"), s) for s in range(seeds) for t in texts for m in members]


def test_greedy_completions_are_the_embedded_engines_with_more_adapters_than_slots(both):
    """vllm#14495: eight adapters, two slots."""
    engine, sampler = both
    requests, sampling = asked(engine), Sampling(0, 32, ("\n\n",))
    ours, theirs = engine.generate(requests, sampling), sampler.generate(requests, sampling)
    assert ties(engine, requests, ours, theirs) <= 1
    assert {c.finish for c in theirs} == {"stop", "length"}
    assert len({c.tokens for c in theirs}) > len(requests) / 3


@pytest.mark.parametrize("cut", range(1, 14))
def test_what_is_cut_off_is_said_exactly(both, cut):
    """A stop text, an end token or nothing may come with the last token that is allowed."""
    engine, sampler = both
    requests, sampling = asked(engine, members=(None, "m1")), Sampling(0, cut, ("in", "\n"))
    assert ties(engine, requests, engine.generate(requests, sampling), sampler.generate(requests, sampling)) == 0


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_the_learners_at_the_temperature(both, temperature):
    """trl#2698, trl#4159: each member's own weights, and what was drawn from."""
    engine, sampler = both
    requests = asked(engine, seeds=2)
    written = sampler.generate(requests, Sampling(temperature, 24, ("\n\n",)))
    expected = scores(engine, requests, [c.tokens for c in written], temperature)
    assert max(np.abs(np.subtract(c.logprobs, e)).max() for c, e in zip(written, expected, strict=True)) < 1e-2


def test_prompts_are_the_learners(both):
    """trl#3853: one start token, and the tokens the learner sees."""
    engine, sampler = both
    assert all(sampler.prompt(text, "compact") == engine.prompt(text, "compact") for text in (*TEXTS, LONG))
    (found,) = sampler._llm.generate([{"prompt_token_ids": list(engine.prompt(TEXTS[0], "compact"))}], use_tqdm=False)
    assert tuple(found.prompt_token_ids) == engine.prompt(TEXTS[0], "compact")


@pytest.mark.parametrize("member", ["m0", "m5"])
def test_first_tokens_come_in_their_exact_shares(both, member):
    engine, sampler = both
    prompt = engine.prompt(TEXTS[0] + "def f(x):\n    ", "compact")
    requests = [Request(member, prompt, seed) for seed in range(400)]
    vocabulary = len(engine.tokenizer)
    shares = np.exp([s[0] for s in scores(engine, [requests[0]] * vocabulary, [(t,) for t in range(vocabulary)])])

    def fits(temperature: float) -> float:
        counts = Counter(c.tokens[0] for c in sampler.generate(requests, Sampling(temperature, 1)))
        expected = shares / shares.sum() * len(requests)
        often = [t for t in range(vocabulary) if expected[t] >= 5]
        seen = [counts[t] for t in often] + [len(requests) - sum(counts[t] for t in often)]
        hoped = [expected[t] for t in often] + [len(requests) - sum(expected[t] for t in often)]
        assert len(often) >= 3, expected
        return float(chisquare(seen, hoped).pvalue)

    assert fits(1.0) > 1e-3
    assert fits(0.4) < 1e-6  # the test sees a difference where there is one


def test_whole_answers_are_drawn_alike(both):
    engine, sampler = both
    prompt = engine.prompt(TEXTS[2], "compact")
    requests, sampling = [Request("m2", prompt, seed) for seed in range(400)], Sampling(1.0, 8, ("\n",))
    ours, theirs = (Counter(c.text for c in e.generate(requests, sampling)) for e in (engine, sampler))
    often = [text for text in ours | theirs if ours[text] + theirs[text] >= 10]
    table = [[counts[t] for t in often] + [1 + sum(n for t, n in counts.items() if t not in often)] for counts in (ours, theirs)]
    assert len(often) >= 3
    assert chi2_contingency(table).pvalue > 1e-3


def test_a_seed_gives_its_completion_whatever_else_is_asked(both):
    engine, sampler = both
    requests, sampling = asked(engine, members=("m3",), seeds=4), Sampling(1.0, 16)
    together = sampler.generate([*asked(engine), *requests], sampling)[-len(requests) :]
    assert [c.tokens for c in sampler.generate(requests[::-1], sampling)][::-1] == [c.tokens for c in together]
    assert len({c.tokens for c in together}) > len(TEXTS)


def test_more_prompts_than_are_read_at_once_are_answered(both):
    """vLLM 0.32 on a CPU dies of a prompt with a seed that is read in two parts: `CPU Generator does not use offset`."""
    engine, sampler = both
    requests = asked(engine, [f"# {i}\n{LONG}" for i in range(24)], ("m0", "m1"))
    assert sum(len(r.prompt) for r in requests) > 3 * 4096
    sampling = Sampling(1.0, 4, ())
    assert sampler.generate(requests, sampling)[-1].tokens == sampler.generate(requests[-1:], sampling)[0].tokens


def test_an_old_version_never_answers(both):
    """vllm#42125: same name, other weights, and a prompt whose blocks are cached."""
    engine, sampler = both
    requests, sampling = asked(engine, [LONG + text for text in TEXTS], ["m4", "m5"]), Sampling(0, 16)
    before, old = sampler.generate(requests, sampling), engine.adapter("m4")
    assert sampler.generate(requests, sampling) == before
    lora = sampler.served["m4"]
    (again,) = sampler._llm.generate([{"prompt_token_ids": list(requests[0].prompt)}], lora_request=_request(lora), use_tqdm=False)
    assert again.num_cached_tokens >= 64  # the cache is in use
    engine.put("m4", drawn(engine, "m4", 104))
    sampler.put("m4", engine.adapter("m4"))
    after = sampler.generate(requests, sampling)
    assert ties(engine, requests, engine.generate(requests, sampling), after) <= 1
    assert all((a != b) == (r.member == "m4") for a, b, r in zip(after, before, requests, strict=True))
    new = sampler.served["m4"]
    assert new.name != lora.name
    assert new.number > lora.number
    assert not lora.folder.exists()
    assert lora.number not in sampler._llm.llm_engine.list_loras()
    engine.put("m4", old)
    sampler.put("m4", old)
    assert sampler.generate(requests, sampling) == before
    assert sampler.served["m4"].number > new.number


def test_a_child_has_no_number_of_the_dead(both):
    """prime-rl#1449: the name may come again, the number may not."""
    engine, sampler = both
    used = {version.number for version in sampler.served.values()}
    sampler.drop("m7")
    with pytest.raises(MemberError, match="m7"):
        sampler.generate([Request("m7", (0,), 0)], Sampling(0, 1))
    sampler.put("m7", engine.adapter("m7"))
    assert sampler.served["m7"].number > max(used)


def test_equal_weights_are_not_served_anew(both):
    engine, sampler = both
    before = sampler.served["m1"]
    sampler.put("m1", engine.adapter("m1"))
    assert sampler.served["m1"] is before


def test_fifty_swaps_leave_nothing_behind(both):
    engine, sampler = both
    requests, sampling = asked(engine, TEXTS[:1], ["m6"]), Sampling(0, 4)
    sizes, kept = [], engine.adapter("m6")
    for i in range(60):
        sampler.put("m6", drawn(engine, "m6", 200 + i))
        sampler.generate(requests, sampling)
        sizes += [memory()]
    folders = sorted(p.name for p in sampler.versions.folder.iterdir())
    assert folders == sorted(["lock", *(v.name for v in sampler.served.values())])
    size = kept.nbytes / 2**20
    assert sizes[-1] - sizes[9] < 25 * size, (size, sizes[9::10])  # half of what fifty would hold
    sampler.put("m6", kept)


def test_uneven_ranks_and_scales_are_served_right(both):
    """vLLM reads no rank_pattern and no alpha_pattern."""
    engine, sampler = both
    modules = dict(engine.adapter("m0").modules)
    for i, (name, f) in enumerate(modules.items()):
        rank = 1 + i % RANKS
        modules[name] = le.LoraFactors(f.A[:rank].clone(), f.B[:, :rank].clone(), f.scale * (1 + i % 3))
    uneven = le.Adapter(modules, engine.adapter("m0").config, name="uneven")
    for each in (engine, sampler):
        each.put("uneven", uneven)
    requests, sampling = asked(engine, members=["uneven"]), Sampling(0, 24)
    assert ties(engine, requests, engine.generate(requests, sampling), sampler.generate(requests, sampling)) == 0
    for each in (engine, sampler):
        each.drop("uneven")


def test_what_cannot_be_served_is_refused_and_the_rest_goes_on(both):
    engine, sampler = both
    requests, sampling = asked(engine, members=["m0"]), Sampling(0, 8)
    before, good = sampler.generate(requests, sampling), engine.adapter("m0")
    name, factors = next(iter(good.modules.items()))
    wide = le.LoraFactors(factors.A.repeat(9, 1), factors.B.repeat(1, 9), factors.scale)
    with pytest.raises(ServeError, match="rank 72"):
        sampler.put("m0", le.Adapter({name: wide}, good.config))
    assert sampler.generate(requests, sampling) == before


def test_sleeping_and_waking_changes_nothing(both):
    engine, sampler = both
    requests, sampling = asked(engine), Sampling(0, 8)
    before = sampler.generate(requests, sampling)
    for _ in range(2):
        sampler.sleep()
        sampler.sleep()
        sampler.wake()
        assert sampler.generate(requests, sampling) == before
    assert sampler.sleeps == (DEVICE == "cuda")


RANKS = 4


def _request(version):
    from selfplay.engines.vllm_engine import _lora

    return _lora(version)
