"""What a run takes at least whose model is known in part: never more than the same run whose every part is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from memlint.check import check_paths
from memlint.reports.report import RunReport
from memlint.settings import Settings
from memlint.tape.estimate import OOM

RESNET = """dict(type="ResNet", depth=50, num_stages=4, out_indices=(0, 1, 2, 3), frozen_stages=-1,
                  norm_cfg=dict(type="BN"), norm_eval=False)"""
OWN = 'dict(type="OurPyramid", dims=(256, 512, 1024, 2048))'
FPN = """dict(type="FPN", in_channels=[256, 512, 1024, 2048], out_channels=256, num_outs=5,
              start_level={start}, add_extra_convs={extra})"""
ANCHORS = """dict(type="AnchorGenerator", {scales}, ratios=[0.5, 1.0, 2.0], strides={strides})"""
RETINA = f"""
model = dict(
    type="RetinaNet", backbone={{backbone}}, neck={FPN.format(start=1, extra='"on_input"')},
    bbox_head=dict(type="RetinaHead", num_classes=20, in_channels=256, stacked_convs=4, feat_channels=256,
                   loss_cls=dict(type="FocalLoss", use_sigmoid=True),
                   anchor_generator={
    ANCHORS.format(scales="octave_base_scale=4, scales_per_octave=3", strides=[8, 16, 32, 64, 128])
}))
"""
MASK = f"""
model = dict(
    type="MaskRCNN", backbone={{backbone}}, neck={FPN.format(start=0, extra=False)},
    rpn_head=dict(type="RPNHead", in_channels=256, feat_channels=256,
                  anchor_generator={ANCHORS.format(scales="scales=[8]", strides=[4, 8, 16, 32, 64])}),
    roi_head=dict(
        type="StandardRoIHead",
        bbox_roi_extractor=dict(type="SingleRoIExtractor", roi_layer=dict(type="RoIAlign", output_size=7),
                                out_channels=256, featmap_strides=[4, 8, 16, 32]),
        bbox_head=dict(type="Shared2FCBBoxHead", in_channels=256, roi_feat_size=7, num_classes=20)),
    train_cfg=dict(rpn_proposal=dict(nms_pre=2000), rcnn=dict(sampler=dict(num=512, pos_fraction=0.25))))
"""
DETECTS = """
data = dict(samples_per_gpu=2, train=dict(type="CocoDataset", pipeline=[dict(type="Resize", img_scale=(1333, 800))]))
optimizer = dict(type="AdamW", lr=0.0001, weight_decay=0.05)
runner = dict(type="EpochBasedRunner", max_epochs=12)
"""
UPER = """
model = dict(
    type="EncoderDecoder", backbone={backbone},
    decode_head=dict(type="{head}", in_channels=[256, 512, 1024, 2048], in_index=[0, 1, 2, 3],
                     pool_scales=(1, 2, 3, 6), channels=512, num_classes=150, norm_cfg=dict(type="SyncBN")),
    auxiliary_head=dict(type="FCNHead", in_channels=1024, in_index=2, channels=256, num_convs=1, num_classes=150))
"""
CROPS = """
crop_size = (512, 512)
train_pipeline = [dict(type="Resize", img_scale=(2048, 512)), dict(type="RandomCrop", crop_size=crop_size)]
data = dict(samples_per_gpu=2, train=dict(type="ADE20KDataset", pipeline=train_pipeline))
optimizer = dict(type="AdamW", lr=0.0001, weight_decay=0.05)
runner = dict(type="IterBasedRunner", max_iters=160000)
"""


def run(folder: Path, text: str, budget: str = "") -> RunReport:
    (folder / "net.py").write_text(text, encoding="utf-8")
    (found,) = check_paths([str(folder / "net.py")], Settings(budget=budget) if budget else Settings()).runs
    return found


def least_bytes(found: RunReport) -> int:
    assert found.estimate is None
    assert found.partial is not None
    assert found.partial.least_bytes is not None
    return found.partial.least_bytes


@pytest.mark.parametrize(
    ("model", "rest", "share"),
    [
        pytest.param(RETINA, DETECTS, 0.25, id="RetinaNet"),
        pytest.param(MASK, DETECTS, 0.2, id="Mask R-CNN"),
        pytest.param(UPER.replace("{head}", "UPerHead"), CROPS, 0.2, id="UPerNet"),
    ],
)
def test_what_stands_on_a_backbone_of_the_repository_is_a_bound(
    model: str, rest: str, share: float, tmp_path: Path
) -> None:
    whole = run(tmp_path, model.replace("{backbone}", RESNET) + rest)
    assert whole.estimate is not None
    found = run(tmp_path, model.replace("{backbone}", OWN) + rest)
    least = least_bytes(found)
    assert found.unknown.endswith("model.backbone.type OurPyramid is a class that memlint does not know")
    assert found.unknown.startswith("at least ")
    assert share * whole.estimate.allocated_bytes < least < whole.estimate.allocated_interval.low_bytes


def test_a_backbone_under_heads_that_are_not_known_is_a_bound(tmp_path: Path) -> None:
    whole = run(tmp_path, UPER.replace("{backbone}", RESNET).replace("{head}", "UPerHead") + CROPS)
    assert whole.estimate is not None
    least = least_bytes(run(tmp_path, UPER.replace("{backbone}", RESNET).replace("{head}", "OurHead") + CROPS))
    assert 0.25 * whole.estimate.allocated_bytes < least < whole.estimate.allocated_interval.low_bytes


def test_a_detector_of_the_library_takes_what_its_backbone_takes(tmp_path: Path) -> None:
    neck = 'dict(type="ChannelMapper", in_channels=[512, 1024, 2048], out_channels=256)'
    backbone = RESNET.replace("(0, 1, 2, 3)", "(1, 2, 3)")
    model = f'model = dict(type="DeformableDETR", backbone={backbone}, neck={neck}, bbox_head=dict(type="A"))\n'
    found = run(tmp_path, model + DETECTS)
    retina = run(tmp_path, RETINA.replace("{backbone}", RESNET) + DETECTS)
    assert retina.estimate is not None
    assert 0.5 * retina.estimate.allocated_bytes < least_bytes(found) < retina.estimate.allocated_bytes
    assert "the model DeformableDETR is made by the code of OpenMMLab" in found.unknown
    assert run(tmp_path, model + DETECTS, "1GB").verdict == OOM


def test_neither_backbone_nor_heads_are_no_bound(tmp_path: Path) -> None:
    text = UPER.replace("{backbone}", OWN).replace("{head}", "OurHead") + CROPS
    assert run(tmp_path, text).partial is None


def test_a_bound_asks_for_as_many_objects_as_any_data_have(tmp_path: Path) -> None:
    """Of data that nobody knows: the fewest that the interval of an estimate is of."""
    own = DETECTS.replace("CocoDataset", "OurDataset")
    least = least_bytes(run(tmp_path, RETINA.replace("{backbone}", OWN) + own))
    assert least < least_bytes(run(tmp_path, RETINA.replace("{backbone}", OWN) + DETECTS))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("in_index=2", "in_index=1000000000", id="a map that no backbone has"),
        pytest.param("in_index=2", "in_index={}", id="no map"),
        pytest.param('type="EncoderDecoder"', "type=[]", id="a class that is a list"),
    ],
)
def test_what_nobody_means_is_no_bound(old: str, new: str, tmp_path: Path) -> None:
    text = UPER.replace("{backbone}", OWN).replace("{head}", "UPerHead") + CROPS
    assert old in text
    found = run(tmp_path, text.replace(old, new))
    assert found.partial is None
    assert "raised" not in " ".join(finding.message for finding in found.findings)
