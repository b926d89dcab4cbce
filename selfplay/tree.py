"""Keys of nested settings: which there are, which were meant, and where a value goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from typing import Any, get_args, get_type_hints

from pydantic import BaseModel


def known(kind: type) -> dict[str, Any]:
    """The fields of a model or a dataclass, each with its type."""
    names = kind.model_fields if issubclass(kind, BaseModel) else {f.name for f in fields(kind)}
    return {name: hint for name, hint in get_type_hints(kind).items() if name in names}


def misspelt(kind: type, tree: Any, prefix: str = "") -> list[str]:
    """A sentence for each key that does not exist, with the one that was probably meant."""
    if not isinstance(tree, Mapping):
        return []
    found, there = [], known(kind)
    for key, value in tree.items():
        if key not in there:
            found.append(f"{prefix}{key}: no such key{_meant(str(key), prefix, kind)}")
        elif (inner := _branch(there[key])) is not None:
            found += misspelt(inner, value, f"{prefix}{key}.")
        elif (item := _items(there[key])) is not None and isinstance(value, list | tuple):
            found += [text for i, one in enumerate(value) for text in misspelt(item, one, f"{prefix}{key}.{i}.")]
    return found


def placed(tree: Mapping[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    """The tree with a value at a path; branches appear as needed."""
    first, *rest = path
    below = tree.get(first)
    return {**tree, first: placed(below if isinstance(below, Mapping) else {}, rest, value) if rest else value}


def _meant(key: str, prefix: str, kind: type) -> str:
    there = list(known(kind))
    elsewhere = [path for path in _leaves(kind) if path.rpartition(".")[2] == key] if not prefix else []
    if elsewhere:
        return f"; did you mean {' or '.join(elsewhere)}?"
    close = get_close_matches(key, there, n=1)
    if close:
        return f"; did you mean {prefix}{close[0]}?"
    return f"; there are {', '.join(there)}"


def _leaves(kind: type, prefix: str = "") -> list[str]:
    found = []
    for name, hint in known(kind).items():
        inner = _branch(hint)
        found += _leaves(inner, f"{prefix}{name}.") if inner is not None else [f"{prefix}{name}"]
    return found


def _branch(hint: Any) -> type | None:
    return hint if isinstance(hint, type) and (issubclass(hint, BaseModel) or is_dataclass(hint)) else None


def _items(hint: Any) -> type | None:
    return next((arg for arg in get_args(hint) if _branch(arg) is not None), None)
