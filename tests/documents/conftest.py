"""What the tests of the readers share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memlint.documents.lines import Lines
from memlint.documents.node import Document, Node, Span
from tests.material import corpus_folder


def text_at(document: Document, span: Span | None) -> str:
    """What a span of a document selects, in whichever of its files it is."""
    assert span is not None
    text = document.sources.get(span.path, document.text)
    return Lines(span.path, text).slice(span)


def node_at(document: Document, key_path: str) -> Node:
    node = document.root.get(key_path)
    assert node is not None, f"no {key_path}"
    return node


def check_paths(root: Node) -> None:
    """Every node says the path at which it is found."""
    pending: list[tuple[str, Node]] = [("", root)]
    while pending:
        path, node = pending.pop()
        assert node.key_path == path
        prefix = f"{path}." if path else ""
        if isinstance(node.value, dict):
            pending += [(prefix + name, child) for name, child in node.value.items()]
        elif isinstance(node.value, list):
            pending += [(f"{prefix}{index}", child) for index, child in enumerate(node.value)]


def same(left: Any, right: Any) -> bool:
    """Equal in value and type, not-a-number included."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float) and left != left:
        return isinstance(right, float) and right != right
    return type(left) is type(right) and bool(left == right)


@pytest.fixture
def corpus() -> Path:
    return corpus_folder()
