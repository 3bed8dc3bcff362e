"""Encoder-decoders, as transformers' eager code computes them: BART and its kin, Whisper.

    tokens -> embeddings -> layers -> states; output tokens -> embeddings -> layers that attend to both -> logits

Shapes: B rows, S tokens (or frames), T output tokens, W hidden width, V vocabulary.
Source: ``transformers`` 5.23, ``models/{bart,mbart,pegasus,marian,m2m_100,whisper}``.
"""

from __future__ import annotations

from typing import Any

from memlint.architectures.encoder_decoder import EncoderDecoder, Stack
from memlint.meta import functional as F
from memlint.meta.checkpoint import checkpoint
from memlint.meta.nn import Conv, Embedding, LayerNorm, Linear, Module, buffer
from memlint.meta.tensor import DType, Tensor, component, empty, float16, int64, state
from memlint.models.language import losses
from memlint.models.language.encoder import Attended, attend, padding_mask
from memlint.models.language.parts import activation, attention_mask


class CrossAttention(Module):
    """Queries of one sequence; keys and values of the same, or of another."""

    def __init__(self, config: EncoderDecoder, heads: int, kind: str, causal: bool) -> None:
        width = config.width
        self.kind, self.causal = kind, causal
        self.head_dim = width // heads
        self.sound = config.mel_bins > 0
        self.dropout = config.attention_dropout
        self.k_proj = Linear(width, width, bias=not self.sound)
        self.v_proj = Linear(width, width)
        self.q_proj = Linear(width, width)
        self.out_proj = Linear(width, width)

    def forward(self, x: Tensor, other: Tensor | None, mask: Tensor | None) -> Attended:
        source = x if other is None else other
        shape = (*x.shape[:-1], -1, self.head_dim)
        wide = (*source.shape[:-1], -1, self.head_dim)
        if self.sound:
            query = (self.q_proj(x) * 1.0).view(*shape).transpose(1, 2).contiguous()
            key = self.k_proj(source).view(*wide).transpose(1, 2).contiguous()
            value = self.v_proj(source).view(*wide).transpose(1, 2).contiguous()
        else:
            query = self.q_proj(x).view(*shape).transpose(1, 2)
            key = self.k_proj(source)
            value = self.v_proj(source)
            key = key.view(*wide).transpose(1, 2)
            value = value.view(*wide).transpose(1, 2)
        dropout = self.dropout if self.training else 0.0
        output, weights = attend(query, key, value, mask, self.kind, dropout, self.causal)
        output = output.reshape(*x.shape[:-1], -1).contiguous()
        output = self.out_proj(output)
        return output, weights


class HalfLayer(Module):
    """Attention and a perceptron, each added to the stream with a norm before or behind it. ``crosses``: between them,
    attention to the encoder's states."""

    def __init__(self, config: EncoderDecoder, half: Stack, kind: str, crosses: bool) -> None:
        width = config.width
        self.self_attn = CrossAttention(config, half.heads, kind, crosses)
        self.self_attn_layer_norm = LayerNorm(width)
        self.encoder_attn = CrossAttention(config, half.heads, kind, False) if crosses else None
        self.encoder_attn_layer_norm = LayerNorm(width) if crosses else None
        self.fc1 = Linear(width, half.intermediate)
        self.fc2 = Linear(half.intermediate, width)
        self.final_layer_norm = LayerNorm(width)
        self.function = activation(config.activation)
        self.first = config.norm_first
        self.dropout, self.activation_dropout = config.dropout, config.activation_dropout

    def forward(self, x: Tensor, mask: Tensor | None, states: Tensor | None, padding: Tensor | None) -> Tensor:
        residual = x
        if self.first:
            x = self.self_attn_layer_norm(x)
        x, weights = self.self_attn(x, None, mask)
        x = F.dropout(x, self.dropout, self.training)
        x = residual + x
        if not self.first:
            x = self.self_attn_layer_norm(x)
        if self.encoder_attn is not None and self.encoder_attn_layer_norm is not None:
            residual = x
            if self.first:
                x = self.encoder_attn_layer_norm(x)
            x, weights = self.encoder_attn(x, states, padding)
            x = F.dropout(x, self.dropout, self.training)
            x = residual + x
            if not self.first:
                x = self.encoder_attn_layer_norm(x)
        residual = x
        if self.first:
            x = self.final_layer_norm(x)
        x = self.function(self.fc1(x))
        x = F.dropout(x, self.activation_dropout, self.training)
        x = self.fc2(x)
        x = F.dropout(x, self.dropout, self.training)
        x = residual + x
        if not self.first:
            x = self.final_layer_norm(x)
        elif self.encoder_attn is None and x.dtype is float16:
            x = F.clamp(x, 2)
        del weights
        return x


class Half(Module):
    """Embeddings, layers, and a last norm. ``table``: the embedding that both halves and the logits share."""

    def __init__(
        self, config: EncoderDecoder, half: Stack, kind: str, crosses: bool, checkpointed: int, reentrant: bool
    ) -> None:
        self.config, self.kind = config, kind
        self.checkpointed, self.reentrant = checkpointed, reentrant
        rows, width = config.positions[crosses], config.width
        if config.placing == "buffer":
            self.embed_positions: Any = None
            self.sinusoids = buffer(rows + 2, width, dtype=state.default_dtype)
        else:
            self.embed_positions = Embedding(rows + 2 if config.placing == "learned" else rows, width)
            if config.placing == "frozen" or (config.placing == "frames" and not crosses):
                self.embed_positions.freeze()
        self.layers = [HalfLayer(config, half, kind, crosses) for _ in range(half.layers)]
        self.layernorm_embedding = LayerNorm(width) if config.norm_embedded else None
        self.layer_norm = LayerNorm(width) if config.norm_first else None

    def embedded(self, tokens: Tensor, table: Embedding) -> Tensor:
        x: Tensor = table(tokens)
        if self.checkpointed and state.grad_enabled and not x.requires_grad:
            x.requires_grad_()
        return x * 1.0 if self.config.scaled else x

    def placed(self, batch: int, length: int, crosses: bool) -> Tensor:
        """Rows of the table of positions, once or for each row of the batch."""
        placing = self.config.placing
        if placing == "buffer":
            numbers = empty((batch, length), int64)
            found: Tensor = F.index_select(self.sinusoids, 0, numbers.view(-1)).view(batch, length, -1)
            return found
        if placing == "learned":
            found = self.embed_positions(empty((1 if crosses else batch, length), int64))
            return found
        if placing == "frames" and crosses:
            return F.index(self.embed_positions.weight, empty((batch, length), int64))
        found = self.embed_positions(empty((length,), int64))
        return found


class Encoder(Half):
    def __init__(self, config: EncoderDecoder, kind: str, checkpointed: int, reentrant: bool) -> None:
        super().__init__(config, config.encoder, kind, False, checkpointed, reentrant)

    def forward(self, tokens: Tensor, table: Embedding, padded: bool) -> Tensor:
        embedded = self.embedded(tokens, table)
        batch, length, _ = embedded.shape
        placed = self.placed(batch, length, False)
        x = embedded + placed
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        x = F.dropout(x, self.config.dropout, self.training)
        mask = padding_mask(self.kind, batch, length, embedded.dtype, padded)
        for number, layer in enumerate(self.layers):
            if self.checkpointed and number % self.checkpointed == 0:
                x = checkpoint(layer, x, mask, None, None, use_reentrant=self.reentrant)
            else:
                x = layer(x, mask, None, None)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        return x


class SoundEncoder(Half):
    """Two convolutions over a spectrogram (B, mel bins, frames) halve the frames."""

    def __init__(self, config: EncoderDecoder, kind: str, checkpointed: int, reentrant: bool) -> None:
        self.conv1 = Conv(config.mel_bins, config.width, (3,), padding=1)
        self.conv2 = Conv(config.width, config.width, (3,), stride=2, padding=1)
        super().__init__(config, config.encoder, kind, False, checkpointed, reentrant)

    def forward(self, sound: Tensor, table: Embedding, padded: bool) -> Tensor:
        embedded = F.gelu(self.conv1(sound))
        embedded = F.gelu(self.conv2(embedded))
        embedded = embedded.permute(0, 2, 1)
        x = embedded + self.placed(embedded.shape[0], embedded.shape[1], False)
        x = F.dropout(x, self.config.dropout, self.training)
        for number, layer in enumerate(self.layers):
            if self.checkpointed and number % self.checkpointed == 0:
                x = checkpoint(layer, x, None, None, None, use_reentrant=self.reentrant)
            else:
                x = layer(x, None, None, None)
        assert self.layer_norm is not None
        out: Tensor = self.layer_norm(x)
        return out


class Decoder(Half):
    def __init__(self, config: EncoderDecoder, kind: str, checkpointed: int, reentrant: bool) -> None:
        super().__init__(config, config.decoder, kind, True, checkpointed, reentrant)

    def forward(self, tokens: Tensor, table: Embedding, states: Tensor, padded: bool) -> Tensor:
        embedded = self.embedded(tokens, table)
        batch, length, _ = embedded.shape
        mask = attention_mask(self.kind, batch, length, embedded.dtype, 0, False)
        padding = padding_mask(self.kind, batch, states.shape[1], states.dtype, padded, length)
        placed = self.placed(batch, length, True)
        x = embedded + placed
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        x = F.dropout(x, self.config.dropout, self.training)
        for number, layer in enumerate(self.layers):
            if self.checkpointed and number % self.checkpointed == 0:
                x = checkpoint(layer, x, mask, states, padding, use_reentrant=self.reentrant)
            else:
                x = layer(x, mask, states, padding)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        return x


class EncoderDecoderModel(Module):
    """Tokens (B, S), or a spectrogram (B, mel bins, frames), and labels (B, T) -> mean cross entropy."""

    def __init__(self, config: EncoderDecoder, kind: str, checkpointed: int, reentrant: bool, padded: bool) -> None:
        self.padded = padded
        self.smooths = False  # labels, by the Trainer
        rows, width = config.vocabulary, config.width
        self.shared = Embedding(rows, width) if config.shared else None
        half: type[Encoder] | type[SoundEncoder] = SoundEncoder if config.mel_bins else Encoder
        self.encoder = half(config, kind, checkpointed, reentrant)
        self.decoder = Decoder(config, kind, checkpointed, reentrant)
        one = config.tied and config.shared
        self.encoder_table = None if one else Embedding(rows, width)
        self.decoder_table = None if one else Embedding(config.decoder_vocabulary or rows, width)
        self.lm_head = None if config.tied else Linear(width, rows, bias=False)
        made = config.decoder_vocabulary or rows
        self.final_logits_bias = buffer(1, made, dtype=state.default_dtype) if config.logits_bias else None

    @property
    def unused(self) -> list[Tensor]:
        """A table that is there to be shared, where the halves have their own."""
        return [] if self.encoder_table is None or self.shared is None else list(self.shared.parameters())

    def forward(self, given: Tensor, labels: Tensor) -> Tensor:
        loss, _ = self.run(given, labels)
        return loss

    def run(self, given: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Loss and logits (B, T, V)."""
        before = empty(labels.shape, int64)  # labels, moved one token to the right
        first: Any = self.encoder_table or self.shared
        second: Any = self.decoder_table or self.shared
        states = self.encoder(given, first, self.padded)
        x = self.decoder(before, second, states, self.padded)
        with component("logits"):
            logits = F.linear(x, second.weight) if self.lm_head is None else self.lm_head(x)
            if self.final_logits_bias is not None:
                logits = logits + self.final_logits_bias
            if self.smooths:
                logits = losses.returned(logits)
                return losses.smoothed(logits, labels, shifts=False), logits
            return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1)), logits


def spectrogram(config: EncoderDecoder, rows: int, dtype: DType) -> Tensor:
    """What the feature extractor makes of up to thirty seconds, in the weights' dtype: two frames for each position."""
    return empty((rows, config.mel_bins, 2 * config.positions[0]), dtype)
