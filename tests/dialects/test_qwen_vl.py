"""Qwen-VL's own fine-tuning program, of which many repositories hold a copy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memlint.dialects import registry
from memlint.documents.load import load
from memlint.estimates import estimate_spec
from memlint.facts.spec import TrainingSpec

PROGRAM = "torchrun --nproc_per_node=8 qwenvl/train/train_qwen.py"
OPTIONS = "--bf16 --output_dir o --per_device_train_batch_size 2 --gradient_checkpointing True"
ALL = "--tune_mm_vision True --tune_mm_mlp True --tune_mm_llm True"
LANGUAGE = "--tune_mm_vision False --tune_mm_mlp True --tune_mm_llm True"


def run(
    tmp_path: Path, options: str, model: str = "Qwen/Qwen2.5-VL-3B-Instruct", program: str = PROGRAM
) -> TrainingSpec:
    (tmp_path / "run.sh").write_text(f"{program} --model_name_or_path {model} {OPTIONS} {options}\n", encoding="utf-8")
    (spec,) = registry.specs(load(str(tmp_path / "run.sh")))
    return spec


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        pytest.param(
            LANGUAGE,
            {
                "frozen_parts": ["vision_tower"],
                "sequence_length": 512,
                "image_size": 672,
                "images_per_sample": 1,
                "attention": "flash",
                "parameter_dtype": "bfloat16",
                "optimizer_implementation": "foreach",
                "padding_free": None,
            },
            id="the language model and what joins the tower to it",
        ),
        pytest.param(ALL, {"frozen_parts": []}, id="all of it"),
        pytest.param(
            "--tune_mm_llm True", {"frozen_parts": ["vision_tower", "projector"]}, id="what is not said is off"
        ),
        pytest.param(
            "--tune_mm_mlp True", {"frozen_parts": ["vision_tower", "embeddings", "layers"]}, id="the projector alone"
        ),
        pytest.param(
            f"{LANGUAGE} --model_max_length 4096 --max_pixels 50176",
            {"sequence_length": 4096, "image_size": 224},
            id="lengths and pixels that are stated",
        ),
        pytest.param(
            f"{LANGUAGE} --data_flatten True",
            {"padding_free": True, "sequence_bound": True},
            id="samples of a micro batch in one row",
        ),
        pytest.param(
            f"{LANGUAGE} --lora_enable True --lora_r 16",
            {
                "tuning": "lora",
                "lora.r": 16,
                "lora.alpha": 128,
                "lora.targets": ["q_proj", "k_proj", "v_proj", "o_proj"],
                "frozen_parts": None,
            },
            id="adapters, beside which nothing trains",
        ),
    ],
)
def test_what_its_options_mean(tmp_path: Path, options: str, facts: dict[str, Any]) -> None:
    spec = run(tmp_path, options)
    assert spec.architecture == "language_model", spec.unknown_reason
    assert {name: spec.get(name) for name in facts} == facts


def test_switches_that_are_all_off_train_nothing(tmp_path: Path) -> None:
    assert "nothing trains" in run(tmp_path, "--tune_mm_llm False --tune_mm_mlp False").unknown_reason


@pytest.mark.parametrize(
    ("model", "trains"),
    [
        pytest.param("Qwen/Qwen2.5-VL-7B-Instruct", 152_064 * 3584, id="a head of its own trains whatever is said"),
        pytest.param("Qwen/Qwen2.5-VL-3B-Instruct", 0, id="one that is the embeddings does not"),
    ],
)
def test_what_trains_beside_the_projector(tmp_path: Path, model: str, trains: int) -> None:
    merger, whole = (
        estimate_spec(run(tmp_path, options, model)).trainable_parameters
        for options in ("--tune_mm_mlp True", f"{LANGUAGE}")
    )
    assert merger is not None
    assert whole is not None
    assert trains < merger < trains + 60_000_000 < whole


def test_another_program_of_that_name_is_not_that_one(tmp_path: Path) -> None:
    spec = run(tmp_path, "--max_length 64", "Qwen/Qwen2.5-0.5B", "python train_qwen.py")
    assert spec.get("frozen_parts") is None
    assert spec["sequence_length"] == 64
