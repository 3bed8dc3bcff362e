"""Family nemo-rl: policies on DTensor workers, and the files and scripts of its repository."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from memlint.dialects import registry
from memlint.documents.load import load
from memlint.estimates import estimate_spec
from memlint.facts.spec import TrainingSpec

CONFIG = (Path(__file__).parents[1] / "hostile/samples/nemo_rl/run.yaml").read_text(encoding="utf-8")
SFT = (r"grpo:\n.*\n.*\n", "sft: {val_micro_batch_size: 2}\n")


def run(*changes: tuple[str, str]) -> TrainingSpec:
    text = CONFIG
    for old, new in changes:
        assert re.search(old, text), old
        text = re.sub(old, new, text)
    [spec] = registry.specs(load("run.yaml", text))
    assert spec.family == "nemo-rl"
    return spec


def test_facts_of_a_run() -> None:
    spec = run()
    expected: dict[str, Any] = {
        "method": "grpo", "implementation": "transformers", "micro_batch_size": 4, "sequence_length": 512,
        "sequence_bound": True, "gradient_accumulation_steps": 2, "evaluation_batch_size": 8, "attention": "sdpa",
        "parameter_dtype": "float32", "compute_dtype": "bfloat16", "autocast": True, "optimizer": "adamw",
        "optimizer_implementation": "loop", "log_probabilities": "whole", "reference_model": "none",
        "parallelism.strategy": "fsdp2", "parallelism.replicas": 2, "parallelism.reduce_dtype": "float32",
        "parallelism.output_dtype": "float32", "parallelism.last_stays": True, "device_count": 4, "world_size": 4,
        "checkpointing": "none", "engine_share": 0.6, "engine_beside": [],
    }  # fmt: skip
    assert {name: spec.get(name) for name in expected} == expected  # type: ignore[arg-type]
    assert spec.architecture == "language_model", spec.unknown_reason


ON = "sequence_packing:\n    enabled: true"
FACTS: dict[str, tuple[list[tuple[str, str]], dict[str, Any]]] = {
    "supervised": ([SFT], {"method": "sft", "engine_share": None, "evaluation_batch_size": None}),
    "pairs": ([(r"grpo:\n.*\n.*\n", "dpo: {}\n")], {"method": "dpo", "sequences_per_sample": 2}),
    "rows that are filled up": (
        [(r"sequence_packing:\n    enabled: false", ON)],
        {
            "micro_batch_size": 1,
            "sequence_length": 2048,
            "sequence_bound": None,
            "padding_free": True,
            "attention": "flash",
            "gradient_accumulation_steps": 2,
        },
    ),
    "as many rows as tokens go": (
        [
            (r"dynamic_batching:\n    enabled: false", "dynamic_batching:\n    enabled: true"),
            ("length: 512", "length: 256"),
        ],
        {"micro_batch_size": 4, "sequence_length": 256, "sequence_bound": True},
    ),
    "layers that are divided": (
        [
            ("HuggingFaceTB/SmolLM2-135M", "Qwen/Qwen2.5-0.5B"),
            ("tensor_parallel_size: 1", "tensor_parallel_size: 2"),
            ("sequence_parallel: false", "sequence_parallel: true"),
        ],
        {"log_probabilities": "shared", "parallelism.sequence": True, "gradient_accumulation_steps": 4},
    ),
    "tokens that nobody shares": (
        [("sequence_parallel: false", "sequence_parallel: true")],
        {"parallelism.sequence": False},
    ),
    "layers that are recomputed, by torch's older kind": (
        [("activation_checkpointing: false", "activation_checkpointing: true")],
        {"checkpointing": "full", "checkpointing_reentrant": True},
    ),
    "parts of layers that are recomputed, by the first workers": (
        [
            ("_v2: true", "_v2: false"),
            ("activation_checkpointing: false", "activation_checkpointing: true"),
            ("dp_replicate_size: 2", "dp_replicate_size: 1"),
        ],
        {
            "checkpointing": "full",
            "checkpointing_modules": ["mlp", "self_attn", "input_layernorm", "post_attention_layernorm"],
            "checkpointing_reentrant": None,
        },
    ),
    "one device, which shares nothing": (
        [("gpus_per_node: 4", "gpus_per_node: 1"), ("dp_replicate_size: 2", "dp_replicate_size: 1")],
        {"parallelism.strategy": "none", "parallelism.replicas": None, "gradient_accumulation_steps": 8},
    ),
    "the first workers": (
        [("_v2: true", "_v2: false"), ("dp_replicate_size: 2", "dp_replicate_size: 1")],
        {"parallelism.last_stays": False, "parallelism.strategy": "fsdp2"},
    ),
    "cards that generate alone": (
        [("enabled: true, resources: {gpus_per_node: null", "enabled: false, resources: {gpus_per_node: 2")],
        {"device_count": 2, "engine_share": None},
    ),
    "an optimizer in one kernel": ([("fused: false", "fused: true")], {"optimizer_implementation": "fused"}),
    "an optimizer of which nothing is said": (
        [("foreach: false, fused: false", "eps: 1e-8")],
        {"optimizer_implementation": "foreach"},
    ),
}


@pytest.mark.parametrize(("changes", "facts"), FACTS.values(), ids=FACTS)
def test_what_keys_mean(changes: list[tuple[str, str]], facts: dict[str, Any]) -> None:
    spec = run(*changes)
    assert spec.architecture == "language_model", spec.unknown_reason
    assert {name: spec.get(name) for name in facts} == facts  # type: ignore[arg-type]


UNKNOWN = {
    "Megatron's workers": (("  optimizer:", "  megatron_cfg: {enabled: true}\n  optimizer:"), "megatron_cfg.enabled"),
    "no worker on DTensor": (("    enabled: true\n    cpu", "    enabled: false\n    cpu"), "dtensor_cfg.enabled"),
    "adapters": (("    cpu_offload", "    lora_cfg: {enabled: true}\n    cpu_offload"), "lora_cfg.enabled"),
    "a plan of one's own": (
        ("    cpu_offload", "    custom_parallel_plan: a.b\n    cpu_offload"),
        "custom_parallel_plan",
    ),
    "a part of the vocabulary": (("top_p: 1.0", "top_p: 0.9"), "generation.top_p 0.9"),
    "shared tokens": (("context_parallel_size: 1", "context_parallel_size: 2"), "context_parallel_size"),
    "another optimizer": (("torch.optim.AdamW", "apex.FusedAdam"), "apex.FusedAdam"),
    "a teacher": (("grpo:\n", "distillation: {}\ngrpo:\n"), "distillation"),
    "heads that are not divided": (("tensor_parallel_size: 1", "tensor_parallel_size: 2"), "num_key_value_heads 3"),
    "degrees that do not fit": (("gpus_per_node: 4", "gpus_per_node: 3"), "3 devices"),
    "groups of the first workers": (("_v2: true", "_v2: false"), "dp_replicate_size"),
    "experts of its own": (("HuggingFaceTB/SmolLM2-135M", "Qwen/Qwen3-30B-A3B"), "NeMo Automodel's own code"),
    "a head of one number": (("  optimizer:", "  reward_model_cfg: {enabled: true}\n  optimizer:"), "reward_model_cfg"),
}


@pytest.mark.parametrize(("change", "key"), UNKNOWN.values(), ids=UNKNOWN)
def test_what_is_not_known_is_unknown_by_its_key(change: tuple[str, str], key: str) -> None:
    spec = run(change)
    assert spec.architecture is None
    assert key in spec.unknown_reason


def test_the_policy_is_in_host_memory_while_the_engine_generates() -> None:
    """A card of 40 GB, 0.6 of which is the engine's, beside nothing of the policy but what collectives need."""
    found = estimate_spec(run(), gpu="a100-40gb x4")
    assert found.peak_phase == "generation"
    states = {component.name: component.size_bytes for component in found.components}
    assert states.get("parameters", 0) + states.get("optimizer", 0) == 0


def test_a_config_s_own_keys_of_its_model_count() -> None:
    fewer = run(("  precision", "  hf_config_overrides: {num_hidden_layers: 6}\n  precision"))
    assert estimate_spec(fewer).device_bytes < estimate_spec(run()).device_bytes


REPOSITORY = {
    ".git/HEAD": "",
    "examples/configs/grpo.yaml": CONFIG,
    "examples/configs/recipes/llm/longer.yaml": "defaults: ../../grpo.yaml\npolicy: {max_total_sequence_length: 1024}",
    "tests/test_suites/llm/common.env": "CONFIG_PATH=$(made of the script's name)\n",
    "tests/test_suites/llm/longer.sh": "source $DIR/common.env\nuv run examples/run_grpo.py --config $CONFIG_PATH \\\n"
    "  policy.train_micro_batch_size=2 logger.log_dir=$LOGS $@\n",
    "tests/functional/some.sh": "ROOT=$(realpath ..)\nuv run $ROOT/examples/run_grpo.py \\\n"
    "  --config $ROOT/examples/configs/recipes/llm/longer.yaml policy.train_micro_batch_size=1\n",
}


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        pytest.param("examples/configs/recipes/llm/longer.yaml", 4, id="a recipe over its parent"),
        pytest.param("tests/test_suites/llm/longer.sh", 2, id="a test's script runs the recipe of its name"),
        pytest.param("tests/functional/some.sh", 1, id="a path below a root that is not followed"),
    ],
)
def test_files_of_the_repository(name: str, rows: int, tmp_path: Path) -> None:
    for path, text in REPOSITORY.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    (spec,) = registry.specs(load(str(tmp_path / name)))
    assert (spec.family, spec["micro_batch_size"], spec["sequence_length"]) == ("nemo-rl", rows, 1024)
    assert spec["hyperparameters.dynamic_tokens"] == 1024 * rows  # what the parent multiplies follows the child
    assert spec.architecture == "language_model", spec.unknown_reason
