"""Whole training steps, run in torch (fake tensors with CUDA's semantics) and over meta tensors."""

from __future__ import annotations

import gc
import importlib.util
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch._subclasses import FakeTensorMode

from memlint.dialects import registry
from memlint.documents.load import load
from memlint.facts.spec import TrainingSpec
from memlint.measure.cuda_semantics import CudaSemantics
from memlint.measure.tracker import SavedTensors, StorageTracker
from memlint.meta.tape import Tape
from memlint.models import record

GRANULARITY_BYTES = 512
EXAMPLES = Path(__file__).parents[2] / "examples"


class Step(NamedTuple):
    """Bytes of one steady training step, each storage rounded up to 512.

    peak   the most alive at once, over all phases
    held   alive at the end of the (last) forward pass
    saved  distinct storages, weights and buffers excluded, that autograd holds then, as they were asked for
    """

    parameters: int
    trainable: int
    peak: int
    held: int
    saved: int
    phases: dict[str, int]


def reference(folder: str) -> ModuleType:
    """The torch model of ``examples/<folder>/model.py``."""
    path = EXAMPLES / folder / "model.py"
    spec = importlib.util.spec_from_file_location(f"reference_{folder}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def fake_cuda() -> Iterator[StorageTracker]:
    tracker = StorageTracker(GRANULARITY_BYTES)
    with FakeTensorMode(), tracker, CudaSemantics(tracker), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield tracker


def read(path: str, text: str) -> tuple[TrainingSpec, dict[str, Any]]:
    """A config's run, and its plain values as the torch model takes them."""
    [spec] = registry.specs(load(path, text))
    return spec, spec.root.plain()


def adamw(implementation: str) -> Callable[[Sequence[Any]], torch.optim.Optimizer]:
    flags = {"foreach": {"foreach": True}, "loop": {"foreach": False}}[implementation]
    return lambda parameters: torch.optim.AdamW(parameters, lr=1e-4, **flags)


def in_torch(
    module: ModuleType,
    config: dict[str, Any],
    optimizer: Callable[[Sequence[Any]], torch.optim.Optimizer],
    accumulation: int = 1,
    ema: bool = False,
    autocast: str = "float32",
    keeps_loss: bool = False,
    clears_late: bool = False,
) -> Step:
    """The second of two steps: the first one creates the optimizer's state.

    ``keeps_loss``: the loop still names the loss while the optimizer steps, and with it the graph and whatever its
    nodes hold beside saved tensors; libraries' trainers hand on a detached one. ``clears_late``: gradients are let go
    between the forward pass and the backward pass.
    """
    with fake_cuda() as tracker:
        model = module.build_model(config)
        weights = [*model.parameters(), *model.buffers()]
        every = sum(p.numel() for p in model.parameters())
        trainable = [p for p in model.parameters() if p.requires_grad]
        copies = module.build_model(config) if ema else None  # deepcopy does not work on fake tensors
        update = optimizer(trainable)
        held = saved_bytes = 0
        for number in range(2):
            if number == 1:
                gc.collect(1)  # libraries leave cycles behind, which hold what a step made until the collector comes by
                tracker.reset_peak()
            for _ in range(min(accumulation, 2)):
                with tracker.phase("forward"):
                    batch = module.make_batch(config)
                    context: Any = (
                        torch.autocast("cpu", getattr(torch, autocast)) if autocast != "float32" else nullcontext()
                    )
                    with SavedTensors(weights, tracker) as saved, context:
                        loss = module.training_loss(model, batch)
                    held, saved_bytes = tracker.live_bytes, saved.bytes
                with tracker.phase("backward"):
                    if clears_late:
                        update.zero_grad()
                    loss.backward()
                    if not keeps_loss:
                        loss = loss.detach()
            with tracker.phase("optimizer_step"):
                update.step()
                if not clears_late:
                    update.zero_grad()
                for state in update.state.values():  # Adam counts its steps on the host, unless it is fused
                    if isinstance(state.get("step"), torch.Tensor) and not update.defaults.get("fused"):
                        tracker.forget(state["step"])
        del copies
        phases = {name: tracker.phase_peaks[name] for name in ("forward", "backward", "optimizer_step")}
        return Step(every, sum(p.numel() for p in trainable), max(phases.values()), held, saved_bytes, phases)


def in_meta(spec: TrainingSpec) -> Step:
    recording = record(spec)
    phases, held = walk(recording.tape)
    training = {name: phases[name] for name in ("forward", "backward", "optimizer_step")}
    return Step(
        recording.parameters,
        recording.trainable_parameters,
        max(training.values()),
        held,
        recording.tape.saved_bytes,
        training,
    )


def walk(tape: Tape) -> tuple[dict[str, int], int]:
    """Peak by phase, and what is alive when the last backward pass begins; written apart from memlint.tape."""
    sizes = [-(-size // GRANULARITY_BYTES) * GRANULARITY_BYTES for size in tape.sizes]
    starts = {}
    for at, name in tape.marks:
        starts.setdefault(at, []).append(name)
    live = held = 0
    phase = ""
    peaks: dict[str, int] = {}
    for number, event in enumerate([*tape.events, None]):
        for name in starts.get(number, ()):
            phase = name
            if name == "backward":
                held = live
            peaks[phase] = max(peaks.get(phase, 0), live)
        if event is not None:
            live += sizes[event] if event >= 0 else -sizes[~event]
            peaks[phase] = max(peaks.get(phase, 0), live)
    return peaks, held


def difference(ours: int, truth: int) -> float:
    """Relative error; exact where the truth is zero."""
    if truth == 0:
        return 0.0 if ours == 0 else float("inf")
    return ours / truth - 1


class Comparison(NamedTuple):
    """How far meta is from torch."""

    label: str
    peak: float
    held: float
    saved: float | None

    @property
    def worst(self) -> float:
        return max(abs(self.peak), abs(self.held), abs(self.saved or 0.0))

    def __str__(self) -> str:
        saved = "-" if self.saved is None else f"{self.saved:+.4%}"
        return f"peak {self.peak:+.4%}  end of forward {self.held:+.4%}  saved {saved}  {self.label}"


def compare(label: str, ours: Step, truth: Step, checkpointed: bool = False) -> Comparison:
    """Saved bytes are compared without checkpointing only: its own hooks hide from ours what they pack."""
    assert ours.parameters == truth.parameters
    assert ours.trainable == truth.trainable
    return Comparison(
        label,
        difference(ours.peak, truth.peak),
        difference(ours.held, truth.held),
        None if checkpointed else difference(ours.saved, truth.saved),
    )


def report(comparisons: Sequence[Comparison]) -> tuple[float, float]:
    """Print the worst case; the largest and the median error."""
    errors = sorted(comparison.worst for comparison in comparisons)
    worst = max(comparisons, key=lambda comparison: comparison.worst)
    median = errors[len(errors) // 2]
    print(f"\n{len(errors)} settings, median {median:.5%}, worst {errors[-1]:.5%}: {worst}")
    return errors[-1], median
