"""Family timm: its train.py, of a model whose program ships.

Source: timm 1.0.31 (``train.py``, ``timm/optim/_optim_factory.py``, ``timm/models/_builder.py``).
"""

from __future__ import annotations

import os

from memlint.architectures.library_models import CLASSES, timm_classes, timm_program, timm_side
from memlint.data import programs
from memlint.dialects import dit, key_facts, own_code, scripts, torchvision
from memlint.dialects import language_model as lm
from memlint.documents.node import Document, Node
from memlint.facts.spec import ASSUMED, DEFAULT, HYPER, Fact, Name, TrainingSpec

spell = key_facts.spell

_SOURCE = "timm 1.0: train.py"
# torch's own, which timm takes as they are: its name -> torch's. Others are written by timm.
OPTIMIZERS = {"sgd": "sgd", "nesterov": "sgd", "momentum": "sgd", "adam": "adam", "adamw": "adamw"}
# What timm's factory takes of its own, and of apex (``fused``): its name -> the optimizer's, and whose it is.
OF_LIBRARIES = {
    **dict.fromkeys(("lamb", "lambc", "lambw", "lambcw"), ("lamb", "timm")),
    **dict.fromkeys(("rmsproptf", "rmsproptfw"), ("rmsprop", "timm")),
    "fusedlamb": ("lamb", "apex"),
    **dict.fromkeys(("fusedadam", "fusedadamw"), ("adamw", "apex")),
}
# Options that make another model or another loop of it -> what is not known of it.
_OTHERWISE = {
    "torchscript": "a scripted model",
    "split_bn": "a norm for each part of a batch",
    "aug_splits": "several views of each sample",
    "jsd_loss": "the loss between views",
    "kd_model_name": "a teacher",
    "naflex_loader": "batches of so many patches",
    "train_img_sizes": "images of several sizes",
    "drop": "dropout before the last layer",
    "drop_connect": "stochastic depth by its older name",
    "drop_block": "dropped blocks of activations",
    "gp": "another pooling",
    "model_kwargs": "a model that is changed by arguments",
    "opt_kwargs": "an optimizer that is changed by arguments",
    "fast_norm": "norms in 16 bits",
}
_CLASSES = HYPER + "num_classes"
# With several devices alone.
_SYNCHRONISED = "sync_bn"


def recognise(document: Document, root: Node) -> bool:
    return not torchvision.is_meant(root) and not dit.is_meant(root)


def complete(spec: TrainingSpec) -> TrainingSpec:
    """Facts in the words of the vocabulary, and the model where its program ships."""
    spec = key_facts.complete(spec)
    model = spec.fact("model")
    if model is None or not isinstance(model.value, str):
        return spec
    registered = _registered(spec, model.value)
    if registered:
        what = f"the model {model.value} is this repository's own, in {registered}, which memlint does not know"
        spec.unknown_reason = f"{what}: {key_facts.WAY_OUT}"
        return spec
    name, _ = timm_program(model.value)
    try:
        own = programs.value(name)["sizes"]["H"]
    except KeyError:
        spec.unknown_reason = f"the model {model.value} is none of timm's that memlint knows: {key_facts.WAY_OUT}"
        return spec
    spec.unknown_reason = _unknown(spec, model.value)
    if spec.unknown_reason:
        return spec
    spec.architecture = "classifier"
    _size(spec, timm_side(model.value) or own, model.value)
    if spec.get(_CLASSES) is None and timm_classes(model.value) != CLASSES:
        reason = f"{model.value} has so many"
        spec.facts[_CLASSES] = Fact(_CLASSES, timm_classes(model.value), DEFAULT, "num_classes", reason=reason)
    _put(spec, "parameter_dtype", "float32")
    _optimizer(spec)
    if spec.get(HYPER + "model_ema_force_cpu") and spec.get("ema"):
        stated = spec.facts[HYPER + "model_ema_force_cpu"]
        spec.facts["ema"] = stated._replace(name="ema", value=False)
    if spec.get(HYPER + "drop_path"):
        stated = spec.facts[HYPER + "drop_path"]
        reason = "the model's program has its own rate; a dropped path keeps a number for each sample"
        spec.facts[HYPER + "drop_path"] = Fact(HYPER + "drop_path", None, ASSUMED, stated.key, reason=reason)
    return spec


def _registered(spec: TrainingSpec, model: str) -> str:
    """The file in which the program that is started enters a model of its own under this name; "" where it does not.
    It goes before timm's of the same name. (``timm/models/_registry.py``: register_model)"""
    path = None if spec.launch is None else scripts.file_of(spec.launch, spec.document)
    if path is None:
        return ""
    found = own_code.registers(path, model, "register_model", "timm")
    return os.path.relpath(found, os.path.dirname(path) or os.curdir).replace(os.sep, "/") if found else ""


def _unknown(spec: TrainingSpec, model: str) -> str:
    """Why there is no estimate; "" where there is one."""
    for key, what in _OTHERWISE.items():
        if key_facts.is_given(spec, key):
            return f"--{key.replace('_', '-')}: {what} is not known"
    if spec.get("compile"):
        return "--torchcompile: a compiled classifier is not known"
    channels = spec.root.get("in_chans") or spec.root.get("in-chans")
    if channels is not None and str(channels.value) not in ("3", "None"):
        return f"images of {channels.value} channels are not known"
    if spec.get("device_count", 1) != 1 and key_facts.is_given(spec, _SYNCHRONISED):
        return "--sync-bn: norms over several devices are not known"
    dtype = spec.get("parameter_dtype")
    if dtype not in (None, "float32"):
        return f"--model-dtype {dtype}: weights in 16 bits are not known"
    if spec.get(_CLASSES) is None and timm_classes(model) is None:
        return f"how many classes {model} has is not known, or it has none: --num-classes says it"
    gap = lm.gap(spec, "batch_size")
    if gap is not None:
        return f"{gap.key} is not known: {gap.reason}"
    optimizer = spec.get("optimizer", "sgd")
    if optimizer not in OPTIMIZERS and optimizer not in OF_LIBRARIES:
        return f"timm's optimizer {optimizer!r} is not known"
    return ""


def _size(spec: TrainingSpec, own: int, name: str) -> None:
    """``resolve_data_config``: channels, height and width, else one side, else what the model was made for."""
    whole = spec.fact(HYPER + "input_size")
    if whole is not None and isinstance(whole.value, list) and len(whole.value) == 3:
        sides = [int(side) for side in whole.value[1:] if str(side).isdigit()]
        if len(sides) == 2:
            spec.facts["image_size"] = whole._replace(name="image_size", value=sides)
    if spec.get("image_size") is None:
        spec.facts["image_size"] = Fact("image_size", own, DEFAULT, "img_size", reason=f"{name}: the size it is for")


def _optimizer(spec: TrainingSpec) -> None:
    stated = spec.fact("optimizer")
    if stated is not None and str(stated.value) in OF_LIBRARIES:
        name, library = OF_LIBRARIES[str(stated.value)]
        spec.facts["optimizer"] = stated._replace(value=name)
        lm.put(spec, "optimizer_library", library, stated)
        return
    if stated is not None:
        spec.facts["optimizer"] = stated._replace(value=OPTIMIZERS[str(stated.value)])
    if "optimizer_implementation" not in spec:
        reason = "torch.optim on CUDA"
        spec.facts["optimizer_implementation"] = Fact("optimizer_implementation", "foreach", DEFAULT, reason=reason)


def _put(spec: TrainingSpec, name: Name, value: object) -> None:
    if spec.get(name) is None:
        spec.facts[name] = Fact(name, value, DEFAULT, reason=_SOURCE)
