"""Reading PEFT folders and hub ids: through memory maps, checked before anything is computed, nothing unpickled.

What is not known here: whether the base model has the modules that the keys name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from lora_evo.adapter import Adapter, Extra, Layout, LoraFactors
from lora_evo.errors import AdapterError
from lora_evo.lineage import Lineage
from lora_evo.peft_format import config as peft_config
from lora_evo.peft_format.keys import Key, parse

WEIGHTS = "adapter_model.safetensors"
INDEX = WEIGHTS + ".index.json"
Tensors = dict[str, tuple[Key, Tensor]]


def load(source: str | Path) -> Adapter:
    """Read an adapter from a PEFT folder or a hub id (`owner/name`, from the local cache when offline).

    Tensors stay memory-mapped in their storage dtype: reading costs nothing until they are used. Values are checked for
    NaN and Inf by whatever reads them first.

    Raises:
        AdapterError: names the file, the module and the reason.
    """
    folder = _resolve(source)
    config = peft_config.read(folder)
    files = _weight_files(folder)
    tensors, metadata = _read_tensors(files)
    pairs = _pairs(files[0], tensors)
    layouts = {name: _layout(config, name, A, B, kind) for name, (A, B, kind) in pairs.items()}
    modules = {name: _factors(files[0], config, name, A, B, layouts[name]) for name, (A, B, _) in pairs.items()}
    ties = _ties(config, modules, layouts)
    _check_base_names(files[0], config, modules)
    return Adapter(
        modules={name: f for name, f in modules.items() if name not in ties},
        layouts={name: layout for name, layout in layouts.items() if layout != Layout()},
        extras=_extras(config, tensors),
        config=config,
        ties=ties,
        name=folder.name if Path(source).exists() else str(source),
        source=tuple(str(f) for f in files),
        metadata={k: v for k, v in metadata.items() if k not in ("format", Lineage.KEY)},
        lineage=Lineage.from_metadata(metadata, files[0]),
        warnings=_warnings(folder, config, modules, layouts, tensors),
    )


def _resolve(source: str | Path) -> Path:
    path = Path(source)
    if path.is_dir():
        return path.resolve()
    if path.exists():
        raise AdapterError(f"{path}: a file; give the folder that holds it and {peft_config.FILE}")
    if str(source).count("/") != 1 or str(source).startswith((".", "/", "~")) or path.parent.is_dir():
        raise AdapterError(f"{source}: no such folder, and not a hub id (owner/name)")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(str(source), allow_patterns=["adapter_config.json", "*.safetensors*"]))
    except (LocalEntryNotFoundError, HfHubHTTPError, HFValidationError, OSError) as error:
        reason = str(error).split("\n")[0]
        raise AdapterError(f"{source}: no such folder, and the hub cannot give it: {reason}") from None


def _weight_files(folder: Path) -> list[Path]:
    if (folder / WEIGHTS).exists():
        return [folder / WEIGHTS]
    index = folder / INDEX
    if index.exists():
        try:
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise AdapterError(f"{index}: not an index of shards: {error}") from None
        if not names or not all(isinstance(name, str) for name in names):
            raise AdapterError(f"{index}: not an index of shards: it names {names}")
        for name in names:
            if Path(name).name != name or not (folder / name).exists():
                raise AdapterError(f"{index}: names the shard {name!r}, which is not in the folder")
        return [folder / name for name in names]
    pickles = [p.name for p in folder.glob("adapter_model.*") if p.suffix in (".bin", ".pt", ".pth")]
    if pickles:
        raise AdapterError(
            f"{folder / pickles[0]}: a pickle, which can run code and is not read. If you trust it, convert it: "
            f"PeftModel.from_pretrained(base, {str(folder)!r}).save_pretrained(NEW)"
        )
    raise AdapterError(f"{folder}: no {WEIGHTS}")


def _read_tensors(files: list[Path]) -> tuple[Tensors, dict[str, str]]:
    tensors: Tensors = {}
    metadata: dict[str, str] = {}
    for file in files:
        try:
            with safe_open(file, "pt") as handle:
                metadata |= handle.metadata() or {}
                for raw in handle.keys():  # noqa: SIM118  not a mapping
                    _add(tensors, file, raw, handle.get_tensor(raw))
        except (SafetensorError, RuntimeError, OSError) as error:
            raise AdapterError(f"{file}: not a whole safetensors file: {error}") from None
    if not tensors:
        raise AdapterError(f"{file}: holds no tensors")
    return tensors, metadata


def _add(tensors: Tensors, file: Path, raw: str, tensor: Tensor) -> None:
    try:
        key = parse(raw)
    except AdapterError as error:
        raise AdapterError(f"{file}: {error}") from None
    if key.stored in tensors:
        raise AdapterError(f"{file}: {key.stored} is there twice, under two spellings of its key")
    if tensor.numel() == 0:
        hint = "an adapter saved under DeepSpeed ZeRO-3 without gathering its weights looks like this"
        raise AdapterError(f"{file}: {raw} is empty, shape {list(tensor.shape)}; {hint}")
    if not tensor.is_floating_point() and key.role not in ("full_weight", "other"):
        raise AdapterError(f"{file}: {raw} is {tensor.dtype}; factors in bf16, fp16, fp32, fp64 or fp8 are read")
    tensors[key.stored] = (key, tensor)


def _pairs(file: Path, tensors: Tensors) -> dict[str, tuple[Tensor, Tensor, str]]:
    """A and B of each module, in natural order (layer 2 before layer 10)."""
    halves: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.values():
        if key.role in ("A", "B", "embedding_A", "embedding_B"):
            halves.setdefault(key.module, {})[key.role] = tensor
    if not halves:
        raise AdapterError(f"{file}: no lora_A and lora_B in it")
    pairs = {}
    for name in sorted(halves, key=_natural):
        found = halves[name]
        if set(found) not in ({"A", "B"}, {"embedding_A", "embedding_B"}):
            raise AdapterError(f"{file}: module {name} has only {', '.join(sorted(found))}; a delta needs both A and B")
        kind = "embedding" if "embedding_A" in found else "linear"
        A, B = (found[k] for k in sorted(found))
        pairs[name] = (A, B, kind)
    return pairs


def _natural(name: str) -> list[tuple[int, int, str]]:
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in name.split(".")]


def _layout(config: Mapping[str, Any], name: str, A: Tensor, B: Tensor, kind: str) -> Layout:
    if kind == "embedding":
        return Layout("embedding")
    if A.ndim > 2:
        groups = A.shape[0] // B.shape[1] if B.ndim > 1 and A.shape[0] % B.shape[1] == 0 else 1
        return Layout("blocks_out" if groups > 1 else "conv", groups, tuple(A.shape[2:]))
    if _is_parameter(config, name):
        rank = peft_config.config_rank(config, name)
        if A.shape[0] > rank and A.shape[0] % rank == 0:
            return Layout("experts", A.shape[0] // rank)
    blocks = config["use_bdlora"]
    if blocks:
        for side, layout in (("target_modules_bd_b", "blocks_out"), ("target_modules_bd_a", "blocks_in")):
            if any(f".{target}." in f".{name}." for target in blocks.get(side) or ()):
                return Layout(layout, blocks["nblocks"])  # type: ignore[arg-type]
    return Layout()


def _is_parameter(config: Mapping[str, Any], name: str) -> bool:
    owners = {parameter.rpartition(".")[0] for parameter in config["target_parameters"] or ()}
    module = name.replace(".base_layer", "")
    return any(module == owner or module.endswith(f".{owner}") for owner in owners)


def _factors(file: Path, config: Mapping[str, Any], name: str, A: Tensor, B: Tensor, layout: Layout) -> LoraFactors:
    shapes = f"A {list(A.shape)} and B {list(B.shape)}"
    try:
        if A.ndim < 2 or B.ndim < 2:
            raise RuntimeError
        matrix_A, matrix_B = layout.matrices(A, B)
    except RuntimeError:
        raise AdapterError(f"{file}: module {name}: {shapes} are no {layout.kind} factors") from None
    rank = matrix_A.shape[-2]
    if matrix_B.shape[-1] != rank:
        raise AdapterError(f"{file}: module {name}: {shapes} do not share a rank")
    if rank > peft_config.MAX_RANK:
        raise AdapterError(f"{file}: module {name}: rank {rank} is absurd (above {peft_config.MAX_RANK})")
    return LoraFactors(matrix_A, matrix_B, peft_config.scale_of(config, name, layout.config_rank(rank)))


def _ties(config: Mapping[str, Any], modules: Mapping[str, LoraFactors], layouts: Mapping[str, Layout]) -> dict[str, str]:
    """Heads that are an embedding's factors transposed; they are bred with it and written from it."""
    if not config["ensure_weight_tying"]:
        return {}
    embeddings = [name for name in modules if layouts[name].kind == "embedding"]
    return {
        name: embedding
        for name, f in modules.items()
        for embedding in embeddings
        if layouts[name].kind == "linear" and _transposed(f, modules[embedding])
    }


def _transposed(a: LoraFactors, b: LoraFactors) -> bool:
    return torch.equal(a.A, b.B.mT) and torch.equal(a.B, b.A.mT)


def _check_base_names(file: Path, config: Mapping[str, Any], modules: Mapping[str, LoraFactors]) -> None:
    """Refuse `language_model.` in keys when the base lies on disk and has none: PEFT would load a zero adapter."""
    base = Path(str(config["base_model_name_or_path"]))
    inner = [name for name in modules if ".language_model." in f".{name}."]
    if not inner or not base.is_dir():
        return
    names = set()
    for shard in base.glob("*.safetensors"):
        with safe_open(shard, "pt") as handle:
            names |= set(handle.keys())
    if names and not any("language_model." in name for name in names):
        raise AdapterError(f"{file}: module {inner[0]} is not in the base {base}, which has no 'language_model' in its names")


def _extras(config: Mapping[str, Any], tensors: Tensors) -> dict[str, Extra]:
    extras: dict[str, Extra] = {}
    for stored, (key, tensor) in sorted(tensors.items()):
        if key.role in ("A", "B", "embedding_A", "embedding_B"):
            continue
        owner = key.module
        if config["ensure_weight_tying"]:
            twins = (e.module for e in extras.values() if e.tensor.shape == tensor.shape and torch.equal(e.tensor, tensor))
            owner = next(twins, owner)
        extras[stored] = Extra(tensor, key.role, owner)  # type: ignore[arg-type]
    return extras


def _warnings(
    folder: Path,
    config: Mapping[str, Any],
    modules: Mapping[str, LoraFactors],
    layouts: Mapping[str, Layout],
    tensors: Tensors,
) -> tuple[str, ...]:
    notes = []
    raw = json.loads((folder / peft_config.FILE).read_text(encoding="utf-8"))
    if raw.get("lora_alpha") is None:
        notes.append(f"lora_alpha is absent: PEFT's default {peft_config.DEFAULTS['lora_alpha']} is taken")
    if "r" not in raw:
        notes.append("r is absent: ranks are taken from the tensors")
    for pattern in peft_config.unmatched_patterns(config, modules):
        notes.append(f"pattern {pattern!r} in the configuration matches no module")
    odd = [
        f"{name} ({layouts[name].config_rank(f.rank)}, not {peft_config.config_rank(config, name)})"
        for name, f in modules.items()
        if layouts[name].config_rank(f.rank) != peft_config.config_rank(config, name)
    ]
    if odd and "r" in raw:
        notes.append(f"{len(odd)} modules have another rank than the configuration says, the tensors' is taken: {odd[0]} ...")
    return tuple(f"{folder.name}: {note}" for note in notes)
