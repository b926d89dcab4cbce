"""Nested settings as plain values: reading, changing, and saying what is wrong with them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args, get_type_hints

import yaml
from pydantic import BaseModel

from lora_evo.errors import LoraEvoError


class ConfigError(LoraEvoError):
    """A configuration that cannot be played: which key, which value, what is allowed."""


def loaded(file: Path) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        ConfigError: if it cannot be read, or holds something else.
    """
    try:
        tree = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{file} cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(tree or {}, dict):
        raise ConfigError(f"{file} holds no mapping of keys to values")
    return tree or {}


def changed(tree: Mapping[str, Any], changes: Iterable[str]) -> dict[str, Any]:
    """A tree with changes such as `learner.lr=3e-4`, whose values are YAML.

    Raises:
        ConfigError: for a change that cannot be read.
    """
    found = dict(tree)
    for change in changes:
        path, equals, text = change.partition("=")
        if not equals or not path.strip():
            raise ConfigError(f"--set {change!r} does not read key=value, learner.lr=3e-4 say")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"--set {change!r}: the value is no YAML: {' '.join(str(error).split())}") from None
        found = _placed(found, path.strip().split("."), value)
    return found


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"a": {"b": 1}}` as `{"a.b": 1}`."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) and value else {f"{prefix}{key}": value}
    return found


def misspelt(kind: type, tree: Any, prefix: str = "") -> list[str]:
    """A sentence for each key that does not exist, with the one that was probably meant."""
    if not isinstance(tree, Mapping):
        return []
    found, there = [], _known(kind)
    for key, value in tree.items():
        if key not in there:
            found.append(f"{prefix}{key}: no such key{_meant(str(key), prefix, kind)}")
        elif (inner := _branch(there[key])) is not None:
            found += misspelt(inner, value, f"{prefix}{key}.")
        elif (item := _items(there[key])) is not None and isinstance(value, list | tuple):
            found += [text for i, one in enumerate(value) for text in misspelt(item, one, f"{prefix}{key}.{i}.")]
    return found


def sentence(error: Any) -> str:
    """One of pydantic's errors as `learner.lr is 'abc': input should be a valid number`."""
    key = ".".join(str(part) for part in error["loc"])
    message = str(error["msg"]).removeprefix("Value error, ")
    value = error["input"]
    if isinstance(value, float) and not math.isfinite(value):
        return f"{key} is {value}, it must be a finite number"
    if error["type"] == "value_error" and message.split(" ", 1)[0].rstrip(":") in _field_names(value):
        return f"{key}.{message}"  # a rule of a branch that names its own field
    if isinstance(value, Mapping) or hasattr(value, "__dataclass_fields__"):
        return f"{key}: {message}"
    return f"{key} is {value!r}: {message[0].lower()}{message[1:]}"


def near(name: str, known: Iterable[str]) -> str:
    """`; did you mean x?`, or nothing."""
    close = get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _placed(tree: Mapping[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    """The tree with a value at a path; branches appear as needed."""
    first, *rest = path
    below = tree.get(first)
    return {**tree, first: _placed(below if isinstance(below, Mapping) else {}, rest, value) if rest else value}


def _known(kind: Any) -> dict[str, Any]:
    """The fields of a model or a dataclass, each with its type."""
    names = kind.model_fields if issubclass(kind, BaseModel) else {f.name for f in fields(kind)}
    return {name: hint for name, hint in get_type_hints(kind).items() if name in names}


def _meant(key: str, prefix: str, kind: type) -> str:
    there = list(_known(kind))
    elsewhere = [path for path in _leaves(kind) if path.rpartition(".")[2] == key] if not prefix else []
    if elsewhere:
        return f"; did you mean {' or '.join(elsewhere)}?"
    return near(f"{prefix}{key}", [prefix + name for name in there]) or f"; there are {', '.join(there)}"


def _leaves(kind: type, prefix: str = "") -> list[str]:
    found = []
    for name, hint in _known(kind).items():
        inner = _branch(hint)
        found += _leaves(inner, f"{prefix}{name}.") if inner is not None else [f"{prefix}{name}"]
    return found


def _branch(hint: Any) -> type | None:
    return hint if isinstance(hint, type) and (issubclass(hint, BaseModel) or is_dataclass(hint)) else None


def _items(hint: Any) -> type | None:
    return next((arg for arg in get_args(hint) if _branch(arg) is not None), None)


def _field_names(value: Any) -> set[str]:
    if isinstance(value, Mapping):
        return set(value)
    return set(getattr(value, "__dataclass_fields__", ())) | set(getattr(type(value), "model_fields", ()))
