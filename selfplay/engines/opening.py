"""The sampler of a run, by its configuration: who writes the completions of members that live in the embedded engine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from selfplay.config import Config
from selfplay.engines.base import Sampler
from selfplay.engines.torch_engine import TorchEngine


@contextmanager
def opened(given: Config, engine: TorchEngine, members: int) -> Iterator[TorchEngine | Sampler]:
    """The embedded engine itself, vLLM beside it, or servers.

    Args:
        members: at one time.

    Raises:
        LoraEvoError: if what is configured cannot be had.
    """
    if given.engine == "torch":
        yield engine
        return
    sampler = _sampler(given, members)
    try:
        yield sampler
    finally:
        sampler.close()


def _sampler(given: Config, members: int) -> Sampler:
    if given.vllm.servers:
        from selfplay.engines.served import ServedEngine

        return ServedEngine(given, _say)
    from selfplay.engines.vllm_engine import VllmEngine

    _say("starting vLLM")
    return VllmEngine(given, members)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
