"""What a program's calls make, by what was put around what: a model in its wrappers, an optimizer, a loader."""

from __future__ import annotations

from memlint.dialects import image_calls
from memlint.dialects import loop_calls as calls
from memlint.documents.node import Node, Unresolved
from memlint.documents.programs.call_nodes import argument, name_of, target_of, values_of
from memlint.documents.programs.turn import DOUBT, HOLDS, NUMBER, ON, PART_OF, Make

MAX_CHAIN = 40  # of what is put around an object


def chain(node: Node | None) -> list[Node]:
    """What an object is made of, from the last that was put around it to what was made first."""
    found: list[Node] = []
    while node is not None and NUMBER in values_of(node) and len(found) < MAX_CHAIN:
        found.append(node)
        values, name = values_of(node), name_of(node)
        if PART_OF in values:
            node = _part(node)
        elif name in calls.ITSELF and ON in values:
            node = values[ON] if not _is_a_module(values[ON]) else argument(node, "model")
        elif name == DOUBT:
            node = values[ON]
        elif name == "prepare":
            node = argument(node, "", 0)
        elif name in calls.WRAPS:
            node = argument(node, calls.WRAPS[name])
        elif HOLDS in values:
            node = _held(node)
        else:
            break
    return found


def _held(node: Node) -> Node | None:
    """The only model of a library that a module of the program's own holds."""
    from memlint.dialects.scripts import is_a_model

    inner = values_of(node)[HOLDS].value
    models = [one for one in inner if is_a_model(one)] if isinstance(inner, list) else []
    return models[0] if len(models) == 1 else None


def own_class(node: Node | None) -> Node | None:
    """The module of the program's own around a model; None where there is none."""
    return next((one for one in chain(node) if HOLDS in values_of(one)), None)


def _is_a_module(node: Node) -> bool:
    return NUMBER not in values_of(node)


def _part(node: Node) -> Node | None:
    """What is one of several that a call returns: of ``prepare`` what it was given, of DeepSpeed's ``initialize`` the
    model and the optimizer."""
    values = values_of(node)
    whole, index = values[ON], int(str(values[PART_OF].value))
    if name_of(whole) == "prepare":
        return argument(whole, "", index)
    if name_of(whole) == "initialize" and index < 2:
        return argument(whole, ("model", "optimizer")[index], -1)
    return None


def root(node: Node | None) -> Node | None:
    """What was made first; of anything but a model, the condition that is not known and may have put another in its
    place."""
    found = chain(node)
    if not found or is_of_library(found[-1]):
        return found[-1] if found else None
    return next((one for one in found if name_of(one) == DOUBT), found[-1])


def is_model(node: Node | None) -> bool:
    return is_of_library(root(node))


def is_of_library(call: Node | None) -> bool:
    """Whether a call makes a model of a library that is described."""
    from memlint.dialects.scripts import is_a_model

    return is_a_model(call) or image_calls.made(call) is not None


def optimizer_of(made: Node | None) -> str | None:
    """The name of an optimizer's class; None for anything else."""
    name = name_of(made)
    known = name == calls.OF_DEEPSPEED or any(name in classes for classes in calls.OPTIMIZERS.values())
    given = argument(made, "params")
    of_parameters = given is not None and name_of(given) in calls.PARAMETERS and name not in calls.WRAPS
    return name if known or of_parameters or ".optim." in f".{target_of(made)}" else None


def root_number(node: Node | None) -> object:
    number = values_of(root(node)).get(NUMBER)
    return None if number is None else number.value


def flag(entry: Make) -> str:
    """Whether an operation stands under autocast."""
    return " autocast" if any(name_of(one) == "autocast" for one in entry.within) else ""


def without_gradients(entry: Make) -> bool:
    return any(name_of(one) in calls.WITHOUT_GRADIENTS for one in entry.within)


def is_known_context(node: Node) -> bool:
    """Whether a context changes nothing that is not read from it."""
    name = name_of(node)
    known = name == "autocast" or name in calls.PLAIN_CONTEXTS or name in calls.WITHOUT_GRADIENTS
    return known or calls.WATCHES.search(name) is not None


def text(node: Node) -> str:
    return node.value.text if isinstance(node.value, Unresolved) else target_of(node)


def makes_rows(entry: Make) -> bool:
    """``view(-1, V)``, ``view(B * S, V)``, ``flatten(0, 1)``: two dimensions."""
    given = [one.value for one in entry.given]
    if entry.name == "flatten":
        return given == [0, 1]
    if len(given) == 1 and isinstance(given[0], list):
        given = [one.value for one in given[0]]
    return len(given) == 2 and given[1] != -1


def tokenizes(made: Node | None) -> bool:
    target = target_of(made)
    return "Tokenizer" in target or "Processor" in target
