"""The architectures that are measured besides the examples' own: one plain PyTorch model per family.

Written here, so that nothing has to be downloaded or installed: a LLaMA-like decoder, a BERT-like encoder, a vision
transformer, a diffusion UNet, a DiT, a ResNet, and single layers, whose peaks show what a kernel takes besides its
tensors. Weights are random. :func:`build_model`, :func:`make_batch` and :func:`training_loss` are what ``[probe]`` of
memlint.toml asks for; the config is the plain dict of a case of ``cases.py``:

    architecture   decoder, encoder, vit, unet, dit, resnet or layer
    dtype          of the weights: float32, or bfloat16 for training in bf16 throughout
    attention      default (PyTorch chooses), flash, efficient or math, or eager: written out, probabilities kept
    any_kernel     a kernel that the device lacks may be replaced by math: for runs on a CPU
    checkpointing  none, full (every block), or reentrant (every block, the older implementation)
    channels_last  of images and convolution weights (resnet, unet)
    batch          samples; the remaining keys are sizes of the architecture
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

Config = dict[str, Any]

KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
DIFFUSION_STEPS = 1000
FREQUENCIES = 256  # of a diffusion step's sinusoidal embedding


# -- parts


class Attention(nn.Module):
    """(B, S, W) -> (B, S, W); grouped-query where there are fewer key/value heads than heads."""

    def __init__(self, config: Config, causal: bool = False, bias: bool = True) -> None:
        super().__init__()
        self.kind, self.instead = config["attention"], [SDPBackend.MATH] if config["any_kernel"] else []
        self.heads, self.causal = config["heads"], causal
        self.key_value_heads = config.get("key_value_heads") or self.heads
        self.dropout = config.get("dropout", 0.0)
        self.head_dim = config["width"] // self.heads
        inner = (self.heads + 2 * self.key_value_heads) * self.head_dim
        self.qkv = nn.Linear(config["width"], inner, bias=bias)
        self.out = nn.Linear(config["width"], config["width"], bias=bias)

    def forward(self, x: Tensor, tables: tuple[Tensor, Tensor] | None = None) -> Tensor:
        batch, length, width = x.shape
        packed = self.qkv(x).view(batch, length, -1, self.head_dim).transpose(1, 2)
        query, key, value = packed.split((self.heads, self.key_value_heads, self.key_value_heads), dim=1)
        if tables is not None:
            query, key = rotate(query, *tables), rotate(key, *tables)
        if self.key_value_heads < self.heads:
            key = key.repeat_interleave(self.heads // self.key_value_heads, 1)
            value = value.repeat_interleave(self.heads // self.key_value_heads, 1)
        mixed = self.written_out(query, key, value) if self.kind == "eager" else self.fused(query, key, value)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))

    def fused(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        kernels = [KERNELS[self.kind]] if self.kind in KERNELS else []
        with sdpa_kernel([*kernels, *self.instead]) if kernels else nullcontext():
            return F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=self.causal)

    def written_out(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.transpose(-2, -1) / math.sqrt(self.head_dim)
        if self.causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(later, float("-inf"))
        probabilities = scores.softmax(-1).to(value.dtype)
        return F.dropout(probabilities, self.dropout, self.training) @ value


def rotary_tables(length: int, head_dim: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine (S, d) of the rotary position embedding."""
    frequencies = 10000.0 ** (-torch.arange(0, head_dim, 2, device=like.device).float() / head_dim)
    angles = torch.outer(torch.arange(length, device=like.device).float(), frequencies).repeat(1, 2)
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat((-second, first), -1) * sine


class RmsNorm(nn.Module):
    """In fp32, rounded to the input's dtype, then scaled, as LLaMA has it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


class Blocks(nn.ModuleList):
    """A stack, each block recomputed in the backward pass if the config says so."""

    def __init__(self, config: Config, blocks: list[nn.Module]) -> None:
        super().__init__(blocks)
        self.checkpointing = config["checkpointing"]

    def forward(self, x: Tensor, *others: Any) -> Tensor:
        for block in self:
            if self.checkpointing == "none":
                x = block(x, *others)
            else:
                x = checkpoint(block, x, *others, use_reentrant=self.checkpointing == "reentrant")
        return x


def sinusoids(steps: Tensor, width: int) -> Tensor:
    """(B,) diffusion steps -> (B, width)."""
    frequencies = torch.exp(-math.log(10000.0) * torch.arange(width // 2, device=steps.device) / (width // 2))
    angles = steps[:, None].float() * frequencies
    return torch.cat((angles.sin(), angles.cos()), -1)


# -- decoder


class DecoderBlock(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        width, hidden = config["width"], config["hidden"]
        self.attention_norm, self.mlp_norm = RmsNorm(width), RmsNorm(width)
        self.attention = Attention(config, causal=True, bias=False)
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.attention(self.attention_norm(x), tables)
        y = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """Tokens (B, S) -> mean cross entropy of the next token, in fp32."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.head_dim = config["width"] // config["heads"]
        self.embedding = nn.Embedding(config["vocabulary"], config["width"])
        self.blocks = Blocks(config, [DecoderBlock(config) for _ in range(config["depth"])])
        self.norm = RmsNorm(config["width"])
        self.head = nn.Linear(config["width"], config["vocabulary"], bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        tables = rotary_tables(tokens.shape[1], self.head_dim, x)
        logits = self.head(self.norm(self.blocks(x, tables))).float()
        return F.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1))


# -- encoder


class EncoderBlock(nn.Module):
    """Norms after the sums, dropout on both branches, as BERT has them."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config["width"]
        self.attention = Attention(config)
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(config.get("dropout", 0.0))

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention_norm(x + self.dropout(self.attention(x)))
        return self.mlp_norm(x + self.dropout(self.down(F.gelu(self.up(x)))))


class Encoder(nn.Module):
    """Tokens (B, S) -> cross entropy of every token (masked language modelling without the masking)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config["width"]
        self.embedding = nn.Embedding(config["vocabulary"], width)
        self.positions = nn.Embedding(config["length"], width)
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(config.get("dropout", 0.0))
        self.blocks = Blocks(config, [EncoderBlock(config) for _ in range(config["depth"])])
        self.transform, self.transform_norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.bias = nn.Parameter(torch.zeros(config["vocabulary"]))

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.norm(self.embedding(tokens) + self.positions(places)))
        x = self.transform_norm(F.gelu(self.transform(self.blocks(x))))
        logits = F.linear(x, self.embedding.weight, self.bias)  # tied
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), tokens.view(-1))


# -- images: transformers


class VitBlock(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config["width"]
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(config)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Vit(nn.Module):
    """Images (B, 3, s, s) and classes (B,) -> cross entropy."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width, patch = config["width"], config["patch"]
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.positions = nn.Parameter(torch.zeros(1, (config["size"] // patch) ** 2 + 1, width))
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.blocks = Blocks(config, [VitBlock(config) for _ in range(config["depth"])])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, config["classes"])

    def forward(self, images: Tensor, classes: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.class_token.expand(x.shape[0], -1, -1), x), 1) + self.positions
        return F.cross_entropy(self.head(self.norm(self.blocks(x))[:, 0]), classes)


class DitBlock(nn.Module):
    """Adaptive norms: six modulations of the width from the condition."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config["width"]
        self.attention_norm = nn.LayerNorm(width, elementwise_affine=False)
        self.mlp_norm = nn.LayerNorm(width, elementwise_affine=False)
        self.attention = Attention(config)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = self.modulation(condition)[:, None].chunk(6, -1)
        x = x + gate * self.attention(self.attention_norm(x) * (1 + scale) + shift)
        return x + mlp_gate * self.mlp(self.mlp_norm(x) * (1 + mlp_scale) + mlp_shift)


class Dit(nn.Module):
    """Noisy latents (B, c, s, s), steps (B,), classes (B,) -> mean squared error of the predicted noise."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width, self.patch = config["width"], config["patch"]
        self.patches = nn.Conv2d(config["channels"], width, self.patch, self.patch)
        self.positions = nn.Parameter(torch.zeros(1, (config["size"] // self.patch) ** 2, width))
        self.time = nn.Sequential(nn.Linear(FREQUENCIES, width), nn.SiLU(), nn.Linear(width, width))
        self.classes = nn.Embedding(config["classes"] + 1, width)
        self.blocks = Blocks(config, [DitBlock(config) for _ in range(config["depth"])])
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))
        self.out = nn.Linear(width, self.patch**2 * config["channels"])

    def forward(self, noisy: Tensor, steps: Tensor, classes: Tensor, noise: Tensor) -> Tensor:
        batch, channels, size, _ = noisy.shape
        x = self.patches(noisy).flatten(2).transpose(1, 2) + self.positions
        condition = self.time(sinusoids(steps, FREQUENCIES).to(x.dtype)) + self.classes(classes)
        x = self.blocks(x, condition)
        shift, scale = self.modulation(condition)[:, None].chunk(2, -1)
        x = self.out(self.norm(x) * (1 + scale) + shift)
        side = size // self.patch
        x = x.view(batch, side, side, self.patch, self.patch, channels).permute(0, 5, 1, 3, 2, 4)
        return F.mse_loss(x.reshape(batch, channels, size, size).float(), noise.float())


# -- images: convolutions


class Residual(nn.Module):
    """(B, c, h, w), (B, t) -> (B, o, h, w): two convolutions under group norms, the step added between them."""

    def __init__(self, channels: int, out_channels: int, time_width: int) -> None:
        super().__init__()
        self.norm, self.out_norm = nn.GroupNorm(32, channels), nn.GroupNorm(32, out_channels)
        self.conv = nn.Conv2d(channels, out_channels, 3, padding=1)
        self.out_conv = nn.Conv2d(out_channels, out_channels, 3, padding=1)
        self.time = nn.Linear(time_width, out_channels)
        self.skip = nn.Conv2d(channels, out_channels, 1) if channels != out_channels else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.conv(F.silu(self.norm(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.skip(x) + self.out_conv(F.silu(self.out_norm(y)))


class SpatialAttention(nn.Module):
    """Self-attention over the h * w places of (B, c, h, w)."""

    def __init__(self, channels: int, config: Config) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, channels)
        self.attention = Attention({**config, "width": channels, "heads": max(1, channels // config["head_dim"])})

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x).flatten(2).transpose(1, 2)
        return x + self.attention(y).transpose(1, 2).reshape(x.shape)


class UnetStage(nn.Module):
    def __init__(self, config: Config, channels: int, out_channels: int, time_width: int, attends: bool) -> None:
        super().__init__()
        self.residual = Residual(channels, out_channels, time_width)
        self.attention = SpatialAttention(out_channels, config) if attends else nn.Identity()
        self.checkpointing = config["checkpointing"]

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        if self.checkpointing == "none":
            return self.run(x, time)
        result: Tensor = checkpoint(self.run, x, time, use_reentrant=self.checkpointing == "reentrant")
        return result

    def run(self, x: Tensor, time: Tensor) -> Tensor:
        return self.attention(self.residual(x, time))


class Unet(nn.Module):
    """Noisy images (B, c, s, s), steps (B,) -> mean squared error of the predicted noise.

    ``widths`` of the levels, two stages each; attention on levels at or beyond ``attend_from``.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        widths, time_width = config["widths"], 4 * config["widths"][0]
        self.time = nn.Sequential(nn.Linear(FREQUENCIES, time_width), nn.SiLU(), nn.Linear(time_width, time_width))
        self.conv_in = nn.Conv2d(config["channels"], widths[0], 3, padding=1)
        self.down, self.up, self.samplers = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        skips, channels = [widths[0]], widths[0]
        for level, width in enumerate(widths):
            for _ in range(2):
                self.down.append(UnetStage(config, channels, width, time_width, level >= config["attend_from"]))
                channels = width
                skips.append(channels)
            if level < len(widths) - 1:
                self.samplers.append(nn.Conv2d(channels, channels, 3, 2, 1))
                skips.append(channels)
        self.middle = UnetStage(config, channels, channels, time_width, True)
        for level, width in reversed(list(enumerate(widths))):
            for _ in range(3):
                attends = level >= config["attend_from"]
                self.up.append(UnetStage(config, channels + skips.pop(), width, time_width, attends))
                channels = width
        self.norm, self.conv_out = nn.GroupNorm(32, channels), nn.Conv2d(channels, config["channels"], 3, padding=1)

    def forward(self, noisy: Tensor, steps: Tensor, noise: Tensor) -> Tensor:
        time = self.time(sinusoids(steps, FREQUENCIES).to(self.conv_in.weight.dtype))
        x = self.conv_in(noisy)
        skips = [x]
        for at, stage in enumerate(self.down):
            x = stage(x, time)
            skips.append(x)
            if at % 2 and at // 2 < len(self.samplers):
                x = self.samplers[at // 2](x)
                skips.append(x)
        x = self.middle(x, time)
        for at, stage in enumerate(self.up):
            x = stage(torch.cat((x, skips.pop()), 1), time)
            if at % 3 == 2 and at < len(self.up) - 1:
                x = F.interpolate(x, scale_factor=2.0)
        return F.mse_loss(self.conv_out(F.silu(self.norm(x))).float(), noise.float())


class ResnetBlock(nn.Module):
    """Two 3 x 3 convolutions, or 1 x 1, 3 x 3, 1 x 1 with a bottleneck of a quarter."""

    def __init__(self, channels: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        out_channels = 4 * width if bottleneck else width
        shapes = [(channels, width, 3, stride), (width, width, 3, 1)]
        if bottleneck:
            shapes = [(channels, width, 1, 1), (width, width, 3, stride), (width, out_channels, 1, 1)]
        self.convs = nn.ModuleList(nn.Conv2d(i, o, k, s, k // 2, bias=False) for i, o, k, s in shapes)
        self.norms = nn.ModuleList(nn.BatchNorm2d(o) for _, o, _, _ in shapes)
        self.skip: nn.Module = nn.Identity()
        if stride > 1 or channels != out_channels:
            conv = nn.Conv2d(channels, out_channels, 1, stride, bias=False)
            self.skip = nn.Sequential(conv, nn.BatchNorm2d(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for at, (conv, norm) in enumerate(zip(self.convs, self.norms)):
            y = norm(conv(y))
            if at < len(self.convs) - 1:
                y = F.relu(y, inplace=True)
        return F.relu(y + self.skip(x), inplace=True)


class Resnet(nn.Module):
    """Images (B, 3, s, s) and classes (B,) -> cross entropy. ``depths``: blocks of the four stages."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width, bottleneck = config["width"], config["bottleneck"]
        self.stem = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.norm, self.pool = nn.BatchNorm2d(width), nn.MaxPool2d(3, 2, 1)
        blocks: list[nn.Module] = []
        channels = width
        for stage, depth in enumerate(config["depths"]):
            for at in range(depth):
                stride = 2 if stage and not at else 1
                blocks.append(ResnetBlock(channels, width << stage, stride, bottleneck))
                channels = (width << stage) * (4 if bottleneck else 1)
        self.blocks = Blocks(config, blocks)
        self.head = nn.Linear(channels, config["classes"])

    def forward(self, images: Tensor, classes: Tensor) -> Tensor:
        x = self.pool(F.relu(self.norm(self.stem(images)), inplace=True))
        return F.cross_entropy(self.head(self.blocks(x).mean((2, 3))), classes)


# -- one layer


class Layer(nn.Module):
    """One kernel's forward and backward pass; ``op``: linear, conv1d, conv2d, conv3d or attention."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config["width"]
        made: dict[str, Callable[[], nn.Module]] = {
            "linear": lambda: nn.Linear(width, width),
            "conv1d": lambda: nn.Conv1d(width, width, 3, padding=1),
            "conv2d": lambda: nn.Conv2d(width, width, 3, padding=1),
            "conv3d": lambda: nn.Conv3d(width, width, 3, padding=1),
            "attention": lambda: Attention(config),
        }
        self.layer = made[config["op"]]()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.requires_grad_()).square().sum()


# -- what a measurement asks for

MODELS: dict[str, type[nn.Module]] = {
    "decoder": Decoder, "encoder": Encoder, "vit": Vit, "unet": Unet, "dit": Dit, "resnet": Resnet, "layer": Layer,
}  # fmt: skip


def build_model(config: Config) -> nn.Module:
    with default_dtype(getattr(torch, config["dtype"])):
        model = MODELS[config["architecture"]](config)
    return model.to(memory_format=torch.channels_last) if config.get("channels_last") else model


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def make_batch(config: Config, device: str) -> tuple[Tensor, ...]:
    """What the model's ``forward`` takes, on a device."""
    architecture, batch = config["architecture"], config["batch"]
    dtype = getattr(torch, config["dtype"])

    def integers(high: int, *shape: int) -> Tensor:
        return torch.randint(0, high, (batch, *shape), device=device)

    def images(channels: int) -> Tensor:
        made = torch.rand(batch, channels, config["size"], config["size"], dtype=dtype, device=device)
        return made.contiguous(memory_format=torch.channels_last) if config.get("channels_last") else made

    if architecture in ("decoder", "encoder"):
        return (integers(config["vocabulary"], config["length"]),)
    if architecture in ("vit", "resnet"):
        return images(3), integers(config["classes"])
    if architecture == "layer":
        return (torch.rand(batch, *config["shape"], dtype=dtype, device=device),)
    noisy, steps = images(config["channels"]), integers(DIFFUSION_STEPS)
    between = (integers(config["classes"]),) if architecture == "dit" else ()
    return (noisy, steps, *between, images(config["channels"]))


def training_loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    loss: Tensor = model(*batch)
    return loss
