"""One program in its own process: compile, call, hand the values over. Nothing here is trusted afterwards.

Short paths and few objects on purpose: after a fork, every object touched is a page of memory to copy.
"""

from __future__ import annotations

import builtins
import gc
import marshal
import os
import sys

from selfplay.referee.inside import codec, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ast
    import mmap
    from collections.abc import Callable
    from typing import Any

REAL_IMPORT = builtins.__import__
_FUNCTION = type(lambda: None)


class ForbiddenImport(ImportError):  # noqa: N818, a program sees this name
    """A module that is not on the list."""


class BadSyntax(Exception):  # noqa: N818
    """The program's text does not compile."""


class NoEntry(Exception):  # noqa: N818
    """The program defines no such function."""


class Stage:
    """What is ready before the fork: the program's module, its builtins and its guarded import. One per worker.

    Args:
        allowed: modules a program may import.
        equipped: whether they are loaded here; a program that asks a bare worker for one is run again elsewhere.
        limits: parts, text, bits of an integer, depth of a value.
    """

    def __init__(self, allowed: frozenset[str], equipped: bool, limits: tuple[int, int, int, int]) -> None:
        self.allowed = allowed
        self.budget = limits[:3]
        self.depth = limits[3]
        module = type(sys)("program")
        self.space = module.__dict__
        self.space["__builtins__"] = builtins
        sys.modules["program"] = module
        builtins.__import__ = importer(self.space, allowed, equipped)

    def strike(self) -> None:
        """Put the real import back."""
        builtins.__import__ = REAL_IMPORT
        del sys.modules["program"]


def play(
    program: str,
    inputs: list[bytes],
    arguments: list[tuple[Any, ...]],
    entry: str | None,
    calls: int,
    shared: mmap.mmap,
    stage: Stage,
) -> int:
    """Run a program on its inputs and write the records; returns the exit state.

    Args:
        program, inputs, entry, calls: of the job.
        arguments: the inputs unpacked, for the first call on each.
        shared: the page.
        stage: what the worker has ready.
    """
    header, record, used = wire.HEADER, wire.RECORD, 0
    start, room = header.size, len(shared) - header.size - record.size
    try:
        function = load(program, entry, stage)
    except BaseException as error:
        kind, text = blame(error)
        used = record.size + len(text)
        shared[: start + used] = header.pack(used, wire.END) + record.pack(kind, len(text)) + text
        return 0
    for index, values in enumerate(arguments):
        for turn in range(calls):
            try:
                value = function(*(marshal.loads(inputs[index]) if turn else values))
                kind, text = wire.VALUE, codec.write(value, [*stage.budget], stage.depth, False).encode()
            except BaseException as error:
                kind, text = blame(error)
            if used + len(text) > room:
                if index or turn or kind != wire.VALUE:
                    return wire.FULL
                kind, text = wire.TOO_LARGE, b"too many bytes"
            at = start + used
            used += record.size + len(text)
            shared[at : start + used] = record.pack(kind, len(text)) + text
            shared[:start] = header.pack(used, 0)
    shared[:start] = header.pack(used, wire.END)
    return 0


def load(source: str, entry: str | None, stage: Stage) -> Callable[..., Any]:
    """Execute the program's text and return its entry function."""
    try:
        if "import" in source:
            refuse_imports(compile(source, "program", "exec", 0x400, dont_inherit=True), stage.allowed)
        code = compile(source, "program", "exec", 0, dont_inherit=True)
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        raise BadSyntax(getattr(error, "msg", "") or type(error).__name__) from None
    gc.enable()
    exec(code, stage.space)
    if entry is None:
        return lambda: None
    function = stage.space.get(entry)
    if type(function) is not _FUNCTION:
        raise NoEntry(entry)
    return function


def refuse_imports(tree: ast.AST, allowed: frozenset[str]) -> None:
    """The courtesy check, so that an import in a branch not taken is found too.

    Raises:
        ForbiddenImport: naming a module that is not on the list.
    """
    todo: list[Any] = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, list):
            todo += node
            continue
        fields = getattr(node, "_fields", ())
        todo += [getattr(node, name, None) for name in fields]
        kind = type(node).__name__
        names = []
        if kind == "Import":
            names = [alias.name for alias in node.names]
        elif kind == "ImportFrom":
            names = ["." if node.level else node.module]
        for name in names:
            if name not in allowed:
                raise ForbiddenImport(name)


def importer(program: dict[str, Any], allowed: frozenset[str], equipped: bool) -> Callable[..., Any]:
    """An `__import__` that gives the program the modules on the list, and everybody else what they ask for."""

    def guarded(name: str, space: Any = None, local: Any = None, wanted: Any = (), level: int = 0) -> Any:
        if (space is program or space is None) and (level or type(name) is not str or name not in allowed):
            raise ForbiddenImport(name if type(name) is str else "?")
        if not equipped and not level and name not in sys.modules:
            os._exit(wire.BARE)
        return REAL_IMPORT(name, space, local, wanted, level)

    return guarded


def blame(error: BaseException) -> tuple[int, bytes]:
    """The record for an exception: by its exact type; no method of the exception is called."""
    kind = type(error)
    if kind is codec.NotAValueError:
        return wire.NOT_A_VALUE, said(error)
    if kind is codec.TooLargeError:
        return wire.TOO_LARGE, said(error)
    if kind is MemoryError:
        return wire.MEMORY, b""
    if kind is ForbiddenImport:
        return wire.FORBIDDEN, said(error)
    if kind is BadSyntax:
        return wire.SYNTAX, said(error)
    if kind is NoEntry:
        return wire.NO_ENTRY, said(error)
    name = type.__dict__["__name__"].__get__(kind)
    builtin = getattr(builtins, name, None) is kind if type(name) is str else False
    return wire.RAISED, clean(name) + (b": " + said(error) if builtin else b"")


def said(error: BaseException) -> bytes:
    """The exception's first argument, if it is plain text."""
    args = BaseException.args.__get__(error)  # type: ignore[attr-defined]
    return clean(args[0]) if type(args) is tuple and args else b""


def clean(text: Any) -> bytes:
    """At most 80 bytes of plain text."""
    return text[:80].encode("utf-8", "replace")[:80] if type(text) is str else b""
