"""Family dit: the training program of DiT, and those of SiT and fast-DiT, which are copies of it.

Sources: facebookresearch/DiT ed81ce2 (``train.py``), willisma/SiT 947f95b (``train.py``, ``train_utils.py``),
chuanyangjin/fast-DiT dbe04f6 (``train.py``: accelerate, features that are encoded before, every block checkpointed).
"""

from __future__ import annotations

from memlint.architectures.dit import DIT, DOWNSCALE, MODELS, SIT
from memlint.dialects import key_facts
from memlint.dialects import language_model as lm
from memlint.documents.node import Document, Node
from memlint.facts.spec import ASSUMED, DEFAULT, HYPER, Fact, Name, TrainingSpec

spell = key_facts.spell

_SOURCE = "DiT ed81ce2: train.py"
_FAST = "fast-DiT dbe04f6"
_DEFAULT = f"{DIT}-XL/2"
# Options that no other program has, where no model says whose command it is.
_OWN = ("global_batch_size", "feature_path")
_FEATURES = "feature_path"
# fast-DiT's programs of its own names (train_options/): its models.py checkpoints every block, models_original.py none.
# One more is called train.py, as DiT's is, and told by accelerate's launcher.
_CHECKPOINTED = {
    "train_original.py": False,
    "train_baseline.py": True,
    "train_amp.py": True,
    "train_features.py": True,
    "train_tf32_disabled.py": True,
}
# What SiT trains where a command does not say it (train_utils.py); others have weights beside the squared difference.
_SIT_STATES = {"path_type": "Linear", "prediction": "velocity"}


def recognise(document: Document, root: Node) -> bool:
    """A model by one of their names; where none is known, an option that is theirs alone."""
    model = root.get("model")
    if model is not None and isinstance(model.value, str):
        return is_meant(root)
    return any(root.get(name) is not None or root.get(name.replace("_", "-")) is not None for name in _OWN)


def is_meant(root: Node) -> bool:
    """Whether a model is called as theirs are."""
    model = root.get("model")
    return model is not None and isinstance(model.value, str) and model.value.startswith((f"{DIT}-", f"{SIT}-"))


def complete(spec: TrainingSpec) -> TrainingSpec:
    """Facts in the words of the vocabulary, and what the program does where its command says nothing."""
    launchers = () if spec.launch is None else spec.launch.launchers
    accelerated = any(launcher.name.startswith("accelerate") for launcher in launchers)
    spec = key_facts.complete(spec)
    if "model" not in spec and lm.gap(spec, "model") is None:
        _put(spec, "model", _DEFAULT)
    spec.unknown_reason = _unknown(spec) or _without_a_batch(spec)
    spec.model_name = str(spec.get("model", ""))
    spec.architecture = None if spec.unknown_reason else "dit"
    if spec.unknown_reason:
        return spec
    _put(spec, "optimizer_implementation", "foreach", "torch.optim on CUDA")
    if "parallelism.strategy" not in spec:
        _put(spec, "parallelism.strategy", "ddp", f"{_SOURCE}: DistributedDataParallel")
    program = "" if spec.launch is None else spec.launch.called.rsplit("/", 1)[-1]
    if _CHECKPOINTED.get(program, accelerated) and spec.tried("checkpointing") is None:
        reason = f"{_FAST}: models.py checkpoints every block"
        spec.facts["checkpointing"] = Fact("checkpointing", "full", ASSUMED, reason=reason)
    if accelerated:
        _mixed(spec)
    else:
        _put(spec, "compute_dtype", "float32")
    if spec.tried("attention") is None:
        fused = spec.does("torch.has_fused_attention") and spec.does("timm.fuses_attention")
        _put(spec, "attention", "sdpa" if fused else "eager", "timm: vision_transformer.py, Attention")
    stated = spec.fact(HYPER + _FEATURES)
    encoded = spec.fact(HYPER + "data_path") is None and (accelerated or stated is not None)
    source = f"{_FAST}: latents are read from files" if encoded else f"{_SOURCE}: images are encoded in each step"
    _put(spec, HYPER + "features", encoded, source)
    return spec


def _put(spec: TrainingSpec, name: Name, value: object, reason: str = _SOURCE) -> None:
    if spec.tried(name) is None:
        spec.facts[name] = Fact(name, value, DEFAULT, reason=reason)


def _mixed(spec: TrainingSpec) -> None:
    """What accelerate was launched with."""
    half = lm.mixed_precision(spec)
    if half is not None:
        spec.facts["compute_dtype"] = half
    else:
        _put(spec, "compute_dtype", "float32", "accelerate's own default")


def _unknown(spec: TrainingSpec) -> str:
    """Why there is no estimate; "" where there is one."""
    for key in ("model", "global_batch_size", "image_size", "num_classes"):
        gap = lm.gap(spec, key)
        if gap is not None:
            return f"--{key.replace('_', '-')} is not known: {gap.reason}"
    if foreign := key_facts.foreign_option(spec, "DiT"):
        return foreign
    model, side = spec.get("model"), spec.get("image_size")
    if model not in MODELS:
        return f"--model {model} is none of DiT's own"
    patch = MODELS[model].patch * DOWNSCALE
    if not isinstance(side, int) or side % patch:
        return f"--image-size {side}: {model} takes patches of {patch} pixels"
    for key, known in _SIT_STATES.items():
        stated = spec.get(HYPER + key)
        if stated not in (None, known):
            return f"--{key.replace('_', '-')} {stated}: its loss is not known"
    return ""


def _without_a_batch(spec: TrainingSpec) -> str:
    """The program refuses a batch that its devices do not divide."""
    devices, whole = spec.get("device_count"), spec.get("global_batch_size")
    if "micro_batch_size" in spec:
        return ""
    if not isinstance(devices, int):
        return f"how many devices share --global-batch-size {whole} is not known"
    return f"--global-batch-size {whole} is no multiple of {devices} devices, which the program refuses"
