"""What litgpt does to a model whose linear layers bitsandbytes quantises.

Sources: litgpt 0.5.13 ``finetune/lora.py`` (``main``); lightning 2.6 ``fabric/plugins/precision/bitsandbytes.py``
(``_Linear4bit.quantize``, ``module_init_context``); bitsandbytes 0.50 ``nn/modules.py`` (``StableEmbedding``).
"""

from __future__ import annotations

from memlint.meta.nn import Embedding, LayerNorm
from memlint.meta.tape import Label
from memlint.meta.tensor import DType, Tensor, default_dtype, float16, state
from memlint.models.language.decoder import LanguageModel

# Whatever the weights were loaded as, they are quantised from this dtype, and unpacked to it.
QUANTISED_FROM: DType = float16


class StableEmbedding(Embedding):
    """An embedding with a layer norm behind it: (B, S) -> (B, S, W)."""

    def __init__(self, entries: int, width: int) -> None:
        super().__init__(entries, width)
        self.norm = LayerNorm(width)

    def forward(self, index: Tensor) -> Tensor:
        out: Tensor = self.norm(super().forward(index))
        return out


def replace_embedding(model: LanguageModel) -> list[Tensor]:
    """A new embedding in place of the old one, which a variable of ``main`` and the optimizer keep. Returns what trains
    in it: no optimizer has it, so its gradients are there from the first step on, and nobody lets go of them."""
    old = model.embed_tokens
    with default_dtype(old.weight.dtype):
        new = StableEmbedding(*old.weight.shape)
    model.originals = [*model.originals, old]
    model.embed_tokens = new
    saved = state.label
    state.label = Label("gradients", "embed_tokens", "weight")
    for parameter in new.parameters():
        parameter.grad = Tensor(parameter.shape, parameter.dtype)
    state.label = saved
    return new.parameters()
