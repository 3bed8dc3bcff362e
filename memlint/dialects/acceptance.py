"""Whether a schema accepts a value.

Each keyword of JSON Schema that the families' schemas have is checked here; what is left to jsonschema costs its
import. Values that are unresolved are accepted everywhere: what they will be is not known.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any

from memlint.dialects.schema import ANNOTATION, Schema
from memlint.documents.node import Node, Unresolved

_IGNORED = frozenset(
    ("$schema", "$id", "$defs", "$comment", "title", "description", "default", "examples", "deprecated")
) | {ANNOTATION, "format", "readOnly", "writeOnly"}


def has_type(value: Any, name: str) -> bool:
    if name == "integer":
        return (isinstance(value, int) and not isinstance(value, bool)) or (
            isinstance(value, float) and value.is_integer()
        )
    if name == "number":
        return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value  # no NaN
    if name == "string":
        return isinstance(value, str)
    if name == "boolean":
        return isinstance(value, bool)
    if name == "null":
        return value is None
    if name == "object":
        return isinstance(value, dict)
    return name == "array" and isinstance(value, list)


def _equal(one: Any, other: Any) -> bool:
    """Equality as JSON Schema means it: 1 is 1.0, but True is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(_equal(a, b) for a, b in zip(one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(value, other[key]) for key, value in one.items())
    return bool(one == other)


def _open(node: Node) -> bool:
    """Whether anything in the node is unresolved: such a value may still turn out to be the right one."""
    return any(part.is_unresolved for part in node.walk())


def is_valid(node: Node, schema: Any, root: Schema) -> bool:
    """Whether the schema accepts the node; False also where a keyword is not among those supported."""
    if isinstance(schema, bool):
        return schema
    if isinstance(node.value, Unresolved):
        return True
    for keyword, wanted in schema.items():
        if keyword in _IGNORED:
            continue
        holds = _KEYWORDS.get(keyword)
        if holds is None or not holds(node, wanted, schema, root):
            return False
    return True


def _type(node: Node, wanted: Any, schema: Schema, root: Schema) -> bool:
    value = node.value
    if isinstance(wanted, str):
        return has_type(value, wanted)
    return any(has_type(value, name) for name in wanted)


def _properties(node: Node, wanted: Any, schema: Schema, root: Schema) -> bool:
    if not isinstance(node.value, dict):
        return True
    return all(is_valid(child, wanted[name], root) for name, child in node.value.items() if name in wanted)


def _reference(node: Node, wanted: Any, schema: Schema, root: Schema) -> bool:
    target: Any = root
    try:
        for part in wanted.removeprefix("#").removeprefix("/").split("/") if wanted != "#" else ():
            target = target[int(part)] if isinstance(target, list) else target[part]
    except (KeyError, IndexError, ValueError, TypeError):
        return False
    return is_valid(node, target, root)


def _enumeration(node: Node, wanted: Any, schema: Schema, root: Schema) -> bool:
    return _open(node) or any(_equal(node.plain(), one) for one in wanted)


def _constant(node: Node, wanted: Any, schema: Schema, root: Schema) -> bool:
    return _open(node) or _equal(node.plain(), wanted)


def _bound(holds: Callable[[Any, Any], bool]) -> Keyword:
    """A keyword about numbers, which says nothing of anything else."""

    def check(node: Node, wanted: Any, schema: Schema, root: Schema) -> bool:
        value = node.value
        return isinstance(value, bool) or not isinstance(value, (int, float)) or holds(value, wanted)

    return check


def _pattern(node: Node, wanted: Any, schema: Schema, root: Schema) -> bool:
    return not isinstance(node.value, str) or re.search(wanted, node.value) is not None


def _items(node: Node, wanted: Any, schema: Schema, root: Schema) -> bool:
    if not isinstance(node.value, list):
        return True
    return all(is_valid(child, wanted, root) for child in node.value[len(schema.get("prefixItems", ())) :])


def _first_items(node: Node, wanted: Any, schema: Schema, root: Schema) -> bool:
    return not isinstance(node.value, list) or all(is_valid(child, one, root) for child, one in zip(node.value, wanted))


def _least_items(node: Node, wanted: Any, schema: Schema, root: Schema) -> bool:
    return not isinstance(node.value, list) or len(node.value) >= wanted


def _most_items(node: Node, wanted: Any, schema: Schema, root: Schema) -> bool:
    return not isinstance(node.value, list) or len(node.value) <= wanted


def _other_properties(node: Node, wanted: Any, schema: Schema, root: Schema) -> bool:
    if not isinstance(node.value, dict):
        return True
    stated = schema.get("properties", {})
    return all(is_valid(child, wanted, root) for name, child in node.value.items() if name not in stated)


def _required(node: Node, wanted: Any, schema: Schema, root: Schema) -> bool:
    return not isinstance(node.value, dict) or all(name in node.value for name in wanted)


def _any_of(node: Node, wanted: Any, schema: Schema, root: Schema) -> bool:
    return any(is_valid(node, one, root) for one in wanted)


def _one_of(node: Node, wanted: Any, schema: Schema, root: Schema) -> bool:
    matches = sum(is_valid(node, one, root) for one in wanted)
    if matches == 0 or (matches > 1 and not _open(node)):
        return False
    # One that was only doubted may be a second match.
    return matches == len(wanted) or not any(unsupported(one) for one in wanted)


def _all_of(node: Node, wanted: Any, schema: Schema, root: Schema) -> bool:
    return all(is_valid(node, one, root) for one in wanted)


# (the value, what the keyword wants, the schema that it stands in, the whole schema) -> whether the value is so
Keyword = Callable[[Node, Any, Schema, Schema], bool]

_KEYWORDS: dict[str, Keyword] = {
    "$ref": _reference,
    "type": _type,
    "enum": _enumeration,
    "const": _constant,
    "minimum": _bound(operator.ge),
    "maximum": _bound(operator.le),
    "exclusiveMinimum": _bound(operator.gt),
    "exclusiveMaximum": _bound(operator.lt),
    "pattern": _pattern,
    "items": _items,
    "prefixItems": _first_items,
    "minItems": _least_items,
    "maxItems": _most_items,
    "properties": _properties,
    "additionalProperties": _other_properties,
    "required": _required,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "allOf": _all_of,
}
SUPPORTED = _IGNORED | frozenset(_KEYWORDS)


def unsupported(schema: Any, root: Schema | None = None, seen: frozenset[int] = frozenset()) -> set[str]:
    """Keywords that the fast check leaves to jsonschema: right, but each such file then costs its import."""
    if not isinstance(schema, dict) or id(schema) in seen:
        return set()
    seen |= {id(schema)}
    found = set(schema) - SUPPORTED
    for name in ("properties", "$defs"):
        for child in schema.get(name, {}).values():
            found |= unsupported(child, root, seen)
    for name in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for child in schema.get(name, ()):
            found |= unsupported(child, root, seen)
    for name in ("items", "additionalProperties"):
        found |= unsupported(schema.get(name), root, seen)
    return found


def accepts(node: Node, schema: Schema, root: Schema) -> bool:
    """Whether a part of the schema ``root`` accepts the node."""
    if is_valid(node, schema, root):
        return True
    if not unsupported(schema):
        return False
    return bool(lenient_validator()(root).evolve(schema=schema).is_valid(node.plain()))


def lenient_validator() -> Any:
    """jsonschema's validator, with unresolved values accepted everywhere."""
    from jsonschema import Draft202012Validator, validators

    def is_open(value: Any) -> bool:
        if isinstance(value, Unresolved):
            return True
        if isinstance(value, dict):
            return any(map(is_open, value.values()))
        return isinstance(value, list) and any(map(is_open, value))

    def lenient(keyword: str, function: Any) -> Any:
        def check(validator: Any, wanted: Any, instance: Any, schema: Any) -> Any:
            if isinstance(instance, Unresolved):
                return
            if keyword in ("enum", "const", "not", "uniqueItems", "contains") and is_open(instance):
                return
            if keyword == "oneOf" and is_open(instance):
                function_ = Draft202012Validator.VALIDATORS["anyOf"]
            else:
                function_ = function
            yield from function_(validator, wanted, instance, schema) or ()

        return check

    extend: Any = validators.extend
    table = {name: lenient(name, function) for name, function in Draft202012Validator.VALIDATORS.items()}
    return extend(Draft202012Validator, table)
