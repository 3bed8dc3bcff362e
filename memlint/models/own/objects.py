"""What the names of a repository's own model stand for: its functions, its classes and what they make."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, Union

from memlint import work
from memlint.meta.nn import Module
from memlint.models import UnknownModel
from memlint.named_tuple import NamedTuple

# What a module here has of its own: a stranger's attribute of such a name is kept under another.
_TAKEN = frozenset(dir(Module)) - {"training", "forward"}


class Strange(NamedTuple):
    """A value that nothing is known of: whoever asks for it learns why."""

    why: str


class Scope:
    """Names of a function, or of a module, above those that it stands in."""

    __slots__ = ("names", "outer", "owner")

    def __init__(self, outer: Scope | None = None, owner: OwnClass | None = None) -> None:
        self.names: dict[str, Any] = {}
        self.outer, self.owner = outer, owner

    def find(self, name: str) -> Any:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.outer
        return Strange(f"{name} is not known")

    def of_class(self) -> OwnClass | None:
        """The class whose method this is a scope of, for ``super()``."""
        scope: Scope | None = self
        while scope is not None:
            if scope.owner is not None:
                return scope.owner
            scope = scope.outer
        return None


class Function(NamedTuple):
    node: Union[ast.FunctionDef, ast.Lambda]  # noqa: UP007
    scope: Scope
    owner: OwnClass | None = None


class Bound(NamedTuple):
    """A function with what it is called of."""

    function: Any
    owner: Any


class Super(NamedTuple):
    owner: Any
    above: OwnClass


class OwnClass:
    """A class; ``bases`` are own ones, or what the library's stand for. ``module``: torch's Module is among them."""

    def __init__(self, node: ast.ClassDef, bases: list[Any], scope: Scope, module: Any) -> None:
        self.name, self.node, self.bases, self.scope = node.name, node, bases, scope
        self.values: dict[str, Any] = {}
        self.order = _order(self, bases)
        self.is_module: bool = any(base is module or (isinstance(base, OwnClass) and base.is_module) for base in bases)
        self.is_data: bool = any(_last(one) == "dataclass" for one in node.decorator_list)

    def find(self, name: str, above: OwnClass | None = None) -> Any:
        """An attribute of the class, or of those above one of them; None where there is none."""
        order = self.order
        if above is not None:
            order = order[order.index(above) + 1 :]
        return next((one.values[name] for one in order if name in one.values), None)

    def is_kind_of(self, other: Any) -> bool:
        return any(one is other or other in one.bases for one in self.order)


def _order(made: OwnClass, bases: list[Any]) -> list[OwnClass]:
    """The class and those above it, each behind all that stand on it."""
    above = [one for base in bases if isinstance(base, OwnClass) for one in base.order]
    work.spend(len(above), "following a repository's own model")
    return [made, *reversed(dict.fromkeys(reversed(above)))]


def _last(node: ast.expr) -> str:
    called = node.func if isinstance(node, ast.Call) else node
    return called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")


class Instance:
    """An object that is no module: a config."""

    def __init__(self, kind: OwnClass) -> None:
        self.kind = kind
        self.values: dict[str, Any] = {}


class OwnModule(Module):
    """A module of a repository's own class; ``call`` follows its ``forward``."""

    def __init__(self, kind: OwnClass, interpreter: Any) -> None:
        self.kind, self.interpreter = kind, interpreter
        self.compiles = False

    def forward(self, *args: Any, **named: Any) -> Any:
        function = self.kind.find("forward")
        if not isinstance(function, Function):
            raise UnknownModel(f"{self.kind.name} has no forward of its own")
        return self.interpreter.enter(function, [self, *args], named)

    def _call(self, *args: Any, **named: Any) -> Any:
        if self.compiles and not named:
            from memlint.meta.compiled import compiled

            return compiled(super()._call, *args)
        return super()._call(*args, **named)


class Modules(Module):
    """``ModuleList`` and ``Sequential``; ``names``: of a ``ModuleDict``, whose modules have them."""

    def __init__(self, modules: list[Any], chained: bool = False, names: tuple[str, ...] = ()) -> None:
        self.layers, self.chained, self.names = modules, chained, names

    def children(self) -> Iterator[tuple[str, Module]]:
        for number, module in enumerate(self.layers):
            yield self.names[number] if self.names else str(number), module

    def forward(self, x: Any) -> Any:
        if not self.chained:
            raise UnknownModel("a list of modules is called")
        for module in self.layers:
            x = module(x)
        return x


def kept_as(name: str) -> str:
    """The name under which a module keeps an attribute."""
    return f"{name}_" if name in _TAKEN or name in ("kind", "interpreter", "compiles") else name
