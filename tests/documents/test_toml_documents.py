from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memlint import work
from memlint.documents import toml
from memlint.documents.load import load
from memlint.documents.node import Document

from .conftest import check_paths, node_at, same, text_at

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read(text: str) -> Document:
    return toml.read("config.toml", text)


EVERY_KIND = '''\
# a header
title = "an example" # why
"quoted key" = 'literal # no comment'
site."example.com".on = true

[training] # table
lr = 1e-4
sizes = [ 1, 2, # two
  3,
  ]
multi = """
one \\"""
two"""""
literal = \'\'\'
it's
\'\'\'
day = 2024-01-01T00:00:00Z
point = { x = 1, y.z = [2, 3] }

[training.optimizer]
name="adamw"
betas =[0.9,0.95]

[[data]]
name = "a"
[[data]]
name = "b"
  [data.split]
  train = 0.9
  [[data.parts]]
  n = 1
  [[data.parts]]
  n = 2

[a.b.c]
d = -0x1F
[a]
e = inf
'''.replace("-0x1F", "0x1F")


def test_every_kind_of_value_is_where_it_was_written() -> None:
    document = read(EVERY_KIND)
    assert document.faults == ()
    found = {node.key_path: text_at(document, node.span) for node in document.root.walk()}
    assert found["title"] == '"an example"'
    assert found["quoted key"] == "'literal # no comment'"
    assert found["site.example.com.on"] == "true"
    assert found["training.lr"] == "1e-4"
    assert found["training.sizes"].startswith("[ 1, 2, # two")
    assert found["training.sizes.2"] == "3"
    assert found["training.multi"].endswith('two"""""')
    assert found["training.literal"] == "'''\nit's\n'''"
    assert found["training.point.y.z.1"] == "3"
    assert found["training.optimizer.betas.0"] == "0.9"
    assert found["data.1.split.train"] == "0.9"
    assert found["data.1.parts.1.n"] == "2"
    assert found["a.b.c.d"] == "0x1F"
    assert found["a.e"] == "inf"
    check_paths(document.root)


def test_keys_are_where_they_were_written() -> None:
    document = read(EVERY_KIND)
    keys = {node.key_path: text_at(document, node.key_span) for node in document.root.walk() if node.key_span}
    assert keys["quoted key"] == '"quoted key"'
    assert keys["site.example.com"] == '"example.com"'
    assert keys["training"] == "training"
    assert keys["training.optimizer"] == "optimizer"
    assert keys["training.point.y.z"] == "z"
    assert keys["data"] == "data"
    assert keys["a.b.c"] == "c"


def test_dates_are_the_text_that_was_written() -> None:
    assert node_at(read(EVERY_KIND), "training.day").value == "2024-01-01T00:00:00Z"


BARE = st.text(alphabet="abcxyz_-19", min_size=1, max_size=5)
STRINGS = st.text(max_size=10)
SCALARS = st.one_of(
    st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False), STRINGS
)


def quoted(text: str, kind: str) -> str:
    escaped = "".join(f"\\u{ord(c):04x}" if c in '"\\' or ord(c) < 32 or ord(c) == 127 else c for c in text)
    if kind == "basic":
        return f'"{escaped}"'
    if kind == "multi":
        return f'"""\n{escaped}"""'
    if "'" in text or any(ord(c) < 32 or ord(c) == 127 for c in text):
        return f'"{escaped}"'
    return f"'{text}'" if kind == "literal" else f"'''{text}'''"


@st.composite
def documents(draw: Any) -> str:
    """TOML text: tables, arrays of tables, dotted and quoted keys, comments, all kinds of values."""
    blanks = st.sampled_from(["", " ", "\t ", "  "])

    def key() -> str:
        if draw(st.booleans()):
            return draw(BARE)
        return quoted(draw(STRINGS), draw(st.sampled_from(["basic", "literal"])))

    def value(depth: int) -> str:
        kind = draw(st.integers(0, 5 if depth < 3 else 3))
        if kind <= 3:
            scalar = draw(SCALARS)
            if isinstance(scalar, str):
                return quoted(scalar, draw(st.sampled_from(["basic", "multi", "literal", "literals"])))
            return str(scalar).lower() if isinstance(scalar, bool) else repr(scalar)
        if kind == 4:
            gap = draw(st.sampled_from(["", " ", "\n  ", " # note ]\n"]))
            items = [f"{gap}{value(depth + 1)}{draw(blanks)}" for _ in range(draw(st.integers(0, 3)))]
            return "[" + ",".join(items) + gap + "]"
        pairs = [f"k{n}{draw(blanks)}={draw(blanks)}{value(depth + 1)}" for n in range(draw(st.integers(0, 3)))]
        return "{" + ", ".join(pairs) + "}"

    def pairs(prefix: str) -> list[str]:
        lines = []
        for index in range(draw(st.integers(0, 3))):
            dotted = f".{key()}" if draw(st.booleans()) else ""
            lines.append(f"{draw(blanks)}{prefix}{index}{dotted}{draw(blanks)}={draw(blanks)}{value(0)}")
            if draw(st.booleans()):
                lines[-1] += "  # a = [ 'comment"
        return lines

    lines = pairs("top")
    for index in range(draw(st.integers(0, 3))):
        name = draw(BARE)
        if draw(st.booleans()):
            lines.append(f"[{draw(blanks)}t{index}.{name}{draw(blanks)}]")
            lines += pairs("p")
        else:
            for _ in range(draw(st.integers(1, 2))):
                lines += [f"[[t{index}]]", *pairs("p"), f"[t{index}.{key()}]", *pairs("q")]
    return draw(st.sampled_from(["\n", "\r\n"])).join(lines) + "\n"


@given(documents())
@settings(max_examples=300, deadline=None)
def test_any_document_comes_back_and_every_span_selects_its_value(text: str) -> None:
    document = read(text)
    try:
        expected = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        assert [fault.code for fault in document.faults] == ["MEM003"]
        return
    assert document.faults == ()
    assert same(document.root.plain(), expected)
    for node in document.root.walk():
        if node.key_span is not None:
            key = text_at(document, node.key_span)
            (name,) = tomllib.loads(f"{key} = 1")
            assert node.key_path.endswith(name)
        if not node.is_mapping and not (node.is_list and node.value and text_at(document, node.span)[:2] == "[["):
            assert same(tomllib.loads(f"v = {text_at(document, node.span)}")["v"], node.plain())


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        pytest.param("a = 1\nb = \n", 2, "value", id="a value that is not there"),
        pytest.param("a = 1\na = 2\n", 2, "overwrite", id="a key written twice, which TOML forbids"),
        pytest.param("a = [1, 2\n", 2, "array", id="a bracket that is not closed"),
        pytest.param("a: 1\n", 1, "=", id="YAML"),
        pytest.param("a = 1\r", 1, "TOML", id="a carriage return alone"),
    ],
)
def test_what_is_not_toml_is_one_fault_with_its_line(text: str, line: int, words: str) -> None:
    document = read(text)
    (fault,) = document.faults
    assert fault.code == "MEM003"
    assert words.lower() in fault.message.lower()
    assert fault.span.line == line
    assert document.root.plain() == {}


@pytest.mark.parametrize("text", ["a = " + "[" * 20_000, "a = " + "[" * 150 + "]" * 150, "a = " + "9" * 5_000])
def test_hostile_text_is_a_fault_within_bounded_work(text: str) -> None:
    with work.limited(work.FILE_STEPS // 4):
        document = read(text)
    assert [fault.code for fault in document.faults] == ["MEM003"]


@given(st.text(alphabet="ab=[]{}.,'\"#\n\t 1-_\\", max_size=30))
@settings(max_examples=600, deadline=None)
def test_no_text_makes_the_reader_fail(text: str) -> None:
    document = read(text)
    try:
        expected = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        assert document.faults
    else:
        assert same(document.root.plain(), expected)


def test_every_real_file_reads_as_tomllib_reads_it(corpus: Path) -> None:
    paths = sorted(corpus.rglob("*.toml"))
    assert paths
    for path in paths:
        document = load(str(path))
        assert document.faults == ()
        assert same(document.root.plain(), tomllib.loads(document.text))
        check_paths(document.root)
