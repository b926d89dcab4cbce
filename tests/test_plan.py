"""The plan against what is real: a played game, loaded models, allocated tensors; and its mathematics."""

import json
import math
import shutil
from dataclasses import asdict, fields, replace
from pathlib import Path
from statistics import fmean

import pytest
import torch
from bases import FAMILIES, write_base
from games import Silent, left, small
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.scaling import H200, ROOMY, markdown, sized
from lora_evo.errors import LoraEvoError
from lora_evo_cli.main import main
from selfplay import learner as learning
from selfplay import presets
from selfplay.bases import BaseError
from selfplay.engines import torch_engine
from selfplay.engines.cache import ROOM, GrowingCache
from selfplay.engines.rows import batch_of, groups_of
from selfplay.engines.torch_engine import TorchEngine
from selfplay.learner import Learner, LearnRules
from selfplay.plan import geometry, measured, plan, rates, table
from selfplay.plan.geometry import KNOWN
from selfplay.plan.load import Lengths, bounds, load
from selfplay.plan.memory import cache_bytes, layer_bytes, learning_gpu
from selfplay.plan.planning import Layout
from selfplay.plan.seconds import by_resource
from selfplay.runs import begun, play

ROOT = Path(__file__).parent.parent
NANO = geometry("nano")
QWEN = "Qwen/Qwen2.5-Coder-7B"
SEVEN = geometry(QWEN)
PAPER = presets.preset("populora-7b")


@pytest.fixture(scope="module")
def seen():
    """What the engine's caches and the learner's batches came to while the game of `run` was played."""
    return {"cache": 0, "rows": 0}


@pytest.fixture(scope="module")
def run(tmp_path_factory, seen):
    """A game of three steps, watched from the side."""

    class Weighed(GrowingCache):
        def update(self, *args, **kwargs):
            found = super().update(*args, **kwargs)
            seen["cache"] = max(seen["cache"], held(self))
            return found

    def laid(groups, device):
        seen["rows"] += sum(group.length for group in groups)
        return batch_of(groups, device)

    folder = tmp_path_factory.mktemp("plan") / "run"
    with pytest.MonkeyPatch.context() as patch, begun(small("steps=3"), folder) as game:
        patch.setattr(torch_engine, "GrowingCache", Weighed)
        patch.setattr(learning, "batch_of", laid)
        play(game, Silent())
    return folder


@pytest.fixture(scope="module")
def watched(run):
    return measured.watched(run)


def held(cache: GrowingCache) -> int:
    """Bytes of a cache's tensors, their room included."""
    return sum(room.numel() * room.element_size() for layer in cache.layers for room in getattr(layer, "_rooms", ()))


def happened(step: measured.Step) -> dict[str, int]:
    """What one step of a run came to, counted from its events."""
    events = (*step.proposals, *step.answers)
    return {
        "requests": len(events),
        "prompt_tokens": sum(e["prompt_tokens"] for e in events),
        "completion_tokens": sum(e["tokens"] for e in events),
        "trained_tokens": sum(e["tokens"] for e in step.updates),
        "programs": sum(e["programs"] for e in events),
    }


# a played game


def test_a_step_asks_what_the_plan_says(watched):
    most = load(watched.config, bounds(watched.config))
    for step in watched.steps:
        valid = fmean(p["status"] == "ok" for p in step.proposals)
        exact = load(watched.config, replace(bounds(watched.config), valid=valid))
        assert (len(step.proposals), len(step.answers)) == (exact.propose.requests, pytest.approx(exact.solve.requests))
        assert len({p["id"].rsplit("-", 1)[0] for p in step.proposals}) == most.propose.groups
        assert all(amount <= getattr(most, name) for name, amount in happened(step).items())


def test_with_a_runs_own_lengths_a_step_is_its_mean_step(watched):
    config = watched.config
    known = {**rates.assumed(config), **measured.lengths_of(watched)}
    expected = load(config, rates.lengths(config, known))
    for name in happened(watched.steps[0]):
        assert getattr(expected, name) == pytest.approx(fmean(happened(step)[name] for step in watched.steps)), name
    assert expected.propose.longest <= config.sampling.proposal_tokens


def test_what_lay_in_memory_is_within_the_bound(watched, seen):
    made = plan(watched.config, NANO, rates.assumed(watched.config))
    cache = next(part.bytes for part in made.bound.learning.parts if part.what == "cache")
    assert 0 < seen["cache"] <= cache


def test_the_learner_reads_as_many_tokens_as_planned(watched, seen):
    known = {**rates.assumed(watched.config), **measured.lengths_of(watched)}
    planned = load(watched.config, rates.lengths(watched.config, known)).learned_tokens * len(watched.steps)
    assert seen["rows"] == pytest.approx(planned, rel=0.1)  # equal prompts of two groups are read once, and means are rounded


def test_the_engine_decides_who_writes():
    """vLLM on the GPU that learns has a base of its own there; the embedded engine waits for the longest of every batch."""
    torch_, vllm = (made({"sequences": 32}, (engine, 1)) for engine in ("torch", "vllm"))
    beside = {part.what for part in vllm.bound.learning.parts} - {part.what for part in torch_.bound.learning.parts}
    assert beside == {"sampler's base", "sampler's adapters"}
    assert torch_.expected.seconds["serve"] == 0 < vllm.expected.seconds["serve"]
    assert vllm.expected.seconds["propose"] < torch_.expected.seconds["propose"] / 10
    assert list(table(torch_.config, SEVEN, torch_.rates, sizes=(4,))[4]) == [1]


def test_the_papers_preset_fits():
    for gpus in (1, 8):
        assert plan(PAPER, SEVEN, rates.assumed(PAPER), gpus).problems == ()


def test_a_single_agent_asks_as_one_teacher():
    alone, pair = (presets.preset("laptop", [f"population={p}"]) for p in ("{single_agent: true}", "{teachers: 1, students: 1}"))
    assert load(alone, bounds(alone)) == load(pair, bounds(pair))
    planned = [plan(c, NANO, rates.assumed(c)).bound.learning.parts[1].bytes for c in (alone, pair)]
    assert 2 * planned[0] == planned[1]


# memory


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_members_take_what_is_planned(dtype):
    config = presets.preset("laptop", [f"dtype={dtype}", "lora.rank=5", "population.teachers=3"])
    engine = TorchEngine("nano", slots=7, rank=5, alpha=1, dtype=dtype)
    learner = Learner(engine, LearnRules())
    found = learning_gpu(config, NANO, Layout(1, 1, 7), load(config, bounds(config)))
    planned = {part.what: part.bytes for part in found.parts}
    real = {"adapters": engine.bank.weights, "gradients": engine.bank.grads, "optimizer": learner.moments}
    assert {name: t.numel() * t.element_size() for name, t in real.items()} == {name: planned[name] for name in real}
    assert engine.model.get_memory_footprint() == planned["base"]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_base_is_counted_without_its_weights(family, tmp_path):
    folder = write_base(tmp_path / "base", family)
    for weights in folder.glob("*.safetensors"):
        weights.rename(tmp_path / weights.name)
    found = geometry(str(folder))
    for weights in tmp_path.glob("*.safetensors"):
        weights.rename(folder / weights.name)
    engine = TorchEngine(str(folder), slots=1, rank=3, alpha=1)
    assert found.weight_bytes("float32") == engine.model.get_memory_footprint()
    assert found.adapter_size(3) == engine.bank.weights.shape[1]
    assert list(found.adapted) == list(engine.bank.places)


@pytest.mark.parametrize(("rows", "prompt", "more"), [(1, 3, 1), (3, 40, 10), (2, 5, 100)])
def test_a_cache_takes_what_is_planned(rows, prompt, more):
    model = TorchEngine("nano", slots=1, rank=1, alpha=1)
    cache = GrowingCache()
    model.bank.route = [(-1, rows)]
    with torch.inference_mode():
        model.model(input_ids=torch.ones(rows, prompt, dtype=torch.long), past_key_values=cache, use_cache=True)
        assert held(cache) == cache_bytes(PAPER.with_changes(dtype="float32"), NANO, rows, prompt + ROOM)
        cache.select(torch.zeros(rows + 1, dtype=torch.long))
        model.bank.route = [(-1, rows + 1)]
        for _ in range(more):
            model.model(input_ids=torch.ones(rows + 1, 1, dtype=torch.long), past_key_values=cache, use_cache=True)
    assert held(cache) <= cache_bytes(PAPER.with_changes(dtype="float32"), NANO, rows + 1, prompt + more + ROOM)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_activations_are_estimated_within_a_tenth(dtype):
    engine = TorchEngine("nano", slots=1, rank=8, alpha=1, dtype=dtype)
    engine.fresh("a", 0)
    engine.bank.learn()
    fixed = {t.untyped_storage()._cdata for t in (*engine.model.parameters(), *engine.model.buffers(), engine.bank.weights)}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in fixed:
            kept[storage._cdata] = storage
        return tensor

    groups = groups_of([0] * 4, [(i + 3, *[5] * 19) for i in range(4)], [(7,) * 80] * 4, 400)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        engine.predicted(batch_of(groups, "cpu"), [0] * 4)
    estimated = NANO.layers * 400 * layer_bytes(NANO, 8, dtype)
    assert sum(storage.nbytes() for storage in kept.values()) == pytest.approx(estimated, rel=0.1)


PUBLISHED = {
    "0.5B": (0.49, 0.36),
    "1.5B": (1.54, 1.31),
    "3B": (3.09, 2.77),
    "7B": (7.61, 6.53),
    "14B": (14.7, 13.1),
    "32B": (32.5, 31.0),
}
"""Billions of weights, and without the embeddings, as the model cards say."""


@pytest.mark.parametrize("size", PUBLISHED)
def test_known_shapes_have_the_published_numbers_of_weights(size):
    found = geometry(f"Qwen/Qwen2.5-Coder-{size}")
    tables = found.vocabulary * found.hidden * (1 if KNOWN[found.base]["tie_word_embeddings"] else 2)
    whole, inner = PUBLISHED[size]
    assert found.parameters / 1e9 == pytest.approx(whole, rel=0.01)
    assert (found.parameters - tables) / 1e9 == pytest.approx(inner, rel=0.01)


# mathematics

COUNTS = st.integers(1, 40)
CHANGES = st.fixed_dictionaries(
    {
        "teachers": COUNTS, "students": COUNTS, "prompts": st.integers(1, 20), "proposals": st.integers(1, 8),
        "answers": st.integers(1, 10), "proposal_tokens": st.integers(1, 9000), "answer_tokens": st.integers(1, 9000),
        "prompt_tokens": st.integers(1, 7000), "rank": st.sampled_from([1, 8, 64]), "sequences": st.integers(1, 300),
        "tokens_per_batch": st.integers(1, 40_000), "checkpointing": st.booleans(),
    }
)  # fmt: skip
BRANCHES = {
    "teachers": "population", "students": "population", "prompts": "game", "proposals": "game", "answers": "game", "rank": "lora",
    "proposal_tokens": "sampling", "answer_tokens": "sampling", "prompt_tokens": "sampling", "tokens_per_batch": "learner",
    "checkpointing": "learner",
}  # fmt: skip
GROWING = ("teachers", "students", "prompts", "proposals", "answers", "rank", "proposal_tokens", "answer_tokens", "prompt_tokens")


PLACES = st.sampled_from([("torch", 1), ("vllm", 1), ("vllm", 2), ("vllm", 8), ("vllm", 64)])


def made(changes, place, **chosen):
    engine, gpus = place
    named = [f"{BRANCHES[name]}.{name}={value}" if name in BRANCHES else f"{name}={value}" for name, value in changes.items()]
    named.append(f"engine={engine}")
    config = presets.preset("populora-7b", named)
    return plan(config, SEVEN, rates.given(rates.assumed(config), [f"{k}={v}" for k, v in chosen.items()]), gpus)


def amounts(view):
    load = view.load
    tokens = [
        getattr(load, name) for name in ("requests", "prompt_tokens", "completion_tokens", "trained_tokens", "learned_tokens")
    ]
    return [*tokens, load.programs, view.learning.during("sampling"), view.learning.during("learning")]


@given(CHANGES, PLACES, st.sampled_from(GROWING), st.integers(1, 50))
def test_more_to_do_never_takes_less(changes, place, name, more):
    few, many = made(changes, place), made({**changes, name: changes[name] + more}, place)
    for small_view, large_view in ((few.bound, many.bound), (few.expected, many.expected)):
        for less, rest in zip(amounts(small_view), amounts(large_view), strict=True):
            assert less <= rest * (1 + 1e-9)
        assert small_view.total <= large_view.total * (1 + 1e-9)


@given(CHANGES, st.sampled_from([1, 2, 4, 8, 32]), st.integers(1, 64))
def test_more_gpus_never_take_longer(changes, gpus, learners):
    few, many = (made(changes, ("vllm", n), learners=learners) for n in (gpus, 2 * gpus))
    assert few.layout.learners <= many.layout.learners
    for name, spent in many.expected.seconds.items():
        assert spent <= few.expected.seconds[name] * (1 + 1e-9), name
    assert many.bound.learning.during("sampling") <= few.bound.learning.during("sampling")
    assert many.memory_total(many.bound) >= few.bound.peak


@given(CHANGES, PLACES)
def test_totals_are_sums_of_parts(changes, place):
    found = made(changes, place)
    for view in (found.bound, found.expected):
        assert view.total == pytest.approx(sum(view.seconds.values())) == pytest.approx(sum(by_resource(view.seconds).values()))
        assert view.load.prompt_tokens == view.load.propose.prompt_tokens + view.load.solve.prompt_tokens
        for memory in filter(None, (view.learning, view.sampling)):
            sizes = {part.what: part for part in memory.parts}
            assert len(sizes) == len(memory.parts)
            phases = [sum(p.bytes for p in memory.parts if p.when in ("always", when)) for when in ("sampling", "learning")]
            assert memory.peak == max(phases)
    for name, amount in zip(("bound", "expected"), (found.bound, found.expected), strict=True):
        assert found.as_dict()[name]["seconds"]["total"] == amount.total


@given(st.builds(Lengths, **{f.name: st.floats(0, 1) for f in fields(Lengths)}))
def test_no_length_is_above_its_bound(shares):
    most = asdict(bounds(PAPER))
    known = {**rates.assumed(PAPER)}
    for name, share in asdict(shares).items():
        known[name] = replace(known[name], value=2 * share * most[name])
    assert all(value <= most[name] for name, value in asdict(rates.lengths(PAPER, known)).items())


@settings(max_examples=10)
@given(CHANGES, PLACES)
def test_what_is_proposed_against_an_overflow_mends_it(changes, place):
    for text in made(changes, place).problems:
        where, change = text.split(":")[0], text.rsplit(". ", 1)[-1]
        if not change.endswith(" would fit"):
            continue
        key, value = change.removesuffix(" would fit").rsplit(".")[-1].split("=")
        again = {other.split(":")[0] for other in made({**changes, key: value}, place).problems}
        assert where not in again
        if value.isdecimal():  # and it is the largest that does
            assert where in {t.split(":")[0] for t in made({**changes, key: int(value) + 1}, place).problems}


# what a run says of its machine

STEP, TOKEN, LEARNED, PROGRAM, DISK = 0.02, 3e-4, 5e-4, 4e-3, 0.25


def test_costs_are_found_in_timings(run, watched, tmp_path):
    """Timings that were made by the model give back the costs they were made with, and the plan the seconds."""
    copy = shutil.copytree(run, tmp_path / "copy")
    rows = []
    for number, step in enumerate(watched.steps, 1):
        read, told = measured.prompts_of(step.proposals, ()), measured.prompts_of((), step.answers)
        longest = max(p["tokens"] for p in step.proposals), {}
        for a in step.answers:
            batch = "induction" in a["problem"]
            longest[1][batch] = max(longest[1].get(batch, 0), a["tokens"])
        programs = [sum(e["programs"] for e in events) for events in (step.proposals, step.answers)]
        learned = happened(step)["trained_tokens"] + measured.learned_prompts(watched.config, step)
        rows.append({
            "step": number, "match": 0.0, "propose": STEP * longest[0] + TOKEN * (sum(p["tokens"] for p in step.proposals) + read),
            "validate": programs[0] * PROGRAM, "judge": programs[1] * PROGRAM, "reward": 0.0, "rate": 0.0, "replace": 0.0,
            "solve": STEP * sum(longest[1].values()) + TOKEN * (sum(a["tokens"] for a in step.answers) + told),
            "learn": LEARNED * learned, "journal": 0.0, "checkpoint": DISK,
        })  # fmt: skip
    (copy / "timings.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    again = measured.watched(copy)
    known, notes = measured.like(again.config, NANO, rates.assumed(again.config), again)
    costs = {name: known[name].value for name in ("step_seconds", "token_seconds", "learned_seconds", "programs")}
    expected = [STEP, TOKEN, LEARNED, 1 / PROGRAM / again.config.referee.workers]
    assert list(costs.values()) == pytest.approx(expected)
    assert not notes
    planned = plan(again.config, NANO, known).expected.seconds
    for phase in ("propose", "validate", "solve", "judge", "learn", "checkpoint"):
        assert planned[phase] == pytest.approx(fmean(row[phase] for row in rows)), phase


def test_another_machine_or_base_lends_only_its_lengths(watched):
    for config, base, said in (
        (PAPER, SEVEN, "base and device and dtype and engine"),
        (watched.config.with_changes(dtype="bfloat16"), NANO, "dtype"),
    ):
        known, notes = measured.like(config, base, rates.assumed(config), watched)
        assert said in " ".join(notes)
        assert known["valid"].kind == "measured"
        assert "step_seconds" not in known


# the command


def called(capsys, *arguments):
    code = main(["selfplay", "plan", *arguments])
    return code, *capsys.readouterr()


def test_the_command_says_all_of_it(capsys):
    code, out, err = called(capsys, "--preset", "populora-7b", "--gpus", "8", "--set", "lora.rank=64", "--rate", "memory=80e9")
    assert code == 0
    for word in ("only samples", "gradients", "trained tokens", "checkpoint", "64 GPUs", "32+32", "assumed", "full first"):
        assert word in out
    assert "GB too much" in err
    assert "would fit" in err


def test_json_is_one_strict_object(capsys):
    code, out, _ = called(capsys, "--preset", "populora-7b", "--gpus", "8", "--json")
    found = json.loads(out, parse_constant=lambda name: pytest.fail(name))
    assert code == 0
    assert len(found["table"]) == 42
    cell = next(c for c in found["table"] if (c["members"], c["gpus"]) == ("4+4", 8))
    assert cell["seconds"] == found["expected"]["seconds"]["total"]
    assert {rate["kind"] for rate in found["rates"].values()} == {"assumed", "measured", "derived"}
    assert all(rate["source"] and rate["unit"] for rate in found["rates"].values())


def test_a_cpu_without_a_run_has_no_seconds(capsys):
    code, out, err = called(capsys, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["expected"]["seconds"] is None
    assert "--like" in err + " ".join(found["notes"])
    assert "bandwidth" not in found["rates"]


def test_a_run_is_planned_like_itself(run, capsys):
    before = left(run)
    code, out, _ = called(capsys, "--like", str(run), "--set", "population.teachers=4", "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["teachers"], found["students"]) == (4, 2)
    assert found["expected"]["load"]["propose"]["requests"] == 4 * 3 * 3
    assert found["rates"]["learned_seconds"]["kind"] == "measured"
    assert math.isfinite(found["expected"]["seconds"]["total"])
    assert left(run) == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--preset", "populora"], "did you mean populora-7b?"),
        (["--preset", "populora-7b", "--gpus", "0"], "gpus is 0, it must be at least 1"),
        (["--gpus", "2"], "device is cpu; --set device=cuda"),
        (["--set", "engine=vllm"], "device is cpu; --set device=cuda or engine=torch"),
        (["--set", "device=cuda", "--gpus", "2"], "--set engine=vllm plans for more"),
        (["--preset", "populora-7b", "--set", "vllm.tensor_parallel=2"], "vllm.tensor_parallel is 2"),
        (["--set", "base=someone/unheard-of"], "Give a folder with its config.json"),
        (["--set", "base={folder}"], "config.json cannot be read"),
        (["--like", "{folder}"], "so it is no run"),
        (["--like", "{folder}/nothing"], "no such file or folder"),
        (["--rate", "bandwith=1"], "names no rate"),
        (["--preset", "populora-7b", "--rate", "bandwith=1"], "did you mean bandwidth?"),
        (["--rate", "memory=much"], "must be a number (bytes)"),
        (["--rate", "memory=0"], "must be a finite number above 0"),
        (["--rate", "valid=2"], "a share is at most 1"),
        (["--set", "lora.targets=[nothing]"], "nothing"),
    ],
)
def test_bad_calls(arguments, said, tmp_path, capsys):
    code, out, err = called(capsys, *(word.replace("{folder}", str(tmp_path)) for word in arguments))
    assert (code, out) == (2, "")
    assert said in err


def test_a_damaged_journal_is_named(run, tmp_path, capsys):
    copy = shutil.copytree(run, tmp_path / "copy")
    lines = (copy / "journal.jsonl").read_text().splitlines()
    (copy / "journal.jsonl").write_text("\n".join([lines[0], '{"event": "proposal"}', *lines[1:]]) + "\n")
    code, _, err = called(capsys, "--like", str(copy))
    assert code == 2
    assert str(copy / "journal.jsonl") in err
    (copy / "journal.jsonl").write_text(lines[0] + "\n")
    assert "no finished step" in called(capsys, "--like", str(copy))[2]


def test_a_game_too_long_for_its_base_is_planned_and_said(capsys):
    code, out, err = called(capsys, "--set", "sampling.answer_tokens=2000")
    assert code == 0
    assert "nano has 1024" in err
    assert "activations" in out


def test_unknown_bases_are_refused_from_python():
    with pytest.raises(BaseError, match="downloads nothing"):
        geometry("someone/unheard-of")
    with pytest.raises(LoraEvoError, match="at least 1"):
        plan(PAPER, SEVEN, rates.assumed(PAPER), -1)


# the page


def test_the_tables_of_the_page_are_those_of_the_benchmark():
    page = (ROOT / "docs" / "scaling.md").read_text()
    for changes, chosen in (([], []), ([], ["learners=64"]), (ROOMY, H200)):
        assert markdown(sized(changes, chosen)) in page


def test_the_page_names_every_rate():
    page = (ROOT / "docs" / "scaling.md").read_text()
    assert [name for name in (*rates.HARDWARE, *rates.EXPECTED, *rates.DERIVED) if f"`{name}`" not in page] == []


def test_the_table_holds_what_single_plans_say():
    config = presets.preset("populora-7b")
    cells = table(config, SEVEN, rates.assumed(config), sizes=(4,), gpus=(8,))
    assert cells[4][8] == plan(config, SEVEN, rates.assumed(config), 8)
