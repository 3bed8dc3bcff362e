"""Which sizes of a config a recording is to be in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from memlint.documents.node import Node
from memlint.facts.spec import TrainingSpec
from memlint.profiles.profile import ACCUMULATION, ProfileError, load
from memlint.profiles.runs import PROFILE

# Facts that are dimensions, with their letters.
LETTERS = {
    "micro_batch_size": "B",
    "sequence_length": "S",
    "image_size": "H",
    "frames": "F",
    "predicted_frames": "P",
    "observation_steps": "T",
    "points": "N",
    "groups": "G",
    "group_size": "M",
    ACCUMULATION: "A",
}
# What configs that no family knows call them: the last part of a key.
NAMES = {
    "batch_size": "micro_batch_size",
    "train_batch_size": "micro_batch_size",
    "micro_batch_size": "micro_batch_size",
    "per_device_train_batch_size": "micro_batch_size",
    "sequence_length": "sequence_length",
    "seq_len": "sequence_length",
    "seq_length": "sequence_length",
    "max_seq_len": "sequence_length",
    "max_seq_length": "sequence_length",
    "block_size": "sequence_length",
    "context_length": "sequence_length",
    "image_size": "image_size",
    "img_size": "image_size",
    "resolution": "image_size",
    "crop_size": "image_size",
    "frames": "frames",
    "num_frames": "frames",
    "gradient_accumulation_steps": ACCUMULATION,
    "accumulate_grad_batches": ACCUMULATION,
}


class DimensionError(ValueError):
    """A dimension that cannot be one; the message says which, and why."""


def choose(spec: TrainingSpec, named: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The dimensions of a recording, as a request has them; accumulation is always the last.

    named  ``[NAME=]KEY[:FACT]`` each; without any, those that the family's facts or the keys' names tell
    Raises DimensionError.
    """
    found: dict[str, tuple[str, str, Node]] = {}  # fact -> name, key, node
    named = named or _recorded_before(spec)
    if named:
        for text in named:
            fact, name, key, node = _named(spec, text)
            if fact in found:
                raise DimensionError(f"{key} and {found[fact][1]} are both {fact}: say NAME=KEY:FACT for one of them")
            if any(other[2] is node for other in found.values()):
                raise DimensionError(f"{key} is named twice")
            found[fact] = (name, key, node)
    else:
        for fact, key, node in _guessed(spec):
            found.setdefault(fact, (LETTERS[fact], key, node))
    loop = found.pop(ACCUMULATION, None)
    if loop is None:
        loop = next(((LETTERS[f], k, n) for f, k, n in _guessed(spec) if f == ACCUMULATION), None)
    if not found:
        raise DimensionError("no key of the config is known to be a size; name one: --dim B=KEY:micro_batch_size")
    letters = [name for name, _, _ in found.values()] + [LETTERS[ACCUMULATION]]
    double = next((name for name in letters if letters.count(name) > 1), None)
    if double is not None:
        raise DimensionError(f"two dimensions are named {double}: say NAME=KEY")
    chosen = [_entry(spec, fact, *rest) for fact, rest in found.items()]
    if loop is None:
        chosen.append({"name": "A", "fact": ACCUMULATION, "key": "", "value": 1, "leaves": []})
    else:
        chosen.append(_entry(spec, ACCUMULATION, *loop))
    return chosen


def _recorded_before(spec: TrainingSpec) -> list[str]:
    """The dimensions of the profile that the config has: to record anew is to bring it up to date."""
    if PROFILE not in spec:
        return []
    try:
        known = load(spec[PROFILE]).dimensions
    except ProfileError:
        return []
    return [f"{one.name}={one.key}:{one.fact}" for one in known if one.key and spec.root.get(one.key) is not None]


def _named(spec: TrainingSpec, text: str) -> tuple[str, str, str, Node]:
    name, equals, rest = text.rpartition("=")
    key, _, fact = rest.partition(":")
    node = spec.root.get(key) if key else None
    if node is None:
        raise DimensionError(f"--dim {text}: the config has no key {key!r}")
    last = key.rpartition(".")[2]
    known = next((other.name for other in spec.facts.values() if other.node is node and other.name in LETTERS), "")
    fact = fact or known or NAMES.get(last, last)
    name = name if equals else LETTERS.get(fact, last)
    if not name.isidentifier() or not name.isascii():
        raise DimensionError(f"--dim {text}: {name!r} is not a name")
    return fact, name, key, node


def _guessed(spec: TrainingSpec) -> Iterator[tuple[str, str, Node]]:
    for name, fact in spec.facts.items():
        if name in LETTERS and fact.node is not None and _is_size(fact.node) and fact.node.plain() == fact.value:
            yield name, fact.key, fact.node
    if spec.facts:
        return
    for path, node in _leaves(spec.root, ()):
        known = NAMES.get(str(path[-1])) if path else None
        if known is not None and _is_size(node):
            yield known, ".".join(map(str, path)), node


def _is_size(node: Node) -> bool:
    return isinstance(node.value, int) and not isinstance(node.value, bool) and node.value >= 1


def _entry(spec: TrainingSpec, fact: str, name: str, key: str, node: Node) -> dict[str, Any]:
    if not _is_size(node):
        raise DimensionError(f"{key} is {node.plain()!r}, where a whole number of at least 1 is needed")
    # Every value that was written by the same characters: interpolations bring it to other keys.
    leaves = [list(path) for path, other in _leaves(spec.root, ()) if other.span == node.span and _is_size(other)]
    return {"name": name, "fact": fact, "key": key, "value": node.value, "leaves": leaves}


def _leaves(node: Node, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], Node]]:
    if isinstance(node.value, dict):
        for key, child in node.value.items():
            yield from _leaves(child, (*path, key))
    elif isinstance(node.value, list):
        for at, child in enumerate(node.value):
            yield from _leaves(child, (*path, at))
    else:
        yield path, node
