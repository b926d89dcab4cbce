"""Tiny decoders with random weights, one for each family, in folders as a user has them."""

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.models.auto.configuration_auto import AutoConfig

from selfplay.bases import tiny_llama

SIZES: dict[str, Any] = {
    "vocab_size": 258, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 512, "bos_token_id": 0, "eos_token_id": 1,
    "pad_token_id": 1,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "mistral": {"sliding_window": 8},
    "gemma": {},
    "gemma2": {"sliding_window": 8, "query_pre_attn_scalar": 8},
    "gemma3_text": {"sliding_window": 8, "query_pre_attn_scalar": 8, "layer_types": ["sliding_attention", "full_attention"]},
    "smollm3": {"no_rope_layers": [1, 0]},
}


def write_base(folder: Path, family: str, **changes: Any) -> Path:
    """A model folder with the byte tokenizer."""
    config = AutoConfig.for_model(family, **SIZES, **FAMILIES[family], **changes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = AutoModelForCausalLM.from_config(config)
        for p in model.parameters():  # weights of a size at which every part of the model matters
            p.data.add_(torch.randn_like(p) * 0.1)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_llama()).save_pretrained(folder)
    return folder


def peft_model(base: str | Path, adapters: dict[str, str | Path]) -> PeftModel:
    """The base with PEFT's own adapters, trainable, in eval mode."""
    names = list(adapters)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    peft = PeftModel.from_pretrained(model, adapters[names[0]], adapter_name=names[0], is_trainable=True)
    for name in names[1:]:
        peft.load_adapter(adapters[name], adapter_name=name, is_trainable=True)
    return peft.eval()


def peft_folder(base: str | Path, folder: Path, rank: int, alpha: float, targets: str | list[str], seed: int) -> Path:
    """An adapter that PEFT made, with B drawn too."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        made = get_peft_model(model, LoraConfig(r=rank, lora_alpha=alpha, target_modules=targets, task_type="CAUSAL_LM"))
        for name, p in made.named_parameters():
            if "lora_B" in name:
                p.data.normal_(0, 0.1)
        made.save_pretrained(folder)
    return folder
