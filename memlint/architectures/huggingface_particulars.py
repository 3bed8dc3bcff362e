"""What the ``config.json`` of one type of decoder says in a way of its own, on top of the keys of its style
(:mod:`memlint.architectures.huggingface_styles`).

Each of :data:`PARTICULARS` changes the facts of a :class:`~memlint.architectures.decoder.Decoder` that the common keys
have given, and raises UnknownModel for what is not known of its type. Source: ``transformers`` 5.23,
``models/*/configuration_*.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from memlint.architectures.decoder import Latent, ShortConvolution, StateSpace, UnequalLayers
from memlint.architectures.sizes import layer_types, number_of
from memlint.facts.spec import UnknownModel


def _gpt_neox(config: Mapping[str, Any], facts: dict[str, Any]) -> None:
    facts["residual"] = "parallel_two" if facts["residual"] else "pre"


def _stablelm(config: Mapping[str, Any], facts: dict[str, Any]) -> None:
    facts["residual"] = "parallel" if facts["residual"] else "pre"
    facts["named_attention"] = facts["residual"] == "pre"
    if config.get("qk_layernorm"):
        facts["query_norm"] = "head_each"


def _gpt2(config: Mapping[str, Any], facts: dict[str, Any]) -> None:
    facts["positions"] = number_of(config, "max_position_embeddings")
    if config.get("bias") is False:  # nanoGPT's switch: neither products nor norms have one
        facts.update(norm="layer_weight", qkv_bias=False, output_bias=False, perceptron_bias=False)
    if config.get("reorder_and_upcast_attn") or config.get("add_cross_attention"):
        raise UnknownModel("GPT-2 with reorder_and_upcast_attn or cross attention is not known")


def _opt(config: Mapping[str, Any], facts: dict[str, Any]) -> None:
    width = facts["width"]
    facts["positions"] = number_of(config, "max_position_embeddings") + 2
    before = config.get("do_layer_norm_before", True)
    facts["residual"] = "flat" if before else "flat_post"
    facts["final_norm"] = bool(before) and not config.get("_remove_final_layer_norm", False)
    projected = config.get("word_embed_proj_dim") or width
    facts["embedding_width"] = 0 if projected == width else projected


def _gpt_neo(config: Mapping[str, Any], facts: dict[str, Any]) -> None:
    number_of(config, "max_position_embeddings")
    facts["positions"] = facts["context"]


def _gptj(config: Mapping[str, Any], facts: dict[str, Any]) -> None:
    number_of(config, "max_position_embeddings")
    facts["rotary_dim"] = config.get("rotary_dim", 64) or 0


def _gpt_bigcode(config: Mapping[str, Any], facts: dict[str, Any]) -> None:
    number_of(config, "max_position_embeddings")
    facts["positions"] = facts["unread_mask"] = facts["context"]
    single = config.get("multi_query", True)
    facts["key_value_heads"] = 1 if single else facts["heads"]
    facts["projection"] = "one_key" if single else "by_head"
    if config.get("add_cross_attention"):
        raise UnknownModel("GPT-BigCode with cross attention is not known")


def _bloom(config: Mapping[str, Any], facts: dict[str, Any]) -> None:
    if config.get("apply_residual_connection_post_layernorm"):
        raise UnknownModel("BLOOM with residuals of normed states is not known")


def _mpt(config: Mapping[str, Any], facts: dict[str, Any]) -> None:
    attention = config.get("attn_config") or {}
    facts["attention_dropout"] = attention.get("attn_pdrop") or 0.0
    facts["clipped"] = bool(attention.get("clip_qkv"))
    number_of(config, "max_position_embeddings")
    facts["intermediate"] = int(config.get("expansion_ratio") or 4) * facts["width"]


def _falcon(config: Mapping[str, Any], facts: dict[str, Any]) -> None:
    heads, newer = facts["heads"], bool(config.get("new_decoder_architecture", False))
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


def _cohere(config: Mapping[str, Any], facts: dict[str, Any]) -> None:
    if config.get("use_qk_norm"):
        facts["query_norm"] = "head_wide"


def _cohere2(config: Mapping[str, Any], facts: dict[str, Any]) -> None:
    """Layers that attend to everything do not rotate."""
    layers = facts["layers"]
    windows = facts["windows"] or (0,) * layers
    facts["unrotated"] = tuple(number for number in range(layers) if not windows[number])


def _exaone4(config: Mapping[str, Any], facts: dict[str, Any]) -> None:
    """The same, but where no layer has a window all rotate."""
    windows = facts["windows"]
    facts["unrotated"] = tuple(number for number in range(facts["layers"]) if windows and not windows[number])


def _glm4_moe(config: Mapping[str, Any], facts: dict[str, Any]) -> None:
    if config.get("use_qk_norm"):
        facts["query_norm"] = "head_together"


def _olmo(config: Mapping[str, Any], facts: dict[str, Any]) -> None:
    facts["clipped"] = config.get("clip_qkv") is not None


def _apertus(config: Mapping[str, Any], facts: dict[str, Any]) -> None:
    if facts["activation"] != "xielu":
        raise UnknownModel(f"Apertus with the activation {facts['activation']!r} is not known")


def _phi(config: Mapping[str, Any], facts: dict[str, Any]) -> None:
    if config.get("qk_layernorm"):
        raise UnknownModel("Phi with qk_layernorm is not known")


def _minimax_m2(config: Mapping[str, Any], facts: dict[str, Any]) -> None:
    if config.get("rotary_dim"):  # what the published checkpoints state
        facts["rotary_dim"] = config["rotary_dim"]


def _smollm3(config: Mapping[str, Any], facts: dict[str, Any]) -> None:
    facts["unrotated"] = _unrotated(config, facts["layers"])


def _unrotated(config: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    """SmolLM3: layers that do not rotate."""
    stated = config.get("no_rope_layers")
    if stated:
        if len(stated) < layers:
            raise UnknownModel(f"no_rope_layers says of {len(stated):,} layers whether they rotate, of {layers:,}")
        return tuple(number for number, rotates in enumerate(stated[:layers]) if not rotates)
    interval = config.get("no_rope_layer_interval") or 4
    return tuple(number for number in range(layers) if (number + 1) % interval == 0)


def _gemma4(config: Mapping[str, Any], facts: dict[str, Any]) -> None:
    """The last layer has no window, whatever the config says."""
    if config.get("use_bidirectional_attention") == "all":
        raise UnknownModel("Gemma 4 whose tokens all see each other is not known")
    layers, windows = facts["layers"], facts["windows"]
    facts["windows"] = windows = (*windows[: layers - 1], 0) if windows else ()
    equal = bool(config.get("attention_k_eq_v", False))
    stated = config.get("per_layer_config") or {}  # as newer releases write it down
    own = next((one for one in stated.values() if isinstance(one, Mapping)), {}) if isinstance(stated, Mapping) else {}
    heads = own.get("num_key_value_heads") or (config.get("num_global_key_value_heads") if equal else None)
    unified = config.get("model_type") in ("gemma4_unified", "gemma4_unified_text")  # which has no such inputs
    width = 0 if unified else config.get("hidden_size_per_layer_input", 256) or 0
    reusing = config.get("num_kv_shared_layers") or 0
    if reusing and {bool(w) for w in windows[: layers - reusing]} != {bool(w) for w in windows}:
        raise UnknownModel("num_kv_shared_layers: a kind of layer has none that makes keys and values")
    facts["code"] = "gemma4"
    facts["unequal"] = UnequalLayers(
        own.get("head_dim") or config.get("global_head_dim", 512),
        heads or facts["key_value_heads"],
        equal,
        reusing,
        bool(config.get("use_double_wide_mlp", False)),
        width,
        config.get("vocab_size_per_layer_input", 262_144) if width else 0,
    )


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
    facts["intermediate"] = number_of(config, "intermediate_size_mlp")


def _lfm2(config: Mapping[str, Any], facts: dict[str, Any]) -> None:
    layers, inner = facts["layers"], config.get("block_ff_dim") or facts["intermediate"]
    if config.get("model_type") == "lfm2" and config.get("block_auto_adjust_ff_dim", True):
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


def _state_space(config: Mapping[str, Any], width: int, chunk: int = 256) -> StateSpace:
    return StateSpace(
        config.get("mamba_n_heads", 128),
        width,
        config.get("mamba_d_state", 256),
        config.get("mamba_n_groups", 1),
        config.get("mamba_d_conv", 4),
        config.get("mamba_chunk_size", chunk),
        bool(config.get("mamba_conv_bias", True)),
        bool(config.get("mamba_proj_bias", False)),
    )


def _falcon_h1(config: Mapping[str, Any], facts: dict[str, Any]) -> None:
    width = config.get("mamba_d_ssm", 1024)
    before = config.get("mamba_norm_before_gate", True)
    space = _state_space(config, int(config.get("mamba_expand", 2) * facts["width"]) if width is None else width)
    facts["space"] = space._replace(
        output_bias=bool(config.get("projectors_bias", False)),
        normed=("before" if before else "after") if config.get("mamba_rms_norm", False) else "",
        scaled=True,
    )


def _granite_hybrid(config: Mapping[str, Any], facts: dict[str, Any]) -> None:
    """Granite 4: layers of attention and of a state space, with or without experts."""
    layers = facts["layers"]
    kinds = config.get("layer_types") or config.get("layers_block_type") or ("linear_attention",) * layers
    if any(kind not in ("attention", "full_attention", "mamba", "linear_attention") for kind in kinds):
        raise UnknownModel(f"Granite with layers of kind {', '.join(sorted({*map(str, kinds)}))} is not known")
    states = tuple(n for n, kind in enumerate(kinds[:layers]) if kind in ("mamba", "linear_attention"))
    if states and len(kinds) < layers:
        raise UnknownModel(f"layer_types says what {len(kinds):,} layers are, of {layers:,}")
    if states:
        space = _state_space(config, int(config.get("mamba_expand", 2) * facts["width"]))
        facts["space"] = space._replace(output_bias=space.input_bias, normed="together", layers=states)
    facts["rotary"] = "half" if config.get("position_embedding_type") == "rope" else "none"
    if not config.get("num_local_experts", 8):
        facts["intermediate"] = number_of(config, "shared_intermediate_size")


def _latent(config: Mapping[str, Any], facts: dict[str, Any], complex_rotary: bool = False) -> None:
    """DeepSeek's attention, whose keys and values are made of a short vector of each token."""
    facts["latent"] = latent = Latent(
        config.get("q_lora_rank") or 0,
        number_of(config, "kv_lora_rank"),
        number_of(config, "qk_nope_head_dim"),
        number_of(config, "qk_rope_head_dim"),
        number_of(config, "v_head_dim"),
        complex_rotary,
    )
    facts["head_dim"], facts["rotary_dim"] = latent.plain_dim + latent.rotary_dim, latent.rotary_dim
    if not complex_rotary and not config.get("rope_interleave", True):
        facts["rotary"] = "half"


def _deepseek_v2(config: Mapping[str, Any], facts: dict[str, Any]) -> None:
    _latent(config, facts, complex_rotary=True)


PARTICULARS: dict[str, Callable[[Mapping[str, Any], dict[str, Any]], None]] = {
    "apertus": _apertus,
    "bloom": _bloom,
    "codegen": _gptj,
    "cohere": _cohere,
    "cohere2": _cohere2,
    "deepseek_v2": _deepseek_v2,
    "deepseek_v3": _latent,
    "exaone4": _exaone4,
    "falcon": _falcon,
    "falcon_h1": _falcon_h1,
    "glm4_moe": _glm4_moe,
    "glm4_moe_lite": _latent,
    **dict.fromkeys(("gemma4_text", "gemma4_unified_text"), _gemma4),
    "gpt2": _gpt2,
    "gpt_bigcode": _gpt_bigcode,
    "gpt_neo": _gpt_neo,
    "gpt_neox": _gpt_neox,
    "gptj": _gptj,
    "granitemoehybrid": _granite_hybrid,
    "lfm2": _lfm2,
    "lfm2_moe": _lfm2,
    "llama4_text": _llama4,
    "minimax_m2": _minimax_m2,
    "mpt": _mpt,
    "olmo": _olmo,
    "olmoe": _olmo,
    "opt": _opt,
    "phi": _phi,
    "smollm3": _smollm3,
    "stablelm": _stablelm,
}
