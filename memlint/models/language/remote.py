"""What decoders have in common whose code comes with their weights (``trust_remote_code``).

Their code was written against transformers 4.2x and does not follow it: each makes its own masks and tables, recomputes
layers by torch's older checkpointing whatever the trainer asks for, and takes its loss of a copy of the logits.
Shapes: B rows, S tokens, W hidden width, h heads of d, V vocabulary. Temporaries live as they do there.
"""

from __future__ import annotations

from typing import Any

from memlint.architectures.decoder import Decoder
from memlint.facts.spec import Name, TrainingSpec
from memlint.meta import functional as F
from memlint.meta.amp import to
from memlint.meta.tensor import Tensor, float32
from memlint.models.language import losses
from memlint.models.language.decoder import LanguageModel
from memlint.models.language.parts import RootMeanSquare


def by_our_names(spec: TrainingSpec, ours: dict[str, str]) -> TrainingSpec:
    """The run whose adapters go by the names that the parts of a model have here, not by those of its own code."""
    changed: dict[Name, Any] = {}
    names: tuple[Name, ...] = ("lora.targets", "lora.modules_to_save", "freeze.modules", "freeze.extra_modules")
    for name in names:
        stated = spec.get(name)
        if isinstance(stated, (list, tuple)):  # else a regular expression, or a word for all of them
            changed[name] = [".".join(ours.get(part, part) for part in one.split(".")) for one in stated]
    return spec.replaced(changed) if changed else spec


class RemoteModel(LanguageModel):
    """``wide_loss``: logits are brought to fp32 before they are copied. ``reentrant_only``: the code calls torch's
    older checkpointing by itself; None where it leaves that to the trainer."""

    wide_loss = False
    reentrant_only: bool | None = True

    def __init__(self, config: Decoder, kind: str, **options: Any) -> None:
        if self.reentrant_only is not None:
            options = {**options, "reentrant": self.reentrant_only}
        super().__init__(config, kind, **options)

    def cross_entropy(self, x: Tensor, labels: Tensor) -> Tensor:
        if self.loss != "full" or self.smooths:
            return super().cross_entropy(x, labels)
        logits = self.logits(x)
        if self.wide_loss:
            logits = to(logits, float32)
        loss, _ = losses.shifted(logits, labels)
        return loss


class SquareOfCopy(RootMeanSquare):
    """A root mean square whose variance alone is made of a copy in fp32: what it scales is widened by it, and rounded
    where weights have 16 bits."""

    def forward(self, x: Tensor) -> Tensor:
        variance = F.mean(to(x, float32) ** 2, -1, keepdim=True)
        x = x * F.rsqrt(variance + 1e-6)
        if self.weight.dtype.itemsize == 2:
            x = to(x, self.weight.dtype)
        return self.weight * x
