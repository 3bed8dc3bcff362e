"""DeepSpeed's pipeline engine (``deepspeed/runtime/pipe/engine.py``, of 0.4.5 and 0.19 alike), which a pipeline of one
stage has as well."""

from __future__ import annotations

from typing import Any

from memlint.facts.spec import TrainingSpec
from memlint.meta.amp import to
from memlint.meta.tape import Label
from memlint.meta.tensor import DTYPES, DType, Storage, Tensor, state
from memlint.models.split import FIRST, SECOND
from memlint.models.system import System

BUFFERS = 2  # of the last stage, with two micro-batches or more (pipe/schedule.py: num_pipe_buffers)


class BufferedOutputs:
    """What the last stage hands out, logits (B, S, V), stays in ``pipe_buffers["outputs"]`` until another micro-batch
    comes into the same buffer: ``_exec_backward_pass`` lets it go on all stages but the last one."""

    def __init__(self, logits: Any, dtype: DType, buffers: int) -> None:
        self.logits, self.dtype, self.buffers = logits, dtype, buffers
        self.kept: list[Storage] = []

    def __call__(self, x: Tensor) -> Tensor:
        out: Tensor = to(self.logits(x), self.dtype)
        if not self.kept:
            saved, state.label = state.label, Label("logits", state.label.module, "last output")
            self.kept = [Storage(out.nbytes, (out.nbytes,), 1)]
            state.label = saved
        self.kept = [*self.kept, out.storage][-self.buffers :]
        return out


def keep_outputs(spec: TrainingSpec, system: System, stage: str) -> None:
    """Have the model of a rank that ends a pipeline keep what it hands out."""
    dtype = spec.get("parallelism.buffered_outputs")
    model: Any = system.model
    if dtype and stage not in (FIRST, SECOND) and hasattr(model, "logits"):
        model.logits = BufferedOutputs(model.logits, DTYPES[dtype], min(system.accumulation, BUFFERS))
