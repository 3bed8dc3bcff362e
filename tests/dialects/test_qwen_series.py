"""A program that fine-tunes Qwen's models that see, of which many repositories hold a copy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memlint.dialects import registry
from memlint.documents.load import load
from memlint.facts.spec import TrainingSpec

OPTIONS = (
    "--bf16 True --output_dir o --per_device_train_batch_size 2 --gradient_checkpointing True --max_seq_length 1024"
)
LEFT_OUT = "--lora_namespan_exclude \"['lm_head', 'embed_tokens']\""


def switches(tower: bool, merger: bool, language: bool) -> str:
    return f"--freeze_vision_tower {tower} --freeze_merger {merger} --freeze_llm {language}"


def run(tmp_path: Path, options: str, program: str = "src/train/train_sft.py") -> TrainingSpec:
    command = f"torchrun --nproc_per_node 8 {program} --model_id Qwen/Qwen2.5-VL-3B-Instruct {OPTIONS} {options}\n"
    (tmp_path / ".git").mkdir(exist_ok=True)
    (tmp_path / "run.sh").write_text(command, encoding="utf-8")
    (tmp_path / "src" / "train").mkdir(parents=True, exist_ok=True)
    text = (
        "from transformers import HfArgumentParser, Qwen2_5_VLForConditionalGeneration, Trainer\n"
        "(args,) = HfArgumentParser(Ours).parse_args_into_dataclasses()\n"
        "model = Qwen2_5_VLForConditionalGeneration.from_pretrained(args.model_id)\n"
        "Trainer(model=model, args=args)\n"
    )
    (tmp_path / "src" / "train" / "train_sft.py").write_text(text, encoding="utf-8")
    (spec,) = registry.specs(load(str(tmp_path / "run.sh")))
    return spec


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        pytest.param(
            switches(False, False, False),
            {
                "frozen_parts": [],
                "attention": "flash",
                "loss": "fused",
                "parameter_dtype": "bfloat16",
                "checkpointing_reentrant": True,
                "optimizer_implementation": "foreach",
            },
            id="all of it, with Liger's loss",
        ),
        pytest.param(switches(True, True, False), {"frozen_parts": ["vision_tower", "projector"]}, id="the decoder"),
        pytest.param(
            switches(True, False, True), {"frozen_parts": ["vision_tower", "language_model"]}, id="the merger"
        ),
        pytest.param(f"{switches(False, False, False)} --disable_flash_attn2 True", {"attention": "sdpa"}, id="SDPA"),
        pytest.param(f"{switches(False, False, False)} --use_liger False", {"loss": None}, id="without Liger"),
        pytest.param(
            f"{switches(False, False, False)} --image_max_pixels 1003520", {"image_size": 1001}, id="the largest image"
        ),
        pytest.param(
            f"{switches(True, True, True)} --lora_enable True {LEFT_OUT}",
            {
                **{"tuning": "lora", "lora.r": 64, "lora.targets": "all-linear", "lora.unfrozen": None},
                "frozen_parts": ["vision_tower", "projector"],
            },
            id="adapters of the decoder alone",
        ),
        pytest.param(
            f"{switches(False, False, True)} --lora_enable True {LEFT_OUT}",
            {"frozen_parts": ["vision_tower", "projector"], "lora.unfrozen": ["visual"]},
            id="beside a tower that trains in full",
        ),
        pytest.param(
            f"{switches(True, False, True)} --lora_enable True {LEFT_OUT}",
            {"lora.unfrozen": ["merger"]},
            id="beside a merger that does",
        ),
        pytest.param(
            f"{switches(True, True, True)} --lora_enable True --vision_lora True {LEFT_OUT}",
            {"frozen_parts": [], "lora.unfrozen": None, "checkpointing_reentrant": False},
            id="adapters of the tower, too",
        ),
    ],
)
def test_what_its_switches_mean(tmp_path: Path, options: str, facts: dict[str, Any]) -> None:
    spec = run(tmp_path, options)
    assert spec.architecture == "language_model", spec.unknown_reason
    assert {name: spec.get(name) for name in facts} == facts


@pytest.mark.parametrize(
    ("options", "why"),
    [
        pytest.param(switches(True, True, True), "nothing trains", id="all is frozen"),
        pytest.param(f"{switches(True, True, True)} --lora_enable True", "embeddings", id="adapters of embeddings"),
        pytest.param(
            f"{switches(True, True, True)} --lora_enable True {LEFT_OUT} --num_lora_modules 10",
            "the last ones",
            id="few",
        ),
    ],
)
def test_what_is_not_known_is_named(tmp_path: Path, options: str, why: str) -> None:
    assert why in run(tmp_path, options).unknown_reason


def test_its_classifier_is_another_program(tmp_path: Path) -> None:
    assert run(tmp_path, switches(False, False, False), "src/train/train_cls.py").get("frozen_parts") is None
