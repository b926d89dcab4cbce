"""One program in its own process: compile, call, hand the values over. Nothing here is trusted afterwards."""

from __future__ import annotations

import ast
import builtins
import gc
import mmap
import sys
import types
from collections.abc import Callable
from typing import Any

from selfplay.referee.inside import codec, wire

REAL_IMPORT = builtins.__import__
FULL = 77
"""Exit state: the page was full before an input's turn; the rest belongs to another process."""


class ForbiddenImport(ImportError):  # noqa: N818, a program sees this name
    """A module that is not on the list."""


class Page:
    """The shared page as the program's process fills it: one record after another."""

    def __init__(self, page: mmap.mmap) -> None:
        self.page = page
        self.used = 0
        self.room = len(page) - wire.HEADER.size - 128

    def add(self, kind: int, text: bytes) -> bool:
        """Write a record; False if it does not fit."""
        size = wire.RECORD.size + len(text)
        if self.used + size > self.room + (128 if len(text) < 100 else 0):
            return False
        at = wire.HEADER.size + self.used
        wire.RECORD.pack_into(self.page, at, kind, len(text))
        self.page[at + wire.RECORD.size : at + size] = text
        self.used += size
        wire.HEADER.pack_into(self.page, 0, self.used, 0)
        return True

    def end(self) -> None:
        """Say that the process came to its end."""
        wire.HEADER.pack_into(self.page, 0, self.used, wire.END)


def play(job: dict[str, Any], shared: mmap.mmap, allowed: frozenset[str], limits: codec.ValueLimits) -> int:
    """Run the job's program on its inputs and write the records; returns the exit state."""
    page = Page(shared)
    gc.enable()
    module = types.ModuleType("program")
    sys.modules["program"] = module
    try:
        function = load(job, module, allowed)
    except BaseException as error:
        page.add(*blame(error))
        page.end()
        return 0
    for index, text in enumerate(job["inputs"]):
        for _ in range(job["calls"]):
            kind, said = call(function, text, limits)
            if not page.add(kind, said):
                if index:
                    return FULL
                page.add(wire.TOO_LARGE, b"too many bytes")
    page.end()
    return 0


class BadSyntax(Exception):  # noqa: N818
    """The program's text does not compile."""


class NoEntry(Exception):  # noqa: N818
    """The program defines no such function."""


def load(job: dict[str, Any], module: types.ModuleType, allowed: frozenset[str]) -> Callable[..., Any]:
    """Execute the program's text and return its entry function."""
    source = job["program"]
    try:
        if "import" in source:
            refuse_imports(ast.parse(source), allowed)
        code = compile(source, "program", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        raise BadSyntax(getattr(error, "msg", "") or type(error).__name__) from None
    space = module.__dict__
    space["__builtins__"] = builtins
    builtins.__import__ = importer(space, allowed)
    exec(code, space)
    entry = job["entry"]
    if entry is None:
        return lambda: None
    function = space.get(entry)
    if type(function) is not types.FunctionType:
        raise NoEntry(entry)
    return function


def refuse_imports(tree: ast.Module, allowed: frozenset[str]) -> None:
    """The courtesy check, so that an import in a branch not taken is found too.

    Raises:
        ForbiddenImport: naming the first module that is not on the list.
    """
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "." if not node.level else "."]
        for name in names:
            if name not in allowed:
                raise ForbiddenImport(name)


def importer(program: dict[str, Any], allowed: frozenset[str]) -> Callable[..., Any]:
    """An `__import__` that gives the program the modules on the list, and everybody else what they ask for.

    It replaces the real one in this process, which runs nothing else: a copy of all builtins would cost a quarter of the fork.
    """

    def guarded(name: str, space: Any = None, local: Any = None, wanted: Any = (), level: int = 0) -> Any:
        if (space is program or space is None) and (level or type(name) is not str or name not in allowed):
            raise ForbiddenImport(name if type(name) is str else "?")
        return REAL_IMPORT(name, space, local, wanted, level)

    return guarded


def call(function: Callable[..., Any], text: str, limits: codec.ValueLimits) -> tuple[int, bytes]:
    """One call on fresh arguments, as a record."""
    try:
        return wire.VALUE, codec.encode(function(*codec.decode(text, limits)), limits).encode()
    except BaseException as error:
        return blame(error)


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
