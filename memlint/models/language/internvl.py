"""InternVL as its own training script computes it: InternViT over tiles of images, patches joined to features, a
perceptron, and a decoder whose embeddings they are written over.

    tiles -> InternViT -> four patches to a feature -> norm, product, GELU, product -> in place of tokens -> decoder

Blocks of the tower are always recomputed, whatever of it trains, by torch's older checkpoint: it keeps nothing of a
block that nothing before it gives a gradient to. The loss is the model's own, of a copy of the logits in fp32.

Shapes: B rows of S tokens, T tiles of all rows together, N patches of a tile and one before them, W the tower's width,
C the decoder's. Source: OpenGVLab/InternVL 2410d1d, ``internvl_chat/internvl/model/internvl_chat/modeling_{intern_vit,
internvl_chat}.py``; flash-attn 2.3.6 ``csrc/flash_attn/flash_api.cpp`` (``mha_varlen_fwd``, ``mha_varlen_bwd``).
"""

from __future__ import annotations

from typing import Any

from memlint.architectures.internvl import InternVit, InternVl
from memlint.facts.spec import TrainingSpec
from memlint.meta import functional as F
from memlint.meta.amp import to
from memlint.meta.autograd import no_grad, record, tracked
from memlint.meta.checkpoint import checkpoint
from memlint.meta.nn import Conv, LayerNorm, Linear, Module, parameter
from memlint.meta.tensor import DTYPES, DType, Tensor, bool_, component, default_dtype, empty, float32, int32, int64
from memlint.models.language import Task, language_model, losses, sequence_length
from memlint.models.language.decoder import LanguageModel
from memlint.models.language.parts import activation, norm

# Rows of queries, and numbers of a head, to whose multiples the backward kernel rounds its buffers; keys of a block.
_ROWS, _NUMBERS, _KEYS = 128, 32, 128


@F.kernel
def attend(qkv: Tensor, tiles: int) -> Tensor:
    """FlashAttention of a packed tensor (tokens of all tiles, 3, heads, width) -> (tokens, heads, width). It keeps what
    it is given, its result, a number for each row, and where each tile begins; backward makes one gradient of all."""
    tokens, _, heads, width = qkv.shape
    length = tokens // tiles
    places = empty((tiles + 1,), int32)
    out = empty((tokens, heads, width), qkv.dtype)
    sums, seed = empty((tiles, heads, length), float32), empty((2,), int64)
    if tracked(qkv):
        shape, dtype = qkv.shape, qkv.dtype
        rows = -(-length // _ROWS) * _ROWS

        def backward(g: Tensor) -> tuple[Tensor]:
            gradient = Tensor(shape, dtype)
            scratch = [Tensor((tiles, heads, rows), float32)]
            if length > (_KEYS if width <= _KEYS // 2 else _KEYS // 2):  # more than one block of keys
                scratch.append(Tensor((tiles, heads, rows, -(-width // _NUMBERS) * _NUMBERS), float32))
            del scratch
            return (gradient,)

        record(out, (qkv,), (qkv, out, sums, seed, places), backward)
    return out


class TileEmbeddings(Module):
    """Tiles (T, 3, height, width) -> (T, N, W). Positions are interpolated, whatever size a tile has."""

    def __init__(self, config: InternVit) -> None:
        self.config = config
        self.class_embedding = parameter(1, 1, config.width)
        self.patch_embedding = Conv(config.channels, config.width, config.patch, stride=config.patch)
        self.position_embedding = parameter(1, config.side**2 + 1, config.width)

    def forward(self, tiles: Tensor) -> Tensor:
        patches: Tensor = self.patch_embedding(tiles)
        count, _, rows, columns = patches.shape
        patches = patches.flatten(2).transpose(1, 2)
        first = self.class_embedding.expand(count, 1, -1)
        x = F.cat((first, patches), 1)
        places = F.cat((self.position_embedding[:, :1], self.interpolated(rows, columns)), 1)
        x = x + places
        del patches
        return x

    def interpolated(self, rows: int, columns: int) -> Tensor:
        places, side = self.position_embedding[:, 1:], self.config.side
        dtype = places.dtype
        places = to(places, float32).reshape(1, side, side, -1).permute(0, 3, 1, 2)
        places = F.interpolate(places, rows, columns).reshape(1, -1, rows * columns).permute(0, 2, 1)
        return to(places, dtype)


class TileAttention(Module):
    def __init__(self, config: InternVit) -> None:
        self.heads, self.normed = config.heads, config.normed
        self.qkv = Linear(config.width, 3 * config.width, config.qkv_bias)
        self.q_norm = norm("rms", config.width) if config.normed else None
        self.k_norm = norm("rms", config.width) if config.normed else None
        self.proj = Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        count, length, width = x.shape
        qkv = self.qkv(x).view(count, length, 3, self.heads, width // self.heads)
        apart: tuple[Tensor, ...] = ()
        if self.q_norm is not None and self.k_norm is not None:
            query, key, value = F.unbind(qkv, 2)
            shape = query.shape
            query = self.q_norm(query.flatten(-2, -1)).view(*shape)
            key = self.k_norm(key.flatten(-2, -1)).view(*shape)
            qkv = F.stack((query, key, value), 2)
            apart = query, key, value  # have names until the block's attention is done
        seen = attend(qkv.view(count * length, 3, self.heads, width // self.heads), count)
        out: Tensor = self.proj(seen.view(count, length, width))
        del apart, seen
        return out


class TilePerceptron(Module):
    def __init__(self, config: InternVit) -> None:
        self.function = activation(config.activation)
        self.fc1 = Linear(config.width, config.intermediate)
        self.fc2 = Linear(config.intermediate, config.width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        x = self.function(x)
        out: Tensor = self.fc2(x)
        return out


class TileBlock(Module):
    """``drops``: halves of the block are skipped for some tiles (timm's DropPath)."""

    def __init__(self, config: InternVit, drops: bool) -> None:
        self.drops = drops
        self.attn, self.mlp = TileAttention(config), TilePerceptron(config)
        self.norm1, self.norm2 = (
            LayerNorm(config.width) if config.norm == "layer" else norm("rms", config.width) for _ in range(2)
        )
        self.ls1, self.ls2 = parameter(config.width), parameter(config.width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropped(self.attn(to(self.norm1(x), x.dtype)) * self.ls1)
        x = x + self.dropped(self.mlp(to(self.norm2(x), x.dtype)) * self.ls2)
        return x

    def dropped(self, x: Tensor) -> Tensor:
        if not (self.drops and self.training):
            return x
        kept = empty((x.shape[0], 1, 1), x.dtype)
        return x * kept


class InternVitModel(Module):
    """Tiles -> the last block's states (T, N, W)."""

    def __init__(self, config: InternVit) -> None:
        self.embeddings = TileEmbeddings(config)
        # torch.linspace(0, rate, layers): the first block drops nothing
        self.layers = [TileBlock(config, config.drop_path > 0 and number > 0) for number in range(config.layers)]

    def forward(self, tiles: Tensor) -> Tensor:
        x: Tensor = self.embeddings(tiles)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=True) if self.training else layer(x)
        return x


class Joint(Module):
    """(T, features, width of the joined patches) -> (T, features, C): ``mlp1``."""

    def __init__(self, width: int, out: int) -> None:
        self.layer_norm = LayerNorm(width)
        self.linear_1 = Linear(width, out)
        self.linear_2 = Linear(out, out)
        self.function = activation("gelu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer_norm(x)
        x = self.linear_1(x)
        x = self.function(x)
        out: Tensor = self.linear_2(x)
        return out


class InternSight(Module):
    """Tiles -> (T, features, C)."""

    def __init__(self, described: InternVl, tower: InternVitModel, projector: Joint) -> None:
        self.vision_tower, self.multi_modal_projector = tower, projector
        self.described = described

    def forward(self, tiles: Tensor) -> Tensor:
        side = self.described.tower.side
        seen: Tensor = self.vision_tower(tiles)[:, 1:]
        seen = seen.reshape(seen.shape[0], side, side, -1)
        seen = self.shuffled(seen)
        seen = seen.reshape(seen.shape[0], -1, seen.shape[-1])
        out: Tensor = self.multi_modal_projector(seen)
        return out

    def shuffled(self, x: Tensor) -> Tensor:
        """(T, side, side, W) -> (T, side / n, side / n, W * n * n), copied once or twice."""
        count, side, _, width = x.shape
        n = self.described.shuffle
        x = x.view(count, side, side // n, width * n)
        x = x.permute(0, 2, 1, 3).contiguous()
        x = x.view(count, side // n, side // n, width * n * n)
        return x.permute(0, 2, 1, 3).contiguous() if self.described.swaps else x


class Seen:
    """Embedded tokens in which features stand, and what the model's forward pass names until its loss is made."""

    def __init__(self, x: Tensor, held: tuple[Tensor, ...]) -> None:
        self.x, self.held = x, held


def look(model: LanguageModel, tokens: Tensor, tiles: Tensor | None, asks_gradient: bool) -> Seen:
    """``asks_gradient``: PEFT's hook on the embedding, which ``wrap_llm_lora`` asks for."""
    embedded = model.embed_tokens(tokens)
    if asks_gradient and not embedded.requires_grad:
        embedded.requires_grad_()
    embedded = F.clone(embedded)
    if tiles is None:  # of what weights and their states take, which no image changes
        return Seen(embedded, ())
    count, length, width = embedded.shape
    features: Tensor = model.sight(tiles)
    features = F.index(features, empty((features.shape[0],), int64))  # all but what stands in for a sample's image
    embedded = embedded.reshape(count * length, width)
    selected = empty((count * length,), bool_)
    features_put = features.reshape(-1, width)
    number = min(features_put.shape[0], count * length)
    if number < features_put.shape[0]:  # cut rows have less room
        features_put = features_put[:number]
    own = F.index(embedded, empty((number,), int64)) * 0.0
    embedded = F.index_put_(embedded, own + features_put, empty((number,), int64))
    del own
    return Seen(embedded.reshape(count, length, width), (features, selected))


def compare(logits: Tensor, labels: Tensor, weighs: bool) -> Tensor:
    """The loss of logits (B, S, V) in fp32. ``weighs``: each token's, by weights that come as numbers of Python's."""
    if not weighs:
        return losses.shifted(logits, labels)[0]
    weights = empty(labels.shape, float32)
    kept, asked, own = logits[:, :-1].contiguous(), labels[:, 1:].contiguous(), weights[:, 1:].contiguous()
    each = F.cross_entropy(kept.view(-1, kept.shape[-1]), asked.view(-1), "none")
    whole = F.sum(own)
    each = each * own.view(-1)
    out: Tensor = F.sum(each) / whole
    return out


def task(spec: TrainingSpec, described: InternVl, dtype: DType, autocast: bool) -> Task:
    """Facts: ``images_per_sample`` [1: tiles], ``frozen_parts``, ``projector_dtype`` [the weights']."""
    config = described.decoder
    if spec.get("vocabulary_size") is not None:
        config = config._replace(vocabulary=spec["vocabulary_size"])
    model = language_model(spec, config, dtype, autocast)
    with default_dtype(dtype):
        tower = InternVitModel(described.tower)
    with default_dtype(DTYPES[spec.get("projector_dtype") or dtype.name]):
        projector = Joint(described.tower.width * described.shuffle**2, config.width)
    frozen = spec.get("frozen_parts") or ()
    if "language_model" in frozen:
        model.freeze()
    sight = InternSight(described, tower, projector)
    setattr(model, "sight", sight)  # noqa: B010 - a part of the model, by which it is counted and named
    parts: dict[str, Module] = {"vision_tower": tower, "projector": projector}
    for name, part in parts.items():
        if name in frozen:
            part.freeze()
    rows, length = spec["micro_batch_size"], sequence_length(spec)
    images = spec.get("images_per_sample", 1)
    adapted = spec.get("tuning", "full") != "full"

    def given(rows: int, length: int) -> tuple[Tensor, ...]:
        """Tokens, labels, places, the mask of padding, and of each tile its pixels and whether a sample has it;
        DeepSpeed hands on pixels in the model's dtype."""
        numbers = [empty((rows, length), int64) for _ in range(3)]
        batch = *numbers, empty((rows, length), bool_)
        if not images:
            return batch
        tiles = rows * images
        shape = (tiles, described.tower.channels, *described.tower.image)
        return *batch, empty(shape, float32 if autocast else dtype), empty((tiles,), int64)

    def loss(batch: tuple[Tensor, ...]) -> Tensor:
        seen = look(model, batch[0], batch[4] if images else None, adapted)
        x = model.hidden(seen.x)
        with component("logits"):
            logits = to(model.logits(x), float32)
            del x
            out = compare(logits, batch[1], described.weighs)
        del seen
        return out

    def evaluate(rows: int, length: int) -> Tensor:
        batch = given(rows, length)
        with no_grad():
            seen = look(model, batch[0], batch[4] if images else None, False)
            x = model.hidden(seen.x)
            with component("logits"):
                logits = to(model.logits(x), float32)
                compare(logits, batch[1], described.weighs)
        del seen
        return logits

    unused: list[Any] = [] if images else sight.parameters()
    return Task(model, config, lambda: given(rows, length), loss, evaluate, ("lm_head", "sight"), unused=unused)
