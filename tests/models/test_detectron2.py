"""Detectors of detectron2 against the library's own code."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from memlint import models
from memlint.dialects import registry
from memlint.documents.load import load
from memlint.facts.spec import TrainingSpec
from memlint.models import UnknownModel

MIB = 1 << 20
BASE = {"MODEL.META_ARCHITECTURE": "GeneralizedRCNN"}
C4 = {**BASE, "MODEL.ROI_HEADS.NAME": "Res5ROIHeads"}
_HEADS = {
    **{"MODEL.ROI_HEADS.NAME": "StandardROIHeads", "MODEL.ROI_BOX_HEAD.NAME": "FastRCNNConvFCHead"},
    **{"MODEL.ROI_BOX_HEAD.NUM_FC": 2, "MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION": 7},
    **{"MODEL.ROI_MASK_HEAD.NUM_CONV": 4, "MODEL.ROI_MASK_HEAD.POOLER_RESOLUTION": 14},
}
DC5 = {
    **BASE,
    **_HEADS,
    **{"MODEL.RESNETS.OUT_FEATURES": ["res5"], "MODEL.RESNETS.RES5_DILATION": 2},
    **{"MODEL.RPN.IN_FEATURES": ["res5"], "MODEL.ROI_HEADS.IN_FEATURES": ["res5"]},
}
_LEVELS = ["res2", "res3", "res4", "res5"]
FPN = {
    **BASE,
    **_HEADS,
    **{"MODEL.BACKBONE.NAME": "build_resnet_fpn_backbone", "MODEL.RESNETS.OUT_FEATURES": _LEVELS},
    **{"MODEL.FPN.IN_FEATURES": _LEVELS, "MODEL.ANCHOR_GENERATOR.SIZES": [[32], [64], [128], [256], [512]]},
    **{"MODEL.RPN.IN_FEATURES": ["p2", "p3", "p4", "p5", "p6"], "MODEL.RPN.PRE_NMS_TOPK_TRAIN": 2000},
    **{"MODEL.RPN.POST_NMS_TOPK_TRAIN": 1000, "MODEL.ROI_HEADS.IN_FEATURES": ["p2", "p3", "p4", "p5"]},
}
RETINA = {
    **{"MODEL.META_ARCHITECTURE": "RetinaNet", "MODEL.BACKBONE.NAME": "build_retinanet_resnet_fpn_backbone"},
    **{"MODEL.RESNETS.OUT_FEATURES": _LEVELS[1:], "MODEL.FPN.IN_FEATURES": _LEVELS[1:]},
    "MODEL.ANCHOR_GENERATOR.SIZES": [[side] * 3 for side in (32, 64, 128, 256, 512)],
}
MASKS, KEYPOINTS = {"MODEL.MASK_ON": True}, {"MODEL.KEYPOINT_ON": True, "MODEL.ROI_HEADS.NUM_CLASSES": 1}
X101 = {
    **{"MODEL.RESNETS.DEPTH": 101, "MODEL.RESNETS.STRIDE_IN_1X1": False},
    **{"MODEL.RESNETS.NUM_GROUPS": 32, "MODEL.RESNETS.WIDTH_PER_GROUP": 8},
}
GROUPS = {
    **{"MODEL.RESNETS.NORM": "GN", "MODEL.RESNETS.STRIDE_IN_1X1": False, "MODEL.FPN.NORM": "GN"},
    **{"MODEL.ROI_BOX_HEAD.NUM_CONV": 4, "MODEL.ROI_BOX_HEAD.NUM_FC": 1, "MODEL.ROI_BOX_HEAD.NORM": "GN"},
    "MODEL.ROI_MASK_HEAD.NORM": "GN",
}
CASCADE = {"MODEL.ROI_HEADS.NAME": "CascadeROIHeads", "MODEL.ROI_BOX_HEAD.CLS_AGNOSTIC_BBOX_REG": True}
PANOPTIC = {"MODEL.META_ARCHITECTURE": "PanopticFPN"}
PROPOSALS = {"MODEL.META_ARCHITECTURE": "ProposalNetwork"}


def yaml_of(keys: dict[str, Any]) -> str:
    """Dotted keys as a file that nests them."""
    tree: dict[str, Any] = {}
    for key, value in keys.items():
        *path, last = key.split(".")
        node = tree
        for part in path:
            node = node.setdefault(part, {})
        node[last] = value

    def lines(node: dict[str, Any], depth: int) -> list[str]:
        found = []
        for key, value in node.items():
            if isinstance(value, dict):
                found += [f"{'  ' * depth}{key}:", *lines(value, depth + 1)]
            else:
                found.append(f"{'  ' * depth}{key}: {str(value).lower() if isinstance(value, bool) else value}")
        return found

    return "\n".join(lines(tree, 0)) + "\n"


def spec_of(tmp_path: Path, keys: dict[str, Any], devices: int = 1) -> TrainingSpec:
    (tmp_path / ".git").mkdir(exist_ok=True)
    (tmp_path / "config.yaml").write_text(yaml_of(keys))
    command = f"python tools/train_net.py --config-file config.yaml --num-gpus {devices}\n"
    (tmp_path / "run.sh").write_text(command)
    [spec] = registry.specs(load(str(tmp_path / "run.sh")))
    return spec


# What ``build_model(cfg).parameters()`` counts (detectron2 02b5c4e): all, and those that train.
COUNTS = [
    pytest.param(C4, 33_791_644, 33_569_244, id="Faster R-CNN, C4"),
    pytest.param(DC5, 165_581_468, 165_359_068, id="Faster R-CNN, DC5"),
    pytest.param(FPN, 41_699_936, 41_477_536, id="Faster R-CNN, FPN"),
    pytest.param(FPN | X101, 104_784_480, 104_359_328, id="Faster R-CNN, FPN over ResNeXt-101"),
    pytest.param(RETINA, 37_915_572, 37_693_172, id="RetinaNet"),
    pytest.param(FPN | PROPOSALS, 27_393_231, 27_170_831, id="proposals alone"),
    pytest.param(C4 | MASKS, 35_909_612, 35_687_212, id="Mask R-CNN, C4"),
    pytest.param(FPN | MASKS | {"MODEL.RESNETS.DEPTH": 101}, 63_283_120, 63_060_720, id="Mask R-CNN, ResNet-101"),
    pytest.param(FPN | KEYPOINTS, 59_133_158, 58_910_758, id="Keypoint R-CNN"),
    pytest.param(FPN | MASKS | PANOPTIC, 45_973_990, 45_751_590, id="Panoptic FPN"),
    pytest.param(FPN | MASKS | CASCADE, 71_984_926, 71_762_526, id="Cascade R-CNN"),
    pytest.param(FPN | MASKS | GROUPS, 45_711_152, 45_485_808, id="Mask R-CNN with group norms"),
]


@pytest.mark.parametrize(("keys", "every", "training"), COUNTS)
def test_a_detector_has_the_parameters_that_the_library_counts(
    tmp_path: Path, keys: dict[str, Any], every: int, training: int
) -> None:
    recording = models.record(spec_of(tmp_path, keys | {"SOLVER.IMS_PER_BATCH": 1}))
    assert (recording.parameters, recording.trainable_parameters) == (every, training)


# The library's own forward pass on the host (detectron2 02b5c4e, torch 2.13), storage by storage: most MiB that are
# alive beside the weights, and MiB at its end. Two images of 320 x 512 with 93 boxes each, 64 regions of each, of which
# 16 have an object; regions are cut out by a stand-in that keeps and returns what torchvision's kernel does.
SIZES = {
    **{"INPUT.MIN_SIZE_TRAIN": 320, "INPUT.MAX_SIZE_TRAIN": 512, "SOLVER.IMS_PER_BATCH": 2},
    **{"MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE": 64, "MODEL.RPN.POST_NMS_TOPK_TRAIN": 1000},
}
FORWARD = [
    pytest.param(FPN | PROPOSALS, 311.14, 216.51, id="proposals alone"),
    pytest.param(RETINA, 465.96, 336.71, id="RetinaNet"),
    pytest.param(C4, 550.41, 449.69, id="Faster R-CNN, C4"),
    pytest.param(DC5 | MASKS, 356.44, 328.38, id="Mask R-CNN, DC5"),
    pytest.param(FPN | MASKS, 311.14, 279.00, id="Mask R-CNN, FPN"),
    pytest.param(FPN | MASKS | PANOPTIC, 434.58, 402.44, id="Panoptic FPN"),
    pytest.param(FPN | MASKS | CASCADE, 321.43, 293.34, id="Cascade R-CNN"),
    pytest.param(FPN | MASKS | GROUPS, 593.31, 565.21, id="Mask R-CNN with group norms"),
]


@pytest.mark.parametrize(("keys", "most", "end"), FORWARD)
def test_a_forward_pass_takes_what_the_library_s_takes(
    tmp_path: Path, keys: dict[str, Any], most: float, end: float
) -> None:
    tape = models.record(spec_of(tmp_path, {**keys, **SIZES})).tape
    begin, back = (next(at for at, phase in tape.marks if phase == name) for name in ("forward", "backward"))
    alive, found = 0, []
    for event in tape.events[:back]:
        alive += tape.sizes[event] if event >= 0 else -tape.sizes[~event]
        found.append(alive)
    before = found[begin - 1]
    # RetinaNet's loss is over the anchors that count, of which the library had a few percent fewer.
    off = 0.06 if keys is RETINA else 0.005
    assert (max(found[begin:]) - before) / MIB == pytest.approx(most, rel=off)
    assert (found[-1] - before) / MIB == pytest.approx(end, rel=off)


@pytest.mark.parametrize("keys", [pytest.param(FPN, id="FPN"), pytest.param(C4, id="C4")])
def test_bitmaps_are_on_the_card_for_each_object_and_each_region(tmp_path: Path, keys: dict[str, Any]) -> None:
    """A byte for each pixel: of 93 objects of both images, of the 64 regions that are sampled and the 16 of them that
    have an object; and of each image's 16 in fp32, one after the other. All are gone behind the forward pass."""
    made, alive = [], []
    for shape in ("polygon", "bitmask"):
        tape = models.record(spec_of(tmp_path, {**keys, **MASKS, **SIZES, "INPUT.MASK_FORMAT": shape})).tape
        begin, back = (next(at for at, phase in tape.marks if phase == name) for name in ("forward", "backward"))
        made.append(Counter(tape.sizes[event] for event in tape.events[begin:back] if event >= 0))
        alive.append(sum(tape.sizes[event] if event >= 0 else -tape.sizes[~event] for event in tape.events[:back]))
    pixels = 320 * 512
    assert made[1] - made[0] == {93 * pixels: 2, 64 * pixels: 2 + 2, 16 * pixels: 2}
    assert alive[0] == alive[1]


def test_what_is_frozen_keeps_nothing(tmp_path: Path) -> None:
    keys = FPN | {"SOLVER.IMS_PER_BATCH": 1, "INPUT.MIN_SIZE_TRAIN": 320, "INPUT.MAX_SIZE_TRAIN": 512}
    held = [models.saved_bytes(spec_of(tmp_path, {**keys, "MODEL.BACKBONE.FREEZE_AT": at})) for at in (0, 1, 2, 5)]
    assert held == sorted(held, reverse=True)
    assert len(set(held)) == len(held)
    none = spec_of(tmp_path, {**keys, "MODEL.BACKBONE.FREEZE_AT": -1})  # as AdelaiDet's configs of DLA say it
    assert models.saved_bytes(none) == held[0]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        pytest.param(
            FPN | {"MODEL.RPN.IN_FEATURES": ["p2", "p9"]},
            "MODEL.RPN.IN_FEATURES names p9: there are p2, p3, p4, p5, p6",
            id="a map that there is not",
        ),
        pytest.param(
            FPN | {"MODEL.RESNETS.OUT_FEATURES": ["res2", "res6"]},
            "MODEL.RESNETS.OUT_FEATURES names res6: there are stem, res2, res3, res4, res5",
            id="a stage that no ResNet has",
        ),
        pytest.param(
            FPN | MASKS | GROUPS | {"MODEL.ROI_MASK_HEAD.CONV_DIM": 100},
            "NORM GN has 32 groups, which do not divide 100 channels",
            id="channels that groups do not divide",
        ),
        pytest.param(FPN | {"MODEL.FPN.NORM": "LN"}, "NORM LN is a norm that memlint does not know", id="a norm"),
        pytest.param(
            FPN | {"MODEL.ANCHOR_GENERATOR.SIZES": []},
            "MODEL.ANCHOR_GENERATOR.SIZES, or ASPECT_RATIOS, states none",
            id="no anchors",
        ),
    ],
)
def test_what_the_library_refuses_has_a_reason(tmp_path: Path, keys: dict[str, Any], said: str) -> None:
    with pytest.raises(UnknownModel, match=said):
        models.record(spec_of(tmp_path, keys | {"SOLVER.IMS_PER_BATCH": 1}))


OWN = {"MODEL.META_ARCHITECTURE": "OurDetector", "MODEL.OURS.LAYERS": 6}


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param(FPN | OWN, id="an architecture of the program's own"),
        pytest.param(FPN | {"MODEL.ROI_HEADS.NAME": "OurHeads"}, id="heads of its own"),
        pytest.param(FPN | OWN | {"SOLVER.OPTIMIZER": "ADAMW"}, id="an optimizer of its own"),
    ],
)
def test_a_resnet_under_what_is_not_known_is_a_bound(tmp_path: Path, keys: dict[str, Any]) -> None:
    spec = spec_of(tmp_path, keys | SIZES)
    assert (spec.architecture, spec.architecture_at_least) == (None, "detectron2")
    least = spec.replaced({})
    least.architecture = "detectron2_least"
    whole = models.record(spec_of(tmp_path, FPN | SIZES))
    made = models.record(least)
    assert made.parameters < whole.parameters
    assert 0.3 * whole.tape.saved_bytes < made.tape.saved_bytes < whole.tape.saved_bytes


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param({"MODEL.BACKBONE.NAME": "build_our_backbone"}, id="another backbone"),
        pytest.param({"MODEL.BACKBONE.ANTI_ALIAS": True}, id="a backbone that is changed"),
        pytest.param({"MODEL.RESNETS.DEPTH": 26}, id="a depth that there is not"),
        pytest.param({"MODEL.OURS.FREEZE_BACKBONE": True}, id="a backbone that may not train"),
        pytest.param({"INPUT.CROP.ENABLED": True}, id="images that are cut"),
        pytest.param({"INPUT.IMAGE_SIZE": 1024}, id="images of another size"),
    ],
)
def test_what_may_take_less_is_no_bound(tmp_path: Path, keys: dict[str, Any]) -> None:
    assert spec_of(tmp_path, FPN | OWN | SIZES | keys).architecture_at_least == ""
