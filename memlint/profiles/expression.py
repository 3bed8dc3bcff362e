"""Formulas of a profile: parsed and evaluated here, never handed to Python.

The language is arithmetic over named integers: ``+ - * / // % **``, ``min max floor ceil trunc``, and for guards the
comparisons ``== != < <= > >=`` with ``and or not``. ``//`` and ``%`` round down and ``/`` makes a float, as in Python.
Names stand for the dimensions of a recording. Text, nesting and results are bounded, so that a hostile file costs
nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from memlint import work
from memlint.named_tuple import NamedTuple

MAX_TEXT = 20_000
MAX_DEPTH = 40
MAX_OPERATIONS = 400
MAX_BITS = 256
MAX_FACTORS = 64

Number = int | float | bool


class ExpressionError(ValueError):
    """A formula that is not one, or has no value; the message says what is wrong with it."""


_TOKEN = re.compile(
    r"\s*(?:(\d+\.\d*(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+|\d+)|([A-Za-z_]\w*)|(\*\*|//|[<>=!]=|[-+*/%()<>,]))",
    re.ASCII,
)
_COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
_WORDS = ("and", "or", "not")
_LEFT = ("+", "-", "*", "/", "//", "%")  # what binds to the left
FUNCTIONS = ("min", "max", "floor", "ceil", "trunc")

# A node is ("number", value), ("name", text) or (operator, operand, ...).
Tree = tuple[Any, ...]


class Expression(NamedTuple):
    """A parsed formula. ``names`` are the dimensions that it depends on."""

    text: str
    tree: Tree
    names: frozenset[str]

    def value(self, dimensions: Mapping[str, int]) -> Number:
        """Its value. Raises ExpressionError where there is none (division by zero, a name without a value)."""
        work.spend(1 + len(self.text) // 2, "working out a formula")
        try:
            return _value(self.tree, dimensions)
        except OverflowError:  # a whole number beyond what a float holds
            raise ExpressionError(f"{shown(self.text)} is too large") from None

    def size(self, dimensions: Mapping[str, int]) -> int:
        """Its value as bytes or a count. Raises ExpressionError unless it is a whole number of at least 0."""
        value = self.value(dimensions)
        if isinstance(value, (bool, float)) or value < 0:
            raise ExpressionError(f"{shown(self.text)} is {value}, which is no size")
        _bounded(value.bit_length())
        return value

    def factors(self) -> list[str]:
        """The factors of a product, powers written out: ``12*B*(H//16)**2`` gives 12, B, (H//16), (H//16). What has
        more than ``MAX_FACTORS`` is one."""
        found = _factors(self.tree, MAX_FACTORS)
        return [_text(self.tree)] if found is None else found


def parse(text: str) -> Expression:
    """A formula from its text. Raises ExpressionError."""
    if len(text) > MAX_TEXT:
        raise ExpressionError(f"a formula of more than {MAX_TEXT:,} characters")
    parser = _Parser(text)
    tree = parser.any(0)
    if parser.kind != "end":
        raise ExpressionError(f"{shown(text)}: {parser.token!r} is not expected there")
    return Expression(text, tree, frozenset(parser.names))


def shown(text: str, width: int = 80) -> str:
    return repr(text if len(text) <= width else text[: width - 3] + "...")


class _Parser:
    """Recursive descent, one token ahead."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.left = 2 * MAX_OPERATIONS  # tokens: about two to an operation
        self.names: set[str] = set()
        self.kind = self.token = ""
        self.next()

    def next(self) -> str:
        """Step on; returns the token that was current."""
        before = self.token
        self.left -= 1
        if self.left < 0:
            raise ExpressionError(f"{shown(self.text)}: more than {MAX_OPERATIONS} operations")
        match = _TOKEN.match(self.text, self.at)
        if match is None:
            rest = self.text[self.at :].strip()
            if rest:
                raise ExpressionError(f"{shown(self.text)}: {rest[:1]!r} is not part of a formula")
            self.kind, self.token = "end", "the end"
            return before
        self.at = match.end()
        number, name, mark = match.groups()
        if name:
            self.kind, self.token = ("mark" if name in _WORDS else "name"), name
        elif number:
            self.kind, self.token = "number", number
        else:
            self.kind, self.token = "mark", mark
        return before

    def accept(self, *marks: str) -> str:
        return self.next() if self.kind == "mark" and self.token in marks else ""

    def expect(self, mark: str) -> None:
        if not self.accept(mark):
            raise ExpressionError(f"{shown(self.text)}: {mark!r} is expected where {self.token!r} stands")

    def any(self, depth: int) -> Tree:
        if depth > MAX_DEPTH:
            raise ExpressionError(f"{shown(self.text)}: nested more than {MAX_DEPTH} deep")
        return self.joined("or", depth)

    def joined(self, word: str, depth: int) -> Tree:
        def operand() -> Tree:
            return self.joined("and", depth) if word == "or" else self.negation(depth)

        found = [operand()]
        while self.accept(word):
            found.append(operand())
        return found[0] if len(found) == 1 else (word, *found)

    def negation(self, depth: int) -> Tree:
        if depth > MAX_DEPTH:
            raise ExpressionError(f"{shown(self.text)}: nested more than {MAX_DEPTH} deep")
        if self.accept("not"):
            return ("not", self.negation(depth + 1))
        left = self.sum(depth)
        operator = self.accept(*_COMPARISONS)
        return (operator, left, self.sum(depth)) if operator else left

    def sum(self, depth: int) -> Tree:
        left = self.product(depth)
        while operator := self.accept("+", "-"):
            left = (operator, left, self.product(depth))
        return left

    def product(self, depth: int) -> Tree:
        left = self.signed(depth)
        while operator := self.accept("*", "/", "//", "%"):
            left = (operator, left, self.signed(depth))
        return left

    def signed(self, depth: int) -> Tree:
        if depth > MAX_DEPTH:
            raise ExpressionError(f"{shown(self.text)}: nested more than {MAX_DEPTH} deep")
        if self.accept("-"):
            return ("negative", self.signed(depth + 1))
        base = self.atom(depth)
        return ("**", base, self.signed(depth + 1)) if self.accept("**") else base

    def atom(self, depth: int) -> Tree:
        if self.accept("("):
            inner = self.any(depth + 1)
            self.expect(")")
            return inner
        if self.kind == "number":
            if len(self.token) > MAX_BITS:
                raise ExpressionError(f"{shown(self.text)}: a number of more than {MAX_BITS} digits")
            token = self.next()
            return ("number", int(token) if token.isdigit() else float(token))
        if self.kind == "name":
            name = self.next()
            if not self.accept("("):
                self.names.add(name)
                return ("name", name)
            if name not in FUNCTIONS:
                raise ExpressionError(f"{shown(self.text)}: there is no function {name!r}")
            arguments = [self.any(depth + 1)]
            while self.accept(","):
                arguments.append(self.any(depth + 1))
            self.expect(")")
            if name not in ("min", "max") and len(arguments) > 1:
                raise ExpressionError(f"{shown(self.text)}: {name} takes one argument")
            return (name, *arguments)
        raise ExpressionError(f"{shown(self.text)}: a number or a name is expected where {self.token!r} stands")


def _value(tree: Tree, dimensions: Mapping[str, int]) -> Number:
    # A long sum leans to the left as deep as it has terms: its spine is walked, not recursed into.
    spine = []
    while tree[0] in _LEFT:
        spine.append(tree)
        tree = tree[1]
    value = _leaf(tree, dimensions)
    for operator, _, right in reversed(spine):
        value = _binary(operator, value, _value(right, dimensions))
    return value


def _leaf(tree: Tree, dimensions: Mapping[str, int]) -> Number:
    operator = tree[0]
    if operator == "number":
        number: Number = tree[1]
        return number
    if operator == "name":
        if tree[1] not in dimensions:
            raise ExpressionError(f"{tree[1]} has no value")
        return dimensions[tree[1]]
    if operator == "and":
        return all(_value(part, dimensions) for part in tree[1:])
    if operator == "or":
        return any(_value(part, dimensions) for part in tree[1:])
    if operator == "not":
        return not _value(tree[1], dimensions)
    if operator == "min":
        return min(_value(part, dimensions) for part in tree[1:])
    if operator == "max":
        return max(_value(part, dimensions) for part in tree[1:])
    first = _value(tree[1], dimensions)
    if operator == "negative":
        return -first
    if operator in ("floor", "ceil", "trunc"):
        if not math.isfinite(first):
            raise ExpressionError(f"{operator} of {first}")
        rounded: int = getattr(math, operator)(first)
        return rounded
    second = _value(tree[2], dimensions)
    if operator == "**":
        return _power(first, second)
    return _compare(operator, first, second)


def _compare(operator: str, first: Number, second: Number) -> bool:
    if operator == "==":
        return first == second
    if operator == "!=":
        return first != second
    if operator == "<":
        return first < second
    if operator == "<=":
        return first <= second
    if operator == ">":
        return first > second
    return first >= second


def _binary(operator: str, first: Number, second: Number) -> Number:
    if operator == "*":
        if isinstance(first, int) and isinstance(second, int):
            _bounded(first.bit_length() + second.bit_length())
        return first * second
    if operator == "+":
        return first + second
    if operator == "-":
        return first - second
    if not second:
        raise ExpressionError(f"{first} {operator} 0")
    if operator == "//":
        return first // second
    return first % second if operator == "%" else first / second


def _power(base: Number, exponent: Number) -> Number:
    if not isinstance(exponent, int) or exponent < 0:
        raise ExpressionError(f"the exponent {exponent} is not a whole number of at least 0")
    if isinstance(base, int):
        _bounded(base.bit_length() * exponent)
    elif exponent > MAX_BITS:
        _bounded(exponent)
    try:
        result: Number = base**exponent
    except OverflowError:
        raise ExpressionError(f"{base} ** {exponent} is too large") from None
    return result


def _bounded(bits: int) -> None:
    if bits > MAX_BITS:
        raise ExpressionError(f"a number of more than {MAX_BITS} bits")


# -- factors ---------------------------------------------------------------------------------------------------------


def _factors(tree: Tree, most: int) -> list[str] | None:
    """None where there are more than ``most``."""
    found: list[str] = []
    while tree[0] == "*":
        last = _factors(tree[2], most)
        found = [*(last or ()), *found]
        if last is None or len(found) > most:
            return None
        tree = tree[1]
    if tree[0] == "**" and tree[2][0] == "number" and isinstance(tree[2][1], int) and 1 <= tree[2][1] <= 8:
        base = _factors(tree[1], most)
        first = None if base is None else base * tree[2][1]
    else:
        first = [_text(tree)]
    return None if first is None or len(first) + len(found) > most else first + found


def _text(tree: Tree) -> str:
    """A tree as text, with a bracket around every operation but the calls."""
    operator = tree[0]
    if operator in ("number", "name"):
        return str(tree[1])
    if operator in FUNCTIONS:
        return f"{operator}({', '.join(_bare(part) for part in tree[1:])})"
    return f"({_bare(tree)})"


def _bare(tree: Tree) -> str:
    operator = tree[0]
    if operator in ("number", "name") or operator in FUNCTIONS:
        return _text(tree)
    if operator == "negative":
        return "-" + _text(tree[1])
    if operator == "not":
        return "not " + _text(tree[1])
    if operator not in _LEFT:
        between = operator if operator == "**" else f" {operator} "
        return between.join(_text(part) for part in tree[1:])
    # As in _value: the spine of a long sum is walked.
    spine = [tree]
    while spine[-1][1][0] in _LEFT:
        spine.append(spine[-1][1])
    text = _text(spine[-1][1])
    before = ""
    for operator, _, right in reversed(spine):
        if before and not (operator == before and operator in ("+", "*")):
            text = f"({text})"
        text += f"{operator}{_text(right)}"
        before = operator
    return text
