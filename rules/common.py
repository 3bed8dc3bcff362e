"""What several rules ask of a run. Not a rule: rules live in files named after their code."""

from __future__ import annotations

from memlint.plugin import Run
from memlint.units import GiB

# Share of the device peak from which a rule without a budget to go by calls a part of it large.
LARGE_SHARE = 1 / 3
# ... and worth a word.
NOTABLE_SHARE = 1 / 20

# Tokens from which one head's fp32 probabilities of one sample take 1 GiB: 16384**2 x 4 B.
GIB_ATTENTION_TOKENS = int((GiB / 4) ** 0.5)


def activation_bytes(run: Run) -> int:
    """Activations and logits at the peak."""
    if run.estimate is None:
        return 0
    return run.estimate.component_bytes("activations") + run.estimate.component_bytes("logits")


def activations_dominate(run: Run) -> bool:
    """Activations are the largest component of the peak, and at least a third of it."""
    if run.estimate is None:
        return False
    taken = activation_bytes(run)
    others = (
        part.size_bytes for part in run.estimate.components if part.name not in ("activations", "logits")
    )
    return taken > max(others, default=0) and taken >= LARGE_SHARE * run.estimate.device_bytes


def saves(run: Run, **changes: object) -> int:
    """Device bytes that a change of facts saves; negative where it costs."""
    if run.estimate is None:
        return 0
    return run.estimate.device_bytes - run.what_if(**changes).device_bytes


def is_large(run: Run, size_bytes: int, share: float = LARGE_SHARE) -> bool:
    return run.estimate is not None and size_bytes >= share * run.estimate.device_bytes


def attention_bytes(run: Run) -> int:
    """What plain attention keeps beyond a fused kernel: the part that is quadratic in the tokens."""
    if run.value("attention") != "eager":
        return 0
    return max(0, saves(run, attention="sdpa"))
