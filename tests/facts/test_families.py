"""Families derive their facts by steps, and no order of the steps makes another run."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memlint.dialects import registry
from memlint.dialects.family import Family
from memlint.documents.load import load
from memlint.facts import vocabulary
from memlint.facts.derive import Graph
from memlint.facts.spec import TrainingSpec

ROOT = Path(__file__).parents[2]
FOLDERS = ("tests/hostile/samples", "examples/language_models")
# What the samples do not do: other methods, adapters, quantised weights, sharing.
BASE = "model_name_or_path: Qwen/Qwen2.5-0.5B\ndataset_name: x\nmax_length: 512\nper_device_train_batch_size: 2\n"
LORA = "use_peft: true\nlora_r: 8\nload_in_4bit: true\n"
MORE = {
    "sft/lora.yaml": BASE + LORA + "eval_strategy: steps\nuse_liger_kernel: true\n",
    "dpo/whole.yaml": BASE + "padding_free: true\noptim: galore_adamw\nfp16: true\n",
    "grpo/a.yaml": BASE + "num_generations: 4\nmax_completion_length: 128\ngradient_accumulation_steps: 4\nbeta: 0.1\n",
    "reward/a.yaml": BASE + LORA + "torch_compile_backend: inductor\n",
    "orpo/a.yaml": BASE + "fsdp: full_shard\nfsdp_config: {version: 1}\n",
}


def texts() -> Iterator[tuple[str, str]]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file():
                yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
    yield from MORE.items()


def runs(name: str, text: str) -> list[TrainingSpec]:
    return registry.specs(load(str(ROOT / name), text))


def family_of(name: str) -> Any:
    return getattr(registry.dialect(name).module, "FAMILY", None)


def derived_by_steps() -> Iterator[tuple[str, str, frozenset[str]]]:
    """(file, text, its families that have steps)."""
    for name, text in texts():
        found = frozenset(run.family for run in runs(name, text) if family_of(run.family) is not None)
        if found:
            yield name, text, found


TEXTS = list(derived_by_steps())
FAMILIES = sorted({family for _, _, families in TEXTS for family in families})


def seen(spec: TrainingSpec) -> dict[str, Any]:
    """Everything that a family makes of a run."""
    return {
        "facts": [
            (name, fact.value, fact.origin, fact.key, fact.span, fact.reason) for name, fact in spec.facts.items()
        ],
        "model": (spec.model_name, spec.architecture, spec.architecture_on_devices, spec.unknown_reason),
        "missing": sorted((item.span, item.key, item.reason) for item in spec.missing),
        "conflicts": sorted((item.span, item.key, item.message) for item in spec.conflicts),
        "asked": spec.asked,
    }


def shuffled(family: Family, drawn: random.Random) -> Family:
    return family._replace(
        stated=Graph(*drawn.sample(family.stated.steps, len(family.stated.steps))),
        follows=Graph(*drawn.sample(family.follows.steps, len(family.follows.steps))),
    )


@pytest.mark.parametrize(("name", "text", "families"), TEXTS, ids=[name for name, _, _ in TEXTS])
def test_steps_in_any_order_make_the_same_run(
    name: str, text: str, families: frozenset[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    as_written = [seen(run) for run in runs(name, text)]
    drawn = random.Random(name)
    for _ in range(12):
        with monkeypatch.context() as patch:
            for family in families:
                patch.setattr(registry.dialect(family).module, "FAMILY", shuffled(family_of(family), drawn))
            assert [seen(run) for run in runs(name, text)] == as_written


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_told_first_is_said_by_steps_that_there_are(name: str) -> None:
    family = family_of(name)
    names = {step.name for step in (*family.stated.steps, *family.follows.steps)}
    assert set(family.told) <= names | ({"sharing"} if family.beside is not None else set())


def test_every_family_whose_module_has_steps_has_a_text_here() -> None:
    with_steps = {name for name in registry.known_families() if family_of(name) is not None}
    assert with_steps == set(FAMILIES)


@pytest.mark.parametrize("name", FAMILIES)
def test_steps_give_facts_that_there_are(name: str) -> None:
    family = family_of(name)
    given = {fact for step in (*family.stated.steps, *family.follows.steps) for fact in step.gives}
    assert {fact for fact in given if not vocabulary.known(fact)} == set()
