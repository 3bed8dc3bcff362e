"""The schemas of ``schemas/``: finding them, and their annotations. What a schema accepts is
:mod:`memlint.dialects.acceptance`, and what is said of the rest :mod:`memlint.dialects.objections`.

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
                    "pairs" where the words are a key and its value in turn (yacs), after ``--opts`` too; else the
                    option whose values are such words (``cfg_options``)
    primary         names of the library's own primary configs: another one that ``--config-name`` names is read from
                    the folder of ``--config-path``, or beside the script
    folders         where else ``--config-name`` is looked for, of programs whose words choose files of Hydra's groups
    own             how scripts of the library's own repository name a file by variables: configs, the folder of all of
                    them; sourced, what a script sources that sets the variable to the file of its own name; mirrored,
                    the scripts' folder and that of such files
    keys            the file with all keys of the release that the schema is of (``trl.keys.json``, made by
                    ``python -m benchmarks.keys``), read where a key looks like another one's misspelling
    refines         families whose keys these are too, and more: of both, this one is meant
    positional      true where a command may name its config without an option, anywhere (argparse, click); first where
                    it is looked for before every option (``sys.argv[1]``: ``run_clm.py args.json``), and a word behind
                    them is a further value of one; python where it is a module (``train.py config/small.py``)
    main            true where programs of people's own that are known by these keys read them on top of the config that
                    they name themselves (``hydra.main``)
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
    arguments       true where a class is made of the mapping, which refuses what it does not take: no key below it is
                    one that nobody reads

A property may be a reference into another file of the folder, ``{"$ref": "training_arguments.json#/$defs/bf16"}``, with
this family's own description, default and annotations beside it; ``"allOf": [{"$ref": "trl.schema.json"}]`` takes all
keys of another family.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

from memlint.named_tuple import NamedTuple

Schema = dict[str, Any]

ANNOTATION = "x-memlint"
_SUFFIX = ".schema.json"

HEADER_NAMES = frozenset(
    ("family", "title", "formats", "models", "signature", "module", "framework", "architecture", "model_name", "facts")
) | {
    "positional",
    "recipes",
    "script",
    "overrides",
    "own",
    "primary",
    "folders",
    "main",
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
    ("fact", "default", "default_of", "values", "memory", "memory_relevant", "ignored", "aliases", "arguments")
) | {"flag", "companion", "graft", "environment", "words", "divides", "at_most", "less_than", "otherwise", "on_top"}

_ELSEWHERE = re.compile(r'"\$ref": *"[^#"]')  # a reference into another file
BESIDE = frozenset(("title", "description", "default", "examples", "deprecated", "$comment", ANNOTATION))

_schemas: dict[str, Schema] = {}
_files: dict[str, Schema] = {}  # by their names
_headers: dict[str, dict[str, Any]] = {}
_families: list[str] = []
_by_format: dict[str, list[str]] = {}
_place = ""  # the folder


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


def released(schema: Schema) -> frozenset[str]:
    """The names of all keys that the framework's own release takes, those that mean nothing here included."""
    file = schema.get(ANNOTATION, {}).get("keys", "")
    return frozenset(_read(file)["properties"]) if file else frozenset()
