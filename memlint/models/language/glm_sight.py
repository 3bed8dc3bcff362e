"""GLM-4.1V's tower, and GLM-4.6V's: blocks as Qwen2.5-VL's, without windows and biases, between norms of their own.
Four patches become one by a convolution, and a perceptron with a gate makes the feature of it.

Shapes: N patches of all images together, W width. Source: ``transformers`` 5.23, ``models/glm4v/modeling_glm4v.py``.
"""

from __future__ import annotations

from memlint.architectures.vision import PackedTower
from memlint.meta import functional as F
from memlint.meta.amp import to
from memlint.meta.autograd import no_grad, record, tracked
from memlint.meta.checkpoint import checkpoint
from memlint.meta.nn import Conv, Embedding, LayerNorm, Linear, Module
from memlint.meta.tensor import Tensor, empty, float32
from memlint.models.language.image_features import ImageFeatures
from memlint.models.language.multimodal import Gaze, Patches, Tables
from memlint.models.language.parts import activation, norm
from memlint.models.language.vision import Recomputation


class Perceptron(Module):
    def __init__(self, width: int, inner: int, function: str) -> None:
        self.gate_proj = Linear(width, inner, bias=False)
        self.up_proj = Linear(width, inner, bias=False)
        self.down_proj = Linear(inner, width, bias=False)
        self.function = activation(function)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(self.function(self.gate_proj(x)) * self.up_proj(x))
        return out


class Block(Module):
    def __init__(self, config: PackedTower, kind: str) -> None:
        self.norm1, self.norm2 = norm("rms", config.width), norm("rms", config.width)
        self.attn = Gaze(config, kind)
        self.attn.qkv = Linear(config.width, 3 * config.width, bias=config.qkv_bias)
        self.attn.proj = Linear(config.width, config.width, bias=False)
        self.mlp = Perceptron(config.width, config.out, config.activation)

    def forward(self, x: Tensor, tables: Tables) -> Tensor:
        x = x + self.attn(self.norm1(x), tables)
        x = x + self.mlp(self.norm2(x))
        return x


class Merger(Module):
    def __init__(self, config: PackedTower) -> None:
        self.proj = Linear(config.out, config.out, bias=False)
        self.post_projection_norm = LayerNorm(config.out)
        self.perceptron = Perceptron(config.out, config.joined, config.activation)

    def forward(self, x: Tensor) -> Tensor:
        x = activation("gelu")(self.post_projection_norm(self.proj(x)))
        out: Tensor = self.perceptron(x)
        return out


class Places(Module):
    """The table of positions, in fp32 and between its rows, in each patch."""

    def __init__(self, config: PackedTower) -> None:
        self.position_embedding = Embedding(config.places, config.width)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.position_embedding.weight
        between = sampled(to(weight, float32), x.shape[0])
        return x + to(between, weight.dtype)


def sampled(table: Tensor, count: int) -> Tensor:
    """``grid_sample`` of a table (places, W) at N points: keeps both, and makes a gradient as large as the table."""
    grid = empty((count, 2), float32)
    out = Tensor((count, table.shape[1]), table.dtype)
    if tracked(table):
        shape, dtype = table.shape, table.dtype
        record(out, (table,), (table, grid), lambda g: (Tensor(shape, dtype),))
    return out


class GlmTower(Module):
    """(N, numbers of a patch) -> (N / 4, the decoder's width), and what was joined for it."""

    def __init__(self, config: PackedTower, kind: str, how: Recomputation) -> None:
        self.config, self.how = config, how
        self.proj = Patches(config)
        self.post_conv_layernorm = norm("rms", config.width)
        self.embeddings = Places(config)
        self.blocks = [Block(config, kind) for _ in range(config.layers)]
        self.post_layernorm = norm("rms", config.width)
        self.downsample = Conv(config.width, config.out, (config.merge, config.merge), stride=config.merge)
        self.merger = Merger(config)

    def parts(self) -> dict[str, list[Module]]:
        seeing = [self.proj, self.post_conv_layernorm, self.embeddings, *self.blocks, self.post_layernorm]
        return {"vision_tower": [*seeing, self.downsample], "projector": [self.merger]}

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        config, how = self.config, self.how
        x: Tensor = self.post_conv_layernorm(self.proj(pixels))
        count = x.shape[0]
        with no_grad():
            size = (count, config.width // config.heads)
            tables = empty(size, float32), empty(size, float32)
        x = self.embeddings(x)
        for number, block in enumerate(self.blocks):
            left = how.trained_alone and not any(tensor.requires_grad for tensor in block.parameters())
            if how.every and number % how.every == 0 and not left:
                x = checkpoint(block, x, tables, use_reentrant=how.reentrant)
            else:
                x = block(x, tables)
        x = self.post_layernorm(x).view(-1, config.merge, config.merge, config.width).permute(0, 3, 1, 2)
        joined = self.downsample(x).view(-1, config.out)
        out: Tensor = self.merger(joined)
        return out, joined


class GlmSight(Module):
    def __init__(self, tower: GlmTower) -> None:
        self.visual = tower

    def forward(self, pixels: Tensor) -> ImageFeatures:
        """The whole output of the tower has a name until the decoder is through."""
        features, joined = self.visual(pixels)
        return ImageFeatures(F.cat((features,), 0), (), (features, joined))
