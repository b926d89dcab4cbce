"""Prompts as token ids: the one way from text to what an engine reads."""

from __future__ import annotations

from typing import Any

from lora_evo.errors import LoraEvoError
from selfplay.tasks import Style


def prompt_ids(tokenizer: Any, text: str, style: Style) -> tuple[int, ...]:
    """See `Engine.prompt`. A template writes its own start token; none is added to it.

    Raises:
        LoraEvoError: for the chat style where the tokenizer has no template.
    """
    if style == "chat":
        if not tokenizer.chat_template:
            raise LoraEvoError("style is chat, but the base's tokenizer has no chat template; use compact")
        message = [{"role": "user", "content": text}]
        written = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
        return tuple(tokenizer.encode(written, add_special_tokens=False))
    start = [tokenizer.bos_token_id] if tokenizer.bos_token_id is not None else []
    return (*start, *tokenizer.encode(text, add_special_tokens=False))
