"""Family megatron-swift: ``megatron sft`` and ``megatron pt`` of ms-swift, which train a model of the hub as Megatron's
own modules (mcore-bridge), in Megatron's own loop."""

from __future__ import annotations

from memlint.architectures import huggingface
from memlint.architectures.sizes import Sizes
from memlint.dialects import language_model as lm
from memlint.dialects import megatron, pretraining
from memlint.dialects import trainer_families as families
from memlint.facts.derive import Graph, Step
from memlint.facts.spec import HYPER, Name, TrainingSpec, UnknownModel

_VERSION = "ms-swift 4.6"


def _elsewhere(spec: TrainingSpec) -> str:
    """Why what trains is not the whole of a decoder."""
    for name, usual in (("tuner_type", ("full", "lora")), ("task_type", ("causal_lm", None))):
        stated = spec.fact(HYPER + name)
        if stated is not None and stated.value not in usual:
            return f"{stated.key} {stated.value}: what it makes of Megatron's layers is not known"
    return families.otherwise(spec)


def _decoder(spec: TrainingSpec) -> str:
    """The model that mcore-bridge reads from a ``config.json``; its head and its embedding are shared evenly."""
    config, tensor = spec.get(lm.CONFIG), spec.get("parallelism.tensor", 1)
    if config is None:
        return ""  # whose step says why
    if "vision_config" in config:
        return f"{spec['model']}: a model that sees, whose tower Megatron's layers are not"
    try:
        made = huggingface.decoder(Sizes(config, "config.json"))
    except UnknownModel as error:
        return str(error)
    lm.put(spec, lm.DECODER, made, spec.fact("model"), "mcore-bridge 1.6: GPTModel")
    lm.put(spec, "vocabulary_size", pretraining.padded(made.vocabulary, tensor), spec.fact("model"))
    lm.put(spec, HYPER + "num_layers", made.layers, spec.fact("model"))
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


FAMILY = lm.Family(
    stated=Graph(Step(lm.model, lm.MODEL_FACTS)),
    beside=None,
    follows=Graph(
        Step(_elsewhere),
        Step(_decoder, (lm.DECODER, "vocabulary_size", HYPER + "num_layers")),
        Step(_half, (HYPER + "bf16", HYPER + "fp16")),
        Step(_adapters, (*lm.ADAPTER_FACTS, HYPER + "use_peft", "lora.dtype", "frozen_dtype")),
        Step(_length, ("sequence_bound", "packing", "sequence_length")),
        Step(_devices, pretraining.DEVICES),
        *megatron.STEPS,
    ),
    told=("elsewhere", "model", "decoder", "adapters", "devices", "states", "recompute"),
    keys={"micro_batch_size": "micro_batch_size", "sequence_length": "max_length"},
)
