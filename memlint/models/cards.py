"""What of a run depends on the card that it is on."""

from __future__ import annotations

from memlint.data.catalogue import AMPERE
from memlint.facts.spec import TrainingSpec


def without_tf32(spec: TrainingSpec) -> bool:
    """Whether the card is known to have no TF32 (before compute capability 8), on whose units cuDNN computes
    convolutions in fp32 else (torch: ``torch.backends.cudnn.allow_tf32``, True by default)."""
    return _is_before_ampere(spec)


def without_flash(spec: TrainingSpec) -> bool:
    """Whether the card is known to be one that FlashAttention does not run on: it takes compute capability 8
    (torch: native/transformers/cuda/sdp_utils.cpp, check_flash_attention_hardware_support)."""
    return _is_before_ampere(spec)


def _is_before_ampere(spec: TrainingSpec) -> bool:
    major = str(spec.get("compute_capability") or "").partition(".")[0]
    return major.isdigit() and int(major) < AMPERE  # AMD's cards have another kind of name
