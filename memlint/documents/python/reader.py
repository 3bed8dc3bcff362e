"""Python config modules to a Document, by reading their syntax tree. Nothing of the module ever runs.

Followed: literals, arithmetic, names, attributes and items of earlier values, class constants, ``dict(...)`` and
the usual mapping types, conditions whose test is known, later assignments, ``_base_`` inheritance (mmengine),
relative imports of other config files (detectron2, mmengine), ``get_config()`` (ml_collections), and functions that
are declared to return a ``Config`` (torchtitan): what they build is a mapping with ``_target_`` and ``_args_``.
Everything else is :class:`Unresolved`, with its reason.

A file is read by one class, in layers: its text (``source.py``), what expressions, calls and statements come to
(``expressions.py``, ``calls.py``, ``statements.py``), the functions that make configs
(``config_functions.py``), and here the files that it is laid over or imports.
"""

from __future__ import annotations

import ast
import os

from memlint import files, work
from memlint.documents.merge import merge
from memlint.documents.node import Document, Fault, Keys, Node, Span
from memlint.documents.python import library_bases
from memlint.documents.python.config_functions import ConfigFunctions
from memlint.documents.python.scope import Scope
from memlint.documents.python.source import MAX_DEPTH, MAX_NODES, Reading, Stop
from memlint.documents.python.statements import cover
from memlint.named_tuple import NamedTuple

MAX_FILES = 64
MAX_KEPT = 256

_BASE = "_base_"


def read(path: str, text: str) -> Document:
    """Read a Python config module. What is no Python yields MEM003 and an empty root."""
    if text.startswith("\ufeff"):
        text = text[1:]
    project = Project()
    root = project.module(path, text)
    return Document(path, "python", text, root, project.faults.told(), (), project.sources)


class Kept(NamedTuple):
    """A Python file that others draw in, as it was read in this invocation: without a fault.

    nodes   that it has itself
    steps   of work that it took itself
    needed  the files that it draws in: (path, the name it has for it, where)
    """

    real: str
    root: Node
    text: str
    nodes: int
    steps: int
    needed: list[tuple[str, str, Span]]


class Drawn(NamedTuple):
    """Of a file that is being read: what was counted before it, and what the files that it draws in have added."""

    nodes: int
    steps: int
    below: list[tuple[int, int]]
    needed: list[tuple[str, str, Span]]


class Project(Reading):
    """The config files that one of them draws in."""

    def __init__(self) -> None:
        super().__init__()
        self.active: list[str] = []
        self.modules: dict[str, Node] = {}
        self.drawn: list[Drawn] = []  # beside ``active``, but for the first

    def module(self, path: str, text: str) -> Node:
        self.sources[path] = text
        empty = Node({}, Span(path, 1, 1, 1, 1))
        real = os.path.realpath(path)
        tree = self.parse(path, text)
        if tree is None:
            return empty
        self.active.append(real)
        try:
            return Module(self, path, text).run(tree)
        except Stop as stop:
            self.faults.append(stop.fault)
            return empty
        finally:
            self.active.pop()

    def companion(self, path: str, name: str, place: Span) -> Node | None:
        """The root of another config file, or None with a fault at ``place``, where it is called ``name``."""
        from memlint.documents.load import Unreadable, load

        real = os.path.realpath(path)
        if self.drawn:
            self.drawn[-1].needed.append((path, name, place))
        if real in self.modules:
            return self.modules[real]
        if self.again(path, place):
            return self.modules[real]
        message = ""
        if not os.path.isfile(path):
            shipped = library_bases.root_of(path, self.sources.get(place.path, ""), place)
            if shipped is not None:
                return shipped
        if real in self.active:
            message = f"the base config {name!r} is based on this one"
        elif len(self.modules) >= MAX_FILES or len(self.active) >= MAX_FILES // 4:
            message = f"more than {MAX_FILES} base configs"
        elif not files.inside(real, files.repository_root(os.path.dirname(place.path))):
            message = f"the base config {name!r} is outside this repository"
        elif not path.endswith((".py", ".yaml", ".yml", ".json")):
            message = f"the base config {name!r} is no config file"
        if not message:
            try:
                if path.endswith(".py"):
                    root = self.drawn_in(path)
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

    def drawn_in(self, path: str) -> Node:
        """Read a file that another one draws in, and keep it for others that do. Raises Unreadable."""
        from memlint.documents.load import read_text

        meter, faults = work.meter(), self.faults.count
        here = Drawn(self.nodes, meter.used, [], [])
        self.drawn.append(here)
        try:
            text = read_text(path)
            root = self.module(path, text)
        finally:
            self.drawn.pop()
        nodes, steps = self.nodes - here.nodes, meter.used - here.steps
        if self.drawn:
            self.drawn[-1].below.append((nodes, steps))
        kept = files.kept("python")
        if kept is not None and self.faults.count == faults:
            own_nodes, own_steps = (total - sum(one) for total, one in zip((nodes, steps), (*zip(*here.below), (), ())))
            kept[path] = Kept(os.path.realpath(path), root, text, own_nodes, own_steps, here.needed)
            if len(kept) > MAX_KEPT:
                del kept[next(iter(kept))]
        return root

    def again(self, path: str, place: Span) -> bool:
        """Take a file, and those that it draws in, as they were read for another one; whether they could be."""
        kept = files.kept("python")
        found = None if kept is None else kept.get(path)
        if kept is None or found is None or found.real in self.active:
            return False
        if not files.inside(found.real, files.repository_root(os.path.dirname(place.path))):
            return False
        if len(self.modules) >= MAX_FILES or len(self.active) >= MAX_FILES // 4:
            return False
        if self.nodes + found.nodes > MAX_NODES:
            return False
        kept[path] = kept.pop(path)  # the last that was asked for
        self.sources[path] = found.text
        self.active.append(found.real)
        try:
            for below, _, where in found.needed:
                if os.path.realpath(below) not in self.modules and not self.again(below, where):
                    return False
        finally:
            self.active.pop()
        self.nodes += found.nodes
        work.meter().spend_again(found.steps, "reading Python")
        if self.drawn:
            self.drawn[-1].below.append((found.nodes, found.steps))
        self.modules[found.real] = found.root
        return True


class Module(ConfigFunctions):
    """One config file, with those that it is laid over (``_base_``) or imports."""

    project: Project

    def __init__(self, project: Project, path: str, text: str) -> None:
        super().__init__(project, path, text)
        self.making = []
        self.configs = {}
        self.bases: Node | None = None

    def run(self, tree: ast.Module) -> Node:
        scope = Scope("", None)
        self.block(tree.body, scope, 0)
        self.make_configs(scope)
        root = Node(scope.names, cover(self.path, scope.names))
        if self.bases is not None:
            root = merge(self.bases, root, "_delete_")
        return root

    def assign(self, target: ast.expr, value: ast.expr, scope: Scope) -> None:
        if isinstance(target, ast.Name) and target.id == _BASE and scope.parent is None:
            self.inherit(value, scope)
        else:
            super().assign(target, value, scope)

    def locate(self, node: ast.expr, scope: Scope, depth: int = 0) -> Node | None:
        if isinstance(node, ast.Name) and node.id == _BASE and self.bases is not None and depth <= MAX_DEPTH:
            return self.bases
        return super().locate(node, scope, depth)

    def composed(self, node: ast.expr, keys: Keys, scope: Scope, depth: int) -> Node:
        template = _mmcv_reference(node)
        if template is not None:
            return self.value(template, keys, scope, depth + 1)
        return super().composed(node, keys, scope, depth)

    def inherit(self, value: ast.expr, scope: Scope) -> None:
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

    def imports(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        root = self.imported_file(node) if isinstance(node, ast.ImportFrom) and node.level else None
        found = root.value if root is not None and isinstance(root.value, dict) else {}
        for alias in node.names:
            if alias.name == "*":
                scope.names.update(self.named(found, scope.keys))
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
