"""Shell words -> pieces of text: parameters, arrays, arithmetic, quotes, braces, and word splitting."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import islice
from typing import Any

from memlint import work
from memlint.documents.shell import arithmetic, braces, counts, folders
from memlint.documents.shell.literals import ansi, held, literal, unknown, written
from memlint.documents.shell.tree import EXPANSIONS, WORD_ACTIVE, start_of, topmost
from memlint.documents.shell.variables import Environment, Variable
from memlint.documents.shell.words import (
    BREAK,
    MAX_PIECES,
    PIECE,
    Items,
    Piece,
    Pieces,
    Source,
    is_number,
    limited,
    part,
    reason_of,
    split,
    text_of,
    used,
)

_STRING_ACTIVE = EXPANSIONS | {"string"}

_SCRIPT = "the name of the script"

ARGUMENT = "argument"  # how the reason of an unknown ``$1`` begins
OPTION = "an argument of the script sets it"  # of what a loop over the options takes

_ASSIGNED = re.compile(
    r"(?:\+\+|--)\s*([a-z_]\w*)|(?<!\w)([a-z_]\w*)\s*(?:\+\+|--|(?:[-+*/%&|^]|<<|>>)?=(?!=))", re.ASCII | re.IGNORECASE
)

_OF_NAMES = re.compile(r"\w*", re.ASCII)


class Expander:
    """Variables, and what words come to with them."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.environment = Environment()
        self.positional: list[Pieces] | None = None
        self.export_all = False
        self.keyed: set[str] = set()  # names of associative arrays
        self.exports: set[str] = set()  # names that were exported before they had a value
        self.trees: list[Any] = []  # nodes are valid as long as their trees are

    def _set(self, name: str, pieces: Pieces, exported: bool = False) -> None:
        old = self.environment.get(name)
        exported = exported or self.export_all or name in self.exports or (old is not None and old.exported)
        self.environment.set(name, Variable(limited(pieces), None, exported))

    def _unset_assigned(self, text: str) -> None:
        """Variables that an arithmetic text assigns are not known from here on."""
        for found in _ASSIGNED.finditer(text):
            name = found.group(1) or found.group(2)
            self._set(name, [Piece("$" + name, reason="arithmetic assigns it")])

    def word_list(self, nodes: Sequence[Any], source: Source) -> Items:
        """What a list of words expands to. The grammar divides some words that bash does not: at an operator sign,
        at a continued line. Between two words there is a blank."""
        items: Items = []
        end = -1
        work.spend(5 * len(nodes), "expanding words")
        for node in nodes:
            if end >= 0 and source.text[end : node.start_byte].replace("\\\n", ""):
                items.append(BREAK)
            items += self.word_items(node, source)
            end = node.end_byte
        return items

    def word_items(self, node: Any, source: Source, splits: bool = True) -> Items:
        """What a word expands to: pieces, with BREAK where it falls into several words, if it may (``splits``)."""
        start, end = node.start_byte, node.end_byte
        if node.type in WORD_ACTIVE:
            items = self._active(node, source, "word", splits, (start, end))
        else:
            if splits and "{" in source.text[start:end]:
                alternatives = self._brace_items(node, source)
                if alternatives is not None:
                    return alternatives
            items = self.region(node, start, end, source, "word", splits)
        return items

    def _brace_items(self, node: Any, source: Source) -> Items | None:
        """What a word with brace expansions comes to; None for a word without any."""
        start, end = node.start_byte, node.end_byte
        mask = source.text[start:end]
        names: dict[int, int] = {}  # where a $NAME ends -> where it begins
        for child in topmost(node, WORD_ACTIVE):
            begin, stop = max(child.start_byte - start, 0), child.end_byte - start
            mask = mask[:begin] + "\0" * (stop - begin) + mask[stop:]
            if source.is_bare(child.start_byte):
                names[child.end_byte] = child.start_byte
        if "{" not in mask:
            return None
        try:
            words = braces.expand(braces.without_escapes(mask))
        except braces.Unclear as error:
            return [unknown(source, start, end, str(error), False)]
        if words is None:
            return None
        items: Items = []
        whole = unknown(source, start, end, "", False)
        for word in words:
            runs = [run if isinstance(run, str) else (start + run[0], start + run[1]) for run in word]
            while runs:
                run = runs.pop(0)
                if isinstance(run, str):
                    items.append(whole._replace(text=run))
                    continue
                begin, stop = run
                at = names.get(stop, -1)
                more = _rest_of_name(runs, source.text) if at >= begin else ""
                items += self.region(node, begin, at if more else stop, source, "word", True)
                if more:
                    items += self._variable(source.text[at + 2 : stop - 1] + more, source, False, True, (at, stop))
            items.append(BREAK)
        return items

    def region(self, node: Any, start: int, end: int, source: Source, mode: str, splits: bool) -> Items:
        """Expand the text from ``start`` to ``end``: the active nodes below ``node``, the rest literally.

        mode  word, string (within double quotes) or heredoc
        """
        active = _STRING_ACTIVE if mode == "string" else EXPANSIONS if mode == "heredoc" else WORD_ACTIVE
        below = list(islice(topmost(node, active), MAX_PIECES + 1))
        if len(below) > MAX_PIECES:
            return [unknown(source, start, end, "a word that is too long", mode != "word")]
        items: Items = []
        at = start
        work.spend(5 + 20 * len(below), "expanding a word")
        for child in below:
            begin = start_of(child, source)
            if begin < at or child.end_byte > end:
                continue
            items += literal(source, at, begin, mode)
            items += self._active(child, source, mode, splits, (begin, child.end_byte))
            at = child.end_byte
        items += literal(source, at, end, mode)
        return items

    def _active(self, node: Any, source: Source, mode: str, splits: bool, token: tuple[int, int]) -> Items:
        kind = node.type
        start, end = start_of(node, source), node.end_byte
        quoted = mode != "word"
        known = source.unknown(start, end)
        if known is not None:  # it was left alone before: what it was then is what it is
            return [piece._replace(quoted=quoted) for piece in known]
        if kind in ("string", "translated_string"):
            return self._string(node, source, splits)
        if kind == "raw_string":
            inner = source.slice(start + 1, end - 1)
            return held(inner, source, start, end)
        if kind == "ansi_c_string":
            return held(ansi(source, start + 2, end - 1), source, start, end)
        if kind == "simple_expansion":
            name = source.text[start + 1 : end]
            return self._variable(name, source, quoted, splits, token)
        if kind == "expansion":
            return self._expansion(node, source, quoted, splits, token)
        if kind == "arithmetic_expansion":
            return self._arithmetic(node, source, quoted, start, end)
        if source.text.startswith("$((", start) and source.text.endswith("))", start, end):
            return self._arithmetic(node, source, quoted, start, end)  # what the grammar makes of it in a heredoc
        body = self._cat_heredoc(node, source)
        if body is not None:
            return used(body, source.chain(start, end), quoted)
        folder = folders.output(source.text[start:end], os.path.basename(source.path), self._held)
        printed = counts.output(source.text[start:end], self._held) if folder is None else folder
        if printed is not None:
            return written(source, start, end, printed, quoted)
        return [unknown(source, start, end, "the output of a command", quoted)]

    def _held(self, name: str) -> str | None:
        """What a variable holds, where that is known and not nothing."""
        variable = self.environment.get(name)
        if variable is None or variable.items is not None or reason_of(variable.pieces):
            return None
        return text_of(variable.pieces) or None

    def _arithmetic(self, node: Any, source: Source, quoted: bool, start: int, end: int) -> Items:
        lead, tail = (3, 2) if source.text.startswith("$((", start) else (2, 1)
        try:
            value = self._calculate(node, source, start + lead, end - tail)
        except arithmetic.Unknown as error:
            self._unset_assigned(source.text[start:end])
            return [unknown(source, start, end, str(error), quoted)]
        return written(source, start, end, str(value), quoted)

    def _string(self, node: Any, source: Source, splits: bool) -> Items:
        start, end = start_of(node, source), node.end_byte
        lead = 2 if node.type == "translated_string" else 1
        inner_start, inner_end = start + lead, end - 1
        found = islice(topmost(node, _STRING_ACTIVE), MAX_PIECES + 1)
        below = [child for child in found if child.start_byte >= inner_start]
        if len(below) == 1 and start_of(below[0], source) == inner_start and below[0].end_byte == inner_end:
            items = self._active(below[0], source, "string", splits, (start, end))
        else:
            holder = node.children[-1] if node.type == "translated_string" else node
            items = self.region(holder, inner_start, inner_end, source, "string", splits)
        if not below:
            items = held(items, source, start, end)
        elif below and _only_lists(below, source):
            return items  # "$@" and "${A[@]}" may be no word at all
        empty = [piece._replace(text="", quoted=True, outer=None) for piece in source.slice(start, start + 1)]
        return [*empty, *items]

    def _variable(self, name: str, source: Source, quoted: bool, splits: bool, token: tuple[int, int]) -> Items:
        if name in ("@", "*") or is_number(name):
            return self._argument(name, source, quoted, splits, token)
        if name == "#" and self.positional is not None and not any(map(reason_of, self.positional)):
            return written(source, *token, str(len(self.positional)), quoted)
        variable = self.environment.get(name)
        if variable is None:
            reason = from_environment(name) if name.isidentifier() else f"${name} is known only while it runs"
            return [unknown(source, *token, reason, quoted)]
        pieces = variable.pieces if variable.items is None else variable.items.get("0", [])
        return self._emit(pieces, source, quoted, splits, token)

    def _emit(self, pieces: Pieces, source: Source, quoted: bool, splits: bool, token: tuple[int, int]) -> Items:
        out = used(pieces, source.chain(*token), quoted)
        if quoted or not splits:
            return out
        separators = " \t\n"
        ifs = self.environment.get("IFS")
        if ifs is not None and ifs.items is None:
            if reason_of(ifs.pieces):
                return [unknown(source, *token, "it is split by an unknown IFS", quoted)]
            separators = text_of(ifs.pieces)
        return split(out, separators)

    def _argument(self, name: str, source: Source, quoted: bool, splits: bool, token: tuple[int, int]) -> Items:
        if self.positional is None:
            told = "the arguments of the script" if not is_number(name) else f"{ARGUMENT} {name} of the script"
            told = _SCRIPT if name == "0" else told
            return [unknown(source, *token, told, quoted)]
        if name == "0":
            return [unknown(source, *token, _SCRIPT, quoted)]
        if is_number(name):
            at = int(name) - 1
            if at >= len(self.positional):
                return []
            return self._emit(self.positional[at], source, quoted, splits, token)
        return self._many(self.positional, name == "*", source, quoted, splits, token)

    def _many(
        self, values: list[Pieces], joined: bool, source: Source, quoted: bool, splits: bool, token: tuple[int, int]
    ) -> Items:
        items: Items = []
        work.spend(PIECE * len(values), "expanding an array")
        for value in values:
            if items and joined and quoted:
                items.append(Piece(" ", quoted=True))
            elif items:
                items.append(BREAK if splits else Piece(" ", quoted=quoted))
            if quoted:
                items.append(Piece("", quoted=True))
            items += self._emit(value, source, quoted, splits, token)
        return items

    def _expansion(self, node: Any, source: Source, quoted: bool, splits: bool, token: tuple[int, int]) -> Items:
        start, end = start_of(node, source), node.end_byte
        text = source.text[start + 2 : end - 1]
        name_end = 0
        while name_end < len(text) and (text[name_end].isalnum() or text[name_end] == "_"):
            name_end += 1
        if name_end == 0 and text[:1] in ("@", "*"):
            name_end = 1
        name, rest = text[:name_end], text[name_end:]
        if name[:1].isdigit() and not is_number(name):
            return [unknown(source, *token, "an expansion that is not understood", quoted)]
        if not name:
            return [unknown(source, *token, "an expansion that is known only while it runs", quoted)]
        if rest[:1] == "[":
            return self._element(node, name, source, quoted, splits, token)
        if not rest:
            return self._variable(name, source, quoted, splits, token)
        operator = rest[:2] if rest[0] == ":" else rest[:1]
        if operator not in (":-", "-", ":=", "=", ":+", "+", ":?", "?"):
            return [unknown(source, *token, "a part of a value", quoted)]
        word_start = start + 2 + name_end + len(operator)
        mode = "string" if quoted else "word"
        value = self._value_of(name)
        if value and len(value) == 1 and value[0].reason.startswith((ARGUMENT, OPTION)):
            value = None  # X=$1, then ${X:-4}: without arguments, the default
        elif value and operator[-1] == "+" and reason_of(value) and not any(p.text for p in value if p.is_known):
            return [unknown(source, *token, reason_of(value), quoted)]
        is_set = value is not None and (reason_of(value) or text_of(value) or ":" not in operator)
        if operator[-1] == "+":
            if not is_set:
                return []
            items = self.region(node, word_start, end - 1, source, mode, splits)
            return split_unquoted(items) if splits and not quoted else items
        if is_set or operator[-1] == "?":
            return self._variable(name, source, quoted, splits, token)
        items = self.region(node, word_start, end - 1, source, mode, splits)
        if operator[-1] == "=" and not is_number(name):
            self._set(name, self.region(node, word_start, end - 1, source, mode, False))
        chain = source.chain(*token)
        outside = chain[:-1]  # what all of this source came through
        out: Items = []
        for item in items:
            if item is not BREAK and item.start >= 0:
                inner = item.via[len(outside) :] if item.via[: len(outside)] == outside else item.via
                item = item._replace(via=(*chain, *inner), quoted=quoted or item.quoted)
            out.append(item)
        return split_unquoted(out) if splits and not quoted else out

    def _value_of(self, name: str) -> Pieces | None:
        if name == "0":
            return [Piece("$0", reason=_SCRIPT)]
        if is_number(name):
            at = int(name) - 1
            return self.positional[at] if self.positional is not None and 0 <= at < len(self.positional) else None
        if name in ("@", "*"):
            return [piece for value in self.positional for piece in value] if self.positional else None
        variable = self.environment.get(name)
        if variable is None:
            return None
        return variable.pieces if variable.items is None else variable.items.get("0", [])

    def _element(
        self, node: Any, name: str, source: Source, quoted: bool, splits: bool, token: tuple[int, int]
    ) -> Items:
        subscript = next((child for child in node.children if child.type == "subscript"), None)
        index = subscript.child_by_field_name("index") if subscript is not None else None
        if subscript is None or index is None or subscript.has_error or subscript.end_byte != node.end_byte - 1:
            return [unknown(source, *token, "a part of an array", quoted)]
        variable = self.environment.get(name)
        if variable is None:
            return [unknown(source, *token, from_environment(name), quoted)]
        if variable.items is None and reason_of(variable.pieces):
            return [unknown(source, *token, reason_of(variable.pieces), quoted)]
        items = variable.items if variable.items is not None else {"0": variable.pieces}
        text = source.of(index)
        if text in ("@", "*"):
            return self._many(list(items.values()), text == "*", source, quoted, splits, token)
        key = self._index(name, index, source)
        if key is None:
            return [unknown(source, *token, "an element at an unknown index", quoted)]
        if key.startswith("-") and is_number(key[1:]) and len(items) >= int(key[1:]):
            key = list(items)[int(key)]
        return self._emit(items.get(key, []), source, quoted, splits, token)

    def _index(self, name: str, node: Any, source: Source) -> str | None:
        """An index or key as text; None where it is not known."""
        text = source.of(node)
        variable = self.environment.get(name)
        keys = variable.items if variable is not None and variable.items is not None else {}
        if text.strip("\"'") in keys:
            return text.strip("\"'")
        plain = self._plain(node, source)
        if plain is not None and plain in keys:
            return plain
        if name in self.keyed or plain is None or any(not key.isdigit() for key in keys):
            return plain
        try:
            return str(arithmetic.evaluate(plain, self._lookup))
        except arithmetic.Unknown:
            return None

    def _plain(self, node: Any, source: Source) -> str | None:
        """The text of a word; None where it is not known."""
        return self._plain_text([node], source)

    def _plain_text(self, nodes: Sequence[Any], source: Source) -> str | None:
        """The text of a word that the grammar may have divided; None where it is not known."""
        items = [item for node in nodes for item in self.word_items(node, source, splits=False)]
        return None if reason_of(items) else text_of(items)

    def _calculate(self, node: Any, source: Source, start: int, end: int) -> int:
        items = self.region(node, start, end, source, "string", False)
        reason = reason_of(items)
        if reason:
            raise arithmetic.Unknown(reason)
        return arithmetic.evaluate(text_of(items), self._lookup)

    def _lookup(self, name: str) -> str:
        """The text of a variable. Raises :class:`shell_arithmetic.Unknown` where it is not known."""
        value = self._value_of(name)
        if value is None:
            raise arithmetic.Unknown(from_environment(name))
        if reason_of(value):
            raise arithmetic.Unknown(reason_of(value))
        return text_of(value)

    def _heredoc(self, node: Any, source: Source) -> Pieces:
        """The text that a heredoc feeds, expanded where its delimiter is not quoted."""
        start_node = next((child for child in node.children if child.type == "heredoc_start"), None)
        body = next((child for child in node.children if child.type == "heredoc_body"), None)
        if start_node is None or body is None:
            return []
        start, end = body.start_byte, body.end_byte
        delimiter = source.of(start_node)
        if any(mark in delimiter for mark in "\"'\\"):
            pieces = source.slice(start, end)
        else:
            pieces = self.region(body, start, end, source, "heredoc", False)
        if any(child.type == "<<-" for child in node.children):
            text = text_of(pieces)
            if "\t" in text:
                kept: Pieces = []
                at = 0
                for line in text.splitlines(keepends=True):
                    lead = len(line) - len(line.lstrip("\t"))
                    kept += part(pieces, at + lead, at + len(line))
                    at += len(line)
                pieces = kept
        return pieces

    def _cat_heredoc(self, node: Any, source: Source) -> Pieces | None:
        """The text of ``$(cat <<EOF ... EOF)``; None for any other substitution."""
        inner = [child for child in node.children if child.is_named]
        if len(inner) != 1 or inner[0].type != "redirected_statement":
            return None
        body = inner[0].child_by_field_name("body")
        redirects = [child for child in inner[0].children if child.type == "heredoc_redirect"]
        if body is None or len(redirects) != 1 or source.of(body).strip() != "cat":
            return None
        pieces = self._heredoc(redirects[0], source)
        while pieces and pieces[-1].text.endswith("\n"):
            last = pieces.pop()
            stripped = last.text.rstrip("\n")
            if stripped:
                pieces.append(last.part(0, len(stripped)))
        return pieces


def _rest_of_name(runs: list[braces.Run], text: str) -> str:
    """The letters at the front of the runs, taken off them: braces are expanded before variables, so ``$A{1,2}`` is
    ``$A1 $A2``."""
    name = ""
    while runs:
        run = runs.pop(0)
        said = run if isinstance(run, str) else text[run[0] : run[1]]
        letters = _OF_NAMES.match(said).group()  # type: ignore[union-attr]
        name += letters
        if len(letters) < len(said):
            runs.insert(0, said[len(letters) :] if isinstance(run, str) else (run[0] + len(letters), run[1]))
            break
    return name


def from_environment(name: str) -> str:
    return f"{name} is not set in the script"


def _only_lists(nodes: Sequence[Any], source: Source) -> bool:
    """Whether a string holds nothing but ``$@`` or ``${A[@]}``, which vanish when they are empty."""
    if len(nodes) != 1:
        return False
    text = source.text[start_of(nodes[0], source) : nodes[0].end_byte]
    return text in ("$@", "${@}") or text.endswith("[@]}")


def split_unquoted(items: Items) -> Items:
    """Word splitting of those pieces that were in no quotes."""
    out: Items = []
    for item in items:
        if item is BREAK or item.quoted:
            out.append(item)
        else:
            out += split([item], " \t\n")
    return out
