"""What a model of :mod:`memlint.models` hands over: modules, a batch, a loss, and how the run trains them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from memlint.meta.nn import Module
from memlint.meta.tape import Tape
from memlint.meta.tensor import DType, Storage, Tensor
from memlint.named_tuple import NamedTuple


class Part(NamedTuple):
    """One of several stages of a pipeline that a rank has.

    loss     (batch) -> what goes to the next stage, or the loss
    modules  those that it has, for what gathers weights and reduces gradients around modules
    is_root  whether it has what lies in no layer
    """

    loss: Callable[[Any], Tensor]
    modules: Sequence[Module]
    is_root: bool


class System(NamedTuple):
    """One training run over meta tensors.

    model      everything whose parameters exist on the card; frozen parts have ``requires_grad`` False
    batch      makes one micro-batch's input tensors (they live as long as the loop holds them)
    loss       (batch) -> scalar, written as the real training loop writes it; locals live as they do there
    ema        modules of which a full second copy lives on the card
    helpers    resident models that are not trained (VAE, text encoder, teacher); counted apart
    evaluate   one evaluation batch without gradients, where the config has one; its result stays alive until
               the next batch replaces it
    clears_over
               share of the card: where more is reserved, the cache is emptied before that batch; 0 where it never is
    generate   what is sampled from the model before the first micro-batch, without gradients; nothing of it stays
    hand_over  what the loop does with the weights before the first micro-batch, outside of the model; nothing of it
               stays
    after_step what the loop does after the optimizer's step (EMA update with temporaries); usually None
    autocast   compute dtype of mixed precision, None for none
    optimizer  name in :data:`memlint.meta.optim.OPTIMIZERS`, with keyword arguments
    groups     the optimizer's param_groups, where it has several: foreach kernels go over one at a time
    master_weights
               the optimizer works on fp32 copies of 16-bit parameters
    apex       apex.amp's O1 in the place of torch's autocast: 16-bit copies of weights stay until the backward pass is
               over, and gradients that are kept are put aside for it
    offloads   what is saved for backward goes to host memory
    optimizer_in_backward
               each parameter is updated, and its gradient freed, as soon as that is there
    unused     parameters that train and that no optimizer has a state for: as they never get a gradient (no layer that
               runs has them), or as it was made before they were
    in_flight  micro-batches whose forward passes run before the first one's backward pass (pipeline stages)
    ahead      what those of them do that the newest one, which goes through ``loss``, has behind it
    after_backward
               what happens between the last backward pass and the optimizer's step
    resident   storages that live as long as the run
    parts      of a rank with several stages whose micro-batches all go through one stage before the next: all of
               them are recorded, and ``in_flight`` is how many are in the last one before the first goes back
    loading    what is on the card before the first step and given back then, where nothing shards the run
    let_go     storages that are given back while the model is loaded, and leave gaps for what comes
    warmed_bytes
               taken in one piece before the model is loaded, and given back to the allocator at once
    keeps_gradients  ``zero_grad`` writes zeros instead of letting go: torch's default before 2.0
    clears_late      the last step's gradients are let go between the forward pass and the backward pass: ``zero_grad``
               stands behind the loss
    framework  "torch" or "jax"
    uses       "matmul" and "convolution" decide which library workspaces the run needs
    """

    model: Module
    batch: Callable[[], Any]
    loss: Callable[[Any], Tensor]
    optimizer: str = "adamw"
    optimizer_options: dict[str, Any] = {}  # noqa: RUF012
    groups: Sequence[Sequence[Tensor]] = ()
    accumulation: int = 1
    autocast: DType | None = None
    ema: Sequence[Module] = ()
    helpers: Sequence[Module] = ()
    evaluate: Callable[[], Any] | None = None
    clears_over: float = 0.0
    generate: Callable[[], Any] | None = None
    hand_over: Callable[[], Any] | None = None
    after_step: Callable[[], Any] | None = None
    master_weights: bool = False
    offloads: bool = False
    optimizer_in_backward: bool = False
    unused: Sequence[Tensor] = ()
    keeps_gradients: bool = False
    apex: bool = False
    clears_late: bool = False
    in_flight: int = 1
    ahead: Callable[[Any], Tensor] | None = None
    after_backward: Callable[[], Any] | None = None
    resident: Sequence[Storage] = ()
    parts: Sequence[Part] = ()
    loading: Tape | None = None
    let_go: Sequence[int] = ()
    warmed_bytes: int = 0
    framework: str = "torch"
    uses: frozenset[str] = frozenset({"matmul"})
