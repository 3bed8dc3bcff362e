"""One turn of a loop, as who follows a program (:mod:`memlint.documents.programs.training_loops`) writes it down."""

from __future__ import annotations

from typing import Union

from memlint.documents.node import Node, Span, Unresolved
from memlint.documents.programs import program
from memlint.named_tuple import NamedTuple

# Kinds of :class:`Make`.
ITEM, PART, ATTRIBUTE, METHOD, FUNCTION, OPERATION, REBUILT, EITHER = (
    *("turn", "part", "attribute", "method", "function", "operation", "rebuilt", "either"),
)
CALL = "call"
# Of what a call makes: its number, whose method the call is of, the class of the program's own that it is of, and which
# of several things it is.
NUMBER, ON, INSTANCE, PART_OF = "_number_", "_on_", "_instance_", "_part_"
# In the place of what is called: an attribute is set, requires_grad is in a loop, and what there is depends on a
# condition that is not known.
SET, FROZEN, DOUBT = "_set_", "_requires_grad_", "_doubt_"
HOLDS = "_holds_"  # of a module of the program's own class: what its ``__init__`` has made or was given


class Traced(Unresolved):
    """A value of a turn: ``number`` is that of the :class:`Make` that makes it."""

    number: int


class Make(NamedTuple):
    """A value that a turn makes.

    kind      one of the above
    name      the attribute, method, function or operator; the text of an index
    callee    what is called, or whose method it is, where that is something that the program made; else None
    values    the values that it is made of, its owner first; None for an argument that is known or matters to nobody
    given     its positional arguments
    named     its keyword arguments, "**" for unpacked ones
    within    the contexts (``with``) that it stands in, outermost first
    place     where it is written
    where     the same in words, by its file where that is not the program itself
    """

    number: int
    kind: str
    name: str
    callee: Node | None
    values: tuple[int | None, ...]
    given: tuple[Node, ...]
    named: dict[str, Node]
    within: tuple[Node, ...]
    place: Span
    where: str


class Bind(NamedTuple):
    """A name of a scope holds a value from here on; None: it holds none."""

    scope: int
    name: str
    number: int | None
    line: int


class Leave(NamedTuple):
    """A function returns: its names let go."""

    scope: int


class End(NamedTuple):
    """A statement is over: what it made, from the value ``since`` on, and nobody names is gone."""

    since: int


class Branch(NamedTuple):
    """What stands under a condition that is not known.

    leaves   whether each way ends the turn
    divisor  what the condition takes a number modulo, where it does
    """

    line: int
    body: list[Entry]
    otherwise: list[Entry]
    leaves: tuple[bool, bool]
    divisor: Node | None


class Inner(NamedTuple):
    """A loop within the turn; turns: how many, where that is known."""

    line: int
    body: list[Entry]
    turns: int | None


Entry = Union[Make, Bind, Leave, End, Branch, Inner]  # noqa: UP007


class Loop(NamedTuple):
    """A loop that goes backward. over: what it goes through; entries: of one turn; line: where it begins."""

    over: Node
    entries: list[Entry]
    line: int


class Loops(NamedTuple):
    """A program with its training loops."""

    program: program.Program
    loops: tuple[Loop, ...]


def number_of(node: Node) -> int | None:
    """The number of a value that a turn makes."""
    return node.value.number if isinstance(node.value, Traced) else None
