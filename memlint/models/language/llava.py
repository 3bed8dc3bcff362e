"""LLaVA as its own training script computes it: a tower, which runs without gradients, a projector, and a decoder.

    pixels -> tower -> one of its last layers -> projector -> between the embeddings of words -> decoder

Each row is put together by itself, cut to the longest that the tokenizer allows, and padded; then they are stacked.
The tower's hidden states live no longer than the tower runs.

Shapes: B rows (one image each), S tokens of a row with those of its image, N patches of an image, W the width of the
decoder.
Source: haotian-liu/LLaVA 1.2 ``llava/model/llava_arch.py`` (``prepare_inputs_labels_for_multimodal``),
``llava/model/multimodal_encoder/clip_encoder.py``, ``llava/model/multimodal_projector/builder.py``; LLaVA-VL/LLaVA-NeXT
1.7, the same files, for images of one tile.
"""

from __future__ import annotations

from typing import Any

from memlint.architectures.vision_language import LlavaScript
from memlint.facts.spec import TrainingSpec
from memlint.meta import functional as F
from memlint.meta.amp import to
from memlint.meta.autograd import no_grad
from memlint.meta.checkpoint import checkpoint
from memlint.meta.nn import Linear, Module
from memlint.meta.tensor import DTYPES, DType, Tensor, component, default_dtype, empty, float32, int64
from memlint.models.language import Task, checkpointed, language_model, losses, sequence_length
from memlint.models.language.decoder import LanguageModel
from memlint.models.language.parts import activation
from memlint.models.language.vision import VisionTower


class ScriptTower(VisionTower):
    """Pixels (B, 3, height, width) -> the hidden states of one layer (B, N, tower's width), in the pixels' dtype.

    LLaVA's own runs without gradients, as LLaVA-NeXT's does where no weight of it trains."""

    def __init__(self, described: LlavaScript, trains: bool, checkpointed: int, reentrant: bool) -> None:
        config, layer = described.tower, described.layer
        super().__init__(config, described.tower_attention, checkpointed if trains else 0, reentrant)
        self.layer, self.without_first, self.trains = layer, described.without_first, trains
        self.pooled = config.first > 0  # CLIP norms its first token alone
        self.behind = layer if layer >= 0 else len(self.layers) + 1 + layer  # the first layer that nobody asks

    def forward(self, pixels: Tensor) -> Tensor:
        if self.trains:
            return self.features(pixels)
        with no_grad():
            return self.features(pixels)

    def features(self, pixels: Tensor) -> Tensor:
        states = self.states(to(pixels, self.embeddings.projection.weight.dtype))
        features = states[self.layer]
        if self.without_first:
            features = features[:, 1:]
        return to(features, pixels.dtype)

    def unused(self) -> list[Tensor]:
        """What lies behind the layer that is looked at never gets a gradient."""
        return [tensor for module in (*self.layers[self.behind :], self.layernorm) for tensor in module.parameters()]

    def states(self, pixels: Tensor) -> list[Tensor]:
        """Of every layer, and of what comes before the first."""
        x: Tensor = self.embeddings(pixels)
        if self.pre_layrnorm is not None:
            x = self.pre_layrnorm(x)
        states = [x]
        for number, layer in enumerate(self.layers):
            if self.checkpointed and number % self.checkpointed == 0:
                if number < self.behind:
                    x = checkpoint(layer, x, use_reentrant=self.reentrant)
                else:  # nobody takes its result, and what it keeps goes with that
                    with no_grad():
                        x = layer(x)
            else:
                x = layer(x)
            states.append(x)
        self.layernorm(x[:, 0] if self.pooled else x)  # a result that nobody asks for
        return states


class ScriptProjector(Module):
    """Linear layers with GELU between them."""

    def __init__(self, width: int, inner: int, depth: int) -> None:
        self.layers = [Linear(width if number == 0 else inner, inner) for number in range(depth)]
        self.function = activation("gelu")

    def forward(self, x: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            if number:
                x = self.function(x)
            x = layer(x)
        return x


class ScriptSight(Module):
    """(B, 3, height, width) -> (B, N, W). ``apart``: the tower is no part of the model, as the script has it for FSDP,
    which then does not shard it."""

    def __init__(self, tower: ScriptTower, projector: ScriptProjector, apart: bool) -> None:
        if not apart:
            self.vision_tower = tower
        self.multi_modal_projector = projector
        self.towers = {"vision_tower": tower}  # no module is found in a mapping

    def forward(self, pixels: Tensor) -> Tensor:
        features: Tensor = self.towers["vision_tower"](pixels)
        features = self.multi_modal_projector(features)
        return features


def put_together(model: LanguageModel, features: Tensor, length: int) -> Tensor:
    """(B, N, W) -> (B, S, W): of each row the words before its image, the image, and the words behind it."""
    images, patches, width = features.shape
    words = max(length - patches, 2)
    made = []
    for _ in range(images):
        embedded = model.embed(empty((words,), int64))
        before, behind = F.split(embedded, (1, words - 1))
        seen = features[0]
        made.append(F.cat((before, seen, behind)))
    cut = [F.narrow(row, 0, length) for row in made]
    del made
    padded = [F.cat((row, empty((0, width), row.dtype))) for row in cut]
    return F.stack(padded)


def freeze(model: LanguageModel, sight: ScriptSight, parts: Any) -> None:
    """``parts``: of vision_tower, projector, embeddings, layers (the last norm with them), head; language_model is
    the last three."""
    modules: dict[str, list[Module | None]] = {
        "vision_tower": [sight.towers["vision_tower"]],
        "projector": [sight.multi_modal_projector],
        "embeddings": [model.embed_tokens],
        "layers": [*model.layers, model.norm],
        "head": [model.lm_head],
    }
    for name in parts:
        for part in ("embeddings", "layers", "head") if name == "language_model" else (name,):
            for module in modules[part]:
                if module is not None:
                    module.freeze()


def task(spec: TrainingSpec, described: LlavaScript, dtype: DType, autocast: bool) -> Task:
    """Facts: ``tower_dtype``, ``projector_dtype`` [the weights'], ``frozen_parts``."""
    config, tower_config = described.decoder, described.tower
    if spec.get("vocabulary_size") is not None:
        config = config._replace(vocabulary=spec["vocabulary_size"])
    model = language_model(spec, config, dtype, autocast)
    with default_dtype(DTYPES[spec.get("tower_dtype") or dtype.name]):
        trains = "vision_tower" not in (spec.get("frozen_parts") or ())
        reentrant = bool(spec.get("checkpointing_reentrant", False))
        trains = trains and spec.get("tuning", "full") == "full"
        tower = ScriptTower(described, trains, checkpointed(spec), reentrant)
    with default_dtype(DTYPES[spec.get("projector_dtype") or dtype.name]):
        projector = ScriptProjector(tower_config.width, config.width, described.projector_layers)
    apart = spec.get("parallelism.strategy") in ("fsdp1", "fsdp2")
    tower.path = "vision_tower" if apart else ""
    sight = ScriptSight(tower, projector, apart)
    setattr(model, "sight", sight)  # noqa: B010 - a part of the model, by which it is counted and named
    freeze(model, sight, spec.get("frozen_parts") or ())
    rows, length = spec["micro_batch_size"] * spec.get("sequences_per_sample", 1), sequence_length(spec)

    def given(rows: int, length: int) -> tuple[Tensor, ...]:
        """Tokens, the mask of padding, labels, pixels; DeepSpeed hands on pixels in the model's dtype."""
        tokens = [empty((rows, length), int64) for _ in range(3)]
        return *tokens, empty((rows, tower_config.channels, *tower_config.image), float32 if autocast else dtype)

    def hidden(pixels: Tensor, length: int) -> Tensor:
        features = sight(pixels)
        embedded = put_together(model, features, length)
        del features
        return model.hidden(embedded)

    def loss(batch: tuple[Tensor, ...]) -> Tensor:
        labels = empty(batch[2].shape, int64)  # those of the image's tokens are among them
        x = hidden(batch[3], labels.shape[1])
        with component("logits"):
            return model.cross_entropy(x, labels)

    def evaluate(rows: int, length: int) -> Tensor:
        batch = given(rows, length)
        with no_grad():
            x = hidden(batch[3], length)
            with component("logits"):
                logits = model.logits(x)
                losses.full(logits, batch[2])
        return logits

    kept, helpers = ("lm_head", "sight"), (tower,) if apart else ()
    unused = tower.unused()
    return Task(model, config, lambda: given(rows, length), loss, evaluate, kept, unused=unused, helpers=helpers)
