"""A run as the training loop sees it: on one device, here; the other modules change what is theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from memlint.meta import autograd
from memlint.meta.nn import Module
from memlint.meta.optimizer import Optimizer
from memlint.meta.tape import Label, Tape
from memlint.meta.tensor import Storage, Tensor, state
from memlint.models.system import System

# The caching allocator keeps the blocks of each CUDA stream apart, and a block belongs to the stream that was current
# when it was allocated. These are numbers for the ones that wrappers make; autograd's thread runs in the default one.
DEFAULT_STREAM, GATHERS, REDUCES, REPLICAS, CASTS = range(5)

Loss = Callable[[Any], Tensor]


class Spread:
    """A run on one device; the others change what is theirs.

    optimized   what the optimizer gets
    autocast    compute dtype of autocast, None for none
    rooted      whether the next forward pass is of what has the weights that lie in no unit
    loading     the whole model on its way to the card, where it is sharded only there
    """

    host_bytes = 0
    loading: Tape | None = None
    rooted = True

    def __init__(self, system: System, updated: Sequence[Tensor]) -> None:
        self.optimized: Sequence[Tensor] = updated
        self.autocast = system.autocast

    def forward(self, loss: Loss, batch: Any, last: bool) -> Tensor:
        """``last``: the gradients of this micro-batch complete those of the step."""
        return loss(batch)

    def evaluate(self, work: Callable[[], Any]) -> Any:
        return work()

    def backward(self, loss: Tensor) -> None:
        autograd.backward(loss)

    def complete(self, modules: Sequence[Module] = (), root: bool = True) -> None:
        """The next backward pass completes gradients of the step, where several forward passes came before: those of
        these modules (of all if there are none), and of what lies in none of them if ``root``."""

    def step(self, optimizer: Optimizer) -> None:
        optimizer.step()
        optimizer.zero_grad()

    def shard_of(self, tensor: Tensor) -> Tensor:
        """What this rank keeps of a parameter or buffer."""
        return tensor


class WholeGraph(Spread):
    """A run whose model is one compiled function with its loss: the graph of the backward pass hands all gradients on
    at its end, and each is added to the one that is there only then (``torch/_functorch/_aot_autograd``)."""

    def backward(self, loss: Tensor) -> None:
        before = [parameter.grad for parameter in self.optimized]
        for parameter in self.optimized:
            parameter.grad = None
        autograd.backward(loss)
        for parameter, held in zip(self.optimized, before):
            if held is not None:
                parameter.grad = held


def storage(size_bytes: int, label: Label, stream: int = DEFAULT_STREAM) -> Storage:
    saved, state.label = state.label, label
    made = Storage(size_bytes, (size_bytes,), 1)
    state.label = saved
    if stream:
        state.tape.streams[made.index] = stream
    return made
