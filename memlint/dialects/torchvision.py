"""Family torchvision: ``references/classification/train.py``, of a model whose program ships.

Source: torchvision 0.28.0 (``references/classification``: ``train.py``, ``utils.py``).
"""

from __future__ import annotations

from memlint.data import programs
from memlint.dialects import key_facts
from memlint.dialects import language_model as lm
from memlint.dialects.accelerate import truth
from memlint.facts.spec import ASSUMED, DEFAULT, HYPER, Fact, Name, TrainingSpec

spell = key_facts.spell

_SOURCE = "torchvision 0.28: references/classification/train.py"
# What the script takes -> torch's own.
OPTIMIZERS = {"sgd": "sgd", "sgd_nesterov": "sgd", "rmsprop": "rmsprop", "adamw": "adamw"}
_CLASSES = HYPER + "num_classes"


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
