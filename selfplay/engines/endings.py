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
        named = (model.generation_config.eos_token_id, model.config.get_text_config().eos_token_id, tokenizer.eos_token_id)
        return Endings(tokenizer, frozenset(token for ids in named for token in _listed(ids)))

    def found(self, tokens: Sequence[int], stop: Sequence[str]) -> str | None:
        """The text of a completion that its last token has ended; None if it goes on."""
        if tokens[-1] in self.ends:
            text = self.text(tokens[:-1])
            return _cut(text, stop)
        if stop and any(text[-1] in self._piece(tokens[-1]) for text in stop):
            text = self.text(tokens)
            if any(s in text for s in stop):
                return _cut(text, stop)
        return None

    def text(self, tokens: Sequence[int]) -> str:
        """Decoded, without special tokens."""
        decoded: str = self.tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return decoded

    def _piece(self, token: int) -> str:
        """A token alone; enough to tell whether it can be the last of a stop text."""
        if token not in self._pieces:
            self._pieces[token] = self.text([token])
        return self._pieces[token]


def _listed(ids: int | Iterable[int] | None) -> list[int]:
    if ids is None:
        return []
    return [ids] if isinstance(ids, int) else list(ids)


def _cut(text: str, stop: Sequence[str]) -> str:
    return text[: min((text.find(s) for s in stop if s in text), default=len(text))]
