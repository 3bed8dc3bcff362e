"""Mixtures of experts: a router, and perceptrons whose weights lie in one tensor each.

Every token visits ``per_token`` experts, so the product of all experts together has B*S*per_token rows, however they
are spread: the grouped kernel, which transformers takes on CUDA, pads nothing, and memory does not depend on the
routing.

Source: ``transformers`` 5.23, ``integrations/moe.py`` (``grouped_mm_experts_forward``),
``models/{mixtral,qwen2_moe,qwen3_moe,olmoe,gpt_oss,lfm2_moe,minimax_m2}/modeling_*.py``.
"""

from __future__ import annotations

from typing import Any

from memlint.architectures.decoder import Decoder, Experts
from memlint.meta import functional as F
from memlint.meta.amp import to
from memlint.meta.autograd import record, tracked
from memlint.meta.nn import Linear, Module, buffer, parameter
from memlint.meta.tensor import Tensor, bool_, empty, float32, int32, int64
from memlint.models.language.parts import GatedPerceptron, HalvesPerceptron, activation


def has_experts(config: Decoder, number: int) -> bool:
    """Whether this layer has experts in place of a perceptron."""
    return config.experts is not None and config.experts.stand_in(number)


def mixture_of(layer: Module) -> Any:
    """The mixture of experts of a layer; None where it has none."""
    if hasattr(layer, "experts"):  # beside a perceptron (Gemma 4)
        return layer
    found = getattr(layer, "mlp", None) or getattr(layer, "feed_forward", None)
    return found if hasattr(found, "experts") else None


class Router(Module):
    """(T, W) -> weights (T, k) of the experts that each token visits, and their numbers."""

    def __init__(self, width: int, experts: Experts) -> None:
        self.weight = parameter(experts.number, width)
        self.per_token = experts.per_token
        self.wide = experts.router == "mixtral"  # weights stay in fp32
        self.renormalised = experts.renormalised

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = F.linear(x, self.weight)
        scores = F.softmax(to(logits, float32), -1) if self.wide else F.softmax(logits, -1, float32)
        weights, numbers = F.topk(scores, self.per_token)
        if self.renormalised:
            weights = F.div_(weights, F.sum(weights, -1, keepdim=True))
        if not self.wide:
            weights = to(weights, logits.dtype)
        return weights, numbers


class ChosenRouter(Module):
    """GPT-OSS: the softmax is over the chosen experts' logits alone."""

    def __init__(self, width: int, experts: Experts) -> None:
        self.weight = parameter(experts.number, width)
        self.bias = parameter(experts.number)
        self.per_token = experts.per_token

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = F.linear(x, self.weight, self.bias)
        chosen, numbers = F.topk(logits, self.per_token)
        weights = F.softmax(chosen, -1, chosen.dtype)
        return weights, numbers


class WideChosenRouter(Module):
    """Granite: the same without biases, in fp32."""

    def __init__(self, width: int, experts: Experts) -> None:
        self.weight = parameter(experts.number, width)
        self.per_token = experts.per_token

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = to(F.linear(x, self.weight), float32)
        chosen, numbers = F.topk(logits, self.per_token)
        return to(F.softmax(chosen, -1), x.dtype), numbers


class SampledRouter(Module):
    """Phi-3.5-MoE: each of two experts is drawn, and its probability corrected as if it had been likelier."""

    def __init__(self, width: int, experts: Experts) -> None:
        self.weight = parameter(experts.number, width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = F.linear(x, self.weight)
        first, chosen = self.drawn(logits, logits)
        rest = self.without(logits, chosen)
        second, other = self.drawn(rest, logits)
        weights = F.cat((first, second), -1)
        numbers = F.cat((chosen, other), -1)
        return weights, numbers

    def drawn(self, scores: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The weight (T, 1) of an expert of each token, and its number."""
        tokens, shape = (*scores.shape[:-1], 1), scores.shape
        factor = empty(shape, scores.dtype)
        masked = F.masked_fill(scores, empty(shape, bool_))
        noise = empty(shape, scores.dtype)
        chosen = F.max(masked - noise, -1)[1].unsqueeze(-1)
        del noise
        masked = F.softmax(masked, -1)
        weight = F.gather(masked, -1, chosen)
        likeliest = F.max(masked, -1, keepdim=True)
        likelier = empty(tokens, masked.dtype)
        out = empty(tokens, weight.dtype)
        if tracked(logits, weight):
            kind = logits.shape, logits.dtype

            def backward(g: Tensor) -> tuple[Tensor, None]:
                scaled, negated = empty(g.shape, g.dtype), empty(g.shape, g.dtype)
                result = Tensor(*kind)
                del scaled, negated
                return result, None

            record(out, (logits, weight), (weight, chosen, masked), backward)
        del factor, likeliest, likelier
        return out, chosen

    @staticmethod
    def without(scores: Tensor, chosen: Tensor) -> Tensor:
        """Scores but for those of the experts that are chosen."""
        out = empty(scores.shape, scores.dtype)
        if tracked(scores):
            record(out, (scores,), (chosen,), lambda g: (empty(g.shape, g.dtype),))
        return out


class SigmoidRouter(Module):
    """MiniMax-M2: a sigmoid in fp32 of logits; who is chosen is corrected, what they weigh is not."""

    def __init__(self, width: int, experts: Experts) -> None:
        self.weight = parameter(experts.number, width)
        self.e_score_correction_bias = buffer(experts.number)
        self.per_token = experts.per_token

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = F.linear(x, self.weight)
        scores = F.sigmoid(to(logits, float32))
        corrected = scores + self.e_score_correction_bias
        numbers = F.topk(corrected, self.per_token)[1]
        weights = F.gather(scores, 1, numbers)
        weights = F.div_(weights, F.sum(weights, -1, keepdim=True))
        return weights, numbers


class NarrowSigmoidRouter(Module):
    """LFM2: a sigmoid of the logits as they are; the bias by which experts are chosen is in fp32."""

    def __init__(self, width: int, experts: Experts) -> None:
        self.weight = parameter(experts.number, width)
        self.expert_bias = buffer(experts.number)
        self.per_token, self.renormalised = experts.per_token, experts.renormalised

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = F.linear(x, self.weight)
        scores = F.sigmoid(logits)
        corrected = to(scores, float32) + self.expert_bias
        numbers = F.topk(corrected, self.per_token)[1]
        weights = F.gather(scores, 1, numbers)
        if self.renormalised:
            weights = weights / (F.sum(weights, -1, keepdim=True) + 1e-6)
        return weights * 1.0, numbers


class ScaledRouter(Module):
    """DeepSeek: logits in fp32; of groups of experts, only the best are looked at."""

    def __init__(self, width: int, experts: Experts) -> None:
        self.weight = parameter(experts.number, width)
        self.e_score_correction_bias = buffer(experts.number) if experts.router == "sigmoid" else None
        self.number, self.per_token, self.grouped = experts.number, experts.per_token, experts.grouped
        self.renormalised = experts.renormalised

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = F.linear(to(x, float32), to(self.weight, float32))
        if self.e_score_correction_bias is None:
            scores = F.softmax(logits, -1, float32)
            if self.grouped:
                scores = self.best_groups(scores)
            weights, numbers = F.topk(scores, self.per_token)
            return weights * 1.0, numbers
        scores = F.sigmoid(logits)
        corrected = scores + self.e_score_correction_bias
        corrected = self.best_groups(corrected)
        numbers = F.topk(corrected, self.per_token)[1]
        weights = F.gather(scores, 1, numbers)
        if self.renormalised:
            total = F.sum(weights, -1, keepdim=True) + 1e-20
            weights = F.div_(weights, total)
        weights = weights * 1.0
        return weights, numbers

    def best_groups(self, scores: Tensor) -> Tensor:
        """Scores of experts outside of the best groups are masked."""
        tokens = scores.shape[0]
        mask = empty((tokens, self.number), bool_)
        return F.masked_fill(scores, mask)


class GroupedExperts(Module):
    def __init__(self, width: int, experts: Experts, function: str) -> None:
        self.gate_up_proj = parameter(experts.number, 2 * experts.intermediate, width)
        self.down_proj = parameter(experts.number, width, experts.intermediate)
        self.number, self.apart = experts.number, experts.apart
        self.function = activation(function)

    def forward(self, x: Tensor, numbers: Tensor, weights: Tensor) -> Tensor:
        """(T, W), and the experts (T, k) of each token with their weights -> (T, W)."""
        tokens, chosen = numbers.shape
        rows = tokens * chosen
        weights = weights.reshape(-1)
        ordered, order = empty((rows,), int64), empty((rows,), int64)  # sort
        token_of = empty((rows,), int64)  # order // k
        selected = F.index(x, token_of)
        del token_of
        weights_ordered = F.index(weights, order)
        counted = empty((rows,), int32)
        histogram = empty((self.number,), int32)
        offsets = empty((self.number,), int32)
        product = self.enter(selected, ordered, offsets)
        product = self.gated(product)
        product = self.leave(product, ordered, offsets)
        weighted = product * weights_ordered.unsqueeze(-1)
        inverse = empty((rows,), int64)
        weighted = F.index(weighted, inverse)
        out = F.sum(weighted.view(tokens, chosen, x.shape[-1]), 1)
        del ordered, counted, histogram
        return to(out, x.dtype)

    def enter(self, x: Tensor, expert_of: Tensor, offsets: Tensor) -> Tensor:
        """``expert_of``: the number of each row's expert."""
        return F.grouped_mm(to(x, self.gate_up_proj.dtype), self.gate_up_proj.transpose(-2, -1), offsets)

    def gated(self, product: Tensor) -> Tensor:
        gate, up = F.chunk(product, 2, -1)
        return self.function(gate) * up

    def leave(self, x: Tensor, expert_of: Tensor, offsets: Tensor) -> Tensor:
        return F.grouped_mm(to(x, self.down_proj.dtype), self.down_proj.transpose(-2, -1), offsets)


class BiasedExperts(GroupedExperts):
    """GPT-OSS: weights lie the other way round, each expert has biases, gate and input alternate and are clamped."""

    def __init__(self, width: int, experts: Experts, function: str) -> None:
        self.gate_up_proj = parameter(experts.number, width, 2 * experts.intermediate)
        self.gate_up_proj_bias = parameter(experts.number, 2 * experts.intermediate)
        self.down_proj = parameter(experts.number, experts.intermediate, width)
        self.down_proj_bias = parameter(experts.number, width)
        self.number = experts.number

    def enter(self, x: Tensor, expert_of: Tensor, offsets: Tensor) -> Tensor:
        bias = F.index(self.gate_up_proj_bias, expert_of)
        out = F.grouped_mm(to(x, self.gate_up_proj.dtype), self.gate_up_proj, offsets)
        return F.add_(out, bias)

    def gated(self, product: Tensor) -> Tensor:
        gate, up = product[..., ::2], product[..., 1::2]
        gate = F.clamp(gate)
        up = F.clamp(up, 2)
        activated = gate * F.sigmoid(gate * 1.0)
        return (up + 1.0) * activated

    def leave(self, x: Tensor, expert_of: Tensor, offsets: Tensor) -> Tensor:
        bias = F.index(self.down_proj_bias, expert_of)
        out = F.grouped_mm(to(x, self.down_proj.dtype), self.down_proj, offsets)
        return F.add_(out, bias)


ROUTERS = {
    "chosen": ChosenRouter,
    "granite": WideChosenRouter,
    "lfm2": NarrowSigmoidRouter,
    "minimax": SigmoidRouter,
    "sampled": SampledRouter,
}


class Mixture(Module):
    """Mixtral, Qwen3-MoE, OLMoE."""

    def __init__(self, config: Decoder, experts: Experts) -> None:
        chosen = experts.router == "chosen"
        self.gate: Module = ROUTERS.get(experts.router, Router)(config.width, experts)
        self.experts = (BiasedExperts if chosen else GroupedExperts)(config.width, experts, config.activation)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        flat = x.view(-1, width)
        weights, numbers = self.gate(flat)
        out: Tensor = self.experts(flat, numbers, weights).reshape(batch, length, width)
        return out


class AddedMixture(Mixture):
    """DeepSeek: one more perceptron, which every token visits, is added."""

    def __init__(self, config: Decoder, experts: Experts) -> None:
        self.experts = GroupedExperts(config.width, experts, config.activation)
        self.gate = ScaledRouter(config.width, experts)
        self.shared_experts = GatedPerceptron(config.width, experts.shared, config.activation)

    def forward(self, x: Tensor) -> Tensor:
        residual = x
        weights, numbers = self.gate(x.view(-1, x.shape[-1]))
        x = x.view(-1, x.shape[-1])
        x = self.experts(x, numbers, weights).view(*residual.shape)
        x = x + self.shared_experts(residual)
        return x


class GraniteMixture(Mixture):
    """Granite: what the experts return is whole before the perceptron of every token is asked."""

    def __init__(self, config: Decoder, experts: Experts) -> None:
        super().__init__(config, experts)
        self.shared_mlp = HalvesPerceptron(config.width, experts.shared, config.activation) if experts.shared else None

    def forward(self, x: Tensor) -> Tensor:
        routed = super().forward(x)
        return routed if self.shared_mlp is None else routed + self.shared_mlp(x)


class SharedMixture(Mixture):
    """Qwen2-MoE: one more expert, which every token visits, weighted by a gate."""

    def __init__(self, config: Decoder, experts: Experts) -> None:
        super().__init__(config, experts)
        self.shared_expert = GatedPerceptron(config.width, experts.shared, config.activation)
        self.shared_expert_gate = Linear(config.width, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        flat = x.view(-1, width)
        shared = self.shared_expert(flat)
        weights, numbers = self.gate(flat)
        out: Tensor = self.experts(flat, numbers, weights)
        shared = F.sigmoid(self.shared_expert_gate(flat)) * shared
        out = out + shared
        out = out.reshape(batch, length, width)
        return out


def mixture(config: Decoder) -> Module:
    assert config.experts is not None
    experts = config.experts
    if experts.router == "granite":
        return GraniteMixture(config, experts)
    kind = SharedMixture if experts.shared_gate else AddedMixture if experts.shared else Mixture
    return kind(config, experts)
