"""Family torchvision: ``references/classification/train.py``, of a model whose program ships.

Source: torchvision 0.28.0 (``references/classification``: ``train.py``, ``utils.py``).
"""

from __future__ import annotations

import re

from memlint.architectures.library_models import is_torchvisions_alone
from memlint.data import programs
from memlint.dialects import key_facts
from memlint.dialects import language_model as lm
from memlint.dialects.accelerate import truth
from memlint.documents.node import Document, Node
from memlint.facts.spec import ASSUMED, DEFAULT, HYPER, Fact, Name, TrainingSpec

spell = key_facts.spell

_SOURCE = "torchvision 0.28: references/classification/train.py"
# What the script takes -> torch's own.
OPTIMIZERS = {"sgd": "sgd", "sgd_nesterov": "sgd", "rmsprop": "rmsprop", "adamw": "adamw"}
_CLASSES = HYPER + "num_classes"
# Builders of detectors, which another program trains.
_DETECTOR = re.compile(r"(fasterrcnn|maskrcnn|keypointrcnn|retinanet|fcos|ssd300|ssdlite320)_")
# Options that timm's train.py does not have, and all others of the script.
_OWN = frozenset((
    *("lr_warmup_method", "lr_warmup_epochs", "lr_step_size", "lr_gamma", "lr_scheduler", "random_erase"),
    *("mixup_alpha", "cutmix_alpha", "train_crop_size", "model_ema_steps", "norm_weight_decay", "ra_sampler"),
    *("val_resize_size", "weights_backbone", "aux_loss", "wd"),
))  # fmt: skip
_OTHERS = frozenset((
    *("data_path", "model", "device", "batch_size", "b", "epochs", "workers", "j", "opt", "lr", "momentum"),
    *("weight_decay", "bias_weight_decay", "transformer_embedding_decay", "label_smoothing", "lr_warmup_decay"),
    *("lr_min", "print_freq", "output_dir", "resume", "start_epoch", "cache_dataset", "sync_bn", "test_only"),
    *("auto_augment", "ra_magnitude", "augmix_severity", "amp", "world_size", "dist_url", "model_ema"),
    *("model_ema_decay", "use_deterministic_algorithms", "interpolation", "val_crop_size", "clip_grad_norm"),
    *("ra_reps", "weights", "backend", "use_v2"),
))  # fmt: skip


def recognise(document: Document, root: Node) -> bool:
    """timm's program is called train.py, too, and has many of these options: its own ones tell, or its model's name,
    or the folder that it is in. That of detectors has its folder and its models."""
    model = root.get("model")
    if model is not None and isinstance(model.value, str) and _DETECTOR.match(model.value):
        return False
    if _OWN & _names(root) or is_meant(root):
        return True
    return any(
        command.called.endswith("references/classification/train.py")
        for command in document.commands
        if command.options.span == root.span
    )


def is_meant(root: Node) -> bool:
    """Whether a command whose options could be timm's names a model that torchvision alone has, and takes no option
    that torchvision's script does not."""
    model = root.get("model")
    named = model is not None and isinstance(model.value, str) and is_torchvisions_alone(model.value)
    return named and _names(root) <= _OWN | _OTHERS


def _names(root: Node) -> set[str]:
    return {str(name).replace("-", "_") for name in root.value} if isinstance(root.value, dict) else set()


def complete(spec: TrainingSpec) -> TrainingSpec:
    """Facts in the words of the vocabulary, and the model where its program ships."""
    spec = key_facts.complete(spec)
    model = spec.fact("model")
    if model is None or not isinstance(model.value, str):
        return spec
    name = f"torchvision/{model.value}"
    try:
        programs.value(name)
    except KeyError:
        return spec
    spec.unknown_reason = _unknown(spec)
    if spec.unknown_reason:
        return spec
    spec.architecture = "classifier"
    lm.put(spec, HYPER + "program", name, model)
    _put(spec, "parameter_dtype", "float32", _SOURCE)
    _put(spec, HYPER + "no_prefetcher", True, _SOURCE)
    if spec.get(_CLASSES) is None:
        reason = "as many classes as ImageNet has: the script counts the folders of its data"
        spec.facts[_CLASSES] = Fact(_CLASSES, 1000, ASSUMED, reason=reason)
    stated = spec.facts["optimizer"]
    spec.facts["optimizer"] = stated._replace(value=OPTIMIZERS[str(stated.value)])
    _put(spec, "optimizer_implementation", "foreach", "torch.optim on CUDA")
    return spec


def _unknown(spec: TrainingSpec) -> str:
    """Why there is no estimate; "" where there is one."""
    synchronised = spec.root.get("sync_bn") or spec.root.get("sync-bn")
    if spec.get("device_count", 1) != 1 and synchronised is not None and truth(synchronised.value):
        return "--sync-bn: norms over several devices are not known"
    gap = lm.gap(spec, "batch_size")
    if gap is not None:
        return f"{gap.key} is not known: {gap.reason}"
    optimizer = spec.get("optimizer", "sgd")
    return "" if optimizer in OPTIMIZERS else f"train.py takes no optimizer {optimizer!r}"


def _put(spec: TrainingSpec, name: Name, value: object, reason: str) -> None:
    if spec.get(name) is None:
        spec.facts[name] = Fact(name, value, DEFAULT, reason=reason)
