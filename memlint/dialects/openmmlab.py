"""Family openmmlab: what its schema cannot say. mmengine's dialect (mmseg 1.x, mmdet 3.x, mmpretrain 1.x, mmdet3d 1.x)
and mmcv's before it (``data``, ``optimizer``, ``runner``)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

from memlint.dialects import key_facts, openmmlab_objects, openmmlab_scenes, openmmlab_videos, sharing
from memlint.dialects.insertion import add
from memlint.dialects.schema import Key
from memlint.dialects.stated import gap, put
from memlint.documents.node import Document, Edit, Node, Unresolved
from memlint.facts.spec import ASSUMED, DEFAULT, HYPER, WRITTEN, Fact, Name, TrainingSpec

ARCHITECTURE = "openmmlab"
MODEL, DIALECT = HYPER + "model_dictionary", HYPER + "dialect"
MMENGINE, MMCV = "mmengine", "mmcv"
# The models of which there may be an estimate (memlint/models/openmmlab): whether a sample is a crop.
CROPPED = frozenset(("CascadeEncoderDecoder", "EncoderDecoder"))
FITTED = frozenset(
    (
        *("ATSS", "CascadeRCNN", "FasterRCNN", "FastRCNN", "FCOS", "GFL", "MaskRCNN", "RetinaNet", "RPN"),
        *("SingleStageDetector", "TwoStageDetector", "RotatedRetinaNet", "RotatedSingleStageDetector"),
    )
)
# Detectors of mmdet 2.28 and 3.3 (``models/detectors``) under whose heads nobody here is at home: their backbone, which
# trains with them, says what they take at least (memlint/models/openmmlab/least.py).
UNDER_HEADS = frozenset(
    (
        *("AutoAssign", "BoxInst", "ConditionalDETR", "CondInst", "CrowdDet", "DABDETR", "DDOD", "DDQDETR", "DETR"),
        *("DeformableDETR", "DINO", "FOVEA", "FSAF", "GridRCNN", "HybridTaskCascade", "Mask2Former", "MaskFormer"),
        *("MaskScoringRCNN", "NASFCOS", "PAA", "PanopticFPN", "PointRend", "QueryInst", "RepPointsDetector"),
        *("RTMDet", "SCNet", "SOLO", "SOLOv2", "SparseRCNN", "TOOD", "TridentFasterRCNN", "VFNet", "YOLACT", "YOLOF"),
    )
)
# Hooks that build the model anew before it trains (mmcv 2.1, ``cnn/rfsearch/hook.py``).
CHANGES_THE_MODEL = ("RFSearchHook",)
# Keys that hold the sizes that an image is fitted into, one or several.
_SCALES = ("scale", "img_scale", "scales")
DIVISOR = 32
BOXES, BOXES_BETWEEN = HYPER + "boxes", HYPER + "boxes_between"
# Backbones whose blocks are recomputed with ``with_cp``.
RECOMPUTES = frozenset(
    ("ConvNeXt", "HRNet", "MixVisionTransformer", "ResNeXt", "ResNet", "ResNetV1c", "ResNetV1d", "SwinTransformer")
) | {"ResNet3d", "ResNet3dCSN", "ResNet3dSlowOnly", "SwinTransformer3D", "UNet", "VisionTransformer", "X3D"}
_THEIRS = "use_checkpoint"  # with_cp, of Swin's authors
# ``use_fp16`` of the same authors' hook: apex.amp.initialize (mmdet/apis/train.py), which calls the same functions in
# 16 bits, and the same in fp32, as autocast (apex/amp/lists).
_O1 = "apex.amp at O1"
# Hooks that step after several micro batches -> the argument that says how many.
_ACCUMULATES = {
    "GradientCumulativeOptimizerHook": "cumulative_iters",
    "GradientCumulativeFp16OptimizerHook": "cumulative_iters",
    "DistOptimizerHook": "update_interval",  # of Swin's authors (mmdet/utils/optimizer.py)
}
_HOOK = Key(("optimizer_config",), ("optimizer_config",), {}, {})
_WRAPPER, _HALF = HYPER + "optim_wrapper", HYPER + "amp_dtype"
# Where samples are made: the list of transforms, and the keys of what wraps one dataset in another.
_DATASETS = ("train_dataloader.dataset", "data.train")
_WRAPPED = ("dataset", "datasets")
# The folder of the parts that configs build on, the findings that say that a base is not known, and words of a text
# that may set a model in a way that the reader does not follow.
_BASES, _UNREAD, _MAY_SET = "_base_", ("MEM003", "MEM004"), ("read_base", "model =", "model=")
# Keys of which a run has one: what it reads, what steps, how long.
_TRAINS = (
    *("data", "train_dataloader", "optimizer", "optim_wrapper", "runner", "total_epochs"),
    *("train_cfg.max_epochs", "train_cfg.max_iters"),
)
# Transform -> the argument that says the size of what comes out, and whether that is (width, height).
_SIZES: dict[str, tuple[tuple[str, bool], ...]] = {
    "RandomCrop": (("crop_size", False),),
    "Pad": (("size", False),),
    "RandomResizedCrop": (("scale", False), ("size", False)),
    "CenterCrop": (("crop_size", False),),
}
# "4xb2", "8x2": so many devices, so many samples on each
_DEVICES = re.compile(r"(?:^|[_-])(\d{1,3})xb?(\d{1,5})(?=[_.-])")


def recognise(document: Document, root: Node) -> bool:
    """A run, and no part of one. A ``model`` that is a name is made by a program of somebody's own that reads mmcv's
    configs: these libraries make it of a mapping."""
    model = root.get("model")
    is_one = model is None or model.is_mapping or isinstance(model.value, Unresolved)
    return is_one and not part(document, root)


def part(document: Document, root: Node) -> str:
    """Why a file is only one that others build on: what it lacks; "" for a run. What a base sets that could not be read
    is not known, except below the folder of the bases themselves."""
    is_base = _BASES in os.path.normpath(document.path).split(os.sep)
    if not is_base and any(fault.code in _UNREAD for fault in document.faults):
        return ""
    if root.get("model") is None:
        told = any(word in document.text for word in _MAY_SET)
        return "" if told and not is_base else "a part that other configs build on: it has no model"
    if any(root.get(key) is not None for key in _TRAINS):
        return ""
    return "a part that other configs build on: it has neither data nor an optimizer nor a runner"


def complete(spec: TrainingSpec) -> TrainingSpec:
    """Architecture, the facts that several keys make together, and why there is no estimate where there is none."""
    spec = key_facts.complete(spec)
    _dialect(spec)
    _model(spec)
    if MODEL not in spec:
        return spec
    _optimizer(spec)
    _accumulation(spec)
    _switched_off(spec)
    _image_size(spec)
    _devices(spec)
    reason = _switches(spec) or _unknown(spec)
    if spec[MODEL]["type"] in UNDER_HEADS:
        spec.architecture_at_least = "" if reason else ARCHITECTURE
        return spec
    spec.architecture = None if reason else ARCHITECTURE
    spec.unknown_reason = reason
    return spec


def spell(spec: TrainingSpec, fact: Name, value: Any) -> list[Edit] | None:
    """mmcv's hooks know other keys than mmengine's wrapper of the optimizer."""
    known = spec.fact(fact)
    if fact in (_WRAPPER, _HALF):
        return None
    if fact == "checkpointing" and (known is None or known.node is None) and _is_of_swin_s_authors(spec):
        from memlint.dialects import registry

        (key,) = [key for key in registry.dialect(spec.family).keys_of(fact) if key.path[-1] == _THEIRS]
        return add(spec, key, value == "full")
    if fact == "compute_dtype" and spec.get(DIALECT) == MMENGINE and known is not None and known.origin == DEFAULT:
        edits = _write(spec, _WRAPPER, "AmpOptimWrapper")
        return [*edits, *_write(spec, _HALF, value)] if edits and value != "float16" else edits
    if fact == "gradient_accumulation_steps" and spec.get(DIALECT) == MMCV and (known is None or known.node is None):
        hook = spec.root.get("optimizer_config")
        if spec.root.get("fp16") is not None or (hook is not None and hook.value not in (None, {})):
            return []  # of the first the library makes a hook of its own; the other is one already
        return add(spec, _HOOK, {"type": next(iter(_ACCUMULATES)), "cumulative_iters": value})
    return key_facts.spell(spec, fact, value)


def _is_of_swin_s_authors(spec: TrainingSpec) -> bool:
    """Whether a backbone is made by the authors' code, which has another name for ``with_cp``."""
    backbone = spec.root.get("model.backbone")
    return backbone is not None and any(backbone.get(name) is not None for name in ("embed_dim", "ape", "in_chans"))


def _write(spec: TrainingSpec, name: Name, value: Any) -> list[Edit]:
    from memlint.dialects.spelling import spell as generic

    return generic(spec, name, value)


def _accumulation(spec: TrainingSpec) -> None:
    """mmcv 1.7, ``runner/hooks/optimizer.py``; nothing there asks for mmengine's ``accumulative_counts``."""
    if spec.get(DIALECT) != MMCV or spec.tried("gradient_accumulation_steps"):
        return
    hook = spec.root.get("optimizer_config.type")
    argument = _ACCUMULATES.get(str(hook.value)) if hook is not None else None
    count = spec.root.get(f"optimizer_config.{argument}") if argument else None
    if count is not None and isinstance(count.value, int):
        stated = Fact("gradient_accumulation_steps", count.value, WRITTEN, f"optimizer_config.{argument}", count)
        spec.facts["gradient_accumulation_steps"] = stated


def _switched_off(spec: TrainingSpec) -> None:
    """What a config that says nothing of it does without."""
    backbone = spec.root.get("model.backbone.type")
    if "checkpointing" not in spec and backbone is not None and str(backbone.value) in RECOMPUTES:
        spec.facts["checkpointing"] = Fact("checkpointing", "none", DEFAULT, "model.backbone.with_cp", reason="with_cp")
    apex = spec.fact(HYPER + "apex")
    if "compute_dtype" not in spec and apex is not None and apex.value:
        put(spec, "compute_dtype", "float16", apex, _O1)
    if "compute_dtype" not in spec:
        reason = "neither AmpOptimWrapper nor fp16"
        spec.facts["compute_dtype"] = Fact("compute_dtype", "float32", DEFAULT, reason=reason)


def _dialect(spec: TrainingSpec) -> None:
    new = any(spec.root.get(key) is not None for key in ("train_dataloader", "optim_wrapper", "train_cfg.type"))
    spec.facts[HYPER + "dialect"] = Fact(DIALECT, MMENGINE if new else MMCV, DEFAULT, reason="of the keys that it has")


def _model(spec: TrainingSpec) -> None:
    node = spec.root.get("model")
    if (
        node is not None
        and node.is_mapping
        and (kind := node.get("type")) is not None
        and (
            str(kind.value) in CROPPED | FITTED | UNDER_HEADS | openmmlab_scenes.MODELS | openmmlab_videos.MODELS
            or openmmlab_videos.is_detector(node)
        )
    ):
        spec.facts[HYPER + "model_dictionary"] = Fact(MODEL, node.plain(), WRITTEN, "model", node)


def _optimizer(spec: TrainingSpec) -> None:
    """With ``paramwise_cfg`` each parameter is a group of its own, and nothing is done for a list of them (mmengine
    0.10, ``optim/optimizer/default_constructor.py``: add_params)."""
    one_each = next((found for key in _PARAMWISE if (found := spec.root.get(key)) is not None and found.value), None)
    if one_each is not None:
        name: Name = "optimizer_implementation"
        spec.facts[name] = Fact(name, "loop", WRITTEN, one_each.key_path, one_each, "each parameter is a group")


_PARAMWISE = ("optim_wrapper.paramwise_cfg", "optimizer.paramwise_cfg")


def _image_size(spec: TrainingSpec) -> None:
    """(height, width) of what a batch is made of: the last transform that says a size, or the preprocessor's."""
    spec.facts.pop("image_size", None)
    kind = spec[MODEL]["type"]
    if kind in openmmlab_scenes.MODELS:
        openmmlab_scenes.complete(spec, kind, list(_transforms(spec)), _dataset(spec))
        return
    if _is_of_videos(spec):
        openmmlab_videos.complete(spec, list(_transforms(spec)), _dataset_node(spec))
        return
    if kind in FITTED | UNDER_HEADS:
        _fitted_size(spec)
        if BOXES not in spec:
            _objects(spec)
        return
    found = _stated_size(spec)
    if found is not None:
        key, node, size = found
        spec.facts["image_size"] = Fact("image_size", size, WRITTEN, key, node)


def _is_of_videos(spec: TrainingSpec) -> bool:
    node = spec.root.get("model")
    return spec[MODEL]["type"] in openmmlab_videos.MODELS or (node is not None and openmmlab_videos.is_detector(node))


def _objects(spec: TrainingSpec) -> None:
    found = openmmlab_objects.fullest(_dataset_node(spec))
    reason = f"objects of the fullest image: {found.source}"
    spec.facts[HYPER + "boxes"] = Fact(BOXES, found.objects, ASSUMED, reason=reason)
    if found.between:
        spec.facts[BOXES_BETWEEN] = Fact(BOXES_BETWEEN, found.between, ASSUMED, reason="of other data")


def _fitted_size(spec: TrainingSpec) -> None:
    """(height, width) of the largest batch: images that are wider than high fill the largest scale (long side, short
    side), and are filled up to whole multiples of the coarsest stride (``pad_size_divisor``, ``Pad.size_divisor``).
    Batches are of images that all are wider than high, or none is (``AspectRatioBatchSampler``, ``GroupSampler``)."""
    largest: tuple[Node, list[int]] | None = None
    aspect = 0.0
    for transform in _transforms(spec):
        for node in transform.walk():
            aspect = max(aspect, _cut(node))
            pair = _pair(node.plain()) if isinstance(node.value, list) else None
            if pair is None or not any(key in node.shown_path for key in _SCALES):
                continue
            sides = [max(min(pair), largest[1][0] if largest else 0), max(max(pair), largest[1][1] if largest else 0)]
            largest = node, sides
    if largest is not None:
        node, sides = largest
        if aspect:
            sides = [min(int(sides[0] * aspect), sides[1])] * 2
        size = [-(-side // DIVISOR) * DIVISOR for side in sides]
        reason = "the largest scale, filled up to multiples of 32"
        spec.facts["image_size"] = Fact("image_size", size, WRITTEN, node.shown_path, node, reason)


def _cut(node: Node) -> float:
    """Of a transform that cuts pieces whose sides it draws from a range: how much longer one side may be than the
    other. Which one it is the sampler of batches does not know: a batch is filled up to both."""
    kind, cut, size = node.get("type"), node.get("crop_type"), node.get("crop_size")
    if kind is None or kind.value != "RandomCrop" or cut is None or cut.value != "absolute_range" or size is None:
        return 0.0
    pair = _pair(size.plain())
    return max(pair) / min(pair) if pair else 0.0


def _stated_size(spec: TrainingSpec) -> tuple[str, Node, list[int]] | None:
    for key in ("model.data_preprocessor.size", "data_preprocessor.size"):
        node = spec.root.get(key)
        size = None if node is None else _pair(node.plain())
        if node is not None and size is not None:
            return key, node, size
    last: tuple[str, Node, list[int]] | None = None
    for transform in _transforms(spec):
        kind = transform.get("type")
        for argument, turned in _SIZES.get(str(kind.value) if kind is not None else "", ()):
            node = transform.get(argument)
            size = None if node is None else _pair(node.plain())
            if node is not None and size is not None:
                last = node.shown_path, node, size[::-1] if turned else size
    return last


def _pair(value: Any) -> list[int] | None:
    both = [value, value] if isinstance(value, int) and not isinstance(value, bool) else value
    if isinstance(both, (list, tuple)) and len(both) == 2:
        height, width = both
        if isinstance(height, int) and isinstance(width, int) and height > 0 and width > 0:
            return [height, width]
    return None


def _transforms(spec: TrainingSpec) -> Iterator[Node]:
    """The dictionaries of the training pipeline, in order."""
    for key in _DATASETS:
        node = spec.root.get(key)
        if node is None:
            continue
        pipelines = list(_pipelines(node))
        if pipelines:
            yield from (one for one in pipelines[-1] if one.is_mapping)
            return
    node = spec.root.get("train_pipeline")
    if node is not None and isinstance(node.value, list):
        yield from (one for one in node.value if one.is_mapping)


def _dataset_node(spec: TrainingSpec) -> Node | None:
    return next((found for key in _DATASETS if (found := spec.root.get(key)) is not None), None)


def _dataset(spec: TrainingSpec) -> str:
    """The type of the innermost dataset that trains."""
    node = _dataset_node(spec)
    for _ in range(8):
        below = None if node is None else next((one for key in _WRAPPED if (one := node.get(key)) is not None), None)
        if below is None:
            break
        node = below
    kind = None if node is None else node.get("type")
    return str(kind.value) if kind is not None else ""


def _pipelines(node: Node, depth: int = 0) -> Iterator[Sequence[Node]]:
    """Those of a dataset, the one that it wraps first."""
    if depth > 8:
        return
    if isinstance(node.value, list):
        for one in node.value[:1]:
            yield from _pipelines(one, depth + 1)
        return
    for key in _WRAPPED:
        below = node.get(key)
        if below is not None:
            yield from _pipelines(below, depth + 1)
    own = node.get("pipeline")
    if own is not None and isinstance(own.value, list):
        yield own.value


def _devices(spec: TrainingSpec) -> None:
    """From the launcher, else from the file's name where it states this very batch (mmengine's docs, "Config name
    style": ``8xb2`` is eight devices with two samples each)."""
    name = os.path.basename(spec.document.path)
    stated = [(int(devices), int(samples)) for devices, samples in _DEVICES.findall(name)]
    batch = spec.get("micro_batch_size")
    if "device_count" not in spec:
        for devices, samples in stated:
            if samples == batch and devices:
                reason = f"the file's name says {devices} x {samples}"
                fact = Fact("device_count", devices, ASSUMED, reason=reason)
                put(spec, "device_count", devices, fact, reason)
                put(spec, "world_size", devices, fact, reason)
                if devices > 1:
                    put(spec, "parallelism.strategy", "ddp", fact, reason)
                break
    sharing.on_devices(spec)
    sharing.drop_what_no_strategy_reads(spec)


def _switches(spec: TrainingSpec) -> str:
    """What hooks do; why there is no estimate with them, or ""."""
    hooks = spec.take(HYPER + "hooks")
    listed = hooks.value if hooks is not None and isinstance(hooks.value, list) else []
    kinds = [hook.get("type") for hook in listed if isinstance(hook, dict)]
    if hooks is not None and any(isinstance(kind, str) and "EMA" in kind for kind in kinds):
        put(spec, "ema", True, hooks)
    if any(kind in CHANGES_THE_MODEL for kind in kinds):
        return "custom_hooks put other layers into the model, which memlint does not know: RFSearchHook"
    return ""


def _unknown(spec: TrainingSpec) -> str:
    """Why there is no estimate; "" where there may be one."""
    if "micro_batch_size" not in spec:
        item = gap(spec, "batch_size", "samples_per_gpu", "imgs_per_gpu", "videos_per_gpu")
        key = "train_dataloader.batch_size" if spec.get(DIALECT) == MMENGINE else "data.samples_per_gpu"
        return f"{key} is not stated" if item is None else f"{item.key} is not known: {item.reason}"
    if (item := gap(spec, "use_fp16")) is not None:
        return f"{item.key} is not known: {item.reason}"
    kind = spec[MODEL]["type"]
    if kind in openmmlab_scenes.MODELS:
        return openmmlab_scenes.unknown(spec, kind)
    if _is_of_videos(spec):
        return openmmlab_videos.unknown(spec)
    if "image_size" not in spec:
        size = "crop_size" if kind in CROPPED else "scale (img_scale) to fit images into"
        return f"train_pipeline states no {size}"
    return ""
