"""Family deit: DeiT's training program, which repositories of many classifiers have a copy of.

Source: facebookresearch/deit 7e160fe (``main.py``, ``engine.py``, ``run_with_submitit.py``).
"""

from __future__ import annotations

from memlint.architectures.deit import MODELS, PATCH
from memlint.dialects import key_facts
from memlint.dialects import language_model as lm
from memlint.dialects.timm import OF_LIBRARIES, OPTIMIZERS
from memlint.documents.node import Document, Node
from memlint.facts.spec import ASSUMED, DEFAULT, HYPER, Fact, Name, TrainingSpec

spell = key_facts.spell

_SOURCE = "DeiT 7e160fe: main.py"
_PREFIX = "deit_"
_DISTILLED = "_distilled_"
# datasets.py: build_dataset
_CLASSES = {"IMNET": 1000, "CIFAR": 100}
# What run_with_submitit.py asks for where a command does not say it.
_SUBMITTED: tuple[tuple[Name, int], ...] = (("machines", 2), (HYPER + "per_node", 8))
_OTHERWISE = {
    "drop": "dropout",
    "cosub": "the loss between two submodels",
    "attn_only": "a step of attention alone",
    "clip_grad": "what norms of gradients take",
}


def recognise(document: Document, root: Node) -> bool:
    """A model that is called as its own are, and a command that trains."""
    model = root.get("model")
    if root.get("eval") is not None:
        return False
    if model is None or not isinstance(model.value, str):
        return root.get("distillation_type") is not None or root.get("distillation-type") is not None
    return model.value.startswith(_PREFIX)


def complete(spec: TrainingSpec) -> TrainingSpec:
    """Facts in the words of the vocabulary, and what the program does where its command says nothing."""
    program = "" if spec.launch is None else spec.launch.called.rsplit("/", 1)[-1]
    submitted = program.startswith("run_with_submitit")
    for name, value in _SUBMITTED if submitted else ():
        if name not in spec:
            _put(spec, name, value)
    spec = key_facts.complete(spec)
    if submitted and "parallelism.strategy" not in spec:
        _put(spec, "parallelism.strategy", "ddp", "DistributedDataParallel, in the jobs that submitit starts")
    spec.unknown_reason = _unknown(spec)
    spec.model_name = str(spec.get("model", ""))
    spec.architecture = None if spec.unknown_reason else "deit"
    if spec.unknown_reason:
        return spec
    if HYPER + "num_classes" not in spec:
        _put(spec, HYPER + "num_classes", _CLASSES[spec[HYPER + "data_set"]], "DeiT: datasets.py")
    stated = str(spec["optimizer"]).lower()
    optimizer, library = OF_LIBRARIES[stated] if stated in OF_LIBRARIES else (OPTIMIZERS[stated], "torch")
    _put(spec, "optimizer", optimizer)
    _put(spec, "optimizer_library", library)
    _put(spec, "optimizer_implementation", "foreach", "torch.optim on CUDA")
    _put(spec, "parameter_dtype", "float32")
    fused = spec.does("torch.has_fused_attention") and spec.does("timm.fuses_attention")
    _put(spec, "attention", "sdpa" if fused else "eager", "timm: vision_transformer.py, Attention")
    averaged = not any(key_facts.is_given(spec, key) for key in ("no_model_ema", "model_ema_force_cpu"))
    _put(spec, "ema", averaged, f"{_SOURCE}: --model-ema is on")
    if spec.tried("compute_dtype") is None:
        reason = "DeiT: engine.py, torch.cuda.amp.autocast"
        spec.facts["compute_dtype"] = Fact("compute_dtype", "float16", ASSUMED, reason=reason)
    return spec


def _put(spec: TrainingSpec, name: Name, value: object, reason: str = _SOURCE) -> None:
    if spec.tried(name) is None:
        spec.facts[name] = Fact(name, value, DEFAULT, reason=reason)


def _unknown(spec: TrainingSpec) -> str:
    """Why there is no estimate; "" where there is one."""
    for key in ("model", "batch_size", "input_size", "nb_classes", "data_set"):
        gap = lm.gap(spec, key)
        if gap is not None:
            return f"--{key.replace('_', '-')} is not known: {gap.reason}"
    if foreign := key_facts.foreign_option(spec, "DeiT"):
        return foreign
    model = str(spec.get("model"))
    if spec.get(HYPER + "distillation_type") != "none" or _DISTILLED in model:
        return f"{model}: two results, of which one follows a teacher, are not known"
    if model not in MODELS:
        return f"--model {model} is none of models.py's vision transformers"
    side = spec.get("image_size")
    if not isinstance(side, int) or side % PATCH:
        return f"--input-size {side}: {model} takes patches of {PATCH} pixels"
    if key_facts.is_given(spec, "bce_loss"):
        return "--bce-loss: what a binary loss for each class keeps is not known"
    for key, what in _OTHERWISE.items():
        if key_facts.is_given(spec, key):
            return f"--{key.replace('_', '-')}: {what} is not known"
    if HYPER + "num_classes" not in spec and spec.get(HYPER + "data_set") not in _CLASSES:
        return f"how many classes --data-set {spec.get(HYPER + 'data_set')} has is not known"
    if str(spec.get("optimizer")).lower() not in {*OPTIMIZERS, *OF_LIBRARIES}:
        return f"--opt {spec.get('optimizer')}: timm's optimizer is not known"
    return ""
