"""Dimensions that remember how they came about, for closed-form sizes.

Only symbolic recordings (``explain``, the JSON report) use them; everywhere else dimensions are plain ints.
"""

from __future__ import annotations

from typing import Any

Symbols = tuple[tuple[str, str], ...]  # (symbol in the formula, name of the fact behind it)

# Nobody reads a formula that is longer, and where each layer's is made of the one before it doubles with every layer.
LONGEST_EXPRESSION = 400


class Dim(int):
    """An int with the expression that gave it, e.g. ``Dim(65)`` for ``(G+1)`` with ``facts == (("G", "groups"),)``."""

    expr: str
    facts: Symbols

    def __new__(cls, value: int, expr: str, facts: Symbols) -> Dim:
        self = super().__new__(cls, value)
        self.expr = expr
        self.facts = facts
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Dim, (int(self), self.expr, self.facts)


def bare(size: int) -> int:
    """A size without its expression."""
    return int(size) if type(size) is Dim else size


def symbol(value: int, name: str, fact: str) -> Dim:
    return Dim(value, name, ((name, fact),))


def _expr(value: int) -> str:
    return value.expr if isinstance(value, Dim) else str(value)


def _facts(left: int, right: int) -> Symbols:
    first = left.facts if isinstance(left, Dim) else ()
    second = right.facts if isinstance(right, Dim) else ()
    return first + tuple(item for item in second if item not in first)


def _additive(text: str) -> str:
    """Parenthesise what ``*`` and ``//`` would otherwise tear apart."""
    depth = 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if depth == 0 and character in "+-/%":
            return f"({text})"
    return text


def _binary(operator: str) -> tuple[Any, Any]:
    plain = {
        "+": int.__add__,
        "-": int.__sub__,
        "*": int.__mul__,
        "//": int.__floordiv__,
        "%": int.__mod__,
    }[operator]

    def build(left: int, right: int) -> Any:
        if not isinstance(left, int) or not isinstance(right, int):
            return NotImplemented
        value = plain(int(left), int(right))
        if operator == "*":
            if left == 1 and not isinstance(left, Dim):
                return right
            if right == 1 and not isinstance(right, Dim):
                return left
            text = f"{_additive(_expr(left))}*{_additive(_expr(right))}"
        elif operator in "+-" and right == 0 and not isinstance(right, Dim):
            return left
        elif operator == "+":
            text = f"{_expr(left)}+{_expr(right)}"
        elif operator == "-":
            subtrahend = _expr(right)
            text = f"{_expr(left)}-{_additive(subtrahend)}"
        elif operator == "//" and right == 1 and not isinstance(right, Dim):
            return left
        else:
            divisor = _expr(right)
            if not divisor.isalnum():
                divisor = f"({divisor})"
            text = f"{_additive(_expr(left))}{operator}{divisor}"
        return Dim(value, text, _facts(left, right)) if len(text) <= LONGEST_EXPRESSION else value

    def forward(self: int, other: int) -> Any:
        return build(self, other)

    def reflected(self: int, other: int) -> Any:
        return build(other, self)

    return forward, reflected


for _name, _operator in (("add", "+"), ("sub", "-"), ("mul", "*"), ("floordiv", "//"), ("mod", "%")):
    _forward, _reflected = _binary(_operator)
    setattr(Dim, f"__{_name}__", _forward)
    setattr(Dim, f"__r{_name}__", _reflected)
