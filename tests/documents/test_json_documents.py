from __future__ import annotations

import json as stdlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memlint import work
from memlint.documents import json
from memlint.documents.load import load
from memlint.documents.node import Document

from .conftest import check_paths, node_at, same, text_at

TREES = st.dictionaries(
    st.text(max_size=6),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
        lambda below: st.lists(below, max_size=4) | st.dictionaries(st.text(max_size=6), below, max_size=4),
        max_leaves=15,
    ),
    max_size=6,
)


def read(text: str, path: str = "config.json") -> Document:
    return json.read(path, text)


@given(TREES, st.sampled_from([None, 0, 2, "\t"]), st.booleans())
@settings(max_examples=300, deadline=None)
def test_any_object_comes_back_and_every_span_selects_its_value(
    tree: dict[str, Any], indent: int | str | None, ascii_only: bool
) -> None:
    text = stdlib.dumps(tree, indent=indent, ensure_ascii=ascii_only)
    document = read(text)
    assert document.faults == ()
    assert same(document.root.plain(), stdlib.loads(text))
    for node in document.root.walk():
        assert same(stdlib.loads(text_at(document, node.span)), node.plain())
    for name, child in (document.root.value or {}).items():
        assert stdlib.loads(text_at(document, child.key_span)) == name


@given(st.text(alphabet='{}[]",:0123456789.eE+-truefalsn \n\\u/', max_size=25))
@settings(max_examples=1500, deadline=None)
def test_exactly_what_the_standard_library_refuses_is_a_fault(text: str) -> None:
    document = read(text)
    pairs: list[list[tuple[str, Any]]] = []

    def remember(found: list[tuple[str, Any]]) -> dict[str, Any]:
        pairs.append(found)
        return dict(found)

    try:
        value = stdlib.loads(text, object_pairs_hook=remember)
    except ValueError:
        assert any(fault.code == "MEM003" for fault in document.faults)
        return
    repeated = any(len({name for name, _ in found}) < len(found) for found in pairs)
    assert [fault.code for fault in document.faults][:1] == (["MEM006"] if repeated else [])
    if isinstance(value, dict):
        assert same(document.root.plain(), value)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        pytest.param('{"a": 1\n "b": 2}', 2, "','", id="a comma that is not there"),
        pytest.param('{"a": tru}', 1, "value", id="half a word"),
        pytest.param("{'a': 1}", 1, "double quotes", id="single quotes"),
        pytest.param('{"a": "x\n"}', 1, "not closed", id="a string over two lines"),
        pytest.param('{"a": 1} {"b": 2}', 1, "more text", id="two values"),
        pytest.param('{"a": [1, 2', 1, "ends", id="a text that ends early"),
        pytest.param("", 1, "ends", id="no text"),
        pytest.param('{"a": 01}', 1, "','", id="a leading zero"),
        pytest.param('{"a" 1}', 1, "':'", id="a colon that is not there"),
        pytest.param('{"a": /* x', 1, "never ends", id="a comment without end"),
        pytest.param('{"a": ' + "9" * 400 + "}", 1, "digits", id="a number without practical bound"),
    ],
)
def test_what_is_not_json_is_one_fault_with_its_line(text: str, line: int, words: str) -> None:
    document = read(text)
    (fault,) = document.faults
    assert fault.code == "MEM003"
    assert words in fault.message
    assert fault.span.line == line
    assert document.root.plain() == {}


COMMENTED = '{\n  // why\n  "a": {"b": 2,}, /* here */ "c": [1, 2, ]\n}'


def test_comments_and_trailing_commas_are_faults_that_do_not_stop_the_reading() -> None:
    document = read(COMMENTED)
    assert document.root.plain() == {"a": {"b": 2}, "c": [1, 2]}
    assert [(fault.code, text_at(document, fault.span)) for fault in document.faults] == [
        ("MEM003", "// why"),
        ("MEM003", ","),
        ("MEM003", "/* here */"),
        ("MEM003", ","),
    ]


def test_comments_are_what_jsonc_is_for() -> None:
    document = read(COMMENTED, "config.jsonc")
    assert document.faults == ()
    assert document.root.plain() == {"a": {"b": 2}, "c": [1, 2]}


def test_a_key_written_twice_is_a_fault_and_the_second_wins() -> None:
    document = read('{\n "a": 1,\n "b": {"a": 1},\n "a": 2}')
    (fault,) = document.faults
    assert (fault.code, fault.span.line, fault.related[0].line) == ("MEM006", 4, 2)
    assert document.root.plain() == {"a": 2, "b": {"a": 1}}


def test_a_comment_key_is_a_key() -> None:
    assert node_at(read('{"//": "memlint: file-ignore[MEM101] why", "a": 1}'), "//").value is not None


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, '{"a": ' + "[" * 300 + "]" * 300 + "}"])
def test_deep_nesting_is_a_fault_within_bounded_work(text: str) -> None:
    with work.limited(work.FILE_STEPS // 4):
        document = read(text)
    assert [fault.code for fault in document.faults] == ["MEM003"]


def test_every_real_file_reads_as_the_standard_library_reads_it(corpus: Path) -> None:
    compared = 0
    for path in sorted(corpus.rglob("*.json")):
        document = load(str(path))
        check_paths(document.root)
        try:
            expected = stdlib.loads(document.text)
        except ValueError:
            assert document.faults
            continue
        assert document.faults == ()
        assert same(document.root.plain(), expected)
        compared += 1
    assert compared > 10
