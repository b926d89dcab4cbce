"""Programs per second of the referee: `python -m benchmarks.referee [--data FOLDER] [--programs 2000] [--long N] [--json]`.

The same programs, one input each, in one run and alternating, all with as many processes as cores:

- `referee`: every layer on, typed values, one process per program;
- `equipped`: the same, each program marked so that it goes to a worker that has the importable modules loaded;
- `fresh`: (a) a new `python -I -S` for each program, nothing else done;
- `zygote`: (b) a bare process that forks for each program, no limit, no layer, repr down a pipe, and no module loaded;
- `zygote+`: the same with the modules loaded that programs may import, as the referee offers them;
- `reused`: (c) a pool of processes that run one program after the other in the same interpreter: no isolation at all, and
  what a program does to its builtins stays for the next;
- `ten inputs`: the referee again, ten inputs for each program in one process (per second: inputs).

Ratios are medians over rounds of the referee's rate over the other's in the same round. Then all CRUXEval outputs are
recomputed under two hash seeds and compared with the published ones. `--long N` runs N programs and prints memory,
processes and descriptors on the way.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.programs import Sample, cruxeval, generated
from selfplay.referee import PURE_MODULES, Referee, Run, equal

CORES = len(os.sched_getaffinity(0))
ROUNDS = 10
FRESH_SHARE = 5
"""`fresh` runs one program in so many: it is slow."""

FRESH = "space = {}; exec(PROGRAM, space); print(repr(space['f'](*ARGUMENTS)))"

ZYGOTE = """
import gc, os, pickle, struct, sys
def exactly(n):
    data = b""
    while len(data) < n:
        part = os.read(0, n - len(data))
        if not part:
            os._exit(0)
        data += part
    return data
for name in sys.argv[1:]:
    __import__(name)
gc.collect()
gc.freeze()
while True:
    program, arguments = pickle.loads(exactly(struct.unpack("<I", exactly(4))[0]))
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            space = {}
            exec(program, space)
            os.write(into, repr(space["f"](*arguments)).encode())
        finally:
            os._exit(0)
    os.close(into)
    answer = b""
    while part := os.read(out, 65536):
        answer += part
    os.close(out)
    os.waitpid(pid, 0)
    os.write(1, struct.pack("<I", len(answer)) + answer)
"""


def main() -> None:
    """Print the table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("LORA_EVO_DATA"))
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--long", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    published = cruxeval(Path(options.data)) if options.data else []
    samples = published + generated(max(options.programs - len(published), 0))
    with Referee() as referee:
        result: dict[str, Any] = {"programs": len(samples), "cores": CORES, "missing": referee.report.missing}  # type: ignore[union-attr]
        result["rates"] = rates(referee, samples[: options.programs])
        result["cruxeval"] = reproduced(referee, published) if published else "absent: name its folder with --data"
        if options.long:
            result["long"] = endurance(referee, samples, options.long)
    print(json.dumps(result) if options.json else table(result))


def rates(referee: Referee, samples: Sequence[Sample]) -> dict[str, dict[str, float]]:
    """Every way's programs per second, and the referee's rate over it."""
    zygotes = [start_zygote() for _ in range(CORES)]
    loaded = [start_zygote(PURE_MODULES) for _ in range(CORES)]
    with get_context("spawn").Pool(CORES) as pool:
        ways: dict[str, Callable[[Sequence[Sample]], int]] = {
            "referee": lambda part: by_referee(referee, part),
            "equipped": lambda part: by_referee(referee, [replace(s, program=s.program + "# import\n") for s in part]),
            "fresh": by_fresh,
            "zygote": lambda part: by_zygotes(zygotes, part),
            "zygote+": lambda part: by_zygotes(loaded, part),
            "reused": lambda part: len(pool.map(in_place, [(s.program, s.arguments) for s in part], chunksize=8)),
            "ten inputs": lambda part: ten_inputs(referee, part),
        }
        found: dict[str, list[float]] = {name: [] for name in ways}
        for way in ways.values():
            way(samples[:20])
        for i in range(ROUNDS):
            for name, way in ways.items():
                part = samples[i::ROUNDS]
                start = time.perf_counter()
                done = way(part)
                found[name].append(done / (time.perf_counter() - start))
    for zygote in zygotes + loaded:
        zygote.stdin.close()  # type: ignore[union-attr]
        zygote.wait()
    return {
        name: {
            "per_second": statistics.median(values),
            "referee_over_it": statistics.median(r / v for r, v in zip(found["referee"], values, strict=True)),
        }
        for name, values in found.items()
    }


def by_referee(referee: Referee, part: Sequence[Sample]) -> int:
    """One program, one input, one process."""
    verdicts = referee.run([Run(s.program, [s.arguments]) for s in part])
    assert all(v.ok for (v,) in verdicts), [v for (v,) in verdicts if not v.ok][:3]
    return len(part)


def ten_inputs(referee: Referee, part: Sequence[Sample]) -> int:
    """One program, ten inputs, one process."""
    part = part[: len(part) // 2]
    referee.run([Run(s.program, [s.arguments] * 10) for s in part])
    return 10 * len(part)


def by_fresh(part: Sequence[Sample]) -> int:
    """A new interpreter for each."""
    part = part[::FRESH_SHARE]

    def one(s: Sample) -> None:
        text = f"PROGRAM = {s.program!r}; ARGUMENTS = {s.arguments!r}; {FRESH}"
        subprocess.run([sys.executable, "-I", "-S", "-c", text], check=True, stdout=subprocess.PIPE)

    with ThreadPoolExecutor(CORES) as threads:
        list(threads.map(one, part))
    return len(part)


def start_zygote(modules: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    """A bare process that forks."""
    return subprocess.Popen([sys.executable, "-I", "-S", "-c", ZYGOTE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)


def by_zygotes(zygotes: Sequence[subprocess.Popen[bytes]], part: Sequence[Sample]) -> int:
    """Each zygote gets its share, from a thread of its own, two programs ahead."""

    def share(k: int) -> None:
        zygote, mine = zygotes[k], part[k :: len(zygotes)]
        waiting = 0
        for s in mine:
            body = pickle.dumps((s.program, s.arguments))
            zygote.stdin.write(struct.pack("<I", len(body)) + body)  # type: ignore[union-attr]
            waiting += 1
            if waiting > 2:
                receive(zygote)
                waiting -= 1
        for _ in range(waiting):
            receive(zygote)

    with ThreadPoolExecutor(len(zygotes)) as threads:
        list(threads.map(share, range(len(zygotes))))
    return len(part)


def receive(zygote: subprocess.Popen[bytes]) -> bytes:
    """One answer."""
    read = zygote.stdout.read  # type: ignore[union-attr]
    size = struct.unpack("<I", read(4) or b"")[0]
    data = b""
    while len(data) < size:
        data += read(size - len(data)) or b""
    return data


def in_place(task: tuple[str, tuple[Any, ...]]) -> str:
    """What a pool without isolation does."""
    space: dict[str, Any] = {}
    exec(task[0], space)
    return repr(space["f"](*task[1]))


def reproduced(referee: Referee, samples: Sequence[Sample]) -> str:
    """How many published outputs come out, equal under two hash seeds."""
    verdicts = referee.validate([Run(s.program, [s.arguments]) for s in samples])
    right = sum(v.ok and equal(v.value, s.expected) for (v,), s in zip(verdicts, samples, strict=True))
    return f"{right} of {len(samples)}"


def endurance(referee: Referee, samples: Sequence[Sample], count: int) -> list[dict[str, int]]:
    """Memory (MB, with all workers), processes and descriptors, at the start and after each tenth."""
    rows = [usage(referee, 0)]
    done = 0
    while done < count:
        for _ in range(max(count // 10 // 1000, 1)):
            part = [samples[i % len(samples)] for i in range(done, min(done + 1000, count))]
            done += by_referee(referee, part)
        rows.append(usage(referee, done))
        print(rows[-1], file=sys.stderr, flush=True)
    return rows


def usage(referee: Referee, done: int) -> dict[str, int]:
    """What this process and the workers hold now."""
    everyone = [os.getpid(), *below(os.getpid())]
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in everyone)
    return {
        "programs": done,
        "memory_mb": pages * os.sysconf("SC_PAGE_SIZE") >> 20,
        "processes": len(everyone),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "workers_replaced": referee.replaced,
    }


def below(pid: int) -> list[int]:
    """Descendants."""
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


def table(result: dict[str, Any]) -> str:
    """For people."""
    lines = [
        f"{result['programs']} programs, {result['cores']} cores; guarantees missing: {', '.join(result['missing']) or 'none'}"
    ]
    lines.append(f"{'way':12} {'per second':>11} {'referee / it':>13}")
    lines += [f"{name:12} {row['per_second']:11.0f} {row['referee_over_it']:13.2f}" for name, row in result["rates"].items()]
    lines.append(f"CRUXEval outputs reproduced, equal under two hash seeds: {result['cruxeval']}")
    lines += [", ".join(f"{key} {value}" for key, value in row.items()) for row in result.get("long", [])]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
