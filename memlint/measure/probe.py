"""Real training steps of a user's model, and what they took.

On a card: a warm-up step that creates the optimizer's state; a measured step that nothing but PyTorch's own counters
and the allocator's history watch; then one more under the tracker, which knows modules and logits. (The tracker is a
dispatch mode, and under a mode PyTorch adds some gradients out of place; the counters of the second step know nothing
of that.) The breakdown shown is the tracker's where it and the history agree on the peak, else the history's. On the
CPU, with ``--probe-device cpu``, the tracker counts the measured step itself: the same path, with the CPU's kernels.

A run that its config spreads over several devices goes through :mod:`memlint.measure.ranks`.

Running out of memory is an answer: where it happened, and what was alive.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from memlint.measure import distributed, history, ranks, training
from memlint.measure.child import MeasureError
from memlint.measure.device import CPU, CUDA, driver_version, process_bytes, reconciled
from memlint.measure.factory import Workload, said, workload
from memlint.measure.trace import Recorder, label_gradients, label_state, steady
from memlint.measure.worker import tell
from memlint.meta.tape import Label, Tape
from memlint.tape.breakdown import break_down
from memlint.tape.estimate import OOM, Component, Estimate, Interval, Part
from memlint.tape.phases import find_peak
from memlint.units import format_bytes

ON_THE_CPU = (
    "counted on the CPU: its kernels, autocast lists and dropout masks differ from a card's, and it has neither "
    "segments nor a context"
)
PHASES = ("setup", "forward", "backward", "optimizer_step")
HISTORY_ENTRIES = 1_000_000  # some kilobytes of host memory each; a step has tens of thousands
# The tracker's breakdown says more, the history's is the measured step's own: how far apart they may be for the first.
AGREEMENT = 0.01


class _Run:
    """One probe: the model on its device, and what is known of it so far."""

    def __init__(
        self,
        request: dict[str, Any],
        work: Workload,
        plan: training.Plan,
        device: str,
        sharding: distributed.Sharding | None = None,
        mesh: Any = None,
    ) -> None:
        self.request, self.work, self.plan, self.device = request, work, plan, device
        self.sharding, self.mesh = sharding, mesh
        self.parallel: distributed.Parallel | None = None
        vocabulary = request["facts"].get("vocabulary_size")
        self.recorder = Recorder(vocabulary if isinstance(vocabulary, int) else None)
        self.autocast = training.AutocastWatch(device)
        self.model: nn.Module | None = None
        self.optimizer: torch.optim.Optimizer | None = None
        self.names: dict[int, str] = {}
        self.ema: list[tuple[str, Tensor]] = []
        self.counted = 0, 0
        self.at = "setup"

    def build(self) -> None:
        with self._watched(), self.recorder.phase("setup"):
            model = training.checked_model(self.work.build(), self.work.source).to(self.device)
            self.model = model.train()
            self.recorder.name(model)
            self.counted = training.counts(model.parameters())  # of the whole model: a shard has fewer
            if self.sharding is not None:
                self.parallel = ranks.spread(self.sharding, self.mesh, model, self.work.loss, self.recorder)
                self.work = self.work._replace(loss=self.parallel.loss)
                self.recorder.weigh(model)
            self.names = {id(parameter): path for path, parameter in model.named_parameters()}
            self.ema = training.copy_for_ema(model) if self.plan.ema else []
            for path, copied in self.ema:
                self.recorder.label(distributed.local(copied), _label("ema", path))
            trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
            self.optimizer = training.make_optimizer(self.plan, trained)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        with self.recorder, distributed.watching(self.sharding, self.recorder):
            yield

    def label_gradients(self) -> None:
        assert self.model is not None
        label_gradients(self.names, self.model, self.recorder)
        if self.parallel is not None:
            self.parallel.label()

    def tracked(self) -> None:
        """A step that the tracker writes down."""
        assert self.model is not None
        assert self.optimizer is not None
        self.recorder.forget_nodes()
        with self._watched():
            self.step(self.recorder.phase, self.recorder.watching_saved, self.label_gradients)
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
    sharding = distributed.sharding_of(request)
    if sharding is not None and sharding.ranks > 1 and "rank" not in request:
        return ranks.launch(request, sharding.ranks)
    plan = training.plan_of(request, spread=("ddp", "fsdp2"))
    work = workload(request)
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        mesh = stack.enter_context(ranks.process_group(sharding, device))
        run = _Run(request, work, plan, device, sharding, mesh)
        stack.enter_context(run.autocast.active())
        stack.enter_context(run.recorder.watching_modules())
        try:
            found = _on_card(run) if device == CUDA else _on_cpu(run)
        except MeasureError:
            raise
        except Exception as error:
            if is_out_of_memory(error):
                found = _died(run, error)
            else:
                where = f"module {module} " if (module := _module_of(run, error)) else ""
                raise MeasureError(f"{work.source}: {where}raised {said(error)}") from error
    devices = request["facts"].get("device_count") or request["facts"].get("world_size") or 1
    if sharding is None and devices != 1:
        found["notes"].append(f"one process of {devices}: the config does not say how it is spread over them")
    return {**found, "made_with": _versions(device), "card": torch.cuda.get_device_name() if device == CUDA else ""}


def _versions(device: str) -> dict[str, str]:
    found = {"torch": torch.__version__}
    if device == CUDA:
        found["cuda"] = str(torch.version.cuda or torch.version.hip or "")
        found["driver"] = driver_version()
    return {name: version for name, version in found.items() if version}


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
    return Estimate(
        "probe",
        *run.counted,
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
        (
            ("torch", torch.__version__, "measured"),
            *assumptions,
            *(run.parallel.notes() if run.parallel is not None else ()),
        ),
    )


# -- a card


class _Card:
    """Around the measured step: the counters by phase, and the moments that the allocator's history is read by."""

    def __init__(self, run: _Run) -> None:
        self.run = run
        self.phases: dict[str, int] = {}
        self.reserved_peak = 0
        self.moments: list[history.Moment] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        self.moments.append(history.Moment(_now_us(), name))
        try:
            yield
        finally:
            torch.cuda.synchronize()
            self.phases[name] = max(self.phases.get(name, 0), torch.cuda.max_memory_allocated())
            self.reserved_peak = max(self.reserved_peak, torch.cuda.max_memory_reserved())

    def after_backward(self) -> None:
        assert self.run.model is not None
        held = {
            distributed.local(parameter.grad).untyped_storage().data_ptr(): _label("gradients", path)
            for path, parameter in self.run.model.named_parameters()
            if parameter.grad is not None
        }
        self.moments.append(history.Moment(_now_us(), gradients=held))

    def clear_workspaces(self) -> int | None:
        """Bytes that cuBLAS keeps between calls, which come back when they are asked for; None where they cannot."""
        clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
        if clear is None:
            return None
        torch.cuda.synchronize()
        self.moments.append(history.Moment(_now_us(), cleared=True))
        before = torch.cuda.memory_allocated()
        clear()
        return int(before - torch.cuda.memory_allocated())

    @contextmanager
    def naming_modules(self) -> Iterator[None]:
        """Let the allocator note the module at work with each block, where this PyTorch can."""
        note = getattr(torch.cuda.memory, "_set_memory_metadata", None)
        if note is None:
            yield
            return
        assert self.run.model is not None
        running: list[str] = []

        def enter(path: str) -> Callable[..., None]:
            def hook(*_: Any) -> None:
                running.append(path)
                note(path)

            return hook

        def leave(*_: Any) -> None:
            if running:
                running.pop()
            note(running[-1] if running else "")

        handles: list[Any] = []
        for path, module in self.run.model.named_modules():
            handles += [
                module.register_forward_pre_hook(enter(path)),
                module.register_forward_hook(leave, always_call=True),
            ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            note("")


def _now_us() -> float:
    """The clock of the allocator's history."""
    return time.time_ns() / 1000


def _on_card(run: _Run) -> dict[str, Any]:
    request = run.request
    torch.cuda.init()
    before = _used_bytes()
    snapshot = request.get("snapshot", "")
    # Without a file to write for a viewer, nobody looks at the stacks.
    torch.cuda.memory._record_memory_history(
        max_entries=HISTORY_ENTRIES, context="all" if snapshot else None, stacks="python"
    )
    tell(request, "building the model")
    run.build()
    tell(request, "warm-up step")
    run.tracked()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()  # segments of the first step alone are not the steady step's
    tell(request, "measured step")
    card = _Card(run)
    held = torch.cuda.memory._snapshot()
    with card.naming_modules():
        run.step(card.phase, after_backward=card.after_backward)
    device, source, complete = _device_bytes(before)
    if snapshot:
        torch.cuda.memory._dump_snapshot(_of_rank(snapshot, request))
    workspaces = card.clear_workspaces()
    taken = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    notes = [f"device bytes: {source}; {torch.cuda.get_device_name()}"]
    if snapshot:
        notes.append(f"{_of_rank(snapshot, request)}: the allocator's history, for https://pytorch.org/memory_viz")
    told = history.read(held, taken, torch.cuda.current_device(), _owners(run), card.moments, HISTORY_ENTRIES)
    del held, taken
    tell(request, "one more step, for the breakdown")
    begin = len(run.recorder.tape.events)
    run.tracked()
    tape = steady(run.recorder.tape, begin)
    at = max(card.phases, key=lambda name: card.phases[name])
    allocated = card.phases[at]
    live, note = _breakdown(break_down(tape, find_peak(tape).event), told, workspaces or 0)
    notes.append(note)
    components = reconciled(live, allocated, card.reserved_peak, device)
    found = _estimate(run, allocated, card.reserved_peak, device, at, card.phases, components)
    return {
        "estimate": found,
        "source": run.work.source,
        "notes": notes,
        "context_bytes": device - card.reserved_peak if complete else None,
        "library_workspace_bytes": workspaces,
    }


def _of_rank(path: str, request: dict[str, Any]) -> str:
    return f"{path}.{request['rank']}" if "rank" in request else path


def _label(component: str, path: str) -> Label:
    module, _, name = path.rpartition(".")
    return Label(component, module, name)


def _owners(run: _Run) -> dict[int, Label]:
    """Address of a storage -> whose it is: what lives from step to step."""
    assert run.model is not None
    assert run.optimizer is not None
    found: dict[int, Label] = {}

    def own(tensor: Any, label: Label) -> None:
        if isinstance(tensor, Tensor) and distributed.local(tensor).is_cuda:
            known = run.recorder.label_of(distributed.local(tensor))
            found[distributed.local(tensor).untyped_storage().data_ptr()] = known or label

    for path, parameter in run.model.named_parameters():
        own(parameter, _label("parameters", path))
    for path, buffer in run.model.named_buffers():
        own(buffer, _label("buffers", path))
    for path, copied in run.ema:
        own(copied, _label("ema", path))
    for parameter, state in run.optimizer.state.items():
        for value in state.values():
            own(value, _label("optimizer", run.names.get(id(parameter), "")))
    return found


def _breakdown(
    tracked: tuple[Component, ...], told: history.History | None, workspaces: int
) -> tuple[tuple[Component, ...], str]:
    """The components to show, and a note that says whose they are.

    The tracker names the modules of the backward pass, and logits; the history is of the measured step itself, and has
    the workspaces that no tensor owns.
    """
    if workspaces:
        tracked = _with_workspaces(tracked, workspaces)
    if told is None:
        return tracked, "breakdown: the tracker's; the allocator's history does not reach back to the step's begin"
    seen = sum(component.size_bytes for component in tracked)
    apart = abs(seen - told.peak_bytes) / max(told.peak_bytes, 1)
    if apart <= AGREEMENT:
        return tracked, f"breakdown: the tracker's, {apart:.2%} from the allocator's history"
    return told.components, f"breakdown: the allocator's history; the tracker's is {apart:.1%} from it"


def _with_workspaces(components: tuple[Component, ...], size_bytes: int) -> tuple[Component, ...]:
    known = next((entry for entry in components if entry.name == "workspace"), Component("workspace", 0))
    part = Part(history.WORKSPACE.module, size_bytes)
    grown = Component("workspace", known.size_bytes + size_bytes, (*known.parts, part))
    return (*(entry for entry in components if entry.name != "workspace"), grown)


def _used_bytes() -> int:
    free, total = torch.cuda.mem_get_info()
    return int(total - free)


def _device_bytes(before: int) -> tuple[int, str, bool]:
    """Bytes that this process holds on the card, who says so, and whether its context is among them.

    The driver's list of processes where it knows this one (in a container it may not); else what the card's free
    memory has lost since the start, and the context was there by then.
    """
    held = process_bytes("GPU-" + str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid))
    if held is not None:
        return max(held[0], torch.cuda.memory_reserved()), held[1], True
    grown = max(_used_bytes() - before, torch.cuda.memory_reserved())
    return grown, "free memory before and after (cudaMemGetInfo), without the CUDA context", False


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
        live = reconciled(live, allocated, reserved, device)
    found = _estimate(run, allocated, reserved, device, run.at, {run.at: allocated}, live)
    notes = [message, f"{format_bytes(allocated)} were alive then"]
    if run.device == CPU:
        notes.append(ON_THE_CPU)
    return {"estimate": found, "source": run.work.source, "notes": notes, "verdict": OOM}
