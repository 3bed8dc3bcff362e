"""The parts that OpenMMLab's libraries have below ``configs/_base_``, where a config builds on one that is not there: a
project that is laid over a library's checkout has only its own. What decides about memory, in this project's words.

Source: mmdet 2.28 and 3.3, mmseg 0.30 and 1.2, ``configs/_base_/datasets``, ``schedules`` and ``default_runtime.py``.
"""

from __future__ import annotations

from typing import Any

from memlint.documents.node import Node, Span

_MMENGINE = ("optim_wrapper", "train_dataloader", "train_cfg =", "train_cfg=")
Sides = tuple[int, int]

# Data sets to find objects in: the scales that images are fitted into, and images of a device.
_DETECTION: dict[str, tuple[str, tuple[Sides, ...], int]] = {
    **{
        f"coco_{task}.py": ("CocoDataset", ((1333, 800),), 2) for task in ("detection", "instance", "instance_semantic")
    },
    "coco_panoptic.py": ("CocoPanopticDataset", ((1333, 800),), 2),
    "voc0712.py": ("VOCDataset", ((1000, 600),), 2),
    **{
        f"cityscapes_{task}.py": ("CityscapesDataset", ((2048, 800), (2048, 1024)), 1)
        for task in ("detection", "instance")
    },
}
# Data sets of which pixels are classified: the scale, what is cut out of it, and images of a device.
_SEGMENTATION: dict[str, tuple[str, Sides, Sides, int]] = {
    "ade20k.py": ("ADE20KDataset", (2048, 512), (512, 512), 4),
    "ade20k_640x640.py": ("ADE20KDataset", (2560, 640), (640, 640), 4),
    "cityscapes.py": ("CityscapesDataset", (2048, 1024), (512, 1024), 2),
    "cityscapes_1024x1024.py": ("CityscapesDataset", (2048, 1024), (1024, 1024), 2),
    "cityscapes_768x768.py": ("CityscapesDataset", (2049, 1025), (768, 768), 2),
    "cityscapes_769x769.py": ("CityscapesDataset", (2049, 1025), (769, 769), 2),
    "cityscapes_832x832.py": ("CityscapesDataset", (2048, 1024), (832, 832), 2),
    "coco-stuff10k.py": ("COCOStuffDataset", (2048, 512), (512, 512), 4),
    "coco-stuff164k.py": ("COCOStuffDataset", (2048, 512), (512, 512), 4),
    "isaid.py": ("iSAIDDataset", (896, 896), (896, 896), 4),
    "loveda.py": ("LoveDADataset", (2048, 512), (512, 512), 4),
    "pascal_context.py": ("PascalContextDataset", (520, 520), (480, 480), 4),
    "pascal_context_59.py": ("PascalContextDataset59", (520, 520), (480, 480), 4),
    "pascal_voc12.py": ("PascalVOCDataset", (2048, 512), (512, 512), 4),
    "pascal_voc12_aug.py": ("PascalVOCDataset", (2048, 512), (512, 512), 4),
    "potsdam.py": ("PotsdamDataset", (512, 512), (512, 512), 4),
    "vaihingen.py": ("ISPRSDataset", (512, 512), (512, 512), 4),
}
_EPOCHS = {"schedule_1x.py": 12, "schedule_20e.py": 20, "schedule_2x.py": 24}
_STEPS = {f"schedule_{thousands}k.py": thousands * 1000 for thousands in (20, 40, 80, 160, 240, 320)}


def root_of(path: str, text: str, place: Span) -> Node | None:
    """What a library's part says that a config names at ``place``, where it stands there; None for a file that is none
    of theirs. ``text``: of the config, which tells the libraries' newer keys from the older ones."""
    folder, _, name = path.replace("\\", "/").rpartition("/")
    if name == "default_runtime.py" and folder.endswith("_base_"):
        return _tree({}, place)
    above, _, kind = folder.rpartition("/")
    if not above.endswith("_base_") or kind not in ("datasets", "schedules"):
        return None
    found = (_data if kind == "datasets" else _schedule)(name, any(word in text for word in _MMENGINE))
    return None if found is None else _tree(found, place)


def _data(name: str, is_new: bool) -> dict[str, Any] | None:
    pipeline: list[dict[str, Any]]
    key = "scale" if is_new else "img_scale"
    if name in _DETECTION:
        data, scales, batch = _DETECTION[name]
        pipeline = [{"type": "Resize", key: list(map(list, scales)) if len(scales) > 1 else list(scales[0])}]
    elif name in _SEGMENTATION:
        data, scale, crop, batch = _SEGMENTATION[name]
        pipeline = [{"type": "Resize", key: list(scale)}, {"type": "RandomCrop", "crop_size": list(crop)}]
    else:
        return None
    dataset = {"type": data, "pipeline": pipeline}
    if is_new:
        return {"train_pipeline": pipeline, "train_dataloader": {"batch_size": batch, "dataset": dataset}}
    return {"train_pipeline": pipeline, "data": {"samples_per_gpu": batch, "train": dataset}}


def _schedule(name: str, is_new: bool) -> dict[str, Any] | None:
    epochs, steps = _EPOCHS.get(name), _STEPS.get(name)
    if epochs is None and steps is None:
        return None
    decay = 0.0005 if epochs is None else 0.0001
    optimizer = {"type": "SGD", "lr": 0.01 if epochs is None else 0.02, "momentum": 0.9, "weight_decay": decay}
    length = {"max_epochs": epochs} if epochs is not None else {"max_iters": steps}
    if is_new:
        return {"optim_wrapper": {"type": "OptimWrapper", "optimizer": optimizer}, "train_cfg": length}
    kind = "IterBasedRunner" if epochs is None else "EpochBasedRunner"
    return {"optimizer": optimizer, "optimizer_config": {}, "runner": {"type": kind, **length}}


def _tree(value: Any, span: Span) -> Node:
    if isinstance(value, dict):
        return Node({name: _tree(inner, span) for name, inner in value.items()}, span)
    if isinstance(value, list):
        return Node([_tree(inner, span) for inner in value], span)
    return Node(value, span)
