"""What a run is told: one tree, read from YAML, checked whole before anything starts.

    config = from_preset("laptop", ["learner.lr=3e-4", "population.teachers=8"])
    config.learner.lr

Unknown keys, wrong values and near misses are named with their full path.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from selfplay.learner import LearnRules
from selfplay.matchmaking import Matching
from selfplay.ratings import OutcomeRule
from selfplay.referee import Limits, Settings
from selfplay.replacement import Breed, ReplacementRules
from selfplay.rewards import RewardRules
from selfplay.tasks import Induction, Style, Task, all_tasks, get
from selfplay.tree import ConfigError, flat, misspelt, near, sentence

Count = Annotated[int, Field(ge=1)]
Row = BeforeValidator(lambda given: (given,) if isinstance(given, str) else given)
"""One text stands for a row of one: `game.kinds=deduction`."""

MAY_CHANGE = ("steps", "checkpoint", "writers", "referee.workers", "vllm")
"""Keys that change nothing of what is played; a run may be resumed with other values of them."""


class Branch(BaseModel):
    """A part of the tree. Frozen; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())


class PopulationConfig(Branch):
    """Who plays.

    Attributes:
        teachers, students: how many of each.
        single_agent: one adapter, `a0`, plays both roles: no rating, no replacement.
    """

    teachers: Count = 4
    students: Count = 4
    single_agent: bool = False

    @model_validator(mode="before")
    @classmethod
    def _alone(cls, given: Any) -> Any:
        """A single agent is 1 + 1 without having to say so."""
        if isinstance(given, Mapping) and given.get("single_agent") is True:
            return {"teachers": 1, "students": 1, **given}
        return given

    @model_validator(mode="after")
    def _one(self) -> Self:
        if self.single_agent and (self.teachers, self.students) != (1, 1):
            raise ValueError(f"teachers {self.teachers} and students {self.students} must be 1 with single_agent, one adapter")
        return self


class LoraConfig(Branch):
    """What every member is: rank, alpha, and the layers it adapts (`all-linear`, or the last parts of module names)."""

    rank: Count = 8
    alpha: float = Field(default=16.0, gt=0)
    targets: Literal["all-linear"] | Annotated[tuple[str, ...], Row] = "all-linear"


class GameConfig(Branch):
    """What a step is made of.

    Attributes:
        kinds: task kinds.
        examples: of an induction problem, half of them hidden.
        prompts: of each teacher for each kind.
        proposals: completions of one prompt: a group.
        answers: of the matched student to each valid problem: a group, whose share of right ones is rho.
        references: problems shown in a teacher's prompt.
        start: what the buffers begin with: each kind's `identity`, or five `easy` problems too, which show a small base the form.
        seeding: proposals of the base for each kind before the first step; the valid ones fill the buffers.
        buffer: problems kept of each kind.
        matching: `even` prefers pairs of equal strength, or `uniform`.
        rule, band: who wins a match (`ratings.outcome`).
    """

    kinds: Annotated[tuple[str, ...], Row] = ("deduction", "abduction", "induction")
    examples: int = Field(default=4, ge=2, multiple_of=2)
    prompts: Count = 1
    proposals: Count = 4
    answers: Count = 8
    references: int = Field(default=1, ge=0)
    start: Literal["identity", "easy"] = "identity"
    seeding: int = Field(default=32, ge=0)
    buffer: Count = 16_384
    matching: Matching = "even"
    rule: OutcomeRule = "expected"
    band: float = Field(default=0.0, ge=0, lt=1)

    @field_validator("kinds")
    @classmethod
    def _known(cls, kinds: tuple[str, ...]) -> tuple[str, ...]:
        unknown = [kind for kind in kinds if kind not in all_tasks()]
        if unknown or not kinds or len(set(kinds)) < len(kinds):
            raise ValueError(f"must be different task kinds out of {', '.join(all_tasks())}")
        return kinds

    @property
    def tasks(self) -> dict[str, Task]:
        """The task kinds, by name."""
        return {kind: Induction(self.examples) if kind == Induction.name else get(kind) for kind in self.kinds}


class SamplingConfig(Branch):
    """How completions are drawn.

    Attributes:
        temperature: 1 is what learning assumes least about.
        prompt_tokens: of a prompt at most: references are left out until it fits; a problem that no student could be shown
            is invalid.
        proposal_tokens, answer_tokens: of a completion at most.
    """

    temperature: float = Field(default=1.0, gt=0)
    prompt_tokens: Count = 768
    proposal_tokens: Count = 192
    answer_tokens: Count = 128


class ArchiveConfig(Branch):
    """The archive that measures coverage."""

    cells: Count = 512


class RefereeConfig(Branch):
    """How programs are run; see `selfplay.referee.Settings` and `Limits`."""

    workers: Count | None = None
    hash_seeds: tuple[int, ...] = Settings.hash_seeds
    cpu_seconds: Count = Limits.cpu_seconds
    wall_seconds: float = Field(default=Limits.wall_seconds, gt=0)
    memory_mb: int = Field(default=Limits.memory_mb, ge=64)
    allow_degraded: bool = False

    @property
    def settings(self) -> Settings:
        """For the referee."""
        limits = Limits(cpu_seconds=self.cpu_seconds, wall_seconds=self.wall_seconds, memory_mb=self.memory_mb)
        return Settings(workers=self.workers, hash_seeds=self.hash_seeds, limits=limits, allow_degraded=self.allow_degraded)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        _ = self.settings
        return self


class CheckpointConfig(Branch):
    """A checkpoint after every so many steps; the newest are kept."""

    every: Count = 1
    keep: Count = 2


class VllmConfig(Branch):
    """vLLM, where `engine` names it. Length, sequences, rank and dtype follow from the rest of the tree.

    Attributes:
        servers: URLs of `vllm serve`; none: vLLM is started beside the learner.
        store: a folder for the members' versions, which servers must be able to read; None: this machine's memory.
        timeout: seconds until a server that does not answer is taken out.
        gpu_memory: the share of a GPU's memory that vLLM may take.
        cache_gb: room for keys and values; None: what is left of `gpu_memory`, and 1 on a CPU.
        tensor_parallel: GPUs that share the base.
        max_loras: adapters in one batch; None: all members.
        enforce_eager: no CUDA graphs.
    """

    servers: Annotated[tuple[str, ...], Row] = ()
    store: str | None = None
    timeout: float = Field(default=600.0, gt=0)
    gpu_memory: float = Field(default=0.4, gt=0, lt=1)
    cache_gb: float | None = Field(default=None, gt=0)
    tensor_parallel: Count = 1
    max_loras: Count | None = None
    enforce_eager: bool = False

    @field_validator("servers")
    @classmethod
    def _urls(cls, servers: tuple[str, ...]) -> tuple[str, ...]:
        wrong = [url for url in servers if not url.startswith(("http://", "https://"))]
        if wrong or len(set(servers)) < len(servers):
            raise ValueError("must be different URLs such as http://localhost:8000")
        return servers


class Config(Branch):
    """A whole run.

    Attributes:
        base: a named base, a folder or a hub id.
        style: of prompts; None: what suits the base.
        seed: of everything random.
        steps: to play.
        device, dtype: of the base; members are float32.
        sequences: completions the engine writes at one time.
        engine: who writes completions: `torch`, the embedded engine that also learns, or `vllm`.
        writers: where else the figures of each step go.
    """

    base: str = Field(default="nano", min_length=1)
    style: Style | None = None
    seed: int = Field(default=0, ge=0)
    steps: Count = 100
    device: str = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"
    sequences: Count = 512
    engine: Literal["torch", "vllm"] = "torch"
    vllm: VllmConfig = VllmConfig()
    population: PopulationConfig = PopulationConfig()
    lora: LoraConfig = LoraConfig()
    game: GameConfig = GameConfig()
    sampling: SamplingConfig = SamplingConfig()
    rewards: RewardRules = RewardRules()
    replacement: ReplacementRules = ReplacementRules()
    learner: LearnRules = LearnRules()
    archive: ArchiveConfig = ArchiveConfig()
    referee: RefereeConfig = RefereeConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    writers: Annotated[tuple[Literal["tensorboard", "wandb"], ...], Row] = ()

    @field_validator("device")
    @classmethod
    def _device(cls, device: str) -> str:
        kind, _, index = device.partition(":")
        if kind not in ("cpu", "cuda", "mps") or (index and not (kind == "cuda" and index.isdecimal())):
            raise ValueError("must be cpu, cuda, cuda:0 (or another number) or mps")
        return device

    @field_validator("replacement")
    @classmethod
    def _operators(cls, rules: ReplacementRules) -> ReplacementRules:
        for label, kind in (("mutations", "mutation"), ("crossovers", "crossover")):
            for breed in getattr(rules, label):
                _check_operator(breed, label, kind)
        return replace(rules, mutations=tuple(rules.mutations), crossovers=tuple(rules.crossovers))

    def tree(self) -> dict[str, Any]:
        """As plain values, whole."""
        found: dict[str, Any] = self.model_dump(mode="json")
        return found

    def with_changes(self, **changes: Any) -> Config:
        """With other top-level values, checked again."""
        return checked({**self.tree(), **changes})

    @property
    def digest(self) -> str:
        """Equal for configurations that play the same game."""
        kept = {key: value for key, value in flat(self.tree()).items() if not _may_change(key)}
        return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def checked(tree: Mapping[str, Any], where: str = "") -> Config:
    """The configuration of a tree of plain values; what is left out takes its default.

    Args:
        where: a file's name, for messages.

    Raises:
        ConfigError: naming every key that is wrong.
    """
    label = f"{where}: " if where else ""
    found = misspelt(Config, tree)
    if found:
        raise ConfigError(label + "; ".join(found))
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(label + "; ".join(sentence(e) for e in error.errors())) from None


def differences(old: Config, new: Config) -> list[str]:
    """Keys that differ, as `key: old -> new`, without those that may change."""
    before, after = flat(old.tree()), flat(new.tree())
    keys = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key) and not _may_change(key))
    return [f"{key}: {before.get(key)!r} -> {after.get(key)!r}" for key in keys]


def _may_change(key: str) -> bool:
    return any(key == free or key.startswith(free + ".") for free in MAY_CHANGE)


def _check_operator(breed: Breed, label: str, kind: str) -> None:
    from lora_evo.operators import all_operators

    fitting = [name for name, op in all_operators().items() if op.kind in (kind, "control")]
    if breed.operator not in fitting:
        raise ValueError(f"{label}: {breed.operator!r} is no {kind}{near(breed.operator, fitting)}; there are {', '.join(fitting)}")
    all_operators()[breed.operator].checked(dict(breed.params))
