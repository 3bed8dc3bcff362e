"""Norms as other training libraries compute them.

Sources: torchtune 0.4 and 0.6 (``modules/rms_norm.py``), torchtitan 0.2, which leaves it to torch, litgpt 0.5
(``model.py``), llm-foundry 0.22 (``models/layers/norm.py``).
"""

from __future__ import annotations

from memlint.architectures.decoder import Decoder
from memlint.facts.spec import TrainingSpec
from memlint.meta import functional as F
from memlint.meta.amp import autocast, to
from memlint.meta.nn import Module, parameter
from memlint.meta.tensor import Tensor, float32, state
from memlint.models.language.parts import RootMeanSquare, norm
from memlint.releases import NORM_RELEASES


def release_of_norm(spec: TrainingSpec) -> str:
    """Of torch, in which ``rms_norm`` last became what it is in the release that runs this."""
    return next((since for since in NORM_RELEASES if spec.does(f"torch.rms_norm_{since}")), "2.4")


class TorchNorm(RootMeanSquare):
    """``torch.nn.functional.rms_norm``, in several steps or in one, as a ``release`` of torch does."""

    def __init__(self, width: int, release: str) -> None:
        super().__init__(width)
        self.rms_norm = F.rms_norm_of(release)

    def forward(self, x: Tensor) -> Tensor:
        return self.normed(x, self.weight)

    def normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return self.rms_norm(x, weight)


class CastNorm(TorchNorm):
    """torchtune's of 0.5 and 0.6: what torch's is given is in fp32 already, and the weight is not."""

    def forward(self, x: Tensor) -> Tensor:
        return to(super().forward(to(x, float32)), x.dtype)


class RoundedNorm(RootMeanSquare):
    """torchtune's of other releases: the weight scales what is rounded already."""

    def forward(self, x: Tensor) -> Tensor:
        wide = to(x, float32)
        normed = to(wide * F.rsqrt(F.mean(wide**2, -1, keepdim=True) + 1e-6), x.dtype)
        return normed * self.weight


class ScaledNorm(RootMeanSquare):
    """litgpt's: the mean is of ``x * x``, and the weight is cast."""

    def forward(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        x = to(x, float32)
        mean = F.mean(x * x, -1, keepdim=True)
        normed = x * F.rsqrt(mean + 1e-6)
        return to(normed * to(self.scale(), float32), dtype)

    def scale(self) -> Tensor:
        return self.weight


class OffsetNorm(ScaledNorm):
    """The same for Gemma, whose weights are 0 where others' are 1."""

    def scale(self) -> Tensor:
        return self.weight + 1.0


class BareNorm(Module):
    """A layer norm without parameters: litgpt's for OLMo."""

    def __init__(self, width: int) -> None:
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x)


class LowPrecisionLayerNorm(Module):
    """llm-foundry's ``LPLayerNorm``: under autocast everything is cast before, and the norm itself is in 16 bits."""

    def __init__(self, width: int, biased: bool) -> None:
        self.weight = parameter(width)
        self.bias = parameter(width) if biased else None

    def forward(self, x: Tensor) -> Tensor:
        target = state.autocast
        if target is None:
            return F.layer_norm(x, self.weight, self.bias)
        lowered = to(x, target)
        weight = to(self.weight, target)
        bias = None if self.bias is None else to(self.bias, target)
        with autocast(None):
            return F.layer_norm(lowered, weight, bias)


class LowPrecisionRootMeanSquare(TorchNorm):
    """llm-foundry's ``LPRMSNorm``: the same, and what it gives has the dtype of what it was given."""

    def forward(self, x: Tensor) -> Tensor:
        target = state.autocast
        if target is None:
            return super().forward(x)
        lowered = to(x, target)
        weight = to(self.weight, target)
        with autocast(None):
            return to(self.normed(lowered, weight), x.dtype)


OWN_NORMS: dict[str, type[RootMeanSquare] | type[BareNorm]] = {
    "scaled": ScaledNorm,
    "offset": OffsetNorm,
    "rounded": RoundedNorm,
    "bare": BareNorm,
}


def own_norm(config: Decoder, width: int) -> Module:
    """The norm that :func:`memlint.models.language.implementations.model` chose, or one that is like transformers'."""
    if config.norm in OWN_NORMS:
        return OWN_NORMS[config.norm](width)
    kind, _, release = config.norm.partition(" ")
    if kind not in ("cast", "torch"):
        return norm(config.norm, width)
    return (CastNorm if kind == "cast" else TorchNorm)(width, release)
