"""Where named bases live on disk, and how a folder gets there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lora_evo.errors import LoraEvoError
from lora_evo.folders import appearing


class BaseError(LoraEvoError):
    """A base that cannot be had: what failed, and what to do about it."""


def cache_dir() -> Path:
    """$LORA_EVO_CACHE, or lora-evo in the user's cache folder."""
    chosen = os.environ.get("LORA_EVO_CACHE")
    return Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lora-evo"


@contextmanager
def caching(folder: Path) -> Iterator[Path]:
    """A folder of the cache to write into, which appears at the end; if another process was quicker, its folder stays.

    Raises:
        BaseError: if it cannot be written.
    """
    try:
        with appearing(folder) as partial:
            yield partial
    except OSError as error:
        if not folder.is_dir():
            said = error.strerror or error
            raise BaseError(f"{folder}: {said}; free some disk or set LORA_EVO_CACHE to another folder") from error
