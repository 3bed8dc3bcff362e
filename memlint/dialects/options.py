"""What a command's words say in a family's keys: options with the types of its schema, and words that set keys."""

from __future__ import annotations

from collections.abc import Callable, Container
from functools import cached_property
from typing import Any

from memlint.dialects import schema as schemas
from memlint.dialects.schema import ANNOTATION, Schema
from memlint.dialects.trees import child, nest
from memlint.documents import arguments
from memlint.documents.node import Command, Keys, Node


class Options:
    """Options of a family. ``schema`` gives its schema when a command is first read."""

    def __init__(self, schema: Callable[[], Schema], header: dict[str, Any]) -> None:
        self._schema = schema
        self._header = header

    @cached_property
    def _spellings(self) -> dict[str, tuple[str, Schema, frozenset[str]]]:
        """Every spelling of a top-level key -> (the key, its schema, its types)."""
        by_name: dict[str, tuple[str, Schema, frozenset[str]]] = {}
        for name, value in schemas.properties(self._schema(), self._schema()).items():
            resolved = schemas.resolve(value, self._schema())
            kinds = schemas.types(resolved, self._schema())
            for spelling in (name, *resolved.get(ANNOTATION, {}).get("aliases", ())):
                by_name.setdefault(spelling, (name, resolved, kinds))
        return by_name

    def name_of(self, spelling: str) -> str:
        """The key that a spelling stands for."""
        return self._spellings.get(spelling, (spelling,))[0]

    @cached_property
    def takes(self) -> Callable[[str], str]:
        """How many words an option takes, by its name."""
        by_name = self._spellings

        def takes(name: str) -> str:
            name = spelt(name, by_name)
            _, value, kinds = by_name.get(name, ("", {}, frozenset()))
            if value.get(ANNOTATION, {}).get("flag"):
                return arguments.SWITCH
            if "array" in kinds:
                return arguments.MANY
            if kinds and kinds <= {"boolean", "null"}:
                return arguments.BOOLEAN
            if name.startswith("no_") and "boolean" in by_name.get(name[3:], ("", {}, ()))[2]:
                return arguments.SWITCH
            return arguments.ONE

        if not self._header.get("dotted"):
            return takes
        inside = self._inside

        def takes_inside(name: str) -> str:
            _, value = inside.get(name.replace("-", "_"), ((), {}))
            if name in by_name or not value:
                return takes(name)
            kinds = schemas.types(value, self._schema())
            return arguments.BOOLEAN if kinds and kinds <= {"boolean", "null"} else arguments.ONE

        return takes_inside

    @cached_property
    def _inside(self) -> dict[str, tuple[tuple[str, ...], Schema]]:
        """Dotted names of the keys inside tables -> their paths and schemas."""
        found: dict[str, tuple[tuple[str, ...], Schema]] = {}

        def walk(schema: Schema, path: tuple[str, ...]) -> None:
            for name, value in schemas.properties(schema, self._schema()).items():
                inner = schemas.resolve(value, self._schema())
                for spelling in (name, *inner.get(ANNOTATION, {}).get("aliases", ())):
                    found.setdefault(".".join((*path, spelling)), ((*path, spelling), inner))
                if len(path) < 6:
                    walk(inner, (*path, name))

        walk(self._schema(), ())
        return found

    def of(self, command: Command) -> Node:
        """The options of a command, with the types that the schema gives them, as argparse would read them.

        ``--per-device`` is ``--per_device`` where the schema knows only the one, and the other way round: forks of
        Megatron-LM name their options as Python does (epfLLM/Megatron-LLM at 806a833: megatron/arguments.py).
        """
        by_name = self._spellings
        if command.words:
            values, _ = arguments.split(command.words, self.takes)
        else:
            values = dict(command.options.value) if isinstance(command.options.value, dict) else {}
        found: dict[str, Node] = {}
        inside = self._inside if self._header.get("dotted") else {}
        for written, node in values.items():
            name = spelt(written, by_name)
            positive = name[3:] if name.startswith("no_") else ""
            if name not in by_name and "boolean" in by_name.get(positive, ("", {}, ()))[2]:
                found[positive] = Node(False, node.span, node.key_span, positive, node.via)
            elif name in by_name:
                found[name] = typed(node, by_name[name][1], self._schema())
            elif name in inside:
                path, value = inside[name]
                nest(found, path, typed(node, value, self._schema()))
            else:
                found[written] = node
        return Node(found, command.options.span)

    def overrides(self, command: Command, options: Node) -> list[Node]:
        """The words of a command that set keys; pairs of a key and its value (yacs) as ``KEY=value``."""
        _, rest = arguments.split(command.words, self.takes)
        how = self._header["overrides"]
        if how is True:
            return rest
        if how != "pairs":
            listed = child(options, (how,))
            return list(listed.value) if listed is not None and isinstance(listed.value, list) else []
        opts = child(options, ("opts",))
        if opts is not None and isinstance(opts.value, list):
            rest = [*rest, *opts.value]
        found: list[Node] = []
        at = 0
        while at + 1 < len(rest):
            key, value = rest[at].value, rest[at + 1]
            if isinstance(key, str) and key[:1].isupper() and key.replace(".", "_").isidentifier():
                if isinstance(value.value, str):
                    found.append(Node(f"{key}={value.value}", value.span, None, "", value.via))
                at += 1
            at += 1
        return found


def spelt(name: str, known: Container[str]) -> str:
    """An option's name as the schema has it, with dashes or with underscores; with underscores where it has neither."""
    ways = (name, name.replace("-", "_"), name.replace("_", "-"))
    return next((way for way in ways if way in known), ways[1])


_TRUE = frozenset(("true", "yes", "on", "1"))
_FALSE = frozenset(("false", "no", "off", "0"))


def typed(node: Node, schema: Schema, root: Schema) -> Node:
    """An option's words with the types that the schema gives them; what does not fit stays text."""
    kinds = schemas.types(schema, root)
    value = node.value
    if isinstance(value, list) and "array" not in kinds:  # repeated: the last use stands
        return typed(arguments.placed(value[-1], node.keys, value[-1].key_span), schema, root)
    if isinstance(value, list):
        if len(value) == 1 and isinstance(value[0].value, str) and value[0].value[:1] == "[":
            return _literal_list(node, value[0])
        items = schema.get("items", {})
        prefix = schema.get("prefixItems", ())
        converted = [
            typed(item, schemas.resolve(prefix[at] if at < len(prefix) else items, root), root)
            for at, item in enumerate(value)
        ]
        return Node(converted, node.span, node.key_span, node.keys, node.via)
    if not isinstance(value, str):
        return node
    if "object" in kinds and value[:1] == "{":
        return _literal_object(node, value, schema, root)
    return Node(_convert(value, kinds), node.span, node.key_span, node.keys, node.via)


def _literal_list(node: Node, word: Node) -> Node:
    """``--down_dims "[512,1024]"``: a list written as one word."""
    import json

    try:
        items = json.loads(str(word.value))
    except (ValueError, RecursionError):
        return node
    children = [
        Node(item, word.span, None, (node.keys, at), word.via)
        for at, item in enumerate(items)
        if not isinstance(item, (list, dict))
    ]
    return Node(children, word.span, node.key_span, node.keys, word.via)


def _literal_object(node: Node, text: str, schema: Schema, root: Schema) -> Node:
    """``--fsdp_config '{"version": 2}'``: a mapping written as one word, every value of which stands there. Words in it
    have the types that the schema gives them (transformers: ``_convert_str_dict`` makes a boolean of ``"True"``)."""
    import json

    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return node

    def placed(value: Any, keys: Keys, kind: Schema) -> Node:
        if isinstance(value, dict):
            within = kind.get("properties", {})
            value = {
                name: placed(inner, (keys, name), schemas.resolve(within.get(name, {}), root))
                for name, inner in value.items()
            }
        elif isinstance(value, list):
            value = [placed(inner, (keys, at), {}) for at, inner in enumerate(value)]
        elif isinstance(value, str) and kind:
            value = _convert(value, schemas.types(kind, root))
        return Node(value, node.span, node.key_span, keys, node.via)

    return placed(found, node.keys, schemas.resolve(schema, root))


def _convert(text: str, kinds: frozenset[str]) -> Any:
    if "null" in kinds and text in ("None", "null"):
        return None
    if "boolean" in kinds:
        lower = text.lower()
        if lower in _TRUE and not (text == "1" and kinds & {"integer", "number"}):
            return True
        if lower in _FALSE and not (text == "0" and kinds & {"integer", "number"}):
            return False
    if "integer" in kinds:
        try:
            return int(text)
        except ValueError:
            pass
    if "number" in kinds:
        try:
            number = float(text)
        except ValueError:
            return text
        return number if number == number else text
    return text
