"""Tape -> Estimate: every consumer put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memlint.meta.fold import Folded
from memlint.meta.tape import COMPONENTS, Tape
from memlint.tape.allocator import AllocatorResult, simulate
from memlint.tape.allocator_conf import DEFAULT, AllocatorConf
from memlint.tape.breakdown import break_down
from memlint.tape.estimate import Component, Estimate, Interval, Part
from memlint.tape.overhead import JAX, Assumption, ProcessGroup, device_overhead, library_spread
from memlint.tape.phases import SETUP, Peak, find_peak, first_pass_bytes, packed_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memlint.data.catalogue import Gpu
    from memlint.tape.calibration import Calibration
    from memlint.tape.folded import FoldedPeak

CUBLAS_PART = "cuBLAS"
# What no release of a library takes more or less of
STATES = ("parameters", "gradients", "optimizer", "ema", "helper_models", "buffers")
MOST_BYTES = 1 << 50  # of one device: thousands of times what any has
LIBRARY_PARTS = {"workspace": CUBLAS_PART, "communication": "communicators", "helper_models": "inference engine"}


def estimate(
    tape: Tape | Folded,
    *,
    parameters: int,
    trainable_parameters: int,
    framework: str = "torch",
    allocator_conf: AllocatorConf = DEFAULT,
    gpu: Gpu | None = None,
    basis: str = "static",
    assumptions: tuple[Assumption, ...] = (),
    has_matmul: bool = True,
    has_convolution: bool = False,
    detailed: bool = True,
    upper: Tape | Folded | None = None,
    calibration: Calibration | None = None,
    process_groups: Sequence[ProcessGroup] = (),
    host_bytes: int = 0,
    loading: Tape | None = None,
    engine_share: float = 0.0,
    version: str = "",
    library: bool = False,
) -> Estimate:
    """Sum a tape up to what one device needs. All sizes in bytes.

    The three tiers and their intervals:

    - allocated: peak of the live storages, each rounded up to 512 bytes. Its high end is what
      ``torch.cuda.max_memory_allocated()`` would show, which counts what a block could not split off.
      Of a compiled program it is the peak of ``upper``: the same step where the compiler fuses nothing.
    - reserved: peak of the allocator's segments on this tape. The low end is a perfect packing of allocated's low end.
      A JAX program has one arena and no segments: reserved is allocated.
    - device: reserved, the CUDA context, NCCL's communicators (one per process group) and the cuBLAS workspaces.
      (torch takes these workspaces from its allocator, so its own reserved counter shows them; here they are a
      component of their own.)

    ``engine_share`` of the whole card is an inference engine's, which generates beside the training (vLLM takes its
    ``gpu_memory_utilization`` at start, weights and cache together).

    ``loading``: what happens before the first step, all of it given back to the driver by then.

    ``library``: the step is a library's, of whichever release: each interval is at least what one recipe was measured
    apart (``overhead.library_spread``). ``version``: the framework's release, where the config states it.

    Without ``detailed`` there are no components, only totals. ``calibration``: what a saved measurement adds.

    Components add up to the device figure: what is live at the allocated peak, then ``fragmentation``, which is
    the reserved peak less those live bytes. Both peaks need not fall together, but the allocator cannot have
    handed out more than it holds, so fragmentation is never negative.
    """
    peak: Peak | FoldedPeak
    if isinstance(tape, Folded):
        from memlint.tape import folded

        peak = folded.find_peak(tape)
        live = folded.break_down(tape, peak) if detailed else ()
    else:
        peak = find_peak(tape)
        live = break_down(tape, peak.event) if detailed else ()
    allocated = _believable(peak.peak_bytes)
    notes = list(assumptions)
    unfused = 0  # what is reserved beyond where the compiler fuses nothing
    if framework == JAX:
        reserved = allocated_high = allocated
        if upper is not None:
            allocated_high = max(allocated, allocated_peak(upper))
            unfused = allocated_high - allocated
            reason = "XLA keeps what it cannot fuse: the high end of the interval is without any fusion"
            notes.append(("compiler", "XLA", reason))
    else:
        replay = _simulated(tape, allocator_conf)
        reserved, allocated_high = replay.reserved_peak_bytes, replay.allocated_peak_bytes
        if upper is not None:
            _believable(allocated_peak(upper))
            whole = _simulated(upper, allocator_conf)
            allocated_high = max(allocated_high, whole.allocated_peak_bytes)
            unfused = max(0, whole.reserved_peak_bytes - reserved)
            reason = "what TorchInductor fuses is never in memory: the high end of the interval is without any fusion"
            notes.append(("compiler", "inductor", reason))
        if allocator_conf.backend != "native":
            reason = "the driver's own pool is not simulated: reserved is what the native allocator would hold"
            notes.append(("allocator_conf", f"backend:{allocator_conf.backend}", reason))
    measured = calibration.fixed if calibration is not None else None
    overhead = device_overhead(gpu, framework, has_matmul, has_convolution, measured, process_groups, version)
    notes.extend(overhead.assumptions)
    if calibration is not None:
        notes.append(calibration.assumption)

    engine_bytes = 0
    if engine_share:
        engine_bytes = 0 if gpu is None else int(engine_share * gpu.usable_bytes)
        reason = "of the whole card, taken at start" + (", which is not named here" if gpu is None else "")
        notes.append(("inference_engine", f"{engine_share:.0%}", reason))
    if gpu is not None and tape.streams and framework != JAX:
        fixed = overhead.context_bytes + overhead.workspace_bytes + overhead.communication_bytes + engine_bytes
        room = gpu.usable_bytes - fixed
        # What is live at once has to fit.
        full = reserved if allocated > room else _on_a_full_card(tape, allocator_conf, reserved, room)
        if full < reserved:
            reserved = full
            reason = "on a full card the allocator gives back what streams keep free, before it fails"
            notes.append(("reserved memory", "the whole card", reason))
    added = {
        "helper_models": engine_bytes,
        "fragmentation": reserved - allocated,
        "context": overhead.context_bytes,
        "workspace": overhead.workspace_bytes,
        "communication": overhead.communication_bytes,
    }
    slack_high = slack_allocated = 0
    if library and detailed:
        share = library_spread()
        states = sum(component.size_bytes for component in live if component.name in STATES)
        slack_allocated = int(share * (allocated - states))
        slack_high = int(share * (reserved - states))
        reason = "releases and cards differ by as much in all but the states; what no config states"
        notes.append(("library_releases", f"{share:.0%}", reason))
    allocated_interval = Interval(allocated - slack_allocated, max(allocated_high, allocated + slack_allocated))
    # A perfect packing of the least that is live: without a term of the simulated one, the low end never falls where a
    # batch grows.
    reserved_interval = Interval(allocated - slack_allocated, reserved + max(unfused, slack_high))
    loaded = 0
    if loading is not None:
        loaded, taken = (
            _believable(find_peak(loading).peak_bytes),
            simulate(loading, allocator_conf).reserved_peak_bytes,
        )
        # It cannot be less than this.
        allocated_interval = Interval(*[max(loaded, end) for end in allocated_interval])
        reserved_interval = Interval(max(loaded, reserved_interval.low_bytes), max(taken, reserved_interval.high_bytes))
    if loaded > reserved:  # no step takes as much
        reserved, allocated = taken, loaded
        peak = peak._replace(phase=SETUP, phases={**peak.phases, SETUP: loaded})
        live = _while_loading(live, loaded) if detailed else ()
        added["fragmentation"] = reserved - allocated
    components = _with_overhead(live, added) if detailed else ()
    device = reserved + overhead.context_bytes + overhead.workspace_bytes + overhead.communication_bytes + engine_bytes
    low = reserved_interval.low_bytes + overhead.context_interval.low_bytes + overhead.workspace_interval.low_bytes
    high = reserved_interval.high_bytes + overhead.context_interval.high_bytes + overhead.workspace_interval.high_bytes
    high += overhead.communication_interval.high_bytes + engine_bytes
    low += engine_bytes
    phases = {name: size for name, size in peak.phases.items() if name in (peak.phase, *_REPORTED)}
    found = Estimate(
        basis,
        parameters,
        trainable_parameters,
        allocated,
        reserved,
        device,
        tape.saved_bytes,
        peak.phase,
        phases,
        components,
        allocated_interval,
        reserved_interval,
        Interval(low, high),
        tuple(notes),
        tape.probabilities_kept_bytes,
        tape.probabilities_avoided_bytes,
        () if isinstance(tape, Folded) else tuple(tape.parameter_counts),
        host_bytes,
    )
    if calibration is not None:
        found = calibration.narrow(found, overhead.context_bytes, overhead.context_interval)
    return found


def _believable(peak_bytes: int) -> int:
    """The bytes themselves. Raises UnknownModel where no device ever had as many: a slip of the keyboard, for which
    addresses run out."""
    if peak_bytes > MOST_BYTES:
        from memlint.models import UnknownModel

        raise UnknownModel(f"the step would allocate {peak_bytes >> 50:,} PiB on one device: some size is no real one")
    return peak_bytes


def _events(tape: Tape) -> list[int] | None:
    if not tape.states_late:
        return None
    from memlint.tape.first_step import from_the_start

    return from_the_start(tape)


def allocated_peak(tape: Tape | Folded) -> int:
    """Most bytes live at once."""
    if isinstance(tape, Folded):
        from memlint.tape import folded

        return folded.find_peak(tape).peak_bytes
    return find_peak(tape).peak_bytes


def first_pass(tape: Tape | Folded) -> int:
    """:func:`memlint.tape.phases.first_pass_bytes`."""
    if isinstance(tape, Folded):
        from memlint.tape import folded

        return folded.first_pass_bytes(tape)
    return first_pass_bytes(tape)


def packed(tape: Tape | Folded) -> int:
    """:func:`memlint.tape.phases.packed_bytes`."""
    if isinstance(tape, Folded):
        from memlint.tape import folded

        return folded.packed_bytes(tape)
    return packed_bytes(tape)


def _simulated(tape: Tape | Folded, conf: AllocatorConf) -> AllocatorResult:
    whole = tape.unfold() if isinstance(tape, Folded) else tape
    return simulate(whole, conf, events=_events(whole))


def _on_a_full_card(tape: Tape | Folded, conf: AllocatorConf, reserved: int, room: int) -> int:
    """Reserved bytes where the driver can give ``room`` bytes in all; as without end if that is not enough."""
    if reserved <= room or room <= 0:
        return reserved
    if isinstance(tape, Folded):
        tape = tape.unfold()
    replay = simulate(tape, conf, room, _events(tape))
    return reserved if replay.oom_index is not None else replay.reserved_peak_bytes


def _while_loading(live: tuple[Component, ...], loaded: int) -> tuple[Component, ...]:
    """Whole parameters, and the buffers that stay."""
    kept = tuple(component for component in live if component.name == "buffers")
    size = loaded - sum(component.size_bytes for component in kept)
    return (Component("parameters", size, (Part("before they are sharded", size),)), *kept)


_REPORTED = ("generation", "forward", "backward", "optimizer_step", "evaluation")


def _with_overhead(live: tuple[Component, ...], added: dict[str, int]) -> tuple[Component, ...]:
    """The live components and the added ones in the report's order; workspaces and communication may come from both."""
    merged = {component.name: component for component in live}
    for name, size in added.items():
        if not size:
            continue
        known = merged.get(name, Component(name, 0))
        library = LIBRARY_PARTS.get(name)
        parts = (*known.parts, Part(library, size)) if library else known.parts
        ordered = tuple(sorted(parts, key=lambda part: (-part.size_bytes, part.name)))
        merged[name] = Component(name, known.size_bytes + size, ordered)
    order = {name: rank for rank, name in enumerate(COMPONENTS)}
    return tuple(sorted(merged.values(), key=lambda component: order.get(component.name, len(order))))
