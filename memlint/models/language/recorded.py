"""Models that see and hear, known by recorded programs, as transformers' Trainer trains them.

Source: ``transformers`` 5.23 (``loss/loss_utils.py``; the losses of ``models/segformer`` and of classes that classify).
Shapes: B samples of H x W pixels, K classes.
"""

from __future__ import annotations

from typing import Any

from memlint.architectures.recorded import Recorded
from memlint.facts.spec import TrainingSpec
from memlint.meta import functional as F
from memlint.meta.autograd import no_grad
from memlint.meta.tensor import DType, Tensor, component, empty, float32, int64
from memlint.models import UnknownModel
from memlint.models import program as programs
from memlint.models.language import Task, checkpointed
from memlint.named_tuple import NamedTuple
from memlint.profiles import shipped


class Without(NamedTuple):
    """What an adapter would ask of it."""

    adapters: Any
    width: int = 0
    experts: None = None


def task(spec: TrainingSpec, config: Recorded, dtype: DType) -> Task:
    """Raises UnknownModel where the run asks for something that the program does not say."""
    if spec.get("tuning", "full") != "full":
        raise UnknownModel(f"adapters beside {config.program} are not known")
    program = shipped.program(config.program)
    pixels = config.task == "semantic_segmentation"
    labels = int(spec.get("labels", config.labels))
    height, width = _sides(spec, config)

    def sizes(rows: int) -> dict[str, int]:
        every = {"B": int(rows), "H": height, "W": width, "S": config.samples, "K": labels}
        return {name: every[name] for name in program.sizes}

    run = programs.Run(program, sizes(spec["micro_batch_size"]), dtype, spec)
    model: Any = programs.build(run)
    if config.frozen:
        _freeze_features(model)
    if checkpointed(spec):
        if not program.checkpoints:
            raise UnknownModel(f"{config.program}: the library cannot recompute its layers")
        model.checkpoint(reentrant=bool(spec.get("checkpointing_reentrant", False)))

    def given(rows: int) -> tuple[Tensor, ...]:
        shapes = [run.shape(shape) for _, shape, _ in program.inputs]
        answers = (rows, height, width) if pixels else (rows,)
        return *(empty((rows, *shape[1:]), float32) for shape in shapes), empty(answers, int64)

    def scored(batch: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        logits = model(*batch[:-1])[0]
        with component("logits"):
            return F.cross_entropy(logits, batch[-1]), logits

    def loss(batch: tuple[Tensor, ...]) -> Tensor:
        return scored(batch)[0]

    def evaluate(rows: int, _: int) -> Tensor:
        run.resize(sizes(rows))
        with no_grad():
            return scored(given(rows))[1]

    return Task(model, Without(config.adapters), lambda: given(spec["micro_batch_size"]), loss, evaluate, ())


def _freeze_features(module: Any) -> None:
    """``freeze_feature_encoder``, which the classes that take sound have."""
    for name, child in module.children():
        if name == "feature_extractor":
            child.freeze()
        else:
            _freeze_features(child)


def _sides(spec: TrainingSpec, config: Recorded) -> tuple[int, int]:
    size = spec.get("image_size")
    if size is None:
        return config.side, config.side
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    return int(height), int(width)
