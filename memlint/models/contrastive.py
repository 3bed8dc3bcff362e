"""Pairs of an image and a text, as open_clip's main.py trains a model that is known by its program to tell which belong
together.

Source: open_clip 3.3.0 (``open_clip_train/train.py``, train_one_epoch; ``open_clip/loss.py``, ClipLoss).
Shapes: B pairs on a device, W devices, features of D numbers.
"""

from __future__ import annotations

from typing import Any

from memlint.architectures.library_models import open_clip_program
from memlint.facts.spec import HYPER, TrainingSpec
from memlint.meta import functional as F
from memlint.meta.tensor import DTYPES, DType, Tensor, empty, empty_like, int64
from memlint.models import program as programs
from memlint.models.system import System
from memlint.profiles import shipped


class Others:
    """With ``--accum-freq``: what else of a step is on the card while one of its batches goes back, the inputs of the
    other batches, and the features of all, which were made once before without gradients."""

    def __init__(self, inputs: list[Tensor]) -> None:
        self.inputs = inputs
        self.images: list[Tensor] = []
        self.texts: list[Tensor] = []


class Pairs:
    """One run. Facts: those of ``schemas/open-clip.schema.json``."""

    def __init__(self, spec: TrainingSpec) -> None:
        self.spec = spec
        program = shipped.program(open_clip_program(spec["model"]))
        dtype = DTYPES[spec.get("parameter_dtype", "float32")]
        self.run = programs.Run(program, {"B": int(spec["micro_batch_size"])}, dtype, spec)
        self.model = programs.build(self.run)
        if spec.get("checkpointing", "none") == "full":
            self.model.checkpoint()
        for part in spec.get("frozen_parts") or ():
            for parameter in getattr(self.model, part).parameters():
                parameter.requires_grad = False
        self.devices = int(spec.get("world_size", 1) or 1)
        self.local = bool(spec.get(HYPER + "local_loss", False))
        compute = spec.get("compute_dtype", "float32")
        self.autocast: DType | None = DTYPES[compute] if spec.get("autocast", False) else None
        self.batches = int(spec.get("gradient_accumulation_steps", 1) or 1)

    def batch(self) -> list[Any]:
        others = Others([tensor for _ in range(self.batches - 1) for tensor in self.run.inputs()])
        return [*self.run.inputs(), others]

    def loss(self, batch: list[Any]) -> Tensor:
        """What the model returns has a name in the loop, which the next step's results take over."""
        images, texts, scale, *_ = self.model(*batch[:2])
        batch[3:] = [images, texts, scale]
        if self.batches > 1:
            images, texts = self.beside_others(batch[2], images, texts)
        by_image, by_text = self.logits(images, texts, scale)
        labels = empty((by_image.shape[0],), int64)
        return (F.cross_entropy(by_image, labels) + F.cross_entropy(by_text, labels)) * 0.5

    def beside_others(self, others: Others, images: Tensor, texts: Tensor) -> tuple[Tensor, Tensor]:
        """The features of this batch, and those of the others of its step."""
        for cached, mine in ((others.images, images), (others.texts, texts)):
            cached += [empty_like(mine.detach()) for _ in range(self.batches - len(cached))]
        return F.cat([*others.images[1:], images], 0), F.cat([*others.texts[1:], texts], 0)

    def logits(self, images: Tensor, texts: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """(rows of images, rows of texts): B x WB with a local loss, WB x WB without."""
        if self.devices == 1:
            return self.products(scale, images, texts), self.products(scale, texts, images)
        every_image, every_text = self.gathered(images, texts)
        if self.local:
            return self.products(scale, images, every_text), self.products(scale, texts, every_image)
        by_image = self.products(scale, every_image, every_text)
        return by_image, F.transpose(by_image, 0, 1)

    @staticmethod
    def products(scale: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        return F.matmul(rows * scale, F.transpose(columns, 0, 1))

    def gathered(self, images: Tensor, texts: Tensor) -> tuple[Tensor, Tensor]:
        """Features of all devices, WB x D: a tensor for each device, then all in one. Gradients flow to this device's
        own unless its loss is local and ``--gather-with-grad`` is off."""
        tracks = bool(self.spec.get(HYPER + "gather_with_grad", False)) or not self.local
        images_of = [empty_like(images.detach()) for _ in range(self.devices)]
        texts_of = [empty_like(texts.detach()) for _ in range(self.devices)]
        if tracks:
            images_of[0], texts_of[0] = images, texts
        return F.cat(images_of, 0), F.cat(texts_of, 0)

    def system(self) -> System:
        spec = self.spec
        return System(
            model=self.model,
            batch=self.batch,
            loss=self.loss,
            accumulation=self.batches,
            optimizer=spec.get("optimizer", "adamw"),
            optimizer_options={"implementation": spec.get("optimizer_implementation", "foreach")},
            autocast=self.autocast,
            uses=frozenset({"matmul", "convolution"}),
        )


def build(spec: TrainingSpec) -> System:
    """The System of a run of open_clip's main.py."""
    return Pairs(spec).system()
