"""Fact -> edits: how a change of a fact is written in the family and format of the run at hand.

A value that was written is replaced where it was written (a shell variable's assignment, the target of an
interpolation), unless another fact was written by the same characters: then at its own use. A key that is absent
is added after the last entry of its nearest existing parent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from memlint.dialects import acceptance
from memlint.dialects import schema as schemas
from memlint.dialects.base import Dialect, fact_value, file_text
from memlint.dialects.insertion import add
from memlint.dialects.rendering import rendered, text_of
from memlint.dialects.schema import Key
from memlint.documents.lines import bounds, position
from memlint.documents.node import Edit, Node, Span
from memlint.facts.spec import WRITTEN, Fact, Name, TrainingSpec, named

JOINED = " + "  # between facts that keys say only together


def spell(spec: TrainingSpec, fact: Name, value: Any) -> list[Edit]:
    """The edits that give a fact a value; empty where the family has no way to write it.

    The edits may be in another file than the config itself: where a Hydra group or a script wrote the value, and
    in each further file that states it (:attr:`TrainingSpec.repeated`).
    """
    edits = _spell(spec, fact, value)
    for other in spec.repeated.get(fact, ()) if edits else ():
        more = _replace(spec, other, None, value)
        if not more:
            return []
        edits += [edit for edit in more if edit not in edits]
    return edits


def spell_each(spec: TrainingSpec, changes: Mapping[Name, Any]) -> Iterator[tuple[tuple[Name, ...], list[Edit]]]:
    """(facts, the edits that give them their values) of several that change together: each alone, but for those that
    need other keys together than each alone (the schema's ``written``). No edits where there is no way to write it."""
    from memlint.dialects import registry

    left = dict(changes)
    dialect = registry.dialect(spec.family)
    for joined, values in dialect.header.get("written", {}).items():
        names = tuple(map(named, joined.split(JOINED)))
        if len(names) == 1 or not left.keys() >= set(names):
            continue
        way = values.get(JOINED.join(file_text(left[name]) for name in names))
        if way is not None and (edits := bundle(spec, dialect, names[0], way)):
            yield names, edits
            left = {name: value for name, value in left.items() if name not in names}
    for name, value in left.items():
        yield (name,), spell(spec, name, value)


def put_right(spec: TrainingSpec, node: Node, value: Any) -> list[Edit]:
    """The edits that write another value in the place of one, in its format; where other keys have theirs from the
    same place, at its own use. Empty where that cannot be written."""
    shared = any(other is not node and other.span == node.span for other in spec.root.walk())
    for span in (node.span, *node.via)[shared:]:
        text = text_of(spec, span.path)
        if text is not None:
            new = rendered(text, span, text.at(span), value)
            return [] if new is None else [Edit(span, new)]
    return []


def _spell(spec: TrainingSpec, fact: Name, value: Any) -> list[Edit]:
    from memlint.dialects import registry

    dialect = registry.dialect(spec.family)
    written = dialect.header.get("written", {}).get(fact, {}).get(file_text(value))
    ways = written if isinstance(written, list) else [] if written is None else [written]
    edits = next((edits for way in ways if (edits := bundle(spec, dialect, fact, way))), None)
    if edits is not None:
        return edits
    if dialect.module is not None and hasattr(dialect.module, "spell"):
        edits = dialect.module.spell(spec, fact, value)
        if edits is not None:
            return list(edits)
    known = spec.fact(fact)
    keys = dialect.keys_of(fact)
    if known is not None and known.origin == WRITTEN and known.node is not None:
        key = _key_of(known, keys)
        annotation = key.annotation if key is not None else {}
        if fact_value(known.node.plain(), annotation) != known.value:
            return []  # the Python half made the fact out of more than this value
        accepted, written = _file_value(dialect, key, value)
        return _replace(spec, known, key, written) if accepted else []
    for key in keys:
        accepted, written = _file_value(dialect, key, value)
        if accepted:
            edits = add(spec, key, written)
            if edits:
                return edits
    return []


def bundle(spec: TrainingSpec, dialect: Dialect, fact: Name, written: dict[str, Any]) -> list[Edit]:
    """The edits that write several keys, which together say one fact: those that are there are changed, the others are
    added. Empty where one of them cannot be written."""
    found: list[Edit] = []
    known = spec.fact(fact)
    stated = None if known is None else known.node
    for name, value in written.items():
        above, _, last = name.rpartition(".")
        key = next(key for key in dialect.keys if last in key.names and ".".join(key.path[:-1]) == above)
        nodes = (spec.root.get(f"{above}.{one}".lstrip(".")) for one in key.names)
        node = next((node for node in nodes if node is not None), None)
        if node is not None and node.plain() == value:
            continue
        if node is not None and stated is not None and stated.span.path != node.span.path:
            return []  # it stands in a file that the key names
        edits = add(spec, key, value) if node is None else put_right(spec, node, value)
        if not edits:
            return []
        found += edits
    return found


def _key_of(fact: Fact, keys: Sequence[Key]) -> Key | None:
    spelled = fact.key.lstrip("-") if fact.key.startswith("-") else fact.key
    for key in keys:
        if any(spelled == ".".join((*key.path[:-1], name)) for name in key.names):
            return key
    return keys[0] if keys else None


def _file_value(dialect: Dialect, key: Key | None, value: Any) -> tuple[bool, Any]:
    """(can the family write it, what stands in the file) for a fact's value."""
    if key is None:
        return True, value
    values = key.annotation.get("values", {})
    written = value
    for text, meaning in values.items():
        if meaning == value and type(meaning) is type(value):
            written = _from_text(text, dialect, key)
            break
    else:
        if file_text(value) in values:  # in the file this spelling means something else
            return False, value
    probe = _plain_node(written)
    return acceptance.accepts(probe, key.schema, dialect.schema), written


def _from_text(text: str, dialect: Dialect, key: Key) -> Any:
    """The file's value that ``values`` names by a text: ``true`` is True where the key takes a boolean."""
    kinds = schemas.types(key.schema, dialect.schema)
    constants: dict[str, Any] = {"true": True, "false": False, "null": None}
    if text in constants:
        kind = "null" if text == "null" else "boolean"
        return constants[text] if kind in kinds or not kinds else text
    for kind, convert in (("integer", int), ("number", float)):
        if kind in kinds:
            try:
                return convert(text)
            except ValueError:
                continue
    return text


def _plain_node(value: Any) -> Node:
    nowhere = Span("", 1, 1, 1, 1)
    if isinstance(value, (list, tuple)):
        return Node([_plain_node(item) for item in value], nowhere)
    if isinstance(value, dict):
        return Node({name: _plain_node(item) for name, item in value.items()}, nowhere)
    return Node(value, nowhere)


# ---------------------------------------------------------------------------------------------- replacing


def _replace(spec: TrainingSpec, fact: Fact, key: Key | None, value: Any) -> list[Edit]:
    node = fact.node
    assert node is not None
    if isinstance(value, tuple):
        value = list(value)
    if spec.launch is not None and node.key_span is not None and _is_switch(node, key):
        return _toggle(spec, node, key, value)
    if isinstance(node.value, list) and isinstance(value, list):
        items = _replace_items(spec, node, value)
        if items is not None:
            return items
    if _says_calls(spec):  # a value comes through names of objects, which are no place for it
        places = [] if _is_written_twice(spec, fact) else [node.span]
    else:
        places = [node.span, *(span for span in node.via if _stands_for_one(spec, span))]
        if len(places) > 1 and _is_shared(spec, fact):
            places = places[1:]
    for span in places:
        text = text_of(spec, span.path)
        if text is None:
            continue
        old = text.at(span)
        new = rendered(text, span, old, value)
        if new is None:
            return []
        return [Edit(span, new)] if new != old else []
    return []


def _says_calls(spec: TrainingSpec) -> bool:
    from memlint.dialects import registry

    return bool(registry.dialect(spec.family).header.get("calls"))


def _is_written_twice(spec: TrainingSpec, fact: Fact) -> bool:
    """Whether another key was written by the very same characters."""
    assert fact.node is not None
    return any(
        other.key != fact.key and other.node is not None and other.node.span == fact.node.span
        for other in spec.facts.values()
    )


def _is_shared(spec: TrainingSpec, fact: Fact) -> bool:
    """Whether another key was written by the same characters; facts made out of this one, or of the list that it
    is an element of, are not others."""
    assert fact.node is not None
    span = fact.node.span
    return any(
        other.key != fact.key and not fact.key.startswith(other.key + ".") and _overlap(part.span, span)
        for other in spec.facts.values()
        if other.node is not None
        for part in other.node.walk()
        if not isinstance(part.value, (dict, list))
    )


def _stands_for_one(spec: TrainingSpec, span: Span) -> bool:
    """Whether one value alone passed through a place: ``$FLAGS`` may stand for many."""
    nodes = [node for node in spec.root.walk() if not isinstance(node.value, (dict, list))]
    passed = {(node.span, node.key_span) for node in nodes if span in node.via}
    if spec.launch is not None:
        for word in spec.launch.words:
            inner = word.value.values() if isinstance(word.value, dict) else (word,)
            passed.update((node.span, node.key_span) for node in inner if span in node.via)
    return len({where for where, _ in passed}) == 1


def _overlap(one: Span, other: Span) -> bool:
    return one.path == other.path and one[1:3] < other[3:5] and other[1:3] < one[3:5]


def _replace_items(spec: TrainingSpec, node: Node, value: list[Any]) -> list[Edit] | None:
    """Only the elements that change, where the list keeps its length; None to replace it as a whole."""
    assert isinstance(node.value, list)
    if len(value) != len(node.value):
        return None
    edits: list[Edit] = []
    for item, wanted in zip(node.value, value):
        if item.plain() == wanted and type(item.plain()) is type(wanted):
            continue
        text = text_of(spec, item.span.path)
        if text is None or isinstance(item.value, (dict, list)):
            return None
        new = rendered(text, item.span, text.at(item.span), wanted)
        if new is None:
            return None
        edits.append(Edit(item.span, new))
    return edits


# ---------------------------------------------------------------------------------------------- switches


def _is_switch(node: Node, key: Key | None) -> bool:
    """An option that is true by being there: its value's place is the option itself."""
    return isinstance(node.value, bool) and node.span == node.key_span


def _toggle(spec: TrainingSpec, node: Node, key: Key | None, value: Any) -> list[Edit]:
    """Turn a switch off by taking it away, and a negative one (``--no_x``) likewise."""
    text = text_of(spec, node.span.path)
    if text is None or not isinstance(value, bool):
        return []
    start, end = bounds(text.starts, node.span)
    old = text.text[start:end]
    if node.value is value:
        return []
    if value:  # a negative switch: write the positive one
        name = node.key_path
        return [Edit(node.span, "--" + name)] if old.startswith("--no") else []
    if key is not None and not key.annotation.get("flag"):
        return [text.insertion(end, " False")]
    before = text.text[:start]
    kept = before.rstrip(" \t")
    if kept.endswith("\\\n"):  # alone on its line: the continuation before it goes too
        kept = kept[:-2].rstrip(" \t")
    elif kept == before:  # the first word of a string or an array: what follows it goes instead
        after = text.text[end:]
        end += len(after) - len(after.lstrip(" \t"))
    line, column = position(text.starts, len(kept))
    end_line, end_column = position(text.starts, end)
    return [Edit(Span(text.path, line, column, end_line, end_column), "")]
