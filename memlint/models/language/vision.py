"""Vision transformers, as transformers' eager code computes them: to classify images, or as the eyes of a language
model.

    pixels -> patches -> layers of (norm, attention, add, norm, perceptron, add) -> norm -> logits

Shapes: B images, N patches (and the tokens before them), W hidden width, h heads of d.
Source: ``transformers`` 5.23, ``models/{vit,deit,dinov2,clip,siglip}``.
"""

from __future__ import annotations

from memlint.architectures.vision import Tower
from memlint.facts.spec import TrainingSpec
from memlint.meta import functional as F
from memlint.meta.amp import to
from memlint.meta.checkpoint import checkpoint
from memlint.meta.nn import Conv, Embedding, LayerNorm, Linear, Module, buffer, parameter
from memlint.meta.tensor import Tensor, component, empty, float32, int64, state
from memlint.models.language import checkpointed
from memlint.models.language.encoder import Attended, attend
from memlint.models.language.parts import activation
from memlint.named_tuple import NamedTuple


class Recomputation(NamedTuple):
    """How a run recomputes the blocks of a tower.

    every           how many, of which one is; 0 for none
    reentrant       as PyTorch's older checkpoint does it
    asks_gradient   what enters the first block gets a gradient, whatever trains (enable_input_require_grads)
    trained_alone   blocks in which nothing trains are not recomputed (LLaMA-Factory)
    """

    every: int
    reentrant: bool
    asks_gradient: bool
    trained_alone: bool

    def of_whole(self, spec: TrainingSpec) -> int:
        """``every`` of a tower that trains, or does not, as a whole."""
        return 0 if self.trained_alone and "vision_tower" in (spec.get("frozen_parts") or ()) else self.every


def recomputation(spec: TrainingSpec, named: bool = True) -> Recomputation:
    """Of a tower beside a decoder. ``named``: transformers' class says which of its modules embeds.

    Facts: ``checkpointing``, ``tower_checkpointing``. The Trainer asks for gradients of inputs where it turns
    recomputation on, LLaMA-Factory leaves that to PEFT, which does so where no weight is quantised.
    """
    kind = spec.get("tower_checkpointing", "as_decoder")
    every = 0 if kind == "none" else checkpointed(spec)
    trained_alone = kind == "trained"
    adapted = spec.get("tuning", "full") not in ("full", "freeze") and spec.get("quantization.bits") is None
    asks = (
        every > 0 and named and (adapted or not trained_alone) and spec.does("transformers.towers_inputs_get_gradients")
    )
    return Recomputation(every, bool(spec.get("checkpointing_reentrant", False)), asks, trained_alone)


class PatchEmbeddings(Module):
    """Pixels (B, channels, height, width) -> (B, N, W)."""

    def __init__(self, config: Tower) -> None:
        width = config.width
        self.config = config
        self.needs_gradient = False  # enable_input_require_grads
        self.projection = Conv(config.channels, width, config.patch, stride=config.patch, bias=not config.first_norm)
        count = config.patches + config.first
        if config.table:
            self.class_embedding = parameter(width) if config.first else None
            self.position_embedding: Embedding | None = Embedding(count, width)
            self.position_ids = buffer(1, count, dtype=int64)
        else:
            self.cls_token = parameter(1, 1, width)
            self.distillation_token = parameter(1, 1, width) if config.first == 2 else None
            self.mask_token = parameter(1, width) if config.mask_token else None
            self.position_embedding = None
            self.position_embeddings = parameter(1, count, width)

    def forward(self, pixels: Tensor) -> Tensor:
        config = self.config
        batch, _, height, width = pixels.shape
        pixels = to(pixels, self.projection.weight.dtype)
        x: Tensor = self.projection(pixels)
        if self.needs_gradient and state.grad_enabled and not x.requires_grad:
            x.requires_grad_()
        x = x.flatten(2).transpose(1, 2)
        if config.table:
            if self.class_embedding is not None:
                first = self.class_embedding.expand(batch, 1, -1)
                x = F.cat((first, x), 1)
            assert self.position_embedding is not None
            placed: Tensor = x + self.position_embedding(self.position_ids)
            return placed
        tokens = [self.cls_token.expand(batch, -1, -1)]
        if self.distillation_token is not None:
            tokens.append(self.distillation_token.expand(batch, -1, -1))
        x = F.cat((*tokens, x), 1)
        if (height, width) == config.image:
            x = x + self.position_embeddings
        else:
            x = x + self.resized(height // config.patch[0], width // config.patch[1])
        return F.dropout(x, config.dropout, self.training)

    def resized(self, rows: int, columns: int) -> Tensor:
        """Positions for images of another size."""
        config = self.config
        first = self.position_embeddings[:, : config.first]
        rest = self.position_embeddings[:, config.first :]
        side = config.image[0] // config.patch[0]
        rest = rest.reshape(1, side, config.patches // side, config.width).permute(0, 3, 1, 2)
        dtype = rest.dtype
        rest = to(F.interpolate(to(rest, float32), rows, columns), dtype)
        rest = rest.permute(0, 2, 3, 1).reshape(1, -1, config.width)
        return F.cat((first, rest), 1)


class TowerAttention(Module):
    def __init__(self, config: Tower, kind: str) -> None:
        width = config.width
        self.kind, self.head_dim, self.dropout = kind, width // config.heads, config.attention_dropout
        self.joined = config.first_norm  # CLIP makes all three before it tells their heads apart
        self.q_proj = Linear(width, width, config.qkv_bias)
        self.k_proj = Linear(width, width, config.qkv_bias)
        self.v_proj = Linear(width, width, config.qkv_bias)
        self.output_name = "out_proj" if config.table else "o_proj"
        setattr(self, self.output_name, Linear(width, width))

    def forward(self, x: Tensor) -> Attended:
        shape = (*x.shape[:-1], -1, self.head_dim)
        if self.joined:
            query, key, value = self.q_proj(x), self.k_proj(x), self.v_proj(x)
            query = query.view(*shape).transpose(1, 2)
            key = key.view(*shape).transpose(1, 2)
            value = value.view(*shape).transpose(1, 2)
        else:
            query = self.q_proj(x).view(*shape).transpose(1, 2)
            key = self.k_proj(x).view(*shape).transpose(1, 2)
            value = self.v_proj(x).view(*shape).transpose(1, 2)
        dropout = self.dropout if self.training else 0.0
        output, weights = attend(query, key, value, None, self.kind, dropout, wide=True)
        output = output.reshape(*x.shape[:-1], -1).contiguous()
        output = getattr(self, self.output_name)(output)
        return output, weights


class TowerPerceptron(Module):
    def __init__(self, config: Tower) -> None:
        self.gated = config.gated
        self.function = activation("silu" if config.gated else config.activation)
        width, inner = config.width, config.intermediate
        names = ("gate_proj", "up_proj", "down_proj") if config.gated else ("fc1", "fc2")
        for name in names[:-1]:
            setattr(self, name, Linear(width, inner))
        setattr(self, names[-1], Linear(inner, width))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor
        if self.gated:
            out = self.down_proj(self.function(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[attr-defined]
            return out
        x = self.fc1(x)  # type: ignore[attr-defined]
        x = self.function(x)
        out = self.fc2(x)  # type: ignore[attr-defined]
        return out


class TowerLayer(Module):
    def __init__(self, config: Tower, kind: str) -> None:
        self.config = config
        self.attention = TowerAttention(config, kind)
        self.layernorm_before = LayerNorm(config.width)
        self.layernorm_after = LayerNorm(config.width)
        self.mlp = TowerPerceptron(config)
        self.layer_scale1 = parameter(config.width) if config.layer_scale else None
        self.layer_scale2 = parameter(config.width) if config.layer_scale else None

    def forward(self, x: Tensor) -> Tensor:
        residual = x
        x = self.layernorm_before(x)
        x, weights = self.attention(x)
        x = self.added(x, residual, self.layer_scale1)
        residual = x
        x = self.layernorm_after(x)
        x = self.mlp(x)
        x = self.added(x, residual, self.layer_scale2)
        del weights
        return x

    def added(self, x: Tensor, residual: Tensor, scale: Tensor | None) -> Tensor:
        config = self.config
        if config.table:
            return residual + x
        if scale is not None:
            x = x * scale
        x = F.dropout(x, config.dropout, self.training)
        return (self.drop_path(x) if config.drop_path and self.training else x) + residual

    @staticmethod
    def drop_path(x: Tensor) -> Tensor:
        kept = empty((x.shape[0], *(1 for _ in x.shape[1:])), x.dtype)
        return x / 1.0 * kept


class VisionTower(Module):
    """Pixels -> hidden states (B, N, W) before the last norm, or ``after`` that many of the layers."""

    def __init__(self, config: Tower, kind: str, checkpointed: int, reentrant: bool) -> None:
        self.checkpointed, self.reentrant = checkpointed, reentrant
        self.embeddings = PatchEmbeddings(config)
        self.pre_layrnorm = LayerNorm(config.width) if config.first_norm else None
        self.layers = [TowerLayer(config, kind) for _ in range(config.layers)]
        self.layernorm = LayerNorm(config.width)

    def forward(self, pixels: Tensor) -> Tensor:
        embedded = self.embeddings(pixels)
        if self.pre_layrnorm is not None:
            embedded = self.pre_layrnorm(embedded)
        x: Tensor = embedded
        for number, layer in enumerate(self.layers):
            if self.checkpointed and number % self.checkpointed == 0:
                x = checkpoint(layer, x, use_reentrant=self.reentrant)
            else:
                x = layer(x)
        return x


class ImageClassifier(Module):
    """Pixels (B, channels, height, width) and labels (B,) -> mean cross entropy."""

    def __init__(self, config: Tower, body: VisionTower, labels: int) -> None:
        self.body, self.labels = body, labels
        self.averages = config.averaged
        self.classifier = Linear(config.width * (2 if self.averages else 1), labels)

    def forward(self, pixels: Tensor, labels: Tensor) -> Tensor:
        loss, _ = self.run(pixels, labels)
        return loss

    def run(self, pixels: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Loss and logits (B, labels)."""
        x = self.body(pixels)
        x = self.body.layernorm(x)
        with component("logits"):
            pooled = x[:, 0]
            if self.averages:
                patches = x[:, 1:]
                pooled = F.cat((pooled, F.mean(patches, 1)), 1)
            logits = self.classifier(pooled)
            if self.labels == 1:
                return F.mse_loss(logits.view(-1), labels), logits
            return F.cross_entropy(logits, labels), logits
