"""Frozen linear layers of checkpoints that are quantised ahead of time, or by a library that unpacks in plain torch.

Each call makes the weight again, in the dtype that it had, and multiplies. What backward needs of it differs:

    gptq   gptqmodel's torch kernel (the one that trains): what is unpacked is saved; its unpacking is compiled
    hqq    unpacked by three steps in eager mode, and once more in backward; the input is saved
    awq    unpacked by one kernel, and once more in backward, there once for every row of the batch; the input is saved
    aqlm   unpacked by one kernel, and once more in backward; the input is saved
    eetq   multiplied from its bytes; backward unpacks by way of an identity matrix; the input is saved

Sources: gptqmodel 5 ``nn_modules/qlinear/torch.py``; hqq 0.2.8 ``core/quantize.py``, ``core/bitpack.py``; autoawq 0.2.9
``modules/linear/gemm.py``; aqlm 1.1 ``inference.py``; transformers 5.23 ``integrations/eetq.py``.
"""

from __future__ import annotations

from collections.abc import Callable

from memlint.meta import functional as F
from memlint.meta.amp import to
from memlint.meta.autograd import record, tracked
from memlint.meta.nn import Linear, Module, buffer
from memlint.meta.tape import Label
from memlint.meta.tensor import DType, Storage, Tensor, empty, float16, float32, int32, state, uint8
from memlint.models.language.parts import Conv1D

KINDS = ("gptq", "hqq", "awq", "aqlm", "eetq")
GROUP = {"gptq": 128, "awq": 128, "hqq": 64}  # weights per scale, where nothing is stated
WORD = 32  # bits of the integers that codes are packed into
CODEBOOK = 1 << 16  # AQLM's 1x16: entries of 8 numbers
IN_CODE = 8  # weights that one code of AQLM stands for


class PackedLinear(Module):
    """``bits`` are those of a weight; ``group`` is 0 for one scale per row."""

    def __init__(self, base: Linear | Conv1D, kind: str, bits: int, group: int) -> None:
        outputs, inputs = base.weight.shape if isinstance(base, Linear) else base.weight.shape[::-1]
        self.sizes = outputs, inputs
        self.kind, self.bits, self.kept = kind, bits, base.weight.dtype
        self.weight = _packed(outputs, inputs, outputs * inputs * bits // 8)
        self.bias = base.bias
        groups = -(-inputs // group) if group else 1
        if kind in ("gptq", "awq"):
            self.qzeros = buffer(groups, outputs * bits // WORD, dtype=int32)
            self.scales = buffer(groups, outputs, dtype=self.kept)
            self.g_idx = buffer(inputs, dtype=int32) if kind == "gptq" else None
        elif kind == "hqq":
            self.zero = buffer(outputs * inputs // group, dtype=self.kept)
            self.scale = buffer(outputs * inputs // group, dtype=self.kept)
        elif kind == "aqlm":
            self.codebooks = buffer(CODEBOOK, IN_CODE, dtype=self.kept)
            self.scales = buffer(outputs, dtype=self.kept)
        else:
            self.weight_scales = buffer(outputs, dtype=float16)

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "gptq":
            return self.biased(F.linear(x, to(self.dequantised(), x.dtype)))
        compute = state.autocast or x.dtype
        narrow = to(x, compute)
        weight = to(self.dequantised(), compute) if self.kind != "eetq" else None
        out = Tensor((*x.shape[:-1], self.sizes[0]), compute)
        del weight, narrow
        if tracked(x):
            record(out, (x,), (x, self.weight), self.backward(x.shape, x.dtype))
        return self.biased(out)

    def biased(self, out: Tensor) -> Tensor:
        return out if self.bias is None else out + self.bias

    def backward(self, shape: tuple[int, ...], dtype: DType) -> Callable[[Tensor], tuple[Tensor]]:
        def of(g: Tensor) -> tuple[Tensor]:
            identity = _identity(self.sizes[1], dtype) if self.kind == "eetq" else None
            weight = to(self.dequantised(), g.dtype)
            repeated = empty((shape[0], *self.sizes), g.dtype) if self.kind == "awq" and len(shape) == 3 else None
            gradient = Tensor(shape, dtype)
            del identity, weight, repeated
            return (gradient,)

        return of

    def dequantised(self) -> Tensor:
        """The whole weight, in the dtype that it had."""
        if self.kind != "hqq":
            return empty(self.sizes, self.kept)
        outputs, inputs = self.sizes
        codes = empty(self.sizes, self.kept)
        half = empty((outputs * inputs * self.bits // 8,), uint8)
        shifted = empty((outputs * inputs * self.bits // 8,), uint8)
        del half, shifted
        moved = empty(self.sizes, self.kept)
        weight = empty(self.sizes, self.kept)
        del codes, moved
        return weight


def _packed(outputs: int, inputs: int, nbytes: int) -> Tensor:
    """A weight by its own shape over a storage of fewer bytes. It counts as a view, so it is counted by its shape."""
    saved = state.label
    state.label = Label("parameters", saved.module)
    weight = Tensor((outputs, inputs), uint8, Storage(nbytes, (nbytes,), 1))
    state.label = saved
    weight.is_view = True
    return weight


def _identity(size: int, dtype: DType) -> Tensor:
    wide = empty((size, size), float32)
    return to(wide, dtype)


def layer(kind: str, bits: int, group: int | None) -> Callable[[Linear | Conv1D], Module]:
    """What makes a linear layer one of these."""
    size = GROUP.get(kind, 0) if group is None else max(group, 0)
    if kind == "hqq" and size == 0:
        size = GROUP["hqq"]
    return lambda base: PackedLinear(base, kind, bits, size)
