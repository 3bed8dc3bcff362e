"""Experts whose weights lie packed in one tensor each: unpacked where the mixture reads them, and held until it is
done. Backward holds those that its products have saved.

    4 bits   bitsandbytes' NF4, unpacked into the dtype that the weight had
    8 bits   a byte per weight and a scale per row; times these and a constant, each in fp32, which the products take

A hook in front of the experts turns torch's cache of parametrisations on, and one behind them turns it off. Where the
newer checkpointing recomputes a layer, it stops by an exception as soon as backward has what it needs: if that is
within the experts, the hook behind them never runs, and from then on every weight that was unpacked stays.

Sources: ``axolotl`` 0.18 ``monkeypatch/moe_quant.py`` (patch_moe_quantization_on_load, Bnb8bitParametrization);
``bitsandbytes`` 0.49.2 ``nn/parametrize.py`` (Bnb4bitParametrization, _register_parametrization_hooks), ``_ops.py``
(int8_vectorwise_dequant); torch 2.13 ``utils/checkpoint.py`` (_StopRecomputationError).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from typing import Any

from memlint.facts.spec import TrainingSpec
from memlint.meta.autograd import no_grad
from memlint.meta.nn import Module, buffer
from memlint.meta.tape import Label
from memlint.meta.tensor import DType, Shape, Storage, Tensor, empty, float32, int8, state, uint8
from memlint.models import UnknownModel
from memlint.models.language.experts import GroupedExperts, Mixture
from memlint.models.language.quantisation import BLOCK, CODES, NESTED_BLOCK


def pack(mixtures: Iterable[Any], spec: TrainingSpec) -> None:
    """What stands in place of the experts of each mixture."""
    bits, double = spec.get("quantization.bits"), bool(spec.get("quantization.double", False))
    mixtures = list(mixtures)
    # Nothing that backward needs follows the experts of such a mixture in its layer.
    last = any(type(mixture) is Mixture for mixture in mixtures)
    recomputed = spec.get("checkpointing", "none") != "none" and not spec.get("checkpointing_reentrant", False)
    for mixture in mixtures:
        if type(mixture.experts) is not GroupedExperts:
            raise UnknownModel(f"experts like {type(mixture.experts).__name__} in {bits} bits are not known")
        mixture.experts = PackedExperts(mixture.experts, 4 if bits == 4 else 8, double, last and recomputed)


class _Packed(Module):
    """One weight (experts, out, in).

    stays   once it was unpacked
    """

    def __init__(self, weight: Tensor, bits: int, double: bool, stays: bool) -> None:
        self.shape, self.dtype, self.bits = weight.shape, weight.dtype, bits
        count = prod(self.shape)
        self.weight = _of_bytes(self.shape, (count + 1) // 2 if bits == 4 else count, uint8 if bits == 4 else int8)
        self.unpacked_weight = buffer(*self.shape, dtype=self.dtype if bits == 4 else float32) if stays else None
        if bits == 8:
            self.scale = buffer(count // self.shape[-1])
            return
        self.blocks, self.double = -(-count // BLOCK), double
        self.code = buffer(CODES)
        self.absmax = buffer(self.blocks, dtype=uint8 if double else float32)
        self.nested_absmax = buffer(-(-self.blocks // NESTED_BLOCK)) if double else None

    def unpacked(self) -> Tensor:
        if self.unpacked_weight is not None:
            return self.unpacked_weight
        with no_grad():
            if self.bits == 8:
                scaled = empty(self.shape, float32)
                weight = empty(self.shape, float32)
                del scaled
                return weight
            plain = empty((self.blocks,), float32) if self.double else None
            scales = empty((self.blocks,), float32) if self.double else None
            del plain
            weight = empty(self.shape, self.dtype)
            del scales
            return weight


class PackedExperts(Module):
    def __init__(self, base: GroupedExperts, bits: int, double: bool, stays: bool) -> None:
        self.number, self.apart, self.function = base.number, base.apart, base.function
        self.gate_up_proj = _Packed(base.gate_up_proj, bits, double, stays)
        self.down_proj = _Packed(base.down_proj, bits, double, stays)

    def forward(self, x: Tensor, numbers: Tensor, weights: Tensor) -> Tensor:
        reading: _Reading = object.__new__(_Reading)
        reading.number, reading.apart, reading.function = self.number, self.apart, self.function
        reading.unpack = (self.gate_up_proj.unpacked, self.down_proj.unpacked)
        return reading.forward(x, numbers, weights)


class _Reading(GroupedExperts):
    """For one call: a weight is unpacked when it is first read."""

    unpack: tuple[Callable[[], Tensor], Callable[[], Tensor]]

    def enter(self, x: Tensor, expert_of: Tensor, offsets: Tensor) -> Tensor:
        self.gate_up_proj = self.unpack[0]()
        return super().enter(x, expert_of, offsets)

    def leave(self, x: Tensor, expert_of: Tensor, offsets: Tensor) -> Tensor:
        self.down_proj = self.unpack[1]()
        return super().leave(x, expert_of, offsets)


def _of_bytes(shape: Shape, nbytes: int, dtype: DType) -> Tensor:
    """A weight by its own shape over a storage of fewer bytes."""
    saved = state.label
    state.label = Label("parameters", saved.module)
    weight = Tensor(shape, dtype, Storage(nbytes, (nbytes,), 1))
    state.label = saved
    weight.is_view = True
    return weight
