"""Forks of nanoGPT: a train.py with defaults of its own, a model of the repository's own, another optimizer."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

from memlint.dialects import companions, own_code, own_sources, scripts
from memlint.documents.node import Unresolved
from memlint.documents.python.source import Reading
from memlint.facts.spec import DEFAULT, WRITTEN, Fact, TrainingSpec

_LONGEST = 40  # characters of a number, or of True
# Names by which forks choose the optimizer, and what is AdamW.
_CHOOSES = re.compile(r"(?:opt|optim|optimizer|algorithm|algo)(?:_(?:name|type))?")
_KNOWN = ("configure_optimizers", "configure_optimizer", "Adam")
_ADAMW = ("adamw", "adam", "adamw_fused", "fused_adamw")


def trainer(spec: TrainingSpec) -> own_code.Module | None:
    """The program that a command starts, or that the file is, or the train.py near it."""
    path = spec.document.path
    own = own_code.module(path) if path.endswith(".py") else None
    if own is not None and "exec(" in own.text and "import" in own.text:
        return own
    if spec.launch is None:
        return own_code.module(companions.find("train.py", path) or "")
    found = scripts.file_of(spec.launch, spec.document)
    if found is None:  # on another machine it has another folder
        found = companions.find(os.path.basename(spec.launch.called), path) if spec.launch.called else None
    return own_code.module(found or "")


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


# Names by which a file says a model that is not train.py's.
_A_MODEL = re.compile(r"^(?!data)\w*(?:model|llama|arch)\w*(?:config|path|file|dir|type)|^config_(?:path|file)$")


def of_another(spec: TrainingSpec, own: own_code.Module) -> str:
    """The name of a file of assignments by which it says its model, and which this program does not assign: another
    one takes the file. Commands end with an error for such a name."""
    if spec.launch is not None or _is_the_file(spec, own) or not isinstance(spec.root.value, dict):
        return ""
    words = own_code.words(own.path)
    names = [name for name in map(str, spec.root.value) if len(name) <= _LONGEST and name not in words]
    return next((name for name in names if _A_MODEL.search(name)), "")


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
    """Why what the program trains with is not nanoGPT's AdamW, and its model alone; "" where it is."""
    if own is None:
        return ""
    tree = Reading().parse(own.path, own.text)
    classes: set[str] = set()
    another = ""
    for target, made in _bound(tree.body if tree is not None else [], _names(spec, own)):
        function = made.func
        if target == "optimizer":
            classes.add(function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", ""))
        elif _is_a_library_s(function) or (target != "model" and _is_a_gpt(function)):
            another = another or f"{own.path}: line {made.lineno} makes another model than nanoGPT's, or one beside it"
    odd = sorted(one for one in classes if one not in _KNOWN and "adamw" not in one.lower())
    chosen = _chosen(spec, own)
    if chosen is not None:
        key, value = chosen
        return another if value.lower() in _ADAMW else f"{key} {value}: the fork's own optimizer is not described"
    return f"{own.path}: the optimizer {odd[0]} is not described" if odd else another


def _names(spec: TrainingSpec, own: own_code.Module) -> dict[str, Any]:
    """What names of the program are, as far as assignments, the file and the command say it plainly."""
    from memlint.documents.load import load

    found: dict[str, Any] = {}
    for root in (load(own.path, own.text).root, spec.root):
        nodes = root.value if isinstance(root.value, dict) else {}
        found.update({str(name): _literal(node.value) for name, node in nodes.items() if _is_plain(node.value)})
    return found


def _is_a_gpt(function: ast.expr) -> bool:
    """``GPT(...)``, or ``GPT.from_pretrained(...)``."""
    owner = function.value if isinstance(function, ast.Attribute) and function.attr == "from_pretrained" else function
    return isinstance(owner, ast.Name) and owner.id == "GPT"


def _is_a_library_s(function: ast.expr) -> bool:
    """``AutoModelForCausalLM.from_pretrained(...)``."""
    owner = function.value if isinstance(function, ast.Attribute) else None
    return isinstance(owner, ast.Name) and owner.id.startswith("AutoModel")


def _bound(body: Sequence[ast.stmt], names: dict[str, Any]) -> Iterator[tuple[str, ast.Call]]:
    """The names that calls are bound to, on the ways that conditions on known names leave."""
    waiting = list(body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            yield getattr(node.targets[0], "id", ""), node.value
        elif isinstance(node, ast.If):
            holds = _holds(node.test, names)
            waiting += node.body if holds is not False else []
            waiting += node.orelse if holds is not True else []
        else:
            waiting += [one for one in getattr(node, "body", ()) if isinstance(one, ast.stmt)]


def _holds(test: ast.expr, names: dict[str, Any]) -> bool | None:
    """``flag``, ``not flag``, ``name == 'word'``; None for anything else."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _holds(test.operand, names)
        return None if inner is None else not inner
    if isinstance(test, ast.Name):
        return bool(names[test.id]) if test.id in names else None
    if isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id in names:
        other = test.comparators[0]
        if len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq) and isinstance(other, ast.Constant):
            return bool(names[test.left.id] == other.value)
    return None


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
