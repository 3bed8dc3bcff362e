"""What follows attention in a layer of Megatron-LM's: a perceptron, or a mixture of experts.

Shapes and sources as in :mod:`memlint.models.language.megatron`.
"""

from __future__ import annotations

from math import ceil

from memlint.architectures.decoder import Decoder
from memlint.meta import functional as F
from memlint.meta.amp import to
from memlint.meta.autograd import record, tracked
from memlint.meta.checkpoint import checkpoint
from memlint.meta.nn import Module, parameter
from memlint.meta.tensor import Tensor, bool_, empty, float32, int64
from memlint.models.language.megatron_functions import (
    Kernels,
    RowLinear,
    SkippingLinear,
    bias_activation,
    moved,
    passed,
)


class MegatronPerceptron(Module):
    """Keeps its input (2 S' B W bytes), that of the activation (8 S B W) and its result (8 S B W)."""

    def __init__(self, config: Decoder, kernels: Kernels) -> None:
        self.kernels = kernels
        self.gated = config.perceptron in ("gated", "gated_joined")
        made = 2 * config.intermediate if self.gated else config.intermediate
        self.squared = config.activation == "squared_relu"
        self.linear_fc1 = SkippingLinear(config.width, made, config.perceptron_bias, kernels)
        self.linear_fc2 = RowLinear(config.intermediate, config.width, config.perceptron_bias, kernels)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        x = self.linear_fc1(x)
        if self.kernels.gate and not self.squared:
            x = bias_activation(x, self.linear_fc1.bias, self.gated)
        else:
            if self.linear_fc1.bias is not None:
                x = x + self.linear_fc1.bias
            x = self.in_steps(x)
        return self.linear_fc2(x), self.linear_fc2.bias

    def in_steps(self, x: Tensor) -> Tensor:
        if self.squared:  # activations.py, jit_fuser: compiled, so one kernel that keeps what it is given
            return passed(x, None, x.shape, (x,))
        if not self.gated:
            return F.gelu(x)
        gate, up = F.chunk(x, 2, -1)
        return F.silu(gate) * up


class RoutedExperts(Module):
    """(rows, W), and a weight for each, in the order of their experts -> (rows, W)."""

    dispatches = True  # its weights are on fewer ranks than the others (memlint.models.parallel)

    def __init__(self, config: Decoder, kernels: Kernels) -> None:
        experts = config.experts
        assert experts is not None
        self.kernels, self.gated = kernels, config.perceptron in ("gated", "gated_joined")
        made = (2 if self.gated else 1) * experts.intermediate
        # Of the fused activations those of gates alone weigh their result; squared ReLU is compiled.
        self.is_fused = (kernels.gate and self.gated) or config.activation == "squared_relu"
        self.weight1 = parameter(experts.number, made, config.width)
        self.weight2 = parameter(experts.number, config.width, experts.intermediate)
        shapes = self.weight1.shape, self.weight2.shape
        self.copies1, self.copies2 = (kernels.copies(*shape) for shape in shapes)

    def forward(self, given: Tensor, weights: Tensor) -> Tensor:
        made = grouped_product(given, self.weight1, self.kernels)
        again = "moe_act" in self.kernels.recomputes
        activated = self.fused(made, weights) if again or self.is_fused else self.in_steps(made, weights)
        del made
        return grouped_product(activated, self.weight2, self.kernels, again)

    def fused(self, made: Tensor, weights: Tensor) -> Tensor:
        """``weighted_bias_swiglu_impl``: one kernel, which keeps what it is given. What is computed again keeps no more
        than that either."""
        inner = made.shape[-1] // 2 if self.gated else made.shape[-1]
        return passed(made, weights, (made.shape[0], inner), (made, weights))

    def in_steps(self, made: Tensor, weights: Tensor) -> Tensor:
        """The activation, weighted in fp32, and rounded."""
        if self.gated:
            gate, up = F.chunk(made, 2, -1)
            activated = F.silu(gate) * up
        else:
            activated = F.gelu(made)
        of_rows = moved(weights, (made.shape[0], 1))  # scores in the order of the rows
        weighted = activated * of_rows
        return to(weighted, made.dtype)


class MegatronExperts(Module):
    """A mixture of experts: (B, S', W) -> (B, S', W), and no bias.

    Tokens are sorted by their experts, sent to the ranks of those, and sorted there; with balanced routing as many
    come as go. What is kept are T k rows of the experts' inputs (2 W bytes each), of the first product (4 I) and of
    the activation (2 I), T tokens' inputs of the router and their scores in fp32; where rows come from and go to
    without the rows themselves (``transformer/moe/{router,token_dispatcher,experts}.py``). A score weighs the
    activation, not the result.
    """

    def __init__(self, config: Decoder, kernels: Kernels) -> None:
        experts = config.experts
        assert experts is not None
        self.kernels, self.own, self.per_token = kernels, experts.number, experts.per_token
        self.number = experts.number * kernels.experts
        self.router = parameter(self.number, config.width)
        self.routed_experts = RoutedExperts(config, kernels)
        shared = config._replace(intermediate=experts.shared, perceptron_bias=False)
        self.shared = MegatronPerceptron(shared, kernels) if experts.shared else None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        batch, length, width = x.shape
        flat = x.view(-1, width)
        scores = F.softmax(to(self.routed(flat), float32), -1)
        weights, numbers = F.topk(scores, self.per_token)
        place = empty(scores.shape, bool_)
        rows, each, sent = flat.shape[0] * self.per_token, self.kernels.each, self.kernels.experts > 1
        if self.kernels.capacity:
            weights = self.limited(weights)
            rows = self.number * self.capacity(flat.shape[0]) if self.kernels.fills else rows
        index = empty((rows,), int64)
        given = moved(flat, (rows, width), index)
        if sent:
            given = moved(given, given.shape)
        if each > 1:
            given = moved(given, (rows * each, width))
        if sent and self.own > 1:
            given = moved(given, given.shape)
        out = self.routed_experts(given, weights)
        del given
        if sent and self.own > 1:
            out = moved(out, out.shape)
        if each > 1:
            out = moved(out, (rows, width))
        if sent:
            out = moved(out, out.shape)
        out = moved(out, flat.shape, index)
        del place, numbers, scores
        out = out.view(batch, length, width)
        return (out if self.shared is None else out + self.common(x)), None

    def capacity(self, tokens: int) -> int:
        """Rows of an expert at most (``get_capacity``)."""
        return ceil(tokens * self.per_token / self.number * self.kernels.capacity)

    def limited(self, weights: Tensor) -> Tensor:
        """(T, k) -> the same without what is dropped, of a table of all experts: keeps a mask of it
        (``apply_router_token_dropping``)."""
        tokens = weights.shape[0]
        most, table = self.capacity(tokens), (tokens, self.number)
        if most <= tokens:
            likeliest, places = empty((most, self.number), float32), empty((most, self.number), int64)
            del likeliest
            zeros, chosen = empty(table, float32), empty(table, float32)
            del zeros, places
        else:
            chosen = empty(table, float32)
        within = empty(table, bool_)
        del chosen
        left = empty(table, bool_)
        del within
        whole = empty(table, float32)
        out = passed(weights, None, weights.shape, (left,))
        del whole
        return out

    def routed(self, flat: Tensor) -> Tensor:
        """(T, W) -> (T, experts). Keeps its input, unless that is the result of a norm that backward makes again."""
        again = "layernorm" in self.kernels.recomputes and self.shared is None
        weight, own, dtype = self.router, flat.shape, flat.dtype
        out = Tensor((own[0], self.number), dtype)
        if tracked(flat, weight):

            def backward(g: Tensor) -> list[Tensor | None]:
                made = Tensor(own, dtype) if again else None
                gradients: list[Tensor | None] = [Tensor(own, dtype), Tensor(weight.shape, dtype)]
                del made
                return gradients

            record(out, (flat, weight), (None if again else flat, weight), backward)
        return out

    def common(self, x: Tensor) -> Tensor:
        shared = self.shared
        assert shared is not None
        if "shared_experts" in self.kernels.recomputes:
            out: Tensor = checkpoint(lambda given: shared(given)[0], x, use_reentrant=True)
            return out
        fed: Tensor = shared(x)[0]
        return fed


def grouped_product(x: Tensor, weight: Tensor, kernels: Kernels, again: bool = False) -> Tensor:
    """(rows, inputs), (experts, outputs, inputs) -> (rows, outputs). Keeps x, unless backward makes it ``again``."""
    out = Tensor((x.shape[0], weight.shape[1]), x.dtype)
    if tracked(x, weight):
        own, dtype, entries = x.shape, x.dtype, weight.shape

        def backward(g: Tensor) -> list[Tensor | None]:
            made = Tensor(own, dtype) if again else None
            gradients: list[Tensor | None] = [Tensor(own, dtype), kernels.weight_gradient(entries, dtype)]
            del made
            return gradients

        record(out, (x, weight), (None if again else kernels.kept(x), weight), backward)
    return out
