"""Hydra's ``_target_``, where one of the config's sections names an ``nn.Module``."""

from __future__ import annotations

import copy
from typing import Any

from memlint.measure.child import MeasureError
from memlint.measure.factories.base import Request, Workload, default_loss, said, setting

# Sections of Hydra configs that hold the model, in the order in which they are asked.
SECTIONS = ("model", "policy", "network", "net", "module", "system")


def find(request: Request) -> Workload | None:
    """The first of the usual sections with a ``_target_``; the batch is the settings' to say."""
    config = request["config"]
    if not isinstance(config, dict):
        return None
    for section in SECTIONS:
        value = config.get(section)
        if isinstance(value, dict) and isinstance(value.get("_target_"), str):
            break
    else:
        return None
    batch = setting(request, "batch")
    if batch is None:
        raise MeasureError(
            f"{section}._target_ = {value['_target_']} builds the model, but nothing says what it is fed: write "
            '[probe] batch = "package.module:function" in memlint.toml, a function (config, device) -> batch'
        )
    made = batch
    return Workload(
        build=lambda: _instantiate(config, section),
        batch=lambda device: made(copy.deepcopy(config), device),
        loss=setting(request, "step") or default_loss,
        source=f"{section}._target_",
    )


def _instantiate(config: dict[str, Any], section: str) -> Any:
    try:
        from hydra.utils import instantiate
    except ImportError:
        raise MeasureError(
            f"{section}._target_ builds the model, but hydra-core is not installed; install it, or write [probe] model "
            "in memlint.toml"
        ) from None
    try:
        return instantiate(copy.deepcopy(config[section]))
    except Exception as error:
        cause = error.__cause__ or error
        raise MeasureError(f"{section}._target_ = {config[section]['_target_']} raised {said(cause)}") from None
