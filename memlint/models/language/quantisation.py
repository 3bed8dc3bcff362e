"""Frozen linear layers whose weights are quantised: bitsandbytes' 4 and 8 bits, torchao's NF4.

Each call makes the whole weight again in the compute dtype, multiplies, and lets it go; backward makes it once more.
Nothing of the input is kept, except by 8 bits, and by 4 bits in bitsandbytes before 0.43.2.

    4 bits     two weights to a byte, one fp32 scale per 64; nested: scales in a byte, one fp32 per 256 of them
    8 bits     a byte per weight, one fp32 scale per row; inputs are quantised to bytes as well
    NF4        torchao's: the nested layout; lookups go through 64-bit indices

A 4-bit product of at most 1,536 tokens may run in a kernel that reads the packed weight (which ones do depends on the
card); here it is always unpacked. Outlier columns of 8-bit inputs, whose number depends on the data, count as none.

Sources: ``bitsandbytes`` 0.50.2 ``autograd/_functions.py``, ``backends/cuda/ops.py``, ``functional.py``,
``nn/modules.py``; ``torchao`` 0.18 ``dtypes/nf4tensor.py``; ``peft`` 0.21.2 ``utils/other.py``
(``prepare_model_for_kbit_training``).
"""

from __future__ import annotations

from collections.abc import Callable

from memlint.facts.spec import TrainingSpec
from memlint.meta import functional as F
from memlint.meta.amp import to
from memlint.meta.autograd import record, tracked
from memlint.meta.nn import Linear, Module, buffer
from memlint.meta.tape import Label
from memlint.meta.tensor import (
    DType,
    Storage,
    Tensor,
    bool_,
    empty,
    float16,
    float32,
    int8,
    int32,
    int64,
    state,
    stored,
    uint8,
)
from memlint.models import UnknownModel
from memlint.models.language import packed
from memlint.models.language.parts import Conv1D

BLOCK = 64  # weights per scale
NESTED_BLOCK = 256  # scales per scale of scales
CODES = 16  # entries of the table of 4-bit values
LEAST_GAP_BYTES = 1 << 20  # what is smaller is of the allocator's small pool, whose segments are cut up anyhow


def _packed(outputs: int, inputs: int, nbytes: int, dtype: DType) -> Tensor:
    """A weight by its own shape over a storage of fewer bytes. It counts as a view, so it is counted by its shape."""
    saved = state.label
    state.label = Label("parameters", saved.module)
    weight = Tensor((outputs, inputs), dtype, Storage(nbytes, (nbytes,), 1))
    state.label = saved
    weight.is_view = True
    return weight


class Linear4bit(Module):
    """bitsandbytes' layer. ``kept`` is the dtype that the weight had before, in which backward makes it again.

    casts     forward makes it in that dtype, too
    attached  the input is an attribute of the product's node, so it is kept and checkpointing does not know of it
    """

    attached = casts = False

    def __init__(self, base: Linear | Conv1D, compute: DType, double: bool, kept: DType | None = None) -> None:
        outputs, inputs = base.weight.shape if isinstance(base, Linear) else base.weight.shape[::-1]
        self.sizes = outputs, inputs
        self.compute, self.kept, self.double = compute, kept or base.weight.dtype, double
        count = outputs * inputs
        self.blocks = -(-count // BLOCK)
        self.weight = _packed(outputs, inputs, (count + 1) // 2, uint8)
        self.bias = base.bias
        self.code = buffer(CODES)
        self.absmax = buffer(self.blocks, dtype=uint8 if double else float32)
        self.offset = buffer() if double else None
        self.nested_absmax = buffer(-(-self.blocks // NESTED_BLOCK)) if double else None

    @property
    def unpacked_bytes(self) -> int:
        """Of the weight as it is brought to the card, where it is packed (``Params4bit._quantize``)."""
        outputs, inputs = self.sizes
        return outputs * inputs * self.kept.itemsize

    def forward(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        x = to(x, self.compute)
        return to(self.product(x), dtype)

    def product(self, x: Tensor) -> Tensor:
        scales = self.scales()
        weight = empty(self.sizes, self.kept if self.casts else x.dtype)
        weight = to(weight, x.dtype)
        out = Tensor((*x.shape[:-1], self.sizes[0]), x.dtype)
        del scales, weight
        if tracked(x):
            unpacking = _unpacking(self.sizes, self.blocks, self.double, self.kept, x.shape)
            record(out, (x,), (self.weight,), _holding(x.detach(), unpacking) if self.attached else unpacking)
        return out

    def scales(self) -> Tensor | None:
        """Those of nested quantisation are made first, then moved by their mean."""
        if not self.double:
            return None
        plain = empty((self.blocks,), float32)
        moved = empty((self.blocks,), float32)
        del plain
        return moved

    def dequantised(self) -> Tensor:
        scales = empty((self.blocks,), float32) if self.double else None
        weight = empty(self.sizes, self.kept)
        del scales
        return weight


def _holding(held: Tensor, backward: Callable[[Tensor], tuple[Tensor]]) -> Callable[[Tensor], tuple[Tensor]]:
    """A node that holds a tensor beside what it saves."""

    def holding(g: Tensor) -> tuple[Tensor]:
        assert held is not None
        return backward(g)

    return holding


def _unpacking(
    sizes: tuple[int, int], blocks: int, double: bool, kept: DType, shape: tuple[int, ...]
) -> Callable[[Tensor], tuple[Tensor]]:
    def backward(g: Tensor) -> tuple[Tensor]:
        scales = empty((blocks,), float32) if double else None
        weight = empty(sizes, kept)
        del scales
        weight = to(weight, g.dtype)
        return (Tensor(shape, g.dtype),)

    return backward


class Linear8bit(Module):
    """LLM.int8(). What backward needs of the input's dtype is an attribute of its node, so the input is kept too, and
    checkpointing does not know of it."""

    def __init__(self, base: Linear | Conv1D, compute: DType, double: bool = False) -> None:
        outputs, inputs = base.weight.shape if isinstance(base, Linear) else base.weight.shape[::-1]
        self.sizes = outputs, inputs
        self.weight = _packed(outputs, inputs, outputs * inputs, int8)
        self.bias = base.bias
        self.scale = buffer(outputs)

    def forward(self, x: Tensor) -> Tensor:
        outputs, inputs = self.sizes
        shape, rows = x.shape, x.numel // x.shape[-1]
        flat = x.reshape(rows, inputs) if x.ndim == 3 else x
        half = to(flat.detach(), float16)
        scales = empty((rows,), float32)
        quantised = empty((rows, inputs), int8)
        absolute = empty((rows, inputs), float16)
        outliers = empty((rows, inputs), bool_)
        del absolute, outliers, half
        sums = empty((rows, outputs), int32)
        out = empty((rows, outputs), float16)
        del sums
        out = to(out, x.dtype)
        del scales, quantised
        if tracked(x):
            held, dtype, sizes = flat.detach(), x.dtype, self.sizes

            def backward(g: Tensor) -> tuple[Tensor]:
                assert held is not None
                flat_g = F.contiguous(g.detach().reshape(rows, outputs))
                weight = empty(sizes, dtype)
                factors = empty((outputs, 1), float32)
                del factors
                gradient = empty((rows, inputs), dtype)
                del weight, flat_g
                return (gradient.alias(shape, None),)

            record(out, (x,), (), backward)
        return F.view(out, *shape[:-1], outputs) if len(shape) == 3 else out

    def dequantised(self) -> Tensor:
        return empty(self.sizes, float32)


class LinearNF4(Module):
    """torchao's, as torchtune builds it: unpacked in eager mode, by two halves. A compiler unpacks it once, and keeps
    the whole weight for the backward pass."""

    def __init__(self, base: Linear | Conv1D, compute: DType, double: bool = True) -> None:
        outputs, inputs = base.weight.shape if isinstance(base, Linear) else base.weight.shape[::-1]
        self.sizes = outputs, inputs
        count = outputs * inputs
        self.blocks = -(-count // BLOCK)
        self.kept = base.weight.dtype
        self.weight = _packed(outputs, inputs, (count + 1) // 2, uint8)
        self.bias = base.bias
        self.scaler = buffer(self.blocks, dtype=int8)
        self.scaler_factor = buffer(-(-self.blocks // NESTED_BLOCK), dtype=self.kept)
        self.scaler_mean = buffer(dtype=self.kept)
        self.table = buffer(CODES, dtype=self.kept)

    def forward(self, x: Tensor) -> Tensor:
        if state.fusing:
            return F.linear(x, stored(Tensor(self.sizes, x.dtype)))
        weight = to(_unpacked_nf4(self.sizes, self.blocks, self.kept), x.dtype)
        out = Tensor((*x.shape[:-1], self.sizes[0]), x.dtype)
        del weight
        if tracked(x):
            record(out, (x,), (self.weight,), _unpacking_nf4(self.sizes, self.blocks, self.kept, x.shape))
        return out

    def dequantised(self) -> Tensor:
        return _unpacked_nf4(self.sizes, self.blocks, self.kept)


def _unpacked_nf4(sizes: tuple[int, int], blocks: int, dtype: DType) -> Tensor:
    """``NF4Tensor.get_original_weight``; every name in it lives until its end."""
    half = sizes[0] * sizes[1] // 2
    shifted = empty((half,), uint8)
    first = empty((half,), int64)
    del shifted
    masked = empty((half,), uint8)
    second = empty((half,), int64)
    del masked
    dequantised_first = empty((half,), dtype)
    dequantised_second = empty((half,), dtype)
    scales = _unpacked_scales(blocks, dtype)
    repeated = empty((half,), dtype)
    scaled_first = empty((half,), dtype)
    del repeated
    repeated = empty((half,), dtype)
    scaled_second = empty((half,), dtype)
    del repeated
    out = empty(sizes, dtype)
    del first, second, dequantised_first, dequantised_second, scales, scaled_first, scaled_second
    return out


def _unpacked_scales(blocks: int, dtype: DType) -> Tensor:
    quotient = empty((blocks,), dtype)
    out = empty((blocks,), dtype)
    del quotient
    return out


def _unpacking_nf4(
    sizes: tuple[int, int], blocks: int, kept: DType, shape: tuple[int, ...]
) -> Callable[[Tensor], tuple[Tensor]]:
    def backward(g: Tensor) -> tuple[Tensor]:
        weight = to(_unpacked_nf4(sizes, blocks, kept), g.dtype)
        gradient = Tensor(shape, g.dtype)
        del weight
        return (gradient,)

    return backward


QUANTISED = (Linear4bit, Linear8bit, LinearNF4, packed.PackedLinear)


def gradient_of_input(layer: Linear4bit | Linear8bit, g: Tensor, rows: int) -> Tensor:
    """(rows, inputs), of what a bitsandbytes layer returned: its weight is unpacked once more."""
    shape = rows, layer.sizes[1]
    if isinstance(layer, Linear4bit):
        return _unpacking(layer.sizes, layer.blocks, layer.double, layer.kept, shape)(g)[0]
    weight = empty(layer.sizes, g.dtype)
    factors = empty((layer.sizes[0], 1), float32)
    del factors
    gradient = empty(shape, g.dtype)
    del weight
    return gradient


def dequantised(base: Module) -> Tensor:
    """The weight of a linear layer in full; itself where it is not quantised."""
    if isinstance(base, QUANTISED):
        return base.dequantised()
    weight: Tensor = base.weight  # type: ignore[attr-defined]
    return weight


def layer(spec: TrainingSpec, compute: DType) -> Callable[[Linear | Conv1D], Module]:
    """What makes a linear layer a quantised one. Raises UnknownModel for a kind that is not known."""
    bits = spec.get("quantization.bits")
    kind = spec.get("quantization.kind") or ("int8" if bits == 8 else "nf4")
    double = bool(spec.get("quantization.double", False))
    if spec.get("implementation") == "torchtune" and kind == "nf4":
        return lambda base: LinearNF4(base, compute)
    if bits == 4 and kind in ("nf4", "fp4") and spec.get("implementation") == "litgpt":
        from memlint.models.language.litgpt import QUANTISED_FROM

        return _dated(spec, lambda base: Linear4bit(base, compute, double, QUANTISED_FROM))
    if bits == 4 and kind in ("nf4", "fp4"):
        return _dated(spec, lambda base: Linear4bit(base, compute, double))
    if bits == 8 and kind == "int8":
        return lambda base: Linear8bit(base, compute)
    if kind in packed.KINDS and isinstance(bits, int):
        return packed.layer(kind, bits, spec.get("quantization.group_size"))
    raise UnknownModel(f"weights quantised to {bits} bits as {kind!r} are not known")


def _dated(
    spec: TrainingSpec, layer: Callable[[Linear | Conv1D], Linear4bit]
) -> Callable[[Linear | Conv1D], Linear4bit]:
    """The layer as the release of bitsandbytes has it."""
    # Kernels for adapters make the product themselves (unsloth/kernels/fast_lora.py, axolotl/kernels/lora.py).
    kernels = any(name.startswith("lora_") for name in spec.get("fused_kernels") or ())
    attached = not kernels and spec.does("bitsandbytes.keeps_inputs_of_4_bit_products")
    casts = spec.does("bitsandbytes.unpacks_in_the_stored_dtype")

    def made(base: Linear | Conv1D) -> Linear4bit:
        one = layer(base)
        one.attached, one.casts = attached, casts
        return one

    return made


def widen(module: Module) -> list[int]:
    """``prepare_model_for_kbit_training``: parameters in 16 bits become fp32 ones, one after the other. Returns the
    storages in 16 bits that leave a gap (:data:`LEAST_GAP_BYTES`)."""
    return [old for owner, name in _in_16_bits(module) if (old := _cast(owner, name, float32)) is not None]


def widen_and_narrow(module: Module) -> list[int]:
    """``prepare_model_for_kbit_training``, and ``peft_module_casting_to_bf16`` behind it (TRL before 0.29): embeddings
    and head are all fp32 for a moment. Returns what leaves a gap, as :func:`widen`; norms are smaller than that."""
    held = [(owner, name) for owner, name in _in_16_bits(module) if owner.__dict__[name].nbytes >= LEAST_GAP_BYTES]
    before = [owner.__dict__[name].dtype for owner, name in held]
    gone = [_cast(owner, name, float32) for owner, name in held]
    gone += [_cast(owner, name, dtype) for (owner, name), dtype in zip(held, before)]
    return [old for old in gone if old is not None]


def _in_16_bits(module: Module) -> list[tuple[Module, str]]:
    """Parameters, as modules and their attributes' names, in the order in which a module names them."""
    found = []
    for name, value in module.__dict__.items():
        narrow = isinstance(value, Tensor) and value.dtype.name in ("bfloat16", "float16")
        if narrow and state.tape.labels[value.storage.index].component == "parameters":
            found.append((module, name))
    for _, child in module.children():
        found += _in_16_bits(child)
    return found


def _cast(owner: Module, name: str, dtype: DType) -> int | None:
    """A parameter in another dtype, in its place. Returns the storage that it had, where that leaves a gap."""
    value = owner.__dict__[name]
    old = value.storage.index if value.nbytes >= LEAST_GAP_BYTES else None
    saved, state.label = state.label, state.tape.labels[value.storage.index]
    owner.__dict__[name] = Tensor(value.shape, dtype).requires_grad_(value.requires_grad)
    state.label = saved
    return old


# Parts of a model by the last name of their modules (the fact ``float32_parts``).
PARTS = {"norms": ("norm", "ln_"), "embeddings": ("embed_tokens", "wte"), "head": ("lm_head",)}


def widen_part(module: Module, part: str) -> None:
    """Norms, embeddings or head in fp32."""
    for name, child in module.children():
        if any(word in name for word in PARTS.get(part, ())):
            widen(child)
        else:
            widen_part(child, part)
