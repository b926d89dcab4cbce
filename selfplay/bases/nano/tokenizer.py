"""A small tokenizer: pieces of code and words of messages that data never holds, and else single characters.

Digits and letters of data are tokens of their own, so that a model can count and turn them round. What is decoded is what
was encoded, for all printable ASCII and line ends; other characters are unknown.
"""

from __future__ import annotations

import re
import string
from typing import Any

from selfplay.bases.nano.programs import STEPS

SPECIAL = ("<bos>", "<eos>", "<unk>")

HEADS = tuple(f"# {new}{kind}\n" for new in ("new ", "") for kind in ("deduction", "abduction", "induction"))

CODE = (
    "in:", "out:", "msg:", "\n\n",
    "def f(", "):\n    return ", "):\n    ", "\n    return ", "\n        ", "\n    ", " = ", " == ", " += ", " != ", " > ",
    " + ", " - ",
    " * ", " % ", " // ", ", ", ": ", ":\n        ", " for v in ", " for c in ", " for w in ", "\n    for v in ",
    "\n    for c in ", "for i in range(",
    "\n    for i, v in enumerate(", " for i in range(", " for k, v in ", " for k in ", " if ", "if ", " else ",
    "else:\n        ", "while ", " not in ",
    " in ", "sum(", "len(", "max(", "min(", "abs(", "str(", "int(", "list(", "set(", "sorted(", "sorted(set(", "[-1]", "[0]",
    "[1]", "[::-1]",
    "[::2]", "[:-1]", ".append(", ".count('", ".find('", ".get(", ".values()", ".items()", ".upper()", ".capitalize()", ".split('",
    ".replace('", "'.join(", ".join(", "'aeiou'", ", reverse=True)", ", key=len)", "[v", "(v", "[w", "[k", "{k: v", "{w: ",
    "v in ", "','", "', '",
    "'", "()", "[]", "{}", "''", "')", "):", "])", "]", "[", "((", "))", "return ",
)  # fmt: skip


def words() -> list[str]:
    """Words of messages, with the space before them."""
    said = {word for steps in STEPS.values() for _, text in steps for word in text.split() if word.isalpha() and len(word) > 1}
    return sorted(f" {word}" for word in {*said, "then", "some", "same"})


def pieces() -> list[str]:
    """All tokens but the special ones: longer before shorter, so that the longest that fits is taken."""
    single = [c for c in string.printable if c.isprintable() or c == "\n"]
    several = dict.fromkeys([*HEADS, *CODE, *words()])
    return sorted((p for p in several if len(p) > 1), key=lambda p: (-len(p), p)) + single


def tokenizer() -> Any:
    """The tokenizer, as transformers takes it."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {piece: i for i, piece in enumerate([*SPECIAL, *pieces()])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    pattern = Regex("|".join(re.escape(piece).replace("\\\n", "\\n") for piece in pieces()) + "|[\\s\\S]")
    made.pre_tokenizer = pre_tokenizers.Split(pattern, "isolated")
    made.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<bos>", eos_token="<eos>", pad_token="<eos>", unk_token="<unk>",
        clean_up_tokenization_spaces=False, model_max_length=1024,
    )  # fmt: skip
