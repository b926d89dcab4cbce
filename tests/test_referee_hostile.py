"""Hostile programs, run for real: the right verdict, the pool alive, nothing left behind."""

import os
import socket
import time
from pathlib import Path

import pytest
from hostile import BARE, DROPPED, ESCAPE, ESCAPED, LOADED, PLAIN, STEADY, UNSTEADY, VICTIM

from selfplay.referee import PURE_MODULES, Limits, Referee, Run, Settings, Status, equal
from selfplay.referee.guarantees import survivors

LIMITS = Limits(cpu_seconds=1, wall_seconds=10.0, memory_mb=256)
ALL = {
    **PLAIN,
    **{f"escaped: {name}": (ESCAPE + text, want, value) for name, (text, want, value) in ESCAPED.items()},
    **{f"in a bare worker: {name}": (BARE + text, want | {Status.RAISED}, value) for name, (text, want, value) in ESCAPED.items()},
}
SETTINGS = Settings(limits=LIMITS, imports=(*PURE_MODULES, *LOADED))
CANARY = "def f():\n return [len('abc'), sorted([2, 1]), type(1) is int, __import__('math').sqrt(4)]"


def resident_mb(pid="self"):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def descriptors():
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture(scope="module")
def aftermath():
    """Every hostile program in one batch, each followed by a canary that must not notice anything."""
    Path(VICTIM).write_text("kept")
    with Referee(SETTINGS) as referee:
        referee.run([Run(CANARY)] * 8)
        folder, before = set(os.listdir("/tmp")), (resident_mb(), descriptors(), len(referee.workers))
        start = time.monotonic()
        runs = [run for text, _, _ in ALL.values() for run in (Run(text), Run(CANARY))]
        verdicts = [v for (v,) in referee.run(runs)]
        seconds = time.monotonic() - start
        keepers = [worker.process.pid for worker in referee.workers]
        left = survivors(keepers)
        after = (resident_mb(), descriptors(), len(referee.workers))
        yield {
            "verdicts": dict(zip(ALL, verdicts[::2], strict=True)),
            "canaries": verdicts[1::2],
            "before": before,
            "after": after,
            "left": left,
            "files": {name for name in set(os.listdir("/tmp")) - folder if name.startswith("lora-evo")},
            "replaced": referee.replaced,
            "seconds": seconds,
        }
    Path(VICTIM).unlink()


@pytest.mark.parametrize("name", ALL)
def test_verdict(aftermath, name):
    _, wanted, value = ALL[name]
    verdict = aftermath["verdicts"][name]
    assert verdict.status in wanted, verdict
    if verdict.ok and value is not None:
        assert equal(verdict.value, value)


def test_there_are_enough():
    assert len(PLAIN) + len(ESCAPED) + len(UNSTEADY) >= 40


def test_no_program_harms_another(aftermath):
    for verdict in aftermath["canaries"]:
        assert verdict.ok
        assert verdict.value == [3, [1, 2], True, 2.0]


def test_nothing_is_left_behind(aftermath, capsys):
    with capsys.disabled():
        (rss0, fds0, _), (rss1, fds1, _) = aftermath["before"], aftermath["after"]
        print(
            f"\n{len(ALL)} hostile programs in {aftermath['seconds']:.1f} s: workers replaced {aftermath['replaced']}, "
            f"processes left {len(aftermath['left'])}, descriptors {fds0} -> {fds1}, memory {rss0:.1f} -> {rss1:.1f} MB"
        )
    assert aftermath["left"] == []
    assert aftermath["files"] == set()
    assert fds1 == fds0
    assert rss1 - rss0 < 20
    assert aftermath["after"][2] == aftermath["before"][2]
    assert Path(VICTIM).read_text() == "kept"
    assert not Path(DROPPED).exists()


def test_no_hostile_program_kills_a_worker(aftermath):
    assert aftermath["replaced"] == 0


@pytest.mark.parametrize("name", UNSTEADY)
def test_unsteady_programs_are_found(unsteady, name):
    assert unsteady[name].status is Status.NONDETERMINISTIC


@pytest.fixture(scope="module")
def unsteady():
    with Referee(SETTINGS) as referee:
        first = referee.run([Run("def f():\n return list({'a', 'b', 'c', 'd', 'e', 'g'})[0]", hash_group=0)])[0][0].value
        texts = [text.replace("ORDER", repr(first)) for text in UNSTEADY.values()]
        verdicts = referee.validate([Run(text) for text in texts])
        steady = referee.validate([Run(text) for text, _ in STEADY.values()])
    for (verdict,), (_, value) in zip(steady, STEADY.values(), strict=True):
        assert verdict.ok, verdict
        assert equal(verdict.value, value)
    return {name: v for name, (v,) in zip(UNSTEADY, verdicts, strict=True)}


def test_nothing_arrives_from_the_network():
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(0.2)
    port = server.getsockname()[1]
    text = ESCAPE + f"def f():\n mod('socket').create_connection(('127.0.0.1', {port}), 1)"
    with Referee(SETTINGS) as referee:
        assert referee.evaluate(text, [()])[0].status is Status.RAISED
    with pytest.raises(TimeoutError):
        server.accept()
    server.close()
