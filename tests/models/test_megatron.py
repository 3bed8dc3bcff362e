"""Megatron's layer against the sums of arXiv 2205.05198 (Korthikanti et al., sections 4 and 5)."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.dialects.spec import Fact, TrainingSpec
from memlint.models import record
from memlint.models.language import build
from memlint.models.step import record_forward
from tests.differential.training import walk

S, B, H, A, LAYERS, V = 64, 2, 256, 4, 3, 1024
UNIT = S * B * H  # what the paper calls sbh

GPT: dict[str, Any] = {
    "model_type": "gpt2", "vocab_size": V, "n_embd": H, "n_layer": LAYERS, "n_head": A, "n_positions": S,
    "activation_function": "gelu", "tie_word_embeddings": True,
}  # fmt: skip
# The paper's model: dropout everywhere, of which each keeps a byte per element.
FACTS: dict[str, Any] = {
    "implementation": "megatron",
    "micro_batch_size": B,
    "sequence_length": S,
    "parameter_dtype": "bfloat16",
    "compute_dtype": "bfloat16",
    "autocast": False,
    "attention": "eager",
    "fused_kernels": ["rms_norm", "swiglu", "rotary"],
    "checkpointing": "none",
}


def spec_of(config: dict[str, Any] = GPT, **facts: Any) -> TrainingSpec:
    stated = {**FACTS, "hyperparameters.config": config, **{n.replace("__", "."): v for n, v in facts.items()}}
    return TrainingSpec("test", None, None, {n: Fact(n, v) for n, v in stated.items()}, "language_model")  # type: ignore[arg-type]


def saved(config: dict[str, Any] = GPT, **facts: Any) -> int:
    return record_forward(build, spec_of(config, **facts))


def of_one_layer(config: dict[str, Any] = GPT, **facts: Any) -> int:
    """What a further layer adds."""
    more = {**config, "n_layer" if "n_layer" in config else "num_hidden_layers": LAYERS + 1}
    return saved(more, **facts) - saved(config, **facts)


# What the paper leaves out as small: two fp32 statistics per token of each norm. (section 4.1)
STATISTICS = 2 * 2 * 4 * S * B

# tensor parallel ranks, sequence parallelism -> the paper's bytes per layer (table 2)
PAPER = {
    "on one device": (1, False, False, UNIT * (34 + 5 * A * S / H)),
    "tensor parallel": (4, False, False, UNIT * (10 + 24 / 4 + 5 * A * S / (H * 4))),
    "tensor and sequence parallel": (4, True, False, UNIT / 4 * (34 + 5 * A * S / H)),
    "selective recomputation on one device": (1, False, True, UNIT * 34),
    "tensor parallel with selective recomputation": (4, False, True, UNIT * (10 + 24 / 4)),
    "all three": (4, True, True, UNIT / 4 * 34),
}


@pytest.mark.parametrize(("tensor", "sequence", "selective", "expected"), PAPER.values(), ids=PAPER)
def test_a_layer_keeps_what_the_paper_says(tensor: int, sequence: bool, selective: bool, expected: float) -> None:
    facts = {"parallelism__tensor": tensor, "parallelism__sequence": sequence}
    found = of_one_layer(**facts, checkpointing="selective" if selective else "none")
    statistics = STATISTICS // (tensor if sequence else 1)
    assert found == pytest.approx(expected + statistics, rel=0.002)


def test_full_recomputation_keeps_the_input_of_each_layer() -> None:
    assert of_one_layer(checkpointing="full") == 2 * UNIT


def test_the_ends_of_the_model_keep_what_the_paper_says() -> None:
    """Dropout's mask, the last norm's and the head's inputs, and logits in fp32: s b h (1 + 2 + 2) + 4 s b v."""
    ends = saved() - LAYERS * of_one_layer()
    small = S * B * (2 * 4 + 1 + 8 + 8 + 8 + 4)  # statistics; masks and numbers of tokens and positions
    assert ends == pytest.approx(5 * UNIT + 4 * S * B * V + small, rel=0.01)


def test_a_fused_attention_kernel_keeps_no_scores() -> None:
    expected = UNIT * 34 + STATISTICS + 4 * A * S * B  # and a number per row
    assert of_one_layer(attention="flash") == pytest.approx(expected, rel=0.002)


LLAMA: dict[str, Any] = {
    "model_type": "llama", "vocab_size": V, "hidden_size": H, "num_hidden_layers": LAYERS, "num_attention_heads": A,
    "num_key_value_heads": 2, "intermediate_size": 3 * H,
}  # fmt: skip


def test_a_gated_layer_keeps_the_inputs_of_its_products_and_of_its_gate() -> None:
    """Norms' and products' inputs 2 + 2 + 2 + 2 + 2; the joined product (of which values are a view), rotated queries
    and keys; gate and value 4 x 3, their product 2 x 3."""
    joined, turned = 2 * (1 + 2 * 2 / 4), 2 * (1 + 2 / 4)
    expected = UNIT * (10 + joined + turned + 12 + 6) + 2 * 4 * S * B + 4 * A * S * B
    assert of_one_layer(LLAMA, attention="flash") == pytest.approx(expected, rel=0.002)


def test_without_fused_gates_their_parts_are_kept_too() -> None:
    """silu's result and its product are in memory: 2 x 3 more than the joined product and what comes of it."""
    fused = of_one_layer(LLAMA, attention="flash")
    plain = of_one_layer(LLAMA, attention="flash", fused_kernels=["rms_norm", "rotary"])
    assert plain - fused == 2 * 3 * UNIT


def test_parameters_are_counted_exactly() -> None:
    per_layer = 12 * H * H + 13 * H
    recording = record(spec_of())
    assert recording.parameters == LAYERS * per_layer + V * H + S * H + 2 * H


MAIN = {
    "optimizer": "adamw", "optimizer_library": "megatron", "master_weights": True, "gradient_dtype": "float32",
    "optimizer_implementation": "fused",
}  # fmt: skip


BLOOM: dict[str, Any] = {
    "model_type": "bloom", "vocab_size": V, "hidden_size": H, "n_layer": LAYERS, "n_head": A,
    "hidden_dropout": 0.1, "attention_dropout": 0.1,
}  # fmt: skip


def test_biases_by_distance_cost_a_layer_nothing() -> None:
    """BLOOM in Megatron's code: the same layer, and a norm behind the embedding."""
    assert of_one_layer(BLOOM) == of_one_layer()
    assert record(spec_of(BLOOM)).parameters == LAYERS * (12 * H * H + 13 * H) + V * H + 4 * H


def test_states_take_18_bytes_per_parameter() -> None:
    """Weights in 16 bits, gradients and three states in fp32. (Megatron-LM, docs: distributed optimizer)"""
    recording = record(spec_of(**MAIN))
    tape = recording.tape
    kinds = {"parameters": 2, "gradients": 4, "optimizer": 12}
    start = next(at for at, phase in tape.marks if phase == "optimizer_step")
    alive: dict[str, int] = {}
    for event in tape.events[:start]:
        number = event if event >= 0 else ~event
        kind = tape.labels[number].component
        alive[kind] = alive.get(kind, 0) + (tape.sizes[number] if event >= 0 else -tape.sizes[number])
    for kind, each in kinds.items():
        assert alive[kind] == pytest.approx(each * recording.parameters, rel=0.01), kind


def test_gradients_of_products_are_added_where_they_belong() -> None:
    """The embedding makes one of its own; the layers' products make none."""
    tape = record(spec_of(**MAIN)).tape
    start = next(at for at, phase in tape.marks if phase == "backward")
    made = [tape.labels[event] for event in tape.events[start:] if event >= 0]
    named = {(label.module, label.name) for label in made if label.component == "gradients" and label.name == "weight"}
    assert ("embed_tokens", "weight") in named
    assert not [module for module, _ in named if "linear" in module]


def test_replayed_layers_take_what_simulated_ones_take(monkeypatch: pytest.MonkeyPatch) -> None:
    for facts in ({}, MAIN, {"checkpointing": "full"}, {**MAIN, "checkpointing": "selective"}):
        monkeypatch.setattr("memlint.meta.replay.ENABLED", True)
        replayed = record(spec_of(**facts)).tape
        monkeypatch.setattr("memlint.meta.replay.ENABLED", False)
        simulated = record(spec_of(**facts)).tape
        assert walk(replayed) == walk(simulated)
