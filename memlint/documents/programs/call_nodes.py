"""A call, as who follows a program gives it: a mapping of what it is given, with what is called as ``_target_`` and its
arguments by place as ``_args_``.
"""

from __future__ import annotations

from memlint.documents.node import Node

# What programs call their tokenizers, by which a call of one is told.
TOKENIZERS = ("tokenizer", "tok", "processor")


def values_of(node: Node | None) -> dict[str, Node]:
    return node.value if node is not None and isinstance(node.value, dict) else {}


def target_of(node: Node | None) -> str:
    target = values_of(node).get("_target_")
    return "" if target is None else str(target.value)


def name_of(node: Node | None) -> str:
    return target_of(node).rpartition(".")[2]


def argument(node: Node | None, name: str, at: int = 0) -> Node | None:
    """An argument of a call, by its name or its place."""
    values = values_of(node)
    given = values.get("_args_")
    items = given.value if given is not None and isinstance(given.value, list) else []
    return values.get(name, items[at] if 0 <= at < len(items) else None)
