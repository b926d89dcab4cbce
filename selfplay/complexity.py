"""How complex a program is, in four numbers. Written over `ast`, because the packages disagree on nested functions and `match`."""

from __future__ import annotations

import ast
from dataclasses import dataclass

_BRANCHES = (ast.If, ast.For, ast.While, ast.IfExp, ast.ExceptHandler, ast.Assert, ast.comprehension, ast.AsyncFor)


@dataclass(frozen=True)
class Complexity:
    """Of a whole program.

    Attributes:
        ast_depth: nodes on the longest way from the module to a leaf.
        cyclomatic: 1 plus one for every branch: if, loop, conditional expression, except, assert, comprehension and each of
            its conditions, each further operand of and/or, each case of match but a bare `_`. Nested functions count in.
        lines: lines that hold code; no comments, no docstrings, no empty ones.
        variables: different names that are assigned or are parameters.
    """

    ast_depth: int
    cyclomatic: int
    lines: int
    variables: int

    def features(self) -> tuple[float, float, float, float]:
        """As numbers, in this order."""
        return float(self.ast_depth), float(self.cyclomatic), float(self.lines), float(self.variables)


def measure(program: str) -> Complexity:
    """The complexity of a program.

    Raises:
        ValueError: if it does not parse (SyntaxError is turned into this).
    """
    try:
        tree = ast.parse(program)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"the program does not parse: {type(error).__name__}") from None
    nodes = list(ast.walk(tree))
    return Complexity(_depth(tree), 1 + sum(map(_branches, nodes)), _lines(nodes), len(_variables(nodes)))


def _depth(tree: ast.AST) -> int:
    depth, level = 0, [tree]
    while level:
        depth += 1
        level = [child for node in level for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr_context)]
    return depth


def _branches(node: ast.AST) -> int:
    if isinstance(node, ast.comprehension):
        return 1 + len(node.ifs)
    if isinstance(node, ast.BoolOp):
        return len(node.values) - 1
    if isinstance(node, ast.match_case):
        bare = isinstance(node.pattern, ast.MatchAs) and node.pattern.pattern is None and node.guard is None
        return 0 if bare else 1
    return int(isinstance(node, _BRANCHES))


def _lines(nodes: list[ast.AST]) -> int:
    held: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.stmt) and not _is_docstring(node):
            held.add(node.lineno)
        if isinstance(node, ast.expr | ast.arg | ast.pattern):
            held |= {node.lineno, node.end_lineno or node.lineno}
    docstrings = [node for node in nodes if isinstance(node, ast.stmt) and _is_docstring(node)]
    for node in docstrings:
        held -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(held)


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _variables(nodes: list[ast.AST]) -> set[str]:
    stored = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return stored | {n.arg for n in nodes if isinstance(n, ast.arg)}
