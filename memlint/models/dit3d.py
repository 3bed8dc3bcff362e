"""DiT3D: a diffusion transformer on short videos, conditioned on text.

Two forms. *Native*: a token is a block of several frames, and attention sees the whole clip. *Per frame*: each frame is
an image of its own, so frames multiply the batch and attention never crosses them; a temporal head follows.

Shapes: B videos, C channels, F frames, H x W pixels, N tokens, h hidden width.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from memlint.architectures.dit import SIZES as OF_DIT
from memlint.architectures.dit import Size
from memlint.facts.spec import HYPER, TrainingSpec
from memlint.meta import functional as F
from memlint.meta.amp import to
from memlint.meta.checkpoint import checkpoint
from memlint.meta.nn import (
    Activation,
    Conv,
    ConvTranspose,
    Dropout,
    Embedding,
    GroupNorm,
    LayerNorm,
    Linear,
    Module,
    Sequential,
    buffer,
    parameter,
)
from memlint.meta.tensor import DTYPES, Tensor, bool_, empty, float32, int64
from memlint.models.system import System
from memlint.named_tuple import NamedTuple

TEMPORAL_HEADS = 8
FREQUENCIES = 256  # width of the sinusoidal time step
SCHEDULE = 7  # tables of the noise schedule: beta, alpha, its products and their roots, the posterior variance


# DiT's own, and two that are text2sign's.
SIZES = {"XS": Size(192, 6, 3), "TINY": Size(256, 6, 4), **OF_DIT}


class TextSize(NamedTuple):
    width: int
    layers: int
    heads: int
    feed_forward: int
    vocabulary: int
    positions: int


# config.json of these models on the Hugging Face hub
TEXT_ENCODERS = {
    "distilbert-base-uncased": TextSize(768, 6, 12, 3072, 30522, 512),
    "distilbert-base-cased": TextSize(768, 6, 12, 3072, 28996, 512),
    "distilbert-base-multilingual-cased": TextSize(768, 6, 12, 3072, 119547, 512),
}


# -- attention ---------------------------------------------------------------------------------------------------


class MultiheadAttention(Module):
    """``torch.nn.MultiheadAttention(batch_first=True)``, called as torch calls it by default: with
    ``need_weights=True``, which keeps the probabilities. ``fused`` is ``need_weights=False``.
    (torch/nn/functional.py, ``multi_head_attention_forward``.)"""

    def __init__(self, width: int, heads: int, dropout: float = 0.0, fused: bool = False) -> None:
        self.in_proj_weight = parameter(3 * width, width)
        self.in_proj_bias = parameter(3 * width)
        self.out_proj = Linear(width, width)
        self.heads = heads
        self.dropout = dropout
        self.fused = fused

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if key is value:
            query = key = value = query.transpose(1, 0)
        else:
            query, key, value = (x.transpose(1, 0) for x in (query, key, value))
        return self.attend(query, key, value).transpose(1, 0)  # type: ignore[no-any-return]

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """(N, B, h) -> (N, B, h)."""
        tokens, batch, width = query.shape
        folded, head = batch * self.heads, width // self.heads
        q, k, v = self.project(query, key, value)
        q = q.view(tokens, folded, head).transpose(0, 1)
        k = k.view(tokens, folded, head).transpose(0, 1)
        v = v.view(tokens, folded, head).transpose(0, 1)
        if self.fused:
            q = q.view(batch, self.heads, tokens, head)
            k = k.view(batch, self.heads, tokens, head)
            v = v.view(batch, self.heads, tokens, head)
            attended = F.scaled_dot_product_attention(q, k, v)
            del q, k, v
            attended = attended.permute(2, 0, 1, 3).reshape(tokens * batch, width)
            return self.out(attended, tokens, batch)
        scaled = q * 1.0
        weights = F.bmm(scaled, k.transpose(-2, -1))
        del scaled, k
        weights = F.softmax(weights)
        weights = F.dropout(weights, self.dropout, self.training)
        attended = F.bmm(weights, v)
        del v
        attended = attended.transpose(0, 1).reshape(tokens * batch, width)
        out = self.out(attended, tokens, batch)
        weights = F.mean(weights.view(batch, self.heads, tokens, tokens), 1)
        return out

    def out(self, attended: Tensor, tokens: int, batch: int) -> Tensor:
        attended = F.linear(attended, self.out_proj.weight, self.out_proj.bias)
        return attended.view(tokens, batch, attended.shape[1])  # type: ignore[no-any-return]

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if query is key:
            packed = F.linear(query, self.in_proj_weight, self.in_proj_bias)
            tokens, batch, width = query.shape
            packed = packed.view(tokens, batch, 3, width).unsqueeze(0).transpose(0, -2).squeeze(-2).contiguous()
            return packed[0], packed[1], packed[2]
        weights, biases = self.in_proj_weight.chunk(3), self.in_proj_bias.chunk(3)
        q, k, v = (F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases))
        return q, k, v


# -- building blocks ---------------------------------------------------------------------------------------------


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return x * (scale.unsqueeze(1) + 1) + shift.unsqueeze(1)  # type: ignore[no-any-return]


class TimestepEmbedder(Module):
    """(B,) -> (B, h)."""

    def __init__(self, hidden: int) -> None:
        self.mlp = Sequential(Linear(FREQUENCIES, hidden), Activation("silu"), Linear(hidden, hidden))

    def forward(self, step: Tensor) -> Tensor:
        half = FREQUENCIES // 2
        frequency = F.exp(empty((half,), float32) * -1.0 / half)
        angle = to(step, float32).unsqueeze(1) * frequency.unsqueeze(0)
        return self.mlp(F.cat((F.cos(angle), F.sin(angle)), -1))  # type: ignore[no-any-return]


class TextEmbedder(Module):
    """(B, text width) -> (B, h)."""

    def __init__(self, text_width: int, hidden: int, dropout: float) -> None:
        self.dropout = dropout
        self.projection = Sequential(
            Linear(text_width, hidden), Activation("gelu"), Dropout(dropout), Linear(hidden, hidden)
        )

    def forward(self, text: Tensor) -> Tensor:
        if self.training and self.dropout > 0:
            unconditional = empty((text.shape[0], 1), bool_)
            text = F.masked_fill(text, unconditional)
        return self.projection(text)  # type: ignore[no-any-return]


class LabelEmbedder(Module):
    """Classes (B,) -> (B, h)."""

    def __init__(self, classes: int, hidden: int, dropout: float) -> None:
        self.dropout = dropout
        self.embedding_table = Embedding(classes + (dropout > 0), hidden)

    def forward(self, label: Tensor) -> Tensor:
        if self.training and self.dropout > 0:
            label = empty(label.shape, int64)
        return self.embedding_table(label)  # type: ignore[no-any-return]


class DiTBlock(Module):
    """Tokens (B, N, h), condition (B, h) -> tokens. The modulated norm is made three times, once per argument."""

    def __init__(self, hidden: int, heads: int, fused: bool) -> None:
        self.norm1 = LayerNorm(hidden, affine=False)
        self.attn = MultiheadAttention(hidden, heads, fused=fused)
        self.norm2 = LayerNorm(hidden, affine=False)
        self.mlp = Sequential(Linear(hidden, 4 * hidden), Activation("gelu"), Linear(4 * hidden, hidden))
        self.adaln = Sequential(Activation("silu"), Linear(hidden, 6 * hidden))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.adaln(condition).chunk(6, 1)
        attended = self.attn(
            modulate(self.norm1(x), shift1, scale1),
            modulate(self.norm1(x), shift1, scale1),
            modulate(self.norm1(x), shift1, scale1),
        )
        x = x + gate1.unsqueeze(1) * attended
        return x + gate2.unsqueeze(1) * self.mlp(modulate(self.norm2(x), shift2, scale2))  # type: ignore[no-any-return]


class FinalLayer(Module):
    """Tokens (B, N, h) -> (B, N, patch volume * out channels)."""

    def __init__(self, hidden: int, outputs: int) -> None:
        self.norm_final = LayerNorm(hidden, affine=False)
        self.linear = Linear(hidden, outputs)
        self.adaln = Sequential(Activation("silu"), Linear(hidden, 2 * hidden))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift, scale = self.adaln(condition).chunk(2, 1)
        return self.linear(modulate(self.norm_final(x), shift, scale))  # type: ignore[no-any-return]


class Transformer(Module):
    """Patches, positions, blocks: what is frozen where the backbone is."""

    def __init__(self, spec: TrainingSpec, patch_embed: Conv, tokens: int, learned_positions: bool) -> None:
        size = model_size(spec)
        fused = spec.get("attention", "eager") != "eager"
        self.checkpointing = spec.get("checkpointing", "none") != "none"
        self.patch_embed = patch_embed
        make = parameter if learned_positions else buffer
        self.pos_embed = make(1, tokens, size.hidden)
        self.blocks = [DiTBlock(size.hidden, size.heads, fused) for _ in range(size.depth)]
        self.t_embedder = TimestepEmbedder(size.hidden)
        if spec.get("encoder_frozen", spec.get(HYPER + "backbone_frozen", False)):
            self.freeze()

    def embed(self, x: Tensor) -> Tensor:
        return self.patch_embed(x).flatten(2).transpose(1, 2) + self.pos_embed  # type: ignore[no-any-return]

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, condition) if self.checkpointing else block(x, condition)
        return x


def condition_embedder(spec: TrainingSpec, hidden: int) -> Module:
    dropout = spec[HYPER + "class_dropout"]
    text_width = spec[HYPER + "text_width"]
    if text_width:
        return TextEmbedder(text_width, hidden, dropout)
    return LabelEmbedder(spec[HYPER + "classes"], hidden, dropout)


def model_size(spec: TrainingSpec) -> Size:
    return SIZES[spec[HYPER + "size"]]


def channels(spec: TrainingSpec) -> tuple[int, int]:
    """(in, out)."""
    count: int = spec[HYPER + "channels"]
    return count, count * (2 if spec[HYPER + "learn_sigma"] else 1)


def video_size(spec: TrainingSpec) -> tuple[int, int, int]:
    height, width = spec["image_size"]
    return spec["frames"], height, width


# -- the two forms -----------------------------------------------------------------------------------------------


class NativeDiT3D(Module):
    """Noisy video (B, C, F, H, W), steps (B,), condition -> (B, out, F, H, W)."""

    def __init__(self, spec: TrainingSpec) -> None:
        hidden = model_size(spec).hidden
        self.video = video_size(spec)
        self.patch = tuple(map(within, spec["patch_size"], self.video))
        inputs, self.outputs = channels(spec)
        self.grid = tuple(size // patch for size, patch in zip(self.video, self.patch))
        embed = Conv(inputs, hidden, self.patch, self.patch)
        self.backbone = Transformer(spec, embed, prod(self.grid), learned_positions=False)
        self.y_embedder = condition_embedder(spec, hidden)
        self.final_layer = FinalLayer(hidden, prod(self.patch) * self.outputs)

    def forward(self, x: Tensor, step: Tensor, condition: Tensor) -> Tensor:
        tokens = self.backbone.embed(x)
        embedded = self.backbone.t_embedder(step) + self.y_embedder(condition)
        tokens = self.backbone(tokens, embedded)
        tokens = self.final_layer(tokens, embedded)
        batch = x.shape[0]
        x = tokens.reshape(batch, *self.grid, *self.patch, self.outputs).permute(0, 7, 1, 4, 2, 5, 3, 6)
        covered = tuple(size * patch for size, patch in zip(self.grid, self.patch))
        return x.reshape(batch, self.outputs, *covered)  # type: ignore[no-any-return]


def within(patch: int, size: int) -> int:
    """No patch is larger than what it cuts: torch would refuse it (MEM801), a what-if should still have an answer."""
    return patch if int(patch) <= int(size) else size


class TemporalProcessor(Module):
    """(B, F, h) -> (B, F, h)."""

    def __init__(self, hidden: int, frames: int) -> None:
        self.temporal_attn = MultiheadAttention(hidden, TEMPORAL_HEADS, dropout=0.1)
        self.norm1 = LayerNorm(hidden)
        self.norm2 = LayerNorm(hidden)
        self.ffn = Sequential(
            Linear(hidden, 4 * hidden), Activation("gelu"), Dropout(0.1), Linear(4 * hidden, hidden), Dropout(0.1)
        )
        self.temporal_pos_embed = parameter(1, frames, hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.temporal_pos_embed
        attended = self.temporal_attn(x, x, x)
        x = self.norm1(x + attended)
        return self.norm2(x + self.ffn(x))  # type: ignore[no-any-return]


class FiLM(Module):
    def __init__(self, hidden: int) -> None:
        self.projection = Linear(hidden, 2 * hidden)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        gamma, beta = self.projection(condition).chunk(2, -1)
        return x * (gamma.unsqueeze(1) + 1) + beta.unsqueeze(1)  # type: ignore[no-any-return]


def norm(count: int) -> GroupNorm:
    return GroupNorm(next(groups for groups in (8, 4, 2, 1) if count % groups == 0), count)


class Upsampler(Module):
    """Frame features (B*F, h) -> frames (B*F, out, H, W), by way of 8 x 8 to 128 x 128."""

    def __init__(self, hidden: int, outputs: int, size: tuple[int, int]) -> None:
        self.outputs = outputs
        self.size = size
        self.feature_proj = Sequential(
            Linear(hidden, hidden), LayerNorm(hidden), Activation("gelu"), Linear(hidden, 64 * outputs)
        )
        wide = 2 * outputs
        layers: list[Module] = []
        for narrow, out in ((outputs, wide), (wide, wide), (wide, outputs)):
            layers += [ConvTranspose(narrow, out, (4, 4), 2, 1), norm(out), Activation("gelu")]
        self.conv_layers = Sequential(*layers, ConvTranspose(outputs, outputs, (4, 4), 2, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.feature_proj(x)
        x = self.conv_layers(x.view(x.shape[0], self.outputs, 8, 8))
        return resize(x, self.size)


def resize(x: Tensor, size: tuple[int, int]) -> Tensor:
    return x if x.shape[-2:] == size else F.interpolate(x, *size)


class PerFrameDiT3D(Module):
    """Noisy video (B, C, F, H, W), steps (B,), condition -> (B, out, F, H, W)."""

    def __init__(self, spec: TrainingSpec) -> None:
        hidden = model_size(spec).hidden
        frames, height, width = video_size(spec)
        inputs, self.outputs = channels(spec)
        side = height if int(height) >= int(width) else width
        patch = within(spec["patch_size"], side)
        self.image = (side, side)
        tokens = (side // patch) * (side // patch)
        embed = Conv(inputs, hidden, (patch, patch), patch)
        self.backbone = Transformer(spec, embed, tokens, learned_positions=True)
        self.y_embedder = condition_embedder(spec, hidden)
        self.temporal_processor = TemporalProcessor(hidden, frames)
        self.conditioning_layers = [FiLM(hidden) for _ in range(3)]
        self.feature_modulation = Sequential(Linear(hidden, hidden), Activation("gelu"), Linear(hidden, hidden))
        self.video_upsampler = Upsampler(hidden, self.outputs, (height, width))
        wide = 2 * self.outputs
        self.final_temporal_conv = Sequential(
            Conv(self.outputs, wide, (3, 3, 3), padding=1),
            norm(wide),
            Activation("gelu"),
            Conv(wide, self.outputs, (3, 3, 3), padding=1),
        )

    def forward(self, x: Tensor, step: Tensor, condition: Tensor) -> Tensor:
        batch, inputs, frames, height, width = x.shape
        embedded = self.y_embedder(condition)
        images = x.permute(0, 2, 1, 3, 4).reshape(batch * frames, inputs, height, width)
        steps = step.unsqueeze(1).expand(-1, frames).reshape(batch * frames)

        tokens = self.backbone.embed(resize(images, self.image))
        tokens = self.backbone(tokens, self.backbone.t_embedder(steps))
        features = F.mean(tokens, 1).view(batch, frames, tokens.shape[-1])

        features = self.temporal_processor(features)
        for layer in self.conditioning_layers:
            features = layer(features, embedded)
        features = self.feature_modulation(features)
        video = self.video_upsampler(features.view(batch * frames, features.shape[-1]))
        video = video.view(batch, frames, self.outputs, height, width).permute(0, 2, 1, 3, 4)
        out = self.final_temporal_conv(video)
        if self.outputs == 2 * inputs:
            noise, variance = out.chunk(2, 1)
            return F.cat((noise + x, variance), 1)
        return out + x  # type: ignore[no-any-return]


# -- text encoder ------------------------------------------------------------------------------------------------


class DistilBertLayer(Module):
    def __init__(self, size: TextSize) -> None:
        width = size.width
        self.heads = size.heads
        self.q_lin = Linear(width, width)
        self.k_lin = Linear(width, width)
        self.v_lin = Linear(width, width)
        self.out_lin = Linear(width, width)
        self.sa_layer_norm = LayerNorm(width)
        self.lin1 = Linear(width, size.feed_forward)
        self.lin2 = Linear(size.feed_forward, width)
        self.output_layer_norm = LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            linear(x).view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for linear in (self.q_lin, self.k_lin, self.v_lin)
        )
        attended = F.scaled_dot_product_attention(q, k, v)
        attended = attended.transpose(1, 2).reshape(batch, length, width)
        x = self.sa_layer_norm(self.out_lin(attended) + x)
        out = F.dropout(self.lin2(F.gelu(self.lin1(x))), 0.1, self.training)
        return self.output_layer_norm(out + x)  # type: ignore[no-any-return]


class TextEncoder(Module):
    """Token ids (B, length) -> (B, width): the first token's features."""

    path = "text_encoder"

    def __init__(self, size: TextSize) -> None:
        self.width = size.width
        self.word_embeddings = Embedding(size.vocabulary, size.width)
        self.position_embeddings = Embedding(size.positions, size.width)
        self.layer_norm = LayerNorm(size.width)
        self.layers = [DistilBertLayer(size) for _ in range(size.layers)]

    def forward(self, tokens: Tensor) -> Tensor:
        positions = empty((1, tokens.shape[1]), int64)
        x = self.word_embeddings(tokens) + self.position_embeddings(positions)
        x = F.dropout(self.layer_norm(x), 0.1, self.training)
        for layer in self.layers:
            x = layer(x)
        first: Tensor = x[:, 0, :]
        return first


# -- training ----------------------------------------------------------------------------------------------------


class Batch(NamedTuple):
    """Videos (B, C, F, H, W) and what conditions them: token ids, text features or class labels."""

    video: Tensor
    condition: Tensor


class Diffusion(Module):
    """The denoiser with its noise schedule and its text encoder: a part of what trains, or a function where it is
    frozen, since it then counts as a helper."""

    def __init__(
        self, spec: TrainingSpec, encoder: TextEncoder | None, frozen: Callable[[Tensor], Tensor] | None, width: int
    ) -> None:
        native = not isinstance(spec["patch_size"], int)
        self.model: Module = NativeDiT3D(spec) if native else PerFrameDiT3D(spec)
        self.text_encoder = encoder
        self.frozen = frozen
        text_width = spec[HYPER + "text_width"]
        self.projection = Linear(width, text_width) if width != text_width else None
        self.schedule = buffer(SCHEDULE, spec[HYPER + "timesteps"])

    def forward(self, batch: Batch) -> Tensor:
        video = batch.video
        step = empty((video.shape[0],), int64)
        noise = empty(video.shape)
        kept = F.index_select(self.schedule[2], 0, step).view(-1, 1, 1, 1, 1)
        noisy = F.sqrt(kept) * video + F.sqrt(F.rsub(kept, 1.0)) * noise
        predicted = self.model(noisy, step, self.encode(batch.condition))
        if predicted.shape[1] != noise.shape[1]:
            predicted = predicted.chunk(2, 1)[0]
        return F.mse_loss(predicted, noise)

    def encode(self, condition: Tensor) -> Tensor:
        if self.text_encoder is not None:
            condition = self.text_encoder(condition)
        elif self.frozen is not None:
            condition = self.frozen(condition)
        return condition if self.projection is None else self.projection(condition)


def build(spec: TrainingSpec) -> System:
    """The System of a DiT3D run. Facts: those of ``schemas/dit3d.schema.json``."""
    text_width = spec[HYPER + "text_width"]
    text_size = TEXT_ENCODERS.get(spec[HYPER + "text_encoder"]) if text_width else None
    encoder = TextEncoder(text_size) if text_size is not None else None
    if encoder is not None and spec[HYPER + "text_frozen"]:
        encoder.freeze()
        helpers = [encoder]
        model = Diffusion(spec, None, encoder.__call__, encoder.width)
    else:
        helpers = []
        model = Diffusion(spec, encoder, None, encoder.width if encoder is not None else text_width)

    def batch(size: int) -> Batch:
        video = empty((size, spec[HYPER + "channels"], *video_size(spec)))
        if encoder is not None:
            return Batch(video, empty((size, spec["sequence_length"]), int64))
        if text_width:
            return Batch(video, empty((size, text_width)))
        return Batch(video, empty((size,), int64))

    def sample() -> Tensor:
        """One denoising step of the samples that are drawn for the log."""
        model.eval()
        drawn = batch(spec["evaluation_batch_size"])
        step = empty((drawn.video.shape[0],), int64)
        return model.model(drawn.video, step, model.encode(drawn.condition))  # type: ignore[no-any-return]

    dtype = spec.get("compute_dtype", "float32")
    return System(
        model=model,
        batch=lambda: batch(spec["micro_batch_size"]),
        loss=model,
        optimizer=spec.get("optimizer", "adamw"),
        optimizer_options={"implementation": spec.get("optimizer_implementation", "foreach")},
        accumulation=spec.get("gradient_accumulation_steps", 1),
        autocast=DTYPES[dtype] if dtype != "float32" else None,
        helpers=helpers,
        evaluate=sample if "evaluation_batch_size" in spec else None,
        uses=frozenset({"matmul", "convolution"}),
    )
