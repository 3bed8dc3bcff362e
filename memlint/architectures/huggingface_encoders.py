"""From a ``config.json`` to the encoder that it describes.

Source: ``transformers`` 5.23,
``models/{bert,roberta,xlm_roberta,camembert,electra,distilbert,albert,mpnet,deberta_v2,modernbert}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memlint.architectures.adapters import adapters_of
from memlint.architectures.encoder import AGREEMENTS, MODERN_AGREEMENTS, Encoder, ModernBert
from memlint.architectures.sizes import Sizes, agree, layer_types
from memlint.facts.spec import UnknownModel

MODERNBERT = "modernbert"

_BERT: dict[str, Any] = {
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
}
_ROBERTA = {**_BERT, "counted_positions": True, "classifier": "tanh"}

# model_type -> defaults of its configuration class, and switches that differ from those of Encoder.
ENCODERS: dict[str, dict[str, Any]] = {
    "bert": _BERT,
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "electra": {**_BERT, "embedding_size": 128, "classifier": "gelu"},
    "distilbert": {
        "hidden_size": 768,
        "num_hidden_layers": 6,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "vocab_size": 30522,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "max_position_embeddings": 512,
        "type_vocab_size": 0,
        "layer": "distilbert",
        "classifier": "relu",
    },
    "albert": {
        **_BERT,
        "hidden_act": "gelu_new",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "classifier_dropout": 0.1,
        "embedding_size": 128,
        "num_hidden_groups": 1,
        "inner_group_num": 1,
        "layer": "albert",
    },
    "deberta-v2": {
        **_BERT,
        "type_vocab_size": 0,
        "layer": "deberta",
        "classifier": "context",
    },
    "mpnet": {
        **_BERT,
        "type_vocab_size": 0,
        "relative_attention_num_buckets": 32,
        "counted_positions": True,
        "layer": "mpnet",
        "classifier": "tanh",
    },
}

# Those whose bare model has a pooler: ``add_pooling_layer`` is true by default.
_POOLS = ("albert", "bert", "camembert", "mpnet", "roberta", "xlm-roberta")
_NARROW = ("albert", "deberta-v2", "electra")  # whose tables may be narrower than their layers
_PREDICTS_AS_IT_ACTIVATES = ("albert", "bert", "deberta-v2", "distilbert")  # the others' heads have GELU

# ``attribute_map`` of DistilBERT's configuration, and ALBERT's own name.
_NAMES = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "hidden_dim",
    "hidden_act": "activation",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "classifier_dropout": "classifier_dropout_prob",
}


def encoder(config: Mapping[str, Any]) -> Encoder:
    """From the contents of a ``config.json``. Raises UnknownModel where the model type, or a size, is not known."""
    sizes = Sizes(config)
    model_type = sizes.get("model_type")
    style = ENCODERS.get(model_type) if isinstance(model_type, str) else None
    if style is None or not isinstance(model_type, str):
        raise UnknownModel(f"encoders of model type {model_type!r} are not known")

    def value(name: str, default: Any = None) -> Any:
        for key in (name, _NAMES.get(name, name)):
            if sizes.get(key) is not None:
                return sizes[key]
        return style.get(name, default)

    def number(name: str) -> int:
        found = value(name)
        if found is None:
            raise UnknownModel(f"config.json of model type {model_type!r} states no {name}")
        return int(found)

    if value("position_embedding_type", "absolute") != "absolute":
        raise UnknownModel(f"positions of type {value('position_embedding_type')!r} are not known")
    if value("is_decoder", False):
        raise UnknownModel(f"{model_type} as a decoder is not known")
    width, dropout = number("hidden_size"), float(value("hidden_dropout_prob"))
    before_classifier = value("classifier_dropout")
    before_classifier = dropout if before_classifier is None else float(before_classifier)
    kind = style.get("layer", "bert")
    distances = _distances(sizes) if kind == "deberta" else {}
    made = Encoder(
        adapters=adapters_of(model_type),
        vocabulary=number("vocab_size"),
        width=width,
        embedding_width=value("embedding_size", width) if model_type in _NARROW else width,
        layers=number("num_hidden_layers"),
        heads=number("num_attention_heads"),
        intermediate=number("intermediate_size"),
        positions=number("max_position_embeddings"),
        token_types=value("type_vocab_size", 0) if kind not in ("distilbert", "mpnet") else 0,
        activation=value("hidden_act"),
        prediction_activation=value("hidden_act") if model_type in _PREDICTS_AS_IT_ACTIVATES else "gelu",
        dropout=dropout,
        attention_dropout=float(value("attention_probs_dropout_prob")),
        # MPNet's and DistilBERT's heads have no dropout of their own for tokens
        classifier_dropout=dropout if kind in ("distilbert", "mpnet") else before_classifier,
        row_dropout=float(value("seq_classif_dropout", 0.2)) if kind == "distilbert" else before_classifier,
        span_dropout=float(value("qa_dropout", 0.1)) if kind == "distilbert" else 0.0,
        tied=bool(sizes.get("tie_word_embeddings", True)),
        counted_positions=style.get("counted_positions", False)
        or (kind == "deberta" and bool(sizes.get("position_biased_input", True))),
        layer=kind,
        groups=value("num_hidden_groups", 0) if kind == "albert" else 0,
        inner=value("inner_group_num", 1) if kind == "albert" else 1,
        buckets=number("relative_attention_num_buckets") if kind == "mpnet" else 0,
        classifier=style.get("classifier", "pooler"),
        pools=model_type in _POOLS,
        **distances,
    )
    agree(made, AGREEMENTS)
    return made


def _distances(config: Mapping[str, Any]) -> dict[str, Any]:
    """DeBERTa's switches. Raises UnknownModel for those of its versions that are not known."""
    kinds = config.get("pos_att_type") or ()
    kinds = kinds.split("|") if isinstance(kinds, str) else kinds
    if not config.get("relative_attention", False) or sorted(kinds) != ["c2p", "p2c"]:
        raise UnknownModel("DeBERTa without both kinds of relative attention is not known")
    buckets, most = config.get("position_buckets", -1), config.get("max_relative_positions", -1)
    if most < 1:
        most = config.get("max_position_embeddings", 512)
    return {
        "span": buckets if buckets > 0 else most,
        "norms_distances": "layer_norm" in str(config.get("norm_rel_ebd", "none")),
        "shares_keys": bool(config.get("share_att_key", False)),
        "pooler_dropout": float(config.get("pooler_dropout") or 0.0),
        "convolution": max(int(config.get("conv_kernel_size") or 0), 0),
        "conv_groups": int(config.get("conv_groups") or 1),
        "conv_activation": str(config.get("conv_act") or "tanh"),
    }


def modernbert(config: Mapping[str, Any]) -> ModernBert:
    """From the contents of a ``config.json``. Raises UnknownModel where a size is missing."""
    sizes = Sizes(config)
    layers = sizes.number("num_hidden_layers")
    types = layer_types(sizes, layers)
    if types is not None:
        windowed = tuple(kind == "sliding_attention" for kind in types)
    else:
        every = sizes.get("global_attn_every_n_layers", 3)
        windowed = tuple(bool(layer % every) for layer in range(layers))
    if sizes.get("sparse_prediction"):
        raise UnknownModel("ModernBERT with sparse_prediction depends on the data")
    made = ModernBert(
        sizes.number("vocab_size"),
        sizes.number("hidden_size"),
        layers,
        sizes.number("num_attention_heads"),
        sizes.number("intermediate_size"),
        sizes.get("local_attention", 128) // 2,
        windowed,
        sizes.get("hidden_activation", "gelu"),
        float(sizes.get("attention_dropout") or 0.0),
        float(sizes.get("embedding_dropout") or 0.0),
        float(sizes.get("mlp_dropout") or 0.0),
        float(sizes.get("classifier_dropout") or 0.0),
        bool(sizes.get("attention_bias", False)),
        bool(sizes.get("mlp_bias", False)),
        bool(sizes.get("norm_bias", False)),
        bool(sizes.get("decoder_bias", True)),
        bool(sizes.get("classifier_bias", False)),
        sizes.get("classifier_pooling", "cls") == "mean",
        adapters_of(MODERNBERT),
    )
    agree(made, MODERN_AGREEMENTS)
    return made
