"""What a base is made of: counted on the model itself, which is built without its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from selfplay.bases import NANO, PACKAGED, TINY, BaseError, cache_dir, resolve

SIZES = {"float32": 4, "bfloat16": 2}
"""Bytes of a number."""

_QWEN = {"model_type": "qwen2", "max_position_embeddings": 32768, "use_sliding_window": False}
_SHAPE = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size")
_QWEN_SIZES = {
    "0.5B": (896, 4864, 24, 14, 2, 151936),
    "1.5B": (1536, 8960, 28, 12, 2, 151936),
    "3B": (2048, 11008, 36, 16, 2, 151936),
    "7B": (3584, 18944, 28, 28, 4, 152064),
    "14B": (5120, 13824, 48, 40, 8, 152064),
    "32B": (5120, 27648, 64, 40, 8, 152064),
}
"""Of Qwen2.5-Coder, from the published config.json of each; up to 3B the embedding is tied to the output head."""

KNOWN: dict[str, dict[str, Any]] = {
    f"Qwen/Qwen2.5-Coder-{size}{kind}": {**_QWEN, **dict(zip(_SHAPE, shape, strict=True)), "tie_word_embeddings": shape[0] < 3000}
    for size, shape in _QWEN_SIZES.items()
    for kind in ("", "-Instruct")
}
KNOWN["smollm2-135m"] = {
    "model_type": "llama", "max_position_embeddings": 8192, "tie_word_embeddings": True,
    **dict(zip(_SHAPE, (576, 1536, 30, 9, 3, 49152), strict=True)),
}  # fmt: skip
"""Configurations of bases that need not be on this machine."""


@dataclass(frozen=True)
class Geometry:
    """Numbers of a base.

    Attributes:
        source: where they come from: a folder, or `published`.
        parameters: weights, tied ones once.
        buffers: bytes of what else lies beside them.
        multiplied: weights that every token is multiplied with: all linear layers, the output head included.
        adapted: module path -> (in, out) of the layers that members adapt.
        positions: longest sequence; None if the base names none.
    """

    base: str
    source: str
    parameters: int
    buffers: int
    multiplied: int
    adapted: Mapping[str, tuple[int, int]]
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    mlp: int
    vocabulary: int
    positions: int | None

    def weight_bytes(self, dtype: str) -> int:
        """Of the base in memory."""
        return self.parameters * SIZES[dtype] + self.buffers

    def adapter_size(self, rank: int) -> int:
        """Numbers of a member: its A and B of every adapted layer."""
        return sum(rank * (width_in + width_out) for width_in, width_out in self.adapted.values())

    def cache_bytes(self, dtype: str) -> int:
        """Of the keys and values of one token."""
        return 2 * self.layers * self.kv_heads * self.head_size * SIZES[dtype]


def geometry(base: str, targets: str | tuple[str, ...] = "all-linear") -> Geometry:
    """The geometry of a base; nothing is downloaded.

    Args:
        base: a named base, a folder with a config.json, a hub id that is in the local cache, or one of `KNOWN`.
        targets: see `adapted`.

    Raises:
        BaseError: if the base's configuration is not to be had here, or is none.
        LoraEvoError: for targets that name nothing.
    """
    from transformers import AutoModelForCausalLM

    from selfplay.engines.routed import adapted

    config, source = _config(base)
    try:
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(config)
    except (ValueError, KeyError, TypeError, AttributeError, ImportError) as error:
        raise BaseError(f"base {base}: its configuration is of no model to play with: {_line(error)}") from None
    layers = adapted(model, targets)
    text = config.get_text_config()
    return Geometry(
        base, source,
        parameters=sum(p.numel() for p in model.parameters()),
        buffers=sum(b.numel() * b.element_size() for b in model.buffers()),
        multiplied=sum(m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Linear)),
        adapted={name: (layer.in_features, layer.out_features) for name, layer in layers.items()},
        layers=text.num_hidden_layers, hidden=text.hidden_size, heads=text.num_attention_heads,
        kv_heads=getattr(text, "num_key_value_heads", None) or text.num_attention_heads,
        head_size=getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads,
        mlp=text.intermediate_size, vocabulary=text.vocab_size,
        positions=getattr(text, "max_position_embeddings", None),
    )  # fmt: skip


def _config(base: str) -> tuple[Any, str]:
    """The configuration of transformers, and where it comes from."""
    from transformers import AutoConfig

    folder = _folder(base)
    if folder is None and base in KNOWN:
        facts = dict(KNOWN[base])
        return AutoConfig.for_model(facts.pop("model_type"), **facts), "published"
    if folder is None:
        known = ", ".join(sorted({NANO, TINY, *(name for name in KNOWN if not name.endswith("-Instruct"))}))
        raise BaseError(
            f"base {base}: its shape is not known here, and a plan downloads nothing. Give a folder with its config.json "
            f"(--set base=FOLDER), or one of {known}"
        )
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True), str(folder)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BaseError(f"base {base}: {folder / 'config.json'} cannot be read: {_line(error)}") from None


def _folder(base: str) -> Path | None:
    """Where the base's config.json lies, if it is on this machine."""
    from huggingface_hub import try_to_load_from_cache

    if base in (NANO, TINY) or (base in PACKAGED and (cache_dir() / base).is_dir()):
        return Path(resolve(base))
    if Path(base).is_dir():
        return Path(base)
    if base.count("/") == 1 and not base.startswith((".", "/", "~")):
        found = try_to_load_from_cache(base, "config.json")
        return Path(found).parent if isinstance(found, str) else None
    return None


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
