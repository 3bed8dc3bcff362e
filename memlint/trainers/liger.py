"""Which kernels Liger puts in place of a model's own, by the model's type.

Source: Liger-Kernel 0.8, transformers/monkey_patch.py.
"""

from __future__ import annotations

# What _apply_liger_kernel_to_instance turns on unless it is told otherwise: its switch -> the kernel.
SWITCHES = {
    "rope": "rotary",
    "rms_norm": "rms_norm",
    "swiglu": "swiglu",  # or geglu: whichever gate the model has
    "fused_linear_cross_entropy": "linear_cross_entropy",
}

# The model types that it knows (MODEL_TYPE_TO_APPLY_LIGER_FN); it leaves others as they are, and says so in the log.
TYPES = frozenset(
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

# ... and which switches it leaves off for some of them.
_ROTARY_OFF = ("deepseek_v2", "deepseek_v3", "gemma4", "gemma4_text", "glm4", "glm4v", "glm4v_moe", "qwen3_next")
OFF: dict[str, tuple[str, ...]] = {
    **dict.fromkeys((*_ROTARY_OFF, "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"), ("rope",)),
    "granite": ("fused_linear_cross_entropy",),
    "gpt_oss": ("swiglu",),
    "nemotron": ("rope", "rms_norm", "swiglu"),
}

# Families that ask for it themselves -> the types that they ask for; models of others train without.
ASKED: dict[str, frozenset[str]] = {
    "llamafactory": frozenset(  # LLaMA-Factory 0.9: model_utils/liger_kernel.py
        (
            *("gemma", "gemma2", "gemma3", "gemma3_text", "glm", "glm4", "glm4v", "granite", "llama", "llava"),
            *("mistral", "mixtral", "mllama", "olmo2", "paligemma", "phi3", "qwen2", "qwen2_vl", "qwen2_5_vl"),
            *("qwen3", "qwen3_moe", "qwen3_next", "qwen3_5", "gpt_oss"),
        )
    ),
}
