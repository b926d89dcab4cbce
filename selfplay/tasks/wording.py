"""Pieces of prompts that several task kinds share."""

from __future__ import annotations

from collections.abc import Sequence

from selfplay.referee import literal
from selfplay.tasks.base import Problem

RULES = """\
- The program defines a function `f` with at least one parameter; helper functions and classes are fine.
- `f` returns a value made of plain literals: numbers, text, bytes, None, lists, tuples, dicts, sets.
- The same input always gives the same value: no clock, no random numbers, no input or output, no hidden state.
- Only pure standard modules may be imported (math, itertools, collections, re, ...).
- It ends within a second."""


def call(arguments: tuple[object, ...]) -> str:
    """Arguments as one writes them in a call."""
    return ", ".join(literal(x) for x in arguments)


def fenced(tag: str, text: str) -> str:
    """A fenced block."""
    return f"```{tag}\n{text.strip(chr(10))}\n```"


def with_examples(references: Sequence[Problem]) -> str:
    """References for the chat style: program, input, output."""
    if not references:
        return ""
    shown = [
        "\n".join((fenced("python", r.program), fenced("input", call(r.inputs[0])), fenced("output", literal(r.outputs[0]))))
        for r in references
    ]
    return "Problems that exist already. Yours must be different, and harder to think through:\n\n" + "\n\n".join(shown) + "\n\n"


def compact_examples(kind: str, references: Sequence[Problem]) -> str:
    """References for the compact style: the kind's own form, one after the other."""
    return "".join(f"# new {kind}\n{r.program.strip(chr(10))}\nin: {call(r.inputs[0])}\n\n" for r in references)
