"""OpenMMLab's own modules under fake tensors, for ``traces.py`` alone: no test needs the libraries."""

from __future__ import annotations

import copy
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from types import ModuleType, SimpleNamespace
from typing import Any

from tests.models.openmmlab.traces import Case, Trace

# Imported by the libraries for what no training step does.
ABSENT = ("cv2", "ftfy", "matplotlib", "mmcls", "mmcv.ops", "modelindex", "pycocotools", "torchvision")


class Absent(ModuleType, importlib.abc.Loader):
    """A module of which only names are asked for: those of classes where it has operators."""

    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        import torch

        return type(name, (torch.nn.Module,), {})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if any(name == absent or name.startswith(f"{absent}.") for absent in ABSENT):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> ModuleType:
        made = Absent(spec.name)
        if spec.name == "cv2":
            made.__version__ = "4.8.0"
        return made

    def exec_module(self, module: ModuleType) -> None:
        pass


@contextmanager
def found_in(folder: str) -> Iterator[None]:
    finder = Finder()
    sys.meta_path.insert(0, finder)
    sys.path[:0] = [folder]
    try:
        yield
    finally:
        sys.path.remove(folder)
        sys.meta_path.remove(finder)


def releases() -> dict[str, str]:
    return {name: version(name) for name in ("torch", "mmcv-lite", "mmengine", "mmpretrain", "mmsegmentation")}


def trace(case: Case) -> Trace:
    """A training step of the library's model, as ``EncoderDecoder.loss`` has it."""
    import mmpretrain.models  # noqa: F401 - its backbones enter their names
    import mmseg.models
    import torch
    from mmengine.config import ConfigDict
    from mmengine.registry import init_default_scope
    from mmseg.registry import MODELS

    from tests.differential import training

    mmseg.models.decode_heads.decode_head.accuracy = _accuracy
    init_default_scope("mmseg")
    height, width = case.size

    class Sample:
        def __init__(self) -> None:
            self.gt_sem_seg = SimpleNamespace(data=torch.empty(1, height, width, dtype=torch.int64))
            self.metainfo: dict[str, Any] = {}

    def build_model(_: Any) -> torch.nn.Module:
        model: torch.nn.Module = MODELS.build(ConfigDict(copy.deepcopy(case.model)))
        return model.train()

    def make_batch(_: Any) -> Any:
        return torch.empty(case.batch, 3, height, width), [Sample() for _ in range(case.batch)]

    def training_loss(model: Any, batch: Any) -> Any:
        losses = model.loss(*batch)
        return sum(value.mean() for name, value in losses.items() if "loss" in name)

    def optimizer(parameters: Sequence[Any]) -> Any:
        return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=5e-4, foreach=True)

    module: Any = SimpleNamespace(build_model=build_model, make_batch=make_batch, training_loss=training_loss)
    step = training.in_torch(module, {}, optimizer, autocast=case.autocast)
    return Trace(step.parameters, step.peak, step.held, step.saved)


def _accuracy(pred: Any, target: Any, topk: int = 1, thresh: Any = None, ignore_index: Any = None) -> Any:
    """mmseg's up to the first look at a value."""
    import torch

    _, label = pred.topk(topk, dim=1)
    label = label.transpose(0, 1)
    label.eq(target.unsqueeze(0).expand_as(label))
    return torch.empty(1)
