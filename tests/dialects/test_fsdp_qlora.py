"""Family fsdp-qlora: options of train.py, with the defaults of its ``main`` (AnswerDotAI/fsdp_qlora at 05ed9f2)."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.dialects import registry
from memlint.documents.load import load
from tests.dialects.language_models import run

TYPE = "python train.py --model_name meta-llama/Llama-2-7b-hf --world_size 2 --train_type"
QLORA = f"{TYPE} qlora"


@pytest.mark.parametrize(
    ("command", "facts"),
    [
        pytest.param(
            QLORA,
            {"micro_batch_size": 1, "sequence_length": 512, "packing": False, "frozen_dtype": "bfloat16",
             "compute_dtype": "bfloat16", "autocast": False, "checkpointing": "full", "tuning": "lora", "lora.r": 64,
             "checkpointing_reentrant": False, "parallelism.cpu_offload": True, "parallelism.strategy": "fsdp1",
             "parallelism.wrap": ["LlamaDecoderLayer"], "device_count": 2, "optimizer": "adamw",
             "evaluation_batch_size": None},
            id="a run that states a model alone",
        ),
        pytest.param(
            QLORA,
            {"quantization.bits": 4, "quantization.kind": "nf4", "quantization.double": True,
             "lora.targets": ["k_proj", "q_proj", "v_proj", "up_proj", "down_proj", "gate_proj"]},
            id="its own layers in four bits, and six of seven are adapted",
        ),
        pytest.param(f"{QLORA} --lora_target_modules default", {"lora.targets": ["q_proj", "v_proj"]}, id="PEFT's"),
        pytest.param(f"{TYPE} lora", {"quantization.bits": None, "tuning": "lora"}, id="whole weights"),
        pytest.param(f"{TYPE} full", {"tuning": "full", "lora.r": None, "quantization.kind": None}, id="no adapters"),
        pytest.param(f"{QLORA} --dataset dummy", {"packing": True}, id="rows that are longer than any cut"),
        pytest.param(f"{TYPE} full --precision fp32", {"parameter_dtype": "float32", "autocast": False}, id="float32"),
        pytest.param(
            f"{TYPE} full --precision bf16_buffers_autocast",
            {"parameter_dtype": "bfloat16", "compute_dtype": "bfloat16", "autocast": True}, id="autocast over bfloat16",
        ),
        pytest.param(
            f"{TYPE} full --precision fp16_autocast",
            {"parameter_dtype": "float32", "compute_dtype": "float16", "autocast": True, "loss_scaling": "dynamic",
             "parallelism.as_stored": True}, id="float32 is gathered under autocast",
        ),
        pytest.param(f"{QLORA} --use_cpu_offload False", {"parallelism.cpu_offload": False}, id="states on the cards"),
        pytest.param(
            f"{QLORA} --gradient_accumulation_steps 4", {"parallelism.reduces_last_only": True},
            id="beside cpu_offload no_sync is on by itself",
        ),
        pytest.param(
            f"{QLORA} --gradient_accumulation_steps 4 --use_cpu_offload False",
            {"parallelism.reduces_last_only": False}, id="and else off",
        ),
        pytest.param(f"{QLORA} --use_gradient_checkpointing false", {"checkpointing": "none"}, id="nothing recomputed"),
        pytest.param(f"{QLORA} --reentrant_checkpointing True", {"checkpointing_reentrant": True}, id="the older kind"),
        pytest.param(
            f"{QLORA} --sharding_strategy shard_grad_op", {"parallelism.reshard_after_forward": False},
            id="weights stay gathered",
        ),
        pytest.param(f"{QLORA} --sharding_strategy ddp", {"parallelism.strategy": "ddp"}, id="nothing is shared"),
        pytest.param(f"{QLORA} --optimizer sgd", {"optimizer": "sgd"}, id="another optimizer"),
        pytest.param(
            f"{QLORA} --optimizer fused_adamw", {"optimizer": "adamw", "optimizer_implementation": "fused"}, id="fused",
        ),
        pytest.param(
            f"CUDA_VISIBLE_DEVICES=0,1,2 {QLORA.replace('--world_size 2', '')}", {"device_count": 3},
            id="as many processes as devices are visible",
        ),
        pytest.param(
            f"CUDA_VISIBLE_DEVICES=0 {QLORA.replace('--world_size 2', '')}",
            {"device_count": 1, "parallelism.strategy": "none"}, id="one device",
        ),
    ],
)  # fmt: skip
def test_options_set_facts(command: str, facts: dict[str, Any]) -> None:
    spec = run(command + "\n", "a.sh")
    assert spec.family == "fsdp-qlora"
    assert spec.architecture == "language_model", spec.unknown_reason
    assert {name: spec.get(name) for name in facts} == facts


@pytest.mark.parametrize(
    ("release", "dtype"), [("0.9.0", "bfloat16"), ("0.12.0", "float32")], ids=["as the codes", "as PEFT casts them"]
)
def test_adapters_take_the_dtype_that_the_codes_are_kept_in(release: str, dtype: str, tmp_path: Any) -> None:
    (tmp_path / "requirements.txt").write_text(f"peft=={release}\n", encoding="utf-8")
    path = tmp_path / "a.sh"
    path.write_text(QLORA + "\n", encoding="utf-8")
    (spec,) = registry.specs(load(str(path)))
    assert spec.get("lora.dtype") == dtype


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        pytest.param(f"{TYPE} hqq_lora", "--train_type hqq_lora: HQQ's layers", id="HQQ"),
        pytest.param(f"{TYPE} custom_qlora", "--train_type custom_qlora: adapters of its own", id="its own adapters"),
        pytest.param(f"{TYPE} bnb_dora", "--train_type bnb_dora", id="its own DoRA"),
        pytest.param(f"{TYPE} bnb_llama_pro", "--train_type bnb_llama_pro", id="added layers"),
        pytest.param(f"{QLORA} --precision fp32", "--precision fp32", id="codes kept in float32"),
        pytest.param(f"{QLORA} --use_activation_cpu_offload true", "use_activation_cpu_offload", id="activations away"),
        pytest.param(f"{QLORA} --sharding_strategy hybrid_full_shard", "hybrid_full_shard", id="groups that share"),
        pytest.param(f"{QLORA} --optimizer adadelta", "--optimizer adadelta", id="another optimizer"),
        pytest.param(
            QLORA.replace("meta-llama/Llama-2-7b-hf", "Qwen/Qwen2.5-7B"), "none of qwen2", id="layers of another class"
        ),
    ],
)
def test_what_is_not_known_is_named(command: str, reason: str) -> None:
    spec = run(command + "\n", "a.sh")
    assert spec.family == "fsdp-qlora"
    assert spec.architecture is None
    assert reason in spec.unknown_reason


@pytest.mark.parametrize(
    ("command", "family"),
    [
        pytest.param("python train.py --model_name a/b --context_length 512 --precision bf16", "fsdp-qlora", id="its"),
        pytest.param("python train.py --model_name a/b --batch_size 4", "", id="nothing that is its own"),
        pytest.param("python train.py --model_name_or_path a/b --context_length 512 --use_cpu_offload true", "",
                     id="a model by another name"),
        pytest.param("python train.py --model_name a/b --train_type finetune", "", id="another type of training"),
        pytest.param("python train.py --model_name a/b --train_type $TYPE", "fsdp-qlora", id="one that nobody knows"),
        pytest.param("swift sft --model a/b --train_type lora", "ms-swift", id="another program"),
    ],
)  # fmt: skip
def test_whose_a_script_of_this_name_is(command: str, family: str, tmp_path: Any) -> None:
    path = tmp_path / "a.sh"
    path.write_text(command + "\n", encoding="utf-8")
    found = [spec.family for spec in registry.specs(load(str(path)))]
    assert (family in found) if family else ("fsdp-qlora" not in found)
