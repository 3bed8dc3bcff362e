"""A graph of steps: each waits for what it reads, in whatever order they stand."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memlint.dialects import registry, trl
from memlint.dialects.spec import DEFAULT, WRITTEN, Fact, Name, TrainingSpec
from memlint.documents.load import load
from memlint.facts.derive import Circle, Derivation, Graph, Step, Undeclared

ROOT = Path(__file__).parents[2]


def spec_of(**stated: Any) -> TrainingSpec:
    document = load("a.yaml", "a: 1\n")
    facts = {name: Fact(name, value, WRITTEN) for name, value in stated.items()}  # type: ignore[arg-type]
    return TrainingSpec("trl", document, document.root, facts, "language_model")


def step(name: str, gives: Name, make: Callable[[TrainingSpec], Any]) -> Step:
    """A step that gives one fact, and puts it where ``make`` has a value for it."""

    def made(spec: TrainingSpec) -> None:
        value = make(spec)
        if value is not None:
            spec.facts[gives] = Fact(gives, value, DEFAULT)

    made.__name__ = name
    return Step(made, (gives,))


TOKENS = step("tokens", "attention_tokens", lambda spec: 2 * spec["sequence_length"])
BYTES = step("bytes", "sample_bytes", lambda spec: 8 * spec["attention_tokens"])


@pytest.mark.parametrize("steps", [(TOKENS, BYTES), (BYTES, TOKENS)], ids=["as they follow", "the other way round"])
def test_a_step_waits_for_what_it_reads(steps: tuple[Step, ...]) -> None:
    spec = spec_of(sequence_length=10)
    made = Graph(*steps).derive(spec)
    assert (spec["attention_tokens"], spec["sample_bytes"]) == (20, 160)
    assert ("bytes", "attention_tokens") in made.reads
    assert ("bytes", "sequence_length") not in made.reads


def test_a_step_reads_what_is_stated_of_the_fact_that_it_gives() -> None:
    spec = spec_of(sequence_length=10)
    Graph(step("halved", "sequence_length", lambda spec: spec["sequence_length"] // 2), TOKENS).derive(spec)
    assert (spec["sequence_length"], spec["attention_tokens"]) == (5, 10)


def test_to_ask_whether_a_fact_is_there_is_to_read_it() -> None:
    asked = step("asked", "padding", lambda spec: "packing" in spec)
    spec = spec_of()
    Graph(asked, step("packed", "packing", lambda spec: True)).derive(spec)
    assert spec["padding"] is True


def test_steps_that_wait_for_each_other_are_named_with_what_they_ask() -> None:
    one = step("one", "packing", lambda spec: spec["padding"])
    two = step("two", "padding", lambda spec: spec["packing"])
    with pytest.raises(Circle, match=r"made of each other: one -> two \(padding\) -> one \(packing\)"):
        Graph(TOKENS, one, two).derive(spec_of(sequence_length=10))


def test_a_step_gives_no_fact_that_it_does_not_declare() -> None:
    def sly(spec: TrainingSpec) -> None:
        spec.facts["padding"] = Fact("padding", True, DEFAULT)

    for change in (sly, lambda spec: spec.facts.pop("padding", None)):
        with pytest.raises(Undeclared, match="writes padding"):
            Graph(Step(change, ("packing",))).derive(spec_of(padding=False))


def test_a_fact_has_one_giver() -> None:
    with pytest.raises(ValueError, match="tokens and again both give attention_tokens"):
        Graph(TOKENS, step("again", "attention_tokens", lambda spec: 1))


def test_what_a_file_states_above_a_step_goes_before_it() -> None:
    spec = spec_of(sequence_length=10)
    Graph(TOKENS, BYTES).derive(spec, {"attention_tokens": Fact("attention_tokens", 3, WRITTEN)})
    assert (spec["attention_tokens"], spec["sample_bytes"]) == (3, 24)


def test_a_step_that_goes_through_all_facts_meets_no_other_steps() -> None:
    met: list[str] = []
    spec = spec_of(sequence_length=10)
    Graph(TOKENS, step("looks", "padding", lambda spec: met.extend(spec))).derive(spec)
    assert met == ["sequence_length"]
    assert set(spec) == {"sequence_length", "attention_tokens"}


def test_the_reason_why_there_is_no_estimate_is_kept_by_the_name_of_its_step() -> None:
    def refused(spec: TrainingSpec) -> str:
        return "not known"

    assert Graph(Step(refused, ()), TOKENS).derive(spec_of(sequence_length=1)).reasons == {"refused": "not known"}


def test_a_tried_fact_holds_in_a_graph() -> None:
    def complete(spec: TrainingSpec) -> TrainingSpec:
        Graph(BYTES, TOKENS).derive(spec)
        return spec

    spec = spec_of(sequence_length=10)
    spec.derivation = Derivation(spec.replaced({}), complete, complete(spec).facts)
    assert spec.with_facts(sequence_length=3)["sample_bytes"] == 48
    assert spec.with_facts(attention_tokens=3)["sample_bytes"] == 24


# ---------------------------------------------------------------------------------------------- the families' graphs

GRAPHS = {"trl": trl}
LORA = "use_peft: true\nlora_r: 8\nload_in_4bit: true\n"
GRPO = "num_generations: 4\nmax_completion_length: 128\ngradient_accumulation_steps: 4\nbeta: 0.1\n"
BASE = "model_name_or_path: Qwen/Qwen2.5-0.5B\ndataset_name: x\nmax_length: 512\nper_device_train_batch_size: 2\n"
CONFIGS = {
    **{f"examples/language_models/{name}": "" for name in ("sft_trl.yaml", "dpo_trl.yaml")},
    "sft/lora.yaml": BASE + LORA + "eval_strategy: steps\nuse_liger_kernel: true\n",
    "dpo/whole.yaml": BASE + "padding_free: true\noptim: galore_adamw\nfp16: true\n",
    "grpo/a.yaml": BASE + GRPO,
    "reward/a.yaml": BASE + LORA + "torch_compile_backend: inductor\n",
    "orpo/a.yaml": BASE + "fsdp: full_shard\nfsdp_config: {version: 1}\n",
}


def values_of(name: str, folder: Path) -> dict[str, tuple[Any, str, str]]:
    path = ROOT / name
    if CONFIGS[name]:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(CONFIGS[name], encoding="utf-8")
    [spec] = registry.specs(load(str(path)))
    assert spec.family in GRAPHS
    return {name: (fact.value, fact.origin, fact.reason) for name, fact in spec.facts.items()}


@pytest.mark.parametrize("name", CONFIGS)
def test_steps_in_any_order_make_the_same_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_written = values_of(name, tmp_path)
    drawn = random.Random(name)
    for _ in range(20):
        steps = list(trl.GRAPH.steps)
        drawn.shuffle(steps)
        with monkeypatch.context() as patch:
            patch.setattr(trl, "GRAPH", Graph(*steps))
            assert values_of(name, tmp_path) == as_written
