"""Optimizers: what each keeps per parameter, and what one step needs besides.

Temporaries follow ``torch/optim/adam.py`` and its siblings: the loop makes two tensors of the parameter's size and
holds the last one into the next parameter's turn; ``foreach`` makes one list as large as all parameters; ``fused`` is
one kernel without temporaries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from memlint.meta.tape import Label
from memlint.meta.tensor import Block, DType, Tensor, block_like, empty_like, float32, int8, state

LOOP = "loop"
FOREACH = "foreach"
FUSED = "fused"


class Optimizer:
    """``allocate_state`` is what the first step does, so that the recorded step is a steady one."""

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
            self._step([p for p in self.parameters if p.grad is not None])
        finally:
            state.label = saved

    def _step(self, parameters: list[Tensor]) -> None:
        raise NotImplementedError

    def zero_grad(self) -> None:
        """``set_to_none=True``, torch's default."""
        for parameter in self.parameters:
            parameter.grad = None


class AdamW(Optimizer):
    """Adam and AdamW. With ``fused`` (or ``capturable``) the step counters live on the card as well."""

    def allocate_state(self) -> None:
        """First and second moment of one parameter after the other."""
        twice = [parameter for parameter in self.parameters for _ in range(2)]
        labels = self._labels(twice, "first moment")
        labels[1::2] = self._labels(self.parameters, "second moment")
        self.state.append(block_like(twice, self.state_dtype, labels))
        if self.implementation == FUSED:
            for label in self._labels(self.parameters, "step"):
                self.state.append(Block([float32.itemsize], [label], [((), float32.itemsize)]))

    def _step(self, parameters: list[Tensor]) -> None:
        if self.implementation == FUSED:
            return
        if self.implementation == FOREACH:
            # exp_avg_sq_sqrt = torch._foreach_sqrt(exp_avg_sqs): one more copy of every parameter
            block_like(parameters, self.state_dtype, self._labels(parameters, "step temporaries"))
            return
        denominator = None
        for parameter in parameters:
            # denom = (exp_avg_sq.sqrt() / bias_correction2_sqrt).add_(eps), while the last one still has its name
            self._label(parameter, "step temporaries")
            root = empty_like(parameter, self.state_dtype)
            quotient = empty_like(parameter, self.state_dtype)
            del root
            denominator = quotient
        del denominator


class SGD(Optimizer):
    """SGD. Weight decay makes one list of gradients anew with foreach; momentum keeps one tensor."""

    def __init__(
        self,
        parameters: Sequence[Tensor],
        implementation: str = FOREACH,
        state_dtype: DType | None = None,
        momentum: bool = False,
        weight_decay: bool = False,
    ) -> None:
        super().__init__(parameters, implementation, state_dtype)
        self.momentum = momentum
        self.weight_decay = weight_decay

    def _allocate(self, parameter: Tensor) -> None:
        if self.momentum:
            self._label(parameter, "momentum")
            self.state.append(empty_like(parameter, self.state_dtype))

    def _step(self, parameters: list[Tensor]) -> None:
        if self.implementation == FUSED or not self.weight_decay:
            return
        temporaries: list[Tensor] = []
        for parameter in parameters:
            self._label(parameter, "step temporaries")
            if self.implementation == LOOP:
                temporaries.clear()
            temporaries.append(empty_like(parameter))


class AdamW8bit(Optimizer):
    """bitsandbytes' blockwise 8-bit AdamW: one byte per state and a float32 absmax per block of 256; tensors under
    4,096 elements keep 32-bit states. (bitsandbytes ``optim/optimizer.py``: ``min_8bit_size=4096``; block size 256.)"""

    block: ClassVar[int] = 256
    smallest: ClassVar[int] = 4096

    def allocate_state(self) -> None:
        large = [parameter for parameter in self.parameters if parameter.numel >= self.smallest]
        if large:
            saved = state.label
            self._label(large[0], "quantisation maps")
            # One of 256 entries, signed, for the first moments, and one, unsigned, for the second.
            self.state += [Tensor((256,), float32), Tensor((256,), float32)]
            state.label = saved
        super().allocate_state()

    def _allocate(self, parameter: Tensor) -> None:
        for name in ("first moment", "second moment"):
            self._label(parameter, name)
            if parameter.numel < self.smallest:
                self.state.append(Tensor(parameter.shape, float32))
            else:
                self.state.append(Tensor(parameter.shape, int8))
                self._label(parameter, "absmax")
                self.state.append(Tensor((-(-parameter.numel // self.block),), float32))

    def _step(self, parameters: list[Tensor]) -> None:
        """One kernel per parameter, no temporaries."""


class Adafactor(Optimizer):
    """``torch.optim.Adafactor``: a row and a column statistic per matrix, one full tensor per vector; no momentum.
    torch's default is the loop. Local names hold what they hold in ``torch/optim/_adafactor.py``."""

    def _allocate(self, parameter: Tensor) -> None:
        self._label(parameter, "second moment (factored)")
        shape = parameter.shape
        if len(shape) > 1:
            self.state.append(Tensor((*shape[:-1], 1), parameter.dtype))
            self.state.append(Tensor((*shape[:-2], 1, shape[-1]), parameter.dtype))
        else:
            self.state.append(Tensor(shape, parameter.dtype))

    def _step(self, parameters: list[Tensor]) -> None:
        if self.implementation == FOREACH:
            updates: list[Tensor] = []
            for group in ([p for p in parameters if p.ndim > 1], [p for p in parameters if p.ndim <= 1]):
                if group:
                    self._label(group[0], "step temporaries")
                    updates = self._group_updates(group)  # the last group's keep their name until then
            del updates
            return
        row_mean = column_mean = squared = estimate = update = None
        for parameter in parameters:
            self._label(parameter, "step temporaries")
            if parameter.ndim > 1:
                row_mean = Tensor((*parameter.shape[:-1], 1), parameter.dtype)
                column_mean = Tensor((*parameter.shape[:-2], 1, parameter.shape[-1]), parameter.dtype)
                estimate = Tensor(parameter.shape, parameter.dtype)
                mean = self._mean(parameter)
                del mean
            else:
                squared = empty_like(parameter)
                estimate = empty_like(parameter)
            update = estimate
        del row_mean, column_mean, squared, estimate, update

    def _group_updates(self, group: list[Tensor]) -> list[Tensor]:
        if group[0].ndim <= 1:
            squared = [empty_like(p) for p in group]
            del squared
            return [empty_like(p) for p in group]
        rows = [Tensor((*p.shape[:-1], 1), p.dtype) for p in group]
        del rows
        columns = [Tensor((*p.shape[:-2], 1, p.shape[-1]), p.dtype) for p in group]
        del columns
        estimates = [Tensor(p.shape, p.dtype) for p in group]
        means = [self._mean(p) for p in group]
        del means
        return estimates

    @staticmethod
    def _mean(parameter: Tensor) -> Tensor:
        return Tensor((*parameter.shape[:-2], 1, 1), parameter.dtype)


OPTIMIZERS = {"adamw": AdamW, "adam": AdamW, "sgd": SGD, "adamw_8bit": AdamW8bit, "adafactor": Adafactor}
