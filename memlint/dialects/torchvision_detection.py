"""Family torchvision-detection: ``references/detection/train.py``.

Source: torchvision 0.28.0 (``references/detection``: ``train.py``, ``presets.py``; ``models/detection``:
``faster_rcnn.py``, ``backbone_utils.py``).
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from memlint.dialects import key_facts
from memlint.dialects import language_model as lm
from memlint.documents.node import Document, Node
from memlint.facts.spec import ASSUMED, DEFAULT, HYPER, Fact, Name, TrainingSpec
from memlint.releases import series

spell = key_facts.spell

ARCHITECTURE = "torchvision_detection"
_SOURCE = "torchvision 0.28: references/detection/train.py"
# Builders of detectors -> what is found beside boxes.
MODELS = {
    "fasterrcnn_resnet50_fpn": "boxes",
    "keypointrcnn_resnet50_fpn": "keypoints",
    "maskrcnn_resnet50_fpn": "masks",
}
# Data sets -> classes, with one of what is no object; and the objects of the fullest image: COCO's
# (instances_train2017.json), and as many persons as its evaluation of keypoints looks for in an image (pycocotools,
# ``cocoeval.py``: setKpParams).
CLASSES, FULLEST = {"coco": 91, "coco_kp": 2}, {"coco": 93, "coco_kp": 20}
# Ways to change images that leave them to be brought to 800 x 1333 afterwards.
AUGMENTATIONS = ("hflip", "multiscale")
OPTIMIZERS = {"sgd": "sgd", "sgd_nesterov": "sgd", "adamw": "adamw"}
# (height, width) of the largest batch: ``min_size`` and ``max_size`` of the builders, filled up to multiples of 32.
SIZE = [800, 1344]
ALL_LAYERS, LAYERS = 5, 3  # that train: without weights to start from, and with some
_BOXES = HYPER + "boxes"
# The release before which FrozenBatchNorm2d is TorchScript (``ops/misc.py``): published runs of 0.3 took 1.9 GiB more
# than the same nets do without.
UNSCRIPTED = (0, 5)
# Options that no other train.py has.
_OWN = frozenset(("aspect_ratio_group_factor", "rpn_score_thresh", "trainable_backbone_layers", "use_copypaste"))


def recognise(document: Document, root: Node) -> bool:
    """Many programs are called train.py: a detector's name tells, or an option, or the folder that it is in."""
    model = root.get("model")
    if model is not None and isinstance(model.value, str) and model.value in MODELS:
        return True
    names = {str(name).replace("-", "_") for name in root.value} if isinstance(root.value, dict) else set()
    return bool(_OWN & names) or any(
        command.called.endswith("references/detection/train.py")
        for command in document.commands
        if command.options.span == root.span
    )


def complete(spec: TrainingSpec) -> TrainingSpec:
    """Facts in the words of the vocabulary, and the model where it is known."""
    spec = key_facts.complete(spec)
    spec.unknown_reason = _unknown(spec)
    if spec.unknown_reason:
        return spec
    spec.architecture = ARCHITECTURE
    dataset = str(spec[HYPER + "dataset"])
    _put(spec, HYPER + "kind", MODELS[str(spec["model"])], _SOURCE)
    _put(spec, HYPER + "num_classes", CLASSES[dataset], _SOURCE)
    _put(spec, "parameter_dtype", "float32", _SOURCE)
    _backbone(spec)
    _put(spec, "image_size", list(SIZE), "min_size and max_size of the builder, filled up to multiples of 32")
    if _BOXES not in spec:
        reason = f"objects of the fullest image: as many as of {dataset}"
        spec.facts[HYPER + "boxes"] = Fact(_BOXES, FULLEST[dataset], ASSUMED, reason=reason)
    stated = spec.facts["optimizer"]
    spec.facts["optimizer"] = stated._replace(value=OPTIMIZERS[str(stated.value)])
    _put(spec, "optimizer_implementation", "foreach", "torch.optim on CUDA")
    return spec


def _backbone(spec: TrainingSpec) -> None:
    """Where it starts from trained weights, its norms are frozen and three of its five parts train."""
    starts = spec.does("torchvision.detectors_start_from_a_trained_backbone") or any(
        spec.get(HYPER + name) for name in ("weights_backbone", "weights", "pretrained")
    )
    stated: Any = spec.get(HYPER + "trainable_backbone_layers")
    trained = (LAYERS if stated is None else stated) if starts else ALL_LAYERS
    _put(spec, HYPER + "frozen_norms", bool(starts), _SOURCE)
    _put(spec, HYPER + "trained_layers", trained, _SOURCE)


def _unknown(spec: TrainingSpec) -> str:
    """Why there is no estimate; "" where there is one."""
    gap = lm.gap(spec, "batch_size", "model", "dataset")
    if gap is not None:
        return f"{gap.key} is not known: {gap.reason}"
    stated: tuple[tuple[Name, Container[str], str], ...] = (
        ("model", MODELS, "a detector"),
        (HYPER + "dataset", CLASSES, "a data set"),
        (HYPER + "data_augmentation", AUGMENTATIONS, "a way to change images"),
        ("optimizer", OPTIMIZERS, "an optimizer"),
    )
    for fact, known, what in stated:
        if str(spec.get(fact)) not in known:
            return f"{spec.get(fact)} is {what} that memlint does not know"
    if spec.get(HYPER + "use_copypaste"):
        return "--use-copypaste puts objects into images, which memlint does not know"
    pinned = series(spec.get("release.torchvision"))
    if pinned is not None and pinned < UNSCRIPTED:
        return "torchvision before 0.5 has norms of TorchScript, whose gradients keep what memlint does not know"
    return ""


def _put(spec: TrainingSpec, name: Name, value: object, reason: str) -> None:
    if spec.get(name) is None:
        spec.facts[name] = Fact(name, value, DEFAULT, reason=reason)
