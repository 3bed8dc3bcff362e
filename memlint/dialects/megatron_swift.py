"""Family megatron-swift: ``megatron sft`` and ``megatron pt`` of ms-swift, which train a model of the hub as Megatron's
own modules (mcore-bridge), in Megatron's own loop."""

from __future__ import annotations

from typing import Any

from memlint.architectures import huggingface
from memlint.architectures.decoder import Decoder
from memlint.architectures.kinds import described
from memlint.architectures.sizes import Sizes
from memlint.architectures.vision import PackedTower
from memlint.architectures.vision_language import TextAlone, VisionLanguage
from memlint.dialects import language_model as lm
from memlint.dialects import megatron, ms_swift, pretraining
from memlint.dialects import trainer_families as families
from memlint.facts.derive import Graph, Step
from memlint.facts.spec import HYPER, Name, OnTop, TrainingSpec, UnknownModel, named

_VERSION = "ms-swift 4.6"
_METHODS = {"dpo": "dpo", "kto": "kto", "rm": "reward"}


def _elsewhere(spec: TrainingSpec) -> str:
    """Why what trains is not the whole of a decoder."""
    stated = spec.fact(HYPER + "tuner_type")
    if stated is not None and stated.value not in ("full", "lora"):
        return f"{stated.key} {stated.value}: what it makes of Megatron's layers is not known"
    return families.otherwise(spec)


def _method(spec: TrainingSpec) -> str:
    """Of `megatron rlhf`, which is DPO unless another is named; why its losses are not known."""
    words = [] if spec.launch is None else [spec.launch.program, *spec.launch.words[:1]]
    called = " ".join(str(word.value) for word in words).removesuffix(".py")
    stated = spec.fact(HYPER + "rlhf_type")
    kind = str(stated.value) if stated is not None and stated.value else "dpo" if called.endswith("rlhf") else ""
    reward = kind == "rm"
    if kind and kind not in _METHODS:
        return OnTop(f"--rlhf_type {kind}: its losses over Megatron's model are not known")
    if kind and spec.get("parallelism.pipeline", 1) > 1:
        # the states of the reference go along from stage to stage (dpo_trainer.py, forward_step)
        return OnTop(f"--rlhf_type {kind} in stages: what goes from one to the next is not known")
    if kind:
        lm.put(spec, "method", _METHODS[kind], stated, f"{_VERSION}: MegatronRLHFArguments")
    packed = spec.fact(HYPER + "packing")
    if reward:
        lm.put(spec, "row_output", "score", stated)
        lm.put(spec, "row_loss", "preferred", stated)
        lm.put(spec, "labels", 1, stated, f"{_VERSION}: a reward is one number")
    elif kind:
        _reference(spec, kind)
    elif ms_swift.asks_rows(spec, classifies=True):
        reason = ms_swift.rows(spec)
        if reason:
            return reason
    if packed is not None and packed.value:
        lm.put(spec, "sequences_per_sample", 1, packed, f"{_VERSION}: packing.py counts all rows of a sample")
    elif kind in ("dpo", "rm"):
        lm.put(spec, "sequences_per_sample", 2, stated, "a chosen and a rejected answer per sample")
    return ""


def _reference(spec: TrainingSpec, kind: str) -> None:
    """A second model where the whole of the first trains, else the first without its adapters (rlhf_mixin.py)."""
    tuner, loss = spec.fact(HYPER + "tuner_type"), spec.fact(HYPER + "loss_type")
    adapts = tuner is not None and tuner.value == "lora"
    reason = "without its adapters it is the reference" if adapts else f"{_VERSION}: the model once more"
    lm.put(spec, "reference_model", "adapter_off" if adapts else "copy", tuner, reason)
    if kind == "kto":
        asked = spec.fact(HYPER + "calculate_KL")
        stated = asked is not None and asked.value is not None
        value = asked.value if asked is not None and stated else loss is None or loss.value != "apo_zero_unpaired"
        lm.put(spec, "mismatched_completions", bool(value), asked if stated else loss)


def _decoder(spec: TrainingSpec) -> str:
    """The model that mcore-bridge reads from a ``config.json``; its head and its embedding are shared evenly."""
    config, tensor = spec.get(lm.CONFIG), spec.get("parallelism.tensor", 1)
    if config is None:
        return ""  # whose step says why
    try:
        made = _seeing(spec, config) if "vision_config" in config else huggingface.decoder(Sizes(config, "config.json"))
    except UnknownModel as error:
        return str(error)
    if made is None:
        return f"{spec['model']}: a model that sees, whose tower Megatron's layers are not"
    lm.put(spec, lm.DECODER, made, spec.fact("model"), "mcore-bridge 1.6: GPTModel")
    lm.put(spec, "vocabulary_size", pretraining.padded(made.vocabulary, tensor), spec.fact("model"))
    lm.put(spec, HYPER + "num_layers", made.layers, spec.fact("model"))
    return ""


def _seeing(spec: TrainingSpec, config: dict[str, Any]) -> Decoder | None:
    """The decoder of a model whose tower is known in front of it: one that joins patches itself."""
    found = described(config, "vision_language")
    tower = getattr(found, "tower", None)
    return found.decoder if isinstance(found, (VisionLanguage, TextAlone)) and isinstance(tower, PackedTower) else None


def _tower(spec: TrainingSpec) -> str:
    """What stands in front of the decoder: transformers' module, which does not train unless a switch says so; why
    that is not known."""
    config = spec.get(lm.CONFIG)
    if not isinstance(config, dict) or "vision_config" not in config or spec.get(lm.DECODER) is None:
        return ""
    lm.put(spec, "model_class", "vision_language", spec.fact(lm.CONFIG))
    for name in ("freeze_vit", "freeze_aligner"):
        stated = spec.fact(HYPER + name)
        if stated is not None and stated.value is False:
            return OnTop(f"{stated.key} false: what a tower that trains keeps beside Megatron's layers is not known")
    for name in ("parallelism.pipeline", "parallelism.context"):
        if spec.get(named(name), 1) > 1:
            return OnTop(f"{spec.spelled(named(name))} of a model that sees is not known")
    reason = f"{_VERSION}: freeze_vit and freeze_aligner"
    lm.put(spec, "frozen_parts", ["vision_tower", "projector"], spec.fact(HYPER + "freeze_vit"), reason)
    lm.put(spec, "tower_checkpointing", "none", reason=f"{_VERSION}: vit_gradient_checkpointing, unless it trains")
    lm.assume_images(spec, "dataset")
    ms_swift.images(spec)
    size, length, tower = spec.get("image_size"), spec.get("sequence_length"), config["vision_config"]
    unit = (tower.get("patch_size") or 0) * (tower.get("spatial_merge_size") or 2)
    if size and length and unit and spec.get("packing"):
        most = max(length // max((size // unit) ** 2, 1), 1)
        lm.put(spec, "most_images", most, spec.fact("packing"), "as many as a row has room for")
    return ""


def _half(spec: TrainingSpec) -> None:
    """Unless a key says it, 16 bits are those that the checkpoint is in."""
    loaded = lm.weights(spec, spec.fact(HYPER + "dtype"))
    kinds = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp16"}
    if loaded is not None and not lm.switched(spec, "bf16") and not lm.switched(spec, "fp16"):
        lm.put(spec, HYPER + kinds[loaded.value], True, loaded, f"{_VERSION}: _init_mixed_precision")


def _adapters(spec: TrainingSpec) -> str:
    """Beside all linear layers, and as all that Megatron's Float16Module holds, in 16 bits."""
    kind = spec.fact(HYPER + "tuner_type")
    lm.put(spec, HYPER + "use_peft", kind is not None and kind.value == "lora", kind)
    reason = lm.adapters(spec)
    if spec.get("tuning") == "lora":
        half: Name
        for half in ("lora.dtype", "frozen_dtype"):
            lm.put(spec, half, spec.get("parameter_dtype"), kind, "Megatron-LM core 0.16: Float16Module")
    return reason


def _length(spec: TrainingSpec) -> None:
    """A row is full where samples are packed; of other samples the longest is meant."""
    packed, rows = spec.fact(HYPER + "packing"), spec.fact(HYPER + "packing_length")
    if packed is None or not packed.value:
        lm.put(spec, "sequence_bound", True, spec.fact("sequence_length"), "samples are rarely as long")
        return
    lm.put(spec, "packing", True, packed)
    if rows is not None:
        lm.put(spec, "sequence_length", rows.value, rows)


def _devices(spec: TrainingSpec) -> str:
    reason = families.own_processes(spec, "NPROC_PER_NODE", "NNODES")
    count = spec.fact("device_count")
    return reason or pretraining.devices(spec, [] if count is None else [count])


_METHOD_FACTS: tuple[Name, ...] = (
    *("method", "row_output", "row_loss", "labels", "sequences_per_sample", "reference_model"),
    "mismatched_completions",
)

FAMILY = lm.Family(
    stated=Graph(Step(lm.model, lm.MODEL_FACTS)),
    beside=None,
    follows=Graph(
        Step(_elsewhere),
        Step(_method, _METHOD_FACTS),
        Step(_decoder, (lm.DECODER, "vocabulary_size", HYPER + "num_layers")),
        Step(
            _tower,
            (
                *("model_class", "frozen_parts", "tower_checkpointing", "images_per_sample", "image_size"),
                "most_images",
            ),
        ),
        Step(_half, (HYPER + "bf16", HYPER + "fp16")),
        Step(_adapters, (*lm.ADAPTER_FACTS, HYPER + "use_peft", "lora.dtype", "frozen_dtype")),
        Step(_length, ("sequence_bound", "packing", "sequence_length")),
        Step(_devices, pretraining.DEVICES),
        *megatron.STEPS,
    ),
    told=("elsewhere", "model", "method", "decoder", "tower", "adapters", "devices", "states", "recompute"),
    keys={"micro_batch_size": "micro_batch_size", "sequence_length": "max_length"},
)
