"""DeBERTa-v2 and -v3: scores of content and of position are made apart, gathered by distance, and added.

Shapes: B rows, S tokens, W hidden width, h heads of d, 2k rows of the table of distances.
Source: ``transformers`` 5.23, ``models/deberta_v2/modeling_deberta_v2.py``.
"""

from __future__ import annotations

from typing import Any

from memlint.architectures.encoder import Encoder
from memlint.meta import functional as F
from memlint.meta.amp import to
from memlint.meta.autograd import record, tracked
from memlint.meta.checkpoint import checkpoint
from memlint.meta.nn import Conv, Embedding, LayerNorm, Linear, Module, buffer
from memlint.meta.tensor import Tensor, bool_, empty, int64, state
from memlint.models.language.encoder import Intermediate, Output
from memlint.models.language.parts import activation


class DisentangledAttention(Module):
    def __init__(self, config: Encoder) -> None:
        width = config.width
        self.heads, self.span = config.heads, config.span
        self.query_proj = Linear(width, width)
        self.key_proj = Linear(width, width)
        self.value_proj = Linear(width, width)
        self.pos_key_proj = None if config.shares_keys else Linear(width, width)
        self.pos_query_proj = None if config.shares_keys else Linear(width, width)
        self.dropout, self.attention_dropout = config.dropout, config.attention_dropout

    def by_head(self, x: Tensor) -> Tensor:
        """(B, S, W) -> (B * h, S, d), packed."""
        x = x.view(*x.shape[:-1], self.heads, -1)
        out: Tensor = x.permute(0, 2, 1, 3).contiguous().view(-1, x.shape[1], x.shape[-1])
        return out

    def forward(self, x: Tensor, mask: Tensor, distances: Tensor, table: Tensor) -> Tensor:
        query = self.by_head(self.query_proj(x))
        key = self.by_head(self.key_proj(x))
        value = self.by_head(self.value_proj(x))
        scores = F.bmm(query, key.transpose(-1, -2) / 1.0)
        table = F.dropout(table, self.dropout, self.training)
        bias = self.bias(query, key, distances, table)
        scores = scores + bias
        scores = scores.view(-1, self.heads, *scores.shape[-2:])
        attended = empty(mask.shape, bool_)
        masked = empty(mask.shape, bool_)
        scores = F.masked_fill(scores, masked)
        del masked
        weights = F.softmax(scores, -1)
        weights = F.dropout(weights, self.attention_dropout, self.training)
        output = F.bmm(weights.view(-1, *weights.shape[-2:]), value)
        output = output.view(-1, self.heads, *output.shape[-2:]).permute(0, 2, 1, 3).contiguous()
        out: Tensor = output.view(*output.shape[:-2], -1)
        del attended, bias
        return out

    def bias(self, query: Tensor, key: Tensor, distances: Tensor, table: Tensor) -> Tensor:
        """(B * h, S, S): how well contents fit distances, both ways."""
        batch, length = query.shape[0] // self.heads, query.shape[1]
        table = table.unsqueeze(0)
        by_query = self.query_proj if self.pos_query_proj is None else self.pos_query_proj
        by_key = self.key_proj if self.pos_key_proj is None else self.pos_key_proj
        if self.pos_key_proj is None:
            queries = self.by_head(by_query(table)).repeat(batch, 1, 1)
            keys = self.by_head(by_key(table)).repeat(batch, 1, 1)
        else:
            keys = self.by_head(by_key(table)).repeat(batch, 1, 1)
            queries = self.by_head(by_query(table)).repeat(batch, 1, 1)
        places = empty(distances.shape, int64)
        content = F.bmm(query, keys.transpose(-1, -2))
        content = F.gather(content, -1, places.expand(query.shape[0], length, length))
        score: Tensor = content / 1.0 + 0.0
        mirrored = empty(distances.shape, int64)
        position = F.bmm(key, queries.transpose(-1, -2))
        position = F.gather(position, -1, mirrored.expand(query.shape[0], length, length)).transpose(-1, -2)
        score = F.add_(score, position / 1.0)
        del content
        return score


class DebertaAttention(Module):
    def __init__(self, config: Encoder) -> None:
        self.self = DisentangledAttention(config)
        self.output = Output(config, config.width)

    def forward(self, x: Tensor, mask: Tensor, distances: Tensor, table: Tensor) -> Tensor:
        attended = self.self(x, mask, distances, table)
        out: Tensor = self.output(attended, x)
        return out


class DebertaLayer(Module):
    def __init__(self, config: Encoder) -> None:
        self.attention = DebertaAttention(config)
        self.intermediate = Intermediate(config)
        self.output = Output(config, config.intermediate)

    def forward(self, x: Tensor, mask: Tensor, distances: Tensor, table: Tensor) -> Tensor:
        attended = self.attention(x, mask, distances, table)
        fed = self.intermediate(attended)
        out: Tensor = self.output(fed, attended)
        return out


class DebertaEmbeddings(Module):
    def __init__(self, config: Encoder) -> None:
        width = config.embedding_width
        self.word_embeddings = Embedding(config.vocabulary, width)
        self.position_embeddings = Embedding(config.positions, width) if config.counted_positions else None
        self.token_type_embeddings = Embedding(config.token_types, width) if config.token_types else None
        self.embed_proj = Linear(width, config.width, bias=False) if width != config.width else None
        self.LayerNorm = LayerNorm(config.width)
        self.position_ids = buffer(1, config.positions, dtype=int64)
        self.dropout = config.dropout
        self.needs_gradient = False  # enable_input_require_grads

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        types = empty(tokens.shape, int64)
        embedded = self.word_embeddings(tokens)
        if self.needs_gradient and state.grad_enabled and not embedded.requires_grad:
            embedded.requires_grad_()
        x: Tensor = embedded
        if self.position_embeddings is not None:
            placed = self.position_embeddings(self.position_ids[:, : tokens.shape[1]])
            x = x + placed
        else:
            placed = empty(embedded.shape, embedded.dtype)  # zeros, which nothing uses
        if self.token_type_embeddings is not None:
            typed = self.token_type_embeddings(types)
            x = x + typed
        if self.embed_proj is not None:
            x = self.embed_proj(x)
        x = self.LayerNorm(x)
        kept = to(mask.unsqueeze(2), x.dtype)
        x = x * kept
        x = F.dropout(x, self.dropout, self.training)
        del placed
        return x


def blanked(x: Tensor, mask: Tensor) -> Tensor:
    """In place: zeros where nothing was written. Keeps the mask."""
    out = x.alias(x.shape, x.strides)
    if tracked(x):
        record(out, (x,), (mask,), lambda g: (empty(g.shape, g.dtype),))
    return out


class Convolution(Module):
    """What goes into the first layer, with its neighbours, is added to what comes out of it (DeBERTa-v2 XL)."""

    def __init__(self, config: Encoder) -> None:
        kernel = config.convolution
        self.conv = Conv(config.width, config.width, (kernel,), padding=(kernel - 1) // 2, groups=config.conv_groups)
        self.LayerNorm = LayerNorm(config.width)
        self.function = activation(config.conv_activation)
        self.dropout = config.dropout

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        out = self.conv(x.permute(0, 2, 1).contiguous()).permute(0, 2, 1).contiguous()
        missing = empty(out.shape[:2], bool_)
        out = blanked(out, missing)
        out = self.function(F.dropout(out, self.dropout, self.training))
        summed = residual + out
        normed = self.LayerNorm(summed)
        kept = empty((*out.shape[:2], 1), normed.dtype)
        result: Tensor = normed * kept
        return result


class DebertaModel(Module):
    """Token numbers (B, S) -> hidden states (B, S, W). The states of every layer live until all are done."""

    def __init__(self, config: Encoder, checkpointed: int, reentrant: bool) -> None:
        self.config, self.checkpointed, self.reentrant = config, checkpointed, reentrant
        self.embeddings = DebertaEmbeddings(config)
        self.embeddings.needs_gradient = checkpointed > 0
        self.layers = [DebertaLayer(config) for _ in range(config.layers)]
        self.rel_embeddings = Embedding(2 * config.span, config.width)
        self.LayerNorm = LayerNorm(config.width) if config.norms_distances else None
        self.conv = Convolution(config) if config.convolution else None

    def forward(self, tokens: Tensor) -> Tensor:
        mask = empty(tokens.shape, int64)
        embedded = self.embeddings(tokens, mask)
        del mask
        batch, length = tokens.shape
        square = empty((batch, 1, length, length), int64)
        distances = empty((1, length, length), int64)
        table = self.rel_embeddings.weight
        if self.LayerNorm is not None:
            table = self.LayerNorm(table)
        states: list[Any] = [embedded]
        x: Tensor = embedded
        for number, layer in enumerate(self.layers):
            if self.checkpointed and number % self.checkpointed == 0:
                x = checkpoint(layer, x, square, distances, table, use_reentrant=self.reentrant)
            else:
                x = layer(x, square, distances, table)
            if number == 0 and self.conv is not None:
                x = self.conv(embedded, x)
            states.append(x)
        return x
