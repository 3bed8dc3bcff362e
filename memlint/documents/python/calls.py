"""Calls in a Python config whose result is known: makers of mappings and lists, classes of its own, plain functions."""

from __future__ import annotations

import ast
from typing import Any

from memlint.documents.arithmetic import Unknown, binary
from memlint.documents.node import TOO_LONG, Keys, Node, too_long
from memlint.documents.python.expressions import MAX_ITEMS, Expressions, scalar
from memlint.documents.python.scope import Scope

# Each makes a mapping of its keyword arguments.
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

_SEQUENCES = ("list", "tuple", "set", "len", "sum", "range")
# A dataclass's field with its default: the standard library's, and transformers' for options (hf_argparser.py).
FIELDS = ("field", "HfArg")
_BUILTINS: dict[str, Any] = {one.__name__: one for one in (int, float, str, bool, abs, round, min, max)}


class Calls(Expressions):
    def unfamiliar(self, node: ast.Call, name: str, local: bool, keys: Keys, scope: Scope, depth: int) -> Node:
        """What a call of anything else is; ``local`` where the file has a function of that name."""
        raise Unknown(f"calls {self.source(node.func)[:60]}()")

    def call(self, node: ast.Call, keys: Keys, scope: Scope, depth: int) -> Node:
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
                if name in _SEQUENCES:
                    return self.sequence_call(name, node, keys, scope, depth)
                if name in _BUILTINS:
                    return self.builtin_call(name, node, keys, scope, depth)
            if name in FIELDS:
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
        return self.unfamiliar(node, name, local, keys, scope, depth)

    def instance(self, node: ast.Call, keys: Keys, scope: Scope, depth: int) -> Node:
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

    def mapping_call(self, node: ast.Call, keys: Keys, scope: Scope, depth: int) -> Node:
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

    def sequence_call(self, name: str, node: ast.Call, keys: Keys, scope: Scope, depth: int) -> Node:
        if node.keywords or any(isinstance(argument, ast.Starred) for argument in node.args):
            raise Unknown(f"calls {name}() in a way that is not followed")
        place = self.span(node)
        if name == "range":
            numbers = [scalar(self.value(argument, "", scope, depth)) for argument in node.args]
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
                total = binary(ast.Add(), total, scalar(item))
            return Node(total, place, None, keys)
        return Node(argument.value, place, None, keys)

    def builtin_call(self, name: str, node: ast.Call, keys: Keys, scope: Scope, depth: int) -> Node:
        if node.keywords or any(isinstance(argument, ast.Starred) for argument in node.args):
            raise Unknown(f"calls {name}() in a way that is not followed")
        nodes = [self.value(argument, "", scope, depth) for argument in node.args]
        if name in ("min", "max") and len(nodes) == 1 and isinstance(nodes[0].value, list):
            nodes = nodes[0].value
        values = [scalar(item) for item in nodes]
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
