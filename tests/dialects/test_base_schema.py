"""The fast schema check against the jsonschema library, and what it says about wrong values and misspelt keys."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import jsonschema
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from memlint.dialects import acceptance, misspelling, objections
from memlint.dialects import schema as schemas
from memlint.documents.node import Node, Span, Unresolved


def tree(value: Any, path: str = "", line: int = 1) -> Node:
    """A node tree of plain values; each key on a line of its own."""
    span = Span("config.yaml", line, 1, line, 2)
    key_span = span if path else None
    if isinstance(value, dict):
        children = {
            name: tree(item, f"{path}.{name}" if path else name, line + at + 1)
            for at, (name, item) in enumerate(value.items())
        }
        return Node(children, span, key_span, path)
    if isinstance(value, list):
        return Node([tree(item, f"{path}.{at}", line) for at, item in enumerate(value)], span, key_span, path)
    return Node(value, span, key_span, path)


SCHEMA: dict[str, Any] = {
    "x-memlint": {"family": "example", "formats": ["yaml"]},
    "type": "object",
    "properties": {
        "batch_size": {"type": "integer", "minimum": 1, "x-memlint": {"fact": "micro_batch_size"}},
        "precision": {"enum": ["fp32", "bf16", "fp16", None], "x-memlint": {"fact": "compute_dtype"}},
        "gradient_checkpointing": {"type": "boolean", "x-memlint": {"fact": "checkpointing"}},
        "image_size": {
            "anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "integer"}, "minItems": 2}],
            "x-memlint": {"memory_relevant": True},
        },
        "rate": {"type": "number"},
        "model": {
            "type": "object",
            "properties": {
                "hidden_size": {"type": "integer", "x-memlint": {"fact": "hidden", "aliases": ["width"]}},
                "name": {"type": "string"},
            },
        },
    },
}


def said(config: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(one.kind, one.node.key_path, one.suggestion) for one in objections.validate(tree(config), SCHEMA)]


@pytest.mark.parametrize(
    ("config", "kind", "key", "suggestion", "part"),
    [
        pytest.param(
            {"batch_size": "many"}, "wrong-type", "batch_size", "", 'is the text "many", not an integer', id="text"
        ),
        pytest.param({"batch_size": "16"}, "wrong-type", "batch_size", 16, "an integer", id="a quoted number"),
        pytest.param(
            {"gradient_checkpointing": "True"},
            "wrong-type",
            "gradient_checkpointing",
            True,
            "true or false",
            id="a quoted boolean",
        ),
        pytest.param(
            {"batch_size": True}, "wrong-type", "batch_size", "", "batch_size is", id="a boolean is no integer"
        ),
        pytest.param({"batch_size": 1.5}, "wrong-type", "batch_size", "", "is 1.5", id="a fraction is no integer"),
        pytest.param({"batch_size": 0}, "unknown-value", "batch_size", "", "at least 1", id="a value out of range"),
        pytest.param(
            {"precision": "bf61"}, "unknown-value", "precision", "bf16", "fp32, bf16, fp16, null", id="a near value"
        ),
        pytest.param(
            {"precision": "BF16"}, "unknown-value", "precision", "bf16", "not one of", id="a value in capitals"
        ),
        pytest.param({"precision": "complex"}, "unknown-value", "precision", "", "not one of", id="a far value"),
        pytest.param(
            {"image_size": "big"}, "wrong-type", "image_size", "", "an integer or a list", id="no alternative fits"
        ),
        pytest.param(
            {"image_size": [64, "x"]}, "wrong-type", "image_size.1", "", "not an integer", id="inside of one that fits"
        ),
        pytest.param({"model": 3}, "wrong-type", "model", "", "not a mapping", id="a scalar for a mapping"),
        pytest.param(
            {"batch_szie": 1}, "unknown-key", "batch_szie", "batch_size", "batch_size is", id="swapped letters"
        ),
        pytest.param(
            {"gradient_checkpoiting": 1},
            "unknown-key",
            "gradient_checkpoiting",
            "gradient_checkpointing",
            "",
            id="dropped",
        ),
        pytest.param(
            {"gradiant_checkpoiting": 1},
            "unknown-key",
            "gradiant_checkpoiting",
            "gradient_checkpointing",
            "",
            id="two slips in a long key",
        ),
        pytest.param(
            {"modl": {"hidden_size": 1}}, "unknown-key", "modl", "model", "", id="a parent of memory-relevant keys"
        ),
        pytest.param(
            {"model": {"hiden_size": 1}}, "unknown-key", "model.hiden_size", "hidden_size", "", id="in a nested mapping"
        ),
        pytest.param({"model": {"widht": 1}}, "unknown-key", "model.widht", "width", "", id="near an alias"),
        pytest.param({"imagesize": 1}, "unknown-key", "imagesize", "image_size", "", id="a key marked as relevant"),
    ],
)
def test_objection(config: dict[str, Any], kind: str, key: str, suggestion: Any, part: str) -> None:
    violations = objections.validate(tree(config), SCHEMA)
    assert [(one.kind, one.node.key_path, one.suggestion) for one in violations] == [(kind, key, suggestion)]
    assert part in violations[0].message


@pytest.mark.parametrize(
    "config",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"batch_size": 8.0}, id="a whole float is an integer to JSON Schema"),
        pytest.param({"batch_size": Unresolved("environment variable")}, id="an unresolved scalar"),
        pytest.param({"precision": Unresolved("x")}, id="an unresolved choice"),
        pytest.param({"image_size": [64, Unresolved("x")]}, id="an unresolved element"),
        pytest.param({"model": Unresolved("x")}, id="an unresolved mapping"),
        pytest.param({"rat": 1}, id="a slip of a key without a fact"),
        pytest.param({"batch_sizes_of_all": 1}, id="an unknown key that is far from any"),
        pytest.param({"batch_size": 1, "batch_sizes": 2}, id="a near key beside the right one"),
        pytest.param({"model": {"nmae": 1}}, id="a slip of a key that says nothing about memory"),
        pytest.param({"gradiant_checkpoitin": 1}, id="three slips"),
    ],
)
def test_accepted(config: dict[str, Any]) -> None:
    assert said(config) == []


def test_objections_come_in_the_order_of_the_text() -> None:
    config = {"precision": "x", "batch_siz": 3, "rate": "high"}
    assert [key for _, key, _ in said(config)] == ["precision", "batch_siz", "rate"]


def test_alternatives_do_not_hide_unresolved_values_from_jsonschema() -> None:
    schema = {
        "oneOf": [
            {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
        ],
        "properties": {"b": {"type": "integer"}},
    }
    violations = objections.validate(tree({"a": Unresolved("?"), "b": "x"}), schema)
    assert [one.node.key_path for one in violations] == ["b"]


def test_jsonschema_is_imported_only_for_a_wrong_file() -> None:
    code = """
import sys
from memlint.dialects import objections
from memlint.documents.node import Node, Span
s = Span("a", 1, 1, 1, 2)
def check(value):
    root = Node({"a": Node(value, s, s, "a")}, s)
    return len(objections.validate(root, {"properties": {"a": {"type": "integer"}}}))
assert check(1) == 0 and "jsonschema" not in sys.modules, "valid"
assert check("x") == 1 and "jsonschema" in sys.modules, "invalid"
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# ------------------------------------------------------------------------------------------------ parity

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 5), st.sampled_from([0.5, 1.0, 2.0]), st.sampled_from(["a", "b", "ab"])
)
names = st.sampled_from(["a", "b", "c"])
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=3)),
    max_leaves=8,
)


def _schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    kinds = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
    keywords: dict[str, st.SearchStrategy[Any]] = {
        "type": st.one_of(kinds, st.lists(kinds, min_size=1, max_size=3, unique=True)),
        "enum": st.lists(values, min_size=1, max_size=3),
        "const": values,
        "minimum": st.integers(-2, 4),
        "maximum": st.integers(-2, 4),
        "exclusiveMinimum": st.integers(-2, 4),
        "exclusiveMaximum": st.integers(-2, 4),
        "pattern": st.sampled_from(["a", "^b", "b$", "^$"]),
        "items": inner,
        "prefixItems": st.lists(inner, min_size=1, max_size=2),
        "minItems": st.integers(0, 2),
        "maxItems": st.integers(0, 2),
        "properties": st.dictionaries(names, inner, max_size=3),
        "additionalProperties": inner,
        "required": st.lists(names, max_size=2, unique=True),
        "anyOf": st.lists(inner, min_size=1, max_size=2),
        "oneOf": st.lists(inner, min_size=1, max_size=2),
        "allOf": st.lists(inner, min_size=1, max_size=2),
        "$ref": st.sampled_from(["#/$defs/one", "#/$defs/other"]),
        "not": inner,  # not among those the fast check knows
    }
    return st.lists(st.sampled_from(sorted(keywords)), max_size=3, unique=True).flatmap(
        lambda chosen: st.fixed_dictionaries({name: keywords[name] for name in chosen})
    )


subschemas: st.SearchStrategy[Any] = st.recursive(st.booleans(), _schemas, max_leaves=6)


@settings(max_examples=600, deadline=None)
@given(schema=subschemas, one=subschemas, value=values)
def test_every_value_is_accepted_or_rejected_as_by_jsonschema(schema: Any, one: Any, value: Any) -> None:
    if not isinstance(schema, dict):
        schema = {"allOf": [schema]}
    schema = {**schema, "$defs": {"one": one, "other": {"type": "integer"}}}
    assume("#/$defs/one" not in str(one))  # a definition that is itself without end: neither can check it
    expected = jsonschema.Draft202012Validator(schema).is_valid(value)
    node = tree(value)
    fast = acceptance.is_valid(node, schema, schema)
    unknown = "not" in str(schema)
    assert fast == expected or (unknown and not fast), "the fast check may only doubt, never accept wrongly"
    assert acceptance.accepts(node, schema, schema) == expected or not acceptance.unsupported(schema)
    violations = [each for each in objections.validate(node, schema) if each.kind != objections.UNKNOWN_KEY]
    if expected:
        assert violations == []
    else:
        assert objections.validate(node, schema) != []


@settings(max_examples=200, deadline=None)
@given(name=st.from_regex("[abc]{5,9}(_[abc]{5,9}){0,2}", fullmatch=True), data=st.data())
def test_one_slip_within_a_word_is_seen(name: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(1, len(name) - 2))
    assume("_" not in name[at - 1 : at + 3])
    slips = {
        "drop": name[:at] + name[at + 1 :],
        "double": name[: at + 1] + name[at:],
        "change": name[:at] + "x" + name[at + 1 :],
        "swap": name[:at] + name[at + 1 : at + 2] + name[at : at + 1] + name[at + 2 :],
    }
    slip = slips[data.draw(st.sampled_from(sorted(slips)))]
    assert misspelling.is_misspelling(slip, name) == (slip != name)
    assert misspelling.is_misspelling(name, slip) == (slip != name)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        pytest.param("use_rslora", "use_bdlora", id="another kind of adapter"),
        pytest.param("pvera_dropout", "vera_dropout", id="a letter before the word"),
        pytest.param("orpo_alpha", "cpo_alpha", id="another loss"),
        pytest.param("loha_dropout", "lora_dropout", id="another word of four letters"),
        pytest.param("validator", "validation", id="two letters"),
        pytest.param("datasets", "dataset", id="the plural of a name that is one word"),
        pytest.param("eval_dataloader", "val_dataloader", id="another beginning"),
        pytest.param("use_qlora", "use_lora", id="a letter that makes another word"),
    ],
)
def test_a_name_of_its_own_is_no_slip(name: str, known: str) -> None:
    assert not misspelling.is_misspelling(name, known)
    assert not misspelling.is_misspelling(known, name)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        pytest.param("context_parapllel_size", "context_parallel_size", id="a letter too many"),
        pytest.param("gradient_acumulation_stesp", "gradient_accumulation_steps", id="a slip in each of two words"),
        pytest.param("batch_szie", "batch_size", id="swapped letters of a short word"),
        pytest.param("batch_siz", "batch_size", id="a letter too few"),
        pytest.param("micro_batchsize", "micro_batch_size", id="words without what parts them"),
        pytest.param("gradient_accumulation_step", "gradient_accumulation_steps", id="a singular in a longer name"),
    ],
)
def test_a_typing_slip_is_one(name: str, known: str) -> None:
    assert misspelling.is_misspelling(name, known)


# ------------------------------------------------------------------------------------------------ annotations


def test_keys_follow_references_alternatives_and_tuple_items() -> None:
    schema = {
        "$defs": {"size": {"type": "integer", "x-memlint": {"fact": "size"}}},
        "properties": {
            "one": {"$ref": "#/$defs/size"},
            "two": {"$ref": "#/$defs/size", "x-memlint": {"fact": "other"}},
            "shape": {"prefixItems": [{"type": "integer", "x-memlint": {"fact": "channels"}}, {"type": "integer"}]},
            "either": {
                "anyOf": [{"type": "null"}, {"properties": {"deep": {"x-memlint": {"fact": "deep"}}}}],
            },
            "self": {"$ref": "#"},
        },
    }
    found = [(key.dotted, key.annotation["fact"]) for key in schemas.keys(schema)]
    assert found[:4] == [("one", "size"), ("two", "other"), ("shape.0", "channels"), ("either.deep", "deep")]


def test_a_reference_cycle_is_an_error_not_a_hang() -> None:
    schema = {
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
        "properties": {"x": {"$ref": "#/$defs/a"}},
    }
    with pytest.raises(KeyError, match="cycle"):
        schemas.keys(schema)


@pytest.mark.parametrize(
    ("schema", "kinds"),
    [
        ({"type": "integer"}, {"integer"}),
        ({"type": ["integer", "null"]}, {"integer", "null"}),
        (
            {"enum": ["a", 1, None, True, 0.5, [], {}]},
            {"string", "integer", "null", "boolean", "number", "array", "object"},
        ),
        ({"anyOf": [{"type": "string"}, {"const": 3}]}, {"string", "integer"}),
        ({}, set()),
    ],
    ids=["one type", "several types", "the types of an enum", "alternatives", "no type stated"],
)
def test_types(schema: dict[str, Any], kinds: set[str]) -> None:
    assert schemas.types(schema, schema) == kinds
