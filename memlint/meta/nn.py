"""Modules: parameters, buffers, names. Written so that an architecture reads as it does in torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from memlint.meta import functional as F
from memlint.meta.tape import Label
from memlint.meta.tensor import DType, Tensor, float32, int64, relabel, state


def parameter(*shape: int, dtype: DType | None = None) -> Tensor:
    """A trainable leaf."""
    saved = state.label
    state.label = Label("parameters", saved.module) if saved.module else _PARAMETERS
    leaf = Tensor(shape, dtype or state.default_dtype)
    state.label = saved
    leaf.requires_grad = True
    return leaf


_PARAMETERS = Label("parameters", "")
# Most attributes, which no module is found in.
_CHILDLESS = frozenset((Tensor, bool, float, int, str, type(None)))


def buffer(*shape: int, dtype: DType = float32) -> Tensor:
    """A leaf that is not trained (running statistics, position tables). Counted apart from parameters."""
    saved = state.label
    state.label = Label("buffers", saved.module)
    leaf = Tensor(shape, dtype)
    state.label = saved
    return leaf


class Module:
    """Attributes that are modules, parameters, buffers or lists of modules are found by looking at them.

    ``title`` is what papers call the module, where its attribute's name does not say it."""

    title = ""
    path = ""
    training = True
    unit: Any = None  # what gathers its parameters around each call, where they are sharded

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.unit is None:
            return self._call(*args, **kwargs)
        return self.unit.after(self._call(*self.unit.before(args), **kwargs))

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        saved = state.label
        if self.path:
            state.label = Label(saved.component, self.path)
        try:
            return self.forward(*args, **kwargs)
        finally:
            state.label = saved

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def children(self) -> Iterator[tuple[str, Module]]:
        for name, value in self.__dict__.items():
            if type(value) in _CHILDLESS:
                continue
            if isinstance(value, Module):
                yield name, value
            elif isinstance(value, (list, tuple)):
                for number, item in enumerate(value):
                    if type(item) not in _CHILDLESS and isinstance(item, Module):
                        yield f"{name}.{number}", item

    def modules(self) -> list[Module]:
        """This one and all below it, each before those that it is made of."""
        found = [self]
        for _, child in self.children():
            found += child.modules()
        return found

    def named_tensors(self, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
        """Parameters and buffers with their dotted names; a tied one is met once per name."""
        for name, value in self.__dict__.items():
            if isinstance(value, Tensor):
                yield f"{prefix}{name}", value
            elif isinstance(value, Module):
                yield from value.named_tensors(f"{prefix}{name}.")
            elif isinstance(value, (list, tuple)):
                for number, item in enumerate(value):
                    if isinstance(item, Module):
                        yield from item.named_tensors(f"{prefix}{name}.{number}.")
                    elif isinstance(item, Tensor):
                        yield f"{prefix}{name}.{number}", item

    def tensors(self) -> list[Tensor]:
        """Each parameter and buffer once, in order of definition."""
        found: list[Tensor] = []
        _collect(self, found)
        return list({id(tensor): tensor for tensor in found}.values())

    def parameters(self) -> list[Tensor]:
        """Each parameter once, in order of definition, frozen ones included."""
        labels = state.tape.labels
        kinds = ("parameters", "helper_models", "ema")
        return [tensor for tensor in self.tensors() if labels[tensor.storage.index].component in kinds]

    def name(self, path: str = "", role: str = "") -> None:
        """Give every module its dotted path and every parameter its label. ``role`` overrides the component."""
        self.path = path
        labels = state.tape.labels
        for name, value in self.__dict__.items():
            if isinstance(value, Tensor):
                old = labels[value.storage.index].component
                if old in ("parameters", "buffers", "helper_models"):
                    relabel(value.storage, Label(role or old, path, name))
        for name, child in self.children():
            child.name(f"{path}.{name}" if path else name, role)

    def freeze(self) -> None:
        for tensor in self.parameters():
            tensor.requires_grad = False

    def eval(self) -> None:
        self.training = False
        for _, child in self.children():
            child.eval()


def _collect(module: Module, found: list[Tensor]) -> None:
    for value in module.__dict__.values():
        kind = type(value)
        if kind in _CHILDLESS:
            if kind is Tensor:
                found.append(value)
        elif kind is list or kind is tuple:
            for item in value:
                if isinstance(item, Module):
                    _collect(item, found)
                elif isinstance(item, Tensor):
                    found.append(item)
        elif isinstance(value, Module):
            _collect(value, found)
        elif isinstance(value, (list, tuple)):  # a named tuple
            found += [item for item in value if type(item) is Tensor]


class Sequential(Module):
    def __init__(self, *modules: Module) -> None:
        self.layers = list(modules)

    def children(self) -> Iterator[tuple[str, Module]]:
        for number, module in enumerate(self.layers):
            yield str(number), module

    def forward(self, x: Tensor) -> Tensor:
        for module in self.layers:
            x = module(x)
        return x


class Linear(Module):
    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        self.weight = parameter(outputs, inputs)
        self.bias = parameter(outputs) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Embedding(Module):
    def __init__(self, entries: int, width: int) -> None:
        self.weight = parameter(entries, width)

    def forward(self, index: Tensor) -> Tensor:
        return F.embedding(index, self.weight)


class LayerNorm(Module):
    def __init__(self, width: int, affine: bool = True) -> None:
        self.weight = parameter(width) if affine else None
        self.bias = parameter(width) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight, self.bias)


class GroupNorm(Module):
    def __init__(self, groups: int, channels: int, affine: bool = True) -> None:
        self.groups = groups
        self.weight = parameter(channels) if affine else None
        self.bias = parameter(channels) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        return F.group_norm(x, self.groups, self.weight, self.bias)


class BatchNorm(Module):
    """BatchNorm1d/2d/3d: statistics are buffers and follow ``training``."""

    def __init__(self, channels: int) -> None:
        self.weight = parameter(channels)
        self.bias = parameter(channels)
        self.running_mean = buffer(channels)
        self.running_var = buffer(channels)
        self.num_batches_tracked = buffer(dtype=int64)

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.weight, self.bias, training=self.training)


class Conv(Module):
    """Conv1d/2d/3d: ``kernel``, ``stride``, ``padding`` hold one number per spatial dimension."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: Sequence[int],
        stride: Sequence[int] | int = 1,
        padding: Sequence[int] | int = 0,
        bias: bool = True,
        groups: int = 1,
        dilation: Sequence[int] | int = 1,
    ) -> None:
        self.weight = parameter(outputs, inputs // groups, *kernel)
        self.bias = parameter(outputs) if bias else None
        self.stride = stride
        self.padding = padding
        self.groups = groups
        self.dilation = dilation

    def forward(self, x: Tensor) -> Tensor:
        return F.conv(x, self.weight, self.bias, self.stride, self.padding, self.groups, self.dilation)


class ConvTranspose(Module):
    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: Sequence[int],
        stride: Sequence[int] | int = 1,
        padding: Sequence[int] | int = 0,
        bias: bool = True,
    ) -> None:
        self.weight = parameter(inputs, outputs, *kernel)
        self.bias = parameter(outputs) if bias else None
        self.stride = stride
        self.padding = padding

    def forward(self, x: Tensor) -> Tensor:
        return F.conv_transpose(x, self.weight, self.bias, self.stride, self.padding)


class Activation(Module):
    """An elementwise function as a module: ``Activation("gelu")``; ``inplace`` where torch has it."""

    def __init__(self, function: str, inplace: bool = False) -> None:
        self.function = getattr(F, function)
        self.inplace = inplace

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.function(x, inplace=True) if self.inplace else self.function(x)
        return result


class Dropout(Module):
    def __init__(self, probability: float) -> None:
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.probability, self.training)


def count(tensors: Iterable[Tensor]) -> int:
    """Elements of distinct tensors."""
    distinct = {id(tensor): tensor for tensor in tensors}.values()
    return sum(x.numel if x.is_view else x.storage.nbytes // x.dtype.itemsize for x in distinct)
