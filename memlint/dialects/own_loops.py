"""Loops that train a model of the program's own code: what its weights and states take, whatever it computes.

The optimizer is given the parameters of a module whose class is the repository's, and what that is made with is known:
its ``__init__`` says all parameters (:mod:`memlint.models.own`). What it computes of a batch comes on top.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memlint.dialects import own_code, own_sources
from memlint.dialects.made import MAX_CHAIN, optimizer_of
from memlint.documents.node import Node, Unresolved
from memlint.documents.programs.call_nodes import argument, name_of, target_of, values_of
from memlint.documents.programs.turn import FROZEN, NUMBER, ON
from memlint.facts.spec import OnTop

if TYPE_CHECKING:
    from memlint.dialects.scripts import Script
    from memlint.documents.programs.program import Program
    from memlint.documents.programs.turn import Loops

FAMILY = "training-loop"
# What is put around a module and leaves its weights as they are on one card, by the name of its first argument.
_AROUND = {"DistributedDataParallel": "module", "DDP": "module", "compile": "model", "to": "", "cuda": ""}
_FREEZES = "requires_grad"


def script(found: Loops, path: str, code: str) -> Script | None:
    """The run of a program whose loop trains a module of its own; None for any other. Raises OutOfWork."""
    from memlint.dialects.scripts import Script

    program = found.program
    if not found.loops or any(target_of(call) == FROZEN for call in program.calls):
        return None
    optimizer = next((call for call in program.calls if optimizer_of(call) is not None), None)
    model = _trained(optimizer)
    own = own_code.read(path, code)
    if optimizer is None or model is None or own is None or _changes(program, model):
        return None
    made = _made_with(model)
    if made is None:
        return None
    sources = own_sources.told(own)
    if any(_FREEZES in text for text in sources["sources"].values()):  # which part trains is not followed
        return None
    told = {**sources, "class": str(values_of(model)["_class_"].value), **made}
    place = model.span
    library = program.imported.get(target_of(optimizer).partition(".")[0], "torch").partition(".")[0]
    keys = {
        "own_model": _node(told, place),
        "optimizer": Node(f"{library}:{name_of(optimizer)}", optimizer.span, None, "optimizer"),
        "zero_grad": Node("before_forward", place, None, "zero_grad"),
    }
    why = OnTop(f"{path}: line {place.line}: what a model of the program's own computes of a batch is not followed")
    return Script(FAMILY, Node(keys, place), program.document, why, False, True)


def _trained(optimizer: Node | None) -> Node | None:
    """The module of the program's own whose parameters the optimizer is given; None for anything else."""
    given = argument(optimizer, "params", 0)
    node = values_of(given).get(ON) if name_of(given) == "parameters" else None
    for _ in range(MAX_CHAIN):
        if node is None:
            return None
        if "_class_" in values_of(node):
            return node if target_of(node).endswith("Module") else None
        name = name_of(node)
        if name not in _AROUND:
            return None
        node = argument(node, _AROUND[name], 0) if _AROUND[name] else values_of(node).get(ON)
    return None


def _changes(program: Program, model: Node) -> bool:
    """Whether the program changes the module, or which of its parameters train, once it is made."""
    number = values_of(model).get(NUMBER)
    for call in program.calls:
        owner = values_of(call).get(ON)
        while owner is not None and values_of(owner).get(ON) is not None:
            owner = values_of(owner)[ON]
        at = values_of(owner).get(NUMBER) if owner is not None else None
        is_its = at is not None and number is not None and at.value == number.value
        if is_its and (target_of(call) == "_set_" or name_of(call) in ("requires_grad_", "half", "bfloat16", "double")):
            return True
        if is_its and name_of(call) == "to" and any(_is_narrow(argument(call, "dtype", at)) for at in (0, 1)):
            return True
    return False


def _is_narrow(node: Node | None) -> bool:
    """Whether an argument of ``to`` may be a dtype other than that which weights have."""
    value = node.value if node is not None else None
    text = value.text if isinstance(value, Unresolved) else str(value)
    return text.rpartition(".")[2] in ("float16", "bfloat16", "half", "float64", "double") or "dtype" in text


def _made_with(model: Node) -> dict[str, Any] | None:
    """The arguments of a module; None where one of them is not known."""
    values = values_of(model)
    try:
        args = _plain(values["_args_"]) if "_args_" in values else []
        named = {name: _plain(one) for name, one in values.items() if not name.startswith("_")}
    except _NotKnown:
        return None
    return {"args": args, "named": named}


class _NotKnown(Exception):
    pass


def _plain(node: Node, left: int = 6) -> Any:
    """A value as Python has it; an object of an own class as what it is made with."""
    value = node.value
    if isinstance(value, Unresolved) or not left:
        raise _NotKnown
    if isinstance(value, list):
        return [_plain(one, left - 1) for one in value]
    if not isinstance(value, dict):
        return value
    inner = {name: _plain(one, left - 1) for name, one in value.items() if not str(name).startswith("_")}
    if "_target_" in value:
        if "_args_" in value:
            raise _NotKnown
        return {"_made_": str(value["_target_"].value), "values": inner}
    return inner


def _node(value: Any, place: Any) -> Node:
    if isinstance(value, dict):
        return Node({name: _node(one, place) for name, one in value.items()}, place)
    if isinstance(value, (list, tuple)):
        return Node([_node(one, place) for one in value], place)
    return Node(value, place)
