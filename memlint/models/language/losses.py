"""What follows the last hidden state: logits and cross entropy, whole, in chunks, or fused with the head's product.

Sources: ``transformers`` 5.23 ``loss/loss_utils.py`` (``ForCausalLMLoss``); torchtune 0.6
``modules/loss/ce_chunked_output_loss.py``; Liger-Kernel 0.8 ``ops/fused_linear_cross_entropy.py``; TRL 1.16
``kernels/chunked_logprob.py``, ``trainer/utils.py`` (``add_fused_lm_head``); of label smoothing ``transformers``
``trainer_pt_utils.py`` (``LabelSmoother``) and ``accelerate`` 1.15 ``utils/operations.py`` (``ConvertOutputsToFp32``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from memlint.meta import functional as F
from memlint.meta.amp import autocast, lower, to
from memlint.meta.autograd import Node, no_grad, record, tracked
from memlint.meta.compiled import compiled
from memlint.meta.ops.reductions import stored_softmax
from memlint.meta.tensor import DType, Tensor, bool_, empty, float32, int32, int64, state

CHUNKS = 8  # torchtune's ``num_output_chunks``


class Variable:
    """A local variable of the training loop: what it is bound to lives until the next value is there."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: Any = None


def full(logits: Tensor, labels: Tensor) -> Tensor:
    """Logits (B, S, V) are brought to fp32; their log-probabilities are kept, and in the backward pass two gradients in
    fp32 live beside them."""
    logits = to(logits, float32)
    padded = F.pad(labels, 0, 1)  # has a name until the loss is there
    shifted = padded[..., 1:].contiguous()
    batch, length, vocabulary = logits.shape
    logits = logits.view(batch * length, vocabulary)
    return F.cross_entropy(logits, shifted.view(-1))


def shifted_labels(labels: Tensor) -> Tensor:
    """(B, S): the next token's number at each token."""
    labels = F.pad(labels, 0, 1)
    out: Tensor = labels[..., 1:].contiguous()
    return out


def returned(logits: Tensor) -> Tensor:
    """Logits as a model under accelerate's mixed precision hands them out: in fp32."""
    return logits if state.autocast is None else to(logits, float32)


def of_outputs(logits: Tensor, labels: Tensor, rows: int) -> Tensor:
    """A loop's own cross entropy of logits (B, S, V) in the dtype that the model hands them out in.

    rows  tokens of a piece, where gradients are made piece by piece, each written over its logits; 0: of all at once
    Source: ms-swift 4.6 ``trainers/utils.py: per_token_loss_func_sp``, ``sequence_parallel/utils.py:
    ChunkedCrossEntropyLoss``.
    """
    logits = returned(logits)
    logits = logits.view(logits.shape[0] * logits.shape[1], logits.shape[2])
    return F.sum(_in_place(logits, rows)) / 1.0 if rows else F.cross_entropy(logits, labels.view(-1))


def shifted(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """A loop's own cross entropy of a copy of logits (B, S, V) without each row's last token, in the dtype that the
    model hands them out in; and that copy. (verl ``trainer/fsdp_sft_trainer.py: _compute_loss_and_backward``)"""
    kept = logits[:, :-1].contiguous()
    asked = labels[:, 1:].contiguous()
    return F.cross_entropy(kept.view(-1, kept.shape[-1]), asked.view(-1)), kept


def until_backward(x: Tensor, named: Variable) -> Tensor:
    """What the model starts from, whose gradient is its last: then a function returns, and what it named goes."""
    out = x.alias(x.shape, x.strides)

    def backward(g: Tensor) -> tuple[Tensor]:
        named.value = None
        return (g,)

    if tracked(x):
        record(out, (x,), (), backward)
    return out


def _in_place(logits: Tensor, rows: int) -> Tensor:
    """(N, V) -> (N,)."""
    shape, dtype = logits.shape, logits.dtype
    piece = min(rows, shape[0]), shape[1]
    scores = empty(piece, dtype)
    del scores
    out = empty(shape[:1], dtype)
    if tracked(logits):
        cell: list[Node] = []

        def backward(g: Tensor) -> tuple[Tensor]:
            scores, gradient = empty(piece, dtype), empty(piece, dtype)
            del scores, gradient
            return (Tensor(shape, dtype, cell.pop().saved[0]),)

        record(out, (logits,), (logits,), backward)
        assert out.node is not None
        cell.append(out.node)
    return out


def smoothed(logits: Tensor, labels: Tensor, shifts: bool) -> Tensor:
    """The Trainer's own loss with smoothed labels, made outside of the model and of its autocast: of logits (B, S, V),
    as ``returned`` gives them, the log-probabilities are kept, and so is what has the other sign.

    shifts  each token is asked for the next one (a decoder alone)
    """
    with autocast(None):
        if shifts:
            logits = logits[:, :-1].contiguous()
            labels = labels[:, 1:].contiguous()
        log_probabilities = F.neg(F.log_softmax(logits, -1))
        padding = empty((*labels.shape, 1), bool_)
        labels = empty((*labels.shape, 1), int64)  # those that do not count are token 0
        own = F.gather(log_probabilities, -1, labels)
        every = F.sum(log_probabilities, -1, keepdim=True, dtype=float32)
        own, every = F.sum(F.masked_fill(own, padding)), F.sum(F.masked_fill(every, padding))
        out: Tensor = (own / 1.0) * 1.0 + (every / 1.0) * 1.0
        return out


def chunked(x: Tensor, logits: Callable[[Tensor], Tensor], labels: Tensor, chunks: int) -> Tensor:
    """Logits chunk by chunk in the weights' dtype, then the cross entropy of one chunk at a time in fp32."""
    shifted = shifted_labels(labels)
    outputs = [logits(piece) for piece in F.chunk(x, chunks, 1)]
    return sum_of_pieces(outputs, F.chunk(shifted, chunks, 1))


def of_piece(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(to(logits, float32), labels)


def sum_of_pieces(
    outputs: Sequence[Tensor], labels: Sequence[Tensor], compare: Callable[[Tensor, Tensor], Tensor] = of_piece
) -> Tensor:
    """The cross entropy of one piece of logits after the other, in fp32."""
    targets = [piece.reshape(-1) for piece in labels]
    total = None
    for output, target in zip(outputs, targets):
        vocabulary = output.shape[-1]
        loss = compare(output.reshape(-1, vocabulary), target)
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


def cut(x: Tensor, head: Tensor, labels: Tensor) -> Tensor:
    """Cut cross entropy: tiles of logits never leave the chip, and backward makes the gradients of hidden states and
    head, both in the hidden states' dtype. (``cut_cross_entropy`` 25.1: ``cce.py``, ``cce_backward.py``)"""
    x = lower(x)
    rows, width = x.shape[0] * x.shape[1], x.shape[2]
    scored = x.shape[0] * (x.shape[1] - 1)
    flat = x.reshape(rows, width)
    asked = empty((scored,), int32)
    normaliser = empty((scored,), float32)
    mean_logits = empty((head.shape[0],), float32)
    picked = empty((scored,), float32)
    out = empty((), float32)
    del picked
    if tracked(flat, head):
        a, b = (flat.shape, flat.dtype), (head.shape, head.dtype)
        need_x, need_head = flat.requires_grad, head.requires_grad

        def backward(g: Tensor) -> list[Tensor | None]:
            order = empty((b[0][0],), int64)
            gx = Tensor(*a)
            gy = Tensor(b[0], a[1]) if need_head else None
            del order
            if gy is not None and b[1] is not a[1]:
                gy = Tensor(*b)
            return [gx if need_x else None, gy]

        record(out, (flat, head), (flat, head, normaliser, labels, asked, mean_logits), backward)
    return out


def in_forward(x: Tensor, head: Tensor, labels: Tensor, pieces: int) -> Tensor:
    """Unsloth's: the forward pass makes the gradients, ``pieces`` of the tokens after one another, in one compiled
    function, which writes a piece's gradient over its logits in the head's dtype. What is kept are the gradients of
    ``x`` and, where it trains, of the head. (unsloth_zoo 2025.8 to 2026.10 ``fused_losses/cross_entropy_loss.py``:
    UnslothFusedLoss, whose function torch.compile takes whole)"""
    shifted = shifted_labels(labels)
    rows, width = x.shape[0] * x.shape[1], x.shape[2]
    gradient = empty(x.shape, x.dtype)
    head_gradient = empty(head.shape, head.dtype) if head.requires_grad else None
    most = -(-rows // pieces)
    for start in range(0, rows, most):
        count = min(most, rows - start)
        given = empty((count, width), head.dtype) if x.dtype is not head.dtype else None
        logits = empty((count, head.shape[0]), head.dtype)
        scores = empty((count,), float32)
        product = empty((count, width), head.dtype)
        added = empty(head.shape, head.dtype) if head_gradient is not None else None
        del given, logits, scores, product, added
    out = empty((), float32)
    if tracked(x, head):
        kinds = [(t.shape, t.dtype) if t.requires_grad else None for t in (x, head)]
        cell: list[Node] = []

        def backward(g: Tensor) -> list[Tensor | None]:
            held = iter(cell.pop().saved)
            return [None if kind is None else Tensor(*kind, next(held)) for kind in kinds]

        record(out, (x, head), (gradient if x.requires_grad else None, head_gradient), backward)
        assert out.node is not None
        cell.append(out.node)
    del shifted
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


def tiled(x: Tensor, head: Tensor, bias: Tensor | None, labels: Tensor, tile: tuple[int, int]) -> Tensor:
    """TRL's log-probabilities (B, S - 1): the head's product in tiles of ``tile`` = (tokens, rows of the vocabulary),
    made again in backward. Every token counts as one that is asked for.

    The gradients of hidden states and head are summed in fp32, each whole, before they get their own dtype.
    """
    batch, length, _ = x.shape
    given = x[:, :-1]
    mask = empty((batch, length - 1), bool_)
    flat = picked(given, mask)
    targets = empty((batch * (length - 1),), int64)
    found = _tiled(flat, head, bias, targets, tile)
    del flat, targets
    out = empty(mask.shape, float32)
    filled = empty(mask.shape, float32)
    if tracked(found):
        count = found.shape
        record(filled, (found,), (mask,), lambda g: (Tensor(count, float32),))
    del out
    return filled


def picked(x: Tensor, mask: Tensor) -> Tensor:
    """``x[mask]`` where the mask is true everywhere: (B, S, W) -> (B * S, W)."""
    shape, dtype = x.shape, x.dtype
    count = shape[0] * shape[1]
    places = empty((count, 2), int64)
    out = empty((count, shape[2]), dtype)
    del places
    if tracked(x):

        def backward(g: Tensor) -> tuple[Tensor]:
            places = empty((count, 2), int64)
            gradient = Tensor(shape, dtype)
            del places
            return (gradient,)

        record(out, (x,), (mask,), backward)
    return out


def _tiled(x: Tensor, head: Tensor, bias: Tensor | None, targets: Tensor, tile: tuple[int, int]) -> Tensor:
    rows = x.shape[0]
    compute = state.autocast or x.dtype
    statistics = [empty((rows,), float32) for _ in range(7)]
    buffer = empty((min(rows, tile[0]), tile[1]), compute)
    _tiles(x.shape, x.dtype, head.shape, head.dtype, compute, tile, False)
    normaliser = empty((rows,), float32)
    out = empty((rows,), float32)
    entropy = empty((rows,), float32)
    first = empty((rows,), bool_)
    del statistics, buffer, first
    if tracked(x, head):
        a, b = (x.shape, x.dtype), (head.shape, head.dtype)
        need_x, need_head = x.requires_grad, head.requires_grad

        def backward(g: Tensor) -> list[Tensor | None]:
            wide_x = Tensor(a[0], float32) if need_x else None
            wide_head = Tensor(b[0], float32) if need_head else None
            buffer = empty((min(rows, tile[0]), tile[1]), compute)
            _tiles(a[0], a[1], b[0], b[1], compute, tile, True)
            gx = wide_x if wide_x is None or a[1] is float32 else Tensor(*a)
            gy = wide_head if wide_head is None or b[1] is float32 else Tensor(*b)
            del buffer, wide_x, wide_head
            return [gx, gy]

        record(out, (x, head), (x, head, targets, normaliser, entropy), backward)
    return out


def _tiles(
    rows: tuple[int, ...],
    dtype: DType,
    entries: tuple[int, ...],
    head: DType,
    compute: DType,
    tile: tuple[int, int],
    named: bool,
) -> None:
    """Casts of a tile's operands to the compute dtype; backward gives that of the head's piece a name, so the next one
    is made beside it. One tile of full size stands for all of that size."""
    piece = weights = None
    if dtype is not compute:
        piece = empty((min(rows[0], tile[0]), rows[1]), compute)
    if head is not compute:
        weights = empty((min(entries[0], tile[1]), entries[1]), compute)
        if named and (entries[0] > tile[1] or rows[0] > tile[0]):
            following = empty((min(entries[0], tile[1]), entries[1]), compute)
            del following
    del piece, weights


def log_probabilities(logits: Tensor, labels: Tensor) -> Tensor:
    """(B, S - 1) from whole logits (B, S, V) in fp32, of which the log-softmax is kept."""
    rows = F.log_softmax(logits[:, :-1], -1)
    own = labels[:, 1:].contiguous().unsqueeze(-1)
    out: Tensor = F.gather(rows, -1, own).squeeze(-1)
    return out


def uncut(logits: Tensor, labels: Tensor) -> Tensor:
    """The same where labels are shifted in a copy of their own, so that logits are taken as they are, and the last
    token is left out of what was gathered. (open-instruct ``padding_free_collator.py: calculate_per_token_logps``)"""
    asked = empty(labels.shape, int64)
    rows = F.log_softmax(logits, -1)
    out: Tensor = F.gather(rows, -1, asked.unsqueeze(-1)).squeeze(-1)[:, :-1]
    return out


def row_by_row(logits: Tensor, labels: Tensor) -> Tensor:
    """(B, S - 1) from whole logits (B, S, V) in fp32, which are kept: TRL's ``selective_log_softmax`` to 1.9, which
    sums the exponentials of one row after the other."""
    rows = logits[:, :-1]
    own = F.gather(rows, -1, labels[:, 1:].unsqueeze(-1))
    sums = F.stack([_logsumexp(row) for row in F.unbind(rows)])
    out: Tensor = (own - sums.unsqueeze(-1)).squeeze(-1)
    return out


def copied_rows(logits: Tensor, labels: Tensor) -> Tensor:
    """The same of a copy without the last token of each row, which TRL's DPOTrainer made from 0.29 to 1.5."""
    kept = logits[:, :-1].contiguous()
    own = F.gather(kept, -1, labels[:, 1:].unsqueeze(-1))
    sums = F.stack([_logsumexp(row) for row in F.unbind(kept)])
    out: Tensor = (own - sums.unsqueeze(-1)).squeeze(-1)
    return out


def _logsumexp(x: Tensor) -> Tensor:
    """(S, V) -> (S,). Exponentials are made where differences are; backward's three temporaries are one expression's.
    (``logsumexp_out_impl`` of aten/src/ATen/native/ReduceOps.cpp, ``logsumexp_backward`` of FunctionsManual.cpp)"""
    shape, dtype = x.shape, x.dtype
    largest = empty((shape[0], 1), dtype)
    exponentials = empty(shape, dtype)
    out = Tensor(shape[:1], dtype)
    del largest, exponentials
    if tracked(x):

        def backward(g: Tensor) -> tuple[Tensor]:
            difference, exponentials = empty(shape, dtype), empty(shape, dtype)
            gradient = Tensor(shape, dtype)
            del difference, exponentials
            return (gradient,)

        record(out, (x,), (x, out), backward)
    return out


def as_returned(logits: Tensor, labels: Tensor) -> Tensor:
    """(B, S - 1) of whole logits (B, S, V) in the dtype that the model hands them out in, and labels that are rolled:
    TRL's ``selective_log_softmax`` to 1.9, which takes the log-softmax of each row of logits in 16 bits."""
    asked = empty(labels.shape, int64)
    if logits.dtype is float32:
        own = F.gather(logits, -1, asked.unsqueeze(-1))
        sums = F.stack([_logsumexp(row) for row in F.unbind(logits)])
        out: Tensor = (own - sums.unsqueeze(-1)).squeeze(-1)
        return out[:, :-1]
    picked = [
        F.gather(F.log_softmax(row, -1), -1, one.unsqueeze(-1)).squeeze(-1)
        for row, one in zip(F.unbind(logits), F.unbind(asked))
    ]
    return F.stack(picked)[:, :-1]


def in_one_kernel(logits: Tensor, labels: Tensor) -> Tensor:
    """The same of TRL 1.16 on a GPU (``kernels/logprob_entropy.py``): a few numbers per token, and one gradient."""
    rows = logits[:, :-1]
    asked = labels[:, 1:]
    shape, dtype, count = rows.shape, rows.dtype, rows.shape[:-1]
    out, entropy, normaliser, expected = (Tensor(count, float32) for _ in range(4))
    del entropy
    if tracked(rows):
        record(out, (rows,), (rows, asked, normaliser, expected), lambda g: (Tensor(shape, dtype),))
    return out


def rolled(logits: Tensor, labels: Tensor) -> Tensor:
    """(B, S - 1) of whole logits (B, S, V) in fp32, which are kept, and labels that are rolled to where they are asked
    for, so that no row is cut: one gradient. (OpenRLHF 0.11 ``models/utils.py: log_probs_from_logits``; flash-attn 2.8
    ``ops/triton/cross_entropy.py``)"""
    asked = empty(labels.shape, int64)
    shape, dtype, count = logits.shape, logits.dtype, logits.shape[:-1]
    out, normaliser = Tensor(count, float32), Tensor(count, float32)
    if tracked(logits):
        record(out, (logits,), (logits, normaliser, asked), lambda g: (Tensor(shape, dtype),))
    return F.neg(out)[:, :-1]


def shared(logits: Tensor, labels: Tensor) -> Tensor:
    """(B, S, V / n), (B, S) -> (B, S - 1): of the share of the vocabulary that a tensor parallel rank has, with
    sums that are reduced over the ranks; the softmax is kept. (NeMo RL ``distributed/model_utils.py:
    DistributedLogprob``)"""
    shape = logits.shape
    asked, elsewhere = empty(labels.shape, int64), empty(labels.shape, bool_)
    shifted = empty(shape, float32)
    powers = empty(shape, float32)
    del powers
    scores = empty(shape, float32)
    del shifted
    out = Tensor(shape[:-1], float32)
    if tracked(logits):
        record(out, (logits,), (empty(shape, float32), elsewhere, asked), lambda g: (Tensor(shape, float32),))
    del scores
    return out[:, :-1]


def rolled_with_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The same beside the entropy of the same logits, whose code is compiled. (OpenRLHF 0.11 ``models/utils.py:
    compute_entropy``)"""
    out: Tensor = compiled(entropy, logits)[:, :-1] + rolled(logits, labels)
    return out


def in_place(logits: Tensor, labels: Tensor) -> Tensor:
    """The same of logits in the dtype that the model hands them out in, which the gradient is written over. (verl
    ``utils/torch_functional.py: logprobs_from_logits_flash_attn``)"""
    return _in_kernel(logits, labels, writes_over=True)


def with_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The same beside the entropy of the same logits, which are read again backward: each has a gradient of its own.
    (verl ``workers/actor/dp_actor.py: _forward_micro_batch``)"""
    return _in_kernel(logits, labels, writes_over=False) + entropy(logits)[:, :-1]


def with_compiled_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    out: Tensor = _in_kernel(logits, labels, writes_over=False) + compiled(entropy, logits)[:, :-1]
    return out


def of_copy(logits: Tensor, labels: Tensor) -> Tensor:
    """(B, S, V), (B, A) -> (B, A): of the last A tokens alone, whose logits are copied out of padded ones; the gradient
    is written over the copy. (verl ``workers/actor/dp_actor.py: _forward_micro_batch``)"""
    return _of_kept(_last(logits, labels.shape[1]), labels)


def of_copy_with_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    kept = _last(logits, labels.shape[1])
    return _of_kept(kept, labels) + entropy(kept)


def _last(logits: Tensor, answers: int) -> Tensor:
    return logits[:, -answers - 1 : -1] if answers < logits.shape[1] else logits


def _of_kept(kept: Tensor, labels: Tensor) -> Tensor:
    copied = F.cat((kept,), 1)
    out: Tensor = _in_kernel(copied, labels, writes_over=True, shifts=False)
    return out


def of_quotient(logits: Tensor, labels: Tensor) -> Tensor:
    """(B, S, V) -> (B, S - 1): of logits in the dtype that the model hands them out in, divided by a temperature, which
    is a second tensor of their size while the model's output has a name. The log-softmax and what is picked of it are
    one compiled function, which keeps its logits and a few numbers per token; backward, the gradient of what was picked
    is one tensor, and that of the logits another one. (open-instruct ``grpo_utils.py: forward_for_logprobs``,
    ``model_utils.py: log_softmax_and_gather``)"""
    return _picked_of(_quotient(logits), labels)


def of_quotient_with_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The same, and the entropy of the same logits, without gradients."""
    rows = _quotient(logits)
    out = _picked_of(rows, labels)
    with no_grad():
        shares = stored_softmax(rows, None)
        largest, exponentials = empty((*rows.shape[:-1], 1), rows.dtype), empty(rows.shape, rows.dtype)
        del largest, exponentials
        weighted = shares * rows
        del shares, weighted
    return out


def of_quotient_in_steps(logits: Tensor, labels: Tensor) -> Tensor:
    """The same, not compiled (``TORCH_COMPILE_DISABLE``)."""
    rows = _quotient(logits)
    own = labels[:, 1:].contiguous().unsqueeze(-1)
    out: Tensor = F.gather(F.log_softmax(rows, -1), -1, own).squeeze(-1)
    return out


def _quotient(logits: Tensor) -> Tensor:
    out: Tensor = (logits / 1.0)[:, :-1]
    return out


def _picked_of(rows: Tensor, labels: Tensor) -> Tensor:
    """(B, S - 1, V), (B, S) -> (B, S - 1)."""
    asked = labels[:, 1:].contiguous()
    shape, dtype = rows.shape, rows.dtype
    largest, normaliser = empty((*shape[:-1], 1), float32), empty((*shape[:-1], 1), float32)
    out = Tensor(shape[:-1], dtype)
    if tracked(rows):

        def backward(g: Tensor) -> tuple[Tensor]:
            spread = empty(shape, dtype)
            gradient = Tensor(shape, dtype)
            del spread
            return (gradient,)

        record(out, (rows,), (rows, largest, normaliser, asked), backward)
    return out


def entropy(logits: Tensor) -> Tensor:
    """(B, S, V) -> (B, S): ``logsumexp(x) - sum(softmax(x) * x)``, in fp32 under autocast. (verl
    ``utils/torch_functional.py: entropy_from_logits``)"""
    shares = stored_softmax(to(logits, float32), None)
    rows = to(logits, float32).view(-1, logits.shape[-1])
    sums = _logsumexp(rows).view(*logits.shape[:-1])
    out: Tensor = sums - F.sum(shares * logits, -1)
    return out


def _in_kernel(logits: Tensor, labels: Tensor, writes_over: bool, shifts: bool = True) -> Tensor:
    """(B, S, V), (B, S) -> (B, S - 1), by flash-attn's kernel: a few numbers per token beside the logits. -> (B, S) of
    labels that are shifted already."""
    asked = empty(labels.shape, int64)
    shape, dtype, count = logits.shape, logits.dtype, logits.shape[:-1]
    out, normaliser = Tensor(count, float32), Tensor(count, float32)
    if tracked(logits):
        cell: list[Node] = []

        def backward(g: Tensor) -> tuple[Tensor]:
            held = cell.pop().saved[0] if writes_over else None
            return (Tensor(shape, dtype) if held is None else Tensor(shape, dtype, held),)

        record(out, (logits,), (logits, normaliser, asked), backward)
        assert out.node is not None
        cell.append(out.node)
    found: Tensor = F.neg(out)
    return found[:, :-1] if shifts else found


# Ways that take logits in the dtype in which the model hands them out; others are given them in fp32.
AS_MADE = (
    *("in_place", "with_entropy", "with_compiled_entropy", "of_copy", "of_copy_with_entropy"),
    *("of_quotient", "of_quotient_with_entropy", "of_quotient_in_steps"),
)
# Ways that score the tokens before they ask for the likelihood of chosen answers; others do after it. (princeton-nlp/
# SimPO ``simpo_trainer.py``; TRL ``cpo_trainer.py``, ``orpo_trainer.py``)
SCORED_FIRST = ("whole_first",)
# Ways of a function that names the logits until its backward pass is through. (OpenRLHF 0.11
# ``trainer/ray/ppo_actor.py: training_step``)
NAMED = ("rolled_named", "rolled_with_entropy")
# Ways that an evaluation, or a loop that asks before the model learns, goes as well.
ASKED_AGAIN = (*AS_MADE, *SCORED_FIRST, *NAMED)
SCORES = {
    "of_copy": of_copy,
    "of_copy_with_entropy": of_copy_with_entropy,
    "of_quotient": of_quotient,
    "of_quotient_with_entropy": of_quotient_with_entropy,
    "of_quotient_in_steps": of_quotient_in_steps,
    "in_place": in_place,
    "with_entropy": with_entropy,
    "with_compiled_entropy": with_compiled_entropy,
    "whole": log_probabilities,
    "whole_first": log_probabilities,
    "uncut": uncut,
    "rows": row_by_row,
    "copied": copied_rows,
    "kernel": in_one_kernel,
    "rolled": rolled,
    "shared": shared,
    "rolled_named": rolled,
    "rolled_with_entropy": rolled_with_entropy,
    "as_returned": as_returned,
}


def likelihood_of_chosen(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean cross entropy of the answers that were chosen, the first half of a batch, in logits of their own."""
    chosen = logits.shape[0] // 2
    kept = F.contiguous(logits[:chosen][:, :-1])
    targets = F.contiguous(labels[:chosen][:, 1:])
    return F.cross_entropy(kept.view(-1, logits.shape[-1]), targets.view(-1))


def immediate(x: Tensor, head: Tensor, labels: Tensor, chunks: int, compiled: bool) -> Tensor:
    """torchtitan's (0.3, ``ChunkedLossWrapper``): of each chunk of tokens the logits, their loss and its backward pass,
    before those of the next. Gradients of hidden states gather in fp32 and are kept in their own dtype; the head's is
    there at once. Labels are shifted already."""
    batch = x.shape[0]
    pieces = [F.contiguous(piece) for piece in F.chunk(x.detach(), chunks, 1)]
    marks = [F.contiguous(piece) for piece in F.chunk(labels, chunks, 1)]
    gathered = empty(x.shape, float32)
    head_gradient: Tensor | None = None
    for piece in pieces:
        rows = batch * piece.shape[1]
        gradient, made = _immediate_chunk(rows, x, head, compiled)
        head_gradient = made if head_gradient is None else head_gradient
        del made, gradient
    kept = to(gathered, x.dtype)
    del gathered, pieces, marks
    out = empty((), float32)
    if tracked(x, head):
        cell: list[Node] = []
        kinds = [(x.shape, x.dtype), (head.shape, head.dtype) if head_gradient is not None else None]

        def backward(g: Tensor) -> list[Tensor | None]:
            held = iter(cell.pop().saved)
            return [None if kind is None else Tensor(*kind, next(held)) for kind in kinds]

        record(out, (x, head), (kept, head_gradient), backward)
        assert out.node is not None
        cell.append(out.node)
    return out


def _immediate_chunk(rows: int, x: Tensor, head: Tensor, compiled: bool) -> tuple[Tensor, Tensor | None]:
    """The gradients of one chunk's hidden states and of the head; what else there was is gone."""
    vocabulary = head.shape[0]
    logits = empty((rows, vocabulary), x.dtype)
    if compiled:
        gradient = empty(logits.shape, x.dtype)
    else:
        wide = to(logits, float32)
        probabilities = empty(logits.shape, float32)
        del wide
        filled = empty(logits.shape, float32)
        wide = empty(logits.shape, float32)
        del filled, probabilities
        gradient = to(wide, x.dtype)
        del wide
    hidden = empty((rows, x.shape[2]), x.dtype)
    made = empty(head.shape, head.dtype) if head.requires_grad else None
    del gradient, logits
    return hidden, made


def token_numbers(batch: int, length: int) -> Tensor:
    return empty((batch, length), int64)
