"""Optimizers of libraries of their own: updates inside of backward, fewer or other moments.

Each follows the step of the library that is named at its class, names included: what a name holds lives until the
name holds something else, into the next parameter's turn. Registered by :func:`memlint.meta.optim.known`.

    LOMO, AdaLOMO   no gradient lives longer than until the next one is there; no, or factored, states
    Adam-mini       one second moment per head or row
    schedule-free   a second point in place of the first moment
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from memlint.meta.optim import PlainAdam
from memlint.meta.optim_narrow import QuantisedAdam
from memlint.meta.optimizer import LOOP, Optimizer
from memlint.meta.tensor import DType, Tensor, bfloat16, block_like, empty_like, float32, int32, state, uint8


def factored(shape: tuple[int, ...]) -> Tensor:
    """The means of squares are taken in, and the estimate of all of them made from rows and columns."""
    mean = Tensor(shape[:-1], float32)
    del mean
    mean = Tensor((*shape[:-2], shape[-1]), float32)
    del mean
    return outer(shape)


def outer(shape: tuple[int, ...]) -> Tensor:
    """``_approx_sq_grad``."""
    rows = Tensor(shape[:-1], float32)
    columns = Tensor((*shape[:-2], shape[-1]), float32)
    estimate = Tensor(shape, float32)
    del rows, columns
    return estimate


class Lomo(Optimizer):
    """``lomo_optim`` 0.1.1, as accelerate runs it (one backward pass, no clipping): a hook of each gradient updates
    the parameter whose gradient came before, in fp32."""

    def __init__(
        self,
        parameters: Sequence[Tensor],
        implementation: str = LOOP,
        state_dtype: DType | None = None,
    ) -> None:
        super().__init__(parameters, implementation, state_dtype)
        self.waiting: Tensor | None = None

    def _allocate(self, parameter: Tensor) -> None:
        """No states."""

    def step_of(self, parameter: Tensor) -> None:
        before, self.waiting = self.waiting, parameter
        if before is not None and before.grad is not None:
            saved = state.label
            try:
                self._step([before])
            finally:
                state.label = saved

    def _step(self, parameters: list[Tensor]) -> None:
        for parameter in parameters:
            self._label(parameter, "step temporaries")
            gradient = Tensor(parameter.shape, float32) if parameter.dtype is not float32 else parameter.grad
            parameter.grad = None
            self.update(parameter)
            del gradient
        self.waiting = None if self.waiting in parameters else self.waiting

    def update(self, parameter: Tensor) -> None:
        if parameter.dtype is not float32:
            Tensor(parameter.shape, float32)


class AdaLomo(Lomo):
    """And a row and a column of second moments per matrix."""

    def _allocate(self, parameter: Tensor) -> None:
        self._label(parameter, "second moment (factored)")
        shape = parameter.shape
        if len(shape) > 1:
            self.state.append(Tensor(shape[:1], float32))
            self.state.append(Tensor(shape[1:2], float32))
        else:
            self.state.append(Tensor(shape, float32))

    def update(self, parameter: Tensor) -> None:
        shape = parameter.shape
        square = Tensor(shape, float32)
        update = Tensor(shape, float32)
        del square
        made = factored(shape) if len(shape) > 1 else Tensor(shape, float32)
        update = made
        wide = Tensor(shape, float32) if parameter.dtype is not float32 else None
        del made, update, wide


class AdamMini(Optimizer):
    """``adam_mini`` 1.1.1: a first moment, and one second moment per head of queries and keys, per row of other
    matrices, and per vector. ``head_numbers``: the numbers of a head, W * W / heads."""

    heads_of: ClassVar[tuple[str, ...]] = ("k_proj", "q_proj", "wq", "wk", "query", "key")
    rows_of: ClassVar[tuple[str, ...]] = (
        *("embed", "embd", "wte", "lm_head", "output", "final_layer", "v_proj", "wv", "value"),
        *("o_proj", "wo", "attn.proj", "feed_forward", "linear", "mlp"),
    )

    def __init__(
        self,
        parameters: Sequence[Tensor],
        implementation: str = LOOP,
        state_dtype: DType | None = None,
        head_numbers: int = 0,
    ) -> None:
        super().__init__(parameters, implementation, state_dtype)
        self.head_numbers = head_numbers

    def seconds(self, parameter: Tensor) -> tuple[int, ...]:
        """Shape of the second moment."""
        label = state.tape.labels[parameter.storage.index]
        name = f"{label.module}.{label.name}".lower()
        if "bias" in name:
            return parameter.shape
        if any(word in name for word in self.heads_of) and self.head_numbers:
            return (parameter.numel // self.head_numbers, 1)
        if any(word in name for word in self.rows_of) and parameter.ndim > 1:
            return (parameter.shape[0], 1)
        return ()

    def _allocate(self, parameter: Tensor) -> None:
        self._label(parameter, "first moment")
        self.state.append(empty_like(parameter))
        self._label(parameter, "second moment")
        self.state.append(Tensor(self.seconds(parameter), parameter.dtype))

    def _step(self, parameters: list[Tensor]) -> None:
        update = root = mean = size = None
        for parameter in parameters:
            self._label(parameter, "step temporaries")
            if self.seconds(parameter) == parameter.shape:
                made = empty_like(parameter)
                quotient = empty_like(parameter)
                del made
                root = quotient
                del quotient
                continue
            shape = self.seconds(parameter)
            square = empty_like(parameter)
            made = Tensor(shape, parameter.dtype)
            mean = made
            del square
            made = Tensor(shape, parameter.dtype)
            quotient = Tensor(shape, parameter.dtype)
            root = quotient
            del made
            made = Tensor(shape, parameter.dtype)
            size = made
            del quotient
            made = empty_like(parameter)
            update = made
            del made
            negative = empty_like(parameter)
            del negative
        del update, root, mean, size


class ScheduleFree(Optimizer):
    """``schedulefree`` 1.4.1, AdamW and RAdam: a second point and a second moment; gradients are scaled in place."""

    moments: ClassVar[tuple[str, ...]] = ("second point", "second moment")

    def _allocate(self, parameter: Tensor) -> None:
        for name in self.moments:
            self._label(parameter, name)
            self.state.append(empty_like(parameter))

    def _step(self, parameters: list[Tensor]) -> None:
        made = block_like(parameters, None, self._labels(parameters, "step temporaries"))
        del made


class ScheduleFreeSGD(ScheduleFree):
    """A second point alone."""

    moments = ("second point",)

    def _step(self, parameters: list[Tensor]) -> None:
        """In place."""


class MuonSGD(Optimizer):
    """``MuSGD`` of ultralytics 8.4 (``optim/muon.py``): a momentum for each weight, and another one for matrices and
    filters, whose updates are made in bfloat16, all of them together."""

    def _allocate(self, parameter: Tensor) -> None:
        for name in ("momentum", "momentum of SGD")[: 2 if parameter.ndim in (2, 4) else 1]:
            self._label(parameter, name)
            self.state.append(empty_like(parameter))

    def _step(self, parameters: list[Tensor]) -> None:
        updates = block_like(parameters, None, self._labels(parameters, "step temporaries"))
        rows = block_like(parameters, None, self._labels(parameters, "step temporaries"))
        turned = block_like(parameters, bfloat16, self._labels(parameters, "step temporaries"))
        del updates, rows, turned


class Optimi(PlainAdam):
    """``optimi`` 0.3.3, AdamW by a kernel: weights in 16 bits get what rounding lost as a third state."""

    scalars: ClassVar[tuple[str, ...]] = ()

    def _allocate(self, parameter: Tensor) -> None:
        super()._allocate(parameter)
        self._label(parameter, "lost to rounding")
        narrow = parameter.dtype.itemsize == 2
        self.state.append(empty_like(parameter) if narrow else Tensor((1,), uint8))


class StableAdamW(Optimi):
    """And a number per parameter for the size of its update."""

    def _allocate(self, parameter: Tensor) -> None:
        super()._allocate(parameter)
        self._label(parameter, "size of the update")
        self.state.append(Tensor((), parameter.dtype))
        self.state.append(Tensor((1,), float32))


class AnyPrecision(Optimizer):
    """torchdistx's ``AnyPrecisionAdamW`` as transformers makes it: moments in fp32, no compensation."""

    def _allocate(self, parameter: Tensor) -> None:
        for name in ("first moment", "second moment"):
            self._label(parameter, name)
            self.state.append(Tensor(parameter.shape, float32))

    def _step(self, parameters: list[Tensor]) -> None:
        root = None
        for parameter in parameters:
            self._label(parameter, "step temporaries")
            made = Tensor(parameter.shape, float32)
            quotient = Tensor(parameter.shape, float32)
            del made
            root = quotient
            del quotient
        del root


class CompensatedAdam(Optimizer):
    """EasyR1's ``AnyPrecisionAdamW`` (verl/utils/torch_functional.py at b44b311): both moments and what rounding took
    from the weights in bfloat16; a step holds the denominators and the old weights into the next parameter's turn."""

    def _allocate(self, parameter: Tensor) -> None:
        for name in ("first moment", "second moment", "compensation"):
            self._label(parameter, name)
            self.state.append(Tensor(parameter.shape, bfloat16))

    def _step(self, parameters: list[Tensor]) -> None:
        denominator = before = None
        for parameter in parameters:
            self._label(parameter, "step temporaries")
            root = Tensor(parameter.shape, bfloat16)
            quotient = Tensor(parameter.shape, bfloat16)
            del root
            denominator = quotient
            del quotient
            weights = empty_like(parameter)
            before = weights
            del weights
        del denominator, before


class StochasticAdam(CompensatedAdam):
    """SimpleTuner's ``AdamWBF16`` (helpers/training/optimizers/adamw_bfloat16 at bc8e6ab): the same states. Each sum is
    made in float32 and rounded by chance from there (``stochastic/__init__.py``: ``copy_stochastic_``)."""

    def _step(self, parameters: list[Tensor]) -> None:
        for parameter in parameters:
            self._label(parameter, "step temporaries")
            root = Tensor(parameter.shape, bfloat16)
            summed = Tensor(parameter.shape, float32)
            drawn = Tensor(parameter.shape, int32)
            del summed, drawn, root
            weights = empty_like(parameter)
            summed = Tensor(parameter.shape, float32)
            drawn = Tensor(parameter.shape, int32)
            del summed, drawn, weights


class GrokAdamW(Optimizer):
    """``grokadamw`` 0.1.2: three states in host memory, brought to the card one parameter at a time."""

    def _allocate(self, parameter: Tensor) -> None:
        """Nothing stays on the card."""

    def _step(self, parameters: list[Tensor]) -> None:
        first = second = slow = mixed = None
        for parameter in parameters:
            self._label(parameter, "step temporaries")
            made = empty_like(parameter)
            other = empty_like(parameter)
            first, second = made, other
            made = empty_like(parameter)
            slow = made
            scaled = empty_like(parameter)
            made = empty_like(parameter)
            del scaled
            mixed = made
            del made, other
            root = empty_like(parameter)
            del root
        del first, second, slow, mixed


class Came(Optimizer):
    """``came_pytorch`` 0.1.3: a first moment in fp32, and rows and columns of two kinds of squares per matrix."""

    def _allocate(self, parameter: Tensor) -> None:
        shape = parameter.shape
        self._label(parameter, "first moment")
        self.state.append(Tensor(shape, float32))
        self._label(parameter, "second moment (factored)")
        if len(shape) > 1:
            for _ in range(2):
                self.state.append(Tensor(shape[:-1], float32))
                self.state.append(Tensor((*shape[:-2], shape[-1]), float32))
        else:
            self.state.append(Tensor(shape, float32))
        self.state.append(Tensor((), parameter.dtype))

    def _step(self, parameters: list[Tensor]) -> None:
        gradient = update = residual = estimate = None
        for parameter in parameters:
            self._label(parameter, "step temporaries")
            shape = parameter.shape
            made = Tensor(shape, float32) if parameter.dtype is not float32 else None
            gradient = made
            square = Tensor(shape, float32)
            made = Tensor(shape, float32)
            update = made
            del square
            made = factored(shape) if len(shape) > 1 else Tensor(shape, float32)
            update = made
            difference = Tensor(shape, float32)
            square = Tensor(shape, float32)
            del difference
            made = Tensor(shape, float32)
            residual = made
            del square
            if len(shape) > 1:
                made = factored(shape)
                estimate = made
                update = estimate
            else:
                made = Tensor(shape, float32)
                update = made
            del made
            negative = Tensor(shape, float32)
            del negative
        del gradient, update, residual, estimate


class Prodigy(Optimizer):
    """``prodigyopt`` 1.1.2: two moments, a sum, and the first values of what is not zero then, which the upper matrix
    of an adapter is; two passes over the parameters."""

    states: ClassVar[tuple[str, ...]] = ("sum of gradients", "first values", "first moment", "second moment")

    def _allocate(self, parameter: Tensor) -> None:
        label = state.tape.labels[parameter.storage.index]
        zero = label.name == "up" or label.module.endswith("lora_B")
        for name in self.states:
            self._label(parameter, name)
            self.state.append(Tensor((), parameter.dtype) if zero and name == "first values" else empty_like(parameter))

    def _step(self, parameters: list[Tensor]) -> None:
        for parameter in parameters:
            self._estimate(parameter)
        root = None
        for parameter in parameters:
            self._label(parameter, "step temporaries")
            made = empty_like(parameter)
            root = made  # the last one keeps its name until the next is there
            del made
        del root

    def _estimate(self, parameter: Tensor) -> None:
        """What the step's size is guessed by: one product, and one sum of absolute values."""
        self._label(parameter, "step temporaries")
        for _ in range(2):
            made = empty_like(parameter)
            number = Tensor((), parameter.dtype)
            del made, number


class DAdaptAdam(Prodigy):
    """``dadaptation`` 3.2: the same without first values; the root of the first pass keeps its name."""

    states: ClassVar[tuple[str, ...]] = ("sum of gradients", "first moment", "second moment")

    def _step(self, parameters: list[Tensor]) -> None:
        root = None
        for first in (True, False):
            for parameter in parameters:
                self._label(parameter, "step temporaries")
                made = empty_like(parameter)
                root = made
                del made
                if first:
                    self._estimate(parameter)
        del root


class AdamWFp8(QuantisedAdam):
    """torchao's: codes are numbers of 8 bits, so there is no table, and one kernel makes them in place."""

    copied = False

    def _allocate(self, parameter: Tensor) -> None:
        for name in ("first moment", "second moment"):
            self._label(parameter, name)
            if parameter.numel < self.smallest or parameter.numel % self.block:
                self.state.append(empty_like(parameter))
                continue
            self.state.append(Tensor((parameter.numel,), uint8))
            self.state.append(Tensor((parameter.numel // self.block,), float32))


class NanochatMuon(Optimizer):
    """nanochat's own (``nanochat/optim.py`` at 92d63d4; before 2026-01-29 ``muon.py`` and ``adamw.py``): Muon for the
    layers' matrices, AdamW for all else. Each rank has the states of its share: of matrices of one shape so many whole
    ones, of other tensors a slice of their rows, and of small ones all. Compiled kernels update in place.

    matrices  of the layers
    ranks     that share states
    stacked   gradients of one shape are put together before they are reduced (from 2026-01-11 on), and a second moment
              is kept for each row or column; before that each matrix goes by itself
    """

    small: ClassVar[int] = 1024  # numbers of what is not sliced
    rounds: ClassVar[int] = 5

    def __init__(
        self,
        parameters: Sequence[Tensor],
        implementation: str = LOOP,
        state_dtype: DType | None = None,
        matrices: Sequence[Tensor] = (),
        ranks: int = 1,
        stacked: bool = True,
    ) -> None:
        super().__init__(parameters, implementation, state_dtype)
        self.ranks, self.stacked = ranks, stacked
        own = {id(x) for x in matrices}
        self.others = [x for x in self.parameters if id(x) not in own]
        groups: dict[tuple[int, ...], list[Tensor]] = {}
        for x in self.parameters:
            if id(x) in own:
                groups.setdefault(x.shape, []).append(x)
        self.shapes = sorted(groups.items())

    def _share(self, members: Sequence[Tensor]) -> int:
        """Of so many matrices, those of the first rank."""
        return -(-len(members) // self.ranks)

    def _slice(self, x: Tensor) -> tuple[int, ...]:
        return x.shape if self.ranks == 1 or x.numel < self.small else (x.shape[0] // self.ranks, *x.shape[1:])

    def allocate_state(self) -> None:
        saved = state.label
        for x in self.others:
            for name in ("first moment", "second moment"):
                self._label(x, name)
                self.state.append(Tensor(self._slice(x), x.dtype))
        for shape, members in self.shapes:
            share = self._share(members)
            if not self.stacked and self.ranks > 1:
                self._label(members[0], "zeros")
                self.state.append(Tensor(shape, float32))
            self._label(members[0], "momentum")
            pieces = [(share, *shape)] if self.stacked else [shape] * share
            self.state += [Tensor(piece, float32) for piece in pieces]
            if self.stacked:
                self._label(members[0], "second moment (factored)")
                rows, columns = shape
                self.state.append(Tensor((share, rows, 1) if rows >= columns else (share, 1, columns), float32))
        state.label = saved

    def step(self) -> None:
        saved = state.label
        slices = []
        for x in self.others:
            if self._slice(x) != x.shape:
                self._label(x, "reduced gradient")
                slices.append(Tensor(self._slice(x), x.dtype))
        sent, own, gathered = [], [], []
        for shape, members in self.shapes:
            self._label(members[0], "stacked gradients")
            share, count = self._share(members), len(members)
            if self.ranks > 1:
                stack = Tensor((count, *shape), float32) if self.stacked else None
                sent.append(Tensor((share * self.ranks, *shape), float32))
                del stack
            own.append(Tensor((share, *shape), float32) if self.stacked else None)
        for number, (shape, members) in enumerate(self.shapes):
            self._label(members[0], "step temporaries")
            share = self._share(members)
            weights = Tensor((share, *shape), float32) if self.stacked else None
            for _ in range(1 if self.stacked else share):
                self._orthogonal((share, *shape) if self.stacked else shape)
            if self.ranks > 1:
                updated = Tensor((share, *shape), float32) if self.stacked else None
                gathered.append(updated if self.stacked else Tensor((share * self.ranks, *shape), float32))
                if not self.stacked:
                    sent[number] = Tensor((), float32)
                del updated
            else:
                gathered.append(weights)
            del weights
        del slices, sent, own, gathered
        state.label = saved

    def _orthogonal(self, shape: tuple[int, ...]) -> None:
        short = min(shape[-2:])
        square = (*shape[:-2], short, short)
        made = Tensor(shape, bfloat16)
        for _ in range(self.rounds):
            gram = Tensor(square, bfloat16)
            product = Tensor(square, bfloat16)
            del gram
            made = Tensor(shape, bfloat16)
            del product
        del made


class TimmLamb(PlainAdam):
    """timm's ``Lamb`` (``optim/lamb.py``), which goes over one parameter after the other, and from 1.0.23 on over so
    many at once as the card's cache has room for."""

    def _step(self, parameters: list[Tensor]) -> None:
        gradient = denominator = update = None
        for parameter in parameters:
            self._label(parameter, "step temporaries")
            gradient = empty_like(parameter)  # clipped
            root = empty_like(parameter, self.state_dtype)
            denominator = empty_like(parameter, self.state_dtype)
            del root
            update = empty_like(parameter, self.state_dtype)
        del gradient, denominator, update


class TimmRMSprop(PlainAdam):
    """timm's ``RMSpropTF`` with momentum and weight decay (``optim/rmsprop_tf.py``), one parameter after the other."""

    moments = ("mean of squares", "momentum")

    def _step(self, parameters: list[Tensor]) -> None:
        gradient = average = None
        for parameter in parameters:
            self._label(parameter, "step temporaries")
            gradient = empty_like(parameter)  # decayed
            square = empty_like(parameter, self.state_dtype)
            difference = empty_like(parameter, self.state_dtype)
            del square, difference
            average = empty_like(parameter, self.state_dtype)
            negative = empty_like(parameter, self.state_dtype)
            del negative
        del gradient, average


KINDS: dict[str, type[Optimizer]] = {
    "lamb timm": TimmLamb,
    "rmsprop timm": TimmRMSprop,
    "lomo": Lomo,
    "adalomo": AdaLomo,
    "adam_mini": AdamMini,
    "schedule_free_adamw": ScheduleFree,
    "schedule_free_radam": ScheduleFree,
    "schedule_free_sgd": ScheduleFreeSGD,
    "stable_adamw": StableAdamW,
    "optimi_adamw": Optimi,
    "musgd": MuonSGD,
    "nanochat_muon": NanochatMuon,
    "adamw_anyprecision": AnyPrecision,
    "adamw_compensated": CompensatedAdam,
    "adamw_compensated SimpleTuner": StochasticAdam,
    "grokadamw": GrokAdamW,
    "came": Came,
    "prodigy": Prodigy,
    "dadapt_adam": DAdaptAdam,
    "adamw_fp8": AdamWFp8,
}
