"""Random adapters on the module set of Qwen2.5-7B, for benchmarks of speed."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

LAYERS = 28
SHAPES = {
    "self_attn.q_proj": (3584, 3584),
    "self_attn.k_proj": (512, 3584),
    "self_attn.v_proj": (512, 3584),
    "self_attn.o_proj": (3584, 3584),
    "mlp.gate_proj": (18944, 3584),
    "mlp.up_proj": (18944, 3584),
    "mlp.down_proj": (3584, 18944),
}
"""(out, in) of the seven linears of a layer."""


def write_adapter(
    folder: Path, seed: int, *, layers: int = LAYERS, rank: int = 32, alpha: int = 64, dtype: torch.dtype = torch.bfloat16
) -> Path:
    """A PEFT folder with random factors: A as PEFT draws it, B a tenth of that."""
    draw = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(layers):
        for name, (out, width) in SHAPES.items():
            stem = f"base_model.model.model.layers.{layer}.{name}"
            tensors[f"{stem}.lora_A.weight"] = (torch.randn(rank, width, generator=draw) * width**-0.5).to(dtype)
            tensors[f"{stem}.lora_B.weight"] = (torch.randn(out, rank, generator=draw) * 0.1 * out**-0.5).to(dtype)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "Qwen/Qwen2.5-7B",
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": sorted({name.split(".")[1] for name in SHAPES}),
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder
