"""What a program and the modules of its repository that it imports have in common while they are followed."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from memlint.documents.node import Document, Node
from memlint.named_tuple import NamedTuple

if TYPE_CHECKING:
    from memlint.documents.programs.functions import Functions

MAX_CALLS = 200  # of functions of its own

_TRUE, _FALSE = ("true", "yes", "on"), ("false", "no", "off")


# Among the options that a program is given: all words of its command, and those that are no options and no values.
WORDS, PLACED = "_words_", "_placed_"


class Repository(NamedTuple):
    """What a program may have of its repository.

    document  the file that another file names so, read; None where there is none
    module    (path, text) of the module that another file imports so; None for a library's
    """

    document: Callable[[str, str], Document | None]
    module: Callable[[str, str], tuple[str, str] | None]


ALONE = Repository(lambda reference, beside: None, lambda source, beside: None)


class State:
    """What a program and the modules that it imports have in common.

    arguments  options that argparse is told of, with their defaults
    placed     arguments without dashes that it is told of, in order
    bases_of   classes of its own -> the first class that they are of
    modules    by their files
    unfollowed how often it asked for a module when there were enough
    left       loops that may end early
    changed    fields of options that are set once they are parsed
    """

    def __init__(self, options: Mapping[str, Node], repository: Repository) -> None:
        self.options = {name: typed(node) for name, node in options.items()}
        self.repository = repository
        self.arguments: dict[str, Node] = {}
        self.placed: list[str] = []
        self.made: list[Node] = []
        self.imported: dict[str, str] = {}
        self.parses = False
        self.fired = False
        self.doubts: dict[str, int] = {}
        self.bases_of: dict[str, str] = {}
        self.calling: list[ast.FunctionDef | ast.Lambda] = []
        self.calls_left = MAX_CALLS
        self.modules: dict[str, Functions] = {}
        self.unfollowed = 0
        self.left: set[ast.For] = set()
        self.changed: set[str] = set()
        self.seen: set[ast.stmt] = set()

    def once(self, node: ast.stmt) -> bool:
        """Whether a statement is met for the first time, and not in a later turn of what it stands in."""
        if node in self.seen:
            return False
        self.seen.add(node)
        return True


def typed(node: Node) -> Node:
    """The value of an option as argparse's types would have it, which are not known: a number where it is one."""
    if not isinstance(node.value, str):
        return node
    word: object = node.value
    lower = node.value.lower()
    if lower in _TRUE or lower in _FALSE:
        word = lower in _TRUE
    else:
        try:
            word = int(node.value)
        except ValueError:
            try:
                word = float(node.value)
            except ValueError:
                return node
    return Node(word, node.span, node.key_span, node.keys, node.via)
