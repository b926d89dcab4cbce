"""Fixtures: no network, one thread, and PEFT's folders made once per run."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from adapters import hand_folder, write_peft
from hypothesis import HealthCheck, settings

settings.register_profile(
    "here",
    deadline=None,
    max_examples=25,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("here")
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def peft_made(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`peft_made(variant, seed)`: a folder that PEFT wrote; each is made once and must not be changed."""
    root, made = tmp_path_factory.mktemp("peft"), {}

    def folder(name: str, seed: int = 1) -> Path:
        if (name, seed) not in made:
            made[name, seed] = write_peft(root / f"{name}-{seed}", name, seed)
        return made[name, seed]

    return folder


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Two hand-written folders of one kind."""
    return hand_folder(tmp_path / "mum", 1), hand_folder(tmp_path / "dad", 2)
