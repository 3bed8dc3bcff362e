"""What Unsloth puts in place of a decoder's own code.

Source: unslothai/unsloth 2025.11 ``unsloth/models/llama.py`` (``CausalLM_fast_forward``), ``unsloth/kernels``.
"""

from __future__ import annotations

VERSION = "Unsloth 2025.11"
KERNELS = ("rms_norm", "swiglu", "rotary", "cross_entropy")
ADAPTER_KERNELS = ("lora_mlp", "lora_qkv", "lora_o")  # of adapters that are made without dropout
WHOLE_LOGITS = 1024  # tokens of a batch; where it has no more, the logits of all of them are made
