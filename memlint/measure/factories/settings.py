"""``[probe] model = "package.module:factory"``, with ``batch`` and ``step``."""

from __future__ import annotations

import copy
import sys

from memlint.measure.child import MeasureError
from memlint.measure.factories.base import Request, Workload, default_loss, function, setting


def find(request: Request) -> Workload | None:
    """model (config) -> model, batch (config, device) -> batch, step (model, batch) -> loss."""
    if "model" not in request["settings"]:
        return None
    name = request["settings"]["model"]
    factory = function(request, "model")
    module = sys.modules[name.partition(":")[0]]
    batch = setting(request, "batch") or getattr(module, "make_batch", None)
    if batch is None:
        raise MeasureError(
            f'[probe] model = "{name}" has no batch to go with it: write batch = "package.module:function" beside it, '
            "a function (config, device) -> batch"
        )
    made = batch
    return Workload(
        build=lambda: factory(copy.deepcopy(request["config"])),
        batch=lambda device: made(copy.deepcopy(request["config"]), device),
        loss=setting(request, "step") or getattr(module, "training_loss", None) or default_loss,
        source=f'[probe] model = "{name}"',
        module=module,
    )
