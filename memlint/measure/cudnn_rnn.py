"""cuDNN's recurrent layers, laid over CPU tensors: what ``nn.LSTM``, ``nn.GRU`` and ``nn.RNN`` allocate on a card.

On a card a whole stack of layers is one operator (``aten::_cudnn_rnn``), which keeps what backward needs in one buffer,
its *reserve*; on the CPU it is taken apart into many small ones. Sources are ``aten/src/ATen/native/cudnn/RNN.cpp`` and
``aten/src/ATen/cudnn/AutocastRNN.cpp`` of the PyTorch tree, but for the size of the reserve: only cuDNN knows it
(``cudnnGetRNNTempSpaceSizes``), and its documentation gives no formula. :func:`reserve_bytes` says what is in it.

The weights of a layer are one flat buffer (``flatten_parameters``), of the same bytes as its parameters. Not modelled:
cuDNN's workspace, packed sequences (their lengths have no value in a trace), and what dropout between layers keeps
(its generator's state, a little over 2 MiB, and its masks).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from memlint.measure.tracker import StorageTracker

aten = torch.ops.aten

# cudnnRNNMode_t
RELU, TANH, LSTM, GRU = range(4)
GATES = {RELU: 1, TANH: 1, LSTM: 4, GRU: 3}

# What the reserve holds per layer, direction, time step, sequence and unit: for an LSTM its four gates and its cell,
# for a GRU six values. With the output of every layer but the last, which is a result of its own, these are the sizes
# that cuDNN gave in https://github.com/pytorch/pytorch/issues/2895 (2017, Tesla P100), to the byte: 736,000,000 (LSTM)
# and 864,000,000 (GRU) for 4 layers of 320 units in fp32. The parameter counts there fix layers, units and inputs; the
# 1,000 steps of 25 sequences are those of the reporter's benchmark (github.com/stefbraun/rnn_benchmarks, toy_batch).
# A plain RNN is in no source: its activations alone.
RESERVED = {RELU: 1, TANH: 1, LSTM: 5, GRU: 6}

ASSUMPTION = (
    "cuDNN's reserve",
    "gates, cells and inner outputs",
    "the size that pytorch/pytorch#2895 reports; cuDNN may take more, and more with dropout between layers",
)


def reserve_bytes(
    mode: int, tokens: int, hidden_size: int, output_size: int, layers: int, directions: int, itemsize: int
) -> int:
    """Bytes of the reserve. tokens: time steps x sequences; output_size: units of a layer's output, by direction."""
    per_layer = RESERVED[mode] * hidden_size
    values: int = directions * (layers * per_layer + (layers - 1) * output_size)
    return tokens * values * itemsize


def flat_elements(weight: Sequence[Tensor], mode: int, hidden_size: int, per_layer: int) -> int:
    """Elements of the flat buffer: the parameters, and two biases per gate even where a layer has none."""
    biases = 0 if per_layer in (4, 5) else 2 * GATES[mode] * hidden_size * (len(weight) // per_layer)
    elements: int = sum(tensor.numel() for tensor in weight)
    return elements + biases


# -- the composite operators, as CUDA takes them (native/RNN.cpp, ONE_HIDDEN_RNN; _cudnn_impl)


def _run(
    mode: int,
    input: Tensor,
    hidden: Sequence[Tensor],
    params: Sequence[Tensor],
    options: Sequence[Any],
) -> Any:
    """options: has_biases, layers, dropout, train, bidirectional, batch_first."""
    has_biases, layers, dropout, train, bidirectional, batch_first = options
    hx, cx = hidden[0], hidden[1] if mode == LSTM else None
    hidden_size, proj_size = hx.shape[2], 0
    if cx is not None and cx.shape[2] != hx.shape[2]:
        hidden_size, proj_size = cx.shape[2], hx.shape[2]
    per_layer = (4 if has_biases else 2) + bool(proj_size)
    # Parameters lie in their flat buffer; what was computed from them has to be copied into one at each call.
    flat = params[0].new_empty(0) if all(weight.is_leaf for weight in params) else None
    return aten._cudnn_rnn(
        input,
        params,
        per_layer,
        flat,
        hx,
        cx,
        mode,
        hidden_size,
        proj_size,
        layers,
        batch_first,
        dropout,
        train,
        bidirectional,
        (),
        None,
    )


def _lstm(input: Tensor, hx: Sequence[Tensor], params: Sequence[Tensor], *options: Any) -> Any:
    return _run(LSTM, input, hx, params, options)[:3]


def _layer(mode: int) -> Callable[..., Any]:
    def kernel(input: Tensor, hx: Tensor, params: Sequence[Tensor], *options: Any) -> Any:
        return _run(mode, input, (hx,), params, options)[:2]

    return kernel


def _lstm_cell(
    input: Tensor, hx: Sequence[Tensor], w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Any = None
) -> Any:
    """native/RNN.cpp, LSTMCell: on a card the gates meet in one kernel (native/cuda/RNN.cu)."""
    gates = torch.matmul(input, w_ih.t()), torch.matmul(hx[0], w_hh.t())
    return aten._thnn_fused_lstm_cell(*gates, hx[1], b_ih, b_hh)[:2]


def _gru_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Any:
    gates = torch.matmul(input, w_ih.t()), torch.matmul(hx, w_hh.t())
    return aten._thnn_fused_gru_cell(*gates, hx, b_ih, b_hh)[0]


COMPOSITES: dict[str, Any] = {
    "lstm_cell": _lstm_cell,
    "gru_cell": _gru_cell,
    "lstm.input": _lstm,
    "gru.input": _layer(GRU),
    "rnn_tanh.input": _layer(TANH),
    "rnn_relu.input": _layer(RELU),
}


# -- autocast


def _eligible(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.dtype in (torch.float32, torch.bfloat16)


def autocast(
    input: Tensor,
    weight: Sequence[Tensor],
    per_layer: int,
    weight_buf: Tensor | None,
    hx: Tensor,
    cx: Tensor | None,
    mode: int,
    hidden_size: int,
    *options: Any,
) -> Any:
    """AutocastRNN.cpp: fp16, whichever type autocast has; the weights are copied into one flat buffer at each call,
    past the cache of casts. Autograd sees each copy."""
    half = torch.float16
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)):
        if _eligible(weight[0]):
            flat = torch.empty(flat_elements(weight, mode, hidden_size, per_layer), dtype=half)
            pieces, offset = [], 0
            for tensor in weight:
                # Its place in the buffer, to autograd a tensor of its own.
                piece = flat.narrow(0, offset, tensor.numel()).view(tensor.shape).data
                pieces.append(piece.copy_(tensor))
                offset += tensor.numel()
            weight, weight_buf = pieces, flat
        casts = [tensor.to(half) if tensor is not None and _eligible(tensor) else tensor for tensor in (input, hx, cx)]
        return aten._cudnn_rnn(casts[0], weight, per_layer, weight_buf, casts[1], casts[2], mode, hidden_size, *options)


# -- the operator


def _time_major(tensor: Tensor, batch_first: bool) -> Tensor:
    return (tensor.transpose(0, 1) if batch_first else tensor).contiguous()


def _like_time_major(sizes: Sequence[int], like: Tensor, batch_first: bool) -> Tensor:
    """A buffer of time x batch x units, seen as the caller has it."""
    if batch_first:
        batch, _, units = sizes
        return torch.empty_strided(sizes, (units, batch * units, 1), dtype=like.dtype)
    return torch.empty(sizes, dtype=like.dtype)


def _forward(
    tracker: StorageTracker,
    func: Any,
    input: Tensor,
    weight: Sequence[Tensor],
    per_layer: int,
    weight_buf: Tensor | None,
    hx: Tensor,
    cx: Tensor | None,
    mode: int,
    hidden_size: int,
    proj_size: int,
    layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_sizes: Sequence[int],
    dropout_state: Tensor | None,
) -> Any:
    tracker.ran(func)
    directions = 2 if bidirectional else 1
    output_size = proj_size or hidden_size
    x = _time_major(input, batch_first)
    output = _like_time_major((*input.shape[:-1], directions * output_size), input, batch_first)
    hy = torch.empty_like(hx)
    cy = torch.empty(0, dtype=hx.dtype) if cx is None else torch.empty_like(cx)
    label = tracker.label_of(weight[0])
    if weight_buf is None or (label is not None and label.component == "communication"):  # gathered one by one
        weight_buf = torch.zeros(flat_elements(weight, mode, hidden_size, per_layer), dtype=input.dtype)
    elif weight_buf.numel() == 0:
        weight_buf = torch.empty(0, dtype=input.dtype)  # the parameters' own
    else:
        weight_buf = weight_buf.detach()
    size = 0
    if train:
        tokens = input.numel() // input.shape[-1]
        size = reserve_bytes(mode, tokens, hidden_size, output_size, layers, directions, input.element_size())
    reserve = torch.empty(size, dtype=torch.uint8)
    del x
    return output, hy, cy, reserve, weight_buf


def _backward(
    tracker: StorageTracker,
    func: Any,
    input: Tensor,
    weight: Sequence[Tensor],
    per_layer: int,
    weight_buf: Tensor,
    hx: Tensor,
    cx: Tensor | None,
    output: Tensor,
    grad_output: Tensor | None,
    grad_hy: Tensor | None,
    grad_cy: Tensor | None,
    mode: int,
    hidden_size: int,
    proj_size: int,
    layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_sizes: Sequence[int],
    dropout_state: Tensor | None,
    reserve: Tensor,
    output_mask: Sequence[bool],
) -> Any:
    """The gradient of the input is always computed, and those of the weights are views of one flat buffer."""
    if grad_output is None and grad_hy is None and grad_cy is None:
        return None, None, None, [None] * len(weight)
    grad_output = torch.zeros(output.shape, dtype=output.dtype) if grad_output is None else grad_output
    grad_hy = torch.zeros_like(hx) if grad_hy is None else grad_hy
    grad_cy = torch.zeros_like(cx) if cx is not None and grad_cy is None else grad_cy
    copies: tuple[Tensor, ...] = _time_major(input, batch_first), _time_major(grad_output, batch_first)
    dx = _like_time_major(input.shape, input, batch_first)
    dhx = torch.empty_like(hx)
    dcx = None if cx is None else torch.empty_like(cx)
    del copies
    gradients: list[Tensor | None] = [None] * len(weight)
    if output_mask[3]:
        copies = (_time_major(input, batch_first),)
        flat = torch.zeros(flat_elements(weight, mode, hidden_size, per_layer), dtype=input.dtype)
        offset = 0
        for number, tensor in enumerate(weight):
            gradients[number] = flat.narrow(0, offset, tensor.numel()).view(tensor.shape)
            offset += tensor.numel()
        del copies
    return dx, dhx, dcx, gradients


# Cells: native/cuda/RNN.cu. The workspace is what they keep, besides the states.


def _fused_lstm_cell(
    _: StorageTracker, func: Any, gates: Tensor, hidden_gates: Tensor, cx: Tensor, *biases: Any
) -> Any:
    return torch.empty_like(cx), torch.empty_like(cx), torch.empty_like(gates)


def _fused_lstm_cell_backward(
    _: StorageTracker, func: Any, grad_hy: Any, grad_cy: Any, cx: Tensor, cy: Tensor, workspace: Tensor, biased: bool
) -> Any:
    grad_gates = torch.empty_like(workspace)
    grad_cx = torch.empty_like(cx)
    return grad_gates, grad_cx, grad_gates.sum(0) if biased else None


def _fused_gru_cell(_: StorageTracker, func: Any, gates: Tensor, hidden_gates: Tensor, hx: Tensor, *biases: Any) -> Any:
    return torch.empty_like(hx), hx.new_empty(hx.shape[0], 5 * hx.shape[1])


def _fused_gru_cell_backward(_: StorageTracker, func: Any, grad_hy: Tensor, workspace: Tensor, biased: bool) -> Any:
    shape = workspace.shape[0], workspace.shape[1] // 5 * 3
    grads = workspace.new_empty(shape), workspace.new_empty(shape)
    grad_hx = torch.empty_like(grad_hy)
    return (*grads, grad_hx, *(grad.sum(0) if biased else None for grad in grads))


KERNELS: dict[Any, Callable[..., Any]] = {
    aten._thnn_fused_lstm_cell.default: _fused_lstm_cell,
    aten._thnn_fused_lstm_cell_backward_impl.default: _fused_lstm_cell_backward,
    aten._thnn_fused_gru_cell.default: _fused_gru_cell,
    aten._thnn_fused_gru_cell_backward.default: _fused_gru_cell_backward,
    aten._cudnn_rnn.default: _forward,
    aten._cudnn_rnn_backward.default: _backward,
}
