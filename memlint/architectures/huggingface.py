"""From a ``config.json`` to the decoder that it describes.

Source: ``transformers`` 5.23, ``models/*/configuration_*.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memlint.architectures.adapters import adapters_of
from memlint.architectures.decoder import AGREEMENTS, Decoder, GatedDelta
from memlint.architectures.huggingface_mixtures import experts_of
from memlint.architectures.huggingface_particulars import PARTICULARS
from memlint.architectures.huggingface_remote import REMOTE_TYPES, remote_decoder
from memlint.architectures.huggingface_styles import (
    ALIASES,
    DECODER_ALONE,
    FOURFOLD,
    HEADS_SHARE_WIDTH,
    OWN_CODE,
    STYLES,
    UNGROUPED,
    Key,
)
from memlint.architectures.sizes import HEADS_SHARE_WIDTH as SHARED_WIDTH
from memlint.architectures.sizes import Sizes, agree, layer_types, number_of, value_of
from memlint.facts.spec import UnknownModel


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
    width, heads = number_of(config, "hidden_size"), number_of(config, "num_attention_heads")
    layers = number_of(config, "num_hidden_layers")
    head_dim = config.get("head_dim") or facts.get("head_dim") or width // heads
    # Qwen3.5's mixtures leave no layer without experts.
    inner = value_of(config, "moe_intermediate_size" if model_type == "qwen3_5_moe_text" else "intermediate_size")
    own = OWN_CODE.get(model_type)
    facts.update(
        code="common" if own is None else model_type.removesuffix("_text"),
        kernels=("sdpa", "flash") if own is None else own,
        adapters=adapters_of(model_type),
        vocabulary=number_of(config, "vocab_size"),
        width=width,
        layers=layers,
        heads=heads,
        key_value_heads=heads if model_type in UNGROUPED else config.get("num_key_value_heads") or heads,
        head_dim=head_dim,
        intermediate=inner or 4 * width,
        tied=bool(config.get("tie_word_embeddings", facts.get("tied", False))),
        activation=value_of(config, "hidden_act", facts.get("activation", "silu")),
        windows=_windows(config, layers, *facts.get("windows", ("none", None))),
        rotary_dim=_rotary_dim(config, head_dim, style.get("rotary_dim")),
        context=value_of(config, "max_position_embeddings", 0),
    )
    if inner is None and model_type not in FOURFOLD:
        number_of(config, "intermediate_size")
    for name in ("residual", "score_cap", "logit_cap"):
        if isinstance(style.get(name), Key):
            facts[name] = bool(facts[name])
    if "attention_dropout" not in style:
        facts["attention_dropout"] = config.get("attention_dropout") or 0.0
    if model_type in PARTICULARS:
        PARTICULARS[model_type](config, facts)
    facts["experts"] = experts_of(config, model_type)
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
