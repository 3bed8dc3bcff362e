"""Real training steps of a user's model, and what they took.

On a card: a warm-up step that creates the optimizer's state, a measured step that nothing but PyTorch's own counters
watches, then one more under the tracker, which says whose memory it was. (The tracker is a dispatch mode, and under a
mode PyTorch adds some gradients out of place; the counters of the second step know nothing of that.) On the CPU, with
``--probe-device cpu``, the tracker counts the measured step itself: the same path, with the CPU's kernels.

Running out of memory is an answer: where it happened, and what was alive.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from memlint.measure import training
from memlint.measure.child import MeasureError
from memlint.measure.factory import Workload, said, workload
from memlint.measure.trace import Recorder, label_gradients, label_state, steady
from memlint.measure.worker import tell
from memlint.meta.tape import COMPONENTS, Label, Tape
from memlint.tape.breakdown import break_down
from memlint.tape.estimate import OOM, Component, Estimate, Interval
from memlint.tape.phases import find_peak
from memlint.units import MiB, format_bytes

CPU, CUDA = "cpu", "cuda"
ON_THE_CPU = "counted on the CPU: its kernels, autocast lists and dropout masks differ from a card's"
PHASES = ("setup", "forward", "backward", "optimizer_step")


class _Counters:
    """PyTorch's counters of a card, by phase."""

    def __init__(self) -> None:
        self.phases: dict[str, int] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        try:
            yield
        finally:
            torch.cuda.synchronize()
            self.phases[name] = max(self.phases.get(name, 0), torch.cuda.max_memory_allocated())


class _Run:
    """One probe: the model on its device, and what is known of it so far."""

    def __init__(self, request: dict[str, Any], work: Workload, plan: training.Plan, device: str) -> None:
        self.request, self.work, self.plan, self.device = request, work, plan, device
        vocabulary = request["facts"].get("vocabulary_size")
        self.recorder = Recorder(vocabulary if isinstance(vocabulary, int) else None)
        self.autocast = training.AutocastWatch(device)
        self.model: nn.Module | None = None
        self.optimizer: torch.optim.Optimizer | None = None
        self.names: dict[int, str] = {}
        self.ema: list[tuple[str, Tensor]] = []
        self.at = "setup"

    def build(self) -> None:
        with self.recorder, self.recorder.phase("setup"):
            model = training.checked_model(self.work.build(), self.work.source).to(self.device)
            self.model = model.train()
            self.recorder.name(model)
            self.names = {id(parameter): path for path, parameter in model.named_parameters()}
            self.ema = training.copy_for_ema(model) if self.plan.ema else []
            for path, copied in self.ema:
                module, _, name = path.rpartition(".")
                self.recorder.label(copied, Label("ema", module, name))
            trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
            self.optimizer = training.make_optimizer(self.plan, trained)

    def tracked(self) -> None:
        """A step that the tracker writes down."""
        assert self.model is not None
        assert self.optimizer is not None
        self.recorder.forget_nodes()
        with self.recorder:
            model = self.model
            self.step(
                self.recorder.phase,
                self.recorder.watching_saved,
                lambda: label_gradients(self.names, model, self.recorder),
            )
        label_state(self.optimizer, self.names, self.recorder)
        self.recorder.name_helpers(self.model)

    def step(
        self,
        phase: Callable[[str], Any],
        around_last: Callable[[], Any] = nullcontext,
        after_backward: Callable[[], None] = lambda: None,
    ) -> None:
        assert self.model is not None
        assert self.optimizer is not None

        @contextmanager
        def told(name: str) -> Iterator[None]:
            self.at = name
            with phase(name):
                yield

        training.step(
            self.model,
            self.work,
            self.plan,
            self.optimizer,
            self.device,
            self.autocast,
            told,
            around_last,
            after_backward,
        )


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """What the measuring process answers to a probe: the Estimate as lists, what was run, notes, and OOM as verdict.

    request  ``device`` is cuda or cpu; ``snapshot`` a file for PyTorch's memory viewer, or ""
    Raises MeasureError where there is no card, and for what the user's code raises.
    """
    device = request["device"]
    if device == CUDA and not torch.cuda.is_available():
        raise MeasureError(
            f"found no GPU (torch {torch.__version__}{' is a CPU build' if torch.version.cuda is None else ''}); "
            "--trace needs none, and --probe-device cpu runs the same steps on the CPU"
        )
    if device == CPU and request.get("snapshot"):
        raise MeasureError("a snapshot is the history of a card's allocator; --probe-device cpu has none")
    plan = training.plan_of(request)
    work = workload(request)
    run = _Run(request, work, plan, device)
    with warnings.catch_warnings(), run.autocast.active(), run.recorder.watching_modules():
        warnings.simplefilter("ignore")
        try:
            return _on_card(run) if device == CUDA else _on_cpu(run)
        except MeasureError:
            raise
        except Exception as error:
            if is_out_of_memory(error):
                return _died(run, error)
            where = f"module {module} " if (module := _module_of(run, error)) else ""
            raise MeasureError(f"{work.source}: {where}raised {said(error)}") from error


def _module_of(run: _Run, error: BaseException) -> str:
    """The module that was at work when an exception was raised; "" if that was in none."""
    identity, _, module = run.recorder.failed
    return module if identity == id(error) else ""


def is_out_of_memory(error: BaseException) -> bool:
    """A card's or the host's memory: PyTorch has an exception of its own for the one, and only a text for the other."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator: can't allocate memory" in str(error)


# -- the CPU


def _on_cpu(run: _Run) -> dict[str, Any]:
    request = run.request
    tell(request, "building the model")
    run.build()
    tell(request, "warm-up step")
    run.tracked()
    begin = len(run.recorder.tape.events)
    tell(request, "measured step")
    run.tracked()
    tape = steady(run.recorder.tape, begin)
    return {"estimate": _from_tape(run, tape), "source": run.work.source, "notes": [ON_THE_CPU]}


def _from_tape(run: _Run, tape: Tape) -> Estimate:
    """The CPU has neither segments nor a context: reserved and device are what is allocated."""
    peak = find_peak(tape)
    components = break_down(tape, peak.event)
    return _estimate(run, peak.peak_bytes, peak.peak_bytes, peak.peak_bytes, peak.phase, peak.phases, components)


def _estimate(
    run: _Run,
    allocated: int,
    reserved: int,
    device: int,
    phase: str,
    phases: dict[str, int],
    components: tuple[Component, ...],
    assumptions: tuple[tuple[str, str, str], ...] = (),
) -> Estimate:
    every, trained = training.counts(run.model.parameters()) if run.model is not None else (0, 0)
    return Estimate(
        "probe",
        every,
        trained,
        allocated,
        reserved,
        device,
        run.recorder.saved_bytes,
        phase,
        {name: phases[name] for name in PHASES if name in phases and (name != "setup" or name == phase)},
        components,
        Interval(allocated, allocated),
        Interval(reserved, reserved),
        Interval(device, device),
        (("torch", torch.__version__, "measured"), *assumptions),
    )


# -- a card


def _on_card(run: _Run) -> dict[str, Any]:
    request = run.request
    torch.cuda.init()
    before = _used_bytes()
    snapshot = request.get("snapshot", "")
    if snapshot:
        torch.cuda.memory._record_memory_history(max_entries=1_000_000)
    tell(request, "building the model")
    run.build()
    tell(request, "warm-up step")
    run.tracked()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()  # segments of the first step alone are not the steady step's
    tell(request, "measured step")
    counters = _Counters()
    reserved_peak = 0

    @contextmanager
    def phase(name: str) -> Iterator[None]:
        nonlocal reserved_peak
        with counters.phase(name):
            yield
        reserved_peak = max(reserved_peak, torch.cuda.max_memory_reserved())

    run.step(phase)
    device, source = _device_bytes(before)
    notes = [f"device bytes: {source}; {torch.cuda.get_device_name()}"]
    if snapshot:
        torch.cuda.memory._dump_snapshot(snapshot)
        torch.cuda.memory._record_memory_history(enabled=None)
        notes.append(f"{snapshot}: the allocator's history, for https://pytorch.org/memory_viz")
    tell(request, "one more step, for the breakdown")
    begin = len(run.recorder.tape.events)
    run.tracked()
    tape = steady(run.recorder.tape, begin)
    at = max(counters.phases, key=lambda name: counters.phases[name])
    allocated = counters.phases[at]
    components = _reconciled(break_down(tape, find_peak(tape).event), allocated, reserved_peak, device)
    found = _estimate(run, allocated, reserved_peak, device, at, counters.phases, components)
    return {"estimate": found, "source": run.work.source, "notes": notes}


def _reconciled(live: tuple[Component, ...], allocated: int, reserved: int, device: int) -> tuple[Component, ...]:
    """What the tracker saw, and what only the counters did, as components that add up to the device's bytes.

    Allocated beyond all tensors is scratch memory of kernels (``workspace``); reserved beyond allocated is
    ``fragmentation``; what the process holds beyond that is its ``context``. Where the tracker saw more than was
    allocated, because of what it changes itself, the difference comes off the activations.
    """
    sizes = {component.name: component.size_bytes for component in live}
    beyond = allocated - sum(sizes.values())
    if beyond >= 0:
        sizes["workspace"] = sizes.get("workspace", 0) + beyond
    else:
        sizes["activations"] = max(0, sizes.get("activations", 0) + beyond)
    sizes["fragmentation"] = reserved - allocated
    sizes["context"] = device - reserved
    parts = {component.name: component.parts for component in live}
    return tuple(
        Component(name, sizes[name], parts.get(name, ()) if name != "activations" or beyond >= 0 else ())
        for name in COMPONENTS
        if sizes.get(name)
    )


def _used_bytes() -> int:
    free, total = torch.cuda.mem_get_info()
    return int(total - free)


def _device_bytes(before: int) -> tuple[int, str]:
    """Bytes that this process holds on the card, and who says so.

    The driver's list of processes where it knows this one (in a container it may not); else what the card's free
    memory has lost since the start, and the context that was there by then.
    """
    held = _by_nvml() or _by_nvidia_smi()
    if held is not None:
        return max(held[0], torch.cuda.memory_reserved()), held[1]
    grown = max(_used_bytes() - before, torch.cuda.memory_reserved())
    return grown, "free memory before and after (cudaMemGetInfo), without the CUDA context"


def _by_nvml() -> tuple[int, str] | None:
    try:
        pynvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID("GPU-" + str(torch.cuda.get_device_properties(0).uuid))
        for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
            if process.pid == os.getpid() and process.usedGpuMemory:
                return int(process.usedGpuMemory), "NVML, this process"
    except (pynvml.NVMLError, AttributeError):
        pass
    return None


def _by_nvidia_smi() -> tuple[int, str] | None:
    command = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    for line in listed.splitlines():
        number, _, size = line.partition(",")
        if number.strip() == str(os.getpid()) and size.strip().isdigit():
            return int(size) * MiB, "nvidia-smi, this process"
    return None


# -- out of memory


def _died(run: _Run, error: BaseException) -> dict[str, Any]:
    """The answer of a step that ran out of memory: the tracker's last peak, or the counters and what is known."""
    module = _module_of(run, error)
    wanted = " ".join(str(error).split())
    wanted = wanted[max(0, wanted.find("DefaultCPUAllocator")) :]  # without the line of C++ that enforces it
    message = f"out of memory in {run.at.replace('_', ' ')}{f', module {module}' if module else ''}: {wanted[:300]}"
    tape = run.recorder.tape
    live = break_down(tape, len(tape.events) - 1) if tape.events else ()
    allocated = sum(component.size_bytes for component in live)
    reserved = device = allocated
    if run.device == CUDA:
        allocated = max(torch.cuda.max_memory_allocated(), allocated)
        reserved = max(torch.cuda.max_memory_reserved(), allocated)
        device = max(_device_bytes(0)[0], reserved)
        live = _reconciled(live, allocated, reserved, device)
    found = _estimate(run, allocated, reserved, device, run.at, {run.at: allocated}, live)
    notes = [message, f"{format_bytes(allocated)} were alive then"]
    if run.device == CPU:
        notes.append(ON_THE_CPU)
    return {"estimate": found, "source": run.work.source, "notes": notes, "verdict": OOM}
