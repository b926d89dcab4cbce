"""Run folders that nobody played: a journal and timings as a run writes them, plausible and the same for the same seed."""

import json
from pathlib import Path

import numpy as np

KINDS = ("deduction", "abduction", "induction")
PHASES = ("match", "propose", "validate", "solve", "judge", "learn", "replace", "journal", "checkpoint")
OPERATORS = ("svd_perturb", "dare", "layer_choice", "gaussian", "extrapolate")


def config(seed=0, steps=60, **changes) -> dict:
    game = {"kinds": list(KINDS), "proposals": 4, "answers": 4}
    learner = {"loss": "reinforce_pp_baseline", "lr": 0.001}
    population = {"teachers": 4, "students": 4, "single_agent": False}
    whole = {"base": "nano", "seed": seed, "steps": steps, "population": population, "game": game, "learner": learner}
    return {**whole, **changes}


def start(members, seed=0, steps=60, **changes) -> dict:
    told = [{"name": name, "role": role, "seed": i} for i, (name, role) in enumerate(members)]
    base = {"name": "nano", "digest": "d1"}
    return {
        "event": "start",
        "step": 0,
        "version": "0.1.0",
        "config": config(seed, steps, **changes),
        "base": base,
        "members": told,
    }


def write(folder: Path, events: list[dict], timings: list[dict] = ()) -> Path:
    """A run folder with these events."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "journal.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    if timings:
        (folder / "timings.jsonl").write_text("".join(json.dumps(row) + "\n" for row in timings))
    return folder


def played(folder: Path, seed=0, steps=60, size=4, proposals=4, answers=4, single=False, ended=True, **changes) -> Path:
    """A whole run: ratings drift, problems grow, members are replaced."""
    game = _Game(np.random.default_rng(seed), size, proposals, answers, single)
    changes = {"population": {"teachers": size, "students": size, "single_agent": single}, **changes}
    events = [start(game.roster, seed, steps, **changes)]
    for step in range(1, steps + 1):
        events += game.step(step, steps)
    if ended:
        events.append({"event": "end", "step": steps})
    return write(folder, events, game.timings)


class _Game:
    def __init__(self, rng, size, proposals, answers, single) -> None:
        self.rng, self.proposals, self.answers, self.single = rng, proposals, answers, single
        self.teachers = ["a0"] if single else [f"t{i}" for i in range(size)]
        self.students = ["a0"] if single else [f"s{i}" for i in range(size)]
        self.roster = [(t, "teacher") for t in self.teachers] + [(s, "student") for s in self.students]
        self.born = {"teacher": size, "student": size}
        self.ratings = {name: [25.0, 8.333] for name, _ in self.roster}
        self.cost: dict[str, dict[str, int]] = {}
        self.filled, self.timings = 0, []

    def step(self, step, steps) -> list[dict]:
        self.progress, events, kept = step / steps, [], []
        students = self.rng.permutation(self.students).tolist()
        pairs = list(zip(self.teachers, students, strict=True))
        events += [{"event": "match", "step": step, "teacher": t, "student": s, "expected": 0.5} for t, s in pairs]
        for t, s in pairs:
            for kind in KINDS:
                kept += [self.problem(step, t, s, kind, i) for i in range(self.proposals)]
        events += [p for p, _ in kept] + [a for _, own in kept for a in own]
        if not self.single:
            events += [self.rating(step, t, s) for t, s in pairs]
        events += [self.update(step, name) for name in dict.fromkeys([*self.teachers, *self.students])]
        if not self.single and step % 10 == 0 and step < steps:
            events += [self.replacement(step, role) for role in ("teacher", "student")]
        events.append(self.closing(step, [p for p, _ in kept]))
        seconds = {phase: round(float(self.rng.uniform(0.01, 0.4)), 3) for phase in PHASES}
        self.timings.append({"step": step, **seconds, "total": round(sum(seconds.values()), 3)})
        return events

    def problem(self, step, t, s, kind, i) -> tuple[dict, list[dict]]:
        rng, name = self.rng, f"{step}-{t}-{kind}-0-{i}"
        p = {"event": "proposal", "step": step, "id": name, "teacher": t, "student": s, "kind": kind, "truncated": False}
        size = 2 + int(rng.poisson(1 + 3 * self.progress))
        body = "\n".join(f"    x = x {rng.choice(['+', '*', '-'])} {rng.integers(1, 9)}" for _ in range(size - 2))
        program = f"def f(x):\n{body}\n    return x".replace("\n\n", "\n")
        x = int(rng.integers(0, 50))
        p |= {"text": f"{program}\nin: {x}\n\n", "tokens": len(program), "new": bool(rng.random() < 0.8)}
        self.charge(t, len(program))
        p["new_cell"] = bool(rng.random() < 0.03)
        if rng.random() > 0.6 + 0.3 * self.progress:
            status = str(rng.choice(["syntax_error", "raised", "timeout", "bad_format", "nondeterministic"]))
            nothing = dict.fromkeys(("program", "inputs", "outputs", "message", "complexity", "rho"))
            return {
                **p,
                **nothing,
                "status": status,
                "reason": "NameError",
                "reward": -1.0,
                "advantage": -1.0,
                "new_cell": False,
            }, []
        self.filled += p["new_cell"]
        right = rng.random(self.answers) < 0.25 + 0.35 * self.progress + (0.15 if kind == "deduction" else 0)
        rho = float(right.mean())
        p |= {"status": "ok", "reason": "", "program": program, "inputs": [str(x)], "outputs": [str(x * 3)], "message": ""}
        p |= {
            "complexity": [size + 3, 1 + size // 2, size, 1],
            "rho": rho,
            "reward": 0.0 if rho == 0 else 1 - rho,
            "advantage": 0.1,
        }
        return p, [self.answer(step, name, s, bool(ok), x) for ok in right]

    def answer(self, step, name, s, ok, x) -> dict:
        self.charge(s, 3)
        status = "ok" if ok else str(self.rng.choice(["wrong", "wrong", "wrong", "bad_format"]))
        text = f" {x * 3}" if ok else f" {self.rng.integers(0, 4)}"
        reward = {"ok": 1.0, "wrong": -0.5, "bad_format": -1.0}[status]
        of = {"event": "answer", "step": step, "problem": name, "student": s, "text": text, "tokens": 3, "truncated": False}
        return {**of, "status": status, "reason": "", "reward": reward, "advantage": 0.2}

    def rating(self, step, t, s) -> dict:
        for name in (t, s):
            mu, sigma = self.ratings[name]
            self.ratings[name] = [mu + float(self.rng.normal(0, 0.12 * sigma)), max(1.2, sigma * 0.96)]
        of = {"event": "rating", "step": step, "teacher": t, "student": s, "solve_rate": 0.4, "valid": 9, "expected": 0.5}
        return {**of, "result": "teacher", "teacher_rating": self.ratings[t], "student_rating": self.ratings[s]}

    def update(self, step, name) -> dict:
        rng, of = (
            self.rng,
            {"event": "update", "step": step, "member": name, "samples": 12, "tokens": 700, "groups": 3, "loss": 0.0},
        )
        noise = float(np.exp(rng.normal(0, 0.3)))
        of |= {
            "dead_groups": int(rng.integers(0, 3)),
            "grad_norm": 0.4 * noise,
            "entropy": (1.1 - 0.6 * self.progress) * noise**0.3,
        }
        return {
            **of,
            "kl": 0.0,
            "ratio": [0.9, 1.0, 1.1],
            "mismatch": 1e-6 * noise,
            "clipped": 0.0,
            "truncated": 0.02,
            "lr": 0.001,
            "skipped": "",
        }

    def replacement(self, step, role) -> dict:
        own = self.teachers if role == "teacher" else self.students
        victim = min(own, key=lambda name: self.ratings[name][0] - 3 * self.ratings[name][1])
        child = f"{role[0]}{self.born[role]}"
        self.born[role] += 1
        count = int(self.rng.integers(1, 3))
        parents = self.rng.permutation([name for name in own if name != victim])[:count].tolist()
        own[own.index(victim)] = child
        self.ratings.pop(victim)
        self.ratings[child] = [25.0, 8.333]
        of = {"event": "replacement", "step": step, "victim": victim, "child": child, "role": role, "parents": parents}
        measures = {"kept_energy": float(self.rng.uniform(0.9, 1)), "relative_change": 0.4, "parent_cosines": [0.8] * len(parents)}
        return {**of, "operator": str(self.rng.choice(OPERATORS)), "params": {}, "seed": 1, **measures}

    def closing(self, step, proposals) -> dict:
        valid = [p for p in proposals if p["status"] == "ok"]
        means = np.mean([p["complexity"] for p in valid], axis=0).tolist() if valid else None
        of = {"event": "step", "step": step, "valid": len(valid) / len(proposals), "filled": self.filled, "buffers": {}}
        rate = float(np.mean([p["rho"] for p in valid])) if valid else None
        of |= {"solve_rate": rate, "coverage": self.filled / 512, "complexity": means, "ratings": dict(self.ratings)}
        return {**of, "cost": {}, "cost_by_member": {name: dict(cost) for name, cost in self.cost.items()}}

    def charge(self, name, tokens) -> None:
        cost = self.cost.setdefault(
            name, dict.fromkeys(("rollouts", "prompt_tokens", "completion_tokens", "trained_tokens", "programs"), 0)
        )
        cost["rollouts"] += 1
        cost["completion_tokens"] += tokens
