"""Words of a command -> options and arguments, the way argparse, click and their relatives take them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import takewhile

from memlint.documents.node import Keys, Node, Span, Unresolved

ONE = "one"  # takes the next word
MANY = "many"  # takes every word up to the next option
SWITCH = "switch"  # takes no word
BOOLEAN = "boolean"  # takes the next word where it says true or false

_BOOLEAN_WORDS = frozenset(("true", "false", "yes", "no", "on", "off", "0", "1"))


def is_option(value: object) -> bool:
    """``--name`` and ``-n``, but not ``-1`` nor ``-``."""
    if not isinstance(value, str) or len(value) < 2 or value[0] != "-":
        return False
    return value[1] == "-" or value[1].isalpha()


def split(words: Iterable[Node], takes: Callable[[str], str] = lambda name: ONE) -> tuple[dict[str, Node], list[Node]]:
    """Options by name without dashes, and the rest in order.

    takes  how many words an option wants, by its name: ONE, MANY, SWITCH or BOOLEAN

    A repeated option is a list of what each use said, except that one that takes MANY is a list anyway: there
    the last use stands. An option without a value is True, and its span is the option itself.
    """
    queue = list(words)
    options: dict[str, Node] = {}
    repeated: set[str] = set()
    rest: list[Node] = []

    def add(name: str, node: Node, key_span: Span, many: bool) -> None:
        node = placed(node, name, key_span)
        first = options.get(name)
        if first is None or many:
            options[name] = node
        elif name in repeated and isinstance(first.value, list):
            first.value.append(placed(node, (name, len(first.value)), key_span))
        else:
            repeated.add(name)
            both = [placed(first, (name, 0), first.key_span), placed(node, (name, 1), key_span)]
            options[name] = Node(both, node.span, key_span, name)

    at = 0
    while at < len(queue):
        word = queue[at]
        at += 1
        value = word.value
        if isinstance(value, dict):  # --name=value
            for option, inner in value.items():
                name = option.lstrip("-")
                many = takes(name) == MANY
                node = _list([inner], name) if many else inner
                add(name, node, inner.key_span or word.span, many)
            continue
        if value == "--":
            continue
        if not isinstance(value, str) or not is_option(value):
            rest.append(word)
            continue
        name = value.lstrip("-")
        wanted = takes(name)
        following: list[Node] = []
        while at < len(queue) and wanted != SWITCH and not _starts_option(queue[at]):
            text = queue[at].value
            if wanted == BOOLEAN and not (
                isinstance(text, Unresolved) or (isinstance(text, str) and text.lower() in _BOOLEAN_WORDS)
            ):
                break
            following.append(queue[at])
            at += 1
            if wanted != MANY:
                break
        use = word.span
        if wanted == MANY and following:
            add(name, _list(following, name), use, True)
        elif following:
            add(name, following[0], use, False)
        else:
            add(name, Node(True, word.span, via=word.via), use, False)
    return options, rest


def before_options(words: Iterable[Node]) -> list[Node]:
    """The words before the first option: what a program that looks at ``sys.argv[1]`` takes for its config.

    Behind an option that takes several words (``--data_path a.json b.json``), and whose number nobody knows, a word may
    be another value of it as well as an argument of its own.
    """
    return list(takewhile(lambda word: not _starts_option(word), words))


def _starts_option(word: Node) -> bool:
    return isinstance(word.value, dict) or word.value == "--" or is_option(word.value)


def _list(words: list[Node], name: str) -> Node:
    items = [placed(word, (name, index), None) for index, word in enumerate(words)]
    first, last = words[0].span, words[-1].span
    if first.path == last.path and first[1:3] <= last[3:5]:
        span = Span(first.path, first.line, first.column, last.end_line, last.end_column)
    else:
        span = first
    return Node(items, span, None, name)


def placed(node: Node, keys: Keys, key_span: Span | None) -> Node:
    """The same value at another place of the tree."""
    return Node(node.value, node.span, key_span, keys, node.via)
