"""`lora-evo plot`: spectra and layer norms as a picture."""

import io
import os
import tempfile
from collections import defaultdict
from math import hypot
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lora_evo_cli import look, show

if TYPE_CHECKING:
    from lora_evo.measure import ModuleReport

Drawn = list[tuple[str, "list[ModuleReport]"]]


def register(app: typer.Typer) -> None:
    """Add the command of this file."""
    app.command(
        epilog="[bold]Examples[/bold]\n\n$ lora-evo plot my-lora child -o spectra.png\n\n$ lora-evo plot my-lora -o layers.svg"
    )(plot)


def plot(
    adapters: Annotated[list[str], typer.Argument(metavar="ADAPTER...", help="PEFT folders or hub ids.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="A .png or .svg file.", show_default=False)],
    quiet: show.Quiet = False,
) -> None:
    """Draw singular values (median and range over modules) and the norm of each layer."""
    if output.suffix not in (".png", ".svg"):
        raise typer.BadParameter(f"--output is {str(output)!r}, it must end in .png or .svg")
    try:
        import matplotlib
    except ImportError:
        raise ImportError("plot needs matplotlib: pip install 'lora-evo[report]'") from None
    from lora_evo.peft_format import load

    drawn: Drawn = []
    for source in adapters:
        adapter = load(source)
        show.warn(adapter.warnings)
        drawn.append((adapter.name, look.reports_of(adapter, quiet)))
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "lora-evo"  # without it, and with a date, each drawing has other bytes
    _write(output, _picture(drawn, output.suffix))
    typer.echo(f"wrote {output}")


def _picture(drawn: Drawn, suffix: str) -> bytes:
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
    for i, (name, reports) in enumerate(drawn):
        _spectra(left, name, reports, f"C{i % 10}")
    left.set(xlabel="component", ylabel="singular value", yscale="log", title="Spectra: median and range over modules")
    left.legend()
    _layers(right, drawn)
    buffer = io.BytesIO()
    figure.savefig(buffer, format=suffix[1:], dpi=150, metadata={"Date": None} if suffix == ".svg" else None)
    pyplot.close(figure)
    return buffer.getvalue()


def _spectra(axes: Any, name: str, reports: "list[ModuleReport]", color: str) -> None:
    """Component by component over the modules that have it; zeros have no place on a log scale."""
    import numpy as np

    longest = max(len(r.spectrum) for r in reports)
    columns = [[r.spectrum[k] for r in reports if len(r.spectrum) > k and r.spectrum[k] > 0] for k in range(longest)]
    columns = [column for column in columns if column]
    places = range(1, len(columns) + 1)
    axes.fill_between(places, [min(c) for c in columns], [max(c) for c in columns], color=color, alpha=0.2, linewidth=0)
    axes.plot(places, [np.median(c) for c in columns], color=color, label=name)


def _layers(axes: Any, drawn: Drawn) -> None:
    """Norm per layer: by module type for one adapter, of the whole layer for several."""
    from lora_evo.places import layer_of

    several = len(drawn) > 1
    layers = list(dict.fromkeys(layer_of(r.module) for _, reports in drawn for r in reports))
    lines: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for name, reports in drawn:
        for r in reports:
            line = name if several else r.module.rpartition(".")[2]
            lines[line][layers.index(layer_of(r.module))].append(r.norm)
    for line, norms in lines.items():
        axes.plot(list(norms), [hypot(*values) for values in norms.values()], marker=".", label=line)
    shown = range(0, len(layers), max(1, len(layers) // 12))
    axes.set_xticks(list(shown), [layers[i].rpartition(".")[2] for i in shown])
    axes.set(xlabel="layer", ylabel="norm of the delta", title="Layer norms" + ("" if several else f" of {drawn[0][0]} by module"))
    axes.legend(fontsize="small")


def _write(output: Path, picture: bytes) -> None:
    """Whole or not at all."""
    output.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(prefix=f".{output.name}.", dir=output.parent)
    try:
        with open(handle, "wb") as file:
            file.write(picture)
        os.replace(partial, output)
    finally:
        Path(partial).unlink(missing_ok=True)
