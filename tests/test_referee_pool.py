"""The pool: order, replacement of dead workers, retries, interruption, degraded machines."""

import dataclasses
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from hostile import ESCAPE

from selfplay.referee import Limits, Referee, RefereeError, Run, Settings, Status, against
from selfplay.referee.guarantees import survivors
from selfplay.referee.jobs import Progress

LIMITS = Limits(cpu_seconds=1, wall_seconds=5.0)
NAMESPACES = frozenset({"user_namespace", "network_namespace", "ipc_namespace", "pid_namespace", "empty_root"})


@pytest.fixture(scope="module")
def referee():
    with Referee(Settings(limits=LIMITS)) as made:
        yield made


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pids, seconds=10.0):
    deadline = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(alive, pids))


def below(pid):
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                parent = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent == pid:
                found += [int(name), *below(int(name))]
    return found


def test_verdicts_come_in_order_with_progress(referee):
    seen = []
    runs = [Run(f"def f(x):\n return x + {i}", [(1,), (2,)]) for i in range(200)]
    verdicts = referee.run(runs, lambda done, total: seen.append((done, total)))
    assert [[v.value for v in row] for row in verdicts] == [[i + 1, i + 2] for i in range(200)]
    assert seen[-1] == (200, 200)
    assert seen == sorted(seen)


def test_no_runs_and_no_inputs(referee):
    assert referee.run([]) == []
    assert referee.run([Run("def f(): return 1", [])]) == [[]]


def test_one_input_does_not_take_the_others_with_it(referee):
    program = ESCAPE + (
        "def f(x):\n if x == 1:\n  while 1: pass\n if x == 3: mod('os')._exit(0)\n if x == 5: return mod('ctypes').string_at(0)\n"
        " if x == 6: raise KeyError(x)\n return x"
    )
    statuses = [v.status for v in referee.evaluate(program, [(i,) for i in range(8)])]
    expected = {1: Status.TIMEOUT, 3: Status.EXITED, 5: Status.CRASHED, 6: Status.RAISED}
    assert statuses == [expected.get(i, Status.OK) for i in range(8)]


def test_an_input_is_not_charged_for_those_before_it(referee):
    program = "def f(n):\n for _ in range(n): pass\n return n"
    count = 4_000_000
    cost = referee.evaluate(program, [(count,)])[0].cpu_seconds
    count = int(count * 0.45 / max(cost, 0.01))
    assert [v.status for v in referee.evaluate(program, [(count,)] * 6)] == [Status.OK] * 6


def test_big_results_of_many_inputs_take_several_processes(referee):
    verdicts = referee.evaluate("def f(i):\n return str(i) * 150000", [(i,) for i in range(10)])
    assert [v.value[:1] for v in verdicts] == [str(i) for i in range(10)]


def test_bad_inputs_are_verdicts(referee):
    assert referee.evaluate("def f(x): return x", [(1 << 10**5,)])[0].status is Status.TOO_LARGE
    assert referee.evaluate("def f(x): return x", [(object(),)])[0].status is Status.NOT_A_VALUE


def test_asserts_alone(referee):
    verdicts = referee.run([Run("assert 1 + 1 == 2", entry=None), Run("assert 1 + 1 == 3", entry=None)])
    assert [v.status for (v,) in verdicts] == [Status.OK, Status.RAISED]


def test_against(referee):
    (verdict,) = referee.evaluate("def f(): return True", [()])
    assert against(verdict, True).status is Status.OK
    assert against(verdict, 1).status is Status.WRONG


def test_arguments_are_fresh_in_every_call(referee):
    (verdict,) = referee.validate([Run("def f(x):\n x.append(1)\n return x", [([],)])])[0]
    assert verdict.value == [1]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_dies_or_hangs_is_replaced(referee, how, monkeypatch):
    monkeypatch.setattr("selfplay.referee.pool._GRACE", 0.5)
    quick = Settings(limits=dataclasses.replace(LIMITS, wall_seconds=2.0))
    with Referee(quick) as mine:
        keepers = [worker.process.pid for worker in mine.workers]
        zygote = below(keepers[0])[0]
        threading.Timer(0.2, lambda: os.kill(zygote, how)).start()
        runs = [Run(f"def f():\n for _ in range(300000): pass\n return {i}") for i in range(120)]
        verdicts = mine.run(runs)
        assert [v.value for (v,) in verdicts] == list(range(120))
        assert mine.replaced >= 1
        assert gone([zygote])
        assert survivors([worker.process.pid for worker in mine.workers]) == []


def test_a_run_that_takes_its_worker_down_twice_is_killed():
    with Referee(Settings(limits=LIMITS)) as mine:
        stop = threading.Event()

        def murder():
            while not stop.is_set():
                for keeper in [w.process.pid for w in mine.workers]:
                    for zygote in below(keeper)[:1]:
                        if below(zygote):
                            os.kill(zygote, signal.SIGKILL)
                time.sleep(0.01)

        thread = threading.Thread(target=murder)
        thread.start()
        try:
            (verdict,) = mine.evaluate("def f():\n while 1: pass", [()])
        finally:
            stop.set()
            thread.join()
        assert verdict.status is Status.KILLED
        assert mine.evaluate("def f(): return 1", [()])[0].ok


def test_what_the_referee_failed_at_is_not_the_programs_fault():
    item = Progress(Run("def f(): return 1", [(), ()]), LIMITS)
    item.prepare()
    item.take("fork: no memory")
    assert [v.status for v in item.verdicts] == [Status.INFRA_ERROR] * 2
    assert all(v.blameless for v in item.verdicts)


def test_more_hash_seeds_find_more():
    with Referee(Settings(limits=LIMITS, hash_seeds=(1, 2, 3, 4))) as mine:
        assert len(mine.workers) >= 4
        runs = [Run(f"def f():\n return list({{'a{i}', 'b{i}'}})") for i in range(40)]
        found = [v.status is Status.NONDETERMINISTIC for (v,) in mine.validate(runs)]
        assert sum(found) / len(found) > 0.6
        assert mine.validate([Run("def f(): return 1")])[0][0].ok


def test_recycling(referee):
    with Referee(Settings(limits=LIMITS, recycle=10)) as mine:
        first = {w.process.pid for w in mine.workers}
        for _ in range(6):
            assert all(v.ok for (v,) in mine.run([Run("def f(): return 1")] * 10))
        assert not first & {w.process.pid for w in mine.workers}
        assert gone(list(first))


def test_calls_from_threads(referee):
    results = {}

    def ask(i):
        results[i] = [v.value for v in referee.evaluate(f"def f(x): return x * {i}", [(1,), (2,)])]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert results == {i: [i, 2 * i] for i in range(8)}


SCRIPT = """
import sys, time
sys.path.insert(0, {root!r})
from selfplay.referee import Limits, Referee, Run, Settings
with Referee(Settings(limits=Limits(cpu_seconds=50, wall_seconds=60.0))) as referee:
    print(*(w.process.pid for w in referee.workers), flush=True)
    referee.run([Run("def f():\\n while 1: pass")] * 20, None)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_interrupting_leaves_nothing(how):
    root = str(Path(__file__).parents[1])
    files = set(os.listdir("/tmp"))
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a background job is born deaf to it
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    process = subprocess.Popen([sys.executable, "-c", SCRIPT.format(root=root)], preexec_fn=heed, **pipes)
    keepers = [int(x) for x in process.stdout.readline().split()]
    deadline = time.monotonic() + 10
    while len(below(process.pid)) < 3 * len(keepers) and time.monotonic() < deadline:
        time.sleep(0.02)
    everything = below(process.pid)
    assert len(everything) == 3 * len(keepers)
    try:
        process.send_signal(how)
        process.wait(20)
    finally:
        process.kill()  # one that does not heed the signal would go on playing
        process.stdout.close()
    assert gone(everything)
    assert not [name for name in set(os.listdir("/tmp")) - files if "lora-evo" in name]


def test_the_report_names_layers_and_guarantees(referee):
    report = referee.report.as_dict()
    assert report["missing"] == []
    assert set(report["guarantees"]) == {"network", "files", "signals", "processes", "memory", "secrets"}
    json.dumps(report)


@pytest.mark.parametrize("without", ["seccomp", "landlock", "rlimits"])
def test_each_of_the_last_layers_can_be_missing(without):
    settings = Settings(limits=LIMITS, without=frozenset({without}), allow_degraded=without == "rlimits")
    with Referee(settings) as mine:
        missing = mine.report.missing
        verdict = mine.evaluate("def f(): return 1", [()])[0]
    assert verdict.degraded == missing == (("memory",) if without == "rlimits" else ())


def test_a_machine_without_guarantees_is_refused_or_loud(caplog):
    bare = Settings(limits=LIMITS, without=NAMESPACES | {"seccomp", "landlock"})
    with pytest.raises(RefereeError, match="cannot guarantee: network"):
        Referee(bare).start()
    with caplog.at_level(logging.WARNING), Referee(dataclasses.replace(bare, allow_degraded=True)) as mine:
        assert "REFEREE DEGRADED" in caplog.text
        verdict = mine.evaluate("def f(): return 1", [()])[0]
        assert verdict.ok
        assert {"network", "files", "signals"} <= set(verdict.degraded)
        assert mine.report.as_dict()["missing"]


DAEMON = ESCAPE + "def f():\n os = mod('os')\n if os.fork() == 0:\n  os.setsid()\n  while 1: pass\n return 1"


@pytest.mark.parametrize("also", [frozenset(), NAMESPACES])
def test_a_daemon_is_swept_up_where_forking_cannot_be_forbidden(also):
    """As root without namespaces the user is changed, so the process limit still stands: it is left out too."""
    settings = Settings(limits=LIMITS, without=frozenset({"seccomp", "landlock", "rlimits"}) | also, allow_degraded=True)
    with Referee(settings) as mine:
        verdict = mine.evaluate(DAEMON, [()])[0]
        assert verdict.ok
        assert survivors([w.process.pid for w in mine.workers]) == []
        assert "processes" not in mine.degraded


ORDINARY = """
import sys
sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
from selfplay.referee import Referee
with Referee() as referee:
    print(referee.report.missing, referee.evaluate("def f(): return 1", [()])[0].ok)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="the whole suite runs as an ordinary user here")
def test_as_an_ordinary_user(tmp_path):
    """With the system's interpreter, since one in root's home cannot be read by others."""
    import shutil

    package = tmp_path / "selfplay"
    shutil.copytree(Path(__file__).parents[1] / "selfplay", package)
    for folder in [tmp_path, *tmp_path.parents]:
        if folder != Path("/") and str(folder) not in ("/tmp",):
            folder.chmod(folder.stat().st_mode | 0o755)
    python = next((p for p in (sys.executable, "/usr/bin/python3") if _readable(p)), None)
    if python is None:
        pytest.skip("LOUD: no interpreter of 3.11 or newer that an ordinary user can run")
    done = subprocess.run(
        [python, "-c", ORDINARY, str(tmp_path)], user=65534, group=65534, extra_groups=[], capture_output=True, text=True
    )
    assert done.stdout.split("\n")[0] == "() True", done.stderr


def _readable(python):
    check = [python, "-c", "import sys, encodings; sys.exit(sys.version_info < (3, 11))"]
    try:
        return subprocess.run(check, user=65534, group=65534, extra_groups=[], capture_output=True).returncode == 0
    except OSError:
        return False


@pytest.mark.parametrize(
    "bad", [{"workers": 1}, {"hash_seeds": (1, 1)}, {"hash_seeds": (1,)}, {"recycle": 0}, {"hash_seeds": (-1, 2)}]
)
def test_bad_settings(bad):
    with pytest.raises(ValueError):
        Settings(**bad)


@pytest.mark.parametrize(
    "bad", [{"cpu_seconds": 0.5}, {"cpu_seconds": 0}, {"wall_seconds": 0}, {"memory_mb": 1}, {"result_bytes": 1}]
)
def test_bad_limits(bad):
    with pytest.raises(ValueError):
        Limits(**bad)
