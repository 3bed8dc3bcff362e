"""Decoders of other training libraries: the static step against torch models that compute as those do."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.dialects.spec import TrainingSpec
from memlint.meta import checkpoint
from tests.differential.implementations import immediate_loss, nanogpt_reference, reference
from tests.differential.test_language_models import SIZES, TOLERANCE, Setting, adamw, spec_of
from tests.differential.training import compare, in_meta, in_torch

CONFIG: dict[str, Any] = {"model_type": "llama", **SIZES, "max_position_embeddings": 256}
LIBRARIES = ("torchtune", "torchtitan", "litgpt")
CHUNKED = ("torchtune", "litgpt")

# A name -> the setting, selective checkpointing, chunks of the loss.
WAYS: dict[str, tuple[Setting, bool, int]] = {
    "in bfloat16": (Setting(dtype="bfloat16"), False, 0),
    "in fp32": (Setting(rows=3, length=50), False, 0),
    "with checkpointing": (Setting(dtype="bfloat16", every=1), False, 0),
    "every second layer checkpointed, in chunks": (Setting(dtype="bfloat16", every=2, accumulation=2), False, 8),
    "in chunks of rows longer than a piece": (Setting(dtype="bfloat16", length=200, optimizer="fused"), False, 8),
    "keeping every other product": (Setting(dtype="bfloat16", every=1), True, 0),
}


def spec(name: str, setting: Setting, selective: bool, chunks: int, **more: Any) -> TrainingSpec:
    facts = {**setting.facts(CONFIG), "implementation": name, "loss": "chunked" if chunks else "full"}
    if selective:
        facts["checkpointing"] = "selective"
    return spec_of({**facts, "loss_chunks": chunks, **more})


RUNS = [(name, way) for name in LIBRARIES for way, (_, _, chunks) in WAYS.items() if name in CHUNKED or not chunks]


@pytest.mark.parametrize(("name", "way"), RUNS)
def test_each_library_takes_the_memory_that_its_way_to_compute_takes(
    name: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting, selective, chunks = WAYS[way]
    monkeypatch.setattr("memlint.models.language.EVERY_OTHER_PRODUCT", checkpoint.Policy(2, attention=False))
    ours = in_meta(spec(name, setting, selective, chunks))
    model = reference(name, CONFIG, setting, False, selective, chunks)
    truth = in_torch(model, {}, adamw(setting.optimizer), setting.accumulation)
    comparison = compare(f"{name} {way}", ours, truth, setting.every > 0)
    assert comparison.worst <= TOLERANCE, str(comparison)


def test_packed_rows_look_up_their_places_in_a_table() -> None:
    """Two tables of (B, S, d / 2, 2) fp32 numbers per layer are kept; flex_attention keeps what flash does, without
    the two numbers of its random state (16 and 8 bytes)."""
    setting = Setting(dtype="bfloat16")
    plain = in_meta(spec("torchtune", setting, False, 0))
    packed = in_meta(spec("torchtune", setting, False, 0, packing=True))
    layers, head = CONFIG["num_hidden_layers"], CONFIG["hidden_size"] // CONFIG["num_attention_heads"]
    tables = 2 * setting.rows * setting.length * head * 4
    assert packed.saved - plain.saved == layers * (tables - 24)


def test_a_selectively_checkpointed_layer_keeps_every_other_product_and_attention() -> None:
    """The layer's input; the products for queries, values, gate and down; attention's result and its row sums."""
    setting = Setting(dtype="bfloat16", every=1)
    full = in_meta(spec("torchtitan", setting, False, 0))
    selective = in_meta(spec("torchtitan", setting, True, 0))
    tokens, width = setting.rows * setting.length, CONFIG["hidden_size"]
    heads = CONFIG["num_attention_heads"]
    values = width // heads * CONFIG["num_key_value_heads"]
    kept = tokens * (3 * width + values + CONFIG["intermediate_size"]) * 2 + tokens * heads * 4 + 24
    assert selective.saved - full.saved == CONFIG["num_hidden_layers"] * kept


def test_a_compiled_layer_does_not_keep_a_product_that_nothing_reads() -> None:
    setting = Setting(dtype="bfloat16", every=1)
    eager = in_meta(spec("torchtitan", setting, True, 0))
    compiled = in_meta(spec("torchtitan", setting, True, 0, compile=True, compile_loss=False))
    tokens = setting.rows * setting.length
    down = tokens * CONFIG["hidden_size"] * 2
    assert eager.saved - compiled.saved == CONFIG["num_hidden_layers"] * down


NANOGPT = {
    "model_type": "gpt2", "vocab_size": 1000, "hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 3,
    "num_attention_heads": 4, "max_position_embeddings": 64, "tie_word_embeddings": True,
    "activation_function": "gelu",
}  # fmt: skip


@pytest.mark.parametrize("autocast", ["", "bfloat16"], ids=["in fp32", "under autocast"])
@pytest.mark.parametrize("bias", [True, False], ids=["with biases", "without biases"])
@pytest.mark.parametrize("dropout", [0.0, 0.2], ids=["without dropout", "with dropout"])
def test_nanogpt_takes_the_memory_that_its_way_to_compute_takes(autocast: str, bias: bool, dropout: float) -> None:
    dropouts = dict.fromkeys(("attn_pdrop", "resid_pdrop", "embd_pdrop"), dropout)
    setting = Setting(autocast=autocast, rows=3, accumulation=2)
    facts = {**setting.facts({**NANOGPT, **dropouts, "bias": bias}), "implementation": "nanogpt"}
    truth = in_torch(
        nanogpt_reference(NANOGPT, setting, bias, dropout), {}, adamw("foreach"), 2, autocast=autocast or "float32"
    )
    comparison = compare(f"nanogpt {setting}", in_meta(spec_of(facts)), truth)
    assert comparison.worst <= TOLERANCE, str(comparison)


@pytest.mark.parametrize("rows", [1, 3])
def test_each_chunk_of_torchtitans_loss_is_done_with_before_the_next(rows: int) -> None:
    """Heads of keys are as many as of queries: grouping is left to SDPA, which other tests compare. What is kept
    differs in name: the head's gradient is there before the backward pass, which we let hand it out."""
    config = {**CONFIG, "num_key_value_heads": CONFIG["num_attention_heads"], "vocab_size": 20_000}
    setting = Setting(dtype="bfloat16", rows=rows, length=160, optimizer="fused")
    made = spec("torchtitan", setting, False, 4, implementation_version="0.3", **{"hyperparameters.config": config})
    model = reference("torchtitan", config, setting, False, False, 4)
    model.training_loss = immediate_loss
    ours, truth = in_meta(made), in_torch(model, {}, adamw("fused"))
    comparison = compare(f"{rows} rows", ours, truth, checkpointed=True)
    assert comparison.worst <= TOLERANCE, str(comparison)
    assert ours.phases["forward"] == pytest.approx(truth.phases["forward"], rel=TOLERANCE)
    assert ours.saved - truth.saved == config["vocab_size"] * config["hidden_size"] * 2
