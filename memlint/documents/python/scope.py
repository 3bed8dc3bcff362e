"""Names of a Python file: which of them hold a value at a level, what a function takes, and what statements assign."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence

from memlint.documents.node import Keys, Node
from memlint.named_tuple import NamedTuple


class Scope:
    """Names at one level: the module, a class body, or the body of ``get_config``."""

    def __init__(self, keys: Keys, parent: Scope | None) -> None:
        self.keys = keys
        self.parent = parent
        self.names: dict[str, Node] = {}
        self.other: dict[str, str] = {}  # names that hold no value: what they are instead
        self.functions: dict[str, ast.FunctionDef] = {}

    def find(self, name: str) -> Node | None:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            if name in scope.other:
                return None
            scope = scope.parent
        return None

    def why(self, name: str) -> str:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.other:
                return f"{name} is {scope.other[name]}"
            scope = scope.parent
        return f"{name} has no value in this file"


class Returned(NamedTuple):
    """A ``return`` was reached; ``node`` is None where its value cannot be told."""

    node: Node | None


def parameters(function: ast.FunctionDef | ast.Lambda) -> list[tuple[ast.arg, ast.expr | None]]:
    """What a function takes by name, each with its default."""
    arguments = [*function.args.posonlyargs, *function.args.args]
    defaults: list[ast.expr | None] = [None] * (len(arguments) - len(function.args.defaults))
    defaults.extend(function.args.defaults)
    return list(zip([*arguments, *function.args.kwonlyargs], [*defaults, *function.args.kw_defaults]))


SETS = "setattr"  # the function that sets an attribute by its name


def targets(body: Sequence[ast.AST], spend: Callable[[int, str], None]) -> Iterator[tuple[ast.expr | str, ast.AST]]:
    """What statements may assign: target expressions, and the names of functions, classes and imports."""
    stack: list[ast.AST] = list(reversed(body))
    while stack:
        node = stack.pop()
        spend(3, "reading Python")
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name, node
            continue
        if isinstance(node, ast.Lambda):
            continue
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                yield (alias.asname or alias.name).split(".")[0], node
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                yield target, node
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.For, ast.AsyncFor, ast.NamedExpr)):
            yield node.target, node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield from _changed(node)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == SETS and node.args:
            yield node.args[0], node
        stack.extend(reversed(list(ast.iter_child_nodes(node))))


def _changed(node: ast.Call) -> Iterator[tuple[ast.expr, ast.AST]]:
    assert isinstance(node.func, ast.Attribute)
    if node.func.attr in ("update", "append", "extend", "insert", "pop", "remove", "clear", "setdefault"):
        yield node.func.value, node
