"""``model.py`` beside the config: ``build_model(config)``, ``make_batch(config, device)``, ``training_loss(model,
batch)``."""

from __future__ import annotations

import copy
import importlib.util
import os
import sys
from typing import Any

from memlint.measure.child import MeasureError
from memlint.measure.factories.base import Request, Workload, said

FUNCTIONS = ("build_model", "make_batch", "training_loss")


def find(request: Request) -> Workload | None:
    """A ``model.py`` with the three functions; one that has none of them is some other module."""
    path = os.path.join(os.path.dirname(os.path.abspath(request["path"])), "model.py")
    if not os.path.isfile(path):
        return None
    shown = os.path.relpath(path)
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read()
    if "def build_model" not in text:  # so that a module that is none of ours is not run
        return None
    spec = importlib.util.spec_from_file_location("memlint_model", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["memlint_model"] = module  # dataclasses and pickle look a class's module up there
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        raise MeasureError(f"{shown}: importing it needs {error.name}, which is not installed") from None
    except Exception as error:
        raise MeasureError(f"{shown}: importing it raised {said(error)}") from None
    lacking = [name for name in FUNCTIONS if not callable(getattr(module, name, None))]
    if lacking:
        raise MeasureError(
            f"{shown}: lacks {' and '.join(lacking)}; it needs build_model(config), make_batch(config, device) and "
            "training_loss(model, batch)"
        )

    def build() -> Any:
        return module.build_model(copy.deepcopy(request["config"]))

    def batch(device: str) -> Any:
        return module.make_batch(copy.deepcopy(request["config"]), device)

    return Workload(build, batch, module.training_loss, shown, module)
