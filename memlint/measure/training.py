"""The training loop around a model: the config's optimizer, precision, accumulation and EMA, in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from memlint.measure.child import MeasureError
from memlint.measure.factory import Workload
from memlint.named_tuple import NamedTuple

LEARNING_RATE = 1e-4  # of no account for memory
MICRO_BATCHES = 2  # the second meets the gradients of the first; a third would look like the second


class Plan(NamedTuple):
    """How a run trains, from the facts of its config.

    autocast        compute dtype of mixed precision; None for none
    implementation  foreach, loop or fused
    accumulation    micro-batches per optimizer step, at most two: a third one meets what the second one met
    """

    optimizer: str
    implementation: str
    accumulation: int
    autocast: torch.dtype | None
    ema: bool
    momentum: float
    weight_decay: float


# What one process cannot show (docs/facts.md): fact -> why.
SPREAD = {
    "parallelism.strategy": "spreads the run over several processes",
    "parallelism.zero_stage": "shards states over several processes",
    "parallelism.tensor": "splits layers over several processes",
    "parallelism.pipeline": "splits the model over several processes",
    "parallelism.context": "splits sequences over several processes",
    "parallelism.expert": "splits the experts over several processes",
    "parallelism.cpu_offload": "moves states to the host",
    "parallelism.offload_optimizer": "moves states to the host",
    "parallelism.offload_parameters": "moves parameters to the host",
    "activation_offloading": "moves activations to the host",
    "quantization.bits": "needs kernels that only run on a card",
}

DEGREES = {f"parallelism.{kind}" for kind in ("tensor", "pipeline", "context", "expert")}


def plan_of(request: dict[str, Any], spread: tuple[str, ...] = ("ddp",)) -> Plan:
    """Raises MeasureError for what one process cannot show; ``spread`` are the strategies that are no obstacle."""
    facts, keys = request["facts"], request["keys"]
    strategy = str(facts.get("parallelism.strategy") or "none").lower()
    for name, why in SPREAD.items():
        if name == "parallelism.strategy" and strategy in spread:
            continue
        value = facts.get(name)
        one = value == 1 and value is not True and name in DEGREES
        if not one and value not in (None, False, "", "none", "no"):
            raise MeasureError(f"{keys.get(name, name)} = {value} {why}, which a single process does not show")
    compute = facts.get("compute_dtype") or "float32"
    # FSDP2 casts what it gathers; autocast is for whoever says so.
    usual = compute != (facts.get("parameter_dtype") or "float32") and strategy != "fsdp2"
    mixed = facts.get("autocast", usual) and compute != "float32"
    return Plan(
        optimizer=str(facts.get("optimizer") or "adamw").lower(),
        implementation=str(facts.get("optimizer_implementation") or "foreach"),
        accumulation=min(int(facts.get("gradient_accumulation_steps") or 1), MICRO_BATCHES),
        autocast=getattr(torch, compute) if mixed else None,
        ema=facts.get("ema") not in (None, False, "cpu", "none"),
        momentum=float(facts.get("hyperparameters.momentum") or 0.0),
        weight_decay=float(facts.get("hyperparameters.weight_decay") or 0.0),
    )


def make_optimizer(plan: Plan, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer over the parameters that train. Raises MeasureError for one that PyTorch does not have."""
    foreach = {"foreach": plan.implementation == "foreach"}
    fused = {"fused": True} if plan.implementation == "fused" else foreach
    optim = torch.optim
    if plan.optimizer == "adamw":
        return optim.AdamW(parameters, lr=LEARNING_RATE, **fused)
    if plan.optimizer == "adam":
        return optim.Adam(parameters, lr=LEARNING_RATE, **fused)
    if plan.optimizer == "sgd":
        return optim.SGD(
            parameters,
            lr=LEARNING_RATE,
            momentum=plan.momentum,
            weight_decay=plan.weight_decay,
            **fused,
        )
    if plan.optimizer == "adafactor":
        return optim.Adafactor(parameters, lr=LEARNING_RATE, **foreach)
    if plan.optimizer == "rmsprop":
        return optim.RMSprop(parameters, lr=LEARNING_RATE, momentum=plan.momentum, **foreach)
    raise MeasureError(
        f"the optimizer {plan.optimizer} is not one of PyTorch's that can be run here (adamw, adam, sgd, adafactor, "
        "rmsprop); set one of them with -o to see the rest of the step"
    )


def checked_model(model: Any, source: str) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise MeasureError(f"{source}: built a {type(model).__name__}, not a torch.nn.Module")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise MeasureError(f"{source}: the model has no parameter that trains")
    return model


def checked_loss(loss: Any, source: str) -> Tensor:
    """The loss, if ``backward()`` can be called on it."""
    if not isinstance(loss, Tensor):
        what = f"a {type(loss).__name__}"
    elif loss.numel() != 1:
        what = f"a tensor of shape {tuple(loss.shape)}"
    elif not loss.requires_grad:
        what = "a tensor that does not depend on any parameter that trains"
    else:
        return loss
    raise MeasureError(
        f"{source}: the step gave {what} where a scalar loss is needed: write [probe] step = "
        '"package.module:function" in memlint.toml, a function (model, batch) -> loss'
    )


def copy_for_ema(model: nn.Module) -> list[tuple[str, Tensor]]:
    """A second copy of every parameter and buffer, as EMA keeps it, with the path of the original. (``deepcopy`` does
    not work on fake tensors.)"""
    seen: dict[int, tuple[str, Tensor]] = {}
    for path, tensor in (*model.named_parameters(), *model.named_buffers()):
        seen.setdefault(tensor.untyped_storage()._cdata, (path, tensor))
    return [(path, tensor.detach().clone()) for path, tensor in seen.values()]


class AutocastWatch:
    """Sees whether code opens autocast itself, and turns autocast for ``cuda`` into autocast for another device."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.opened = False
        self._watching = False  # inside a forward pass that we put under autocast

    @contextmanager
    def active(self) -> Iterator[None]:
        init, enter = torch.autocast.__init__, torch.autocast.__enter__
        watch = self

        def new_init(mode: Any, device_type: str, dtype: torch.dtype | None = None, *args: Any, **kwargs: Any) -> None:
            if device_type == "cuda" and watch.device != "cuda":
                device_type, dtype = watch.device, dtype or torch.get_autocast_dtype("cuda")
            init(mode, device_type, dtype, *args, **kwargs)

        def new_enter(mode: Any) -> Any:
            if watch._watching and mode._enabled:
                watch.opened = True
            return enter(mode)

        torch.autocast.__init__ = new_init
        torch.autocast.__enter__ = new_enter
        try:
            yield
        finally:
            torch.autocast.__init__ = init
            torch.autocast.__enter__ = enter

    def ours(self, dtype: torch.dtype | None) -> AbstractContextManager[Any]:
        """The config's autocast, for code that leaves it to the loop; nothing once it was seen to open its own."""
        if dtype is None or self.opened:
            return nullcontext()
        return self._around(dtype)

    @contextmanager
    def _around(self, dtype: torch.dtype) -> Iterator[None]:
        with torch.autocast(self.device, dtype):
            self._watching = True
            try:
                yield
            finally:
                self._watching = False


def step(
    model: nn.Module,
    work: Workload,
    plan: Plan,
    optimizer: torch.optim.Optimizer,
    device: str,
    autocast: AutocastWatch,
    phase: Callable[[str], AbstractContextManager[None]],
    around_last: Callable[[], AbstractContextManager[Any]] = nullcontext,
    after_backward: Callable[[], None] = lambda: None,
) -> None:
    """One optimizer step: forward and backward of each micro-batch, the update, ``zero_grad(set_to_none=True)``.

    ``around_last`` is entered around the last micro-batch's forward pass.
    """
    for number in range(plan.accumulation):
        with phase("forward"):
            batch = work.batch(device)
            with around_last() if number == plan.accumulation - 1 else nullcontext(), autocast.ours(plan.autocast):
                loss = checked_loss(work.loss(model, batch), work.source)
        with phase("backward"):
            loss.backward()
            after_backward()
    with phase("optimizer_step"):
        optimizer.step()
        optimizer.zero_grad()


def counts(parameters: Iterable[nn.Parameter]) -> tuple[int, int]:
    """(elements, of which trained), each parameter once."""
    every = list(parameters)
    return sum(p.numel() for p in every), sum(p.numel() for p in every if p.requires_grad)
