"""Options that come from elsewhere: from the operators' signatures, from `--override` and from a `--config` file."""

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from lora_evo.errors import OperatorError
from lora_evo.operators import Operator, Param, all_operators

PANEL = "Operator parameters"


def usable(kind: str) -> dict[str, Operator]:
    """The operators of a kind, and the controls, which serve as either."""
    return {name: op for name, op in sorted(all_operators().items(), key=_controls_last) if op.kind in (kind, "control")}


def chosen(kind: str, name: str | None) -> Operator:
    """The operator of that name; the error lists those of the kind."""
    operators = usable(kind)
    if name in operators:
        return operators[name]
    there = ", ".join(operators)
    if name is None:
        raise OperatorError(f"--op is missing; the operators are {there}")
    if name in all_operators():
        other = all_operators()[name].kind
        raise OperatorError(f"{name} is a {other}, use `lora-evo {'mutate' if other == 'mutation' else other}`; here are {there}")
    raise OperatorError(f"no operator {name!r}; there are {there}")


def parameter_options(kind: str) -> list[inspect.Parameter]:
    """One option per distinct parameter of the operators of a kind, as arguments of a typer command."""
    holders: dict[str, list[tuple[Operator, Param]]] = {}
    for op in usable(kind).values():
        for param in op.params:
            holders.setdefault(param.name, []).append((op, param))
    return [_option(name, held) for name, held in holders.items()]


def parameters(operator: Operator, given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a call, from text, checked; those not given are left out."""
    values = {name: value_of(operator.param(name), value) for name, value in given.items() if value is not None}
    operator.checked(values)
    return values


def value_of(param: Param, given: str | bool) -> Any:
    """A parameter's value from its text. What cannot be read stays text, and the operator's own check refuses it."""
    if isinstance(given, bool):
        return given
    text = given.strip()
    if param.optional and text.lower() in ("none", "null"):
        return None
    if param.type is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    try:
        if param.type is tuple:
            return tuple(float(x) for x in text.split(","))
        return param.type(text)
    except ValueError:
        return text


def overrides(operator: Operator, given: list[str]) -> dict[str, dict[str, Any]]:
    """`GLOB:name=value,name=value` as glob -> parameters; commas inside a list of numbers stay in it."""
    found: dict[str, dict[str, Any]] = {}
    for text in given:
        glob, _, pairs = text.partition(":")
        named: dict[str, str] = {}
        last = ""
        for piece in pairs.split(","):
            name, equals, value = piece.partition("=")
            if equals:
                last = name.strip()
                named[last] = value
            elif last:
                named[last] += f",{piece}"
        if not glob or not named:
            raise OperatorError(f"--override {text!r} does not read GLOB:name=value[,name=value]")
        found[glob] = {**found.get(glob, {}), **parameters(operator, named)}
    return found


def from_file(ctx: typer.Context, file: Path | None) -> Path | None:
    """Take a file's settings as the defaults of a command's options, so that options on the command line win."""
    if file is None or ctx.resilient_parsing:
        return file
    names = {flag[2:]: p.name for p in ctx.command.params for flag in p.opts if flag.startswith("--") and flag != "--config"}
    defaults: dict[str, Any] = {}
    for key, value in _settings(file).items():
        if key == "overrides" and isinstance(value, Mapping):
            defaults["override"] = _override_texts(file, value)
        elif (flag := str(key).replace("_", "-")) not in names:
            raise typer.BadParameter(f"{file}: unknown key {key!r}; the keys are {', '.join(sorted(names))}, overrides")
        elif value is not None:
            several = flag in ("modules", "override")
            items = value if isinstance(value, list) else [value]
            defaults[str(names[flag])] = [_text(x) for x in items] if several else _text(value)
    ctx.default_map = defaults
    return file


def _settings(file: Path) -> dict[Any, Any]:
    import yaml

    try:
        text = file.read_text(encoding="utf-8")
        settings = json.loads(text) if file.suffix == ".json" else yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise typer.BadParameter(f"{file} cannot be read: {' '.join(str(error).split())}") from None
    if settings is None:
        return {}
    if not isinstance(settings, dict):
        raise typer.BadParameter(f"{file} holds no mapping of option names to values")
    return settings


def _override_texts(file: Path, given: Mapping[Any, Any]) -> list[str]:
    for glob, some in given.items():
        if not isinstance(some, Mapping):
            raise typer.BadParameter(f"{file}: overrides: {glob} needs a mapping of parameters to values")
    return [f"{glob}:" + ",".join(f"{name}={_text(value)}" for name, value in some.items()) for glob, some in given.items()]


def _text(value: Any) -> str:
    """A value as one would type it; YAML's own types would pass where the command line refuses, 1.5 as a seed say."""
    if isinstance(value, list):
        return ",".join(map(_text, value))
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def _option(name: str, holders: list[tuple[Operator, Param]]) -> inspect.Parameter:
    param = holders[0][1]
    flag = "--" + name.replace("_", "-")
    if param.type is bool:
        option = typer.Option(f"{flag}/--no-{flag[2:]}", help=_help(holders), rich_help_panel=PANEL, show_default=False)
        return argument(name, Annotated[bool | None, option], None)
    option = typer.Option(flag, help=_help(holders), metavar=_metavar(param), rich_help_panel=PANEL)
    return argument(name, Annotated[str | None, option], None)


def argument(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    """A keyword argument of a command's signature."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _metavar(param: Param) -> str:
    if param.choices:
        return "|".join(param.choices)
    return {float: "NUMBER", int: "INTEGER", tuple: "W1,W2,...", str: "TEXT"}[param.type]


def _help(holders: list[tuple[Operator, Param]]) -> str:
    """What the operators say of the parameter, its range, and each one's default."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for op, param in holders:
        default = "" if param.default is None else shown(param.default)
        groups.setdefault(param.help + bounds(param), []).append((op.name, default))
    parts = [f"{about} ({_defaults(named)})" for about, named in groups.items()]
    text = "; ".join(parts)
    return escape(text[0].upper() + text[1:] + ".")


def _defaults(named: list[tuple[str, str]]) -> str:
    """`a, b; default 1`, or `a 1, b 2` where the defaults differ."""
    values = {default for _, default in named}
    if len(values) > 1:
        return ", ".join(f"{name} {default}".strip() for name, default in named)
    names = ", ".join(name for name, _ in named)
    return f"{names}; default {values.pop()}" if any(values) else names


def bounds(param: Param) -> str:
    """The range of a parameter in words, empty where there is none."""
    if param.low is not None and param.high is not None:
        return f", from {param.low} to {param.high}"
    if param.low is not None:
        return f", at least {param.low}"
    return f", at most {param.high}" if param.high is not None else ""


def shown(value: Any) -> str:
    """A default as one would type it."""
    return _text(list(value) if isinstance(value, tuple) else value)


def _controls_last(entry: tuple[str, Operator]) -> tuple[bool, str]:
    return entry[1].kind == "control", entry[0]
