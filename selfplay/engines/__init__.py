"""Engines: what turns prompts into completions, with every member of a population in one batch."""

from selfplay.engines.base import Completion, Engine, Request, Sampler, Sampling

__all__ = ["Completion", "Engine", "Request", "Sampler", "Sampling"]
