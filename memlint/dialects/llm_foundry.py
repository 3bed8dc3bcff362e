"""Family llm-foundry: the YAML of its train.py, which trains with Composer."""

from __future__ import annotations

from typing import Any

from memlint.architectures.llm_foundry import decoder
from memlint.dialects import language_model as lm
from memlint.dialects import launchers, native, pretraining
from memlint.documents.node import Edit
from memlint.facts.derive import Graph, Step
from memlint.facts.spec import WRITTEN, Fact, Name, TrainingSpec, UnknownModel

_VERSION = "llm-foundry 0.22"
_COMPOSER = "Composer 0.32"
_KEYS = {
    "micro_batch_size": "device_train_microbatch_size",
    "sequence_length": "max_seq_len",
    "optimizer": "optimizer.name",
    "compute_dtype": "precision",
}
# llmfoundry/optim/__init__.py, and what Composer registers: name -> optimizer, implementation, library
_OPTIMIZERS = {
    "decoupled_adamw": ("adamw", "loop", "torch"),
    "adamw": ("adamw", "foreach", "torch"),
    "decoupled_lionw": ("lion", "loop", "torch"),
    "adalr_lion": ("lion", "loop", "torch"),
    "clip_lion": ("lion", "loop", "torch"),
    "decoupled_lionw_8b": ("lion_8bit", "", "torch"),
    "decoupled_sgdw": ("sgd", "loop", "torch"),
}
_HALVES = {"amp_bf16": "bfloat16", "amp_fp16": "float16"}


def _beside(spec: TrainingSpec) -> tuple[str, dict[str, Fact]]:
    spec.missing = (*spec.missing, *launchers.processes(spec.launch).missing)
    return "", {}


def _count(spec: TrainingSpec) -> Fact | None:
    """How many devices the launcher starts."""
    return launchers.processes(spec.launch).total


def _compiled(spec: TrainingSpec) -> None:
    stated = spec.fact(lm.HYPER + "compile_config")
    if stated is not None and stated.value is not None:
        lm.put(spec, "compile", True, stated)


def _split(spec: TrainingSpec) -> str:
    tensors = spec.fact(lm.HYPER + "tp_config")
    return "tp_config: tensor parallelism of llm-foundry is not known" if tensors and tensors.value else ""


# ---------------------------------------------------------------------------------------------- the model


def _model(spec: TrainingSpec) -> str:
    kind = spec.fact(lm.HYPER + "model_name")
    if kind is None:
        return lm.not_stated(spec, "model.name", "name")
    if str(kind.value).startswith("mpt"):
        for name in ("model", "pretrained"):
            spec.facts.pop(name, None)
        lm.put(spec, "pretrained", False, kind)
        return _mpt(spec, kind)
    for name in [name for name in spec.facts if name.startswith(lm.HYPER) and name.rpartition(".")[2] in _OF_MPT]:
        del spec.facts[name]
    if kind.value in ("hf_t5", "hf_prefix_lm", "hf_causal_lm_with_classifier"):
        return f"model.name {kind.value} is not known"
    if kind.value == _BERT:
        return _bert(spec, kind)
    if kind.value != "hf_causal_lm":
        return (
            f"model.name {kind.value}: the repository's own code makes the model, and llm-foundry has none of that name"
        )
    found = lm.model(spec, "model.pretrained_model_name_or_path")
    flash = spec.fact(lm.HYPER + "use_flash_attention_2")
    if flash is not None and flash.value:
        lm.put(spec, "attention", "flash", flash)
    else:
        reason = f"{_VERSION}: transformers' default" if flash is None or flash.node is None else ""
        lm.put(spec, "attention", "sdpa", flash, reason)
    changed = spec.fact(lm.HYPER + "config_overrides")
    if not found and changed is not None and isinstance(changed.value, dict):
        config = spec[lm.CONFIG]
        lm.put(spec, lm.CONFIG, {**config, **_merged(config, changed.value)}, changed)
        inner = changed.value.get("attn_config")
        if isinstance(inner, dict) and inner.get("attn_impl") == "flash":
            lm.put(spec, "attention", "flash", changed)
    config = spec.fact(lm.CONFIG)
    if not found and config is not None and config.value.get("model_type") == "mpt":  # in llm-foundry's own terms
        try:
            lm.put(spec, lm.DECODER, decoder(config.value, config.reason), config)
        except UnknownModel as error:
            return str(error)
    return found


# mosaicml/examples at daddaef: examples/benchmarks/bert/src/hf_bert.py, create_hf_bert_mlm and
# create_hf_bert_classification: transformers' model of that name, or a new one of its config and model.model_config.
_BERT, _USUAL_BERT = "hf_bert", "bert-base-uncased"


def _bert(spec: TrainingSpec, kind: Fact) -> str:
    if spec.fact("model") is None:
        lm.put(spec, "model", _USUAL_BERT, None, "create_hf_bert_mlm: its default")
    why = lm.model(spec, "model.pretrained_model_name")
    changed = spec.root.get("model.model_config")
    if why:
        return why
    if changed is not None and isinstance(changed.value, dict):
        lm.put(spec, lm.CONFIG, {**spec[lm.CONFIG], **changed.plain()}, spec.fact(lm.CONFIG))
    labels = spec.root.get("model.num_labels")
    lm.put(spec, "model_class", "masked_lm" if labels is None else "sequence_classification", kind)
    if labels is not None and isinstance(labels.value, int):
        lm.put(spec, "labels", labels.value, kind)
    lm.put(spec, "attention", "sdpa", reason="transformers' default")
    return ""


# Settings of MPT's own configuration class that the schema names, by the mapping within ``model`` that they stand in.
_NAMES = {
    "": (
        *("d_model", "n_heads", "n_layers", "head_dim", "expansion_ratio", "vocab_size", "no_bias", "norm_type"),
        *("learned_pos_emb", "tie_word_embeddings", "resid_pdrop", "emb_pdrop"),
    ),
    "attn_config": ("attn_impl", "attn_type", "kv_n_heads", "attn_pdrop", "alibi", "rope", "nope", "qk_gn", "qk_ln"),
    "ffn_config": ("ffn_type", "ffn_hidden_size"),
}
_OF_MPT = frozenset(("loss_fn", "model_max_seq_len", *(name for names in _NAMES.values() for name in names)))


def _config(spec: TrainingSpec) -> dict[str, Any]:
    """The whole ``model`` as it is written, with what the schema knows of it, defaults included."""
    node = spec.root.get("model")
    config: dict[str, Any] = dict(node.plain()) if node is not None and node.is_mapping else {}
    for room, names in _NAMES.items():
        known = {name: lm.setting(spec, name) for name in names if lm.setting(spec, name) is not None}
        if room:
            written = config.get(room)
            config[room] = {**(written if isinstance(written, dict) else {}), **known}
        else:
            config |= known
    return {**config, "max_seq_len": lm.setting(spec, "model_max_seq_len")}


def _merged(config: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """What is changed, with the entries of a mapping beside those that are there."""
    return {
        name: {**config[name], **value} if isinstance(value, dict) and isinstance(config.get(name), dict) else value
        for name, value in changes.items()
    }


def _mpt(spec: TrainingSpec, kind: Fact) -> str:
    """MPT under the names of its own configuration class (llmfoundry/models/mpt/configuration_mpt.py)."""
    stated = [spec.fact(lm.HYPER + name) for name in ("d_model", "n_heads", "n_layers", "vocab_size")]
    if any(fact is None for fact in stated):
        return lm.not_stated(spec, "model.d_model", "d_model", "n_heads", "n_layers", "vocab_size")
    try:
        made = decoder(_config(spec))
    except UnknownModel as error:
        return f"model.{error}"
    native.describe(spec, made, kind, "the config's own sizes")
    lm.put(spec, "vocabulary_size", made.vocabulary, stated[3])
    spec.model_name = f"MPT, {made.layers} layers of {made.width}"
    attn = spec.fact(lm.HYPER + "attn_impl")
    lm.put(spec, "attention", {"torch": "eager", "flex": "flex"}.get(str(attn and attn.value), "flash"), attn)
    loss = spec.fact(lm.HYPER + "loss_fn")
    if loss is not None and loss.value == "fused_crossentropy":
        lm.put(spec, "fused_kernels", ["cross_entropy"], loss)
    return ""


def _adapter(spec: TrainingSpec) -> str:
    """PEFT's config, as llm-foundry hands it on."""
    kind = spec.fact(lm.HYPER + "peft_type")
    if kind is None:
        return ""
    if str(kind.value).upper() != "LORA":
        return f"model.peft_config.peft_type {kind.value} is not known"
    if "lora.r" not in spec:
        lm.put(spec, "lora.r", 8, reason="PEFT 0.21: LoraConfig")
    lm.put(spec, lm.HYPER + "use_peft", True, kind)
    return lm.adapters(spec)


# ---------------------------------------------------------------------------------------------- batches


def _batch(spec: TrainingSpec) -> str:
    """The micro batch, and how many of them make a step: sizes may be stated for a device or for all of them."""
    count, whole = _count(spec), spec.fact("global_batch_size")
    device = spec.fact(lm.HYPER + "device_train_batch_size")
    per_device: Fact | None = None
    if device is not None and isinstance(device.value, int):
        per_device = device
    elif whole is not None and isinstance(whole.value, int) and count is not None:
        if whole.value % count.value:
            return f"{whole.key} {whole.value} is no multiple of {count.value} devices"
        per_device = whole._replace(value=whole.value // count.value)
    micro = spec.fact(lm.HYPER + "device_train_microbatch_size")
    if micro is None:
        return lm.not_stated(spec, "device_train_microbatch_size")
    if micro.value == "auto":
        if per_device is None:
            why = "halves the batch of a device until it fits"
            return f"{micro.key} is auto, which {why}, and no launcher says how many devices there are; state a number"
        lm.put(spec, "micro_batch_size", per_device.value, micro, "auto: it starts at the batch of a device")
        lm.put(spec, "auto_batch_size", True, micro)
    elif isinstance(micro.value, int) and micro.value > 0:
        lm.put(spec, "micro_batch_size", micro.value, micro)
    else:
        return f"{micro.key} {micro.value} is no number of samples"
    size = spec["micro_batch_size"]
    if per_device is not None and "auto_batch_size" not in spec:
        if per_device.value < size:  # config_utils.py, calculate_batch_size_info: it is cut
            lm.put(spec, "micro_batch_size", per_device.value, per_device, "cut to the batch of a device")
            size = per_device.value
        lm.put(spec, "gradient_accumulation_steps", -(-per_device.value // size), per_device)
    return ""


def _rows(spec: TrainingSpec) -> None:
    """Whether rows are always full: concatenated or packed text is, and samples that are padded to the limit."""
    kind, ratio = spec.fact(lm.HYPER + "loader_name"), spec.fact(lm.HYPER + "packing_ratio")
    trimming = spec.fact(lm.HYPER + "allow_pad_trimming")
    if ratio is not None and ratio.value:
        lm.put(spec, "packing", True, ratio)
    elif trimming is not None and trimming.value:
        lm.put(spec, "packing", False, trimming)
    else:
        lm.put(spec, "packing", True, kind, f"{_VERSION}: rows are concatenated, or padded to max_seq_len")


def _evaluation(spec: TrainingSpec) -> None:
    size, interval = spec.fact(lm.HYPER + "device_eval_batch_size"), lm.setting(spec, "eval_interval")
    loader = spec.root.get("eval_loader")
    if size is None or not isinstance(size.value, int) or loader is None or loader.value is None:
        return
    if str(interval) in ("0", "0ba", "0ep", "0tok"):
        return
    lm.put(spec, "evaluation_batch_size", size.value, size)
    lm.put(spec, "evaluation_sequence_length", spec.get("sequence_length"), spec.fact("sequence_length"))
    lm.put(spec, "evaluation_accumulates", False, reason=f"{_COMPOSER}: metrics keep sums")


# ---------------------------------------------------------------------------------------------- states


def _optimizer(spec: TrainingSpec) -> None:
    name = spec.fact(lm.HYPER + "optimizer_name")
    if name is None:
        return
    kind, implementation, library = _OPTIMIZERS.get(str(name.value), (str(name.value), "", "torch"))
    lm.put(spec, "optimizer", kind, name)
    lm.put(spec, "optimizer_library", library, name)
    if implementation:
        lm.put(spec, "optimizer_implementation", implementation, name)


def _allocator(spec: TrainingSpec) -> None:
    """train.py writes PYTORCH_CUDA_ALLOC_CONF from two keys, over what the environment says."""
    parts, origin = [], None
    limit, grows = spec.fact(lm.HYPER + "max_split_size_mb"), spec.fact(lm.HYPER + "expandable_segments")
    if limit is not None and limit.value:
        parts.append(f"max_split_size_mb:{limit.value}")
        origin = limit
    if grows is not None and grows.value:
        parts.append("expandable_segments:True")
        origin = grows if origin is None or grows.node is not None else origin
    if parts:
        reason = f"{_VERSION}: expandable_segments"
        lm.put(spec, "allocator_conf", ",".join(parts), origin, "" if origin and origin.node else reason)


def _states(spec: TrainingSpec) -> None:
    """FSDP where it is configured and there are several devices, else DDP."""
    count = _count(spec)
    if count is not None:
        for name in ("device_count", "world_size"):
            lm.put(spec, name, count.value, count)
    node = spec.root.get("fsdp_config")
    configured = node is not None and isinstance(node.value, dict)
    sharding = spec.fact(lm.HYPER + "sharding_strategy")
    kind = str(sharding.value).upper() if sharding is not None else "FULL_SHARD"
    if count is not None and count.value == 1:
        lm.put(spec, "parallelism.strategy", "none", count, f"{_VERSION}: FSDP is not used on one device")
    elif not configured:
        if count is not None:
            lm.put(spec, "parallelism.strategy", "ddp", count, f"{_COMPOSER}: several devices without fsdp_config")
    elif kind == "NO_SHARD":
        lm.put(spec, "parallelism.strategy", "ddp", sharding)
    else:
        assert node is not None
        origin = Fact("parallelism.strategy", "fsdp1", WRITTEN, "fsdp_config", node)
        lm.put(spec, "parallelism.strategy", "fsdp1", origin)
        lm.put(
            spec, "parallelism.reshard_after_forward", kind not in ("SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2"), sharding
        )
    strategy = spec.get("parallelism.strategy")
    if strategy != "fsdp1":
        for name in ("cpu_offload", "backward_prefetch", "forward_prefetch"):
            spec.facts.pop("parallelism." + name, None)
        spec.facts.pop("saves_full_weights", None)
        if not configured or strategy == "none":
            # checkpointing is FSDP's here: without it nothing is recomputed
            freed: Name
            for freed in ("checkpointing", "checkpointing_reentrant", "activation_offloading"):
                old = spec.fact(freed)
                if old is not None and old.node is None:
                    del spec.facts[freed]
            lm.put(spec, "checkpointing", "none", reason=f"{_VERSION}: fsdp_config alone turns it on")
            spec.facts.pop("checkpointing_reentrant", None)
            spec.facts.pop("activation_offloading", None)
    if strategy == "ddp":
        lm.put(spec, "parallelism.bucket_mb", 25, reason="torch 2.13: DistributedDataParallel")


def _precision(spec: TrainingSpec) -> str:
    """Weights stay in float32 under autocast; FSDP gathers them in 16 bits, and PURE reduces gradients so too."""
    stated = spec.fact(lm.HYPER + "precision")
    if stated is None:
        return lm.not_stated(spec, "precision")
    value = str(stated.value)
    if value != "fp32" and value not in _HALVES:
        return f"precision {value} is not known"
    lm.put(spec, "parameter_dtype", "float32", reason=f"{_VERSION}: weights are made, or loaded, in float32")
    lm.put(spec, "frozen_dtype", "float32", reason=f"{_VERSION}: weights are made, or loaded, in float32")
    half = _HALVES.get(value)
    lm.put(spec, "compute_dtype", half or "float32", stated)
    lm.put(spec, "autocast", half is not None, stated)
    if half == "float16":
        lm.put(spec, "loss_scaling", "dynamic", stated)
    mixed = spec.fact(lm.HYPER + "fsdp_mixed_precision")
    if spec.get("parallelism.strategy") != "fsdp1" or half is None:
        return ""
    if mixed is None or not isinstance(mixed.value, str):
        return "fsdp_config.mixed_precision in dtypes of its own is not known"
    kind = mixed.value.upper()
    if kind == "FULL":
        return "fsdp_config.mixed_precision FULL is not known"
    lm.put(spec, "parallelism.reduce_dtype", half if kind == "PURE" else "float32", mixed)
    return ""


_PRECISION_FACTS: tuple[Name, ...] = (
    *("parameter_dtype", "frozen_dtype", "compute_dtype", "autocast", "loss_scaling", "parallelism.reduce_dtype"),
)
FAMILY = lm.Family(
    beside=_beside,
    follows=Graph(
        Step(
            _model,
            (
                *lm.MODEL_FACTS,
                lm.DECODER,
                "model",
                "pretrained",
                "model_class",
                "labels",
                "attention",
                "fused_kernels",
                *(lm.HYPER + name for name in sorted(_OF_MPT)),
            ),
        ),
        Step(_optimizer, lm.OPTIMIZER_FACTS),
        Step(_allocator, ("allocator_conf",)),
        Step(_states, (*native.DEVICES, "saves_full_weights", *lm.CHECKPOINTING_FACTS), ("parallelism.",)),
        Step(_batch, ("micro_batch_size", "auto_batch_size", "gradient_accumulation_steps")),
        Step(_precision, _PRECISION_FACTS),
        Step(_adapter, (*lm.ADAPTER_FACTS, lm.HYPER + "use_peft")),
        Step(_rows, ("packing",)),
        Step(_evaluation, lm.EVALUATION_FACTS),
        Step(_compiled, ("compile",)),
        Step(_split),
        Step(pretraining.undecided),
    ),
    told=("model", "batch", "precision", "adapter", "split", "undecided"),
    keys=_KEYS,
)


# ---------------------------------------------------------------------------------------------- spelling


def spell(spec: TrainingSpec, fact: Name, value: Any) -> list[Edit] | None:
    """Facts that llm-foundry states in words of its own; None for the generic spelling."""
    if fact == "micro_batch_size":
        return lm.write(spec, lm.HYPER + "device_train_microbatch_size", value)
    if fact == "gradient_accumulation_steps":
        return []  # it follows from the batch of all devices
    if fact == "evaluation_batch_size":
        return lm.write(spec, lm.HYPER + "device_eval_batch_size", value) if fact in spec else []
    if fact == "checkpointing" and spec.get("parallelism.strategy") == "none":
        return []
    if fact == "checkpointing" and value == "none" and spec.get(fact) == "none":
        return []
    if fact == "compute_dtype":
        name = {"bfloat16": "amp_bf16", "float16": "amp_fp16", "float32": "fp32"}.get(str(value))
        return lm.write(spec, lm.HYPER + "precision", name) if name else []
    if fact == "optimizer":
        name = {"lion": "decoupled_lionw", "adamw": "decoupled_adamw", "lion_8bit": "decoupled_lionw_8b"}.get(
            str(value)
        )
        return lm.write(spec, lm.HYPER + "optimizer_name", name) if name else []
    if fact == "optimizer_implementation":
        return []  # adamw and decoupled_adamw decay weights differently
    if fact == "attention":
        return _spell_attention(spec, value)
    if fact in ("parameter_dtype", "frozen_dtype", "loss", "autocast", "allocator_conf"):
        return []
    return None


def _spell_attention(spec: TrainingSpec, value: Any) -> list[Edit]:
    if value != "flash" or spec.get("compute_dtype") not in lm.HALF:
        return []
    mpt = str(lm.setting(spec, "model_name")).startswith("mpt")
    return lm.write(spec, lm.HYPER + ("attn_impl" if mpt else "use_flash_attention_2"), "flash" if mpt else True)
