"""By what a family's files and commands are told: keys that they have, and programs that are called."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

from memlint.dialects.trees import find
from memlint.documents.node import Command, Node, Unresolved

CONFIG_SUFFIXES = (".yaml", ".yml", ".json", ".toml")


def signature_score(signature: dict[str, Any], root: Node) -> int:
    """How many keys of a signature a tree holds; 0 where it does not fit it, or the signature has no keys."""
    if not root.is_mapping:
        return 0
    wanted = signature.get("all", ())
    for key in wanted:
        if find(root, key) is None:
            return 0
    best = 0
    for choice in signature.get("any", ()):
        if isinstance(choice, str):
            best = best or int(find(root, choice) is not None)
        elif len(choice) > best and all(find(root, key) is not None for key in choice):
            best = len(choice)
    if signature.get("any") and not best:
        return 0
    if any(find(root, key) is not None for key in signature.get("none", ())):
        return 0
    return len(wanted) + best


def first_keys(signature: dict[str, Any]) -> frozenset[str] | None:
    """Names of which a mapping has one at its root if a signature fits it; None where other things may decide."""
    if any(told in signature for told in ("class", "members", "text")) or not has_keys(signature):
        return None
    choices = signature.get("all", ())[:1] or signature.get("any", ())
    names = [choice if isinstance(choice, str) else choice[0] for choice in choices]
    return frozenset((*names, *(name.partition(".")[0] for name in names))) if names else None


def has_keys(signature: dict[str, Any]) -> bool:
    return bool(signature.get("all") or signature.get("any") or signature.get("none"))


def names_a_config(value: Any, suffixes: tuple[str, ...] = CONFIG_SUFFIXES) -> bool:
    return isinstance(value, str) and value.lower().endswith(suffixes)


def may_match(signature: dict[str, Any], command: Command) -> bool:
    """Whether the names of a command's options could fit a signature: decided without the family's schema."""
    options = command.options.value
    if not isinstance(options, dict):
        return False
    if any(name.startswith(("no_", "no-")) for name in options):
        return True
    if any(names_a_config(word.value) for word in command.words):
        return True
    for word in command.words:  # --config=recipe.yaml
        if isinstance(word.value, dict) and any(names_a_config(inner.value) for inner in word.value.values()):
            return True
    names = {name.replace("-", "_"): node for name, node in options.items()}
    return bool(signature_score(signature, Node({**options, **names}, command.options.span)))


def assigned_score(signature: dict[str, Any], command: Command, known: Callable[[], Collection[str]]) -> int:
    """How many of the keys of ``assigned`` a command sets that says nothing but ``--name=value``, of keys of the family
    alone: a program that refuses any other word is known by fewer of its names. 0 where it is another's."""
    told = signature.get("assigned")
    if told is None or len(command.words) < 2 or not is_called(told["program"], command, 0):
        return 0
    names: set[str] = set()
    for word in command.words:
        if not isinstance(word.value, dict):
            return 0
        names.update(str(name).removeprefix("--") for name in word.value)
    best = max((len(choice) for choice in told["any"] if names.issuperset(choice)), default=0)
    return best if best and names <= set(known()) else 0


def is_called(names: str | list[str], command: Command, words: int) -> bool:
    """Whether a program is meant by a regular expression (with so many words after it), or by a name of a list.

    A name of a list is the last part of the program's path, without ``.py``, or a whole dotted module, and the plain
    words after it (``yolo detect train``); ``*`` at an end stands for anything.
    """
    if isinstance(names, str):
        return re.search(names, _called(command) if words else _program(command)) is not None
    program = _program(command)
    last = program.rsplit("/", 1)[-1].removesuffix(".py")
    spellings = [last, program]
    if words:
        for word in command.words[:2]:
            if not isinstance(word.value, str):
                break
            last = f"{last} {word.value}"
            spellings.append(last)
    return any(_fits(name, spelling) for name in names for spelling in spellings)


def _fits(name: str, spelling: str) -> bool:
    if name[:1] == "*":
        return name[1:-1] in spelling if name[-1:] == "*" else spelling.endswith(name[1:])
    return spelling.startswith(name[:-1]) if name[-1:] == "*" else spelling == name


def _called(command: Command) -> str:
    """The program of a command and the first word after it: ``trl sft``."""
    first = command.words[0].value if command.words else None
    return f"{_program(command)} {first}" if isinstance(first, str) else _program(command)


def _program(command: Command) -> str:
    """What a command names its program, as far as it is known; else what stands in its place (``$SCRIPT``)."""
    value = command.program.value
    return command.called or (value.text if isinstance(value, Unresolved) else "")
