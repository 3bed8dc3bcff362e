"""The video language model: parameters to the last one, and the memory that its analysis left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memlint.api import estimate as api_estimate
from memlint.tape.estimate import Estimate
from memlint.units import GiB

EXAMPLES = Path(__file__).parents[2] / "examples" / "video_llm"
PROJECTOR = 1152 * 2048 + 2048
TOKENS = 100 * 64 + 256


def estimate(config: str = "config.yaml", *overrides: str) -> Estimate:
    return api_estimate(EXAMPLES / config, overrides, isolated=True)


def logits(tokens: int, vocabulary: int, bytes_each: int, videos: int = 4) -> float:
    return videos * tokens * vocabulary * bytes_each / GiB


def test_gemma_with_its_projector_has_every_parameter() -> None:
    found = estimate()
    assert found.parameters == found.trainable_parameters == 2_506_172_416 + PROJECTOR


def test_two_billion_weights_are_4_7_gib_in_bfloat16_and_not_2() -> None:
    assert estimate().component_bytes("parameters") / GiB == pytest.approx(4.67, abs=0.01)
    assert estimate("config.yaml", "model.llm.dtype=float32").component_bytes("parameters") / GiB == pytest.approx(
        9.34, abs=0.02
    )


@pytest.mark.parametrize(
    ("decoder", "vocabulary", "published"),
    [("google/gemma-2b", 256_000, 23.4), ("Qwen/Qwen2-1.5B", 151_936, 13.9)],
)
def test_logits_hold_twelve_bytes_each_in_backward(decoder: str, vocabulary: int, published: float) -> None:
    found = estimate(
        "config.yaml", f"model.llm.name={decoder}", "data.max_frames=28", "training.gradient_accumulation_steps=1"
    )
    assert 28 * 64 + 256 == 2048
    assert found.peak_phase == "backward"
    assert found.component_bytes("logits") / GiB == pytest.approx(logits(2048, vocabulary, 12), rel=0.001)
    assert found.component_bytes("logits") / GiB == pytest.approx(published, abs=0.06)


def test_what_was_to_fit_16_gib_needs_76_for_its_logits_alone() -> None:
    found = estimate()
    assert found.component_bytes("logits") / GiB == pytest.approx(logits(TOKENS, 256_000, 12), rel=0.001)
    assert found.component_bytes("logits") / GiB > 76
    assert found.verdict(16 * GiB) == "OOM"


def test_weights_gradients_and_adam_in_bfloat16_take_eight_bytes_per_parameter() -> None:
    found = estimate()
    static = sum(found.component_bytes(name) for name in ("parameters", "gradients", "optimizer"))
    assert static / found.parameters == pytest.approx(8, rel=0.001)


def test_checkpointing_keeps_one_hidden_state_per_layer() -> None:
    # What logits keep is the same in both: 4 bytes each, for the log-probabilities.
    kept = logits(TOKENS, 256_000, 4)
    with_it = estimate().saved_bytes / GiB - kept
    without = estimate("config.yaml", "model.llm.use_gradient_checkpointing=false").saved_bytes / GiB - kept
    boundaries = 18 * 4 * TOKENS * 2048 * 2 / GiB
    assert with_it == pytest.approx(boundaries, rel=0.4)
    assert 75 < without < 110  # "about 90" in the analysis of this config
    assert with_it < 0.05 * without


def test_grouped_heads_in_fp32_keep_attention_probabilities_in_spite_of_sdpa() -> None:
    fp32 = ("model.llm.dtype=float32", "training.use_mixed_precision=false", "data.max_frames=28")
    off = "model.llm.use_gradient_checkpointing=false"
    grouped = estimate("config.yaml", *fp32, off).saved_bytes
    eager = estimate("config.yaml", *fp32, off, "model.llm.attn_implementation=eager").saved_bytes
    probabilities = 18 * 4 * 8 * 2048 * 2048 * 4
    assert eager >= probabilities
    assert grouped == pytest.approx(eager, rel=0.02)
    half = estimate("config.yaml", "data.max_frames=28", off).saved_bytes
    assert half < grouped - probabilities


def test_autocast_over_bfloat16_weights_changes_nothing() -> None:
    off = estimate("config.yaml", "training.use_mixed_precision=false")
    assert estimate().allocated_bytes == pytest.approx(off.allocated_bytes, rel=0.001)


def test_a_frozen_decoder_trains_only_the_projector_and_keeps_its_activations() -> None:
    options = ("model.llm.use_gradient_checkpointing=false", "data.max_frames=28")
    frozen = estimate("config.yaml", "model.llm.freeze=true", *options)
    assert frozen.trainable_parameters == PROJECTOR
    assert frozen.component_bytes("optimizer") < 0.1 * GiB
    assert frozen.saved_bytes > 0.5 * estimate("config.yaml", *options).saved_bytes


@pytest.mark.parametrize(
    ("override", "lower"),
    [
        ("training.batch_size=2", True),
        ("data.max_frames=50", True),
        ("data.tokens_per_frame=16", True),
        ("model.llm.max_seq_length=2048", True),
        ("training.gradient_accumulation_steps=1", True),
        ("training.gradient_accumulation_steps=64", False),
    ],
)
def test_each_lever_moves_the_peak_as_it_should(override: str, lower: bool) -> None:
    before, after = estimate().allocated_bytes, estimate("config.yaml", override).allocated_bytes
    assert after < before if lower else after == before


@pytest.mark.parametrize(
    ("optimizer", "bytes_per_parameter"),
    [("adamw", 4), ("adamw_fused", 4), ("adamw_8bit", 2), ("sgd", 0), ("adafactor", 0)],
)
def test_optimizer_states_are_what_the_optimizer_keeps(optimizer: str, bytes_per_parameter: float) -> None:
    found = estimate("config.yaml", f"training.optimizer={optimizer}", "data.max_frames=8")
    states = found.component_bytes("optimizer") / found.parameters
    # bfloat16 moments are 2 bytes each; 8-bit ones 1, with a float per 256; factored ones a row and a column.
    assert states == pytest.approx(bytes_per_parameter, abs=0.04)


def test_a_fused_optimizer_has_no_temporaries() -> None:
    small = ("data.max_frames=1", "data.tokens_per_frame=1", "data.max_text_length=32", "training.batch_size=1")
    fused = estimate("config.yaml", "training.optimizer=adamw_fused", *small)
    foreach = estimate("config.yaml", *small)
    assert foreach.phases["optimizer_step"] - fused.phases["optimizer_step"] == pytest.approx(
        2 * foreach.parameters, rel=0.01
    )


def test_a_limit_bounds_the_sequence_where_frames_do_not() -> None:
    bounded = estimate("config.yaml", "model.llm.max_seq_length=2048")
    unbounded = estimate("config.yaml", "data.max_frames=null", "model.llm.max_seq_length=2048")
    assert bounded.allocated_bytes == unbounded.allocated_bytes


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("data.max_frames=null",), "max_frames"),
        (("model.llm.name=someone/unheard-of",), "someone/unheard-of"),
        (("model.vision.precomputed=false",), "vision encoder"),
        (("model.projector.type=qformer",), "qformer"),
    ],
    ids=["no bound at all", "an unknown decoder", "a vision encoder", "another projector"],
)
def test_what_is_not_known_says_why(overrides: tuple[str, ...], words: str) -> None:
    from memlint.models import UnknownModel

    with pytest.raises((UnknownModel, ValueError), match=words):
        estimate("config.yaml", *overrides)


def test_components_add_up_to_the_device_figure() -> None:
    found: Any = estimate()
    assert sum(component.size_bytes for component in found.components) == found.device_bytes
