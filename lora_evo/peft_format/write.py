"""Writing PEFT folders: whole or not at all, the same bytes for the same child.

The safetensors package orders header entries at random and wants all tensors at once; here the header is sorted, and
tensors are put in their place as they come.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from lora_evo.adapter import Adapter, LoraFactors
from lora_evo.errors import AdapterError
from lora_evo.folders import appearing
from lora_evo.lineage import Lineage
from lora_evo.peft_format import config as peft_config
from lora_evo.peft_format.card import card
from lora_evo.peft_format.keys import factor_keys
from lora_evo.peft_format.read import WEIGHTS

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def save(adapter: Adapter, folder: str | Path, *, force: bool = False) -> Path:
    """Write an adapter as a PEFT folder: adapter_config.json, adapter_model.safetensors, README.md.

    The folder appears whole or not at all.

    Args:
        force: replace an adapter folder that is there.

    Raises:
        AdapterError: if the folder exists and may not be replaced.
    """
    write(folder, adapter, adapter.modules, iter(adapter.modules.items()), lambda: adapter, force=force)
    return Path(folder)


def write(
    folder: str | Path,
    draft: Adapter,
    sizes: Mapping[str, LoraFactors],
    factors: Iterable[tuple[str, LoraFactors]],
    finished: Callable[[], Adapter],
    *,
    force: bool = False,
) -> Adapter:
    """Write an adapter whose modules come one by one.

    Args:
        draft: the adapter without modules, its lineage without measures; settles what the header needs.
        sizes: shapes and dtypes of all modules; meta tensors will do.
        factors: the modules, in any order.
        finished: called after the last module: the adapter with its measures.
    """
    check_free(Path(folder), force)
    with appearing(Path(folder), replace=force) as partial:
        tensors = {key: t for name, f in sizes.items() for key, t in _named(draft, name, f)}
        tensors |= {key: extra.tensor for key, extra in draft.extras.items()}
        offsets, entries = _arranged(tensors)
        room = len(_header(draft, entries, widest=True))
        with open(partial / WEIGHTS, "wb") as file:
            for key, extra in draft.extras.items():
                _put(file, 8 + room + offsets[key], extra.tensor)
            for name, f in factors:
                for key, tensor in _named(draft, name, f):
                    _put(file, 8 + room + offsets[key], tensor)
            child = finished()
            file.seek(0)
            file.write(room.to_bytes(8, "little") + _header(child, entries).ljust(room))
        (partial / peft_config.FILE).write_text(peft_config.dumps(child.config), encoding="utf-8")
        (partial / "README.md").write_text(card(child), encoding="utf-8")
    return child


def _named(adapter: Adapter, module: str, factors: LoraFactors) -> Iterator[tuple[str, Tensor]]:
    layout = adapter.layout(module)
    yield from zip(factor_keys(module, layout.kind), layout.stored(factors.A, factors.B), strict=True)
    for head, embedding in adapter.ties.items():
        if embedding == module:
            yield from zip(factor_keys(head, "linear"), (factors.B.mT, factors.A.mT), strict=True)


def _arranged(tensors: Mapping[str, Tensor]) -> tuple[dict[str, int], dict[str, dict]]:
    """Each tensor's offset, wide dtypes first so that all are aligned, and the header's entries."""
    offsets, entries, end = {}, {}, 0
    for key in sorted(tensors, key=lambda k: (-tensors[k].dtype.itemsize, k)):
        tensor = tensors[key]
        if tensor.dtype not in _DTYPES:
            raise AdapterError(f"{key}: {tensor.dtype} cannot be stored; ask for another dtype")
        start, end = end, end + tensor.nbytes
        offsets[key] = start
        entries[key] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    return offsets, entries


def _header(adapter: Adapter, entries: Mapping[str, dict], widest: bool = False) -> bytes:
    metadata = {**adapter.metadata, "format": "pt"}
    if adapter.lineage:
        metadata[Lineage.KEY] = adapter.lineage.widest().dumps() if widest else adapter.lineage.dumps()
    text = json.dumps({"__metadata__": dict(sorted(metadata.items())), **entries}, separators=(",", ":")).encode()
    return text.ljust(-(-len(text) // 8) * 8)


def _put(file: BinaryIO, offset: int, tensor: Tensor) -> None:
    file.seek(offset)
    file.write(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)


def check_free(folder: Path, force: bool) -> None:
    """Refuse a folder that is there, and with `force` one that is no adapter."""
    if not folder.exists():
        return
    if not force:
        raise AdapterError(f"{folder} exists; --force (force=True) replaces it")
    if not folder.is_dir() or (any(folder.iterdir()) and not (folder / peft_config.FILE).exists()):
        raise AdapterError(f"{folder} is not an adapter folder, so it is not replaced")
