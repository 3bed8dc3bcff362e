"""What the families of language-model trainers share: from the name of a model and the switches of a trainer to the
facts that the model is built from (docs/facts.md).

A function here takes a spec with what the schema found in it, adds facts, and returns why there can be no estimate,
or "". ``finish`` puts the reasons together. The model's own config comes from the catalogue, a local folder or the
local hub cache, and never from the network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from memlint.architectures.adapters import LORA_TARGETS
from memlint.dialects import launchers, software
from memlint.dialects.accelerate import launched, truth
from memlint.dialects.companions import Companion
from memlint.dialects.deepspeed import AUTO, deepspeed_facts
from memlint.dialects.spec import (
    ASSUMED,
    DEFAULT,
    WRITTEN,
    Conflict,
    Fact,
    Missing,
    Name,
    TrainingSpec,
    named,
)
from memlint.dialects.spec import HYPER as HYPER
from memlint.documents.node import Document, Edit, Node

CONFIG = HYPER + "config"
DECODER: Final = "decoder"  # a memlint.architectures.decoder.Decoder
ARCHITECTURE = "language_model"
TRANSFORMERS = "transformers 5"
HALF = ("bfloat16", "float16")

_DTYPES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "float": "float32",
    "fp32": "float32",
    "torch.bfloat16": "bfloat16",
    "torch.float16": "float16",
    "torch.float32": "float32",
}

# Names that transformers gives optimizers (training_args.OptimizerNames, trainer_optimizer.py)
#   -> optimizer, implementation, library, whether its states may move to host memory
OPTIMIZERS: dict[str, tuple[str, str, str, bool]] = {
    "adamw_torch": ("adamw", "foreach", "torch", False),
    "adamw_torch_fused": ("adamw", "fused", "torch", False),
    "adamw_hf": ("adamw", "loop", "transformers", False),  # before transformers 5
    "adamw_apex_fused": ("adamw", "fused", "apex", False),
    "adafactor": ("adafactor", "loop", "transformers", False),
    "sgd": ("sgd", "foreach", "torch", False),
    "adagrad": ("adagrad", "foreach", "torch", False),
    "rmsprop": ("rmsprop", "foreach", "torch", False),
    "adamw_torch_8bit": ("adamw_8bit", "", "torchao", False),
    "adamw_torch_4bit": ("adamw_4bit", "", "torchao", False),
    "adamw_bnb_8bit": ("adamw_8bit", "", "bitsandbytes", False),
    "adamw_8bit": ("adamw_8bit", "", "bitsandbytes", False),
    "lion_8bit": ("lion_8bit", "", "bitsandbytes", False),
    "lion_32bit": ("lion", "", "bitsandbytes", False),
    "ademamix": ("ademamix", "", "bitsandbytes", False),
    "ademamix_8bit": ("ademamix_8bit", "", "bitsandbytes", False),
    "rmsprop_bnb": ("rmsprop", "", "bitsandbytes", False),
    "rmsprop_bnb_32bit": ("rmsprop", "", "bitsandbytes", False),
    "rmsprop_bnb_8bit": ("rmsprop_8bit", "", "bitsandbytes", False),
    "paged_adamw_32bit": ("adamw", "", "bitsandbytes", True),
    "paged_adamw_8bit": ("adamw_8bit", "", "bitsandbytes", True),
    "paged_lion_32bit": ("lion", "", "bitsandbytes", True),
    "paged_lion_8bit": ("lion_8bit", "", "bitsandbytes", True),
    "paged_ademamix_32bit": ("ademamix", "", "bitsandbytes", True),
    "paged_ademamix_8bit": ("ademamix_8bit", "", "bitsandbytes", True),
    "galore_adamw": ("galore_adamw", "", "galore_torch", False),
    "galore_adamw_8bit": ("galore_adamw_8bit", "", "galore_torch", False),
    "galore_adafactor": ("galore_adafactor", "", "galore_torch", False),
    "apollo_adamw": ("apollo_adamw", "", "apollo_torch", False),
    "lomo": ("lomo", "", "lomo_optim", False),
    "adalomo": ("adalomo", "", "lomo_optim", False),
    "grokadamw": ("grokadamw", "", "grokadamw", False),
    "stable_adamw": ("stable_adamw", "", "optimi", False),
    "schedule_free_adamw": ("schedule_free_adamw", "", "schedulefree", False),
    "schedule_free_radam": ("schedule_free_radam", "", "schedulefree", False),
    "schedule_free_sgd": ("schedule_free_sgd", "", "schedulefree", False),
    "adamw_anyprecision": ("adamw_anyprecision", "", "torchdistx", False),
}


# What the functions below give, where a family takes them as the steps of a graph (memlint/facts/derive.py).
OPTIMIZER_FACTS: tuple[Name, ...] = (
    *("optimizer", "optimizer_implementation", "optimizer_library", "optimizer_paged", "optimizer_in_backward"),
    *("optimizer_rank", "optimizer_targets"),
)
ADAPTER_FACTS: tuple[Name, ...] = (
    *("tuning", "lora.r", "lora.alpha", "lora.dropout", "lora.targets", "lora.modules_to_save", "lora.unfrozen"),
)
QUANTIZATION_FACTS: tuple[Name, ...] = (
    *("quantization.bits", "quantization.kind", "quantization.double", "quantization.group_size"),
)
PRECISION_FACTS: tuple[Name, ...] = (
    *("parameter_dtype", "frozen_dtype", "lora.dtype", "compute_dtype", "autocast", "master_weights", "loss_scaling"),
    *("parallelism.reduce_dtype", "mixed_precision", "deepspeed_dtype", HYPER + "deepspeed_states_dtype"),
)
CHECKPOINTING_FACTS: tuple[Name, ...] = ("checkpointing", "checkpointing_reentrant", "activation_offloading")
EVALUATION_FACTS: tuple[Name, ...] = (
    *("evaluation_batch_size", "evaluation_sequence_length", "evaluation_accumulates"),
)


# ---------------------------------------------------------------------------------------------- reading a spec


def setting(spec: TrainingSpec, name: str) -> Any:
    """The value of a key that is no fact of its own; None where it is absent."""
    return spec.get(HYPER + name)


def switched(spec: TrainingSpec, name: str) -> bool:
    """Whether such a key is true."""
    return truth(setting(spec, name))


def put(spec: TrainingSpec, name: Name, value: Any, origin: Fact | None = None, reason: str = "") -> None:
    """A fact that follows from another one, which says where; or a default, which says why."""
    if origin is not None:
        spec.facts[name] = origin._replace(name=name, value=value, reason=reason or origin.reason)
    else:
        spec.facts[name] = Fact(name, value, DEFAULT, reason=reason)


def gap(spec: TrainingSpec, *keys: str) -> Missing | None:
    """The first value that could not be resolved, of these keys."""
    for item in spec.missing:
        if item.key.lstrip("-").rsplit(".", 1)[-1] in keys:
            return item
    return None


def not_stated(spec: TrainingSpec, *keys: str) -> str:
    """Why the value of a key is not there: it is not resolved, or not written."""
    item = gap(spec, *keys)
    return f"{keys[0]} is not stated" if item is None else f"{item.key} is not known: {item.reason}"


def names_of(value: Any) -> list[str]:
    """``q_proj,v_proj`` and ``[q_proj, v_proj]`` alike."""
    items = value if isinstance(value, (list, tuple)) else [value]
    return [name.strip() for item in items for name in str(item).split(",") if name.strip()]


def dtype_of(value: Any) -> str:
    """A dtype by torch's name; "" for ``auto`` and the like."""
    text = str(value).strip().lower()
    text = _DTYPES.get(text, text)
    return text if text in ("float32", "float16", "bfloat16", "float64") else ""


# Console programs whose options look like TrainingArguments, and are read by trainers of their own.
_PROGRAMS = ("llamafactory-cli", "axolotl", "swift", "tune", "litgpt", "openrlhf", "oumi", "xtuner", "autotrain")


# transformers' example scripts, some of whose options other trainers have, too (examples/pytorch).
EXAMPLES = (
    *("run_clm", "run_fim", "run_mlm", "run_plm", "run_glue", "run_classification", "run_xnli", "run_qa", "run_squad"),
    *("run_seq2seq_qa", "run_ner", "run_swag", "run_summarization", "run_translation", "run_image_classification"),
    *("run_mae", "run_mim", "run_speech_recognition_ctc", "run_speech_recognition_seq2seq", "run_audio_classification"),
)


def is_of_another_family(document: Document, root: Node, also: tuple[str, ...] = ()) -> bool:
    """Whether the command that a tree of options belongs to is the program of a family that states itself, or one of
    ``also``."""
    for command in document.commands:
        if command.options.span == root.span and isinstance(command.program.value, str):
            program = command.program.value.rsplit("/", 1)[-1].partition(".")[0].removesuffix("_no_trainer")
            return program in _PROGRAMS or program in also
    return False


# ---------------------------------------------------------------------------------------------- the model


def resolve(name: str, beside: str) -> tuple[dict[str, Any] | None, str]:
    """(the model's config, where it was found) or (None, why not), for a hub id or a folder named in a file."""
    from memlint.data import hub

    found = hub.resolve(name, beside)
    if found is None:
        return None, "not in the catalogue (`memlint models`), nor a folder with a config.json, nor in the hub cache"
    return (found.config, found.source) if not found.reason else (None, f"{found.source}: {found.reason}")


def model(spec: TrainingSpec, key: str = "model_name_or_path") -> str:
    """The model's config by its name, and what follows from it."""
    fact = spec.fact("model")
    if fact is None or not isinstance(fact.value, str) or not fact.value:
        return not_stated(spec, key, *_spellings(spec, "model"))
    beside = fact.span.path if fact.span is not None else spec.document.path
    config, source = resolve(fact.value, beside)
    spec.model_name = fact.value.rstrip("/").rsplit("/", 1)[-1] or fact.value
    if config is None:
        return f"{fact.key} {fact.value}: {source}"
    put(spec, CONFIG, config, fact, source)
    vocabulary = text_config(config).get("vocab_size")
    if isinstance(vocabulary, int):
        put(spec, "vocabulary_size", vocabulary, fact)
    return ""


def _spellings(spec: TrainingSpec, fact: str) -> tuple[str, ...]:
    from memlint.dialects import registry

    key = registry.dialect(spec.family).key(fact)
    return key.names if key is not None else ()


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The language model's part of a config."""
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) else config


def position_limit(spec: TrainingSpec) -> int | None:
    """How many positions the model was made for; None where its config sets no limit."""
    config = text_config(spec.get(CONFIG) or {})
    for name in ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"):
        limit = config.get(name)
        if isinstance(limit, int) and limit > 0:
            return limit
    return None


def tokens(spec: TrainingSpec) -> None:
    """What follows from the length of a sample."""
    length = spec.fact("sequence_length")
    if length is None or not isinstance(length.value, int):
        return
    put(spec, "attention_tokens", length.value, length)
    several = spec.get("sequences_per_sample", 1)
    names: tuple[str, ...] = ("micro_batch_size", "sequence_length")
    if several != 1:
        names = ("micro_batch_size", "sequences_per_sample", "sequence_length")
    put(spec, "token_product", ("tokens", names))
    size = 3 * 8 * length.value * several
    put(spec, "sample_bytes", size, reason="int64 token ids, attention mask and labels")


# ---------------------------------------------------------------------------------------------- optimizer, losses


def optimizer(spec: TrainingSpec, name: str = "optim") -> None:
    """transformers' name of an optimizer says which one, how it is written and whose it is."""
    stated = spec.fact(HYPER + name)
    if stated is None:
        return
    text = str(stated.value)
    layerwise = text.endswith("_layerwise")
    text = text.removesuffix("_layerwise")
    kind, implementation, library, paged = OPTIMIZERS.get(text, (text, "", text.split("_", 1)[0], False))
    put(spec, "optimizer", kind, stated)
    put(spec, "optimizer_library", library, stated)
    spec.facts.pop("optimizer_implementation", None)
    if implementation:
        put(spec, "optimizer_implementation", implementation, stated)
    if paged:
        put(spec, "optimizer_paged", True, stated)
    if spec["optimizer"] in ("lomo", "adalomo") or (layerwise and spec.tried("optimizer") is None):
        put(spec, "optimizer_in_backward", True, stated)
    if text.startswith(("galore", "apollo")):
        _projection(spec)


def _projection(spec: TrainingSpec) -> None:
    """The rank of projected gradients, and whose they are (trainer_optimizer._setup_low_rank_optimizer)."""
    rank = argument(spec, "rank")
    stated = spec.fact(HYPER + "optim_args")
    if rank is not None and rank.isdigit():
        put(spec, "optimizer_rank", int(rank), stated)
    else:
        put(spec, "optimizer_rank", 128, reason=f"{TRANSFORMERS}: GaLore's and APOLLO's")
    targets = spec.fact(HYPER + "optim_target_modules")
    if targets is not None and targets.value:
        names = names_of(targets.value) if targets.value is not True else ["all-linear"]
        every = names in (["all-linear"], ["all_linear"])
        put(spec, "optimizer_targets", "all-linear" if every else names, targets)


def argument(spec: TrainingSpec, name: str) -> str | None:
    """One of the arguments of an optimizer: ``optim_args`` is a mapping, or ``rank=128, scale=0.25``."""
    given = setting(spec, "optim_args")
    if isinstance(given, dict):
        return str(given[name]) if name in given else None
    for part in str(given or "").split(","):
        key, _, value = part.partition("=")
        if key.strip() == name:
            return value.strip()
    return None


# Liger 0.8, transformers/monkey_patch.py: what _apply_liger_kernel_to_instance turns on unless it is told otherwise.
_LIGER = {
    "rope": "rotary",
    "rms_norm": "rms_norm",
    "swiglu": "swiglu",  # or geglu: whichever gate the model has
    "fused_linear_cross_entropy": "linear_cross_entropy",
}
# The model types that it knows (MODEL_TYPE_TO_APPLY_LIGER_FN); it leaves others as they are, and says so in the log.
_LIGER_TYPES = frozenset(
    (
        *("deepseek_v2", "deepseek_v3", "exaone4", "falcon_h1", "gemma", "gemma2", "gemma3", "gemma3_text", "gemma4"),
        *("gemma4_text", "glm4", "glm4v", "glm4v_moe", "gpt_oss", "granite", "hunyuan_v1_dense", "hunyuan_v1_moe"),
        *("internvl", "llama", "llama4", "llama4_text", "llava", "ministral", "mistral", "mixtral", "mllama"),
        *("mllama_text_model", "nemotron", "olmo2", "olmo3", "paligemma", "phi3", "qwen2", "qwen2_5_vl"),
        *("qwen2_5_vl_text", "qwen2_vl", "qwen2_vl_text", "qwen3", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text"),
        *("qwen3_5_text", "qwen3_moe", "qwen3_next", "qwen3_vl", "qwen3_vl_moe", "qwen3_vl_moe_text", "qwen3_vl_text"),
        *("smollm3", "smolvlm"),
    )
)
# ... and what it leaves off for some of them.
_ROTARY_OFF = ("deepseek_v2", "deepseek_v3", "gemma4", "gemma4_text", "glm4", "glm4v", "glm4v_moe", "qwen3_next")
_LIGER_OFF: dict[str, tuple[str, ...]] = {
    **dict.fromkeys((*_ROTARY_OFF, "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"), ("rope",)),
    "granite": ("fused_linear_cross_entropy",),
    "gpt_oss": ("swiglu",),
    "nemotron": ("rope", "rms_norm", "swiglu"),
}


def _model_type(spec: TrainingSpec) -> str:
    return str((spec.get(CONFIG) or {}).get("model_type") or "")


def knows_liger(spec: TrainingSpec) -> bool:
    """Whether Liger has kernels for the model; also where its type is not known."""
    return _model_type(spec) in ("", *_LIGER_TYPES)


def kernels(spec: TrainingSpec) -> None:
    """Liger's kernels, and the loss that they bring."""
    if not knows_liger(spec):
        return
    switch = spec.fact(HYPER + "use_liger_kernel")
    off = _LIGER_OFF.get(_model_type(spec), ())
    on = [name for key, name in _LIGER.items() if spec.get(HYPER + f"liger.{key}", key not in off)]
    if spec.get(HYPER + "liger.cross_entropy", "fused_linear_cross_entropy" in off):
        on.append("cross_entropy")
    if switch is None or not truth(switch.value):
        loss = spec.tried("loss")
        if loss is not None and loss.value == "fused":  # which is how the switch would be written
            put(spec, "fused_kernels", on, loss)
        return
    put(spec, "fused_kernels", on, switch)
    if "linear_cross_entropy" in on:
        put(spec, "loss", "fused", switch)


def attention(spec: TrainingSpec) -> None:
    """Older switches beside attn_implementation, and a null that means the default."""
    stated, switch = spec.fact("attention"), spec.fact(HYPER + "use_flash_attn")
    if switch is not None and truth(switch.value) and (stated is None or stated.node is None):
        put(spec, "attention", "flash", switch)
    elif stated is not None and isinstance(stated.value, str) and "flash-attn" in stated.value:
        put(spec, "attention", "flash", stated)


def compiled(spec: TrainingSpec) -> None:
    """Naming a backend or a mode turns torch.compile on."""
    for name in ("torch_compile_backend", "torch_compile_mode"):
        stated = spec.fact(HYPER + name)
        if stated is not None and stated.value and not spec.get("compile"):
            put(spec, "compile", True, stated)


def checkpointing(spec: TrainingSpec) -> None:
    """What the keyword arguments of checkpointing make of it."""
    stated = spec.fact("checkpointing")
    if stated is None or stated.value != "full":
        return
    every, selective = spec.fact("checkpointing_every"), spec.fact(HYPER + "checkpointing_selective")
    offload = spec.fact(HYPER + "checkpointing_offload")
    if selective is not None and truth(selective.value):
        put(spec, "checkpointing", "selective", selective)
    elif every is not None and every.value > 1:
        put(spec, "checkpointing", "every", every)
    if offload is not None and truth(offload.value):
        put(spec, "activation_offloading", True, offload)


# ---------------------------------------------------------------------------------------------- adapters


def adapters(spec: TrainingSpec) -> str:
    """LoRA and DoRA, as PEFT builds them. Call after :func:`model`."""
    switch, rank = spec.fact(HYPER + "use_peft"), spec.fact("lora.r")
    dora = spec.fact(HYPER + "use_dora")
    on = truth(switch.value) if switch is not None else rank is not None and rank.origin == WRITTEN
    if not on:
        for name in [name for name in spec.facts if name.startswith("lora.")]:
            del spec.facts[name]
        return ""
    origin = switch if switch is not None else rank
    put(spec, "tuning", "lora", origin)
    if dora is not None and truth(dora.value):
        put(spec, "tuning", "dora", dora)
    if rank is None or rank.value is None:
        return not_stated(spec, "lora_r", *_spellings(spec, "lora.r"))
    targets = spec.fact("lora.targets")
    names = names_of(targets.value) if targets is not None and targets.value else []
    if targets is not None and names:
        put(spec, "lora.targets", "all-linear" if names in (["all-linear"], ["all"]) else names, targets)
    elif CONFIG in spec:
        kind = text_config(spec[CONFIG]).get("model_type", "")
        if kind not in LORA_TARGETS:
            return f"lora_target_modules is not stated, and PEFT has no default for {kind}"
        put(spec, "lora.targets", list(LORA_TARGETS[kind]), reason=f"PEFT 0.21: its default for {kind}")
    saved = spec.fact("lora.modules_to_save")
    if saved is not None and saved.value:
        put(spec, "lora.modules_to_save", names_of(saved.value), saved)
    if spec.model_name:
        spec.model_name += ", DoRA" if spec["tuning"] == "dora" else ", LoRA"
    return ""


def quantization(spec: TrainingSpec) -> None:
    """bitsandbytes' frozen weights."""
    four, eight, bits = (spec.fact(HYPER + name) for name in ("load_in_4bit", "load_in_8bit", "bits"))
    if four is not None and truth(four.value):
        put(spec, "quantization.bits", 4, four)
    elif eight is not None and truth(eight.value):
        put(spec, "quantization.bits", 8, eight)
    elif bits is not None and bits.value in (4, 8):
        put(spec, "quantization.bits", bits.value, bits)
    origin = spec.fact("quantization.bits")
    kind, double = spec.fact("quantization.kind"), spec.fact("quantization.double")
    if origin is None:
        for name in ("quantization.kind", "quantization.double"):
            spec.facts.pop(name, None)
        stored_quantization(spec)
        return
    if origin.value == 8:
        put(spec, "quantization.kind", "int8", origin)
        spec.facts.pop("quantization.double", None)
        return
    if kind is None or kind.value is None:
        put(spec, "quantization.kind", "fp4", reason="transformers 5: BitsAndBytesConfig")
    if double is None or double.value is None:
        put(spec, "quantization.double", False, reason="transformers 5: BitsAndBytesConfig")


def stored_quantization(spec: TrainingSpec) -> bool:
    """Whether the checkpoint itself is quantised to stay so, by its config; and the facts of how. Call after
    :func:`model`. Checkpoints in 8-bit floats are unpacked for training."""
    origin = spec.fact(CONFIG)
    stated = origin.value.get("quantization_config") if origin is not None and isinstance(origin.value, dict) else None
    kind = stated.get("quant_method", "") if isinstance(stated, dict) else ""
    known = ("gptq", "awq", "aqlm", "hqq", "eetq", "bitsandbytes")
    if origin is None or not isinstance(stated, dict) or kind not in known:
        return False
    bits, double = stated.get("bits", 8 if kind == "eetq" else 4), False
    if kind == "aqlm":
        bits = stated.get("nbits_per_codebook", 16) * stated.get("num_codebooks", 1) // stated.get("in_group_size", 8)
    elif kind == "hqq":
        bits = stated.get("quant_config", {}).get("weight_quant_params", {}).get("nbits", 4)
    elif kind == "bitsandbytes":
        bits = 4 if stated.get("load_in_4bit") else 8
        kind = stated.get("bnb_4bit_quant_type", "fp4") if bits == 4 else "int8"
        double = bool(stated.get("bnb_4bit_use_double_quant")) and bits == 4
    reason = "the checkpoint is quantised"
    put(spec, "quantization.bits", bits, origin, reason)
    put(spec, "quantization.kind", kind, origin, reason)
    put(spec, "quantization.double", double, origin, reason)
    group = stated.get("group_size")
    if isinstance(group, int):
        put(spec, "quantization.group_size", max(group, 0), origin, reason)
    return True


# ---------------------------------------------------------------------------------------------- precision


def mixed_precision(spec: TrainingSpec) -> Fact | None:
    """The half that the trainer computes in (a fact with a dtype for its value); None for full precision.

    ``bf16`` and ``fp16`` go before what accelerate's config says.
    """
    tried = spec.tried("compute_dtype")
    if tried is not None:
        return tried if tried.value in HALF else None
    for name, dtype in (("fp16", "float16"), ("bf16", "bfloat16")):
        switch = spec.fact(HYPER + name)
        if switch is not None and truth(switch.value):
            return switch._replace(name="compute_dtype", value=dtype)
    launched_with = spec.fact("mixed_precision")
    if launched_with is not None and launched_with.value in HALF:
        return launched_with._replace(name="compute_dtype")
    return None


def weights(spec: TrainingSpec, *stated: Fact | None) -> Fact | None:
    """The dtype that the weights are loaded in: as stated, else the checkpoint's."""
    for fact in stated:
        if fact is None or fact.value is None:
            continue
        dtype = dtype_of(fact.value)
        if dtype:
            return fact._replace(name="parameter_dtype", value=dtype)
    config = spec.get(CONFIG)
    if config is None:
        return None
    kept = dtype_of(config.get("dtype") or config.get("torch_dtype") or text_config(config).get("dtype") or "float32")
    reason = f"{TRANSFORMERS}: from_pretrained keeps the checkpoint's dtype"
    return Fact("parameter_dtype", kept or "float32", DEFAULT, "dtype", reason=reason)


# Keys that TrainingArguments no longer take -> the last release that did (transformers' migration guides).
_LAST_WITH = {
    "evaluation_strategy": "4.45",
    **dict.fromkeys(("per_gpu_train_batch_size", "per_gpu_eval_batch_size", "no_cuda", "overwrite_output_dir"), "4.57"),
    **dict.fromkeys(("warmup_ratio", "fp16_opt_level", "fp16_backend", "half_precision_backend"), "4.57"),
    **dict.fromkeys(("fsdp_transformer_layer_cls_to_wrap", "fsdp_min_num_params", "sharded_ddp", "use_ipex"), "4.57"),
    **dict.fromkeys(("group_by_length", "save_safetensors", "logging_dir", "adafactor", "local_rank"), "4.57"),
}
# The first release in which from_pretrained kept the checkpoint's dtype, and those whose default optimizer was new:
# torch's AdamW (pull request 25109), and its fused one (pull request 37358).
_KEEPS_SINCE, _TORCH_SINCE, _FUSED_SINCE = (5, 0), (4, 32), (4, 54)


def release(spec: TrainingSpec) -> None:
    """The release of transformers, where no file pins it: its last one with all keys that are written."""
    if spec.get("transformers_version") is not None:
        return
    found: tuple[tuple[int, ...], str, Node] | None = None
    for name, last in _LAST_WITH.items():
        node = spec.root.get(name) or spec.root.get(name.replace("_", "-"))
        numbers = tuple(int(part) for part in last.split("."))
        if node is not None and (found is None or numbers < found[0]):
            found = numbers, last, node
    if found is not None:
        _, last, node = found
        reason = f"{node.key_path.rsplit('.', 1)[-1]} is a key of transformers {last} and before"
        spec.facts["transformers_version"] = Fact("transformers_version", last, ASSUMED, node.key_path, node, reason)


def before(spec: TrainingSpec, numbers: tuple[int, int]) -> bool:
    """Whether the release of transformers, where it is known, comes before another."""
    return software.older(spec.get("transformers_version"), numbers)


def older_defaults(spec: TrainingSpec) -> None:
    """What the Trainer took before, where nothing is written. Call before :func:`optimizer`."""
    name = spec.fact(HYPER + "optim")
    own = name is not None and "TrainingArguments" in name.reason  # and no script's
    if name is not None and own and name.node is None and before(spec, _FUSED_SINCE):
        older = "adamw_torch" if not before(spec, _TORCH_SINCE) else "adamw_hf"
        reason = f"transformers {spec['transformers_version']}: TrainingArguments"
        spec.facts[name.name] = name._replace(value=older, origin=DEFAULT, reason=reason)


def older_weights(spec: TrainingSpec, loaded: Fact | None) -> Fact | None:
    """Before transformers 5 weights were float32 unless a dtype was stated."""
    stated = spec.fact(HYPER + "dtype")
    if loaded is None or loaded.node is not None or not before(spec, _KEEPS_SINCE):
        return loaded
    if stated is not None and stated.node is not None and stated.value is not None:
        return loaded  # auto
    reason = f"transformers {spec['transformers_version']}: from_pretrained makes float32 of any checkpoint"
    return loaded._replace(value="float32", reason=reason)


def precision(spec: TrainingSpec, loaded: Fact | None) -> str:
    """Dtypes of weights, gradients and products, from how the weights were loaded and how the run is distributed.

    autocast leaves weights alone; DeepSpeed casts the model and keeps a float32 copy in its optimizer; accelerate's
    FSDP keeps what trains in float32 and gathers it in 16 bits. Call after :func:`parallelism`.
    """
    handed = spec.fact("mixed_precision")
    if handed is not None and handed.value not in (None, *HALF):
        return f"{handed.key} {handed.value} is not known"
    mixed = mixed_precision(spec)
    strategy = spec.get("parallelism.strategy", "none")
    adapted = spec.get("tuning", "full") != "full"
    deep = spec.facts.pop("deepspeed_dtype", None)
    spec.facts.pop("mixed_precision", None)
    half: Fact | None
    if strategy == "zero":
        # accelerate 1.15, DeepSpeedPlugin.set_mixed_precision: what the file leaves out, the trainer's switch fills in
        open_ = deep is None or deep.value == AUTO or deep.node is None
        half = mixed if open_ else deep if deep is not None and deep.value in HALF else None
        if half is not None:
            put(spec, "parameter_dtype", half.value, half)
            put(spec, "frozen_dtype", half.value, half)
            put(spec, "compute_dtype", half.value, half)
            put(spec, "master_weights", True, half)
            put(spec, "autocast", False, half)
            if adapted:
                put(spec, "lora.dtype", half.value, half)
            if half.value == "float16" and "loss_scaling" not in spec:
                put(spec, "loss_scaling", "dynamic", half)
            return ""
        if not open_:
            put(spec, HYPER + "deepspeed_states_dtype", True, deep)
    if loaded is None:
        if mixed is not None:
            put(spec, "compute_dtype", mixed.value, mixed)
        return ""
    put(spec, "frozen_dtype", loaded.value, loaded)
    put(spec, "parameter_dtype", loaded.value, loaded)
    if adapted:
        if "lora.dtype" not in spec:
            put(spec, "lora.dtype", "float32", reason="PEFT 0.21: autocast_adapter_dtype")
        put(spec, "parameter_dtype", spec["lora.dtype"], spec.fact("lora.dtype"))
    if mixed is None:
        put(spec, "compute_dtype", loaded.value, loaded)
        put(spec, "autocast", False, reason="neither bf16 nor fp16")
        return ""
    if strategy in ("fsdp1", "fsdp2") and spec["parameter_dtype"] != "float32":
        reason = "accelerate 1.15: under FSDP with mixed precision, what trains is kept in float32"
        put(spec, "parameter_dtype", "float32", reason=reason)  # update_fsdp_plugin_peft wraps it apart from the rest
    if strategy in ("fsdp1", "fsdp2"):
        put(spec, "parallelism.reduce_dtype", mixed.value, mixed)
    put(spec, "compute_dtype", mixed.value, mixed)
    put(spec, "autocast", True, mixed)
    if mixed.value == "float16":
        put(spec, "loss_scaling", "dynamic", mixed)
    return ""


# ---------------------------------------------------------------------------------------------- parallelism


def add(spec: TrainingSpec, companion: Companion) -> None:
    """What a companion says, beside what the config itself says: its gaps and texts, and the facts that are new."""
    known = {(item.key, item.span) for item in spec.missing}
    spec.missing = (*spec.missing, *(item for item in companion.missing if (item.key, item.span) not in known))
    if companion.sources:
        sources = spec.document.sources or {spec.document.path: spec.document.text}
        spec.document = spec.document._replace(sources={**sources, **companion.sources})
    spec.facts.update(companion.facts)


def parallelism(spec: TrainingSpec, launcher_config: Companion | None = None) -> str:
    """How many processes there are and what they share: launchers, accelerate, DeepSpeed, FSDP.

    ``launcher_config`` is what the trainer itself hands to accelerate, where no ``accelerate launch`` does.
    A run of several processes that shares nothing is data parallel. Why the estimate cannot be made, or "".
    """
    reason, _ = stated_sharing(spec, launcher_config)
    processes(spec)
    return reason


def stated_sharing(spec: TrainingSpec, launcher_config: Companion | None = None) -> tuple[str, dict[str, Fact]]:
    """What launchers and the configs of accelerate, DeepSpeed and FSDP state: (why it is not known, or "", the facts of
    DeepSpeed's config that go before what the trainer's own keys would make)."""
    deep, fsdp = spec.facts.pop(HYPER + "deepspeed", None), spec.facts.pop(HYPER + "fsdp", None)
    beside_bare = spec.facts.pop(HYPER + "deepspeed_config", None)
    fsdp_config = spec.facts.pop(HYPER + "fsdp_config", None)
    if deep is not None and deep.value is True:
        deep = beside_bare
    spec.missing = (*spec.missing, *launchers.processes(spec.launch).missing)
    companion = launched(spec.launch, _script(spec)) or launcher_config
    if companion is not None:
        _from_accelerate(spec, companion)
    reason = ""
    before: dict[str, Fact | None] = {name: spec.facts.get(name) for name in OPTIMIZER_FACTS}
    if deep is not None and deep.value not in (None, False, ""):
        reason = _from_deepspeed(spec, deep)
    elif gap(spec, "deepspeed") is not None:
        reason = not_stated(spec, "deepspeed")
    elif fsdp is not None and fsdp.value not in (None, False, "", [], "false", "False"):
        reason = _from_fsdp(spec, fsdp, fsdp_config)
    overruling = {name: fact for name, fact in spec.facts.items() if name in before and before[name] is not fact}
    strategy = spec.fact("parallelism.strategy")
    if strategy is not None and strategy.value == _UNKNOWN:
        item = gap(spec, "config_file", "accelerate_config")
        reason = reason or (f"{item.key}: {item.reason}" if item is not None else strategy.reason)
    elif strategy is None and reason:
        spec.facts["parallelism.strategy"] = Fact("parallelism.strategy", _UNKNOWN, reason=reason)
    return reason, overruling


_UNKNOWN = "unknown"  # the strategy of a run where a file that would say it is not there


def processes(spec: TrainingSpec) -> None:
    """How many there are, and that several which share nothing are data parallel."""
    found = launchers.processes(spec.launch)
    count = found.total if found.total is not None else spec.fact("device_count")
    strategy = spec.fact("parallelism.strategy")
    unknown = strategy is not None and strategy.value == _UNKNOWN
    if unknown:
        del spec.facts["parallelism.strategy"]
        strategy = None
    if count is None and strategy is not None and strategy.value != "none" and not found.missing:
        count = launchers.seen(spec.launch)
    if count is not None:
        put(spec, "device_count", count.value, count)
        put(spec, "world_size", count.value, count)
    several = count.value > 1 if count is not None else found.distributed
    if found.total is None and spec.tried("device_count") is not None:
        several = several and (found.distributed or _one_process_each(spec))
    if strategy is None and several and not unknown:
        put(spec, "parallelism.strategy", "ddp", count, "several processes, and nothing that shards")
    _agree(spec)


def on_devices(spec: TrainingSpec) -> None:
    """A run of which nothing says on how many devices it is: on several (``--gpu "NAME x8"``) it is data parallel."""
    tried = spec.tried("device_count")
    if tried is not None:
        put(spec, "parallelism.strategy", "ddp" if tried.value > 1 else "none", tried)


def _one_process_each(spec: TrainingSpec) -> bool:
    """Whether several devices would each have a process of their own: what starts a config is not in it, and a
    program of the library starts them itself. A script that python runs bare is one process for all of them."""
    launch = spec.launch
    return launch is None or bool(launch.launchers) or not str(launch.program.value).endswith(".py")


def _script(spec: TrainingSpec) -> str:
    """The script that starts the run, or the config itself."""
    return spec.launch.program.span.path if spec.launch is not None else spec.document.path


def _from_accelerate(spec: TrainingSpec, companion: Companion) -> None:
    """The trainer's own keys go before accelerate's, except where accelerate alone knows."""
    mine = dict(spec.facts)
    add(spec, companion)
    for name, fact in companion.facts.items():
        old = mine.get(name)
        if old is None or name == "deepspeed_dtype":
            continue
        if name == "checkpointing" and fact.value == "full":
            continue  # FSDP's own checkpointing runs whatever the trainer says
        spec.facts[name] = old
    if companion.facts.get("gradient_accumulation_steps") is not None:
        _states(spec, mine, companion.facts["gradient_accumulation_steps"], "gradient_accumulation_steps")


def _from_deepspeed(spec: TrainingSpec, named: Fact) -> str:
    from memlint.dialects import companions

    path = named.span.path if named.span is not None else spec.document.path
    sources: dict[str, str] = {}
    if isinstance(named.value, str):
        document, why = companions.read(named.value, path)
        if document is None:
            key = named.key or "deepspeed"
            place = named.span or spec.root.span
            if gap(spec, "deepspeed") is None:
                spec.missing = (*spec.missing, Missing(key, place, why))
            return f"{key}: {why}"
        root, sources = document.root, {document.path: document.text, **document.sources}
    elif isinstance(named.value, dict) and named.node is not None:
        root = named.node
    else:
        return ""
    found = deepspeed_facts(root)._replace(sources=sources)
    mine = dict(spec.facts)
    filled = {name: fact for name, fact in found.facts.items() if fact.value != AUTO or name == "deepspeed_dtype"}
    add(spec, found._replace(facts=filled))
    for name in ("micro_batch_size", "gradient_accumulation_steps", "global_batch_size"):
        if name in mine:
            spec.facts[name] = mine[name]
    for name in ("micro_batch_size", "gradient_accumulation_steps"):
        if name in filled:
            _states(spec, mine, filled[name], name)
    _automatic(spec, found.facts)
    return ""


# transformers 5, integrations/deepspeed.py: what "auto" means for sizes that depend on the model's width.
_BY_WIDTH: dict[Name, Callable[[int], int]] = {
    "parallelism.reduce_bucket_elements": lambda width: width * width,
    "parallelism.prefetch_bucket_elements": lambda width: int(0.9 * width * width),
    "parallelism.persistence_elements": lambda width: 10 * width,
}


def _automatic(spec: TrainingSpec, stated: dict[str, Fact]) -> None:
    described = spec.get(DECODER)
    width = described.width if described is not None else text_config(spec.get(CONFIG) or {}).get("hidden_size")
    for name, size in _BY_WIDTH.items():
        fact = stated.get(name)
        if fact is not None and fact.value == AUTO and isinstance(width, int):
            put(spec, name, size(width), fact, f"{TRANSFORMERS}: auto, by the model's width")


def _states(spec: TrainingSpec, mine: dict[str, Fact], other: Fact, name: str) -> None:
    """A second file that states a size of its own: transformers stops where the two differ."""
    own = mine.get(name)
    if own is None or other.value in (None, AUTO) or other.origin != WRITTEN:
        return
    if own.value == other.value:
        spec.repeated = {**spec.repeated, name: (*spec.repeated.get(name, ()), other)}
        return
    place = own if own.span is not None else other
    if place.span is None:
        return
    label = own.label.lstrip("-")
    message = f"{label} is {own.value}, but {other.key} is {other.value}: the two must agree"
    related = tuple(span for span in (own.span, other.span) if span is not None and span != place.span)
    spec.conflicts = (*spec.conflicts, Conflict(place.key, place.span, message, related))


def _from_fsdp(spec: TrainingSpec, switch: Fact, config: Fact | None) -> str:
    """transformers' own ``fsdp`` and ``fsdp_config`` (training_args._process_fsdp_args)."""
    root: Node | None = config.node if config is not None else None
    if config is not None and isinstance(config.value, str):
        from memlint.dialects import companions

        document, why = companions.read(config.value, config.span.path if config.span else spec.document.path)
        if document is None:
            place = config.span or spec.root.span
            spec.missing = (*spec.missing, Missing(config.key, place, why))
            return f"{config.key}: {why}"
        root = document.root
        add(spec, Companion({}, (), {document.path: document.text, **document.sources}))
    entries = root.value if root is not None and isinstance(root.value, dict) else {}
    inside = {name.removeprefix("fsdp_"): node for name, node in entries.items()}

    def entry(name: str, fact: Name, value: Any) -> None:
        node = inside[name]
        spec.facts[fact] = Fact(fact, value, WRITTEN, f"fsdp_config.{node.key_path.rsplit('.', 1)[-1]}", node)

    words = [str(word) for word in switch.value] if isinstance(switch.value, list) else str(switch.value).split()
    version = inside.get("version")
    if version is not None:
        put(spec, "parallelism.strategy", "fsdp2" if str(version.value) == "2" else "fsdp1", switch)
    elif before(spec, (5, 0)):
        reason = f"transformers {spec['transformers_version']}: fsdp_config's version is 1 where it is not stated"
        put(spec, "parallelism.strategy", "fsdp1", switch, reason)
    else:
        reason = f"{TRANSFORMERS}: fsdp_config's version is 2 where it is not stated"
        put(spec, "parallelism.strategy", "fsdp2", switch, reason)
    if "shard_grad_op" in words or "hybrid_shard_zero2" in words:
        put(spec, "parallelism.reshard_after_forward", False, switch)
    if "no_shard" in words:
        put(spec, "parallelism.strategy", "ddp", switch)
    if "offload" in words:
        put(spec, "parallelism.cpu_offload", True, switch)
    if "reshard_after_forward" in inside:
        value = str(inside["reshard_after_forward"].value).lower()
        entry(
            "reshard_after_forward",
            "parallelism.reshard_after_forward",
            value not in ("false", "shard_grad_op", "hybrid_shard_zero2"),
        )
    if "cpu_offload" in inside or "offload_params" in inside:
        name = "cpu_offload" if "cpu_offload" in inside else "offload_params"
        entry(name, "parallelism.cpu_offload", truth(inside[name].value))
    policy = inside.get("auto_wrap_policy")
    if policy is not None and str(policy.value).upper() == "NO_WRAP":
        entry("auto_wrap_policy", "parallelism.wrap", "none")
    elif "transformer_layer_cls_to_wrap" in inside:
        entry(
            "transformer_layer_cls_to_wrap",
            "parallelism.wrap",
            names_of(inside["transformer_layer_cls_to_wrap"].plain()),
        )
    elif "parallelism.wrap" in spec:
        put(spec, "parallelism.wrap", names_of(spec["parallelism.wrap"]), spec.fact("parallelism.wrap"))
    if "activation_checkpointing" in inside and truth(inside["activation_checkpointing"].value):
        entry("activation_checkpointing", "checkpointing", "full")
    return ""


# Facts of a strategy -> the strategies in which they say something.
_SHARDED = ("fsdp1", "fsdp2")
_OF_STRATEGY: dict[str, tuple[str, ...]] = {
    "bucket_mb": ("ddp",),
    **dict.fromkeys(("wrap", "wrap_elements", "reshard_after_forward", "cpu_offload"), _SHARDED),
    **dict.fromkeys(("backward_prefetch", "forward_prefetch"), _SHARDED),
    **dict.fromkeys(("zero_stage", "offload_optimizer", "offload_parameters", "contiguous_gradients"), ("zero",)),
    **dict.fromkeys(("overlap", "secondary_shard", "reduce_bucket_elements", "gather_bucket_elements"), ("zero",)),
    **dict.fromkeys(("prefetch_bucket_elements", "live_parameter_elements", "persistence_elements"), ("zero",)),
    **dict.fromkeys(("reuse_distance_elements", "sub_group_elements"), ("zero",)),
}


PROCESS_FACTS: tuple[Name, ...] = (
    *("device_count", "world_size", "parallelism.strategy"),
    *(named(f"parallelism.{short}") for short in _OF_STRATEGY),
)


def _agree(spec: TrainingSpec) -> None:
    """Facts of a strategy that is not in use say nothing."""
    strategy = spec.get("parallelism.strategy", "none")
    for name in list(spec.facts):
        room, _, short = name.partition(".")
        if room == "parallelism" and strategy not in _OF_STRATEGY.get(short, (strategy,)):
            del spec.facts[name]
    if strategy == "ddp" and "parallelism.bucket_mb" not in spec:
        put(spec, "parallelism.bucket_mb", 25, reason="torch 2.13: DistributedDataParallel")


# ---------------------------------------------------------------------------------------------- evaluation, the end


def evaluation(spec: TrainingSpec) -> None:
    """Whether the trainer evaluates, and what it keeps of it."""
    strategy = setting(spec, "eval_strategy")
    on = strategy not in (None, False, "no", "False", "false")
    if not (on or switched(spec, "do_eval") or switched(spec, "eval_on_start")):
        spec.facts.pop("evaluation_batch_size", None)
        return
    length = spec.fact("sequence_length")
    if length is not None:
        put(spec, "evaluation_sequence_length", length.value, length)
    for name, reason in (
        ("prediction_loss_only", ""),
        ("eval_accumulation_steps", ""),
    ):
        stated = spec.fact(HYPER + name)
        if stated is not None and stated.value not in (None, False):
            put(spec, "evaluation_accumulates", False, stated, reason)
            return
    metric, whole = spec.fact(HYPER + "metric_for_best_model"), spec.fact(HYPER + "batch_eval_metrics")
    if metric is not None and metric.value and str(metric.value).removeprefix("eval_") != "loss":
        put(spec, "evaluation_accumulates", not (whole is not None and truth(whole.value)), metric)
    if "evaluation_accumulates" not in spec:
        reason = "transformers 5: without compute_metrics only losses are kept, and a config cannot say there is one"
        spec.facts["evaluation_accumulates"] = Fact("evaluation_accumulates", False, ASSUMED, reason=reason)


_NEEDED: dict[str, str] = {
    "micro_batch_size": "per_device_train_batch_size",
    "sequence_length": "max_length",
    "compute_dtype": "bf16",
    "optimizer": "optim",
}


# Facts without whose keys nothing can be said, where they are written but not known.
_DECISIVE = (
    *("checkpointing", "attention", "packing", "padding_free", "activation_offloading", "quantization.double"),
    *("lora.r", "lora.targets", "lora.modules_to_save", "parallelism.tensor", "parallelism.context"),
    *(HYPER + name for name in ("bf16", "fp16", "dtype", "optim", "use_peft", "load_in_4bit", "load_in_8bit", "bits")),
    *(HYPER + name for name in ("use_liger_kernel", "fsdp", "fsdp_config", "deepspeed", "beta", "use_dora")),
)


def _undecided(spec: TrainingSpec) -> str:
    """The first gap that leaves the estimate open."""
    if not spec.missing:
        return ""
    from memlint.dialects import registry

    dialect = registry.dialect(spec.family)
    names = {name for key in dialect.keys if key.annotation.get("fact") in _DECISIVE for name in key.names}
    item = gap(spec, *names)
    return f"{item.key} is not known: {item.reason}" if item is not None else ""


# Settings that would say how many devices there are; without a value they mean all.
_COUNTS = tuple(HYPER + name for name in ("num_processes", "num_gpus", "devices", "shards"))

# What only one class of transformers loads, by model type.
_CLASSES = {
    **dict.fromkeys(("t5", "mt5", "bart", "mbart", "pegasus", "marian", "m2m_100", "whisper"), "seq2seq_lm"),
    **dict.fromkeys(("vit", "deit", "dinov2"), "image_classification"),
    **dict.fromkeys(("deberta", "deberta-v2", "distilbert", "albert", "mpnet", "electra"), "sequence_classification"),
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert", "modernbert"), "sequence_classification"),
}


def class_by_type(spec: TrainingSpec) -> None:
    """Where no script says what is trained, a model that is no decoder does. Call after :func:`model`."""
    config = spec.get(CONFIG)
    if not isinstance(config, dict):
        return
    kind = "vision_language" if "vision_config" in config else _CLASSES.get(config.get("model_type", ""), "")
    if kind:
        reason = f"no script says what is trained, and the model is of type {config.get('model_type')}"
        spec.facts["model_class"] = Fact("model_class", kind, ASSUMED, reason=reason)


# Models whose config.json says how large every input is: thirty seconds of sound, or images of one size.
_ONE_SIZE = ("whisper", "vit", "deit")


def has_one_size(spec: TrainingSpec) -> bool:
    """Whether every input of the model is of the same size."""
    config = spec.get(CONFIG)
    return isinstance(config, dict) and config.get("model_type") in _ONE_SIZE


def finish(spec: TrainingSpec, reasons: Iterable[str], keys: dict[str, str] | None = None) -> TrainingSpec:
    """The architecture, where everything that it needs is known; else the first reason why not.

    ``keys`` are the family's names of the facts that are needed. What is sharded over a number of devices that the
    config does not say is known as soon as that is: ``--gpu "h100-80gb x8"``.
    """
    tokens(spec)
    steps = gap(spec, "gradient_accumulation_steps")
    if steps is not None and "gradient_accumulation_steps" not in spec:
        why = f"{steps.key} is not known: {steps.reason}"
        spec.facts["gradient_accumulation_steps"] = Fact(
            "gradient_accumulation_steps", 1, ASSUMED, steps.key, None, why
        )
    for name in [name for name, fact in spec.facts.items() if fact.value is None and fact.node is None]:
        del spec.facts[name]
    reason = next((one for one in reasons if one), "") or _undecided(spec)
    if not reason:
        for name, key in {**_NEEDED, **(keys or {})}.items():
            needed = named(name)
            if spec.get(needed) is None and not (name == "sequence_length" and has_one_size(spec)):
                written = spec.fact(needed)
                reason = (
                    f"{written.key} is null: no limit" if written else not_stated(spec, key, *_spellings(spec, name))
                )
                break
    if not reason and spec.get("parallelism.strategy") == "zero" and "parallelism.zero_stage" not in spec:
        reason = not_stated(spec, "zero_stage", "stage")
    if not reason and CONFIG not in spec and DECODER not in spec:
        reason = not_stated(spec, "model_name_or_path", *_spellings(spec, "model"))
    if spec.get("parallelism.zero_stage") == 3 and "quantization.bits" in spec:
        # from_pretrained: zero.Init only where nothing is quantised (needs_zero3_init)
        why = f"{TRANSFORMERS}: a quantised model is loaded whole, and sharded by DeepSpeed's engine"
        put(spec, "parallelism.loaded_whole", True, spec.fact("quantization.bits"), why)
    spec.architecture = None if reason else ARCHITECTURE
    spec.unknown_reason = reason
    if reason or "device_count" in spec or "parallelism.shard" in spec:
        return spec
    if spec.get("parallelism.strategy") in ("zero", "fsdp1", "fsdp2"):
        item = gap(spec, "nproc_per_node", "nnodes", "num_processes", "num_machines", "num_gpus", "num_nodes", "ntasks")
        every = next((fact for fact in map(spec.fact, _COUNTS) if fact is not None and fact.value is None), None)
        why = "is not stated" if item is None else f"is not known ({item.key}: {item.reason})"
        stated = ""
        if item is None and every is not None:
            stated = f"{every.key} is {'null' if every.written is None else every.written}: "
        spec.unknown_reason = f"{stated}the number of devices that share the model {why}; say --gpu 'NAME xN'"
        spec.architecture_on_devices, spec.architecture = ARCHITECTURE, None
    return spec


# ---------------------------------------------------------------------------------------------- spelling


def write(spec: TrainingSpec, name: Name, value: Any) -> list[Edit]:
    """The edits that give a key (by the name of what it sets) a value."""
    from memlint.dialects.spelling import spell as generic

    return generic(spec, name, value)


def spell(spec: TrainingSpec, fact: Name, value: Any, addable: tuple[str, ...] = ()) -> list[Edit] | None:
    """Facts that transformers' keys state in words of their own; None for the generic spelling.

    ``addable`` are facts whose keys the program is known to take although they are not TrainingArguments'.
    """
    known = spec.fact(fact)
    written = known is not None and known.node is not None
    if fact == "compute_dtype":
        return _spell_precision(spec, value)
    if fact in ("parameter_dtype", "frozen_dtype"):
        if spec.get("parallelism.strategy") == "zero" or (fact == "parameter_dtype" and "lora.dtype" in spec):
            return []
        stated = spec.fact(HYPER + "dtype")
        if (stated is None or stated.node is None) and "parameter_dtype" not in addable:
            return []
        return write(spec, HYPER + "dtype", value)
    if fact in ("optimizer", "optimizer_implementation"):
        return _spell_optimizer(spec, fact, value)
    if fact == "loss":
        names = {"fused": True, "full": False}
        if value == "fused" and (not knows_liger(spec) or _model_type(spec) == "granite"):
            return []
        return write(spec, HYPER + "use_liger_kernel", names[value]) if value in names else []
    if fact == "autocast":
        return []
    if fact in ("attention", "sequence_length") and not written and fact not in addable:
        return []
    if fact == "attention_tokens" or (fact == "evaluation_batch_size" and known is None):
        return []
    if fact in ("micro_batch_size", "gradient_accumulation_steps") and any(
        conflict for conflict in spec.conflicts if known is not None and conflict.key == known.key
    ):
        return []  # two files state it
    return None


def _spell_precision(spec: TrainingSpec, value: Any) -> list[Edit]:
    """``bf16: true``, and ``fp16`` off where it was on."""
    if spec.get("parallelism.strategy") == "zero" and (
        spec.get("compute_dtype") in HALF or spec.get(HYPER + "deepspeed_states_dtype")
    ):
        return []
    if value not in HALF and spec.get("frozen_dtype", value) != value:
        return []  # without autocast products have the weights' dtype
    names = {"bfloat16": "bf16", "float16": "fp16"}
    edits: list[Edit] = []
    for dtype, name in names.items():
        switch = spec.fact(HYPER + name)
        on = switch is not None and truth(switch.value)
        if on and dtype != value:
            edits += write(spec, HYPER + name, False)
        elif not on and dtype == value:
            edits += write(spec, HYPER + name, True)
    return edits


def _spell_optimizer(spec: TrainingSpec, fact: Name, value: Any) -> list[Edit]:
    """transformers' name of an optimizer: torch's where the implementation is meant, bitsandbytes' for 8 bits."""
    if spec.get("optimizer_library") == "deepspeed":
        return []  # DeepSpeed's config names it
    if fact == "optimizer_implementation":
        if spec.get("optimizer") != "adamw":
            return []
        name = {"fused": "adamw_torch_fused", "foreach": "adamw_torch"}.get(value)
    else:
        preferred = {"adamw": "adamw_torch_fused", "adamw_8bit": "adamw_bnb_8bit", "lion": "lion_32bit"}
        name = preferred.get(value)
        name = name or next((key for key, (kind, *_) in OPTIMIZERS.items() if kind == value), None)
    return write(spec, HYPER + "optim", name) if name is not None else []
