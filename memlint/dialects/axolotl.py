"""Family axolotl: the YAML that ``axolotl train`` reads."""

from __future__ import annotations

from typing import Any, Final

from memlint.dialects import axolotl_trained
from memlint.dialects import language_model as lm
from memlint.dialects.accelerate import truth
from memlint.dialects.axolotl_sharing import VERSION, beside, fsdp, inner, processes
from memlint.documents.node import Document, Edit, Node
from memlint.facts.derive import Graph, Step
from memlint.facts.spec import DEFAULT, Fact, Name, OnTop, TrainingSpec
from memlint.trainers.table import ALWAYS, LOG_PROBABILITIES, SCORES

_UNKNOWN = {
    "grpo": "what generation holds on the card between training steps is not known",
    "gdpo": "what generation holds on the card between training steps is not known",
    "ebft": "what generation holds on the card between training steps is not known",
}
# Settings after which the model or what trains of it is not what the rest of the config says.
_OTHERWISE = {
    "fp8": "8-bit matrix products are not known",
    "qat": "the copies that quantisation-aware training makes of weights are not known",
    "layer_offloading": "which layers are on the card at a time is not known",
    "lisa_n_layers": "other layers train in each interval",
    "tiled_mlp": "an MLP that runs in tiles is not known",
    "peft_layers_to_transform": "adapters of some layers alone are not known",
    "process_reward_model": "a reward model of steps is not known",
}
_PLUGINS = {
    "spectrum": "which layers train is found from the checkpoint's weights",
    "kd": "what the teacher leaves on the card is not known",
    "diffusion": "a diffusion language model is not known",
    "mora": "adapters of this kind are not known",
    "densemixer": "a mixture of experts that runs all of them is not known",
    "llm_compressor": "sparse weights are not known",
}
_ON_TOP = ("fp8", "qat", "tiled_mlp", "kd")  # of what is stated; all others change what trains, or the weights
# utils/schemas/enums.py, CustomSupportedOptimizers: those that are another library's of a known kind.
_OPTIMIZERS = {
    "ao_adamw_4bit": ("adamw_4bit", "torchao"),
    "ao_adamw_8bit": ("adamw_8bit", "torchao"),
    "ao_adamw_fp8": ("adamw_fp8", "torchao"),
    "q_galore_adamw8bit": ("q_galore_adamw_8bit", "q_galore_torch"),
    "came_pytorch": ("came", "came_pytorch"),
    "optimi_adamw": ("optimi_adamw", "optimi"),
    "lion_pytorch": ("lion", "lion_pytorch"),
    "adopt_adamw": ("adopt", "axolotl"),
    "muon": ("muon", "axolotl"),
    "dion": ("dion", "axolotl"),
}
# Older switches, in the order in which Axolotl asks them -> the attention.
_ATTENTION = {
    "xformers_attention": "xformers",
    "sage_attention": "sage",
    "flex_attention": "flex_attention",
    "flash_attention": "flash",
    "sdp_attention": "sdpa",
    "eager_attention": "eager",
}


_OF_SAMPLES = ("datasets", "pretraining_dataset", "test_datasets", "sequence_len")


def recognise(document: Document, root: Node) -> bool:
    """Options alone are Axolotl's only behind its own program: other scripts have keys of these names. So have files
    that other programs write beside their adapters, with none of what each config of Axolotl's says of its samples."""
    for command in document.commands:
        if command.options.span == root.span:
            return "axolotl" in command.called
    return document.format != "json" or any(root.get(name) is not None for name in _OF_SAMPLES)


def _otherwise(spec: TrainingSpec) -> str:
    for name, why in _OTHERWISE.items():
        fact = spec.fact(lm.HYPER + name)
        if fact is not None and fact.value not in (None, False, [], {}):
            said = f"{fact.key}: {why}"
            return OnTop(said) if name in _ON_TOP else said
    for plugin in _plugins(spec):
        part = plugin.partition("axolotl.integrations.")[2].partition(".")[0]
        if part in _PLUGINS:
            said = f"plugins: {part}: {_PLUGINS[part]}"
            return OnTop(said) if part in _ON_TOP else said
    other, own = spec.fact(lm.HYPER + "base_model_config"), spec.get("model")
    if other is not None and other.value and other.value != own:
        return f"{other.key} {other.value}: the weights of one model in the shape of another"
    return ""


def _plugins(spec: TrainingSpec) -> list[str]:
    fact = spec.fact(lm.HYPER + "plugins")
    return [str(name) for name in fact.value] if fact is not None and isinstance(fact.value, list) else []


def _method(spec: TrainingSpec) -> None:
    """What is trained for."""
    stated, reward = spec.fact(lm.HYPER + "rl"), spec.fact(lm.HYPER + "reward_model")
    pretraining = spec.fact(lm.HYPER + "pretraining_dataset")
    if reward is not None and truth(reward.value):
        lm.put(spec, "method", "reward", reward)
    elif stated is not None and stated.value:
        lm.put(spec, "method", str(stated.value), stated)
    elif pretraining is not None and pretraining.value:
        lm.put(spec, "method", "pretraining", pretraining)
    elif lm.gap(spec, "rl") is None:
        lm.put(spec, "method", "sft", reason=f"{VERSION}: rl is not set")


def _trained(spec: TrainingSpec) -> str:
    return str(spec.get("method", "sft"))


def _unknown(spec: TrainingSpec) -> str:
    method = _trained(spec)
    return f"{method.upper()}: {_UNKNOWN[method]}" if method in _UNKNOWN else ""


def _model_class(spec: TrainingSpec) -> None:
    """What is built of the model."""
    found = lm.trainer(spec)
    if lm.senses(spec.get(lm.CONFIG)):
        lm.put(spec, "model_class", "vision_language", spec.fact(lm.CONFIG))
    elif found.builds:
        lm.put(spec, "model_class", found.builds, spec.fact("method"))
    else:
        lm.put(spec, "model_class", "causal_lm", reason=f"{VERSION}: AutoModelForCausalLM")
    if found.labels:
        lm.put(spec, "labels", found.labels, spec.fact("method"))


def _batch(spec: TrainingSpec) -> None:
    """Two of the three: the micro batch, the steps that accumulate, and both together."""
    whole = spec.fact(lm.HYPER + "batch_size")
    micro, steps = spec.fact("micro_batch_size"), spec.fact("gradient_accumulation_steps")
    if whole is not None and whole.value:
        if (micro is None or micro.node is None) and steps is not None and steps.value:
            lm.put(spec, "micro_batch_size", max(1, whole.value // steps.value), whole, "batch_size over the steps")
        elif (steps is None or not steps.value) and micro is not None and micro.value:
            value = max(1, whole.value // micro.value)
            lm.put(spec, "gradient_accumulation_steps", value, whole, "batch_size over micro_batch_size")
    name: Final = "gradient_accumulation_steps"
    if spec.get(name) is None and lm.gap(spec, name) is None:
        spec.facts[name] = Fact(name, 1, DEFAULT, name, reason=VERSION)


def _model(spec: TrainingSpec) -> str:
    """The model that is named, with the changes that ``model_config`` makes to its config."""
    found = lm.model(spec, "base_model")
    changes, config = spec.fact(lm.HYPER + "model_config"), spec.fact(lm.CONFIG)
    if changes is not None and isinstance(changes.value, dict) and changes.value and config is not None:
        lm.put(spec, lm.CONFIG, {**config.value, **changes.value}, config)
    return found


def _parts(spec: TrainingSpec) -> None:
    """Of a vision-language model: which parts train, and what images a sample has."""
    if not lm.senses(spec.get(lm.CONFIG)):
        return
    only = spec.fact(lm.HYPER + "freeze_mm_modules")
    if only is not None and truth(only.value):
        lm.put(spec, "frozen_parts", ["vision_tower", "projector"], only)
    _images(spec)


def _images(spec: TrainingSpec) -> None:
    """Samples have images where there is a processor for them; how large, a config may say."""
    processor, size = spec.fact(lm.HYPER + "processor_type"), spec.fact("image_size")
    if processor is None or not processor.value:
        lm.put(spec, "images_per_sample", 0, reason=f"{VERSION}: processor_type is not set, so samples are text")
        return
    lm.assume_images(spec, "datasets", tiles=True)
    if size is not None and isinstance(size.value, list):
        lm.put(spec, "image_size", [int(side) for side in size.value], size)


def _attention(spec: TrainingSpec) -> None:
    """The older switches; where nothing is stated, what transformers takes."""
    stated, hybrid = spec.fact("attention"), spec.fact(lm.HYPER + "gemma4_hybrid_attn_impl")
    if hybrid is not None and truth(hybrid.value):
        large = spec.fact(lm.HYPER + "large_head_attention") or spec.fact(lm.HYPER + "flash_attn_d512")
        if large is None or large.value in (None, False, "sdpa"):  # else by a kernel of Axolotl's own
            lm.put(spec, "attention", "flash_and_sdpa", hybrid, f"{VERSION}: SDPA where heads are too wide")
            return
    if stated is not None and stated.value:
        lm.attention(spec)
        return
    for name, kind in _ATTENTION.items():
        switch = spec.fact(lm.HYPER + name)
        if switch is not None and truth(switch.value):
            lm.put(spec, "attention", kind, switch)
            return
    if lm.gap(spec, "attn_implementation", *_ATTENTION) is None:
        key, reason = "attn_implementation", "transformers 5: from_pretrained"
        spec.facts["attention"] = Fact("attention", "sdpa", DEFAULT, key, reason=reason)


def _rows(spec: TrainingSpec) -> None:
    """Packed and padded rows are full; with kernels that know samples apart, a packed batch is one row."""
    packed, padded = spec.fact(lm.HYPER + "sample_packing"), spec.fact(lm.HYPER + "pad_to_sequence_len")
    if packed is not None and truth(packed.value):
        lm.put(spec, "packing", True, packed)
        real = spec.fact(lm.HYPER + "multipack_real_batches")
        if spec.get("attention") not in ("sdpa", "eager") and not (real is not None and truth(real.value)):
            lm.put(spec, "padding_free", True, packed, f"{VERSION}: a packed batch is one row")
    elif padded is not None and truth(padded.value):
        lm.put(spec, "packing", True, padded)
    elif _trained(spec) == "reward" and (padded is None or padded.value is None):
        lm.put(spec, "packing", True, reason=f"{VERSION}: reward models pad to sequence_len")
    elif packed is not None:
        lm.put(spec, "packing", False, packed)
    for name in ("batch_flattening", "dpo_padding_free"):
        flat = spec.fact(lm.HYPER + name)
        if flat is not None and truth(flat.value):
            lm.put(spec, "padding_free", True, flat)


def _optimizer(spec: TrainingSpec) -> None:
    """transformers' names, and Axolotl's own."""
    lm.optimizer(spec)
    stated = spec.fact(lm.HYPER + "optim")
    known = _OPTIMIZERS.get(str(stated.value)) if stated is not None else None
    if known is not None:
        lm.put(spec, "optimizer", known[0], stated)
        lm.put(spec, "optimizer_library", known[1], stated)
    rank, targets = spec.fact(lm.HYPER + "qgalore_rank"), spec.fact(lm.HYPER + "optim_target_modules")
    if rank is not None and spec.get("optimizer", "").startswith("q_galore"):
        lm.put(spec, "optimizer_rank", rank.value, rank)
        if targets is not None and targets.value:
            names = "all-linear" if targets.value is True else lm.names_of(targets.value)
            lm.put(spec, "optimizer_targets", "all-linear" if names == ["all_linear"] else names, targets)


def _kernels(spec: TrainingSpec) -> None:
    """Liger's kernels one by one, which only its plugin turns on; fused adapters, which turn themselves on."""
    on: list[str] = []
    origin: Fact | None = None
    if any(name.endswith("LigerPlugin") for name in _plugins(spec)):
        for name in ("rotary", "rms_norm", "swiglu", "layer_norm", "cross_entropy", "linear_cross_entropy"):
            switch = spec.fact(lm.HYPER + f"liger.{name}")
            if switch is not None and truth(switch.value):
                on.append(name)
                origin = origin or switch
    flash = spec.fact(lm.HYPER + "flash_attn_cross_entropy")
    if flash is not None and truth(flash.value):
        on.append("cross_entropy")
        origin = origin or flash
    if (spec.get(lm.CONFIG) or {}).get("model_type") in _GATED_DELTA:
        on.append("gated_delta_rule")  # flash-linear-attention is a dependency (pyproject.toml)
        origin = origin or spec.fact(lm.CONFIG)
    fused, switch = _adapter_kernels(spec)
    if on or fused:
        origin = origin or switch
        reason = "" if origin is not None else f"{VERSION}: adapters are fused unless a key says otherwise"
        lm.put(spec, "fused_kernels", [*on, *fused], origin, reason)


_GATED_DELTA = ("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text")


def _adapter_kernels(spec: TrainingSpec) -> tuple[list[str], Fact | None]:
    """Which adapters run fused, and the first key that says so (utils/schemas/config.py, check_auto_enable)."""
    names = ("lora_mlp", "lora_qkv", "lora_o", "lora_embedding")
    stated = {name: spec.fact(lm.HYPER + f"{name}_kernel") for name in names}
    written = {name: fact for name, fact in stated.items() if fact is not None and fact.value is not None}
    if written:
        on = [name for name, fact in written.items() if truth(fact.value)]
        return on, written[on[0]] if on else None
    adapter, config = lm.setting(spec, "adapter"), lm.setting(spec, "fsdp_config")
    version = lm.setting(spec, "fsdp_version") or inner(config, "version")
    automatic = adapter in ("lora", "qlora") and not lm.setting(spec, "rl")
    if not automatic or (adapter == "lora" and lm.switched(spec, "load_in_8bit")):
        return [], None
    if lm.switched(spec, "trust_remote_code") or (config and str(version) != "2"):
        return [], None
    return list(names), None


def _loss(spec: TrainingSpec) -> None:
    """Whole logits, in chunks, or the head's product as part of the loss."""
    method, found = _trained(spec), lm.trainer(spec)
    chunked, cut = spec.fact(lm.HYPER + "chunked_cross_entropy"), spec.fact(lm.HYPER + "cut_cross_entropy")
    kernels = spec.fact("fused_kernels")
    plugin = any("cut_cross_entropy" in name for name in _plugins(spec))
    if method in _UNKNOWN or found.takes == SCORES:
        return
    if found.takes == LOG_PROBABILITIES:
        liger = spec.fact(lm.HYPER + "dpo_use_liger_kernel")
        if liger is not None and truth(liger.value):
            lm.put(spec, "loss", "fused", liger)
        lm.put(spec, "log_probabilities", "rows", reason="TRL 1.9: selective_log_softmax")
        if lm.takes_likelihood(spec, found):
            reason = "TRL 1.9: the likelihood of chosen answers is part of the loss"
            lm.put(spec, "likelihood_of_chosen", True, reason=reason)
        return
    if plugin and (cut is None or cut.value is None or truth(cut.value)):
        origin = cut if cut is not None and cut.value is not None else spec.fact(lm.HYPER + "plugins")
        lm.put(spec, "loss", "fused", origin)
        before = list(kernels.value) if kernels is not None else []
        lm.put(spec, "fused_kernels", [*before, "cut_cross_entropy"], origin)
    elif chunked is not None and truth(chunked.value):
        count = spec.fact(lm.HYPER + "chunks")
        lm.put(spec, "loss", "chunked", chunked)
        if count is not None and count.value:
            lm.put(spec, "loss_chunks", count.value, count)
        else:
            lm.put(spec, "loss_chunks", 8, reason=f"{VERSION}: patch_chunked_ce_loss_fn")
    elif kernels is not None and "linear_cross_entropy" in kernels.value:
        lm.put(spec, "loss", "fused", spec.fact(lm.HYPER + "liger.linear_cross_entropy"))
    elif spec.get("loss") == "chunked":
        lm.put(spec, "loss_chunks", 8, reason=f"{VERSION}: patch_chunked_ce_loss_fn")
    elif spec.get("loss") == "fused" and _cuts(spec):
        before = list(kernels.value) if kernels is not None else []
        lm.put(spec, "fused_kernels", [*before, "cut_cross_entropy"], reason=f"{VERSION}: {_CUT_PLUGIN}")


def _checkpointing(spec: TrainingSpec) -> None:
    """Reentrant where nothing says otherwise (utils/config); ``offload`` keeps hidden states in host memory.

    A whole model that offloads is recomputed by torch's own wrapper in place of transformers' (loaders/model.py,
    ac_wrap_hf_model), and ``hidden_states`` has a default of its own (utils/schemas/validation.py).
    """
    stated = spec.fact("checkpointing")
    lm.checkpointing(spec)
    if spec.get("checkpointing", "none") == "none":
        if spec.get("activation_offloading"):
            del spec.facts["activation_offloading"]  # Axolotl refuses it without checkpointing
        return
    raw = stated.node.value if stated is not None and stated.node is not None else None
    if isinstance(raw, str) and raw.startswith(("offload", "unsloth")):
        lm.put(spec, "activation_offloading", True, stated)
    offload = spec.fact("activation_offloading")
    if offload is not None and offload.value:
        only = offload.node is not None and offload.node.value == "hidden_states"
        if only and "checkpointing_reentrant" not in spec:
            lm.put(spec, "checkpointing_reentrant", False, offload, f"{VERSION}: not the reentrant kind beside it")
        elif not only and spec.get("tuning", "full") == "full":
            lm.put(spec, "checkpointing_reentrant", False, offload, f"{VERSION}: torch's own wrapper recomputes")
    if "checkpointing_reentrant" not in spec:
        plain = not lm.setting(spec, "rl") and spec.get("checkpointing") == "full"
        lm.put(spec, "checkpointing_reentrant", plain, reason=f"{VERSION}: the reentrant kind, except with rl")


def _precision(spec: TrainingSpec) -> str:
    """Weights are loaded in the dtype that autocast computes in (utils/config, resolve_dtype)."""
    by_name = {name: spec.fact(lm.HYPER + name) for name in ("bf16", "bfloat16", "fp16", "float16", "load_in_8bit")}
    on = {name: fact for name, fact in by_name.items() if fact is not None and _is_on(fact.value)}
    half = on.get("fp16")
    if half is not None and by_name["bf16"] is not None and by_name["bf16"].value == "auto":
        on.pop("bf16", None)  # auto gives way to fp16
    first = next((on[name] for name in ("bf16", "bfloat16") if name in on), None)
    dtype = "bfloat16"
    if first is None:
        dtype = "float16"
        first = next((on[name] for name in ("fp16", "float16", "load_in_8bit") if name in on), None)
    if first is None:
        reason, tried = f"{VERSION}: neither bf16 nor fp16", spec.tried("compute_dtype")
        dtype = "float32" if tried is None else tried.value  # one switch for all of them
        loaded = Fact("parameter_dtype", dtype, DEFAULT, "bf16", reason=reason)
    else:
        reason = first.reason
        if first.value == "auto":
            reason = f"{VERSION}: auto is bfloat16 where the card has it"
        loaded = first._replace(name="parameter_dtype", value=dtype, reason=reason)
    mixed = {"bf16": "bf16" in on or "bfloat16" in on, "fp16": "fp16" in on}
    if by_name["bf16"] is not None and by_name["bf16"].value == "full":
        mixed["bf16"] = False
    for name, value in mixed.items():
        origin = by_name[name] if name in on or not value else on.get("bfloat16")
        value = value and not (name == "fp16" and mixed["bf16"])
        lm.put(spec, lm.HYPER + name, value, origin, loaded.reason if name == "bf16" and origin is None else "")
    for name, why in (("bf16", "bf16"), ("bfloat16", "bf16")):
        if lm.gap(spec, name) is not None and by_name[name] is None:
            return lm.not_stated(spec, why)
    why = lm.precision(spec, loaded)
    automatic = spec.fact(lm.HYPER + "peft_autocast_adapter_dtype")
    adapted = spec.get("tuning") in ("lora", "dora")
    if adapted and spec.get("parallelism.strategy") != "zero":
        if automatic is not None and automatic.value is False:
            lm.put(spec, "lora.dtype", loaded.value, automatic)
        elif "quantization.bits" in spec and spec.get("method") in ("dpo", "ipo"):
            lm.put(spec, "lora.dtype", "bfloat16", reason="TRL 1.9: adapters of a quantised model are in bfloat16")
        if spec.get("parallelism.strategy") not in ("fsdp1", "fsdp2"):
            lm.put(spec, "parameter_dtype", spec["lora.dtype"], spec.fact("lora.dtype"))
    _float32_parts(spec, loaded)
    return why


def _is_on(value: Any) -> bool:
    return truth(value) or value in ("auto", "full")


def _float32_parts(spec: TrainingSpec, loaded: Fact) -> None:
    """Norms, embeddings and head are upcast, and cast back only for kernels that need it (loaders/model.py)."""
    strategy = spec.get("parallelism.strategy", "none")
    norms = spec.fact(lm.HYPER + "fp32_norms")
    if strategy == "fsdp2" and norms is not None and truth(norms.value):
        lm.put(spec, "float32_parts", ["norms"], norms)
    parts = _upcast_parts(spec, str(loaded.value))
    if parts:
        lm.put(spec, "float32_parts", parts, reason=f"{VERSION}: cast back to 16 bits only for kernels that need it")


def _upcast_parts(spec: TrainingSpec, dtype: str) -> list[str]:
    """What of a whole model in ``dtype`` stays in float32."""
    whole = spec.get("tuning", "full") == "full" and spec.get("parallelism.strategy", "none") in ("none", "ddp")
    plain = spec.get("attention") in ("sdpa", "eager") and "cut_cross_entropy" not in spec.get("fused_kernels", ())
    return ["norms", "embeddings", "head"] if whole and plain and dtype != "float32" else []


def _reference(spec: TrainingSpec) -> None:
    """A second model for DPO and IPO without an adapter, in the policy's dtype (train.py)."""
    method = _trained(spec)
    if lm.trainer(spec).reference != ALWAYS:
        if method not in _UNKNOWN:
            lm.put(spec, "reference_model", "none", reason=f"{method} needs none")
        return
    early = spec.fact(lm.HYPER + "precompute_ref_log_probs")
    if early is not None and truth(early.value):
        lm.put(spec, "reference_model", "precomputed", early)
    elif spec.get("tuning", "full") != "full":
        lm.put(spec, "reference_model", "adapter_off", spec.fact("tuning"), "without its adapter it is the reference")
    else:
        lm.put(spec, "reference_model", "copy", reason=f"{VERSION}: a copy")


def _evaluation(spec: TrainingSpec) -> None:
    """There is an evaluation where something is kept for it and a key says when (core/builders/base.py)."""
    kept, sets = spec.fact(lm.HYPER + "val_set_size"), spec.fact(lm.HYPER + "test_datasets")
    data = (kept is not None and bool(kept.value)) or (sets is not None and bool(sets.value))
    per_epoch, epochs = spec.fact(lm.HYPER + "evals_per_epoch"), lm.setting(spec, "num_epochs") or 1
    steps, stated = spec.fact(lm.HYPER + "eval_steps"), spec.fact(lm.HYPER + "stated_eval_strategy")
    when = None
    if per_epoch is not None and per_epoch.value and per_epoch.value * epochs > 1:
        when = per_epoch
    elif steps is not None and steps.value:
        when = steps
    elif stated is not None and stated.value not in (None, False, "no"):
        when = stated
    if data and when is not None:
        lm.put(spec, lm.HYPER + "eval_strategy", "steps", when)
        if "evaluation_batch_size" not in spec and "micro_batch_size" in spec:
            reason = f"{VERSION}: as many as a micro batch"
            key, rows = "eval_batch_size", spec["micro_batch_size"]
            spec.facts["evaluation_batch_size"] = Fact("evaluation_batch_size", rows, DEFAULT, key, reason=reason)
        lm.put(spec, "evaluation_accumulates", False, reason=f"{VERSION}: eval_accumulation_steps is set")
    lm.evaluation(spec)
    kernels = spec.fact("fused_kernels")
    cut = kernels is not None and "cut_cross_entropy" in kernels.value and spec.get("loss") == "fused"
    if cut and "evaluation_batch_size" in spec:  # ml-cross-entropy: transformers/patch.py, cce_patch(train_only=False)
        lm.put(spec, "evaluation_loss", "as_trained", kernels, "cut cross entropy makes no logits in evaluation either")
    longest = spec.fact(lm.HYPER + "eval_sequence_len")
    if longest is not None and longest.value and "evaluation_batch_size" in spec:
        lm.put(spec, "evaluation_sequence_length", longest.value, longest)


def _loader(spec: TrainingSpec) -> None:
    """Where none of the three is stated there is a worker per device, far ahead (default_dataloader_opts)."""
    names: tuple[Name, ...] = ("workers", "prefetch_factor", "pin_memory")
    stated = [spec.fact(name) for name in names]
    if any(fact is not None and fact.node is not None for fact in stated):
        return
    reason = f"{VERSION}: a worker per device, 256 batches ahead"
    for name, value in zip(names, (spec.get("device_count", 1), 256, True)):
        lm.put(spec, name, value, reason=reason)


FAMILY = lm.Family(
    stated=Graph(
        Step(_method, ("method",)),
        Step(_batch, ("micro_batch_size", "gradient_accumulation_steps")),
        Step(_model, lm.MODEL_FACTS),
        Step(_kernels, ("fused_kernels",)),
        Step(fsdp, (lm.HYPER + "fsdp", lm.HYPER + "fsdp_config")),
        Step(processes, ("device_count",)),
    ),
    beside=beside,
    follows=Graph(
        Step(_otherwise),
        Step(_unknown),
        Step(_model_class, ("model_class", "labels")),
        Step(_parts, ("frozen_parts", "images_per_sample", "image_size", "most_images")),
        Step(lm.pairs, ("sequences_per_sample",)),
        Step(_attention, ("attention",)),
        Step(_rows, ("packing", "padding_free")),
        Step(_optimizer, lm.OPTIMIZER_FACTS),
        Step(_loss, ("loss", "loss_chunks", "fused_kernels", "log_probabilities", "likelihood_of_chosen")),
        Step(lm.compiled, ("compile",)),
        Step(axolotl_trained.adapters, (*lm.ADAPTER_FACTS, lm.HYPER + "use_peft")),
        Step(axolotl_trained.quantization, lm.QUANTIZATION_FACTS),
        Step(axolotl_trained.patterns, ("freeze.patterns",)),
        Step(lm.processes, lm.PROCESS_FACTS),
        Step(_checkpointing, lm.CHECKPOINTING_FACTS),
        Step(_precision, (*lm.PRECISION_FACTS, lm.HYPER + "bf16", lm.HYPER + "fp16", "float32_parts")),
        Step(_reference, ("reference_model",)),
        Step(_evaluation, (*lm.EVALUATION_FACTS, lm.HYPER + "eval_strategy")),
        Step(_loader, ("workers", "prefetch_factor", "pin_memory")),
    ),
    told=("model", "otherwise", "adapters", "quantization", "patterns", "sharing", "precision", "unknown"),
    keys={"sequence_length": "sequence_len", "micro_batch_size": "micro_batch_size"},
)


# ---------------------------------------------------------------------------------------------- spelling


def spell(spec: TrainingSpec, fact: Name, value: Any) -> list[Edit] | None:
    """Axolotl's own keys where they are not the Trainer's."""
    if fact in ("parameter_dtype", "frozen_dtype"):
        return []  # `bf16` is the dtype of products too
    if fact == "quantization.bits" and "quantization.bits" not in spec:
        adapted = spec.get("tuning") in ("lora", "dora")
        return lm.write(spec, lm.HYPER + "load_in_8bit", True) if adapted and value == 8 else []
    if fact == "packing":
        if spec.get("method") not in ("sft", "pretraining"):
            return []
        return lm.write(spec, lm.HYPER + "sample_packing", value)
    if fact == "loss":
        return _spell_loss(spec, value)
    if fact == "evaluation_batch_size" and fact in spec:
        return None
    if fact == "optimizer" and value in ("adamw_4bit",):
        return lm.write(spec, lm.HYPER + "optim", "ao_adamw_4bit")
    return lm.spell(spec, fact, value, ("attention", "sequence_length"))


_CUT_PLUGIN = "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"
# Types of models that the plugin patches (Axolotl 0.18, integrations/cut_cross_entropy/README.md).
_CUT_MODELS = frozenset(
    (
        *("afmoe", "apertus", "arcee", "cohere", "cohere2", "cohere2_moe", "deepseek_v2", "deepseek_v3"),
        *("deepseek_v4", "exaone4", "exaone4_5", "exaone_moe", "gemma", "gemma2", "gemma3", "gemma3_text"),
        *("gemma3n", "gemma3n_text", "gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text", "glm"),
        *("glm4", "glm46v", "glm4_moe", "glm4_moe_lite", "glm4v", "glm4v_moe", "glm_image", "glm_moe_dsa"),
        *("gpt_oss", "granite", "granitemoe", "granitemoehybrid", "granitemoeshared", "hunyuan_v1_dense"),
        *("hunyuan_v1_moe", "internvl", "kimi_linear", "lfm2", "lfm2_moe", "lfm2_vl", "llama", "llama4"),
        *("llama4_text", "llava", "minimax", "minimax_m2", "ministral", "ministral3", "mistral", "mistral3"),
        *("mistral4", "mixtral", "mllama", "nemotron_h", "olmo", "olmo2", "olmo3", "olmoe", "phi", "phi3"),
        *("phi4_multimodal", "qwen2", "qwen2_5_vl", "qwen2_moe", "qwen2_vl", "qwen3", "qwen3_5", "qwen3_5_moe"),
        *("qwen3_5_moe_text", "qwen3_5_text", "qwen3_moe", "qwen3_next", "qwen3_vl", "qwen3_vl_moe", "seed_oss"),
        *("smollm3", "step3p5", "step3p7", "voxtral"),
    )
)


def _has_liger(spec: TrainingSpec) -> bool:
    return any(name.endswith("LigerPlugin") for name in _plugins(spec))


def _cuts(spec: TrainingSpec) -> bool:
    """Whether a fused loss would be that of the plugin for cut cross entropy."""
    return not _has_liger(spec) and (spec.get(lm.CONFIG) or {}).get("model_type") in _CUT_MODELS


def _spell_loss(spec: TrainingSpec, value: Any) -> list[Edit]:
    """The linear cross entropy of a plugin that is there, else a plugin's, or the chunked one, which needs none."""
    if spec.get("method") not in ("sft", "pretraining"):
        return []
    if value == "fused" and _has_liger(spec):
        plain = spec.fact(lm.HYPER + "liger.cross_entropy")
        off = lm.write(spec, plain.name, False) if plain is not None and truth(plain.value) else []
        return [*off, *lm.write(spec, lm.HYPER + "liger.linear_cross_entropy", True)]
    if value == "fused" and _cuts(spec):
        return lm.write(spec, lm.HYPER + "plugins", [*_plugins(spec), _CUT_PLUGIN])
    if value == "chunked" and spec.get("loss", "full") == "full":
        return lm.write(spec, lm.HYPER + "chunked_cross_entropy", True)
    return []
