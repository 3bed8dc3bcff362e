"""From llm-foundry's ``MPTConfig`` to the decoder that it describes; the ``config.json`` of an MPT has the same terms.

Source: llm-foundry 0.22, ``models/mpt/configuration_mpt.py``, ``models/utils/config_defaults.py`` and
``models/layers/{attention,blocks,ffn,norm}.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from memlint.architectures.adapters import adapters_of
from memlint.architectures.decoder import Decoder
from memlint.architectures.sizes import Sizes
from memlint.facts.spec import UnknownModel

# norm_type -> (the decoder's norm with biases, and without; whether autocast lowers it)
_NORMS = {
    "layernorm": ("layer", "layer_weight", False),
    "low_precision_layernorm": ("layer", "layer_weight", True),
    "rmsnorm": ("rms", "rms", False),
    "low_precision_rmsnorm": ("rms", "rms", True),
}
_PERCEPTRONS = {"mptmlp": "up_proj down_proj", "mptglu": "gated"}
_ACTIVATIONS = ("gelu", "silu", "relu")
# attn_type -> heads of keys and values, by (n_heads, kv_n_heads)
_KEYS: dict[str, Callable[[int, int], int]] = {
    "multihead_attention": lambda heads, keys: keys or heads,
    "multiquery_attention": lambda heads, keys: 1,
    "grouped_query_attention": lambda heads, keys: keys or heads,
}
# Switches that are not known unless they have this value, or one of these: of the model, of attention, of perceptrons.
_AS_IT_IS: dict[str, tuple[tuple[str, tuple[Any, ...]], ...]] = {
    "": (
        ("embedding_fraction", (1,)),
        ("fc_type", ("torch", {"name": "torch"})),
        ("use_pad_tok_in_ffn", (True,)),
        ("block_overrides", (None,)),
        ("final_logit_softcapping", (None,)),
    ),
    "attn_config": (
        ("attn_impl", ("torch", "flash", "flex")),
        ("fused_qkv", (True,)),
        ("sliding_window_size", (-1,)),
        ("attn_logit_softcapping", (None,)),
        ("kv_dim", (None,)),
        ("nope", (False,)),
    ),
}


def decoder(config: Mapping[str, Any], source: str = "") -> Decoder:
    """From the fields of an ``MPTConfig``.

    Raises UnknownModel, with the field, for a value that cannot be, and for a switch that is not known here. Whether
    its sizes agree is for the caller to ask (``checked``).
    """
    sizes = Sizes(config, source)
    attention, perceptron = sizes.get("attn_config") or {}, sizes.get("ffn_config") or {}
    _known(sizes, attention)
    width, heads, layers = (_size(sizes, name) for name in ("d_model", "n_heads", "n_layers"))
    head_dim = sizes.get("head_dim") or width // heads
    if width % heads or head_dim * heads != width:
        raise UnknownModel(f"d_model {width:,} is not shared among n_heads {heads:,}")
    biased, alibi, rope = not sizes.get("no_bias", False), bool(attention.get("alibi")), bool(attention.get("rope"))
    if alibi and rope:
        raise UnknownModel("attn_config.rope beside alibi is not known")
    norm, without_bias, lowered = _chosen(sizes, "norm_type", _NORMS, "low_precision_layernorm")
    keys = _chosen(attention, "attn_type", _KEYS, "multihead_attention")(heads, attention.get("kv_n_heads") or 0)
    qkv_bias = sizes.get("attention_bias")
    tokens = sizes.get("max_seq_len") or 2048
    return Decoder(
        vocabulary=_size(sizes, "vocab_size"),
        width=width,
        layers=layers,
        heads=heads,
        key_value_heads=keys,
        head_dim=head_dim,
        intermediate=perceptron.get("ffn_hidden_size") or int(width * float(sizes.get("expansion_ratio") or 4)),
        tied=bool(sizes.get("tie_word_embeddings", True)),
        norm=norm if biased else without_bias,
        lowered_norm=lowered,
        projection="joined",
        qkv_bias=biased if qkv_bias is None else bool(qkv_bias),
        output_bias=biased,
        output_name="out_proj",
        query_norm=_query_norm(attention),
        rotary=_rotary(attention) if rope else "none",
        rotary_dim=head_dim if rope else 0,
        perceptron=_chosen(perceptron, "ffn_type", _PERCEPTRONS, "mptmlp"),
        perceptron_bias=biased,
        activation=_activation(perceptron),
        positions=tokens if sizes.get("learned_pos_emb", True) and not (alibi or rope) else 0,
        context=tokens,
        alibi=alibi,
        clipped=bool(attention.get("clip_qkv")),
        scaled_logits=sizes.get("logit_scale") is not None,
        attention_dropout=attention.get("attn_pdrop") or 0.0,
        residual_dropout=sizes.get("resid_pdrop") or 0.0,
        embedding_dropout=sizes.get("emb_pdrop") or 0.0,
        adapters=adapters_of("mpt"),
    )


def _size(sizes: Sizes, name: str) -> int:
    found = sizes.get(name)
    if found is None:
        raise UnknownModel(f"{name} is not stated")
    return int(found)


def _known(sizes: Sizes, attention: Mapping[str, Any]) -> None:
    for room, switches in _AS_IT_IS.items():
        part = attention if room else sizes
        for name, values in switches:
            value = part.get(name, values[0])
            value = dict(value) if isinstance(value, Mapping) else value
            if value not in values:
                raise UnknownModel(f"{room}{'.' * bool(room)}{name} {value} is not known")


def _chosen(part: Mapping[str, Any], name: str, known: Mapping[str, Any], default: str) -> Any:
    value = str(part.get(name) or default)
    if value.lower() not in known:
        raise UnknownModel(f"{name} {value} is not known")
    return known[value.lower()]


def _query_norm(attention: Mapping[str, Any]) -> str:
    """Of all heads at once (``qk_ln``), or of each (``qk_gn``)."""
    whole, each = bool(attention.get("qk_ln")), bool(attention.get("qk_gn"))
    if whole and each:
        raise UnknownModel("attn_config.qk_gn beside qk_ln: llm-foundry refuses both")
    return "whole" if whole else "head" if each else "none"


def _rotary(attention: Mapping[str, Any]) -> str:
    """flash-attn's kernel, or transformers' steps."""
    kind, how = attention.get("rope_impl") or "dail", attention.get("rope_dail_config") or {}
    if kind not in ("dail", "hf"):
        raise UnknownModel(f"attn_config.rope_impl {kind} is not known")
    if kind == "dail" and how.get("type", "original") != "original":
        raise UnknownModel(f"attn_config.rope_dail_config.type {how['type']} is not known")
    return "kernel" if kind == "dail" else "half"


def _activation(perceptron: Mapping[str, Any]) -> str:
    stated = perceptron.get("ffn_act_fn") or {}
    name = stated.get("name", "gelu") if isinstance(stated, Mapping) else stated
    if name not in _ACTIVATIONS:
        raise UnknownModel(f"ffn_config.ffn_act_fn {name} is not known")
    return str(name)
