"""Family nemo-automodel: finetuning recipes of NVIDIA's NeMo AutoModel, on FSDP2 or DDP.

Source: NVIDIA-NeMo/Automodel at 36044ad, ``recipes/llm/train_ft.py``, ``components/distributed``, ``components/loss``.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from memlint.architectures import huggingface
from memlint.architectures.sizes import Sizes
from memlint.dialects import language_model as lm
from memlint.dialects import launchers, native
from memlint.dialects import trainer_families as families
from memlint.documents.node import Edit
from memlint.facts.derive import Graph, Step
from memlint.facts.spec import Name, TrainingSpec, UnknownModel
from memlint.trainers import liger

_VERSION = "NeMo AutoModel at 36044ad"
_RECIPES = ("TrainFinetuneRecipeForNextTokenPrediction",)
_MAKER = "NeMoAutoModelForCausalLM.from_pretrained"
# Models that it has code of its own for, which is transformers' but for its compiled norms (_transformers/registry.py).
_OWN = ("llama", "qwen2", "qwen3")
_UNLIKE = ("baichuan", "gemma4", "gemma4_text", "qwen3_5", "qwen3_5_text", "qwen3_next")
# ... whose layers are recomputed part by part (components/distributed/parallelizer.py, apply_submodule_checkpointing).
_PARTS = ("mlp", "self_attn", "input_layernorm", "post_attention_layernorm")
_MASKED, _CUT = "MaskedCrossEntropy", "FusedLinearCrossEntropy"
_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "half": "float16", "float": "float32"}
_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_SHARING: tuple[Name, ...] = (
    *("parallelism.strategy", "parallelism.reduce_dtype", "parallelism.output_dtype", "parallelism.last_stays"),
)
_DTYPES_OF: tuple[Name, ...] = ("parameter_dtype", "frozen_dtype", "lora.dtype", "compute_dtype", "autocast")
_DEGREES = ("tensor", "context", "stages", "experts", "replicas")


def _recipe(spec: TrainingSpec) -> str:
    recipe, maker = spec.fact(lm.HYPER + "recipe"), spec.fact(lm.HYPER + "maker")
    named = str(recipe.value).rpartition(".")[2] if recipe is not None and isinstance(recipe.value, str) else ""
    if recipe is not None and named and named not in _RECIPES:
        return f"{recipe.key} {recipe.value}: what it trains, and beside what, is not known"
    if maker is not None and not str(maker.value).endswith(_MAKER):
        return f"{maker.key} {maker.value}: what it makes is not known"
    return families.otherwise(spec)


def _model(spec: TrainingSpec) -> str:
    """Of transformers, or of its own code that takes what transformers' does."""
    why = lm.model(spec, "model.pretrained_model_name_or_path")
    config = spec.get(lm.CONFIG)
    if why or config is None:
        return why
    if "vision_config" in config or "audio_config" in config:
        return f"{spec['model']}: a model that sees or hears, whose tower trains too"
    try:
        experts = huggingface.decoder(Sizes(config, "")).experts is not None
    except UnknownModel:
        experts = False  # which is said where the model is made
    if experts or config.get("model_type") in _UNLIKE:
        return f"{spec['model']}: NeMo AutoModel's own code for it is not known"
    return ""


def _is_own(spec: TrainingSpec) -> bool:
    kind = str((spec.get(lm.CONFIG) or {}).get("model_type"))
    return kind in _OWN and not lm.switched(spec, "force_hf")


def _length(spec: TrainingSpec) -> str:
    """Rows are as long as their data unless something fills them up; ``packed_sequence_size`` makes one row of many."""
    packed, padding = spec.fact(lm.HYPER + "packed"), spec.fact(lm.HYPER + "padding")
    if packed is not None and packed.value:
        lm.put(spec, "sequence_length", packed.value, packed, "rows are filled with samples")
        lm.put(spec, "padding_free", True, packed)
        return ""
    if spec.fact("sequence_length") is None:
        return lm.not_stated(spec, "dataset.seq_length", "seq_length")
    filled = padding is not None and padding.value in (True, "max_length")
    if not filled:
        lm.put(spec, "sequence_bound", True, spec.fact("sequence_length"), "samples are rarely as long")
    return ""


def _sharing(spec: TrainingSpec) -> str:
    """fully_shard around each layer, or DDP; one device shares nothing."""
    stated = spec.fact(lm.HYPER + "strategy")
    word = str(stated.value) if stated is not None else "fsdp2"
    if word not in ("fsdp2", "ddp"):
        return f"distributed.strategy {word}: how it shares a run is not known"
    for name in _DEGREES:
        degree = spec.fact(lm.HYPER + name)
        if degree is not None and degree.value not in (None, 1, "none", "None"):
            return f"{degree.key} {degree.value}: how it divides this model is not known"
    found = launchers.processes(spec.launch)
    spec.missing = (*spec.missing, *found.missing)
    count = found.total if found.total is not None else spec.fact("device_count")
    native.divided(spec, word, None if count is None else count.value, count)
    if spec.get("parallelism.strategy") == "fsdp2":
        lm.put(spec, "parallelism.strategy", "fsdp2", stated)
        lm.put(spec, "parallelism.reduce_dtype", "float32", reason=f"{_VERSION}: FSDP2Config.mp_policy")
        lm.put(spec, "parallelism.output_dtype", "bfloat16", reason=f"{_VERSION}: FSDP2Config.mp_policy")
        lm.put(spec, "parallelism.last_stays", True, reason=f"{_VERSION}: apply_fsdp2_sharding_recursively")
    return ""


def _adapters(spec: TrainingSpec) -> str:
    """Adapters beside linear layers, by patterns of their names; in the dtype of their layer."""
    rank = spec.fact("lora.r")
    if rank is None or rank.node is None:
        for name in [name for name in spec.facts if name.startswith("lora.")]:
            del spec.facts[name]
        return ""
    lm.put(spec, "tuning", "lora", rank)
    left = spec.fact(lm.HYPER + "excluded")
    for pattern in lm.names_of(left.value) if left is not None and left.value else []:
        if any(_names(pattern, name) for name in _LINEAR):
            return f"peft.exclude_modules {pattern}: layers without adapters are not known"
    every, stated = spec.fact(lm.HYPER + "all_linear"), spec.fact(lm.HYPER + "targets")
    if every is not None and every.value:
        lm.put(spec, "lora.targets", "all-linear", every)
        return ""
    patterns = lm.names_of(stated.value) if stated is not None and stated.value else []
    chosen = [name for name in _LINEAR if any(_names(one, name) for one in patterns)]
    if not chosen or not all(any(_names(one, name) for name in _LINEAR) for one in patterns):
        return lm.not_stated(spec, "peft.target_modules", "target_modules")
    lm.put(spec, "lora.targets", chosen, stated)
    return ""


def _names(pattern: str, name: str) -> bool:
    """Whether a pattern of whole names (``model.layers.*.q_proj``, ``*_proj``) is of a layer by its last part."""
    return fnmatchcase(name, pattern.rpartition(".")[2])


def _precision(spec: TrainingSpec) -> str:
    """All of the model is in one dtype, its own where nothing is said; FSDP2 computes in bfloat16."""
    stated = spec.fact(lm.HYPER + "dtype")
    word = str(stated.value).removeprefix("torch.") if stated is not None and stated.value else "auto"
    word = _DTYPES.get(word, word)
    if word == "auto":
        own = (spec.get(lm.CONFIG) or {}).get("torch_dtype") or (spec.get(lm.CONFIG) or {}).get("dtype")
        word = str(own or "float32").removeprefix("torch.")
    if word not in ("bfloat16", "float16", "float32"):
        return f"model.torch_dtype {word} is not known"
    sharded = spec.get("parallelism.strategy") == "fsdp2"
    for name in ("parameter_dtype", "frozen_dtype"):
        lm.put(spec, name, word, stated, f"{_VERSION}: torch_dtype auto, the checkpoint's" if stated is None else "")
    if spec.get("tuning") == "lora":
        lm.put(spec, "lora.dtype", word, reason=f"{_VERSION}: LinearLoRA, the layer's dtype")
    lm.put(spec, "compute_dtype", "bfloat16" if sharded else word, reason=f"{_VERSION}: FSDP2Config.mp_policy")
    lm.put(spec, "autocast", False, reason=f"{_VERSION}: autocast_dtype is not stated")
    return ""


def _computes(spec: TrainingSpec) -> str:
    kind = spec.fact(lm.HYPER + "attn_implementation")
    word = "flash_attention_2" if spec.get("padding_free") else "sdpa"
    word = str(kind.value) if kind is not None and kind.value else word
    lm.put(
        spec, "attention", "flash" if "flash" in word else word, kind, f"{_VERSION}: where no flash-attn is installed"
    )
    on = spec.get("checkpointing")
    if on not in ("none", "full", None):
        return f"distributed.activation_checkpointing {on}: what it keeps is not known"
    if on == "full" and _is_own(spec):
        lm.put(spec, "checkpointing_modules", list(_PARTS), reason=f"{_VERSION}: apply_submodule_checkpointing")
    return ""


def _kernels(spec: TrainingSpec) -> list[str]:
    """Its own code has compiled norms (Float32RMSNorm); transformers' models get Liger's kernels, but for its loss."""
    kind, switch = str((spec.get(lm.CONFIG) or {}).get("model_type")), spec.fact(lm.HYPER + "liger")
    if _is_own(spec):
        return ["rms_norm"]
    if switch is None or not switch.value or kind not in liger.TYPES:
        return []
    off = (*liger.OFF.get(kind, ()), "fused_linear_cross_entropy")
    return [name for key, name in liger.SWITCHES.items() if key not in off]


def _loss(spec: TrainingSpec) -> str:
    """The logits' name, and all that the model returns, live until the backward pass is through."""
    kernels = _kernels(spec)
    stated = spec.fact(lm.HYPER + "loss_class")
    name = str(stated.value).rpartition(".")[2] if stated is not None else _MASKED
    if name == _CUT:
        lm.put(spec, "loss", "fused", stated)
        lm.put(spec, "fused_kernels", [*kernels, "cut_cross_entropy"], stated)
        return ""
    if name != _MASKED:
        return f"loss_fn._target_ {name}: what it keeps is not known"
    lm.put(spec, "fused_kernels", kernels, reason=f"{_VERSION}: Liger's, or norms of its own that are compiled")
    lm.put(spec, "outputs_kept", True, reason=f"{_VERSION}: _forward_backward_step names what the model returns")
    return ""


def _optimizer(spec: TrainingSpec) -> str:
    stated = spec.fact(lm.HYPER + "optim")
    if stated is None or not str(stated.value).startswith("torch.optim."):
        return f"optimizer._target_ {stated.value if stated is not None else ''}: how many states it has is not known"
    fused, foreach = lm.setting(spec, "fused"), lm.setting(spec, "foreach")
    kind = "fused" if fused else "loop" if foreach is False else "foreach"
    native.optimizer_class(spec, stated, kind)
    return ""


FAMILY = lm.Family(
    follows=Graph(
        Step(_recipe, ()),
        Step(_model, lm.MODEL_FACTS),
        Step(_length, ("sequence_length", "sequence_bound", "padding_free")),
        Step(_sharing, (*native.DEVICES, *_SHARING), ("parallelism.",)),
        Step(_adapters, lm.ADAPTER_FACTS),
        Step(_precision, _DTYPES_OF),
        Step(_computes, ("attention", "checkpointing_modules")),
        Step(_loss, ("loss", "outputs_kept", "fused_kernels")),
        Step(_optimizer, ("optimizer", "optimizer_library", "optimizer_paged", "optimizer_implementation")),
    ),
    told=("recipe", "model", "sharing", "length", "adapters", "precision", "loss", "optimizer"),
    keys={"micro_batch_size": "step_scheduler.local_batch_size", "sequence_length": "dataset.seq_length"},
)


def spell(spec: TrainingSpec, fact: Name, value: Any) -> list[Edit] | None:
    """The recipe's keys; [] for what it has none for."""
    if fact in ("autocast", "compute_dtype", "optimizer_implementation", "device_count", "loss"):
        return []
    return None
