"""mmdet's heads over every place of a map, against its own (mmdet 3.3, torch 2.13, under fake tensors): its focal loss
keeps logits and labels, 40 places of a map (of FCOS: of all) have an object, and the assigner over anchors, which looks
at values, gives targets as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memlint.check import check_paths
from memlint.dialects import registry
from memlint.documents.load import load
from memlint.meta.amp import autocast
from memlint.meta.tape import Tape
from memlint.meta.tensor import empty, float16, float32, recording
from memlint.models import record
from memlint.models.openmmlab.dense_heads import FCOSHead, nearest
from memlint.models.openmmlab.detection import AnchorHead, Boxes, RetinaHead, SingleRoIExtractor
from memlint.settings import Settings
from tests.differential.training import walk

ANCHORS = {
    "type": "AnchorGenerator",
    "ratios": [1.0],
    "octave_base_scale": 8,
    "scales_per_octave": 1,
    "strides": [8, 16, 32, 64, 128],
}
OVER_ANCHORS = {"anchor_generator": ANCHORS}
OVER_PLACES = {"strides": [8, 16, 32, 64, 128]}


def config(kind: str, width: int, depth: int, inputs: list[int], extra: str, size: str, **head: Any) -> str:
    options = {"num_classes": 80, "in_channels": width, "feat_channels": width, **head}
    return f"""
model = dict(
    type="{kind}",
    backbone=dict(type="ResNet", depth={depth}, frozen_stages=1, norm_cfg=dict(type="BN"), norm_eval=True),
    neck=dict(type="FPN", in_channels={inputs}, out_channels={width}, start_level=1,
              add_extra_convs="{extra}", num_outs=5, relu_before_extra_convs=True),
    bbox_head=dict(type="{kind}Head", **{options!r}))
train_dataloader = dict(batch_size=2, dataset=dict(type="CocoDataset", pipeline=[dict(type="Resize", scale={size})]))
optim_wrapper = dict(type="OptimWrapper", optimizer=dict(type="SGD", lr=0.01, momentum=0.9, weight_decay=0.0001))
"""


def small(kind: str, boxes: int, dtype: str, **head: Any) -> Any:
    (spec,) = registry.specs(
        load("config.py", config(kind, 64, 18, [64, 128, 256, 512], "on_output", "(384, 256)", **head))
    )
    assert spec.unknown_reason == ""
    return spec.with_facts({"hyperparameters.boxes": boxes, "compute_dtype": dtype})


@pytest.mark.parametrize(
    ("kind", "head", "boxes", "dtype", "truth"),
    [  # parameters, held, saved, and the most of the forward and of the backward pass
        ("FCOS", OVER_PLACES, 20, "float32", (11_763_674, 144_200_192, 48_268_656, 147_125_248, 161_725_440)),
        (
            "FCOS",
            {**OVER_PLACES, "norm_on_bbox": True},
            20,
            "float16",
            (11_763_674, 156_412_928, 60_481_168, 158_558_720, 157_786_112),
        ),
        ("FCOS", OVER_PLACES, 400, "float32", (11_763_674, 144_218_624, 48_268_656, 184_397_312, 161_743_872)),
        (
            "FCOS",
            {**OVER_PLACES, "center_sampling": True, "norm_on_bbox": True, "centerness_on_reg": True},
            400,
            "float32",
            (11_763_674, 144_218_624, 48_268_656, 246_663_168, 161_743_872),
        ),
        ("ATSS", OVER_ANCHORS, 20, "float32", (11_763_674, 144_211_456, 48_245_396, 147_565_056, 161_729_024)),
        ("ATSS", OVER_ANCHORS, 20, "float16", (11_763_674, 156_424_192, 60_457_908, 158_792_192, 157_894_656)),
        ("GFL", OVER_ANCHORS, 20, "float32", (11_800_025, 150_961_152, 54_683_532, 153_762_816, 162_162_688)),
        ("GFL", OVER_ANCHORS, 20, "float16", (11_800_025, 163_508_224, 67_228_678, 166_479_360, 165_846_016)),
    ],
    ids=[
        *("FCOS", "FCOS, autocast", "FCOS, many objects", "FCOS, near the centre"),
        *("ATSS", "ATSS, autocast", "GFL", "GFL, autocast"),
    ],
)
def test_a_head_takes_what_the_library_s_own_takes(
    kind: str, head: dict[str, Any], boxes: int, dtype: str, truth: tuple[int, ...]
) -> None:
    """What is left is of the places that have an object, of which the model keeps less than the library."""
    made = record(small(kind, boxes, dtype, **head))
    phases, held = walk(made.tape)
    parameters, kept, saved, forward, backward = truth
    assert made.parameters == parameters
    assert made.tape.saved_bytes == pytest.approx(saved, rel=4e-3)
    assert held == pytest.approx(kept, rel=2e-3)
    assert phases["forward"] == pytest.approx(forward, rel=5e-3)
    assert phases["backward"] == pytest.approx(backward, rel=7e-3)


@pytest.mark.parametrize(
    ("loss", "beside"),
    [
        pytest.param("FocalLoss", 4, id="one weight of an anchor, as mmdet's focal loss takes it"),
        pytest.param("CrossEntropyLoss", 2 * 80 * 4, id="labels and weights of each class, by cross entropy"),
    ],
)
def test_a_loss_over_anchors_keeps_its_logits_and(loss: str, beside: int) -> None:
    """mmdet 2.0 to 3.3, ``losses/focal_loss.py`` (``weight.view(-1, 1)``) and ``cross_entropy_loss.py``."""
    head = AnchorHead(80, 256, anchor_generator=ANCHORS, loss_cls={"type": loss, "use_sigmoid": True})
    with recording() as tape:
        scores = empty((2, 80, 20, 15))
        scores.requires_grad = True
        loss_of_all = head._of_scores(scores)
        alive = sum(tape.sizes[event] if event >= 0 else -tape.sizes[~event] for event in tape.events)
    assert loss_of_all.requires_grad
    assert alive == pytest.approx(600 * (2 * 80 * 4 + beside), rel=1e-3)  # scores as they came, and in rows


def test_one_more_object_takes_what_its_distances_take_of_each_anchor() -> None:
    """Overlaps, differences of two centres, and their squares: oracle are the temporaries of mmdet 3.3's ATSSAssigner
    that are alive at one time, counted in its source, and fewer than those of overlaps, of which eight are."""
    peaks = []
    for boxes in (400, 1400):
        with recording() as tape:
            nearest(boxes, 10_000)
        peaks.append(most(tape))
    assert (peaks[1] - peaks[0]) / 1000 / 10_000 == pytest.approx(9 * 4, rel=0.01)


def most(tape: Tape) -> int:
    """The bytes that are alive at one time."""
    alive, peak = 0, 0
    for event in tape.events:
        alive += tape.sizes[event] if event >= 0 else -tape.sizes[~event]
        peak = max(peak, alive)
    return peak


@pytest.mark.parametrize(
    ("kind", "depth", "head", "published"),
    [  # GB of torch's allocator on each of eight V100s (mmdet 2, ``configs/fcos`` and ``configs/atss``)
        ("FCOS", 50, OVER_PLACES, 3.6),
        ("FCOS", 101, OVER_PLACES, 5.5),
        ("ATSS", 50, OVER_ANCHORS, 3.7),
        ("ATSS", 101, OVER_ANCHORS, 5.6),
    ],
)
def test_a_detector_takes_what_was_published(
    kind: str, depth: int, head: dict[str, Any], published: float, tmp_path: Path
) -> None:
    text = config(kind, 256, depth, [256, 512, 1024, 2048], "on_output", "(1333, 800)", **head)
    loader, optimizer = "train_dataloader = dict(batch_size=2, dataset=", 'optim_wrapper = dict(type="OptimWrapper", '
    text = text.replace(loader, "data = dict(samples_per_gpu=2, train=")
    text = text.replace(f"{optimizer}optimizer=dict(", "optimizer = (dict(")
    (tmp_path / "det.py").write_text(text, encoding="utf-8")
    (tmp_path / "requirements.txt").write_text("torch==1.4.0\n", encoding="utf-8")
    (found,) = check_paths([str(tmp_path / "det.py")], Settings(gpu="v100-32gb x8")).runs
    assert found.estimate is not None
    assert found.estimate.allocated_bytes / 2**30 == pytest.approx(published, rel=0.04)


@pytest.mark.parametrize("head", [RetinaHead, FCOSHead], ids=["over anchors", "over every place"])
def test_losses_under_fp16_of_mmcv_s_hooks_are_in_full(head: Any) -> None:
    """``force_fp32`` (mmcv 1.7, ``runner/fp16_utils.py``): what a head says is there in both, and its losses know no
    autocast; mmengine's, which have none of it, are as autocast makes them."""
    kept, kinds = [], []
    for in_full in (False, True):
        with recording() as tape, autocast(float16):
            made = head(20, 64, feat_channels=64, loss_cls={"type": "FocalLoss", "use_sigmoid": True})
            maps = [empty((2, 64, side, side)) for side in (32, 16, 8, 4, 2)]
            losses, scores = made.loss(maps, Boxes(5, 256, 256, in_full))
            kept.append(sum(tape.sizes[at] if at >= 0 else -tape.sizes[~at] for at in tape.events))
        kinds.append({one.dtype for one in losses})
    said = sum(one.numel for one in scores)
    assert kinds[1] == {float32}
    assert kept[1] - kept[0] >= 2 * said


def test_regions_under_fp16_of_mmcv_s_hooks_are_taken_in_full() -> None:
    """Maps are cast for the moment, and regions back (``force_fp32`` with ``out_fp16``)."""
    layer = {"type": "RoIAlign", "output_size": 7}
    extractor = SingleRoIExtractor(layer, 64, [4, 8])
    peaks = []
    for in_full in (False, True):
        with recording() as tape, autocast(float16):
            maps = [empty((2, 64, side, side), float16) for side in (64, 32)]
            found = extractor(maps, 100, in_full)
            assert found.dtype is float16
            peaks.append(most(tape))
    assert peaks[1] - peaks[0] >= 4 * 2 * 64 * (64 * 64 + 32 * 32)
