"""Python config modules to a Document, by reading their syntax tree. Nothing of the module ever runs.

Followed: literals, arithmetic, names, attributes and items of earlier values, class constants, ``dict(...)`` and
the usual mapping types, conditions whose test is known, later assignments, ``_base_`` inheritance (mmengine),
relative imports of other config files (detectron2, mmengine), ``get_config()`` (ml_collections), and functions that
are declared to return a ``Config`` (torchtitan): what they build is a mapping with ``_target_`` and ``_args_``.
Everything else is :class:`Unresolved`, with its reason.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

from memlint import work
from memlint.documents.arithmetic import Known, Unknown, binary, compare, unary
from memlint.documents.lines import Lines
from memlint.documents.merge import merge, moved
from memlint.documents.node import TOO_LONG, Document, Fault, Faults, Keys, Node, Span, Unresolved, shown, too_long
from memlint.named_tuple import NamedTuple

MAX_DEPTH = 60  # of expressions; of blocks within blocks; of values within values
MAX_NODES = 100_000
MAX_ITEMS = 10_000
MAX_CALLS = 10  # config functions that call one another
MAX_FILES = 64
MAX_TEXT = 10_000
STATEMENT = 10  # steps, beside those of its values

_MAPPING_MAKERS = {
    "dict",
    "OrderedDict",
    "ConfigDict",
    "EasyDict",
    "edict",
    "AttrDict",
    "Munch",
    "SimpleNamespace",
    "Namespace",
    "CfgNode",
    "CN",
}
_LAZY_CALLS = {"L", "LazyCall"}  # detectron2: L(Class)(**options) is a mapping with `_target_`
_BUILTINS: dict[str, Any] = {
    "int": int,
    "float": float,
    "str": str,
    "bool": bool,
    "abs": abs,
    "round": round,
    "min": min,
    "max": max,
}
_HARMLESS_CALLS = {"print", "len", "str", "repr", "isinstance", "hasattr", "type", "id", "vars"}
# Methods that change what a list, a set or a mapping holds.
_CHANGES = frozenset(
    ("append", "extend", "insert", "add", "update", "remove", "discard", "pop", "clear", "setdefault", "popitem")
)
_CONFIG_FUNCTION = "get_config"
_BASE = "_base_"


def read(path: str, text: str) -> Document:
    """Read a Python config module. What is no Python yields MEM003 and an empty root."""
    if text.startswith("\ufeff"):
        text = text[1:]
    project = _Project()
    root = project.module(path, text)
    return Document(path, "python", text, root, project.faults.told(), (), project.sources)


class _Stop(Exception):
    def __init__(self, message: str, span: Span) -> None:
        super().__init__(message)
        self.fault = Fault("MEM003", message, span)


class _Project:
    """The files that one config module draws in, with what they share: bounds, faults, texts."""

    def __init__(self) -> None:
        self.faults = Faults()
        self.sources: dict[str, str] = {}
        self.active: list[str] = []
        self.modules: dict[str, Node] = {}
        self.nodes = 0

    def module(self, path: str, text: str) -> Node:
        self.sources[path] = text
        empty = Node({}, Span(path, 1, 1, 1, 1))
        real = os.path.realpath(path)
        tree = self.parse(path, text)
        if tree is None:
            return empty
        self.active.append(real)
        try:
            return _Module(self, path, text).run(tree)
        except _Stop as stop:
            self.faults.append(stop.fault)
            return empty
        finally:
            self.active.pop()

    def parse(self, path: str, text: str) -> ast.Module | None:
        import warnings

        work.spend(10 * work.KILOBYTE * len(text) >> 10, "reading Python")

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # invalid escapes are the config's business
                return ast.parse(text)
        except SyntaxError as error:
            line = error.lineno or 1
            column = max(error.offset or 1, 1)
            lines = Lines(path, text)
            start = lines.offset(line, column)
            end = start + 1 if start < len(text) and text[start] not in "\r\n" else start
            self.faults.append(Fault("MEM003", f"not valid Python: {error.msg}", lines.span(start, end)))
        except (ValueError, RecursionError, MemoryError) as error:
            why = "it holds a null character" if isinstance(error, ValueError) else "nested too deep"
            self.faults.append(Fault("MEM003", f"not readable as Python: {why}", Span(path, 1, 1, 1, 1)))
        return None

    def companion(self, path: str, name: str, place: Span) -> Node | None:
        """The root of another config file, or None with a fault at ``place``, where it is called ``name``."""
        from memlint.documents.load import Unreadable, load, read_text
        from memlint.files import inside, repository_root

        real = os.path.realpath(path)
        if real in self.modules:
            return self.modules[real]
        message = ""
        if real in self.active:
            message = f"the base config {name!r} is based on this one"
        elif len(self.modules) >= MAX_FILES or len(self.active) >= MAX_FILES // 4:
            message = f"more than {MAX_FILES} base configs"
        elif not inside(real, repository_root(os.path.dirname(place.path))):
            message = f"the base config {name!r} is outside this repository"
        elif not path.endswith((".py", ".yaml", ".yml", ".json")):
            message = f"the base config {name!r} is no config file"
        if not message:
            try:
                if path.endswith(".py"):
                    root = self.module(path, read_text(path))
                else:
                    document = load(path)
                    self.sources.update(document.sources)
                    self.faults.extend(document.faults)
                    root = document.root
                self.modules[real] = root
                return root
            except Unreadable as error:
                message = f"the base config {name!r} cannot be read: {error.reason}"
        self.faults.append(Fault("MEM003", message, place))
        return None


class _Scope:
    """Names at one level: the module, a class body, or the body of ``get_config``."""

    def __init__(self, keys: Keys, parent: _Scope | None) -> None:
        self.keys = keys
        self.parent = parent
        self.names: dict[str, Node] = {}
        self.other: dict[str, str] = {}  # names that hold no value: what they are instead
        self.functions: dict[str, ast.FunctionDef] = {}

    def find(self, name: str) -> Node | None:
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            if name in scope.other:
                return None
            scope = scope.parent
        return None

    def why(self, name: str) -> str:
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.other:
                return f"{name} is {scope.other[name]}"
            scope = scope.parent
        return f"{name} has no value in this file"


class _Returned(NamedTuple):
    """A ``return`` was reached; ``node`` is None where its value cannot be told."""

    node: Node | None


class _Module:
    def __init__(self, project: _Project, path: str, text: str) -> None:
        self.project = project
        self.path = path
        self.lines = Lines(path, text)
        self.text = text
        self.bases: Node | None = None
        self.ascii = text.isascii()
        self.spend = work.meter().spend
        # Of a line: its bytes, and how many characters begin before each block of them.
        self.encoded: dict[int, tuple[bytes, list[int]]] = {}
        self.making: list[str] = []  # config functions that are being followed, outermost first
        self.configs: dict[str, ast.FunctionDef] = {}

    def run(self, tree: ast.Module) -> Node:
        scope = _Scope("", None)
        self.block(tree.body, scope, 0)
        function = scope.functions.get(_CONFIG_FUNCTION)
        if function is not None:
            returned = self.config_function(function, scope)
            if returned is not None:
                scope.names[_CONFIG_FUNCTION] = returned
        self.configs = {name: one for name, one in scope.functions.items() if _returns_a_config(one)}
        for name in self.configs:
            made = self.made_config(name, scope)
            if made is not None and isinstance(made.value, dict):
                scope.other.pop(name, None)
                scope.names[name] = made
        children = scope.names
        root = Node(children, _cover(self.path, children))
        if self.bases is not None:
            root = merge(self.bases, root, "_delete_")
        return root

    # -- places

    def offset(self, line: int, byte_column: int) -> int:
        start = self.lines.starts[line - 1]
        if self.ascii:
            return start + byte_column
        if line not in self.encoded:
            end = self.lines.starts[line] if line < len(self.lines.starts) else len(self.text)
            encoded = self.text[start:end].encode("utf-8", "surrogatepass")
            lengths = (_characters(encoded[at : at + _BLOCK]) for at in range(0, len(encoded) + 1, _BLOCK))
            self.encoded[line] = encoded, [0, *accumulate(lengths)]
        encoded, before = self.encoded[line]
        block = min(byte_column, len(encoded)) // _BLOCK
        return start + before[block] + _characters(encoded[block * _BLOCK : byte_column])

    def bounds(self, node: Any) -> tuple[int, int]:
        return (
            self.offset(node.lineno, node.col_offset),
            self.offset(node.end_lineno or node.lineno, node.end_col_offset or node.col_offset),
        )

    def span(self, node: Any) -> Span:
        return self.lines.span(*self.bounds(node))

    def source(self, node: Any) -> str:
        start, end = self.bounds(node)
        return self.text[start:end]

    def unresolved(self, reason: str, node: Any) -> Unresolved:
        text = self.source(node)
        return Unresolved(reason, text if len(text) <= 200 else text[:200] + "...")

    # -- statements

    def block(self, body: Sequence[ast.stmt], scope: _Scope, depth: int) -> _Returned | None:
        for statement in body:
            self.spend(STATEMENT, "reading Python")
            returned = self.statement(statement, scope, depth)
            if returned is not None:
                return returned
        return None

    def statement(self, node: ast.stmt, scope: _Scope, depth: int) -> _Returned | None:
        if depth > MAX_DEPTH:
            raise _Stop(f"blocks nested deeper than {MAX_DEPTH}", self.span(node))
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self.assign(target, node.value, scope)
        elif isinstance(node, ast.AnnAssign):
            if node.value is not None:
                self.assign(node.target, node.value, scope)
        elif isinstance(node, ast.AugAssign):
            self.augment(node, scope)
        elif isinstance(node, ast.Delete):
            self.spend(len(node.targets), "reading Python")
            for target in node.targets:
                self.delete(target, scope)
        elif isinstance(node, ast.ClassDef):
            self.class_definition(node, scope, depth)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            scope.names.pop(node.name, None)
            scope.other[node.name] = "a function"
            if isinstance(node, ast.FunctionDef):
                scope.functions[node.name] = node
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            self.imports(node, scope)
        elif isinstance(node, ast.Expr):
            if isinstance(node.value, ast.Call):
                self.call_statement(node.value, scope)
        elif isinstance(node, ast.If):
            return self.condition(node, scope, depth)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                if item.optional_vars is not None:
                    self.bind(item.optional_vars, self.opaque("the value of a with statement", item), scope)
            return self.block(node.body, scope, depth + 1)
        elif isinstance(node, ast.Try):
            returned = self.block([*node.body, *node.orelse], scope, depth + 1)
            for handler in node.handlers:
                self.forget(handler.body, "set where an exception is handled", scope)
            return returned or self.block(node.finalbody, scope, depth + 1)
        elif isinstance(node, ast.Return):
            return _Returned(None if node.value is None else self.value(node.value, "", scope, 0))
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.While)) or type(node).__name__ in ("Match", "TryStar"):
            self.forget([node], "set in a loop or a match", scope)
        return None

    def condition(self, node: ast.If, scope: _Scope, depth: int) -> _Returned | None:
        try:
            test = self.known(node.test, scope)
        except Unknown:
            self.forget([*node.body, *node.orelse], f"set under a condition on line {node.lineno}", scope)
            return None
        return self.block(node.body if test else node.orelse, scope, depth + 1)

    def forget(self, body: Sequence[ast.stmt], reason: str, scope: _Scope) -> None:
        """What these statements may assign is unknown from here on."""
        for target, statement in _targets(body, self.spend):
            if isinstance(target, ast.expr):
                self.bind(target, self.opaque(reason, statement), scope)
            else:
                scope.names.pop(target, None)
                scope.other[target] = reason
        for statement in body:
            for node in ast.walk(statement):
                self.spend(1, "reading Python")
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGES:
                    owner = self.locate(node.func.value, scope)
                    held = None if owner is None else owner.value  # what is made is not changed so, as a mapping is
                    if owner is not None and (
                        isinstance(held, list) or (isinstance(held, dict) and "_target_" not in held)
                    ):
                        owner.value = self.unresolved(reason, node)

    def opaque(self, reason: str, node: Any) -> Node:
        place = node if hasattr(node, "lineno") else getattr(node, "context_expr", node)
        return Node(self.unresolved(reason, place), self.span(place))

    def assign(self, target: ast.expr, value: ast.expr, scope: _Scope) -> None:
        if isinstance(target, ast.Name) and target.id == _BASE and scope.parent is None:
            self.inherit(value, scope)
            return
        if isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, (ast.Tuple, ast.List)):
            pairs = list(zip(target.elts, value.elts))
            starred = any(isinstance(item, ast.Starred) for item in (*target.elts, *value.elts))
            if len(target.elts) == len(value.elts) and not starred:
                nodes = [self.value(item, "", scope, 0) for _, item in pairs]  # before any is bound: a, b = b, a
                for (item, _), node in zip(pairs, nodes):
                    self.bind(item, node, scope)
                return
        self.bind(target, self.value(value, self.keys_of(target, scope), scope, 0), scope)

    def keys_of(self, target: ast.expr, scope: _Scope) -> Keys:
        """The keys that a plain name gets, so that a literal need not be moved there afterwards."""
        return (scope.keys, target.id) if isinstance(target, ast.Name) else ""

    def bind(self, target: ast.expr, node: Node, scope: _Scope) -> None:
        if isinstance(target, ast.Name):
            scope.other.pop(target.id, None)
            self.place(scope.names, target.id, (scope.keys, target.id), node, self.span(target))
        elif isinstance(target, ast.Starred):
            self.bind(target.value, Node(self.unresolved("a starred assignment", target), node.span), scope)
        elif isinstance(target, (ast.Tuple, ast.List)):
            items = node.value if isinstance(node.value, list) and len(node.value) == len(target.elts) else None
            for index, item in enumerate(target.elts):
                if items is not None and not any(isinstance(e, ast.Starred) for e in target.elts):
                    self.bind(item, items[index], scope)
                else:
                    why = Unresolved("one of several values assigned together")
                    self.bind(item, Node(why, node.span), scope)
        elif isinstance(target, ast.Attribute):
            owner = self.locate(target.value, scope)
            if owner is not None and isinstance(owner.value, dict):
                _, end = self.bounds(target)
                key_span = self.lines.span(end - len(target.attr), end)
                self.place(owner.value, target.attr, (owner.keys, target.attr), node, key_span)
        elif isinstance(target, ast.Subscript):
            self.bind_item(target, node, scope)

    def bind_item(self, target: ast.Subscript, node: Node, scope: _Scope) -> None:
        owner = self.locate(target.value, scope)
        if owner is None or owner.is_unresolved:
            return
        try:
            index = self.known(target.slice, scope)
        except Unknown:
            owner.value = self.unresolved("an item is set that is only known when it runs", target)
            return
        if isinstance(owner.value, dict):
            name = str(index)
            self.place(owner.value, name, (owner.keys, name), node, self.span(target.slice))
        elif isinstance(owner.value, list) and _holds(owner.value, index):
            assert isinstance(index, int)
            index %= len(owner.value)
            owner.value[index] = self.moved(node, (owner.keys, index), None, ())

    def place(self, names: dict[str, Node], name: str, keys: Keys, node: Node, key_span: Span) -> None:
        """Put a value under a name. The last assignment also decides the order, as the text does."""
        if node.keys != keys or node.key_span is not None:
            node = self.moved(node, keys, None, ())
        node.key_span = key_span
        names[name] = node

    def delete(self, target: ast.expr, scope: _Scope) -> None:
        if isinstance(target, ast.Name):
            scope.names.pop(target.id, None)
        elif isinstance(target, ast.Attribute):
            owner = self.locate(target.value, scope)
            if owner is not None and isinstance(owner.value, dict):
                owner.value.pop(target.attr, None)
        elif isinstance(target, ast.Subscript):
            owner = self.locate(target.value, scope)
            if owner is not None and isinstance(owner.value, dict):
                try:
                    owner.value.pop(str(self.known(target.slice, scope)), None)
                except Unknown:
                    owner.value = self.unresolved("an item is removed that is only known when it runs", target)

    def augment(self, node: ast.AugAssign, scope: _Scope) -> None:
        combined = ast.BinOp(left=node.target, op=node.op, right=node.value)
        for name in ("lineno", "col_offset", "end_lineno", "end_col_offset"):
            setattr(combined, name, getattr(node.value, name))
        self.bind(node.target, self.value(combined, self.keys_of(node.target, scope), scope, 0), scope)

    def class_definition(self, node: ast.ClassDef, scope: _Scope, depth: int) -> None:
        outer = scope
        while outer.parent is not None and outer.keys:  # a class body does not see the class around it
            outer = outer.parent
        body = _Scope((scope.keys, node.name), outer)
        for base in reversed(node.bases):
            inherited = self.locate(base, scope)
            if inherited is not None and isinstance(inherited.value, dict):
                via = (self.span(base),)
                for name, child in inherited.value.items():
                    body.names[name] = self.moved(child, (body.keys, name), child.key_span, via)
        self.block(node.body, body, depth + 1)
        start = self.offset(node.lineno, node.col_offset)
        start = self.text.find(node.name, start + len("class"))
        key_span = self.lines.span(start, start + len(node.name))
        span = _cover(self.path, body.names) if body.names else self.span(node)
        scope.other.pop(node.name, None)
        scope.names[node.name] = Node(body.names, span, key_span, (scope.keys, node.name))

    def config_function(self, node: ast.FunctionDef, module: _Scope) -> Node | None:
        """What ``get_config()`` returns when it is called without arguments."""
        scope = _Scope("", module)
        arguments = [*node.args.posonlyargs, *node.args.args]
        defaults: list[ast.expr | None] = [None] * (len(arguments) - len(node.args.defaults))
        defaults.extend(node.args.defaults)
        for argument, default in zip([*arguments, *node.args.kwonlyargs], [*defaults, *node.args.kw_defaults]):
            if default is None:
                scope.other[argument.arg] = f"an argument of {node.name}()"
            else:
                value = self.value(default, argument.arg, module, 0)
                self.place(scope.names, argument.arg, argument.arg, value, self.span(argument))
        returned = self.block(node.body, scope, 0)
        if returned is None or returned.node is None:
            return None
        start = self.offset(node.lineno, node.col_offset)
        start = self.text.find(node.name, start + len("def"))
        key_span = self.lines.span(start, start + len(node.name))
        return self.moved(returned.node, node.name, key_span, ())

    def made_config(self, name: str, module: _Scope) -> Node | None:
        """What a function that is declared to return a ``Config`` returns; calls in it describe what they make."""
        if name in self.making or len(self.making) >= MAX_CALLS:
            return None
        self.making.append(name)
        try:
            return self.config_function(self.configs[name], module)
        finally:
            self.making.pop()

    def description(self, node: ast.Call, keys: Keys, scope: _Scope, depth: int) -> Node:
        """``model_registry("8B", x=1)`` as a mapping: ``_target_``, ``_args_``, and the keyword arguments."""
        keywords = ast.Call(func=node.func, args=[], keywords=node.keywords)
        for name in ("lineno", "col_offset", "end_lineno", "end_col_offset"):
            setattr(keywords, name, getattr(node, name))
        made = self.mapping_call(keywords, keys, scope, depth)
        target = Node(self.source(node.func), self.span(node.func), None, (keys, "_target_"))
        front: dict[str, Node] = {"_target_": target}
        if node.args:
            front["_args_"] = self.items(node.args, node, (keys, "_args_"), scope, depth)
        assert isinstance(made.value, dict)
        made.value = {**front, **made.value}
        return made

    def call_statement(self, node: ast.Call, scope: _Scope) -> None:
        """A call whose result is dropped: what matters is what it changes."""
        function = node.func
        if isinstance(function, ast.Attribute):
            owner = self.locate(function.value, scope)
            if owner is None or not isinstance(owner.value, (dict, list)):
                return
            if isinstance(owner.value, dict) and function.attr == "update":
                self.update(owner, node, scope)
            elif isinstance(owner.value, list) and function.attr == "append" and len(node.args) == 1:
                place = (owner.keys, len(owner.value))
                owner.value.append(self.value(node.args[0], place, scope, 0))
            elif isinstance(owner.value, list) and function.attr == "extend" and len(node.args) == 1:
                more = self.value(node.args[0], "", scope, 0)
                if isinstance(more.value, list):
                    for item in more.value:
                        owner.value.append(self.moved(item, (owner.keys, len(owner.value)), None, ()))
                else:
                    owner.value = self.unresolved("extended by what is only known when it runs", node)
            elif function.attr not in ("lock", "freeze", "unlock", "items", "keys", "values", "get", "copy"):
                owner.value = self.unresolved(f"changed by .{function.attr}()", node)
        elif isinstance(function, ast.Name) and function.id not in _HARMLESS_CALLS:
            for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
                owner = self.locate(argument, scope)
                if owner is not None and isinstance(owner.value, (dict, list)):
                    owner.value = self.unresolved(f"may be changed by {function.id}()", node)

    def update(self, owner: Node, node: ast.Call, scope: _Scope) -> None:
        assert isinstance(owner.value, dict)
        try:
            more: Node | None = self.mapping_call(node, owner.keys, scope, 0)
        except Unknown:
            more = None
        if more is not None and isinstance(more.value, dict):
            owner.value.update(more.value)
        else:
            owner.value = self.unresolved("updated by what is only known when it runs", node)

    # -- other files

    def inherit(self, value: ast.expr, scope: _Scope) -> None:
        """``_base_``: the files that this one is laid over, in order."""
        listed = self.value(value, _BASE, scope, 0)
        entries = listed.value if isinstance(listed.value, list) else [listed]
        merged: Node | None = None
        for entry in entries:
            name = entry.value
            if not isinstance(name, str):
                fault = Fault("MEM004", "this base config cannot be told without running the file", entry.span)
                self.project.faults.append(fault)
                continue
            if "::" in name or os.path.isabs(name) or "\0" in name:
                message = f"the base config {name!r} is not a file beside this one: what it sets is unknown"
                self.project.faults.append(Fault("MEM004", message, entry.span))
                continue
            path = os.path.normpath(os.path.join(os.path.dirname(self.path), name))
            root = self.project.companion(path, name, entry.span)
            if root is not None:
                root = self.moved_root(root)
                merged = root if merged is None else merge(merged, root)
        self.bases = merged

    def moved_root(self, root: Node) -> Node:
        """A copy of another file's root: a module may be the base of several, and each may change it."""
        if not isinstance(root.value, dict):
            return root
        children = {name: self.moved(node, name, node.key_span, ()) for name, node in root.value.items()}
        return Node(children, root.span)

    def imports(self, node: ast.Import | ast.ImportFrom, scope: _Scope) -> None:
        root = self.imported_file(node) if isinstance(node, ast.ImportFrom) and node.level else None
        found = root.value if root is not None and isinstance(root.value, dict) else {}
        for alias in node.names:
            if alias.name == "*":
                for name, child in found.items():
                    scope.names[name] = self.moved(child, (scope.keys, name), child.key_span, ())
                continue
            name = alias.asname or alias.name.split(".")[0]
            scope.names.pop(name, None)
            origin = found.get(alias.name)
            if origin is not None:
                scope.names[name] = self.moved(origin, (scope.keys, name), origin.key_span, (self.span(node),))
                scope.other.pop(name, None)
            else:
                scope.other[name] = "imported"

    def imported_file(self, node: ast.ImportFrom) -> Node | None:
        """The config file that ``from .name import ...`` means, if it is one."""
        if node.module is None:
            return None
        folder = os.path.dirname(self.path)
        for _ in range(node.level - 1):
            folder = os.path.join(folder, os.pardir)
        path = os.path.normpath(os.path.join(folder, *node.module.split(".")) + ".py")
        if not os.path.isfile(path):
            return None
        return self.project.companion(path, node.module, self.span(node))

    # -- expressions

    def known(self, node: ast.expr, scope: _Scope) -> Known:
        """The scalar that an expression comes to, or :class:`Unknown`."""
        value = self.value(node, "", scope, 0).value
        if isinstance(value, Unresolved):
            raise Unknown(value.reason)
        if isinstance(value, (dict, list)):
            raise Unknown("a container")
        return value

    def value(self, node: ast.expr, keys: Keys, scope: _Scope, depth: int) -> Node:
        """The node of an expression. Its span is the expression, or for a name where its value was written."""
        self.count(node)
        reason = "a value that configs do not have"
        if depth > MAX_DEPTH:
            reason = f"nested deeper than {MAX_DEPTH} levels"
        elif isinstance(node, ast.Constant):
            value = node.value
            if too_long(value):
                reason = TOO_LONG
            elif value is None or isinstance(value, (str, bool, int, float)):
                return Node(value, self.span(node), None, keys)
        elif isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
            return self.reference(node, keys, scope, depth)
        else:
            try:
                return self.composed(node, keys, scope, depth)
            except Unknown as unknown:
                reason = str(unknown)
        return Node(self.unresolved(reason, node), self.span(node), None, keys)

    def composed(self, node: ast.expr, keys: Keys, scope: _Scope, depth: int) -> Node:
        below = depth + 1
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            template = _mmcv_reference(node)
            if template is not None:
                return self.value(template, keys, scope, below)
            return self.items(node.elts, node, keys, scope, below)
        if isinstance(node, ast.Dict):
            return self.dictionary(node, keys, scope, below)
        if isinstance(node, ast.Call):
            return self.call(node, keys, scope, below)
        if isinstance(node, ast.BinOp):
            return self.operation(node, keys, scope, below)
        result: Any
        if isinstance(node, ast.UnaryOp):
            operand = self.value(node.operand, "", scope, below)
            if isinstance(operand.value, (dict, list)) and not isinstance(node.op, ast.Not):
                raise Unknown("an operation on a container")
            result = unary(node.op, _scalar(operand) if not operand.is_list else bool(operand.value))
        elif isinstance(node, ast.BoolOp):
            for item in node.values:
                last = self.value(item, keys, scope, below)
                truth = bool(last.value) if isinstance(last.value, (dict, list)) else bool(_scalar(last))
                if truth is isinstance(node.op, ast.Or):
                    break
            return last
        elif isinstance(node, ast.Compare):
            result = self.comparison(node, scope, below)
        elif isinstance(node, ast.IfExp):
            test = self.value(node.test, "", scope, below)
            truth = bool(test.value) if isinstance(test.value, (dict, list)) else bool(_scalar(test))
            return self.value(node.body if truth else node.orelse, keys, scope, below)
        elif isinstance(node, ast.JoinedStr):
            result = self.formatted(node, scope, below)
        elif isinstance(node, ast.NamedExpr):
            self.bind(node.target, self.value(node.value, "", scope, below), scope)
            return self.value(node.value, keys, scope, below)
        else:
            raise Unknown(_NOT_FOLLOWED.get(type(node).__name__, "an expression that only running can evaluate"))
        return Node(result, self.span(node), None, keys)

    def items(self, elements: Sequence[ast.expr], node: ast.expr, keys: Keys, scope: _Scope, depth: int) -> Node:
        items: list[Node] = []
        for element in elements:
            if isinstance(element, ast.Starred):
                more = self.value(element.value, "", scope, depth)
                if not isinstance(more.value, list):
                    raise Unknown("unpacks what is only known when it runs")
                for item in more.value:
                    items.append(self.moved(item, (keys, len(items)), None, ()))
            else:
                items.append(self.value(element, (keys, len(items)), scope, depth))
        return Node(items, self.span(node), None, keys)

    def dictionary(self, node: ast.Dict, keys: Keys, scope: _Scope, depth: int) -> Node:
        children: dict[str, Node] = {}
        written: dict[str, Span] = {}
        for key, item in zip(node.keys, node.values):
            if key is None:
                self.unpack(children, item, keys, scope, depth)
                continue
            named = self.value(key, "", scope, depth)
            if isinstance(named.value, list):
                name = self.source(key)  # a tuple as key
            else:
                name = str(_scalar(named))
            key_span = self.span(key)
            if name in written:
                message = f"{shown(name)!r} is written twice in this dict: this one wins over line {written[name].line}"
                self.project.faults.append(Fault("MEM006", message, key_span, (written[name],)))
            written[name] = key_span
            child = self.value(item, (keys, name), scope, depth)
            child.key_span = key_span
            children[name] = child
        return Node(children, self.span(node), None, keys)

    def unpack(self, children: dict[str, Node], node: ast.expr, keys: Keys, scope: _Scope, depth: int) -> None:
        more = self.value(node, "", scope, depth)
        if not isinstance(more.value, dict):
            raise Unknown("unpacks what is only known when it runs")
        for name, child in more.value.items():
            children[name] = self.moved(child, (keys, name), child.key_span, ())

    def operation(self, node: ast.BinOp, keys: Keys, scope: _Scope, depth: int) -> Node:
        left = self.value(node.left, "", scope, depth)
        right = self.value(node.right, "", scope, depth)
        if isinstance(node.op, ast.Add) and isinstance(left.value, list) and isinstance(right.value, list):
            items = [*left.value, *right.value]
        elif isinstance(node.op, ast.Mult) and isinstance(left.value, list) and isinstance(right.value, int):
            items = left.value * self.repeats(len(left.value), right.value)
        elif isinstance(node.op, ast.Mult) and isinstance(right.value, list) and isinstance(left.value, int):
            items = right.value * self.repeats(len(right.value), left.value)
        elif isinstance(node.op, ast.BitOr) and isinstance(left.value, dict) and isinstance(right.value, dict):
            children = {
                name: self.moved(child, (keys, name), child.key_span, ())
                for name, child in {**left.value, **right.value}.items()
            }
            return Node(children, self.span(node), None, keys)
        else:
            return Node(binary(node.op, _scalar(left), _scalar(right)), self.span(node), None, keys)
        placed = [self.moved(item, (keys, index), None, ()) for index, item in enumerate(items)]
        return Node(placed, self.span(node), None, keys)

    def repeats(self, length: int, times: int) -> int:
        """How often, where it makes a difference: Python refuses to count to more than an index, also over nothing."""
        if length * max(times, 0) > MAX_ITEMS:
            raise Unknown(f"a list of more than {MAX_ITEMS:,} items")
        return max(times, 0) if length else 0

    def comparison(self, node: ast.Compare, scope: _Scope, depth: int) -> bool:
        left = self.value(node.left, "", scope, depth)
        for kind, item in zip(node.ops, node.comparators):
            right = self.value(item, "", scope, depth)
            if isinstance(kind, (ast.In, ast.NotIn)):
                member = _scalar(left)
                if isinstance(right.value, dict):
                    holds = member in right.value
                elif isinstance(right.value, list):
                    holds = any(_scalar(other) == member for other in right.value)
                elif isinstance(right.value, str) and isinstance(member, str):
                    holds = member in right.value
                else:
                    raise Unknown("a comparison that is not followed")
                if holds is isinstance(kind, ast.NotIn):
                    return False
            elif not compare(kind, _scalar(left), _scalar(right)):
                return False
            left = right
        return True

    def formatted(self, node: ast.JoinedStr, scope: _Scope, depth: int) -> str:
        parts: list[str] = []
        for part in node.values:
            if isinstance(part, ast.Constant):
                parts.append(str(part.value))
                continue
            assert isinstance(part, ast.FormattedValue)
            value = _scalar(self.value(part.value, "", scope, depth))
            if part.conversion == ord("r"):
                value = repr(value)
            elif part.conversion == ord("a"):
                value = ascii(value)
            spec = ""
            if part.format_spec is not None:
                assert isinstance(part.format_spec, ast.JoinedStr)
                spec = self.formatted(part.format_spec, scope, depth)
            if len(spec) > 8 or sum(character.isdigit() for character in spec) > 3:
                raise Unknown("a format that is not followed")
            try:
                parts.append(format(value, spec))
            except (ValueError, TypeError) as error:
                raise Unknown(f"{error}") from None
        text = "".join(parts)
        if len(text) > MAX_TEXT:
            raise Unknown(f"text of more than {MAX_TEXT:,} characters")
        self.spend(len(text) >> 3, "putting text together")  # for the memory that it takes
        return text

    # -- names

    def locate(self, node: ast.expr, scope: _Scope, depth: int = 0) -> Node | None:
        """The node itself (not a copy) that a name, attribute or item means, if it is known."""
        if depth > MAX_DEPTH:
            return None
        if isinstance(node, ast.Name):
            if node.id == _BASE and self.bases is not None:
                return self.bases
            return scope.find(node.id)
        if isinstance(node, ast.Attribute):
            owner = self.locate(node.value, scope, depth + 1)
            if owner is not None and isinstance(owner.value, dict):
                return owner.value.get(node.attr)
        elif isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Slice):
            owner = self.locate(node.value, scope, depth + 1)
            if owner is None:
                return None
            try:
                index = self.known(node.slice, scope)
            except Unknown:
                return None
            if isinstance(owner.value, dict):
                return owner.value.get(str(index))
            if isinstance(owner.value, list) and _holds(owner.value, index):
                assert isinstance(index, int)
                return owner.value[index]
        return None

    def reference(self, node: ast.expr, keys: Keys, scope: _Scope, depth: int) -> Node:
        place = self.span(node)
        if isinstance(node, ast.Name) and node.id == "__name__" and scope.find("__name__") is None:
            return Node("config", place, None, keys)  # anything but "__main__"
        target = self.locate(node, scope)
        if target is not None:
            return self.moved(target, keys, None, (place,))
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
            return self.sliced(node, keys, scope, depth)
        if isinstance(node, (ast.Attribute, ast.Subscript)):
            owner = self.value(node.value, "", scope, depth + 1)
            if owner.is_unresolved:
                assert isinstance(owner.value, Unresolved)
                return Node(self.unresolved(owner.value.reason, node), place, None, keys)
            if isinstance(node, ast.Attribute):
                reason = f"there is no {node.attr} in {self.source(node.value)[:40]}"
            else:
                reason = "an item that is not there"
        else:
            assert isinstance(node, ast.Name)
            reason = scope.why(node.id)
        return Node(self.unresolved(reason, node), place, None, keys)

    def sliced(self, node: ast.Subscript, keys: Keys, scope: _Scope, depth: int) -> Node:
        owner = self.value(node.value, "", scope, depth + 1)
        assert isinstance(node.slice, ast.Slice)
        bounds: list[int | None] = []
        for bound in (node.slice.lower, node.slice.upper, node.slice.step):
            number = None if bound is None else self.value(bound, "", scope, depth + 1).value
            if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
                break
            bounds.append(number)
        if len(bounds) == 3 and bounds[2] != 0 and isinstance(owner.value, (list, str)):
            part = owner.value[slice(*bounds)]
            if isinstance(part, str):
                return Node(part, self.span(node), None, keys)
            items = [self.moved(item, (keys, index), None, ()) for index, item in enumerate(part)]
            return Node(items, self.span(node), None, keys)
        return Node(self.unresolved("a slice that is not followed", node), self.span(node), None, keys)

    # -- calls

    def call(self, node: ast.Call, keys: Keys, scope: _Scope, depth: int) -> Node:
        function = node.func
        if isinstance(function, ast.Call):
            inner = function.func
            if isinstance(inner, ast.Name) and inner.id in _LAZY_CALLS and len(function.args) == 1:
                made = self.mapping_call(node, keys, scope, depth)
                if isinstance(made.value, dict):
                    place = self.span(function.args[0])
                    target = Node(self.source(function.args[0]), place, None, (keys, "_target_"))
                    made.value = {"_target_": target, **made.value}
                return made
            raise Unknown("calls what another call returns")
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        owned = isinstance(function, ast.Name) and (scope.find(name) is not None)
        local = scope.other.get(name) == "a function" or (
            scope.parent is not None and scope.parent.other.get(name) == "a function"
        )
        if owned:
            return self.instance(node, keys, scope, depth)
        if not local:
            if name in _MAPPING_MAKERS or (name == "create" and self.source(function) == "OmegaConf.create"):
                return self.mapping_call(node, keys, scope, depth)
            if isinstance(function, ast.Name):
                if name in ("list", "tuple", "set", "len", "sum", "range"):
                    return self.sequence_call(name, node, keys, scope, depth)
                if name in _BUILTINS:
                    return self.builtin_call(name, node, keys, scope, depth)
            if name == "field":
                for keyword in node.keywords:
                    if keyword.arg == "default":
                        return self.value(keyword.value, keys, scope, depth)
                    if keyword.arg == "default_factory" and isinstance(keyword.value, ast.Lambda):
                        return self.value(keyword.value.body, keys, scope, depth)
            if name == "deepcopy" and len(node.args) == 1:
                return self.value(node.args[0], keys, scope, depth)
            if name == "FieldReference":  # ml_collections: its first argument is its value
                for argument in (*node.args, *(k.value for k in node.keywords if k.arg == "default")):
                    return self.value(argument, keys, scope, depth)
        if name == "copy" and isinstance(function, ast.Attribute) and not node.args:
            original = self.value(function.value, keys, scope, depth)
            if isinstance(original.value, (dict, list)):
                return original
        if self.making:
            if not local:
                return self.description(node, keys, scope, depth)
            module = scope.parent or scope
            if name in self.configs and not node.args and not node.keywords:
                other = self.made_config(name, module)
                if other is not None:
                    return self.moved(other, keys, None, (self.span(node),))
        raise Unknown(f"calls {self.source(function)[:60]}()")

    def instance(self, node: ast.Call, keys: Keys, scope: _Scope, depth: int) -> Node:
        """A class of this file, called: its constants, with the keyword arguments over them."""
        base = self.locate(node.func, scope)
        if base is None or not isinstance(base.value, dict) or node.args:
            raise Unknown(f"calls {self.source(node.func)[:60]}()")
        made = self.moved(base, keys, None, (self.span(node.func),))
        more = self.mapping_call(node, keys, scope, depth)
        if not isinstance(made.value, dict) or not isinstance(more.value, dict):
            return more
        made.value.update(more.value)
        return made

    def mapping_call(self, node: ast.Call, keys: Keys, scope: _Scope, depth: int) -> Node:
        """``dict(...)`` and its like."""
        children: dict[str, Node] = {}
        if len(node.args) > 1:
            raise Unknown("a mapping made of several arguments")
        for argument in node.args:
            self.unpack(children, argument, keys, scope, depth)
        for keyword in node.keywords:
            if keyword.arg is None:
                self.unpack(children, keyword.value, keys, scope, depth)
                continue
            start = self.offset(keyword.lineno, keyword.col_offset)
            child = self.value(keyword.value, (keys, keyword.arg), scope, depth)
            child.key_span = self.lines.span(start, start + len(keyword.arg))
            children[keyword.arg] = child
        return Node(children, self.span(node), None, keys)

    def sequence_call(self, name: str, node: ast.Call, keys: Keys, scope: _Scope, depth: int) -> Node:
        if node.keywords or any(isinstance(argument, ast.Starred) for argument in node.args):
            raise Unknown(f"calls {name}() in a way that is not followed")
        place = self.span(node)
        if name == "range":
            numbers = [_scalar(self.value(argument, "", scope, depth)) for argument in node.args]
            if not 1 <= len(numbers) <= 3 or not all(isinstance(n, int) for n in numbers) or 0 in numbers[2:]:
                raise Unknown("a range that is not followed")
            values = range(*numbers)  # type: ignore[arg-type]
            if len(values) > MAX_ITEMS:
                raise Unknown(f"a range of more than {MAX_ITEMS:,} items")
            self.project.nodes += len(values)
            items = [Node(number, place, None, (keys, index)) for index, number in enumerate(values)]
            return Node(items, place, None, keys)
        if not node.args and name in ("list", "tuple", "set"):
            return Node([], place, None, keys)
        if len(node.args) != 1:
            raise Unknown(f"calls {name}() in a way that is not followed")
        argument = self.value(node.args[0], keys, scope, depth)
        if name == "len" and isinstance(argument.value, (dict, list, str)):
            return Node(len(argument.value), place, None, keys)
        if not isinstance(argument.value, list):
            raise Unknown(f"calls {name}() on what is only known when it runs")
        if name == "sum":
            total: Any = 0
            for item in argument.value:
                total = binary(ast.Add(), total, _scalar(item))
            return Node(total, place, None, keys)
        return Node(argument.value, place, None, keys)

    def builtin_call(self, name: str, node: ast.Call, keys: Keys, scope: _Scope, depth: int) -> Node:
        if node.keywords or any(isinstance(argument, ast.Starred) for argument in node.args):
            raise Unknown(f"calls {name}() in a way that is not followed")
        nodes = [self.value(argument, "", scope, depth) for argument in node.args]
        if name in ("min", "max") and len(nodes) == 1 and isinstance(nodes[0].value, list):
            nodes = nodes[0].value
        values = [_scalar(item) for item in nodes]
        if any(isinstance(value, str) and len(value) > 300 for value in values):
            raise Unknown(f"calls {name}() on a long text")
        try:
            result = _BUILTINS[name](*values)
        except (TypeError, ValueError, ArithmeticError) as error:
            raise Unknown(f"{name}(): {error}") from None
        if too_long(result):
            raise Unknown(TOO_LONG)
        if not isinstance(result, (str, int, float)):
            raise Unknown(f"calls {name}() in a way that is not followed")
        return Node(result, self.span(node), None, keys)

    # -- copies, counted

    def count(self, node: Any) -> None:
        self.project.nodes += 1
        self.spend(work.NODE, "reading Python")
        if self.project.nodes > MAX_NODES:
            raise _Stop(f"more than {MAX_NODES:,} values: not read any further", self.span(node))

    def moved(self, node: Node, keys: Keys, key_span: Span | None, via: tuple[Span, ...], depth: int = 0) -> Node:
        self.project.nodes += 1
        self.spend(work.NODE, "following values of Python")
        if self.project.nodes > MAX_NODES or depth > MAX_DEPTH:
            message = f"more than {MAX_NODES:,} values, or nested deeper than {MAX_DEPTH} levels"
            raise _Stop(message, via[0] if via else node.span)
        value = node.value
        if not isinstance(value, (dict, list)):
            return moved(node, keys, key_span, via)
        if isinstance(value, dict):
            copied: Any = {
                name: self.moved(child, (keys, name), child.key_span, via, depth + 1) for name, child in value.items()
            }
        else:
            copied = [self.moved(child, (keys, index), None, via, depth + 1) for index, child in enumerate(value)]
        return Node(copied, node.span, key_span, keys, via + node.via)


_BLOCK = 1_024  # bytes of a long line that are counted at once
_CONTINUATION = bytes(range(0x80, 0xC0))


def _characters(encoded: bytes) -> int:
    """How many characters begin in a stretch of UTF-8."""
    return len(encoded.translate(None, _CONTINUATION))


_NOT_FOLLOWED = {
    "Lambda": "a function",
    "ListComp": "a comprehension",
    "SetComp": "a comprehension",
    "DictComp": "a comprehension",
    "GeneratorExp": "a comprehension",
    "Await": "awaits",
}


def _returns_a_config(node: ast.FunctionDef) -> bool:
    """``def llama3_8b() -> Trainer.Config``: nothing that it must be given, and no more than its own body to follow."""
    required = len(node.args.posonlyargs) + len(node.args.args) - len(node.args.defaults)
    required += sum(default is None for default in node.args.kw_defaults)
    returned = node.returns
    if required or node.decorator_list:
        return False
    if isinstance(returned, ast.Constant):
        return isinstance(returned.value, str) and returned.value.endswith(".Config")
    return isinstance(returned, ast.Attribute) and returned.attr == "Config"


def _holds(items: list[Node], index: object) -> bool:
    return isinstance(index, int) and -len(items) <= index < len(items)


def _scalar(node: Node) -> Known:
    value = node.value
    if isinstance(value, Unresolved):
        raise Unknown(value.reason)
    if isinstance(value, (dict, list)):
        raise Unknown("an operation on a container")
    return value


def _mmcv_reference(node: ast.expr) -> ast.expr | None:
    """``{{_base_.x}}``, mmcv's way to name a value of the base config: a set in a set to Python."""
    if isinstance(node, ast.Set) and len(node.elts) == 1:
        inner = node.elts[0]
        if isinstance(inner, ast.Set) and len(inner.elts) == 1:
            name = inner.elts[0]
            while isinstance(name, (ast.Attribute, ast.Subscript)):
                name = name.value
            if isinstance(name, ast.Name) and name.id == _BASE:
                return inner.elts[0]
    return None


def _targets(body: Sequence[ast.AST], spend: Callable[[int, str], None]) -> Iterator[tuple[ast.expr | str, ast.AST]]:
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
        stack.extend(reversed(list(ast.iter_child_nodes(node))))


def _changed(node: ast.Call) -> Iterator[tuple[ast.expr, ast.AST]]:
    assert isinstance(node.func, ast.Attribute)
    if node.func.attr in ("update", "append", "extend", "insert", "pop", "remove", "clear", "setdefault"):
        yield node.func.value, node


def _cover(path: str, children: dict[str, Node]) -> Span:
    """From the first key to the last value, of those that stand in this file."""
    first: tuple[int, int] | None = None
    last = (1, 1)
    for child in children.values():
        for span in (child.key_span, child.span):
            if span is not None and span.path == path:
                first = min(first or (span.line, span.column), (span.line, span.column))
                last = max(last, (span.end_line, span.end_column))
    return Span(path, *(first or (1, 1)), *last)
