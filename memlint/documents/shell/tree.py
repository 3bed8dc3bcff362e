"""The syntax tree of a shell script, by tree-sitter-bash; where that grammar misreads bash, it is shown other text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any

from memlint import work
from memlint.documents.shell.syntax import judge
from memlint.documents.shell.words import Source

_parser: Any = None

# The grammar finds its way back from what it cannot read in a time that grows with the square of how much that is
# (tree-sitter 0.26, on a busy core: 0.2 s for 1,200 lines of A=>b, which bash takes, 2.2 s for 4,000). So a long text
# is first looked at in pieces.
STRETCH = 16_384  # characters

MISREAD_SHIFT = 4

_QUOTES = frozenset(("string", "raw_string", "ansi_c_string", "translated_string"))

EXPANSIONS = frozenset(
    ("simple_expansion", "expansion", "command_substitution", "process_substitution", "arithmetic_expansion")
)

WORD_ACTIVE = _QUOTES | EXPANSIONS


def parse(text: str) -> Any:
    """The syntax tree. Its byte offsets are offsets of ``text``: every character that is not ASCII stands for
    itself as a dot, and an escaped one (where the grammar divides or drops words) as letters. What they are is
    read from the text afterwards."""
    global _parser
    if _parser is None:
        import tree_sitter
        import tree_sitter_bash

        _parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))
    work.spend(50 + len(text) // 2, "parsing a script")
    if "\\" in text:
        text = _without_escapes(text)
    if not text.isascii():
        text = "".join(character if character < "\x80" else "." for character in text)
    text = text.replace("\0", ".")
    if len(text) > STRETCH:
        _spend_misread(sum(_misread(_parser.parse(piece.encode())) for piece in _stretches(text)))
        return _parser.parse(text.encode())
    tree = _parser.parse(text.encode())
    _misread(tree)
    return tree


def _spend_misread(count: int) -> None:
    work.spend(count * count >> MISREAD_SHIFT, "parsing what is hardly a script")


def _misread(tree: Any) -> int:
    """How many places of a text the grammar could not read, and words in them; takes the steps that this was."""
    if not tree.root_node.has_error:
        return 0
    count, waiting = 0, [tree.root_node]
    while waiting:
        node = waiting.pop()
        if node.is_error:
            count += 1 + node.child_count
        elif node.is_missing:
            count += 1
        waiting.extend(child for child in node.children if child.has_error)
    _spend_misread(count)
    return count


def _stretches(text: str) -> Iterator[str]:
    """A text in pieces of at most so many characters, at the ends of lines where there are any. A piece of a longer
    line has no operator at its ends: for a pipeline that lacks its last command the grammar tries all others."""
    at = 0
    while at < len(text):
        end = at + STRETCH
        if end < len(text):
            end = text.rfind("\n", at, end) + 1 or end
        yield text[at:end] if text[end - 1 : end] == "\n" else text[at:end].strip(" \t|&;")
        at = end


def _without_escapes(text: str) -> str:
    """``\\c`` as ``xx``, save for line continuations and ``\\'``, which within single quotes ends them."""
    parts: list[str] = []
    last = 0
    at = text.find("\\")
    while 0 <= at < len(text) - 1:
        escaped = text[at + 1]
        if escaped not in "\n'":
            parts += (text[last:at], "xx")
            last = at + 2
        at = text.find("\\", at + 2)
    return "".join(parts) + text[last:]


# What may be a command substitution without a command: `# a comment`, $(), as a first look.
_SAYS_NOTHING = re.compile(r"`\s*[#`]|\$\(\s*[#)]")

_FRACTION = re.compile(r"(?<![\w.])\d*\.\d+(?![\w.])", re.ASCII)

# What may be a pipeline of three commands, or one over several lines.
_PIPELINE = re.compile(r"\|[^|\n]+\||\|[ \t]*\n|\n[ \t]*\|")


def parsed(source: Source) -> tuple[Any, Source]:
    """(syntax tree, the source whose offsets it has).

    Three things the grammar misreads. A fraction in arithmetic, of which bash complains when it gets there, costs the
    grammar the commands behind it: it is shown a whole number. Behind a substitution that holds nothing but a comment
    it takes the comment to go on: such a substitution is no text, and is left out. Behind several assignments on a
    line, or a pipeline of three commands, it may take the next line for more of the same command: the text is read
    again with the statements divided.
    """
    if _SAYS_NOTHING.search(source.text):
        with suppress(RecursionError):  # too deep to be followed, which is found out below
            source = source.without(judge(source.text).empty)
    tree = parse(_without_fractions(source.text))
    if not _PIPELINE.search(source.text) and not any(_assigns_twice(line) for line in source.text.split("\n")):
        return tree, source
    for _ in range(3):
        ends = list(_missed_ends(tree.root_node, source.text))
        if not ends:
            break
        source = source.divided(ends)
        tree = parse(_without_fractions(source.text))
    return tree, source


def _without_fractions(text: str) -> str:
    """The text with ``0.5`` as ``005`` in arithmetic, as long as before."""
    if "((" not in text or not _FRACTION.search(text):
        return text
    parts: list[str] = []
    last = 0
    with suppress(RecursionError):
        for start, end in judge(text).arithmetic:
            if start >= last:
                whole = _FRACTION.sub(lambda found: found.group().replace(".", "0"), text[start:end])
                parts += (text[last:start], whole)
                last = end
    return "".join(parts) + text[last:]


def _assigns_twice(line: str) -> bool:
    return line.count("=") > 1 and sum("=" in word and word.split("=")[0].isidentifier() for word in line.split()) > 1


def _missed_ends(root: Any, text: str) -> Iterator[int]:
    """Offsets at which a line ends, but the command that it is said to belong to does not."""
    stack = [root]
    while stack:
        node = stack.pop()
        children = node.children
        work.spend(2 * len(children), "looking for the ends of lines")
        stack += children
        if node.type in ("command", "file_redirect"):
            for child, following in pairwise(children):
                if "\n" in text[child.end_byte : following.start_byte].replace("\\\n", ""):
                    yield child.end_byte


def start_of(node: Any, source: Source) -> int:
    """Where an expansion begins: within a string the grammar counts blanks and continued lines before it as its own."""
    at: int = node.start_byte
    while at < node.end_byte:
        if source.text[at] in " \t\r\n":
            at += 1
        elif source.text.startswith("\\\n", at):
            at += 2
        else:
            break
    return at


def topmost(node: Any, active: frozenset[str]) -> Iterator[Any]:
    """The topmost nodes below ``node`` of the active types, in order."""
    pending = list(reversed(node.children))
    while pending:
        child = pending.pop()
        work.spend(1, "looking for expansions")
        if child.type in active:
            yield child
        else:
            pending.extend(reversed(child.children))
