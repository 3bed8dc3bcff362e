"""Family llama-cookbook: options of finetuning.py, with the defaults of its dataclasses (llama-cookbook 0.0.5)."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.dialects import registry
from memlint.documents.load import load
from memlint.facts.spec import OnTop
from tests.dialects.language_models import run

ONE = "python -m llama_recipes.finetuning --model_name meta-llama/Llama-2-7b-hf"
SHARED = "torchrun --nproc_per_node 4 -m llama_cookbook.finetuning --enable_fsdp --model_name meta-llama/Llama-2-7b-hf"
LORA = "--use_peft --peft_method lora"


@pytest.mark.parametrize(
    ("command", "facts"),
    [
        pytest.param(
            ONE,
            {"micro_batch_size": 4, "sequence_length": 4096, "packing": True, "parameter_dtype": "bfloat16",
             "compute_dtype": "bfloat16", "autocast": False, "checkpointing": "none", "tuning": "full"},
            id="a run that states a model alone",
        ),
        pytest.param(
            "python llama_finetuning.py --model_name meta-llama/Llama-2-7b-hf",
            {"sequence_length": 2048, "packing": True},
            id="its first program has rows of its own",
        ),
        pytest.param(
            f"{ONE} {LORA}",
            {"tuning": "lora", "lora.r": 8, "lora.targets": ["q_proj", "v_proj"], "lora.dropout": 0.05},
            id="adapters of its own sizes",
        ),
        pytest.param(f"{ONE} {LORA} --lora_config.r 16", {"lora.r": 16}, id="a rank by its table"),
        pytest.param(f"{ONE} {LORA} --r 16", {"lora.r": 16}, id="a rank by its own name"),
        pytest.param(f"{ONE} {LORA} --quantization", {"quantization.bits": 8}, id="a bare switch is eight bits"),
        pytest.param(f"{ONE} {LORA} --quantization 8bit", {"quantization.bits": 8}, id="eight bits"),
        pytest.param(
            f"{ONE} {LORA} --quantization 4bit --quantization_config.quant_type nf4",
            {"quantization.bits": 4, "quantization.kind": "nf4", "quantization.double": False},
            id="four bits",
        ),
        pytest.param(
            f"{ONE} {LORA} --use_fp16",
            {"compute_dtype": "float16", "autocast": True, "loss_scaling": "dynamic", "lora.dtype": "float32"},
            id="float16 scales its loss",
        ),
        pytest.param(
            SHARED,
            {"parallelism.strategy": "fsdp1", "device_count": 4, "checkpointing": "full",
             "parallelism.wrap": ["LlamaDecoderLayer"], "parallelism.reduce_dtype": "bfloat16"},
            id="FSDP recomputes layers",
        ),
        pytest.param(
            f"{SHARED} --fsdp_config.fsdp_activation_checkpointing False", {"checkpointing": "none"}, id="or does not"
        ),
        pytest.param(
            f"{SHARED} --gradient_accumulation_steps 4", {"parallelism.reduces_last_only": False},
            id="gradients are reduced in each pass",
        ),
        pytest.param(
            f"{SHARED} --fsdp_config.pure_bf16 --optimizer anyprecision",
            {"optimizer_state_dtype": "bfloat16", "optimizer_implementation": "loop"},
            id="its own optimizer",
        ),
        pytest.param(
            f"torchrun --nproc_per_node 4 {ONE.removeprefix('python ')}",
            {"device_count": 1, "parallelism.strategy": "none"},
            id="without FSDP nothing is shared",
        ),
        pytest.param(ONE, {"evaluation_batch_size": 1, "evaluation_sequence_length": 4096}, id="it evaluates"),
        pytest.param(f"{ONE} --run_validation False", {"evaluation_batch_size": None}, id="or not"),
    ],
)  # fmt: skip
def test_options_set_facts(command: str, facts: dict[str, Any]) -> None:
    spec = run(command + "\n", "a.sh")
    assert spec.family == "llama-cookbook"
    assert spec.architecture == "language_model", spec.unknown_reason
    assert {name: spec.get(name) for name in facts} == facts


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        pytest.param("--batching_strategy padding", "the longest sample is the data's", id="padded samples"),
        pytest.param("--use_peft --peft_method llama_adapter", "what it keeps is not known", id="another adapter"),
        pytest.param("--use_peft --from_peft_checkpoint out", "states its rank itself", id="an adapter to go on with"),
        pytest.param("--enable_fsdp --hsdp", "groups of devices", id="groups that share"),
        pytest.param("--enable_fsdp --sharding_strategy NO_SHARD", "how FSDP shares", id="another way to share"),
        pytest.param("--enable_fsdp --use_fp16", "FSDP's products in float16", id="FSDP in float16"),
        pytest.param("--model_name Qwen/Qwen2.5-7B", "qwen2 is none", id="a model of another type"),
    ],
)
def test_what_is_not_known_is_named(options: str, reason: str) -> None:
    spec = run(f"{ONE} {options}\n", "a.sh")
    assert spec.architecture is None
    assert reason in spec.unknown_reason


def test_samples_that_are_padded_leave_a_bound() -> None:
    spec = run(f"{ONE} --batching_strategy padding\n", "a.sh")
    assert isinstance(spec.unknown_reason, OnTop)
    assert spec.architecture_at_least == "language_model"


@pytest.mark.parametrize(
    ("command", "families"),
    [
        pytest.param("python finetuning.py --enable_fsdp --model_name a/b", ["llama-cookbook"], id="by its options"),
        pytest.param("python finetuning.py --model_name_or_path gpt2 --per_device_train_batch_size 1", ["hf-trainer"],
                     id="a script of that name around the Trainer"),
    ],
)  # fmt: skip
def test_whose_a_script_of_this_name_is(command: str, families: list[str], tmp_path: Any) -> None:
    path = tmp_path / "a.sh"
    path.write_text(command + "\n", encoding="utf-8")
    assert [spec.family for spec in registry.specs(load(str(path)))] == families
