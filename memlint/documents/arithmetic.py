"""Operators on known values, with bounds on what they may produce: used where a config computes its numbers.

Every function returns a value or raises :class:`Unknown` with the reason; none runs code of the config.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

from memlint import work
from memlint.documents.node import TOO_LONG, too_long
from memlint.documents.unknown import Unknown as Unknown

MAX_BITS = 996  # of a number of node.MAX_DIGITS digits
MAX_TEXT = 10_000
_PARSE = 100  # steps that Python's parser takes for an expression

Known = str | int | float | bool | None


_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_BITWISE: dict[type, Callable[[Any, Any], Any]] = {
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}
_COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
_UNARY: dict[type, Callable[[Any], Any]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Invert: operator.invert,
    ast.Not: operator.not_,
}


def binary(kind: ast.operator, left: Known, right: Known) -> Known:
    """``left kind right`` for numbers, and ``+`` and ``*`` for text."""
    operation = type(kind)
    if isinstance(left, str) or isinstance(right, str):
        if operation is ast.Add and isinstance(left, str) and isinstance(right, str):
            size = len(left) + len(right)
        elif operation is ast.Mult and isinstance(left, (str, int)) and isinstance(right, (str, int)):
            if isinstance(left, str) and isinstance(right, str):
                raise Unknown("text times text")
            size = len(left) * int(right) if isinstance(left, str) else int(left) * len(str(right))
        else:
            raise Unknown("an operation on text that is not followed")
        if size > MAX_TEXT:
            raise Unknown(f"text of more than {MAX_TEXT:,} characters")
        if size <= 0:  # Python refuses to count so many times, though nothing comes of them
            return ""
        work.spend(size >> 3, "putting text together")  # for the memory that it takes
        text: str = _ARITHMETIC[operation](left, right)
        return text
    function = _ARITHMETIC.get(operation) or _BITWISE.get(operation)
    if function is None or not isinstance(left, (int, float)) or not isinstance(right, (int, float)):
        raise Unknown("an operation that is not followed")
    if operation in (ast.Pow, ast.Mult, ast.LShift) and isinstance(left, int) and isinstance(right, int):
        bits = {
            ast.Pow: left.bit_length() * max(right, 0),
            ast.Mult: left.bit_length() + right.bit_length(),
            ast.LShift: left.bit_length() + max(right, 0),
        }[operation]
        if bits > MAX_BITS or (operation is ast.Pow and right < -MAX_BITS):
            raise Unknown("a number without practical bound")
    try:
        result = function(left, right)
    except (ArithmeticError, TypeError, ValueError) as error:
        raise Unknown(f"{error}") from None
    if not isinstance(result, (int, float)):
        raise Unknown("a complex number")
    if too_long(result):
        raise Unknown(TOO_LONG)
    return result


def unary(kind: ast.unaryop, operand: Known) -> Known:
    if not isinstance(kind, ast.Not) and not isinstance(operand, (int, float)):
        raise Unknown("an operation that is not followed")
    try:
        result: Known = _UNARY[type(kind)](operand)
    except TypeError as error:
        raise Unknown(f"{error}") from None
    return result


def compare(kind: ast.cmpop, left: Known, right: Known) -> bool:
    function = _COMPARE.get(type(kind))
    if function is None:
        raise Unknown("a comparison that is not followed")
    if type(kind) in (ast.Is, ast.IsNot) and not any(v is None or isinstance(v, bool) for v in (left, right)):
        raise Unknown("an identity that is not followed")
    try:
        return bool(function(left, right))
    except TypeError as error:
        raise Unknown(f"{error}") from None


def evaluate(text: str) -> Known:
    """The value of a Python expression made of numbers, ``+ - * / // % **`` and parentheses only."""
    if len(text) > 200:
        raise Unknown("an expression of more than 200 characters")
    work.spend(_PARSE, "computing an expression")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise Unknown("not plain arithmetic") from None
    return _evaluate(tree.body)


def _evaluate(node: ast.expr) -> Known:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        return unary(node.op, _evaluate(node.operand))
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        return binary(node.op, _evaluate(node.left), _evaluate(node.right))
    raise Unknown("not plain arithmetic")
