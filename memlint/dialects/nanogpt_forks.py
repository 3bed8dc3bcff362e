"""Forks of nanoGPT: a train.py with defaults of its own, a model of the repository's own, another optimizer."""

from __future__ import annotations

import ast
import os
import re
from typing import Any

from memlint.dialects import companions, own_code, own_sources, scripts
from memlint.documents.node import Unresolved
from memlint.documents.python.source import Reading
from memlint.facts.spec import DEFAULT, WRITTEN, Fact, TrainingSpec

_LONGEST = 40  # characters of a number, or of True
# Names by which forks choose the optimizer, and what is AdamW.
_CHOOSES = re.compile(r"(?:opt|optim|optimizer|algorithm|algo)(?:_(?:name|type))?")
_ADAMW = ("adamw", "adam", "adamw_fused", "fused_adamw")


def trainer(spec: TrainingSpec) -> own_code.Module | None:
    """The program that a command starts, or that the file is, or the train.py near it."""
    path = spec.document.path
    own = own_code.module(path) if path.endswith(".py") else None
    if own is not None and "exec(" in own.text and "import" in own.text:
        return own
    found = scripts.file_of(spec.launch, spec.document) if spec.launch is not None else None
    return own_code.module(found or companions.find("train.py", path) or "")


def _is_the_file(spec: TrainingSpec, own: own_code.Module) -> bool:
    """Whether the run's keys are the program's own assignments; a command of a remark in it has others."""
    return spec.launch is None and os.path.realpath(own.path) == os.path.realpath(spec.document.path)


def defaults(spec: TrainingSpec) -> dict[str, Fact]:
    """What the program assigns where neither a file nor a command says otherwise: a fork's own defaults."""
    from memlint.dialects import registry
    from memlint.documents.load import load

    own = trainer(spec)
    if own is None or _is_the_file(spec, own):
        return {}
    document = load(own.path, own.text)
    if not isinstance(document.root.value, dict):
        return {}
    facts, _ = registry.dialect(spec.family).facts_of(document.root)
    found: dict[str, Fact] = {}
    for name, fact in facts.items():
        here = spec.fact(name)  # type: ignore[arg-type]
        if fact.node is not None and here is not None and here.node is None:
            found[name] = fact._replace(
                origin=DEFAULT, node=None, reason=f"{os.path.basename(own.path)} of this repository"
            )
    return found


# What people call the tokens of a row.
_LENGTHS = ("block_size", "max_seq_len", "seq_len", "sequence_length", "context_length", "max_seq_length", "ctx_len")


def sizes(spec: TrainingSpec, own: own_code.Module) -> tuple[Fact | None, str]:
    """(how long a row is, where the program calls that otherwise than nanoGPT; why its batches are not known)."""
    from memlint.documents.load import load

    root = spec.root if _is_the_file(spec, own) else load(own.path, own.text).root
    assigned = root.value if isinstance(root.value, dict) else {}
    name = next((one for one in _LENGTHS if one in assigned), "")
    if not name or "batch_size" not in assigned:
        return None, f"{own.path} assigns no {'batch_size' if name else 'length of a row'} by a name that is known"
    if name == "block_size":
        return None, ""
    node = spec.root.get(name) or assigned[name]
    if type(node.value) is not int:
        return None, f"{name} is not known"
    written = spec.root.get(name)
    return Fact("sequence_length", node.value, WRITTEN if written else DEFAULT, name, written), ""


def told(spec: TrainingSpec, own: own_code.Module, rows: int | None) -> dict[str, Any]:
    """The fact ``own_model``: what the program of a repository's own model is made of."""
    said = {}
    if not _is_the_file(spec, own) and isinstance(spec.root.value, dict):
        said = {name: _literal(node.value) for name, node in spec.root.value.items() if _is_plain(node.value)}
    return {**own_sources.told(own), "said": said, "fixed": {"meta_vocab_size": rows}}


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))


def _literal(value: Any) -> Any:
    """As nanoGPT's configurator.py reads a word: a literal of Python's, or the word."""
    if not isinstance(value, str) or len(value) > _LONGEST:
        return value
    try:
        found = ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return value
    return found if _is_plain(found) else value


def other_optimizer(spec: TrainingSpec, own: own_code.Module | None) -> str:
    """Why the optimizer is not nanoGPT's AdamW; "" where it is."""
    if own is None:
        return ""
    tree = Reading().parse(own.path, own.text)
    classes: set[str] = set()
    for node in ast.walk(tree) if tree is not None else ():
        if not isinstance(node, ast.Assign) or getattr(node.targets[0], "id", "") != "optimizer":
            continue
        if isinstance(node.value, ast.Call):
            function = node.value.func
            classes.add(function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", ""))
    odd = sorted(classes - {"configure_optimizers", "AdamW", "Adam"})
    chosen = _chosen(spec, own)
    if chosen is not None:
        key, value = chosen
        return "" if value.lower() in _ADAMW else f"{key} {value}: the fork's own optimizer is not described"
    return f"{own.path}: the optimizer {odd[0]} is not described" if odd else ""


def _chosen(spec: TrainingSpec, own: own_code.Module) -> tuple[str, str] | None:
    stated = spec.root.value if isinstance(spec.root.value, dict) else {}
    for key, node in stated.items():
        if _CHOOSES.fullmatch(str(key)) and isinstance(node.value, str):
            return str(key), node.value
        if _CHOOSES.fullmatch(str(key)) and isinstance(node.value, Unresolved):
            return str(key), node.value.text
    for line in own.text.split("\n"):
        found = re.fullmatch(r"(\w{1,40}) *= *['\"](\w{1,40})['\"] *(?:#.*)?", line)
        if found is not None and _CHOOSES.fullmatch(found[1]):
            return found[1], found[2]
    return None
