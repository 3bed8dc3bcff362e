"""A graph of steps: each waits for what it reads, in whatever order they stand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from memlint.documents.load import load
from memlint.facts.derive import Circle, Derivation, Graph, Step, Undeclared
from memlint.facts.spec import DEFAULT, WRITTEN, Fact, Name, TrainingSpec


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
    Graph(*steps).derive(spec)
    assert (spec["attention_tokens"], spec["sample_bytes"]) == (20, 160)


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


def test_a_step_gives_what_no_other_gives_of_a_namespace() -> None:
    def all_of_them(spec: TrainingSpec) -> None:
        spec.facts["lora.alpha"] = Fact("lora.alpha", 2 * spec["lora.r"], DEFAULT)

    steps = (Step(all_of_them, rooms=("lora.",)), step("rank", "lora.r", lambda spec: 8))
    for order in (steps, steps[::-1]):
        spec = spec_of()
        Graph(*order).derive(spec)
        assert (spec["lora.r"], spec["lora.alpha"]) == (8, 16)
    with pytest.raises(ValueError, match="all_of_them and again both give lora"):
        Graph(steps[0], Step(step("again", "lora.r", lambda spec: 8).make, rooms=("lora.",)))


def test_two_steps_do_not_have_one_name() -> None:
    with pytest.raises(ValueError, match="the same name"):
        Graph(TOKENS, step("tokens", "packing", lambda spec: True))


def test_what_is_stated_is_known_beside_what_is_made_of_it() -> None:
    halved = step("halved", "sequence_length", lambda spec: spec["sequence_length"] // 2)

    def both(spec: TrainingSpec) -> tuple[int, int]:
        stated = spec.stated("sequence_length")
        assert stated is not None
        return stated.value, spec["sequence_length"]

    spec = spec_of(sequence_length=10)
    Graph(step("both", "padding", both), halved).derive(spec)
    assert spec["padding"] == (10, 5)
    assert spec.stated("sequence_length") == spec.fact("sequence_length")


def test_new_facts_stand_by_name_behind_those_that_are_stated() -> None:
    for steps in ((TOKENS, BYTES), (BYTES, TOKENS)):
        spec = spec_of(sequence_length=10, padding=True)
        Graph(*steps).derive(spec)
        assert list(spec) == ["sequence_length", "padding", "attention_tokens", "sample_bytes"]


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
