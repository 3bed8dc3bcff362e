"""Expressions of a repository's own model."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any

from memlint import work
from memlint.meta import functional as F
from memlint.meta.tensor import Tensor, int64
from memlint.models import UnknownModel
from memlint.models.own import library, values
from memlint.models.own.attributes import Library
from memlint.models.own.objects import Bound, Function, Modules, Scope, Strange
from memlint.models.program_operations import OPERATIONS

# Of tensors: the operation, "" for those of whole numbers.
_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.Pow: "pow",
    ast.MatMult: "matmul",
    **dict.fromkeys((ast.FloorDiv, ast.Mod, ast.BitAnd, ast.BitOr, ast.LShift, ast.RShift), ""),
}
_IN_PLACE = {ast.Add: "add_", ast.Mult: "mul_", ast.Div: "div_"}


class Expressions:
    """``find``, ``called`` and ``attribute`` are the interpreter's."""

    def value(self: Any, node: ast.expr, scope: Scope) -> Any:
        work.spend(1, "following a repository's own model")
        rule = _EXPRESSIONS.get(type(node))
        if rule is None:
            raise self.strange(node, f"{type(node).__name__} is not followed")
        return rule(self, node, scope)

    def truth(self: Any, node: ast.expr, scope: Scope) -> bool:
        value = self.value(node, scope)
        if isinstance(value, (Tensor, Strange)):
            raise self.strange(node, "a condition on what only running knows")
        return bool(value)

    def items(self: Any, value: Any, node: ast.AST) -> list[Any]:
        if isinstance(value, Tensor):
            return list(F.unbind(value, 0))
        if isinstance(value, Strange):
            raise self.strange(node, value.why)
        return self.plainly(node, values.items, value)  # type: ignore[no-any-return]

    def plainly(self: Any, node: ast.AST, function: Callable[..., Any], *given: Any) -> Any:
        """What a function of :mod:`memlint.models.own.values` makes of them, or why it does not, with its line."""
        try:
            return function(*given)
        except UnknownModel as error:
            raise self.strange(node, str(error)) from None
        except (TypeError, ValueError, AttributeError, IndexError, KeyError, ArithmeticError) as error:
            raise self.strange(node, str(error)) from None

    # ------------------------------------------------------------------------------------------ plain ones

    def constant(self: Any, node: ast.Constant, scope: Scope) -> Any:
        return node.value

    def name(self: Any, node: ast.Name, scope: Scope) -> Any:
        found = scope.find(node.id)
        if isinstance(found, Strange) and node.id in self.builtins:
            return self.builtins[node.id]
        return found

    def list_of(self: Any, node: ast.List | ast.Tuple | ast.Set, scope: Scope) -> Any:
        found: list[Any] = []
        for one in node.elts:
            if isinstance(one, ast.Starred):
                found += self.items(self.value(one.value, scope), one)
            else:
                found.append(self.value(one, scope))
        return tuple(found) if isinstance(node, ast.Tuple) else found

    def mapping(self: Any, node: ast.Dict, scope: Scope) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values):
            if key is None:
                found.update(self.plainly(node, values.PLAIN["dict"], self.value(value, scope)))
            else:
                found[self.plainly(node, values.key, self.value(key, scope))] = self.value(value, scope)
        return found

    def text(self: Any, node: ast.JoinedStr, scope: Scope) -> str:
        parts = []
        for one in node.values:
            if isinstance(one, ast.FormattedValue):
                parts.append(self.plainly(node, values.text, self.value(one.value, scope)))
            elif isinstance(one, ast.Constant):
                parts.append(str(one.value))
        return self.plainly(node, values.METHODS[str]["join"], "", parts)  # type: ignore[no-any-return]

    def lambda_of(self: Any, node: ast.Lambda, scope: Scope) -> Function:
        return Function(node, scope)

    def either(self: Any, node: ast.IfExp, scope: Scope) -> Any:
        return self.value(node.body if self.truth(node.test, scope) else node.orelse, scope)

    def joined(self: Any, node: ast.BoolOp, scope: Scope) -> Any:
        wanted = isinstance(node.op, ast.Or)
        value: Any = None
        for one in node.values:
            value = self.value(one, scope)
            if isinstance(value, (Tensor, Strange)):
                raise self.strange(one, "a condition on what only running knows")
            if bool(value) is wanted:
                return value
        return value

    def walrus(self: Any, node: ast.NamedExpr, scope: Scope) -> Any:
        value = self.value(node.value, scope)
        self.bind(node.target, value, scope)
        return value

    # ------------------------------------------------------------------------------------------ operations

    def operation(self: Any, node: ast.BinOp, scope: Scope) -> Any:
        return self.combined(node, self.value(node.left, scope), self.value(node.right, scope))

    def combined(self: Any, node: ast.BinOp | ast.AugAssign, left: Any, right: Any) -> Any:
        for one in (left, right):
            if isinstance(one, Strange):
                raise self.strange(node, one.why)
        name = _OPERATORS.get(type(node.op))
        if name is None:
            raise self.strange(node, f"{type(node.op).__name__} is not followed")
        if not isinstance(left, Tensor) and not isinstance(right, Tensor):
            return self.plainly(node, values.combined, node.op, left, right)
        return values.dimensioned(self.of_tensors(name, left, right))

    def of_tensors(self: Any, name: str, left: Any, right: Any) -> Tensor:
        values.sized((left, right))
        if name == "sub" and not isinstance(left, Tensor):
            return F.rsub(right, left)
        if name == "div" and not isinstance(left, Tensor):  # torch/_tensor.py, __rtruediv__: reciprocal, times
            return F.mul(F.pow(right, -1), left)
        if name == "pow" and not isinstance(left, Tensor):
            return library.plain("a power", right)
        if name == "matmul":
            return F.matmul(left, right)
        if not name:
            return library.plain("an operation on whole numbers", left, right)
        return OPERATIONS[name](left, right)  # type: ignore[no-any-return]

    def in_place(self: Any, node: ast.AugAssign, left: Any, right: Any) -> Any:
        """``x += y`` writes over x, whose storage it stays."""
        name = _IN_PLACE.get(type(node.op))
        if not isinstance(left, Tensor) or name is None:
            return self.combined(node, left, right)
        if name == "mul_":
            return F.mul_(left, right)
        return OPERATIONS[name](left, right)

    def turned(self: Any, node: ast.UnaryOp, scope: Scope) -> Any:
        value = self.value(node.operand, scope)
        if isinstance(value, Strange):
            raise self.strange(node, value.why)
        if isinstance(node.op, ast.Not):
            if isinstance(value, Tensor):
                raise self.strange(node, "a condition on what only running knows")
            return not value
        if isinstance(node.op, ast.Invert):
            if isinstance(value, Tensor):
                return library.compared(value)
        elif isinstance(value, Tensor):
            return value if isinstance(node.op, ast.UAdd) else F.neg(value)
        return self.plainly(node, values.turned, node.op, value)

    def compared(self: Any, node: ast.Compare, scope: Scope) -> Any:
        left = self.value(node.left, scope)
        for kind, one in zip(node.ops, node.comparators):
            right = self.value(one, scope)
            asks_which = isinstance(kind, (ast.Is, ast.IsNot))
            for operand in (left, right):
                if isinstance(operand, Strange):
                    raise self.strange(node, operand.why)
            if not asks_which and (isinstance(left, Tensor) or isinstance(right, Tensor)):
                return library.compared(left, right)
            if not self.plainly(node, values.compared, kind, left, right):
                return False
            left = right
        return True

    # ------------------------------------------------------------------------------------------ parts and calls

    def attribute_of(self: Any, node: ast.Attribute, scope: Scope) -> Any:
        return self.attribute(self.value(node.value, scope), node.attr, node)

    def slice(self: Any, node: ast.Slice, scope: Scope) -> slice:
        return slice(*(None if one is None else self.value(one, scope) for one in (node.lower, node.upper, node.step)))

    def item(self: Any, node: ast.Subscript, scope: Scope) -> Any:
        owner, key = self.value(node.value, scope), self.value(node.slice, scope)
        if isinstance(owner, Strange):
            return owner  # Optional[int], or what nobody knows
        if isinstance(owner, Tensor):
            return self.part(node, owner, key)
        if isinstance(owner, Modules):
            if isinstance(key, str) and key in owner.names:
                return owner.layers[owner.names.index(key)]
            return Modules(owner.layers[key], owner.chained) if isinstance(key, slice) else owner.layers[key]
        return self.plainly(node, values.item, owner, key)

    def part(self: Any, node: ast.AST, owner: Tensor, key: Any) -> Tensor:
        keys = list(key) if isinstance(key, tuple) else [key]
        if any(isinstance(one, (bool, str, Strange)) for one in keys):
            raise self.strange(node, "such an index is not followed")
        lists = [one for one in keys if isinstance(one, list)]
        if len(lists) > 1 or any(type(number) is not int for one in lists for number in one):
            raise self.strange(node, "such a list of indices is not followed")
        # x[:, [-1], :]: the numbers are a tensor on the card, and what they choose is copied.
        keys = [Tensor((len(one),), int64) if isinstance(one, list) else one for one in keys]
        try:
            values.sized(keys)
            return values.dimensioned(OPERATIONS["__getitem__"](owner, keys))  # type: ignore[no-any-return]
        except (IndexError, TypeError, ValueError) as error:
            raise self.strange(node, str(error)) from None

    def call(self: Any, node: ast.Call, scope: Scope) -> Any:
        if isinstance(node.func, ast.Name) and node.func.id == "super":
            return self.above(node, scope)
        if isinstance(node.func, ast.Name) and node.func.id == "print":
            return None
        function = self.value(node.func, scope)
        if isinstance(function, Library) and function.dotted.startswith(library.PASSED):
            return None
        if isinstance(function, Bound) and function.function is self.passed:
            return function.owner
        args: list[Any] = []
        for one in node.args:
            if isinstance(one, ast.Starred):
                args += self.items(self.value(one.value, scope), one)
            else:
                args.append(self.value(one, scope))
        named: dict[str, Any] = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                named.update(self.value(keyword.value, scope))
            else:
                named[keyword.arg] = self.value(keyword.value, scope)
        return self.called(function, args, named, node)

    # ------------------------------------------------------------------------------------------ comprehensions

    def listed(self: Any, node: ast.ListComp | ast.GeneratorExp | ast.SetComp, scope: Scope) -> list[Any]:
        return [self.value(node.elt, inner) for inner in self.turns(node.generators, Scope(scope))]

    def mapped(self: Any, node: ast.DictComp, scope: Scope) -> dict[Any, Any]:
        inner_scopes = self.turns(node.generators, Scope(scope))
        return {
            self.plainly(node, values.key, self.value(node.key, inner)): self.value(node.value, inner)
            for inner in inner_scopes
        }

    def turns(self: Any, generators: list[ast.comprehension], scope: Scope) -> Iterator[Scope]:
        first, *rest = generators
        for item in self.items(self.value(first.iter, scope), first.iter):
            self.bind(first.target, item, scope)
            if not all(self.truth(one, scope) for one in first.ifs):
                continue
            if rest:
                yield from self.turns(rest, scope)
            else:
                yield scope


_EXPRESSIONS: dict[type[ast.expr], Any] = {
    ast.Constant: Expressions.constant,
    ast.Name: Expressions.name,
    ast.List: Expressions.list_of,
    ast.Tuple: Expressions.list_of,
    ast.Set: Expressions.list_of,
    ast.Dict: Expressions.mapping,
    ast.JoinedStr: Expressions.text,
    ast.Lambda: Expressions.lambda_of,
    ast.IfExp: Expressions.either,
    ast.BoolOp: Expressions.joined,
    ast.NamedExpr: Expressions.walrus,
    ast.BinOp: Expressions.operation,
    ast.UnaryOp: Expressions.turned,
    ast.Compare: Expressions.compared,
    ast.Attribute: Expressions.attribute_of,
    ast.Slice: Expressions.slice,
    ast.Subscript: Expressions.item,
    ast.Call: Expressions.call,
    ast.ListComp: Expressions.listed,
    ast.GeneratorExp: Expressions.listed,
    ast.SetComp: Expressions.listed,
    ast.DictComp: Expressions.mapped,
}
