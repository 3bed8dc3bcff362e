"""Family OLMo: the YAML of AI2's first trainer, and the scripts that start it (``torchrun scripts/train.py FILE``)."""

from __future__ import annotations

from typing import Any

from memlint.architectures.olmo import decoder
from memlint.dialects import language_model as lm
from memlint.dialects import launchers, native
from memlint.documents.node import Edit, Node
from memlint.facts.derive import Graph, Step
from memlint.facts.spec import WRITTEN, Fact, Name, TrainingSpec, UnknownModel

_VERSION = "OLMo 0.6"
_KEYS = {
    "micro_batch_size": "device_train_microbatch_size",
    "sequence_length": "model.max_sequence_length",
    "optimizer": "optimizer.name",
    "compute_dtype": "precision",
}
_HALVES = {"amp_bf16": "bfloat16", "amp_fp16": "float16"}
_EVERY = {"whole_layer": 1, "one_in_two": 2, "one_in_three": 3, "one_in_four": 4, "one_in_eight": 8}
# Of FSDPWrapStrategy: the units, by the names of this package's modules; None for those of the blocks alone.
_UNITS = {"by_block": None, "by_block_and_size": ["Embedding", "OlmoLayer", "lm_head"]}
# -> whether weights are let go behind a forward pass
_SHARDINGS = {"FULL_SHARD": True, "SHARD_GRAD_OP": False, "HYBRID_SHARD": True, "_HYBRID_SHARD_ZERO2": False}
_OF_A_MACHINE = ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")
# What of the model a command may state beside its file: read there, or nothing to the memory of a step.
_READ_OF_COMMANDS = ("model.flash_attention", "model.max_sequence_length", "model.init_")
_OPTIMIZERS = {"adamw": ("adamw", "foreach"), "lionw": ("lion", "loop")}


def _processes(spec: TrainingSpec) -> launchers.Processes:
    """Those that the launcher starts. Where each machine has a whole model, those of one say all."""
    found = launchers.processes(spec.launch)
    per_machine = launchers.per_machine(spec.launch)
    of_a_machine = _word(spec, lm.HYPER + "sharding") in _OF_A_MACHINE and _replicas(spec) is None
    if found.total is None and per_machine is not None and of_a_machine:
        return launchers.Processes(per_machine, True)
    return found


def _beside(spec: TrainingSpec) -> tuple[str, dict[str, Fact]]:
    spec.missing = (*spec.missing, *_processes(spec).missing)
    return "", {}


def _count(spec: TrainingSpec) -> Fact | None:
    return _processes(spec).total


def _given(spec: TrainingSpec) -> dict[str, Node]:
    """The command's options, by their dotted names."""
    options = spec.launch.options.value if spec.launch is not None else None
    return options if isinstance(options, dict) else {}


def _option(spec: TrainingSpec, key: str) -> Node | None:
    """What the command says of a key, or the file."""
    node = _given(spec).get(key)
    return spec.root.get(key) if node is None else node


def _replicas(spec: TrainingSpec) -> int | None:
    """Of the model, where a number is stated."""
    node = _option(spec, "fsdp.hybrid_sharding_num_model_replicas")
    return None if node is None else native.number(node.value)


def _word(spec: TrainingSpec, name: Name, default: str = "") -> str:
    fact = spec.fact(name)
    return default if fact is None or fact.value is None else str(fact.value)


# ---------------------------------------------------------------------------------------------- the model


def _model(spec: TrainingSpec) -> str:
    node = spec.root.get("model")
    if node is None or not node.is_mapping:
        return lm.not_stated(spec, "model.d_model", "d_model")
    changed = (key for key in _given(spec) if key.startswith("model.") and not key.startswith(_READ_OF_COMMANDS))
    if (over := next(changed, None)) is not None:
        return f"--{over} changes the model that the file describes, which is not followed"
    for name in ("model", "pretrained"):
        spec.facts.pop(name, None)
    origin = Fact("decoder", None, WRITTEN, "model", node)
    lm.put(spec, "pretrained", False, origin)
    try:
        made = decoder(dict(node.plain()))
    except UnknownModel as error:
        return str(error) if str(error).startswith("model") else f"model.{error}"
    native.describe(spec, made, origin, "the config's own sizes")
    spec.model_name = f"OLMo, {made.layers} layers of {made.width}"
    flash = spec.fact("attention")
    if flash is None or flash.value != "flash":
        lm.put(spec, "attention", "sdpa", flash, f"{_VERSION}: flash_attention is off unless it is set")
    fused = spec.fact(lm.HYPER + "fused_loss")
    if fused is not None and fused.value:
        lm.put(spec, "fused_kernels", ["cross_entropy"], fused)
    return ""


def _length(spec: TrainingSpec) -> None:
    if "sequence_length" not in spec:
        lm.put(spec, "sequence_length", 1024, reason=f"{_VERSION}: ModelConfig.max_sequence_length")
    lm.put(spec, "packing", True, spec.fact("sequence_length"), f"{_VERSION}: rows are cut out of one long text")


def _compiled(spec: TrainingSpec) -> None:
    """Blocks are compiled where there is a section of it, one of whose keys a command may state alone."""
    stated = spec.fact(lm.HYPER + "compile_section")
    node = next((one for key, one in _given(spec).items() if key.startswith("compile.")), None)
    if node is not None:
        lm.put(spec, "compile", True, Fact("compile", True, WRITTEN, "--" + node.key_path, node))
    elif stated is not None and stated.value is not None:
        lm.put(spec, "compile", True, stated)


# ---------------------------------------------------------------------------------------------- batches


def _batch(spec: TrainingSpec) -> str:
    whole, micro = spec.fact("global_batch_size"), spec.fact("micro_batch_size")
    count = _count(spec) or spec.fact("device_count")  # which may be the command line's own
    if micro is None or not isinstance(micro.value, int):
        return lm.not_stated(spec, "device_train_microbatch_size")
    if whole is None or not isinstance(whole.value, int) or count is None:
        return ""
    device = whole.value // count.value
    if device * count.value != whole.value:
        return f"{whole.key} {whole.value} is no multiple of {count.value} devices"
    lm.put(spec, "micro_batch_size", min(micro.value, device), micro)
    lm.put(spec, "gradient_accumulation_steps", -(-device // micro.value), whole)
    return ""


def _evaluation(spec: TrainingSpec) -> None:
    asked = spec.root.get("evaluators")
    if asked is None or not asked.value:
        spec.facts.pop("evaluation_batch_size", None)
        return
    if "evaluation_batch_size" not in spec:
        lm.put(spec, "evaluation_batch_size", 16, reason=f"{_VERSION}: device_eval_batch_size")
    lm.put(spec, "evaluation_sequence_length", spec.get("sequence_length"), spec.fact("sequence_length"))
    lm.put(spec, "evaluation_accumulates", False, reason=f"{_VERSION}: metrics keep sums")


# ---------------------------------------------------------------------------------------------- states


def _optimizer(spec: TrainingSpec) -> str:
    name = spec.fact("optimizer")
    stated = "lionw" if name is None else str(name.value)
    if stated not in _OPTIMIZERS:
        return f"optimizer.name {stated} is not known"
    kind, implementation = _OPTIMIZERS[stated]
    reason = f"{_VERSION}: OptimizerConfig"
    lm.put(spec, "optimizer", kind, name, reason)
    lm.put(spec, "optimizer_library", "torch", name, reason)
    lm.put(spec, "optimizer_implementation", implementation, name, reason)
    return ""


def _states(spec: TrainingSpec) -> str:
    strategy, count = _word(spec, lm.HYPER + "distributed_strategy", "fsdp"), _count(spec)
    if count is not None:
        for name in ("device_count", "world_size"):
            lm.put(spec, name, count.value, count)
    if strategy == "ddp":
        lm.put(spec, "parallelism.strategy", "ddp", count, f"{_VERSION}: distributed_strategy")
        lm.put(spec, "parallelism.bucket_mb", 25, reason="torch 2.13: DistributedDataParallel")
        return ""
    if strategy == "single":
        lm.put(spec, "parallelism.strategy", "none", reason=f"{_VERSION}: distributed_strategy")
        return ""
    if strategy != "fsdp":
        return f"distributed_strategy {strategy} is not known"
    if (count.value if count is not None else spec.get("device_count")) == 1:
        return "FSDP of one device, which shares nothing, is not described"
    sharding = spec.fact(lm.HYPER + "sharding")
    kind = _word(spec, lm.HYPER + "sharding", "FULL_SHARD")
    if kind not in _SHARDINGS:
        return f"fsdp.sharding_strategy {kind} is not known in OLMo's trainer"
    if kind in _OF_A_MACHINE:
        why = _replicated(spec, sharding, count)
        if why:
            return why
    lm.put(spec, "parallelism.strategy", "fsdp1", sharding, f"{_VERSION}: distributed_strategy fsdp")
    lm.put(spec, "parallelism.reshard_after_forward", _SHARDINGS[kind], sharding)
    wrapped = spec.fact("parallelism.wrap")
    units = None if wrapped is None else wrapped.value
    if units is None:
        lm.put(spec, "parallelism.wrap", "none", wrapped, f"{_VERSION}: FSDPConfig.wrapping_strategy")
    elif units not in _UNITS:
        return f"fsdp.wrapping_strategy {units} is not known"
    elif _UNITS[units] is None:
        spec.facts.pop("parallelism.wrap")
    else:
        lm.put(spec, "parallelism.wrap", _UNITS[units], wrapped)
    return ""


def _replicated(spec: TrainingSpec, sharding: Fact | None, count: Fact | None) -> str:
    """Over how many devices a model is shared that there are several of: those of a machine, or a part of all."""
    replicas, each = _replicas(spec), launchers.per_machine(spec.launch)
    if replicas is not None:
        if count is None:
            return ""
        if count.value % replicas:
            return f"fsdp.hybrid_sharding_num_model_replicas {replicas} does not divide {count.value} devices"
        lm.put(spec, "parallelism.shard", count.value // replicas, sharding)
    elif each is not None and (count is None or count.value % each.value == 0):
        lm.put(spec, "parallelism.shard", each.value, sharding, f"{_VERSION}: a model for each machine")
    return ""


def _checkpointing(spec: TrainingSpec) -> str:
    origin = spec.fact(lm.HYPER + "activation_checkpointing")
    word = None if origin is None or origin.value is False else origin.value
    word = "whole_layer" if word is True else word
    if word is None:
        lm.put(spec, "checkpointing", "none", origin, f"{_VERSION}: nothing is recomputed unless it is asked for")
        return ""
    if word not in _EVERY:
        return f"activation_checkpointing {word} is not known"
    lm.put(spec, "checkpointing", "full" if _EVERY[word] == 1 else "every", origin)
    if _EVERY[word] > 1:
        lm.put(spec, "checkpointing_every", _EVERY[word], origin)
    lm.put(spec, "checkpointing_reentrant", False, reason=f"{_VERSION}: activation_checkpoint_function")
    return ""


def _precision(spec: TrainingSpec) -> str:
    """Weights stay in float32 under autocast; FSDP gathers them in 16 bits, and ``pure`` reduces gradients so too."""
    stated = spec.fact(lm.HYPER + "precision")
    if stated is None:
        return lm.not_stated(spec, "precision")
    half = _HALVES.get(str(stated.value))
    if half is None and stated.value != "fp32":
        return f"precision {stated.value} is not known"
    lm.put(spec, "parameter_dtype", "float32", reason=f"{_VERSION}: weights are made in float32")
    lm.put(spec, "compute_dtype", half or "float32", stated)
    lm.put(spec, "autocast", half is not None, stated)
    if spec.get("parallelism.strategy") != "fsdp1" or half is None:
        return ""
    mixed = spec.fact(lm.HYPER + "fsdp_precision")
    kind = "pure" if mixed is None else mixed.value
    if kind is None:
        lm.put(spec, "parallelism.as_stored", True, mixed)
    elif kind not in ("pure", "mixed"):
        return f"fsdp.precision {kind} is not known"
    else:
        reason = f"{_VERSION}: FSDPConfig.precision"
        lm.put(spec, "parallelism.reduce_dtype", half if kind == "pure" else "float32", mixed, reason)
    return ""


_PRECISION_FACTS: tuple[Name, ...] = (
    *("parameter_dtype", "compute_dtype", "autocast", "parallelism.reduce_dtype", "parallelism.as_stored"),
)
FAMILY = lm.Family(
    beside=_beside,
    follows=Graph(
        Step(_model, (*lm.MODEL_FACTS, lm.DECODER, "model", "pretrained", "attention", "fused_kernels")),
        Step(_length, ("sequence_length", "packing")),
        Step(_compiled, ("compile",)),
        Step(_optimizer, ("optimizer", "optimizer_library", "optimizer_implementation")),
        Step(_states, native.DEVICES, ("parallelism.",)),
        Step(_checkpointing, (*lm.CHECKPOINTING_FACTS, "checkpointing_every")),
        Step(_batch, ("micro_batch_size", "gradient_accumulation_steps")),
        Step(_precision, _PRECISION_FACTS),
        Step(_evaluation, lm.EVALUATION_FACTS),
    ),
    told=("model", "optimizer", "states", "checkpointing", "batch", "precision"),
    keys=_KEYS,
)


def spell(spec: TrainingSpec, fact: Name, value: Any) -> list[Edit] | None:
    """Facts that OLMo states in words of its own; None for the generic spelling."""
    if fact == "gradient_accumulation_steps":
        return []  # it follows from the batch of all devices
    if fact == "checkpointing":
        word = {"full": "whole_layer", "none": None}.get(str(value), "")
        return lm.write(spec, lm.HYPER + "activation_checkpointing", word) if word != "" else []
    if fact == "compute_dtype":
        name = {"bfloat16": "amp_bf16", "float16": "amp_fp16", "float32": "fp32"}.get(str(value))
        return lm.write(spec, lm.HYPER + "precision", name) if name else []
    if fact == "attention":
        return None if value == "flash" and spec.get("compute_dtype") in lm.HALF else []
    if fact in ("optimizer", "optimizer_implementation", "parameter_dtype", "loss", "autocast"):
        return []  # it has no other that takes less
    return None
