"""LFM2: most layers see a few tokens back through a gated convolution, the others attend.

Source: ``transformers`` 5.23, ``models/{lfm2,lfm2_moe}/modeling_*.py``.
"""

from __future__ import annotations

from typing import Any

from memlint.architectures.decoder import Decoder, ShortConvolution
from memlint.meta import functional as F
from memlint.meta.nn import Conv, Linear, Module
from memlint.meta.tensor import Tensor
from memlint.models.language.attention import Attention
from memlint.models.language.decoder import Layer
from memlint.models.language.experts import has_experts, mixture
from memlint.models.language.gated_delta import HybridModel, convolved
from memlint.models.language.parts import Tables, norm


class GatedConvolution(Module):
    """One product makes what is convolved, and two gates: before it and after."""

    def __init__(self, width: int, short: ShortConvolution) -> None:
        self.conv = Conv(width, width, (short.kernel,), padding=short.kernel - 1, bias=short.bias, groups=width)
        self.in_proj = Linear(width, 3 * width, short.bias)
        self.out_proj = Linear(width, width, short.bias)

    def forward(self, x: Tensor, padding: Tensor | None) -> Tensor:
        if padding is not None:
            x = x * padding.unsqueeze(-1)
        joined = self.in_proj(x).transpose(-1, -2)
        before, after, x = F.chunk(joined, 3, -2)
        x = before * x
        x = convolved(x, self.conv)
        gated = after * x
        gated = gated.transpose(-1, -2).contiguous()
        out: Tensor = self.out_proj(gated)
        return out


class LfmPerceptron(Module):
    def __init__(self, width: int, inner: int) -> None:
        self.w1, self.w3 = Linear(width, inner, bias=False), Linear(width, inner, bias=False)
        self.w2 = Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.w2(F.silu(self.w1(x)) * self.w3(x))
        return out


class LfmLayer(Layer):
    def __init__(self, config: Decoder, kind: str, number: int) -> None:
        short = config.convolution
        assert short is not None
        convolves = number in short.layers
        self.conv = GatedConvolution(config.width, short) if convolves else None
        self.self_attn: Any = None if convolves else Attention(config, kind)
        self.feed_forward = (
            mixture(config) if has_experts(config, number) else LfmPerceptron(config.width, config.intermediate)
        )
        self.operator_norm = norm(config.norm, config.width)
        self.ffn_norm = norm(config.norm, config.width)

    def forward(self, x: Tensor, tables: Tables | None, mask: Tensor | None) -> Tensor:
        residual = x
        weights = None
        if self.conv is not None:
            x = self.conv(self.operator_norm(x), mask)
        else:
            x, weights = self.self_attn(self.operator_norm(x), tables, mask)
        x = x + residual
        x = x + self.feed_forward(self.ffn_norm(x))
        del weights
        return x


class LfmModel(HybridModel):
    def define_layer(self, config: Decoder, kind: str, number: int) -> Layer:
        return LfmLayer(config, kind, number)
