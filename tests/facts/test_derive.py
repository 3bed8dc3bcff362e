"""Derivation: what a tried fact changes is what reads it, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from memlint.documents.load import load
from memlint.facts.derive import Derivation
from memlint.facts.spec import DEFAULT, DERIVED, OVERRIDE, WRITTEN, Fact, TrainingSpec, UnknownModel

Complete = Callable[[TrainingSpec], TrainingSpec]


def spec_of(complete: Complete, **stated: Any) -> TrainingSpec:
    """A run of these facts, and what ``complete`` makes of them."""
    document = load("a.yaml", "a: 1\n")
    facts = {name: Fact(name, value, WRITTEN) for name, value in stated.items()}  # type: ignore[arg-type]
    spec = TrainingSpec("trl", document, document.root, facts, "language_model")
    given = spec.replaced({})
    made = complete(spec)
    made.derivation = Derivation(given, complete, made.facts, asked=made.asked)
    return made


def _tokens(spec: TrainingSpec) -> TrainingSpec:
    """One chain (length, tokens, bytes), and one fact beside it."""
    length = spec.facts["sequence_length"]
    spec.facts["attention_tokens"] = length._replace(name="attention_tokens", value=2 * length.value)
    tokens = spec.facts["attention_tokens"]
    spec.facts["sample_bytes"] = tokens._replace(name="sample_bytes", value=8 * tokens.value)
    spec.facts["workers"] = Fact("workers", 4, DEFAULT)
    return spec


def test_what_is_made_of_a_fact_follows_it() -> None:
    spec = spec_of(_tokens, sequence_length=10)
    tried = spec.with_facts(sequence_length=3)
    assert (tried["attention_tokens"], tried["sample_bytes"]) == (6, 48)
    assert (spec["attention_tokens"], spec["sample_bytes"]) == (20, 160)


def test_a_fact_in_the_middle_moves_what_is_behind_it_and_not_what_is_before_it() -> None:
    tried = spec_of(_tokens, sequence_length=10).with_facts(attention_tokens=7)
    assert (tried["sequence_length"], tried["attention_tokens"], tried["sample_bytes"]) == (10, 7, 56)


def test_what_does_not_change_is_the_fact_that_it_was() -> None:
    spec = spec_of(_tokens, sequence_length=10)
    tried = spec.with_facts(attention_tokens=7)
    assert [name for name in spec if tried.facts[name] is not spec.facts[name]] == ["attention_tokens", "sample_bytes"]
    assert list(tried) == list(spec)


def test_what_is_tried_says_so() -> None:
    spec = spec_of(_tokens, sequence_length=10)
    tried = spec.with_facts(sequence_length=3)
    assert spec.tried("sequence_length") is None
    assert tried.facts["sequence_length"].origin == OVERRIDE
    assert tried.tried("sequence_length") is tried.facts["sequence_length"]


def test_one_trial_on_top_of_another_holds_both() -> None:
    tried = spec_of(_tokens, sequence_length=10).with_facts(attention_tokens=7).with_facts(sequence_length=3)
    assert (tried["sequence_length"], tried["attention_tokens"], tried["sample_bytes"]) == (3, 7, 56)


def test_a_fact_that_is_held_is_neither_written_nor_removed() -> None:
    def complete(spec: TrainingSpec) -> TrainingSpec:
        spec.facts.update(workers=Fact("workers", 1, DEFAULT))
        spec.facts["workers"] = Fact("workers", 2, DEFAULT)
        del spec.facts["workers"]
        spec.facts["workers"] = Fact("workers", 3, DEFAULT)
        spec.facts.pop("workers")
        spec.facts["workers"] = Fact("workers", 4, DEFAULT)
        spec.facts = {name: fact for name, fact in spec.facts.items() if name != "workers"}
        return spec

    spec = spec_of(complete, sequence_length=10)
    assert "workers" not in spec
    assert spec.with_facts(workers=9)["workers"] == 9


def test_a_fact_that_is_there_only_with_some_values_of_another_comes_and_goes() -> None:
    def complete(spec: TrainingSpec) -> TrainingSpec:
        if spec["compute_dtype"] == "float16":
            spec.facts["loss_scaling"] = Fact("loss_scaling", "dynamic", DEFAULT)
        return spec

    half = spec_of(complete, compute_dtype="float16")
    assert "loss_scaling" not in half.with_facts(compute_dtype="bfloat16")
    assert half.with_facts(compute_dtype="bfloat16").with_facts(compute_dtype="float16")["loss_scaling"] == "dynamic"


def test_what_is_put_beside_what_a_family_made_stays() -> None:
    spec = spec_of(_tokens, sequence_length=10)
    spec.facts["profile"] = Fact("profile", "a.json", DEFAULT)
    assert spec.with_facts(sequence_length=3)["profile"] == "a.json"


def test_a_trial_leaves_what_the_family_says_of_the_run() -> None:
    def complete(spec: TrainingSpec) -> TrainingSpec:
        spec.model_name = f"made for {spec['sequence_length']}"
        spec.missing = ()
        return _tokens(spec)

    tried = spec_of(complete, sequence_length=10).with_facts(sequence_length=3)
    assert tried.model_name == "made for 10"


@pytest.mark.parametrize(
    "error", [UnknownModel("nobody knows"), KeyError("sequence_length")], ids=["unknown", "absent"]
)
def test_where_a_family_cannot_go_on_nothing_follows(error: Exception) -> None:
    def complete(spec: TrainingSpec) -> TrainingSpec:
        if spec.tried("sequence_length") is not None:
            raise error
        return _tokens(spec)

    tried = spec_of(complete, sequence_length=10).with_facts(sequence_length=3)
    assert (tried["sequence_length"], tried["attention_tokens"]) == (3, 20)


def test_a_model_that_sees_a_run_otherwise_makes_nothing_follow() -> None:
    seen = spec_of(_tokens, sequence_length=10).replaced({"sequence_length": 3})
    assert (seen["sequence_length"], seen["attention_tokens"]) == (3, 20)


def test_a_model_that_sees_other_sizes_has_what_follows_and_asks_for_the_run() -> None:
    spec = spec_of(_tokens, sequence_length=10)
    seen = spec.sized({"sequence_length": 3})
    assert (seen["sequence_length"], seen["attention_tokens"]) == (3, 6)
    seen.does("torch.rms_norm_2.9")
    assert spec.asked == {"torch.rms_norm_2.9": False}


def _loss(spec: TrainingSpec) -> TrainingSpec:
    """Asks about the behaviour of one library or of another one, and does not know every loss."""
    if spec["loss"] == "chunked":
        raise UnknownModel("nobody knows")
    spec.does("trl.sft_loss_in_chunks" if spec["loss"] == "full" else "torch.rms_norm_2.9")
    return spec


@pytest.mark.parametrize(
    ("loss", "asked"),
    [
        pytest.param("full", "trl.sft_loss_in_chunks", id="the same"),
        pytest.param("fused", "torch.rms_norm_2.9", id="another one"),
        pytest.param("chunked", "trl.sft_loss_in_chunks", id="as before, where the family cannot go on"),
    ],
)
def test_a_trial_has_asked_about_what_its_own_facts_ask_about(loss: str, asked: str) -> None:
    spec = spec_of(_loss, loss="full")
    assert spec.with_facts(loss=loss).asked == {asked: False}
    assert spec.asked == {"trl.sft_loss_in_chunks": False}


def test_what_follows_under_watch_counts_what_is_tried_as_asked_for() -> None:
    asked: set[str] = set()
    watched = spec_of(_tokens, sequence_length=10).with_facts(attention_tokens=7).watched(asked)
    assert watched.sized({"sequence_length": 3})["sample_bytes"] == 56
    assert asked == {DERIVED, "sequence_length", "attention_tokens", "sample_bytes"}
