"""``torch.compile``: what a compiled function has in memory, and what it keeps for its backward pass.

Inductor fuses elementwise operations and reductions into the kernels that read their results, so those results are
never in memory: only what goes into or comes out of a kernel of its own (products, attention, convolutions) is, and
what leaves the function. The partitioner keeps for the backward pass what is in memory anyway, and recomputes the rest
from it (``torch/_functorch/partitioners.py``, ``min_cut_rematerialization_partition``; what it keeps is held against
torch's own choice in ``tests/differential/test_compiled.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memlint.meta.autograd import record, tracked
from memlint.meta.tensor import Tensor, state, stored


def compiled(function: Callable[..., Any], *args: Any) -> Any:
    """``function(*args)`` as one compiled graph. Arguments are tensors, or pass as they are."""
    if state.fusing:
        return function(*args)
    state.compiled = True
    inputs = [_entered(x) if isinstance(x, Tensor) else x for x in args]
    state.fusing = True
    try:
        outs = function(*inputs)
    finally:
        state.fusing = False
    for x in (outs,) if isinstance(outs, Tensor) else outs:
        if isinstance(x, Tensor):
            stored(x)
    return outs


class Compiled:
    """A function, compiled."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any) -> Any:
        return compiled(self.function, *args)


def _entered(x: Tensor) -> Tensor:
    """An argument within: its gradient is in memory when it leaves."""
    inside = x.alias(x.shape, x.strides)
    inside.storage.passed = False
    if tracked(x):
        record(inside, (x,), (), lambda g: (g,))
    return inside
