"""open_clip's main.py: which runs have an estimate, and why the others have none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memlint.dialects import registry
from memlint.documents.load import load
from memlint.estimates import estimate_spec
from memlint.facts.spec import TrainingSpec

START = "python -m open_clip_train.main --train-data shards.tar --train-num-samples 1000 --batch-size 64 "


def run(tmp_path: Path, words: str, start: str = START) -> TrainingSpec:
    (tmp_path / "run.sh").write_text(f"{start}{words}\n", encoding="utf-8")
    (spec,) = registry.specs(load(str(tmp_path / "run.sh")))
    return spec


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        pytest.param("--model ViT-B-32", {"compute_dtype": "float16", "autocast": True}, id="amp is float16"),
        pytest.param("", {"model": "RN50", "image_size": [224, 224]}, id="a ResNet where no model is named"),
        pytest.param("--model ViT-B/32 --precision pure_bf16", {"parameter_dtype": "bfloat16"}, id="all in 16 bits"),
        pytest.param("--model ViT-B-32 --lock-image", {"frozen_parts": ["visual"]}, id="a tower that does not train"),
        pytest.param("--model ViT-B-32 --force-image-size 224", {"image_size": [224, 224]}, id="its own size, forced"),
        pytest.param("--model ViT-B-32 --grad-checkpointing", {"checkpointing": "full"}, id="checkpointed"),
        pytest.param(
            "--model ViT-B-32 --accum-freq 4", {"gradient_accumulation_steps": 4}, id="batches that run twice"
        ),
    ],
)
def test_a_model_whose_program_ships_has_an_estimate(tmp_path: Path, words: str, facts: dict[str, Any]) -> None:
    spec = run(tmp_path, words)
    assert (spec.architecture, spec.unknown_reason) == ("contrastive", "")
    assert {name: spec.get(name) for name in facts} == facts  # type: ignore[arg-type]
    assert estimate_spec(spec).device_bytes > 1 << 30


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        pytest.param("--model ViT-B-32 --siglip", "--siglip: the loss of each pair", id="another loss"),
        pytest.param("--model ViT-B-32 --precision bf16", "norms in fp32", id="weights of two widths"),
        pytest.param("--model ViT-B-32 --force-image-size 384", "images of another size", id="other positions"),
        pytest.param("--model ViT-B-32 --opt timm/lamb", "optimizer", id="an optimizer of timm's"),
        pytest.param("--model ViT-B-32 --force-patch-dropout 0.5", "--force-patch-dropout", id="fewer patches"),
        pytest.param("--model coca_ViT-L-14", "made by the code of open_clip", id="a model without a program"),
        pytest.param("--model hf-hub:a/b", "made by the code of open_clip", id="a model of the hub"),
        pytest.param("--model ../../etc/passwd", "made by the code of open_clip", id="a path"),
    ],
)
def test_what_is_not_known_is_said_by_its_option(tmp_path: Path, words: str, reason: str) -> None:
    spec = run(tmp_path, words)
    assert spec.architecture is None
    assert reason in spec.unknown_reason


def test_logits_of_all_devices_are_squared_unless_the_loss_is_local(tmp_path: Path) -> None:
    start = START.replace("python", "torchrun --nproc_per_node 8").replace("64", "1024")
    every, own = (estimate_spec(run(tmp_path, f"--model ViT-B-32 {flag}", start)) for flag in ("", "--local-loss"))
    rows = 8 * 1024
    # In float16, and as two logarithms of a softmax in float32, one for each direction; own rows are an eighth of them.
    more = (2 + 2 * 4) * rows * rows - 2 * (2 + 4) * rows * 1024
    gradient = 4 * rows * rows  # of one of the two, while the backward pass begins
    assert more < every.phases["backward"] - own.phases["backward"] < more + gradient


# Runs of its docs/PRETRAINED.md, with the local loss that it speaks of: they had cards of 40 GB.
@pytest.mark.parametrize(
    ("model", "rows", "devices"), [("ViT-B-32", 256, 128), ("ViT-B-32", 416, 112), ("ViT-B-16", 192, 176)]
)
def test_published_runs_fit_the_cards_that_they_had(tmp_path: Path, model: str, rows: int, devices: int) -> None:
    start = START.replace("python", f"torchrun --nnodes {devices // 4} --nproc_per_node 4").replace("64", str(rows))
    spec = run(tmp_path, f"--local-loss --gather-with-grad --model {model}", start)
    assert spec["world_size"] == devices
    assert estimate_spec(spec, "a100-40gb").device_interval.high_bytes < 40 * 10**9
