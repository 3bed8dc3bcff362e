"""Quantised experts that are a list of perceptrons: mixtures before transformers 5, whose linear layers are quantised
like all others. From 5.0 on the experts of a layer are one tensor (``memlint.models.language.experts``), which
bitsandbytes leaves in 16 bits.

The experts of a layer take their turns, so of what is not kept for backward there is one expert's at a time: its
weight, unpacked, and the rows of its tokens. Tokens are taken to be spread evenly. What is kept is as much as if all
rows went through at once.

Source: ``transformers`` 4.57.6, ``models/{mixtral,qwen3_moe,olmoe}/modeling_*.py`` (``SparseMoeBlock.forward``),
``models/deepseek_v3/modeling_deepseek_v3.py`` (``DeepseekV3MoE.moe``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memlint.meta.amp import to
from memlint.meta.autograd import no_grad, record, tracked
from memlint.meta.nn import Linear, Module
from memlint.meta.tensor import DType, Tensor, default_dtype, empty, int64
from memlint.models.language.experts import GroupedExperts
from memlint.models.language.quantisation import BLOCK, Linear4bit, Linear8bit, gradient_of_input


def listed(base: GroupedExperts, made: Callable[[Linear], Module]) -> Module:
    """The experts one by one, their layers quantised by ``made``; themselves where that is not bitsandbytes'."""
    _, joined, width = base.gate_up_proj.shape
    inner = joined // 2
    with default_dtype(base.gate_up_proj.dtype):
        sizes = ((width, inner), (width, inner), (inner, width))
        layers = [made(Linear(inputs, base.number * outputs, bias=False)) for inputs, outputs in sizes]
    if not all(isinstance(layer, (Linear4bit, Linear8bit)) for layer in layers):
        return base
    return ListedExperts(base, layers)


class ListedExperts(Module):
    """``gate``, ``up``, ``down``: the layers of all experts together, each of which unpacks one expert's weight."""

    def __init__(self, base: GroupedExperts, layers: list[Any]) -> None:
        self.number, self.function = base.number, base.function
        for layer in layers:
            outputs, inputs = layer.sizes
            layer.sizes = outputs // base.number, inputs
            if isinstance(layer, Linear4bit):
                layer.blocks = -(-layer.sizes[0] * inputs // BLOCK)
        self.gate, self.up, self.down = layers

    def forward(self, x: Tensor, numbers: Tensor, weights: Tensor) -> Tensor:
        """(T, W), and the experts (T, k) of each token with their weights -> (T, W)."""
        tokens, chosen = numbers.shape
        rows, width = tokens * chosen, x.shape[-1]
        turn = max(rows // self.number, 1)  # rows of one expert
        mask = empty((tokens, chosen, self.number), int64)  # one_hot
        wide = max(x.dtype, weights.dtype, key=lambda dtype: dtype.itemsize)
        out = empty((tokens, width), wide)
        remembers = tracked(x, weights)
        before = self.kept(rows - turn, x.dtype, wide) if remembers else []
        with no_grad():
            places = empty((turn,), int64), empty((turn,), int64)
            selected = empty((turn, width), x.dtype)
            gate = self.gate(selected)
            activated, raised = self.function(gate), self.up(selected)
            fed = activated * raised
            lowered = self.down(fed)
            weight = empty((turn, 1), weights.dtype)
            weighted = lowered * weight
        if remembers:
            kept = [*before, *places, gate, activated, raised, lowered, weight, weighted]
            kept += [selected, fed] if self.holds else []
            self.remember(out, x, weights, kept, turn)
        del mask
        return to(out, x.dtype)

    @property
    def holds(self) -> bool:
        """Whether a product's node keeps its input (:mod:`memlint.models.language.quantisation`)."""
        return isinstance(self.gate, Linear8bit) or bool(self.gate.attached)

    def kept(self, rows: int, dtype: DType, weighted: DType) -> list[Tensor]:
        """Of the experts that had their turn."""
        inner, width = self.gate.sizes
        # What they return, which is multiplied, and the product: ``index_add_`` keeps what it adds.
        wide = [empty((rows, width), dtype), empty((rows, width), weighted)]
        narrow = [empty((rows, inner), dtype) for _ in range(3)]  # gate, what is activated, and what that multiplies
        if self.holds:
            wide.append(empty((rows, width), dtype))
            narrow.append(empty((rows, inner), dtype))
        return [*wide, *narrow, empty((rows,), int64), empty((rows,), int64), empty((rows,), dtype)]

    def remember(self, out: Tensor, x: Tensor, weights: Tensor, kept: list[Tensor], turn: int) -> None:
        shape, dtype, weighed = x.shape, x.dtype, (weights.shape, weights.dtype)
        inner, width = self.gate.sizes

        def backward(g: Tensor) -> tuple[Tensor, Tensor]:
            total = empty(shape, dtype)  # of the experts that had their turn
            lowered = to(empty((turn, width), g.dtype), dtype)
            product = empty((turn, width), dtype)
            del product
            fed = gradient_of_input(self.down, lowered, turn)
            del lowered
            gate, raised = empty((turn, inner), dtype), empty((turn, inner), dtype)
            del fed
            gate = empty((turn, inner), dtype)
            first = gradient_of_input(self.up, raised, turn)
            del raised
            second = gradient_of_input(self.gate, gate, turn)
            both = empty((turn, width), dtype)
            del first, second, gate
            one = empty(shape, dtype)  # an index's gradient is as large as what it took from
            del both, one
            return total, Tensor(*weighed)

        record(out, (x, weights), kept, backward)
