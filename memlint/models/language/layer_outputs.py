"""Decoders whose loop names all that a layer returns, so that it lives until the next layer has returned.

Shapes: B rows, S tokens, W hidden width, h heads of d. Temporaries live as they do in transformers' code, so statements
are not merged, and modules that adapters go by have its names.
Source: ``transformers`` 5.23, ``models/{bloom,mpt,falcon,gptj,codegen,gpt_neo}/modeling_*.py``.
"""

from __future__ import annotations

from typing import Any

from memlint.architectures.decoder import Decoder
from memlint.meta import functional as F
from memlint.meta.amp import to
from memlint.meta.nn import Module
from memlint.meta.tensor import Tensor, empty, float32, int64
from memlint.models.language.decoder import LanguageModel
from memlint.models.language.parts import attention_mask


def dropout_add(x: Tensor, residual: Tensor, probability: float, training: bool) -> Tensor:
    out = F.dropout(x, probability, training)
    out = residual + out
    return out


def beside(x: Tensor, weights: Tensor | None) -> Any:
    """What a layer returns: its result, and the probabilities of its attention where there are any."""
    return x if weights is None else (x, weights)


class _Returned:
    """What the layer before has returned: it lives until the next one has."""

    __slots__ = ("outputs",)

    def __init__(self) -> None:
        self.outputs: Any = None


class OutputsModel(LanguageModel):
    """The loop over layers names all that one returns (``outputs = block(...)``, ``hidden_states = outputs[0]``)."""

    def __init__(self, config: Decoder, kind: str, **options: Any) -> None:
        super().__init__(config, kind, **options)
        self.returned = _Returned()

    def through(self, layer: Module, recomputed: bool, x: Tensor, tables: Any, mask: Tensor | None) -> Tensor:
        outputs: Any = super().through(layer, recomputed, x, tables, mask)
        self.returned.outputs = outputs
        found: Tensor = outputs if isinstance(outputs, Tensor) else outputs[0]
        return found

    def hidden(self, given: Tensor) -> Tensor:
        try:
            return self.states(given)
        finally:
            self.returned.outputs = None

    def states(self, given: Tensor) -> Tensor:
        """-> (B, S, W), the last norm included."""
        return super().hidden(given)


class AlibiModel(OutputsModel):
    """Every layer gets the same biases of its scores by distance (ALiBi) in place of tables of rotations."""

    def biases(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def first(self, x: Tensor) -> Tensor:
        """What the first layer gets of the embedded tokens."""
        return x

    def scores_mask(self, x: Tensor) -> Tensor | None:
        return attention_mask("eager", x.shape[0], x.shape[1], x.dtype, 0, self.padded)

    def states(self, given: Tensor) -> Tensor:
        embedded = self.embed(given) if given.ndim == 2 else given
        if self.prompt is not None:
            embedded = F.cat((self.prompt(embedded.shape[0], embedded.dtype), embedded), 1)
        x = self.first(embedded)
        biases = self.biases(x)
        mask = self.scores_mask(embedded)
        for number, layer in enumerate(self.layers):
            recomputed = self.checkpointed > 0 and number % self.checkpointed == 0
            x = self.through(layer, recomputed, x, biases, mask)
        out: Tensor = self.norm(x)
        return out


def biases_of_rows(x: Tensor, heads: int) -> Tensor:
    """(B * h, 1, S): places are counted from the mask of padding (``build_alibi_tensor``)."""
    batch, length, _ = x.shape
    places = empty((batch, length), int64)
    biases = empty((batch, heads, length), float32)
    del places
    out: Tensor = to(biases.reshape(batch * heads, 1, length), x.dtype)
    return out
