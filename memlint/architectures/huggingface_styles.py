"""How the code of each of transformers' decoders computes, by ``model_type``.

Source: ``transformers`` 5.23, ``models/*/configuration_*.py`` (defaults) and ``models/*/modeling_*.py`` (switches).
"""

from __future__ import annotations

from typing import Any

from memlint.named_tuple import NamedTuple


class Key(NamedTuple):
    """The value is in the config, under this name; ``default`` where it is absent."""

    name: str
    default: Any = False


_BIAS = Key("attention_bias")
_LLAMA = {"qkv_bias": _BIAS, "output_bias": _BIAS, "perceptron_bias": Key("mlp_bias")}
_GRANITE = {"qkv_bias": _BIAS, "output_bias": _BIAS, "scaled": True, "scaled_residual": True, "scaled_logits": True}
_GATED = {
    "norm": "gemma",
    "rotary": "partial",
    "rotary_dim": Key("partial_rotary_factor", 0.25),
    "query_norm": "head",
    "qkv_bias": _BIAS,
    "output_bias": _BIAS,
    "head_dim": 256,
}
_DEEPSEEK = {"projection": "latent", "rotary": "even_odd", "qkv_bias": _BIAS, "output_bias": _BIAS}
_GEMMA = {
    "norm": "gemma",
    "scaled": True,
    "scales_in_embedding": True,
    "tied": True,
    "activation": "gelu_pytorch_tanh",
    "qkv_bias": _BIAS,
    "output_bias": _BIAS,
    "head_dim": 256,
}
_GEMMA4 = {
    **_GEMMA,
    "norm": "rms_weight_wide",
    "residual": "sandwich",
    "both_masks": True,
    "logit_cap": Key("final_logit_softcapping", None),
    "local_tables": True,
}
_LFM = {"query_norm": "head", "output_name": "out_proj", "tied": True, "attention_dropout": 0.0}
_EMBEDDED = {"tied": True, "norm": "layer", "rotary": "none"}

_GPTJ = {
    "norm": "layer",
    "residual": "parallel",
    "residual_last": True,
    "rotary": "none",
    "output_name": "out_proj",
    "perceptron": "fc_in fc_out",
    "perceptron_bias": True,
    "activation": "gelu_new",
    "attention_dropout": Key("attn_pdrop", 0.0),
    "residual_dropout": Key("resid_pdrop", 0.0),
    "embedding_dropout": Key("embd_pdrop", 0.0),
    "head_bias": True,
}

# model_type -> switches that differ from the defaults of Decoder.
STYLES: dict[str, dict[str, Any]] = {
    "llama": _LLAMA,
    "mistral": {"windows": ("all", 4096)},
    "ministral": {"windows": ("types", 4096), "both_masks": True},
    "ministral3": {"windows": ("all", None), "scaled_query": True, "head_dim": 128},
    "internlm2": {
        "projection": "by_group",
        "output_name": "wo",
        "qkv_bias": Key("bias"),
        "output_bias": Key("bias"),
        "perceptron_bias": Key("bias"),
    },
    "qwen2": {"qkv_bias": True, "windows": ("qwen", None)},
    # Their tables of positions are of each row, as images have places in two dimensions.
    "qwen2_vl_text": {"qkv_bias": True, "windows": ("qwen", None), "counted_positions": True},
    "qwen2_5_vl_text": {"qkv_bias": True, "windows": ("qwen", None), "counted_positions": True},
    "qwen3": {
        "qkv_bias": _BIAS,
        "output_bias": _BIAS,
        "query_norm": "head",
        "windows": ("qwen", None),
        "head_dim": 128,
    },
    "qwen3_vl_text": {
        "qkv_bias": _BIAS,
        "output_bias": _BIAS,
        "query_norm": "head",
        "head_dim": 128,
        "counted_positions": True,
    },
    "qwen3_vl_moe_text": {
        "qkv_bias": _BIAS,
        "output_bias": _BIAS,
        "query_norm": "head",
        "counted_positions": True,
    },
    "smollm3": {**_LLAMA, "tied": True, "windows": ("types", None), "unrotated": "smollm3"},
    "apertus": {
        "qkv_bias": _BIAS,
        "output_bias": _BIAS,
        "query_norm": "head_after",
        "perceptron": "xielu",
        "activation": "xielu",
    },
    "arcee": {**_LLAMA, "perceptron": "up_proj down_proj", "activation": "relu2"},
    "seed_oss": {
        "qkv_bias": Key("attention_bias", True),
        "output_bias": Key("attention_out_bias"),
        "perceptron_bias": Key("mlp_bias"),
        "attention_dropout": Key("attention_dropout", 0.1),
        "residual_dropout": Key("residual_dropout", 0.1),
        "head_dim": 128,
    },
    "olmo": {"norm": "plain", "wide_tables": True, "qkv_bias": _BIAS, "output_bias": _BIAS},
    "olmo2": {
        "wide_tables": True,
        "norm": "rms_wide",
        "residual": "post",
        "query_norm": "whole",
        "qkv_bias": _BIAS,
        "output_bias": _BIAS,
    },
    "olmo3": {
        "wide_tables": True,
        "norm": "rms_wide",
        "residual": "post",
        "query_norm": "whole",
        "qkv_bias": _BIAS,
        "output_bias": _BIAS,
        "windows": ("every 4", 4096),
        "both_masks": True,
        "local_tables": True,
    },
    "exaone4": {
        "residual": "post",
        "query_norm": "head_after",
        "windows": ("every 4", 4096),
        "both_masks": True,
        "unrotated": "exaone4",
    },
    "hunyuan_v1_dense": {"qkv_bias": _BIAS, "output_bias": _BIAS, "query_norm": "head_rotated"},
    "ernie4_5": {
        "qkv_bias": Key("use_bias"),
        "output_bias": Key("use_bias"),
        "perceptron_bias": Key("use_bias"),
        "rotary": "interleaved_tables",
        "wide_tables": True,
        "tied": True,
        "attention_dropout": 0.0,
        "head_dim": 128,
    },
    "granite": {**_LLAMA, "scaled": True, "scaled_residual": True, "scaled_logits": True},
    "granitemoe": _GRANITE,
    "granitemoeshared": _GRANITE,
    "granitemoehybrid": {**_GRANITE, "perceptron": "gated_halves"},
    "phi3": {
        "projection": "joined",
        "perceptron": "gated_joined",
        "rotary": "partial",
        "windows": ("all", None),
        "residual_dropout": Key("resid_pdrop", 0.0),
    },
    "starcoder2": {
        "norm": "layer",
        "qkv_bias": Key("use_bias", True),
        "output_bias": Key("use_bias", True),
        "perceptron": "c_fc c_proj",
        "perceptron_bias": Key("use_bias", True),
        "activation": "gelu_pytorch_tanh",
        "tied": True,
        "windows": ("all", None),
        "residual_dropout": Key("residual_dropout", 0.0),
        "embedding_dropout": Key("embedding_dropout", 0.0),
    },
    "nemotron": {
        **_LLAMA,
        "norm": "layer_plus",
        "rotary": "partial",
        "rotary_dim": Key("partial_rotary_factor", 0.5),
        "perceptron": "up_proj down_proj",
        "activation": "relu2",
    },
    "stablelm": {
        "norm": "layer",
        "rotates_in_line": True,
        "rotary": "partial",
        "rotary_dim": Key("partial_rotary_factor", 0.25),
        "qkv_bias": Key("use_qkv_bias"),
        "residual": Key("use_parallel_residual"),
        "residual_dropout": Key("hidden_dropout", 0.0),
    },
    "cohere": {
        "norm": "layer_no_bias",
        "residual": "parallel",
        "rotary": "interleaved_wide",
        "qkv_bias": _BIAS,
        "output_bias": _BIAS,
        "tied": True,
        "scaled_logits": True,
    },
    "cohere2": {
        "norm": "layer_no_bias",
        "residual": "parallel",
        "rotary": "interleaved_wide",
        "qkv_bias": _BIAS,
        "output_bias": _BIAS,
        "tied": True,
        "scaled_logits": True,
        "windows": ("every 4", 4096),
        "both_masks": True,
        "unrotated": "cohere2",
    },
    "glm4": {
        "residual": "sandwich",
        "perceptron": "gated_joined",
        "rotary": "interleaved",
        "rotary_dim": Key("partial_rotary_factor", 0.5),
        "qkv_bias": Key("attention_bias", True),
        "head_dim": 128,
    },
    "glm4v_text": {
        "residual": "sandwich",
        "perceptron": "gated_joined",
        "rotary": "interleaved_once",
        "rotary_dim": Key("partial_rotary_factor", 1.0),
        "qkv_bias": True,
        "counted_positions": True,
    },
    "glm": {
        "perceptron": "gated_joined",
        "rotary": "interleaved",
        "rotary_dim": Key("partial_rotary_factor", 0.5),
        "qkv_bias": Key("attention_bias", True),
        "head_dim": 128,
    },
    "gemma": _GEMMA,
    "gemma2": {
        **_GEMMA,
        "residual": "sandwich",
        "both_masks": True,
        "windows": ("every 2", 4096),
        "score_cap": Key("attn_logit_softcapping", 50.0),
        "logit_cap": Key("final_logit_softcapping", 30.0),
    },
    "gemma3_text": {
        **_GEMMA,
        "residual": "sandwich",
        "both_masks": True,
        "windows": ("every 6", 4096),
        "query_norm": "head_after",
        "logit_cap": Key("final_logit_softcapping", None),
        "local_tables": True,
    },
    "gemma4_text": {**_GEMMA4, "windows": ("every 6", 512)},
    "gemma4_unified_text": {**_GEMMA4, "windows": ("every 6", 1024)},
    "gpt2": {
        **_EMBEDDED,
        "plain_softmax": True,
        "projection": "thirds",
        "qkv_bias": True,
        "output_bias": True,
        "output_name": "c_proj",
        "perceptron": "c_fc c_proj",
        "perceptron_bias": True,
        "activation": "gelu_new",
        "conv1d": True,
        "attention_dropout": Key("attn_pdrop", 0.1),
        "residual_dropout": Key("resid_pdrop", 0.1),
        "embedding_dropout": Key("embd_pdrop", 0.1),
    },
    "opt": {
        **_EMBEDDED,
        "projection": "scaled",
        "residual": "flat",
        "qkv_bias": Key("enable_bias", True),
        "output_bias": Key("enable_bias", True),
        "output_name": "out_proj",
        "perceptron": "fc1 fc2",
        "perceptron_bias": Key("enable_bias", True),
        "activation": "relu",
        "counted_positions": True,
        "residual_dropout": Key("dropout", 0.1),
    },
    "gpt_neox": {
        "norm": "layer",
        "residual": Key("use_parallel_residual", True),
        "projection": "by_head",
        "rotary": "partial",
        "rotary_dim": Key("rotary_pct", 0.25),
        "qkv_bias": Key("attention_bias", True),
        "output_bias": Key("attention_bias", True),
        "output_name": "dense",
        "perceptron": "dense_h_to_4h dense_4h_to_h",
        "perceptron_bias": True,
        "activation": "gelu",
        "residual_dropout": Key("hidden_dropout", 0.0),
        "embedding_dropout": Key("hidden_dropout", 0.0),
    },
    "phi": {
        "norm": "layer",
        "residual": "parallel",
        "residual_last": True,
        "rotates_in_line": True,
        "rotary": "partial",
        "rotary_dim": Key("partial_rotary_factor", 0.5),
        "qkv_bias": True,
        "output_bias": True,
        "output_name": "dense",
        "perceptron": "fc1 fc2",
        "perceptron_bias": True,
        "activation": "gelu_new",
        "residual_dropout": Key("resid_pdrop", 0.0),
        "embedding_dropout": Key("embd_pdrop", 0.0),
        "head_bias": True,
    },
    "gpt_bigcode": {
        **_EMBEDDED,
        "joined_name": "c_attn",
        "projection": "one_key",
        "qkv_bias": True,
        "output_bias": True,
        "output_name": "c_proj",
        "perceptron": "c_fc c_proj",
        "perceptron_bias": True,
        "activation": "gelu_pytorch_tanh",
        "attention_dropout": Key("attn_pdrop", 0.1),
        "residual_dropout": Key("resid_pdrop", 0.1),
        "embedding_dropout": Key("embd_pdrop", 0.1),
    },
    "gpt_neo": {
        **_EMBEDDED,
        "perceptron": "c_fc c_proj",
        "perceptron_bias": True,
        "activation": "gelu_new",
        "attention_dropout": Key("attention_dropout", 0.0),
        "residual_dropout": Key("resid_dropout", 0.0),
        "embedding_dropout": Key("embed_dropout", 0.0),
    },
    "gptj": _GPTJ,
    "codegen": _GPTJ,
    "bloom": {
        **_EMBEDDED,
        "qkv_bias": True,
        "output_bias": True,
        "perceptron": "dense_h_to_4h dense_4h_to_h",
        "perceptron_bias": True,
        "activation": "gelu",
        "attention_dropout": Key("attention_dropout", 0.0),
        "residual_dropout": Key("hidden_dropout", 0.0),
        "alibi": True,
        "embedding_norm": True,
    },
    "mpt": {**_EMBEDDED, "norm": "layer_weight", "alibi": True},
    "falcon": {
        "norm": "layer",
        "tied": True,
        "activation": "gelu",
        "qkv_bias": Key("bias"),
        "output_bias": Key("bias"),
        "output_name": "dense",
        "perceptron_bias": Key("bias"),
        "attention_dropout": Key("attention_dropout", 0.0),
        "residual_dropout": Key("hidden_dropout", 0.0),
        "alibi": Key("alibi"),
    },
    "mixtral": {"windows": ("all", None)},
    "phimoe": {
        "norm": "layer",
        "qkv_bias": _BIAS,
        "output_bias": _BIAS,
        "windows": ("all", None),
        "head_bias": Key("lm_head_bias"),
    },
    "qwen2_moe": {"qkv_bias": Key("qkv_bias", True), "windows": ("qwen_moe", None)},
    "qwen3_moe": {"qkv_bias": _BIAS, "output_bias": _BIAS, "query_norm": "head", "windows": ("uses", None)},
    "qwen3_next": _GATED,
    "qwen3_5_text": _GATED,
    "qwen3_5_moe_text": _GATED,
    "llama4_text": {
        "rotary": "complex",
        "query_norm": Key("use_qk_norm", True),
        "qkv_bias": _BIAS,
        "output_bias": _BIAS,
        "scaled_query": Key("attn_temperature_tuning", True),
        "both_masks": True,
        "unrotated": "llama4",
    },
    "falcon_h1": {**_LLAMA, "scaled": True, "scaled_logits": True},
    "lfm2": _LFM,
    "lfm2_moe": _LFM,
    "olmoe": {"qkv_bias": _BIAS, "output_bias": _BIAS, "query_norm": "whole"},
    "deepseek_v2": {"projection": "latent", "rotary": "complex", "qkv_bias": _BIAS, "output_bias": _BIAS},
    "deepseek_v3": _DEEPSEEK,
    "glm4_moe_lite": _DEEPSEEK,
    "glm4_moe": {
        "rotary": "partial",
        "rotary_dim": Key("partial_rotary_factor", 0.5),
        "qkv_bias": _BIAS,
    },
    "minimax_m2": {"rotary": "partial", "query_norm": "whole", "head_dim": 128},
    "gpt_oss": {
        "norm": "rms_wide",
        "rotary": "halves",
        "qkv_bias": Key("attention_bias", True),
        "output_bias": Key("attention_bias", True),
        "windows": ("every 2", 128),
        "both_masks": True,
        "sinks": True,
        "head_dim": 64,
    },
}

# config.json of another model type, whose decoder is one of those above
ALIASES = {
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_unified_text",
    "llama4": "llama4_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
}

# Of these AutoModelForCausalLM makes the decoder alone, though the config describes an image encoder, too.
DECODER_ALONE = ("llama4", "qwen3_5", "qwen3_5_moe")

# Decoders whose layers are not ``model.layers`` in transformers (``base_model_prefix``).
NAMED_OTHERWISE = (
    *("bloom", "codegen", "falcon", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj", "mpt"),
    "opt",
)

# What a mixture was called in a layer before transformers 5 (4.57.6, models/*/modeling_*.py), where not ``mlp``.
MIXTURES_BEFORE = dict.fromkeys(("minimax_m2", "mixtral", "phimoe"), "block_sparse_moe")

# Each head has keys and values of its own, whatever the config says.
UNGROUPED = (
    *("bloom", "codegen", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "gpt2", "gpt_neo", "gpt_neox", "gptj", "mpt"),
    "opt",
)

# Where the perceptron's width is not stated, it is four times the model's.
FOURFOLD = ("bloom", "codegen", "falcon", "gpt2", "gpt_bigcode", "gpt_neo", "gptj", "mpt")

# Decoders with layers of their own, and the ways that transformers' class for them has to compute attention.
OWN_CODE: dict[str, tuple[str, ...]] = {
    "bloom": (),
    "codegen": (),
    "falcon": ("sdpa", "flash"),
    "falcon_h1": ("sdpa", "flash"),
    **dict.fromkeys(("gemma4_text", "gemma4_unified_text"), ("sdpa",)),  # some heads are too wide for others
    "gpt_neo": ("flash",),
    "gptj": ("flash",),
    "mpt": (),
    "llama4_text": ("sdpa",),
}

# Layers that have no experts, where the config does not say how many.
DENSE_FIRST = {"deepseek_v3": 3, "glm4_moe": 1, "glm4_moe_lite": 1}

# Types that transformers refuses where the width is not a multiple of the heads, unless the config states head_dim;
# those that it does not leave the rest of the width out of the heads.
HEADS_SHARE_WIDTH = frozenset(
    (
        *("arcee", "bloom", "codegen", "deepseek_v2", "falcon", "gemma2", "gemma3_text", "gpt2", "gpt_bigcode"),
        *("gpt_neo", "gpt_neox", "gptj", "llama", "mpt", "olmoe", "opt", "stablelm"),
    )
)
