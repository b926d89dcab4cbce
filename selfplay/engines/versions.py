"""Members as an engine outside this process reads them: PEFT folders, one for each version of a member, in memory if there is any.

A version has a name and a number that nothing before it had. Caches of prefixes and of adapters go by these, so no version
can answer for another. Folders are removed when their version is released; those of a process that was killed are removed
by the next one.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

import lora_evo
from lora_evo import Adapter, LoraFactors
from lora_evo.errors import LoraEvoError

PREFIX = "lora-evo-"


class ServeError(LoraEvoError):
    """An adapter, a setting or an engine that cannot be served: what is wrong, and what to do."""


@dataclass(frozen=True)
class Version:
    """One version of a member.

    Attributes:
        name: the member's and the number.
        number: from 1 on; never used twice.
        folder: of PEFT.
        digest: of the weights.
    """

    name: str
    number: int
    folder: Path
    digest: str


class Versions:
    """The folder of all versions that are being served.

    Args:
        rank: that all are filled up to.
        where: a folder for it; None: the machine's memory, or its temporary folder where there is none.
    """

    def __init__(self, rank: int, where: str | None = None) -> None:
        memory = Path("/dev/shm")
        parent = Path(where) if where else memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir())
        if not parent.is_dir():
            raise ServeError(f"vllm.store: {parent} is no folder")
        _sweep(parent)
        self.rank = rank
        made = Path(tempfile.mkdtemp(prefix=f".{PREFIX}", dir=parent))
        made.chmod(0o755)
        self._lock = (made / "lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.folder = made.rename(made.with_name(made.name.removeprefix(".")))  # only now can another process find it
        self._numbers = itertools.count(1)

    def write(self, member: str, adapter: Adapter, digest: str) -> Version:
        """A new version of a member."""
        number = next(self._numbers)
        name = f"{member}.v{number}"
        return Version(name, number, lora_evo.save(even(adapter, self.rank), self.folder / name), digest)

    def release(self, version: Version) -> None:
        """Remove a version's folder."""
        shutil.rmtree(version.folder, ignore_errors=True)

    def close(self) -> None:
        """Remove everything."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.close()


def digest_of(adapter: Adapter) -> str:
    """Of everything that an adapter's weights are."""
    found = hashlib.sha256()
    for name, factors in sorted(adapter.modules.items()):
        found.update(f"{name} {factors.rank} {factors.scale!r}".encode())
        for tensor in (factors.A, factors.B):
            found.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return found.hexdigest()


def even(adapter: Adapter, rank: int) -> Adapter:
    """The same deltas with one rank and one scale: vLLM reads no patterns of ranks or alphas.

    Raises:
        ServeError: for what vLLM serves of no adapter: DoRA, trained biases, full weights, a rank above `rank`.
    """
    if adapter.extras or adapter.ties:
        kinds = sorted({str(extra.kind) for extra in adapter.extras.values()}) or ["tied embedding"]
        raise ServeError(f"{adapter.name} has more than LoRA factors ({', '.join(kinds)}), which vLLM does not serve")
    odd = [name for name in adapter.modules if adapter.layout(name).kind != "linear"]
    if odd:
        raise ServeError(f"{adapter.name} adapts {odd[0]} ({adapter.layout(odd[0]).kind}); only linear layers are served")
    highest = max(factors.rank for factors in adapter.modules.values())
    if highest > rank:
        raise ServeError(f"{adapter.name} has rank {highest}, the engine was started for {rank}")
    modules = {name: _filled(factors, highest) for name, factors in adapter.modules.items()}
    plain = {"r": highest, "lora_alpha": highest, "rank_pattern": {}, "alpha_pattern": {}, "use_rslora": False}
    return replace(adapter, modules=modules, config={**adapter.config, **plain})


def _filled(factors: LoraFactors, rank: int) -> LoraFactors:
    """With scale 1, and zeros up to a rank."""
    missing = rank - factors.rank
    A = torch.nn.functional.pad(factors.A, (0, 0, 0, missing))
    return LoraFactors(A, torch.nn.functional.pad(factors.B * factors.scale, (0, missing)), 1.0)


def _sweep(parent: Path) -> None:
    """Remove the folders of processes that are no more: nobody holds their lock."""
    for folder in _abandoned(parent):
        shutil.rmtree(folder, ignore_errors=True)


def _abandoned(parent: Path) -> Iterator[Path]:
    for lock in parent.glob(f"{PREFIX}*/lock"):
        with suppress(OSError), lock.open("r") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield lock.parent
