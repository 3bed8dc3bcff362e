"""The schemas of ``schemas/``: finding them, their annotations, and validating a tree against them.

A family is ``schemas/<family>.schema.json``: an ordinary JSON Schema (draft 2020-12) whose ``x-memlint``
entries say what the keys mean. At the top, before ``properties``:

    family, title   name, and what a person calls it
    formats         document formats that its programs read (yaml, json, toml, python, shell): who loads YAML reads JSON
                    as well, which is YAML
    models          the models that it has an estimate for, as the README's table has them
    signature       all: dotted keys that must be there; any: keys, or lists of keys, of which one must be;
                    none: keys that must not; program: regular expression searched in the program of a shell
                    command, without which it is not this family; programs: the same, searched in the program and
                    its first word (``trl sft``), for programs that are certain without any of the keys;
                    both may be a list of names instead, without folder and .py, ``*`` at an end for anything
                    (cheaper: nothing is compiled); text: parts of a text of which one is enough, for files whose
                    keys are all in others (``_base_ =``); other: as programs is, for commands that are not it although
                    they name such a file (``axolotl preprocess``)
                    launcher: the same, searched in the names of launchers, for commands of no other family;
                    trains: true for any program whose name says that it trains, of no other family;
                    class: the keys live inside a class of a Python module
                    members: in a Python module, each function that returns such keys is a run
                    assigned: program and any, for commands that say nothing but ``--name=value`` of keys that the
                    schema has: fewer of them are enough
    root            how a path begins that is below the library's own folder (``oumi://``)
    extends         the key that names the file, or files, that a file builds on (``_BASE_``)
    script          true where the script that a command starts says the rest of the run in these keys
    overrides       true where words ``key=value`` of a command change the config that it names, or stand for one;
                    "pairs" where the words are a key and its value in turn (yacs), after ``--opts`` too
    primary         names of the library's own primary configs: another one that ``--config-name`` names is read from
                    the folder of ``--config-path``, or beside the script
    own             how scripts of the library's own repository name a file by variables: configs, the folder of all of
                    them; sourced, what a script sources that sets the variable to the file of its own name; mirrored,
                    the scripts' folder and that of such files
    keys            the file with all keys of the release that the schema is of (``trl.keys.json``, made by
                    ``python -m benchmarks.keys``), read where a key looks like another one's misspelling
    refines         families whose keys these are too, and more: of both, this one is meant
    positional      true where a command may name its config without an option, anywhere (argparse, click); first where
                    it is looked for before every option (``sys.argv[1]``: ``run_clm.py args.json``), and a word behind
                    them is a further value of one; python where it is a module (``train.py config/small.py``)
    recipes         the folder of the library's repository with configs that a command names by their bare names, as its
                    second word (``xtuner train llama3_8b_instruct_qlora_alpaca_e3``)
    dashed          true where a command's options have dashes in the place of a file's underscores
    calls           true where its keys are what a program says in its calls, whatever the options that started it
    dotted          true where options name keys inside tables by dots (``--train.micro_batch_size 1``); "or flat" where
                    other releases have flat ones in their place
    card            the fact that the card of ``--gpu`` gives, where a run depends on it (its compute capability)
    module          its Python half in ``memlint/dialects/``, where there is one
    trainer         the trainer of `memlint.trainers`, or its library where a fact says which one
    framework       ``torch 2.13``: what the documented defaults belong to
    written         fact -> its value -> the keys that say so together, where no single key does:
                    ``{"tuning": {"lora": {"adapter": "lora", "lora_r": 16}}}``, keys inside tables by dots;
                    a list of such, where programs differ: the first that can be written. Facts that need other keys
                    together than each alone: ``{"tuning + quantization.bits": {"lora + 4": {"adapter": "qlora"}}}``
    architecture, model_name   where the family has only one model
    facts           facts that no key of the family sets: name -> {default, default_of}

and on a property:

    fact            the fact that the key sets
    default         its value where the key is absent, with default_of: whose default that is
    values          value in the file -> value of the fact (``{"true": "xformers", "false": "eager"}``)
    memory          what the key means for memory, in one sentence
    memory_relevant true for a key without a fact of its own that still matters
    ignored         why the model named by the config ignores the key
    aliases         other spellings of the same key
    flag            true for a command-line switch that takes no value
    companion       format of the file that the value names: it is the document of the run
    environment     the variable that names the companion where no option does
    words           the code takes any word for the same thing: ``dtype``, ``optimizer``, ``attention`` (words.py)
    otherwise       why nothing is known of a run where the key is written and not off
    on_top          true beside otherwise: what is not known comes on top of weights, gradients and states
    divides, at_most, less_than
                    facts whose numbers this key's number must divide, or must not exceed, or stay below
    graft           true beside companion: the file's tree stands in place of the value instead

A property may be a reference into another file of the folder, ``{"$ref": "training_arguments.json#/$defs/bf16"}``, with
this family's own description, default and annotations beside it; ``"allOf": [{"$ref": "trl.schema.json"}]`` takes all
keys of another family.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

from memlint import work
from memlint.documents.node import Node, Unresolved, shown
from memlint.facts.spec import TrainingSpec
from memlint.named_tuple import NamedTuple

Schema = dict[str, Any]

ANNOTATION = "x-memlint"
_SUFFIX = ".schema.json"

MAX_CHOICES = 20  # that a message lists
MAX_HINTS = 20  # that are looked for: what else is unknown is said without
_JSONSCHEMA = 40  # steps that jsonschema takes per value

NOT_TAKEN = "not a value that this key takes"  # why a fact is missing where its value is refused

WRONG_TYPE = "wrong-type"
UNKNOWN_VALUE = "unknown-value"
UNKNOWN_KEY = "unknown-key"

HEADER_NAMES = frozenset(
    ("family", "title", "formats", "models", "signature", "module", "framework", "architecture", "model_name", "facts")
) | {
    "positional",
    "recipes",
    "script",
    "overrides",
    "own",
    "primary",
    "refines",
    "dashed",
    "calls",
    "dotted",
    "root",
    "extends",
    "keys",
    "trainer",
    "card",
    "written",
}
SIGNATURE_NAMES = frozenset(
    (
        *("all", "any", "none", "program", "programs", "launcher", "trains", "class", "text", "other", "members"),
        "assigned",
    )
)
PROPERTY_NAMES = frozenset(
    ("fact", "default", "default_of", "values", "memory", "memory_relevant", "ignored", "aliases")
) | {"flag", "companion", "graft", "environment", "words", "divides", "at_most", "less_than", "otherwise", "on_top"}

_ELSEWHERE = re.compile(r'"\$ref": *"[^#"]')  # a reference into another file
BESIDE = frozenset(("title", "description", "default", "examples", "deprecated", "$comment", ANNOTATION))

_schemas: dict[str, Schema] = {}
_files: dict[str, Schema] = {}  # by their names
_headers: dict[str, dict[str, Any]] = {}
_families: list[str] = []
_by_format: dict[str, list[str]] = {}
_place = ""  # the folder


class Violation(NamedTuple):
    """A value or key that the schema rejects, at the node that holds it.

    kind        WRONG_TYPE, UNKNOWN_VALUE (not one of those allowed, or out of range) or UNKNOWN_KEY
    suggestion  what was probably meant: a value, or a key; "" where nothing is near
    """

    kind: str
    node: Node
    message: str
    suggestion: Any = ""


class Key(NamedTuple):
    """One annotated property. ``path`` leads to it; ``names`` are its spellings, the main one first."""

    path: tuple[str, ...]
    names: tuple[str, ...]
    annotation: dict[str, Any]
    schema: Schema

    @property
    def dotted(self) -> str:
        return ".".join(self.path)


# ---------------------------------------------------------------------------------------------- finding them


def _folder() -> str:
    global _place
    if not _place:
        # Not importlib.resources, whose import costs more than everything else here; __path__ works in a wheel,
        # an editable install and a bare clone alike.
        package: Any = __import__("memlint.schemas", fromlist=["__path__"])
        _place = str(package.__path__[0])
    return _place


def families() -> list[str]:
    """Names of the families that have a schema, sorted."""
    if not _families:
        names = sorted(name[: -len(_SUFFIX)] for name in os.listdir(_folder()) if name.endswith(_SUFFIX))
        _families.extend(name for name in names if header(name).get("family") == name)
    return list(_families)


def written_in(document_format: str) -> list[str]:
    """Names of those of them whose files have this format, sorted."""
    if document_format not in _by_format:
        found = (name for name in families() if document_format in header(name).get("formats", ()))
        _by_format[document_format] = list(found)
    return _by_format[document_format]


def _path(family: str) -> str:
    return os.path.join(_folder(), family + _SUFFIX)


def _text(name: str) -> str:
    with open(os.path.join(_folder(), name), encoding="utf-8") as file:
        return file.read()


def _head(family: str) -> str:
    """The first bytes of a schema: a run opens one file per family, and ``open`` would cost more than what follows."""
    file = os.open(_path(family), os.O_RDONLY | getattr(os, "O_BINARY", 0))
    try:
        return os.read(file, _HEAD).decode("utf-8", "ignore")
    finally:
        os.close(file)


def load(family: str) -> Schema:
    """The schema of a family. Raises KeyError for a family that has none."""
    if family not in _schemas:
        try:
            _schemas[family] = _read(family + _SUFFIX)
        except FileNotFoundError:
            raise KeyError(family) from None
    return _schemas[family]


def _read(name: str) -> Schema:
    """A file of the folder, with the definitions that it takes from other files in the place of its references to them.

    ``training_arguments.json#/$defs/bf16`` is a path from the folder of the schemas. What stands beside such a
    reference is said of this use of it, and goes before what the definition says; of annotations each by itself. As any
    other validator holds a value against both, only words that forbid nothing may stand there (``BESIDE``).

    Raises FileNotFoundError, and KeyError for a reference that leads nowhere.
    """
    if name not in _files:
        import json

        text = _text(name)
        _files[name] = json.loads(text, object_hook=_placed if _ELSEWHERE.search(text) else None)
    return _files[name]


def _placed(part: dict[str, Any]) -> dict[str, Any]:
    """One object of a schema, which is the definition itself where it was a reference into another file."""
    reference = part.get("$ref")
    if not isinstance(reference, str) or reference[:1] == "#":
        return part
    file, _, pointer = reference.partition("#")
    try:
        target: Any = _read(file)
    except FileNotFoundError:
        raise KeyError(file) from None
    for step in pointer.strip("/").split("/") if pointer else ():
        target = target[step]
    del part["$ref"]
    if ANNOTATION in part:
        part[ANNOTATION] = {**target.get(ANNOTATION, {}), **part[ANNOTATION]}
    return {**target, **part}


_HEAD = 4096  # bytes that hold most headers


def header(family: str) -> dict[str, Any]:
    """The top-level annotations alone, which come first in the file; empty for a schema that is no family's.

    Neither is the whole schema read for them, nor parsed. Raises KeyError where there is no schema of the name.
    """
    if family not in _headers:
        try:
            text = _head(family)
        except FileNotFoundError:
            raise KeyError(family) from None
        found: Any = {}
        at = text.find(f'"{ANNOTATION}"')
        if at >= 0:
            import json

            try:
                found, _ = json.JSONDecoder().raw_decode(text, text.find("{", at))
            except ValueError:  # longer than the head
                found = load(family).get(ANNOTATION, {})
        _headers[family] = found if "family" in found else {}
    return _headers[family]


# ---------------------------------------------------------------------------------------------- walking one


def resolve(schema: Any, root: Schema) -> Schema:
    """Follow local ``$ref`` (``#/$defs/name``). Raises KeyError for a reference that leads nowhere."""
    for _ in range(32):
        if not isinstance(schema, dict) or "$ref" not in schema:
            return schema if isinstance(schema, dict) else {}
        reference = schema["$ref"]
        if reference == "#":
            return root
        target: Any = root
        for part in reference.removeprefix("#/").split("/"):
            target = target[int(part)] if isinstance(target, list) else target[part]
        # Keywords beside $ref apply as well; annotations beside it say what this use of it means.
        beside = {name: value for name, value in schema.items() if name != "$ref"}
        schema = {**target, **beside} if isinstance(target, dict) else target
    raise KeyError(f"$ref cycle at {schema['$ref']}")


def branches(schema: Schema, root: Schema) -> Iterator[Schema]:
    """The schema itself and, recursively, its anyOf/oneOf/allOf alternatives, with references followed."""
    schema = resolve(schema, root)
    yield schema
    for keyword in ("anyOf", "oneOf", "allOf"):
        for alternative in schema.get(keyword, ()):
            yield from branches(alternative, root)


def properties(schema: Schema, root: Schema) -> dict[str, Schema]:
    """The properties of an object schema, those of its alternatives included; the first definition wins."""
    found: dict[str, Schema] = {}
    for branch in branches(schema, root):
        for name, child in branch.get("properties", {}).items():
            found.setdefault(name, child)
    return found


def keys(schema: Schema) -> tuple[Key, ...]:
    """Every property that carries annotations, in the order of the schema; tuple items as ``name.0``."""
    return tuple(_keys(schema, schema, (), 0))


def _keys(schema: Schema, root: Schema, path: tuple[str, ...], depth: int) -> Iterator[Key]:
    if depth > 24:
        return
    for name, child in properties(schema, root).items():
        yield from _key(child, root, (*path, name), depth)
    for branch in branches(schema, root):
        for index, child in enumerate(branch.get("prefixItems", ())):
            yield from _key(child, root, (*path, str(index)), depth)


def _key(child: Schema, root: Schema, path: tuple[str, ...], depth: int) -> Iterator[Key]:
    if isinstance(child, dict) and ("$ref" in child and depth > 8):
        return  # a recursive definition
    resolved = resolve(child, root)
    annotation = resolved.get(ANNOTATION)
    if annotation:
        names = (path[-1], *annotation.get("aliases", ()))
        yield Key(path, names, annotation, resolved)
    yield from _keys(resolved, root, path, depth + 1)


def types(schema: Schema, root: Schema) -> frozenset[str]:
    """The JSON types that a value may have, by ``type``, ``enum``, ``const`` and alternatives; empty: any."""
    found: set[str] = set()
    for branch in branches(schema, root):
        stated = branch.get("type", ())
        found.update((stated,) if isinstance(stated, str) else stated)
        if not stated:
            values = branch.get("enum", [branch["const"]] if "const" in branch else ())
            found.update(_type_name(value) for value in values)
    return frozenset(found)


def _type_name(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "object" if isinstance(value, dict) else "array"


# ---------------------------------------------------------------------------------------------- fast checking

_IGNORED = frozenset(
    ("$schema", "$id", "$defs", "$comment", "title", "description", "default", "examples", "deprecated")
) | {ANNOTATION, "format", "readOnly", "writeOnly"}
_CHECKED = frozenset(
    ("$ref", "type", "enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "pattern")
) | frozenset(("items", "prefixItems", "minItems", "maxItems", "properties", "additionalProperties", "required"))
SUPPORTED = _IGNORED | _CHECKED | {"anyOf", "oneOf", "allOf"}


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


def _has_type(value: Any, name: str) -> bool:
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


def _valid(node: Node, schema: Any, root: Schema) -> bool:
    """Whether the schema accepts the node; False also where a keyword is not among those supported."""
    if schema is True:
        return True
    if schema is False:
        return False
    value = node.value
    if isinstance(value, Unresolved):
        return True
    for keyword, wanted in schema.items():
        if keyword in _IGNORED:
            continue
        if keyword == "type":
            names = (wanted,) if isinstance(wanted, str) else wanted
            if not any(_has_type(value, name) for name in names):
                return False
        elif keyword == "properties":
            if isinstance(value, dict):
                for name, child in value.items():
                    if name in wanted and not _valid(child, wanted[name], root):
                        return False
        elif keyword == "$ref":
            target: Any = root
            try:
                for part in wanted.removeprefix("#").removeprefix("/").split("/") if wanted != "#" else ():
                    target = target[int(part)] if isinstance(target, list) else target[part]
            except (KeyError, IndexError, ValueError, TypeError):
                return False
            if not _valid(node, target, root):
                return False
        elif keyword == "enum":
            if not _open(node) and not any(_equal(node.plain(), one) for one in wanted):
                return False
        elif keyword == "const":
            if not _open(node) and not _equal(node.plain(), wanted):
                return False
        elif keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                if keyword == "minimum" and value < wanted:
                    return False
                if keyword == "maximum" and value > wanted:
                    return False
                if keyword == "exclusiveMinimum" and value <= wanted:
                    return False
                if keyword == "exclusiveMaximum" and value >= wanted:
                    return False
        elif keyword == "pattern":
            if isinstance(value, str) and re.search(wanted, value) is None:
                return False
        elif keyword == "items":
            if isinstance(value, list):
                for child in value[len(schema.get("prefixItems", ())) :]:
                    if not _valid(child, wanted, root):
                        return False
        elif keyword == "prefixItems":
            if isinstance(value, list) and not all(_valid(child, one, root) for child, one in zip(value, wanted)):
                return False
        elif keyword == "minItems":
            if isinstance(value, list) and len(value) < wanted:
                return False
        elif keyword == "maxItems":
            if isinstance(value, list) and len(value) > wanted:
                return False
        elif keyword == "additionalProperties":
            if isinstance(value, dict):
                stated = schema.get("properties", {})
                others = (child for name, child in value.items() if name not in stated)
                if not all(_valid(child, wanted, root) for child in others):
                    return False
        elif keyword == "required":
            if isinstance(value, dict) and not all(name in value for name in wanted):
                return False
        elif keyword == "anyOf":
            if not any(_valid(node, one, root) for one in wanted):
                return False
        elif keyword == "oneOf":
            matches = sum(_valid(node, one, root) for one in wanted)
            if matches == 0 or (matches > 1 and not _open(node)):
                return False
            if matches < len(wanted) and any(unsupported(one) for one in wanted):
                return False  # one that was only doubted may be a second match
        elif keyword == "allOf":
            if not all(_valid(node, one, root) for one in wanted):
                return False
        else:
            return False
    return True


def accepts(node: Node, schema: Schema, root: Schema) -> bool:
    """Whether a part of the schema ``root`` accepts the node."""
    if _valid(node, schema, root):
        return True
    if not unsupported(schema):
        return False
    return bool(_lenient_validator()(root).evolve(schema=schema).is_valid(node.plain()))


# ---------------------------------------------------------------------------------------------- objections


def validate(root: Node, schema: Schema) -> list[Violation]:
    """What the schema rejects in a tree, and keys that look like misspelt memory-relevant ones.

    Unresolved values are valid: what they will be is not known. In the order of the text.
    """
    found = [] if _valid(root, schema, schema) else list(_errors(root, schema))
    found.extend(_misspelt(root, schema, schema, 0))
    found.sort(key=lambda violation: (violation.node.key_span or violation.node.span)[:3])
    return found


def misspelt(root: Node, schema: Schema) -> Iterator[Violation]:
    """Keys of a tree that look like misspelt memory-relevant ones of the schema."""
    return _misspelt(root, schema, schema, 0)


# The last run asked about: one rule reports wrong values, the next one keys that are not known.
_judged: list[tuple[Node, str, list[Violation]]] = []


def violations(spec: TrainingSpec) -> list[Violation]:
    """What a run's family says against its config."""
    if not spec.family:
        return []
    if not _judged or _judged[0][0] is not spec.root or _judged[0][1] != spec.family:
        _judged[:] = [(spec.root, spec.family, validate(spec.root, load(spec.family)))]
    return _judged[0][2]


def _errors(root: Node, schema: Schema) -> Iterator[Violation]:
    """The precise errors, from jsonschema, which is imported only when something is wrong."""
    work.spend(_JSONSCHEMA * sum(1 for _ in root.walk()), "holding the config against its schema")
    validator = _lenient_validator()(schema)
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
                    yield Violation(UNKNOWN_KEY, child, message, _near(name, stated) if hints <= MAX_HINTS else "")
        elif error.validator == "type":
            names = error.validator_value
            names = [names] if isinstance(names, str) else list(names)
            bare = node.value is True and node.span == node.key_span  # an option, and no word behind it
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
            near = _near(_scalar_text(node.plain()), texts) if hints <= MAX_HINTS else ""
            near = next(filter(takes, (value for value, text in zip(values, texts) if near and text == near)), "")
            yield Violation(UNKNOWN_VALUE, node, f"{label} is {shown_value(node)}, not one of: {_some(texts)}", near)
        elif error.validator in _BOUNDS:
            yield Violation(
                UNKNOWN_VALUE,
                node,
                f"{label} is {shown_value(node)}, but must be {_BOUNDS[error.validator]} {error.validator_value}",
            )
        elif error.validator == "pattern" and _ONE_WORD.fullmatch(error.validator_value):
            kinds = [kind for kind in error.schema.get("type", ()) if kind != "string"]
            takes_else = f"{_listed(kinds)} or " if isinstance(error.schema.get("type"), list) and kinds else ""
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


def _lenient_validator() -> Any:
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


# ---------------------------------------------------------------------------------------------- misspelt keys


def _relevant(child: Schema, root: Schema, depth: int = 0) -> bool:
    """Whether a key decides about memory: it sets a fact, is marked, or holds such keys."""
    if depth > 8:
        return False
    resolved = resolve(child, root)
    annotation = resolved.get(ANNOTATION, {})
    if any(name in annotation for name in ("fact", "memory_relevant", "companion")):
        return True
    return any(_relevant(inner, root, depth + 1) for inner in properties(resolved, root).values())


class _Names(NamedTuple):
    """The names that the keys of a mapping may have.

    known      name, or alias -> the schema of its value
    by_length  length of a text -> the names that it may be a slip of, with their letters
    """

    known: dict[str, Schema]
    by_length: dict[int, list[tuple[str, int]]]


# By the identity of the schemas that they are made of, which are kept beside them so that it stays theirs.
_named: dict[tuple[int, int], tuple[Schema, Schema, _Names]] = {}


def _names(schema: Schema, root: Schema) -> _Names:
    if (id(schema), id(root)) not in _named:
        known = properties(schema, root)
        for property_schema in list(known.values()):
            for alias in resolve(property_schema, root).get(ANNOTATION, {}).get("aliases", ()):
                known.setdefault(alias, property_schema)
        by_length: dict[int, list[tuple[str, int]]] = {}
        for name in known:
            for length in range(len(name) - 2, len(name) + 3):
                by_length.setdefault(length, []).append((name, _letters(name)))
        _named[id(schema), id(root)] = (schema, root, _Names(known, by_length))
    return _named[id(schema), id(root)][-1]


def _misspelt(node: Node, schema: Schema, root: Schema, depth: int) -> Iterator[Violation]:
    if not isinstance(node.value, dict) or depth > 24:
        return
    known, by_length = _names(schema, root)
    for name, child in node.value.items():
        if name in known:
            yield from _misspelt(child, known[name], root, depth + 1)
            continue
        candidates = by_length.get(len(name), ())
        letters = _letters(name) if candidates else 0
        work.spend(1 + len(candidates) // 4, "looking for misspelt keys")
        for candidate, others in candidates:
            if (
                (letters ^ others).bit_count() <= 4
                and candidate not in node.value  # where the right key is there too, the other one is a key of its own
                and is_misspelling(name, candidate)
                and _could_hold(known[candidate], child, root)
                and _relevant(known[candidate], root)
                and not (depth == 0 and name in released(root))
            ):
                yield Violation(UNKNOWN_KEY, child, f"{name} is not a key that is read; {candidate} is", candidate)
                break


def released(schema: Schema) -> frozenset[str]:
    """The names of all keys that the framework's own release takes, those that mean nothing here included."""
    file = schema.get(ANNOTATION, {}).get("keys", "")
    return frozenset(_read(file)["properties"]) if file else frozenset()


def _could_hold(schema: Schema, node: Node, root: Schema) -> bool:
    """Whether a key has values of this type: a slip changes a key's name, not what is meant (``vocab_size: 50304`` is
    no ``vocab_file``). Text may be a number in quotes, 1 may mean true, and nothing may stand anywhere."""
    kinds = types(schema, root)
    if not kinds or node.value is None or isinstance(node.value, (str, Unresolved)):
        return True
    if isinstance(node.value, (int, float)):
        return not kinds.isdisjoint(("boolean", "integer", "number"))
    return any(_has_type(node.value, kind) for kind in kinds)


def _letters(name: str) -> int:
    """The characters of a name as bits: two edits change four of them at most."""
    bits = 0
    for character in name:
        bits |= 1 << (ord(character) & 63)
    return bits


def is_misspelling(name: str, known: str) -> bool:
    """Whether a name is another one with a slip: a character dropped, doubled, wrong or swapped within a word, or what
    parts its words left out.

    Words keep their first letters: ``use_rslora`` is no slip of ``use_bdlora``, nor ``pvera`` of ``vera``. A wrong
    letter in a word of four is another word (``lora``, ``loha``), and so is the plural of a name that is one word.
    Names of fewer than 4 characters are too close to each other.
    """
    if name == known or min(len(name), len(known)) < 4:
        return False
    # Three slips at the most: most pairs are too far apart to be measured.
    if abs(len(name) - len(known)) > 3 or len(set(name) ^ set(known)) > 6:
        return False
    work.spend(len(name), "looking for misspelt keys")
    ones, others = _words(name), _words(known)
    if "".join(ones) == "".join(others):
        return True
    if len(ones) != len(others):
        return False
    pairs = [(one, other) for one, other in zip(ones, others) if one != other]
    if len(ones) == 1 and (name + "s" == known or known + "s" == name):
        return False
    return len(pairs) <= 2 and all(_is_slip(one, other) for one, other in pairs)


_PARTS = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])")
_LEAST_WORD = 4  # letters


def _words(name: str) -> list[str]:
    return [word for word in _PARTS.split(name) if word]


def _is_slip(one: str, other: str) -> bool:
    if max(len(one), len(other)) < _LEAST_WORD or one[:1] != other[:1]:
        return False
    if len(one) == len(other) <= _LEAST_WORD and sorted(one) != sorted(other):
        return False
    return _distance(one, other, 1) <= 1


def _distance(one: str, other: str, limit: int) -> int:
    """Damerau-Levenshtein distance in its optimal string alignment form; any number above ``limit`` that is more."""
    before: list[int] = []
    last = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        row = [i]
        for j, b in enumerate(other, 1):
            cost = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (a != b))
            if i > 1 and j > 1 and a == other[j - 2] and one[i - 2] == b:
                cost = min(cost, before[j - 2] + 1)
            row.append(cost)
        if min(row) > limit <= min(last):  # a row follows from the two before it
            return limit + 1
        before, last = last, row
    return last[-1]


def _near(text: str, candidates: Any) -> str:
    from difflib import get_close_matches

    options = list(candidates)
    by_lower = {option.lower(): option for option in reversed(options)}
    matches = get_close_matches(text.lower(), list(by_lower), n=1, cutoff=0.6)
    return by_lower[matches[0]] if matches else ""
