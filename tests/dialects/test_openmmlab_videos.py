"""What an mmaction2 config says of its samples: clips, frames, their size, and how they are packed."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.dialects import registry
from memlint.dialects.openmmlab_videos import BOXES, BOXES_BETWEEN, REPEATS, SAMPLED, SHAPE
from memlint.documents.load import load
from memlint.facts.spec import ASSUMED, TrainingSpec
from memlint.models import record

# mmaction2 0.24.1, slowonly_r50_4x16x1_256e_kinetics400_rgb: 32,454,096 with 400 classes
SLOW_ONLY_R50 = 32454096 - 2048 * 400 - 400

SAMPLE = "dict(type='SampleFrames', clip_len=8, frame_interval=2, num_clips=2)"
SIZED = "dict(type='Resize', scale=(96, 64), keep_ratio=False)"
RECOGNIZER = "dict(type='Recognizer3D', backbone=dict(type='ResNet3d', depth=18), cls_head=dict(type='I3DHead'))"


def run_of(*transforms: str, model: str = RECOGNIZER, dataset: str = "type='VideoDataset'") -> TrainingSpec:
    text = f"""
model = {model}
train_pipeline = [{", ".join(transforms)}]
train_dataloader = dict(batch_size=2, dataset=dict({dataset}, pipeline=train_pipeline))
optim_wrapper = dict(optimizer=dict(type='SGD', lr=0.1))
"""
    (spec,) = registry.specs(load("config.py", text))
    return spec


@pytest.mark.parametrize(
    ("form", "shape"),
    [
        pytest.param("'NCTHW'", [2, 3, 8], id="clips, with time"),
        pytest.param("'NCHW'", [16, 3], id="frames of all clips"),
        pytest.param("'NCHW_Flow'", [2, 16], id="flow in two directions"),
    ],
)
def test_a_sample_is_packed_as_its_pipeline_says(form: str, shape: list[int]) -> None:
    spec = run_of(SAMPLE, SIZED, f"dict(type='FormatShape', input_format={form})")
    assert spec[SHAPE] == shape
    assert spec["image_size"] == [64, 96]
    assert spec.architecture == "openmmlab"


def test_heatmaps_of_poses_have_as_many_channels_as_the_backbone_takes() -> None:
    model = RECOGNIZER.replace("depth=18", "depth=18, in_channels=17")
    spec = run_of(SAMPLE, SIZED, "dict(type='FormatShape', input_format='NCTHW_Heatmap')", model=model)
    assert spec[SHAPE] == [2, 17, 8]


def test_a_sample_that_is_repeated_is_several() -> None:
    text = "type='RepeatAugDataset', num_repeats=2"
    spec = run_of(SAMPLE, SIZED, "dict(type='FormatShape', input_format='NCTHW')", dataset=text)
    assert spec[REPEATS] == 2


def test_the_last_size_counts_and_one_that_keeps_the_ratio_leaves_it_open() -> None:
    packed = "dict(type='FormatShape', input_format='NCTHW')"
    crop = "dict(type='RandomCrop', size=112)"
    assert run_of(SAMPLE, SIZED, crop, packed)["image_size"] == [112, 112]
    assert "image_size" not in run_of(SAMPLE, SIZED, "dict(type='Resize', scale=(-1, 256))", packed)


@pytest.mark.parametrize(
    ("transforms", "reason"),
    [
        pytest.param((SAMPLE, SIZED), "how many frames are packed how", id="packed nowhere"),
        pytest.param(
            (SAMPLE, "dict(type='FormatShape', input_format='NCTHW')"), "states no size of frames", id="no size"
        ),
    ],
)
def test_what_a_pipeline_leaves_open_is_named(transforms: tuple[Any, ...], reason: str) -> None:
    spec = run_of(*transforms)
    assert spec.architecture is None
    assert reason in (spec.unknown_reason or "")


def test_the_batch_of_mmaction2_before_1_0_is_known_by_its_key() -> None:
    text = f"""
model = {RECOGNIZER}
data = dict(videos_per_gpu=6, train=dict(type='VideoDataset', pipeline=[
    {SAMPLE}, {SIZED}, dict(type='FormatShape', input_format='NCTHW')]))
optimizer = dict(type='SGD', lr=0.1)
"""
    (spec,) = registry.specs(load("config.py", text))
    assert spec["micro_batch_size"] == 6
    assert spec.architecture == "openmmlab"


AVA = (
    "dict(type='FastRCNN', backbone=dict(type='mmaction.ResNet3dSlowOnly', depth=50),"
    " roi_head=dict(type='AVARoIHead', bbox_roi_extractor=dict(type='SingleRoIExtractor3D', output_size=8),"
    " bbox_head=dict(type='BBoxHeadAVA', in_channels=2048, num_classes=81, dropout_ratio=0.5)))"
)
OF_AVA = (
    "dict(type='SampleAVAFrames', clip_len=4, frame_interval=16)",
    "dict(type='RandomCrop', size=64)",
    "dict(type='FormatShape', input_format='NCTHW', collapse=True)",
)


def test_boxes_of_actions_are_an_assumption_up_to_what_is_sampled() -> None:
    spec = run_of(*OF_AVA, model=AVA)
    assert spec[SHAPE] == [3, 4]
    fact, between = spec.fact(BOXES), spec[BOXES_BETWEEN]
    assert fact is not None
    assert fact.origin == ASSUMED
    assert between[0] < fact.value < between[1] == SAMPLED
    made = record(spec)
    assert made.parameters == SLOW_ONLY_R50 + 2048 * 81 + 81


def test_more_boxes_take_more_memory_by_what_is_taken_out_for_them() -> None:
    """Of a box in each of two clips 2,048 numbers at 8 x 8 places: with some dropped and the mask of it, which is
    bytes, and their mean over the frames."""
    saved = [record(run_of(*OF_AVA, model=AVA).with_facts(**{str(BOXES): n})).tape.saved_bytes for n in (5, 6)]
    assert saved[1] - saved[0] == pytest.approx(2 * 2048 * 64 * (4 + 1 + 4), rel=0.05)


def test_fast_rcnn_with_another_head_is_a_detector_of_images() -> None:
    spec = run_of(*OF_AVA, model=AVA.replace("AVARoIHead", "StandardRoIHead"))
    assert spec.architecture is None
    assert spec.unknown_reason == "train_pipeline states no scale (img_scale) to fit images into"


def test_skeletons_have_the_joints_of_their_graph_and_no_size() -> None:
    model = (
        "dict(type='RecognizerGCN', backbone=dict(type='STGCN', graph_cfg=dict(layout='nturgb+d', mode='spatial')),"
        " cls_head=dict(type='GCNHead', num_classes=60, in_channels=256))"
    )
    sampled = "dict(type='UniformSampleFrames', clip_len=100)"
    spec = run_of(sampled, "dict(type='FormatGCNInput', num_person=2)", model=model)
    assert spec[SHAPE] == [1, 2, 100, 25, 3]
    assert spec.architecture == "openmmlab"
    assert "image_size" not in spec
