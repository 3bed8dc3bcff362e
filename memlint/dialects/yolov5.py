"""Family yolov5: what its schema cannot say. Nets are known by the names of ``--weights`` and ``--cfg``.

Source: yolov5 5081342 (``train.py``, ``segment/train.py``, ``classify/train.py``).
"""

from __future__ import annotations

import re

from memlint.architectures.yolo import CLASSIFY, DETECT, SEGMENT
from memlint.dialects import key_facts, ultralytics
from memlint.dialects.accelerate import truth
from memlint.dialects.stated import gap, put
from memlint.documents.node import Unresolved
from memlint.facts.spec import HYPER, TrainingSpec

spell = key_facts.spell

_NAME = re.compile(r"yolov5([nsmlx])(-seg|-cls)?(?:\.(?:pt|ya?ml))?")
_PROGRAMS = {"segment": SEGMENT, "classify": CLASSIFY}
_DEFAULTS = {DETECT: "yolov5s.pt", SEGMENT: "yolov5s-seg.pt", CLASSIFY: "yolov5s-cls.pt"}
NETS = "yolov5n, s, m, l and x are"
# Options that make another net or another loop -> what is not known.
_OTHERWISE = {
    "evolve": "a search over hyperparameters",
    "quad": "four images as one",
    "cutoff": "a classifier behind another layer",
    "no-overlap": "masks that are apart",
    "no_overlap": "masks that are apart",
}
CLASSIFIER_BATCH, CLASSIFIER_SIZE = 64, 224


def complete(spec: TrainingSpec) -> TrainingSpec:
    """Facts in the words of the vocabulary, and the net where its name is known."""
    spec = key_facts.complete(spec)
    called = "" if spec.launch is None else spec.launch.called
    task = next((task for folder, task in _PROGRAMS.items() if re.search(rf"\b{folder}[/.]", called)), DETECT)
    reason = _net(spec, task) or _unknown(spec, task)
    if not reason:
        put(spec, HYPER + "net", "v5", reason="yolov5's own programs")
        put(spec, HYPER + "task", task, reason="the program that the command starts")
        if task == CLASSIFY:
            _of_classifiers(spec)
        count = ultralytics.devices(ultralytics.value(spec, "device"))
        if count > 1 and "device_count" not in spec:
            reason = "--device names several cards, which DataParallel shares without torchrun: that is not known"
        reason = reason or ultralytics.describe(spec, task, True, count)
    spec.unknown_reason = reason
    spec.architecture = None if reason else ultralytics.ARCHITECTURE
    return spec


def _net(spec: TrainingSpec, task: str) -> str:
    """The letter of the net as a fact; why it is not known, or ""."""
    from memlint.dialects import companions

    keys = ("model",) if task == CLASSIFY else ("cfg", "weights")
    key, name = next(((key, found) for key in keys if (found := ultralytics.value(spec, key))), ("weights", ""))
    if isinstance(name, Unresolved):
        return f"{key} is not known: {name.reason}"
    name = str(name or _DEFAULTS[task])
    last = name.rstrip("/").rpartition("/")[2]
    found = _NAME.fullmatch(last)
    if found is None:
        return f"{key} {name}: no net of YOLOv5 that is known by its name; {NETS}: {key_facts.WAY_OUT}"
    if last.endswith(("yaml", "yml")) and companions.find(name, spec.document.path) is not None:
        return f"{key} {name}: a file of this repository, which may say another net than yolov5's own"
    spec.model_name = last
    put(spec, HYPER + "scale", found[1], spec.fact("model"), "by its name")
    return ""


def _unknown(spec: TrainingSpec, task: str) -> str:
    for key in ("batch-size", "batch_size", "batch", "imgsz", "img", "img-size", "device", "freeze", "optimizer"):
        item = gap(spec, key)
        if item is not None:
            return f"{item.key} is not known: {item.reason}"
    for key, what in _OTHERWISE.items():
        stated = ultralytics.value(spec, key)
        if stated not in (None, False) and not (isinstance(stated, str) and stated.lower() == "false"):
            return f"--{key}: {what} is not known"
    optimizer = spec.get("optimizer", "sgd")
    if optimizer not in ("sgd", "adam", "adamw"):
        return f"--optimizer {optimizer} is not known"
    if truth(ultralytics.value(spec, "sync-bn")) and spec.get("device_count", 1) > 1:
        return "--sync-bn: norms over several devices are not known"
    return ""


def _of_classifiers(spec: TrainingSpec) -> None:
    """``classify/train.py`` has defaults of its own, and an optimizer step for each batch."""
    source = "classify/train.py"
    size, whole, optimizer = spec.fact("image_size"), spec.fact("global_batch_size"), spec.fact("optimizer")
    if size is not None and size.node is None:
        put(spec, "image_size", CLASSIFIER_SIZE, size, source)
    if whole is not None and whole.node is None and spec.tried("global_batch_size") is None:
        put(spec, "global_batch_size", CLASSIFIER_BATCH, whole, source)
    if optimizer is not None and optimizer.node is None:
        put(spec, "optimizer", "adam", optimizer, source)
