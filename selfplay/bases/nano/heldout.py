"""The fixed problems that no member ever sees, one step longer than the corpus and on longer inputs.

heldout()          # what is shipped
python -m selfplay.bases.nano.heldout -o FILE      # how it was made
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Set
from pathlib import Path

from lora_evo.seeding import stream
from selfplay.bases.nano import train
from selfplay.bases.nano.texts import TASKS, programs, solved
from selfplay.referee import Referee
from selfplay.tasks import Problem, normal_form

FILE = Path(__file__).with_name("heldout.jsonl")
SEED, EACH = 1_000_003, 100
STEPS = (0.0, 0.0, 0.36, 0.36, 0.28)
"""Shares of programs with two, three and four steps: almost three on average."""
LONGER = 1
PORTIONS = 193
"""Of the corpus that the shipped base was trained on."""


def heldout() -> list[Problem]:
    """The problems that are shipped, `EACH` of every kind."""
    return [Problem.from_dict(json.loads(line)) for line in FILE.read_text(encoding="utf-8").splitlines()]


def corpus(first: int = 0, until: int = PORTIONS) -> Iterator[str]:
    """Normal forms of the programs that were drawn for the shipped base's corpus."""
    for number in range(first, until):
        yield from map(normal_form, {drawn.program for drawn in train.drawn(0, number)})


def made(known: Set[str], each: int = EACH, seed: int = SEED) -> list[Problem]:
    """Problems by chance, no program twice and none whose normal form is known."""
    found: dict[str, list[Problem]] = {kind: [] for kind in TASKS}
    seen = set(known)
    with Referee() as referee:
        for number in range(100):
            rng = stream(seed, "nano", "heldout", str(number))
            for one in solved(referee, programs(seed, number, 200, STEPS, LONGER)):
                kind = min(found, key=lambda k: len(found[k]))
                form = normal_form(one.drawn.program)
                if form not in seen and len(found[kind]) < each:
                    seen.add(form)
                    found[kind].append(one.problem(kind, rng))
            if all(len(problems) == each for problems in found.values()):
                break
    return [problem for problems in found.values() for problem in problems]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Make the held-out problems.")
    parser.add_argument("-o", "--output", type=Path, default=FILE)
    lines = [json.dumps(problem.as_dict()) for problem in made(set(corpus()))]
    parser.parse_args().output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
