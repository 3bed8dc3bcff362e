"""Where libraries behave differently because tensors are fake, or never end: made to behave as they do on a card."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn


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
