"""From the parts that InternVL's own training script joins to what it makes of them.

Source: OpenGVLab/InternVL 2410d1d, ``internvl_chat/internvl/model/internvl_chat/{configuration_intern_vit,
configuration_internvl_chat,modeling_intern_vit,modeling_internvl_chat}.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memlint.architectures.decoder import Decoder
from memlint.architectures.huggingface import decoder
from memlint.architectures.sizes import HEADS_SHARE_WIDTH, Agreement, Sizes, agree
from memlint.facts.spec import UnknownModel
from memlint.named_tuple import NamedTuple

# The classes of decoders that InternVLChatModel builds, by their model types.
DECODERS = ("internlm2", "llama", "phi3", "qwen2")
# InternVisionConfig, where a config.json says nothing.
_NORM, _WIDTH, _HEADS, _INNER, _LAYERS, _IMAGE, _PATCH = "rms_norm", 3200, 25, 12800, 48, 224, 14
_NORMS = {"rms_norm": "rms", "layer_norm": "layer"}


class InternVit(NamedTuple):
    """Sizes, and the switches of the program.

    image          (height, width) of a tile, which positions are for
    patch          (height, width)
    norm           "layer" or "rms"
    normed         queries and keys are normed, each across all heads
    drop_path      share of tiles whose half of a block is skipped in the last block; less in those before, none in the
                   first
    """

    width: int
    layers: int
    heads: int
    intermediate: int
    image: tuple[int, int]
    patch: tuple[int, int]
    channels: int = 3
    activation: str = "gelu"
    qkv_bias: bool = False
    norm: str = "rms"
    normed: bool = True
    drop_path: float = 0.0

    @property
    def side(self) -> int:
        """Patches in a row of a tile."""
        return self.image[0] // self.patch[0]


class InternVl(NamedTuple):
    """A tower, patches of which are joined to features, and a decoder.

    shuffle   patches on each side of the square that becomes one feature
    swaps     height and width are swapped back behind the joining (``ps_version`` v2)
    weighs    each token's loss has a weight (packed rows)
    """

    decoder: Decoder
    tower: InternVit
    shuffle: int = 2
    swaps: bool = True
    weighs: bool = False

    @property
    def features(self) -> int:
        """Of a tile."""
        return (self.tower.side // self.shuffle) ** 2


_AGREEMENTS = (
    Agreement(
        lambda made: made.tower.side > 0 and made.tower.side % made.shuffle == 0,
        "--force_image_size {0.tower.image[0]:,}: a tile has {0.tower.side:,} patches in a row, which "
        "--down_sample_ratio does not divide",
    ),
)


def joined(
    words: Mapping[str, Any],
    seen: Mapping[str, Any],
    *,
    tile: int = 0,
    drop_path: float = 0.0,
    shuffle: int = 2,
    swaps: bool = True,
    weighs: bool = False,
) -> InternVl:
    """``words`` is the ``config.json`` of the decoder, ``seen`` that of the tower; ``tile``: pixels on each side of a
    tile, 0 for the tower's own. Raises UnknownModel where a part, or a size, is not known."""
    kind = words.get("model_type")
    if kind not in DECODERS:
        raise UnknownModel(f"of InternVL's language models those of type {', '.join(DECODERS)} are known, not {kind}")
    made = InternVl(decoder(words), _tower(Sizes(seen), tile, drop_path), shuffle, swaps, weighs)
    agree(made.tower, (HEADS_SHARE_WIDTH,))
    agree(made, _AGREEMENTS)
    return made


def _tower(sizes: Sizes, tile: int, drop_path: float) -> InternVit:
    norm = sizes.get("norm_type", _NORM)
    if norm not in _NORMS:
        raise UnknownModel(f"norm_type {norm} of InternViT is not known")
    if sizes.get("dropout") or sizes.get("attention_dropout"):
        raise UnknownModel("InternViT with dropout is not known")
    image, patch = tile or _side(sizes, "image_size", _IMAGE), _side(sizes, "patch_size", _PATCH)
    return InternVit(
        width=sizes.get("hidden_size", _WIDTH),
        layers=sizes.get("num_hidden_layers", _LAYERS),
        heads=sizes.get("num_attention_heads", _HEADS),
        intermediate=sizes.get("intermediate_size", _INNER),
        image=(image, image),
        patch=(patch, patch),
        activation=sizes.get("hidden_act", "gelu"),
        qkv_bias=bool(sizes.get("qkv_bias", False)),
        norm=_NORMS[norm],
        normed=bool(sizes.get("qk_normalization", True)),
        drop_path=drop_path,
    )


def _side(sizes: Sizes, name: str, default: int) -> int:
    found = sizes.get(name, default)
    if not isinstance(found, int):
        raise UnknownModel(f"{name} {found} of InternViT is not one number")
    return found
