"""Vision towers: transformers over the patches of images, which classify them, or see for a language model.

Who reads them from a ``config.json`` is in ``huggingface_vision``; models take what is here, and nothing else.
"""

from __future__ import annotations

from memlint.architectures.adapters import NOTHING, Adapters
from memlint.architectures.sizes import HEADS_SHARE_WIDTH, Agreement
from memlint.named_tuple import NamedTuple


class Tower(NamedTuple):
    """Sizes, and the switches of the program.

    image       (height, width) of what the table of positions is for
    patch       (height, width)
    first       tokens before the patches: the class's, and the teacher's (DeiT)
    table       positions are a table that is looked up (CLIP, SigLIP), not a parameter that is added
    layer_scale each block's result is multiplied by a vector (DINOv2)
    gated       the perceptron has a gate (DINOv2-giant)
    drop_path   share of images whose block is skipped
    first_norm  a norm stands behind the embeddings, and patches have no bias (CLIP)
    mask_token  a vector that would take the place of hidden patches, which no other task trains (DINOv2)
    resized     images of any size are taken, for which positions are interpolated (DINOv2)
    averaged    images are classified by the first token and the mean of all patches (DINOv2)
    labels      into which images are sorted, where the run does not say how many there are
    adapters    what PEFT knows of it
    """

    width: int
    layers: int
    heads: int
    intermediate: int
    image: tuple[int, int]
    patch: tuple[int, int]
    channels: int = 3
    activation: str = "gelu"
    dropout: float = 0.0
    attention_dropout: float = 0.0
    qkv_bias: bool = True
    first: int = 1
    table: bool = False
    layer_scale: bool = False
    gated: bool = False
    drop_path: float = 0.0
    first_norm: bool = False
    mask_token: bool = False
    resized: bool = False
    averaged: bool = False
    labels: int = 2
    adapters: Adapters = NOTHING

    @property
    def patches(self) -> int:
        return (self.image[0] // self.patch[0]) * (self.image[1] // self.patch[1])


class PackedTower(NamedTuple):
    """Patches of images of any size, all in one row, a square of which is joined to a feature (Qwen2-VL and its heirs).

    out       width of a feature: the decoder's
    patch     its height and width
    temporal  frames that a patch spans
    merge     patches on each side of the square
    gated     the perceptron has a gate, and norms are RMS norms
    windowed  most blocks look within windows, for which patches are put in order
    places    rows of a table of positions that trains, between four of which each patch interpolates; 0 for none.
              Towers with one have a bias in the patches' layer, which they do not say embeds (Qwen3-VL, Qwen3.5)
    deep      numbers of the blocks whose states go to the decoder's first layers as well, each through a merger of its
              own (Qwen3-VL)
    joined    width of the perceptron that makes features where a convolution joins patches (GLM-4.1V), whose blocks'
              perceptrons are as wide as features are; 0 where they are joined side by side
    qkv_bias  of such blocks, which have no other biases
    """

    width: int
    layers: int
    heads: int
    intermediate: int
    out: int
    patch: int
    channels: int
    temporal: int
    merge: int
    activation: str
    gated: bool
    windowed: bool
    places: int = 0
    deep: tuple[int, ...] = ()
    joined: int = 0
    qkv_bias: bool = True

    @property
    def patch_numbers(self) -> int:
        return self.channels * self.temporal * self.patch * self.patch


AGREEMENTS = (
    HEADS_SHARE_WIDTH,
    Agreement(lambda sizes: sizes.patches > 0, "an image of {0.image} has no patch of {0.patch}"),
)
PACKED_AGREEMENTS = (
    HEADS_SHARE_WIDTH,
    Agreement(
        lambda tower: all(0 <= number < tower.layers for number in tower.deep),
        "deepstack_visual_indexes {0.deep}: the tower has {0.layers} layers",
    ),
)
