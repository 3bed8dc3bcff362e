"""Family open-clip: its main.py, of a model whose program ships.

Source: open_clip 3.3.0 (``open_clip_train/main.py``, ``params.py``, ``precision.py``; ``open_clip/factory.py``).
"""

from __future__ import annotations

from memlint.architectures.library_models import open_clip_program
from memlint.data import programs
from memlint.dialects import key_facts
from memlint.dialects import language_model as lm
from memlint.facts.spec import HYPER, TrainingSpec

spell = key_facts.spell

# Options that make another model or another loop of it -> what is not known of it.
_OTHERWISE = {
    "torchscript": "a scripted model",
    "trace": "a traced model",
    "torchcompile": "a compiled model",
    "siglip": "the loss of each pair by itself",
    "distill_model": "a teacher",
    "distill_pretrained": "a teacher",
    "use_bnb_linear": "linear layers of bitsandbytes",
    "use_bn_sync": "norms over several devices",
    "horovod": "Horovod",
    "lock_image_unlocked_groups": "a tower of which a part trains",
    "lock_image_freeze_bn_stats": "norms that keep their statistics",
    "lock_text": "a text tower that does not train",
    "force_context_length": "texts of another length",
    "force_patch_dropout": "patches that are left out",
    "force_custom_text": "another text tower",
    "force_quick_gelu": "another activation",
}
# Words for a precision, of which what is left computes norms in fp32 and all else in 16 bits.
_PRECISIONS = ("amp", "amp_bf16", "amp_bfloat16", "fp32", "pure_bf16")


def complete(spec: TrainingSpec) -> TrainingSpec:
    """Facts in the words of the vocabulary, and the model where its program ships."""
    spec = key_facts.complete(spec)
    model = spec.fact("model")
    if model is None or not isinstance(model.value, str):
        return spec
    try:
        inputs = programs.value(open_clip_program(model.value))["inputs"]
    except KeyError:
        return spec
    spec.unknown_reason = _unknown(spec, inputs[0][1][-2:])
    if spec.unknown_reason:
        return spec
    spec.architecture = "contrastive"
    if spec.get(HYPER + "lock_image"):
        lm.put(spec, "frozen_parts", ["visual"], spec.fact(HYPER + "lock_image"))
    lm.put(spec, "image_size", inputs[0][1][-2:], model, f"{model.value}: the size it is for")
    lm.put(spec, "optimizer_implementation", "foreach", reason="torch.optim on CUDA")
    return spec


def _unknown(spec: TrainingSpec, sides: list[int]) -> str:
    """Why there is no estimate; "" where there is one."""
    for key, what in _OTHERWISE.items():
        if key_facts.is_given(spec, key):
            return f"--{key.replace('_', '-')}: {what} is not known"
    if spec.get(HYPER + "precision") not in _PRECISIONS:
        return f"--precision {spec.get(HYPER + 'precision')}: weights in 16 bits beside norms in fp32 are not known"
    forced = spec.get("image_size")
    if forced is not None and forced not in (sides[0], sides, sides[:1]):
        return f"--force-image-size {forced}: positions for images of another size are not known"
    if spec.get("optimizer") != "adamw":
        return f"timm's optimizer {spec.get('optimizer')!r} is not known"
    gap = lm.gap(spec, "batch_size")
    return f"{gap.key} is not known: {gap.reason}" if gap is not None else ""
