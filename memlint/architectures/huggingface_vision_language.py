"""From a ``config.json`` to the language model that sees, which it describes.

Source: ``transformers`` 5.23, ``models/{llava,gemma3,qwen2_vl,qwen2_5_vl,qwen3_vl}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memlint.architectures.decoder import Decoder
from memlint.architectures.huggingface import decoder
from memlint.architectures.huggingface_beside import BESIDE
from memlint.architectures.huggingface_styles import DECODER_ALONE
from memlint.architectures.huggingface_vision import PACKED, intern_vit, packed_tower, tower
from memlint.architectures.sizes import Sizes, agree
from memlint.architectures.vision_language import (
    Llava,
    TextAlone,
    VisionLanguage,
    layer_of_tower,
)
from memlint.facts.spec import UnknownModel

# The decoder of a LLaVA that does not say what it is: LlamaConfig's defaults.
_LLAMA = {
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}


def llava(config: Mapping[str, Any]) -> Llava:
    """As transformers trains it. Raises UnknownModel where a part, or a size, is not known."""
    sizes = Sizes(config)
    text = _part(sizes, "text_config")
    words = decoder(Sizes({**_LLAMA, **text.contents}, text.source))
    layer, without_first = _taken(sizes)
    made = Llava(
        decoder=words,
        tower=tower(_part(sizes, "vision_config")),
        layer=layer,
        without_first=without_first,
        activation=sizes.get("projector_hidden_act", "gelu"),
        projector_bias=bool(sizes.get("multimodal_projector_bias", True)),
    )
    agree(made, layer_of_tower("vision_feature_layer"))
    return made


def vision_language(config: Mapping[str, Any]) -> VisionLanguage:
    """Gemma 3 and Qwen. Raises UnknownModel where a part, or a size, is not known."""
    sizes = Sizes(config)
    words, seen = _tied(decoder(_part(sizes, "text_config")), sizes), _part(sizes, "vision_config")
    kind = str(sizes.get("model_type"))
    if kind in PACKED:
        return VisionLanguage(words, packed_tower(seen, kind))
    return VisionLanguage(words, tower(seen), sizes.get("mm_tokens_per_image", 256), image_mask=True)


def text_alone(config: Mapping[str, Any]) -> TextAlone:
    """Every other one, among text alone. Raises UnknownModel where a part, or a size, is not known."""
    sizes = Sizes(config)
    name = str(sizes.get("model_type"))
    words = decoder(sizes if name in DECODER_ALONE else _part(sizes, "text_config"))
    words = _tied(words, sizes)
    sense = "images" if "vision_config" in sizes else "sound"
    seen = packed_tower(_part(sizes, "vision_config"), name) if name in PACKED else None
    whole = _shuffling(sizes, words) if name == "internvl" else None
    return TextAlone(name, words, BESIDE[name](sizes), sense, seen, whole)


def _shuffling(sizes: Sizes, words: Decoder) -> VisionLanguage | None:
    """InternVL, where it takes the last layer's patches of a tower that is known."""
    seen = intern_vit(_part(sizes, "vision_config"))
    layer, without_first = sizes.get("vision_feature_layer", -1), _taken(sizes)[1]
    if seen is None or layer != -1 or not without_first:
        return None
    side = int(1 / sizes.get("downsample_ratio", 0.5))
    return VisionLanguage(words, seen, shuffled=side, activation=sizes.get("projector_hidden_act") or "gelu")


def _tied(words: Decoder, sizes: Sizes) -> Decoder:
    """Where the decoder's own config does not say whether its head is tied, the whole says it of its parts."""
    tied = sizes.get("tie_word_embeddings")
    if tied is None or isinstance(_part(sizes, "text_config").get("tie_word_embeddings"), bool):
        return words
    return words._replace(tied=bool(tied))


def _part(sizes: Sizes, name: str) -> Sizes:
    """A configuration within."""
    found = sizes.get(name)
    if not isinstance(found, Sizes):
        raise UnknownModel(f"config.json states no {name}")
    return found


def _taken(sizes: Sizes) -> tuple[int, bool]:
    """The layer of the tower whose states are taken, and whether its first token is left out."""
    layer = sizes.get("vision_feature_layer", -2)
    if not isinstance(layer, int):
        raise UnknownModel("features of several layers of a vision tower are not known")
    return layer, sizes.get("vision_feature_select_strategy", "default") == "default"
