"""The tree that every reader produces: values that know where they were written.

Positions are 1-based, counted in code points, and ends are exclusive. Line ``n`` is the n-th element of
``text.splitlines()`` for the line breaks that the format itself recognises.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Union

from memlint.named_tuple import NamedTuple


class Span(NamedTuple):
    """A stretch of a file: 1-based line and column, end exclusive, in code points."""

    path: str
    line: int
    column: int
    end_line: int
    end_column: int


class Unresolved(NamedTuple):
    """A value that cannot be known without running something: a first-class value, never a guess.

    ``text`` is what the file says (``${oc.env:HOME}``), ``reason`` why it was left alone, ``ending`` what it ends with
    whatever the rest is: ``/models/opt`` of ``$HOME/models/opt``.
    """

    reason: str
    text: str = ""
    ending: str = ""


# How one gets to a node from the root of its tree: what leads to the node above, and the key or the index there;
# "" at the root. A link costs the same however long the keys above it are. Text stands for a whole dotted path.
Keys = Union[str, tuple["Keys", Union[str, int]]]  # noqa: UP007

MAX_SHOWN = 200  # characters of a key that a message repeats
MAX_FAULTS = 100  # of one kind in one file: whoever mends these will look again
# Python refuses to print integers of thousands of digits, and one above 10**308 is no float.
MAX_DIGITS = 300
TOO_LONG = f"a number of more than {MAX_DIGITS} digits"
_BEYOND = 10**MAX_DIGITS

Scalar = Union[str, int, float, bool, None, Unresolved]  # noqa: UP007
Value = Union[dict[str, "Node"], list["Node"], Scalar]  # noqa: UP007


def shown(key: object) -> str:
    """A key as a message repeats it: cut where it is longer than anybody reads."""
    text = str(key)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def too_long(value: object) -> bool:
    """Whether a value is an integer of more than ``MAX_DIGITS`` digits, which no reader lets into a tree."""
    return isinstance(value, int) and not -_BEYOND < value < _BEYOND


class Node:
    """One value of a document.

    value     dict of child nodes by key, list of child nodes, a scalar, or :class:`Unresolved`
    span      where the value was written (of a block mapping or list: first to last descendant)
    key_span  where its key, flag or name was written; None for list items and the root
    keys      what leads here from the root; :attr:`key_path` is the same in dots
    via       spans that the value passed through on its way here (an interpolation, a shell variable
              at its use, a command-line override), nearest first
    """

    __slots__ = ("key_span", "keys", "span", "value", "via")

    def __init__(
        self,
        value: Value,
        span: Span,
        key_span: Span | None = None,
        keys: Keys = "",
        via: tuple[Span, ...] = (),
    ) -> None:
        self.value = value
        self.span = span
        self.key_span = key_span
        self.keys = keys
        self.via = via

    def __repr__(self) -> str:
        return f"Node({self.key_path or '.'}={self.plain()!r} @{self.span.line}:{self.span.column})"

    @property
    def key_path(self) -> str:
        """The dotted path in its tree (``policy.down_dims.0``); "" for the root."""
        keys = self.keys
        if isinstance(keys, str):
            return keys
        names: list[str] = []
        while not isinstance(keys, str):
            keys, name = keys
            names.append(str(name))
        if keys:
            names.append(keys)
        names.reverse()
        return ".".join(names)

    @property
    def shown_path(self) -> str:
        """The dotted path as a message repeats it: cut where it is longer than anybody reads."""
        names: list[str] = []
        keys = self.keys
        while not isinstance(keys, str):
            keys, name = keys
            names.append(str(name))
        if keys:
            names.append(keys)
        path = ""
        for name in reversed(names):
            path = f"{path}.{name}" if path else str(name)
            if len(path) > MAX_SHOWN:
                return shown(path)
        return path

    @property
    def name(self) -> str:
        """The last of its keys as the tree has it, dots included; "" for the root."""
        return self.keys.rpartition(".")[2] if isinstance(self.keys, str) else str(self.keys[1])

    @property
    def is_mapping(self) -> bool:
        return isinstance(self.value, dict)

    @property
    def is_list(self) -> bool:
        return isinstance(self.value, list)

    @property
    def is_unresolved(self) -> bool:
        return isinstance(self.value, Unresolved)

    def get(self, path: str) -> Node | None:
        """The node at a dotted path (``policy.down_dims.0``), or None."""
        node: Node = self
        for part in path.split(".") if path else ():
            value = node.value
            if isinstance(value, dict):
                child = value.get(part)
                if child is None:
                    return None
                node = child
            elif isinstance(value, list) and part.isdecimal() and len(part) < 10 and int(part) < len(value):
                node = value[int(part)]
            else:
                return None
        return node

    def walk(self) -> Iterator[Node]:
        """This node and every node below it, in the order of the text."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            if isinstance(node.value, dict):
                stack.extend(reversed(node.value.values()))
            elif isinstance(node.value, list):
                stack.extend(reversed(node.value))

    def plain(self) -> Any:
        """The value without positions; unresolved values stay :class:`Unresolved`."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value


class Edit(NamedTuple):
    """Replace the text of ``span`` (empty span: insert) by ``text``."""

    span: Span
    text: str


class Fault(NamedTuple):
    """Something wrong with the text itself. ``code`` is the finding it becomes (MEM003, MEM006, ...)."""

    code: str
    message: str
    span: Span
    related: tuple[Span, ...] = ()


class Faults:
    """What a reader finds wrong: each fault once, and of one kind in one file no more than ``MAX_FAULTS``."""

    def __init__(self) -> None:
        self._kept: dict[Fault, None] = {}
        self._counts: dict[tuple[str, str], int] = {}
        self._first_beyond: dict[tuple[str, str], Fault] = {}

    @property
    def count(self) -> int:
        return sum(self._counts.values())

    def append(self, fault: Fault) -> None:
        kind = (fault.code, fault.span.path)
        count = self._counts.get(kind, 0)
        if count >= MAX_FAULTS:
            self._first_beyond.setdefault(kind, fault)
        elif fault in self._kept:
            return
        else:
            self._kept[fault] = None
        self._counts[kind] = count + 1

    def extend(self, faults: Iterable[Fault]) -> None:
        for fault in faults:
            self.append(fault)

    def told(self) -> tuple[Fault, ...]:
        """The faults in order, and for each kind that has more one that says how many."""
        more = [
            Fault(code, f"and {self._counts[code, path] - MAX_FAULTS:,} more of this kind in the file", fault.span)
            for (code, path), fault in self._first_beyond.items()
        ]
        return (*self._kept, *more)


class Command(NamedTuple):
    """One training command of a shell script, after variables were put in where they are known.

    program      the script or module that trains (``main_jax.py``, ``llamafactory.cli``)
    launchers    wrappers before it, outermost first, with their own options (``torchrun``, ``accelerate launch``)
    options      mapping node: option name without dashes -> node; repeated options become a list;
                 a flag without a value is True
    arguments    what is not an option, in order (Hydra overrides are found here)
    environment  variables that the command sees: ``export``ed before it or written in front of it
    span         the whole command
    words        everything after the program, in order, for a reader that knows which options take how many
                 values; ``--name=value`` is a mapping of one entry (``--name``), anything else a scalar
    """

    program: Node
    launchers: tuple[Launcher, ...]
    options: Node
    arguments: tuple[Node, ...]
    environment: dict[str, Node]
    span: Span
    words: tuple[Node, ...] = ()

    @property
    def called(self) -> str:
        """The program as the command names it; of one whose folder is not known, the path below that folder
        (``tools/train.py`` of ``$ROOT/tools/train.py``); "" where its name is not known either."""
        value = self.program.value
        if isinstance(value, Unresolved):
            return value.ending.partition("/")[2]
        return value if isinstance(value, str) else ""  # --option=value, where a program should be


class Launcher(NamedTuple):
    name: str
    options: Node


class Call(NamedTuple):
    """A command that starts another script: its name as written, what that is given as ``$1`` and so on, what is
    exported to it, and the words of sbatch's own options, where that submits it."""

    script: str
    arguments: tuple[Node, ...]
    environment: dict[str, Node]
    span: Span
    submission: tuple[str, ...] = ()


class Document(NamedTuple):
    """A read file. ``format`` is yaml, json, toml, shell or python.

    ``root`` is a mapping node (for shell: the script's variables; for Python: module names, with a class
    as a mapping of its constants). ``commands`` is empty except for shell. ``sources`` holds the text of
    every file that composition brought in, by path, this one included. ``told``: its commands are those that a reader
    is told (a document's, a comment's), which nobody runs as they stand. ``calls``: the scripts that a script starts.
    """

    path: str
    format: str
    text: str
    root: Node
    faults: tuple[Fault, ...] = ()
    commands: tuple[Command, ...] = ()
    sources: dict[str, str] = {}  # noqa: RUF012  (never mutated: each reader passes its own)
    told: bool = False
    calls: tuple[Call, ...] = ()
