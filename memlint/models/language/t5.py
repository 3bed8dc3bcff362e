"""T5, as transformers' eager code computes it: an encoder-decoder whose attention adds a learned number per head and
distance, so its scores cannot go through FlashAttention.

Shapes: B rows, S tokens, T output tokens, W hidden width, h heads of d, V vocabulary.
Source: ``transformers`` 5.23, ``models/{t5,mt5}``, ``integrations/sdpa_attention.py`` (``create_position_bias_mask``).
"""

from __future__ import annotations

from memlint.architectures.encoder_decoder import T5
from memlint.meta import functional as F
from memlint.meta.amp import to
from memlint.meta.autograd import record, tracked
from memlint.meta.checkpoint import checkpoint
from memlint.meta.nn import Embedding, Linear, Module, parameter
from memlint.meta.tensor import DType, Tensor, bool_, component, default_dtype, empty, float16, float32, int64, state
from memlint.models.language import losses
from memlint.models.language.encoder import padding_mask
from memlint.models.language.parts import activation, attention_mask


class T5Norm(Module):
    """A root-mean-square norm; in 16 bits it is rounded before it is scaled."""

    def __init__(self, width: int) -> None:
        self.weight = parameter(width)

    def forward(self, x: Tensor) -> Tensor:
        variance = F.mean(F.pow(to(x, float32), 2.0), -1, keepdim=True)
        x = x * F.rsqrt(variance + 1e-6)
        if self.weight.dtype.itemsize == 2:
            x = to(x, self.weight.dtype)
        return self.weight * x


class T5Perceptron(Module):
    """Among weights in float16 its last layer stays in fp32 (``_keep_in_fp32_modules``), and so does what follows."""

    def __init__(self, config: T5) -> None:
        self.function = activation(config.activation)
        self.gated = config.gated
        for name in ("wi_0", "wi_1") if config.gated else ("wi",):
            setattr(self, name, Linear(config.width, config.inner, bias=False))
        with default_dtype(float32 if state.default_dtype is float16 else state.default_dtype):
            self.wo = Linear(config.inner, config.width, bias=False)
        self.layer_norm = T5Norm(config.width)
        self.dropout = config.dropout

    def forward(self, x: Tensor) -> Tensor:
        fed = self.layer_norm(x)
        fed = self.feed(fed)
        return x + F.dropout(fed, self.dropout, self.training)

    def feed(self, x: Tensor) -> Tensor:
        if self.gated:
            gate = self.function(self.wi_0(x))  # type: ignore[attr-defined]
            linear = self.wi_1(x)  # type: ignore[attr-defined]
            x = gate * linear
        else:
            x = self.wi(x)  # type: ignore[attr-defined]
            x = self.function(x)
        x = F.dropout(x, self.dropout, self.training)
        x = to(x, self.wo.weight.dtype)
        out: Tensor = self.wo(x)
        return out


def buckets(queries: int, keys: int, causal: bool) -> Tensor:
    """The number of each distance's row in the table, as ``_relative_position_bucket`` finds it: step by step, in 64
    bits."""
    shape = (queries, keys)

    def steps(count: int, dtype: DType = int64) -> Tensor:
        """The last of so many results, each made from the one before."""
        made = empty(shape, dtype)
        for _ in range(count - 1):
            made = empty(shape, dtype)
        return made

    rows: Tensor | None = None
    if causal:
        zeros = steps(1)
        least = steps(1)
        del zeros
        near = steps(1)
        del least
    else:
        behind = steps(1, bool_)
        rows = steps(1)
        del behind
        rows = steps(1)
        rows = steps(1)
        near = steps(1)
    small = steps(1, bool_)
    logarithms = steps(5, float32)
    far = steps(1)
    del logarithms
    far = steps(1)
    most = steps(1)
    far = steps(1)
    del most
    chosen = steps(1)
    if rows is None:
        rows = steps(1)
    del near, small, far, chosen
    return rows


class T5Attention(Module):
    """``bias``: (1, h, queries, keys), made by the first layer for all of them. ``crosses``: to the encoder's states,
    whose bias is zeros."""

    def __init__(self, config: T5, kind: str, biased: bool, crosses: bool, causal: bool, recomputed: bool) -> None:
        inner = config.heads * config.head_dim
        self.kind, self.crosses, self.causal, self.recomputed = kind, crosses, causal, recomputed
        self.heads, self.head_dim, self.dropout = config.heads, config.head_dim, config.dropout
        self.q = Linear(config.width, inner, bias=False)
        self.k = Linear(config.width, inner, bias=False)
        self.v = Linear(config.width, inner, bias=False)
        self.o = Linear(inner, config.width, bias=False)
        self.relative_attention_bias = Embedding(config.buckets, config.heads) if biased else None

    def forward(
        self, x: Tensor, mask: Tensor | None, other: Tensor | None, bias: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        source = x if other is None else other
        shape = (*x.shape[:-1], -1, self.head_dim)
        wide = (*source.shape[:-1], -1, self.head_dim)
        query = self.q(x).view(*shape).transpose(1, 2)
        key = self.k(source).view(*wide).transpose(1, 2)
        value = self.v(source).view(*wide).transpose(1, 2)
        if bias is None:
            bias = self.bias(x.shape[1], source.shape[1], query)
        output, weights = self.attend(query, key, value, mask, bias)
        output = output.reshape(*x.shape[:-1], -1).contiguous()
        output = self.o(output)
        return output, bias, weights

    def bias(self, queries: int, keys: int, like: Tensor) -> Tensor:
        if self.relative_attention_bias is None:
            zeros = empty((1, self.heads, queries, keys), like.dtype)
            return zeros.requires_grad_() if self.recomputed and self.training and state.grad_enabled else zeros
        distances = empty((queries, keys), int64)
        found = buckets(queries, keys, self.causal)
        values: Tensor = self.relative_attention_bias(found)
        values = values.permute(2, 0, 1).unsqueeze(0)
        del distances
        return values

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, bias: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        dropout = self.dropout if self.training else 0.0
        if self.kind != "eager":
            if mask is not None or self.causal:
                if mask is None:
                    mask = empty((1, 1, query.shape[2], key.shape[2]), bool_)
                bias = F.masked_fill(bias, mask)
            bias = F.contiguous(bias)
            output = F.scaled_dot_product_attention(query, key, value, bias, dropout=dropout)
            return output.transpose(1, 2).contiguous(), None
        weights = F.matmul(query, key.transpose(2, 3)) * 1.0
        weights = weights + bias
        if mask is not None:
            weights = weights + mask
        weights = F.softmax(weights, -1)
        weights = F.dropout(weights, dropout)
        output = F.matmul(weights, value)
        return output.transpose(1, 2).contiguous(), weights


class T5SubLayer(Module):
    def __init__(self, config: T5, kind: str, biased: bool, crosses: bool, causal: bool, recomputed: bool) -> None:
        self.attention = T5Attention(config, kind, biased, crosses, causal, recomputed)
        self.layer_norm = T5Norm(config.width)
        self.dropout = config.dropout

    def forward(
        self, x: Tensor, mask: Tensor | None, other: Tensor | None, bias: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        normed = self.layer_norm(x)
        output, bias, weights = self.attention(normed, mask, other, bias)
        output = x + F.dropout(output, self.dropout, self.training)
        assert bias is not None
        return output, bias, weights


def bounded(x: Tensor) -> Tensor:
    """Within what float16 holds, with a thousand to spare where some number is infinite: the bounds are tensors."""
    if x.dtype is not float16:
        return x
    magnitudes = empty(x.shape, x.dtype)
    infinite = empty(x.shape, bool_)
    del magnitudes
    found = empty((), bool_)
    del infinite
    most = empty((), float32)
    least = empty((), float32)
    out = empty(x.shape, x.dtype)
    if tracked(x):

        def backward(g: Tensor) -> tuple[Tensor]:
            inside = [empty(g.shape, bool_) for _ in range(2)]
            result = empty(g.shape, g.dtype)
            del inside
            return (result,)

        record(out, (x,), (x, least, most), backward)
    del found
    return out


class T5Block(Module):
    def __init__(self, config: T5, kind: str, first: bool, decodes: bool, recomputed: bool) -> None:
        self.self_attention = T5SubLayer(config, kind, first, False, decodes, recomputed)
        self.cross_attention = T5SubLayer(config, kind, False, True, False, recomputed) if decodes else None
        self.perceptron = T5Perceptron(config)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None,
        bias: Tensor | None,
        states: Tensor | None,
        padding: Tensor | None,
        cross_bias: Tensor | None,
    ) -> tuple[Tensor, ...]:
        x, bias, weights = self.self_attention(x, mask, None, bias)
        x = bounded(x)
        if self.cross_attention is not None:
            x, cross_bias, weights = self.cross_attention(x, padding, states, cross_bias)
            x = bounded(x)
        x = bounded(self.perceptron(x))
        del weights
        assert bias is not None
        return (x, bias) if cross_bias is None else (x, bias, cross_bias)


class T5Stack(Module):
    def __init__(self, config: T5, kind: str, decodes: bool, checkpointed: int, reentrant: bool) -> None:
        self.kind, self.decodes = kind, decodes
        self.checkpointed, self.reentrant = checkpointed, reentrant
        count = config.decoder_layers if decodes else config.encoder_layers
        self.layers = [T5Block(config, kind, number == 0, decodes, checkpointed > 0) for number in range(count)]
        self.final_layer_norm = T5Norm(config.width)
        self.dropout = config.dropout

    def forward(self, tokens: Tensor, table: Embedding, states: Tensor | None, padded: bool) -> Tensor:
        embedded = table(tokens)
        if self.checkpointed and state.grad_enabled and not embedded.requires_grad:
            embedded.requires_grad_()
        batch, length, _ = embedded.shape
        padding = None
        if self.decodes:
            assert states is not None
            mask = attention_mask(self.kind, batch, length, embedded.dtype, 0, False)
            padding = padding_mask(self.kind, batch, states.shape[1], states.dtype, padded, length)
        else:
            mask = padding_mask(self.kind, batch, length, embedded.dtype, padded)
        bias: Tensor | None = None
        cross_bias: Tensor | None = None
        x = F.dropout(embedded, self.dropout, self.training)
        for number, layer in enumerate(self.layers):
            if self.checkpointed and number % self.checkpointed == 0:
                made = checkpoint(layer, x, mask, bias, states, padding, cross_bias, use_reentrant=self.reentrant)
            else:
                made = layer(x, mask, bias, states, padding, cross_bias)
            x, bias = made[:2]
            cross_bias = made[2] if len(made) > 2 else None
            del made
        x = self.final_layer_norm(x)
        return F.dropout(x, self.dropout, self.training)


class T5Model(Module):
    """Tokens (B, S) and labels (B, T) -> mean cross entropy."""

    unquantised = ("wo",)  # what would stay in fp32 is left out, whatever dtype is asked for

    def __init__(self, config: T5, kind: str, checkpointed: int, reentrant: bool, padded: bool) -> None:
        self.padded, self.scaled = padded, config.scaled
        self.smooths = False  # labels, by the Trainer
        self.shared = Embedding(config.vocabulary, config.width)
        self.encoder = T5Stack(config, kind, False, checkpointed, reentrant)
        self.decoder = T5Stack(config, kind, True, checkpointed, reentrant)
        self.lm_head = None if config.tied else Linear(config.width, config.vocabulary, bias=False)

    def forward(self, given: Tensor, labels: Tensor) -> Tensor:
        loss, _ = self.run(given, labels)
        return loss

    def run(self, given: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Loss and logits (B, T, V)."""
        states = self.encoder(given, self.shared, None, self.padded)
        before = empty(labels.shape, int64)  # labels, moved one token to the right
        x = self.decoder(before, self.shared, states, self.padded)
        with component("logits"):
            if self.scaled:
                x = x * 1.0
            logits = F.linear(x, self.shared.weight) if self.lm_head is None else self.lm_head(x)
            if self.smooths:
                logits = losses.returned(logits)
                return losses.smoothed(logits, labels, shifts=False), logits
            return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1)), logits
