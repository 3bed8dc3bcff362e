"""Optimizers: what each keeps per parameter, and what one step needs besides.

Temporaries follow ``torch/optim/adam.py`` and its siblings: the loop makes two tensors of the parameter's size and
holds the last one into the next parameter's turn; ``foreach`` makes one list as large as all parameters; ``fused`` is
one kernel without temporaries. Other libraries' (apex, DeepSpeed 0.19, transformers 5.23; ``optim_narrow.py`` and its
neighbours) are by their own sources, named at each class. :data:`OPTIMIZERS` has all by name.

Not modelled, because of its size: gradient clipping (``clip_grad_norm_`` makes one number per parameter and scales in
place) and ``GradScaler`` (two numbers).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from memlint.meta.optim_narrow import (
    AdamW8bit,
    AdEMAMix,
    AdEMAMix8bit,
    BitsAndBytes,
    Lamb,
    OneState8bit,
    OneStateBitsAndBytes,
    QuantisedAdam,
    QuantisedAdam4bit,
)
from memlint.meta.optimizer import FOREACH, FUSED, LOOP, Optimizer
from memlint.meta.tape import Label
from memlint.meta.tensor import Block, DType, Tensor, bfloat16, block_like, empty_like, float32, state


class AdamW(Optimizer):
    """Adam and AdamW. With ``fused`` (or ``capturable``) the step counters live on the card as well.

    ``keeps_roots``: ``foreach`` makes a list of denominators beside that of the roots they are made of.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        implementation: str = FOREACH,
        state_dtype: DType | None = None,
        keeps_roots: bool = False,
    ) -> None:
        super().__init__(parameters, implementation, state_dtype)
        self.keeps_roots = keeps_roots

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
            roots = block_like(parameters, self.state_dtype, self._labels(parameters, "step temporaries"))
            if self.keeps_roots:  # denom = torch._foreach_add(exp_avg_sq_sqrt, eps)
                block_like(parameters, self.state_dtype, self._labels(parameters, "step temporaries"))
            del roots
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


class PlainAdam(Optimizer):
    """Two moments and nothing else: kernels without temporaries. apex keeps fp32 moments
    (``optimizers/fused_adam.py``), DeepSpeed those of the parameters' dtype (``ops/adam/fused_adam.py``)."""

    moments: ClassVar[tuple[str, ...]] = ("first moment", "second moment")
    wide: ClassVar[bool] = False

    def _allocate(self, parameter: Tensor) -> None:
        for name in self.moments:
            self._label(parameter, name)
            self.state.append(empty_like(parameter, float32 if self.wide else self.state_dtype))

    def _step(self, parameters: list[Tensor]) -> None:
        """One kernel for all of them."""


class ApexAdam(PlainAdam):
    wide = True


class Lion(Optimizer):
    """One moment. The update is a tensor of the gradient's size, for one parameter at a time (``lion_pytorch.py``,
    and LLM Foundry's ``DecoupledLionW``)."""

    def _allocate(self, parameter: Tensor) -> None:
        self._label(parameter, "first moment")
        self.state.append(empty_like(parameter, self.state_dtype))

    def _step(self, parameters: list[Tensor]) -> None:
        update = None
        for parameter in parameters:
            self._label(parameter, "step temporaries")
            product = empty_like(parameter)
            update = product  # the last one keeps its name until the next is there
            del product
        del update


class RootOfSquares(Optimizer):
    """Adagrad and RMSprop without momentum: a sum of squares per parameter, of which the step takes the root.

    Adagrad's ``foreach`` makes a second list: the scaled gradients. (``torch/optim/adagrad.py``, ``rmsprop.py``)
    """

    lists: ClassVar[int] = 1

    def __init__(
        self,
        parameters: Sequence[Tensor],
        implementation: str = FOREACH,
        state_dtype: DType | None = None,
        weight_decay: bool = False,
    ) -> None:
        super().__init__(parameters, implementation, state_dtype)
        self.weight_decay = weight_decay

    def _allocate(self, parameter: Tensor) -> None:
        self._label(parameter, "second moment")
        self.state.append(empty_like(parameter, self.state_dtype))

    def _step(self, parameters: list[Tensor]) -> None:
        if self.implementation == FUSED:
            return
        if self.implementation == FOREACH:
            labels = self._labels(parameters, "step temporaries")
            made = [block_like(parameters, None, labels) for _ in range(self._lists())]
            del made
            return
        gradient = root = None
        for parameter in parameters:
            self._label(parameter, "step temporaries")
            gradient = None
            if self.weight_decay:
                gradient = empty_like(parameter)
            root = empty_like(parameter)
        del gradient, root

    def _lists(self) -> int:
        return self.lists + self.weight_decay


class Adagrad(RootOfSquares):
    def _lists(self) -> int:
        return 2  # with weight decay the decayed gradients, else the scaled ones


class Muon(Optimizer):
    """``torch.optim.Muon``: a momentum per matrix; five rounds of two products each, in bfloat16.

    Other parameters are given to AdamW (torch refuses them); their states are AdamW's. Each name of the rounds holds
    what it held until it is given the next (``_zeropower_via_newtonschulz``).
    """

    rounds: ClassVar[int] = 5

    def __init__(
        self,
        parameters: Sequence[Tensor],
        implementation: str = FOREACH,
        state_dtype: DType | None = None,
    ) -> None:
        super().__init__(parameters, implementation, state_dtype)
        self.others = AdamW([p for p in self.parameters if not self._is_matrix(p)], implementation, state_dtype)

    @staticmethod
    def _is_matrix(parameter: Tensor) -> bool:
        name = state.tape.labels[parameter.storage.index].module
        return parameter.ndim == 2 and "embed" not in name and "lm_head" not in name

    def _allocate(self, parameter: Tensor) -> None:
        if self._is_matrix(parameter):
            self._label(parameter, "momentum")
            self.state.append(empty_like(parameter, self.state_dtype))

    def allocate_state(self) -> None:
        super().allocate_state()
        if self.others.parameters:
            self.others.allocate_state()

    def _step(self, parameters: list[Tensor]) -> None:
        update = None
        for parameter in parameters:
            if self._is_matrix(parameter):
                self._label(parameter, "step temporaries")
                update = empty_like(parameter)
                update = self._orthogonal(update)
        del update
        rest = [p for p in parameters if not self._is_matrix(p)]
        if rest:
            self.others._step(rest)

    def _orthogonal(self, given: Tensor) -> Tensor:
        short, long = sorted(given.shape)
        made = given if given.dtype is bfloat16 else Tensor(given.shape, bfloat16)
        gram = update = None
        for _ in range(self.rounds):
            gram = Tensor((short, short), bfloat16)
            update = Tensor((short, short), bfloat16)
            made = Tensor((short, long), bfloat16)
        del gram, update
        return made


class WideAdafactor(Optimizer):
    """transformers' ``Adafactor`` without first moment, as the Trainer makes it: states in fp32; a parameter in 16 bits
    is cast and copied back. Names hold what they hold in ``optimization.py`` into the next parameter's turn."""

    def _allocate(self, parameter: Tensor) -> None:
        self._label(parameter, "second moment (factored)")
        shape = parameter.shape
        if len(shape) > 1:
            self.state.append(Tensor(shape[:-1], float32))
            self.state.append(Tensor((*shape[:-2], shape[-1]), float32))
        else:
            self.state.append(Tensor(shape, float32))
        self._label(parameter, "RMS")
        self.state.append(Tensor((), float32))

    def _step(self, parameters: list[Tensor]) -> None:
        gradient = wide = update = None
        for parameter in parameters:
            self._label(parameter, "step temporaries")
            shape = parameter.shape
            low = parameter.dtype.itemsize == 2
            gradient = Tensor(shape, float32) if low else None
            wide = Tensor(shape, float32) if low else None
            square = Tensor(shape, float32)
            update = Tensor(shape, float32)  # (grad**2) + eps
            del square
            if len(shape) > 1:
                mean = Tensor(shape[:-1], float32)
                del mean
                mean = Tensor((*shape[:-2], shape[-1]), float32)
                del mean
                rows = Tensor(shape[:-1], float32)
                columns = Tensor((*shape[:-2], shape[-1]), float32)
                estimate = Tensor(shape, float32)
                del rows, columns
                update = estimate
                del estimate
            else:
                update = Tensor(shape, float32)
            negative = Tensor(shape, float32)
            del negative
        del gradient, wide, update


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


class OnTheHost(Optimizer):
    """States and steps in host memory: the card keeps weights and gradients. (torchao 0.7,
    ``prototype/low_bit_optim/cpu_offload.py``, ``CPUOffloadOptimizer``; gradients stay unless it is told to move them.)
    """

    def _allocate(self, parameter: Tensor) -> None:
        pass

    def _step(self, parameters: list[Tensor]) -> None:
        pass


class MasterWeights(Optimizer):
    """fp32 copies of 16-bit parameters, which another optimizer works on; gradients are copied to fp32 for the step
    (Megatron's ``Float16OptimizerWithFloat16Params``, apex's ``O2``). DeepSpeed's are memlint.models.parallel's."""

    def __init__(self, parameters: Sequence[Tensor], kind: type[Optimizer], options: dict[str, Any]) -> None:
        super().__init__(parameters)
        self.masters: list[Tensor] = []
        saved = state.label
        for parameter in self.parameters:
            self._label(parameter, "master weights")
            narrow = parameter.dtype.itemsize < float32.itemsize
            master = Tensor(parameter.shape, float32) if narrow else parameter.detach()
            self.masters.append(master.requires_grad_())
        state.label = saved
        self.inner = kind(self.masters, **options)

    def allocate_state(self) -> None:
        self.inner.allocate_state()

    def _step(self, parameters: list[Tensor]) -> None:
        for parameter, master in zip(self.parameters, self.masters):
            if parameter.grad is not None:
                old = state.tape.labels[parameter.storage.index]
                state.label = Label("gradients", old.module, "fp32 copy")
                narrow = parameter.grad.dtype.itemsize < float32.itemsize
                master.grad = Tensor(parameter.shape, float32) if narrow else parameter.grad
        self.inner.step()
        self.inner.zero_grad()


HAS_FOREACH = (AdamW, SGD, RootOfSquares)  # torch's own, which take a step in one of three ways

OPTIMIZERS: dict[str, type[Optimizer]] = {
    "adamw": AdamW,
    "adam": AdamW,
    "sgd": SGD,
    "adafactor": Adafactor,
    "adagrad": Adagrad,
    "rmsprop": RootOfSquares,
    "lion": Lion,
    "muon": Muon,
    "lamb": PlainAdam,
    "adamw_8bit": AdamW8bit,
    "adam_8bit": AdamW8bit,
    "lion_8bit": OneState8bit,
    "adamw_4bit": QuantisedAdam4bit,
    "ademamix": AdEMAMix,
    "ademamix_8bit": AdEMAMix8bit,
    "rmsprop_8bit": OneState8bit,
    "adagrad_8bit": OneState8bit,
    # where a library's is not that of torch, or of bitsandbytes for 8 bits
    "adamw apex": ApexAdam,
    "adam apex": ApexAdam,
    "lamb apex": ApexAdam,
    "adamw deepspeed": PlainAdam,
    "adam deepspeed": PlainAdam,
    "adamw bitsandbytes": BitsAndBytes,
    "adam bitsandbytes": BitsAndBytes,
    "lamb bitsandbytes": Lamb,
    "lion bitsandbytes": OneStateBitsAndBytes,
    "rmsprop bitsandbytes": OneStateBitsAndBytes,
    "adagrad bitsandbytes": OneStateBitsAndBytes,
    "sgd bitsandbytes": OneStateBitsAndBytes,
    "adamw_8bit torchao": QuantisedAdam,
    "adam_8bit torchao": QuantisedAdam,
    "adafactor transformers": WideAdafactor,
    "adamw on the host": OnTheHost,
    "adam on the host": OnTheHost,
}


# Libraries whose optimizers are all in this table.
_HERE = frozenset(("torch", "apex", "deepspeed", "bitsandbytes", "torchao", "transformers"))


def known(name: str, library: str = "torch") -> str:
    """The key of :data:`OPTIMIZERS` for a library's optimizer; "" where it is not known."""
    if f"{name} {library}" in OPTIMIZERS:
        return f"{name} {library}"
    if name not in OPTIMIZERS or library not in _HERE:
        from memlint.meta import optim_libraries, optim_low_rank  # most runs do without

        OPTIMIZERS.update({**optim_libraries.KINDS, **optim_low_rank.KINDS})
    return next((one for one in (f"{name} {library}", name) if one in OPTIMIZERS), "")
