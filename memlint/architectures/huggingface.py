"""From a ``config.json`` to the decoder that it describes.

Source: ``transformers`` 5.23, ``models/*/configuration_*.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memlint.architectures.adapters import adapters_of
from memlint.architectures.decoder import (
    AGREEMENTS,
    OWN_LAYERS,
    Decoder,
    Experts,
    GatedDelta,
    Latent,
    ShortConvolution,
    StateSpace,
)
from memlint.architectures.huggingface_remote import REMOTE_TYPES, remote_decoder
from memlint.architectures.huggingface_styles import (
    ALIASES,
    DECODER_ALONE,
    DENSE_FIRST,
    FOURFOLD,
    HEADS_SHARE_WIDTH,
    OWN_CODE,
    STYLES,
    UNGROUPED,
    Key,
)
from memlint.architectures.sizes import HEADS_SHARE_WIDTH as SHARED_WIDTH
from memlint.architectures.sizes import Sizes, agree, layer_types
from memlint.facts.spec import UnknownModel

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
    """Whether :func:`decoder` takes this ``model_type``."""
    return ALIASES.get(model_type, model_type) in STYLES or model_type in REMOTE_TYPES


def decoder(config: Mapping[str, Any]) -> Decoder:
    """From the contents of a ``config.json``.

    Raises UnknownModel for a model type that is not in the table, and where a size is missing, is none, or does not
    agree with the others.
    """
    config = Sizes(config)
    model_type = config.get("model_type")
    if model_type is None or not known(model_type):
        raise UnknownModel(f"decoders of model type {model_type!r} are not known")
    if model_type in REMOTE_TYPES:
        return remote_decoder(config)
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
    own = OWN_CODE.get(model_type)
    facts.update(
        code="common" if own is None else model_type.removesuffix("_text"),
        kernels=("sdpa", "flash") if own is None else own,
        adapters=adapters_of(model_type),
        vocabulary=_number(config, "vocab_size"),
        width=width,
        layers=layers,
        heads=heads,
        key_value_heads=heads if model_type in UNGROUPED else config.get("num_key_value_heads") or heads,
        head_dim=head_dim,
        intermediate=inner or 4 * width,
        tied=bool(config.get("tie_word_embeddings", facts.get("tied", False))),
        activation=_value(config, "hidden_act", facts.get("activation", "silu")),
        windows=_windows(config, layers, *facts.get("windows", ("none", None))),
        rotary_dim=_rotary_dim(config, head_dim, style.get("rotary_dim")),
        context=_value(config, "max_position_embeddings", 0),
    )
    if inner is None and model_type not in FOURFOLD:
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
        facts["named_attention"] = facts["residual"] == "pre"
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
    elif model_type in OWN_LAYERS or model_type == "gpt_bigcode":
        _own_layers(config, model_type, facts)
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
    elif model_type == "apertus" and facts["activation"] != "xielu":
        raise UnknownModel(f"Apertus with the activation {facts['activation']!r} is not known")
    elif model_type == "phi" and config.get("qk_layernorm"):
        raise UnknownModel("Phi with qk_layernorm is not known")
    elif model_type == "minimax_m2" and config.get("rotary_dim"):  # what the published checkpoints state
        facts["rotary_dim"] = config["rotary_dim"]
    elif model_type == "smollm3":
        facts["unrotated"] = _unrotated(config, layers)
    elif model_type == "llama4_text":
        _llama4(config, facts)
    elif model_type in ("lfm2", "lfm2_moe"):
        _lfm2(config, facts)
    elif model_type == "falcon_h1":
        _falcon_h1(config, facts)
    elif model_type == "granitemoehybrid":
        _granite_hybrid(config, facts)
    elif model_type.startswith("deepseek") or model_type == "glm4_moe_lite":
        facts["latent"] = latent = _latent(config, model_type)
        facts["head_dim"], facts["rotary_dim"] = latent.plain_dim + latent.rotary_dim, latent.rotary_dim
        if model_type != "deepseek_v2" and not config.get("rope_interleave", True):
            facts["rotary"] = "half"
    facts["experts"] = _experts(config, model_type)
    facts["linear"] = _gated_delta(config, model_type, layers)
    made = Decoder(**facts)
    if model_type in HEADS_SHARE_WIDTH and config.get("head_dim") is None:
        agree(made, (SHARED_WIDTH,))
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
        facts["intermediate"] = _number(config, "shared_intermediate_size")


def _own_layers(config: Mapping[str, Any], model_type: str, facts: dict[str, Any]) -> None:
    """Decoders whose configuration classes are unlike the others'."""
    heads = facts["heads"]
    if model_type in ("gpt_neo", "gptj", "codegen", "gpt_bigcode"):
        _number(config, "max_position_embeddings")
    if model_type in ("gpt_neo", "gpt_bigcode"):
        facts["positions"] = facts["context"]
    if model_type == "gpt_bigcode":
        facts["unread_mask"] = facts["context"]
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
        _number(config, "max_position_embeddings")
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


# Every layer has experts, whose router alone differs.
_ALIKE = {"gpt_oss": "chosen", "minimax_m2": "minimax", "mixtral": "mixtral", "phimoe": "sampled"}


def _lfm2_experts(config: Mapping[str, Any]) -> Experts:
    if not config.get("use_expert_bias", True):
        raise UnknownModel("LFM2 with experts that are chosen without a bias is not known")
    return Experts(
        _number(config, "num_experts"),
        _number(config, "num_experts_per_tok"),
        _number(config, "moe_intermediate_size"),
        router="lfm2",
        renormalised=bool(config.get("norm_topk_prob", True)),
        first=config.get("num_dense_layers", 2),
    )


# Mixtures of experts that were lists before transformers 5 (4.57.6, models/*/modeling_*.py; LFM2's in the first
# weeks of its code).
_APART = (
    *("deepseek_v2", "deepseek_v3", "glm4_moe", "lfm2_moe", "mixtral", "olmoe", "phimoe", "qwen2_moe", "qwen3_moe"),
    "qwen3_next",
)


def _experts(config: Mapping[str, Any], model_type: str) -> Experts | None:
    found = _mixture(config, model_type)
    return found if found is None or model_type not in _APART else found._replace(apart=True)


def _mixture(config: Mapping[str, Any], model_type: str) -> Experts | None:
    if model_type in _ALIKE:
        count, width = _number(config, "num_local_experts"), _number(config, "intermediate_size")
        router = _ALIKE[model_type]
        chosen = 2 if router == "sampled" else _number(config, "num_experts_per_tok")
        return Experts(count, chosen, width, router=router, renormalised=router in ("mixtral", "minimax"))
    if model_type == "lfm2_moe":
        return _lfm2_experts(config)
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
            first=config.get("first_k_dense_replace", DENSE_FIRST.get(model_type, 0)),
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
