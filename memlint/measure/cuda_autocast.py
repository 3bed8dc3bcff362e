"""What CUDA's autocast does with each operator, where the CPU's does something else.

Source: ``aten/src/ATen/autocast_mode.h`` of the PyTorch tree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from memlint.measure import cudnn_rnn

aten = torch.ops.aten

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
LOW_PRECISION = (torch.float16, torch.bfloat16)


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


def autocast_kernels() -> dict[str, Any]:
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
