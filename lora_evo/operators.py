"""The registry: an operator is one decorated function, and its signature is the schema.

The command line, the documentation and the checks of a call all come from here. Importing this module does not import
torch, so `lora-evo mutate --help` is quick.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from lora_evo.errors import OperatorError

if TYPE_CHECKING:
    import torch

    from lora_evo.adapter import Adapter, LoraFactors
    from lora_evo.lowrank import Delta

Kind = Literal["mutation", "crossover", "control"]
ExtrasPolicy = Literal["keep", "choose", "mean"]


@dataclass(frozen=True)
class Spec:
    """What a parameter's annotation says beside its type: `Annotated[float, Spec("...", low=0, high=1)]`."""

    help: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Param:
    """One parameter of an operator. `type` is float, int, bool, str or tuple (of floats)."""

    name: str
    type: type
    default: Any
    help: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    optional: bool = False

    def checked(self, value: Any) -> Any:
        """The value in the parameter's own type.

        Raises:
            OperatorError: for another type, a value out of range or not among the choices.
        """
        if value is None and self.optional:
            return None
        value = self._typed(value)
        for number in value if self.type is tuple else (value,):
            if self.type in (float, int, tuple) and not np.isfinite(number):
                raise OperatorError(f"{self.name} is {value}, it must be finite")
            if self.low is not None and number < self.low:
                raise OperatorError(f"{self.name} is {value}, it must be at least {self.low}")
            if self.high is not None and number > self.high:
                raise OperatorError(f"{self.name} is {value}, it must be at most {self.high}")
        if self.choices and value not in self.choices:
            raise OperatorError(f"{self.name} is {value!r}, it must be one of {', '.join(self.choices)}")
        return value

    def _typed(self, value: Any) -> Any:
        number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
        if self.type is float and number:
            return float(value)
        if self.type is int and number and np.isfinite(value) and value == int(value):
            return int(value)
        if self.type is tuple and isinstance(value, Sequence | np.ndarray) and not isinstance(value, str):
            try:
                return tuple(float(x) for x in value)
            except (TypeError, ValueError):
                pass
        if self.type in (bool, str) and isinstance(value, self.type):
            return value
        wanted = "a list of numbers" if self.type is tuple else self.type.__name__
        raise OperatorError(f"{self.name} is {value!r}, it must be {wanted}")


@dataclass(frozen=True)
class Scene:
    """What `prepare` may look at: one call of an operator on whole adapters.

    Attributes:
        parents: how many.
        modules: paths of the modules that are bred, sorted.
        places: the same and paths of all owners of extra tensors, sorted.
        rng: the stream of the whole child, beside the streams of its modules.
    """

    parents: int
    modules: tuple[str, ...]
    places: tuple[str, ...]
    rng: np.random.Generator


Params = dict[str, Any]
Prepare = Callable[[Params, Scene], tuple[Params, dict[str, Params]]]
Formula = Callable[..., "Delta"]


@dataclass(frozen=True)
class Operator:
    """An operator: call it on adapters, `on_factors` on plain tensors, `formula` on deltas.

    Attributes:
        formula: `(parents, rng, **params) -> child`, all of them deltas of one module in a common span.
        min_parents, max_parents: how many parents it takes; max_parents None means any number.
        exact: every module of the child is one parent's as it was, so any LoRA variant is safe.
        extras: what happens to tensors that are no deltas: `keep` the first parent's, `choose` with the module, `mean`.
        prepare: draws once per child what modules share; returns parameters and per-place overrides.
    """

    name: str
    kind: Kind
    formula: Formula
    params: tuple[Param, ...]
    min_parents: int
    max_parents: int | None
    exact: bool
    extras: ExtrasPolicy
    prepare: Prepare | None
    wants_rank: bool

    @property
    def summary(self) -> str:
        """The first line of its documentation."""
        return (inspect.getdoc(self.formula) or "").split("\n")[0]

    @property
    def doc(self) -> str:
        """Its documentation: the formula's docstring."""
        return inspect.getdoc(self.formula) or ""

    def param(self, name: str) -> Param:
        """The parameter of that name; the error lists those there are."""
        for param in self.params:
            if param.name == name:
                return param
        known = ", ".join(p.name for p in self.params) or "none"
        raise OperatorError(f"{self.name} has no parameter {name!r}; it has {known}")

    def checked(self, params: Mapping[str, Any]) -> Params:
        """All parameters with their defaults, each in its own type and range."""
        given = {name: self.param(name).checked(value) for name, value in params.items()}
        return {p.name: given.get(p.name, p.default) for p in self.params}

    def check_parents(self, n: int) -> None:
        """Refuse another number of parents than it takes."""
        if n < self.min_parents or (self.max_parents is not None and n > self.max_parents):
            low, high = self.min_parents, self.max_parents
            wanted = f"{low} or more" if high is None else str(low) if low == high else f"{low} to {high}"
            raise OperatorError(f"{self.name} takes {wanted} parent(s), {n} given")

    def prepared(self, params: Params, scene: Scene) -> tuple[Params, dict[str, Params]]:
        """The parameters as the modules get them: shared ones, and per place those that differ."""
        self.check_parents(scene.parents)
        return self.prepare(params, scene) if self.prepare else (params, {})

    def __call__(
        self,
        parents: Adapter | Sequence[Adapter],
        *,
        seed: int,
        rank: int | None = None,
        dtype: torch.dtype | str | None = None,
        modules: Sequence[str] = (),
        overrides: Mapping[str, Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> Adapter:
        """Breed a child from whole adapters; see `lora_evo.breeding.breed` for the arguments."""
        from lora_evo.adapter import Adapter
        from lora_evo.breeding import breed

        group = [parents] if isinstance(parents, Adapter) else list(parents)
        return breed(group, self, seed=seed, rank=rank, dtype=dtype, modules=modules, overrides=overrides or {}, **options)

    def on_factors(
        self, parents: Sequence[LoraFactors | tuple], *, seed: int, rank: int | None = None, **params: Any
    ) -> LoraFactors:
        """The formula on plain `(A, B, scale)` triples of one module; for containers of your own.

        Args:
            parents: per parent A [*, r, in], B [*, out, r] and a scale.
            rank: the child's rank; the parents' largest by default.

        Returns:
            The child's triple, in the first parent's dtype and scale.
        """
        from lora_evo.breeding import breed_factors

        return breed_factors(parents, self, seed=seed, rank=rank, **params)


OPERATORS: dict[str, Operator] = {}


def operator(
    kind: Kind,
    *,
    parents: tuple[int, int | None] | None = None,
    exact: bool = False,
    extras: ExtrasPolicy = "keep",
    prepare: Prepare | None = None,
) -> Callable[[Formula], Operator]:
    """Register a function `(parents, rng, *, rank=..., **params) -> Delta` as an operator under its own name.

    Keyword-only arguments annotated `Annotated[type, Spec(...)]` become its parameters; an argument `rank` without a
    `Spec` receives the child's rank.
    """
    low, high = parents or ((1, 1) if kind == "mutation" else (2, None))

    def register(formula: Formula) -> Operator:
        names = inspect.signature(formula).parameters
        params = tuple(_params(formula))
        wants_rank = "rank" in names and all(p.name != "rank" for p in params)
        entry = Operator(formula.__name__, kind, formula, params, low, high, exact, extras, prepare, wants_rank)
        OPERATORS[entry.name] = entry
        return entry

    return register


def get(name: str) -> Operator:
    """The operator of that name.

    Raises:
        OperatorError: lists the names there are.
    """
    known = all_operators()
    if name not in known:
        raise OperatorError(f"no operator {name!r}; there are {', '.join(sorted(known))}")
    return known[name]


def all_operators() -> dict[str, Operator]:
    """Every registered operator; packages add theirs through the entry-point group `lora_evo.operators`."""
    from lora_evo import crossovers, mutations  # noqa: F401  registers the built-in ones

    _load_plugins()
    return OPERATORS


@cache
def _load_plugins() -> None:
    """Once per process: looking for entry points takes milliseconds."""
    for entry in entry_points(group="lora_evo.operators"):
        entry.load()


def _params(formula: Formula) -> list[Param]:
    hints = get_type_hints(formula, localns=_lazy_names(), include_extras=True)
    params = []
    for name, argument in inspect.signature(formula).parameters.items():
        hint = hints.get(name)
        if argument.kind is not argument.KEYWORD_ONLY or get_origin(hint) is not Annotated:
            continue
        spec = next((a for a in get_args(hint)[1:] if isinstance(a, Spec)), None)
        if spec is not None:
            if name in _RESERVED:
                raise TypeError(f"parameter {name}: the name belongs to every call of an operator; choose another")
            params.append(_param(name, get_args(hint)[0], argument.default, spec))
    return params


def _param(name: str, hint: Any, default: Any, spec: Spec) -> Param:
    optional = get_origin(hint) in (Union, UnionType) and type(None) in get_args(hint)
    if optional:
        hint = next(a for a in get_args(hint) if a is not type(None))
    if default is inspect.Parameter.empty:
        raise TypeError(f"parameter {name} needs a default")
    choices = get_args(hint) if get_origin(hint) is Literal else ()
    kind = str if choices else tuple if get_origin(hint) is tuple else hint
    if kind not in (float, int, bool, str, tuple):
        raise TypeError(f"parameter {name}: {hint} is not float, int, bool, str, Literal or tuple[float, ...]")
    return Param(name, kind, default, spec.help, spec.low, spec.high, choices, optional)


_RESERVED = {
    *("parents", "op", "seed", "rank", "dtype", "modules", "override", "overrides", "strict", "allow_base_mismatch", "device"),
    *("threads", "progress", "output", "children", "config", "force", "dry_run", "as_json", "quiet", "normalize"),
}


def _lazy_names() -> dict[str, Any]:
    """Names that operator modules import for type checkers only: resolving their hints must not load torch."""
    return {"Delta": object, "Sequence": Sequence, "np": np}
