"""Where libraries behave differently because tensors are fake, or never end: made to behave as they do on a card."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes


class AsWithRealTensors:
    """While the block lasts

    - ``transformers`` does not notice fake tensors. It would not look at masks then, and build one for attention where
      a real run of unpadded samples has none, which takes another kernel (``masking_utils.py``, ``is_tracing``);
    - ``nn.init.trunc_normal_`` draws once. It draws again until every value is within bounds (torch 2.13), which no
      fake tensor ever says; the weights' values are of no account here.

    ``look`` again after code has run that may have imported the libraries.
    """

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> AsWithRealTensors:
        self._replace(nn.init, "_no_grad_trunc_normal_", _draw_once)
        self.look()
        return self

    def look(self) -> None:
        checks = sys.modules.get("transformers.utils.import_utils")
        if checks is not None:
            self._replace(checks, "is_fake_tensor", _is_fake_tensor)

    def _replace(self, module: Any, name: str, function: Any) -> None:
        before = getattr(module, name, None)
        if before is not None and before is not function:
            self._before.append((module, name, before))
            setattr(module, name, function)

    def __exit__(self, *exception: Any) -> None:
        while self._before:
            setattr(*self._before.pop())


def _draw_once(tensor: Tensor, mean: float, std: float, a: float, b: float, generator: Any = None) -> Tensor:
    with torch.no_grad():
        return tensor.normal_(mean, std)


def _is_fake_tensor(tensor: Any) -> bool:
    return False


class _Undrawn(TorchFunctionMode):  # type: ignore[misc]
    """Weights keep whatever their memory holds: no initialisation runs, so large ones never take any memory."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in _INITIALISATIONS or (name in _CHANGES and args and isinstance(args[0], nn.Parameter)):
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


_INITIALISATIONS = frozenset(
    """normal_ uniform_ erfinv_ trunc_normal_ kaiming_uniform_ kaiming_normal_ xavier_uniform_ xavier_normal_
    orthogonal_""".split()  # noqa: SIM905
)
# Of a parameter, whose values nothing reads; of other tensors code may (which paths are dropped, where a window lies).
_CHANGES = frozenset(("add_", "clamp_", "div_", "fill_", "mul_", "sub_", "zero_"))


def with_shapes_alone(build: Callable[[], nn.Module]) -> nn.Module:
    """A model of the modes that are on (fake tensors), made without them.

    Code that builds a model may read numbers out of tensors (how often each path is dropped, which widths there are),
    which fake ones do not have. So it runs with real tensors, and their shapes are made anew afterwards.
    """
    with _disable_current_modes(), AsWithRealTensors(), _Undrawn():
        model = build()
    known: dict[int, Tensor] = {}
    for module in model.modules():
        for name, old in module._parameters.items():
            if old is not None:
                if id(old) not in known:
                    known[id(old)] = nn.Parameter(_shaped(old), old.requires_grad)
                module._parameters[name] = known[id(old)]
        for name, old in module._buffers.items():
            if old is not None:
                if id(old) not in known:
                    known[id(old)] = _shaped(old)
                module._buffers[name] = known[id(old)]
    return model


def _shaped(old: Tensor) -> Tensor:
    return torch.empty_strided(old.shape, old.stride(), dtype=old.dtype)
