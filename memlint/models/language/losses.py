"""What follows the last hidden state: logits and cross entropy, whole, in chunks, or fused with the head's product.

Sources: ``transformers`` 5.23 ``loss/loss_utils.py`` (``ForCausalLMLoss``); torchtune 0.6
``modules/loss/ce_chunked_output_loss.py``; Liger-Kernel 0.8 ``ops/fused_linear_cross_entropy.py``.
"""

from __future__ import annotations

from collections.abc import Callable

from memlint.meta import functional as F
from memlint.meta.amp import to
from memlint.meta.autograd import Node, record, tracked
from memlint.meta.tensor import Tensor, empty, float32, int64, state

CHUNKS = 8  # torchtune's ``num_output_chunks``


def full(logits: Tensor, labels: Tensor) -> Tensor:
    """Logits (B, S, V) are brought to fp32; their log-probabilities are kept, and in the backward pass two gradients in
    fp32 live beside them."""
    logits = to(logits, float32)
    shifted = shifted_labels(labels)
    batch, length, vocabulary = logits.shape
    logits = logits.view(batch * length, vocabulary)
    return F.cross_entropy(logits, shifted.view(-1))


def shifted_labels(labels: Tensor) -> Tensor:
    """(B, S): the next token's number at each token."""
    labels = F.pad(labels, 0, 1)
    out: Tensor = labels[..., 1:].contiguous()
    return out


def chunked(x: Tensor, logits: Callable[[Tensor], Tensor], labels: Tensor, chunks: int) -> Tensor:
    """Logits chunk by chunk in the weights' dtype, then the cross entropy of one chunk at a time in fp32."""
    shifted = shifted_labels(labels)
    outputs = [logits(piece) for piece in F.chunk(x, chunks, 1)]
    targets = [piece.reshape(-1) for piece in F.chunk(shifted, chunks, 1)]
    total = None
    for output, target in zip(outputs, targets):
        vocabulary = output.shape[-1]
        loss = F.cross_entropy(to(output.reshape(-1, vocabulary), float32), target)
        total = loss if total is None else total + loss
    assert total is not None
    out: Tensor = total / 1.0
    return out


def fused(x: Tensor, head: Tensor, labels: Tensor) -> Tensor:
    """Liger's linear cross entropy: the forward pass makes the gradients, so no logits are kept.

    Rows are taken in chunks whose logits are about as large as all of ``x``; the kernel overwrites a chunk's logits
    with their gradient, whose products are the gradients of ``x`` and of the head. Both are kept for the backward
    pass, which hands them out.
    """
    shifted = shifted_labels(labels)
    rows, width = x.shape[0] * x.shape[1], x.shape[2]
    vocabulary = head.shape[0]
    flat = x.reshape(rows, width)
    ratio = -(-vocabulary // width)
    chunk = min(1 << (-(-rows // ratio) - 1).bit_length(), rows)
    compute = state.autocast or flat.dtype
    gradient = empty(flat.shape, flat.dtype)
    head_gradient = empty(head.shape, head.dtype) if head.requires_grad else None
    losses = empty((rows,), float32)
    # The products write into one buffer, except where autocast would cast their operands.
    plain = flat.dtype is head.dtype and (state.autocast is None or flat.dtype is compute)
    buffer = empty((chunk, vocabulary), flat.dtype) if plain else None
    for start in range(0, rows, chunk):
        _liger_chunk(min(chunk, rows - start), flat, head, plain, head_gradient is not None)
    del buffer
    out = empty((), float32)
    if tracked(flat, head):
        kinds = [(t.shape, t.dtype) if t.requires_grad else None for t in (flat, head)]
        cell: list[Node] = []

        def backward(g: Tensor) -> list[Tensor | None]:
            held = iter(cell.pop().saved)
            return [None if kind is None else Tensor(*kind, next(held)) for kind in kinds]

        record(out, (flat, head), (gradient if flat.requires_grad else None, head_gradient), backward)
        assert out.node is not None
        cell.append(out.node)
    del losses, shifted
    return out


def _liger_chunk(rows: int, x: Tensor, head: Tensor, plain: bool, trains: bool) -> None:
    """The temporaries of one chunk."""
    width, vocabulary = x.shape[1], head.shape[0]
    if plain:
        return  # addmm adds to the head's gradient in place
    compute = state.autocast or x.dtype
    casts = [empty((rows, width), compute)] if x.dtype is not compute else []
    if head.dtype is not compute:
        casts.append(empty(head.shape, compute))
    logits = empty((rows, vocabulary), compute)
    del casts
    cast = empty(head.shape, compute) if head.dtype is not compute else None
    product = empty((rows, width), compute)
    del cast, product
    if trains:
        cast = empty((rows, width), compute) if x.dtype is not compute else None
        del cast
    del logits


def token_numbers(batch: int, length: int) -> Tensor:
    return empty((batch, length), int64)
