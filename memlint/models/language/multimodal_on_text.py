"""Models that see or hear among text alone: the decoder trains, and what is for images or sound lies beside it.

Source: ``transformers`` 5.23, ``models/*/modeling_*.py`` (see ``memlint.architectures.huggingface_beside``).
"""

from __future__ import annotations

from typing import Any

from memlint.architectures.vision_language import Beside, TextAlone, VisionLanguage
from memlint.facts.spec import TrainingSpec
from memlint.meta.autograd import no_grad
from memlint.meta.nn import Linear, Module, buffer, parameter
from memlint.meta.tensor import DType, Tensor, component, default_dtype, empty, int64
from memlint.models import UnknownModel
from memlint.models.language import Task, language_model, losses, sequence_length


class Part(Module):
    """Modules by the names that they have in transformers' class."""

    def within(self, path: str) -> tuple[Any, str]:
        """The module that a dotted name leads to, made where it is not there, and the name's last part."""
        module: Any = self
        *before, last = path.split(".")
        for name in before:
            if name not in module.__dict__:
                setattr(module, name, Part())
            module = getattr(module, name)
        return module, last


def lying(beside: Beside) -> Part:
    """The modules, in the default dtype."""
    whole = Part()
    for path, inputs, outputs, bias in beside.linears:
        module, name = whole.within(path)
        setattr(module, name, Linear(inputs, outputs, bias))
    for path, shape in beside.tensors:
        module, name = whole.within(path)
        setattr(module, name, parameter(*shape))
        getattr(module, name).requires_grad = path not in beside.fixed
    for path, shape in beside.buffers:
        module, name = whole.within(path)
        setattr(module, name, buffer(*shape))
    return whole


def task(spec: TrainingSpec, described: TextAlone, dtype: DType, autocast: bool) -> Task:
    """Facts: ``images_per_sample`` (0: nothing else is known here), ``frozen_parts``."""
    whole = spec.get("implementation") == "megatron"  # whose decoder is another one
    if described.tower is not None and (spec.get("images_per_sample", 0) or whole):
        from memlint.models.language import multimodal  # most of these models are not described as far

        return multimodal.task(spec, VisionLanguage(described.decoder, described.tower), dtype, autocast)
    if spec.get("images_per_sample", 0) and described.seeing is not None:
        from memlint.models.language import multimodal

        return multimodal.task(spec, described.seeing, dtype, autocast)
    if spec.get("images_per_sample", 0):
        raise UnknownModel(f"what {described.name!r} does with {described.sense} is not known, text alone is")
    if spec.get("row_output"):
        raise UnknownModel(f"what {described.name!r} says of whole rows is not known")
    config = described.decoder
    model: Any = language_model(spec, config, dtype, autocast)
    with default_dtype(dtype):
        sight = lying(described.beside)
    model.sight = sight  # a part of the model, by which it is counted and named
    frozen = spec.get("frozen_parts") or ()
    if "language_model" in frozen:
        raise UnknownModel("what trains is a part that no data are for")
    if "vision_tower" in frozen:
        sight.freeze()
    rows, length = spec["micro_batch_size"] * spec.get("sequences_per_sample", 1), sequence_length(spec)

    def given(rows: int, length: int) -> tuple[Tensor, ...]:
        """Tokens, the mask of padding, labels."""
        return tuple(empty((rows, length), int64) for _ in range(3))

    def loss(batch: tuple[Tensor, ...]) -> Tensor:
        out: Tensor = model(batch[0], batch[2])
        return out

    def evaluate(rows: int, length: int) -> Tensor:
        batch = given(rows, length)
        with no_grad():
            if spec.get("evaluation_loss") == "as_trained":
                alone: Tensor = model(batch[0], batch[2])
                return alone
            x = model.hidden(batch[0])
            with component("logits"):
                logits: Tensor = model.logits(x)
                losses.full(logits, batch[2])
        return logits

    return Task(model, config, lambda: given(rows, length), loss, evaluate, unused=sight.parameters)
