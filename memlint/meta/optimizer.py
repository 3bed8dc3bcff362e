"""What every optimizer does: states that its first step makes, and a step that takes the gradients which are there."""

from __future__ import annotations

from collections.abc import Sequence

from memlint.meta.tape import Label
from memlint.meta.tensor import Block, DType, Tensor, state

LOOP = "loop"

FOREACH = "foreach"

FUSED = "fused"


class Optimizer:
    """``allocate_state`` is what the first step does, so that the recorded step is a steady one.

    ``groups``: torch's param_groups; a step goes over one after the other. What none of them has is one more.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        implementation: str = FOREACH,
        state_dtype: DType | None = None,
    ) -> None:
        self.parameters = [p for p in parameters if p.requires_grad]
        self.implementation = implementation
        self.state_dtype = state_dtype
        self.state: list[Tensor | Block] = []
        self.groups: Sequence[Sequence[Tensor]] = ()

    def step_of(self, parameter: Tensor) -> None:
        """One parameter's step as soon as its gradient is there, which then goes (``optimizer_in_backward``)."""
        saved = state.label
        try:
            self._step([parameter])
        finally:
            state.label = saved
        parameter.grad = None

    def _labels(self, parameters: Sequence[Tensor], name: str) -> list[Label]:
        known = state.tape.labels
        return [Label("optimizer", known[parameter.storage.index].module, name) for parameter in parameters]

    def _label(self, parameter: Tensor, name: str) -> None:
        old = state.tape.labels[parameter.storage.index]
        state.label = Label("optimizer", old.module, name)

    def allocate_state(self) -> None:
        saved = state.label
        for parameter in self.parameters:
            self._allocate(parameter)
        state.label = saved

    def _allocate(self, parameter: Tensor) -> None:
        raise NotImplementedError

    def step(self) -> None:
        saved = state.label
        try:
            for group in self._grouped([parameter for parameter in self.parameters if parameter.grad is not None]):
                self._step(group)
        finally:
            state.label = saved

    def _grouped(self, parameters: list[Tensor]) -> list[list[Tensor]]:
        if not self.groups:
            return [parameters]
        numbers = {id(parameter): number for number, group in enumerate(self.groups) for parameter in group}
        found: dict[int, list[Tensor]] = {}
        for parameter in parameters:
            found.setdefault(numbers.get(id(parameter), len(self.groups)), []).append(parameter)
        return [found[number] for number in sorted(found)]

    def _step(self, parameters: list[Tensor]) -> None:
        raise NotImplementedError

    def zero_grad(self) -> None:
        """``set_to_none=True``, torch's default."""
        for parameter in self.parameters:
            parameter.grad = None
