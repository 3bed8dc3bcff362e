"""From a ``config.json`` to the language model that sees, which it describes.

Source: ``transformers`` 5.23, ``models/{llava,gemma3,qwen2_vl,qwen2_5_vl,qwen3_5,qwen3_5_moe,llama4}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memlint.architectures.huggingface import decoder
from memlint.architectures.huggingface_vision import llama4_tower, packed_tower, qwen35_tower, tower
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
    words, seen = decoder(_part(sizes, "text_config")), _part(sizes, "vision_config")
    if sizes.get("model_type") != "gemma3":
        return VisionLanguage(words, packed_tower(seen, newer=sizes.get("model_type") == "qwen2_5_vl"))
    return VisionLanguage(words, tower(seen), sizes.get("mm_tokens_per_image", 256), image_mask=True)


def text_alone(config: Mapping[str, Any]) -> TextAlone:
    """Qwen3.5 and Llama 4. Raises UnknownModel where a part, or a size, is not known."""
    sizes = Sizes(config)
    seen, name = _part(sizes, "vision_config"), str(sizes.get("model_type"))
    return TextAlone(name, decoder(sizes), (llama4_tower if name == "llama4" else qwen35_tower)(seen))


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
