"""Real `vllm serve` processes, killed for real."""

import subprocess
import threading
import time

import numpy as np
import pytest
from games import called, command, environment, run_command
from vllms import NAMES, TEXTS, Server, config, drawn, embedded, scores, ties

from selfplay import checkpoint
from selfplay.engines import Request, Sampling
from selfplay.engines.versions import ServeError

pytest.importorskip("vllm", reason="vLLM IS NOT INSTALLED HERE: make test-vllm makes an environment that has it")
pytestmark = pytest.mark.slow

GREEDY = Sampling(0, 24, ("\n\n",))


@pytest.fixture
def servers(tmp_path):
    """`servers(2)`: so many, ready; all are killed at the end."""
    made: list[Server] = []

    def started(count, port=None):
        new = [Server(tmp_path, port=port) for _ in range(count)]
        made.extend(new)
        return [one.ready() for one in new]

    yield started
    for one in made:
        one.kill()


def opened(own, engine, said):
    from selfplay.engines.served import ServedEngine

    sampler = ServedEngine(config(f"vllm.servers=[{','.join(one.url for one in own)}]"), said.append)
    for name in NAMES:
        sampler.put(name, engine.adapter(name))
    return sampler


def asked(engine, seeds=1):
    return [Request(m, engine.prompt(t, "compact"), s) for s in range(seeds) for t in TEXTS for m in (None, *NAMES)]


def test_servers_answer_as_the_embedded_engine_and_one_may_die(servers):
    engine, said, own = embedded(), [], servers(2)
    sampler = opened(own, engine, said)
    requests = asked(engine)
    before = sampler.generate(requests, GREEDY)
    assert ties(engine, requests, engine.generate(requests, GREEDY), before) <= 1
    drawn_at_random = sampler.generate(requests, Sampling(1.0, 24, ("\n\n",)))
    expected = scores(engine, requests, [c.tokens for c in drawn_at_random])
    assert max(np.abs(np.subtract(c.logprobs, e)).max() for c, e in zip(drawn_at_random, expected, strict=True)) < 1e-2

    engine.put("m3", drawn(engine, "m3", 99))
    sampler.put("m3", engine.adapter("m3"))
    after = sampler.generate(requests, GREEDY)
    assert ties(engine, requests, engine.generate(requests, GREEDY), after) <= 1
    assert any(a.tokens != b.tokens for a, b, r in zip(after, before, requests, strict=True) if r.member == "m3")

    many = asked(engine, seeds=12)
    whole = sampler.generate(many, Sampling(1.0, 24, ("\n\n",)))
    killer = threading.Timer(0.5, own[0].kill)
    killer.start()
    rest = sampler.generate(many, Sampling(1.0, 24, ("\n\n",)))
    killer.join()
    assert sampler.servers == [own[1].url]
    assert [line for line in said if own[0].url in line]
    assert np.mean([a.tokens == b.tokens for a, b in zip(whole, rest, strict=True)]) > 0.95

    own[1].kill()
    with pytest.raises(OSError, match="no server is left"):
        sampler.generate(requests, GREEDY)
    sampler.close()
    assert not sampler.versions.folder.exists()


def test_a_server_that_was_started_anew_is_taken_out(servers):
    engine, said, (own,) = embedded(), [], servers(1)
    sampler = opened([own], engine, said)
    own.kill()
    servers(1, own.port)
    with pytest.raises(OSError, match="no server is left"):
        sampler.generate(asked(engine), GREEDY)
    assert "404" in said[0]
    sampler.close()


def test_who_is_no_server_is_said_before_the_start(tmp_path):
    from selfplay.engines.served import ServedEngine

    with pytest.raises(ServeError, match="does not answer"):
        ServedEngine(config("vllm.servers=[http://127.0.0.1:9]"), print)


def test_a_game_stops_at_a_checkpoint_when_no_server_is_left(servers, tmp_path):
    (own,) = servers(1)
    folder = tmp_path / "run"
    begin = run_command(folder, "engine=vllm", "steps=500", f"vllm.servers=[{own.url}]")
    process = subprocess.Popen(begin, env=environment(), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    while process.poll() is None and not (folder / "timings.jsonl").exists():
        time.sleep(0.05)
    own.kill()
    said = process.communicate(timeout=120)[1]
    assert process.returncode == 1, said
    assert "no server is left" in said
    assert f"lora-evo selfplay resume {folder}" in said
    assert "Traceback" not in said
    step = checkpoint.read(checkpoint.latest(folder)).step
    assert step >= 1
    servers(1, own.port)
    gone_on = called(command("resume", folder, "--steps", step + 1))
    assert gone_on.returncode == 0, gone_on.stderr
    assert checkpoint.read(checkpoint.latest(folder)).step == step + 1
