"""Everything that can be chosen about a run: one tree of frozen values, read from YAML, checked key by key."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import yaml

from lora_evo.errors import LoraEvoError
from selfplay.learner import LearnRules
from selfplay.matchmaking import Matching
from selfplay.ratings import OutcomeRule
from selfplay.replacement import ReplacementRules
from selfplay.rewards import RewardRules
from selfplay.tasks import Style


class ConfigError(LoraEvoError):
    """A key that does not exist, or a value that it cannot have."""


@dataclass(frozen=True)
class PopulationConfig:
    """Who plays.

    Attributes:
        teachers, students: how many of each.
        single_agent: one adapter plays both roles; nobody is rated or replaced.
    """

    teachers: int = 4
    students: int = 4
    single_agent: bool = False

    def __post_init__(self) -> None:
        _at_least(self, 1, "teachers", "students")
        if self.single_agent and (self.teachers, self.students) != (1, 1):
            raise ValueError(f"teachers and students must be 1 for a single agent, not {self.teachers} and {self.students}")


@dataclass(frozen=True)
class LoraConfig:
    """The members' shape; the same for all, so that they can be bred and served together."""

    rank: int = 8
    alpha: float = 16
    targets: str | tuple[str, ...] = "all-linear"

    def __post_init__(self) -> None:
        _at_least(self, 1, "rank")


@dataclass(frozen=True)
class GameConfig:
    """One step.

    Attributes:
        kinds: of tasks.
        examples: of an induction problem; half of them are shown.
        prompts: of each teacher and kind in a step.
        proposals: completions of one prompt: the teacher's group.
        answers: completions to one problem: the student's group, whose share of right ones is rho.
        references: earlier problems in a teacher's prompt.
        seeding: proposals of the base for each kind, before the first step, that fill the buffers.
        buffer: problems kept for each kind.
        matching, rule, band: see `matchmaking.pairs` and `ratings.outcome`.
    """

    kinds: tuple[str, ...] = ("deduction", "abduction", "induction")
    examples: int = 4
    prompts: int = 1
    proposals: int = 4
    answers: int = 8
    references: int = 1
    seeding: int = 32
    buffer: int = 16_384
    matching: Matching = "even"
    rule: OutcomeRule = "expected"
    band: float = 0.0

    def __post_init__(self) -> None:
        from selfplay.tasks import all_tasks

        _at_least(self, 1, "prompts", "proposals", "answers", "buffer")
        _at_least(self, 0, "references", "seeding", "band")
        if self.examples < 2 or self.examples % 2:
            raise ValueError(f"examples is {self.examples}, it must be even and at least 2")
        unknown = [kind for kind in self.kinds if kind not in all_tasks()]
        if unknown or not self.kinds or len(set(self.kinds)) < len(self.kinds):
            raise ValueError(f"kinds is {list(self.kinds)}, it must name different ones of {', '.join(all_tasks())}")


@dataclass(frozen=True)
class SamplingConfig:
    """Completions: temperature, and how many tokens they may have."""

    temperature: float = 1.0
    proposal_tokens: int = 192
    answer_tokens: int = 128

    def __post_init__(self) -> None:
        _at_least(self, 1, "proposal_tokens", "answer_tokens")
        if not self.temperature > 0:
            raise ValueError(f"temperature is {self.temperature}, it must be above 0, or nothing can be learned")


@dataclass(frozen=True)
class RefereeConfig:
    """How programs are run: processes (0: one a core), and whether a machine that cannot shut them in will do."""

    workers: int = 0
    allow_degraded: bool = False

    def __post_init__(self) -> None:
        _at_least(self, 0, "workers")


@dataclass(frozen=True)
class CheckpointConfig:
    """Steps between checkpoints, and how many are kept."""

    every: int = 1
    keep: int = 2

    def __post_init__(self) -> None:
        _at_least(self, 1, "every", "keep")


@dataclass(frozen=True)
class Config:
    """A run.

    Attributes:
        base: a named base, a folder or a hub id.
        style: of prompts; null: chat where the base has a chat template, else compact.
        seed: of everything.
        steps: in all.
        device, dtype: of the base.
        cells: of the archive that measures coverage.
        writers: `tensorboard`, `wandb`: where the figures of each step go beside the journal.
    """

    base: str = "nano"
    style: Style | None = None
    seed: int = 0
    steps: int = 100
    device: str = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"
    cells: int = 512
    writers: tuple[Literal["tensorboard", "wandb"], ...] = ()
    population: PopulationConfig = field(default_factory=PopulationConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    game: GameConfig = field(default_factory=GameConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    rewards: RewardRules = field(default_factory=RewardRules)
    learner: LearnRules = field(default_factory=LearnRules)
    replacement: ReplacementRules = field(default_factory=ReplacementRules)
    referee: RefereeConfig = field(default_factory=RefereeConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)

    def __post_init__(self) -> None:
        _at_least(self, 0, "seed", "steps")
        _at_least(self, 1, "cells")

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for YAML and JSON."""
        plain: dict[str, Any] = _plain(asdict(self))
        return plain


def from_dict(given: Mapping[str, Any]) -> Config:
    """A configuration from plain values; what is left out is as by default.

    Raises:
        ConfigError: for an unknown key or a value out of its range; the message names the key.
    """
    built: Config = _built(Config, given, "")
    return built


def presets() -> dict[str, dict[str, Any]]:
    """The presets that come with the package: name -> what they change."""
    folder = files("selfplay") / "presets"
    named = {entry.name.removesuffix(".yaml"): entry for entry in folder.iterdir() if entry.name.endswith(".yaml")}
    return {name: yaml.safe_load(named[name].read_text()) or {} for name in sorted(named)}


def read(file: Path | None = None, preset: str | None = None, changes: Sequence[str] = ()) -> Config:
    """A preset, changed by a file, changed by texts such as `learner.lr=0.001`.

    Raises:
        ConfigError: for an unknown preset, a file that is no YAML mapping, or anything `from_dict` refuses.
    """
    given: dict[str, Any] = {}
    if preset is not None:
        if preset not in presets():
            raise ConfigError(f"no preset {preset!r}; there are {', '.join(presets())}")
        given = presets()[preset]
    if file is not None:
        given = _merged(given, _mapping(file))
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set {change}: not of the form key=value, learner.lr=0.001 say")
        value: Any = _value(change, text)
        for part in reversed(key.split(".")):
            value = {part: value}
        given = _merged(given, value)
    return from_dict(given)


def differences(a: Config, b: Config) -> list[str]:
    """The keys in which two configurations differ."""
    first, second = (_flat(c.as_dict()) for c in (a, b))
    return sorted(key for key in first.keys() | second.keys() if first.get(key) != second.get(key))


def _built(kind: type, given: Any, where: str) -> Any:
    from pydantic import TypeAdapter, ValidationError

    if not isinstance(given, Mapping):
        raise ConfigError(f"{where or 'the configuration'} is {given!r}; a mapping of keys to values is needed")
    known = {f.name: hint for f in fields(kind) for hint in [get_type_hints(kind)[f.name]]}
    values: dict[str, Any] = {}
    for key, value in given.items():
        path = f"{where}.{key}" if where else str(key)
        if key not in known:
            close = get_close_matches(str(key), known, 1)
            hint = f"did you mean {path.removesuffix(str(key))}{close[0]}?" if close else f"there are {', '.join(known)}"
            raise ConfigError(f"{path}: no such key; {hint}")
        if is_dataclass(known[key]) and isinstance(known[key], type):
            values[key] = _built(known[key], value, path)
            continue
        item = _item(known[key])
        if is_dataclass(item) and isinstance(value, list | tuple):
            values[key] = tuple(_built(item, one, f"{path}.{i}") for i, one in enumerate(value))
            continue
        if isinstance(value, bool) and known[key] is not bool:
            raise ConfigError(f"{path} is {str(value).lower()}, which is no {getattr(known[key], '__name__', 'such value')}")
        try:
            values[key] = TypeAdapter(known[key]).validate_python((value,) if item is not None and isinstance(value, str) else value)
        except ValidationError as error:
            raise ConfigError(f"{path} is {value!r}: {error.errors()[0]['msg'].lower()}") from None
    try:
        return kind(**values)
    except ValueError as error:
        raise ConfigError(f"{where}.{error}" if where else str(error)) from None


def _item(hint: Any) -> Any:
    """What a row is a row of; None for what is no row. One text may stand for a row of one: `--set game.kinds=deduction`."""
    return get_args(hint)[0] if get_origin(hint) is tuple else None


def _mapping(file: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{file}: no YAML: {str(error).splitlines()[0]}") from None
    if found is not None and not isinstance(found, dict):
        raise ConfigError(f"{file}: holds {type(found).__name__}, a mapping of keys to values is needed")
    return found or {}


def _value(change: str, text: str) -> Any:
    """YAML, and numbers such as 1e-3, which YAML takes for text."""
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigError(f"--set {change}: the value is no YAML") from None
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _merged(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(a)
    for key, value in b.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merged(merged[key], value) if both else value
    return merged


def _flat(tree: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= _flat(value, f"{where}{key}.") if isinstance(value, Mapping) else {f"{where}{key}": value}
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping | types.MappingProxyType):
        return {key: _plain(v) for key, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value


def _at_least(given: Any, least: int, *labels: str) -> None:
    for label in labels:
        if getattr(given, label) < least:
            raise ValueError(f"{label} is {getattr(given, label)}, it must be at least {least}")
