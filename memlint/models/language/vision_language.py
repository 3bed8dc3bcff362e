"""Language models that see: a vision tower and a projector before a decoder, as transformers' eager code runs them.

    pixels -> vision tower -> one of its last layers -> projector -> in place of the tokens that stand for an image

Shapes: B rows, S tokens, W the decoder's width, N patches of an image. Source: ``transformers`` 5.23, ``models/llava``.
"""

from __future__ import annotations

from typing import Any

from memlint.architectures.vision import Tower
from memlint.meta import functional as F
from memlint.meta.amp import to
from memlint.meta.checkpoint import checkpoint
from memlint.meta.nn import Linear, Module
from memlint.meta.tensor import Tensor, bool_, empty
from memlint.models.language.decoder import LanguageModel
from memlint.models.language.parts import activation
from memlint.models.language.vision import VisionTower


class Projector(Module):
    """Two layers with an activation between."""

    def __init__(self, width: int, inner: int, function: str, bias: bool) -> None:
        self.linear_1 = Linear(width, inner, bias)
        self.linear_2 = Linear(inner, inner, bias)
        self.function = activation(function)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear_1(x)
        x = self.function(x)
        out: Tensor = self.linear_2(x)
        return out


class LlavaTower(VisionTower):
    """Hidden states of every layer, which live until the decoder is done, and the last ones."""

    def __init__(self, config: Tower, kind: str, checkpointed: int, reentrant: bool, asks_gradient: bool) -> None:
        super().__init__(config, kind, checkpointed, reentrant)
        self.embeddings.needs_gradient = asks_gradient

    def unused(self, layer: int) -> list[Tensor]:
        """What lies behind the layer that is looked at never gets a gradient."""
        behind = self.layers[layer + 1 :] if layer < -1 else []
        return [tensor for module in (*behind, self.layernorm) for tensor in module.parameters()]

    def forward(self, pixels: Tensor) -> Any:
        x: Tensor = self.embeddings(pixels)
        if self.pre_layrnorm is not None:
            x = self.pre_layrnorm(x)
        states = [x]
        for number, layer in enumerate(self.layers):
            if self.checkpointed and number % self.checkpointed == 0:
                x = checkpoint(layer, x, use_reentrant=self.reentrant)
            else:
                x = layer(x)
            states.append(x)
        self.layernorm(x[:, 0])  # a result that features take the place of
        return states, x


class Sight(Module):
    """What stands in front of the decoder: pixels (images, 3, height, width) -> (images x N, W)."""

    def __init__(self, tower: VisionTower, projector: Projector, layer: int, without_first: bool) -> None:
        self.vision_tower, self.multi_modal_projector = tower, projector
        self.layer, self.without_first = layer, without_first

    def forward(self, pixels: Tensor) -> tuple[Tensor, Any]:
        """The features, and what stays alive with them."""
        states, last = self.vision_tower(pixels)
        selected = states[self.layer]
        if self.without_first:
            selected = selected[:, 1:]
        features = self.multi_modal_projector(selected)
        return F.cat(F.unbind(features), 0), (states, last)


def look(model: LanguageModel, sight: Sight, tokens: Tensor, pixels: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The decoder's last hidden states (B, S, W), and the images' features, which the model returns beside them."""
    embedded = model.embed(tokens)
    if pixels is None:
        return model.hidden(embedded), None
    features, held = sight(pixels)
    features = to(features, embedded.dtype)
    places = empty((*tokens.shape, 1), bool_)
    embedded = F.masked_scatter(embedded, places, features)
    x = model.hidden(embedded)
    del held
    return x, features
