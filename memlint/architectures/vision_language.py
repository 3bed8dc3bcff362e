"""Language models that see: a vision tower beside a decoder, and what brings the one's features to the other.

Who reads them from a ``config.json`` is in ``huggingface_vision_language``; models take what is here, and nothing else.
"""

from __future__ import annotations

from memlint.architectures.decoder import Decoder
from memlint.architectures.sizes import Agreement
from memlint.architectures.vision import PackedTower, Tower
from memlint.named_tuple import NamedTuple


class Llava(NamedTuple):
    """One layer's hidden states of a tower go through two linear layers (LLaVA, as transformers computes it).

    layer           whose hidden states are taken: 0 for what goes into the first, -1 for what comes out of the last
    without_first   the tower's first token is left out
    activation, projector_bias
                    of the linear layers
    """

    decoder: Decoder
    tower: Tower
    layer: int
    without_first: bool
    activation: str = "gelu"
    projector_bias: bool = True


class LlavaScript(NamedTuple):
    """LLaVA as its own training script computes it.

    layer, without_first    as Llava's
    tower_attention         how the tower attends: "eager" or "sdpa", whatever the decoder does
    projector_layers        linear layers, with GELU between them
    """

    decoder: Decoder
    tower: Tower
    layer: int
    without_first: bool
    tower_attention: str = "eager"
    projector_layers: int = 1


class VisionLanguage(NamedTuple):
    """A tower's own features take the place of the tokens that stand for an image (Gemma 3, Qwen2-VL and its heirs).

    features        to which the patches of an image are averaged, a square number (Gemma 3); 0 where the tower joins
                    them itself (Qwen)
    image_mask      an image's tokens see all of each other, for which a mask is made (Gemma 3)
    shuffled        patches on either side of a square that are put side by side, of a tower without a last norm, for
                    two linear layers behind a norm (InternVL); 0 for none
    activation      between these
    """

    decoder: Decoder
    tower: Tower | PackedTower
    features: int = 0
    image_mask: bool = False
    shuffled: int = 0
    activation: str = "gelu"


class Beside(NamedTuple):
    """The weights of modules that nothing is computed of, by dotted names.

    linears   (name, inputs, outputs, whether it has a bias) of each linear layer
    tensors   (name, shape) of every other parameter
    fixed     names of those that never train
    buffers   (name, shape) of each
    """

    linears: tuple[tuple[str, int, int, bool], ...]
    tensors: tuple[tuple[str, tuple[int, ...]], ...]
    fixed: tuple[str, ...] = ()
    buffers: tuple[tuple[str, tuple[int, ...]], ...] = ()


class TextAlone(NamedTuple):
    """A decoder that reads no image and hears no sound, beside what would see or hear for it (Mistral 3, Qwen3.5).

    name    of the model's type, as a message says it
    sense   what else the model takes: "images" or "sound"
    tower   what it sees with, where that is described (Qwen3.5)
    seeing  the whole of it, where that is described and no tower that packs patches (InternVL)
    """

    name: str
    decoder: Decoder
    beside: Beside
    sense: str = "images"
    tower: PackedTower | None = None
    seeing: VisionLanguage | None = None


def layer_of_tower(key: str) -> tuple[Agreement, ...]:
    """The layer that a config takes, by the name of its key, is one that the tower has."""
    return (
        Agreement(
            lambda made: -made.tower.layers - 1 <= made.layer <= made.tower.layers,
            key + " {0.layer:,}: the tower has {0.tower.layers} layers",
        ),
    )
