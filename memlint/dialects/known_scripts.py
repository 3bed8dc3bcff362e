"""Training scripts that many runs start, and what they do beyond the keys that they are given.

Sources: artidoro/qlora ``qlora.py``; lm-sys/FastChat ``fastchat/train/{train,train_lora}.py``; huggingface/trl 0.9
``trainer/sft_trainer.py``; tatsu-lab/stanford_alpaca ``train.py``; linkedin/Liger-Kernel
``examples/huggingface/training.py``; unslothai/unsloth 2025.11 ``unsloth-cli.py``, ``unsloth/models/llama.py``
(``CausalLM_fast_forward``); yangjianxin1/Firefly ``train.py``, ``component/argument.py``.
"""

from __future__ import annotations

from typing import Any

from memlint.dialects import language_model as lm
from memlint.dialects.accelerate import truth
from memlint.facts.spec import ASSUMED, DEFAULT, WRITTEN, Fact, Name, TrainingSpec
from memlint.trainers import unsloth as data

# qlora.py: what its own dataclasses say where a command does not.
_QLORA: dict[Name, Any] = {
    "micro_batch_size": 1,
    "gradient_accumulation_steps": 16,
    "checkpointing": "full",
    "lora.r": 64,
    "lora.alpha": 16.0,
    "lora.dropout": 0.0,
    "quantization.kind": "nf4",
    "quantization.double": True,
    lm.HYPER + "bits": 4,
    lm.HYPER + "optim": "paged_adamw_32bit",
    lm.HYPER + "source_max_len": 1024,
    lm.HYPER + "target_max_len": 256,
    lm.HYPER + "use_peft": True,
    "lora.targets": [lm.LISTED],  # find_all_linear_names
}
# Firefly's train.py, of the adapters that it makes
_FIREFLY: dict[Name, Any] = {
    "lora.r": 64,
    "lora.alpha": 16.0,
    "lora.dropout": 0.05,
    "lora.targets": [lm.LISTED],  # find_all_linear_names
}
_FIREFLY_CODES: dict[Name, Any] = {
    lm.HYPER + "bits": 4,
    "quantization.kind": "nf4",
    "quantization.double": True,
}
_FIREFLY_KEYS = ("train_mode", "template_name", "task_type")  # of its CustomizedArguments, beside train_file
# unsloth-cli.py: its arguments' defaults, and what it hands on whatever they are
_UNSLOTH: dict[Name, Any] = {
    "sequence_length": 2048,
    "micro_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "lora.r": 16,
    "lora.alpha": 16.0,
    "lora.dropout": 0.0,
    "lora.targets": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    "quantization.kind": "nf4",
    lm.HYPER + "use_peft": True,
    lm.HYPER + "optim": "adamw_8bit",
    lm.HYPER + "bf16": True,
    lm.HYPER + "dtype": "bfloat16",
}
LIGER, LIGER_PROGRAM = "Liger-Kernel: examples/huggingface/training.py", "training"
# Alpaca's and FastChat's TrainingArguments
_MAX_LENGTH = 512
_CONVERSATIONS = ("train", "train_mem", "train_xformers", "train_flant5", "train_lora", "train_baichuan")


FIREFLY: tuple[Name, ...] = (
    *(*_FIREFLY, *_FIREFLY_CODES, lm.HYPER + "use_peft", lm.HYPER + "dtype", lm.HYPER + "prepared"),
)
# What a script says of itself, whichever it is.
FACTS: tuple[Name, ...] = (*dict.fromkeys((*_QLORA, *_UNSLOTH, *FIREFLY)),)


def prepare(spec: TrainingSpec, name: str) -> None:
    """What a script does where its command says nothing."""
    firefly(spec)
    if name == "qlora":
        for name_of, value in _QLORA.items():
            known = spec.fact(name_of)
            if known is None or (known.node is None and lm.gap(spec, known.key.lstrip("-")) is None):
                key = known.key if known is not None else ""
                spec.facts[name_of] = Fact(name_of, value, DEFAULT, key, reason="qlora.py")
        whole = spec.fact(lm.HYPER + "full_finetune")
        if whole is not None and truth(whole.value):
            lm.put(spec, lm.HYPER + "use_peft", False, whole)
            lm.put(spec, lm.HYPER + "bits", 16, whole)
    elif name == LIGER_PROGRAM and spec.root.get("use_liger") is not None:
        fact_name: Name
        for fact_name, value in (("sequence_length", 512), (lm.HYPER + "dtype", "bfloat16")):
            known = spec.fact(fact_name)
            if known is None or known.node is None:
                lm.put(spec, fact_name, value, reason=LIGER)
    elif name in _CONVERSATIONS and spec.root.get("data_path") is not None:
        unknown = lm.gap(spec, "model_max_length", "max_seq_length", "max_length")
        if unknown is None and spec.fact("sequence_length") is None:
            reason = "as Alpaca's and FastChat's scripts have it where nothing else is stated"
            fact = Fact("sequence_length", _MAX_LENGTH, ASSUMED, "--model_max_length", reason=reason)
            spec.facts["sequence_length"] = fact
    elif name == "unsloth-cli":
        rank = spec.root.get("r")
        if rank is not None and isinstance(rank.value, (int, str)) and str(rank.value).isdigit():
            spec.facts["lora.r"] = Fact("lora.r", int(str(rank.value)), WRITTEN, "--r", rank)
        for fact_name, value in _UNSLOTH.items():
            known = spec.fact(fact_name)
            if known is None or known.node is None:
                lm.put(spec, fact_name, value, reason="unsloth-cli.py")
        lm.put(spec, "checkpointing", "full", spec.fact("checkpointing"))
    _source_and_target(spec)


def _source_and_target(spec: TrainingSpec) -> None:
    """qlora.py's collator, and those of programs that were written after it, cut a source and its target apart."""
    source, target = spec.fact(lm.HYPER + "source_max_len"), spec.fact(lm.HYPER + "target_max_len")
    stated = spec.fact("sequence_length")
    if source is None or target is None or not source.value or not target.value:
        return
    if stated is None or stated.node is None:
        lm.put(spec, "sequence_length", source.value + target.value, target, "a source and its target")


def firefly(spec: TrainingSpec) -> None:
    """Firefly's train.py reads a config of its own keys and TrainingArguments'. Its ``train_mode``, which says what is
    trained, is qlora where nothing states it."""
    if any(spec.root.get(key) is None for key in ("train_file", "max_seq_length")):
        return
    if all(spec.root.get(key) is None for key in _FIREFLY_KEYS):
        return
    source, stated, task = "Firefly: train.py", spec.root.get("train_mode"), spec.root.get("task_type")
    mode = "qlora" if stated is None else stated.value
    if mode not in ("full", "lora", "qlora"):
        return
    origin = None if stated is None else Fact("tuning", mode, WRITTEN, "train_mode", stated)
    half = spec.fact(lm.HYPER + "fp16")
    dtype = "float16" if half is not None and truth(half.value) else "bfloat16"
    lm.put(spec, lm.HYPER + "dtype", dtype, half, f"{source}: torch_dtype")
    lm.put(spec, lm.HYPER + "use_peft", mode != "full", origin, source)
    if mode == "full":
        return
    for name, value in _FIREFLY.items():
        known = spec.fact(name)
        if known is None or known.node is None:
            lm.put(spec, name, value, reason=source)
    if mode == "qlora":
        for name, value in _FIREFLY_CODES.items():
            lm.put(spec, name, value, origin, source)
        if task is None or task.value in ("pretrain", "sft"):
            lm.put(spec, lm.HYPER + "prepared", True, origin, f"{source}: prepare_model_for_kbit_training")


def dtypes(spec: TrainingSpec, name: str) -> None:
    """What a script casts itself, once the Trainer's own dtypes are known."""
    if "quantization.bits" not in spec or spec.get("tuning") not in ("lora", "dora"):
        return
    handbook = spec.root.get("dataset_mixer") is not None  # alignment-handbook, whose TRL prepares the model
    if name == "qlora" or handbook:
        whose = (
            "qlora.py" if name == "qlora" else "TRL 0.9: prepare_model_for_kbit_training, peft_module_casting_to_bf16"
        )
        # Everything in 16 bits is widened; then adapters, embeddings and head go back, and norms do not.
        if spec.get("compute_dtype") == "bfloat16" and (name == "qlora" or spec["quantization.bits"] == 4):
            lm.put(spec, "lora.dtype", "bfloat16", reason=whose)
            lm.put(spec, "parameter_dtype", "bfloat16", reason=whose)
            lm.put(spec, "frozen_dtype", "bfloat16", reason=whose)
            lm.put(spec, "float32_parts", ["norms"], reason=whose)
        else:
            lm.put(spec, "quantization.prepared", True, reason=f"{whose}: prepare_model_for_kbit_training")
    elif name == "train_lora":
        reason = "train_lora.py: prepare_model_for_kbit_training"
        lm.put(spec, "quantization.prepared", True, spec.fact("quantization.bits"), reason)


def unsloth(spec: TrainingSpec, switch: Fact) -> None:
    """What Unsloth puts in place of a decoder's own code. Call once adapters and sizes are known."""
    unsloth_kernels(spec, switch)
    unsloth_offloads(spec, switch)
    unsloth_quantizes(spec, switch)


def unsloth_kernels(spec: TrainingSpec, switch: Fact) -> None:
    """Its kernels, and its loss. Adapters are fused by the dropout that they are made with, also where the trainer
    switches dropout off afterwards."""
    kernels = list(data.KERNELS)
    dropout = spec.stated("lora.dropout")
    if lm.model_type(spec) in data.OWN_LAYERS and (dropout is None or not dropout.value):
        kernels += data.ADAPTER_KERNELS
    tokens = spec.get("micro_batch_size", 1) * (spec.get("sequence_length") or 0)
    if spec.does("unsloth.cuts_cross_entropy") and tokens > data.WHOLE_LOGITS:
        kernels.append("cut_cross_entropy")
        reason = f"Unsloth: logits of more than {data.WHOLE_LOGITS} tokens are never whole"
        lm.put(spec, "loss", "fused", switch, reason)
    elif spec.does("unsloth.makes_gradients_of_the_loss_in_forward"):
        bounded = spec.does("unsloth.bounds_pieces_of_the_loss")
        each = 16 if spec.does("unsloth.counts_what_the_loss_makes") else 4
        vocabulary = spec.get("vocabulary_size") or 0
        lm.put(spec, "loss", "in_forward", switch, f"{data.VERSION}: unsloth_fused_ce_loss")
        lm.put(spec, "loss_chunks", data.pieces(tokens, vocabulary, bounded, each), switch, data.VERSION)
    lm.put(spec, "fused_kernels", kernels, switch, data.VERSION)


def unsloth_gap(spec: TrainingSpec) -> str:
    """Why a decoder is not known as Unsloth trains it; "" where it is."""
    config = spec.get(lm.CONFIG)
    kind = lm.model_type(spec)
    if kind in data.UNDESCRIBED:
        return f"what Unsloth makes of {kind}'s layers is not described"
    mixture = isinstance(config, dict) and any(config.get(name) for name in data.EXPERTS)
    if mixture and spec.get("quantization.kind") is not None:
        return f"Unsloth's copies in few bits of {kind}'s experts are not described"
    return ""


def unsloth_offloads(spec: TrainingSpec, switch: Fact) -> None:
    """Where it keeps what is recomputed from."""
    if spec.get("checkpointing") == "full":
        lm.put(
            spec, "activation_offloading", True, switch, f"{data.VERSION}: hidden states of layers go to host memory"
        )


def unsloth_quantizes(spec: TrainingSpec, switch: Fact) -> None:
    """Whose copies in 4 bits it loads."""
    if spec.get("quantization.kind") == "nf4":
        lm.put(spec, "quantization.double", True, switch, f"{data.VERSION}: its own copies in 4 bits")
