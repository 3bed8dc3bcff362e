"""Scaled dot-product attention, and its kernels."""

from __future__ import annotations

from math import prod

from memlint.meta.amp import lower, to
from memlint.meta.autograd import record, tracked
from memlint.meta.dims import bare
from memlint.meta.ops.elementwise import add_, dropout, mul
from memlint.meta.ops.kernels import kernel
from memlint.meta.ops.products import batched_matmul, saves_by_formula
from memlint.meta.ops.shapes import Layout, fresh, layout_of
from memlint.meta.ops.views import expand, flatten, narrow, pad, transpose, unsqueeze
from memlint.meta.tensor import (
    DType,
    Shape,
    Tensor,
    bfloat16,
    bool_,
    contiguous_strides,
    empty_like,
    float32,
    int64,
    is_contiguous,
    state,
    uint8,
)


def scaled_dot_product_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    backend: str = "",
    dropout: float = 0.0,
    causal: bool = False,
    grouped: bool = True,
) -> Tensor:
    """(batch, heads, tokens, width); fewer heads of k and v: grouped queries, unless ``grouped`` is False, when a
    single one serves all as any dimension of 1 does, which no fused kernel knows. ``backend``: flash, efficient or
    math; "" is what CUDA takes on the run's card, an Ampere or newer one unless the state says else. The fused ones
    keep q, k, v, the output and one number per row. ``mask``: True where attended, or a number added to the score.
    (native/transformers/attention.cpp)"""
    if mask is not None:
        mask = lower(mask)
    v = lower(v)
    k = lower(k)
    q = lower(q)
    alone = not grouped and k.shape[1] != q.shape[1]
    backend = backend or ("math" if alone else _attention_backend(q, k, v, mask, causal))
    if tracked(q, k, v):
        size = prod((*q.shape[:-1], k.shape[-2])) * q.dtype.itemsize
        if backend != "math":
            state.tape.probabilities_avoided_bytes += bare(size)
        elif state.frame is None:
            state.tape.probabilities_kept_bytes += bare(size)
    if mask is not None and not mask.dtype.is_floating:
        mask = _additive_mask(mask.shape, q.dtype)
    if backend == "math":
        return _attention_math(q, k, v, mask, dropout, causal, grouped)
    if backend == "flash":
        return _attention_flash(q, k, v)
    if mask is not None:
        mask = _aligned_mask(mask, q, k)
    return _attention_efficient(q, k, v, mask)


def _attention_backend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False) -> str:
    """What native/transformers/cuda/sdp_utils.cpp selects for dense operands."""
    if not q.ndim == k.ndim == v.ndim == 4 or not q.dtype is k.dtype is v.dtype or q.shape[0] != k.shape[0]:
        return "math"
    width, low = q.shape[-1], q.dtype.itemsize == 2
    packed = all(x.strides is None or x.strides[-1] == 1 for x in (q, k, v))
    if (
        low
        and not state.without_flash
        and mask is None
        and packed
        and q.shape[1] % k.shape[1] == 0
        and width == k.shape[-1] == v.shape[-1] <= 256
        and not (causal and q.shape[2] != k.shape[2])
    ):
        return "flash"
    alignment = 8 if low else 4
    if (
        not (state.without_flash and q.dtype is bfloat16)
        and packed
        and q.shape[1] == k.shape[1]
        and width % alignment == v.shape[-1] % alignment == 0
        and (mask is None or mask.strides is None or mask.strides[-1] == 1)
    ):
        return "efficient"
    return "math"


def _additive_mask(shape: Shape, dtype: DType) -> Tensor:
    numbers = Tensor((), dtype), Tensor((), dtype)  # zero and minus infinity
    out = Tensor(shape, dtype)
    del numbers
    return out


def _aligned_mask(mask: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """preprocess_mask: the memory-efficient kernel wants steps of 8 elements between the mask's rows; what it is padded
    to is not yet spread over the heads."""
    if mask.full_strides()[-1] != 1 or any(step % 8 for step in mask.full_strides()[:-1]):
        mask = narrow(pad(mask, 0, 8 - mask.shape[-1] % 8), -1, mask.shape[-1])
    return expand(mask, q.shape[0], q.shape[1], q.shape[2], k.shape[2])


def _attention_math(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout_: float, causal: bool, grouped: bool = True
) -> Tensor:
    """The textbook formula, in fp32, with the softmax that survives rows without any key."""
    dtype = q.dtype
    if dtype.itemsize == 2:
        q, k, v = to(q, float32), to(k, float32), to(v, float32)
    q = mul(q, 1.0)
    if causal:
        ones = Tensor((q.shape[-2], k.shape[-2]), bool_)
        kept = Tensor(ones.shape, bool_)
        del ones
        mask = _additive_mask(kept.shape, q.dtype)
        del kept
    if grouped and k.shape[-3] != q.shape[-3]:
        k, v = repeat_interleave(k, q.shape[-3] // k.shape[-3]), repeat_interleave(v, q.shape[-3] // v.shape[-3])
    scores = batched_matmul(q, mul(transpose(k, -2, -1), 1.0))
    if mask is not None:
        scores = add_(scores, mask)
    scores = _safe_softmax(scores)
    if dropout_:
        scores = dropout(scores, dropout_)
    probabilities = to(scores, dtype)  # a second result that SDPA drops
    out = to(batched_matmul(scores, v), dtype)
    del probabilities
    return out


def _safe_softmax(x: Tensor) -> Tensor:
    """A softmax, and zeros in the rows where everything is masked."""
    plain = Tensor(x.shape, x.dtype)
    number = Tensor((), x.dtype)
    masked = Tensor(x.shape, bool_)
    rows = Tensor((*x.shape[:-1], 1), bool_)
    zero = Tensor((), x.dtype)
    out = Tensor(x.shape, x.dtype)
    del plain, number, masked, rows, zero
    if tracked(x):
        record(out, (x,), (out,), lambda g: (Tensor(g.shape, g.dtype),))
    return out


def repeat_interleave(x: Tensor, times: int) -> Tensor:
    """Each entry of dimension -3 ``times`` times (key and value heads for their group of queries)."""
    before = x.shape
    spread = expand(unsqueeze(x, -3), *before[:-2], times, *before[-2:])
    return flatten(_clone_contiguous(spread), -4, -3)


def _clone_contiguous(x: Tensor) -> Tensor:
    """A contiguous copy, also of what is contiguous."""
    out = Tensor(x.shape, x.dtype)
    if tracked(x):
        record(out, (x,), (), lambda g: (g,))
    return out


@kernel
def _attention_flash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """flash_attn/flash_api.cpp. Widths are padded to 8."""
    width, over = q.shape[-1], q.shape[-1] % 8
    if over:
        q, k, v = pad(q, 0, 8 - over), pad(k, 0, 8 - over), pad(v, 0, 8 - over)
    batch, heads, tokens, padded = q.shape

    def make() -> tuple[Tensor, ...]:
        # Results, one number per row, random state, and one that is unused.
        return empty_like(q), Tensor((batch, heads, tokens), float32), Tensor((2,), int64), Tensor((), int64)

    out, sums, *seeds = make() if saves_by_formula() else state.frame.operation("attention", make)
    if tracked(q, k, v):
        like = tuple((layout_of(x), x.dtype, x.requires_grad) for x in (q, k, v))
        rows = -(-tokens // 128) * 128
        step = 32 if padded <= 128 else 64
        accumulated = (batch, rows, heads, -(-padded // step) * step)
        expanded = (batch, k.shape[2], heads, padded) if k.shape[1] != heads else (0,)
        kept, dtype = layout_of(out), q.dtype

        def backward(g: Tensor) -> list[Tensor | None]:
            copies = _tokens_first(layout_of(g), dtype), _tokens_first(kept, dtype)
            grads = [fresh(layout[0], dtype, layout) for layout, dtype, _ in like]
            scratch = (
                Tensor((batch, heads, rows), float32),
                Tensor(expanded, dtype),
                Tensor(expanded, dtype),
                Tensor(accumulated, float32),
            )
            del copies, scratch
            return [grad if wanted else None for grad, (_, _, wanted) in zip(grads, like)]

        record(out, (q, k, v), (q, k, v, out, sums, *seeds), backward)
    return narrow(out, -1, width) if over else out


def _tokens_first(layout: Layout, dtype: DType) -> Tensor | None:
    """A copy as (batch, tokens, heads, width), where the tensor does not lie in memory like that already."""
    (batch, heads, tokens, width), strides = layout
    full = contiguous_strides(layout[0]) if strides is None else strides
    shape = (batch, tokens, heads, width)
    lies = is_contiguous(shape, (full[0], full[2], full[1], full[3]))
    return None if lies else Tensor(shape, dtype)


@kernel
def _attention_efficient(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """transformers/cuda/attention.cu and attention_backward.cu. Results lie in memory as (batch, tokens, heads,
    width); the log-sum-exp has rows of a multiple of 32 (kAlignLSE); the random seeds stay on the host."""
    batch, heads, tokens, width = q.shape
    out_shape = (batch, heads, tokens, v.shape[-1])
    low = q.dtype.itemsize == 2
    needs = tracked(q, k, v, mask)
    # The kernel makes a learned mask's gradient for every row and head, whose last dimension is a multiple of 16.
    learned = None if mask is None or not tracked(mask) else (mask.shape, mask.dtype)

    def make() -> tuple[Tensor, ...]:
        sums = (batch, heads, -(-tokens // 32) * 32 if tracked(q, k, v) else 0)
        return _heads_last(out_shape, q.dtype), Tensor(sums, float32)

    out, sums = make() if saves_by_formula() else state.frame.operation("attention", make)
    if low and v.shape[-1] > 128:
        accumulator = Tensor(out_shape, float32)
        del accumulator
    if needs:
        like = tuple((x.shape, x.dtype, x.requires_grad) for x in (q, k, v))
        dtype = q.dtype
        workspace = _efficient_workspace_bytes(batch * heads, tokens, k.shape[2], width, v.shape[-1], low)

        def backward(g: Tensor) -> list[Tensor | None]:
            copy = _tokens_first(layout_of(g), dtype)
            grads = [_heads_last(shape, dtype) for shape, dtype, _ in like]
            masks: list[Tensor | None] = [None]
            if learned is not None:
                shape, kind = learned
                whole = Tensor((*shape[:-1], -(-shape[-1] // 16) * 16), kind)
                masks = [whole if whole.shape == shape else whole.alias(shape, whole.full_strides())]
            if not low:  # (grad * out).sum(-1), then transposed
                product = Tensor(out_shape, float32)
                summed = Tensor((batch, tokens, heads), float32)
            delta = Tensor((batch, heads, tokens), float32)
            if not low:
                del product, summed
            scratch = Tensor((workspace,), uint8)
            del copy, delta, scratch
            return [grad if wanted else None for grad, (_, _, wanted) in zip(grads, like)] + masks

        record(out, (q, k, v, mask), (q, k, v, mask, out, sums), backward)
    return out


def _efficient_workspace_bytes(rows: int, queries: int, keys: int, width: int, value_width: int, low: bool) -> int:
    """What the backward kernel asks for: gradients of queries by tile, with 16 bytes of lock and counter each, and,
    for wide heads in 16 bits, a stage for those of keys and values. (mem_eff_attention/kernel_backward.h,
    ``workspace_size``; tile sizes from kernels/cutlassB.h, sm80.) ``rows``: batch x heads."""
    widest = width if width >= value_width else value_width
    block_q = 64 if widest <= 64 else 128
    block_k = 128 if low and 64 < widest <= 128 else 64
    stage = 0
    if low and widest > 128:
        splits = -(-keys // block_k)
        if rows >= 256 and keys <= 2 * block_k:
            splits = 1
        if splits > 200 // rows:
            splits = 200 // rows or 1
        stage = splits * block_k * (-(-width // block_q) + -(-value_width // block_q)) * block_q
    tiles = -(-queries // block_q) * -(-width // block_k)
    return rows * (-(-(stage + tiles * (block_q * block_k + 4)) // 4) * 4) * 4


def _heads_last(shape: Shape, dtype: DType) -> Tensor:
    """A fresh (batch, heads, tokens, width) tensor that lies in memory as (batch, tokens, heads, width)."""
    batch, heads, tokens, width = shape
    base = Tensor((batch, tokens, heads, width), dtype)
    strides = contiguous_strides(base.shape)
    return base.alias(shape, (strides[0], strides[2], strides[1], strides[3]))
