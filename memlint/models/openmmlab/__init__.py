"""Models of OpenMMLab's libraries, built from the dictionaries of their configs as the libraries build them.

A class is here as modules over the meta tensors, under its own name and with its own arguments; what it computes was
read from the library's code at the releases that its file names. Where a class, or an argument, is not here, the run
is UNKNOWN by the key of the dictionary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memlint.facts.spec import HYPER, TrainingSpec
from memlint.meta.nn import Module
from memlint.meta.tensor import DTYPES, Tensor, empty, int64, state
from memlint.models import UnknownModel
from memlint.models.cards import without_tf32
from memlint.models.openmmlab import (  # noqa: F401 - they enter their classes
    action_detection,
    anchors3d,
    centers,
    context_heads,
    convnext,
    dense_heads,
    detection,
    detectors,
    dgcnn,
    groupfree,
    h3dnet,
    paconv,
    pillars,
    point_rcnn,
    pointnet,
    pv_rcnn,
    pyramids,
    recognizers,
    regnet,
    resnet,
    resolutions,
    rotated,
    scenes,
    segformer,
    segmentation,
    skeletons,
    sparse,
    transformers,
    video_transformers,
    videos,
    videos3d,
    votes,
)
from memlint.models.openmmlab.bricks import NaiveSyncBatchNorm
from memlint.models.openmmlab.registry import build as built
from memlint.models.openmmlab.registry import class_of, fitting
from memlint.models.system import System

LIBRARY = True


def build(spec: TrainingSpec) -> System:
    """The System of an OpenMMLab config. Facts: those of ``schemas/openmmlab.schema.json``."""
    return system(spec, _whole)


def _whole(spec: TrainingSpec) -> Module:
    stated = dictionary(spec)
    model: Module = fitting(lambda: built(stated, "model", _library(stated)))
    return model


def system(spec: TrainingSpec, make: Callable[[TrainingSpec], Module]) -> System:
    """What trains a model of these libraries."""
    state.softmax_keeps_input = spec.does("torch.softmax_keeps_its_input")
    state.adds_apart = not spec.does("torch.adds_gradients_in_place")
    state.group_norm_in_two = spec.does("torch.group_norm_by_batch_norm")
    state.transforms_tiles = without_tf32(spec)
    model = make(spec)
    for one in model.modules():
        if isinstance(one, NaiveSyncBatchNorm):
            one.devices = spec.get("device_count", 1)
    optimizer = spec.get("optimizer", "sgd")
    options: dict[str, Any] = {"implementation": spec.get("optimizer_implementation", "foreach")}
    if optimizer == "sgd":
        options |= {name: bool(spec.get(HYPER + name)) for name in ("momentum", "weight_decay")}
    compute = spec.get("compute_dtype", "float32")
    return System(
        model=model,
        batch=_batch(spec, model),
        loss=lambda given: fitting(lambda: model(*given)),
        optimizer=optimizer,
        optimizer_options=options,
        accumulation=spec.get("gradient_accumulation_steps", 1),
        autocast=DTYPES[compute] if compute != "float32" else None,
        apex=compute != "float32" and bool(spec.get(HYPER + "apex")),
        ema=(model,) if spec.get("ema", False) else (),
        keeps_gradients=_keeps_gradients(spec),
        uses=frozenset({"matmul", "convolution"}),
    )


def _batch(spec: TrainingSpec, model: Module) -> Callable[[], Any]:
    if isinstance(model, scenes.PointModel):
        return _of_points(spec, model)
    if isinstance(model, action_detection.ActionDetector):
        return _of_boxed_clips(spec)
    return _of_clips(spec) if isinstance(model, recognizers.Recognizer) else _of_images(spec, model)


def _of_boxed_clips(spec: TrainingSpec) -> Callable[[], tuple[Tensor, int]]:
    """A batch of clips, and how many boxes each of them has."""
    shape = (spec["micro_batch_size"], *spec[HYPER + "sample_shape"], *spec["image_size"])
    return lambda: (empty(shape), spec[HYPER + "boxes"])


def _of_clips(spec: TrainingSpec) -> Callable[[], tuple[Tensor, list[Tensor]]]:
    """A batch of samples of a video, with a label for each. A sample that is repeated is several."""
    size = spec["micro_batch_size"] * spec.get(HYPER + "sample_repeats", 1)
    shape = (size, *spec[HYPER + "sample_shape"], *spec.get("image_size", ()))

    def batch() -> tuple[Tensor, list[Tensor]]:
        return empty(shape), [empty((1,), int64) for _ in range(size)]

    return batch


def _of_images(spec: TrainingSpec, model: Module) -> Callable[[], tuple[Tensor, Any]]:
    """A batch of images with their labels, or with what is known of their objects."""
    size: int = spec["micro_batch_size"]
    if "image_size" not in spec:  # of points, whose model is known in part
        raise UnknownModel("how large its images are is not known")
    height, width = spec["image_size"]
    one_by_one = spec.get(HYPER + "dialect") != "mmcv"
    in_full = not one_by_one and spec.get("compute_dtype") == "float16"
    boxes = detection.Boxes(spec.get(HYPER + "boxes", 0), height, width, in_full)

    def batch() -> tuple[Tensor, Any]:
        images = empty((size, 3, height, width))
        if isinstance(model, detectors.Detector):
            return images, boxes
        if one_by_one:  # mmseg 1.x: a sample keeps its labels
            return images, [empty((1, height, width), int64) for _ in range(size)]
        return images, empty((size, 1, height, width), int64)

    return batch


def _of_points(spec: TrainingSpec, model: scenes.PointModel) -> Callable[[], tuple[Any, scenes.Scenes]]:
    """A batch of scenes: their points, what the preprocessor makes of them, and what is known of each."""
    size: int = spec["micro_batch_size"]
    points, features = (spec.get(name, 0) for name in (HYPER + "scene_points", HYPER + "point_features"))
    voxels, boxes = (spec.get(name, 0) for name in (HYPER + "voxels", HYPER + "boxes"))
    each = scenes.Scenes(points, features, voxels, boxes, spec.get(HYPER + "voxels_alone", scenes.ALONE))

    def batch() -> tuple[Any, scenes.Scenes]:
        points = [empty((each.points, each.features)) for _ in range(size)]
        return fitting(lambda: model.prepared(points, each)), each

    return batch


def dictionary(spec: TrainingSpec) -> dict[str, Any]:
    """The model's, with its backbone recomputed where the run is looked at so."""
    stated: dict[str, Any] = spec[HYPER + "model_dictionary"]
    backbone = stated.get("backbone")
    if spec.get("checkpointing") != "full" or not isinstance(backbone, dict):
        return stated
    return {**stated, "backbone": {**backbone, transformers.recomputes_by(class_of(backbone)): True}}


def _library(stated: dict[str, Any]) -> str:
    """Whose class is meant where two libraries have one of a name: that of the heads, which go with it."""
    head = stated.get("roi_head")
    return recognizers.SCOPE if isinstance(head, dict) and head.get("type") in action_detection.HEADS else ""


def _keeps_gradients(spec: TrainingSpec) -> bool:
    """mmcv's OptimizerHook lets gradients go before the backward pass, so the forward pass meets the last step's;
    mmengine's OptimWrapper after the step. (mmcv 1.7, ``runner/hooks/optimizer.py``: after_train_iter; mmengine 0.10,
    ``optim/optimizer/optimizer_wrapper.py``: update_params) So does the hook of Swin's authors, which has a switch for
    apex (Swin-Transformer-Object-Detection, ``mmdet/utils/optimizer.py``: DistOptimizerHook)."""
    if spec.get(HYPER + "apex") is not None:
        return spec.does("torch.keeps_gradients_as_zeros")
    return spec.get(HYPER + "dialect") == "mmcv" or spec.does("torch.keeps_gradients_as_zeros")
