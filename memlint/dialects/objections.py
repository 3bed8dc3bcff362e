"""What a family's schema says against a config.

Values of a wrong type or out of range, unknown keys, and keys that look like misspelt ones, each with what was probably
meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from memlint import work
from memlint.dialects.acceptance import is_valid, lenient_validator
from memlint.dialects.misspelling import near, slips
from memlint.dialects.schema import Schema, load
from memlint.documents.node import Node, shown
from memlint.facts.spec import TrainingSpec
from memlint.named_tuple import NamedTuple

MAX_CHOICES = 20  # that a message lists
MAX_HINTS = 20  # that are looked for: what else is unknown is said without
_JSONSCHEMA = 40  # steps that jsonschema takes per value

NOT_TAKEN = "not a value that this key takes"  # why a fact is missing where its value is refused

WRONG_TYPE = "wrong-type"
UNKNOWN_VALUE = "unknown-value"
UNKNOWN_KEY = "unknown-key"


class Violation(NamedTuple):
    """A value or key that the schema rejects, at the node that holds it.

    kind        WRONG_TYPE, UNKNOWN_VALUE (not one of those allowed, or out of range) or UNKNOWN_KEY
    suggestion  what was probably meant: a value, or a key; "" where nothing is near
    """

    kind: str
    node: Node
    message: str
    suggestion: Any = ""


def validate(root: Node, schema: Schema) -> list[Violation]:
    """What the schema rejects in a tree, and keys that look like misspelt memory-relevant ones.

    Unresolved values are valid: what they will be is not known. In the order of the text.
    """
    found = [] if is_valid(root, schema, schema) else list(_errors(root, schema))
    found.extend(misspelt(root, schema))
    found.sort(key=lambda violation: (violation.node.key_span or violation.node.span)[:3])
    return found


def misspelt(root: Node, schema: Schema) -> Iterator[Violation]:
    """Keys of a tree that look like misspelt memory-relevant ones of the schema."""
    for node, name, meant in slips(root, schema):
        yield Violation(UNKNOWN_KEY, node, f"{name} is not a key that is read; {meant} is", meant)


# The last run asked about: one rule reports wrong values, the next one keys that are not known.
_judged: list[tuple[Node, str, list[Violation]]] = []


def violations(spec: TrainingSpec) -> list[Violation]:
    """What a run's family says against its config."""
    if not spec.family:
        return []
    if not _judged or _judged[0][0] is not spec.root or _judged[0][1] != spec.family:
        found = [one for one in validate(spec.root, load(spec.family)) if not _is_a_copys(one, spec)]
        _judged[:] = [(spec.root, spec.family, found)]
    return _judged[0][2]


def _is_a_copys(one: Violation, spec: TrainingSpec) -> bool:
    """Whether a word that the library does not take is one of its copy's in the repository."""
    if one.kind != UNKNOWN_VALUE or not isinstance(one.node.value, str):
        return False
    from memlint.dialects import software

    return software.copy_says(spec.document.path, spec.family, one.node.value)


def _errors(root: Node, schema: Schema) -> Iterator[Violation]:
    """The precise errors, from jsonschema, which is imported only when something is wrong."""
    work.spend(_JSONSCHEMA * sum(1 for _ in root.walk()), "holding the config against its schema")
    validator = lenient_validator()(schema)
    seen: set[tuple[Any, ...]] = set()
    hints = 0
    for whole in validator.iter_errors(root.plain()):
        error = _deepest(whole)
        place = whole.schema if whole.absolute_path == error.absolute_path else error.schema
        takes = validator.evolve(schema=place).is_valid
        path = tuple(error.absolute_path)
        if path in seen:  # one finding per value
            continue
        seen.add(path)
        node = _at(root, path)
        label = _label(path)
        if error.validator == "additionalProperties" and isinstance(node.value, dict):
            stated = error.schema.get("properties", {})
            for name, child in node.value.items():
                if name not in stated:
                    message = f"{shown(name)} is not a key of {label}"
                    hints += 1
                    yield Violation(UNKNOWN_KEY, child, message, near(name, stated) if hints <= MAX_HINTS else "")
        elif error.validator == "type":
            names = error.validator_value
            names = [names] if isinstance(names, str) else list(names)
            # An option, and no word behind it; its program may have handed it on.
            bare = node.value is True and (node.span == node.key_span or bool(node.via))
            yield Violation(
                WRONG_TYPE,
                node,
                f"{label} is given no value" if bare else f"{label} is {shown_value(node)}, not {_listed(names)}",
                next(filter(takes, _retyped(node, names)), ""),
            )
        elif error.validator in ("enum", "const"):
            values = error.validator_value if error.validator == "enum" else [error.validator_value]
            texts = [_scalar_text(value) for value in values]
            hints += 1
            meant = near(_scalar_text(node.plain()), texts) if hints <= MAX_HINTS else ""
            value = next(filter(takes, (value for value, text in zip(values, texts) if meant and text == meant)), "")
            yield Violation(UNKNOWN_VALUE, node, f"{label} is {shown_value(node)}, not one of: {_some(texts)}", value)
        elif error.validator in _BOUNDS:
            yield Violation(
                UNKNOWN_VALUE,
                node,
                f"{label} is {shown_value(node)}, but must be {_BOUNDS[error.validator]} {error.validator_value}",
            )
        elif error.validator == "pattern" and _ONE_WORD.fullmatch(error.validator_value):
            kinds = [kind for kind in error.schema.get("type", ()) if kind != "string"]
            other = [kind for kind in kinds if kind != "null"]  # who wrote text does not mean nothing
            takes_else = f"{_listed(other)} or " if isinstance(error.schema.get("type"), list) and other else ""
            word = error.validator_value[1:-1]
            yield Violation(WRONG_TYPE, node, f"{label} is {shown_value(node)}, not {takes_else}{word}")
        else:
            yield Violation(WRONG_TYPE, node, f"{label}: {error.message}")


_ONE_WORD = re.compile(r"\^\w+\$")  # the only text that a key takes
_BOUNDS = {
    "minimum": "at least",
    "maximum": "at most",
    "exclusiveMinimum": "more than",
    "exclusiveMaximum": "less than",
}
_ARTICLES = {
    "integer": "an integer",
    "number": "a number",
    "string": "text",
    "boolean": "true or false",
    "null": "null",
    "object": "a mapping",
    "array": "a list",
}


def _listed(names: list[str]) -> str:
    words = [_ARTICLES[name] for name in names]
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " or " + words[-1]


def _some(choices: list[str]) -> str:
    """The choices of an enumeration; of a long one as many as somebody reads."""
    rest = len(choices) - MAX_CHOICES
    return ", ".join(choices) if rest <= 0 else f"{', '.join(choices[:MAX_CHOICES])} and {rest} more"


def shown_value(node: Node) -> str:
    """A value as a message names it."""
    value = node.value
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    text = value if isinstance(value, str) else _scalar_text(value)
    text = text if len(text) <= 60 else text[:57] + "..."
    return f'the text "{text}"' if isinstance(value, str) else text


def _scalar_text(value: Any) -> str:
    """A scalar as it is written in JSON, but text without its quotes."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _retyped(node: Node, names: list[str]) -> Iterator[Any]:
    """The same value with the right type, where it is only the quotes that are wrong."""
    if not isinstance(node.value, str):
        return
    text = node.value.strip()
    if "boolean" in names and text.lower() in ("true", "false"):
        yield text.lower() == "true"
    for name, convert in (("integer", int), ("number", float)):
        if name in names:
            try:
                converted: float = convert(text)
            except ValueError:
                continue
            if converted == converted and abs(converted) != float("inf"):
                yield converted


def _label(path: tuple[Any, ...]) -> str:
    return shown(".".join(map(shown, path))) if path else "the config"


def _at(root: Node, path: tuple[Any, ...]) -> Node:
    node = root
    for part in path:
        if isinstance(node.value, (dict, list)):
            node = node.value[part]
    return node


def _deepest(error: Any) -> Any:
    """Of the errors behind a failed anyOf/oneOf, the one that is about the deepest value.

    Several alternatives that fail at the value itself stay one error, told as the types they wanted.
    """
    while error.validator in ("anyOf", "oneOf") and error.context:
        deepest = max(error.context, key=lambda one: len(one.absolute_path))
        if len(deepest.absolute_path) == len(error.absolute_path):
            kinds = [one for one in error.context if one.validator == "type"]
            if len(kinds) == len(error.context):
                names: list[str] = []
                for one in kinds:
                    value = one.validator_value
                    names += [value] if isinstance(value, str) else value
                kinds[0].validator_value = list(dict.fromkeys(names))
                deepest = kinds[0]
            else:
                # A value of the right type for one alternative is told that alternative's objection.
                deepest = next((one for one in error.context if one.validator != "type"), deepest)
        error = deepest
    return error
