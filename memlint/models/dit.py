"""DiT: a diffusion transformer over the latents of images, conditioned on their class, and SiT, which has its loss of
interpolants.

Sources: facebookresearch/DiT ed81ce2 (``models.py``, ``train.py``), chuanyangjin/fast-DiT dbe04f6 (its training with
accelerate), willisma/SiT 947f95b (``train.py``, ``transport/transport.py``), timm 1.0's attention and perceptron.
Shapes: B images, N tokens, h hidden width.
"""

from __future__ import annotations

from memlint.architectures.dit import CHANNELS, DOWNSCALE, MODELS, Size
from memlint.facts.spec import HYPER, TrainingSpec
from memlint.meta import functional as F
from memlint.meta.amp import autocast, to
from memlint.meta.autograd import no_grad
from memlint.meta.checkpoint import checkpoint
from memlint.meta.nn import Activation, Conv, LayerNorm, Linear, Module, Sequential, parameter
from memlint.meta.tensor import DTYPES, DType, Tensor, empty, float32, int64
from memlint.models import program as programs
from memlint.models.dit3d import FinalLayer, LabelEmbedder, TimestepEmbedder, modulate
from memlint.models.gaussian_diffusion import flat_mean, losses
from memlint.models.openmmlab.bricks import to_tokens
from memlint.models.system import System
from memlint.profiles import shipped

AUTOENCODER, DECODER = "diffusers/kl-f8", "diffusers/kl-f8-decoder"
CLASS_DROPOUT = 0.1
LEARNS_VARIANCE = 2  # numbers for each channel: the noise and its variance


class Attention(Module):
    """timm's, by one fused kernel where ``fused``, as from 0.9 on; by products before."""

    def __init__(self, hidden: int, heads: int, fused: bool) -> None:
        self.heads, self.fused = heads, fused
        self.qkv, self.proj = Linear(hidden, 3 * hidden), Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, hidden = x.shape
        qkv = F.reshape(self.qkv(x), batch, length, 3, self.heads, hidden // self.heads)
        q, k, v = F.unbind(F.permute(qkv, 2, 0, 3, 1, 4))
        if self.fused:
            x = F.scaled_dot_product_attention(q, k, v)
        else:
            weights = F.softmax(F.matmul(q, F.transpose(k, -2, -1)) * 1.0)
            x = F.matmul(weights, v)
        return self.proj(F.reshape(F.transpose(x, 1, 2), batch, length, hidden))  # type: ignore[no-any-return]


class Block(Module):
    def __init__(self, size: Size, fused: bool) -> None:
        hidden = size.hidden
        self.norm1, self.norm2 = LayerNorm(hidden, affine=False), LayerNorm(hidden, affine=False)
        self.attn = Attention(hidden, size.heads, fused)
        self.mlp = Sequential(Linear(hidden, 4 * hidden), Activation("gelu"), Linear(4 * hidden, hidden))
        self.adaln = Sequential(Activation("silu"), Linear(hidden, 6 * hidden))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = F.chunk(self.adaln(condition), 6, 1)
        x = x + gate1.unsqueeze(1) * self.attn(modulate(self.norm1(x), shift1, scale1))
        return x + gate2.unsqueeze(1) * self.mlp(modulate(self.norm2(x), shift2, scale2))  # type: ignore[no-any-return]


class Transformer(Module):
    """Latents (B, 4, H, W), steps (B,), classes (B,) -> (B, 8, H, W); half of that where the variance is left out."""

    def __init__(self, spec: TrainingSpec, side: int) -> None:
        named = MODELS[spec["model"]]
        hidden, patch = named.size.hidden, named.patch
        self.patch, self.grid = patch, side // patch
        self.halves = named.interpolates
        self.checkpointed = spec.get("checkpointing", "none") != "none"
        self.x_embedder = Conv(CHANNELS, hidden, (patch, patch), patch)
        self.t_embedder = TimestepEmbedder(hidden)
        self.y_embedder = LabelEmbedder(int(spec[HYPER + "num_classes"]), hidden, CLASS_DROPOUT)
        self.pos_embed = parameter(1, self.grid**2, hidden)
        self.pos_embed.requires_grad = False
        fused = spec.get("attention", "sdpa") != "eager"
        self.blocks = [Block(named.size, fused) for _ in range(named.size.depth)]
        self.final_layer = FinalLayer(hidden, patch**2 * CHANNELS * LEARNS_VARIANCE)

    def forward(self, x: Tensor, step: Tensor, label: Tensor) -> Tensor:
        x = to_tokens(self.x_embedder(x)) + self.pos_embed
        condition = self.t_embedder(step) + self.y_embedder(label)
        for block in self.blocks:
            x = checkpoint(block, x, condition, use_reentrant=True) if self.checkpointed else block(x, condition)
        x = self.final_layer(x, condition)
        batch, side = x.shape[0], self.grid * self.patch
        x = F.reshape(x, batch, self.grid, self.grid, self.patch, self.patch, CHANNELS * LEARNS_VARIANCE)
        x = F.reshape(F.permute(x, 0, 5, 1, 3, 2, 4), batch, CHANNELS * LEARNS_VARIANCE, side, side)
        return F.chunk(x, 2, 1)[0] if self.halves else x


def _share(copy: Module, original: Module) -> None:
    """Two programs of one model have one set of weights."""
    for name, value in list(vars(original).items()):
        if isinstance(value, Tensor):
            setattr(copy, name, value)
    for (_, mine), (_, theirs) in zip(copy.children(), original.children(), strict=True):
        _share(mine, theirs)


class Batch:
    """What the loop names of a batch, and of what a step makes of it until the next one begins."""

    def __init__(self, images: Tensor, label: Tensor) -> None:
        self.images: Tensor | None = images
        self.label = label
        self.kept: list[Tensor] = []


class Run:
    """One run of ``train.py``. Facts: those of ``schemas/dit.schema.json``."""

    def __init__(self, spec: TrainingSpec) -> None:
        self.spec = spec
        self.side = int(spec["image_size"]) // DOWNSCALE
        self.rows = int(spec["micro_batch_size"])
        self.model = Transformer(spec, self.side)
        self.interpolates = MODELS[spec["model"]].interpolates
        compute = spec.get("compute_dtype", "float32")
        self.mixed: DType | None = None if compute == "float32" else DTYPES[compute]
        self.vae = self._half(AUTOENCODER, int(spec["image_size"]))
        self.vae.path = "autoencoder"
        self.encodes = not spec.get(HYPER + "features", False)
        self.drawn: Tensor | None = None
        self.decoder: programs.Whole | None = None
        if self.interpolates:
            self.decoder = self._half(DECODER, self.side)
            _share(self.decoder, self.vae)
            self.decoder.name("autoencoder")
        else:
            self.vae.freeze()

    def _half(self, name: str, side: int) -> programs.Whole:
        sizes = {"B": self.rows, "H": side, "W": side}
        return programs.build(programs.Run(shipped.program(name), sizes, float32, self.spec))

    def batch(self) -> Batch:
        if not self.encodes:
            return Batch(empty((self.rows, CHANNELS, self.side, self.side), float32), empty((self.rows,), int64))
        pixels = int(self.spec["image_size"])
        return Batch(empty((self.rows, 3, pixels, pixels), float32), empty((self.rows,), int64))

    def latents(self, batch: Batch) -> Tensor:
        images, batch.images = batch.images, None
        assert images is not None
        if not self.encodes:
            return images
        with no_grad():
            return self.vae(images)[0]  # type: ignore[no-any-return]

    def loss(self, batch: Batch) -> Tensor:
        start = self.latents(batch)
        step = empty((self.rows,), int64)
        batch.kept += [start, step]
        terms = self.interpolant(batch, start) if self.interpolates else self.diffusion(batch, start, step)
        batch.kept += terms.values()
        return F.mean(terms["loss"])

    def called(self, batch: Batch, x: Tensor, step: Tensor) -> Tensor:
        """The model under accelerate's autocast, which brings what it gives to fp32."""
        with autocast(self.mixed):
            given = self.model(x, step, batch.label)
        return to(given, float32)

    def diffusion(self, batch: Batch, start: Tensor, step: Tensor) -> dict[str, Tensor]:
        return losses(lambda noisy, steps: self.called(batch, noisy, steps), start, step)

    def interpolant(self, batch: Batch, start: Tensor) -> dict[str, Tensor]:
        """``Transport.training_losses`` of a velocity on a straight path."""
        step, noise = empty((self.rows,), float32), empty(start.shape, float32)
        column = (self.rows, 1, 1, 1)
        path = empty(column, float32) * start + empty(column, float32) * noise
        velocity = start * 1.0 + noise * 1.0
        given = self.called(batch, path, step)
        return {"pred": given, "loss": flat_mean(F.pow(given - velocity, 2.0))}

    def draw(self) -> None:
        """What SiT does after every ``--sample-every`` steps, under no ``no_grad`` of its own: the average's parameters
        want no gradients, but the autoencoder's do. The images are named until the next ones are, and with them lives
        the whole graph of the decoder (willisma/SiT issue 11: out of memory after the first samples)."""
        assert self.decoder is not None
        twice = 2 * self.rows  # with a class and without one
        with no_grad():
            latents = self.model(
                empty((twice, CHANNELS, self.side, self.side), float32),
                empty((twice,), float32),
                empty((twice,), int64),
            )
        latents = F.mul(empty((self.rows, *latents.shape[1:]), float32), 2.0)
        self.drawn = self.decoder(latents)[0]

    def system(self) -> System:
        spec = self.spec
        zeros = spec.does("torch.keeps_gradients_as_zeros")
        return System(
            model=self.model,
            batch=self.batch,
            loss=self.loss,
            optimizer=spec.get("optimizer", "adamw"),
            optimizer_options={"implementation": spec.get("optimizer_implementation", "foreach")},
            ema=(self.model,) if spec.get("ema", False) else (),
            helpers=(self.vae,),
            hand_over=self.draw if self.interpolates else None,
            keeps_gradients=zeros,
            clears_late=not zeros,
            uses=frozenset({"matmul", "convolution"}),
        )


def build(spec: TrainingSpec) -> System:
    """The System of a run of DiT's program, or SiT's."""
    return Run(spec).system()
