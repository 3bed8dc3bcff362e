from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from memlint.documents import interpolation, yaml
from memlint.documents.node import Document, Unresolved
from tests.effort import MOST_LINES, counted_lines

from .conftest import check_paths, node_at, same, text_at


def resolved(text: str) -> Document:
    document = yaml.read("config.yaml", text)
    assert document.faults == ()
    return document._replace(root=interpolation.resolve(document.root))


def by_omegaconf(text: str) -> Any:
    return OmegaConf.to_container(OmegaConf.create(text), resolve=True)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a: 1\nb: ${a}", id="a whole value keeps its type"),
        pytest.param("a: null\nb: ${a}\nc: true\nd: ${c}", id="null and booleans too"),
        pytest.param("a: {b: {c: 2}}\nd: ${a.b.c}\ne: ${a.b}", id="a mapping"),
        pytest.param("a: [1, {b: 2}]\nc: ${a[0]}\nd: ${a.1.b}\ne: ${a[1][b]}\nf: ${a}", id="items of lists"),
        pytest.param("a: 1\nb: x_${a}_${a}\nc: ${a}${a}", id="text around it makes text"),
        pytest.param("a: true\nb: x${a}\nc: null\nd: x${c}\ne: 1.0\nf: x${e}", id="text of other types"),
        pytest.param("a: b\nb: 3\nc: ${${a}}\nd: {b: 4}\ne: ${d.${a}}", id="names that are interpolated"),
        pytest.param("a: {b: 1, c: '${.b}', d: {e: '${..b}', f: '${...g}'}}\ng: 5", id="relative names"),
        pytest.param("a: {l: [1, '${.0}', '${..x}'], x: 7}", id="relative names in lists"),
        pytest.param("a: ${b}\nb: ${c}\nc: 3", id="a chain"),
        pytest.param("a: ${b}\nb: {x: '${c}'}\nc: 3\nd: ${a.x}", id="a path through an interpolation"),
        pytest.param("a: {x: 1, y: '${.x}'}\nb: ${a}\nc: {x: 2, d: '${a}'}", id="what is named stays at home"),
        pytest.param(r"a: 1" "\n" r"b: '\${a}'" "\n" r"c: 'x\${a}y${a}'" "\n" r"d: '\\${a}'", id="escapes"),
        pytest.param("a: 1\nb: ${ a }\nc: x${ a }", id="blanks"),
        pytest.param("a: '$'\nb: '{a}'\nc: '$a'", id="what only looks like one"),
        pytest.param("a/b: 1\nc: ${a/b}\nd-e: 2\nf: ${d-e}", id="names with other characters"),
        pytest.param("a: '1e-3'\nb: ${a}", id="quoted numbers stay text"),
    ],
)
def test_values_are_omegaconfs(text: str) -> None:
    document = resolved(text)
    assert same(document.root.plain(), by_omegaconf(text))
    check_paths(document.root)


NAMES = st.sampled_from(["a", "b", "c", "d", "e"])
USES = st.one_of(
    st.integers(0, 9),
    st.sampled_from(["text", True, None]),
    NAMES.map(lambda name: f"${{{name}}}"),
    NAMES.map(lambda name: f"x${{{name}}}"),
    st.builds(lambda left, right: f"${{{left}.{right}}}", NAMES, NAMES),
    NAMES.map(lambda name: f"${{.{name}}}"),
    NAMES.map(lambda name: f"${{..{name}}}"),
    st.builds(lambda left, right: f"${{{left}[{right}]}}", NAMES, st.integers(0, 2)),
    NAMES.map(lambda name: f"${{${{{name}}}}}"),
)
TREES = st.dictionaries(
    NAMES,
    st.recursive(
        USES, lambda below: st.dictionaries(NAMES, below, max_size=3) | st.lists(below, max_size=3), max_leaves=6
    ),
    min_size=1,
    max_size=5,
)


@given(TREES)
@example({"b": {"a": {"a": "${a.b}"}}, "a": {"b": "${a}", "a": 0}})
@settings(max_examples=200, deadline=None)
def test_any_tree_resolves_as_omegaconf_resolves_it(tree: dict[str, Any]) -> None:
    config = OmegaConf.create(tree)
    document = resolved(OmegaConf.to_yaml(config))
    unknown = False
    for node in document.root.walk():
        if node.is_mapping or node.is_list:
            continue
        failed = False
        expected = None
        try:
            expected = OmegaConf.select(config, node.key_path, throw_on_resolution_failure=True)
        except (OmegaConfBaseException, RecursionError):
            failed = True
        if isinstance(node.value, Unresolved):
            # OmegaConf writes the unresolved text of a container into text; memlint calls that unknown.
            within = interpolation.CONTAINER_IN_TEXT in node.value.reason or "itself" in node.value.reason
            assert failed or OmegaConf.is_config(expected) or within, node
            unknown = True
        else:
            assert not failed
            assert same(node.value, expected), node.key_path
    if not unknown:
        assert same(document.root.plain(), OmegaConf.to_container(config, resolve=True))


def test_a_value_points_to_where_it_was_written_and_remembers_its_use() -> None:
    document = resolved("batch: 8\nloader:\n  size: ${batch}\n  again: ${.size}\n")
    node = node_at(document, "loader.again")
    assert node.value == 8
    assert (text_at(document, node.span), node.span.line) == ("8", 1)
    assert [text_at(document, span) for span in node.via] == ["${.size}", "${batch}"]
    assert text_at(document, node.key_span) == "again"


def test_everything_below_a_named_mapping_remembers_the_use() -> None:
    document = resolved("base: {size: 8}\nmodel: ${base}\n")
    node = node_at(document, "model.size")
    assert [text_at(document, span) for span in node.via] == ["${base}"]
    assert node.key_path == "model.size"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param("n: 3\na: ${eval:'${n}-1'}", 2, id="a difference"),
        pytest.param('n: 3\na: ${eval:"${n} * 2 ** 3"}', 24, id="other quotes"),
        pytest.param("n: 3\na: ${eval:(${n}+1)//2}", 2, id="no quotes"),
        pytest.param("n: 0.5\na: x${eval:${n}*2}", "x1.0", id="within text"),
    ],
)
def test_plain_arithmetic_in_eval_is_computed(text: str, value: object) -> None:
    assert same(node_at(resolved(text), "a").value, value)


@pytest.fixture
def registered() -> Iterator[None]:
    """What NeMo RL registers (utils/config.py, register_omegaconf_resolvers)."""
    functions = {
        "add": lambda a, b: a + b,
        "mul": lambda a, b: a * b,
        "div": lambda a, b: a / b,
        "max": lambda a, b: max(a, b),
    }
    for name, function in functions.items():
        OmegaConf.register_new_resolver(name, function, replace=True)  # other tests leave theirs
    yield
    for name in functions:
        OmegaConf.clear_resolver(name)


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    "text",
    [
        pytest.param("n: 3\na: ${mul:${n}, 4}", id="a product"),
        pytest.param("p: {n: 3, m: 5, q: {a: '${mul:${..n}, ${..m}}'}}", id="of relative names"),
        pytest.param("t: {tp: 2, cp: 3}\na: ${mul:${mul:${t.tp}, ${t.cp}}, 2}", id="of a product"),
        pytest.param("a: ${add:1.5,2}\nb: ${max:3, -4}\nc: ${div:131072,32768}", id="the others"),
        pytest.param("n: 3\na: x${add:${n},1}y", id="within text"),
    ],
)
def test_arithmetic_of_two_numbers_is_what_programs_register_by_its_name(text: str) -> None:
    assert same(resolved(text).root.plain(), by_omegaconf(text))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("a: ${div:7,2}", "rest", id="a quotient with a rest, which some programs round down"),
        pytest.param("a: ${mul:2}", "two numbers", id="a product of one number"),
        pytest.param("a: ${mul:x,2}", "two numbers", id="a product with text"),
        pytest.param("a: ${add:1,2,3}", "two numbers", id="a sum of three"),
        pytest.param("a: ${div:1,0}", "zero", id="a quotient by zero"),
        pytest.param("a: ${mul:${b},2}\nb: ${oc.env:X}", "environment", id="a product with what is unresolved"),
        pytest.param("a: ${oc.env:HOME}", "environment", id="an environment variable"),
        pytest.param("a: ${oc.env:HOME,4}", "environment", id="an environment variable with a default"),
        pytest.param("a: ${now:%Y}", "now", id="the date"),
        pytest.param("a: ${eval:'__import__(\"os\").getpid()'}", "eval", id="code"),
        pytest.param("a: ${eval:'9**9**9**9'}", "bound", id="a number without bound"),
        pytest.param("a: ${eval:'1/0'}", "zero", id="a division by zero"),
        pytest.param("a: ${hydra:runtime.choices}", "hydra", id="another resolver"),
        pytest.param("n: x\na: ${${n}:y}", "resolver", id="a resolver whose name is interpolated"),
        pytest.param("a: ${b.c}\nb: 1", "no b.c", id="a name that is not there"),
        pytest.param("a: ${b[4]}\nb: [1]", "no b[4]", id="an item that is not there"),
        pytest.param("a: ${b}\nb: ${a}", "back to itself", id="a circle"),
        pytest.param("a: {b: '${a}'}", "itself", id="a mapping within itself"),
        pytest.param("a: ${b}\nb: ???", "???", id="a value that is still to be given"),
        pytest.param("a: ${b", "brace", id="a brace that is not closed"),
        pytest.param("a: ${....b}\nb: 1", "above the root", id="a name above the root"),
        pytest.param("a: ${b}\nb: ${oc.env:X}", "environment", id="a name of what is unresolved"),
        pytest.param("a: x${b}\nb: [1]", "inside text", id="text of a list"),
        pytest.param("a: x${b}\nb: !ENV x", "tag", id="text with what is unresolved"),
    ],
)
def test_what_cannot_be_followed_is_unresolved_with_its_reason(text: str, words: str) -> None:
    document = resolved(text)
    values = [node.value for node in document.root.walk() if node.key_path.startswith("a")]
    reasons = [value.reason for value in values if isinstance(value, Unresolved)]
    assert reasons
    assert words in reasons[0] or words in str(values[0])


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            "a0: xxxxxxxxxx\n" + "".join(f"a{n}: ${{a{n - 1}}}${{a{n - 1}}}\n" for n in range(1, 60)),
            id="text that doubles",
        ),
        pytest.param(
            "a0: [x, x]\n" + "".join(f"a{n}: ['${{a{n - 1}}}', '${{a{n - 1}}}']\n" for n in range(1, 40)),
            id="lists that double",
        ),
        pytest.param("".join(f"a{n}: ${{a{n + 1}}}\n" for n in range(3_000)) + "a3000: 1\n", id="a long chain"),
        pytest.param("a: '" + "${" * 5_000 + "'", id="braces within braces"),
    ],
)
def test_hostile_text_ends_in_bounded_work(text: str) -> None:
    with counted_lines(most=MOST_LINES):
        resolved(text).root.plain()


def test_what_follows_the_last_unknown_part_of_a_text_is_kept() -> None:
    document = resolved("home: ${oc.env:HOME}\nmodel: ${home}/models/opt-125m\nname: opt-${oc.env:SIZE}\n")
    endings = [node_at(document, key).value.ending for key in ("home", "model", "name")]
    assert endings == ["", "/models/opt-125m", ""]


def test_a_tree_without_interpolations_is_returned_as_it_is() -> None:
    document = yaml.read("config.yaml", "a: [1, {b: x}]")
    assert interpolation.resolve(document.root) is document.root
