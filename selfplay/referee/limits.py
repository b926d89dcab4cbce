"""What a program may use, import and return."""

from __future__ import annotations

from dataclasses import dataclass, field

from selfplay.referee.encoding import ValueLimits

PURE_MODULES = (
    "abc",
    "array",
    "bisect",
    "cmath",
    "collections",
    "collections.abc",
    "copy",
    "dataclasses",
    "decimal",
    "enum",
    "fractions",
    "functools",
    "heapq",
    "itertools",
    "json",
    "math",
    "numbers",
    "operator",
    "re",
    "statistics",
    "string",
    "textwrap",
    "typing",
    "unicodedata",
)
"""Parts of the standard library that compute and nothing else. Random numbers, clocks and hashes are left out on purpose."""


@dataclass(frozen=True)
class Limits:
    """Limits of one process, which runs one program on one or several inputs.

    Attributes:
        cpu_seconds: processor time, whole seconds, at least 1.
        wall_seconds: enforced from outside the process.
        memory_mb: address space, the interpreter's own 20 MB included.
        program_chars: of the source text.
        result_bytes: of all results of one process together.
        value: limits of each value.
    """

    cpu_seconds: int = 2
    wall_seconds: float = 10.0
    memory_mb: int = 512
    program_chars: int = 50_000
    result_bytes: int = 1 << 20
    value: ValueLimits = field(default_factory=ValueLimits)

    def __post_init__(self) -> None:
        if type(self.cpu_seconds) is not int or self.cpu_seconds < 1:
            raise ValueError(f"cpu_seconds is {self.cpu_seconds}, it must be a whole number of at least 1")
        if not self.wall_seconds > 0:
            raise ValueError(f"wall_seconds is {self.wall_seconds}, it must be more than 0")
        if self.memory_mb < 64:
            raise ValueError(f"memory_mb is {self.memory_mb}, it must be at least 64")
        if self.result_bytes < 4096:
            raise ValueError(f"result_bytes is {self.result_bytes}, it must be at least 4096")


@dataclass(frozen=True)
class Settings:
    """How a referee is built.

    Attributes:
        workers: processes; None: one per core this process may use, at least one for each hash seed.
        hash_seeds: workers take these PYTHONHASHSEEDs in turn; a deterministic program agrees under all of them.
        imports: modules a program may import.
        limits: of each process.
        recycle: programs after which a worker is replaced.
        allow_degraded: start although a guarantee cannot be had here. Loud.
        without: layers to leave out, for tests and to see what a layer costs (named as in `referee check`).
    """

    workers: int | None = None
    hash_seeds: tuple[int, ...] = (1, 4)
    imports: tuple[str, ...] = PURE_MODULES
    limits: Limits = field(default_factory=Limits)
    recycle: int = 5000
    allow_degraded: bool = False
    without: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if len(set(self.hash_seeds)) < 2 or not all(0 <= s < 2**32 for s in self.hash_seeds):
            raise ValueError(f"hash_seeds is {self.hash_seeds}, it must name at least two different seeds below 2**32")
        if self.workers is not None and self.workers < len(self.hash_seeds):
            raise ValueError(f"workers is {self.workers}, it must be at least {len(self.hash_seeds)}, one for each hash seed")
        if self.recycle < 1:
            raise ValueError(f"recycle is {self.recycle}, it must be at least 1")
