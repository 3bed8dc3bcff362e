"""Family xtuner: Python configs of mmengine, by the code of XTuner 0.1."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from memlint.dialects import registry
from memlint.documents.load import load
from memlint.estimates import estimate_spec
from memlint.facts.spec import TrainingSpec
from tests.dialects.language_models import run, written

CONFIG = """\
import torch
from mmengine.optim import AmpOptimWrapper
from peft import LoraConfig
from torch.optim import AdamW
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from xtuner.model import {kind}

name = "{model}"
max_length = {length}
model = dict(
    type={kind},
    llm=dict(
        type=AutoModelForCausalLM.from_pretrained,
        pretrained_model_name_or_path=name,
        torch_dtype=torch.float16,
        {quantised}
    ),
    {lora}
)
train_dataloader = dict(batch_size={batch}, dataset=dict(max_length=max_length, pack_to_max_length={packs}))
pack_to_max_length = {packs}
optim_wrapper = dict(
    type=AmpOptimWrapper, optimizer=dict(type={optimizer}, lr=1e-4), accumulative_counts=16, dtype="float16"
)
"""
FOUR_BITS = """quantization_config=dict(
            type=BitsAndBytesConfig, load_in_4bit=True, bnb_4bit_use_double_quant=True, bnb_4bit_quant_type="nf4"
        ),"""
LORA = "lora=dict(type=LoraConfig, r=64, lora_alpha=16, lora_dropout=0.1),"
DEFAULTS = {
    "kind": "SupervisedFinetune",
    "model": "Qwen/Qwen2.5-0.5B",
    "length": 2048,
    "quantised": "",
    "lora": "",
    "batch": 1,
    "packs": True,
    "optimizer": "AdamW",
}


def config(**keys: Any) -> str:
    return CONFIG.format(**{**DEFAULTS, **keys})


def read(**keys: Any) -> TrainingSpec:
    return run(config(**keys), "config.py")


@pytest.mark.parametrize(
    ("keys", "facts"),
    [
        pytest.param(
            {},
            {
                "method": "sft",
                "micro_batch_size": 1,
                "gradient_accumulation_steps": 16,
                "sequence_length": 2048,
                "packing": True,
                "attention": "flash",
                "parameter_dtype": "bfloat16",
                "compute_dtype": "float16",
                "loss_scaling": "dynamic",
                "checkpointing": "full",
                "optimizer": "adamw",
                "tuning": None,
            },
            id="FlashAttention brings the weights to bfloat16",
        ),
        pytest.param(
            {"model": "gpt2"},
            {"attention": "sdpa", "parameter_dtype": "float16"},
            id="a model without it is as it is told to be loaded",
        ),
        pytest.param(
            {"lora": LORA},
            {"tuning": "lora", "lora.targets": "all-linear", "frozen_dtype": "float32", "lora.dropout": 0.1},
            id="an adapter's preparation widens what it does not train",
        ),
        pytest.param(
            {"lora": LORA, "quantised": FOUR_BITS},
            {"quantization.bits": 4, "quantization.prepared": True, "quantization.kind": "nf4"},
            id="adapters on 4 bits",
        ),
        pytest.param({"packs": False}, {"packing": None, "sequence_bound": True}, id="samples as they are"),
        pytest.param({"optimizer": "PagedAdamW32bit"}, {"optimizer_paged": True}, id="states that are paged"),
    ],
)
def test_what_a_config_means(keys: dict[str, Any], facts: dict[str, Any]) -> None:
    spec = read(**keys)
    assert spec.family == "xtuner"
    assert spec.architecture == "language_model", spec.unknown_reason
    assert {name: spec.get(name) for name in facts} == facts


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        pytest.param({"kind": "DPO"}, "model.type DPO", id="a loss that is not known"),
        pytest.param({"kind": "LLaVAModel"}, "model.type LLaVAModel", id="a model that sees"),
        pytest.param({"optimizer": "Lion"}, "optim_wrapper.optimizer.type Lion", id="an optimizer that is not known"),
        pytest.param({"model": "org/ours"}, "org/ours", id="a model that is not known"),
    ],
)
def test_what_is_not_known_is_named(keys: dict[str, Any], reason: str) -> None:
    spec = read(**keys)
    assert spec.architecture is None
    assert reason in spec.unknown_reason


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        pytest.param(
            "deepspeed_zero2",
            {"parallelism.zero_stage": 2, "parameter_dtype": "bfloat16", "master_weights": True},
            id="the second stage",
        ),
        pytest.param(
            "deepspeed_zero3_offload",
            {
                "parallelism.zero_stage": 3,
                "parallelism.offload_optimizer": True,
                "parallelism.offload_parameters": True,
            },
            id="the third one in host memory",
        ),
    ],
)
def test_the_files_of_deepspeed_that_the_package_has(tmp_path: Path, name: str, facts: dict[str, Any]) -> None:
    command = f"NPROC_PER_NODE=8 xtuner train config.py --deepspeed {name}\n"
    written(tmp_path, {"config.py": config(), "run.sh": command})
    (spec,) = registry.specs(load(str(tmp_path / "run.sh")))
    assert spec.architecture == "language_model", spec.unknown_reason
    assert {key: spec.get(key) for key in facts} == facts
    assert spec["device_count"] == 8


def test_the_memory_that_the_quick_start_logs(tmp_path: Path) -> None:
    """docs/zh_cn/legacy/get_started/quickstart.rst of XTuner: 13,969 MiB allocated on one card, of InternLM2 7B in 4
    bits with adapters, rows of 2,048 tokens, in January 2024."""
    pins = "transformers==4.37.0\ntorch==2.1.2\npeft==0.7.1\nbitsandbytes==0.42.0\n"
    text = config(model="internlm/internlm2-7b", lora=LORA, quantised=FOUR_BITS)
    written(tmp_path, {"config.py": text, "requirements.txt": pins})
    (spec,) = registry.specs(load(str(tmp_path / "config.py")))
    assert estimate_spec(spec).allocated_bytes == pytest.approx(13_969 * 2**20, rel=0.12)


@pytest.mark.parametrize("folder", ["xtuner/configs/qwen", "own"])
def test_a_config_of_xtuners_own_is_named_without_its_folder(folder: str, tmp_path: Path) -> None:
    command = "NPROC_PER_NODE=2 xtuner train qwen_full_e3 --deepspeed deepspeed_zero2\n"
    files = {f"{folder}/qwen_full_e3.py": config(), "docs/README.md": f"```bash\n{command}```\n"}
    root = written(tmp_path, files)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    subprocess.run(["git", "add", "."], cwd=root, check=True)
    (spec,) = registry.specs(load(str(root / "docs" / "README.md")))
    if folder == "own":
        assert spec.unknown_reason == "no file qwen_full_e3.py in this repository"
    else:
        assert spec["model"] == "Qwen/Qwen2.5-0.5B"
        assert not spec.unknown_reason
