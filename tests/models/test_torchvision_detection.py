"""torchvision's R-CNNs: parameters as its weights publish them, memory as its own modules take it, and what
references/detection/train.py says of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from memlint import models
from memlint.dialects import registry
from memlint.documents.load import load
from memlint.facts.spec import TrainingSpec
from memlint.models import torchvision_detection
from tests.differential.training import walk

PROGRAM = "references/detection/train.py"
TRAINED = "--weights-backbone ResNet50_Weights.IMAGENET1K_V1"
MIB = 2**20


def run_of(options: str, program: str = PROGRAM) -> TrainingSpec:
    (spec,) = registry.specs(load("run.sh", f"python {program} {options}\n"))
    assert spec.family == "torchvision-detection"
    return spec


@pytest.mark.parametrize(
    ("model", "dataset", "parameters"),
    [  # torchvision 0.28, ``models/detection/*_rcnn.py``: num_params of the COCO_V1 weights
        ("fasterrcnn_resnet50_fpn", "coco", 41_755_286),
        ("maskrcnn_resnet50_fpn", "coco", 44_401_393),
        ("keypointrcnn_resnet50_fpn", "coco_kp", 59_137_258),
    ],
)
def test_a_detector_has_the_parameters_of_the_published_weights(model: str, dataset: str, parameters: int) -> None:
    spec = run_of(f"--model {model} --dataset {dataset} {TRAINED}")
    assert models.record(spec).parameters == parameters


# The library's own forward pass on the host (torchvision 0.28, torch 2.13), storage by storage: MiB that are alive at
# its end, and the most of the step, beside the weights. Two photos of 480 x 640, brought to 320 x 448, with 93 boxes
# each, 64 regions of each, of which 16 have an object at the most; regions are cut out by a stand-in that keeps and
# returns what torchvision's kernel does, and no box suppresses another.
MASKS = 2 * 93 * 480 * 640 / MIB  # that come with the photos, and are the loader's


@pytest.mark.parametrize(
    ("model", "dataset", "held", "peak"),
    [
        pytest.param("fasterrcnn_resnet50_fpn", "coco", 215.0, 342.9, id="Faster R-CNN"),
        pytest.param("maskrcnn_resnet50_fpn", "coco", 324.8 - MASKS, 421.6, id="Mask R-CNN"),
        pytest.param("keypointrcnn_resnet50_fpn", "coco_kp", 319.6, 395.7, id="Keypoint R-CNN"),
    ],
)
def test_a_step_takes_what_the_library_s_own_takes(
    model: str, dataset: str, held: float, peak: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torchvision_detection, "REGIONS", 64)
    monkeypatch.setattr(torchvision_detection, "POSITIVE", 16)
    spec = run_of(f"--model {model} --dataset {dataset} {TRAINED}")
    spec = spec.with_facts(**{"image_size": [320, 448], "hyperparameters.boxes": 93})
    phases, alive = walk(models.record(spec).tape)
    assert (alive - phases["setup"]) / MIB == pytest.approx(held, rel=0.02)
    most = max(phases["forward"], phases["backward"]) - phases["setup"]
    assert most / MIB == pytest.approx(peak, rel=0.05)


def test_a_backbone_that_starts_from_nothing_trains_whole() -> None:
    """Of both its norms train, or are buffers."""
    trained, own = (run_of(f"--model fasterrcnn_resnet50_fpn {options}") for options in (TRAINED, ""))
    assert (trained["hyperparameters.trained_layers"], own["hyperparameters.trained_layers"]) == (3, 5)
    frozen, free = (models.record(spec) for spec in (trained, own))
    assert frozen.trainable_parameters < frozen.parameters
    assert free.trainable_parameters == free.parameters
    assert free.parameters - frozen.parameters == 53_120  # weights and biases of a ResNet-50's norms
    assert free.tape.saved_bytes > frozen.tape.saved_bytes


def test_one_part_more_keeps_more() -> None:
    saved = [
        models.saved_bytes(run_of(f"--model fasterrcnn_resnet50_fpn {TRAINED} --trainable-backbone-layers {layers}"))
        for layers in (0, 2, 3, 4, 5)
    ]
    assert saved == sorted(saved)
    assert len(set(saved)) == len(saved)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        pytest.param("--model fcos_resnet50_fpn --rpn-score-thresh 0.1", "fcos_resnet50_fpn is a detector", id="a net"),
        pytest.param("--model maskrcnn_resnet50_fpn --dataset voc", "voc is a data set", id="data of one's own"),
        pytest.param(
            "--model maskrcnn_resnet50_fpn --data-augmentation lsj", "lsj is a way to change images", id="other sizes"
        ),
    ],
)
def test_what_is_not_known_is_named(options: str, reason: str) -> None:
    spec = run_of(options)
    assert spec.architecture is None
    assert (spec.unknown_reason or "").startswith(reason)


def pinned(folder: Path, release: str) -> TrainingSpec:
    (folder / "requirements.txt").write_text(f"torchvision=={release}\n")
    script = folder / "run.sh"
    script.write_text(f"python {PROGRAM} --model maskrcnn_resnet50_fpn\n")
    (spec,) = registry.specs(load(str(script), script.read_text()))
    return spec


@pytest.mark.parametrize(
    ("release", "layers"),
    [pytest.param("0.12.0", 3, id="before weights were named"), pytest.param("0.13.0", 5, id="since")],
)
def test_a_release_before_0_13_starts_from_a_trained_backbone(release: str, layers: int, tmp_path: Path) -> None:
    assert pinned(tmp_path, release)["hyperparameters.trained_layers"] == layers


def test_frozen_norms_of_torchscript_are_not_known(tmp_path: Path) -> None:
    spec = pinned(tmp_path, "0.3.0")
    assert spec.architecture is None
    assert "TorchScript" in (spec.unknown_reason or "")


def test_a_classifier_s_command_is_not_taken() -> None:
    (spec,) = registry.specs(load("run.sh", "python references/classification/train.py --model resnet50 -b 64\n"))
    assert spec.family == "torchvision"
