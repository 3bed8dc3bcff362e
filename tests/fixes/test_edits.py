"""Edits on a text: only their spans change, whatever their order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memlint.documents.node import Edit, Span
from memlint.fixes.edits import EditError, apply_edits


def edit(line: int, column: int, end_line: int, end_column: int, text: str, path: str = "a.yaml") -> Edit:
    return Edit(Span(path, line, column, end_line, end_column), text)


@pytest.mark.parametrize(
    ("text", "edits", "expected"),
    [
        pytest.param("a: 1\nb: 2\n", [edit(2, 4, 2, 5, "30")], "a: 1\nb: 30\n", id="a replacement"),
        pytest.param("a: 1\n", [edit(1, 5, 1, 5, " # c")], "a: 1 # c\n", id="an insertion"),
        pytest.param("a: 1\nb: 2\n", [edit(1, 1, 2, 1, "")], "b: 2\n", id="a deletion over a line break"),
        pytest.param("ab", [edit(1, 2, 1, 2, "1"), edit(1, 2, 1, 2, "2")], "a12b", id="insertions keep their order"),
        pytest.param("ab", [edit(1, 2, 1, 3, "x"), edit(1, 1, 1, 2, "y")], "yx", id="neighbours in any order"),
        pytest.param("é😀: 1\r\nb: 2", [edit(2, 4, 2, 5, "9")], "é😀: 1\r\nb: 9", id="code points and CRLF"),
        pytest.param("a", [edit(1, 2, 1, 2, "\nb")], "a\nb", id="at the end of a text without a line break"),
        pytest.param("a", [], "a", id="no edits"),
    ],
)
def test_applied(text: str, edits: list[Edit], expected: str) -> None:
    assert apply_edits(text, edits) == expected


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        pytest.param([edit(1, 1, 1, 3, "x"), edit(1, 2, 1, 4, "y")], "same text", id="an overlap"),
        pytest.param([edit(1, 1, 1, 4, "x"), edit(1, 2, 1, 2, "y")], "same text", id="an insertion into a replacement"),
        pytest.param([edit(1, 1, 1, 2, "x"), edit(1, 1, 1, 2, "x")], "same text", id="the same edit twice"),
        pytest.param([edit(9, 1, 9, 2, "x")], "not inside", id="a line that is not there"),
        pytest.param([edit(1, 1, 1, 99, "x")], "not inside", id="a column that is not there"),
        pytest.param([edit(1, 3, 1, 2, "x")], "not inside", id="an end before its start"),
        pytest.param([edit(1, 0, 1, 2, "x")], "not inside", id="a column before the first"),
        pytest.param([edit(1, 1, 1, 8, "x")], "not inside", id="an end behind the last"),
        pytest.param([edit(1, 1, 1, 2, "x"), edit(1, 3, 1, 4, "y", "b.yaml")], "different files", id="two files"),
    ],
)
def test_refused(edits: list[Edit], message: str) -> None:
    with pytest.raises(EditError, match=message):
        apply_edits("abcdef", edits)


def test_edits_may_come_one_by_one() -> None:
    assert apply_edits("ab", (edit(1, 1, 1, 2, text) for text in "x")) == "xb"
    assert apply_edits("ab", iter([])) == "ab"


def test_two_edits_of_one_text_are_named_with_its_file() -> None:
    with pytest.raises(EditError, match=r"^b\.yaml: two edits change the same text at offset 1$"):
        apply_edits("abc", [edit(1, 1, 1, 3, "x", "b.yaml"), edit(1, 2, 1, 3, "y", "b.yaml")])


@given(
    text=st.text("ab\n", max_size=30),
    cuts=st.lists(st.integers(0, 30), min_size=2, max_size=8, unique=True),
    order=st.randoms(use_true_random=False),
)
def test_what_lies_outside_of_the_spans_stays(text: str, cuts: list[int], order: object) -> None:
    cuts = sorted(min(cut, len(text)) for cut in cuts)
    lines = text.split("\n")

    def place(offset: int) -> tuple[int, int]:
        for number, line in enumerate(lines, 1):
            if offset <= len(line):
                return number, offset + 1
            offset -= len(line) + 1
        raise AssertionError

    pieces, edits, last = [], [], 0
    for start, end in zip(cuts[::2], cuts[1::2]):
        if edits and start == last:
            continue
        edits.append(Edit(Span("a.sh", *place(start), *place(end)), "<>"))
        pieces += [text[last:start], "<>"]
        last = end
    expected = "".join([*pieces, text[last:]])
    order.shuffle(edits)  # type: ignore[attr-defined]
    assert apply_edits(text, edits) == expected
