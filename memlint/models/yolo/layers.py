"""What YOLO nets are made of, under the names that the library has for them."""

from __future__ import annotations

from collections.abc import Callable

from memlint.meta import functional as F
from memlint.meta.nn import BatchNorm, Conv, Module, Sequential
from memlint.meta.tensor import Tensor


class ConvNorm(Module):
    """A convolution without bias, a batch norm, and SiLU in place."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1, activates: bool = True
    ) -> None:
        padding = 2 if kernel == 6 else kernel // 2
        self.conv = Conv(inputs, outputs, (kernel, kernel), stride, padding, False, groups)
        self.bn = BatchNorm(outputs)
        self.activates = activates

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn(self.conv(x))
        return F.silu(x, inplace=True) if self.activates else x


class Bottleneck(Module):
    """Two convolutions, and what came beside them where ``adds``."""

    def __init__(self, inputs: int, outputs: int, adds: bool, kernel: int = 3, share: float = 1.0) -> None:
        width = int(outputs * share)
        self.cv1 = ConvNorm(inputs, width, kernel)
        self.cv2 = ConvNorm(width, outputs, 3)
        self.adds = adds and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.cv2(self.cv1(x)) if self.adds else self.cv2(self.cv1(x))
        return out


class C3(Module):
    """Half of the channels through bottlenecks, the other half past them."""

    def __init__(self, inputs: int, outputs: int, repeats: int, adds: bool = True, kernel: int = 1) -> None:
        width = outputs // 2
        self.cv1, self.cv2 = ConvNorm(inputs, width), ConvNorm(inputs, width)
        self.cv3 = ConvNorm(2 * width, outputs)
        self.m = Sequential(*(Bottleneck(width, width, adds, kernel) for _ in range(repeats)))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.cv3(F.cat((self.m(self.cv1(x)), self.cv2(x)), 1))
        return out


class C2f(Module):
    """Each block works on what the one before it made, and all of their results are taken together. ``block``: makes
    one for a number of channels."""

    def __init__(
        self, inputs: int, outputs: int, repeats: int, block: Callable[[int], Module], share: float = 0.5
    ) -> None:
        width = int(outputs * share)
        self.cv1 = ConvNorm(inputs, 2 * width)
        self.cv2 = ConvNorm((2 + repeats) * width, outputs)
        self.m = [block(width) for _ in range(repeats)]

    def forward(self, x: Tensor) -> Tensor:
        found = list(F.chunk(self.cv1(x), 2, 1))
        for block in self.m:
            found.append(block(found[-1]))
        out: Tensor = self.cv2(F.cat(found, 1))
        return out


class SPPF(Module):
    """Three poolings, one after the other, beside what they are of."""

    def __init__(self, channels: int, activates: bool) -> None:
        self.cv1 = ConvNorm(channels, channels // 2, activates=activates)
        self.cv2 = ConvNorm(channels // 2 * 4, channels)

    def forward(self, x: Tensor) -> Tensor:
        found = [self.cv1(x)]
        for _ in range(3):
            found.append(F.max_pool(found[-1], 5, 1, 2))
        out: Tensor = self.cv2(F.cat(found, 1))
        return out


class Attention(Module):
    """Attention of all places of a map to each other, and a convolution for where they are."""

    def __init__(self, channels: int) -> None:
        self.heads = max(channels // 64, 1)
        self.value = channels // self.heads
        self.key = self.value // 2
        self.qkv = ConvNorm(channels, channels + 2 * self.key * self.heads, activates=False)
        self.proj = ConvNorm(channels, channels, activates=False)
        self.pe = ConvNorm(channels, channels, 3, groups=channels, activates=False)

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        rows = F.view(self.qkv(x), shape[0], self.heads, 2 * self.key + self.value, shape[2] * shape[3])
        q, k, v = F.split(rows, (self.key, self.key, self.value), 2)
        del rows
        attention = F.softmax(F.matmul(F.transpose(q * 1.0, -2, -1), k), -1)
        seen = F.view(F.matmul(v, F.transpose(attention, -2, -1)), *shape)
        x = seen + self.pe(F.reshape(v, *shape))
        del seen
        out: Tensor = self.proj(x)
        return out


class AttentionBlock(Module):
    """``PSABlock``."""

    def __init__(self, channels: int) -> None:
        self.attn = Attention(channels)
        self.ffn = Sequential(ConvNorm(channels, 2 * channels), ConvNorm(2 * channels, channels, activates=False))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(x)
        out: Tensor = x + self.ffn(x)
        return out


class C2PSA(Module):
    """Half of the channels through attention."""

    def __init__(self, channels: int, repeats: int) -> None:
        self.half = channels // 2
        self.cv1, self.cv2 = ConvNorm(channels, 2 * self.half), ConvNorm(2 * self.half, channels)
        self.m = Sequential(*(AttentionBlock(self.half) for _ in range(repeats)))

    def forward(self, x: Tensor) -> Tensor:
        past, through = F.split(self.cv1(x), (self.half, self.half), 1)
        through = self.m(through)
        out: Tensor = self.cv2(F.cat((past, through), 1))
        return out


class Twice(Module):
    """A map twice as large."""

    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(x, *(2 * side for side in x.shape[2:]))


class Together(Module):
    """Maps as one."""

    def forward(self, *maps: Tensor) -> Tensor:
        return F.cat(maps, 1)
