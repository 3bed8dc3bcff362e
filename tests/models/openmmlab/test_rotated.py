"""Detectors of mmrotate: as many parameters as its documents count, and targets of five numbers."""

from __future__ import annotations

import pytest

from memlint.dialects import registry
from memlint.documents.load import load
from memlint.meta.tape import Tape
from memlint.meta.tensor import recording
from memlint.models import record
from memlint.models.openmmlab.detection import Boxes
from memlint.models.openmmlab.rotated import RotatedATSSHead, RotatedRetinaHead

CONFIG = """
model = dict(
    type="RotatedRetinaNet",
    backbone=dict(type="ResNet", depth=50, frozen_stages=1, norm_cfg=dict(type="BN"), norm_eval=True),
    neck=dict(type="FPN", in_channels=[256, 512, 1024, 2048], out_channels=256, start_level=1,
              add_extra_convs="on_input", num_outs=5),
    bbox_head=dict(type="{head}", num_classes=15, in_channels=256, assign_by_circumhbbox=None,
                   anchor_generator=dict(type="RotatedAnchorGenerator", octave_base_scale=4, scales_per_octave={scales},
                                         ratios={ratios}, strides=[8, 16, 32, 64, 128])))
data = dict(samples_per_gpu=2, train=dict(type="DOTADataset", pipeline=[dict(type="RResize", img_scale=(1024, 1024))]))
optimizer = dict(type="SGD", lr=0.0025, momentum=0.9, weight_decay=0.0001)
"""


def tape_of(head: str = "RotatedRetinaHead", scales: int = 3, ratios: str = "[1.0, 0.5, 2.0]") -> tuple[int, Tape]:
    (spec,) = registry.specs(load("config.py", CONFIG.format(head=head, scales=scales, ratios=ratios)))
    assert spec.unknown_reason == ""
    assert spec["image_size"] == [1024, 1024]
    made = record(spec)
    return made.trainable_parameters, made.tape


def test_what_trains_is_what_mmrotate_s_documents_count() -> None:
    """docs/en/useful_tools.md: 36.42 M of a model of 1,024 x 1,024, whose counter adds up what has gradients."""
    assert tape_of()[0] / 1e6 == pytest.approx(36.42, abs=0.005)


def test_a_head_with_one_anchor_of_a_place_has_the_same_layers_and_keeps_less() -> None:
    (many, whole), (one, less) = tape_of(), tape_of("RotatedATSSHead", 1, "[1.0]")
    width, classes, sides = 256, 15, 5
    assert many - one == 8 * (classes + sides) * (9 * width + 1)
    assert less.saved_bytes < whole.saved_bytes


def test_targets_of_turned_boxes_are_five_numbers_and_one_matrix() -> None:
    head = RotatedRetinaHead(15, 256)
    kept = head.targets(1, 1000, Boxes(7, 64, 64))
    assert [tensor.shape for tensor in kept] == [(1000,), (1000,), (1000, 5), (1000, 5)]


@pytest.mark.parametrize(
    ("head", "each"),
    [
        pytest.param(RotatedRetinaHead, 4, id="a matrix of overlaps, each of which takes four bytes"),
        pytest.param(RotatedATSSHead, 20, id="overlaps, and differences of two centres with their squares"),
    ],
)
def test_one_more_object_takes_as_much_of_each_anchor_as_its_assigner_makes(
    head: type[RotatedRetinaHead], each: int
) -> None:
    """Oracle: the temporaries of mmrotate 0.3.4's assigners that are alive at one time, counted in their source."""
    peaks = []
    for boxes in (400, 1400):
        with recording() as tape:
            head(15, 256).targets(1, 10_000, Boxes(boxes, 64, 64))
        alive, peak = 0, 0
        for event in tape.events:
            alive += tape.sizes[event] if event >= 0 else -tape.sizes[~event]
            peak = max(peak, alive)
        peaks.append(peak)
    assert (peaks[1] - peaks[0]) / 1000 / 10_000 == pytest.approx(each, rel=0.01)
