"""Folders that are there whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def appearing(folder: Path, replace: bool = False) -> Iterator[Path]:
    """A folder beside the wanted one to write into, renamed to it at the end; gone if anything fails, with the parents made for it.

    Args:
        replace: put it in the place of a folder that is there, which comes back if that fails.

    Raises:
        OSError: for what cannot be written, or a folder that is there and may not be replaced.
    """
    made = [path for path in folder.parents if not path.exists()]
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".partial", dir=folder.parent))
    try:
        yield partial
        partial.chmod(0o777 & ~_umask())
        if replace and folder.exists():
            _replaced(folder, partial)
        else:
            os.rename(partial, folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        with suppress(OSError):  # another writer may use them by now
            for parent in made:
                parent.rmdir()
        raise


def _replaced(folder: Path, partial: Path) -> None:
    old = partial.with_suffix(".old")
    os.rename(folder, old)
    try:
        os.rename(partial, folder)
    except OSError:
        os.rename(old, folder)
        raise
    old.unlink() if old.is_symlink() else shutil.rmtree(old)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
