from __future__ import annotations

import ast
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml as pyyaml
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf._utils import get_yaml_loader

from memlint.documents import yaml
from memlint.documents.load import load
from memlint.documents.node import Document, Unresolved
from tests.effort import MOST_LINES, counted_lines

from .conftest import check_paths, node_at, same, text_at

OMEGACONF = get_yaml_loader()


def omegaconf(text: str) -> Any:
    return pyyaml.load(text, Loader=OMEGACONF)


def read(text: str) -> Document:
    return yaml.read("config.yaml", text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param("1e-4", 1e-4, id="a float without a point is a float, as OmegaConf has it"),
        pytest.param("1e5", 1e5, id="an exponent without a sign is a float"),
        pytest.param("1_000", 1000, id="underscores group digits"),
        pytest.param("0o20", "0o20", id="YAML 1.2 octals are text"),
        pytest.param("0777", 511, id="a leading zero is octal"),
        pytest.param("0x1F", 31, id="hexadecimal"),
        pytest.param("0b101", 5, id="binary"),
        pytest.param("-0b11", -3, id="negative binary"),
        pytest.param("12:30:45", 45045, id="sexagesimal"),
        pytest.param("1:30", 90, id="sexagesimal of two parts"),
        pytest.param("1:30.5", 90.5, id="sexagesimal float"),
        pytest.param("on", True, id="on is true"),
        pytest.param("Off", False, id="Off is false"),
        pytest.param("yes", True, id="yes is true"),
        pytest.param("oN", "oN", id="odd capitals are text"),
        pytest.param("~", None, id="a tilde is null"),
        pytest.param("Null", None, id="Null is null"),
        pytest.param("2024-01-01", "2024-01-01", id="dates are text"),
        pytest.param(".5", 0.5, id="a point in front"),
        pytest.param("-.5", "-.5", id="a sign and a point in front is text, a quirk of YAML 1.1"),
        pytest.param("5.", 5.0, id="a point behind"),
        pytest.param("-.inf", -math.inf, id="minus infinity"),
        pytest.param("${a.b}", "${a.b}", id="an interpolation is text for now"),
        pytest.param("1.2.3", "1.2.3", id="a version is text"),
        pytest.param("0x_", "0x_", id="an integer without digits is text"),
        pytest.param("-", "-", id="a lone dash is text"),
    ],
)
def test_plain_scalars(text: str, value: object) -> None:
    assert same(yaml.scalar(text), value)


@given(st.text(alphabet="0123456789+-._eExXbo:aAfF~nNulyYsSofFtTr", min_size=1, max_size=9))
@settings(max_examples=1500, deadline=None)
def test_plain_scalars_are_what_omegaconf_makes_of_them(text: str) -> None:
    try:
        expected = omegaconf(f"key: {text}")
    except (ValueError, pyyaml.YAMLError):  # PyYAML fails on integers without digits and on lone indicators
        return
    if isinstance(expected, dict) and isinstance(expected["key"], (str, int, float, type(None))):
        assert same(read(f"key: {text}").root.plain(), expected)


KEYS = st.text(alphabet="abcdefgh_äß漢", min_size=1, max_size=6)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**9), 10**9),
    st.floats(allow_nan=False),
    st.text(max_size=20).filter(lambda text: text.isprintable()),
    st.sampled_from(["1e-4", "on", "a: b", "# no", "x\ny\n", "${a}", "\ttab", "'", '"', "- x", "", " pad "]),
)
TREES = st.dictionaries(
    KEYS,
    st.recursive(
        SCALARS,
        lambda below: st.lists(below, max_size=4) | st.dictionaries(KEYS, below, max_size=4),
        max_leaves=12,
    ),
    max_size=5,
)


@given(TREES, st.booleans() | st.none(), st.sampled_from([None, "|", ">", '"', "'"]), st.integers(2, 5))
@settings(max_examples=250, deadline=None)
def test_any_dumped_tree_comes_back_and_every_span_selects_its_value(
    tree: dict[str, Any], flow: bool | None, style: str | None, indent: int
) -> None:
    text = pyyaml.safe_dump(tree, default_flow_style=flow, default_style=style, indent=indent, allow_unicode=True)
    document = read(text)
    assert document.faults == ()
    expected = omegaconf(text)
    if not tree:
        return
    assert same(document.root.plain(), expected)
    check_paths(document.root)
    for node in document.root.walk():
        source = text_at(document, node.span)
        if node.key_span is not None:
            key = text_at(document, node.key_span)
            assert pyyaml.compose(key).value == node.key_path.split(".")[-1]
        if style in ("|", ">"):
            continue  # the line breaks at the end of a block scalar are no part of its span
        if isinstance(node.value, (dict, list)):
            lead = "" if source[:1] in ("[", "{") else " " * (node.span.column - 1)
            assert same(omegaconf(lead + source), node.plain()), source
        elif style is None or isinstance(node.value, str):
            assert same(omegaconf(source), node.value), source


@given(TREES, st.booleans() | st.none())
@settings(max_examples=60, deadline=None)
def test_the_pure_python_parser_gives_the_same_nodes(tree: dict[str, Any], flow: bool | None) -> None:
    text = pyyaml.safe_dump(tree, default_flow_style=flow, allow_unicode=True)
    first = read(text)
    patch = pytest.MonkeyPatch()
    try:
        patch.setattr(yaml, "_LOADER", pyyaml.SafeLoader)
        second = read(text)
    finally:
        patch.undo()
    described = [
        [(n.key_path, n.value, n.span, n.key_span) for n in d.root.walk() if not n.is_mapping and not n.is_list]
        for d in (first, second)
    ]
    assert described[0] == described[1]
    assert first.faults == second.faults


@pytest.mark.parametrize(
    ("text", "path", "source", "key"),
    [
        pytest.param("a:\n  b: 1\n\n# note\nc: 2\n", "a", "b: 1", "a", id="a block mapping ends with its last value"),
        pytest.param(
            "a:\n- 1\n- 2\n\nc: 2\n", "a", "- 1\n- 2", "a", id="a list that is not indented starts at its dash"
        ),
        pytest.param("a: &x\n  # why\n  - 1\nb: 2\n", "a", "- 1", "a", id="an anchor is no part of a list"),
        pytest.param("a: &x 5\nb: 1\n", "a", "5", "a", id="an anchor is no part of a value"),
        pytest.param("a: !!int &x '5'\n", "a", "'5'", "a", id="neither are tag and anchor together"),
        pytest.param(
            "a: |\n  one\n  two\n\n\nb: 1\n", "a", "|\n  one\n  two", "a", id="a block scalar ends with its text"
        ),
        pytest.param("a:\nb: 1\n", "a", "", "a", id="a value that is not there is an empty span"),
        pytest.param("'a' : {x: 1,\n  y: [2]}\n", "a.y", "[2]", "y", id="flow collections end at their brackets"),
        pytest.param("ä: ['é', x]\n", "ä.1", "x", None, id="columns count code points"),
        pytest.param("a: 1\r\nb:\r\n  c: 2\r\n", "b.c", "2", "c", id="carriage returns do not shift columns"),
        pytest.param("a: 'x\u2028y'\nb: 2\n", "b", "2", "b", id="a Unicode line separator is no line of an editor"),
    ],
)
def test_spans(text: str, path: str, source: str, key: str | None) -> None:
    document = read(text)
    node = node_at(document, path)
    assert text_at(document, node.span) == source
    if key is not None:
        assert text_at(document, node.key_span).strip("'") == key


def test_an_alias_points_to_where_the_value_was_written_and_remembers_where_it_is_used() -> None:
    document = read("base: &b {size: 8}\nmodel: *b\n")
    node = node_at(document, "model.size")
    assert node.value == 8
    assert text_at(document, node.span) == "8"
    assert node.span.line == 1
    assert [text_at(document, span) for span in node.via] == ["*b"]
    assert node.via[0].line == 2
    check_paths(document.root)


def test_a_block_mapping_that_ends_with_an_alias_ends_there() -> None:
    document = read("a: &a 1\nb:\n  c: *a\nd: 2\n")
    assert text_at(document, node_at(document, "b").span) == "c: *a"


MERGE = "d: &d\n  size: 64\n  name: x\nsmall:\n  <<: *d\n  size: 8\nbig:\n  <<: [{size: 1}, *d]\n  more: 1\n"


def test_merge_keys_fill_in_what_the_mapping_does_not_say() -> None:
    document = read(MERGE)
    # As https://yaml.org/type/merge.html has it, and PyYAML until 6.0.3. (6.0.4 tells keys apart by the identity of
    # their texts: of a list of mappings now the earlier one wins, now the later one.)
    small, big = {"size": 8, "name": "x"}, {"size": 1, "name": "x", "more": 1}
    assert document.root.plain() == {"d": {"size": 64, "name": "x"}, "small": small, "big": big}
    node = node_at(document, "small.name")
    assert (node.span.line, text_at(document, node.key_span)) == (3, "name")
    assert [text_at(document, span) for span in node.via] == ["*d"]
    check_paths(document.root)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a: &a {x: 1}\nb: &b {<<: *a, y: 2}\nc: {<<: *b, z: 3}\n", id="merges of merges"),
        pytest.param('a: &a {x: 1}\nb: {"<<": 1}\n', id="a quoted << is a key"),
        pytest.param("a: {<<: [{x: 1}, {x: 2}]}\n", id="in a list the earlier wins"),
    ],
)
def test_merges_are_pyyamls(text: str) -> None:
    assert same(read(text).root.plain(), omegaconf(text))


def test_of_several_merges_the_later_wins() -> None:
    text = "a: &a {x: 1, y: 2}\nb:\n  <<: *a\n  <<: {x: 3}\n"
    assert read(text).root.plain() == {"a": {"x": 1, "y": 2}, "b": {"x": 3, "y": 2}}


def test_a_key_written_twice_is_a_fault_and_the_second_wins() -> None:
    document = read("lr: 1\nbatch: 4\nlr: 2\n")
    (fault,) = document.faults
    assert fault.code == "MEM006"
    assert (fault.span.line, fault.related[0].line) == (3, 1)
    assert text_at(document, fault.span) == "lr"
    assert document.root.plain() == {"lr": 2, "batch": 4}


@pytest.mark.parametrize(
    ("text", "source"),
    [
        pytest.param("a: !ENV ${SIZE:32}", "!ENV ${SIZE:32}", id="an environment tag"),
        pytest.param("a: !!python/object/apply:os.system ['x']", "!!python/object/apply:os.system ['x']", id="a call"),
        pytest.param("a: !include other.yaml", "!include other.yaml", id="an include"),
        pytest.param("a: !Model\n  b: 1\n", "!Model\n  b: 1", id="a mapping with a class"),
        pytest.param("a: !!binary aGk=", "!!binary aGk=", id="binary data"),
    ],
)
def test_tags_are_never_executed(text: str, source: str) -> None:
    value = node_at(read(text), "a").value
    assert isinstance(value, Unresolved)
    assert value.text == source
    assert "tag" in value.reason


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param("a: !!python/tuple [1, 2]", [1, 2], id="a tuple is a list"),
        pytest.param("a: !!float 1", 1.0, id="a float of an integer"),
        pytest.param("a: !!str 5", "5", id="text of a number"),
        pytest.param("a: !!int '5'", 5, id="an integer of quoted text"),
        pytest.param("a: ! 5", "5", id="the tag without a name makes text"),
        pytest.param("a: !!python/none ", None, id="none"),
        pytest.param("a: !!bool 'yes'", True, id="a boolean"),
    ],
)
def test_tags_of_plain_types_are_followed(text: str, value: object) -> None:
    assert same(node_at(read(text), "a").plain(), value)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        pytest.param("a:\n\tb: 1\n", 2, "tabs", id="a tab"),
        pytest.param("a: 1\nb: [1, 2\nc: 3\n", 3, "flow sequence", id="a bracket that is not closed"),
        pytest.param("{% set n = 8 %}\na: 1\n", 1, "template", id="a Jinja statement"),
        pytest.param("a: 1\nb: {{ size }}\n", 2, "template", id="a Jinja expression, which is YAML by accident"),
        pytest.param("a: *nowhere\n", 1, "anchor", id="an alias without an anchor"),
        pytest.param("a: &a [1, *a]\n", 1, "its own value", id="an alias inside its own value"),
        pytest.param("a: 1\n<<: 5\n", 2, "mapping", id="a merge of a number"),
        pytest.param("a: !!int x\n", 1, "int", id="a tag that the text denies"),
        pytest.param("a: 1\nb: \x01\n", 2, "YAML", id="a control character"),
        pytest.param("a: 'x\nb: 1\n", 3, "quoted", id="a quote that is not closed"),
        pytest.param("a: @x\n", 1, "token", id="a reserved character"),
    ],
)
def test_what_is_not_yaml_is_one_fault_with_its_line(text: str, line: int, words: str) -> None:
    document = read(text)
    (fault,) = document.faults
    assert fault.code == "MEM003"
    assert words in fault.message
    assert fault.span.line == line
    assert document.root.is_mapping


def test_an_error_elsewhere_is_not_blamed_on_a_comment_that_shows_a_template() -> None:
    (fault,) = read("# {{ not a template }}\na: [1\n").faults
    assert "template" not in fault.message


def test_of_several_documents_the_first_that_is_not_empty_counts() -> None:
    assert read("# only a comment\n---\na: 1\n---\nb: 2\n").root.plain() == {"a": 1}
    assert read("---\n---\nb: 2\n").root.plain() == {"b": 2}


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n", "- 1\n- 2\n", "just text\n"])
def test_what_is_no_mapping_has_an_empty_root_and_no_fault(text: str) -> None:
    document = read(text)
    assert document.root.plain() == {}
    assert document.faults == ()


def test_keys_that_are_no_text_are_spelled_as_written() -> None:
    assert read("1: a\non: b\n[x, y]: c\n1.5: d\n").root.plain() == {"1": "a", "on": "b", "[x, y]": "c", "1.5": "d"}


def test_a_byte_order_mark_is_no_part_of_the_text() -> None:
    document = read("\ufeffa: 1\n")
    assert document.text == "a: 1\n"
    assert node_at(document, "a").span.column == 4


def bomb() -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(bomb(), id="an alias bomb"),
        pytest.param("[" * 50_000, id="brackets without end"),
        pytest.param("a: " + "[" * 900 + "]" * 900, id="deep flow lists"),
        pytest.param("".join(" " * n + f"k{n}:\n" for n in range(600)), id="deep block mappings"),
        pytest.param(
            "a: &a [1]\n" + "".join(f"b{n}: &b{n} [*{'a' if n == 0 else f'b{n - 1}'}]\n" for n in range(400)),
            id="a ladder of aliases",
        ),
        pytest.param("? " * 5_000, id="keys within keys"),
        pytest.param("- " * 5_000, id="dashes within dashes"),
        pytest.param("{? " * 5_000, id="flow keys within keys"),
    ],
)
def test_hostile_text_is_a_fault_in_bounded_work(text: str) -> None:
    with counted_lines(most=MOST_LINES):
        document = read(text)
    assert [fault.code for fault in document.faults] == ["MEM003"]
    assert document.root.plain() == {}


@given(st.text(alphabet="ab:-? [{}]&*!|>'\"%#\n\t,<", max_size=40))
@settings(max_examples=600, deadline=None)
def test_no_text_makes_the_reader_fail(text: str) -> None:
    document = read(text)
    document.root.plain()
    for node in document.root.walk():
        text_at(document, node.span)


def test_reading_imports_nothing_beyond_pyyaml() -> None:
    code = (
        "import sys, click, yaml; before = set(sys.modules)\n"
        "from memlint.documents.load import load\n"
        "from memlint.documents.yaml import read\n"
        "read('x.yaml', 'a: [1, {b: *c}]\\n'); read('x.yaml', 'a: &x 1\\nb: *x\\n')\n"
        "print(sorted(m for m in set(sys.modules) - before if not m.startswith('memlint')))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(ast.literal_eval(result.stdout)) <= {"bisect", "_bisect", "contextvars", "_contextvars"}


def test_every_real_file_reads_as_omegaconf_reads_it(corpus: Path) -> None:
    compared = 0
    for path in sorted([*corpus.rglob("*.yaml"), *corpus.rglob("*.yml")]):
        document = load(str(path))
        check_paths(document.root)
        try:
            expected = omegaconf(document.text)
        except (pyyaml.YAMLError, ValueError):
            continue
        if isinstance(expected, dict):
            assert document.faults == (), path
            assert same(document.root.plain(), _with_text_keys(expected)), path
            compared += 1
    assert compared > 100


def _with_text_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _with_text_keys(child) for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_text_keys(child) for child in value]
    return value
