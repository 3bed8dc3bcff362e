"""GaLore and APOLLO: states of a gradient that a thin matrix made narrow.

The step that is recorded is one that makes the thin matrices anew (every 200th, and the first): it needs the most. What
a name holds lives until the name holds something else, into the next parameter's turn, as in the libraries' own steps.
Registered by :func:`memlint.meta.optim.known`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from memlint.meta.optim_libraries import factored
from memlint.meta.optim_narrow import AdamW8bit
from memlint.meta.optimizer import LOOP, Optimizer
from memlint.meta.tensor import DType, Tensor, empty_like, float32, state, uint8

# cuSOLVER's singular value decomposition overwrites its input and gives V, not its transpose: both are copies
# (ATen/native/cuda/linalg/BatchLinearAlgebraLib.cpp). Tests on fake CPU tensors switch them off.
DECOMPOSITION_COPIES = True

# Last names of modules with a matrix that are no linear layers.
_TABLES = ("embed", "wte", "wpe", "shared", "relative_attention_bias")


def is_linear(module: str) -> bool:
    """Whether a matrix of this module (its dotted path) is a linear layer's, by its name."""
    last = module.rpartition(".")[2]
    return bool(module) and not any(word in last for word in _TABLES)


def chosen(targets: Any) -> Callable[[str], bool]:
    """(a module's path) -> whether it is meant: by parts of paths, or patterns over whole ones (transformers'
    ``check_target_module_exists``); ``all-linear``, or ``inner-linear`` for all but the head."""
    if targets == "all-linear":
        return lambda path: True
    if targets == "inner-linear":
        return lambda path: not path.endswith(("lm_head", "score", "classifier"))
    names = [targets] if isinstance(targets, str) else [str(name) for name in targets]

    def matches(path: str) -> bool:
        import re

        # What transformers calls ``attn`` or ``attention`` is ``self_attn`` in our models.
        for name in (path, path.replace("self_attn", "attention"), path.replace("self_attn", "attn")):
            for target in names:
                if target in name or re.fullmatch(target, name):
                    return True
        return False

    return matches


class LowRank(Optimizer):
    """What GaLore and APOLLO share: which gradients are projected, to which shapes.

    Of an (m, n) gradient the shorter side becomes ``rank``: (m, r) where m >= n, else (r, n).
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        implementation: str = LOOP,
        state_dtype: DType | None = None,
        rank: int = 128,
        targets: Any = "all-linear",
    ) -> None:
        super().__init__(parameters, implementation, state_dtype)
        self.rank, self.chosen = rank, chosen(targets)
        self.projectors: dict[int, Tensor] = {}

    def projected(self, parameter: Tensor) -> bool:
        label = state.tape.labels[parameter.storage.index]
        return parameter.ndim == 2 and label.name == "weight" and is_linear(label.module) and self.chosen(label.module)

    def low(self, parameter: Tensor) -> tuple[int, int]:
        rows, columns = parameter.shape
        rank = min(self.rank, rows, columns)
        return (rows, rank) if rows >= columns else (rank, columns)

    def allocate_state(self) -> None:
        saved = state.label
        for parameter in self.parameters:
            if self.projected(parameter):
                self._label(parameter, "projection")
                self.projectors[id(parameter)] = self.kept(parameter)
            self._allocate(parameter)
        state.label = saved

    def kept(self, parameter: Tensor) -> Tensor:
        """The thin matrix, as it stays."""
        raise NotImplementedError

    def _shape(self, parameter: Tensor) -> tuple[int, ...]:
        return self.low(parameter) if id(parameter) in self.projectors else parameter.shape


class GaLore(LowRank):
    """``galore_torch`` 1.0, ``AdamW``: moments of the projected gradient; the thin matrix is a slice of what the
    decomposition gave, so in fp32 all of that stays."""

    def kept(self, parameter: Tensor) -> Tensor:
        rows, columns = parameter.shape
        short = min(rows, columns)
        rank = short if parameter.dtype is float32 else min(self.rank, short)
        return Tensor((rank, columns) if rows >= columns else (rows, rank), parameter.dtype)

    def _allocate(self, parameter: Tensor) -> None:
        for name in ("first moment", "second moment"):
            self._label(parameter, name)
            self.state.append(Tensor(self._shape(parameter), parameter.dtype))

    def remade(self, parameter: Tensor, dtype: DType) -> Tensor:
        """``get_orthogonal_matrix`` of a gradient in ``dtype``."""
        rows, columns = parameter.shape
        short, rank = min(rows, columns), min(self.rank, *parameter.shape)
        wide = Tensor(parameter.shape, float32) if dtype is not float32 else None
        copies = [Tensor(parameter.shape, float32), Tensor((columns, short), float32)] if DECOMPOSITION_COPIES else []
        left = Tensor((rows, short), float32)
        values = Tensor((short,), float32)
        right = Tensor((short, columns), float32)
        copies.clear()
        diagonal = Tensor((rank, rank), float32)
        other = Tensor((rows, rank) if rows >= columns else (rank, columns), float32)
        del diagonal
        made = right if rows >= columns else left
        if dtype is not float32:
            made = Tensor((rank, columns) if rows >= columns else (rows, rank), dtype)
        del wide, left, values, right, other
        return made

    def project(self, parameter: Tensor, dtype: DType) -> Tensor:
        self.projectors[id(parameter)] = self.remade(parameter, dtype)
        return Tensor(self.low(parameter), dtype)

    @staticmethod
    def back(parameter: Tensor, dtype: DType) -> Tensor:
        full = Tensor(parameter.shape, dtype)
        scaled = Tensor(parameter.shape, dtype)
        del full
        return scaled

    def _step(self, parameters: list[Tensor]) -> None:
        gradient = root = normed = None
        for parameter in parameters:
            self._label(parameter, "step temporaries")
            dtype, projected = parameter.dtype, id(parameter) in self.projectors
            gradient = None
            gradient = self.project(parameter, dtype) if projected else None
            shape = self._shape(parameter)
            made = Tensor(shape, dtype)
            root = made
            made = Tensor(shape, dtype)
            normed = made
            del made
            if projected:
                full = self.back(parameter, dtype)
                normed = full
                del full
        del gradient, root, normed


class GaLore8bit(GaLore):
    """``galore_torch`` 1.0, ``AdamW8bit``: bitsandbytes' states of the projected gradient. For the step, the weight
    is put aside as a copy, and the projected gradient takes the gradient's place."""

    def allocate_state(self) -> None:
        saved = state.label
        if any(parameter.numel >= AdamW8bit.smallest for parameter in self.parameters):
            self._label(self.parameters[0], "quantisation maps")
            self.state += [Tensor((256,), float32) for _ in range(2)]
        state.label = saved
        super().allocate_state()

    def _allocate(self, parameter: Tensor) -> None:
        shape = self._shape(parameter)
        count = 1
        for size in shape:
            count *= size
        narrow = count >= AdamW8bit.smallest
        for name in ("first moment", "second moment"):
            self._label(parameter, name)
            self.state.append(Tensor(shape, uint8 if narrow else float32))
            if narrow:
                self._label(parameter, "absmax")
                self.state.append(Tensor((-(-count // AdamW8bit.block),), float32))

    def _step(self, parameters: list[Tensor]) -> None:
        gradient = None
        for parameter in parameters:
            if id(parameter) not in self.projectors:
                continue
            self._label(parameter, "step temporaries")
            made = self.project(parameter, parameter.dtype)
            gradient = made
            del made
            aside = empty_like(parameter)
            del aside  # the copy stays, and what it is a copy of goes
            narrow = Tensor(self.low(parameter), parameter.dtype)
            parameter.grad = gradient
            full = self.back(parameter, parameter.dtype)
            del full, narrow
        del gradient


class GaLoreAdafactor(GaLore):
    """``galore_torch`` 1.0, ``Adafactor``: gradients are widened first, so the thin matrix is in fp32, and all of
    the decomposition stays."""

    def kept(self, parameter: Tensor) -> Tensor:
        rows, columns = parameter.shape
        short = min(rows, columns)
        return Tensor((short, columns) if rows >= columns else (rows, short), float32)

    def _allocate(self, parameter: Tensor) -> None:
        self._label(parameter, "second moment (factored)")
        shape = self._shape(parameter)
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
            low, projected = parameter.dtype is not float32, id(parameter) in self.projectors
            made = Tensor(parameter.shape, float32) if low else None
            gradient = made
            if projected:
                made = self.project(parameter, float32)
                gradient = made
            made = Tensor(parameter.shape, float32) if low else None
            wide = made
            del made
            shape = self._shape(parameter)
            square = Tensor(shape, float32)
            made = Tensor(shape, float32)
            update = made
            del square
            made = factored(shape) if len(shape) > 1 else Tensor(shape, float32)
            update = made
            if projected:
                made = self.back(parameter, float32)
                update = made
            del made
            negative = empty_like(update)
            del negative
        del gradient, wide, update


class Apollo(LowRank):
    """``apollo_torch`` 1.0.3, ``AdamW``: GaLore's moments behind a random matrix; the raw gradient is scaled per
    channel by what they say, and by how it has grown."""

    def kept(self, parameter: Tensor) -> Tensor:
        rows, columns = parameter.shape
        rank = min(self.rank, rows, columns)
        return Tensor((rank, columns) if rows >= columns else (rows, rank), parameter.dtype)

    def _allocate(self, parameter: Tensor) -> None:
        for name in ("first moment", "second moment"):
            self._label(parameter, name)
            self.state.append(Tensor(self._shape(parameter), parameter.dtype))
        if id(parameter) in self.projectors:
            self._label(parameter, "norm of the scaled gradient")
            self.state.append(Tensor((), parameter.dtype))

    def remade(self, parameter: Tensor) -> Tensor:
        """A copy in fp32 stands for the gradient, whose shape alone is looked at."""
        rows, columns = parameter.shape
        rank = min(self.rank, rows, columns)
        shape = (rank, columns) if rows >= columns else (rows, rank)
        wide = Tensor(parameter.shape, float32) if parameter.dtype is not float32 else None
        drawn = Tensor(shape, float32)
        made = Tensor(shape, float32)
        del drawn
        if parameter.dtype is not float32:
            made = Tensor(shape, parameter.dtype)
        del wide
        return made

    def _step(self, parameters: list[Tensor]) -> None:
        gradient = root = normed = scaled = factor = limiter = None
        for parameter in parameters:
            self._label(parameter, "step temporaries")
            dtype, projected = parameter.dtype, id(parameter) in self.projectors
            gradient = None
            if projected:
                self.projectors[id(parameter)] = self.remade(parameter)
                gradient = Tensor(self.low(parameter), dtype)
            shape = self._shape(parameter)
            made = Tensor(shape, dtype)
            root = made
            made = Tensor(shape, dtype)
            normed = made
            if projected:
                made = Tensor((max(parameter.shape),), dtype)
                factor = made
                made = empty_like(parameter)
                scaled = made
                made = Tensor((), dtype)
                limiter = made
                made = empty_like(parameter)  # divided by the limiter
                scaled = made
                normed = scaled
            del made
        del gradient, root, normed, scaled, factor, limiter


KINDS: dict[str, type[Optimizer]] = {
    "galore_adamw": GaLore,
    "galore_adamw_8bit": GaLore8bit,
    "galore_adafactor": GaLoreAdafactor,
    "apollo_adamw": Apollo,
}
