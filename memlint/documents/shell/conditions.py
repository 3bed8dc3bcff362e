"""Conditions of a script: which hold whatever happens, which hold by default, and which nobody can tell."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

from memlint import work
from memlint.documents.shell import arithmetic
from memlint.documents.shell.expansion import ARGUMENT, OPTION, Expander
from memlint.documents.shell.tree import WORD_ACTIVE
from memlint.documents.shell.words import (
    BREAK,
    Source,
    is_number,
    text_of,
)

YES = "yes"  # a condition that holds, a command that succeeds
NO = "no"
DEFAULT_YES = "default yes"  # holds because the script does not set the variable that it asks for
DEFAULT_NO = "default no"
SUCCESS = "success"  # a command whose status is not known: taken to succeed
MAYBE = "maybe"  # a condition that is not known

_NEGATED = {YES: NO, NO: YES, DEFAULT_YES: DEFAULT_NO, DEFAULT_NO: DEFAULT_YES}
# $X, "${X:-}" and ${X+x}: the grammar reads every name in braces.
_ONE_VARIABLE = re.compile(r'"?\$\{(\w+)(?::?-|:?\+\w*)?\}"?', re.ASCII)
_INTEGER = re.compile(r"\s*[-+]?\d{1,18}\s*", re.ASCII)
_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-lt": operator.lt,
    "-le": operator.le,
    "-gt": operator.gt,
    "-ge": operator.ge,
}


def negated(status: str) -> str:
    return _NEGATED.get(status, status)


class Conditions(Expander):
    def _matches(self, subject: str, pattern: Sequence[Any], source: Source) -> bool | None:
        """Whether a text matches a pattern as ``case`` and ``[[ == ]]`` mean it; None where that is not known."""
        items = self.word_list(pattern, source)
        if any(item is BREAK or item.reason for item in items):
            return None
        if not any(mark in piece.text for piece in items if not piece.quoted for mark in "*?[\\+@!"):
            return text_of(items) == subject
        pattern_text = text_of(items)
        # Of these, Python's patterns know nothing, or mean something else.
        unclear = ("?(", "*(", "+(", "@(", "!(", "[:", "[.", "[=", "[]", "[!]", "[^]")
        negated = any(piece.quoted and piece.text.startswith(("!", "^")) for piece in items)
        if negated or any(mark in pattern_text for mark in unclear):
            return None
        work.spend(len(subject) + len(pattern_text), "matching a pattern")
        from fnmatch import fnmatchcase

        glob = "".join(
            "".join(f"[{c}]" if c in "*?[" else c for c in piece.text) if piece.quoted else piece.text
            for piece in items
        )
        return fnmatchcase(subject, glob.replace("[^", "[!"))

    def _test(self, node: Any, source: Source) -> str:
        opening = node.children[0].type if node.children else ""
        if opening == "((":
            try:
                return YES if self._calculate(node, source, node.start_byte + 2, node.end_byte - 2) else NO
            except arithmetic.Unknown:
                self._unset_assigned(source.of(node))
                return MAYBE
        for child in node.children:
            if child.is_named:
                return self._condition(child, source, opening == "[[")
        return MAYBE

    def _condition(self, node: Any, source: Source, double: bool) -> str:
        kind = node.type
        if node.has_error:  # the grammar has left something out
            return MAYBE
        if kind == "parenthesized_expression":
            return self._condition(next(child for child in node.children if child.is_named), source, double)
        if kind == "unary_expression":
            return self._unary_condition(node, source, double)
        if kind == "binary_expression":
            return self._binary_condition(node, source, double)
        if kind in ("word", "number", "concatenation") or kind in WORD_ACTIVE:
            return self._is_text(node, source)
        return MAYBE

    def _is_text(self, node: Any, source: Source) -> str:
        """Whether a word is not empty."""
        if self._is_unset(node, source):
            return DEFAULT_NO
        text = self._plain(node, source)
        return MAYBE if text is None else YES if text else NO

    def _unary_condition(self, node: Any, source: Source, double: bool) -> str:
        sign = node.child_by_field_name("operator") or node.children[0]
        operand = node.children[-1]
        symbol = source.of(sign)
        if symbol == "!":
            return negated(self._condition(operand, source, double))
        if symbol not in ("-z", "-n"):
            return MAYBE
        status = self._is_text(operand, source)
        return status if symbol == "-n" else negated(status)

    def _binary_condition(self, node: Any, source: Source, double: bool) -> str:
        left, rights = node.child_by_field_name("left"), node.children_by_field_name("right")
        sign = node.child_by_field_name("operator")
        if left is None or not rights or sign is None:
            return MAYBE
        right, *_ = rights
        symbol = source.of(sign)
        if symbol in ("&&", "||"):
            one, other = self._condition(left, source, double), self._condition(right, source, double)
            decisive = NO if symbol == "&&" else YES
            if decisive in (one, other):
                return decisive
            if one == other:
                return one
            return MAYBE
        value = self._plain(left, source)
        if symbol in ("=", "==", "!="):
            if self._is_unset(left, source) and self._plain_text(rights, source) == "":  # [ "$X" = "" ]
                return DEFAULT_YES if symbol != "!=" else DEFAULT_NO
            if value is None:
                return MAYBE
            if double:
                answer = self._matches(value, rights, source)
            else:
                text = self._plain_text(rights, source)
                answer = None if text is None else text == value
            if answer is None:
                return MAYBE
            return YES if answer == (symbol != "!=") else NO
        compare = _COMPARISONS.get(symbol)
        other_value = self._plain_text(rights, source)
        if compare is None or value is None or other_value is None:
            return MAYBE
        one_number, other_number = self._number(value, double), self._number(other_value, double)
        if one_number is None or other_number is None:
            return MAYBE
        return YES if compare(one_number, other_number) else NO

    def _number(self, text: str, double: bool) -> int | None:
        """The number that a condition compares: within double brackets, arithmetic. None: it is not known."""
        if not double:
            return int(text) if _INTEGER.fullmatch(text) else None
        try:
            return arithmetic.evaluate(text, self._lookup)
        except arithmetic.Unknown:
            return None

    def _is_unset(self, node: Any, source: Source) -> bool:
        """Whether a word is one variable that the script does not set, or an argument of the script: both are
        absent by default."""
        found = _ONE_VARIABLE.fullmatch(source.text, node.start_byte, node.end_byte)
        if found is None:
            return False
        name = found.group(1)
        if is_number(name):
            return self.positional is None and name != "0"
        variable = self.environment.get(name)
        if variable is None:
            return True
        # X=$1, and what a loop over the options sets where one is given
        return len(variable.pieces) == 1 and variable.pieces[0].reason.startswith((ARGUMENT, OPTION))
