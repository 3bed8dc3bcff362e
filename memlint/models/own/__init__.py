"""A model of a repository's own, as its modules say it: ``architecture`` = "own_model".

The fact ``own_model`` holds the texts of the program and of its modules, and what its command says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from memlint.facts.spec import TrainingSpec
from memlint.meta.autograd import no_grad
from memlint.meta.nn import Module
from memlint.meta.tensor import DTYPES, Tensor, empty, int64, state
from memlint.models import UnknownModel
from memlint.models.language import sequence_length
from memlint.models.language.losses import Variable
from memlint.models.own.objects import Modules, OwnModule
from memlint.models.own.program import model_of
from memlint.models.system import System

LIBRARY = "the step of a repository's own program, of whichever release of torch"


def uncompiled(spec: TrainingSpec) -> TrainingSpec:
    """The same run where the compiler fuses nothing."""
    return spec.replaced({"compile": False})


def build(spec: TrainingSpec) -> System:
    """The System of ``architecture = "own_model"``. Raises UnknownModel where its code does what is not known."""
    told: Mapping[str, Any] = spec["own_model"]
    with as_unknown():
        model, where = model_of(told["sources"], told["program"], told["said"], told["fixed"])
    if spec.get("compile", False):
        for one in model.modules():
            for inner in one.layers if isinstance(one, Modules) else ():
                if isinstance(inner, OwnModule):
                    inner.compiles = True
    length, rows = sequence_length(spec), spec["micro_batch_size"]
    compute = spec.get("compute_dtype", "float32")
    outputs = Variable()

    def batch() -> tuple[Tensor, Tensor]:
        return empty((rows, length), int64), empty((rows, length), int64)

    def loss(given: tuple[Tensor, Tensor]) -> Tensor:
        with as_unknown():
            if outputs.value is None and state.grad_enabled:
                outputs.value = _of_last_step(model, given)
            found = model(*given)
            outputs.value = found  # the loop has names for them
            return _loss_of(model, found, where)

    return System(
        model=model,
        batch=batch,
        loss=loss,
        optimizer=str(spec.get("optimizer", "adamw")),
        optimizer_options={"implementation": spec.get("optimizer_implementation", "foreach")},
        accumulation=spec.get("gradient_accumulation_steps", 1),
        autocast=DTYPES[compute] if spec.get("autocast", False) else None,
    )


# What a stranger's code makes of values that it is not made for: sizes that do not go together, no such item.
_FAILURES = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, AssertionError, RecursionError)


@contextmanager
def as_unknown() -> Iterator[None]:
    try:
        yield
    except _FAILURES as error:
        raise UnknownModel(f"the model of the program's own cannot be followed: {error}") from None


def _of_last_step(model: Module, given: tuple[Tensor, Tensor]) -> Any:
    """What the model handed out in the step before: the loop still has names for it, and for nothing else of it."""
    begin = len(state.tape.events)
    with no_grad():
        found = model(*given)
    events = state.tape.events
    freed = {~event for event in events[begin:] if event < 0}
    events[begin:] = [event for event in events[begin:] if event >= 0 and event not in freed]
    return found


def _loss_of(model: Module, found: Any, where: Any) -> Tensor:
    loss = found
    if isinstance(where, int):
        loss = found[where]
    elif where:
        loss = getattr(model, where, None)
    if not isinstance(loss, Tensor) or loss.shape:
        raise UnknownModel("what the model returns has no loss")
    return loss
