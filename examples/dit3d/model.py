"""Reference model of this folder's configs: DiT3D, a diffusion transformer on short videos with a text condition.

What `memlint check --probe` instantiates, and what memlint's static estimate is tested against. It comes in two forms,
chosen by `DIT_PATCH_SIZE`:

    (pF, pH, pW)  native: a token is a block of pF frames; attention sees the whole clip.
                  Tokens = F/pF * H/pH * W/pW.
    p             per frame: every frame is an image of its own with (H/p)*(W/p) tokens, F times the batch; attention
                  never crosses frames. A temporal head mixes the frames' mean features and paints them back.

`DIT_FUSED_ATTENTION` asks for PyTorch's fused kernel instead, `DIT_GRADIENT_CHECKPOINTING` recomputes each block in
backward; both are off unless stated.

Both forms use the same block: adaLN-zero modulation around `nn.MultiheadAttention` called with its default
`need_weights=True`, so the attention probabilities are materialised, and the modulated norm is computed three times
(query, key, value).

Parameters: a block of width h has 18h^2 + 15h. With 4 channels, patches of 2 x 2, 1,000 classes and a learned
variance the native form has the counts published for DiT (position tables apart):
S/2 32,865,056  B/2 130,315,808  L/2 457,840,672  XL/2 674,834,720.
DistilBERT, the text encoder, has 66,362,880.

Shapes: B videos, C channels, F frames, H x W pixels, N tokens, h hidden width.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

# name: (hidden width, blocks, attention heads)
SIZES = {
    "XS": (192, 6, 3),
    "TINY": (256, 6, 4),
    "S": (384, 12, 6),
    "B": (768, 12, 12),
    "L": (1024, 24, 16),
    "XL": (1152, 28, 16),
}
TEMPORAL_HEADS = 8
FREQUENCIES = 256  # width of the sinusoidal time step
TEXT_WIDTH, TEXT_LAYERS, TEXT_HEADS, TEXT_FFN, TEXT_VOCABULARY, TEXT_POSITIONS = 768, 6, 12, 3072, 30522, 512


def model_size(name: str) -> tuple[tuple[int, int, int], int | None]:
    """``DiT3D-XL/2`` -> ((1152, 28, 16), 2). ``DiT-``, hyphens and a missing patch are understood."""
    words = name.replace("/", "-").split("-")
    if words and words[0].upper() in ("DIT3D", "DIT"):
        words = words[1:]
    if not words or words[0].upper() not in SIZES:
        raise ValueError(f"{name!r} is no DiT3D size; there are {', '.join(SIZES)}")
    patch = int(words[1]) if len(words) > 1 and words[1].isdigit() else None
    return SIZES[words[0].upper()], patch


# -- building blocks --------------------------------------------------------------------------------------------


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class TimestepEmbedder(nn.Module):
    """Diffusion steps (B,) -> (B, h)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(FREQUENCIES, hidden), nn.SiLU(), nn.Linear(hidden, hidden))

    def forward(self, step: Tensor) -> Tensor:
        half = FREQUENCIES // 2
        exponent = torch.arange(half, dtype=torch.float32, device=step.device)
        frequency = torch.exp(-math.log(10000) * exponent / half)
        angle = step[:, None].float() * frequency[None]
        return self.mlp(torch.cat([torch.cos(angle), torch.sin(angle)], dim=-1))


class TextEmbedder(nn.Module):
    """Text features (B, text width) -> (B, h); some are zeroed for classifier-free guidance."""

    def __init__(self, text_width: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.projection = nn.Sequential(
            nn.Linear(text_width, hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, hidden)
        )

    def forward(self, text: Tensor) -> Tensor:
        if self.training and self.dropout > 0:
            unconditional = torch.rand(text.shape[0], device=text.device) < self.dropout
            text = text.masked_fill(unconditional[:, None], 0.0)
        return self.projection(text)


class LabelEmbedder(nn.Module):
    """Classes (B,) -> (B, h), with one more entry for "no class" where labels are dropped."""

    def __init__(self, classes: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.classes = classes
        self.dropout = dropout
        self.embedding_table = nn.Embedding(classes + (dropout > 0), hidden)

    def forward(self, label: Tensor) -> Tensor:
        if self.training and self.dropout > 0:
            unconditional = torch.rand(label.shape[0], device=label.device) < self.dropout
            label = torch.where(unconditional, self.classes, label)
        return self.embedding_table(label)


class DiTBlock(nn.Module):
    """Tokens (B, N, h), condition (B, h) -> tokens."""

    def __init__(self, hidden: int, heads: int, fused: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(hidden, elementwise_affine=False, eps=1e-6)
        self.attn = nn.MultiheadAttention(hidden, heads, batch_first=True)
        self.need_weights = not fused
        self.norm2 = nn.LayerNorm(hidden, elementwise_affine=False, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(hidden, 4 * hidden), nn.GELU(approximate="tanh"), nn.Linear(4 * hidden, hidden)
        )
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(hidden, 6 * hidden))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.adaLN_modulation(condition).chunk(6, dim=1)
        attended = self.attn(
            modulate(self.norm1(x), shift1, scale1),
            modulate(self.norm1(x), shift1, scale1),
            modulate(self.norm1(x), shift1, scale1),
            need_weights=self.need_weights,
        )[0]
        x = x + gate1.unsqueeze(1) * attended
        return x + gate2.unsqueeze(1) * self.mlp(modulate(self.norm2(x), shift2, scale2))


class FinalLayer(nn.Module):
    """Tokens (B, N, h) -> (B, N, patch volume * out channels)."""

    def __init__(self, hidden: int, outputs: int) -> None:
        super().__init__()
        self.norm_final = nn.LayerNorm(hidden, elementwise_affine=False, eps=1e-6)
        self.linear = nn.Linear(hidden, outputs)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(hidden, 2 * hidden))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift, scale = self.adaLN_modulation(condition).chunk(2, dim=1)
        return self.linear(modulate(self.norm_final(x), shift, scale))


class Transformer(nn.Module):
    """Patches, positions, blocks: what `DIT_FREEZE_BACKBONE` freezes."""

    def __init__(self, patch_embed: nn.Module, tokens: int, learned_positions: bool, config: dict[str, Any]) -> None:
        super().__init__()
        (hidden, depth, heads), _ = model_size(config["DIT_MODEL_SIZE"])
        self.use_checkpoint = bool(config.get("DIT_GRADIENT_CHECKPOINTING", False))
        self.patch_embed = patch_embed
        positions = torch.zeros(1, tokens, hidden)
        if learned_positions:
            self.pos_embed = nn.Parameter(positions)
        else:
            self.register_buffer("pos_embed", positions)
        fused = bool(config.get("DIT_FUSED_ATTENTION", False))
        self.blocks = nn.ModuleList(DiTBlock(hidden, heads, fused) for _ in range(depth))
        self.t_embedder = TimestepEmbedder(hidden)
        if config.get("DIT_FREEZE_BACKBONE", False):
            self.requires_grad_(False)

    def embed(self, x: Tensor) -> Tensor:
        return self.patch_embed(x).flatten(2).transpose(1, 2) + self.pos_embed

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        for block in self.blocks:
            if self.use_checkpoint:
                x = checkpoint(block, x, condition, use_reentrant=False)
            else:
                x = block(x, condition)
        return x


def condition_embedder(config: dict[str, Any], hidden: int) -> nn.Module:
    """By text where `TEXT_EMBED_DIM` is set, else by class."""
    dropout = config.get("DIT_CLASS_DROPOUT_PROB", 0.1)
    text_width = config.get("TEXT_EMBED_DIM", 768)
    if text_width is not None:
        return TextEmbedder(text_width, hidden, dropout)
    return LabelEmbedder(config.get("DIT_NUM_CLASSES", 1000), hidden, dropout)


def channels(config: dict[str, Any]) -> tuple[int, int]:
    """(in, out): out is twice as many where the variance is learned."""
    count = config["INPUT_SHAPE"][0]
    return count, count * (2 if config.get("DIT_LEARN_SIGMA", True) else 1)


# -- the native form --------------------------------------------------------------------------------------------


class NativeDiT3D(nn.Module):
    """Noisy video (B, C, F, H, W), steps (B,), condition -> (B, out channels, F, H, W)."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        (hidden, _, _), _ = model_size(config["DIT_MODEL_SIZE"])
        self.patch = tuple(config["DIT_PATCH_SIZE"])
        self.video = tuple(config["DIT_VIDEO_SIZE"])
        if any(size % patch for size, patch in zip(self.video, self.patch)):
            raise ValueError(f"DIT_PATCH_SIZE {self.patch} does not divide DIT_VIDEO_SIZE {self.video}")
        inputs, self.out_channels = channels(config)
        tokens = math.prod(size // patch for size, patch in zip(self.video, self.patch))
        embed = nn.Conv3d(inputs, hidden, self.patch, stride=self.patch)
        self.backbone = Transformer(embed, tokens, False, config)
        self.y_embedder = condition_embedder(config, hidden)
        self.final_layer = FinalLayer(hidden, math.prod(self.patch) * self.out_channels)

    def forward(self, x: Tensor, step: Tensor, condition: Tensor) -> Tensor:
        tokens = self.backbone.embed(x)
        embedded = self.backbone.t_embedder(step) + self.y_embedder(condition)
        tokens = self.backbone(tokens, embedded)
        tokens = self.final_layer(tokens, embedded)
        grid = [size // patch for size, patch in zip(self.video, self.patch)]
        x = tokens.reshape(x.shape[0], *grid, *self.patch, self.out_channels)
        x = x.permute(0, 7, 1, 4, 2, 5, 3, 6)
        return x.reshape(x.shape[0], self.out_channels, *self.video)


# -- the per-frame form -----------------------------------------------------------------------------------------


class TemporalProcessor(nn.Module):
    """Attention over the frames' features: (B, F, h) -> (B, F, h)."""

    def __init__(self, hidden: int, frames: int) -> None:
        super().__init__()
        self.temporal_attn = nn.MultiheadAttention(hidden, TEMPORAL_HEADS, dropout=0.1, batch_first=True)
        self.norm1 = nn.LayerNorm(hidden)
        self.norm2 = nn.LayerNorm(hidden)
        self.ffn = nn.Sequential(
            nn.Linear(hidden, 4 * hidden),
            nn.GELU(),
            nn.Dropout(0.1),
            nn.Linear(4 * hidden, hidden),
            nn.Dropout(0.1),
        )
        self.temporal_pos_embed = nn.Parameter(torch.zeros(1, frames, hidden))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.temporal_pos_embed
        attended, _ = self.temporal_attn(x, x, x)
        x = self.norm1(x + attended)
        return self.norm2(x + self.ffn(x))


class FiLM(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.projection = nn.Linear(hidden, 2 * hidden)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        gamma, beta = self.projection(condition).chunk(2, dim=-1)
        return x * (1 + gamma.unsqueeze(1)) + beta.unsqueeze(1)


def norm_groups(count: int) -> int:
    return next(groups for groups in (8, 4, 2, 1) if count % groups == 0)


class Upsampler(nn.Module):
    """Frame features (B*F, h) -> frames (B*F, out channels, H, W), by way of 8 x 8 to 128 x 128."""

    def __init__(self, hidden: int, outputs: int, size: tuple[int, int]) -> None:
        super().__init__()
        self.outputs = outputs
        self.size = size
        self.feature_proj = nn.Sequential(
            nn.Linear(hidden, hidden), nn.LayerNorm(hidden), nn.GELU(), nn.Linear(hidden, 64 * outputs)
        )
        wide = 2 * outputs
        self.conv_layers = nn.Sequential(
            nn.ConvTranspose2d(outputs, wide, 4, 2, 1),
            nn.GroupNorm(norm_groups(wide), wide),
            nn.GELU(),
            nn.ConvTranspose2d(wide, wide, 4, 2, 1),
            nn.GroupNorm(norm_groups(wide), wide),
            nn.GELU(),
            nn.ConvTranspose2d(wide, outputs, 4, 2, 1),
            nn.GroupNorm(norm_groups(outputs), outputs),
            nn.GELU(),
            nn.ConvTranspose2d(outputs, outputs, 4, 2, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv_layers(self.feature_proj(x).view(-1, self.outputs, 8, 8))
        return resize(x, self.size)


def resize(x: Tensor, size: tuple[int, int]) -> Tensor:
    if tuple(x.shape[-2:]) == size:
        return x
    smaller = x.shape[-2] > size[0] or x.shape[-1] > size[1]
    return F.interpolate(x, size=size, mode="bicubic", align_corners=False, antialias=smaller)


class PerFrameDiT3D(nn.Module):
    """Noisy video (B, C, F, H, W), steps (B,), condition -> (B, out channels, F, H, W)."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        (hidden, _, _), named_patch = model_size(config["DIT_MODEL_SIZE"])
        patch = config.get("DIT_PATCH_SIZE") or named_patch or 2
        frames, height, width = config["DIT_VIDEO_SIZE"]
        inputs, outputs = channels(config)
        self.outputs = outputs
        self.image = (max(height, width),) * 2
        tokens = (self.image[0] // patch) ** 2
        self.backbone = Transformer(nn.Conv2d(inputs, hidden, patch, stride=patch), tokens, True, config)
        self.y_embedder = condition_embedder(config, hidden)
        self.temporal_processor = TemporalProcessor(hidden, frames)
        self.conditioning_layers = nn.ModuleList(FiLM(hidden) for _ in range(3))
        self.feature_modulation = nn.Sequential(nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, hidden))
        self.video_upsampler = Upsampler(hidden, outputs, (height, width))
        self.final_temporal_conv = nn.Sequential(
            nn.Conv3d(outputs, 2 * outputs, 3, padding=1),
            nn.GroupNorm(norm_groups(2 * outputs), 2 * outputs),
            nn.GELU(),
            nn.Conv3d(2 * outputs, outputs, 3, padding=1),
        )

    def forward(self, x: Tensor, step: Tensor, condition: Tensor) -> Tensor:
        batch, inputs, frames, height, width = x.shape
        embedded = self.y_embedder(condition)
        images = x.permute(0, 2, 1, 3, 4).reshape(-1, inputs, height, width)
        steps = step.unsqueeze(1).expand(-1, frames).reshape(-1)

        tokens = self.backbone.embed(resize(images, self.image))
        tokens = self.backbone(tokens, self.backbone.t_embedder(steps))
        features = tokens.mean(dim=1).view(batch, frames, -1)

        features = self.temporal_processor(features)
        for layer in self.conditioning_layers:
            features = layer(features, embedded)
        features = self.feature_modulation(features)
        video = self.video_upsampler(features.view(batch * frames, -1))
        video = video.view(batch, frames, self.outputs, height, width).permute(0, 2, 1, 3, 4)
        out = self.final_temporal_conv(video)
        if self.outputs == 2 * inputs:
            noise, variance = out.chunk(2, dim=1)
            return torch.cat([noise + x, variance], dim=1)
        return out + x


# -- the text encoder -------------------------------------------------------------------------------------------


class DistilBertLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_lin = nn.Linear(TEXT_WIDTH, TEXT_WIDTH)
        self.k_lin = nn.Linear(TEXT_WIDTH, TEXT_WIDTH)
        self.v_lin = nn.Linear(TEXT_WIDTH, TEXT_WIDTH)
        self.out_lin = nn.Linear(TEXT_WIDTH, TEXT_WIDTH)
        self.sa_layer_norm = nn.LayerNorm(TEXT_WIDTH, eps=1e-12)
        self.lin1 = nn.Linear(TEXT_WIDTH, TEXT_FFN)
        self.lin2 = nn.Linear(TEXT_FFN, TEXT_WIDTH)
        self.output_layer_norm = nn.LayerNorm(TEXT_WIDTH, eps=1e-12)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            linear(x).view(batch, length, TEXT_HEADS, -1).transpose(1, 2)
            for linear in (self.q_lin, self.k_lin, self.v_lin)
        )
        attended = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1 if self.training else 0.0)
        attended = attended.transpose(1, 2).reshape(batch, length, TEXT_WIDTH)
        x = self.sa_layer_norm(self.out_lin(attended) + x)
        out = F.dropout(self.lin2(F.gelu(self.lin1(x))), 0.1, self.training)
        return self.output_layer_norm(out + x)


class TextEncoder(nn.Module):
    """Token ids (B, length) -> (B, text width): DistilBERT's first token. It runs in train mode like the rest; frozen,
    it keeps nothing for backward."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(TEXT_VOCABULARY, TEXT_WIDTH)
        self.position_embeddings = nn.Embedding(TEXT_POSITIONS, TEXT_WIDTH)
        self.layer_norm = nn.LayerNorm(TEXT_WIDTH, eps=1e-12)
        self.layers = nn.ModuleList(DistilBertLayer() for _ in range(TEXT_LAYERS))
        if config.get("TEXT_FREEZE_BACKBONE", True):
            self.requires_grad_(False)
        width = config.get("TEXT_EMBED_DIM", TEXT_WIDTH)
        self.projection = nn.Linear(TEXT_WIDTH, width) if width != TEXT_WIDTH else nn.Identity()

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0)
        x = self.word_embeddings(tokens) + self.position_embeddings(positions)
        x = F.dropout(self.layer_norm(x), 0.1, self.training)
        for layer in self.layers:
            x = layer(x)
        return self.projection(x[:, 0, :])


# -- training ---------------------------------------------------------------------------------------------------


class Diffusion(nn.Module):
    """The denoiser with its noise schedule and its text encoder; called with a batch it gives the training loss."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        if config.get("MODEL_ARCHITECTURE", "dit3d") != "dit3d":
            raise ValueError(f"MODEL_ARCHITECTURE {config['MODEL_ARCHITECTURE']!r} is not dit3d")
        native = isinstance(config.get("DIT_PATCH_SIZE"), (tuple, list))
        self.model = NativeDiT3D(config) if native else PerFrameDiT3D(config)
        has_encoder = config.get("TEXT_ENCODER_MODEL") is not None and config.get("TEXT_EMBED_DIM", 768) is not None
        self.text_encoder = TextEncoder(config) if has_encoder else None
        self.timesteps = config.get("TIMESTEPS", 1000)
        # beta, alpha, its products and their roots, the posterior variance
        self.register_buffer("schedule", torch.ones(7, self.timesteps), persistent=False)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        video = batch["video"]
        step = torch.randint(0, self.timesteps, (video.shape[0],), device=video.device)
        noise = torch.randn_like(video)
        kept = self.schedule[2][step].view(-1, 1, 1, 1, 1)
        noisy = torch.sqrt(kept) * video + torch.sqrt(1.0 - kept) * noise
        condition = batch["condition"]
        if self.text_encoder is not None:
            condition = self.text_encoder(condition)
        predicted = self.model(noisy, step, condition)
        if predicted.shape[1] != noise.shape[1]:
            predicted = predicted.chunk(2, dim=1)[0]  # the other half is the variance, which this loss leaves alone
        return F.mse_loss(predicted, noise)


def build_model(config: dict[str, Any]) -> nn.Module:
    """The model of a config's constants (``{"BATCH_SIZE": 1, ...}``), on torch's default device."""
    return Diffusion(config)


def make_batch(config: dict[str, Any], device: str = "cpu") -> dict[str, Tensor]:
    """Videos with what conditions them: token ids, text features where there is no text encoder, or class labels."""
    batch = config.get("BATCH_SIZE", 1)
    video = torch.rand(batch, config["INPUT_SHAPE"][0], *config["DIT_VIDEO_SIZE"], device=device)
    text_width = config.get("TEXT_EMBED_DIM", 768)
    if text_width is None:
        condition = torch.zeros(batch, dtype=torch.long, device=device)
    elif config.get("TEXT_ENCODER_MODEL") is None:
        condition = torch.rand(batch, text_width, device=device)
    else:
        condition = torch.zeros(batch, config.get("TEXT_MAX_LENGTH", 77), dtype=torch.long, device=device)
    return {"video": video, "condition": condition}


def training_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """The scalar to call ``backward()`` on."""
    loss: Tensor = model(batch)
    return loss
