"""Encoders, as transformers' eager code computes them: BERT and its kin.

    tokens -> embeddings -> layers of (attention, add, norm, perceptron, add, norm) -> a head for the task

Shapes: B rows, S tokens, W hidden width, h heads of d. Temporaries live as they do there, so statements are not merged.
Source: ``transformers`` 5.23, ``models/{bert,roberta,xlm_roberta,camembert,electra,distilbert,albert,mpnet}``.
"""

from __future__ import annotations

from typing import Any

from memlint.architectures.encoder import Encoder
from memlint.meta import functional as F
from memlint.meta.amp import to
from memlint.meta.checkpoint import checkpoint
from memlint.meta.nn import Embedding, LayerNorm, Linear, Module, buffer, parameter
from memlint.meta.tensor import DType, Tensor, bool_, component, empty, float32, int64, state
from memlint.models.language.parts import activation

Attended = tuple[Tensor, Tensor | None]


# ------------------------------------------------------------------------------------------------------ attention


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    kind: str,
    dropout: float,
    causal: bool = False,
    wide: bool = False,
) -> Attended:
    """(B, h, S, d) each -> (B, S, h, d), and eager attention's probabilities.

    Eager probabilities have no dtype of their own, unlike those of most decoders: under autocast the softmax makes them
    fp32, dropout keeps them so, and the product with the values takes a 16-bit copy. ``wide``: they are computed in
    fp32 and rounded, as decoders do it.
    """
    if not kind.startswith("eager"):
        backend = {"flash": "flash", "xformers": "efficient"}.get(kind, "")
        causal = causal and mask is None
        output = F.scaled_dot_product_attention(
            query, key, value, mask, backend=backend, dropout=dropout, causal=causal
        )
        return output.transpose(1, 2).contiguous(), None
    weights = F.matmul(query, key.transpose(2, 3)) * 1.0
    if mask is not None:
        weights = weights + mask
    weights = to(F.softmax(weights, -1, float32), query.dtype) if wide else F.softmax(weights, -1)
    weights = F.dropout(weights, dropout)
    output = F.matmul(weights, value)
    return output.transpose(1, 2).contiguous(), weights


class SelfAttention(Module):
    """``names``: of the three products, and of the one that follows attention, where it belongs to this module."""

    def __init__(self, config: Encoder, kind: str, names: tuple[str, ...] = ("query", "key", "value")) -> None:
        self.kind, self.names = kind, names
        self.heads, self.head_dim = config.heads, config.width // config.heads
        self.dropout = config.attention_dropout
        for name in names:
            setattr(self, name, Linear(config.width, config.width))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shape = (*x.shape[:-1], -1, self.head_dim)
        query = getattr(self, self.names[0])(x).view(*shape).transpose(1, 2)
        key = getattr(self, self.names[1])(x).view(*shape).transpose(1, 2)
        value = getattr(self, self.names[2])(x).view(*shape).transpose(1, 2)
        return query, key, value

    def forward(self, x: Tensor, mask: Tensor | None) -> Attended:
        query, key, value = self.project(x)
        output, weights = attend(query, key, value, mask, self.kind, self.dropout if self.training else 0.0)
        output = output.reshape(*x.shape[:-1], -1).contiguous()
        if len(self.names) > 3:
            output = getattr(self, self.names[3])(output)
        return output, weights


class BiasedAttention(SelfAttention):
    """MPNet's: eager only, with one number per head and pair of tokens added in place."""

    def forward(self, x: Tensor, mask: Tensor | None, bias: Tensor | None = None) -> Attended:
        query, key, value = self.project(x)
        scores = F.matmul(query, key.transpose(-1, -2))
        scores = scores / 1.0
        if bias is not None:
            scores = F.add_(scores, bias)
        if mask is not None:
            scores = scores + mask
        weights = F.softmax(scores, -1)
        weights = F.dropout(weights, self.dropout, self.training)
        output = F.matmul(weights, value)
        output = output.permute(0, 2, 1, 3).contiguous()
        output = output.view(*x.shape[:-1], -1)
        return getattr(self, self.names[3])(output), None


# --------------------------------------------------------------------------------------------------------- layers


class Output(Module):
    """What follows attention, and what follows the wide layer: dense, dropout, add, norm."""

    def __init__(self, config: Encoder, inputs: int) -> None:
        self.dense = Linear(inputs, config.width)
        self.LayerNorm = LayerNorm(config.width)
        self.dropout = config.dropout

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        x = self.dense(x)
        x = F.dropout(x, self.dropout, self.training)
        out: Tensor = self.LayerNorm(x + residual)
        return out


class BertAttention(Module):
    def __init__(self, config: Encoder, kind: str) -> None:
        self.self = SelfAttention(config, kind)
        self.output = Output(config, config.width)

    def forward(self, x: Tensor, mask: Tensor | None) -> Attended:
        output, weights = self.self(x, mask)
        output = self.output(output, x)
        return output, weights


class Intermediate(Module):
    def __init__(self, config: Encoder) -> None:
        self.dense = Linear(config.width, config.intermediate)
        self.function = activation(config.activation)

    def forward(self, x: Tensor) -> Tensor:
        x = self.dense(x)
        return self.function(x)


class BertLayer(Module):
    def __init__(self, config: Encoder, kind: str) -> None:
        self.attention = BertAttention(config, kind)
        self.intermediate = Intermediate(config)
        self.output = Output(config, config.intermediate)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        attended, weights = self.attention(x, mask)
        fed = self.intermediate(attended)
        out: Tensor = self.output(fed, attended)
        del weights
        return out


class DistilBertLayer(Module):
    def __init__(self, config: Encoder, kind: str) -> None:
        self.attention = SelfAttention(config, kind, ("q_lin", "k_lin", "v_lin", "out_lin"))
        self.sa_layer_norm = LayerNorm(config.width)
        self.lin1 = Linear(config.width, config.intermediate)
        self.lin2 = Linear(config.intermediate, config.width)
        self.function = activation(config.activation)
        self.dropout = config.dropout
        self.output_layer_norm = LayerNorm(config.width)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        attended, weights = self.attention(x, mask)
        attended = self.sa_layer_norm(attended + x)
        fed = self.feed(attended)
        out: Tensor = self.output_layer_norm(fed + attended)
        del weights
        return out

    def feed(self, x: Tensor) -> Tensor:
        x = self.lin1(x)
        x = self.function(x)
        x = self.lin2(x)
        return F.dropout(x, self.dropout, self.training)


class AlbertAttention(SelfAttention):
    def __init__(self, config: Encoder, kind: str) -> None:
        super().__init__(config, kind)
        self.dense = Linear(config.width, config.width)
        self.LayerNorm = LayerNorm(config.width)
        self.output_dropout = config.dropout

    def forward(self, x: Tensor, mask: Tensor | None) -> Attended:
        output, weights = super().forward(x, mask)
        output = self.dense(output)
        output = F.dropout(output, self.output_dropout, self.training)
        output = self.LayerNorm(x + output)
        return output, weights


class AlbertLayer(Module):
    def __init__(self, config: Encoder, kind: str) -> None:
        self.full_layer_layer_norm = LayerNorm(config.width)
        self.attention = AlbertAttention(config, kind)
        self.ffn = Linear(config.width, config.intermediate)
        self.ffn_output = Linear(config.intermediate, config.width)
        self.function = activation(config.activation)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        attended, weights = self.attention(x, mask)
        fed = self.feed(attended)
        x = self.full_layer_layer_norm(fed + attended)
        del weights
        return x

    def feed(self, x: Tensor) -> Tensor:
        x = self.ffn(x)
        x = self.function(x)
        out: Tensor = self.ffn_output(x)
        return out


class MPNetAttention(Module):
    def __init__(self, config: Encoder, kind: str) -> None:
        self.attn = BiasedAttention(config, kind, ("q", "k", "v", "o"))
        self.LayerNorm = LayerNorm(config.width)
        self.dropout = config.dropout

    def forward(self, x: Tensor, mask: Tensor | None, bias: Tensor | None) -> Tensor:
        attended, _ = self.attn(x, mask, bias)
        out: Tensor = self.LayerNorm(F.dropout(attended, self.dropout, self.training) + x)
        return out


class MPNetLayer(Module):
    def __init__(self, config: Encoder, kind: str) -> None:
        self.attention = MPNetAttention(config, kind)
        self.intermediate = Intermediate(config)
        self.output = Output(config, config.intermediate)

    def forward(self, x: Tensor, mask: Tensor | None, bias: Tensor | None) -> Tensor:
        attended = self.attention(x, mask, bias)
        fed = self.intermediate(attended)
        out: Tensor = self.output(fed, attended)
        return out


LAYERS = {"bert": BertLayer, "distilbert": DistilBertLayer, "albert": AlbertLayer, "mpnet": MPNetLayer}


# ---------------------------------------------------------------------------------------------------------- model


class Embeddings(Module):
    def __init__(self, config: Encoder) -> None:
        width = config.embedding_width
        self.word_embeddings = Embedding(config.vocabulary, width)
        self.position_embeddings = Embedding(config.positions, width)
        self.token_type_embeddings = Embedding(config.token_types, width) if config.token_types else None
        self.LayerNorm = LayerNorm(width)
        self.position_ids = buffer(1, config.positions, dtype=int64)
        self.token_type_ids = buffer(1, config.positions, dtype=int64) if config.token_types else None
        self.dropout = config.dropout
        self.counted = config.counted_positions
        self.needs_gradient = False  # enable_input_require_grads

    def forward(self, tokens: Tensor, types: Tensor | None = None) -> Tensor:
        """``types``: segments, where the tokenizer tells them."""
        batch, length = tokens.shape
        rows = batch if self.counted else 1
        positions = empty((rows, length), int64)
        if types is None and self.token_type_embeddings is not None:
            types = empty((rows, length), int64)  # gathered
        embedded = self.word_embeddings(tokens)
        if self.needs_gradient and state.grad_enabled and not embedded.requires_grad:
            embedded.requires_grad_()
        x = embedded
        if self.token_type_embeddings is not None and types is not None:
            types = types.expand(batch, length)
            typed = self.token_type_embeddings(types)
            x = embedded + typed
        placed = self.position_embeddings(positions)
        x = x + placed
        x = self.LayerNorm(x)
        return F.dropout(x, self.dropout, self.training)


def padding_mask(
    kind: str, batch: int, length: int, dtype: DType, padded: bool, queries: int | None = None
) -> Tensor | None:
    """What ``create_bidirectional_mask`` hands to every layer: nothing where no row is padded. ``queries``: how many
    attend to ``length`` keys, where they are not the same. ``kind`` "eager_masked"
    is eager attention before transformers 5.0, which was given a row of numbers in any case."""
    if kind == "eager_masked":
        return empty((batch, 1, 1, length), dtype)
    if not padded or kind in ("flash", "xformers"):
        return None
    rows = queries or length
    every = empty((1, 1, rows, 1), bool_)
    allowed = empty((batch, 1, rows, length), bool_)
    del every
    if kind != "eager":
        return allowed
    zero = empty((), dtype)
    mask = empty((batch, 1, rows, length), dtype)
    del allowed, zero
    return mask


class EncoderModel(Module):
    """Token numbers (B, S) -> hidden states (B, S, W).

    kind          attention: "eager", "eager_masked", "sdpa", "flash", "xformers"
    checkpointed  layers that are recomputed: all for 1, every k-th for k, none for 0
    """

    def __init__(self, config: Encoder, kind: str, checkpointed: int, reentrant: bool, padded: bool) -> None:
        self.config, self.kind = config, kind
        self.checkpointed, self.reentrant, self.padded = checkpointed, reentrant, padded
        self.embeddings = Embeddings(config)
        self.embeddings.needs_gradient = checkpointed > 0
        projects = config.layer == "albert" or config.embedding_width != config.width
        self.embeddings_project = Linear(config.embedding_width, config.width) if projects else None
        count = config.groups * config.inner if config.layer == "albert" else config.layers
        layer = LAYERS[config.layer]
        self.layers = [layer(config, kind) for _ in range(count)]
        self.relative_attention_bias = Embedding(config.buckets, config.heads) if config.buckets else None

    def forward(self, tokens: Tensor, types: Tensor | None = None) -> Tensor:
        embedded = self.embeddings(tokens, types)
        if self.embeddings_project is not None and self.config.layer != "albert":
            embedded = self.embeddings_project(embedded)
        batch, length = tokens.shape
        mask = padding_mask(self.kind, batch, length, embedded.dtype, self.padded)
        x: Tensor = embedded
        if self.config.layer == "albert":
            assert self.embeddings_project is not None
            x = self.embeddings_project(x)
        rest = () if self.relative_attention_bias is None else (self.position_bias(batch, length),)
        for number, layer in enumerate(self.order()):
            if self.checkpointed and number % self.checkpointed == 0:
                x = checkpoint(layer, x, mask, *rest, use_reentrant=self.reentrant)
            else:
                x = layer(x, mask, *rest)
        return x

    def order(self) -> list[Any]:
        """The layers as they run: ALBERT's groups take turns."""
        config = self.config
        if config.layer != "albert":
            return list(self.layers)
        found: list[Any] = []
        for number in range(config.layers):
            first = int(number / (config.layers / config.groups)) * config.inner
            found += self.layers[first : first + config.inner]
        return found

    def position_bias(self, batch: int, length: int) -> Tensor:
        """(B, h, S, S): the same for every row, yet written out for each."""
        assert self.relative_attention_bias is not None
        buckets = empty((length, length), int64)
        values = self.relative_attention_bias(buckets)
        out: Tensor = values.permute(2, 0, 1).unsqueeze(0).expand(batch, -1, length, length).contiguous()
        return out


# ---------------------------------------------------------------------------------------------------------- heads


class Pooler(Module):
    """Of the first token. DeBERTa's stands in its head, with dropout and another function."""

    def __init__(self, config: Encoder) -> None:
        self.dense = Linear(config.width, config.width)
        self.dropout = config.pooler_dropout
        self.function = F.gelu if config.classifier == "context" else F.tanh

    def forward(self, x: Tensor) -> Tensor:
        first = F.dropout(x[:, 0], self.dropout, self.training)
        return self.function(self.dense(first))


class RowHead(Module):
    """A dense layer over the first token, with dropout before and behind it."""

    def __init__(self, config: Encoder, labels: int) -> None:
        self.dense = Linear(config.width, config.width)
        self.out_proj = Linear(config.width, labels)
        self.function = F.tanh if config.classifier == "tanh" else F.gelu
        self.dropout = config.row_dropout

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, 0]
        x = F.dropout(x, self.dropout, self.training)
        x = self.dense(x)
        x = self.function(x)
        x = F.dropout(x, self.dropout, self.training)
        out: Tensor = self.out_proj(x)
        return out


class TokenHead(Module):
    """Logits over the vocabulary: dense, activation, norm, then the (tied) table."""

    def __init__(self, config: Encoder) -> None:
        self.dense = Linear(config.width, config.embedding_width)
        self.function = activation(config.prediction_activation)
        self.LayerNorm = LayerNorm(config.embedding_width)
        self.weight = None if config.tied else parameter(config.vocabulary, config.embedding_width)
        self.bias = parameter(config.vocabulary)

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        x = self.dense(x)
        x = self.function(x)
        x = self.LayerNorm(x)
        x = F.linear(x, table if self.weight is None else self.weight, self.bias)
        return x


class EncoderTask(Module):
    """An encoder with a head. ``labels`` (B,) for rows, (B, S) for tokens, twice (B,) for spans.

    task  "sequence_classification", "token_classification", "question_answering", "masked_lm"
    """

    def __init__(self, config: Encoder, body: Any, task: str, labels: int) -> None:
        self.body, self.task, self.labels = body, task, labels
        dropouts = {"token_classification": config.classifier_dropout, "question_answering": config.span_dropout}
        self.dropout = dropouts.get(task, config.row_dropout)
        self.pooler: Pooler | None = None
        self.pre_classifier: Linear | None = None
        self.classifier: Any = None
        self.predictions: TokenHead | None = None
        self.qa_outputs: Linear | None = None
        if task == "masked_lm":
            self.predictions = TokenHead(config)
        elif task == "question_answering":
            self.qa_outputs = Linear(config.width, 2)
        elif task == "token_classification":
            self.classifier = Linear(config.width, labels)
        elif config.classifier in ("tanh", "gelu"):
            self.classifier = RowHead(config, labels)
        else:
            self.pooler = Pooler(config) if config.classifier in ("pooler", "context") else None
            self.pre_classifier = Linear(config.width, config.width) if config.classifier == "relu" else None
            self.classifier = Linear(config.width, labels)

    def forward(self, tokens: Tensor, *labels: Tensor) -> Tensor:
        loss, _ = self.run(tokens, *labels)
        return loss

    def run(self, tokens: Tensor, *labels: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Loss and logits."""
        x = self.body(tokens)
        pooled = None if self.pooler is None else self.pooler(x)
        with component("logits"):
            if self.task == "question_answering":
                return self.spans(x, labels)
            if self.predictions is not None:
                logits = self.predictions(x, self.body.embeddings.word_embeddings.weight)
            elif self.task == "token_classification":
                logits = self.classifier(F.dropout(x, self.dropout, self.training))
            elif isinstance(self.classifier, RowHead):
                logits = self.classifier(x)
            else:
                if self.pre_classifier is not None:
                    pooled = self.pre_classifier(x[:, 0])
                    pooled = F.relu(pooled)
                assert pooled is not None
                pooled = F.dropout(pooled, self.dropout, self.training)
                logits = self.classifier(pooled)
            return self.loss(logits, labels[0]), (logits,)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self.task == "sequence_classification" and self.labels == 1:
            return F.mse_loss(logits.view(-1), labels)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))

    def spans(self, x: Tensor, labels: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Where an answer begins and where it ends."""
        x = F.dropout(x, self.dropout, self.training)
        assert self.qa_outputs is not None
        logits = self.qa_outputs(x)
        start, end = F.split(logits, 1, -1)
        start = start.squeeze(-1).contiguous()
        end = end.squeeze(-1).contiguous()
        first, last = (empty(tensor.shape, int64) for tensor in labels)  # clamped
        start_loss = F.cross_entropy(start, first)
        end_loss = F.cross_entropy(end, last)
        total = (start_loss + end_loss) / 2
        return total, (start, end)
