"""Ways from logits to the log-probabilities of the tokens that are asked for, each with its source.

:data:`SCORES` has them by the names that the fact ``log_probabilities`` has for them.
"""

from __future__ import annotations

from memlint.meta import functional as F
from memlint.meta.amp import to
from memlint.meta.autograd import Node, no_grad, record, tracked
from memlint.meta.compiled import compiled
from memlint.meta.ops.reductions import stored_softmax
from memlint.meta.tensor import Tensor, bool_, empty, float32, int64


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


def picked(logits: Tensor, labels: Tensor) -> Tensor:
    """(B, T) from logits (B, T, V): TRL's ``selective_log_softmax`` to 1.9. Logits in fp32 are kept, and the
    exponentials of one row after the other summed; of logits in 16 bits the log-softmax of each row is kept."""
    if logits.dtype is float32:
        own = F.gather(logits, -1, labels.unsqueeze(-1))
        sums = F.stack([logsumexp(row) for row in F.unbind(logits)])
        out: Tensor = (own - sums.unsqueeze(-1)).squeeze(-1)
        return out
    pairs = zip(F.unbind(logits), F.unbind(labels))
    return F.stack([F.gather(F.log_softmax(row, -1), -1, own.unsqueeze(-1)).squeeze(-1) for row, own in pairs])


def row_by_row(logits: Tensor, labels: Tensor) -> Tensor:
    """(B, S - 1) from whole logits (B, S, V), without the last token of each row."""
    return picked(logits[:, :-1], labels[:, 1:])


def copied_rows(logits: Tensor, labels: Tensor) -> Tensor:
    """The same of a copy, which TRL's DPOTrainer made from 0.29 to 1.5."""
    return picked(logits[:, :-1].contiguous(), labels[:, 1:])


def divided(logits: Tensor, labels: Tensor) -> Tensor:
    """The same of logits that are divided by a temperature (TRL ``grpo_trainer.py, rloo_trainer.py:
    _get_per_token_logps_and_entropies``)."""
    return picked(logits[:, :-1] / 1.0, labels[:, 1:])


def divided_in_place(logits: Tensor, labels: Tensor) -> Tensor:
    """The same where that is done in place, of a part of what the model has made: a gradient of all of it is copied,
    and so is its part, before and after the division (torch ``autograd/functions/tensor.cpp: CopySlices``)."""
    shape, dtype = logits.shape, logits.dtype
    part = (shape[0], shape[1] - 1, shape[2])
    out = Tensor(shape, dtype, logits.storage)
    if tracked(logits):

        def backward(g: Tensor) -> tuple[Tensor]:
            whole = Tensor(shape, dtype)
            before, after = empty(part, dtype), empty(part, dtype)
            del before, after
            return (whole,)

        record(out, (logits,), (), backward)
    return row_by_row(out, labels)


def logsumexp(x: Tensor) -> Tensor:
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
    """The same of all logits, and labels that are rolled (TRL's DPOTrainer to 0.28)."""
    return picked(logits, empty(labels.shape, int64))[:, :-1]


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
    sums = logsumexp(rows).view(*logits.shape[:-1])
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

# Ways that take them as accelerate hands them out: in fp32 under its mixed precision, else in the model's dtype.
AS_RETURNED = ("as_returned", "returned", "rows", "copied", "divided", "divided_in_place")

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
    "returned": log_probabilities,
    "rows": row_by_row,
    "divided": divided,
    "divided_in_place": divided_in_place,
    "copied": copied_rows,
    "kernel": in_one_kernel,
    "rolled": rolled,
    "shared": shared,
    "rolled_named": rolled,
    "rolled_with_entropy": rolled_with_entropy,
    "as_returned": as_returned,
}
