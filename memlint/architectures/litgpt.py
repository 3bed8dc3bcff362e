"""From litgpt's ``Config`` to the decoder that it describes.

Source: litgpt 0.5.13, ``config.py`` (``Config``, whose defaults are the older GPT-NeoX's) and ``model.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from memlint.architectures.decoder import Decoder, Experts
from memlint.architectures.sizes import KINDS, Sizes, check
from memlint.facts.spec import UnknownModel

# Sizes that others are made of.
_SIZES = {"n_embd": 4096, "n_head": 32, "n_layer": 16, "block_size": 4096, "vocab_size": 50254, "padding_multiple": 512}
# norm_class_name, and whether the model's name has the word that makes another norm of it -> the decoder's.
_NORMS = {
    ("LayerNorm", ""): "layer",
    ("LayerNorm", "OLMo"): "plain",
    ("RMSNorm", ""): "rms",
    ("RMSNorm", "Gemma"): "gemma",
}
_WORDS = {"LayerNorm": "OLMo", "RMSNorm": "Gemma"}
# mlp_class_name -> the perceptron, its activation
_PERCEPTRONS = {
    "GptNeoxMLP": ("fc1 fc2", "gelu"),
    "LLaMAMLP": ("gated", "silu"),
    "GemmaMLP": ("gated", "gelu"),
    "LLaMAMoE": ("gated", "silu"),
}
_QUERY_NORMS = {"default": "head", "olmo2": "whole"}
# (norm_1, norm_2, post_attention_norm, post_mlp_norm) of parts that follow each other -> where the norms are
_IN_TURN = {
    (True, True, False, False): "pre",
    (False, False, True, True): "post",
    (True, True, True, True): "sandwich",
}

# A switch, whether it is set so, and what litgpt or this reader says to that: the first one is named.
_REFUSED: tuple[tuple[str, Callable[[Sizes], bool], str], ...] = (
    ("latent_attention", lambda given: bool(given.get("latent_attention")), "is not known"),
    (
        "shared_attention_norm",
        lambda given: bool(given.get("shared_attention_norm")) and not given.get("parallel_residual", True),
        "without parallel_residual: litgpt refuses it",
    ),
    (
        "post_attention_norm",
        lambda given: bool(given.get("post_attention_norm")) and bool(given.get("parallel_residual", True)),
        "beside parallel_residual is not known",
    ),
    (
        "post_mlp_norm",
        lambda given: bool(given.get("post_mlp_norm")) != bool(given.get("post_attention_norm")),
        "unlike post_attention_norm is not known",
    ),
    ("norm_2", lambda given: given.get("norm_2", True) != given.get("norm_1", True), "unlike norm_1 is not known"),
    (
        "norm_1",
        lambda given: not given.get("norm_1", True) and not given.get("post_attention_norm"),
        "false, and no norm behind attention, is not known",
    ),
    (
        "bias",
        lambda given: given.get("mlp_class_name") == "LLaMAMoE" and bool(given.get("bias", True)),
        "true in a mixture of experts is not known",
    ),
    (
        "first_k_dense_replace",
        lambda given: bool(given.get("first_k_dense_replace")) and given.get("mlp_class_name") != "LLaMAMoE",
        "without experts: litgpt refuses it",
    ),
    (
        "intermediate_size",
        lambda given: given.get("mlp_class_name") == "LLaMAMLP" and given.get("intermediate_size") is None,
        "is not stated: litgpt refuses LLaMAMLP without it",
    ),
)


def decoder(config: Mapping[str, Any], source: str = "model_config.yaml") -> Decoder:
    """From the fields of a ``Config``; ``source`` says in a message where they are from.

    Raises UnknownModel, with the field, for a value that cannot be, and for a switch that is not known here. Whether
    its sizes agree is for the caller to ask (``checked``).
    """
    given = Sizes(config, source)
    for name, is_set, why in _REFUSED:
        if is_set(given):
            raise UnknownModel(f"{source}: {name} {why}")
    for name in _SIZES:  # whose null is no default
        check(f"{source}: {name}", config.get(name, _SIZES[name]), KINDS[name])
    sizes = {name: int(given.get(name, default)) for name, default in _SIZES.items()}
    width, heads, layers = sizes["n_embd"], sizes["n_head"], sizes["n_layer"]
    if given.get("head_size") is None and width % heads:
        raise UnknownModel(f"{source}: n_embd {width:,} is no multiple of n_head {heads:,}")
    head_dim, bias = given.get("head_size") or width // heads, bool(given.get("bias", True))
    perceptron, activation = _chosen(given, "mlp_class_name", _PERCEPTRONS, "GptNeoxMLP")
    rotated = int(given.get("rotary_percentage", 0.25) * head_dim)
    rotary = "interleaved" if given.get("rope_interleave") else "half" if rotated == head_dim else "partial"
    return Decoder(
        vocabulary=given.get("padded_vocab_size")
        or -(-sizes["vocab_size"] // sizes["padding_multiple"]) * sizes["padding_multiple"],
        width=width,
        layers=layers,
        heads=heads,
        key_value_heads=given.get("n_query_groups") or heads,
        head_dim=head_dim,
        intermediate=given.get("intermediate_size") or 4 * width,
        norm=_norm(given),
        residual=_residual(given),
        qkv_bias=bias or bool(given.get("attn_bias", False)),
        output_bias=bias,
        query_norm=_chosen(given, "norm_qk_type", _QUERY_NORMS, "default") if given.get("norm_qk") else "none",
        rotary=rotary if rotated else "none",
        rotary_dim=rotated,
        perceptron=perceptron,
        perceptron_bias=bias,
        activation=activation,
        windows=_windows(given, layers),
        context=sizes["block_size"],
        scaled=bool(given.get("scale_embeddings", False)),
        score_cap=given.get("attention_logit_softcapping") is not None,
        logit_cap=given.get("final_logit_softcapping") is not None,
        local_tables=given.get("rope_local_base_freq") is not None,
        head_bias=bool(given.get("lm_head_bias", False)),
        experts=_experts(given),
    )


def _chosen(given: Sizes, name: str, known: Mapping[str, Any], default: str) -> Any:
    value = given.get(name, default)
    if value not in known:
        raise UnknownModel(f"{given.source}: {name} {value} is not known")
    return known[value]


def _norm(given: Sizes) -> str:
    """Gemma's RMSNorm and OLMo's LayerNorm are told by the model's name."""
    name = given.get("norm_class_name", "LayerNorm")
    word = _WORDS.get(name, "")
    known = (name, word if word and word in str(given.get("name") or "") else "")
    if known not in _NORMS:
        raise UnknownModel(f"{given.source}: norm_class_name {name} is not known")
    return _NORMS[known]


def _residual(given: Sizes) -> str:
    if given.get("parallel_residual", True):
        return "parallel" if given.get("shared_attention_norm") else "parallel_two"
    before = bool(given.get("norm_1", True)), bool(given.get("norm_2", True))
    after = bool(given.get("post_attention_norm")), bool(given.get("post_mlp_norm"))
    return _IN_TURN[before + after]


def _windows(given: Sizes, layers: int) -> tuple[int, ...]:
    """Of the layers that have a 1 in ``sliding_window_indices``: all, unless it is stated."""
    size, which = given.get("sliding_window_size"), given.get("sliding_window_indices")
    if size is None or size < 1:
        return ()
    which = (1,) * layers if which is None else tuple(which)
    if len(which) < layers:
        raise UnknownModel(f"{given.source}: sliding_window_indices says of {len(which):,} layers, of {layers:,}")
    return tuple(size if number else 0 for number in which[:layers])


def _experts(given: Sizes) -> Experts | None:
    if given.get("mlp_class_name") != "LLaMAMoE":
        return None
    for name in ("n_expert", "n_expert_per_token"):
        if not given.get(name):
            raise UnknownModel(f"{given.source}: {name} is not stated")
    inner = given.get("moe_intermediate_size") or given.get("intermediate_size") or 4 * int(given.get("n_embd", 4096))
    shared, grouped = given.get("n_shared_expert") or 0, bool(given.get("n_expert_groups"))
    return Experts(
        given["n_expert"],
        given["n_expert_per_token"],
        inner,
        router="sigmoid" if grouped else "softmax" if shared else "mixtral",
        renormalised=bool(given.get("norm_topk_prob", False)) if grouped else not shared,
        shared=shared * inner,
        first=given.get("first_k_dense_replace") or 0,
        grouped=grouped,
    )


# transformers' names of what litgpt's own code does for the same model.
_SAME = {
    "norm": {"rms": "rms", "rms_wide": "rms", "gemma": "gemma", "layer": "layer", "plain": "plain"},
    "query_norm": {"none": "none", "head": "head", "head_after": "head", "whole": "whole"},
    "activation": {"silu": "silu", "gelu": "gelu", "gelu_new": "gelu", "gelu_pytorch_tanh": "gelu"},
    "rotary": {"half": "half", "partial": "partial"},
    "residual": {name: name for name in ("pre", "post", "sandwich", "parallel", "parallel_two")},
    "code": {"common": "common"},
}
# Switches of transformers' decoders that no field of a Config sets, and those that only say how transformers computes.
_UNKNOWN = ("scaled_residual", "scaled_logits", "scaled_query", "sinks", "unrotated", "clipped", "alibi", "positions")
_LIKE_LITGPT: dict[str, Any] = {
    **dict.fromkeys(("attention_dropout", "residual_dropout", "embedding_dropout"), 0.0),
    **dict.fromkeys(("scales_in_embedding", "wide_tables", "rotates_in_line", "residual_last"), False),
    **dict.fromkeys(("named_attention", "both_masks"), False),
    "projection": "separate",
}


def published(decoder: Decoder) -> Decoder:
    """litgpt's layers with the sizes of a model that transformers describes: what litgpt makes of a hub id.

    A decoder that litgpt has no layers for comes back as it is.
    """
    if decoder.code == "falcon" and not decoder.alibi:  # transformers' own code rotates, and has a perceptron by itself
        names = "dense_h_to_4h dense_4h_to_h"
        decoder = decoder._replace(code="common", rotary="half", rotary_dim=decoder.head_dim, perceptron=names)
    changed: dict[str, Any] = {field: names.get(getattr(decoder, field)) for field, names in _SAME.items()}
    shared_gate = decoder.experts is not None and decoder.experts.shared_gate
    if None in changed.values() or any(getattr(decoder, name) for name in _UNKNOWN) or shared_gate:
        return decoder
    if decoder.latent is not None or decoder.hybrid:
        return decoder
    if decoder.perceptron.startswith("gated"):
        changed["perceptron"] = "gated"
    return decoder._replace(**changed, **_LIKE_LITGPT)
