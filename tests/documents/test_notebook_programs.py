"""The program that a notebook's cells are: its text, and where each part of it stands in the notebook."""

from __future__ import annotations

import ast
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memlint.documents import notebook
from memlint.documents.lines import Lines


def raw(*cells: str, indent: int | None = 1, kind: str = "code") -> str:
    sources = [{"cell_type": kind, "source": cell.splitlines(keepends=True)} for cell in cells]
    return json.dumps({"cells": sources, "nbformat": 4}, indent=indent)


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        pytest.param(("x = 1\n", "y = 2"), "x = 1 y = 2", id="cells follow one another"),
        pytest.param(("%%capture\nx = 1\n",), "x = 1", id="a cell whose output is caught"),
        pytest.param(("%%bash\nls\n", "x = 1"), "x = 1", id="a cell of another language is left out"),
        pytest.param(("if x:\n    !pip install y\nz = 1\n",), "if x: pass z = 1", id="a command stands for nothing"),
        pytest.param(("!a \\\n  --b\nx = 1\n",), "pass x = 1", id="a command that goes on"),
        pytest.param(("%load_ext a\nx = 1\n",), "pass x = 1", id="a magic"),
        pytest.param(("x = = 1\n", "y = 2\n"), "y = 2", id="a cell that is no Python is left out"),
    ],
)
def test_what_the_cells_say(cells: tuple[str, ...], said: str) -> None:
    assert " ".join(notebook.Program("a.ipynb", raw(*cells)).text.split()) == said


def test_text_is_no_program() -> None:
    assert notebook.Program("a.ipynb", raw("x = 1", kind="markdown")).text.strip() == ""


WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=6)


@given(words=st.lists(WORDS, min_size=1, max_size=6), indent=st.sampled_from([1, None]), plain=st.booleans())
def test_each_string_is_found_where_it_stands(words: list[str], indent: int | None, plain: bool) -> None:
    written = [json.dumps(word) if plain else repr(word) for word in words]
    cell = "".join(f"x = {word}  # {word}\n" for word in written)
    text = raw(cell, "y = 1\n", indent=indent)
    found = notebook.Program("a.ipynb", text)
    lines, own = Lines("a.ipynb", text), Lines("", found.text)
    constants = [node for node in ast.walk(ast.parse(found.text)) if isinstance(node, ast.Constant)]
    assert len(constants) == len(words) + 1
    for node in constants:
        begin, end = (
            own.offset(line, 1) + len(found.text.split("\n")[line - 1].encode()[:column].decode())
            for line, column in ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))
            if line is not None
        )
        span = found.span(begin, end)
        assert json.loads(f'"{lines.slice(span)}"') == found.text[begin:end]
        if indent:
            assert span.line == node.lineno
