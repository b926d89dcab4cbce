"""Presets: configurations that come with the package, and the ways to get one."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path

import yaml

from selfplay.config import Config, checked
from selfplay.tree import ConfigError, changed, loaded, near


def names() -> dict[str, str]:
    """Names of the presets, each with the first line of its comment."""
    found = sorted(entry.name.removesuffix(".yaml") for entry in files(__name__).iterdir() if entry.name.endswith(".yaml"))
    return {name: text(name).split("\n", 1)[0].lstrip("# ") for name in found}


def text(name: str) -> str:
    """A preset as YAML.

    Raises:
        ConfigError: if there is none of that name.
    """
    file = files(__name__) / f"{name}.yaml"
    if "/" in name or not file.is_file():
        raise ConfigError(f"no preset {name!r}{near(name, names())}; there are {', '.join(names())}")
    return file.read_text(encoding="utf-8")


def preset(name: str, changes: Iterable[str] = ()) -> Config:
    """A preset's configuration, with changes such as `learner.lr=3e-4`."""
    return checked(changed(yaml.safe_load(text(name)) or {}, changes))


def read(file: Path, changes: Iterable[str] = ()) -> Config:
    """The configuration in a YAML file, with changes; what it leaves out is as in `laptop`."""
    return checked(changed(loaded(file), changes), str(file))


def dumps(config: Config) -> str:
    """The whole tree as YAML, in the order of the fields."""
    return str(yaml.safe_dump(config.tree(), sort_keys=False, allow_unicode=True, width=130))
