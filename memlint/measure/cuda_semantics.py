"""CUDA's way of doing things, laid over CPU tensors, so that a trace without a GPU shows what a GPU would hold.

PyTorch's fake *cuda* tensors need a working device; fake *cpu* tensors do not, but take the CPU's branches. This module
puts CUDA's in their place: its autocast lists, its choice of attention kernel, and the tensors that its kernels
return, copy and need for a moment. ``CudaSemantics`` sits above the tracker, so whatever a CUDA kernel allocates is
written here as the ATen calls that allocate it, and is booked like everything else::

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
from torch.utils._pytree import tree_map

from memlint.measure import cudnn_rnn
from memlint.measure.tracker import StorageTracker, wraps

aten = torch.ops.aten

# -- autocast --------------------------------------------------------------------------------------------------------

# autocast_mode.h, AT_FORALL_LOWER_PRECISION_FP: what CPU autocast lacks of it. The others (linear, conv, matmul, ...)
# agree and keep torch's own kernels, so that the cache of weight casts is the real one.
_LOWER_PRECISION_ONLY_ON_CUDA = (
    *("addmv", "addr", "mv", "einsum", "chain_matmul", "linalg_multi_dot"),
    *("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"),
)

# fmt: off  (lists of names, as many to a line as fit)
# autocast_mode.h, AT_FORALL_FP32
_FP32 = (
    "acos",
    "asin",
    "cosh",
    "erfinv",
    "exp",
    "expm1",
    "log",
    "log10",
    "log2",
    "log1p",
    "reciprocal",
    "rsqrt",
    "sinh",
    "tan",
    "pow.Tensor_Scalar",
    "pow.Tensor_Tensor",
    "pow.Scalar",
    "softplus",
    "layer_norm",
    "native_layer_norm",
    "rms_norm",
    "group_norm",
    "frobenius_norm.dim",
    "nuclear_norm",
    "nuclear_norm.dim",
    "cosine_similarity",
    "poisson_nll_loss",
    "cosine_embedding_loss",
    "nll_loss",
    "nll_loss2d",
    "hinge_embedding_loss",
    "kl_div",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "mse_loss",
    "margin_ranking_loss",
    "multilabel_margin_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
    "multi_margin_loss",
    "binary_cross_entropy_with_logits",
    "dist",
    "pdist",
    "cdist",
    "renorm",
    "logsumexp",
    "upsample_nearest1d",
    "_upsample_nearest_exact1d",
    "upsample_nearest2d",
    "_upsample_nearest_exact2d",
    "upsample_nearest3d",
    "_upsample_nearest_exact3d",
    "upsample_linear1d",
    "upsample_bilinear2d",
    "_upsample_bilinear2d_aa",
    "upsample_trilinear3d",
    "upsample_bicubic2d",
    "_upsample_bicubic2d_aa",
)

# autocast_mode.h, AT_FORALL_FP32_SET_OPT_DTYPE: no cast of the input, an fp32 ``dtype=`` instead
_FP32_BY_DTYPE = (
    "prod",
    "prod.dim_int",
    "softmax.int",
    "log_softmax.int",
    "cumprod",
    "cumsum",
    "linalg_vector_norm",
    "linalg_matrix_norm",
    "linalg_matrix_norm.str_ord",
    "sum",
    "sum.dim_IntList",
)

# autocast_mode.h, AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE: overload -> the overload with a dtype at its end
_FP32_BY_OVERLOAD = {
    "norm.Scalar": "norm.ScalarOpt_dtype",
    "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype",
}

# autocast_mode.h, AT_FORALL_PROMOTE: to the widest of the arguments
_PROMOTE = (
    "addcdiv",
    "addcmul",
    "atan2",
    "bilinear",
    "cross",
    "dot",
    "vdot",
    "grid_sampler",
    "index_put",
    "tensordot",
    "scatter_add",
)

# In CPU autocast's lists and in none of CUDA's: they run in the dtype they are given. (CUDA refuses
# binary_cross_entropy under autocast; here it runs.)
_NOT_ON_CUDA = (
    "adaptive_avg_pool3d",
    "adaptive_max_pool3d",
    "avg_pool3d",
    "binary_cross_entropy",
    "cat",
    "cholesky",
    "cholesky_inverse",
    "cholesky_solve",
    "cross_entropy_loss",
    "ctc_loss.IntList",
    "ctc_loss.Tensor",
    "fake_quantize_per_tensor_affine",
    "fft_fft",
    "fft_fft2",
    "fft_fftn",
    "fft_hfft",
    "fft_ifft",
    "fft_ifft2",
    "fft_ifftn",
    "fft_ihfft",
    "fft_irfft",
    "fft_irfft2",
    "fft_irfftn",
    "fft_rfft",
    "fft_rfft2",
    "fft_rfftn",
    "fractional_max_pool2d",
    "fractional_max_pool3d",
    "geqrf",
    "_grid_sampler_2d_cpu_fallback",
    "grid_sampler_2d",
    "grid_sampler_3d",
    "index_copy",
    "inverse",
    "linalg_cholesky",
    "linalg_cholesky_ex",
    "linalg_cond",
    "linalg_cond.p_str",
    "linalg_eig",
    "linalg_eigh",
    "linalg_eigvals",
    "linalg_eigvalsh",
    "linalg_householder_product",
    "linalg_inv",
    "linalg_inv_ex",
    "linalg_lstsq",
    "linalg_matrix_rank",
    "linalg_matrix_rank.atol_rtol_float",
    "linalg_matrix_rank.atol_rtol_tensor",
    "linalg_matrix_rank.tol_tensor",
    "linalg_qr",
    "linalg_solve",
    "linalg_svd",
    "linalg_svdvals",
    "linalg_tensorinv",
    "linalg_tensorsolve",
    "_lu_with_info",
    "lu_solve",
    "max_pool3d",
    "max_unpool2d",
    "max_unpool3d",
    "multilabel_margin_loss_forward",
    "nanquantile",
    "nanquantile.scalar",
    "orgqr",
    "ormqr",
    "pinverse",
    "polar",
    "qr",
    "quantile",
    "quantile.scalar",
    "reflection_pad1d",
    "reflection_pad2d",
    "replication_pad1d",
    "replication_pad2d",
    "replication_pad3d",
    "stack",
    "stft",
    "stft.center",
    "svd",
    "trace",
    "triangular_solve",
    "view_as_complex",
)
# fmt: on

_AUTOCAST_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
_LOW_PRECISION = (torch.float16, torch.bfloat16)


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet), overload or "default")


def _eligible(value: Any) -> bool:
    """cached_cast's is_eligible: a floating-point tensor of the device, double excepted."""
    return isinstance(value, Tensor) and value.is_floating_point() and value.dtype is not torch.float64


def _cast(tree: Any, dtype: torch.dtype) -> Any:
    """Casts from the last argument to the first, as a C++ call evaluates its arguments where torch is built (GCC)."""

    def one(value: Any) -> Any:
        return value.to(dtype) if _eligible(value) and value.dtype is not dtype else value

    if isinstance(tree, tuple):
        return tuple(reversed([tree_map(one, value) for value in reversed(tree)]))
    return tree_map(one, tree)


def _without_autocast(op: Any, args: Any, kwargs: Any) -> Any:
    with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_CPU):
        return op(*args, **kwargs)


def _casting(name: str, dtype: Callable[[], torch.dtype]) -> Callable[..., Any]:
    op = _overload(name)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_CPU):
            return op(*_cast(args, dtype()), **_cast(kwargs, dtype()))

    return kernel


def _setting_dtype(name: str) -> Callable[..., Any]:
    op = _overload(name)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if _eligible(args[0]) and kwargs.get("dtype") is None:
            position = next(i for i, argument in enumerate(op._schema.arguments) if argument.name == "dtype")
            if len(args) > position:
                if args[position] is None:
                    args = (*args[:position], torch.float32, *args[position + 1 :])
            else:
                kwargs = {**kwargs, "dtype": torch.float32}
        return _without_autocast(op, args, kwargs)

    return kernel


def _appending_dtype(name: str, with_dtype: str) -> Callable[..., Any]:
    op, other = _overload(name), _overload(with_dtype)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if not _eligible(args[0]):
            return _without_autocast(op, args, kwargs)
        values = list(args)
        for argument in op._schema.arguments[len(args) :]:
            values.append(kwargs.get(argument.name, argument.default_value))
        return _without_autocast(other, values, {"dtype": torch.float32})

    return kernel


def _promoting(name: str) -> Callable[..., Any]:
    op = _overload(name)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        widest = torch.get_autocast_dtype("cpu")

        def look(value: Any) -> Any:
            nonlocal widest
            if _eligible(value) and value.dtype is torch.float32:
                widest = torch.float32
            return value

        tree_map(look, (args, kwargs))
        return _without_autocast(op, _cast(args, widest), _cast(kwargs, widest))

    return kernel


def _autocast_kernels() -> dict[str, Any]:
    """Operator -> its kernel under autocast, for every operator where CUDA's policy is not the CPU's."""
    kernels: dict[str, Any] = dict.fromkeys(_NOT_ON_CUDA, torch.library.fallthrough_kernel)
    for name in _LOWER_PRECISION_ONLY_ON_CUDA:
        kernels[name] = _casting(name, lambda: torch.get_autocast_dtype("cpu"))
    for name in _FP32:
        kernels[name] = _casting(name, lambda: torch.float32)
    for name in _FP32_BY_DTYPE:
        kernels[name] = _setting_dtype(name)
    for name, with_dtype in _FP32_BY_OVERLOAD.items():
        kernels[name] = _appending_dtype(name, with_dtype)
    for name in _PROMOTE:
        kernels[name] = _promoting(name)
    kernels["_cudnn_rnn"] = cudnn_rnn.autocast
    return kernels


# -- composite operators that branch on the device -------------------------------------------------------------------


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
            (*input.shape[:rows], *(1 for _ in input.shape[rows:])), dtype=_accumulate_dtype(input.dtype)
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
    if (weight is None or weight.dtype is input.dtype) and not _channels_last(input):
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
    low_precision = query.dtype in _LOW_PRECISION
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
    if dtype in _LOW_PRECISION and not torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed():
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


# -- kernels: what an operator returns, copies and needs for a moment on a card ---------------------------------------
#
# Each takes the tracker, the operator and its arguments. Tensors that it drops before it returns are the kernel's
# temporaries: they are booked, so they count towards the peak, and are gone afterwards.


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _accumulate_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in _LOW_PRECISION else dtype


def _flash_backward(
    _: StorageTracker, func: Any, grad_out: Tensor, query: Tensor, key: Tensor, *args: Any, **kw: Any
) -> Any:
    """flash_attn/flash_api.cpp, mha_bwd: fp32 accumulators, and expanded gradients for grouped queries."""
    batch, heads, length, head_dim = query.shape
    out = args[1]
    copies = grad_out.transpose(1, 2).contiguous(), out.transpose(1, 2).contiguous()
    grads = func(grad_out, query, key, *args, **kw)
    length_rounded = _round_up(length, 128)
    head_dim_rounded = _round_up(head_dim, 32 if head_dim <= 128 else 64)
    softmax_d = torch.empty(batch, heads, length_rounded, dtype=torch.float32)
    expanded: tuple[Tensor, ...] = ()
    if key.shape[1] != heads:
        shape = (batch, key.shape[2], heads, head_dim)
        expanded = torch.empty(shape, dtype=query.dtype), torch.empty(shape, dtype=query.dtype)
    dq_accum = torch.empty(batch, length_rounded, heads, head_dim_rounded, dtype=torch.float32)
    del copies, softmax_d, expanded, dq_accum
    return grads


def _efficient_forward(
    tracker: StorageTracker,
    func: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """attention.cu, _efficient_attention_forward: the seeds are on the host; a wide head accumulates in fp32."""
    with tracker.paused():
        result = func(query, key, value, *args, **kwargs)
    tracker.book(result[0])
    tracker.book(result[1])
    tracker.forget(result[2])
    tracker.forget(result[3])
    if query.dtype in _LOW_PRECISION and value.shape[-1] > 128:
        accumulator = torch.empty(result[0].shape, dtype=torch.float32)
        del accumulator
    return result


def efficient_backward_workspace_bytes(
    batch: int, heads: int, queries: int, keys: int, head_dim: int, value_dim: int, low_precision: bool
) -> int:
    """Workspace of the memory-efficient attention's backward kernel, in bytes.

    mem_eff_attention/kernel_backward.h (``workspace_size``), for the kernel that kernels/cutlassB.h lists first for
    these sizes on an Ampere or newer data-centre card.
    """
    widest = max(head_dim, value_dim)
    # block of queries, block of keys, largest head dimension, as listed in dispatch_cutlassB_*_sm80
    if widest <= 64:
        block_q, block_k, max_dim = 64, 64, 32 if widest <= 32 else 64
    elif widest <= 128:
        block_q, block_k, max_dim = (128, 128, 128) if low_precision else (128, 64, 128)
    else:
        block_q, block_k, max_dim = 128, 64, 65536
    # Gradients of keys and values are kept in registers, or written directly where they are fp32 anyway.
    stage_kv = low_precision and max_dim > block_q
    splits = -(-keys // block_k)
    if batch * heads >= 256 and keys <= 2 * block_k:
        splits = 1
    if stage_kv:
        splits = min(splits, 200 // (batch * heads))
    splits = max(splits, 1)
    stage_floats = 0
    if stage_kv:
        stage_floats = splits * block_k * (_round_up(head_dim, block_q) + _round_up(value_dim, block_q))
    # One tile of gradients of queries, and 16 bytes of lock and counter.
    tile_floats = block_q * block_k + 4
    tiles = -(-queries // block_q) * -(-head_dim // block_k)
    return batch * heads * _round_up(stage_floats + tiles * tile_floats, 4) * 4


def _efficient_backward(
    _: StorageTracker,
    func: Any,
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    philox_seed: Tensor,
    philox_offset: Tensor,
    dropout_p: float,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """attention_backward.cu, _efficient_attention_backward."""
    batch, heads, queries, head_dim = query.shape
    low_precision = query.dtype in _LOW_PRECISION
    contiguous_grad = grad_out.transpose(1, 2).contiguous()
    grads = func(
        grad_out, query, key, value, attn_bias, out, logsumexp, philox_seed, philox_offset, dropout_p, *args, **kwargs
    )
    if low_precision:
        delta = torch.empty(batch, heads, queries, dtype=torch.float32)
    else:
        product = contiguous_grad * out.transpose(1, 2)
        summed = product.sum(-1)
        delta = summed.transpose(-2, -1).contiguous()
        del product, summed
    workspace = torch.empty(
        efficient_backward_workspace_bytes(
            batch, heads, queries, key.shape[2], head_dim, value.shape[3], low_precision
        ),
        dtype=torch.uint8,
    )
    del contiguous_grad, delta, workspace
    return grads


def _layer_norm(
    _: StorageTracker, func: Any, input: Tensor, normalized_shape: Sequence[int], *args: Any, **kwargs: Any
) -> Any:
    """native/cuda/layer_norm_kernel.cu: a contiguous result, and statistics in the accumulation type."""
    contiguous = input.contiguous()
    rows = input.dim() - len(normalized_shape)
    shape = (*input.shape[:rows], *(1 for _ in normalized_shape))
    out = torch.empty_like(contiguous)
    statistics = _accumulate_dtype(input.dtype)
    return out, torch.empty(shape, dtype=statistics), torch.empty(shape, dtype=statistics)


def _layer_norm_backward(
    _: StorageTracker,
    func: Any,
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    output_mask: Sequence[bool],
) -> Any:
    """native/cuda/layer_norm_kernel.cu, layer_norm_backward_cuda."""
    grad_out, input = grad_out.contiguous(), input.contiguous()
    return (
        torch.empty_like(input) if output_mask[0] else None,
        torch.empty_like(weight) if output_mask[1] and weight is not None else None,
        torch.empty_like(bias) if output_mask[2] and bias is not None else None,
    )


def _group_norm_forward(
    _: StorageTracker,
    func: Any,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    n: int,
    c: int,
    hxw: int,
    groups: int,
    eps: float,
) -> Any:
    """native/group_norm.cpp and native/cuda/group_norm_kernel.cu: statistics in the parameters' type, and the two
    fused coefficients per channel."""
    parameters = weight if weight is not None else bias
    statistics = input.dtype if parameters is None else parameters.dtype
    out = torch.empty_like(input)
    mean, rstd = torch.empty(n, groups, dtype=statistics), torch.empty(n, groups, dtype=statistics)
    if parameters is not None and hxw > 1:
        accumulate = _accumulate_dtype(input.dtype)
        scale, shift = torch.empty(n, c, dtype=accumulate), torch.empty(n, c, dtype=accumulate)
        del scale, shift
    return out, mean, rstd


def _contiguous_first(*positions: int) -> Callable[..., Any]:
    """A kernel that makes some operands contiguous before it starts."""

    def kernel(_: StorageTracker, func: Any, *args: Any, **kwargs: Any) -> Any:
        values = list(args)
        for position in positions:
            if position < len(values) and values[position] is not None:
                values[position] = values[position].contiguous()
        return func(*values, **kwargs)

    return kernel


def _channels_last(tensor: Tensor) -> bool:
    return torch._prims_common.suggest_memory_format(tensor) in (torch.channels_last, torch.channels_last_3d)


def _convolution_format(input: Tensor, weight: Tensor) -> torch.memory_format:
    """native/ConvUtils.h, cudnn_conv_suggest_memory_format."""
    if input.dim() >= 4 and (_channels_last(input) or _channels_last(weight)):
        return torch.channels_last if input.dim() == 4 else torch.channels_last_3d
    return torch.contiguous_format


def _with_format(tensor: Tensor | None, format: torch.memory_format) -> Tensor | None:
    if tensor is None or tensor.is_contiguous(memory_format=format):
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, memory_format=format)


def _convolution(tracker: StorageTracker, func: Any, input: Tensor, weight: Tensor, bias: Any, *args: Any) -> Any:
    """native/Convolution.cpp: cuDNN's operands and result have one memory format."""
    format = _convolution_format(input, weight)
    copies = input.contiguous(memory_format=format), weight.contiguous(memory_format=format)
    with tracker.paused():
        out = _with_format(func(input, weight, bias, *args), format)
    assert out is not None
    tracker.book(out)
    del copies
    return out


def _convolution_backward(
    tracker: StorageTracker, func: Any, grad_out: Tensor, input: Tensor, weight: Tensor, bias_sizes: Any, *args: Any
) -> Any:
    format = _convolution_format(input, weight)
    copies = tuple(x.contiguous(memory_format=format) for x in (grad_out, input, weight))
    with tracker.paused():
        grads = [
            _with_format(g, format if g is not None and g.dim() > 1 else torch.contiguous_format)
            for g in func(grad_out, input, weight, bias_sizes, *args)
        ]
    for grad in grads:
        if grad is not None:
            tracker.book(grad)
    del copies
    return tuple(grads)


def _matrix_for_cublas(tensor: Tensor) -> Tensor:
    """native/cuda/Blas.cpp, prepare_(batch_)matrix_for_cublas: one of the two matrix strides must be 1, and the other
    at least the extent."""
    rows, columns = tensor.shape[-2:]
    row_stride, column_stride = tensor.stride()[-2:]
    if row_stride == 1 and column_stride >= max(1, rows):
        return tensor
    if column_stride == 1 and row_stride >= max(1, columns):
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def _matrix_product(*positions: int) -> Callable[..., Any]:
    def kernel(_: StorageTracker, func: Any, *args: Any, **kwargs: Any) -> Any:
        copies = [_matrix_for_cublas(args[position]) for position in positions]
        result = func(*args, **kwargs)
        del copies
        return result

    return kernel


def _grouped_mm(
    _: StorageTracker,
    func: Any,
    first: Tensor,
    second: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Any:
    """native/cuda/GroupedBlas.cpp: rows of the result are padded to 16 bytes. What is not bf16 is multiplied group by
    group into that result, and only the shapes of fake tensors refuse it. How many rows a group has does not matter."""
    if first.dtype is torch.bfloat16:
        return func(first, second, offs, bias, out_dtype)
    shape = [*first.shape[:-1], second.shape[-1]]
    if first.dim() == second.dim() == 2 and offs is not None:
        shape = [offs.shape[0], *shape]
    elif first.dim() == 3 and second.dim() == 2:
        shape = [first.shape[1], second.shape[-1]]
    dtype = out_dtype or first.dtype
    padded = _round_up(shape[-1], 16 // dtype.itemsize)
    strides = [padded, 1] if len(shape) == 2 else [shape[1] * padded, padded, 1]
    return torch.empty_strided(shape, strides, dtype=dtype)


def _roll(_: StorageTracker, func: Any, input: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    """native/cuda/TensorTransformations.cu: one dimension after the other, each from a packed tensor into a new one."""
    if not dims:
        return _roll(_, func, input.contiguous().view(-1), shifts, (0,)).view(input.shape)
    for _dim in dims:
        packed = input.contiguous()
        input = torch.empty_like(packed, memory_format=torch.contiguous_format)
        del packed
    return input


def _topk(_: StorageTracker, func: Any, input: Tensor, k: int, *args: Any, **kwargs: Any) -> Any:
    """native/cuda/TensorTopK.cpp: the k found are sorted in place where they are few."""
    contiguous = input.contiguous()
    result = func(input, k, *args, **kwargs)
    del contiguous
    return result


def _foreach_norm(_: StorageTracker, func: Any, tensors: Sequence[Tensor], *args: Any, **kwargs: Any) -> Any:
    """native/cuda/ForeachReduceOp.cu: one partial result per chunk of 65,536 elements."""
    chunks = max(-(-tensor.numel() // 65536) for tensor in tensors)
    partial = torch.empty(len(tensors) * chunks, dtype=_accumulate_dtype(tensors[0].dtype))
    result = func(tensors, *args, **kwargs)
    del partial
    return result


def _safe_softmax(_: StorageTracker, func: Any, input: Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
    """native/transformers/attention.cpp: rows that are masked altogether become zero."""
    out = torch.softmax(input, dim, dtype)
    infinity = torch.scalar_tensor(float("-inf"), dtype=out.dtype)
    masked = input.eq(infinity)
    rows = masked.all(dim, keepdim=True)
    zero = torch.scalar_tensor(0.0, dtype=out.dtype)
    return torch.where(rows, zero, out)


def _native_batch_norm(
    _: StorageTracker, func: Any, input: Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *args: Any
) -> Any:
    """native/cuda/Normalization.cu: statistics in the accumulation type, none in evaluation."""
    channels = input.shape[1] if training else 0
    statistics = _accumulate_dtype(input.dtype)
    out = torch.empty_like(input)
    return out, torch.empty(channels, dtype=statistics), torch.empty(channels, dtype=statistics)


def _batch_norm_backward(
    _: StorageTracker,
    func: Any,
    grad_out: Tensor,
    input: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_invstd: Tensor | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> Any:
    """native/cudnn/BatchNorm.cpp makes all three gradients; native/cuda/Normalization.cuh those that are wanted.
    native/Normalization.cpp, _batch_norm_impl_index, says which runs."""
    cudnn = train and input.dim() >= 3 and input.dtype is not torch.bfloat16 and weight is not None
    wanted = (True, True, True) if cudnn else output_mask
    if cudnn:
        grad_out = grad_out.contiguous(memory_format=torch._prims_common.suggest_memory_format(input))
    return (
        torch.empty_like(input) if wanted[0] else None,
        torch.empty_like(weight) if wanted[1] and weight is not None else None,
        torch.empty_like(weight) if wanted[2] and weight is not None else None,
    )


def _mse_loss(_: StorageTracker, func: Any, input: Tensor, target: Tensor, reduction: int = 1) -> Any:
    """native/Loss.cpp: a reduced loss is made elementwise first."""
    elementwise = aten.mse_loss(input, target, 0)
    return elementwise if reduction == 0 else func(input, target, reduction)


# FunctionsManual.cpp scatters gradients into fresh zeros in place, but out of place for tensor subclasses, as which
# everything counts while a dispatch mode is active.
_SCATTERING_NODES = {
    f"{name}Backward0"
    for name in ("Max", "Min", "Topk", "Sort", "Kthvalue", "Median", "Mode", "IndexSelect", "Gather", "Index")
}


def _in_backward_of(nodes: set[str]) -> bool:
    if torch._C._current_graph_task_id() == -1 or torch.is_grad_enabled():
        return False
    node = torch._C._current_autograd_node()
    return node is not None and node.name() in nodes


def _scattering(in_place: Any) -> Callable[..., Any]:
    def kernel(_: StorageTracker, func: Any, *args: Any, **kwargs: Any) -> Any:
        return (in_place if _in_backward_of(_SCATTERING_NODES) else func)(*args, **kwargs)

    return kernel


# What C++ and Python report of a tensor that only the engine's input buffer holds, seen from a dispatch mode: the
# buffer, the Python object, and the arguments on their way here; its storage: the tensor and its Python object.
_SOLE_TENSOR_COUNT = 4
_SOLE_STORAGE_COUNT = 2


def _add(_: StorageTracker, func: Any, first: Any, second: Any, **kwargs: Any) -> Any:
    """torch/csrc/autograd/input_buffer.cpp: a second gradient is added into the first one where nothing else holds it;
    to fake tensors it is added out of place."""
    if (
        torch._C._current_graph_task_id() != -1
        and not torch.is_grad_enabled()
        and not kwargs
        and isinstance(second, Tensor)
        and not isinstance(torch._C._current_autograd_node(), torch._C._FunctionBase)  # no user's code
        and first.shape == second.shape
        and first._use_count() == _SOLE_TENSOR_COUNT
        and torch._C._storage_Use_Count(first.untyped_storage()._cdata) == _SOLE_STORAGE_COUNT
        and torch._prims_common.is_non_overlapping_and_dense_or_false(first)
    ):
        return first.add_(second)
    return func(first, second, **kwargs)


_KERNELS: dict[Any, Callable[..., Any]] = {
    aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
    aten._scaled_dot_product_efficient_attention.default: _efficient_forward,
    aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
    aten.native_layer_norm.default: _layer_norm,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    aten.native_group_norm.default: _group_norm_forward,
    aten._softmax.default: _contiguous_first(0),
    aten._log_softmax.default: _contiguous_first(0),
    aten._softmax_backward_data.default: _contiguous_first(0, 1),
    aten._log_softmax_backward_data.default: _contiguous_first(0, 1),
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    aten.mm.default: _matrix_product(0, 1),
    aten.bmm.default: _matrix_product(0, 1),
    aten.addmm.default: _matrix_product(1, 2),
    aten.baddbmm.default: _matrix_product(1, 2),
    aten.topk.default: _topk,
    aten.roll.default: _roll,
    aten._grouped_mm.default: _grouped_mm,
    aten._safe_softmax.default: _safe_softmax,
    aten.native_batch_norm.default: _native_batch_norm,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten.mse_loss.default: _mse_loss,
    aten.scatter.src: _scattering(aten.scatter_.src),
    aten.scatter_add.default: _scattering(aten.scatter_add_.default),
    aten.index_add.default: _scattering(aten.index_add_.default),
    aten.index_put.default: _scattering(aten.index_put_.default),
    aten.add.Tensor: _add,
    aten._foreach_norm.Scalar: _foreach_norm,
    **cudnn_rnn.KERNELS,
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
            for name, kernel in _autocast_kernels().items():
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
        kernel = _KERNELS.get(func)
        if kernel is None:
            return func(*args, **(kwargs or {}))
        return kernel(self._tracker, func, *args, **(kwargs or {}))
