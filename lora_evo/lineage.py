"""Where a child comes from: operator, parameters, seed, parents by digest. It travels in the file's own header."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

from lora_evo.adapter import Adapter
from lora_evo.errors import AdapterError
from lora_evo.measure import Measures


@dataclass(frozen=True)
class Parent:
    """A parent as its child remembers it.

    Attributes:
        name: its folder's name or hub id.
        sha256: of its weights file, which is what the hub lists for a file; see `digest`.
        metadata: foreign entries of its header.
    """

    name: str
    sha256: str
    metadata: Mapping[str, str]


@dataclass(frozen=True)
class Lineage:
    """How an adapter was bred. The same inputs and seed give the same lineage: no dates, no paths."""

    KEY: ClassVar[str] = "lora_evo"

    operator: str
    seed: int
    params: Mapping[str, Any]
    overrides: Mapping[str, Mapping[str, Any]]
    modules: tuple[str, ...]
    parents: tuple[Parent, ...]
    versions: Mapping[str, str]
    measures: Measures | None = None

    def dumps(self) -> str:
        """As one line of JSON."""
        return json.dumps(asdict(replace(self, measures=_rounded(self.measures))), sort_keys=True, separators=(",", ":"))

    def widest(self) -> Lineage:
        """The same with measures of the greatest length: no real ones need more room."""
        wide = -1.23457e15  # repr: -1234570000000000.0
        return replace(self, measures=Measures(wide, (wide,) * len(self.parents), wide, wide))

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str], file: Path | str = "metadata") -> Lineage | None:
        """The lineage in a header's metadata, None where there is none.

        Raises:
            AdapterError: if the entry is there but not a lineage.
        """
        if cls.KEY not in metadata:
            return None
        try:
            raw = json.loads(metadata[cls.KEY])
            raw["parents"] = tuple(Parent(**p) for p in raw["parents"])
            raw["modules"] = tuple(raw["modules"])
            if raw["measures"]:
                raw["measures"]["parent_cosines"] = tuple(raw["measures"]["parent_cosines"])
                raw["measures"] = Measures(**raw["measures"])
            return cls(**raw)
        except (json.JSONDecodeError, TypeError, KeyError) as error:
            raise AdapterError(f"{file}: its lineage cannot be read: {error}") from None


def versions() -> dict[str, str]:
    """What the child's numbers depend on beside its inputs."""
    return {"lora-evo": version("lora-evo"), "torch": version("torch").split("+")[0]}


def digest(adapter: Adapter) -> str:
    """SHA-256 of the weights file; of the shards' digests where there are several; of names and bytes without a file."""
    if len(adapter.source) == 1:
        return _file_digest(adapter.source[0], _stamp(adapter.source[0]))
    if adapter.source:
        parts = [_file_digest(f, _stamp(f)) for f in adapter.source]
        return hashlib.sha256("".join(parts).encode()).hexdigest()
    total = hashlib.sha256()
    for name, f in sorted(adapter.modules.items()):
        for tensor in (f.A, f.B):
            total.update(f"{name} {tensor.dtype} {list(tensor.shape)} {f.scale}".encode())
            total.update(_bytes(tensor))
    for name, extra in sorted(adapter.extras.items()):
        total.update(name.encode() + _bytes(extra.tensor))
    return total.hexdigest()


def ancestors(adapter: Adapter, among: Sequence[Path]) -> dict[str, Path]:
    """Which folders of `among` hold a remembered parent: digest -> folder. Names first, digests decide."""
    wanted = {p.sha256: p.name for p in adapter.lineage.parents} if adapter.lineage else {}
    found: dict[str, Path] = {}
    for folder in among:
        file = folder / "adapter_model.safetensors"
        if folder.name in wanted.values() and file.exists():
            found.setdefault(_file_digest(str(file), _stamp(str(file))), folder)
    return {sha: folder for sha, folder in found.items() if sha in wanted}


def _rounded(measures: Measures | None) -> Measures | None:
    """Six significant digits: more than rounding to the storage dtype leaves true."""
    if measures is None:
        return None

    def short(x: float | None) -> float | None:
        return None if x is None else float(f"{x:.6g}")

    return Measures(
        relative_change=short(measures.relative_change),
        parent_cosines=tuple(map(short, measures.parent_cosines)),
        kept_energy=float(f"{measures.kept_energy:.6g}"),
        norm=float(f"{measures.norm:.6g}"),
    )


def _stamp(path: str) -> tuple[int, int]:
    stat = os.stat(path)
    return stat.st_size, stat.st_mtime_ns


@lru_cache(maxsize=256)
def _file_digest(path: str, stamp: tuple[int, int]) -> str:
    """Hashed once per file and state: `stamp` is its size and time."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _bytes(tensor: Any) -> bytes:
    import torch

    return tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
