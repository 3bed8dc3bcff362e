"""Losses."""

from __future__ import annotations

from memlint.meta.amp import upper
from memlint.meta.autograd import record, tracked
from memlint.meta.ops.elementwise import abs, binary_result, sub
from memlint.meta.ops.reductions import mean, stored_softmax
from memlint.meta.tensor import Tensor, empty, empty_like


def mse_loss(x: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """``reduction``: "mean" or "none"."""
    if reduction == "mean":
        return _pointwise_loss(x, target)
    target = upper(target)
    x = upper(x)
    out = binary_result(x, target)
    if tracked(x, target):
        need_x, need_y = x.requires_grad, target.requires_grad
        shape, dtype = x.shape, x.dtype
        record(
            out,
            (x, target),
            (x, target),
            lambda g: (Tensor(shape, dtype) if need_x else None, Tensor(shape, dtype) if need_y else None),
        )
    return out


def l1_loss(x: Tensor, target: Tensor) -> Tensor:
    """Mean over all elements; not a kernel of its own but a difference, its magnitude, and the mean."""
    target = upper(target)
    x = upper(x)
    difference = sub(x, target)
    return mean(abs(difference))


def _pointwise_loss(x: Tensor, target: Tensor) -> Tensor:
    """Mean over all elements. The kernel makes the elementwise loss, then reduces it; both operands are kept."""
    target = upper(target)
    x = upper(x)
    full = empty_like(x)
    out = empty((), x.dtype)
    del full
    if tracked(x, target):
        need_x, need_y = x.requires_grad, target.requires_grad
        shape, dtype = x.shape, x.dtype
        record(
            out,
            (x, target),
            (x, target),
            lambda g: (
                Tensor(shape, dtype) if need_x else None,
                Tensor(shape, dtype) if need_y else None,
            ),
        )
    return out


def nll_loss(log_probabilities: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """(tokens, classes) log-probabilities, or (N, classes, H, W): keeps them; their gradient is a tensor of zeros,
    filled. ``reduction``: "mean", or "none" for a number per target."""
    log_probabilities = upper(log_probabilities)
    out = empty(target.shape if reduction == "none" else (), log_probabilities.dtype)
    weight = empty((), log_probabilities.dtype)
    if tracked(log_probabilities):
        shape, dtype = log_probabilities.shape, log_probabilities.dtype
        record(
            out,
            (log_probabilities,),
            (log_probabilities, target, weight),
            lambda g: (Tensor(shape, dtype),),
        )
    return out


def cross_entropy(logits: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """(tokens, classes) logits, or (N, classes, H, W): log-softmax, kept, then the negative log-likelihood. Under
    autocast the log-softmax stays in the logits' dtype, which cross entropy asks for by name, and its result is copied
    to fp32."""
    log_probabilities = stored_softmax(logits, None)
    return nll_loss(log_probabilities, target, reduction)
