"""A run of a family that is made up: keys that are named like their facts, and a peak that is a formula of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from memlint.documents import yaml
from memlint.documents.node import Edit, Span
from memlint.facts.spec import DEFAULT, WRITTEN, Fact, TrainingSpec
from memlint.plugin import Run, Spelled
from memlint.tape.estimate import Component, Estimate, Interval

PATH = "made_up.yaml"
ANY = frozenset(["any value"])

Sizes = Callable[[TrainingSpec], Mapping[str, int]]


def run_of(
    text: str = "",
    sizes: Sizes | int = 1000,
    *,
    stated: Mapping[str, Any] = {},
    keys: Mapping[str, Collection[Any]] | Sequence[str] = (),
    budget: int | None = None,
    gpu: str = "",
    estimated: bool = True,
    written_at: Mapping[str, str] = {},
    texts: Mapping[str, str] = {},
    **more: Any,
) -> Run:
    """A run whose config is ``text``.

    sizes   bytes by component, or of activations alone; their sum is the peak
    stated  facts that no key of the text is named like
    keys    what the family can write: fact -> values it has a spelling for; of a sequence of facts, any value
    written_at  fact -> the other key whose value a change of it writes
    texts       fact -> what is written there, whatever the change
    """
    spec = spec_of(text, stated)
    known = keys if isinstance(keys, Mapping) else dict.fromkeys(keys, ANY)

    def estimator(changed: TrainingSpec) -> Estimate:
        return estimate_of(sizes(changed) if callable(sizes) else {"activations": sizes})

    def spell(changed: TrainingSpec, changes: Mapping[Any, Any]) -> Iterator[Spelled]:
        for name, value in changes.items():
            allowed = known.get(name, ())
            where, text = written_at.get(name, name), texts.get(name, value)
            yield (name,), written(changed, where, text) if allowed is ANY or value in allowed else []

    return Run(spec, estimator(spec) if estimated else None, budget, estimator, spell, gpu=gpu, **more)


def spec_of(text: str, stated: Mapping[str, Any] = {}) -> TrainingSpec:
    document = yaml.read(PATH, text)
    nodes = document.root.value if isinstance(document.root.value, dict) else {}
    facts = {name: Fact(name, node.plain(), WRITTEN, name, node) for name, node in nodes.items()}
    for name, value in stated.items():
        facts[name] = value if isinstance(value, Fact) else Fact(name, value, DEFAULT)
    return TrainingSpec("made-up", document, document.root, facts, "made_up")


def written(spec: TrainingSpec, name: str, value: Any) -> list[Edit]:
    """In place of the value where the key is written, else on a line of its own at the end."""
    text = {True: "true", False: "false"}.get(value, str(value)) if isinstance(value, bool) else str(value)
    fact = spec.fact(name)
    if fact is not None and fact.node is not None:
        return [Edit(fact.node.span, text)]
    end = spec.document.text.count("\n") + 1
    return [Edit(Span(PATH, end, 1, end, 1), f"{name}: {text}\n")]


def estimate_of(sizes: Mapping[str, int]) -> Estimate:
    components = tuple(Component(name, size) for name, size in sizes.items())
    device = sum(sizes.values())
    reserved = device - sizes.get("context", 0)
    allocated = reserved - sizes.get("fragmentation", 0)
    exactly = [Interval(size, size) for size in (allocated, reserved, device)]
    return Estimate("static", 0, 0, allocated, reserved, device, allocated, "forward", {}, components, *exactly)
