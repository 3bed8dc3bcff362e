"""Family deepspeed-chat: options of its steps' main.py, with the defaults of their argparse."""

from __future__ import annotations

from typing import Any

import pytest

from tests.dialects.language_models import run

ONE = "deepspeed --num_gpus 4 main.py --data_split 2,4,4 --model_name_or_path facebook/opt-1.3b"
TWO = f"{ONE} --num_padding_at_beginning 1"


@pytest.mark.parametrize(
    ("command", "facts"),
    [
        pytest.param(
            f"{ONE} --zero_stage 2",
            {"micro_batch_size": 16, "sequence_length": 512, "method": "sft", "model_class": "causal_lm",
             "parallelism.strategy": "zero", "parallelism.zero_stage": 2, "compute_dtype": "float16",
             "checkpointing": "none", "tuning": "full", "evaluation_batch_size": 16, "device_count": 4},
            id="step 1",
        ),
        pytest.param(f"{ONE} --zero_stage 2 --dtype bf16", {"compute_dtype": "bfloat16"}, id="in bfloat16"),
        pytest.param(
            f"{ONE} --zero_stage 3 --offload",
            {"parallelism.offload_optimizer": True, "parallelism.offload_parameters": True},
            id="offloaded",
        ),
        pytest.param(
            f"{ONE} --zero_stage 3", {"parallelism.live_parameter_elements": 30_000_000}, id="its own bounds"
        ),
        pytest.param(f"{ONE} --zero_stage 2 --gradient_checkpointing", {"checkpointing": "full"}, id="recomputed"),
        pytest.param(
            f"{ONE} --zero_stage 2 --lora_dim 64 --lora_module_name decoder.layers. --only_optimize_lora",
            {"tuning": "lora", "lora.r": 64, "lora.targets": "all-linear", "lora.unfrozen": None, "lora.dropout": 0.0},
            id="adapters alone",
        ),
        pytest.param(
            TWO + " --zero_stage 2",
            {"method": "reward", "model_class": "sequence_classification", "labels": 1, "sequences_per_sample": 2},
            id="step 2 by its option",
        ),
    ],
)  # fmt: skip
def test_options_set_facts(command: str, facts: dict[str, Any]) -> None:
    spec = run(command + "\n", "a.sh")
    assert spec.family == "deepspeed-chat"
    assert spec.architecture == "language_model", spec.unknown_reason
    assert {name: spec.get(name) for name in facts} == facts


def test_what_trains_beside_adapters_is_whatever_is_none() -> None:
    spec = run(f"{ONE} --zero_stage 2 --lora_dim 64\n", "a.sh")
    assert {"embed_tokens", "self_attn_layer_norm", "final_layer_norm"} <= {*spec["lora.unfrozen"]}


@pytest.mark.parametrize(
    "options",
    [
        pytest.param("--lora_dim 128 --zero_stage 0 --deepspeed", id="with adapters"),
        pytest.param("--zero_stage 2 --deepspeed", id="without"),
    ],
)
def test_the_shipped_commands_leave_data_and_length_to_defaults(options: str) -> None:
    spec = run(f"deepspeed --num_gpus 1 main.py --model_name_or_path facebook/opt-1.3b {options}\n", "a.sh")
    assert (spec.family, spec.get("sequence_length")) == ("deepspeed-chat", 512)


def test_a_folder_says_that_a_script_is_step_2() -> None:
    spec = run(f"{ONE} --zero_stage 2\n", "step2_reward_model_finetuning/run.sh")
    assert spec["method"] == "reward"


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        pytest.param(f"{ONE} --zero_stage 2 --lora_dim 8 --lora_module_name k_proj", "which layers", id="a scope"),
        pytest.param(
            "deepspeed main.py --actor_model_name_or_path a/b --critic_model_name_or_path a/c", "an actor, a critic",
            id="step 3",
        ),
    ],
)  # fmt: skip
def test_what_is_not_known_is_named(command: str, reason: str) -> None:
    spec = run(command + "\n", "a.sh")
    assert spec.architecture is None
    assert reason in spec.unknown_reason
