"""The keys that a framework takes, read out of its wheel: names, types, defaults and choices, and nothing else.

    python -m benchmarks.keys extract FRAMEWORK WHEEL...   from wheels or sdists to benchmarks/extracts/FRAMEWORK.json
    python -m benchmarks.keys write                        from the extracts to schemas/FAMILY.keys.json

A framework is a row of ``FRAMEWORKS``; its own archive comes first, then those that its classes inherit from (of the
Trainer, say). Code is parsed and never imported: the fields of dataclasses and pydantic models, and the options of
argparse programs. An extract has what the code says, so that the keys can be written again without a network, and a
test holds that this gives the same bytes. Our annotations are not here: they are the family's own schema.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
EXTRACTS = ROOT / "benchmarks" / "extracts"
SCHEMAS = ROOT / "schemas"

Field = dict[str, Any]  # "type": JSON types, "default" or "made" (by an expression), "enum"

Classes = dict[str, tuple[list[str], dict[str, Field]]]  # name -> bases, fields


class Framework(NamedTuple):
    """Where a framework states its keys.

    family   whose keys they are
    title    what the release belongs to
    classes  the dataclasses or models whose fields are keys
    files    programs whose options are, as the ends of their paths
    folder   where the classes are, where the framework has others of the same names elsewhere
    """

    family: str
    title: str
    classes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    folder: str = ""


FRAMEWORKS = {
    "transformers": Framework("hf-trainer", "transformers", ("TrainingArguments", "Seq2SeqTrainingArguments")),
    "trl": Framework(
        "trl",
        "TRL",
        (
            "ScriptArguments",
            "ModelConfig",
            "SFTConfig",
            "DPOConfig",
            "KTOConfig",
            "GRPOConfig",
            "RLOOConfig",
            "RewardConfig",
        ),
    ),
    "ms-swift": Framework("ms-swift", "ms-swift", ("SftArguments", "PretrainArguments", "RLHFArguments")),
    "megatron-swift": Framework(
        "megatron-swift",
        "ms-swift",
        ("MegatronSftArguments", "MegatronPretrainArguments", "MegatronRLHFArguments"),
    ),
    "llamafactory": Framework(
        "llamafactory",
        "LLaMA-Factory",
        ("ModelArguments", "DataArguments", "TrainingArguments", "FinetuningArguments", "GeneratingArguments"),
        folder="llamafactory/hparams/",
    ),
    "open-instruct": Framework(
        "open-instruct",
        "open-instruct",
        (
            *("FlatArguments", "DPOExperimentConfig", "GRPOExperimentConfig", "TokenizerConfig", "ModelConfig"),
            *("StreamingDataLoaderConfig", "VLLMConfig", "EnvsConfig"),
        ),
    ),
    "openrlhf": Framework(
        "openrlhf",
        "OpenRLHF",
        (),
        ("openrlhf/cli/train_sft.py", "openrlhf/cli/train_dpo.py", "openrlhf/cli/train_rm.py"),
    ),
}

_TYPES = {
    **{"bool": "boolean", "int": "integer", "float": "number", "str": "string", "None": "null", "strtobool": "boolean"},
    **dict.fromkeys(("list", "List", "Sequence", "tuple", "Tuple", "set"), "array"),
    **dict.fromkeys(("dict", "Dict", "Mapping"), "object"),
    **dict.fromkeys(("IntervalStrategy", "SchedulerType", "HubStrategy", "SaveStrategy", "OptimizerNames"), "string"),
}
_ORDER = ("string", "integer", "number", "boolean", "array", "object", "null")


# ---------------------------------------------------------------------------------------------- reading code


def sources(archive: Path) -> Iterator[tuple[str, str]]:
    """The Python files of a wheel or an sdist: their paths and texts."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for name in wheel.namelist():
                if name.endswith(".py"):
                    yield name, wheel.read(name).decode("utf-8", "replace")
        return
    with tarfile.open(archive) as sdist:
        for member in sdist.getmembers():
            file = sdist.extractfile(member) if member.name.endswith(".py") else None
            if file is not None:
                yield member.name.partition("/")[2], file.read().decode("utf-8", "replace")


def kinds(annotation: ast.expr | None) -> tuple[set[str], list[Any]]:
    """The JSON types that an annotation means, and its choices; no types where it may be anything."""
    if annotation is None:
        return set(), []
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return kinds(ast.parse(annotation.value, mode="eval").body)
    if isinstance(annotation, ast.Constant):
        return {"null"}, []
    if isinstance(annotation, ast.BinOp):
        return _either([annotation.left, annotation.right])
    if isinstance(annotation, ast.Subscript):
        name = _name(annotation.value)
        inner = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        if name == "Literal":
            values = [value.value for value in inner if isinstance(value, ast.Constant)]
            return {_type_of(value) for value in values}, values
        if name == "Optional":
            found, choices = kinds(inner[0])
            return (found | {"null"} if found else set()), choices
        if name == "Union":
            return _either(inner)
        return kinds(inner[0]) if name == "Annotated" else kinds(annotation.value)
    word = _TYPES.get(_name(annotation), "")
    return ({word} if word else set()), []


def _either(parts: list[ast.expr]) -> tuple[set[str], list[Any]]:
    found = [kinds(part) for part in parts]
    if not all(types for types, _ in found):
        return set(), []
    closed = all(choices or types == {"null"} for types, choices in found)
    choices = [value for _, values in found for value in values] if closed else []
    return set().union(*(types for types, _ in found)), choices


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _type_of(value: Any) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")


def field(types: set[str], choices: list[Any], default: ast.expr | None) -> Field:
    """A key by what the code says of it."""
    found: Field = {}
    if types:
        found["type"] = [name for name in _ORDER if name in types]
    if choices:
        found["enum"] = choices + ([None] if "null" in types and None not in choices else [])
    if default is not None:
        stated = _stated(default)
        if stated is not None:
            try:
                found["default"] = ast.literal_eval(stated)
                json.dumps(found["default"])
            except (ValueError, TypeError):
                found.pop("default", None)
                found["made"] = ast.unparse(stated)[:80]
    if isinstance(found.get("default"), tuple):
        found["default"] = list(found["default"])
    if types and "default" in found:  # a default of another type is a value as well
        fits = _type_of(found["default"]) in types or (_type_of(found["default"]) == "integer" and "number" in types)
        types = types if fits else types | {_type_of(found["default"])}
        found["type"] = [name for name in _ORDER if name in types]
    return found


def _stated(default: ast.expr) -> ast.expr | None:
    """The expression of a default: as it stands, or within ``field(...)``; None for a field without one."""
    if not (isinstance(default, ast.Call) and _name(default.func) in ("field", "Field")):
        return default
    named = {word.arg: word.value for word in default.keywords}
    if "default" in named:
        return named["default"]
    if default.args and _name(default.func) == "Field":
        return None if isinstance(default.args[0], ast.Constant) and default.args[0].value is ... else default.args[0]
    factory = named.get("default_factory")
    if isinstance(factory, ast.Lambda):
        return factory.body
    empty = {"list": ast.List([], ast.Load()), "dict": ast.Dict([], [])}
    return empty.get(_name(factory)) if factory is not None else None


def classes(tree: ast.Module) -> Iterator[tuple[str, list[str], dict[str, Field]]]:
    """The classes of a module with annotated fields: name, bases, fields. Bases by the names that they have at home."""
    called: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            called.update({alias.asname: alias.name for alias in node.names if alias.asname})
        elif (
            isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and isinstance(node.targets[0], ast.Name)
        ):
            called[node.targets[0].id] = node.value.id
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        fields: dict[str, Field] = {}
        for line in node.body:
            if not isinstance(line, ast.AnnAssign) or not isinstance(line.target, ast.Name):
                continue
            if line.target.id[:1] != "_" and "ClassVar" not in ast.unparse(line.annotation):
                fields[line.target.id] = field(*kinds(line.annotation), line.value)
        yield node.name, [called.get(_name(base), _name(base)) for base in node.bases if _name(base)], fields


def options(tree: ast.Module) -> dict[str, Field]:
    """The options that a module hands to argparse."""
    found: dict[str, Field] = {}
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and _name(node.func) == "add_argument" and node.args):
            continue
        names = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        long = [name[2:] for name in names if name.startswith("--")]
        if not long:
            continue
        words = {word.arg: word.value for word in node.keywords}
        action = ast.unparse(words["action"]).strip("'") if "action" in words else ""
        if action in ("store_true", "store_false"):
            found[long[0]] = {"type": ["boolean"], "default": action == "store_false"}
            continue
        types = {_TYPES.get(_name(words["type"]), "string")} if "type" in words else {"string"}
        if "nargs" in words and not (isinstance(words["nargs"], ast.Constant) and words["nargs"].value == "?"):
            types = {"array"}
        default = words.get("default")
        if default is None or (isinstance(default, ast.Constant) and default.value is None):
            types = types | {"null"}
        choices = ast.literal_eval(words["choices"]) if "choices" in words else []
        found[long[0]] = field(types, list(choices), default if default is not None else ast.Constant(None))
    return found


# ---------------------------------------------------------------------------------------------- extracts


def extract(framework: Framework, archives: list[Path]) -> dict[str, Any]:
    """What the archives state: the framework's own first, then those that its classes inherit from."""
    known: list[Classes] = []
    programs: dict[str, dict[str, Field]] = {}
    for archive in archives:
        inside: Classes = {}
        for path, text in sources(archive):
            if any(path.endswith(end) for end in framework.files):
                programs[path.rsplit("/", 1)[-1]] = options(ast.parse(text))
            if framework.classes and "class " in text and (known or framework.folder in path):
                for name, bases, fields in classes(ast.parse(text)):
                    if name not in inside or len(inside[name][1]) < len(fields):  # of two of a name, the larger one
                        inside[name] = bases, fields
        known.append(inside)
    groups = {name: inherited(name, known) for name in framework.classes}
    release = ", ".join("-".join(archive.name.split("-")[:2]).replace("-", " ") for archive in archives)
    return {"release": release.replace("_", "-"), "keys": {**groups, **dict(sorted(programs.items()))}}


def inherited(name: str, known: list[Classes], first: int = 0) -> dict[str, Field]:
    """The fields of a class and of those that it inherits from: its own, then of the bases the left one's. A base of
    the same name (``TrainingArguments(TrainingArguments)``) is in a later archive."""
    for at in range(first, len(known)):
        if name in known[at]:
            bases, fields = known[at][name]
            found = dict(fields)
            for base in bases:
                later = at + 1 if base == name else at
                for key, value in inherited(base, known, later).items():
                    found.setdefault(key, value)
            return found
    return {}


# ---------------------------------------------------------------------------------------------- keys


def keys(framework: Framework, extracted: dict[str, Any], annotated: frozenset[str]) -> dict[str, Any]:
    """The schema of all keys of a release. Of a key that several classes have, what they agree on."""
    found: dict[str, Field] = {}
    places: dict[str, list[str]] = {}
    for group, fields in extracted["keys"].items():
        for name, stated in fields.items():
            places.setdefault(name, []).append(group.rsplit("/", 1)[-1])
            before = found.setdefault(name, dict(stated))
            types = before.get("type", []) + stated.get("type", [])
            if "type" in before and "type" in stated:
                before["type"] = [one for one in _ORDER if one in types]
            else:
                before.pop("type", None)
            for word in ("default", "enum"):
                if word in before and before[word] != stated.get(word, before):
                    del before[word]
    properties = {}
    for name in sorted(found):
        entry = {word: value for word, value in found[name].items() if word != "made"}
        said = "" if name in annotated else "; not annotated"
        properties[name] = {**entry, "$comment": ", ".join(places[name]) + said}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$comment": f"Made by benchmarks/keys.py from {extracted['release']}",
        "title": f"Keys of {framework.title}",
        "type": "object",
        "properties": properties,
    }


def annotated(family: str) -> frozenset[str]:
    """The keys that the family's own schema has, by all of their names."""
    from memlint.dialects import schema as schemas

    root = schemas.load(family)
    stated = schemas.properties(root, root)
    names = {name for value in stated.values() for name in value.get(schemas.ANNOTATION, {}).get("aliases", ())}
    return frozenset(names | set(stated))


def text(tree: dict[str, Any]) -> str:
    """A key to a line, so that a new release is a readable difference."""
    rows = [f"    {json.dumps(name)}: {json.dumps(value)}" for name, value in tree["properties"].items()]
    head = {name: value for name, value in tree.items() if name != "properties"}
    return json.dumps(head, indent=2)[:-2] + ',\n  "properties": {\n' + ",\n".join(rows) + "\n  }\n}\n"


def written(name: str) -> str:
    """The text of the file of keys that belongs to an extract."""
    framework = FRAMEWORKS[name]
    extracted = json.loads((EXTRACTS / f"{name}.json").read_text(encoding="utf-8"))
    return text(keys(framework, extracted, annotated(framework.family)))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("extract")
    one.add_argument("framework", choices=sorted(FRAMEWORKS))
    one.add_argument("archives", nargs="+", type=Path)
    commands.add_parser("write")
    asked = parser.parse_args(arguments)
    if asked.command == "extract":
        found = extract(FRAMEWORKS[asked.framework], asked.archives)
        EXTRACTS.mkdir(exist_ok=True)
        body = json.dumps(found, indent=None, separators=(",", ":")).replace('},"', '},\n"')
        (EXTRACTS / f"{asked.framework}.json").write_text(body + "\n", encoding="utf-8")
        return 0
    for name in sorted(path.stem for path in EXTRACTS.glob("*.json")):
        (SCHEMAS / f"{FRAMEWORKS[name].family}.keys.json").write_text(written(name), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
