"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def replaced(path: Path, text: str) -> None:
    """Write a text beside a file and put it in its place."""
    aside = path.with_name(path.name + ".part")
    aside.write_text(text, encoding="utf-8")
    os.replace(aside, path)
