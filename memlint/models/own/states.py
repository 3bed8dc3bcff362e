"""A module of a repository's own as a step that computes nothing: weights, gradients and states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memlint.facts.spec import TrainingSpec
from memlint.meta import autograd
from memlint.meta.tensor import Tensor, empty, float32
from memlint.models import UnknownModel
from memlint.models.own import as_unknown
from memlint.models.own.interpreter import Interpreter
from memlint.models.own.objects import OwnClass, OwnModule
from memlint.models.system import System


def build(spec: TrainingSpec) -> System:
    """The System of ``architecture = "own_states"``. Raises UnknownModel where its ``__init__`` is not followed."""
    with as_unknown():
        model = made(spec["own_model"])
    weights = [one for one in model.parameters() if one.requires_grad]
    if not weights:
        raise UnknownModel("the program's own model has no parameters that can be followed")

    def loss(given: Tensor) -> Tensor:
        out = empty((), float32)
        shapes = [(one.shape, one.dtype) for one in weights]
        autograd.record(out, tuple(weights), (), lambda g: tuple(Tensor(shape, dtype) for shape, dtype in shapes))
        return out

    return System(
        model=model,
        batch=lambda: empty((1,), float32),
        loss=loss,
        optimizer=str(spec.get("optimizer", "adamw")),
        optimizer_options={"implementation": spec.get("optimizer_implementation", "foreach")},
        uses=frozenset(),
    )


def made(told: Mapping[str, Any]) -> OwnModule:
    """The module, from its class and what the program makes it with."""
    interpreter = Interpreter(told["sources"])
    scope = interpreter.module(told["program"])
    kind = scope.names.get(told["class"])
    if not isinstance(kind, OwnClass) or not kind.is_module:
        raise UnknownModel(f"{told['class']} is no class that can be followed")

    def value(said: Any) -> Any:
        if isinstance(said, list):
            return [value(one) for one in said]
        if not isinstance(said, dict):
            return said
        if "_made_" not in said:
            return {name: value(one) for name, one in said.items()}
        config = scope.names.get(said["_made_"])
        if not isinstance(config, OwnClass):
            raise UnknownModel(f"{said['_made_']} is no class that can be followed")
        return interpreter.made(config, [], {name: value(one) for name, one in said["values"].items()})

    args = [value(one) for one in told["args"]]
    module = interpreter.made(kind, args, {name: value(one) for name, one in told["named"].items()})
    assert isinstance(module, OwnModule)
    return module
