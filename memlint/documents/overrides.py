"""``key=value`` laid over a document, as OmegaConf's dot lists are: values are YAML, missing keys are created.

A value that came from an override stands in the pseudo file ``<override>`` (line n is the n-th override), with
the place of the value it replaced in ``via``.
"""

from __future__ import annotations

from collections.abc import Sequence

from memlint import work
from memlint.documents.merge import merge, moved
from memlint.documents.node import Keys, Node, Span, shown

OVERRIDE_PATH = "<override>"
MAX_PARTS = 100


class OverrideError(ValueError):
    """An override that makes no sense; the message says which, and how to write it."""


def apply(document_root: Node, overrides: Sequence[str], path: str) -> Node:
    """The tree with the overrides applied in order; ``document_root`` stays as it is.

    path  the document's file, whose kind decides how keys are found: in a Python module the name of a class may
          be left out where only one has the key; for a shell script keys are option names, with or without dashes

    ``~key`` removes a key. Raises OverrideError.
    """
    root = document_root
    for index, override in enumerate(overrides):
        root = _apply_one(root, override, index + 1, path)
    return root


def stated(root: Node, override: str, path: str) -> bool:
    """Whether a tree has the key that an override sets or removes."""
    from memlint.documents.load import format_of

    node: Node | None = root
    for part in _located(root, override.strip().lstrip("~+").partition("=")[0].strip(), path, format_of(path)):
        node = node.value.get(part) if node is not None and isinstance(node.value, dict) else None
    return node is not None and node is not root


def _apply_one(root: Node, override: str, line: int, path: str) -> Node:
    from memlint.documents.load import format_of

    text = override.strip()
    if text.startswith("~"):
        keys = _located(root, text[1:].split("=")[0].strip(), path, format_of(path))
        return _removed(root, keys, override)
    key, equals, value_text = text.partition("=")
    if not equals:
        raise OverrideError(f"{override!r} is no override: write it as key=value")
    key = key.strip().lstrip("+")
    if not key.strip("-."):
        raise OverrideError(f"{override!r} names no key: write it as key=value")
    value = parse_value(value_text, override, line, override.index("=") + 1)
    return put(root, _located(root, key, path, format_of(path)), value, override)


def parse_value(text: str, override: str, line: int, offset: int) -> Node:
    """The YAML value of an override. ``offset`` is where ``text`` starts in ``override``."""
    from memlint.documents import yaml

    node, faults = yaml.value(OVERRIDE_PATH, text)
    if faults:
        raise OverrideError(f"{override!r}: the value is {faults[0].message}")
    return _shifted(node, line, offset)


def _shifted(node: Node, line: int, offset: int) -> Node:
    value = node.value
    if isinstance(value, dict):
        value = {name: _shifted(child, line, offset) for name, child in value.items()}
    elif isinstance(value, list):
        value = [_shifted(child, line, offset) for child in value]
    key_span = None if node.key_span is None else _shifted_span(node.key_span, line, offset)
    return Node(value, _shifted_span(node.span, line, offset), key_span, node.keys)


def _shifted_span(span: Span, line: int, offset: int) -> Span:
    return Span(span.path, line, span.column + offset, line + span.end_line - span.line, span.end_column + offset)


def split_key(key: str) -> list[str]:
    """``a.b[0].c`` as its parts. Raises OverrideError for more of them than any tree has levels."""
    parts = [part for part in key.replace("]", "").replace("[", ".").split(".") if part]
    if len(parts) > MAX_PARTS:
        raise OverrideError(f"{shown(key)!r} is a key of {len(parts):,} parts: no config is deeper than {MAX_PARTS}")
    return parts


def _located(root: Node, key: str, path: str, kind: str | None) -> list[str]:
    """The parts of a key, as the tree spells them."""
    top = root.value
    if not isinstance(top, dict):
        return split_key(key)
    if kind == "shell":
        key = key.lstrip("-")
        for spelled in (key, key.replace("-", "_"), key.replace("_", "-")):
            if spelled in top:
                return [spelled]
        return split_key(key) or [key]  # --train.batch_size of a config's own tree
    if key in top:
        return [key]
    parts = split_key(key)
    if kind == "python" and parts and parts[0] not in top:
        owners = [n for n, node in top.items() if isinstance(node.value, dict) and parts[0] in node.value]
        if len(owners) > 1:
            choices = " or ".join(f"{owner}.{key}" for owner in owners)
            raise OverrideError(f"{key!r} is in more than one class: write {choices}")
        if owners:
            return [owners[0], *parts]
    return parts


def put(node: Node, path: list[str], value: Node, override: str, keys: Keys = "") -> Node:
    """A copy of the tree in which the value is set; what is not on the way to it is shared.

    A mapping is merged into a mapping, anything else replaces what was there.
    """
    if not path:
        placed = moved(value, keys, node.key_span, ())
        placed.via = (node.span, *placed.via)
        merged = merge(node, placed)
        if node.is_mapping and placed.is_mapping:  # still the file's mapping, with some values changed
            return Node(merged.value, node.span, node.key_span, keys, node.via)
        return merged
    if isinstance(node.value, (dict, list)):
        work.spend(1 + len(node.value) // 20, "applying overrides")
    name, rest = path[0], path[1:]
    below = (keys, name)
    if isinstance(node.value, list):
        try:
            index = int(name)
            child = node.value[index]
        except (ValueError, IndexError):
            size = len(node.value)
            raise OverrideError(f"{override!r}: {node.shown_path} is a list of {size}, it has no item {name}") from None
        items = list(node.value)
        items[index] = put(child, rest, value, override, (keys, index % len(items)))
        return Node(items, node.span, node.key_span, node.keys, node.via)
    children = dict(node.value) if isinstance(node.value, dict) else {}
    known = children.get(name)
    if known is not None:
        children[name] = put(known, rest, value, override, below)
    elif rest:
        children[name] = put(Node({}, value.span, value.span, below), rest, value, override, below)
    else:
        children[name] = moved(value, below, value.span, ())
    return Node(children, node.span, node.key_span, node.keys, node.via)


def _removed(node: Node, keys: list[str], override: str) -> Node:
    name = keys[0] if keys else ""
    if not isinstance(node.value, dict) or name not in node.value:
        raise OverrideError(f"{override!r}: there is no such key")
    children = dict(node.value)
    if len(keys) == 1:
        del children[name]
    else:
        children[name] = _removed(children[name], keys[1:], override)
    return Node(children, node.span, node.key_span, node.keys, node.via)
