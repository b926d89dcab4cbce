"""The entry point: commands, help, and what becomes of errors.

Exit codes: 0 done, 1 something failed (disk full, permission), 2 a bad call or bad input, 130 Ctrl-C.
"""

import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from lora_evo.errors import LoraEvoError
from lora_evo_cli import base, exam, family, look, plot, referee, selfplay

UsageError: Any = typer.BadParameter.__mro__[1]
"""Typer's click, its own or the package, has no public name for this class."""

app = typer.Typer(
    name="lora-evo",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="[bold]Examples[/bold]\n\n"
    "$ lora-evo mutate my-lora -o child --op svd_perturb --strength 0.1 --seed 0\n\n"
    "$ lora-evo crossover lora-a lora-b -o child --op dare --weights 0.6,0.4\n\n"
    "$ lora-evo compare my-lora child\n\n"
    "Adapters are PEFT folders or hub ids (owner/name). Exit codes: 0 done, 1 failed, 2 bad call or input.",
)


class BreedCommand(TyperCommand):
    """A command whose options come from the operators. They are read when first asked for: the main help is quick."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The options, and the function behind them, made on first use."""
        if not self.params:
            from lora_evo_cli.breed import command

            single = typer.Typer(add_completion=False)
            single.command()(command("mutation" if self.name == "mutate" else "crossover"))
            made = typer.main.get_command(single)
            self.params, self.callback = made.params, made.callback
        return super().get_params(ctx)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"lora-evo {version('lora-evo')}")
        raise typer.Exit()


@app.callback()
def options(
    _version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
    _debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error. Any command takes it.")] = False,
) -> None:
    """Breed LoRA adapters in weight space: mutate one, cross several, look at the result."""


@app.command(
    cls=BreedCommand,
    epilog="[bold]Examples[/bold]\n\n"
    "$ lora-evo mutate my-lora -o child --op svd_perturb --strength 0.1 --seed 0\n\n"
    "$ lora-evo mutate my-lora -o child --op gaussian --modules q_proj --dry-run\n\n"
    "$ lora-evo mutate my-lora -o kids/child -n 8 --op mask_components --drop 0.5",
)
def mutate() -> None:
    """Breed a child from one parent."""


@app.command(
    cls=BreedCommand,
    epilog="[bold]Examples[/bold]\n\n"
    "$ lora-evo crossover lora-a lora-b -o child --op dare --weights 0.6,0.4\n\n"
    "$ lora-evo crossover lora-a lora-b -o c --op extrapolate --weights=-0.4,1.4\n\n"
    "$ lora-evo crossover lora-a lora-b lora-c -o child --config recipe.yaml",
)
def crossover() -> None:
    """Breed a child from two or more parents."""


look.register(app)
family.register(app)
plot.register(app)
app.add_typer(base.app)
app.add_typer(referee.app)
app.add_typer(selfplay.app)
app.add_typer(exam.app)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    arguments = [a for a in given if a != "--debug"]  # here, because it is for every command and for parsing itself
    try:
        code = app(arguments, prog_name="lora-evo", standalone_mode=False)
        return _interrupted() if code == 130 else code if isinstance(code, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted()  # typer's older versions; newer ones make it exit code 130
    except BrokenPipeError:
        sys.stdout = None  # the reader has left: nothing to flush to
        return 1
    except Exception as error:
        if len(arguments) < len(given):
            traceback.print_exc()
        return _failed(*_explained(error))


def _explained(error: Exception) -> tuple[str, int]:
    """A sentence for the user, and the exit code."""
    if isinstance(error, UsageError):
        return _usage(error), 2
    if isinstance(error, LoraEvoError):
        return str(error), 2
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}", 1
    if isinstance(error, OSError | ImportError):
        return str(error), 1
    return f"{type(error).__name__}: {error}; --debug shows where", 1


def _usage(error: Any) -> str:
    if type(error).__name__ == "NoArgsIsHelpError":
        return "give a command, see above"
    hint = f" (see {error.ctx.command_path} --help)" if error.ctx else ""
    return error.format_message().rstrip(".") + hint


def _interrupted() -> int:
    return _failed("interrupted", 130)


def _failed(message: str, code: int) -> int:
    typer.echo(f"lora-evo: {' '.join(message.split())}", err=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
