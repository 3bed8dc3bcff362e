"""ModernBERT: an encoder with norms before its blocks, rotary positions, gated perceptrons, and windows in two of
three layers.

Shapes: B rows, S tokens, W hidden width, h heads of d. Source: ``transformers`` 5.23, ``models/modernbert``.
"""

from __future__ import annotations

from memlint.architectures.encoder import ModernBert
from memlint.meta import functional as F
from memlint.meta.amp import to
from memlint.meta.checkpoint import checkpoint
from memlint.meta.nn import Embedding, Linear, Module, parameter
from memlint.meta.tensor import DType, Tensor, bool_, component, empty, float32, int64, state
from memlint.models.language.encoder import Attended, attend, padding_mask
from memlint.models.language.parts import RotaryTables, Tables, activation, rotate_half


class Norm(Module):
    """A layer norm, with a bias or without."""

    def __init__(self, config: ModernBert) -> None:
        self.weight = parameter(config.width)
        self.bias = parameter(config.width) if config.norm_bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight, self.bias)


class JointAttention(Module):
    def __init__(self, config: ModernBert, kind: str) -> None:
        self.kind, self.head_dim, self.dropout = kind, config.width // config.heads, config.attention_dropout
        self.Wqkv = Linear(config.width, 3 * config.width, config.attention_bias)
        self.Wo = Linear(config.width, config.width, config.attention_bias)

    def forward(self, x: Tensor, tables: Tables, mask: Tensor | None) -> Attended:
        joined = self.Wqkv(x).view(*x.shape[:-1], 3, -1, self.head_dim)
        query, key, value = F.unbind(joined, -3)
        query = query.transpose(1, 2)
        key = key.transpose(1, 2)
        value = value.transpose(1, 2)
        query, key = _rotated(query, key, tables)
        dropout = self.dropout if self.training else 0.0
        output, weights = attend(query, key, value, mask, self.kind, dropout, wide=True)
        output = output.reshape(*x.shape[:-1], -1).contiguous()
        output = F.dropout(self.Wo(output), self.dropout, self.training)
        return output, weights


def _rotated(query: Tensor, key: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
    """In fp32; each is widened twice."""
    dtype = query.dtype
    cosine, sine = tables[0].unsqueeze(1), tables[1].unsqueeze(1)
    query_rotated = (to(query, float32) * cosine) + (rotate_half(to(query, float32)) * sine)
    key_rotated = (to(key, float32) * cosine) + (rotate_half(to(key, float32)) * sine)
    return to(query_rotated, dtype), to(key_rotated, dtype)


class Perceptron(Module):
    def __init__(self, config: ModernBert) -> None:
        self.Wi = Linear(config.width, 2 * config.intermediate, config.mlp_bias)
        self.Wo = Linear(config.intermediate, config.width, config.mlp_bias)
        self.function, self.dropout = activation(config.activation), config.mlp_dropout

    def forward(self, x: Tensor) -> Tensor:
        given, gate = F.chunk(self.Wi(x), 2, -1)
        out: Tensor = self.Wo(F.dropout(self.function(given) * gate, self.dropout, self.training))
        return out


class ModernBertLayer(Module):
    def __init__(self, config: ModernBert, kind: str, first: bool) -> None:
        self.attn_norm = None if first else Norm(config)
        self.attn = JointAttention(config, kind)
        self.mlp_norm = Norm(config)
        self.mlp = Perceptron(config)

    def forward(self, x: Tensor, tables: Tables, mask: Tensor | None) -> Tensor:
        attended, weights = self.attn(x if self.attn_norm is None else self.attn_norm(x), tables, mask)
        x = x + attended
        x = x + self.mlp(self.mlp_norm(x))
        del weights
        return x


class Body(Module):
    def __init__(self, config: ModernBert, kind: str, checkpointed: int, reentrant: bool, padded: bool) -> None:
        self.config, self.kind, self.padded = config, kind, padded
        self.checkpointed, self.reentrant = checkpointed, reentrant
        self.tok_embeddings = Embedding(config.vocabulary, config.width)
        self.norm = Norm(config)
        self.layers = [ModernBertLayer(config, kind, number == 0) for number in range(config.layers)]
        self.final_norm = Norm(config)
        head_dim = config.width // config.heads
        self.rotary = RotaryTables(head_dim) if not all(config.windowed) else None
        self.local_rotary = RotaryTables(head_dim) if any(config.windowed) else None

    def forward(self, tokens: Tensor) -> Tensor:
        batch, length = tokens.shape
        positions = empty((1, length), int64)
        embedded = self.tok_embeddings(tokens)
        if self.checkpointed and state.grad_enabled and not embedded.requires_grad:
            embedded.requires_grad_()
        x: Tensor = F.dropout(self.norm(embedded), self.config.embedding_dropout, self.training)
        del embedded
        mask = padding_mask(self.kind, batch, length, x.dtype, self.padded)
        local = _window_mask(self.kind, batch, length, x.dtype, self.padded, self.config.window)
        tables = None if self.rotary is None else self.rotary(positions, x.dtype)
        local_tables = None if self.local_rotary is None else self.local_rotary(positions, x.dtype)
        for number, layer in enumerate(self.layers):
            windowed = self.config.windowed[number]
            own = (local_tables, local) if windowed else (tables, mask)
            if self.checkpointed and number % self.checkpointed == 0:
                x = checkpoint(layer, x, *own, use_reentrant=self.reentrant)
            else:
                x = layer(x, *own)
        x = self.final_norm(x)
        return x


def _window_mask(kind: str, batch: int, length: int, dtype: DType, padded: bool, window: int) -> Tensor | None:
    """What ``create_bidirectional_sliding_window_mask`` hands to layers with a window."""
    if kind in ("flash", "xformers") or (length < window and not padded):
        return None
    inside = empty((1, 1, length, length), bool_)
    allowed = empty((batch, 1, length, length), bool_)
    del inside
    if not kind.startswith("eager"):
        return allowed
    zero = empty((), dtype)
    mask = empty((batch, 1, length, length), dtype)
    del allowed, zero
    return mask


class ModernBertTask(Module):
    """ModernBERT with a head; see ``memlint.models.language.encoder.EncoderTask``."""

    def __init__(self, config: ModernBert, body: Body, task: str, labels: int) -> None:
        self.config, self.body, self.task, self.labels = config, body, task, labels
        self.dense = Linear(config.width, config.width, config.classifier_bias)
        self.head_norm = Norm(config)
        words = task == "masked_lm"
        self.decoder_bias = parameter(config.vocabulary) if words and config.decoder_bias else None
        self.classifier = None if words else Linear(config.width, 2 if task == "question_answering" else labels)

    def forward(self, tokens: Tensor, *labels: Tensor) -> Tensor:
        loss, _ = self.run(tokens, *labels)
        return loss

    def head(self, x: Tensor) -> Tensor:
        out: Tensor = self.head_norm(F.gelu(self.dense(x)))
        return out

    def run(self, tokens: Tensor, *labels: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Loss and logits."""
        states = self.body(tokens)
        x = states
        with component("logits"):
            if self.classifier is None:
                logits = F.linear(self.head(x), self.body.tok_embeddings.weight, self.decoder_bias)
                wide = to(logits, float32)
                return F.cross_entropy(wide.view(-1, wide.shape[-1]), labels[0].view(-1)), (logits,)
            if self.task == "sequence_classification":
                x = self.averaged(x) if self.config.averages else x[:, 0]
            x = self.head(x)
            x = F.dropout(x, self.config.classifier_dropout, self.training)
            logits = self.classifier(x)
            if self.task == "question_answering":
                start, end = F.split(logits, 1, -1)
                start = start.squeeze(-1).contiguous()
                end = end.squeeze(-1).contiguous()
                first, last = (empty(tensor.shape, int64) for tensor in labels)  # clamped
                total = (F.cross_entropy(start, first) + F.cross_entropy(end, last)) / 2
                return total, (start, end)
            if self.task == "sequence_classification" and self.labels == 1:
                return F.mse_loss(logits.view(-1), labels[0]), (logits,)
            return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels[0].view(-1)), (logits,)

    @staticmethod
    def averaged(x: Tensor) -> Tensor:
        """Over the tokens that are no padding."""
        mask = empty((*x.shape[:2], 1), int64)
        counts = empty((x.shape[0], 1), int64)
        out: Tensor = F.sum(x * mask, 1) / counts
        return out
