"""Recipes and scripts of TRL before 0.20, and PEFT's example script around it: keys that later releases do not have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memlint.dialects import registry
from memlint.documents.load import load
from tests.dialects.language_models import line_of, run, written

SCRIPT = """\
accelerate launch --config_file shared.yaml train.py \\
  --model_name_or_path meta-llama/Llama-2-7b-hf --dataset_name x --dataset_text_field content --packing True \\
  --per_device_train_batch_size 2 --max_seq_len 2048 --bf16 True --use_flash_attn True \\
  --gradient_checkpointing True --use_reentrant True \\
  --use_peft_lora True --lora_r 8 --lora_target_modules all-linear --use_4bit_quantization True \\
  --use_nested_quant True --bnb_4bit_quant_storage_dtype bfloat16 --output_dir out
"""
FSDP1 = """\
distributed_type: FSDP
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_sharding_strategy: FULL_SHARD
  fsdp_use_orig_params: false
mixed_precision: 'no'
num_processes: 2
"""
ZERO3 = """\
distributed_type: DEEPSPEED
deepspeed_config: {zero_stage: 3, zero3_init_flag: true}
mixed_precision: bf16
num_processes: 2
"""


@pytest.mark.parametrize(
    ("key", "loss"),
    [
        pytest.param("max_seq_length", "full", id="the older name of the length is of a release without tiles"),
        pytest.param("max_seq_len", "full", id="argparse takes a part of the name"),
        pytest.param("max_length", "chunked", id="the newer name is of a release with them"),
    ],
)
def test_the_name_of_the_length_tells_the_loss(key: str, loss: str) -> None:
    spec = run(f"model_name_or_path: Qwen/Qwen2.5-7B\ndataset_name: x\nlearning_rate: 1.0e-5\n{key}: 512\n")
    assert (spec["sequence_length"], spec["loss"]) == (512, loss)
    assert ("loss_tile" in spec) is (loss == "chunked")
    assert line_of(spec, "sequence_length") == f"{key}: 512"


@pytest.mark.parametrize(
    ("lines", "value"),
    [
        pytest.param("max_seq_length: 512", "none", id="off by default before"),
        pytest.param("max_length: 512", "full", id="on by default now"),
        pytest.param("max_seq_length: 512\ngradient_checkpointing: true", "full", id="as stated"),
    ],
)
def test_checkpointing_of_older_releases(lines: str, value: str) -> None:
    spec = run(f"model_name_or_path: Qwen/Qwen2.5-7B\ndataset_name: x\nlearning_rate: 1.0e-5\n{lines}\n")
    assert spec["checkpointing"] == value


@pytest.mark.parametrize(
    ("shared", "expected"),
    [
        pytest.param(
            FSDP1,
            {
                "parallelism.strategy": "fsdp1",
                "frozen_dtype": "bfloat16",  # wrapped apart from the adapters
                "parameter_dtype": "float32",
                "compute_dtype": "bfloat16",
                "autocast": True,
                "lora.dtype": "bfloat16",
            },
            id="FSDP1",
        ),
        pytest.param(
            ZERO3,
            {
                "parallelism.strategy": "zero",
                "parallelism.zero_stage": 3,
                "frozen_dtype": "bfloat16",
                "autocast": False,
                "parallelism.loaded_whole": True,
            },
            id="ZeRO-3",
        ),
    ],
)
def test_pefts_example_with_what_launches_it_is_one_run(tmp_path: Path, shared: str, expected: dict[str, Any]) -> None:
    root = written(tmp_path, {"run.sh": SCRIPT, "shared.yaml": shared})
    (spec,) = registry.specs(load(str(root / "run.sh")))
    assert spec.architecture == "language_model", spec.unknown_reason
    common = {
        "sequence_length": 2048,
        "packing": True,
        "attention": "flash",
        "tuning": "lora",
        "lora.targets": "all-linear",
        "quantization.bits": 4,
        "quantization.double": True,
        "checkpointing": "full",
        "checkpointing_reentrant": True,
        "loss": "full",
        "device_count": 2,
    }
    expected = {**common, **expected}
    assert {name: spec.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("shared", "quantised", "whole"),
    [
        pytest.param(ZERO3, "True", True, id="a quantised model is not built sharded"),
        pytest.param(ZERO3, "False", None, id="another one is"),
        pytest.param(ZERO3.replace("true", "false"), "False", True, id="unless it is told not to"),
        pytest.param(ZERO3.replace(", zero3_init_flag: true", ""), "False", None, id="and is without a word"),
        pytest.param(
            ZERO3.replace("3, zero3_init_flag: true", "2, zero3_init_flag: false"),
            "False",
            None,
            id="stage 2 shards none",
        ),
        pytest.param(FSDP1, "True", None, id="FSDP shards unit by unit"),
    ],
)
def test_what_stands_on_each_card_before_it_is_sharded(
    tmp_path: Path, shared: str, quantised: str, whole: bool | None
) -> None:
    script = SCRIPT.replace("--use_4bit_quantization True", f"--use_4bit_quantization {quantised}")
    root = written(tmp_path, {"run.sh": script, "shared.yaml": shared})
    (spec,) = registry.specs(load(str(root / "run.sh")))
    assert spec.architecture == "language_model", spec.unknown_reason
    assert spec.get("parallelism.loaded_whole") == whole


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param(
            "--use_peft_lora True",
            {"lora.r": 64, "lora.alpha": 16, "lora.dropout": 0.1, "attention": "eager", "frozen_dtype": "float32"},
            id="PEFT's example has defaults of its own",
        ),
        pytest.param(
            "--use_peft_lora True --lora_r 8 --lora_target_modules all-linear --use_flash_attn True --bf16 True",
            {"lora.r": 8, "lora.targets": "all-linear", "attention": "flash"},
            id="what is stated goes before them",
        ),
        pytest.param(
            "--use_4bit_quantization True --use_peft_lora True", {"lora.r": 64}, id="any of its switches tells"
        ),
        pytest.param(
            "--use_nested_quant True --chat_template_format chatml",
            {"embeddings_resized": True},
            id="tokens of a chat template need rows",
        ),
        pytest.param(
            "--use_nested_quant True --chat_template_format none",
            {"embeddings_resized": None},
            id="no template, no rows",
        ),
        pytest.param(
            "--use_peft True", {"lora.r": 16, "lora.dropout": 0.05, "attention": "sdpa"}, id="TRL's own script"
        ),
    ],
)
def test_defaults_are_those_of_the_script(options: str, expected: dict[str, Any]) -> None:
    command = "python train.py --model_name_or_path meta-llama/Llama-2-7b-hf --dataset_name x --packing True"
    spec = run(f"{command} --per_device_train_batch_size 2 --max_seq_length 512 {options}\n", "run.sh")
    assert spec.architecture == "language_model", spec.unknown_reason
    assert {name: spec.get(name) for name in expected} == expected


SIMPO = """\
model_name_or_path: Qwen/Qwen2.5-0.5B
gamma_beta_ratio: 0.5
per_device_train_batch_size: 2
"""


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param(
            "",
            {
                "sequences_per_sample": 2,
                "sequence_length": 512,
                "log_probabilities": "whole_first",
                "likelihood_of_chosen": None,
                "reference_model": "none",
                "parameter_dtype": "float32",
                "compute_dtype": "float32",
                "checkpointing": "none",
            },
            id="its config is transformers' arguments and a few",
        ),
        pytest.param("sft_weight: 0.1\n", {"likelihood_of_chosen": True}, id="the likelihood beside, where it weighs"),
        pytest.param("torch_dtype: null\n", {"parameter_dtype": "float32"}, id="no dtype is float32, as it was then"),
        pytest.param(
            "torch_dtype: bfloat16\nload_in_4bit: true\nuse_peft: true\nbf16: true\n",
            {"float32_parts": ["norms"], "frozen_dtype": "bfloat16"},
            id="what its trainer widens of a quantised model",
        ),
    ],
)
def test_recipes_of_simpo(lines: str, expected: dict[str, Any]) -> None:
    spec = run(SIMPO + lines)
    assert (spec.family, spec["method"], spec.unknown_reason) == ("simpo", "simpo", "")
    assert {name: spec.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("key", "transformers", "trl"),
    [
        pytest.param("max_seq_length: 64", "4.54", "0.19", id="the newest beside the last TRL that has the key"),
        pytest.param("max_length: 64\nevaluation_strategy: epoch", "4.45", None, id="a key of transformers"),
        pytest.param(
            "max_seq_length: 64\nevaluation_strategy: epoch",
            "4.45",
            "0.19",
            id="the older one of both for transformers",
        ),
        pytest.param("max_length: 64", None, None, id="keys of today"),
    ],
)
def test_a_key_of_the_past_tells_transformers_release_too(key: str, transformers: str | None, trl: str | None) -> None:
    text = f"model_name_or_path: gpt2\ndataset_name: a\n{key}\nper_device_train_batch_size: 1\noutput_dir: out\n"
    spec = run(text, "sft.yaml")
    assert spec.get("transformers_version") == transformers
    if trl is not None:
        assert spec.get("release.trl") == trl
