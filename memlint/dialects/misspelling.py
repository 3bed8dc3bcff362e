"""Keys that look like misspelt ones which decide about memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from memlint import work
from memlint.dialects.acceptance import has_type
from memlint.dialects.schema import ANNOTATION, Schema, properties, released, resolve, types
from memlint.documents.node import Node, Unresolved
from memlint.named_tuple import NamedTuple


class Slip(NamedTuple):
    """``name``, the key of ``node``, was probably to be ``meant``."""

    node: Node
    name: str
    meant: str


def _relevant(child: Schema, root: Schema, depth: int = 0) -> bool:
    """Whether a key decides about memory: it sets a fact, is marked, or holds such keys."""
    if depth > 8:
        return False
    resolved = resolve(child, root)
    annotation = resolved.get(ANNOTATION, {})
    if any(name in annotation for name in ("fact", "memory_relevant", "companion")):
        return True
    return any(_relevant(inner, root, depth + 1) for inner in properties(resolved, root).values())


class _Names(NamedTuple):
    """The names that the keys of a mapping may have.

    known      name, or alias -> the schema of its value
    by_length  length of a text -> the names that it may be a slip of, with their letters
    """

    known: dict[str, Schema]
    by_length: dict[int, list[tuple[str, int]]]


# By the identity of the schemas that they are made of, which are kept beside them so that it stays theirs.
_named: dict[tuple[int, int], tuple[Schema, Schema, _Names]] = {}


def _names(schema: Schema, root: Schema) -> _Names:
    if (id(schema), id(root)) not in _named:
        known = properties(schema, root)
        for property_schema in list(known.values()):
            for alias in resolve(property_schema, root).get(ANNOTATION, {}).get("aliases", ()):
                known.setdefault(alias, property_schema)
        by_length: dict[int, list[tuple[str, int]]] = {}
        for name in known:
            for length in range(len(name) - 2, len(name) + 3):
                by_length.setdefault(length, []).append((name, _letters(name)))
        _named[id(schema), id(root)] = (schema, root, _Names(known, by_length))
    return _named[id(schema), id(root)][-1]


def known_names(schema: Schema, root: Schema) -> dict[str, Schema]:
    """The names that the keys of a mapping may have, aliases included, with the schemas of their values."""
    return _names(schema, root).known


def slips(root: Node, schema: Schema) -> Iterator[Slip]:
    """The misspelt keys of a tree."""
    return _slips(root, schema, schema, 0)


def _slips(node: Node, schema: Schema, root: Schema, depth: int) -> Iterator[Slip]:
    if not isinstance(node.value, dict) or depth > 24:
        return
    known, by_length = _names(schema, root)
    for name, child in node.value.items():
        if name in known:
            yield from _slips(child, known[name], root, depth + 1)
            continue
        candidates = by_length.get(len(name), ())
        letters = _letters(name) if candidates else 0
        work.spend(1 + len(candidates) // 4, "looking for misspelt keys")
        for candidate, others in candidates:
            if (
                (letters ^ others).bit_count() <= 4
                and candidate not in node.value  # where the right key is there too, the other one is a key of its own
                and is_misspelling(name, candidate)
                and _could_hold(known[candidate], child, root)
                and _relevant(known[candidate], root)
                and not (depth == 0 and name in released(root))
            ):
                yield Slip(child, name, candidate)
                break


def _could_hold(schema: Schema, node: Node, root: Schema) -> bool:
    """Whether a key has values of this type: a slip changes a key's name, not what is meant (``vocab_size: 50304`` is
    no ``vocab_file``). Text may be a number in quotes, 1 may mean true, and nothing may stand anywhere."""
    kinds = types(schema, root)
    if not kinds or node.value is None or isinstance(node.value, (str, Unresolved)):
        return True
    if isinstance(node.value, (int, float)):
        return not kinds.isdisjoint(("boolean", "integer", "number"))
    return any(has_type(node.value, kind) for kind in kinds)


def _letters(name: str) -> int:
    """The characters of a name as bits: two edits change four of them at most."""
    bits = 0
    for character in name:
        bits |= 1 << (ord(character) & 63)
    return bits


def is_misspelling(name: str, known: str) -> bool:
    """Whether a name is another one with a slip: a character dropped, doubled, wrong or swapped within a word, or what
    parts its words left out.

    Words keep their first letters: ``use_rslora`` is no slip of ``use_bdlora``, nor ``pvera`` of ``vera``. A wrong
    letter in a word of four is another word (``lora``, ``loha``), and so is the plural of a name that is one word.
    Names of fewer than 4 characters are too close to each other.
    """
    if name == known or min(len(name), len(known)) < 4:
        return False
    # Three slips at the most: most pairs are too far apart to be measured.
    if abs(len(name) - len(known)) > 3 or len(set(name) ^ set(known)) > 6:
        return False
    work.spend(len(name), "looking for misspelt keys")
    ones, others = _words(name), _words(known)
    if "".join(ones) == "".join(others):
        return True
    if len(ones) != len(others):
        return False
    pairs = [(one, other) for one, other in zip(ones, others) if one != other]
    if len(ones) == 1 and (name + "s" == known or known + "s" == name):
        return False
    return len(pairs) <= 2 and all(_is_slip(one, other) for one, other in pairs)


_PARTS = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])")
_LEAST_WORD = 4  # letters


def _words(name: str) -> list[str]:
    return [word for word in _PARTS.split(name) if word]


def _is_slip(one: str, other: str) -> bool:
    if max(len(one), len(other)) < _LEAST_WORD or one[:1] != other[:1]:
        return False
    if len(one) == len(other) <= _LEAST_WORD and sorted(one) != sorted(other):
        return False
    return _distance(one, other, 1) <= 1


def _distance(one: str, other: str, limit: int) -> int:
    """Damerau-Levenshtein distance in its optimal string alignment form; any number above ``limit`` that is more."""
    before: list[int] = []
    last = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        row = [i]
        for j, b in enumerate(other, 1):
            cost = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (a != b))
            if i > 1 and j > 1 and a == other[j - 2] and one[i - 2] == b:
                cost = min(cost, before[j - 2] + 1)
            row.append(cost)
        if min(row) > limit <= min(last):  # a row follows from the two before it
            return limit + 1
        before, last = last, row
    return last[-1]


def near(text: str, candidates: Any) -> str:
    """Of some texts, the one that a text is probably meant to be; "" where none is near."""
    from difflib import get_close_matches

    options = list(candidates)
    by_lower = {option.lower(): option for option in reversed(options)}
    matches = get_close_matches(text.lower(), list(by_lower), n=1, cutoff=0.6)
    return by_lower[matches[0]] if matches else ""
