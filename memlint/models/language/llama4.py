"""Llama 4's decoder: most layers rotate pairs as complex numbers and see chunks, the queries of the others grow with
their place; every expert is asked about every token, whose copy is weighted before.

Shapes: B rows, S tokens, T = B * S, W hidden width, h heads of d, E experts.
Source: ``transformers`` 5.23, ``models/llama4/modeling_llama4.py``.
"""

from __future__ import annotations

from memlint.architectures.decoder import Decoder, Experts
from memlint.meta import functional as F
from memlint.meta.amp import to
from memlint.meta.autograd import record, tracked
from memlint.meta.nn import Module, parameter
from memlint.meta.tensor import Tensor, empty, float32, int64
from memlint.models.language.attention import Attended, Attention, Scores, repeat_heads
from memlint.models.language.decoder import LanguageModel, Layer
from memlint.models.language.experts import has_experts
from memlint.models.language.parts import GatedPerceptron, Tables, activation, norm


class RoundedScores(Scores):
    """Plain attention whose probabilities have no dtype of their own."""

    def eager(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float) -> Attended:
        keys, values = repeat_heads(key, self.groups), repeat_heads(value, self.groups)
        weights = F.matmul(query, keys.transpose(2, 3)) * 1.0
        if mask is not None:
            weights = weights + mask
        weights = F.softmax(weights, -1)
        weights = F.dropout(weights, dropout)
        output = F.matmul(weights, values)
        return self.in_order(output), weights


def rotate_tokens(query: Tensor, key: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
    """(B, S, h, d): pairs of neighbours in fp32 are complex numbers, and so is the table."""
    query_pairs = to(query, float32).reshape(*query.shape[:-1], -1, 2)
    key_pairs = to(key, float32).reshape(*key.shape[:-1], -1, 2)
    table = tables[0].unsqueeze(2)
    query_rotated = (query_pairs * table).flatten(3)
    key_rotated = (key_pairs * table).flatten(3)
    return to(query_rotated, query.dtype), to(key_rotated, key.dtype)


def normed(x: Tensor) -> Tensor:
    """A root-mean-square norm without weights."""
    wide = to(x, float32)
    return to(wide * F.rsqrt(F.mean(wide**2, -1, keepdim=True) + 1e-6), x.dtype)


class Llama4Attention(Attention):
    def __init__(self, config: Decoder, kind: str, rotates: bool) -> None:
        super().__init__(config._replace(query_norm="none"), kind, rotates)
        self.rotates, self.norms, self.grows = rotates, config.query_norm != "none" and rotates, config.scaled_query
        self.scores = RoundedScores(config, kind)

    def forward(self, x: Tensor, tables: Tables | None, mask: Tensor | None) -> Attended:
        batch, length, _ = x.shape
        shape = (batch, length, -1, self.head_dim)
        query = self.q_proj(x).view(*shape)
        key = self.k_proj(x).view(*shape)
        value = self.v_proj(x).view(*shape).transpose(1, 2)
        if self.rotates:
            assert tables is not None
            query, key = rotate_tokens(query, key, tables)
        if self.norms:
            query = normed(query)
            key = normed(key)
        places = scales = None
        if self.grows and not self.rotates:
            places = empty((length,), int64)
            scales = empty((length,), float32)
            for _ in range(5):  # divided, floor, log1p, times, 1 +
                scales = empty((length,), float32)
            scales = scales.view(1, length, 1, 1)
            query = to(query * scales, query.dtype)
        query = query.transpose(1, 2)
        key = key.transpose(1, 2)
        output, weights = self.scores(query, key, value, mask)
        output = output.reshape(batch, length, -1).contiguous()
        output = self.o_proj(output)  # type: ignore[attr-defined]
        del places, scales
        return output, weights


class Router(Module):
    """(T, W) -> scores (T, E), zeros but for the chosen ones; and the logits."""

    def __init__(self, width: int, experts: Experts) -> None:
        self.weight = parameter(experts.number, width)
        self.per_token = experts.per_token

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = F.linear(x, self.weight)
        chosen, numbers = F.topk(logits, self.per_token)
        scores = empty(logits.shape, logits.dtype)
        scores = scattered(scores, chosen, numbers)
        scores = to(F.sigmoid(to(scores, float32)), scores.dtype)
        return scores, logits


def scattered(base: Tensor, source: Tensor, numbers: Tensor) -> Tensor:
    """``base.scatter_(1, numbers, source)``: keeps the numbers."""
    out = base.alias(base.shape, base.strides)
    if tracked(base, source):
        shape, dtype = source.shape, source.dtype
        record(out, (base, source), (numbers,), lambda g: (None, Tensor(shape, dtype)))
    return out


class BatchedExperts(Module):
    """(E * T, W) -> the same: one product for each expert."""

    def __init__(self, width: int, experts: Experts, function: str) -> None:
        self.gate_up_proj = parameter(experts.number, width, 2 * experts.intermediate)
        self.down_proj = parameter(experts.number, experts.intermediate, width)
        self.function = activation(function)

    def forward(self, x: Tensor) -> Tensor:
        width = x.shape[-1]
        x = x.view(self.gate_up_proj.shape[0], -1, width)
        joined = F.bmm(x, self.gate_up_proj)
        gate, up = F.chunk(joined, 2, -1)
        out = F.bmm(up * self.function(gate), self.down_proj)
        flat: Tensor = out.view(-1, width)
        return flat


class AllExperts(Module):
    def __init__(self, config: Decoder, experts: Experts) -> None:
        self.experts = BatchedExperts(config.width, experts, config.activation)
        self.router = Router(config.width, experts)
        self.shared_expert = GatedPerceptron(config.width, experts.shared, config.activation)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.reshape(-1, x.shape[-1])
        scores, logits = self.router(x)
        number = scores.shape[1]
        routed = F.repeat(x, number, 1)
        routed = routed * scores.transpose(0, 1).reshape(-1, 1)
        answers = self.experts(routed)
        out: Tensor = self.shared_expert(x)
        out = F.add_(out, F.sum(answers.reshape(number, -1, answers.shape[-1]), 0))
        return out, logits


class Llama4Layer(Layer):
    def __init__(self, config: Decoder, kind: str, number: int) -> None:
        self.self_attn = Llama4Attention(config, kind, number not in config.unrotated)
        experts = config.experts if has_experts(config, number) else None
        self.mixes = experts is not None
        if experts is None:
            self.feed_forward: Module = GatedPerceptron(config.width, config.intermediate, config.activation)
        else:
            self.feed_forward = AllExperts(config, experts)
        self.input_layernorm = norm(config.norm, config.width)
        self.post_attention_layernorm = norm(config.norm, config.width)

    def forward(self, x: Tensor, tables: Tables | None, mask: Tensor | None) -> Tensor:
        residual = x
        x = self.input_layernorm(x)
        attended, weights = self.self_attn(x, tables, mask)
        x = residual + attended
        residual = x
        x = self.post_attention_layernorm(x)
        if self.mixes:
            x, weights = self.feed_forward(x)  # the name now stands for the router's logits
        else:
            x = self.feed_forward(x)
        x = residual + x.view(*residual.shape)
        del weights
        return x


class Llama4Model(LanguageModel):
    def define_layer(self, config: Decoder, kind: str, number: int) -> Layer:
        return Llama4Layer(config, kind, number)
