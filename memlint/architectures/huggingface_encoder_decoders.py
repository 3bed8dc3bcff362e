"""From a ``config.json`` to the encoder-decoder that it describes.

Source: ``transformers`` 5.23, ``models/{bart,mbart,pegasus,marian,m2m_100,whisper,t5,mt5}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memlint.architectures.adapters import adapters_of
from memlint.architectures.encoder_decoder import AGREEMENTS, T5, EncoderDecoder, Stack
from memlint.architectures.sizes import Sizes, agree
from memlint.facts.spec import UnknownModel

# model_type -> switches that differ from the defaults of EncoderDecoder, and defaults of its configuration class.
ENCODER_DECODERS: dict[str, dict[str, Any]] = {
    "bart": {"norm_embedded": True},
    "mbart": {"norm_embedded": True, "norm_first": True},
    "pegasus": {"norm_first": True, "placing": "frozen"},
    "marian": {"placing": "frozen"},
    "m2m_100": {
        "norm_first": True,
        "placing": "buffer",
        "logits_bias": False,
        "activation_function": "relu",
        "attention_dropout": 0.1,
    },
    "whisper": {
        "norm_first": True,
        "placing": "frames",
        "logits_bias": False,
        "scaled": False,
        "dropout": 0.0,
    },
}
_DEFAULTS = {"activation_function": "gelu", "dropout": 0.1, "attention_dropout": 0.0, "activation_dropout": 0.0}

# model_type -> defaults of its configuration class: feed_forward_proj, tie_word_embeddings.
T5_TYPES = {"t5": ("relu", True), "mt5": ("gated-gelu", True)}


def encoder_decoder(config: Mapping[str, Any]) -> EncoderDecoder:
    """From the contents of a ``config.json``. Raises UnknownModel where the model type, or a size, is not known."""
    sizes = Sizes(config)
    model_type = sizes.get("model_type")
    if not isinstance(model_type, str) or model_type not in ENCODER_DECODERS:
        raise UnknownModel(f"encoder-decoders of model type {model_type!r} are not known")
    style = ENCODER_DECODERS[model_type]

    def value(name: str) -> Any:
        found = sizes.get(name)
        return style.get(name, _DEFAULTS[name]) if found is None else found

    def half(name: str) -> Stack:
        return Stack(
            sizes.number(f"{name}_layers"), sizes.number(f"{name}_attention_heads"), sizes.number(f"{name}_ffn_dim")
        )

    sound = model_type == "whisper"
    tied = sizes.get("tie_word_embeddings") is not False
    shared = model_type != "marian" or sizes.get("share_encoder_decoder_embeddings") is not False
    if not tied and (sound or not shared):
        raise UnknownModel(f"{model_type} whose head is no embedding is not known")
    if sound:
        positions = sizes.number("max_source_positions"), sizes.number("max_target_positions")
    else:
        positions = (sizes.number("max_position_embeddings"),) * 2
    switches = {name: switch for name, switch in style.items() if name not in _DEFAULTS}
    made = EncoderDecoder(
        adapters=adapters_of(model_type),
        vocabulary=sizes.number("vocab_size"),
        width=sizes.number("d_model"),
        encoder=half("encoder"),
        decoder=half("decoder"),
        positions=positions,
        activation=value("activation_function"),
        dropout=float(value("dropout")),
        attention_dropout=float(value("attention_dropout")),
        activation_dropout=float(value("activation_dropout")),
        mel_bins=sizes.number("num_mel_bins") if sound else 0,
        tied=tied,
        shared=shared,
        decoder_vocabulary=0 if shared else sizes.get("decoder_vocab_size") or sizes.number("vocab_size"),
        **switches,
    )
    agree(made, AGREEMENTS)
    return made


def t5(config: Mapping[str, Any]) -> T5:
    """From the contents of a ``config.json``. Raises UnknownModel where the model type, or a size, is not known."""
    sizes = Sizes(config)
    model_type = sizes.get("model_type")
    if not isinstance(model_type, str) or model_type not in T5_TYPES:
        raise UnknownModel(f"T5 models of type {model_type!r} are not known")
    feed, tied = T5_TYPES[model_type]

    gate, _, function = str(sizes.get("feed_forward_proj") or feed).rpartition("-")
    stated = sizes.get("tie_word_embeddings")
    own = tied if stated is None else bool(stated)
    return T5(
        vocabulary=sizes.number("vocab_size"),
        width=sizes.number("d_model"),
        inner=sizes.number("d_ff"),
        heads=sizes.number("num_heads"),
        head_dim=sizes.number("d_kv"),
        encoder_layers=sizes.number("num_layers"),
        decoder_layers=sizes.get("num_decoder_layers") or sizes.number("num_layers"),
        buckets=sizes.get("relative_attention_num_buckets", 32),
        activation="gelu_new" if gate == "gated" and function == "gelu" else function,
        gated=gate == "gated",
        dropout=float(sizes.get("dropout_rate", 0.1)),
        tied=own,
        # version 1.1 keeps a head of its own, and does not scale what goes into it
        scaled=model_type == "t5" and own,
        adapters=adapters_of(model_type),
    )
