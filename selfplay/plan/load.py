"""How much a step asks for: requests, tokens and programs, from the configuration and from lengths.

With the lengths of `bounds` nothing a step can do is more; with lengths measured in a run they are that run's means.
"""

from __future__ import annotations

from dataclasses import dataclass

from selfplay import bases
from selfplay.asking import answer_stop
from selfplay.config import Config
from selfplay.tasks import Style


@dataclass(frozen=True)
class Lengths:
    """What the configuration does not settle. Means, in tokens where nothing else is said.

    Attributes:
        valid: share of proposals that are problems.
        proposal_prompt, proposal, answer_prompt, answer: of prompts and completions.
        proposal_longest, answer_longest: what a batch waits for; summed over the batches of a phase.
        trained: share of completion tokens that are learned from: those of groups with a signal that were not cut off.
        reread: share of prompts that learning reads again, for the same reason.
        proposal_programs, answer_programs: processes of the referee for each.
    """

    valid: float
    proposal_prompt: float
    proposal: float
    answer_prompt: float
    answer: float
    proposal_longest: float
    answer_longest: float
    trained: float
    reread: float
    proposal_programs: float
    answer_programs: float


@dataclass(frozen=True)
class Asked:
    """The requests of one phase.

    Attributes:
        requests: completions.
        groups: different prompts.
        prompt, completion: tokens of each, on average.
        longest: tokens a batch waits for.
        programs: processes of the referee.
    """

    requests: float
    groups: float
    prompt: float
    completion: float
    longest: float
    programs: float

    @property
    def prompt_tokens(self) -> float:
        """As a run's cost counts them: a prompt for every request."""
        return self.requests * self.prompt

    @property
    def read_tokens(self) -> float:
        """As the engine reads them: a prompt once for its group."""
        return self.groups * self.prompt

    @property
    def completion_tokens(self) -> float:
        """Written."""
        return self.requests * self.completion


@dataclass(frozen=True)
class Load:
    """One step.

    Attributes:
        trained_tokens: completion tokens with a signal, as a run's cost counts them.
        learned_tokens: all tokens that go through the update: those, and the prompts before them once; times epochs.
    """

    propose: Asked
    solve: Asked
    trained_tokens: float
    learned_tokens: float

    @property
    def requests(self) -> float:
        """Completions of both phases."""
        return self.propose.requests + self.solve.requests

    @property
    def prompt_tokens(self) -> float:
        """Of both phases."""
        return self.propose.prompt_tokens + self.solve.prompt_tokens

    @property
    def completion_tokens(self) -> float:
        """Of both phases."""
        return self.propose.completion_tokens + self.solve.completion_tokens

    @property
    def programs(self) -> float:
        """Of both phases."""
        return self.propose.programs + self.solve.programs


def load(config: Config, lengths: Lengths) -> Load:
    """What a step asks for. Every teacher faces one student, so the number of students changes nothing here."""
    game = config.game
    prompts = config.population.teachers * len(game.kinds) * game.prompts
    proposals = prompts * game.proposals
    problems = proposals * lengths.valid
    answers = problems * game.answers
    propose = Asked(
        proposals, prompts, lengths.proposal_prompt, lengths.proposal, lengths.proposal_longest,
        proposals * lengths.proposal_programs,
    )  # fmt: skip
    solve = Asked(
        answers, problems, lengths.answer_prompt, lengths.answer, lengths.answer_longest, answers * lengths.answer_programs
    )
    trained = lengths.trained * (propose.completion_tokens + solve.completion_tokens)
    reread = lengths.reread * (propose.read_tokens + solve.read_tokens)
    return Load(propose, solve, trained, (trained + reread) * config.learner.epochs)


def bounds(config: Config) -> Lengths:
    """The most: every proposal valid, every text as long as it may be.

    A teacher's prompt that is longer than `prompt_tokens` even without references is the one thing it does not cover.
    """
    sampling, run = config.sampling, [kind for kind in config.game.kinds if kind != "deduction"]  # that is judged by its value
    return Lengths(
        valid=1.0,
        proposal_prompt=sampling.prompt_tokens,
        proposal=sampling.proposal_tokens,
        answer_prompt=sampling.prompt_tokens,
        answer=sampling.answer_tokens,
        proposal_longest=sampling.proposal_tokens,
        answer_longest=sampling.answer_tokens * answer_batches(config),
        trained=1.0,
        reread=1.0,
        proposal_programs=len(config.referee.hash_seeds),
        answer_programs=len(run) / len(config.game.kinds),
    )


def answer_batches(config: Config) -> int:
    """Batches of a step's answers: kinds whose answers end alike are written together."""
    return len({answer_stop(kind, style_of(config)) for kind in config.game.kinds})


def style_of(config: Config) -> Style:
    """The style of prompts, as far as it can be told without the base's tokenizer."""
    return config.style or bases.style_of(config.base, has_chat=True)
