"""What verdicts pay. A failure of the referee's own is never a reward: it is None, and leaves rho, baseline and rating."""

from __future__ import annotations

from dataclasses import dataclass

from selfplay.referee import Status, Verdict
from selfplay.tasks import Problem

FORMAT_FAILURES = frozenset({Status.BAD_FORMAT, Status.SYNTAX_ERROR, Status.NO_ENTRY_FUNCTION})
"""Answers that do not have the asked form at all; everything else that is not OK is well-formed but wrong."""


@dataclass(frozen=True)
class RewardRules:
    """The levels.

    Attributes:
        right, wrong, malformed: for a student's answer.
        invalid: for a proposal that is no problem.
        unsolved: for a problem that nobody solved; a problem that everybody solved pays 1 - 1 = 0.
    """

    right: float = 1.0
    wrong: float = -0.5
    malformed: float = -1.0
    invalid: float = -1.0
    unsolved: float = 0.0


def student_reward(verdict: Verdict, rules: RewardRules = RewardRules()) -> float | None:
    """What an answer pays; None if the referee failed."""
    if verdict.blameless:
        return None
    if verdict.ok:
        return rules.right
    return rules.malformed if verdict.status in FORMAT_FAILURES else rules.wrong


def teacher_reward(proposal: Problem | Verdict, rho: float | None, rules: RewardRules = RewardRules()) -> float | None:
    """What a proposal pays.

    Args:
        proposal: the problem, or the verdict against it.
        rho: the matched student's solve rate on it, 0 to 1; None if no answer could be judged.
        rules: the levels.

    Returns:
        None if the referee failed on the proposal or on all answers.

    Raises:
        ValueError: for a rho outside 0 to 1.
    """
    if isinstance(proposal, Verdict):
        return None if proposal.blameless else rules.invalid
    if rho is None:
        return None
    if not 0 <= rho <= 1:
        raise ValueError(f"rho is {rho}, it must be between 0 and 1")
    return rules.unsolved if rho == 0 else 1 - rho
