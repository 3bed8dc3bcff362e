"""Runs whose inputs have one size, which the model's config.json says."""

from __future__ import annotations

import pytest

from memlint.dialects import registry
from memlint.documents.load import load
from memlint.models import record

RUNS = {
    "whisper takes thirty seconds of sound": (
        "python run_speech_recognition_seq2seq.py --model_name_or_path openai/whisper-tiny",
        "seq2seq_lm",
        37760640,
    ),
    "a ViT takes images of one size": (
        "python run_image_classification.py --model_name_or_path google/vit-base-patch16-224-in21k",
        "image_classification",
        85800194,
    ),
}


@pytest.mark.parametrize(("command", "kind", "parameters"), RUNS.values(), ids=RUNS)
def test_no_length_need_be_stated(command: str, kind: str, parameters: int) -> None:
    [spec] = registry.specs(load("run.sh", f"{command} --do_train --per_device_train_batch_size 2 --output_dir out\n"))
    assert spec.get("model_class") == kind
    assert record(spec).parameters == parameters


def test_a_dinov2_is_given_what_its_processor_cuts_out() -> None:
    command = "python run_image_classification.py --model_name_or_path facebook/dinov2-base --output_dir out"
    [spec] = registry.specs(load("run.sh", f"{command} --do_train --per_device_train_batch_size 2\n"))
    assert "image processor" in (spec.unknown_reason or "")
