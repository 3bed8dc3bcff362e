"""What Unsloth puts in place of a decoder's own code.

Sources: unslothai/unsloth 2024.8 to 2026.10 ``unsloth/models/loader.py``, ``unsloth/models/llama.py``
(``CausalLM_fast_forward``, ``get_peft_model``), ``unsloth/kernels``; unsloth_zoo 2025.8 to 2026.10
``fused_losses/cross_entropy_loss.py`` (``get_chunk_size``).
"""

from __future__ import annotations

import json
import os
from functools import cache
from typing import Any

import memlint.data

VERSION = "Unsloth 2026.10"
# Its gate is part of the kernel for adapters: a perceptron without these keeps transformers' own (models/llama.py).
KERNELS = ("rms_norm", "head_norm", "rotary", "cross_entropy")
# Of adapters that are made without dropout; gradients go where what they are of was kept.
ADAPTER_KERNELS = ("lora_mlp", "lora_qkv", "lora_o", "lora_in_place")
WHOLE_LOGITS = 1024  # tokens of a batch; where it has no more, the logits of all of them are made

# What its calls do where their arguments say nothing.
MODEL: dict[str, Any] = {"max_seq_length": 2048, "load_in_4bit": True}
# What they do whatever these say.
ALWAYS: dict[str, Any] = {
    "dtype": "bfloat16",
    "bf16": True,
    "bnb_4bit_quant_type": "nf4",
    "use_bnb_nested_quant": True,
}
ADAPTERS: dict[str, Any] = {
    "r": 16,
    "lora_alpha": 16,
    "lora_dropout": 0.0,
    "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    "use_gradient_checkpointing": "unsloth",
}
# Decoders whose layers it computes itself, in kernels of its own (loader.py: dispatch_model).
OWN_LAYERS = ("llama", "mistral", "gemma", "gemma2", "qwen2", "qwen3", "qwen3_moe")
# Decoders of which it computes layers, or loads weights, in ways that are not described: float32 where a card has no
# bfloat16, attention in flex's kernels, linear layers in place of the experts (unsloth_zoo: temporary_patches).
UNDESCRIBED = ("gemma3", "gemma3_text", "gemma3n", "gemma3n_text", "gpt_oss")
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")  # keys of a config.json that has a mixture

_PIECE_BYTES = 4 << 30  # of a piece of the logits, at most


# load_in_4bit takes a copy of some models that leaves layers in 16 bits (loader.py: get_model_name; mapper.py).
DYNAMIC_SINCE = (2024, 12)


@cache
def _dynamic() -> frozenset[str]:
    path = os.path.join(os.path.dirname(memlint.data.__file__), "unsloth_dynamic.json")
    with open(path, encoding="utf-8") as file:
        return frozenset(json.load(file)["names"])


def is_dynamic(model: str) -> bool:
    """Whether its newest release loads such a copy of a model in 4 bits."""
    return model.lower() in _dynamic()


def is_dynamic_copy(model: str) -> bool:
    """Whether an id is of such a copy itself, whoever loads it."""
    return model.lower().endswith("-unsloth-bnb-4bit")


def pieces(tokens: int, vocabulary: int, bounded: bool, bytes_per_logit: int) -> int:
    """In how many pieces the loss is made. Before it was ``bounded`` a piece took half of what is free, which is more
    than all logits together wherever the run fits."""
    if not bounded:
        return 1
    exact = tokens * vocabulary * bytes_per_logit / _PIECE_BYTES
    whole = exact <= 1 if bytes_per_logit > 4 else round(exact / 4) == 0
    rounded = -(-exact // 4) if bytes_per_logit > 4 else round(exact / 4)
    return 1 if whole else min(4 * int(rounded), tokens)
