"""Models that recorded programs stand for, in the scripts that train them."""

from __future__ import annotations

import pytest

from memlint.architectures.recorded import known
from memlint.data import programs
from memlint.models import record
from tests.dialects.language_models import run

IMAGES = "python run_image_classification.py --model_name_or_path {} --dataset_name beans --do_train"
PIXELS = "python run_semantic_segmentation.py --model_name_or_path nvidia/mit-b0 --do_train"
SOUND = "python run_audio_classification.py --model_name_or_path {} --do_train --max_length_seconds 1"
VISION = "torchrun --nproc_per_node 2 train.py --model resnet18 -b 8 --lr-warmup-epochs 5"
# Counted by the libraries' own classes, as published with a thousand classes: two classes instead take 998 rows away.
RESNET_50 = 25_557_032 - 998 * 2049


@pytest.mark.parametrize(
    ("command", "parameters"),
    [
        (IMAGES.format("microsoft/resnet-50"), RESNET_50),
        (IMAGES.format("timm/resnet50.a1_in1k"), RESNET_50),
        (PIXELS, 3_723_139),  # 3,752,694 with ADE20K's 150 classes, 257 more for each
        (SOUND.format("facebook/wav2vec2-base") + " --attention_mask False", 94_569_090),
        (SOUND.format("MIT/ast-finetuned-audioset-10-10-0.4593"), 86_190_338),
        (VISION, 11_689_512),
    ],
    ids=["resnet", "a model of timm in transformers", "segformer", "wav2vec2", "spectrograms", "torchvision"],
)
def test_a_script_trains_the_model_that_its_library_makes(command: str, parameters: int) -> None:
    assert record(run(command + "\n", "run.sh")).parameters == parameters


def test_the_features_of_sound_are_frozen_unless_a_command_says_otherwise() -> None:
    command = SOUND.format("facebook/wav2vec2-base") + " --attention_mask False"
    frozen = record(run(command + "\n", "run.sh"))
    trained = record(run(command + " --freeze_feature_encoder False\n", "run.sh"))
    assert trained.trainable_parameters - frozen.trainable_parameters == 4_200_448
    assert trained.tape.saved_bytes > frozen.tape.saved_bytes


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (SOUND.format("facebook/wav2vec2-base"), "attention_mask is not false"),
        (PIXELS + " --dataset_name somebody/own", "how many classes the labels of somebody/own have"),
        (IMAGES.format("microsoft/resnet-50") + " --use_cpu", "use_cpu"),
        (VISION + " --sync-bn", "norms over several devices"),
        (VISION + " --opt lamb", "takes no optimizer 'lamb'"),
    ],
)
def test_what_is_not_known_of_such_a_run_is_said(command: str, reason: str) -> None:
    spec = run(command + "\n", "run.sh")
    assert spec.architecture is None
    assert reason in spec.unknown_reason


def test_every_id_of_the_table_has_a_program_that_ships() -> None:
    for name, task in (("microsoft/resnet-50", "image_classification"), ("nvidia/mit-b0", "semantic_segmentation")):
        found = known(name, task)
        assert found is not None
        assert programs.value(found["program"])
    assert known("microsoft/resnet-50", "audio_classification") is None
    assert known("timm/no-such-model", "image_classification") is None


def test_images_of_timm_s_weights_are_of_the_size_that_their_own_config_has() -> None:
    sides = [(known(f"timm/resnet50.{tag}", "image_classification") or {})["side"] for tag in ("a1_in1k", "a3_in1k")]
    assert sides == [224, 160]


@pytest.mark.parametrize("seconds", ["0", "-1", "x", "1e999", ".nan", "1e18"])
def test_seconds_that_no_sample_has_are_nobodys_default(seconds: str) -> None:
    spec = run(SOUND.format("facebook/wav2vec2-base").replace("seconds 1", f"seconds {seconds}") + "\n", "run.sh")
    assert "max_length_seconds" in spec.unknown_reason
