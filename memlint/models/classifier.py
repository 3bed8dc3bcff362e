"""Image classifiers, known by their programs, as timm's train.py trains them, or torchvision's, whose loop is the same
but for the facts that its dialect states.

Source: timm 1.0.31 (``train.py``; ``timm/data/loader.py``, PrefetchLoader; ``timm/loss``; ``timm/utils/model_ema.py``).
Shapes: B images of H x W pixels, K classes.
"""

from __future__ import annotations

from typing import Any

from memlint.architectures.library_models import CLASSES, timm_program
from memlint.facts.spec import HYPER, TrainingSpec
from memlint.meta import functional as F
from memlint.meta import optim
from memlint.meta.ops.formats import channels_last
from memlint.meta.tensor import DTYPES, DType, Storage, Tensor, empty, float32, int64
from memlint.models import program as programs
from memlint.models.system import System
from memlint.profiles import shipped

PROGRAM = HYPER + "program"  # where a name alone does not say which library's it is


class Batch:
    """What the loop names of a batch: images, targets, and the images that its loader still names."""

    def __init__(self, images: Tensor, target: Tensor, loaded: Tensor) -> None:
        self.images = images
        self.target = target
        self.loaded = loaded


class Classification:
    """One run. Facts: those of ``schemas/timm.schema.json``."""

    def __init__(self, spec: TrainingSpec) -> None:
        self.spec = spec
        size = spec["image_size"]
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        self.sizes = {
            "B": int(spec["micro_batch_size"]),
            "H": int(height),
            "W": int(width),
            "K": int(spec.get(HYPER + "num_classes") or CLASSES),
        }
        name = spec.get(PROGRAM) or timm_program(spec["model"])[0]
        self.model = programs.build(programs.Run(shipped.program(name), self.sizes, float32, spec))
        if spec.get("checkpointing", "none") == "full":
            self.model.checkpoint()
        self.channels_last = bool(spec.get(HYPER + "channels_last", False))
        if self.channels_last:
            for tensor in self.model.tensors():
                channels_last(tensor)
        self.mixes = any((spec.get(HYPER + name) or 0) > 0 for name in ("mixup", "cutmix"))
        compute = spec.get("compute_dtype", "float32")
        self.autocast: DType | None = DTYPES[compute] if compute != "float32" else None

    def images(self) -> Tensor:
        return empty((self.sizes["B"], 3, self.sizes["H"], self.sizes["W"]), float32)

    def batch(self) -> Batch:
        loaded = images = self.images()
        if self.channels_last:
            images = channels_last(self.images())
        rows = (self.sizes["B"], self.sizes["K"]) if self.mixes else (self.sizes["B"],)
        return Batch(images, empty(rows, float32 if self.mixes else int64), loaded)

    def loss(self, batch: Batch) -> Tensor:
        """Runs under autocast, whose list has the logarithm of the softmax in fp32."""
        logits = self.model(batch.images)[0]
        if self.spec.get(HYPER + "bce_loss"):
            return self._binary(logits, batch.target)
        if self.mixes:  # SoftTargetCrossEntropy
            return F.mean(F.sum(F.neg(batch.target) * F.log_softmax(logits, -1), -1))
        if self.spec.get(HYPER + "smoothing"):  # LabelSmoothingCrossEntropy
            logarithms = F.log_softmax(logits, -1)
            of_target = F.squeeze(F.neg(F.gather(logarithms, -1, F.unsqueeze(batch.target, 1))), 1)
            smooth = F.neg(F.mean(logarithms, -1))
            return F.mean(of_target * 0.9 + smooth * 0.1)
        return F.cross_entropy(logits, batch.target)

    def _binary(self, logits: Tensor, target: Tensor) -> Tensor:
        """BinaryCrossEntropy (timm/loss/binary_cross_entropy.py): targets as rows, and a function of both in fp32 that
        keeps them, as a squared difference does."""
        return F.mse_loss(logits, target if self.mixes else empty(logits.shape, float32))

    def resident(self) -> list[Storage]:
        """The prefetcher has the next batch on the card while this one trains."""
        return [] if self.spec.get(HYPER + "no_prefetcher") else [self.images().storage]

    def system(self) -> System:
        spec = self.spec
        name = spec.get("optimizer", "sgd")
        options: dict[str, Any] = {"implementation": spec.get("optimizer_implementation", "foreach")}
        if name == "sgd":
            options["momentum"] = bool(spec.get(HYPER + "momentum", 0.9))
            options["weight_decay"] = bool(spec.get(HYPER + "weight_decay", 2e-5))
        return System(
            model=self.model,
            batch=self.batch,
            loss=self.loss,
            optimizer=optim.known(name, spec.get("optimizer_library", "torch")) or name,
            optimizer_options=options,
            accumulation=spec.get("gradient_accumulation_steps", 1),
            autocast=self.autocast,
            ema=(self.model,) if spec.get("ema", False) else (),
            keeps_gradients=bool(spec.get("gradients_kept", False)),
            clears_late=bool(spec.get(HYPER + "clears_late", False)),
            resident=self.resident(),
            uses=frozenset({"matmul", "convolution"}),
        )


def build(spec: TrainingSpec) -> System:
    """The System of a run of timm's train.py."""
    return Classification(spec).system()
