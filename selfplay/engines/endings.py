"""Where a completion ends: end tokens, all that a model names, and stop texts, looked for in the decoded text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Endings:
    """End tokens and how to decode."""

    tokenizer: Any
    ends: frozenset[int]
    _pieces: dict[int, str] = field(default_factory=dict)

    @staticmethod
    def of(model: Any, tokenizer: Any) -> Endings:
        """The end tokens of the generation config, the config and the tokenizer together; some models name several."""
        return _named(model.generation_config, model.config, tokenizer)

    @staticmethod
    def read(base: str) -> Endings:
        """The same, from a base's files, without its weights."""
        from transformers import AutoTokenizer, GenerationConfig
        from transformers.models.auto.configuration_auto import AutoConfig

        config = AutoConfig.from_pretrained(base)
        try:
            generation = GenerationConfig.from_pretrained(base)
        except OSError:  # a folder without one
            generation = GenerationConfig.from_model_config(config)
        return _named(generation, config, AutoTokenizer.from_pretrained(base))

    def found(self, tokens: Sequence[int], stop: Sequence[str]) -> str | None:
        """The text of a completion that its last token has ended; None if it goes on."""
        if tokens[-1] in self.ends:
            return self.cut(tokens, stop)
        if stop and any(text[-1] in self._piece(tokens[-1]) for text in stop):
            text = self.text(tokens)
            if any(s in text for s in stop):
                return _cut(text, stop)
        return None

    def cut(self, tokens: Sequence[int], stop: Sequence[str]) -> str:
        """The text of a completion that has ended: without its end token, if it has one, and up to the first stop text."""
        return _cut(self.text(tokens[:-1] if tokens[-1] in self.ends else tokens), stop)

    def text(self, tokens: Sequence[int]) -> str:
        """Decoded, without special tokens."""
        decoded: str = self.tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return decoded

    def _piece(self, token: int) -> str:
        """A token alone; enough to tell whether it can be the last of a stop text."""
        if token not in self._pieces:
            self._pieces[token] = self.text([token])
        return self._pieces[token]


def _named(generation: Any, config: Any, tokenizer: Any) -> Endings:
    named = (generation.eos_token_id, config.get_text_config().eos_token_id, tokenizer.eos_token_id)
    return Endings(tokenizer, frozenset(token for ids in named for token in _listed(ids)))


def _listed(ids: int | Iterable[int] | None) -> list[int]:
    if ids is None:
        return []
    return [ids] if isinstance(ids, int) else list(ids)


def _cut(text: str, stop: Sequence[str]) -> str:
    return text[: min((text.find(s) for s in stop if s in text), default=len(text))]
