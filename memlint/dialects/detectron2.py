"""Family detectron2: what its schema cannot say. A YAML config states what differs from the library's defaults
(detectron2 0.6, ``config/defaults.py``). So a key of ``MODEL`` or ``INPUT`` is one of the table below, or says nothing
of memory, or is a project's own, which makes the run UNKNOWN by its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from memlint.architectures import sizes
from memlint.dialects import key_facts, sharing
from memlint.dialects.insertion import add
from memlint.dialects.stated import gap, put
from memlint.documents.node import Edit, Node
from memlint.facts.spec import ASSUMED, DEFAULT, HYPER, WRITTEN, Fact, Name, TrainingSpec

ARCHITECTURE = "detectron2"
SETTINGS, BOXES = HYPER + "detectron2", HYPER + "boxes"
VERSION = "detectron2 0.6"
# Images are filled up to whole multiples of the coarsest stride (modeling/backbone/fpn.py: size_divisibility).
DIVISOR = 32
# How many objects the fullest image has, which no config says: as many as COCO's, or as LVIS lets a detector find in
# one (configs/LVISv0.5-InstanceSegmentation: TEST.DETECTIONS_PER_IMAGE).
FULLEST, FULLEST_OF_LVIS = 93, 300
# Of data that the library does not register (data/datasets/builtin.py), the fullest image may have as few or as many,
# and images may be anything between square ones and those as wide as they may be.
BOXES_BETWEEN, SIZE_BETWEEN = HYPER + "boxes_between", HYPER + "image_size_between"
FEWEST = 10
_REGISTERED = re.compile(
    r"\b(keypoints_)?(coco_20\d\d|lvis_v[\d.]+|cityscapes_fine|voc_20\d\d|ade20k)_|^(none|\(\)|\[\])$"
)

# Keys that decide what a step takes, and their defaults.
DEFAULTS: dict[str, Any] = {
    "MODEL.META_ARCHITECTURE": "GeneralizedRCNN",
    "MODEL.MASK_ON": False,
    "MODEL.KEYPOINT_ON": False,
    "MODEL.LOAD_PROPOSALS": False,
    "MODEL.BACKBONE.NAME": "build_resnet_backbone",
    "MODEL.BACKBONE.FREEZE_AT": 2,
    "MODEL.FPN.IN_FEATURES": (),
    "MODEL.FPN.OUT_CHANNELS": 256,
    "MODEL.FPN.NORM": "",
    "MODEL.FPN.FUSE_TYPE": "sum",
    "MODEL.PROPOSAL_GENERATOR.NAME": "RPN",
    "MODEL.ANCHOR_GENERATOR.NAME": "DefaultAnchorGenerator",
    "MODEL.ANCHOR_GENERATOR.SIZES": ((32, 64, 128, 256, 512),),
    "MODEL.ANCHOR_GENERATOR.ASPECT_RATIOS": ((0.5, 1.0, 2.0),),
    "MODEL.RPN.HEAD_NAME": "StandardRPNHead",
    "MODEL.RPN.IN_FEATURES": ("res4",),
    "MODEL.RPN.BATCH_SIZE_PER_IMAGE": 256,
    "MODEL.RPN.POSITIVE_FRACTION": 0.5,
    "MODEL.RPN.PRE_NMS_TOPK_TRAIN": 12000,
    "MODEL.RPN.POST_NMS_TOPK_TRAIN": 2000,
    "MODEL.RPN.CONV_DIMS": (-1,),
    "MODEL.RPN.BBOX_REG_LOSS_TYPE": "smooth_l1",
    "MODEL.ROI_HEADS.NAME": "Res5ROIHeads",
    "MODEL.ROI_HEADS.NUM_CLASSES": 80,
    "MODEL.ROI_HEADS.IN_FEATURES": ("res4",),
    "MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE": 512,
    "MODEL.ROI_HEADS.POSITIVE_FRACTION": 0.25,
    "MODEL.ROI_BOX_HEAD.NAME": "",
    "MODEL.ROI_BOX_HEAD.NUM_FC": 0,
    "MODEL.ROI_BOX_HEAD.FC_DIM": 1024,
    "MODEL.ROI_BOX_HEAD.NUM_CONV": 0,
    "MODEL.ROI_BOX_HEAD.CONV_DIM": 256,
    "MODEL.ROI_BOX_HEAD.NORM": "",
    "MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION": 14,
    "MODEL.ROI_BOX_HEAD.CLS_AGNOSTIC_BBOX_REG": False,
    "MODEL.ROI_BOX_HEAD.TRAIN_ON_PRED_BOXES": False,
    "MODEL.ROI_BOX_HEAD.USE_SIGMOID_CE": False,
    "MODEL.ROI_BOX_HEAD.BBOX_REG_LOSS_TYPE": "smooth_l1",
    "MODEL.ROI_MASK_HEAD.NAME": "MaskRCNNConvUpsampleHead",
    "MODEL.ROI_MASK_HEAD.POOLER_RESOLUTION": 14,
    "MODEL.ROI_MASK_HEAD.NUM_CONV": 0,
    "MODEL.ROI_MASK_HEAD.CONV_DIM": 256,
    "MODEL.ROI_MASK_HEAD.NORM": "",
    "MODEL.ROI_MASK_HEAD.CLS_AGNOSTIC_MASK": False,
    "MODEL.ROI_KEYPOINT_HEAD.NAME": "KRCNNConvDeconvUpsampleHead",
    "MODEL.ROI_KEYPOINT_HEAD.POOLER_RESOLUTION": 14,
    "MODEL.ROI_KEYPOINT_HEAD.CONV_DIMS": (512,) * 8,
    "MODEL.ROI_KEYPOINT_HEAD.NUM_KEYPOINTS": 17,
    "MODEL.SEM_SEG_HEAD.NAME": "SemSegFPNHead",
    "MODEL.SEM_SEG_HEAD.IN_FEATURES": ("p2", "p3", "p4", "p5"),
    "MODEL.SEM_SEG_HEAD.NUM_CLASSES": 54,
    "MODEL.SEM_SEG_HEAD.CONVS_DIM": 128,
    "MODEL.SEM_SEG_HEAD.COMMON_STRIDE": 4,
    "MODEL.SEM_SEG_HEAD.NORM": "GN",
    "MODEL.RETINANET.NUM_CLASSES": 80,
    "MODEL.RETINANET.IN_FEATURES": ("p3", "p4", "p5", "p6", "p7"),
    "MODEL.RETINANET.NUM_CONVS": 4,
    "MODEL.RETINANET.NORM": "",
    "MODEL.RETINANET.BBOX_REG_LOSS_TYPE": "smooth_l1",
    "MODEL.RESNETS.DEPTH": 50,
    "MODEL.RESNETS.OUT_FEATURES": ("res4",),
    "MODEL.RESNETS.NUM_GROUPS": 1,
    "MODEL.RESNETS.NORM": "FrozenBN",
    "MODEL.RESNETS.WIDTH_PER_GROUP": 64,
    "MODEL.RESNETS.STRIDE_IN_1X1": True,
    "MODEL.RESNETS.RES5_DILATION": 1,
    "MODEL.RESNETS.RES2_OUT_CHANNELS": 256,
    "MODEL.RESNETS.STEM_OUT_CHANNELS": 64,
    "MODEL.RESNETS.DEFORM_ON_PER_STAGE": (False, False, False, False),
    "INPUT.MASK_FORMAT": "polygon",
}
# What each of these keys may say for the model to be known (memlint/models/detectron2.py).
KNOWN: dict[str, tuple[Any, ...]] = {
    "MODEL.META_ARCHITECTURE": ("GeneralizedRCNN", "PanopticFPN", "ProposalNetwork", "RetinaNet"),
    "MODEL.BACKBONE.NAME": (
        *("build_resnet_backbone", "build_resnet_fpn_backbone", "build_retinanet_resnet_fpn_backbone"),
    ),
    "MODEL.PROPOSAL_GENERATOR.NAME": ("RPN",),
    "MODEL.ANCHOR_GENERATOR.NAME": ("DefaultAnchorGenerator",),
    "MODEL.RPN.HEAD_NAME": ("StandardRPNHead",),
    "MODEL.RPN.BBOX_REG_LOSS_TYPE": ("smooth_l1",),
    "MODEL.RETINANET.BBOX_REG_LOSS_TYPE": ("smooth_l1",),
    "MODEL.ROI_HEADS.NAME": ("CascadeROIHeads", "Res5ROIHeads", "StandardROIHeads"),
    "MODEL.ROI_BOX_HEAD.NAME": ("", "FastRCNNConvFCHead"),
    "MODEL.ROI_BOX_HEAD.BBOX_REG_LOSS_TYPE": ("smooth_l1", "giou", "diou", "ciou"),  # of the few that have an object
    "MODEL.ROI_MASK_HEAD.NAME": ("MaskRCNNConvUpsampleHead",),
    "MODEL.ROI_KEYPOINT_HEAD.NAME": ("KRCNNConvDeconvUpsampleHead",),
    "MODEL.SEM_SEG_HEAD.NAME": ("SemSegFPNHead",),
    "MODEL.RESNETS.DEPTH": (18, 34, 50, 101, 152),
    "MODEL.RESNETS.RES5_DILATION": (1, 2),
    "MODEL.LOAD_PROPOSALS": (False,),
    "INPUT.MASK_FORMAT": ("bitmask", "polygon"),
}
# Backbones of AdelaiDet that stand on the library's ResNet (adet/modeling/backbone/fpn.py, bifpn.py).
_OVER_RESNETS = ("build_fcos_resnet_fpn_backbone", "build_fcos_resnet_bifpn_backbone")
# Of a program's own keys, those by whose names the backbone is another one, does not train, or is given other images.
_CHANGES_A_RESNET = re.compile(r"^INPUT\.|^MODEL\.(?:RESNETS|BACKBONE)\.|MOBILENET|FREEZE|FROZEN", re.IGNORECASE)
_OF_RESNETS = ("MODEL.RESNETS.", "MODEL.BACKBONE.", "MODEL.FPN.IN_FEATURES")
# Keys that say nothing of a training step's memory: where weights come from, thresholds, factors of losses, what holds
# at test time, how boxes become numbers, what is cut out of an image before it is resized. The sides of images are read
# apart.
_SILENT = re.compile(
    r"MODEL\.(WEIGHTS|DEVICE|PIXEL_\w+|PANOPTIC_FPN\..*)$"
    r"|INPUT\.(MIN_SIZE_TRAIN|MIN_SIZE_TRAIN_SAMPLING|MAX_SIZE_TRAIN|RANDOM_FLIP|FORMAT|CROP\..*)$"
    r"|.*(_TEST|THRESH\w*|THRESHOLDS|_LABELS|LOSS_WEIGHT|_WEIGHTS|_BETA|_LOSS_ALPHA|_LOSS_GAMMA|PRIOR_PROB|IGNORE_VALUE"
    r"|SAMPLING_RATIO|POOLER_TYPE|MIN_SIZE|APPEND_GT|OFFSET|ANGLES|NORMALIZE\w*|MIN_KEYPOINTS\w*|IOUS|NMS_TYPE"
    r"|DEFORM_MODULATED|DEFORM_NUM_GROUPS|FED_LOSS\w*)$"
)
# What the numbers of a key have to be, by how the key ends.
_NUMBERS: dict[str, sizes.Kind] = {
    **dict.fromkeys((".NUM_CONV", ".NUM_CONVS", ".NUM_FC"), sizes.LAYER),
    **dict.fromkeys((".FREEZE_AT",), sizes.DISTANCE),  # layers below it: -1 is as 0
    **dict.fromkeys((".BATCH_SIZE_PER_IMAGE", ".PRE_NMS_TOPK_TRAIN", ".POST_NMS_TOPK_TRAIN"), sizes.ROWS),
    **dict.fromkeys((".POSITIVE_FRACTION",), sizes.CHANCE),
    **dict.fromkeys((".POOLER_RESOLUTION", ".NUM_GROUPS", ".NUM_KEYPOINTS", ".COMMON_STRIDE"), sizes.PARTS),
    **dict.fromkeys(
        (".NUM_CLASSES", "_CHANNELS", ".FC_DIM", ".CONV_DIM", ".CONVS_DIM", ".WIDTH_PER_GROUP"), sizes.WIDTH
    ),
}
# Heads that only some models have: what a key of theirs says is nobody's business else.
_OPTIONAL = {
    "MODEL.ROI_MASK_HEAD.": "MODEL.MASK_ON",
    "INPUT.MASK_FORMAT": "MODEL.MASK_ON",
    "MODEL.ROI_KEYPOINT_HEAD.": "MODEL.KEYPOINT_ON",
}
_OF_ARCHITECTURE = {"MODEL.RETINANET.": "RetinaNet", "MODEL.SEM_SEG_HEAD.": "PanopticFPN"}
# Anchors of the library's Base-RetinaNet.yaml, whose sizes are an expression that only running it evaluates.
_RETINA_SIZES = tuple((side, side, side) for side in (32, 64, 128, 256, 512))
_LONGEST_WORDS = 1000  # that are read as Python
_LONGEST, _SHORT = "INPUT.MAX_SIZE_TRAIN", "INPUT.MIN_SIZE_TRAIN"
_DEFAULT_SHORT, _DEFAULT_LONGEST = 800, 1333


def complete(spec: TrainingSpec) -> TrainingSpec:
    """Facts in the words of the vocabulary, and the model where all that decides it is known."""
    spec = key_facts.complete(spec)
    if spec.root.get("MODEL") is None:
        return spec  # a lazy config, whose model is a program
    sharing.on_devices(spec)
    _batch(spec)
    settings, reason = _settings(spec)
    reason = reason or _unknown(spec)
    if reason:
        spec.unknown_reason = reason
        if _is_bounded(spec, settings):
            put(spec, HYPER + "detectron2", settings, Fact(SETTINGS, None, WRITTEN, "MODEL", spec.root.get("MODEL")))
            _image_size(spec, settings)
            spec.architecture_at_least = ARCHITECTURE
        return spec
    put(spec, HYPER + "detectron2", settings, Fact(SETTINGS, None, WRITTEN, "MODEL", spec.root.get("MODEL")))
    _image_size(spec, settings)
    if BOXES not in spec:
        lvis = "lvis" in _data(spec)
        of = "LVIS lets a detector find in one" if lvis else "COCO's has (instances_train2017.json)"
        reason = f"objects of the fullest image: as many as {of}"
        origin = Fact(BOXES, None, ASSUMED)
        put(spec, HYPER + "boxes", FULLEST_OF_LVIS if lvis else FULLEST, origin, reason)
    if _REGISTERED.search(_data(spec)) is None:
        put(spec, BOXES_BETWEEN, (FEWEST, FULLEST_OF_LVIS), reason="of other data")
    put(spec, "optimizer_implementation", "foreach", reason="torch.optim on CUDA")
    spec.unknown_reason = ""
    if "micro_batch_size" in spec:
        spec.architecture = ARCHITECTURE
    elif "device_count" in spec:
        spec.unknown_reason = f"SOLVER.IMS_PER_BATCH is no multiple of {spec['device_count']} devices"
    else:
        spec.architecture_on_devices = ARCHITECTURE
        spec.unknown_reason = "--num-gpus is not stated: how many devices share SOLVER.IMS_PER_BATCH"
    return spec


def spell(spec: TrainingSpec, fact: Name, value: Any) -> list[Edit] | None:
    """A YAML config takes none of the keys of lazy ones, by which it would say the same."""
    known = spec.fact(fact)
    if fact != "compute_dtype" or spec.root.get("MODEL") is None or (known is not None and known.node is not None):
        return key_facts.spell(spec, fact, value)
    from memlint.dialects import registry

    (key,) = [key for key in registry.dialect(spec.family).keys_of(fact) if key.path[0] == "SOLVER"]
    return add(spec, key, True) if value == "float16" else []


def _batch(spec: TrainingSpec) -> None:
    whole, devices = spec.fact("global_batch_size"), spec.get("device_count")
    if "micro_batch_size" in spec or whole is None or not isinstance(devices, int):
        return
    machines = spec.get("machines", 1)
    world = devices * (machines if spec.get("world_size") != devices else 1)
    if isinstance(whole.value, int) and whole.value % world == 0 and whole.value >= world:
        put(spec, "micro_batch_size", whole.value // world, whole, f"{whole.label} {whole.value} over {world} devices")


def _settings(spec: TrainingSpec) -> tuple[dict[str, Any], str]:
    """What decides the model, and why it is not known, or "". A key is read where the model has what it is about."""
    found: dict[str, Any] = {}
    for key, default in DEFAULTS.items():
        node = spec.root.get(key)
        found[key] = default if node is None else _tuples(_read(node))
    own = str(found["MODEL.META_ARCHITECTURE"])
    anchors = spec.root.get("MODEL.ANCHOR_GENERATOR.SIZES")
    if own == "RetinaNet" and anchors is not None and anchors.is_unresolved:
        found["MODEL.ANCHOR_GENERATOR.SIZES"] = _RETINA_SIZES
        why = "MODEL.ANCHOR_GENERATOR.SIZES is an expression, which is not run: as many as in Base-RetinaNet.yaml"
        put(spec, HYPER + "sizes_of_anchors", len(_RETINA_SIZES[0]), Fact(SETTINGS, None, ASSUMED), why)
    if found["MODEL.RESNETS.DEPTH"] in (18, 34) and spec.root.get("MODEL.RESNETS.RES2_OUT_CHANNELS") is None:
        return found, "MODEL.RESNETS.RES2_OUT_CHANNELS has to be 64 for ResNet-18 and 34"
    for key in _keys(spec):
        if key in DEFAULTS:
            value = found[key]
            if not _concerns(key, found):
                continue
            if key in KNOWN and value not in KNOWN[key]:
                return found, f"{key} {value} is not known"
            wanted = next((kind for end, kind in _NUMBERS.items() if key.endswith(end)), None)
            if wanted is not None and not wanted.accepts(value):
                return found, f"{key} is {value!r}: it has to be {wanted.words}"
            if not _like(value, DEFAULTS[key]):
                return found, f"{key} is {value!r}, which is nothing that {VERSION} takes"
        elif not _SILENT.match(key):
            return found, f"{key} is of no key of {VERSION}: what it changes is not known"
    if any(found["MODEL.RESNETS.DEFORM_ON_PER_STAGE"]):
        return found, "MODEL.RESNETS.DEFORM_ON_PER_STAGE: deformable convolutions are not known"
    return found, ""


def _is_bounded(spec: TrainingSpec, settings: dict[str, Any]) -> bool:
    """Whether the ResNet is the library's, trains, and is given images of the sizes that are stated: then the run takes
    at least what that one does (memlint/models/detectron2_least.py)."""
    name = settings["MODEL.BACKBONE.NAME"]
    if name not in (*KNOWN["MODEL.BACKBONE.NAME"], *_OVER_RESNETS) or gap(spec, "IMS_PER_BATCH") is not None:
        return False
    crops = _plain(spec, "INPUT.CROP.ENABLED")
    if crops not in (None, False) or any(settings["MODEL.RESNETS.DEFORM_ON_PER_STAGE"]):
        return False
    for key in _keys(spec):
        if key not in DEFAULTS and not _SILENT.match(key) and _CHANGES_A_RESNET.search(key) is not None:
            return False
        if key in DEFAULTS and key.startswith(_OF_RESNETS):
            kind = next((kind for end, kind in _NUMBERS.items() if key.endswith(end)), None)
            value = settings[key]
            if (key in KNOWN and key != "MODEL.BACKBONE.NAME" and value not in KNOWN[key]) or (
                kind is not None and not kind.accepts(value)
            ):
                return False
            if not _like(value, DEFAULTS[key]):
                return False
    return True


def _keys(spec: TrainingSpec) -> Iterator[str]:
    """The dotted keys of the leaves of MODEL and INPUT."""
    stack: list[tuple[str, Node | None]] = [(name, spec.root.get(name)) for name in ("INPUT", "MODEL")]
    while stack:
        path, node = stack.pop()
        if node is None:
            continue
        if isinstance(node.value, dict):
            stack += [(f"{path}.{key}", child) for key, child in node.value.items()]
        else:
            yield path


def _concerns(key: str, found: dict[str, Any]) -> bool:
    if any(key.startswith(head) and not found[switch] for head, switch in _OPTIONAL.items()):
        return False
    kind = found["MODEL.META_ARCHITECTURE"]
    if kind == "RetinaNet" and key.startswith(("MODEL.ROI_", "MODEL.RPN.", "MODEL.PROPOSAL_")):
        return False
    if kind == "ProposalNetwork" and key.startswith("MODEL.ROI_"):
        return False
    return all(not key.startswith(head) or kind == wanted for head, wanted in _OF_ARCHITECTURE.items())


def _like(value: Any, default: Any) -> bool:
    """Whether a value is of the kind that the library's default is."""
    if isinstance(default, tuple):
        return isinstance(value, tuple) and (not default or all(_like(one, default[0]) for one in value))
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(value, bool) and isinstance(default, bool)
    if isinstance(default, (int, float)):
        return isinstance(value, (int, float))
    return isinstance(value, type(default))


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, (list, tuple)) else value


def _plain(spec: TrainingSpec, key: str) -> Any:
    node = spec.root.get(key)
    return None if node is None else _read(node)


def _read(node: Node) -> Any:
    """What a key says: of words the value that Python would read (yacs 0.1: config.py, _decode_cfg_value), which
    matters of those that a YAML file cannot say, tuples."""
    value = node.plain()
    if not isinstance(value, str) or value[:1] not in ("(", "[") or len(value) > _LONGEST_WORDS:
        return value
    import ast

    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return value


def _data(spec: TrainingSpec) -> str:
    return str(_plain(spec, "DATASETS.TRAIN")).lower()


def _image_size(spec: TrainingSpec, settings: dict[str, Any]) -> None:
    """(height, width) of the largest batch: an image wider than high fills the largest of the short sides and the
    longest side, and batches are of images that all are wider than high, or none is (``ASPECT_RATIO_GROUPING``)."""
    short, longest = _plain(spec, _SHORT), _plain(spec, _LONGEST)
    sides = [one for one in (short if isinstance(short, (list, tuple)) else (short,)) if isinstance(one, int)]
    height, width = max(sides, default=_DEFAULT_SHORT), longest if isinstance(longest, int) else _DEFAULT_LONGEST
    if _plain(spec, "DATALOADER.ASPECT_RATIO_GROUPING") is False:
        height = max(height, width)
    side = min(height, width)
    size, square = [side, width] if width >= height else [width, width], [side, side]
    if settings["MODEL.BACKBONE.NAME"] != "build_resnet_backbone":
        size, square = ([-(-side // DIVISOR) * DIVISOR for side in sides] for sides in (size, square))
    node = spec.root.get(_LONGEST) or spec.root.get(_SHORT)
    reason = "the largest of the short sides, and the longest side"
    origin = DEFAULT if node is None else WRITTEN
    if _REGISTERED.search(_data(spec)) is None:
        origin, reason = ASSUMED, f"{reason}: images of other data may be less wide"
        put(spec, SIZE_BETWEEN, (square, size), reason="of other data")
    spec.facts["image_size"] = Fact("image_size", size, origin, "" if node is None else node.shown_path, node, reason)


def _unknown(spec: TrainingSpec) -> str:
    """Why there is no estimate besides the model; "" where there may be one."""
    item = gap(spec, "IMS_PER_BATCH")
    if item is not None:
        return f"{item.key} is not known: {item.reason}"
    optimizer = _plain(spec, "SOLVER.OPTIMIZER") or _plain(spec, "SOLVER.TYPE")
    if optimizer is not None and str(optimizer).upper() != "SGD":
        return f"SOLVER.OPTIMIZER {optimizer} is a program's own: {VERSION} has SGD alone"
    return ""
