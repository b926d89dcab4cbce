"""TrueSkill ratings of members: who is likely to win, and what a match changes."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Literal

with warnings.catch_warnings():
    warnings.simplefilter("ignore", SyntaxWarning)  # a bad escape in one of its docstrings
    import trueskill

MU, SIGMA = 25.0, 25.0 / 3
BETA, TAU, DRAW_PROBABILITY = 25.0 / 6, 25.0 / 300, 0.1

_ENV = trueskill.TrueSkill(mu=MU, sigma=SIGMA, beta=BETA, tau=TAU, draw_probability=DRAW_PROBABILITY)

Outcome = Literal["student", "teacher", "draw"]
OutcomeRule = Literal["expected", "majority"]


@dataclass(frozen=True)
class Rating:
    """A belief about skill: normal, mean `mu`, standard deviation `sigma`."""

    mu: float = MU
    sigma: float = SIGMA

    @property
    def conservative(self) -> float:
        """`mu - 3 sigma`, by which members are ranked."""
        return self.mu - 3 * self.sigma


def win_probability(student: Rating, teacher: Rating) -> float:
    """The probability that the student beats the teacher."""
    spread = math.sqrt(student.sigma**2 + teacher.sigma**2 + 2 * BETA**2)
    return 0.5 * math.erfc(-(student.mu - teacher.mu) / spread / math.sqrt(2))


def outcome(
    solve_rate: float | None, expected: float, valid: int, rule: OutcomeRule = "expected", band: float = 0.0
) -> Outcome | None:
    """Who won a match.

    Args:
        solve_rate: the student's over all valid problems; None if none of its answers could be judged.
        expected: `win_probability` before the match.
        valid: how many problems were valid; with none the student wins.
        rule: compare the solve rate with the expected one, or (`majority`) with one half.
        band: distance from the bar that still is a draw.

    Returns:
        None if the match says nothing: there were problems, and no answer could be judged.
    """
    if valid == 0:
        return "student"
    if solve_rate is None:
        return None
    bar = expected if rule == "expected" else 0.5
    if abs(solve_rate - bar) <= band:
        return "draw"
    return "student" if solve_rate > bar else "teacher"


def updated(student: Rating, teacher: Rating, result: Outcome | None) -> tuple[Rating, Rating]:
    """The ratings after a match: (student, teacher). Unchanged for None, and where the numbers are too extreme to rate."""
    if result is None:
        return student, teacher
    first, second = (student, teacher) if result != "teacher" else (teacher, student)
    pair = [(_ENV.create_rating(r.mu, r.sigma),) for r in (first, second)]
    try:
        rated = _ENV.rate(pair, ranks=[0, 0] if result == "draw" else [0, 1])
    except (FloatingPointError, ZeroDivisionError, ValueError):
        return student, teacher
    winner, loser = (Rating(float(r.mu), float(r.sigma)) for (r,) in rated)
    if not all(map(math.isfinite, (winner.mu, winner.sigma, loser.mu, loser.sigma))):
        return student, teacher
    return (winner, loser) if result != "teacher" else (loser, winner)
