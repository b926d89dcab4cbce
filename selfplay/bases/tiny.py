"""A tiny Llama with random weights: everything a real base has, but knowledge."""

from __future__ import annotations

import io
from contextlib import redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING

from selfplay.bases.cache import BaseError, cache_dir, caching

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny_llama(seed: int = 0) -> Path:
    """The cached folder of a random Llama: 2 layers of width 64, bytes as tokens, 0.1 million weights in float32."""
    folder = cache_dir() / f"tiny-llama-{seed}"
    if not folder.is_dir():
        with caching(folder) as partial:
            write(partial, seed)
    return folder


def write(folder: Path, seed: int) -> None:
    """Write model and tokenizer; the same weights for the same seed. The global random stream is left as it was."""
    try:
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    except ImportError as error:
        raise BaseError(f"tiny-llama: {error}; pip install 'lora-evo[selfplay]' brings what it needs") from None
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=_bytes(), bos_token="<|im_start|>", eos_token="<|im_end|>", pad_token="<|im_end|>"
    )
    tokenizer.chat_template = CHAT
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=2048, tie_word_embeddings=True, bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]), redirect_stderr(io.StringIO()):
        torch.manual_seed(seed)
        LlamaForCausalLM(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _bytes() -> Tokenizer:
    """A tokenizer of UTF-8 bytes and the two chat marks."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {mark: i for i, mark in enumerate(["<|im_start|>", "<|im_end|>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
