"""What bringing a checkpoint to the card takes beyond the weights: OpenAI's experts in MXFP4, unpacked there one tensor
after another before they train.

Source: ``transformers`` 4.55.0, 5.0.0, 5.1.0 and 5.23, ``integrations/mxfp4.py`` (``convert_moe_packed_tensors``).
"""

from __future__ import annotations

from typing import Any

from memlint.facts.spec import TrainingSpec
from memlint.meta.nn import Module
from memlint.meta.tape import Label, Tape
from memlint.models.language.experts import BiasedExperts, mixture_of

PACKED_VALUES = 32  # of a row of 16 bytes, which has a scale


def loading(spec: TrainingSpec, model: Module) -> Tape | None:
    """All weights, and what unpacking the last gate and input of the experts makes beside them; None where nothing is
    unpacked on the card."""
    name, quantised = str(spec.get("model") or ""), spec.get("quantization.bits")
    # Other families leave weights on the host until the trainer moves them, which is not looked at here.
    on_the_card = spec.family == "axolotl" and spec.get("parallelism.strategy", "none") in ("none", "ddp")
    if not (on_the_card and name.startswith("openai/gpt-oss") and quantised is None):
        return None
    mixtures: list[Any] = [mixture_of(layer) for layer in getattr(model, "layers", ())]
    if not mixtures or mixtures[-1] is None or not isinstance(mixtures[-1].experts, BiasedExperts):
        return None
    last = mixtures[-1].experts.gate_up_proj
    rows = last.numel // PACKED_VALUES
    found = Tape()
    found.mark("setup")
    for parameter in model.parameters():
        found.allocate(parameter.nbytes, Label("parameters", ""))

    def take(size: int) -> int:
        return found.allocate(size, Label("parameters", "", "unpacking"))

    kept = [take(rows * 16), take(rows * 4)]  # blocks, and exponents in 32 bits; the result is the weight itself
    if spec.does("transformers.unpacks_mxfp4_by_64_bit_indices"):
        kept += [take(rows * 16 * 8), take(rows * 16 * 8)]  # of both halves
        found.free(take(rows * 16 * last.dtype.itemsize))  # what a half is
    else:
        for _ in range(2):
            indices = take(rows * 16 * 4)
            found.free(take(rows * 16 * last.dtype.itemsize))
            found.free(indices)
    for number in kept[2:]:
        found.free(number)
    found.free(take(last.nbytes))  # a copy, the other way round
    for number in kept[:2]:
        found.free(number)
    return found
