"""Where else the figures of each step go: TensorBoard, Weights & Biases. Both are optional packages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from lora_evo.errors import LoraEvoError
from selfplay.config import Config

PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb"}


class Writer(Protocol):
    """Takes the figures of steps."""

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """The figures of one step."""

    def close(self) -> None:
        """No more will come."""


def check(config: Config) -> None:
    """See that every writer that is asked for can be had.

    Raises:
        LoraEvoError: if a package is missing.
    """
    for name in config.writers:
        if find_spec(PACKAGES[name]) is None:
            raise LoraEvoError(f"writers: {name} needs the package {PACKAGES[name]}: pip install {PACKAGES[name]}")


def opened(config: Config, run: Path) -> list[Writer]:
    """The writers of a run."""
    makers: dict[str, Callable[[Config, Path], Writer]] = {"tensorboard": TensorBoard, "wandb": WandB}
    return [makers[name](config, run) for name in config.writers]


def figures(step: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a `step` event, flat: `valid`, `ratings/t0/0`, `cost/rollouts`. What is not known is left out."""
    return {key: value for key, value in _flat(step, "") if key != "step"}


class TensorBoard:
    """Event files in RUN/tensorboard."""

    def __init__(self, config: Config, run: Path) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self._writer: Any = SummaryWriter(str(run / "tensorboard"))

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """See `Writer`."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """See `Writer`."""
        self._writer.close()


class WandB:
    """One run of the project lora-evo, named as the folder; its settings come from wandb's own environment variables."""

    def __init__(self, config: Config, run: Path) -> None:
        import wandb

        self._run: Any = wandb.init(project="lora-evo", name=run.name, dir=str(run), config=config.tree(), resume="allow")

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """See `Writer`."""
        self._run.log(dict(figures), step=step)

    def close(self) -> None:
        """See `Writer`."""
        self._run.finish()


def _flat(value: Any, name: str) -> list[tuple[str, float]]:
    if isinstance(value, Mapping):
        return [pair for key, x in value.items() for pair in _flat(x, f"{name}/{key}" if name else str(key))]
    if isinstance(value, list | tuple):
        return [pair for i, x in enumerate(value) for pair in _flat(x, f"{name}/{i}")]
    return [(name, float(value))] if isinstance(value, int | float) and not isinstance(value, bool) else []
