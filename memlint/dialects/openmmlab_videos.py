"""What an mmaction2 config says of its samples: how many clips and frames are taken of a video, how large frames are,
and how both are packed (mmaction2 1.2 and 0.24, ``datasets/transforms``: ``loading.py``, ``processing.py``,
``formatting.py``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memlint.dialects.stated import put
from memlint.documents.node import Node
from memlint.facts.spec import ASSUMED, HYPER, WRITTEN, Fact, TrainingSpec

SKELETONS = "RecognizerGCN"
MODELS = frozenset(("Recognizer2D", "Recognizer3D", SKELETONS))
# Joints of a skeleton by the layout of its graph, and numbers of each (``models/utils/graph.py``, ``stgcn.py``).
JOINTS, PLACE, PERSONS_OF_GCN = {"coco": 17, "nturgb+d": 25, "openpose": 18}, 3, 2
# A detector of mmdet, with this head; its boxes come with the data.
DETECTOR, HEAD = "FastRCNN", "AVARoIHead"
# What a sample is packed into, up to its frames' height and width; how often a sample stands in a batch.
SHAPE, REPEATS = HYPER + "sample_shape", HYPER + "sample_repeats"
# Transforms that choose frames: ``num_clips`` times ``clip_len`` of them.
_SAMPLES = (
    *("DenseSampleFrames", "SampleAVAFrames", "SampleFrames", "UniformSample", "UniformSampleFrames"),
    "UntrimmedSampleFrames",
)
# Transform -> the argument that says the size of what comes out, and whether that is (width, height).
_SIZES = {
    "CenterCrop": ("crop_size", True),
    "MultiScaleCrop": ("input_size", True),
    "RandomCrop": ("size", False),
    "Resize": ("scale", True),
}
IMAGE_CHANNELS, FLOW_CHANNELS = 3, 2
BOXES, BOXES_BETWEEN = HYPER + "boxes", HYPER + "boxes_between"
# Of AVA's labels a segment has four, and each person that acts has one (C. Gu et al., "AVA: A Video Dataset of
# Spatio-temporally Localized Atomic Visual Actions", CVPR 2018: 1.58M labels of 385k segments). A sampler takes those
# that are proposed beside those that are true (``add_gt_as_proposals``), up to its ``num``.
PERSONS, SAMPLED = 4, 32


def is_detector(model: Node) -> bool:
    head = model.get("roi_head")
    return _plain(model.get("type")) == DETECTOR and head is not None and _plain(head.get("type")) == HEAD


def complete(spec: TrainingSpec, transforms: Sequence[Node], dataset: Node | None) -> None:
    """Facts of a sample's shape."""
    packed: Node | None = None
    clips, frames = 1, 0
    for one in transforms:
        kind = _plain(one.get("type"))
        if kind in _SAMPLES:
            clips, frames = _whole(one.get("num_clips"), 1), _whole(one.get("clip_len"), 0)
        elif kind == "FormatShape":
            packed = one
        elif kind == "FormatGCNInput" and frames:
            joints = JOINTS.get(_plain(spec.root.get("model.backbone.graph_cfg.layout")) or "coco")
            numbers = _whole(spec.root.get("model.backbone.in_channels"), PLACE)
            if joints is not None:
                shape = [clips, _whole(one.get("num_person"), PERSONS_OF_GCN), frames, joints, numbers]
                spec.facts[SHAPE] = Fact(SHAPE, shape, WRITTEN, one.shown_path, one)
        elif kind in _SIZES:
            _size(spec, kind, one)
    if packed is not None and frames:
        shape = _shape(_plain(packed.get("input_format")), clips, frames, _channels(spec))
        shape = shape[1:] if _plain(packed.get("collapse")) is True and clips == 1 else shape
        if shape:
            spec.facts[SHAPE] = Fact(SHAPE, shape, WRITTEN, packed.shown_path, packed)
    if BOXES not in spec and spec.root.get("model.roi_head") is not None:
        most = _whole(spec.root.get("model.train_cfg.rcnn.sampler.num"), SAMPLED)
        spec.facts[BOXES] = Fact(BOXES, min(2 * PERSONS, most), ASSUMED, reason="boxes of a clip: as of AVA's")
        spec.facts[BOXES_BETWEEN] = Fact(BOXES_BETWEEN, (1, most), ASSUMED, reason="of other clips")
    repeats = None if dataset is None else dataset.get("num_repeats")
    if repeats is not None and _whole(repeats, 0):
        put(spec, REPEATS, _whole(repeats, 1), Fact(REPEATS, _whole(repeats, 1), WRITTEN, repeats.shown_path, repeats))


def unknown(spec: TrainingSpec) -> str:
    """Why there is no estimate; "" where there may be one."""
    if SHAPE not in spec:
        return "train_pipeline does not say how many frames are packed how: SampleFrames and FormatShape"
    if "image_size" not in spec and _plain(spec.root.get("model.type")) != SKELETONS:
        return "train_pipeline states no size of frames: Resize, RandomCrop"
    return ""


def _shape(form: Any, clips: int, frames: int, channels: int | None) -> list[int]:
    """``FormatShape``: frames of all clips one after the other, or clips with time as a dimension of theirs."""
    if form == "NCHW":
        return [clips * frames, channels or IMAGE_CHANNELS]
    if form == "NCHW_Flow":
        return [clips, FLOW_CHANNELS * frames]
    if form == "NCTHW" or (form == "NCTHW_Heatmap" and channels):
        return [clips, channels or IMAGE_CHANNELS, frames]
    return []


def _channels(spec: TrainingSpec) -> int | None:
    keys = ("model.backbone.in_channels", "model.backbone.slow_pathway.in_channels")
    return next((count for key in keys if (count := _whole(spec.root.get(key), 0))), None)


def _size(spec: TrainingSpec, kind: str, transform: Node) -> None:
    """The size that frames have from this transform on; one that keeps their ratio leaves it open."""
    argument, turned = _SIZES[kind]
    node = transform.get(argument)
    value = _plain(node)
    sides = [value, value] if isinstance(value, int) else value
    known = isinstance(sides, (list, tuple)) and len(sides) == 2 and all(_is_whole(side) for side in sides)
    keeps = kind == "Resize" and _plain(transform.get("keep_ratio")) is not False
    spec.facts.pop("image_size", None)
    if node is not None and known and not keeps:
        size = list(sides)[:: -1 if turned else 1]
        spec.facts["image_size"] = Fact("image_size", size, WRITTEN, node.shown_path, node)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _whole(node: Node | None, default: int) -> int:
    value = _plain(node)
    return value if _is_whole(value) else default


def _plain(node: Node | None) -> Any:
    return None if node is None else node.plain()
