"""Which library computes the decoder, which of its versions, and what it compiles."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.architectures import huggingface
from memlint.dialects import registry
from memlint.documents.load import load
from memlint.facts.spec import Fact, TrainingSpec
from memlint.models import Recording, record, with_upper
from memlint.models.language.implementations import MODELS, applies
from memlint.tape.phases import find_peak
from memlint.tape.summary import estimate as summarise
from tests.architectures.counting import llama_of

LLAMA: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 4000, "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 512,
}  # fmt: skip


def spec(**facts: Any) -> TrainingSpec:
    plain = {
        "hyperparameters.config": LLAMA,
        "micro_batch_size": 2,
        "sequence_length": 256,
        "parameter_dtype": "bfloat16",
        "compute_dtype": "bfloat16",
        **facts,
    }
    if "implementation" in facts and "decoder" not in facts:
        plain["decoder"] = llama_of(facts["implementation"], plain["hyperparameters.config"])
    made = {name: Fact(name, value) for name, value in plain.items()}
    return TrainingSpec("test", None, None, made, "language_model")  # type: ignore[arg-type]


def estimate(**facts: Any) -> Recording:
    return record(spec(**facts))


def peak(**facts: Any) -> int:
    return find_peak(estimate(**facts).tape).peak_bytes


@pytest.mark.parametrize("library", ["transformers", *MODELS])
def test_the_same_parameters_whatever_computes_them(library: str) -> None:
    assert estimate(implementation=library).parameters == estimate().parameters


@pytest.mark.parametrize("library", ["transformers", *MODELS])
def test_compiling_takes_less_and_its_interval_ends_where_nothing_is_fused(library: str) -> None:
    run, eager = spec(implementation=library, compile=True), estimate(implementation=library)
    compiled = with_upper(record(run), run)
    assert find_peak(compiled.tape).peak_bytes < find_peak(eager.tape).peak_bytes
    assert compiled.upper is not None
    assert compiled.upper.events == eager.tape.events
    assert compiled.upper.sizes == eager.tape.sizes
    found = summarise(compiled._replace(library=False))
    assert found.allocated_interval.low_bytes == find_peak(compiled.tape).peak_bytes
    assert found.allocated_interval.high_bytes >= find_peak(eager.tape).peak_bytes
    assert ("compiler", "inductor") in [note[:2] for note in found.assumptions]


@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
def test_each_kind_of_checkpointing_keeps_less_than_the_one_before(checkpointing: str) -> None:
    order = ["none", "selective", "full"]
    kept = [estimate(implementation="torchtitan", checkpointing=kind).tape.saved_bytes for kind in order]
    at = order.index(checkpointing)
    assert all(kept[number] > kept[at] for number in range(at))


# What a norm keeps of its input and of what the weight scales, in bytes per element, by torch's release.
@pytest.mark.parametrize(
    ("release", "kept"), [("2.4", 2 + 2), ("2.5", 4 + 2), ("2.6.1", 4 + 2), ("2.7", 4 + 4), ("2.8", 4 + 4), ("2.9", 2)]
)
def test_what_torchs_norm_keeps_depends_on_its_release(release: str, kept: int) -> None:
    def saved(**facts: Any) -> int:
        return estimate(implementation="torchtitan", **facts).tape.saved_bytes

    rows = (2 * LLAMA["num_hidden_layers"] + 1) * 2 * 256
    more = saved(framework_version=f"torch {release}") - saved(framework_version="torch 2.9")
    roots = 2 if release == "2.4" else 4  # a number per row, in the type of the steps
    assert more == rows * (LLAMA["hidden_size"] * (kept - 2) + roots - 4)
    assert saved() == saved(framework_version="torch 2.9")


def test_full_fine_tuning_recipes_of_torchtune_do_not_compile_the_loss_of_whole_logits() -> None:
    whole = {"implementation": "torchtune", "compile": True, "loss": "full"}
    logits = 2 * 256 * LLAMA["vocab_size"] * 4
    adapter = {"tuning": "lora", "lora.r": 8, "lora.targets": ["q_proj"]}
    kept = [estimate(**whole, **more).tape.sizes.count(logits) for more in ({}, adapter)]
    # Whole logits in fp32, their log-probabilities, two gradients; against the logits and one gradient.
    assert kept == [4, 2]


def test_a_decoder_that_a_library_has_no_way_of_its_own_for_is_computed_as_transformers_does() -> None:
    cohere = {**LLAMA, "model_type": "cohere"}
    assert not applies("torchtune", huggingface.decoder(cohere))
    config = {"hyperparameters.config": cohere, "decoder": huggingface.decoder(cohere)}
    assert peak(**config, implementation="torchtune") == peak(**config)


TITAN = """
[model]
name = "llama3"
flavor = "8B"
[optimizer]
name = "AdamW"
[training]
batch_size = 1
seq_len = 8192
{}
[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
{}
"""


@pytest.mark.parametrize(
    ("training", "after", "loss"),
    [
        ("compile = true\ntensor_parallel_degree = 1", "", False),
        ("compile = true", "", None),
        ("", '[compile]\nenable = true\ncomponents = ["model"]', False),
        ("", '[compile]\nenable = true\ncomponents = ["model", "loss"]', True),
    ],
    ids=["before 2025-03", "since then", "the model alone", "both"],
)
def test_torchtitan_compiles_its_loss_where_its_version_and_its_components_say_so(
    training: str, after: str, loss: bool | None
) -> None:
    [found] = registry.specs(load("llama3_8b.toml", TITAN.format(training, after)))
    assert found.get("compile") is True
    assert found.get("compile_loss") is loss


def test_adapters_find_the_projections_that_litgpt_joins() -> None:
    targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    lora = {"tuning": "lora", "lora.r": 8, "lora.targets": targets, "frozen_dtype": "bfloat16"}
    counts = {name: estimate(implementation=name, **lora).trainable_parameters for name in ("transformers", "litgpt")}
    assert counts["litgpt"] == counts["transformers"] > 0
