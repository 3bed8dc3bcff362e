"""Family cogvideo: options of finetune/train.py of THUDM's CogVideo (at e519ece)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memlint.check import check_paths
from memlint.dialects import registry
from memlint.documents.load import load
from memlint.facts.spec import TrainingSpec
from memlint.settings import Settings
from memlint.tape.estimate import Estimate

NAMED = "accelerate launch train.py --model_name cogvideox-t2v --model_type t2v --data_root d"
SIZED = f"{NAMED} --model_path THUDM/CogVideoX-2b --train_resolution 49x480x720"
LORA = f"{SIZED} --training_type lora"
WEIGHTS = 1_693_783_872  # of CogVideoX 2B's transformer


def read(command: str) -> TrainingSpec:
    (spec,) = registry.specs(load("train.sh", command + "\n"))
    assert spec.family == "cogvideo"
    return spec


@pytest.mark.parametrize(
    ("command", "facts"),
    [
        pytest.param(
            LORA,
            {"micro_batch_size": 1, "frames": 49, "image_size": [480, 720], "tuning": "lora", "lora.r": 128,
             "lora.targets": ["to_q", "to_k", "to_v", "to_out.0"], "compute_dtype": "float32", "optimizer": "adamw",
             "parameter_dtype": "float32", "checkpointing": "full"},
            id="what it takes where a command says nothing",
        ),
        pytest.param(
            f"{SIZED} --training_type sft --mixed_precision bf16",
            {"tuning": "full", "lora.r": None, "compute_dtype": "bfloat16", "parameter_dtype": "float32"},
            id="weights are in float32 under autocast, too",
        ),
        pytest.param(f"{LORA} --gradient_checkpointing False", {"checkpointing": "full"}, id="any word is true"),
        pytest.param(f"{LORA} --optimizer lion", {"optimizer": "adamw"}, id="an optimizer that it does not have"),
        pytest.param(f"{LORA} --do_validation false", {"tuning": "lora"}, id="nothing is generated"),
    ],
)  # fmt: skip
def test_options_set_facts(command: str, facts: dict[str, Any]) -> None:
    spec = read(command)
    assert (spec.architecture, spec.unknown_reason) == ("diffusion", "")
    assert {name: spec.get(name) for name in facts} == facts


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        pytest.param("--model_type i2v", "--model_type i2v", id="first images"),
        pytest.param("--do_validation true", "--do_validation true", id="videos are generated"),
        pytest.param("--optimizer came", "--optimizer came", id="an optimizer of another package"),
        pytest.param("--train_resolution 48x480x720", "not 48", id="frames that it refuses"),
        pytest.param("--train_resolution 480x720", "--train_resolution 480x720", id="no frames"),
        pytest.param("--model_path THUDM/CogVideoX-2b-x", "CogVideoX-2b-x", id="a pipeline that is not known"),
    ],
)
def test_what_is_not_known_is_named(options: str, reason: str) -> None:
    spec = read(f"{LORA} {options}")
    assert spec.architecture is None
    assert reason in spec.unknown_reason


def estimate(tmp_path: Path, command: str) -> Estimate:
    path = tmp_path / "train.sh"
    path.write_text(command + "\n", encoding="utf-8")
    (run,) = check_paths([str(path)], Settings()).runs
    assert run.estimate is not None, run.findings
    return run.estimate


def test_frozen_weights_are_held_in_float32_whatever_is_computed_in(tmp_path: Path) -> None:
    found = estimate(tmp_path, f"{LORA} --mixed_precision bf16 --rank 64")
    adapters = 30 * 4 * 2 * 1920 * 64  # of 30 layers, four matrices each
    parts = {part.name: part.size_bytes for part in found.components}
    assert parts["parameters"] == pytest.approx(4 * (WEIGHTS + adapters), rel=1e-4)


def test_deepspeed_casts_them(tmp_path: Path) -> None:
    (tmp_path / "zero.json").write_text('{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}\n')
    command = f"{SIZED} --training_type sft --mixed_precision bf16"
    launched = command.replace(
        "accelerate launch", "accelerate launch --use_deepspeed --deepspeed_config_file zero.json"
    )
    found = estimate(tmp_path, launched.replace("launch", "launch --num_processes 2"))
    parts = {part.name: part.size_bytes for part in found.components}
    assert parts["parameters"] == pytest.approx(2 * WEIGHTS, rel=1e-4)


def test_a_first_latent_is_repeated_where_patches_are_of_two_in_time(tmp_path: Path) -> None:
    """81 frames are 21 latents, which CogVideoX 1.5 makes 22 of; 85 are 22, and no 8 and one."""
    named = f"{NAMED} --model_path THUDM/CogVideoX1.5-5B --training_type lora --mixed_precision bf16"
    sizes = [
        estimate(tmp_path, f"{named} --train_resolution {frames}x480x720").allocated_bytes for frames in (73, 81, 89)
    ]
    assert sizes[1] - sizes[0] == pytest.approx(sizes[2] - sizes[1], rel=0.05)
