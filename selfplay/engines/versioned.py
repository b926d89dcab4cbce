"""What the ways to vLLM have in common: members by version, and completions in the form of every engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from lora_evo import Adapter
from selfplay.bases import resolve
from selfplay.config import Config
from selfplay.engines.bank import MemberError
from selfplay.engines.base import Completion, Request, Sampling
from selfplay.engines.endings import Endings
from selfplay.engines.prompts import prompt_ids
from selfplay.engines.versions import Version, Versions, digest_of
from selfplay.tasks import Style


class VersionedEngine(ABC):
    """See `Engine`. A subclass knows how a version is taken in and released, and how completions are written.

    Args:
        given: base, rank and `vllm.store` of a run.
    """

    def __init__(self, given: Config) -> None:
        self.endings = Endings.read(resolve(given.base))
        self.versions = Versions(given.lora.rank, given.vllm.store)
        self.served: dict[str, Version] = {}

    @abstractmethod
    def _take(self, version: Version) -> None:
        """Load a version."""

    @abstractmethod
    def _forget(self, version: Version) -> None:
        """Unload it."""

    @abstractmethod
    def _written(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """Completions of requests that are all to the base, or all to members."""

    @property
    def members(self) -> tuple[str, ...]:
        """Names, in the order they came."""
        return tuple(self.served)

    def prompt(self, text: str, style: Style) -> tuple[int, ...]:
        """See `Engine.prompt`."""
        return prompt_ids(self.endings.tokenizer, text, style)

    def put(self, name: str, adapter: Adapter) -> None:
        """Serve these weights under a member's name from now on; weights that it has already change nothing.

        Raises:
            ServeError: for an adapter that cannot be served; the member is then as it was.
            OSError: if there is nobody left to serve it.
        """
        digest, old = digest_of(adapter), self.served.get(name)
        if old and old.digest == digest:
            return
        new = self.versions.write(name, adapter, digest)
        try:
            self._take(new)
        except BaseException:
            self.versions.release(new)
            raise
        self.served[name] = new
        if old:
            self._release(old)

    def drop(self, name: str) -> None:
        """Let a member go."""
        self._release(self.version(name))
        del self.served[name]

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """One completion for each request, in order.

        Requests to the base are written apart: vLLM's LoRA layers for CPUs (0.32) mark a row without an adapter by -1 and read
        the last adapter for it, unless no row has one.

        Raises:
            MemberError: for an unknown member.
            OSError: if there is nobody left to answer.
        """
        found: dict[int, Completion] = {}
        for to_base in (True, False):
            part = [i for i, r in enumerate(requests) if (r.member is None) == to_base]
            if part:
                found.update(zip(part, self._written([requests[i] for i in part], sampling), strict=True))
        return [found[i] for i in range(len(requests))]

    def version(self, name: str) -> Version:
        """What a member is served as.

        Raises:
            MemberError: for an unknown member.
        """
        if name not in self.served:
            raise MemberError(f"no member {name}; there are {', '.join(self.served) or 'none'}")
        return self.served[name]

    def completion(self, sampling: Sampling, tokens: tuple[int, ...], logprobs: tuple[float, ...], finish: str) -> Completion:
        """What vLLM wrote; `finish` is its word for how it ended, `stop` or `length`."""
        if finish == "stop":
            return Completion(tokens, logprobs, self.endings.cut(tokens, sampling.stop), "stop")
        return Completion(tokens, logprobs, self.endings.text(tokens), "length")

    def _release(self, version: Version) -> None:
        self._forget(version)
        self.versions.release(version)
