"""A repository's own model, followed over meta tensors, statement by statement of its classes and functions.

Nothing of it runs as Python: each expression is taken by its kind, over the values of :mod:`memlint.models.own.objects`
and the operations of :mod:`memlint.models.own.library`, and whatever has no rule here makes the model unknown, with its
line. Names hold values as Python's do, so that a tensor lives as long as it would. Raises UnknownModel and OutOfWork.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from memlint import work
from memlint.documents.python.source import Reading
from memlint.meta.nn import Module
from memlint.models import UnknownModel
from memlint.models.own import library, values
from memlint.models.own.attributes import Attributes
from memlint.models.own.expressions import Expressions
from memlint.models.own.objects import Bound, Function, Instance, OwnClass, OwnModule, Scope, Strange
from memlint.named_tuple import NamedTuple

# Python's own functions, whose numbers are no sizes.
_OF_VALUES = frozenset(
    (
        *values.PLAIN.values(),
        *values.FUNCTIONS.values(),
        *values.MATHEMATICS.values(),
        *(method for methods in values.METHODS.values() for method in methods.values()),
    )
)
STEP = 3  # of a statement, in steps of the meter
PROGRAM = "__main__"
MAX_DEEP = 60  # functions within each other


class Returned(NamedTuple):
    value: Any


class _Left(NamedTuple):
    """A loop is left, or goes on with its next turn."""

    goes_on: bool


class Interpreter(Attributes, Expressions):
    """``sources``: modules of the repository, by the names under which they import each other -> their texts."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self.sources = sources
        self.modules: dict[str, Scope] = {}
        self.deep = 0
        self.reading = Reading()
        self.place = ""

    # ------------------------------------------------------------------------------------------ modules

    def module(self, name: str) -> Scope:
        """The names of a module of the repository, once it is imported."""
        known = self.modules.get(name)
        if known is not None:
            return known
        scope = self.modules[name] = Scope()
        for node in self.parsed(name).body:
            if name == PROGRAM and _runs(node):
                scope.names.update(dict.fromkeys(bound_by(node), Strange("what the program itself makes")))
                continue
            try:
                self.statement(node, scope)
            except UnknownModel as error:
                for bound in bound_by(node):
                    scope.names[bound] = Strange(str(error))
        return scope

    def parsed(self, name: str) -> ast.Module:
        """A module's tree, whose nodes say whose they are."""
        tree = self.reading.parse(name, self.sources[name])
        if tree is None:
            raise UnknownModel(f"{name} cannot be read")
        for node in ast.walk(tree):
            work.spend(1, "reading a repository's own model")
            node.of_file = name  # type: ignore[attr-defined]
        return tree

    def imports(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                scope.names[alias.asname or first] = self.named(alias.name if alias.asname else first)
            return
        source = "." * node.level + (node.module or "")
        for alias in node.names:
            if source in self.sources:
                found = self.module(source).names.get(alias.name, Strange(f"{alias.name} is not in {source}"))
            else:
                found = self.named(f"{source}.{alias.name}")
            scope.names[alias.asname or alias.name] = found

    def named(self, dotted: str) -> Any:
        """What a library's name stands for: a table of names (as its dotted name), or one of them."""
        if dotted in library.TABLES or dotted in library.PASSED:
            return library_of(dotted)
        room, _, name = dotted.rpartition(".")
        if room in library.TABLES and name in library.TABLES[room]:
            found = library.TABLES[room][name]
            return library_of(found) if isinstance(found, str) else found
        if dotted == "torch" or any(table.startswith(dotted + ".") for table in library.TABLES):
            return library_of(dotted)
        return Strange(f"{dotted} is not known")

    # ------------------------------------------------------------------------------------------ statements

    def block(self, body: list[ast.stmt], scope: Scope) -> Returned | _Left | None:
        for node in body:
            left = self.statement(node, scope)
            if left is not None:
                return left
        return None

    def statement(self, node: ast.stmt, scope: Scope) -> Returned | _Left | None:
        work.spend(STEP, "following a repository's own model")
        rule = _STATEMENTS.get(type(node))
        if rule is None:
            raise self.strange(node, f"{type(node).__name__} is not followed")
        found: Returned | _Left | None = rule(self, node, scope)
        return found

    def nothing(self, node: ast.stmt, scope: Scope) -> None:
        """Checks, and what nothing is done for."""

    def expression(self, node: ast.Expr, scope: Scope) -> None:
        if not isinstance(node.value, ast.Constant):
            self.value(node.value, scope)

    def assign(self, node: ast.Assign, scope: Scope) -> None:
        value = self.value(node.value, scope)
        for target in node.targets:
            self.bind(target, value, scope)

    def annotated(self, node: ast.AnnAssign, scope: Scope) -> None:
        if node.value is not None:
            self.bind(node.target, self.value(node.value, scope), scope)

    def augmented(self, node: ast.AugAssign, scope: Scope) -> None:
        left = self.value(_loaded(node.target), scope)
        self.bind(node.target, self.in_place(node, left, self.value(node.value, scope)), scope)

    def returned(self, node: ast.Return, scope: Scope) -> Returned:
        return Returned(None if node.value is None else self.value(node.value, scope))

    def condition(self, node: ast.If, scope: Scope) -> Returned | _Left | None:
        return self.block(node.body if self.truth(node.test, scope) else node.orelse, scope)

    def loop(self, node: ast.For, scope: Scope) -> Returned | None:
        for item in self.items(self.value(node.iter, scope), node.iter):
            self.bind(node.target, item, scope)
            del item
            left = self.block(node.body, scope)
            if isinstance(left, Returned):
                return left
            if left is not None and not left.goes_on:
                return None
        found = self.block(node.orelse, scope)
        return found if isinstance(found, Returned) else None

    def leave(self, node: ast.stmt, scope: Scope) -> _Left:
        return _Left(isinstance(node, ast.Continue))

    def raises(self, node: ast.Raise, scope: Scope) -> None:
        raise self.strange(node, "it raises an error for these sizes")

    def delete(self, node: ast.Delete, scope: Scope) -> None:
        for target in node.targets:
            if not isinstance(target, ast.Name):
                raise self.strange(node, "what is deleted is no name")
            scope.names.pop(target.id, None)

    def function(self, node: ast.FunctionDef, scope: Scope) -> None:
        scope.names[node.name] = Function(node, scope)

    def defined(self, node: ast.ClassDef, scope: Scope) -> None:
        bases = [self.value(base, scope) for base in node.bases]
        odd = [base for base in bases if not isinstance(base, OwnClass) and base is not library.MODULE]
        if any(callable(base) and not isinstance(base, (OwnClass, type(library.MODULE))) for base in odd):
            raise self.strange(node, f"{node.name} is made of a layer of the library's")
        made = OwnClass(node, [base for base in bases if base not in odd], scope, library.MODULE)
        scope.names[node.name] = made
        inside = Scope(scope)
        for one in node.body:
            if isinstance(one, ast.FunctionDef):
                made.values[one.name] = Function(one, scope, made)
            elif isinstance(one, (ast.Assign, ast.AnnAssign)):
                try:
                    self.statement(one, inside)
                except UnknownModel as error:
                    inside.names.update(dict.fromkeys(bound_by(one), Strange(str(error))))
        made.values.update(inside.names)

    # ------------------------------------------------------------------------------------------ names

    def bind(self, target: ast.expr, value: Any, scope: Scope) -> None:
        if isinstance(target, ast.Name):
            scope.names[target.id] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            if any(isinstance(one, ast.Starred) for one in target.elts):
                raise self.strange(target, "a starred target")
            parts = list(self.items(value, target))
            if len(parts) != len(target.elts):
                raise self.strange(target, f"{len(parts)} values for {len(target.elts)} names")
            for one, part in zip(target.elts, parts):
                self.bind(one, part, scope)
        elif isinstance(target, ast.Attribute):
            self.set_attribute(self.value(target.value, scope), target.attr, value, target)
        elif isinstance(target, ast.Subscript):
            owner, key = self.value(target.value, scope), self.value(target.slice, scope)
            if not isinstance(owner, (dict, list)):
                raise self.strange(target, "a part of a tensor is set")
            if isinstance(owner, dict):
                owner[self.plainly(target, values.key, key)] = value
            elif isinstance(key, int):
                owner[key] = value
            else:
                raise self.strange(target, "a part of a list is set")
        else:
            raise self.strange(target, "such a target is not followed")

    # ------------------------------------------------------------------------------------------ calls

    def called(self, function: Any, args: list[Any], named: dict[str, Any], node: ast.AST) -> Any:
        if isinstance(function, Function):
            return self.enter(function, args, named)
        if isinstance(function, Bound):
            if isinstance(function.function, Function):
                return self.enter(function.function, [function.owner, *args], named)
            return self.library_call(function.function, [function.owner, *args], named, node)
        if isinstance(function, OwnClass):
            return self.made(function, args, named)
        if isinstance(function, Module):
            return function(*args, **named)
        if isinstance(function, Strange):
            raise self.strange(node, function.why)
        if callable(function):
            return self.library_call(function, args, named, node)
        raise self.strange(node, "what is called is no function")

    def library_call(self, function: Any, args: list[Any], named: dict[str, Any], node: ast.AST) -> Any:
        for one in (*args, *named.values()):
            if isinstance(one, Strange):
                raise self.strange(node, one.why)
        if function not in _OF_VALUES:
            self.plainly(node, values.sized, (*args, *named.values()))
        return values.dimensioned(self.plainly(node, lambda: function(*args, **named)))

    def enter(self, function: Function, args: list[Any], named: dict[str, Any]) -> Any:
        if self.deep >= MAX_DEEP:
            raise UnknownModel("functions of the model call each other too deep")
        node, scope = function.node, Scope(function.scope, function.owner)
        self.arguments(node.args, args, named, scope, function.scope)
        args.clear()
        named.clear()
        self.deep += 1
        try:
            if isinstance(node, ast.Lambda):
                return self.value(node.body, scope)
            left = self.block(node.body, scope)
        finally:
            self.deep -= 1
        return left.value if isinstance(left, Returned) else None

    def arguments(
        self, declared: ast.arguments, args: list[Any], named: dict[str, Any], scope: Scope, outer: Scope
    ) -> None:
        names = [one.arg for one in (*declared.posonlyargs, *declared.args)]
        left = dict(named)
        for name, value in zip(names, args):
            scope.names[name] = value
        if declared.vararg is not None:
            scope.names[declared.vararg.arg] = tuple(args[len(names) :])
        elif len(args) > len(names):
            raise UnknownModel(f"{len(args)} arguments for {len(names)} names")
        defaults = dict(zip(names[len(names) - len(declared.defaults) :], declared.defaults))
        kinds = {one.arg: usual for one, usual in zip(declared.kwonlyargs, declared.kw_defaults)}
        for name in (*names[len(args) :], *kinds):
            usual = defaults.get(name) or kinds.get(name)
            if name in left:
                scope.names[name] = left.pop(name)
            elif usual is not None:
                scope.names[name] = self.value(usual, outer)
            else:
                raise UnknownModel(f"the argument {name} is not given")
        if declared.kwarg is not None:
            scope.names[declared.kwarg.arg] = left
        elif left:
            raise UnknownModel(f"the argument {next(iter(left))} is not declared")

    def made(self, kind: OwnClass, args: list[Any], named: dict[str, Any]) -> Any:
        """An object of a class."""
        start = kind.find("__init__")
        if kind.is_module:
            module = OwnModule(kind, self)
            if start is not None:
                self.enter(start, [module, *args], named)
            return module
        instance = Instance(kind)
        if start is not None:
            self.enter(start, [instance, *args], named)
        elif kind.is_data:
            self.filled(instance, args, named)
        elif args or named:
            raise UnknownModel(f"{kind.name} takes arguments that are not followed")
        return instance

    def filled(self, instance: Instance, args: list[Any], named: dict[str, Any]) -> None:
        """The fields of a dataclass."""
        fields: dict[str, ast.expr | None] = {}
        for one in reversed(instance.kind.order):
            for node in one.node.body:
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    fields[node.target.id] = node.value
        if len(args) > len(fields) or set(named) - set(fields):
            odd = next(iter(set(named) - set(fields)), "")
            raise UnknownModel(f"{instance.kind.name} has no field {odd}")
        given = {**dict(zip(fields, args)), **named}
        for name, usual in fields.items():
            if name not in given and usual is None:
                raise UnknownModel(f"{instance.kind.name}.{name} is not given")
            instance.values[name] = given[name] if name in given else self.value(usual, instance.kind.scope)  # type: ignore[arg-type]
        after = instance.kind.find("__post_init__")
        if after is not None:
            self.enter(after, [instance], {})

    def strange(self, node: ast.AST, why: str) -> UnknownModel:
        module = getattr(node, "of_file", PROGRAM)
        where = f"{module.strip('.').replace('.', '/')}.py, " if module != PROGRAM else ""
        return UnknownModel(f"{where}line {getattr(node, 'lineno', 0)}: {why}")


def _runs(node: ast.stmt) -> bool:
    """Whether a statement of a program does more than define and import."""
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        return any(isinstance(one, ast.Call) for one in ast.walk(node))
    return not isinstance(node, (ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef))


def library_of(dotted: str) -> Any:
    from memlint.models.own.attributes import Library

    return Library(dotted)


def _loaded(target: ast.expr) -> ast.expr:
    """A target as what it holds."""
    if isinstance(target, ast.Name):
        return ast.copy_location(ast.Name(target.id, ast.Load()), target)
    return target


def bound_by(node: ast.stmt) -> Iterator[str]:
    """The names that a statement binds."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        yield node.name
        return
    for one in ast.walk(node):
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
            yield one.id


def _tried(self: Interpreter, node: ast.Try, scope: Scope) -> Returned | _Left | None:
    """What is tried works: an import that fails here is of a library that nobody knows."""
    return self.block(node.body, scope) or self.block(node.orelse, scope) or self.block(node.finalbody, scope)


_STATEMENTS: dict[type[ast.stmt], Any] = {
    ast.Expr: Interpreter.expression,
    ast.Assign: Interpreter.assign,
    ast.AnnAssign: Interpreter.annotated,
    ast.AugAssign: Interpreter.augmented,
    ast.Return: Interpreter.returned,
    ast.If: Interpreter.condition,
    ast.For: Interpreter.loop,
    ast.Break: Interpreter.leave,
    ast.Continue: Interpreter.leave,
    ast.Raise: Interpreter.raises,
    ast.Delete: Interpreter.delete,
    ast.FunctionDef: Interpreter.function,
    ast.ClassDef: Interpreter.defined,
    ast.Import: Interpreter.imports,
    ast.ImportFrom: Interpreter.imports,
    ast.Assert: Interpreter.nothing,
    ast.Pass: Interpreter.nothing,
    ast.Try: _tried,
}
