"""Who describes a model describes it in its own terms: nobody makes up a ``config.json``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import memlint

DIALECTS = sorted((Path(memlint.__file__).parent / "dialects").glob("*.py"))
NAME = "model_type"


def is_name(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value == NAME


def made(tree: ast.AST) -> Iterator[int]:
    """Lines that write a model type: as a key of a mapping, as an entry that is set, or as an argument."""
    for node in ast.walk(tree):
        key = isinstance(node, ast.Dict) and any(map(is_name, node.keys))
        entry = isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and is_name(node.slice)
        if key or entry or (isinstance(node, ast.keyword) and node.arg == NAME):
            yield node.lineno  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", DIALECTS, ids=lambda path: path.stem)
def test_no_dialect_makes_up_a_model_type(path: Path) -> None:
    assert list(made(ast.parse(path.read_text(encoding="utf-8")))) == []


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("config = {'model_type': 'llama', 'hidden_size': 4}", id="a mapping"),
        pytest.param("config['model_type'] = 'llama'", id="an entry"),
        pytest.param("config = dict(model_type='llama')", id="an argument"),
    ],
)
def test_a_made_up_type_is_seen(line: str) -> None:
    assert list(made(ast.parse(line))) == [1]


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("kind = config['model_type']", id="an entry that is read"),
        pytest.param("kind = config.get('model_type')", id="one that may not be there"),
        pytest.param("known = {'hidden_size': 4}", id="another mapping"),
    ],
)
def test_reading_a_type_is_allowed(line: str) -> None:
    assert list(made(ast.parse(line))) == []
