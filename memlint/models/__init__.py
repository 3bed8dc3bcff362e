"""TrainingSpec -> Tape: architectures written over meta tensors."""

from __future__ import annotations

from typing import NamedTuple

from memlint.dialects.spec import TrainingSpec
from memlint.meta.tape import Tape

# architecture (TrainingSpec.architecture) -> module of this package whose `build(spec)` makes the System
ARCHITECTURES = {
    "uni3d_dp": "uni3d_dp",
    "stdiff": "stdiff",
    "dit3d": "dit3d",
    "fsdm_lag": "fsdm_lag",
    "video_llm": "video_llm",
}


class UnknownModel(Exception):
    """No static model for this architecture; the message says what would make it known."""


class Recording(NamedTuple):
    """A tape with what the Estimate needs besides."""

    tape: Tape
    parameters: int
    trainable_parameters: int
    framework: str = "torch"
    has_matmul: bool = True
    has_convolution: bool = False


def record(spec: TrainingSpec, symbolic: bool = False) -> Recording:
    """The tape of one steady training step of this run. With ``symbolic``, sizes keep their formulas.

    Raises UnknownModel where the architecture, or a size it cannot do without, is unknown.
    """
    from importlib import import_module

    from memlint.models.step import record_step

    if spec.architecture is None or spec.architecture not in ARCHITECTURES:
        raise UnknownModel(spec.unknown_reason or f"the model of family {spec.family!r} is not known")
    builder = import_module(f"memlint.models.{ARCHITECTURES[spec.architecture]}")
    return record_step(builder.build, spec, symbolic)
