"""A program's normal form: equal for programs that differ in names, comments, docstrings, annotations and layout only."""

from __future__ import annotations

import ast


def normal_form(program: str) -> str:
    """The dumped syntax tree with the program's own names replaced by numbers, in order of appearance.

    A program that does not parse is its own normal form.
    """
    try:
        tree = ast.parse(program)
        return ast.dump(_Renamer(_own_names(tree)).visit(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return program


def _own_names(tree: ast.AST) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.ExceptHandler) and node.name:
            names.add(node.name)
    return names - {"f"}


class _Renamer(ast.NodeTransformer):
    def __init__(self, own: set[str]) -> None:
        self.own = own
        self.known: dict[str, str] = {}

    def name(self, name: str) -> str:
        return self.known.setdefault(name, f"v{len(self.known)}") if name in self.own else name

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self.name(node.id)
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.arg, node.annotation = self.name(node.arg), None
        return node

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        node.name = self.name(node.name) if node.name else None
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.name = self.name(node.name)
        node.body = _without_docstring(node.body)
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name, node.returns = self.name(node.name), None
        node.body = _without_docstring(node.body)
        return self.generic_visit(node)

    def visit_Module(self, node: ast.Module) -> ast.AST:
        node.body = _without_docstring(node.body)
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is None:
            return self.generic_visit(ast.Pass())
        return self.generic_visit(ast.Assign([node.target], node.value))


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    match body:
        case [ast.Expr(value=ast.Constant(value=str())), _, *_]:
            return body[1:]
    return body
