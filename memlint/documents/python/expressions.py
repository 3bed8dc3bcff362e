"""What an expression of a Python config comes to, as far as that is known without running it.

Literals, arithmetic, names, attributes and items of values, conditions whose test is known, text that is put together.
Everything else is :class:`Unresolved`, with its reason.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from memlint.documents.arithmetic import Known, Unknown, binary, compare, unary
from memlint.documents.node import TOO_LONG, Fault, Keys, Node, Span, Unresolved, shown, too_long
from memlint.documents.python.scope import Scope
from memlint.documents.python.source import MAX_DEPTH, Source

MAX_ITEMS = 10_000

MAX_TEXT = 10_000

_NOT_FOLLOWED = {
    "Lambda": "a function",
    "ListComp": "a comprehension",
    "SetComp": "a comprehension",
    "DictComp": "a comprehension",
    "GeneratorExp": "a comprehension",
    "Await": "awaits",
}


class Expressions(Source):
    def call(self, node: ast.Call, keys: Keys, scope: Scope, depth: int) -> Node:
        """What a call comes to. Raises Unknown."""
        raise NotImplementedError

    def bind(self, target: ast.expr, node: Node, scope: Scope) -> None:
        """Give a value to what stands left of an assignment."""
        raise NotImplementedError

    def known(self, node: ast.expr, scope: Scope) -> Known:
        """The scalar that an expression comes to, or :class:`Unknown`."""
        value = self.value(node, "", scope, 0).value
        if isinstance(value, Unresolved):
            raise Unknown(value.reason)
        if isinstance(value, (dict, list)):
            raise Unknown("a container")
        return value

    def value(self, node: ast.expr, keys: Keys, scope: Scope, depth: int) -> Node:
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

    def composed(self, node: ast.expr, keys: Keys, scope: Scope, depth: int) -> Node:
        below = depth + 1
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
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
            result = unary(node.op, scalar(operand) if not operand.is_list else bool(operand.value))
        elif isinstance(node, ast.BoolOp):
            for item in node.values:
                truth, last = self.truth(item, keys, scope, below)
                if truth is isinstance(node.op, ast.Or):
                    break
            return last
        elif isinstance(node, ast.Compare):
            result = self.comparison(node, scope, below)
        elif isinstance(node, ast.IfExp):
            truth, _ = self.truth(node.test, "", scope, below)
            return self.value(node.body if truth else node.orelse, keys, scope, below)
        elif isinstance(node, ast.JoinedStr):
            result = self.formatted(node, scope, below)
        elif isinstance(node, ast.NamedExpr):
            self.bind(node.target, self.value(node.value, "", scope, below), scope)
            return self.value(node.value, keys, scope, below)
        else:
            raise Unknown(_NOT_FOLLOWED.get(type(node).__name__, "an expression that only running can evaluate"))
        return Node(result, self.span(node), None, keys)

    def truth(self, node: ast.expr, keys: Keys, scope: Scope, depth: int) -> tuple[bool, Node]:
        """Whether a value counts as true, and the value."""
        value = self.value(node, keys, scope, depth)
        return bool(value.value) if isinstance(value.value, (dict, list)) else bool(scalar(value)), value

    def items(self, elements: Sequence[ast.expr], node: ast.expr, keys: Keys, scope: Scope, depth: int) -> Node:
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

    def dictionary(self, node: ast.Dict, keys: Keys, scope: Scope, depth: int) -> Node:
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
                name = str(scalar(named))
            key_span = self.span(key)
            if name in written:
                message = f"{shown(name)!r} is written twice in this dict: this one wins over line {written[name].line}"
                self.project.faults.append(Fault("MEM006", message, key_span, (written[name],)))
            written[name] = key_span
            child = self.value(item, (keys, name), scope, depth)
            child.key_span = key_span
            children[name] = child
        return Node(children, self.span(node), None, keys)

    def unpack(self, children: dict[str, Node], node: ast.expr, keys: Keys, scope: Scope, depth: int) -> None:
        more = self.value(node, "", scope, depth)
        if not isinstance(more.value, dict):
            raise Unknown("unpacks what is only known when it runs")
        children.update(self.named(more.value, keys))

    def operation(self, node: ast.BinOp, keys: Keys, scope: Scope, depth: int) -> Node:
        left = self.value(node.left, "", scope, depth)
        right = self.value(node.right, "", scope, depth)
        if isinstance(node.op, ast.Add) and isinstance(left.value, list) and isinstance(right.value, list):
            items = [*left.value, *right.value]
        elif isinstance(node.op, ast.Mult) and isinstance(left.value, list) and isinstance(right.value, int):
            items = left.value * self.repeats(len(left.value), right.value)
        elif isinstance(node.op, ast.Mult) and isinstance(right.value, list) and isinstance(left.value, int):
            items = right.value * self.repeats(len(right.value), left.value)
        elif isinstance(node.op, ast.BitOr) and isinstance(left.value, dict) and isinstance(right.value, dict):
            return Node(self.named({**left.value, **right.value}, keys), self.span(node), None, keys)
        else:
            return Node(binary(node.op, scalar(left), scalar(right)), self.span(node), None, keys)
        return Node(self.placed(items, keys), self.span(node), None, keys)

    def repeats(self, length: int, times: int) -> int:
        """How often, where it makes a difference: Python refuses to count to more than an index, also over nothing."""
        if length * max(times, 0) > MAX_ITEMS:
            raise Unknown(f"a list of more than {MAX_ITEMS:,} items")
        return max(times, 0) if length else 0

    def comparison(self, node: ast.Compare, scope: Scope, depth: int) -> bool:
        left = self.value(node.left, "", scope, depth)
        for kind, item in zip(node.ops, node.comparators):
            right = self.value(item, "", scope, depth)
            if isinstance(kind, (ast.In, ast.NotIn)):
                if is_in(scalar(left), right) is isinstance(kind, ast.NotIn):
                    return False
            elif isinstance(kind, (ast.Is, ast.IsNot)) and _is_none_and_a_container(left, right):
                if isinstance(kind, ast.Is):
                    return False
            elif not compare(kind, scalar(left), scalar(right)):
                return False
            left = right
        return True

    def formatted(self, node: ast.JoinedStr, scope: Scope, depth: int) -> str:
        parts: list[str] = []
        for part in node.values:
            if isinstance(part, ast.Constant):
                parts.append(str(part.value))
                continue
            assert isinstance(part, ast.FormattedValue)
            value = scalar(self.value(part.value, "", scope, depth))
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

    def locate(self, node: ast.expr, scope: Scope, depth: int = 0) -> Node | None:
        """The node itself (not a copy) that a name, attribute or item means, if it is known."""
        if depth > MAX_DEPTH:
            return None
        if isinstance(node, ast.Name):
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
            if isinstance(owner.value, list) and holds(owner.value, index):
                assert isinstance(index, int)
                return owner.value[index]
        return None

    def reference(self, node: ast.expr, keys: Keys, scope: Scope, depth: int) -> Node:
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

    def sliced(self, node: ast.Subscript, keys: Keys, scope: Scope, depth: int) -> Node:
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
            return Node(self.placed(part, keys), self.span(node), None, keys)
        return Node(self.unresolved("a slice that is not followed", node), self.span(node), None, keys)


def is_in(member: Known, container: Node) -> bool:
    """Whether a value is in another one. Raises Unknown."""
    if isinstance(container.value, dict):
        return member in container.value
    if isinstance(container.value, list):
        return any(scalar(other) == member for other in container.value)
    if isinstance(container.value, str) and isinstance(member, str):
        return member in container.value
    raise Unknown("a comparison that is not followed")


def holds(items: list[Node], index: object) -> bool:
    return isinstance(index, int) and -len(items) <= index < len(items)


def scalar(node: Node) -> Known:
    value = node.value
    if isinstance(value, Unresolved):
        raise Unknown(value.reason)
    if isinstance(value, (dict, list)):
        raise Unknown("an operation on a container")
    return value


def _is_none_and_a_container(left: Node, right: Node) -> bool:
    """Whether one of two values is None, and the other a list or a mapping that is written: what a call makes may be
    None as well."""
    held = [node.value for node in (left, right) if node.value is not None]
    return len(held) == 1 and (isinstance(held[0], list) or (isinstance(held[0], dict) and "_target_" not in held[0]))
