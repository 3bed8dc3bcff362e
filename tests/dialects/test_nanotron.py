"""Family nanotron: YAML that states the model by its sizes, and all devices by their degrees."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from memlint.architectures.decoder import Decoder
from memlint.dialects import registry
from memlint.dialects.nanotron import stage_layers
from memlint.documents.load import load
from memlint.facts.spec import TrainingSpec
from memlint.models import record

CONFIG = (Path(__file__).parents[1] / "hostile/samples/nanotron/run.yaml").read_text(encoding="utf-8")
SMALL = CONFIG.replace("num_hidden_layers: 30", "num_hidden_layers: 4").replace(
    "sequence_length: 2048", "sequence_length: 64"
)


def run(*changes: tuple[str, str], text: str = CONFIG) -> TrainingSpec:
    for old, new in changes:
        assert re.search(old, text), old
        text = re.sub(old, new, text)
    [spec] = registry.specs(load("run.yaml", text))
    assert spec.family == "nanotron"
    return spec


def states(spec: TrainingSpec) -> dict[str, int]:
    """Bytes by component before the first micro batch."""
    tape = record(spec).tape
    begin = next(place for place, phase in tape.marks if phase == "forward")
    found: dict[str, int] = {}
    for event in tape.events[:begin]:
        if event >= 0:
            component = tape.labels[event].component
            found[component] = found.get(component, 0) + tape.sizes[event]
    return found


def test_facts_of_a_run() -> None:
    spec = run()
    expected: dict[str, Any] = {
        "implementation": "nanotron", "micro_batch_size": 4, "gradient_accumulation_steps": 2, "sequence_length": 2048,
        "parameter_dtype": "bfloat16", "compute_dtype": "bfloat16", "autocast": False, "master_weights": True,
        "gradient_dtype": "float32", "optimizer": "adamw", "optimizer_implementation": "fused", "attention": "flash",
        "parallelism.strategy": "zero", "parallelism.zero_stage": 1, "parallelism.shard": 2, "device_count": 2,
        "parallelism.schedule": "1f1b", "parallelism.sequence": True, "checkpointing": "none",
    }  # fmt: skip
    assert {name: spec.get(name) for name in expected} == expected  # type: ignore[arg-type]
    assert spec.architecture == "language_model"


def test_llama_s_code_has_no_biases_and_qwen2_s_has() -> None:
    biased = ("is_llama_config: true", "is_{}_config: true\n    attention_bias: true")
    for kind, there in (("llama", False), ("qwen2", True)):
        spec = run((biased[0], biased[1].format(kind)))
        made: Decoder = spec["decoder"]
        assert made.qkv_bias is there


def test_a_config_without_a_word_about_whose_it_is_is_the_first_that_has_its_keys() -> None:
    bare = run(("    is_llama_config: true\n", ""))
    packed = run(("    is_llama_config: true\n", "    _use_qkv_packed: true\n"))
    assert (bare["implementation"], packed["implementation"]) == ("nanotron", "nanotron qwen2")


def test_the_vocabulary_is_padded_for_each_rank() -> None:
    spec = run(
        ("vocab_size: 49152", "vocab_size: 49153"), ("divisible_by: 1", "divisible_by: 64"), (" tp: 1", " tp: 3")
    )
    assert spec["vocabulary_size"] == 49152 + 64 * 3
    assert spec["device_count"] == 6


UNKNOWN = {
    "experts": ((" tie_word", " is_qwen2_config: true\n    moe_config: {num_experts: 8}\n    tie_word"), "moe_config"),
    "another model": (("is_llama_config", "is_mamba_config"), "is_mamba_config"),
    "rings": ((r"dp: 2", "dp: 2, context_parallel_size: 2"), "context_parallel_size"),
    "heads that are not divided": ((" tp: 1", " tp: 2"), "num_key_value_heads"),
    "products that are cut up beside whole sums": (("REDUCE_SCATTER", "ALL_REDUCE"), "tp_linear_async_communication"),
    "fp32 beside sums in fp32": (("dtype: bfloat16", "dtype: float32"), "accumulate_grad_in_fp32"),
    "rows of the data's tokenizer": (("vocab_size: 49152", "vocab_size: -1"), "vocab_size"),
    "DoReMi's own program": (("general:", "doremi: {domain_names: a}\ngeneral:"), "doremi"),
}


@pytest.mark.parametrize(("change", "key"), UNKNOWN.values(), ids=UNKNOWN)
def test_what_is_not_known_is_unknown_by_its_key(change: tuple[str, str], key: str) -> None:
    spec = run(change)
    assert spec.architecture is None
    assert key in spec.unknown_reason


def test_stages_end_with_the_layer_that_brings_them_beyond_their_share() -> None:
    """Of 4 layers that cost 7 W W each, and a head that costs 4 W W: 32 in all, 16 for each of two stages."""
    assert stage_layers(2, 4, 10, 10, 40) == [3, 1]
    assert stage_layers(2, 4, 10, 10, 10) == [3, 1]  # 29 in all: two layers are 14, beyond which the third one is
    assert stage_layers(2, 30, 576, 1536, 49152) == [19, 11]
    spec = run((r" pp: 1", " pp: 2"))
    assert spec["parallelism.stage_layers"] == [19, 11]


PARAMETERS = 4 * (576 * 576 * 8 // 3 + 3 * 576 * 1536 + 2 * 576) + 49152 * 576 + 576
STATES = {
    "alone": ((r"dp: 2", "dp: 1"), 4, 12, 0),
    "two ranks, each with all": (("zero_stage: 1", "zero_stage: 0"), 4, 12, 2),
    "two ranks that share": (("general:", "general:"), 4, 6, 0),
    "in 16 bits": (("grad_in_fp32: true", "grad_in_fp32: false"), 0, 2, 2),
}


@pytest.mark.parametrize(("change", "gradients", "optimizer", "buckets"), STATES.values(), ids=STATES)
def test_states_have_so_many_bytes_per_parameter(
    change: tuple[str, str], gradients: int, optimizer: int, buckets: int
) -> None:
    """bfloat16 weights. Sums and copies in fp32 and Adam's two moments, of which ranks may have a half; buckets where
    DistributedDataParallel is what sums up."""
    found = states(run(change, text=SMALL))
    assert found["parameters"] == 2 * PARAMETERS
    assert found.get("gradients", 0) == gradients * PARAMETERS
    assert found["optimizer"] == pytest.approx(optimizer * PARAMETERS, rel=1e-4)  # Adam's counters
    assert found.get("communication", 0) == buckets * PARAMETERS


def test_all_forward_passes_come_first_unless_the_engine_is_1f1b() -> None:
    """On a single stage as well: config/parallelism_config.py, AllForwardAllBackwardPipelineEngine."""
    kept = {}
    for engine, steps in (("1f1b", 2), ("1f1b", 4), ("afab", 2), ("afab", 4)):
        changes = ("pp_engine: 1f1b", f"pp_engine: {engine}"), ("per_replica: 2", f"per_replica: {steps}")
        tape = record(run(*changes, text=SMALL)).tape
        phases = [phase for _, phase in tape.marks]
        kept[engine, steps] = phases[: phases.index("backward")].count("forward")
    assert kept == {("1f1b", 2): 1, ("1f1b", 4): 1, ("afab", 2): 2, ("afab", 4): 4}
    assert run((", pp_engine: 1f1b", ""))["parallelism.schedule"] == "gpipe"


def test_an_interleaved_llama_has_a_table_of_positions_in_each_layer() -> None:
    """2,048 rows of 64 fp32 numbers (RotaryEmbedding.init_rotary_embeddings)."""
    plain, pairs = (
        states(run(("is_llama_config: true", f"is_llama_config: true\n    rope_interleaved: {value}"), text=SMALL))
        for value in ("false", "true")
    )
    assert pairs["buffers"] - plain["buffers"] == 4 * 2048 * 64 * 4


@pytest.mark.parametrize(
    "change", [("general:", "general:"), ("zero_stage: 1", "zero_stage: 0")], ids=["shared", "whole"]
)
def test_two_shallow_recordings_stand_for_a_deep_one(change: tuple[str, str]) -> None:
    """States are of all layers together."""
    spec = run(change)
    short, whole = record(spec, folded=True), record(spec)
    assert short.folded is not None
    unfolded = short.folded.unfold()
    assert unfolded.events == whole.tape.events
    assert list(unfolded.sizes) == list(whole.tape.sizes)
    assert short.parameters == whole.parameters == 134_515_008
