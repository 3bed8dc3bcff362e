"""From the ``model`` of OLMo's training YAML to the decoder that it describes.

Source: allenai/OLMo 0.6, ``olmo/config.py`` (``ModelConfig``) and ``olmo/model.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memlint.architectures.decoder import Decoder
from memlint.architectures.sizes import Sizes
from memlint.facts.spec import UnknownModel

# ModelConfig's own values, where a config says nothing.
DEFAULTS: dict[str, Any] = {
    **{"d_model": 768, "n_heads": 12, "n_layers": 12, "mlp_ratio": 4, "activation_type": "swiglu"},
    **{"block_type": "sequential", "block_group_size": 1, "alibi": False, "rope": False, "rope_full_precision": True},
    **{"attention_dropout": 0.1, "residual_dropout": 0.1, "embedding_dropout": 0.1, "attention_layer_norm": False},
    **{"layer_norm_type": "default", "layer_norm_with_affine": True, "attention_layer_norm_with_affine": True},
    **{"norm_after": False, "max_sequence_length": 1024, "include_bias": True, "scale_logits": False},
    **{"vocab_size": 50257, "embedding_size": 50304, "weight_tying": True, "embedding_layer_norm": False},
}
# Switches that are not known unless they have this value.
_AS_IT_IS = (("block_type", "sequential"), ("block_group_size", 1), ("alibi", False), ("embedding_layer_norm", False))
_NORMS = ("default", "low_precision", "rms")
_ACTIVATIONS = ("swiglu", "gelu", "relu")


def decoder(config: Mapping[str, Any]) -> Decoder:
    """Raises UnknownModel, with the key, for a value that cannot be, and for a switch that is not known here. Whether
    its sizes agree is for the caller to ask (``checked``)."""
    sizes = Sizes({**DEFAULTS, **config}, "model")
    for name, value in _AS_IT_IS:
        if sizes.get(name) != value:
            raise UnknownModel(f"{name} {sizes.get(name)} is not known in OLMo's code")
    activation, kind = str(sizes.get("activation_type")), str(sizes.get("layer_norm_type"))
    if activation not in _ACTIVATIONS or kind not in _NORMS:
        name = "activation_type" if activation not in _ACTIVATIONS else "layer_norm_type"
        raise UnknownModel(f"{name} {sizes.get(name)} is not known in OLMo's code")
    width, heads, biased = sizes.number("d_model"), sizes.number("n_heads"), bool(sizes.get("include_bias"))
    keys = sizes.get("n_kv_heads")
    if keys is None:
        keys = 1 if sizes.get("multi_query_attention") else heads
    hidden = sizes.get("mlp_hidden_size")
    if hidden is None:
        hidden = int(_number(sizes, "mlp_ratio") * width)
    if width % heads:
        raise UnknownModel(f"d_model {width:,} is no multiple of n_heads {heads:,}")
    if activation == "swiglu" and hidden % 2:
        raise UnknownModel(f"mlp_hidden_size {hidden:,} has no halves, one of which gates the other")
    rows = sizes.get("embedding_size")
    rotates, tokens = bool(sizes.get("rope")), sizes.number("max_sequence_length")
    return Decoder(
        vocabulary=sizes.number("vocab_size") if rows is None else rows,
        width=width,
        layers=sizes.number("n_layers"),
        heads=heads,
        key_value_heads=keys,
        head_dim=width // heads,
        intermediate=hidden // 2 if activation == "swiglu" else hidden,
        tied=bool(sizes.get("weight_tying")),
        norm=_norm(sizes, kind),
        lowered_norm=kind == "low_precision",
        residual="post" if sizes.get("norm_after") else "pre",
        projection="joined",
        qkv_bias=biased,
        output_bias=biased,
        head_bias=biased and not sizes.get("weight_tying"),
        query_norm="whole" if sizes.get("attention_layer_norm") else "none",
        rotary="half" if rotates else "none",
        rotary_dim=width // heads,
        wide_tables=bool(sizes.get("rope_full_precision")),
        perceptron="gated_halves" if activation == "swiglu" else "ff_proj ff_out",
        perceptron_bias=biased,
        activation="silu" if activation == "swiglu" else activation,
        positions=0 if rotates else tokens,
        context=tokens,
        scaled_logits=bool(sizes.get("scale_logits")),
        clipped=sizes.get("clip_qkv") is not None,
        attention_dropout=_number(sizes, "attention_dropout"),
        residual_dropout=_number(sizes, "residual_dropout"),
        embedding_dropout=_number(sizes, "embedding_dropout"),
    )


def _number(sizes: Sizes, name: str) -> float:
    value = sizes.get(name)
    if value is None:
        raise UnknownModel(f"{name} is null, not a number")
    return float(value)


def _norm(sizes: Sizes, kind: str) -> str:
    """The decoder's name of all norms of a model. Raises UnknownModel where there are several kinds."""
    stated = sizes.get("bias_for_layer_norm")
    biased = bool(sizes.get("include_bias") if stated is None else stated)
    scaled = bool(sizes.get("layer_norm_with_affine"))
    if sizes.get("attention_layer_norm") and scaled != bool(sizes.get("attention_layer_norm_with_affine")):
        raise UnknownModel("attention_layer_norm_with_affine other than layer_norm_with_affine is not known")
    if kind == "rms" and (biased or not scaled):
        name = "layer_norm_with_affine" if not scaled else "bias_for_layer_norm"
        raise UnknownModel(f"layer_norm_type rms with {name} {'true' if scaled else 'false'} is not known")
    if kind == "rms":
        return "rms"
    return ("layer" if biased else "layer_weight") if scaled else "plain"
