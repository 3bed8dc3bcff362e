"""Trees of nodes by keys: looked up, put in and laid over one another."""

from __future__ import annotations

from typing import Any

from memlint.dialects.schema import Key
from memlint.documents.node import Document, Node, Span, Unresolved


def child(node: Node | None, names: tuple[str, ...]) -> Node | None:
    """The first of these keys that a mapping has."""
    if node is None or not isinstance(node.value, dict):
        return None
    for name in names:
        found = node.value.get(name)
        if found is not None:
            return found
    return None


def lookup(root: Node, key: Key) -> Node | None:
    """The node at an annotated key; the unresolved node on the way to it, where there is one; or None."""
    if len(key.path) == 1 and isinstance(root.value, dict):
        return child(root, key.names)
    node = root
    for depth, part in enumerate(key.path):
        value = node.value
        if isinstance(value, dict):
            found = child(node, key.names if depth == len(key.path) - 1 else (part,))
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            found = value[int(part)]
        else:
            return None
        if found is None or found.is_unresolved:
            return found
        node = found
    return node


def find(root: Node, dotted: str) -> Node | None:
    """The node at a dotted key; keys that themselves hold dots (``--policy.type``) are tried first."""
    if isinstance(root.value, dict) and dotted in root.value:
        return root.value[dotted]
    head, dot, rest = dotted.partition(".")
    if not dot:
        return None if isinstance(root.value, dict) else root.get(dotted)
    inner = root.get(head)
    return find(inner, rest) if inner is not None else None


def nest(tree: dict[str, Node], path: tuple[str, ...], node: Node) -> None:
    """Put a node into a tree of tables; what is there and no table gives way."""
    for part in path[:-1]:
        table = tree.get(part)
        if table is None or not isinstance(table.value, dict):
            table = tree[part] = Node({}, node.span, node.key_span, part, node.via)
        assert isinstance(table.value, dict)
        tree = table.value
    tree[path[-1]] = node


def replaced(root: Node, key: Key, tree: Node) -> Node:
    """A copy of the tree with another node at a key."""

    def copy(node: Node, depth: int) -> Node:
        if depth == len(key.path) or not isinstance(node.value, dict):
            return tree
        names = key.names if depth == len(key.path) - 1 else (key.path[depth],)
        name = next(name for name in names if name in node.value)
        value = {**node.value, name: copy(node.value[name], depth + 1)}
        return Node(value, node.span, node.key_span, node.keys, node.via)

    return copy(root, 0)


def spread(value: Any, node: Node) -> Node:
    """The tree that a word stands for (``deepspeed: zero2``), every value of which is written where the word is."""
    if isinstance(value, dict):
        value = {name: spread(inner, Node(None, node.span, None, name, node.via)) for name, inner in value.items()}
    return Node(value, node.span, node.key_span, node.keys, node.via)


def overlaid(root: Node, words: list[Node], document: Document) -> Node:
    """The tree of a file with ``key=value`` words of the command that names it, each standing where it was written."""
    from memlint.documents.lines import bounds, line_starts, position
    from memlint.documents.overrides import OverrideError, parse_value, put, split_key

    for word in words:
        unknown = word.value if isinstance(word.value, Unresolved) else None
        whole = word.value if unknown is None else unknown.text.strip("\"'")
        key, equals, text = whole.partition("=") if isinstance(whole, str) else ("", "", "")
        parts = split_key(key.lstrip("+~"))
        if not equals or not parts or not all(part.replace("_", "a").replace("-", "a").isalnum() for part in parts):
            continue
        span = word.span
        source = document.sources.get(span.path, document.text)
        starts = line_starts(source, span.path)
        start, end = bounds(starts, span)
        at = source.find("=", start, end)
        if at >= 0 and not word.via:  # the value alone, so that an edit leaves the key in place
            written = source[at + 1 : end].rstrip("\"'")
            line, column = position(starts, at + 1)
            end_line, end_column = position(starts, at + 1 + len(written))
            span = Span(span.path, line, column, end_line, end_column)
        try:
            value = parse_value(text, str(whole), 1, 0) if unknown is None else Node(unknown._replace(text=text), span)
            root = put(root, parts, _standing(value, span, word), str(whole))
        except OverrideError:
            continue  # the program itself would refuse it
        leaf = root.get(".".join(parts))
        if leaf is not None and not leaf.is_mapping:
            leaf.key_span = word.span  # here it is stated, wherever the file has the key
    return root


def _standing(value: Node, span: Span, word: Node) -> Node:
    """A value with all its parts at one place."""
    inner = value.value
    if isinstance(inner, dict):
        inner = {name: _standing(part, span, word) for name, part in inner.items()}
    elif isinstance(inner, list):
        inner = [_standing(part, span, word) for part in inner]
    return Node(inner, span, word.span, value.keys, word.via)


def why_unknown(node: Node) -> str:
    return node.value.reason if isinstance(node.value, Unresolved) else "not a plain value"
