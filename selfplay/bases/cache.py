"""Where named bases live on disk, and how a folder gets there whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lora_evo.errors import LoraEvoError


class BaseError(LoraEvoError):
    """A base that cannot be had: what failed, and what to do about it."""


def cache_dir() -> Path:
    """$LORA_EVO_CACHE, or lora-evo in the user's cache folder."""
    chosen = os.environ.get("LORA_EVO_CACHE")
    return Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lora-evo"


@contextmanager
def appearing(folder: Path) -> Iterator[Path]:
    """A folder to write into, renamed to the wanted one at the end; gone if anything fails.

    If another process was quicker, its folder stays.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".partial", dir=folder.parent))
    except OSError as error:
        raise BaseError(f"{folder.name}: cannot write to the cache: {error}; set LORA_EVO_CACHE to another folder") from None
    try:
        yield partial
        partial.chmod(0o755)
        if not folder.exists():
            partial.rename(folder)
    except OSError as error:
        if not folder.is_dir():
            raise BaseError(f"{folder}: {error.strerror or error}; free some disk or set LORA_EVO_CACHE") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
