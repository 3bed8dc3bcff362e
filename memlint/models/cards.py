"""What of a run depends on the card that it is on."""

from __future__ import annotations

from memlint.facts.spec import TrainingSpec


def without_tf32(spec: TrainingSpec) -> bool:
    """Whether the card is known to have no TF32 (before compute capability 8), on whose units cuDNN computes
    convolutions in fp32 else (torch: ``torch.backends.cudnn.allow_tf32``, True by default)."""
    capability = spec.get("compute_capability")
    return capability is not None and float(capability) < 8
