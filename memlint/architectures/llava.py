"""From the two models that LLaVA's own training script joins to what it makes of them.

Source: haotian-liu/LLaVA 1.2, ``llava/model/llava_arch.py``; LLaVA-VL/LLaVA-NeXT 1.7, the same file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memlint.architectures.huggingface import decoder
from memlint.architectures.huggingface_vision import tower
from memlint.architectures.sizes import Sizes, agree
from memlint.architectures.vision_language import LlavaScript, layer_of_tower


def joined(
    words: Mapping[str, Any],
    seen: Mapping[str, Any],
    *,
    layer: int,
    without_first: bool = True,
    tower_attention: str = "eager",
    projector_layers: int = 1,
) -> LlavaScript:
    """``words`` is the ``config.json`` of the language model, ``seen`` that of the tower; the others are as
    LlavaScript's. Raises UnknownModel where a part, or a size, is not known."""
    made = LlavaScript(
        decoder=decoder(words),
        tower=tower(Sizes(seen)),
        layer=layer,
        without_first=without_first,
        tower_attention=tower_attention,
        projector_layers=projector_layers,
    )
    agree(made, layer_of_tower("mm_vision_select_layer"))
    return made
