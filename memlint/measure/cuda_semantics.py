"""CUDA's way of doing things, laid over CPU tensors, so that a trace without a GPU shows what a GPU would hold.

PyTorch's fake *cuda* tensors need a working device; fake *cpu* tensors do not, but take the CPU's branches. This module
puts CUDA's in their place: its autocast lists (``cuda_autocast``), its choice of attention kernel, and the tensors that
its kernels return, copy and need for a moment (``cuda_kernels``). ``CudaSemantics`` sits above the tracker, so whatever
a CUDA kernel allocates is written as the ATen calls that allocate it, and is booked like everything else::

    with FakeTensorMode(), StorageTracker() as tracker, CudaSemantics(tracker):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            ...

Where a card matters (attention kernels), an Ampere or newer data-centre card with PyTorch's default priorities is
meant. Sources are named by file of the PyTorch tree, ``aten/src/ATen/`` unless it says otherwise. Not modelled:
scratch memory of cuDNN, cuBLAS and CUB, what the backward kernels of embedding and indexing sort with, and partial sums
whose number depends on the card.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from memlint.measure import cudnn_rnn
from memlint.measure.cuda_autocast import LOW_PRECISION, autocast_kernels
from memlint.measure.cuda_kernels import KERNELS, accumulate_dtype, channels_last
from memlint.measure.tracker import StorageTracker, wraps

aten = torch.ops.aten


def _dropout(input: Tensor, p: float, train: bool) -> Tensor:
    """native/Dropout.cpp: CUDA takes the fused kernel, with a mask of one byte per element."""
    if p == 0 or not train or input.numel() == 0:
        return input
    if p < 1:
        output: Tensor = aten.native_dropout(input, p, train)[0]
        return output
    return input.mul(torch.zeros((), dtype=input.dtype))


def _softmax_with_dtype(plain: Any) -> Callable[..., Tensor]:
    """native/SoftMax.cpp: on CUDA a softmax of fp16 into fp32 casts inside the kernel; bf16 is copied first."""

    def kernel(input: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
        if input.dtype is torch.float16 and dtype is torch.float32:
            result: Tensor = plain(input, dim, True)
            return result
        result = plain(input if dtype is None else input.to(dtype), dim, False)
        return result

    return kernel


def _max_pool1d(
    input: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> Tensor:
    """native/MaxPooling.cpp: only the CPU has a kernel without indices."""
    result: Tensor = aten.max_pool1d_with_indices(input, kernel_size, stride, padding, dilation, ceil_mode)[0]
    return result


def _group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Tensor:
    """native/group_norm.cpp: away from the CPU the input is made contiguous even where it is channels-last."""
    n, c = input.shape[0], input.shape[1]
    hxw = input.numel() // (n * c) if n * c else 0
    result: Tensor = aten.native_group_norm(
        input.contiguous(),
        None if weight is None else weight.contiguous(),
        None if bias is None else bias.contiguous(),
        n,
        c,
        hxw,
        num_groups,
        eps,
    )[0]
    return result


def _batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Tensor:
    """native/Normalization.cpp, _batch_norm_impl_index: cuDNN is given a packed input."""
    if input.dim() >= 3 and input.dtype is not torch.bfloat16 and weight is not None:
        input = input.contiguous(memory_format=torch._prims_common.suggest_memory_format(input))
    result: Tensor = aten.native_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)[0]
    return result


class _FusedRmsNorm(torch.autograd.Function):  # type: ignore[misc]
    """native/cuda/layer_norm_kernel.cu, _fused_rms_norm_cuda and its backward: a statistic per row in the accumulation
    type; the gradients that are wanted."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor | None, rows: int) -> Tensor:
        statistics = torch.empty(
            (*input.shape[:rows], *(1 for _ in input.shape[rows:])), dtype=accumulate_dtype(input.dtype)
        )
        ctx.save_for_backward(input, weight, statistics)
        return torch.empty_like(input.contiguous())

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        input, weight, _ = ctx.saved_tensors
        grad_out, input = grad_out.contiguous(), input.contiguous()
        return (
            torch.empty_like(input) if ctx.needs_input_grad[0] else None,
            torch.empty_like(weight) if weight is not None and ctx.needs_input_grad[1] else None,
            None,
        )


def _rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """native/layer_norm.cpp, rms_norm_symint: CUDA has a fused kernel, which the CPU lacks; weights of another type
    than the input's, and channels-last inputs, take the composite one on either."""
    if (weight is None or weight.dtype is input.dtype) and not channels_last(input):
        result: Tensor = _FusedRmsNorm.apply(input, weight, input.dim() - len(normalized_shape))
        return result
    # rms_norm_composite, which the operator without a kernel for the device is.
    result = aten._fused_rms_norm(input, normalized_shape, weight, eps)[0]
    return result


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """native/Linear.cpp. (It would add the bias out of place to fake tensors, which count as tensor subclasses.)"""
    if bias is None:
        return torch.matmul(input, weight.t())
    if input.dim() == 2:
        return torch.addmm(bias, input, weight.t())
    if input.is_contiguous():
        folded = torch.addmm(bias, input.view(-1, input.shape[-1]), weight.t())
        return folded.view(*input.shape[:-1], weight.shape[0])
    return torch.matmul(input, weight.t()).add_(bias)


def _pad_last_dim(tensor: Tensor, multiple: int) -> Tensor:
    over = tensor.shape[-1] % multiple
    return torch.nn.functional.pad(tensor, (0, multiple - over)) if over else tensor


def attention_backend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    enable_gqa: bool = False,
) -> str:
    """The kernel that ``scaled_dot_product_attention`` takes on an Ampere or newer card: flash, efficient or math.

    The conditions of native/transformers/cuda/sdp_utils.cpp for dense tensors (query, key, value: batch x heads x
    length x head dimension), in its default order. ``torch.nn.attention.sdpa_kernel`` is honoured. Where cuDNN's kernel
    comes first (compute capability 9 and 10 with a recent cuDNN) it takes flash's place, and keeps as much.
    """
    if not (query.dim() == key.dim() == value.dim() == 4 and query.dtype == key.dtype == value.dtype):
        return "math"
    head_dim = query.shape[-1]
    low_precision = query.dtype in LOW_PRECISION
    same_batch = query.shape[0] == key.shape[0] == value.shape[0]
    same_heads = query.shape[1] == key.shape[1] == value.shape[1]
    grouped_heads = enable_gqa and key.shape[1] == value.shape[1] and query.shape[1] % key.shape[1] == 0
    not_empty = query.shape[2] > 0 and key.shape[2] > 0
    packed = all(x.stride(-1) == 1 for x in (query, key, value))
    if (
        torch.backends.cuda.flash_sdp_enabled()
        and low_precision
        and attn_mask is None
        and same_batch
        and (same_heads or grouped_heads)
        and not_empty
        and (packed or head_dim == 1)
        and head_dim == key.shape[-1] == value.shape[-1]
        and head_dim <= 256
        and not (is_causal and query.shape[2] != key.shape[2])
    ):
        return "flash"
    alignment = 8 if low_precision else 4
    if (
        torch.backends.cuda.mem_efficient_sdp_enabled()
        and (low_precision or query.dtype is torch.float32)
        and same_batch
        and same_heads
        and not_empty
        and packed
        and (attn_mask is None or attn_mask.stride(-1) == 1)
        and head_dim == key.shape[-1]
        and head_dim % alignment == 0
        and value.shape[-1] % alignment == 0
    ):
        return "efficient"
    return "math"


def _scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """native/transformers/attention.cpp with CUDA's choice of kernel."""
    backend = attention_backend(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        attn_mask = torch.where(attn_mask, 0.0, torch.scalar_tensor(float("-inf"), dtype=query.dtype))
    result: Tensor
    if backend == "flash":
        padded = [_pad_last_dim(x, 8) for x in (query, key, value)]
        if scale is None:
            scale = query.shape[-1] ** -0.5
        result = aten._scaled_dot_product_flash_attention(*padded, dropout_p, is_causal, False, scale=scale)[0]
        return result if result.shape[-1] == query.shape[-1] else result[..., : query.shape[-1]]
    if backend == "efficient":
        needs_grad = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
        if attn_mask is not None:
            attn_mask = _aligned_mask(attn_mask, query, key)
        result = aten._scaled_dot_product_efficient_attention(
            query, key, value, attn_mask, needs_grad, dropout_p, is_causal, scale=scale
        )[0]
        return result
    return _attention_math(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def _attention_math(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Tensor:
    """_scaled_dot_product_attention_math. (It, too, would add the mask out of place to fake tensors.)"""
    dtype = query.dtype
    root = (query.shape[-1] ** -0.5 if scale is None else abs(scale)) ** 0.5
    if dtype in LOW_PRECISION and not torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed():
        query, key, value = query.float(), key.float(), value.float()
    query = query * root
    if is_causal:
        kept = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
        attn_mask = torch.where(kept, 0.0, torch.scalar_tensor(float("-inf"), dtype=query.dtype))
        del kept
    if enable_gqa and query.shape[-3] != key.shape[-3]:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    scores = torch.matmul(query, key.transpose(-2, -1) * root)
    if attn_mask is not None:
        scores.add_(attn_mask)
    scores = aten._safe_softmax(scores, -1)
    if dropout_p > 0:
        scores = torch.dropout(scores, dropout_p, True)
    # The probabilities are a second result, cast before the product is made.
    probabilities = scores.to(dtype)
    result = torch.matmul(scores, value).to(dtype)
    del probabilities
    return result


def _aligned_mask(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """preprocess_mask: the memory-efficient kernel wants steps of 8 elements between the mask's rows."""
    length = mask.shape[-1]
    if mask.stride(-1) != 1 or any(stride % 8 for stride in mask.stride()[:-1]):
        mask = torch.nn.functional.pad(mask, (0, 8 - length % 8))[..., :length]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


_COMPOSITES: dict[str, Any] = {
    "batch_norm": _batch_norm,
    "dropout": _dropout,
    "softmax.int": _softmax_with_dtype(aten._softmax),
    "log_softmax.int": _softmax_with_dtype(aten._log_softmax),
    "max_pool1d": _max_pool1d,
    "group_norm": _group_norm,
    "rms_norm": _rms_norm,
    "linear": _linear,
    "scaled_dot_product_attention": _scaled_dot_product_attention,
    **cudnn_rnn.COMPOSITES,
}


class CudaSemantics(TorchDispatchMode):  # type: ignore[misc]
    """CUDA's semantics over CPU tensors while the block lasts. Enter it after the tracker.

    Changes the process-wide operator tables for CPU autocast and a few composite operators, and puts them back on
    exit; do not nest it.
    """

    def __init__(self, tracker: StorageTracker) -> None:
        super().__init__()
        self._tracker = tracker
        self._library: Any = None

    def __enter__(self) -> CudaSemantics:
        library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of every override; they are the point here
            for name, kernel in autocast_kernels().items():
                library.impl(name, kernel, "AutocastCPU", allow_override=True)
            for name, kernel in _COMPOSITES.items():
                library.impl(name, kernel, "CompositeImplicitAutograd", allow_override=True)
        self._library = library
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        library, self._library = self._library, None
        library._destroy()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if wraps(types):
            return NotImplemented
        kernel = KERNELS.get(func)
        if kernel is None:
            return func(*args, **(kwargs or {}))
        return kernel(self._tracker, func, *args, **(kwargs or {}))
