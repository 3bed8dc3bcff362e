"""From a ``config.json`` to what decides a decoder's memory: sizes, and how the code of its model type computes.

Most decoders are one program with switches, so they are one table here. Source: ``transformers`` 5.23,
``models/*/configuration_*.py`` (defaults) and ``models/*/modeling_*.py`` (switches).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memlint.models import UnknownModel
from memlint.models.sizes import HEADS_SHARE_WIDTH, Agreement, Sizes, agree, layer_types
from memlint.named_tuple import NamedTuple


class Experts(NamedTuple):
    """A mixture of experts in place of a perceptron.

    shared            width of the expert that every token visits; 0 for none
    shared_gate       the shared expert's result is weighted by a gate (Qwen2-MoE)
    router            how scores are made: "mixtral" (softmax of fp32 logits), "qwen" (softmax into fp32, rounded back),
                      "chosen" (GPT-OSS: biased logits, and a softmax over the chosen ones), "softmax" (DeepSeek-V2) and
                      "sigmoid" (DeepSeek-V3, GLM-4.5), both from fp32 logits, then scaled; "granite" (a softmax over
                      the chosen ones of fp32 logits), "all" (each is asked about every token: Llama 4), "sampled" (two
                      are drawn: Phi-3.5-MoE)
    grouped           experts form groups, of which only some are looked at
    renormalised      the chosen scores are divided by their sum
    first             layers before this one have a plain perceptron
    step              every step-th layer has experts, the others a plain perceptron
    dense             layers that have a plain perceptron whatever ``step`` says
    """

    number: int
    per_token: int
    intermediate: int
    router: str = "mixtral"
    renormalised: bool = True
    shared: int = 0
    shared_gate: bool = False
    first: int = 0
    step: int = 1
    dense: tuple[int, ...] = ()
    grouped: bool = False


class Latent(NamedTuple):
    """Multi-head latent attention (DeepSeek): keys and values are made from one narrow vector per token.

    query_rank  0 where queries are projected directly
    complex     pairs are rotated as complex numbers in fp32 (DeepSeek-V2)
    """

    query_rank: int
    key_value_rank: int
    plain_dim: int
    rotary_dim: int
    value_dim: int
    complex: bool


class GatedDelta(NamedTuple):
    """Layers that keep a state in place of attention (Qwen3-Next, Qwen3.5).

    layers   their numbers
    kernel   tokens that the convolution before it spans
    joined   queries, keys, values and gates come from two products (Qwen3-Next)
    kernels  flash-linear-attention is installed
    """

    layers: tuple[int, ...]
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    joined: bool
    kernels: bool = False


class ShortConvolution(NamedTuple):
    """Layers that convolve in place of attention (LFM2): their numbers, and the tokens that they span."""

    layers: tuple[int, ...]
    kernel: int
    bias: bool


class Hyperparameters(NamedTuple):
    """Sizes, and the switches of the program.

    norm          "rms" (LLaMA: rounded, then scaled), "rms_wide" (OLMo2: scaled, then rounded), "gemma" (scaled by
                  ``1 + weight`` in fp32), "layer", "layer_weight" (without a bias), "layer_no_bias" (Cohere's own),
                  "plain" (no parameters: OLMo)
    residual      "pre" (norm, block, add), "post" (block, norm, add), "sandwich" (a norm before and one after),
                  "parallel" (attention and perceptron read the same norm), "parallel_two" (each has its own),
                  "flat" ("pre", tokens of all rows in one dimension: OPT), "flat_post" (the same, norms behind blocks)
    projection    "separate" q, k and v; "scaled" (the same, queries times a constant: OPT); "joined" (one product,
                  sliced: Phi3), "by_head" (one product, cut within heads: NeoX), "thirds" (one product, cut in
                  three: GPT-2), "one_key" (one product, keys and values of a single head: GPT-BigCode), "by_group"
                  (one product, cut within groups of heads: InternLM2, whose code comes with its weights)
    rotary        "half" (LLaMA), "partial" (the rest is put behind: NeoX, Phi, StableLM), "interleaved" (GLM),
                  "interleaved_wide" (Cohere, in fp32), "interleaved_tables" (the same, from tables in halves: ERNIE),
                  "halves" (tables for half a head: GPT-OSS), "none"
    rotary_dim    numbers of a head that are rotated
    query_norm    "none", "head" (Qwen3), "head_together" (the same, once all three are there: GLM-4.5), "head_wide"
                  (Cohere: with weights for every head), "head_after" (Gemma3: with tokens and heads swapped), "whole"
                  (OLMo2), "head_each" (one norm for every head: StableLM), "head_rotated" (what is rotated already:
                  Hunyuan)
    perceptron    "gated" (gate_proj, up_proj, down_proj), "gated_joined" (Phi3), "gated_halves" (the same, its gate
                  first: Granite), or names of two layers
    windows       per layer: the attention window, 0 for none; () where no layer has one
    positions     rows of a table of learned positions; 0 for none
    counted_positions                each row counts its own from the mask of padding (OPT)
    both_masks    masks with and without a window are made, whether or not some layer takes them
    sinks         one more score per row and head (GPT-OSS)
    scaled        token embeddings are multiplied by a constant
    scaled_residual, scaled_logits   as Granite's and Cohere's
    score_cap, logit_cap             scores and logits pass through a tanh (Gemma2)
    wide_tables   cosine and sine stay in fp32, and what they rotated is rounded back (OLMo)
    local_tables  sliding layers rotate by a table of their own (Gemma3)
    unrotated     layers that do not rotate (SmolLM3)
    longest       rows of tables that are made once, for every place there may be (GPT-J, GPT-Neo, MPT)
    scaled_query  queries grow with their place once they are rotated (Ministral 3)
    alibi         scores are biased by distance
    clipped       queries, keys and values are bounded (MPT, OLMo)
    grouped       each group of heads has a key and a value of its own in the joined product (Falcon)
    final_norm    what the layers return is normed
    embedding_width   of tokens before a product brings them to ``width``, and of what the head gets; 0 for none (OPT)
    """

    model_type: str
    vocabulary: int
    width: int
    layers: int
    heads: int
    key_value_heads: int
    head_dim: int
    intermediate: int
    tied: bool = False
    norm: str = "rms"
    residual: str = "pre"
    projection: str = "separate"
    qkv_bias: bool = False
    output_bias: bool = False
    output_name: str = "o_proj"
    query_norm: str = "none"
    rotary: str = "half"
    rotary_dim: int = 0
    perceptron: str = "gated"
    perceptron_bias: bool = False
    activation: str = "silu"
    conv1d: bool = False
    windows: tuple[int, ...] = ()
    positions: int = 0
    counted_positions: bool = False
    both_masks: bool = False
    sinks: bool = False
    scaled: bool = False
    scaled_residual: bool = False
    scaled_logits: bool = False
    score_cap: bool = False
    logit_cap: bool = False
    wide_tables: bool = False
    local_tables: bool = False
    unrotated: tuple[int, ...] = ()
    longest: int = 0
    scaled_query: bool = False
    alibi: bool = False
    clipped: bool = False
    grouped: bool = False
    final_norm: bool = True
    embedding_width: int = 0
    attention_dropout: float = 0.0
    residual_dropout: float = 0.0
    embedding_dropout: float = 0.0
    head_bias: bool = False
    experts: Experts | None = None
    latent: Latent | None = None
    linear: GatedDelta | None = None
    convolution: ShortConvolution | None = None

    @property
    def hybrid(self) -> bool:
        """Whether some layers do something else than to attend."""
        return self.linear is not None or self.convolution is not None


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
    "tied": True,
    "activation": "gelu_pytorch_tanh",
    "qkv_bias": _BIAS,
    "output_bias": _BIAS,
    "head_dim": 256,
}
_EMBEDDED = {"tied": True, "norm": "layer", "rotary": "none"}

_GPTJ = {
    "norm": "layer",
    "residual": "parallel",
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

# model_type -> switches that differ from the defaults of Hyperparameters.
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
    "smollm3": {**_LLAMA, "tied": True, "windows": ("types", None), "unrotated": "smollm3"},
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
    "stablelm": {
        "norm": "layer",
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
    "gpt2": {
        **_EMBEDDED,
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
    "lfm2": {"query_norm": "head", "output_name": "out_proj", "tied": True, "attention_dropout": 0.0},
    "olmoe": {"qkv_bias": _BIAS, "output_bias": _BIAS, "query_norm": "whole"},
    "deepseek_v2": {"projection": "latent", "rotary": "complex", "qkv_bias": _BIAS, "output_bias": _BIAS},
    "deepseek_v3": _DEEPSEEK,
    "glm4_moe_lite": _DEEPSEEK,
    "glm4_moe": {
        "rotary": "partial",
        "rotary_dim": Key("partial_rotary_factor", 0.5),
        "qkv_bias": _BIAS,
    },
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
    "llama4": "llama4_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
}

# Of these AutoModelForCausalLM makes the decoder alone, though the config describes an image encoder, too.
DECODER_ALONE = ("llama4", "qwen3_5", "qwen3_5_moe")

# Each head has keys and values of its own, whatever the config says.
_UNGROUPED = (
    *("bloom", "codegen", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "gpt2", "gpt_neo", "gpt_neox", "gptj", "mpt"),
    "opt",
)

# Where the perceptron's width is not stated, it is four times the model's.
_FOURFOLD = ("bloom", "codegen", "falcon", "gpt2", "gpt_bigcode", "gpt_neo", "gptj", "mpt")

# Decoders with layers of their own (memlint.models.language.early), and those of them that know neither SDPA nor,
# some of them, FlashAttention.
EARLY = ("bloom", "codegen", "falcon", "gpt_neo", "gptj", "mpt")
WITHOUT_SDPA = ("bloom", "codegen", "gpt_neo", "gptj", "mpt")
WITHOUT_FLASH = ("bloom", "codegen", "llama4_text", "mpt")

# Layers that have no experts, where the config does not say how many.
_DENSE_FIRST = {"deepseek_v3": 3, "glm4_moe": 1, "glm4_moe_lite": 1}

# Types that transformers refuses where the width is not a multiple of the heads, unless the config states head_dim;
# those that it does not leave the rest of the width out of the heads.
_HEADS_SHARE_WIDTH = frozenset(
    (
        *("arcee", "bloom", "codegen", "deepseek_v2", "falcon", "gemma2", "gemma3_text", "gpt2", "gpt_bigcode"),
        *("gpt_neo", "gpt_neox", "gptj", "llama", "mpt", "olmoe", "opt", "stablelm"),
    )
)

# Those of them whose rotation is in code of their own (``rotary`` is "none").
_ROTATES_ITSELF = ("codegen", "falcon", "gptj")


def _rotates(sizes: Hyperparameters) -> bool:
    return sizes.rotary != "none" or (sizes.model_type in _ROTATES_ITSELF and not sizes.alibi)


AGREEMENTS = (
    Agreement(
        lambda sizes: sizes.head_dim > 0,
        "hidden_size {0.width:,} leaves nothing to each of num_attention_heads {0.heads:,}",
    ),
    Agreement(
        lambda sizes: sizes.heads % sizes.key_value_heads == 0,
        "num_attention_heads {0.heads:,} is no multiple of num_key_value_heads {0.key_value_heads:,}",
    ),
    Agreement(
        lambda sizes: not _rotates(sizes) or (sizes.rotary_dim % 2 == 0 and sizes.rotary_dim <= sizes.head_dim),
        "of head_dim {0.head_dim:,}, {0.rotary_dim:,} numbers cannot be rotated in pairs",
    ),
    Agreement(
        lambda sizes: sizes.experts is None or sizes.experts.per_token <= sizes.experts.number,
        "num_experts_per_tok {0.experts.per_token:,} is more than num_experts {0.experts.number:,}",
    ),
    Agreement(
        lambda sizes: sizes.linear is None or sizes.linear.value_heads % sizes.linear.key_heads == 0,
        "{0.linear.value_heads:,} heads of values cannot share {0.linear.key_heads:,} heads of keys",
    ),
)

# The same thing by other names (``attribute_map`` of the configuration classes).
_NAMES = {
    "hidden_size": ("n_embd", "d_model"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
    "intermediate_size": ("n_inner", "ffn_dim", "ffn_hidden_size"),
    "max_position_embeddings": ("n_positions", "max_seq_len"),
    "hidden_act": ("activation_function", "hidden_activation", "activation"),
}


def _value(config: Mapping[str, Any], name: str, default: Any = None) -> Any:
    for key in (name, *_NAMES.get(name, ())):
        if config.get(key) is not None:
            return config[key]
    return default


def _number(config: Mapping[str, Any], name: str) -> int:
    found = _value(config, name)
    if found is None:
        raise UnknownModel(f"config.json of model type {config.get('model_type')!r} states no {name}")
    return int(found)


def known(model_type: str) -> bool:
    """Whether :func:`hyperparameters` takes this ``model_type``."""
    return ALIASES.get(model_type, model_type) in STYLES


def hyperparameters(config: Mapping[str, Any]) -> Hyperparameters:
    """From the contents of a ``config.json``.

    Raises UnknownModel for a model type that is not in the table, and where a size is missing, is none, or does not
    agree with the others.
    """
    config = Sizes(config)
    model_type = config.get("model_type")
    if model_type is None or not known(model_type):
        raise UnknownModel(f"decoders of model type {model_type!r} are not known")
    model_type = ALIASES.get(model_type, model_type)
    if isinstance(config.get("text_config"), Mapping):
        if isinstance(config.get("vision_config"), Mapping) and config.get("model_type") not in DECODER_ALONE:
            raise UnknownModel(f"the image encoder beside the decoder of {config['model_type']!r} is not known")
        config = config["text_config"]
    style = STYLES[model_type]
    facts = {name: _stated(config, value) for name, value in style.items()}
    width, heads = _number(config, "hidden_size"), _number(config, "num_attention_heads")
    layers = _number(config, "num_hidden_layers")
    head_dim = config.get("head_dim") or facts.get("head_dim") or width // heads
    # Qwen3.5's mixtures leave no layer without experts.
    inner = _value(config, "moe_intermediate_size" if model_type == "qwen3_5_moe_text" else "intermediate_size")
    facts.update(
        model_type=model_type,
        vocabulary=_number(config, "vocab_size"),
        width=width,
        layers=layers,
        heads=heads,
        key_value_heads=heads if model_type in _UNGROUPED else config.get("num_key_value_heads") or heads,
        head_dim=head_dim,
        intermediate=inner or 4 * width,
        tied=bool(config.get("tie_word_embeddings", facts.get("tied", False))),
        activation=_value(config, "hidden_act", facts.get("activation", "silu")),
        windows=_windows(config, layers, *facts.get("windows", ("none", None))),
        rotary_dim=_rotary_dim(config, head_dim, style.get("rotary_dim")),
    )
    if inner is None and model_type not in _FOURFOLD:
        _number(config, "intermediate_size")
    for name in ("residual", "score_cap", "logit_cap"):
        if isinstance(style.get(name), Key):
            facts[name] = bool(facts[name])
    if "attention_dropout" not in style:
        facts["attention_dropout"] = config.get("attention_dropout") or 0.0
    if model_type == "gpt_neox":
        facts["residual"] = "parallel_two" if facts["residual"] else "pre"
    elif model_type == "stablelm":
        facts["residual"] = "parallel" if facts["residual"] else "pre"
        if config.get("qk_layernorm"):
            facts["query_norm"] = "head_each"
    elif model_type == "gpt2":
        facts["positions"] = _number(config, "max_position_embeddings")
        if config.get("bias") is False:  # nanoGPT's switch: neither products nor norms have one
            facts.update(norm="layer_weight", qkv_bias=False, output_bias=False, perceptron_bias=False)
        if config.get("reorder_and_upcast_attn") or config.get("add_cross_attention"):
            raise UnknownModel("GPT-2 with reorder_and_upcast_attn or cross attention is not known")
    elif model_type == "opt":
        facts["positions"] = _number(config, "max_position_embeddings") + 2
        before = config.get("do_layer_norm_before", True)
        facts["residual"] = "flat" if before else "flat_post"
        facts["final_norm"] = bool(before) and not config.get("_remove_final_layer_norm", False)
        projected = config.get("word_embed_proj_dim") or width
        facts["embedding_width"] = 0 if projected == width else projected
    elif model_type in EARLY or model_type == "gpt_bigcode":
        _early(config, model_type, facts)
    elif model_type in ("cohere2", "exaone4"):
        windows = facts["windows"]
        cohere = model_type == "cohere2"
        facts["unrotated"] = tuple(n for n in range(layers) if (not windows[n] if windows else cohere))
    elif model_type == "cohere" and config.get("use_qk_norm"):
        facts["query_norm"] = "head_wide"
    elif model_type == "glm4_moe" and config.get("use_qk_norm"):
        facts["query_norm"] = "head_together"
    elif model_type in ("olmo", "olmoe"):
        facts["clipped"] = config.get("clip_qkv") is not None
    elif model_type == "phi" and config.get("qk_layernorm"):
        raise UnknownModel("Phi with qk_layernorm is not known")
    elif model_type == "smollm3":
        facts["unrotated"] = _unrotated(config, layers)
    elif model_type == "llama4_text":
        _llama4(config, facts)
    elif model_type == "lfm2":
        _lfm2(config, facts)
    elif model_type == "granitemoehybrid":
        _granite_hybrid(config, facts)
    elif model_type.startswith("deepseek") or model_type == "glm4_moe_lite":
        facts["latent"] = latent = _latent(config, model_type)
        facts["head_dim"], facts["rotary_dim"] = latent.plain_dim + latent.rotary_dim, latent.rotary_dim
        if model_type != "deepseek_v2" and not config.get("rope_interleave", True):
            facts["rotary"] = "half"
    facts["experts"] = _experts(config, model_type)
    facts["linear"] = _gated_delta(config, model_type, layers)
    made = Hyperparameters(**facts)
    if model_type in _HEADS_SHARE_WIDTH and config.get("head_dim") is None:
        agree(made, (HEADS_SHARE_WIDTH,))
    agree(made, AGREEMENTS)
    return made


def _stated(config: Mapping[str, Any], value: Any) -> Any:
    return config.get(value.name, value.default) if isinstance(value, Key) else value


def _rotary_dim(config: Mapping[str, Any], head_dim: int, key: Key | None) -> int:
    """Numbers of a head that are rotated. transformers 5 keeps the share within ``rope_parameters``."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    share = rope.get("partial_rotary_factor") if isinstance(rope, Mapping) else None
    if share is None:
        share = config.get("partial_rotary_factor")
    if share is None and key is not None:
        share = config.get(key.name, key.default)
    return head_dim if share is None else int(head_dim * share)


def _windows(config: Mapping[str, Any], layers: int, kind: str, default: int | None) -> tuple[int, ...]:
    """The attention window of each layer, 0 for none."""
    window = config.get("sliding_window", default)
    if kind == "none" or not window:
        return ()
    types = layer_types(config, layers)
    if types is not None and kind != "all":
        return tuple(window if item == "sliding_attention" else 0 for item in types)
    if kind == "all":
        return (window,) * layers
    if kind == "uses":
        return (window,) * layers if config.get("use_sliding_window") else ()
    if kind == "qwen":
        if not config.get("use_sliding_window"):
            return ()
        first = config.get("max_window_layers", 28)
        return tuple(window if number >= first else 0 for number in range(layers))
    if kind == "qwen_moe":  # every other one of the first layers
        if not config.get("use_sliding_window"):
            return ()
        last = config.get("max_window_layers", 28)
        return tuple(window if number % 2 == 0 and number < last else 0 for number in range(layers))
    if kind.startswith("every "):
        every = config.get("sliding_window_pattern", config.get("_sliding_window_pattern", int(kind.split()[1])))
        every = len(every) if isinstance(every, str) else every  # EXAONE's letters
        if not every:
            raise UnknownModel("a sliding_window without a sliding_window_pattern is not known")
        return tuple(window if (number + 1) % every else 0 for number in range(layers))
    return (window,) * layers if config.get("model_type") == "ministral" else ()


def _llama4(config: Mapping[str, Any], facts: dict[str, Any]) -> None:
    """Layers that rotate attend within chunks, unless the config says otherwise."""
    layers, chunk = facts["layers"], config.get("attention_chunk_size", 8192) or 0
    facts["unrotated"] = unrotated = _unrotated(config, layers)
    still = frozenset(unrotated)
    kinds = layer_types(config, layers) or tuple(
        "full_attention" if number in still else "chunked_attention" for number in range(layers)
    )
    facts["windows"] = tuple(chunk if kind == "chunked_attention" else 0 for kind in kinds)
    facts["query_norm"] = "whole" if facts["query_norm"] else "none"
    facts["scaled_query"] = bool(facts["scaled_query"])
    facts["intermediate"] = _number(config, "intermediate_size_mlp")


def _lfm2(config: Mapping[str, Any], facts: dict[str, Any]) -> None:
    layers, inner = facts["layers"], config.get("block_ff_dim") or facts["intermediate"]
    if config.get("block_auto_adjust_ff_dim", True):
        inner = int(2 * inner / 3)
        share, unit = config.get("block_ffn_dim_multiplier", 1.0), config.get("block_multiple_of", 256)
        if share is not None:
            inner = unit * -(-int(share * inner) // unit)
    kinds, attends = layer_types(config, layers), config.get("full_attn_idxs")
    if kinds is not None:
        attends = [number for number, kind in enumerate(kinds) if kind != "conv"]
    elif attends is None:
        attends = range(layers)
    attends = frozenset(attends)
    facts["intermediate"] = inner
    facts["tied"] = bool(config.get("tie_embedding", facts["tied"]))
    facts["convolution"] = ShortConvolution(
        tuple(number for number in range(layers) if number not in attends),
        config.get("conv_L_cache", 3),
        bool(config.get("conv_bias", False)),
    )


def _granite_hybrid(config: Mapping[str, Any], facts: dict[str, Any]) -> None:
    """Granite 4: layers of attention, with or without experts."""
    kinds = config.get("layer_types") or config.get("layers_block_type") or ("linear_attention",)
    if any(kind not in ("attention", "full_attention") for kind in kinds):
        raise UnknownModel("Granite with Mamba layers is not known")
    facts["rotary"] = "half" if config.get("position_embedding_type") == "rope" else "none"
    if not config.get("num_local_experts", 8):
        facts["intermediate"] = _number(config, "shared_intermediate_size")


def _early(config: Mapping[str, Any], model_type: str, facts: dict[str, Any]) -> None:
    """Decoders whose configuration classes are unlike the others'."""
    heads = facts["heads"]
    if model_type in ("gpt_neo", "gptj", "codegen", "gpt_bigcode"):
        facts["longest"] = _number(config, "max_position_embeddings")
    if model_type in ("gpt_neo", "gpt_bigcode"):
        facts["positions"] = facts["longest"]
    if model_type in ("gptj", "codegen"):
        facts["rotary_dim"] = config.get("rotary_dim", 64) or 0
    elif model_type == "gpt_bigcode":
        single = config.get("multi_query", True)
        facts.update(key_value_heads=1 if single else heads, projection="one_key" if single else "by_head")
        if config.get("add_cross_attention"):
            raise UnknownModel("GPT-BigCode with cross attention is not known")
    elif model_type == "bloom" and config.get("apply_residual_connection_post_layernorm"):
        raise UnknownModel("BLOOM with residuals of normed states is not known")
    elif model_type == "mpt":
        attention = config.get("attn_config") or {}
        facts["attention_dropout"] = attention.get("attn_pdrop") or 0.0
        facts["clipped"] = bool(attention.get("clip_qkv"))
        facts["longest"] = _number(config, "max_position_embeddings")
        facts["intermediate"] = int(config.get("expansion_ratio") or 4) * facts["width"]
    elif model_type == "falcon":
        newer = bool(config.get("new_decoder_architecture", False))
        parallel, norms = config.get("parallel_attn", True), config.get("num_ln_in_parallel_attn")
        keys = config.get("num_kv_heads") or heads
        if not newer:
            keys = 1 if config.get("multi_query", True) else heads
        facts.update(key_value_heads=keys, grouped=newer)
        if not parallel:
            facts["residual"] = "pre"
        else:
            facts["residual"] = "parallel_two" if newer and norms in (None, 2) else "parallel"
        if newer and not parallel:
            raise UnknownModel("Falcon's newer decoder without parallel attention is not known")


def _unrotated(config: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    """SmolLM3: layers that do not rotate."""
    stated = config.get("no_rope_layers")
    if stated:
        if len(stated) < layers:
            raise UnknownModel(f"no_rope_layers says of {len(stated):,} layers whether they rotate, of {layers:,}")
        return tuple(number for number, rotates in enumerate(stated[:layers]) if not rotates)
    interval = config.get("no_rope_layer_interval") or 4
    return tuple(number for number in range(layers) if (number + 1) % interval == 0)


def _latent(config: Mapping[str, Any], model_type: str) -> Latent:
    return Latent(
        config.get("q_lora_rank") or 0,
        _number(config, "kv_lora_rank"),
        _number(config, "qk_nope_head_dim"),
        _number(config, "qk_rope_head_dim"),
        _number(config, "v_head_dim"),
        model_type == "deepseek_v2",
    )


# Decoders whose layers are those of memlint.models.language.gated_delta
HYBRID = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")


def _gated_delta(config: Mapping[str, Any], model_type: str, layers: int) -> GatedDelta | None:
    if model_type not in HYBRID:
        return None
    kinds = layer_types(config, layers)
    if kinds is None:
        every = config.get("full_attention_interval") or 4
        kinds = tuple("full_attention" if (n + 1) % every == 0 else "linear_attention" for n in range(layers))
    return GatedDelta(
        tuple(n for n in range(layers) if kinds[n] == "linear_attention"),
        config.get("linear_num_key_heads", 16),
        config.get("linear_num_value_heads", 32),
        config.get("linear_key_head_dim", 128),
        config.get("linear_value_head_dim", 128),
        config.get("linear_conv_kernel_dim", 4),
        model_type == "qwen3_next",
    )


def _experts(config: Mapping[str, Any], model_type: str) -> Experts | None:
    if model_type == "mixtral":
        count = _number(config, "num_local_experts")
        return Experts(count, _number(config, "num_experts_per_tok"), _number(config, "intermediate_size"))
    if model_type == "phimoe":
        count, width = _number(config, "num_local_experts"), _number(config, "intermediate_size")
        return Experts(count, 2, width, router="sampled", renormalised=False)
    if model_type == "gpt_oss":
        count = _number(config, "num_local_experts")
        width = _number(config, "intermediate_size")
        return Experts(count, _number(config, "num_experts_per_tok"), width, router="chosen", renormalised=False)
    if model_type == "llama4_text":
        width, layers = _number(config, "intermediate_size"), _number(config, "num_hidden_layers")
        mixed = config.get("moe_layers")
        step = 1 if mixed is not None else config.get("interleave_moe_layer_step", 1)
        plain = () if mixed is None else tuple(number for number in range(layers) if number not in mixed)
        count, chosen = _number(config, "num_local_experts"), config.get("num_experts_per_tok", 1)
        return Experts(count, chosen, width, router="all", shared=width, step=step, dense=plain)
    if model_type.startswith("granitemoe"):
        count = config.get("num_local_experts", 8)
        shared = config.get("shared_intermediate_size", 1024) if model_type != "granitemoe" else 0
        if not count:
            return None
        width = _number(config, "intermediate_size")
        return Experts(count, config.get("num_experts_per_tok", 2), width, router="granite", shared=shared or 0)
    if model_type in ("deepseek_v2", "deepseek_v3", "glm4_moe", "glm4_moe_lite"):
        newer = model_type != "deepseek_v2"
        grouped = newer or config.get("topk_method") == "group_limited_greedy"
        width = _number(config, "moe_intermediate_size")
        return Experts(
            _number(config, "n_routed_experts"),
            _number(config, "num_experts_per_tok"),
            width,
            router="sigmoid" if newer else "softmax",
            renormalised=newer and bool(config.get("norm_topk_prob", True)),
            shared=width * _number(config, "n_shared_experts"),
            first=config.get("first_k_dense_replace", _DENSE_FIRST.get(model_type, 0)),
            grouped=grouped,
        )
    if model_type in ("qwen2_moe", "qwen3_moe", "olmoe", "qwen3_next", "qwen3_5_moe_text"):
        gated = model_type not in ("qwen3_moe", "olmoe")
        count = config.get("num_experts") or _number(config, "num_local_experts")
        inner = "intermediate_size" if model_type == "olmoe" else "moe_intermediate_size"
        return Experts(
            count,
            _number(config, "num_experts_per_tok"),
            _number(config, inner),
            router="qwen",
            renormalised=model_type == "qwen3_5_moe_text"
            or bool(config.get("norm_topk_prob", model_type == "qwen3_next")),
            shared=_number(config, "shared_expert_intermediate_size") if gated else 0,
            shared_gate=gated,
            step=config.get("decoder_sparse_step", 1),
            dense=tuple(config.get("mlp_only_layers") or ()),
        )
    return None
