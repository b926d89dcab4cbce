"""What the loop asks of an engine. Tokens go in, tokens come out: no text is ever tokenised twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from lora_evo import Adapter
from selfplay.tasks import Style


@dataclass(frozen=True)
class Request:
    """One completion that is wanted.

    Attributes:
        member: whose adapter answers; None: the base alone.
        prompt: token ids.
        seed: of this completion; the same request gives the same completion whatever else is in the batch.
    """

    member: str | None
    prompt: tuple[int, ...]
    seed: int


@dataclass(frozen=True)
class Sampling:
    """How completions are drawn, and where they end.

    Attributes:
        temperature: 0: the likeliest token.
        max_tokens: of a completion; one that reaches it without an end is truncated.
        stop: texts that end a completion; they are left out of its text, but not out of its tokens.
    """

    temperature: float = 1.0
    max_tokens: int = 128
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature is {self.temperature}, it must be 0 or more")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens is {self.max_tokens}, it must be at least 1")


@dataclass(frozen=True)
class Completion:
    """What an engine wrote.

    Attributes:
        tokens: ids as sampled, the end token included.
        logprobs: of each token, at the sampling temperature.
        text: decoded, without end token and stop text.
        finish: why it ended; `length` means it was cut off.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    finish: Literal["stop", "length"]

    @property
    def truncated(self) -> bool:
        """Whether it was cut off."""
        return self.finish == "length"


class Engine(Protocol):
    """A frozen base with members beside it."""

    def prompt(self, text: str, style: Style) -> tuple[int, ...]:
        """Token ids of a prompt: `compact` as it is behind the start token, `chat` through the chat template."""

    def put(self, name: str, adapter: Adapter) -> None:
        """Let a member in, or give it new weights."""

    def drop(self, name: str) -> None:
        """Let a member go."""

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """One completion for each request, in order; members may be mixed freely."""


class Sampler(Engine, Protocol):
    """An engine outside this process, to which the members of the embedded one are brought."""

    @property
    def members(self) -> tuple[str, ...]:
        """Whom it serves."""

    def wake(self) -> None:
        """Get ready to write; nothing if it is."""

    def sleep(self) -> None:
        """Give memory that it shares with the learner back; nothing if it has."""

    def close(self) -> None:
        """End what was started."""
