"""Decoders of the LLaMA kind as other training libraries compute them: the same products, other steps between them.

Shapes: B rows, S tokens, W hidden width, h heads of d. Temporaries live as they do there, and modules have the names
that transformers gives them, which adapters go by.
Sources: torchtune 0.6, its norms also 0.4, its linear cross entropy 0.7 (``modules/{transformer,attention,rms_norm,
position_embeddings,feed_forward}.py``, ``modules/loss/``, ``recipes/``); torchtitan at 2024-12 and 0.2
(``models/llama3/model/model.py``, ``components/loss.py``), and 0.3 (``models/common/attention.py``); litgpt 0.5
(``model.py``, ``utils.py``); nanoGPT (``model.py``).
"""

from __future__ import annotations

from typing import Any

from memlint.architectures.decoder import Decoder
from memlint.architectures.sizes import Sizes
from memlint.dialects.spec import TrainingSpec
from memlint.meta import functional as F
from memlint.meta.amp import to
from memlint.meta.autograd import record, tracked
from memlint.meta.compiled import Compiled
from memlint.meta.nn import Linear, Module, buffer, parameter
from memlint.meta.tensor import Tensor, bool_, component, empty, empty_like, float32, int64, state
from memlint.models.language import losses
from memlint.models.language.attention import Attention, repeat_heads
from memlint.models.language.decoder import LanguageModel, Layer
from memlint.models.language.parts import RootMeanSquare, perceptron

# ---------------------------------------------------------------------------------------------------------- norms


class TorchNorm(RootMeanSquare):
    """``torch.nn.functional.rms_norm``, in several steps or in one, as a ``release`` of torch does."""

    def __init__(self, width: int, release: str) -> None:
        super().__init__(width)
        self.fused = release == "2.9"
        self.widened, self.rounded = release != "2.4", release in ("2.4", "2.5")

    def forward(self, x: Tensor) -> Tensor:
        if self.fused:
            return F.rms_norm(x, self.weight)
        return F.rms_norm_composite(x, self.weight, self.widened, self.rounded)


class CastNorm(TorchNorm):
    """torchtune's of 0.5 and 0.6: what torch's is given is in fp32 already, and the weight is not."""

    def forward(self, x: Tensor) -> Tensor:
        return to(super().forward(to(x, float32)), x.dtype)


class RoundedNorm(RootMeanSquare):
    """torchtune's of other releases: the weight scales what is rounded already."""

    def forward(self, x: Tensor) -> Tensor:
        wide = to(x, float32)
        normed = to(wide * F.rsqrt(F.mean(wide**2, -1, keepdim=True) + 1e-6), x.dtype)
        return normed * self.weight


class ScaledNorm(RootMeanSquare):
    """litgpt's: the mean is of ``x * x``, and the weight is cast."""

    def forward(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        x = to(x, float32)
        mean = F.mean(x * x, -1, keepdim=True)
        normed = x * F.rsqrt(mean + 1e-6)
        return to(normed * to(self.weight, float32), dtype)


OWN_NORMS = {"scaled": ScaledNorm, "rounded": RoundedNorm}


def own_norm(config: Decoder, width: int) -> Module:
    """The norm that :func:`model` chose."""
    if config.norm in OWN_NORMS:
        return OWN_NORMS[config.norm](width)
    kind, _, release = config.norm.partition(" ")
    return (CastNorm if kind == "cast" else TorchNorm)(width, release)


# --------------------------------------------------------------------------------------------------------- rotary


def rotate_pairs_wide(x: Tensor, table: Tensor) -> Tensor:
    """torchtune's: (B, S, h, d) in fp32, as pairs of neighbours; ``table`` is (1 or B, S, d / 2, 2)."""
    dtype = x.dtype
    pairs = to(x, float32).reshape(*x.shape[:-1], -1, 2)
    table = table.view(-1, pairs.shape[1], 1, pairs.shape[3], 2)
    first = pairs[..., 0] * table[..., 0] - pairs[..., 1] * table[..., 1]
    second = pairs[..., 1] * table[..., 0] + pairs[..., 0] * table[..., 1]
    out = F.stack((first, second), -1)
    del first, second
    out = out.flatten(3)
    return to(out, dtype)


def rotate_complex(query: Tensor, key: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """torchtitan's: (B, S, h, d) in fp32, as complex numbers; ``table`` holds (S, d / 2) of them, or more."""
    query_pairs = to(query, float32).reshape(*query.shape[:-1], -1, 2)
    key_pairs = to(key, float32).reshape(*key.shape[:-1], -1, 2)
    table = table[: query.shape[1]].view(1, query.shape[1], 1, query.shape[3] // 2, 2)
    query_rotated = (query_pairs * table).flatten(3)
    key_rotated = (key_pairs * table).flatten(3)
    return to(query_rotated, query.dtype), to(key_rotated, key.dtype)


def rotate_half(x: Tensor, table: Tensor) -> Tensor:
    """litgpt's: (B, h, S, d); ``table`` stands for the cosines and for the sines, (1, 1, S, d) each."""
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    rotated = F.cat((F.neg(second), first), -1)
    roped = (x * table) + (rotated * table)
    return to(roped, x.dtype)


# ------------------------------------------------------------------------------------------------------ attention


@F.kernel
def flex_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """``torch.nn.attention.flex_attention``, compiled: one kernel that keeps its operands, its result and one fp32
    number per row; backward first makes one more per row. (``_inductor/kernel/flex``)

    torchtune shuts it off from a compiled layer, whose graph breaks there: what it reads is in memory.
    (``modules/attention_utils.py``: ``compile_friendly_flex_attention``)"""
    batch, heads, length, _ = query.shape
    out = empty_like(query)
    sums = empty((batch, heads, length), float32)
    if tracked(query, key, value):
        kinds = [(t.shape, t.dtype) if t.requires_grad else None for t in (query, key, value)]

        def backward(g: Tensor) -> list[Tensor | None]:
            delta = empty((batch, heads, length), float32)
            grads = [None if kind is None else Tensor(*kind) for kind in kinds]
            del delta
            return grads

        record(out, (query, key, value), (query, key, value, out, sums), backward)
    return out


class TorchtuneAttention(Attention):
    """(B, S, W) -> (B, S, W). Queries are rotated before there are keys."""

    def __init__(self, config: Decoder, kind: str) -> None:
        super().__init__(config, kind)
        self.kind = kind
        self.groups = config.heads // config.key_value_heads

    def norm(self, config: Decoder, width: int) -> Module:
        return own_norm(config, width)

    def forward(self, x: Tensor, table: Any, mask: Tensor | None) -> Any:
        batch, length, _ = x.shape
        query = self.q_proj(x)
        query = query.view(batch, length, -1, self.head_dim)
        query = rotate_pairs_wide(query, self.place(table, length))
        query = query.transpose(1, 2)
        if self.normed != "none":
            query = self.q_norm(query)
        key = self.k_proj(x)
        value = self.v_proj(x)
        key = key.view(batch, length, -1, self.head_dim)
        value = value.view(batch, length, -1, self.head_dim)
        key = rotate_pairs_wide(key, self.place(table, length))
        key = key.transpose(1, 2)
        value = value.transpose(1, 2)
        if self.normed != "none":
            key = self.k_norm(key)
        key = repeat_heads(key, self.groups)
        value = repeat_heads(value, self.groups)
        output = self.attend(query, key, value).view(batch, length, -1)
        return getattr(self, self.output_name)(output)

    @staticmethod
    def place(table: Any, length: int) -> Tensor:
        """The rows of the table that tokens look up: a copy where each token states its place."""
        if isinstance(table, Tensor):
            return table[:length]
        whole, positions = table
        return empty((*positions.shape, *whole.shape[1:]), whole.dtype)

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """(B, h, S, d), (B, h, S, d), (B, h, S, d) -> (B, S, h, d)."""
        if self.kind == "flex":
            ordered: Tensor = flex_attention(query, key, value).transpose(1, 2).contiguous()
            return ordered
        output: Tensor = self.scores(query, key, value, None)[0]
        return output


class TorchtitanAttention(TorchtuneAttention):
    """All three products come first, and both rotations at once; heads are repeated before they change places with
    the tokens."""

    def products(self, x: Tensor) -> tuple[Tensor, ...]:
        batch, length, _ = x.shape
        found = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        return tuple(part.view(batch, length, -1, self.head_dim) for part in found)

    def forward(self, x: Tensor, table: Any, mask: Tensor | None) -> Any:
        batch, length, _ = x.shape
        query, key, value = self.products(x)
        if self.normed != "none":
            query = self.q_norm(query)
            key = self.k_norm(key)
        query, key = rotate_complex(query, key, table)
        keys, values = self.repeated(key), self.repeated(value)
        query = query.transpose(1, 2)
        key = keys.transpose(1, 2)
        value = values.transpose(1, 2)
        output = self.attend(query, key, value).view(batch, length, -1)
        return getattr(self, self.output_name)(output)

    def repeated(self, x: Tensor) -> Tensor:
        return repeat_late(x, self.groups)


class TorchtitanJoinedAttention(TorchtitanAttention):
    """One product for all three, of which each gets a copy (0.3, ``FusedQKVLinear``); SDPA takes fewer heads of keys
    and values than of queries."""

    def define(self, config: Decoder) -> None:
        self.heads = (config.heads // config.key_value_heads, 1, 1)
        joined = (config.heads + 2 * config.key_value_heads) * config.head_dim
        self.wqkv = Linear(config.width, joined, config.qkv_bias)
        setattr(self, config.output_name, Linear(config.heads * config.head_dim, config.width, config.output_bias))
        if self.normed != "none":
            self.q_norm, self.k_norm = self.norm(config, config.head_dim), self.norm(config, config.head_dim)

    def products(self, x: Tensor) -> tuple[Tensor, ...]:
        batch, length, _ = x.shape
        joined = self.wqkv(x).view(batch, length, -1, sum(self.heads), self.head_dim)
        parts = F.split(joined, self.heads, 3)
        return tuple(F.contiguous(part.reshape(batch, length, -1, self.head_dim)) for part in parts)

    def repeated(self, x: Tensor) -> Tensor:
        return x


class LitgptAttention(TorchtuneAttention):
    """One product for all three; what is rotated is put together again with the rest, which is nothing."""

    def define(self, config: Decoder) -> None:
        self.sizes = (config.heads * config.head_dim, *(config.key_value_heads * config.head_dim,) * 2)
        self.qkv = Linear(config.width, sum(self.sizes), config.qkv_bias)
        setattr(self, config.output_name, Linear(self.sizes[0], config.width, config.output_bias))
        if self.normed != "none":
            self.q_norm, self.k_norm = self.norm(config, config.head_dim), self.norm(config, config.head_dim)

    def forward(self, x: Tensor, table: Any, mask: Tensor | None) -> Any:
        batch, length, _ = x.shape
        query, key, value = F.split(self.qkv(x), self.sizes, -1)
        query = query.view(batch, length, -1, self.head_dim).transpose(1, 2)
        key = key.view(batch, length, -1, self.head_dim).transpose(1, 2)
        value = value.view(batch, length, -1, self.head_dim).transpose(1, 2)
        if self.normed != "none":
            query, key = self.q_norm(query), self.k_norm(key)
        query_rotated = rotate_half(query, table)
        key_rotated = rotate_half(key, table)
        query = F.cat((query_rotated, query[..., :0]), -1)
        key = F.cat((key_rotated, key[..., :0]), -1)
        if self.groups > 1:
            key = F.repeat_interleave(key, self.groups)
            value = F.repeat_interleave(value, self.groups)
        output = self.attend(query, key, value).view(batch, length, -1)
        return getattr(self, self.output_name)(output)


def repeat_late(x: Tensor, times: int) -> Tensor:
    """(B, S, kv, d) -> (B, S, kv * times, d)."""
    if times == 1:
        return x
    batch, length, heads, head_dim = x.shape
    x = x.unsqueeze(3).expand(batch, length, heads, times, head_dim)
    out: Tensor = x.reshape(batch, length, heads * times, head_dim)
    return out


# --------------------------------------------------------------------------------------------------------- layers


class TorchtuneLayer(Layer):
    make_attention: type[TorchtuneAttention] = TorchtuneAttention

    def __init__(self, config: Decoder, kind: str, number: int) -> None:
        self.self_attn = self.make_attention(config, kind)
        self.mlp = perceptron(config)
        self.input_layernorm = own_norm(config, config.width)
        self.post_attention_layernorm = own_norm(config, config.width)

    def forward(self, x: Tensor, tables: Any, mask: Tensor | None) -> Tensor:
        h = self.input_layernorm(x)
        attended = self.self_attn(h, tables, mask)
        h = attended + x
        fed = self.mlp(self.post_attention_layernorm(h))
        return h + fed  # type: ignore[no-any-return]


class TorchtitanLayer(TorchtuneLayer):
    make_attention = TorchtitanAttention

    def forward(self, x: Tensor, tables: Any, mask: Tensor | None) -> Tensor:
        h = x + self.self_attn(self.input_layernorm(x), tables, mask)
        return h + self.mlp(self.post_attention_layernorm(h))  # type: ignore[no-any-return]


class TorchtitanJoinedLayer(TorchtitanLayer):
    make_attention = TorchtitanJoinedAttention


def _in_fp32(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(to(logits.flatten(0, 1), float32), labels.view(-1))


class LitgptLayer(TorchtuneLayer):
    make_attention = LitgptAttention

    def forward(self, x: Tensor, tables: Any, mask: Tensor | None) -> Tensor:
        normed = self.input_layernorm(x)
        attended = self.self_attn(normed, tables, mask)
        x = attended + x
        normed = self.post_attention_layernorm(x)
        return self.mlp(normed) + x  # type: ignore[no-any-return]


# --------------------------------------------------------------------------------------------------------- models


class TorchtuneModel(LanguageModel):
    """Token numbers (B, S) and labels (B, S) -> mean cross entropy of the next token.

    positions   rows of the table of rotations, which is made once
    packed      rows hold several samples, and each token its place in its own
    """

    make_layer: type[TorchtuneLayer] = TorchtuneLayer
    head_in_loss = False  # whether the loss makes the logits of one chunk after the other itself

    def __init__(self, config: Decoder, kind: str, positions: int, packed: bool, **options: Any) -> None:
        self.packed = packed
        super().__init__(config._replace(rotary="none"), kind, **options)
        self.rotations = self.make_table(positions, config.head_dim)

    def define_layer(self, config: Decoder, kind: str, number: int) -> Layer:
        return self.make_layer(config, kind, number)

    def define_norm(self, config: Decoder) -> Module:
        return own_norm(config, config.width)

    @staticmethod
    def make_table(positions: int, head_dim: int) -> Tensor:
        return buffer(positions, head_dim // 2, 2)

    def tables(self, batch: int, length: int) -> Any:
        """What layers are given: they take the rows of it that they need."""
        return (self.rotations, empty((batch, length), int64)) if self.packed else self.rotations

    def hidden(self, given: Tensor) -> Tensor:
        x = self.embed_tokens(given) if given.ndim == 2 else given
        tables = self.tables(*x.shape[:2])
        for number, layer in enumerate(self.layers):
            # Of every k layers the last is recomputed, in torchtune (training/activations.py) and in torchtitan.
            recomputed = self.checkpointed > 0 and (number + 1) % self.checkpointed == 0
            x = self.through(layer, recomputed, x, tables, None)
        out: Tensor = self.norm(x)
        return out

    def forward(self, given: Tensor, labels: Tensor) -> Tensor:
        if self.loss == "fused":
            return super().forward(given, labels)
        given = self.hidden(given) if self.head_in_loss else self.outputs(given)
        offload, state.offload = state.offload, None  # what the loss saves stays on the card
        try:
            with component("logits"):
                return self.in_chunks(given, labels) if self.head_in_loss else self.compare(given, labels)
        finally:
            state.offload = offload

    def outputs(self, given: Tensor) -> Any:
        """Logits (B, S, V), or a list of those of some tokens each. Hidden states go no further than the model."""
        x = self.hidden(given)
        with component("logits"):
            if self.loss == "chunked":
                return [self.logits(piece) for piece in self.pieces(x)]
            return self.finish(self.logits(x))

    def pieces(self, x: Tensor) -> tuple[Tensor, ...]:
        return F.chunk(x, self.chunks, 1)

    def in_chunks(self, x: Tensor, labels: Tensor) -> Tensor:
        """torchtune's ``LinearCrossEntropyLoss`` (``modules/loss/cross_entropy_loss.py``, since 0.7): of each chunk the
        tokens that count are copied, and their logits live no longer than its loss is made. Here all count."""
        shifted = losses.shifted_labels(labels)
        of_piece = Compiled(losses.of_piece) if self.compile_loss else losses.of_piece
        total: Tensor | None = None
        for piece, part in zip(self.pieces(x), F.chunk(shifted, self.chunks, 1)):
            loss = self.of_chunk(piece, part, of_piece)
            total = loss if total is None else total + loss
        assert total is not None
        return total / 1.0

    def of_chunk(self, piece: Tensor, part: Tensor, of_piece: Any) -> Tensor:
        mask = empty(part.shape, bool_)
        targets = empty((part.numel,), int64)
        given = losses.picked(piece, mask)
        logits = self.logits(given)
        return of_piece(logits, targets)  # type: ignore[no-any-return]

    def finish(self, logits: Tensor) -> Tensor:
        """Whole logits leave the model in fp32."""
        return to(logits, float32)

    def compare(self, logits: Any, labels: Tensor) -> Tensor:
        shifted = losses.shifted_labels(labels)
        if self.loss == "chunked":
            of_piece = Compiled(losses.of_piece) if self.compile_loss else losses.of_piece
            return losses.sum_of_pieces(logits, F.chunk(shifted, self.chunks, 1), of_piece)
        function = Compiled(F.cross_entropy) if self.compile_loss else F.cross_entropy
        out: Tensor = function(logits.reshape(-1, logits.shape[-1]), shifted.view(-1))
        return out


class TorchtitanModel(TorchtuneModel):
    make_layer = TorchtitanLayer

    def finish(self, logits: Tensor) -> Tensor:
        return logits

    def compare(self, logits: Any, labels: Tensor) -> Tensor:
        """The loss makes a copy in fp32. The data loader has shifted the labels already."""
        if self.loss == "chunked":
            return super().compare(logits, labels)
        function = Compiled(_in_fp32) if self.compile_loss else _in_fp32
        out: Tensor = function(logits, labels)
        return out


class _Variable:
    """A local variable of the training loop: what it is bound to lives until the next value is there."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: Any = None


class TorchtitanRegistryModel(TorchtitanModel):
    """Of torchtitan 0.3, whose configs are Python: queries, keys and values are one product, SDPA takes grouped heads,
    and a chunk of the loss is done with before the next."""

    make_layer = TorchtitanJoinedLayer

    def forward(self, given: Tensor, labels: Tensor) -> Tensor:
        if self.loss != "chunked":
            return super().forward(given, labels)
        x = self.hidden(given)
        head = self.embed_tokens.weight if self.lm_head is None else self.lm_head.weight
        with component("logits"):
            return losses.immediate(x, head, labels, self.chunks, self.compile_loss)


class LitgptModel(TorchtuneModel):
    """The training loop's logits live through the backward pass, until those of the next micro batch take the name."""

    make_layer = LitgptLayer

    @staticmethod
    def make_table(positions: int, head_dim: int) -> Tensor:
        return buffer(positions, head_dim)

    def __init__(self, config: Decoder, kind: str, positions: int, packed: bool, **options: Any) -> None:
        super().__init__(config, kind, positions, packed, **options)
        self.sines = self.make_table(positions, config.head_dim)
        self.loop = _Variable()

    def outputs(self, given: Tensor) -> Any:
        self.loop.value = logits = super().outputs(given)
        return logits

    def tables(self, batch: int, length: int) -> Any:
        return self.rotations[:length].unsqueeze(0).unsqueeze(0)

    def pieces(self, x: Tensor) -> tuple[Tensor, ...]:
        return F.split(x, PIECE, 1)

    def finish(self, logits: Tensor) -> Tensor:
        return logits

    def compare(self, logits: Any, labels: Tensor) -> Tensor:
        """The cross entropy of 128 rows after the other, or of 128 tokens of all rows, in the logits' dtype. Full rows
        are of pretraining, whose data loader has shifted the labels; elsewhere the last token's logits are cut off,
        and what is left of several rows is copied."""
        if self.packed:
            logits = logits.reshape(-1, logits.shape[-1])
            pieces, parts = F.split(logits, PIECE), F.split(labels.reshape(-1), PIECE)
        elif self.loss == "chunked":
            logits[-1] = logits[-1][..., :-1, :]
            pieces = tuple(piece.reshape(-1, piece.shape[-1]) for piece in logits)
            parts = tuple(part.reshape(-1) for part in F.split(labels[..., 1:], PIECE, 1))
        else:
            logits = logits[..., :-1, :].reshape(-1, logits.shape[-1])
            targets = labels[..., 1:].reshape(-1)
            pieces, parts = F.split(logits, PIECE), F.split(targets, PIECE)
        found = [F.cross_entropy(piece, part).view(1) for piece, part in zip(pieces, parts)]
        return F.cat(found).sum() / 1.0  # type: ignore[no-any-return]


# -------------------------------------------------------------------------------------------------------- nanoGPT


class OptionalLayerNorm(Module):
    """A layer norm with or without a bias."""

    def __init__(self, width: int, bias: bool) -> None:
        self.weight = parameter(width)
        self.bias = parameter(width) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight, self.bias)


class NanogptAttention(Module):
    def __init__(self, config: Decoder, bias: bool) -> None:
        self.heads, self.dropout = config.heads, config.attention_dropout
        self.residual_dropout = config.residual_dropout
        self.c_attn = Linear(config.width, 3 * config.width, bias)
        self.c_proj = Linear(config.width, config.width, bias)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = F.split(self.c_attn(x), width, 2)
        shape = (batch, length, self.heads, width // self.heads)
        key = key.view(*shape).transpose(1, 2)
        query = query.view(*shape).transpose(1, 2)
        value = value.view(*shape).transpose(1, 2)
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(query, key, value, dropout=dropout, causal=True)
        y = y.transpose(1, 2).contiguous().view(batch, length, width)
        return F.dropout(self.c_proj(y), self.residual_dropout, self.training)


class NanogptPerceptron(Module):
    def __init__(self, config: Decoder, bias: bool) -> None:
        self.dropout = config.residual_dropout
        self.c_fc = Linear(config.width, config.intermediate, bias)
        self.c_proj = Linear(config.intermediate, config.width, bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.c_fc(x)
        x = F.gelu(x)
        x = self.c_proj(x)
        return F.dropout(x, self.dropout, self.training)


class NanogptLayer(Layer):
    def __init__(self, config: Decoder, bias: bool) -> None:
        self.ln_1, self.ln_2 = OptionalLayerNorm(config.width, bias), OptionalLayerNorm(config.width, bias)
        self.attn, self.mlp = NanogptAttention(config, bias), NanogptPerceptron(config, bias)

    def forward(self, x: Tensor, tables: Any, mask: Tensor | None) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))  # type: ignore[no-any-return]


class NanogptModel(LanguageModel):
    """GPT-2 with linear layers, biases or none, and one kernel for attention. The training loop's logits live through
    the backward pass."""

    def __init__(self, config: Decoder, kind: str, bias: bool, **options: Any) -> None:
        self.bias = bias
        super().__init__(config, kind, **options)
        self.loop = _Variable()

    def define_layer(self, config: Decoder, kind: str, number: int) -> Layer:
        return NanogptLayer(config, self.bias)

    def define_norm(self, config: Decoder) -> Module:
        return OptionalLayerNorm(config.width, self.bias)

    def hidden(self, given: Tensor) -> Tensor:
        positions = empty((given.shape[1],), int64)
        embedded = self.embed_tokens(given)
        assert self.embed_positions is not None
        x = F.dropout(embedded + self.embed_positions(positions), self.config.embedding_dropout, self.training)
        for layer in self.layers:
            x = self.through(layer, False, x, None, None)
        out: Tensor = self.norm(x)
        return out

    def cross_entropy(self, x: Tensor, labels: Tensor) -> Tensor:
        self.loop.value = logits = self.logits(x)
        function = Compiled(F.cross_entropy) if self.compile_loss else F.cross_entropy
        out: Tensor = function(logits.view(-1, logits.shape[-1]), labels.view(-1))
        return out


MODELS: dict[str, type[TorchtuneModel]] = {
    "torchtune": TorchtuneModel,
    "torchtitan": TorchtitanModel,
    "torchtitan registry": TorchtitanRegistryModel,
    "litgpt": LitgptModel,
}

NORMS = {
    "torchtune": "cast",
    "torchtitan": "torch",
    "torchtitan registry": "torch",
    "litgpt": "scaled",
}

# Releases of torch since which rms_norm is another one: rows of memlint.releases
NORM_RELEASES = ("2.9", "2.7", "2.5")

# Rows of logits in one cross entropy of litgpt's (``chunked_cross_entropy``), and tokens in one piece of its head.
PIECE = 128


def applies(implementation: str, config: Decoder) -> bool:
    """Whether this decoder is one that the library computes in a way of its own which is known here."""
    if implementation == "nanogpt":
        return config.plain_softmax  # nanoGPT computes GPT-2
    return (
        implementation in MODELS
        and config.residual == "pre"
        and config.projection == "separate"
        and config.norm == "rms"
        and config.rotary == "half"
        and config.rotary_dim == config.head_dim
        and config.perceptron == "gated"
        and config.query_norm in ("none", "head")
        and config.experts is None
        and not (config.scaled or config.scaled_residual or config.scaled_logits)
        and not (config.unrotated or config.score_cap or config.logit_cap or config.scaled_query or config.hybrid)
        and config.residual_dropout == 0
    )


def model(
    implementation: str, spec: TrainingSpec, config: Decoder, kind: str, options: dict[str, Any]
) -> LanguageModel:
    """The decoder of a library, for which :func:`applies` holds."""
    raw = Sizes(spec["hyperparameters.config"])
    if implementation == "nanogpt":
        return NanogptModel(config, kind, bool(raw.get("bias", True)), **options)
    packed = implementation in ("torchtune", "litgpt") and bool(spec.get("packing", False))
    longest = raw.get("max_position_embeddings") if implementation == "torchtune" else None
    positions = max(int(longest or 0), spec["sequence_length"])
    if implementation == "torchtitan" and spec.get("implementation_version") == "0.3":
        implementation = "torchtitan registry"
    norm = NORMS[implementation]
    if norm == "cast" and not spec.does("torchtune.norm_is_torchs"):
        norm = "rounded"
    if norm not in OWN_NORMS:
        since = next((since for since in NORM_RELEASES if spec.does(f"torch.rms_norm_{since}")), "2.4")
        norm = f"{norm} {since}"
    if implementation == "torchtune" and options["loss"] == "full" and not _takes_compiled_loss(spec):
        options["compile_loss"] = False
    if implementation == "torchtune" and packed:
        kind = "flex"
    made = MODELS[implementation](config._replace(norm=norm), kind, positions, packed, **options)
    made.head_in_loss = options["loss"] == "chunked" and bool(spec.get("head_in_loss", False))
    return made


def _takes_compiled_loss(spec: TrainingSpec) -> bool:
    """torchtune's recipes throw away what ``compile_loss`` gives them, and so compile the loss of chunks only, which it
    changes in place. Those for adapters on one device take it."""
    alone: bool = spec.get("parallelism.strategy", "none") == "none"
    return alone and bool(spec.get("tuning", "full") != "full")
