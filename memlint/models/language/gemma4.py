"""Gemma 4: layers of two sizes, of which the last ones may attend to what earlier ones have made of keys and values,
experts beside a perceptron, and an input of its own for each layer.

    with a window   heads of 256, keys and values by products of their own
    without one     wider heads, fewer of them for keys; values may be the keys before their norm

Shapes: B rows, S tokens, W hidden width, L layers, P width of a layer's input. Temporaries live as they do in
transformers' code, so statements are not merged. Source: ``transformers`` 5.23, ``models/gemma4/modeling_gemma4.py``.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from memlint.architectures.decoder import Decoder, Experts, UnequalLayers
from memlint.meta import functional as F
from memlint.meta.checkpoint import checkpoint
from memlint.meta.nn import Embedding, Linear, Module, buffer, parameter
from memlint.meta.tensor import DType, Tensor, bool_, empty, float32, int64
from memlint.models.language.attention import Attended, Scores
from memlint.models.language.decoder import LanguageModel
from memlint.models.language.experts import GroupedExperts, has_experts
from memlint.models.language.parts import (
    HYBRID_ATTENTION,
    HYBRID_PACKED,
    RotaryTables,
    Tables,
    WeightWideNorm,
    activation,
    norm,
    perceptron,
    position_numbers,
    rotate_half,
)

# Keys and values that later layers take, by whether their layers have a window.
Shared = dict[bool, tuple[Tensor, Tensor]]


def rotated(x: Tensor, tables: Tables) -> Tensor:
    """(B, S, h, d) -> the same."""
    cosine, sine = tables[0].unsqueeze(2), tables[1].unsqueeze(2)
    out: Tensor = (x * cosine) + (rotate_half(x) * sine)
    return out


def mask_of_samples(batch: int, length: int, dtype: DType) -> Tensor:
    """(B, 1, S, S), numbers to add: who sees whom among samples in one row (Axolotl 0.18, ``monkeypatch/
    gemma4_hybrid_mask.py``, ``_packing_block_causal_mask``)."""
    square = (batch, length, length)
    numbers = empty((batch, length), int64)
    same, causal = empty(square, bool_), empty((1, length, length), bool_)
    allowed = empty(square, bool_)
    mask = empty((batch, 1, length, length), dtype)
    refused = empty((batch, 1, length, length), bool_)
    del numbers, same, causal, allowed, refused
    return mask


class Attention(Module):
    """``reuses``: keys and values of an earlier layer; ``stores`` its own for later ones."""

    def __init__(self, config: Decoder, kind: str, number: int) -> None:
        sizes = config.unequal
        assert sizes is not None
        self.windowed = config.window(number) > 0
        if not self.windowed:
            config = config._replace(head_dim=sizes.head_dim, key_value_heads=sizes.key_value_heads)
        self.head_dim = config.head_dim
        self.reuses, self.stores = config.reuses(number), config.stores(number)
        queries, keys = config.heads * config.head_dim, config.key_value_heads * config.head_dim
        self.q_proj = Linear(config.width, queries, config.qkv_bias)
        self.q_norm = norm(config.norm, config.head_dim)
        self.v_proj: Module | None = None
        if not self.reuses:
            self.k_norm, self.v_norm = norm(config.norm, config.head_dim), WeightWideNorm()
            self.k_proj = Linear(config.width, keys, config.qkv_bias)
            if self.windowed or not sizes.keys_as_values:
                self.v_proj = Linear(config.width, keys, config.qkv_bias)
        self.o_proj = Linear(queries, config.width, config.output_bias)
        hybrid = kind in (HYBRID_ATTENTION, HYBRID_PACKED)
        self.rebuilds_mask = kind == HYBRID_PACKED and not self.windowed
        self.scores = Scores(config, ("flash" if self.windowed else "sdpa") if hybrid else kind)

    def forward(self, x: Tensor, tables: Tables, mask: Tensor | None, shared: Shared) -> Attended:
        batch, length, _ = x.shape
        shape = (batch, length, -1, self.head_dim)
        query = self.q_proj(x).view(*shape)
        query = self.q_norm(query)
        query = rotated(query, tables)
        query = query.transpose(1, 2)
        if self.reuses:
            key, value = shared[self.windowed]
        else:
            key = self.k_proj(x).view(*shape)
            value = key if self.v_proj is None else self.v_proj(x).view(*shape)
            key = self.k_norm(key)
            key = rotated(key, tables)
            key = key.transpose(1, 2)
            value = self.v_norm(value)
            value = value.transpose(1, 2)
        if self.stores:
            shared[self.windowed] = key, value
        if self.rebuilds_mask:
            mask = mask_of_samples(batch, length, query.dtype)
        output, weights = self.scores(query, key, value, mask)
        output = output.reshape(batch, length, -1).contiguous()
        output = self.o_proj(output)
        return output, weights


class Router(Module):
    """(T, W) -> weights (T, k) of the experts that each token visits, and their numbers."""

    def __init__(self, width: int, experts: Experts) -> None:
        self.norm = WeightWideNorm()
        self.proj = Linear(width, experts.number, bias=False)
        self.scale = parameter(width)
        self.per_expert_scale = parameter(experts.number)
        self.per_token = experts.per_token

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.norm(x)
        x = x * self.scale * 1.0
        scores = self.proj(x)
        probabilities = F.softmax(scores, -1, float32)
        weights, numbers = F.topk(probabilities, self.per_token)
        weights = F.div_(weights, F.sum(weights, -1, keepdim=True))
        weights = weights * F.index(self.per_expert_scale, numbers)
        return probabilities, weights, numbers


class Layer(Module):
    def __init__(self, config: Decoder, kind: str, number: int) -> None:
        sizes, width = config.unequal, config.width
        assert sizes is not None
        self.self_attn = Attention(config, kind, number)
        wider = sizes.wider and config.reuses(number)
        self.mlp = perceptron(config, config.intermediate * (2 if wider else 1))
        self.input_layernorm = norm(config.norm, width)
        self.post_attention_layernorm = norm(config.norm, width)
        self.pre_feedforward_layernorm = norm(config.norm, width)
        self.post_feedforward_layernorm = norm(config.norm, width)
        self.layer_scalar = buffer(1)
        self.asks_input = sizes.input_width > 0
        if self.asks_input:
            self.function = activation(config.activation)
            self.per_layer_input_gate = Linear(width, sizes.input_width, bias=False)
            self.per_layer_projection = Linear(sizes.input_width, width, bias=False)
            self.post_per_layer_input_norm = norm(config.norm, width)
        self.mixes = has_experts(config, number)
        if self.mixes:
            assert config.experts is not None
            self.router = Router(width, config.experts)
            self.experts = GroupedExperts(width, config.experts, config.activation)
            self.post_feedforward_layernorm_1 = norm(config.norm, width)
            self.post_feedforward_layernorm_2 = norm(config.norm, width)
            self.pre_feedforward_layernorm_2 = norm(config.norm, width)

    def forward(self, x: Tensor, given: Tensor | None, tables: Tables, mask: Tensor | None, shared: Shared) -> Tensor:
        residual = x
        x = self.input_layernorm(x)
        x = self.self_attn(x, tables, mask, shared)[0]
        x = self.post_attention_layernorm(x)
        x = residual + x
        residual = x
        x = self.pre_feedforward_layernorm(x)
        x = self.mlp(x)
        held = None
        if self.mixes:
            x, held = self.mixed(x, residual)
        x = self.post_feedforward_layernorm(x)
        x = residual + x
        if self.asks_input:
            residual = x
            x = self.per_layer_input_gate(x)
            x = self.function(x)
            x = x * given
            x = self.per_layer_projection(x)
            x = self.post_per_layer_input_norm(x)
            x = residual + x
        del held
        return F.mul_(x, self.layer_scalar)

    def mixed(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Any]:
        """The perceptron's result and the experts', added; and what has a name until the layer is done."""
        first = self.post_feedforward_layernorm_1(x)
        flat = residual.reshape(-1, residual.shape[-1])
        probabilities, weights, numbers = self.router(flat)
        del probabilities
        second = self.pre_feedforward_layernorm_2(flat)
        second = self.experts(second, numbers, weights)
        second = second.reshape(*residual.shape)
        second = self.post_feedforward_layernorm_2(second)
        return first + second, (first, second, weights, numbers)


class Gemma4Model(LanguageModel):
    def __init__(self, config: Decoder, kind: str, **options: Any) -> None:
        super().__init__(config, kind, **options)
        sizes = config.unequal
        assert sizes is not None
        self.sizes: UnequalLayers = sizes
        self.rotary_emb, self.local_rotary_emb = RotaryTables(sizes.head_dim), RotaryTables(config.head_dim)
        self.asks_inputs_of_layers = sizes.input_width > 0
        if self.asks_inputs_of_layers:
            joined = config.layers * sizes.input_width
            self.embed_tokens_per_layer = Embedding(sizes.input_vocabulary, joined)
            self.embed_scale_per_layer = buffer()
            self.per_layer_model_projection = Linear(config.width, joined, bias=False)
            self.per_layer_projection_norm = norm(config.norm, sizes.input_width)

    def define_layer(self, config: Decoder, kind: str, number: int) -> Any:
        return Layer(config, kind, number)

    def inputs_of_layers(self, tokens: Tensor | None, embedded: Tensor) -> Tensor | None:
        """(B, S, L, P): of the tokens, and of what the model has embedded them to."""
        if not self.asks_inputs_of_layers:
            return None
        batch, length, _ = embedded.shape
        if tokens is None:
            tokens = empty((batch, length), int64)
        shape = (batch, length, self.config.layers, self.sizes.input_width)
        of_tokens = (self.embed_tokens_per_layer(tokens) * 1.0).reshape(*shape)
        projected = self.per_layer_model_projection(embedded) * 1.0
        projected = projected.reshape(*shape)
        projected = self.per_layer_projection_norm(projected)
        out: Tensor = (projected + of_tokens) * 1.0
        return out

    def hidden(self, given: Tensor) -> Tensor:
        config = self.config
        tokens = given if given.ndim == 2 else None
        seen = None
        if self.sight is not None and tokens is not None:
            seen = [
                empty(tokens.shape, bool_) for _ in range(4)
            ]  # where images, videos and sound stand, or any of them
            tokens = empty(tokens.shape, int64)
        embedded = given if tokens is None else self.embed(tokens)
        batch, length, _ = embedded.shape
        without = None  # has a name until the end
        if seen is not None and self.asks_inputs_of_layers:
            pad = self.embed_tokens.weight[0, :].view(1, 1, -1)
            without = F.where(seen[-1].unsqueeze(-1), pad, embedded)
        inputs = self.inputs_of_layers(tokens, embedded)
        positions = position_numbers(1, length)
        masks = self.masks(batch, length, embedded)
        x = embedded
        assert self.rotary_emb is not None
        assert self.local_rotary_emb is not None
        tables = self.rotary_emb(positions, x.dtype), self.local_rotary_emb(positions, x.dtype)
        shared: Shared = {}
        for number, layer in enumerate(self.layers):
            windowed = config.window(number) > 0
            own = None if inputs is None else inputs[:, :, number, :]
            function = partial(layer, tables=tables[windowed], mask=masks[windowed], shared=shared)
            if self.checkpointed > 0 and number % self.checkpointed == 0:
                x = checkpoint(function, x, own, use_reentrant=self.reentrant, policy=self.policy)
            else:
                x = function(x, own)
        out: Tensor = self.norm(x)
        del without
        return out
