"""Decoders as litgpt computes them, and what it does to those whose linear layers bitsandbytes quantises.

Shapes: B rows, S tokens, W hidden width, h heads of d. Temporaries live as they do there, and modules have the names
that transformers gives them, which adapters go by. Mixtures of experts are computed as transformers computes them.
Sources: litgpt 0.5.13 ``model.py``, ``utils.py``, ``finetune/lora.py`` (``main``); lightning 2.6
``fabric/plugins/precision/bitsandbytes.py`` (``_Linear4bit.quantize``, ``module_init_context``); bitsandbytes 0.50
``nn/modules.py`` (``StableEmbedding``).
"""

from __future__ import annotations

from typing import Any

from memlint.architectures.decoder import Decoder
from memlint.meta import functional as F
from memlint.meta.amp import to
from memlint.meta.nn import Embedding, LayerNorm, Linear, buffer
from memlint.meta.tape import Label
from memlint.meta.tensor import DType, Tensor, bool_, default_dtype, empty, float16, float32, state
from memlint.models.language import losses
from memlint.models.language.decoder import LanguageModel
from memlint.models.language.experts import has_experts, mixture
from memlint.models.language.library_norms import own_norm
from memlint.models.language.parts import perceptron
from memlint.models.language.torchtune import TorchtuneAttention, TorchtuneLayer, TorchtuneModel

# Rows of logits in one cross entropy (``chunked_cross_entropy``), and tokens in one piece of the head.
PIECE = 128


def rotate_half(x: Tensor, table: Tensor) -> Tensor:
    """(B, h, S, n); ``table`` stands for the cosines and for the sines, (1, 1, S, n) each."""
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    rotated = F.cat((F.neg(second), first), -1)
    roped = (x * table) + (rotated * table)
    return to(roped, x.dtype)


class LitgptAttention(TorchtuneAttention):
    """One product for all three; what is rotated is put together again with the rest, which may be nothing."""

    def __init__(self, config: Decoder, kind: str, number: int) -> None:
        super().__init__(config, kind)
        self.rotated, self.neighbours = config.rotary_dim, config.rotary == "interleaved"
        self.windowed = bool(config.windows and config.windows[number])
        self.capped = config.score_cap

    def define(self, config: Decoder) -> None:
        self.sizes = (config.heads * config.head_dim, *(config.key_value_heads * config.head_dim,) * 2)
        self.qkv = Linear(config.width, sum(self.sizes), config.qkv_bias)
        setattr(self, config.output_name, Linear(self.sizes[0], config.width, config.output_bias))
        widths = self.sizes[:2] if self.normed == "whole" else (config.head_dim, config.head_dim)
        if self.normed != "none":
            self.q_norm, self.k_norm = self.norm(config, widths[0]), self.norm(config, widths[1])

    def forward(self, x: Tensor, table: Any, mask: Tensor | None) -> Any:
        batch, length, _ = x.shape
        query, key, value = F.split(self.qkv(x), self.sizes, -1)
        if self.normed == "whole":
            query, key = self.q_norm(query), self.k_norm(key)
        query = query.view(batch, length, -1, self.head_dim).transpose(1, 2)
        key = key.view(batch, length, -1, self.head_dim).transpose(1, 2)
        value = value.view(batch, length, -1, self.head_dim).transpose(1, 2)
        if self.normed == "head":
            query, key = self.q_norm(query), self.k_norm(key)
        query_rotated = self.rotated_part(query, table)
        key_rotated = self.rotated_part(key, table)
        query = F.cat((query_rotated, query[..., self.rotated :]), -1)
        key = F.cat((key_rotated, key[..., self.rotated :]), -1)
        if self.groups > 1:
            key = F.repeat_interleave(key, self.groups)
            value = F.repeat_interleave(value, self.groups)
        output = self.attend(query, key, value).view(batch, length, -1)
        return getattr(self, self.output_name)(output)

    def rotated_part(self, x: Tensor, table: Tensor) -> Tensor:
        part = x[..., : self.rotated]
        if self.neighbours:  # put into halves first
            part = part.view(*part.shape[:-1], -1, 2).transpose(-1, -2).reshape(*part.shape)
        out: Tensor = rotate_half(part, table)
        return out

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if not self.windowed and not self.capped:
            return super().attend(query, key, value)
        mask = self.window(query) if self.windowed else None
        if not self.capped:
            output = F.scaled_dot_product_attention(query, key, value, mask)
        else:
            scores = F.matmul(query, key.transpose(2, 3)) * 1.0
            scores = F.tanh(scores / 1.0) * 1.0
            scores = scores + (triangle(query) if mask is None else mask)
            scores = to(F.softmax(scores, -1, float32), query.dtype)
            output = F.matmul(scores, value)
        ordered: Tensor = output.transpose(1, 2).contiguous()
        return ordered

    @staticmethod
    def window(query: Tensor) -> Tensor:
        """(1, 1, S, S): made beside the triangle, which it replaces."""
        whole = triangle(query)
        made: Tensor = empty(whole.shape, query.dtype).view(1, 1, *whole.shape)
        return made


def triangle(query: Tensor) -> Tensor:
    """(S, S): numbers to add to scores, of what comes later."""
    square = (query.shape[2], query.shape[2])
    ones = empty(square, query.dtype)
    mask = empty(square, query.dtype)
    del ones
    chosen = empty(square, bool_)
    del chosen
    return mask


class LitgptLayer(TorchtuneLayer):
    """``Block``: a norm before each part, one behind it, or both; the parts one after the other, or beside each other,
    where they may read the same norm."""

    def __init__(self, config: Decoder, kind: str, number: int) -> None:
        self.self_attn = LitgptAttention(config, kind, number)
        self.mlp = mixture(config) if has_experts(config, number) else perceptron(config)
        self.residual = config.residual
        before, after = config.residual != "post", config.residual in ("post", "sandwich")
        if before:
            self.input_layernorm = own_norm(config, config.width)
        self.attention_scale = own_norm(config, config.width) if after else None
        self.mlp_scale = own_norm(config, config.width) if after else None
        if before and config.residual != "parallel":
            self.post_attention_layernorm = own_norm(config, config.width)

    def forward(self, x: Tensor, tables: Any, mask: Tensor | None) -> Tensor:
        normed = x if self.residual == "post" else self.input_layernorm(x)
        attended = self.self_attn(normed, tables, mask)
        if self.attention_scale is not None:
            attended = self.attention_scale(attended)
        if self.residual == "parallel_two":
            normed = self.post_attention_layernorm(x)
        x = attended + x
        if self.residual == "post":
            normed = x
        elif not self.residual.startswith("parallel"):
            normed = self.post_attention_layernorm(x)
        fed = self.mlp(normed)
        out: Tensor = (fed if self.mlp_scale is None else self.mlp_scale(fed)) + x
        return out


class LitgptModel(TorchtuneModel):
    """The training loop's logits live through the backward pass, until those of the next micro batch take the name."""

    make_layer = LitgptLayer
    caps_logits = True

    @staticmethod
    def make_table(config: Decoder, positions: int) -> Tensor:
        """(S, n) for the n numbers of a head that are rotated; two behind each other where some layers rotate by a
        table of their own."""
        return buffer(positions, config.rotary_dim, *((2,) if config.local_tables else ()))

    def __init__(self, config: Decoder, kind: str, positions: int, packed: bool, **options: Any) -> None:
        super().__init__(config, kind, positions, packed, **options)
        self.sines = self.make_table(config, positions)
        self.loop = losses.Variable()

    def outputs(self, given: Tensor) -> Any:
        self.loop.value = logits = super().outputs(given)
        return logits

    def tables(self, batch: int, length: int) -> Any:
        rows = self.rotations[:length]
        if self.described.local_tables:
            rows = rows[..., 0]
        return rows.unsqueeze(0).unsqueeze(0)

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


# ------------------------------------------------------------------------------------------- quantised weights

# Whatever the weights were loaded as, they are quantised from this dtype, and unpacked to it.
QUANTISED_FROM: DType = float16


class StableEmbedding(Embedding):
    """An embedding with a layer norm behind it: (B, S) -> (B, S, W)."""

    def __init__(self, entries: int, width: int) -> None:
        super().__init__(entries, width)
        self.norm = LayerNorm(width)

    def forward(self, index: Tensor) -> Tensor:
        out: Tensor = self.norm(super().forward(index))
        return out


def replace_embedding(model: LanguageModel) -> list[Tensor]:
    """A new embedding in place of the old one, which a variable of ``main`` and the optimizer keep. Returns what trains
    in it: no optimizer has it, so its gradients are there from the first step on, and nobody lets go of them."""
    old = model.embed_tokens
    with default_dtype(old.weight.dtype):
        new = StableEmbedding(*old.weight.shape)
    model.originals = [*model.originals, old]
    model.embed_tokens = new
    saved = state.label
    state.label = Label("gradients", "embed_tokens", "weight")
    for parameter in new.parameters():
        parameter.grad = Tensor(parameter.shape, parameter.dtype)
    state.label = saved
    return new.parameters()
