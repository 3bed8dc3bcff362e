"""MAE: a vision transformer over the patches of an image that are not hidden, and as a classifier of whole images.

Source: facebookresearch/mae efb2a80 (``models_mae.py``, ``models_vit.py``, ``engine_pretrain.py``,
``engine_finetune.py``), timm 0.3.2's block.
Shapes: N images of H x W pixels, L patches of which K are seen, C channels.
"""

from __future__ import annotations

from typing import Any

from memlint.architectures.mae import AUTOENCODERS, CLASSIFIERS, DECODER_DEPTH, DECODER_HEADS, DECODER_WIDTH
from memlint.facts.spec import HYPER, TrainingSpec
from memlint.meta import functional as F
from memlint.meta.nn import Conv, LayerNorm, Linear, Module, parameter
from memlint.meta.tensor import DTYPES, DType, Tensor, empty, float32, int64
from memlint.models.layer_decay import layer_groups
from memlint.models.openmmlab.bricks import DropPath, to_tokens
from memlint.models.openmmlab.transformers import rates
from memlint.models.system import System
from memlint.models.videomae import Perceptron


def fixed(*shape: int) -> Tensor:
    """A parameter that does not train."""
    made = parameter(*shape)
    made.requires_grad = False
    return made


class Attention(Module):
    """timm 0.3.2's, written out: products are scaled, and not the queries."""

    def __init__(self, width: int, heads: int) -> None:
        self.heads = heads
        self.qkv = Linear(width, 3 * width)
        self.proj = Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = F.reshape(self.qkv(x), batch, length, 3, self.heads, width // self.heads)
        qkv = F.permute(qkv, 2, 0, 3, 1, 4)
        q, k, v = F.select(qkv, 0), F.select(qkv, 0), F.select(qkv, 0)
        weights = F.matmul(q, F.transpose(k, -2, -1)) * 2.0
        weights = F.softmax(weights)
        x = F.reshape(F.transpose(F.matmul(weights, v), 1, 2), batch, length, width)
        return self.proj(x)  # type: ignore[no-any-return]


class Block(Module):
    def __init__(self, width: int, heads: int, path: float = 0.0) -> None:
        self.norm1, self.norm2 = LayerNorm(width), LayerNorm(width)
        self.attn: Module = Attention(width, heads)
        self.mlp, self.drop_path = Perceptron(width, 0.0), DropPath(path)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_path(self.attn(self.norm1(x)))
        return x + self.drop_path(self.mlp(self.norm2(x)))  # type: ignore[no-any-return]


class Classifier(Module):
    def __init__(self, spec: TrainingSpec, patches: int) -> None:
        shape = CLASSIFIERS[spec["model"]]
        self.pooled = not spec.get(HYPER + "cls_token")
        self.patch_embed = Conv(3, shape.width, (shape.patch, shape.patch), (shape.patch, shape.patch))
        self.cls_token, self.pos_embed = parameter(1, 1, shape.width), parameter(1, patches + 1, shape.width)
        path = float(spec.get(HYPER + "drop_path") or 0)
        self.blocks = [Block(shape.width, shape.heads, rate) for rate in rates(path, shape.depth)]
        self.norm = LayerNorm(shape.width)
        self.head = Linear(shape.width, int(spec[HYPER + "num_classes"]))

    def features(self, images: Tensor) -> Tensor:
        x = to_tokens(self.patch_embed(images))
        x = F.cat([F.expand(self.cls_token, x.shape[0], 1, x.shape[2]), x], 1)
        x = x + self.pos_embed
        for block in self.blocks:
            x = block(x)
        if self.pooled:
            return self.norm(F.mean(F.narrow(x, 1, x.shape[1] - 1), 1))  # type: ignore[no-any-return]
        return F.select_index(F.transpose(self.norm(x), 0, 1), 0)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images))  # type: ignore[no-any-return]


class Autoencoder(Module):
    def __init__(self, spec: TrainingSpec, patches: int) -> None:
        shape = AUTOENCODERS[spec["model"]]
        self.patch, self.seen = shape.patch, int(patches * (1 - float(spec[HYPER + "mask_ratio"])))
        self.normalised = bool(spec.get(HYPER + "norm_pix_loss"))
        self.patch_embed = Conv(3, shape.width, (shape.patch, shape.patch), (shape.patch, shape.patch))
        self.cls_token, self.pos_embed = parameter(1, 1, shape.width), fixed(1, patches + 1, shape.width)
        self.blocks = [Block(shape.width, shape.heads) for _ in range(shape.depth)]
        self.norm = LayerNorm(shape.width)
        self.decoder_embed = Linear(shape.width, DECODER_WIDTH)
        self.mask_token = parameter(1, 1, DECODER_WIDTH)
        self.decoder_pos_embed = fixed(1, patches + 1, DECODER_WIDTH)
        self.decoder_blocks = [Block(DECODER_WIDTH, DECODER_HEADS) for _ in range(DECODER_DEPTH)]
        self.decoder_norm = LayerNorm(DECODER_WIDTH)
        self.decoder_pred = Linear(DECODER_WIDTH, shape.patch**2 * 3)

    def encode(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What is left of the images, which patches are hidden, and the order that they were in."""
        x = to_tokens(self.patch_embed(images))
        batch, patches, width = x.shape
        x = x + F.narrow(self.pos_embed, 1, patches)
        shuffled = empty((batch, patches), int64)  # the order of noise, as argsort gives it
        restored = empty((batch, patches), int64)
        kept = F.repeat(F.unsqueeze(F.narrow(shuffled, 1, self.seen), 2), 1, 1, width)
        x = F.gather(x, 1, kept)
        del kept, shuffled
        mask = F.gather(empty((batch, patches), float32), 1, restored)
        first = self.cls_token + F.narrow(self.pos_embed, 1, 1)
        x = F.cat([F.expand(first, batch, 1, width), x], 1)
        for block in self.blocks:
            x = block(x)
        return self.norm(x), mask, restored

    def decode(self, x: Tensor, restored: Tensor) -> Tensor:
        batch, patches = restored.shape
        x = self.decoder_embed(x)
        hidden = F.repeat(self.mask_token, batch, patches + 1 - x.shape[1], 1)
        every = F.cat([F.narrow(x, 1, x.shape[1] - 1), hidden], 1)
        every = F.gather(every, 1, F.repeat(F.unsqueeze(restored, 2), 1, 1, DECODER_WIDTH))
        x = F.cat([F.narrow(x, 1, 1), every], 1)
        x = x + self.decoder_pos_embed
        for block in self.decoder_blocks:
            x = block(x)
        x = self.decoder_pred(self.decoder_norm(x))
        return F.narrow(x, 1, patches)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        latent, mask, restored = self.encode(images)
        restored_pixels = self.decode(latent, restored)
        return self.compare(images, restored_pixels, mask), restored_pixels, mask

    def compare(self, images: Tensor, pixels: Tensor, mask: Tensor) -> Tensor:
        """The mean square of what differs, in the patches that were hidden."""
        target = empty(pixels.shape, images.dtype)  # a copy of the images, patch by patch
        if self.normalised:
            mean = empty((*target.shape[:2], 1), target.dtype)
            target = F.div(target - mean, empty(mean.shape, mean.dtype))
        loss = F.pow(pixels - target, 2.0)
        loss = F.mean(loss, -1)
        return F.div(F.sum(loss * mask), F.sum(mask))


def classification(logits: Tensor, targets: Tensor, smoothed: bool) -> Tensor:
    """timm's losses: of targets that are mixed (B, classes), of smoothed labels, or of labels (B,)."""
    if targets.dtype is float32:
        return F.mean(F.sum(F.neg(targets) * F.log_softmax(logits, -1), -1))
    if smoothed:
        logs = F.log_softmax(logits, -1)
        chosen = F.neg(F.squeeze(F.gather(logs, -1, F.unsqueeze(targets, 1)), 1))
        smooth = F.neg(F.mean(logs, -1))
        return F.mean(chosen * 2.0 + smooth * 2.0)
    return F.cross_entropy(logits, targets)


class Run:
    """One run of one of the two programs. Facts: those of ``schemas/mae.schema.json``."""

    def __init__(self, spec: TrainingSpec) -> None:
        self.spec = spec
        compute = spec.get("compute_dtype", "float32")
        self.autocast: DType | None = None if compute == "float32" else DTYPES[compute]
        side = int(spec["image_size"])
        self.images = (int(spec["micro_batch_size"]), 3, side, side)
        model = spec["model"]
        patches = (side // (AUTOENCODERS.get(model) or CLASSIFIERS[model]).patch) ** 2
        if model in AUTOENCODERS:
            self.model: Module = Autoencoder(spec, patches)
        else:
            self.model = Classifier(spec, patches)

    def batch(self) -> list[Tensor]:
        images = empty(self.images, float32)
        if isinstance(self.model, Autoencoder):
            return [images]
        mixed = any((self.spec.get(HYPER + name) or 0) > 0 for name in ("mixup", "cutmix"))
        classes = int(self.spec[HYPER + "num_classes"])
        return [images, empty((self.images[0], classes), float32) if mixed else empty((self.images[0],), int64)]

    def loss(self, batch: list[Tensor]) -> Tensor:
        """Names of the loop's body live until the next step gives them to others."""
        if isinstance(self.model, Autoencoder):
            loss, pixels, mask = self.model(batch[0])
            del pixels, mask  # the loop calls both _
            return loss  # type: ignore[no-any-return]
        logits = self.model(batch[0])
        batch.append(logits)
        return classification(logits, batch[1], bool(self.spec.get(HYPER + "smoothing")))

    def groups(self) -> list[list[Tensor]]:
        """A classifier's layers learn at rates of their own."""
        if not isinstance(self.model, Classifier):
            return []
        model = self.model
        first = [model.cls_token, model.pos_embed, *model.patch_embed.parameters()]
        return layer_groups(first, model.blocks, model)

    def system(self) -> System:
        spec = self.spec
        options: dict[str, Any] = {"implementation": spec.get("optimizer_implementation", "foreach")}
        return System(
            model=self.model,
            batch=self.batch,
            loss=self.loss,
            optimizer=spec.get("optimizer", "adamw"),
            optimizer_options=options,
            groups=self.groups(),
            accumulation=spec.get("gradient_accumulation_steps", 1),
            autocast=self.autocast,
            uses=frozenset({"matmul", "convolution"}),
        )


def build(spec: TrainingSpec) -> System:
    """The System of a run of MAE's programs."""
    return Run(spec).system()
