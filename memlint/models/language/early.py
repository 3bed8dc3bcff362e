"""Decoders whose layers are their own: BLOOM, MPT, Falcon, GPT-J, CodeGen and GPT-Neo.

Shapes: B rows, S tokens, W hidden width, h heads of d. Temporaries live as they do in transformers' code, so statements
are not merged, and modules that adapters go by have its names.
Source: ``transformers`` 5.23, ``models/{bloom,mpt,falcon,gptj,codegen,gpt_neo}/modeling_*.py``.
"""

from __future__ import annotations

from typing import Any

from memlint.architectures.decoder import Decoder
from memlint.meta import functional as F
from memlint.meta.amp import lower, to
from memlint.meta.autograd import no_grad, record, tracked
from memlint.meta.nn import LayerNorm, Linear, Module, buffer
from memlint.meta.tensor import Tensor, bool_, empty, empty_like, float32, int64
from memlint.models.language.attention import Attended, Attention
from memlint.models.language.decoder import LanguageModel, Layer, ParallelLayer
from memlint.models.language.parts import (
    NoNorm,
    WeightNorm,
    activation,
    attention_mask,
    perceptron,
    position_numbers,
    rotate,
    rotate_pairs,
)


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


class EarlyModel(LanguageModel):
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


class BiasedModel(EarlyModel):
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


# ---------------------------------------------------------------------------------------------------------- BLOOM


def biases_of_rows(x: Tensor, heads: int) -> Tensor:
    """(B * h, 1, S): places are counted from the mask of padding (``build_alibi_tensor``)."""
    batch, length, _ = x.shape
    places = empty((batch, length), int64)
    biases = empty((batch, heads, length), float32)
    del places
    out: Tensor = to(biases.reshape(batch * heads, 1, length), x.dtype)
    return out


def biased_bmm(bias: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """``bias.baddbmm(x, y, alpha=...)``, (rows, n, k) @ (rows, k, m): the bias gets no gradient, the gradients of the
    others are products that the constant is then multiplied into."""
    y = lower(y)
    x = lower(x)
    bias = lower(bias)
    out = Tensor((x.shape[0], x.shape[1], y.shape[2]), x.dtype)
    if tracked(x, y):
        a, b = (x.shape, x.dtype), (y.shape, y.dtype)
        need_x, need_y = x.requires_grad, y.requires_grad

        def scaled(kind: Any) -> Tensor:
            product = Tensor(*kind)
            return empty_like(product)

        def backward(g: Tensor) -> tuple[Tensor | None, Tensor | None]:
            gx = scaled(a) if need_x else None
            return gx, scaled(b) if need_y else None

        record(out, (x, y), (y if need_x else None, x if need_y else None), backward)
    return out


def recomputing_gelu(x: Tensor) -> Tensor:
    """A function of its own that keeps only its input; both passes are written out (``GeLUFunction``)."""
    with no_grad():
        out = x * 0.5 * (F.tanh(x * 0.79788456 * (x * 0.044715 * x + 1.0)) + 1.0)
    if tracked(x):
        shape, dtype = x.shape, x.dtype

        def op(*operands: Tensor) -> Tensor:
            """An elementwise operation; operands that are made in place of an argument live until it is done."""
            return Tensor(shape, dtype)

        def backward(g: Tensor) -> tuple[Tensor]:
            tanh = op(op(op(), op(op(op()))))
            slope = op(op(op(), op(op(op(tanh, tanh)), op(op(op())))), op(op(tanh)))
            return (op(slope, g),)

        record(out, (x,), (x,), backward)
    return out


class BloomAttention(Module):
    def __init__(self, config: Decoder) -> None:
        self.heads, self.head_dim = config.heads, config.head_dim
        self.dropout, self.residual_dropout = config.attention_dropout, config.residual_dropout
        self.query_key_value = Linear(config.width, 3 * config.heads * config.head_dim)
        self.dense = Linear(config.heads * config.head_dim, config.width)

    def forward(self, x: Tensor, residual: Tensor, biases: Tensor, mask: Tensor | None) -> Attended:
        batch, length, _ = x.shape
        joined = self.query_key_value(x)
        parts = joined.view(batch, length, self.heads, 3, self.head_dim)
        query = parts[..., 0, :].transpose(1, 2)
        key = parts[..., 1, :].transpose(1, 2)
        value = parts[..., 2, :].transpose(1, 2)
        query = query.reshape(batch * self.heads, -1, self.head_dim)
        key = key.reshape(batch * self.heads, -1, self.head_dim).transpose(-1, -2)
        value = value.reshape(batch * self.heads, -1, self.head_dim)
        scores = biased_bmm(biases, query, key)
        weights = scores.view(batch, self.heads, length, -1)
        if mask is not None:
            weights = weights + mask
        kept = to(F.softmax(weights, -1, float32), query.dtype)
        kept = F.dropout(kept, self.dropout, self.training)
        context = F.bmm(kept.view(batch * self.heads, length, -1), value)
        context = context.view(batch, self.heads, length, self.head_dim).permute(0, 2, 1, 3)
        context = context.reshape(batch, length, self.heads * self.head_dim)
        out = self.dense(context)
        out = dropout_add(out, residual, self.residual_dropout, self.training)
        del joined, parts, key, scores
        return out, kept


class BloomPerceptron(Module):
    def __init__(self, config: Decoder) -> None:
        self.dropout = config.residual_dropout
        self.dense_h_to_4h = Linear(config.width, config.intermediate)
        self.dense_4h_to_h = Linear(config.intermediate, config.width)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        x = recomputing_gelu(self.dense_h_to_4h(x))
        made = self.dense_4h_to_h(x)
        return dropout_add(made, residual, self.dropout, self.training)


class BloomLayer(Layer):
    def __init__(self, config: Decoder, kind: str, number: int) -> None:
        self.input_layernorm = LayerNorm(config.width)
        self.self_attn = BloomAttention(config)
        self.post_attention_layernorm = LayerNorm(config.width)
        self.mlp = BloomPerceptron(config)

    def forward(self, x: Tensor, tables: Any, mask: Tensor | None) -> Any:
        normed = self.input_layernorm(x)
        attended, weights = self.self_attn(normed, x, tables, mask)
        normed = self.post_attention_layernorm(attended)
        out: Tensor = self.mlp(normed, attended)
        return beside(out, weights)


class BloomModel(BiasedModel):
    def __init__(self, config: Decoder, kind: str, **options: Any) -> None:
        super().__init__(config, kind, **options)
        self.word_embeddings_layernorm = LayerNorm(config.width)

    def define_layer(self, config: Decoder, kind: str, number: int) -> Layer:
        return BloomLayer(config, kind, number)

    def first(self, x: Tensor) -> Tensor:
        normed: Tensor = self.word_embeddings_layernorm(x)
        return normed

    def biases(self, x: Tensor) -> Tensor:
        return biases_of_rows(x, self.config.heads)


# ------------------------------------------------------------------------------------------------------------ MPT


class MptAttention(Module):
    def __init__(self, config: Decoder) -> None:
        self.heads, self.head_dim = config.heads, config.head_dim
        self.clipped, self.dropout = config.clipped, config.attention_dropout
        self.Wqkv = Linear(config.width, 3 * config.heads * config.head_dim, bias=False)
        self.out_proj = Linear(config.heads * config.head_dim, config.width, bias=False)

    def forward(self, x: Tensor, biases: Tensor, mask: Tensor) -> Attended:
        batch, length, _ = x.shape
        joined = self.Wqkv(x)
        if self.clipped:
            joined = F.clamp(joined, 2)
        query, key, value = F.chunk(joined, 3, 2)
        query = query.reshape(batch, length, self.heads, self.head_dim).transpose(1, 2)
        key = key.reshape(batch, length, self.heads, self.head_dim).transpose(1, 2)
        value = value.reshape(batch, length, self.heads, self.head_dim).transpose(1, 2)
        scores = F.matmul(query, key.transpose(-1, -2)) * 1.0
        scores = scores + F.narrow(biases, 2, length)
        scores = F.masked_fill(scores, mask)
        weights = to(F.softmax(to(scores, float32), -1), value.dtype)
        weights = F.dropout(weights, self.dropout, self.training)
        context = F.matmul(weights, value)
        context = context.permute(0, 2, 1, 3).contiguous().view(batch, length, -1)
        out = self.out_proj(context)
        del joined
        return out, weights


class MptPerceptron(Module):
    def __init__(self, config: Decoder) -> None:
        self.dropout = config.attention_dropout
        self.up_proj = Linear(config.width, config.intermediate, bias=False)
        self.down_proj = Linear(config.intermediate, config.width, bias=False)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        x = F.gelu(self.up_proj(x))
        made = self.down_proj(x)
        out = F.dropout(made, self.dropout, self.training)
        out = out + residual
        return out


class MptLayer(Layer):
    def __init__(self, config: Decoder, kind: str, number: int) -> None:
        self.input_layernorm = WeightNorm(config.width)
        self.self_attn = MptAttention(config)
        self.post_attention_layernorm = WeightNorm(config.width)
        self.mlp = MptPerceptron(config)
        self.dropout = config.attention_dropout

    def forward(self, x: Tensor, tables: Any, mask: Tensor | None) -> Any:
        normed = self.input_layernorm(x)
        residual = x
        attended, weights = self.self_attn(normed, tables, mask)
        x = F.dropout(attended, self.dropout, self.training) + residual
        normed = self.post_attention_layernorm(x)
        residual = x
        out: Tensor = self.mlp(normed, residual)
        return beside(out, weights)


class MptModel(BiasedModel):
    def define_layer(self, config: Decoder, kind: str, number: int) -> Layer:
        return MptLayer(config, kind, number)

    def biases(self, x: Tensor) -> Tensor:
        """(h, 1, longest), in fp32, and so are the scores that they are added to."""
        return empty((self.config.heads, 1, max(self.config.context, x.shape[1])), float32)

    def scores_mask(self, x: Tensor) -> Tensor | None:
        mask = super().scores_mask(x)
        assert mask is not None
        return empty(mask.shape, bool_)


# --------------------------------------------------------------------------------------------------------- Falcon


class PlainLinear(Linear):
    """A product, and a sum that is not part of it (``FalconLinear``)."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = F.matmul(x, self.weight.transpose(0, 1))
        return out if self.bias is None else out + self.bias


def picked(x: Tensor, dim: int) -> Tensor:
    """One entry along a dimension that a list names: a copy. Its gradient is put into zeros."""
    index = empty((1,), int64)
    out = Tensor((*x.shape[:dim], 1, *x.shape[dim + 1 :]), x.dtype)
    if tracked(x):
        shape, dtype = x.shape, x.dtype
        record(out, (x,), (index,), lambda g: (Tensor(shape, dtype),))
    return out


class FalconAttention(Module):
    """Queries, keys and values from one product: three of each head, or one key and value for groups of heads, or for
    all of them. Grouped heads are repeated; a single one is not."""

    def __init__(self, config: Decoder, kind: str) -> None:
        self.heads, self.keys, self.head_dim = config.heads, config.key_value_heads, config.head_dim
        self.kind, self.grouped = kind, config.grouped
        self.dropout = config.attention_dropout
        made = (config.heads + 2 * config.key_value_heads) * config.head_dim
        self.query_key_value = PlainLinear(config.width, made, config.qkv_bias)
        self.dense = PlainLinear(config.heads * config.head_dim, config.width, config.qkv_bias)

    def parts(self, joined: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, S, heads, d) each."""
        batch, length, _ = joined.shape
        if self.grouped:
            parts = joined.view(batch, length, -1, self.heads // self.keys + 2, self.head_dim)
            query = parts[:, :, :, :-2]
            key, value = picked(parts, 3), picked(parts, 3)
            key, value = key.expand(*query.shape), value.expand(*query.shape)
            query, key, value = [x.flatten(2, 3) for x in (query, key, value)]
            return query, key, value
        if self.keys == self.heads:
            parts = joined.view(batch, length, self.heads, 3, self.head_dim)
            return parts[..., 0, :], parts[..., 1, :], parts[..., 2, :]
        parts = joined.view(batch, length, self.heads + 2, self.head_dim)
        return parts[..., :-2, :], picked(parts, 2), picked(parts, 2)

    def forward(self, x: Tensor, tables: Any, mask: Tensor | None) -> Attended:
        batch, length, _ = x.shape
        *tables, biases = tables
        joined = self.query_key_value(x)
        query, key, value = self.parts(joined)
        query = query.transpose(1, 2).reshape(batch, self.heads, length, self.head_dim)
        key = key.transpose(1, 2).reshape(batch, key.shape[2], length, self.head_dim)
        value = value.transpose(1, 2).reshape(batch, value.shape[2], length, self.head_dim)
        if biases is None:
            query, key = rotate(query, key, (tables[0], tables[1]))
        weights = None
        if self.kind == "eager" and biases is None:
            weights = F.matmul(query, key.transpose(-1, -2))
            weights = F.div_(weights, 1.0)
            weights = F.softmax(weights + mask, -1, x.dtype)
            output = F.matmul(weights, value)
        elif self.kind == "eager":
            output, weights = self.biased(query, key, value, biases, mask, x)
        else:
            backend = {"flash": "flash", "xformers": "efficient"}.get(self.kind, "")
            dropout = self.dropout if self.training and biases is not None else 0.0
            output = F.scaled_dot_product_attention(
                query, key, value, mask, backend=backend, dropout=dropout, grouped=False
            )
        output = output.permute(0, 2, 1, 3)
        output = output.reshape(batch, length, self.heads * self.head_dim)
        output = self.dense(output)
        del joined
        return output, weights

    def biased(
        self, query: Tensor, key: Tensor, value: Tensor, biases: Tensor, mask: Tensor | None, x: Tensor
    ) -> tuple[Tensor, Tensor]:
        """In fp32 until the softmax, which has the dtype of the layer's input."""
        product = F.matmul(query, key.transpose(-1, -2))
        scores = to(product, float32) if product.dtype.itemsize == 2 else product
        logits = scores + biases
        logits = F.div_(logits, 1.0)
        weights = F.softmax(logits + mask, -1, x.dtype)
        weights = F.dropout(weights, self.dropout, self.training)
        return F.matmul(weights, value), weights


class FalconPerceptron(Module):
    def __init__(self, config: Decoder) -> None:
        self.function = activation(config.activation)
        self.dense_h_to_4h = PlainLinear(config.width, config.intermediate, config.perceptron_bias)
        self.dense_4h_to_h = PlainLinear(config.intermediate, config.width, config.perceptron_bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.function(self.dense_h_to_4h(x))
        x = self.dense_4h_to_h(x)
        return x


class FalconLayer(Layer):
    """``residual``: "parallel" (one norm for both blocks), "parallel_two" (one for each), or "pre"."""

    def __init__(self, config: Decoder, kind: str, number: int) -> None:
        self.self_attn = FalconAttention(config, kind)
        self.mlp = FalconPerceptron(config)
        self.residual = config.residual
        self.dropout, self.attention_dropout = config.residual_dropout, config.attention_dropout
        self.input_layernorm = LayerNorm(config.width)
        self.post_attention_layernorm = LayerNorm(config.width) if config.residual != "parallel" else NoNorm()

    def forward(self, x: Tensor, tables: Any, mask: Tensor | None) -> Any:
        residual = x
        normed = self.input_layernorm(x)
        second = normed
        if self.residual == "parallel_two":
            second = self.post_attention_layernorm(x)
        attended, weights = self.self_attn(normed, tables, mask)
        if self.residual == "pre":
            residual = dropout_add(attended, residual, self.attention_dropout, self.training)
            second = self.post_attention_layernorm(residual)
        fed = self.mlp(second)
        if self.residual != "pre":
            fed = F.add_(fed, attended)
        out = dropout_add(fed, residual, self.dropout, self.training)
        return beside(out, weights)


class FalconModel(EarlyModel):
    """The mask is always made, for SDPA as well; with biases they are part of it, so it has one layer per head."""

    def define_layer(self, config: Decoder, kind: str, number: int) -> Layer:
        return FalconLayer(config, kind, number)

    def states(self, given: Tensor) -> Tensor:
        embedded = self.embed(given) if given.ndim == 2 else given
        if self.prompt is not None:
            embedded = F.cat((self.prompt(embedded.shape[0], embedded.dtype), embedded), 1)
        batch, length, _ = embedded.shape
        biases = biases_of_rows(embedded, self.config.heads) if self.config.alibi else None
        positions = position_numbers(1, length)
        mask = attention_mask(self.kind, batch, length, embedded.dtype, 0, True)
        if biases is not None and mask is not None:
            if not mask.dtype.is_floating:
                mask = empty(mask.shape, embedded.dtype)
            biases = biases.view(batch, -1, 1, length)
            scaled = biases * 1.0
            hidden = empty(mask.shape, bool_)
            mask = empty((batch, self.config.heads, length, length), embedded.dtype)
            del scaled, hidden
        assert self.rotary_emb is not None
        tables = (*self.rotary_emb(positions, embedded.dtype), biases)
        x = embedded
        for number, layer in enumerate(self.layers):
            recomputed = self.checkpointed > 0 and number % self.checkpointed == 0
            x = self.through(layer, recomputed, x, tables, mask)
        out: Tensor = self.norm(x)
        return out


# ------------------------------------------------------------------------------- GPT-J, CodeGen and GPT-Neo


class WideScores(Module):
    """(B, h, S, d) each -> (B, h, S, d): queries and keys are brought to fp32, and so are the scores.

    ``causal``: the square of a table of which tokens see which, where the model has its own.
    """

    def __init__(self, config: Decoder, kind: str) -> None:
        self.kind, self.code = kind, config.code
        self.dropout = config.attention_dropout

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: Tensor | None = None
    ) -> Attended:
        if self.kind == "flash":
            return F.scaled_dot_product_attention(query, key, value, backend="flash"), None
        query, key = to(query, float32), to(key, float32)
        weights = F.matmul(query, key.transpose(-1, -2))
        if causal is not None:
            lowest = empty((), float32)
            weights = F.masked_fill(weights, causal)
            del lowest
        if self.code == "gptj":
            weights = weights / 1.0
        if mask is not None:
            weights = weights + mask
        if self.code == "codegen":
            weights = weights / 1.0
        weights = F.softmax(weights, -1)
        weights = to(weights, value.dtype)
        weights = F.dropout(weights, self.dropout, self.training)
        return F.matmul(weights, value), weights


def merged(output: Tensor) -> Tensor:
    """(B, h, S, d) -> (B, S, h * d)."""
    batch, _, length, _ = output.shape
    out: Tensor = output.permute(0, 2, 1, 3).contiguous().view(batch, length, -1)
    return out


class GptjAttention(Attention):
    """Pairs of neighbours are rotated with a table of the layer's own."""

    def define(self, config: Decoder) -> None:
        width = config.heads * config.head_dim
        self.heads, self.rotary_dim = config.heads, config.rotary_dim
        self.k_proj = Linear(config.width, width, bias=False)
        self.v_proj = Linear(config.width, width, bias=False)
        self.q_proj = Linear(config.width, width, bias=False)
        self.out_proj = Linear(width, config.width, bias=False)
        self.embed_positions = buffer(config.context, config.rotary_dim or config.width)
        self.wide_scores = WideScores(config, self.scores.kind)

    def table(self, length: int, key: Tensor) -> tuple[Any, ...]:
        """Sine and cosine, (1, S, dim / 2) each in the keys' dtype, and what lives beside them."""
        everything = empty((1, *self.embed_positions.shape), float32)
        places = empty((1, length, everything.shape[-1]), int64)
        found = to(empty(places.shape, float32), key.dtype)
        return found, everything, places

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shape = (*x.shape[:-1], -1, self.head_dim)
        query = self.q_proj(x)
        key = self.k_proj(x)
        value = self.v_proj(x)
        query = query.view(*shape)
        key = key.view(*shape)
        value = value.view(*shape).permute(0, 2, 1, 3)
        return query, key, value

    def forward(self, x: Tensor, tables: Any, mask: Tensor | None) -> Attended:
        query, key, value = self.project(x)
        table = self.table(x.shape[1], key)
        if self.rotary_dim:
            key_part, key_rest = key[..., : self.rotary_dim], key[..., self.rotary_dim :]
            query_part, query_rest = query[..., : self.rotary_dim], query[..., self.rotary_dim :]
            key_part = rotate_by(key_part, table[0])
            query_part = rotate_by(query_part, table[0])
            key = F.cat((key_part, key_rest), -1)
            query = F.cat((query_part, query_rest), -1)
        else:
            key = rotate_by(key, table[0])
            query = rotate_by(query, table[0])
        key = key.permute(0, 2, 1, 3)
        query = query.permute(0, 2, 1, 3)
        output, weights = self.wide_scores(query, key, value, mask)
        output = merged(output)
        output = self.out_proj(output)
        return output, weights


def rotate_by(x: Tensor, table: Tensor) -> Tensor:
    """(B, S, h, dim); ``table`` (1, S, dim) is sine and cosine of the pairs, each of which is repeated."""
    shape = (1, x.shape[1], 1, x.shape[3])
    sine, cosine = empty(shape, table.dtype), empty(shape, table.dtype)
    out: Tensor = (x * cosine) + (rotate_pairs(x) * sine)
    return out


class CodegenAttention(GptjAttention):
    """One product in four parts, of which each has queries, values and keys of some heads; the table stays in fp32, and
    so does what it rotated."""

    PARTS = 4

    def define(self, config: Decoder) -> None:
        width = config.heads * config.head_dim
        self.heads, self.rotary_dim = config.heads, config.rotary_dim
        self.qkv_proj = Linear(config.width, 3 * width, bias=False)
        self.out_proj = Linear(width, config.width, bias=False)
        self.embed_positions = buffer(config.context, config.rotary_dim or config.width)
        self.wide_scores = WideScores(config, "eager")

    def table(self, length: int, key: Tensor) -> tuple[Any, ...]:
        return (empty((1, length, self.embed_positions.shape[-1]), float32),)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        joined = self.qkv_proj(x)
        parts = joined.reshape(*x.shape[:-1], self.PARTS, -1)
        query, value, key = F.split(parts, parts.shape[-1] // 3, -1)
        query, key = self.by_heads(query), self.by_heads(key)
        value = self.by_heads(value).permute(0, 2, 1, 3)
        return query, key, value

    def by_heads(self, x: Tensor) -> Tensor:
        x = x.reshape(*x.shape[:-1], -1, self.head_dim)
        out: Tensor = x.reshape(*x.shape[:2], -1, self.head_dim)
        return out


class GptNeoAttention(Attention):
    """Every layer keeps a square of which tokens see which; scores are not divided by anything."""

    def define(self, config: Decoder) -> None:
        self.bias = buffer(1, 1, config.context, config.context, dtype=bool_)
        width = config.heads * config.head_dim
        self.k_proj = Linear(config.width, width, bias=False)
        self.v_proj = Linear(config.width, width, bias=False)
        self.q_proj = Linear(config.width, width, bias=False)
        self.out_proj = Linear(width, config.width, bias=True)
        self.wide_scores = WideScores(config, self.scores.kind)

    def forward(self, x: Tensor, tables: Any, mask: Tensor | None) -> Attended:
        length = x.shape[1]
        shape = (*x.shape[:-1], -1, self.head_dim)
        query = self.q_proj(x)
        key = self.k_proj(x)
        value = self.v_proj(x)
        query = query.view(*shape).permute(0, 2, 1, 3)
        key = key.view(*shape).permute(0, 2, 1, 3)
        value = value.view(*shape).permute(0, 2, 1, 3)
        causal = self.bias[:, :, :length, :length]
        output, weights = self.wide_scores(query, key, value, mask, causal)
        output = merged(output)
        output = self.out_proj(output)
        return output, weights


class GptjLayer(ParallelLayer):
    def __init__(self, config: Decoder, kind: str, number: int) -> None:
        kinds = {"gptj": GptjAttention, "codegen": CodegenAttention}
        self.self_attn = kinds[config.code](config, kind, rotates=False)
        self.mlp = perceptron(config)
        self.dropout = config.residual_dropout
        self.define(config)

    def forward(self, x: Tensor, tables: Any, mask: Tensor | None) -> Any:
        residual = x
        x = self.input_layernorm(x)
        attended, weights = self.self_attn(x, tables, mask)
        attended = F.dropout(attended, self.dropout, self.training)
        fed = self.mlp(x)
        fed = F.dropout(fed, self.dropout, self.training)
        x = attended + fed + residual
        return beside(x, weights)


class GptNeoLayer(Layer):
    def __init__(self, config: Decoder, kind: str, number: int) -> None:
        self.self_attn = GptNeoAttention(config, kind, rotates=False)
        self.mlp = perceptron(config)
        self.dropout, self.mlp_dropout = config.residual_dropout, 0.0
        self.scaled = False
        self.define(config)

    def forward(self, x: Tensor, tables: Any, mask: Tensor | None) -> Any:
        residual = x
        x = self.input_layernorm(x)
        attended, weights = self.self_attn(x, tables, mask)
        attended = F.dropout(attended, self.dropout, self.training)
        x = attended + residual
        residual = x
        x = self.post_attention_layernorm(x)
        x = residual + self.mlp(x)
        return beside(x, weights)


class GptjModel(EarlyModel):
    def define_layer(self, config: Decoder, kind: str, number: int) -> Layer:
        return GptjLayer(config, kind, number)


class GptNeoModel(EarlyModel):
    def define_layer(self, config: Decoder, kind: str, number: int) -> Layer:
        return GptNeoLayer(config, kind, number)


MODELS: dict[str, type[LanguageModel]] = {
    "bloom": BloomModel,
    "codegen": GptjModel,
    "falcon": FalconModel,
    "gpt_neo": GptNeoModel,
    "gptj": GptjModel,
    "mpt": MptModel,
}
