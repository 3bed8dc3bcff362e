"""Language models with a vision tower of their own kind, in transformers' eager code: Gemma 3, Qwen2-VL and its heirs.

    Gemma 3   images of one size -> SigLIP -> averaged to 256 features -> norm -> product
    Qwen      the patches of all images in one row -> blocks, most of them within windows (2.5) -> four patches joined
              to a feature; of Qwen3-VL, three blocks' features go to the decoder's first layers as well

Shapes: N patches of all images together, W width. An image of Qwen's has as many patches as its size gives, rounded to
whole features on either side. Source: ``transformers`` 5.23, ``models/{gemma3,qwen2_vl,qwen2_5_vl,qwen3_vl}``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from memlint.architectures.vision import PackedTower, Tower
from memlint.architectures.vision_language import VisionLanguage
from memlint.facts.spec import TrainingSpec
from memlint.meta import functional as F
from memlint.meta.amp import to
from memlint.meta.autograd import no_grad, record, tracked
from memlint.meta.checkpoint import checkpoint
from memlint.meta.nn import Embedding, LayerNorm, Linear, Module, parameter
from memlint.meta.tensor import DType, Tensor, default_dtype, empty, float32, int64, state
from memlint.models import UnknownModel
from memlint.models.language import Batch, Task, asked, attention, fitted, language_model, rows, sequence_length
from memlint.models.language import described as described_decoder
from memlint.models.language.decoder import LanguageModel
from memlint.models.language.image_features import ImageBatch, ImageFeatures
from memlint.models.language.parts import activation, norm, rotate_half
from memlint.models.language.vision import Recomputation, VisionTower, recomputation
from memlint.named_tuple import NamedTuple

Tables = tuple[Tensor, Tensor]
MOST = 1 << 40  # tokens: more than any sample has


class Gaze(Module):
    """Attention among the patches of an image, or of a window: one call stands for those of all of them."""

    def __init__(self, config: PackedTower, kind: str) -> None:
        self.heads, self.kind = config.heads, kind
        self.qkv = Linear(config.width, 3 * config.width)
        self.proj = Linear(config.width, config.width)

    def forward(self, x: Tensor, tables: Tables) -> Tensor:
        count = x.shape[0]
        query, key, value = F.unbind(self.qkv(x).reshape(count, 3, self.heads, -1).permute(1, 0, 2, 3))
        query, key = self.rotated(query, key, tables)
        query = query.transpose(0, 1).unsqueeze(0)
        key = key.transpose(0, 1).unsqueeze(0)
        value = value.transpose(0, 1).unsqueeze(0)
        backend = {"flash": "flash", "xformers": "efficient"}.get(self.kind, "")
        seen = F.scaled_dot_product_attention(query, key, value, None, backend=backend, dropout=0.0, causal=False)
        seen = seen.transpose(1, 2).contiguous()
        joined = seen if backend else F.clone(seen)  # the results of all pieces, put together
        out: Tensor = self.proj(joined.reshape(count, -1).contiguous())
        del seen
        return out

    @staticmethod
    def rotated(query: Tensor, key: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
        """In fp32, and back."""
        dtype = query.dtype
        query, key = to(query, float32), to(key, float32)
        cosine, sine = tables[0].unsqueeze(-2), tables[1].unsqueeze(-2)
        query_rotated = (query * cosine) + (rotate_half(query) * sine)
        key_rotated = (key * cosine) + (rotate_half(key) * sine)
        return to(query_rotated, dtype), to(key_rotated, dtype)


class GatedPerceptron(Module):
    def __init__(self, config: PackedTower) -> None:
        self.gate_proj = Linear(config.width, config.intermediate)
        self.up_proj = Linear(config.width, config.intermediate)
        self.down_proj = Linear(config.intermediate, config.width)
        self.function = activation(config.activation)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(self.function(self.gate_proj(x)) * self.up_proj(x))
        return out


class PlainPerceptron(Module):
    def __init__(self, config: PackedTower) -> None:
        self.fc1 = Linear(config.width, config.intermediate)
        self.fc2 = Linear(config.intermediate, config.width)
        self.function = activation(config.activation)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc2(self.function(self.fc1(x)))
        return out


class Patches(Module):
    """A convolution whose kernels are as large as a patch, and so no linear layer that is quantised or adapted."""

    def __init__(self, config: PackedTower) -> None:
        self.weight = parameter(config.width, config.patch_numbers)
        self.bias = parameter(config.width) if config.places else None

    def forward(self, pixels: Tensor) -> Tensor:
        return F.linear(to(pixels, self.weight.dtype), self.weight, self.bias)


class Block(Module):
    def __init__(self, config: PackedTower, kind: str) -> None:
        self.norm1, self.norm2 = _norm(config), _norm(config)
        self.attn = Gaze(config, kind)
        self.mlp = GatedPerceptron(config) if config.gated else PlainPerceptron(config)

    def forward(self, x: Tensor, tables: Tables) -> Tensor:
        x = x + self.attn(self.norm1(x), tables)
        x = x + self.mlp(self.norm2(x))
        return x


def _norm(config: PackedTower) -> Module:
    return norm("rms", config.width) if config.gated else LayerNorm(config.width)


class Merger(Module):
    """Four patches become a feature of the decoder's width. ``joins_first``: the norm is over the four together."""

    def __init__(self, config: PackedTower, joins_first: bool = False) -> None:
        self.joined, self.joins_first = config.width * config.merge**2, joins_first
        self.ln_q = LayerNorm(self.joined) if joins_first else _norm(config)
        self.first = Linear(self.joined, self.joined)
        self.second = Linear(self.joined, config.out)

    def forward(self, x: Tensor) -> Tensor:
        x = self.ln_q(x.view(-1, self.joined) if self.joins_first else x).view(-1, self.joined)
        out: Tensor = self.second(activation("gelu")(self.first(x)))
        return out


class QwenTower(Module):
    """(N, numbers of a patch) -> (N / 4, the decoder's width), and what stands beside it."""

    def __init__(self, config: PackedTower, kind: str, how: Recomputation) -> None:
        self.config, self.how = config, how
        self.proj = Patches(config)
        self.pos_embed = Embedding(config.places, config.width) if config.places else None
        self.blocks = [Block(config, kind) for _ in range(config.layers)]
        self.merger = Merger(config)
        self.deepstack_merger_list = [Merger(config, joins_first=True) for _ in config.deep]

    def forward(self, pixels: Tensor) -> tuple[Tensor, list[Tensor], Tensor]:
        """Features, those for the decoder's first layers, and the last block's states."""
        config, how = self.config, self.how
        x: Tensor = self.proj(pixels)
        if how.asks_gradient and state.grad_enabled and not x.requires_grad:
            x.requires_grad_()  # enable_input_require_grads
        count = x.shape[0]
        if self.pos_embed is not None:  # numbers and shares of the four places around each patch
            around, shares = empty((count, 4), int64), empty((count, 4), float32)
            places = F.sum(self.pos_embed(around) * shares.unsqueeze(-1), 1)
            x = x + to(places, x.dtype)
        order = empty((count // config.merge**2,), int64) if config.windowed else None
        if order is not None:
            x = F.index(x.reshape(count // config.merge**2, config.merge**2, -1), order).reshape(count, -1)
        with no_grad():
            size = (count, config.width // config.heads)
            tables = empty(size, float32), empty(size, float32)
        deep: list[Tensor] = []
        for number, block in enumerate(self.blocks):
            left = how.trained_alone and not any(tensor.requires_grad for tensor in block.parameters())
            if how.every and number % how.every == 0 and not left:
                if how.trained_alone and state.grad_enabled and not x.requires_grad:
                    x.requires_grad_()
                x = checkpoint(block, x, tables, use_reentrant=how.reentrant)
            else:
                x = block(x, tables)
            if number in config.deep:
                deep.append(self.deepstack_merger_list[config.deep.index(number)](x))
        features: Tensor = self.merger(x)
        return features if order is None else F.index(features, order), deep, x


class GemmaProjector(Module):
    def __init__(self, width: int, out: int, side: int, features: int) -> None:
        self.side, self.pooled = side, int(features**0.5)
        self.mm_input_projection_weight = parameter(width, out)
        self.mm_soft_emb_norm = norm("gemma", width)

    def forward(self, x: Tensor) -> Tensor:
        images, _, width = x.shape
        x = x.transpose(1, 2).reshape(images, width, self.side, self.side).contiguous()
        x = _averaged(x, self.pooled).flatten(2).transpose(1, 2)
        out: Tensor = F.matmul(self.mm_soft_emb_norm(x), self.mm_input_projection_weight)
        return out


def _averaged(x: Tensor, side: int) -> Tensor:
    """``avg_pool2d``, which keeps its input."""
    shape, dtype = x.shape, x.dtype
    out = Tensor((*shape[:2], side, side), dtype)
    if tracked(x):
        record(out, (x,), (x,), lambda g: (Tensor(shape, dtype),))
    return out


class GemmaSight(Module):
    """(images, 3, height, width) -> (images, features, W)."""

    def __init__(self, tower: VisionTower, projector: GemmaProjector) -> None:
        self.vision_tower, self.multi_modal_projector = tower, projector

    def forward(self, pixels: Tensor) -> ImageFeatures:
        x = self.vision_tower(pixels)
        x = self.vision_tower.layernorm(x)
        out: Tensor = self.multi_modal_projector(x)
        return ImageFeatures(to(out, x.dtype))


class ShuffledProjector(Module):
    def __init__(self, joined: int, width: int, function: str) -> None:
        self.layer_norm = LayerNorm(joined)
        self.linear_1 = Linear(joined, width)
        self.linear_2 = Linear(width, width)
        self.function = activation(function)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear_1(self.layer_norm(x))
        out: Tensor = self.linear_2(self.function(x))
        return out


class ShuffledSight(Module):
    """(images, 3, height, width) -> (images, features, W): squares of patches are put side by side (``pixel_shuffle``).
    What the tower made has a name until the decoder is through."""

    def __init__(self, tower: VisionTower, projector: ShuffledProjector, side: int) -> None:
        self.vision_tower, self.multi_modal_projector, self.side = tower, projector, side

    def forward(self, pixels: Tensor) -> ImageFeatures:
        pixels = to(pixels, self.multi_modal_projector.linear_1.weight.dtype)
        last = self.vision_tower(pixels)
        images, count, width = last.shape
        rows, side = int((count - 1) ** 0.5), self.side
        x = last[:, 1:].reshape(images, rows, rows, width)
        x = x.view(images, rows, rows // side, width * side).permute(0, 2, 1, 3).contiguous()
        x = x.view(images, rows // side, rows // side, width * side**2).permute(0, 2, 1, 3).contiguous()
        features: Tensor = self.multi_modal_projector(x.reshape(images, -1, width * side**2))
        return ImageFeatures(features, (), (features, last))


class QwenSight(Module):
    def __init__(self, tower: QwenTower) -> None:
        self.visual = tower

    def forward(self, pixels: Tensor) -> ImageFeatures:
        features, deep, last = self.visual(pixels)
        joined = F.cat((features,), 0)
        if not self.visual.config.places:
            return ImageFeatures(joined)
        return ImageFeatures(joined, [F.cat((layer,), 0) for layer in deep], (features, *deep, last))


class Pictured(NamedTuple):
    """What the collator makes: (B, S) int64 each, and the pixels of all images."""

    tokens: Tensor
    attention_mask: Tensor
    labels: Tensor
    pixels: Tensor


def _images(spec: TrainingSpec, described: VisionLanguage) -> int:
    """Of a sample. Raises UnknownModel."""
    images: int = spec.get("images_per_sample", 1)
    if described.shuffled and isinstance(described.tower, Tower):  # tiles, which stand among the tokens of a sample
        images = min(images, max(sequence_length(spec) // (described.tower.patches // described.shuffled**2), 1))
    if images and spec.get("generated_rows"):
        raise UnknownModel("sampling of what is said of images is not known")
    return images


def _batch(images: int, shape: tuple[int, ...], rows: int, length: int) -> Batch | Pictured:
    """``shape``: of an image's pixels."""
    tokens, mask, labels = (empty((rows, length), int64) for _ in range(3))
    if not images:
        return Batch(tokens, mask, labels)
    first, *rest = shape
    return Pictured(tokens, mask, labels, empty((first * rows * images, *rest), float32))


def task(spec: TrainingSpec, described: VisionLanguage, dtype: DType, autocast: bool) -> Task:
    """Facts: ``images_per_sample`` [1; 0 where the data have none], ``image_size``, ``frozen_parts``."""
    config = described.decoder
    if spec.get("implementation") == "megatron":
        config = fitted(spec, described_decoder(spec))
    if spec.get("row_output"):
        config = rows.without_head(spec, config)
    images = _images(spec, described)
    masked = spec.replaced({"padding": True}) if described.image_mask else spec
    image_batch = ImageBatch(returns=isinstance(described.tower, Tower))
    frozen = spec.get("frozen_parts") or ()

    def made(kept: DType) -> tuple[LanguageModel, tuple[int, ...]]:
        model = language_model(masked, config, kept, autocast)
        with default_dtype(kept):
            model.sight, parts, shape = _sight(spec, described, kept, autocast)
        if spec.get("row_output"):
            rows.add_head(spec, model, config.width, kept)
        model.image_batch = image_batch
        _freeze(model, parts, frozen)
        return model, shape

    model, shape = made(dtype)
    count, length = spec["micro_batch_size"] * spec.get("sequences_per_sample", 1), sequence_length(spec)

    given = partial(_batch, images, shape)
    fresh = lambda rows, length: image_batch.looked_at(given(rows, length))  # noqa: E731
    of_batch: Callable[[Any], Tensor]
    helpers: tuple[Module, ...] = ()
    if spec.get("row_output"):
        of_batch, of_evaluation = rows.losses_of(spec, model, lambda batch: batch.tokens, fresh)
    else:
        of_batch, of_evaluation, helpers = asked(spec, model, lambda kept: made(kept)[0], dtype, fresh)

    def loss(batch: Batch | Pictured) -> Tensor:
        out = of_batch(image_batch.looked_at(batch))
        image_batch.clear()
        return out

    def evaluate(rows: int, length: int) -> Any:
        found = of_evaluation(rows, length)
        image_batch.clear()
        return found

    def unused() -> list[Tensor]:
        unseen = [] if images else model.sight.parameters()
        return [*unseen, *rows.unused(spec, model)] if spec.get("row_output") else unseen

    return Task(
        model,
        config,
        lambda: given(count, length),
        loss,
        evaluate,
        ("lm_head", "sight", "score"),
        rows.saved(spec) if spec.get("row_output") else (),
        unused=unused,
        helpers=helpers,
    )


def _freeze(model: Any, parts: Mapping[str, list[Module]], frozen: Any) -> None:
    """``frozen``: of the parts, and language_model, or the embeddings and layers of it without the head."""
    if "language_model" in frozen or "layers" in frozen:
        own = {id(tensor) for part in parts.values() for module in part for tensor in module.parameters()}
        if "language_model" not in frozen and model.lm_head is not None:
            embedded = {id(tensor) for tensor in model.embed_tokens.parameters()}
            own |= {id(tensor) for tensor in model.lm_head.parameters()} - embedded
        for tensor in model.parameters():
            tensor.requires_grad = id(tensor) in own
    for name, part in parts.items():
        if name in frozen:
            for module in part:
                module.freeze()


Made = tuple[Module, dict[str, list[Module]], tuple[int, ...]]


def _sight(spec: TrainingSpec, described: VisionLanguage, dtype: DType, autocast: bool) -> Made:
    """What makes features, its parts by their names, and the shape of an image."""
    if isinstance(described.tower, PackedTower):
        return _packed(spec, described.tower, dtype, autocast)
    if described.shuffled:
        return _shuffling(spec, described, described.tower, dtype, autocast)
    return _averaging(spec, described.tower, described.features, described.decoder.width, dtype, autocast)


def _averaging(spec: TrainingSpec, config: Tower, features: int, width: int, dtype: DType, autocast: bool) -> Made:
    if config.first and spec.get("images_per_sample", 1):
        raise UnknownModel(f"{config.adapters.name} has tokens before its patches, which are not known to be averaged")
    again = recomputation(spec)
    tower = VisionTower(config, attention(spec, dtype, autocast), again.of_whole(spec), again.reentrant)
    tower.embeddings.needs_gradient = again.asks_gradient
    side = config.image[0] // config.patch[0]
    projector = GemmaProjector(config.width, width, side, features)
    sight = GemmaSight(tower, projector)
    return sight, {"vision_tower": [tower], "projector": [projector]}, (1, config.channels, *config.image)


def _shuffling(spec: TrainingSpec, described: VisionLanguage, config: Tower, dtype: DType, autocast: bool) -> Made:
    how, again = attention(spec, dtype, autocast), recomputation(spec)
    if how == "eager":
        raise UnknownModel("plain attention of InternVL's tower is not known")
    tower = VisionTower(config, how, again.of_whole(spec), again.reentrant)
    tower.embeddings.needs_gradient = again.asks_gradient
    del tower.layernorm
    joined = config.width * described.shuffled**2
    projector = ShuffledProjector(joined, described.decoder.width, described.activation)
    sight = ShuffledSight(tower, projector, described.shuffled)
    return sight, {"vision_tower": [tower], "projector": [projector]}, (1, config.channels, *config.image)


def _packed(spec: TrainingSpec, config: PackedTower, dtype: DType, autocast: bool) -> Made:
    how = attention(spec, dtype, autocast)
    if how == "eager" and spec.get("images_per_sample", 1):
        raise UnknownModel("plain attention among patches of images is not known")
    again = recomputation(spec, named=not config.places)
    if config.joined:
        from memlint.models.language import glm_sight  # Qwen's do without

        if spec.get("implementation") == "megatron":
            raise UnknownModel("GLM's tower in front of Megatron's layers is not known")
        joining = glm_sight.GlmTower(config, how, again)
        return glm_sight.GlmSight(joining), joining.parts(), (patches(spec, config), config.patch_numbers)
    tower = QwenTower(config, how, again)
    parts: dict[str, list[Module]] = {
        "vision_tower": [tower.proj, *tower.blocks, *tower.deepstack_merger_list],
        "projector": [tower.merger],
    }
    if tower.pos_embed is not None:
        parts["vision_tower"].append(tower.pos_embed)
    sight: Module = QwenSight(tower)
    if spec.get("implementation") == "megatron":
        from memlint.models.language import megatron_sight  # transformers' decoders do without

        sight = megatron_sight.MegatronSight(tower)
    return sight, parts, (patches(spec, config), config.patch_numbers)


def patches(spec: TrainingSpec, config: PackedTower) -> int:
    """Of one image: as its size gives them, and of one whose size nothing states as many as a sample has room for. Its
    features stand among the tokens of a sample, so there are never more of them."""
    size, room = spec.get("image_size"), min(sequence_length(spec), spec.get("most_image_tokens", MOST))
    if not spec.get("images_per_sample", 1):
        return 0
    features: int = room
    if size is not None:
        high, wide = (size[0], size[1]) if isinstance(size, (list, tuple)) else (size, size)
        unit = config.patch * config.merge
        features = min(max(high // unit, 1) * max(wide // unit, 1), room)
    return features * config.merge**2
