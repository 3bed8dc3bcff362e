"""What an operator returns, copies and needs for a moment on a card.

Each kernel takes the tracker, the operator and its arguments. Tensors that it drops before it returns are the kernel's
temporaries: they are booked, so they count towards the peak, and are gone afterwards. Sources are named by file of the
PyTorch tree, ``aten/src/ATen/`` unless it says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from memlint.measure import cudnn_rnn
from memlint.measure.cuda_autocast import LOW_PRECISION
from memlint.measure.tracker import StorageTracker

aten = torch.ops.aten


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def accumulate_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in LOW_PRECISION else dtype


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
    if query.dtype in LOW_PRECISION and value.shape[-1] > 128:
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
    low_precision = query.dtype in LOW_PRECISION
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
    statistics = accumulate_dtype(input.dtype)
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
        accumulate = accumulate_dtype(input.dtype)
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


def channels_last(tensor: Tensor) -> bool:
    return torch._prims_common.suggest_memory_format(tensor) in (torch.channels_last, torch.channels_last_3d)


def convolution_format(input: Tensor, weight: Tensor) -> torch.memory_format:
    """native/ConvUtils.h, cudnn_conv_suggest_memory_format."""
    if input.dim() >= 4 and (channels_last(input) or channels_last(weight)):
        return torch.channels_last if input.dim() == 4 else torch.channels_last_3d
    return torch.contiguous_format


def _with_format(tensor: Tensor | None, format: torch.memory_format) -> Tensor | None:
    if tensor is None or tensor.is_contiguous(memory_format=format):
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, memory_format=format)


def _convolution(tracker: StorageTracker, func: Any, input: Tensor, weight: Tensor, bias: Any, *args: Any) -> Any:
    """native/Convolution.cpp: cuDNN's operands and result have one memory format."""
    format = convolution_format(input, weight)
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
    format = convolution_format(input, weight)
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
    partial = torch.empty(len(tensors) * chunks, dtype=accumulate_dtype(tensors[0].dtype))
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
    statistics = accumulate_dtype(input.dtype)
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


KERNELS: dict[Any, Callable[..., Any]] = {
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
