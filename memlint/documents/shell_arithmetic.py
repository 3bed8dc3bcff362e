"""Integer arithmetic of ``$(( ))`` over known values, as bash does it in 64 bits."""

from __future__ import annotations

from collections.abc import Callable

_LEVELS = (
    ("||",),
    ("&&",),
    ("|",),
    ("^",),
    ("&",),
    ("==", "!="),
    ("<=", ">=", "<", ">"),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "%"),
)
_SYMBOLS = ("<<=", ">>=", "**", "<<", ">>", "<=", ">=", "==", "!=", "&&", "||", "++", "--")
_ASSIGNING = frozenset(("=", "+=", "-=", "*=", "/=", "%=", "<<=", ">>=", "&=", "^=", "|=", "++", "--", ","))
_LIMIT = 1 << 63


class Unknown(Exception):
    """The value cannot be known: ``str()`` says why."""


def evaluate(text: str, lookup: Callable[[str], str], depth: int = 0) -> int:
    """The value of an expression; ``lookup`` gives a variable's text. Raises :class:`Unknown`.

    Assignments are not made: they, and anything else beyond plain operators, are unknown.
    """
    if depth > 16:
        raise Unknown("an expression that refers to itself")
    if len(text) > 2000:
        raise Unknown("a long expression")
    parser = _Parser(_tokens(text), lookup, depth)
    if not parser.tokens:
        return 0
    value = parser.ternary()
    if parser.at < len(parser.tokens):
        raise Unknown("an expression that is not plain arithmetic")
    return value


def _tokens(text: str) -> list[str]:
    tokens: list[str] = []
    at = 0
    while at < len(text):
        character = text[at]
        if character.isspace():
            at += 1
        elif character.isalnum() or character == "_":
            end = at
            while end < len(text) and (text[end].isalnum() or text[end] in "_#@"):
                end += 1
            tokens.append(text[at:end])
            at = end
        else:
            symbol = next((one for one in _SYMBOLS if text.startswith(one, at)), "")
            if not symbol:
                symbol = text[at : at + 2] if text[at + 1 : at + 2] == "=" and character in "+-*/%&^|" else character
            tokens.append(symbol)
            at += len(symbol)
    return tokens


class _Parser:
    def __init__(self, tokens: list[str], lookup: Callable[[str], str], depth: int) -> None:
        self.tokens = tokens
        self.lookup = lookup
        self.depth = depth
        self.at = 0
        if _ASSIGNING.intersection(tokens):
            raise Unknown("an assignment inside of an expression")

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, token: str) -> bool:
        if self.peek() == token:
            self.at += 1
            return True
        return False

    def ternary(self, level: int = 0) -> int:
        if level > 60:
            raise Unknown("a deeply nested expression")
        value = self.binary(0, level)
        if self.take("?"):
            yes = self.ternary(level + 1)
            if not self.take(":"):
                raise Unknown("an expression that is not complete")
            no = self.ternary(level + 1)
            return yes if value else no
        return value

    def binary(self, at: int, level: int) -> int:
        if at == len(_LEVELS):
            return self.power(level)
        value = self.binary(at + 1, level)
        while self.peek() in _LEVELS[at]:
            operator = self.tokens[self.at]
            self.at += 1
            value = _apply(operator, value, self.binary(at + 1, level))
        return value

    def power(self, level: int) -> int:
        value = self.unary(level)
        if self.take("**"):
            exponent = self.power(level + 1)
            if not 0 <= exponent <= 63:
                raise Unknown("an exponent out of range")
            return _bounded(value**exponent)
        return value

    def unary(self, level: int) -> int:
        if level > 60:
            raise Unknown("a deeply nested expression")
        for sign, function in (
            ("-", lambda v: -v),
            ("+", lambda v: v),
            ("!", lambda v: int(not v)),
            ("~", lambda v: ~v),
        ):
            if self.take(sign):
                return _bounded(function(self.unary(level + 1)))
        return self.primary(level)

    def primary(self, level: int) -> int:
        token = self.peek()
        self.at += 1
        if token == "(":
            value = self.ternary(level + 1)
            if not self.take(")"):
                raise Unknown("an expression that is not complete")
            return value
        if token[:1].isdigit():
            return _bounded(_number(token))
        if token.isidentifier() and token.isascii():
            return evaluate(self.lookup(token), self.lookup, self.depth + 1)
        raise Unknown("an expression that is not plain arithmetic")


def _number(token: str) -> int:
    try:
        if token[:2].lower() == "0x":
            return int(token, 16)
        if "#" in token:
            base, digits = token.split("#", 1)
            if 2 <= int(base) <= 36:
                return int(digits, int(base))
        elif token[0] == "0" and len(token) > 1:
            return int(token, 8)
        elif token.isdigit() and token.isascii():
            return int(token)
    except ValueError:
        pass
    raise Unknown(f"{token} is not an integer")


def _apply(operator: str, left: int, right: int) -> int:
    if operator in ("/", "%"):
        if right == 0:
            raise Unknown("a division by zero")
        quotient = abs(left) // abs(right)  # towards zero, as in C
        if (left < 0) != (right < 0):
            quotient = -quotient
        return _bounded(quotient if operator == "/" else left - quotient * right)
    if operator in ("<<", ">>"):
        if not 0 <= right < 64:
            raise Unknown("a shift out of range")
        return _bounded(left << right if operator == "<<" else left >> right)
    simple = {
        "+": left + right,
        "-": left - right,
        "*": left * right,
        "&": left & right,
        "|": left | right,
        "^": left ^ right,
        "<": int(left < right),
        ">": int(left > right),
        "<=": int(left <= right),
        ">=": int(left >= right),
        "==": int(left == right),
        "!=": int(left != right),
        "&&": int(bool(left and right)),
        "||": int(bool(left or right)),
    }
    return _bounded(simple[operator])


def _bounded(value: int) -> int:
    if not -_LIMIT <= value < _LIMIT:
        raise Unknown("a number beyond 64 bits")
    return value
