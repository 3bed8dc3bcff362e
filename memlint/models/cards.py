"""What of a run depends on the card that it is on."""

from __future__ import annotations

from memlint.data.catalogue import AMPERE, HOPPER
from memlint.facts.spec import TrainingSpec


def without_tf32(spec: TrainingSpec) -> bool:
    """Whether the card is known to have no TF32 (before compute capability 8), on whose units cuDNN computes
    convolutions in fp32 else (torch: ``torch.backends.cudnn.allow_tf32``, True by default)."""
    return _is_before_ampere(spec)


def without_flash(spec: TrainingSpec) -> bool:
    """Whether the card is known to be one that FlashAttention does not run on: it takes compute capability 8
    (torch: native/transformers/cuda/sdp_utils.cpp, check_flash_attention_hardware_support)."""
    return _is_before_ampere(spec)


def is_hopper_or_newer(spec: TrainingSpec) -> bool:
    major = _major(spec)
    return major is not None and major >= HOPPER


def _is_before_ampere(spec: TrainingSpec) -> bool:
    major = _major(spec)
    return major is not None and major < AMPERE


def _major(spec: TrainingSpec) -> int | None:
    """Of the compute capability; None where no card is named, or one of AMD's, whose names are of another kind."""
    major = str(spec.get("compute_capability") or "").partition(".")[0]
    return int(major) if major.isdigit() else None
