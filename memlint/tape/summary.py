"""Recording -> Estimate: every consumer of a tape put together.

The three tiers and their intervals:

- allocated: peak of the live storages, each rounded up to 512 bytes. Its high end is what
  ``torch.cuda.max_memory_allocated()`` would show, which counts what a block could not split off.
  Of a compiled program it is the peak of ``recording.upper``: the same step where the compiler fuses nothing.
- reserved: peak of the allocator's segments on this tape. The low end is a perfect packing of allocated's low end.
  A JAX program has one arena and no segments: reserved is allocated.
- device: reserved, the CUDA context, NCCL's communicators (one per process group) and the cuBLAS workspaces.
  (torch takes these workspaces from its allocator, so its own reserved counter shows them; here they are a
  component of their own.)

Where the step is a library's, each interval is wider by what published runs lie apart from their estimates
(``overhead.unexplained``).

Components add up to the device figure: what is live at the allocated peak, then ``fragmentation``, which is
the reserved peak less those live bytes. Both peaks need not fall together, but the allocator cannot have
handed out more than it holds, so fragmentation is never negative.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from memlint.meta.fold import Folded
from memlint.meta.tape import COMPONENTS, Tape
from memlint.named_tuple import NamedTuple
from memlint.tape.allocator import AllocatorResult, Clearing, simulate
from memlint.tape.allocator_conf import DEFAULT, AllocatorConf
from memlint.tape.breakdown import break_down
from memlint.tape.estimate import Component, Estimate, Interval, Part
from memlint.tape.overhead import JAX, Assumption, Overhead, device_overhead, unexplained
from memlint.tape.phases import SETUP, find_peak, first_pass_bytes, packed_bytes

if TYPE_CHECKING:
    from memlint.data.catalogue import Gpu
    from memlint.models import Recording
    from memlint.tape.calibration import Calibration

CUBLAS_PART = "cuBLAS"
# What no release of a library takes more or less of
STATES = ("parameters", "gradients", "optimizer", "ema", "helper_models", "buffers")
MOST_BYTES = 1 << 50  # of one device: thousands of times what any has
LIBRARY_PARTS = {"workspace": CUBLAS_PART, "communication": "communicators", "helper_models": "inference engine"}


class Device(NamedTuple):
    """What runs the step.

    gpu           None for no card in particular
    version       the framework's release (``torch 2.6``), where it is stated
    engine_share  of the whole card is an inference engine's, which generates beside the training (vLLM takes its
                  ``gpu_memory_utilization`` at start, weights and cache together)
    engine_beside  components of the training that are on the card while it generates, where it gives its share back
                  before the model trains; None: it never does
    processes     that have a context on it
    most_reserved_bytes  a run that reserves more is of no interest; None: any is
    """

    gpu: Gpu | None = None
    allocator_conf: AllocatorConf = DEFAULT
    version: str = ""
    engine_share: float = 0.0
    engine_beside: tuple[str, ...] | None = None
    processes: int = 1
    most_reserved_bytes: int | None = None


class _Live(NamedTuple):
    """What is live at the peak, in bytes; ``phases`` as :class:`memlint.tape.phases.Peak` has them."""

    allocated_bytes: int
    phase: str
    phases: dict[str, int]
    components: tuple[Component, ...]


class _Reserved(NamedTuple):
    """What the allocator holds at most.

    allocated_high_bytes  what ``torch.cuda.max_memory_allocated()`` would show, without a compiler's fusions
    unfused_bytes         what is reserved beyond ``reserved_bytes`` where a compiler fuses nothing
    """

    reserved_bytes: int
    allocated_high_bytes: int
    unfused_bytes: int = 0


class _Spread(NamedTuple):
    """By how many bytes published runs lie apart from their estimates.

    below_bytes      below what is allocated
    allocated_bytes  above what is allocated
    reserved_bytes   above what is reserved
    """

    below_bytes: int = 0
    allocated_bytes: int = 0
    reserved_bytes: int = 0


def estimate(
    recording: Recording,
    device: Device = Device(),  # noqa: B008 - a tuple, which nobody changes
    *,
    assumptions: Sequence[Assumption] = (),
    calibration: Calibration | None = None,
    detailed: bool = True,
) -> Estimate:
    """Sum a recorded step up to what one device needs. All sizes in bytes.

    ``calibration``: what a saved measurement adds. Without ``detailed`` there are no components. Raises ReservesMore.
    """
    live = _live(recording.whole, detailed or device.engine_beside is not None)
    notes = [*assumptions, *recording.assumptions]
    beside: list[Assumption] = []
    overhead = _overhead(recording, device, calibration, beside)
    warmed = _warmed_bytes(recording, device, overhead)
    served = _served(recording, device, live.allocated_bytes, warmed, notes)
    notes += beside
    generating_bytes = _engine_bytes(device, notes)
    engine_bytes = generating_bytes if device.engine_beside is None else 0
    fixed_bytes = overhead.context_bytes + overhead.workspace_bytes + overhead.communication_bytes + engine_bytes
    served = _on_its_card(recording, device, live.allocated_bytes, served, fixed_bytes, warmed, notes)
    spread = _spread(live, served, device.gpu is not None, notes) if recording.library and detailed else _Spread()
    intervals = _intervals(live.allocated_bytes, served, spread)
    live, reserved_bytes, intervals = _from_loading_on(
        recording, device, warmed, live, served.reserved_bytes, intervals
    )
    added = {
        "helper_models": engine_bytes,
        "fragmentation": reserved_bytes - live.allocated_bytes,
        "context": overhead.context_bytes,
        "workspace": overhead.workspace_bytes,
        "communication": overhead.communication_bytes,
    }
    found = Estimate(
        recording.basis,
        recording.parameters,
        recording.trainable_parameters,
        live.allocated_bytes,
        reserved_bytes,
        reserved_bytes + fixed_bytes,
        recording.whole.saved_bytes,
        live.phase,
        {name: size for name, size in live.phases.items() if name in (live.phase, *_REPORTED)},
        _with_overhead(live.components, added) if detailed else (),
        *intervals,
        _device_interval(intervals[1], overhead, engine_bytes),
        tuple(notes),
        recording.whole.probabilities_kept_bytes,
        recording.whole.probabilities_avoided_bytes,
        tuple(recording.whole.parameter_counts),
        recording.host_bytes,
    )
    if generating_bytes > engine_bytes:
        added |= {"helper_models": generating_bytes, "fragmentation": 0}
        found = _while_generating(found, live, device.engine_beside or (), added)
    if calibration is not None:
        found = calibration.narrow(found, overhead.context_bytes, overhead.context_interval)
    return found


def _live(tape: Tape | Folded, detailed: bool) -> _Live:
    if isinstance(tape, Folded):
        from memlint.tape import folded

        where = folded.find_peak(tape)
        components = folded.break_down(tape, where) if detailed else ()
        return _Live(_believable(where.peak_bytes), where.phase, where.phases, components)
    peak = find_peak(tape)
    components = break_down(tape, peak.event) if detailed else ()
    return _Live(_believable(peak.peak_bytes), peak.phase, peak.phases, components)


# What the loader leaves of a card's free memory (transformers 4.52 to 4.57, caching_allocator_warmup).
LEFT_BY_LOADER_BYTES = int(1.2 * (1 << 30))


def _warmed_bytes(recording: Recording, device: Device, overhead: Overhead) -> int:
    """What the loader takes at once of this card: half of the weights, or half of what it may take."""
    if device.gpu is None or not recording.warmed_bytes:
        return recording.warmed_bytes
    free = device.gpu.usable_bytes - overhead.context_bytes
    return min(recording.warmed_bytes, max(0, free - LEFT_BY_LOADER_BYTES) // 2)


def _served(recording: Recording, device: Device, allocated: int, warmed: int, notes: list[Assumption]) -> _Reserved:
    """What an allocator without a limit makes of the step."""
    upper, conf = recording.upper, device.allocator_conf
    card_bytes = 0 if device.gpu is None else device.gpu.usable_bytes
    if recording.framework == JAX:
        if upper is None:
            return _Reserved(allocated, allocated)
        high = max(allocated, allocated_peak(upper))
        reason = "XLA keeps what it cannot fuse: the high end of the interval is without any fusion"
        notes.append(("compiler", "XLA", reason))
        return _Reserved(allocated, high, high - allocated)
    # With several streams a full card decides in the end (_on_its_card).
    most_bytes = None if card_bytes and recording.whole.streams else device.most_reserved_bytes
    replay = _simulated(recording.whole, conf, warmed, card_bytes, most_bytes)
    reserved, high, unfused = replay.reserved_peak_bytes, replay.allocated_peak_bytes, 0
    if card_bytes and recording.whole.clears_over:
        # A run that reserves a little less than this one may stay below the share.
        kept = _simulated(recording.whole, conf, warmed, int(card_bytes / (1 - unexplained(True)[0])))
        unfused = max(0, kept.reserved_peak_bytes - reserved)
    if upper is not None:
        _believable(allocated_peak(upper))
        whole = _simulated(upper, conf, warmed, 0)
        high = max(high, whole.allocated_peak_bytes)
        unfused = max(unfused, whole.reserved_peak_bytes - reserved)
        reason = "what TorchInductor fuses is never in memory: the high end of the interval is without any fusion"
        notes.append(("compiler", "inductor", reason))
    if conf.backend != "native":
        reason = "the driver's own pool is not simulated: reserved is what the native allocator would hold"
        notes.append(("allocator_conf", f"backend:{conf.backend}", reason))
    return _Reserved(reserved, high, unfused)


def _overhead(
    recording: Recording, device: Device, calibration: Calibration | None, notes: list[Assumption]
) -> Overhead:
    found = device_overhead(
        device.gpu,
        recording.framework,
        recording.has_matmul,
        recording.has_convolution,
        None if calibration is None else calibration.fixed,
        recording.process_groups,
        device.version,
    )
    notes.extend(found.assumptions)
    if calibration is not None:
        notes.append(calibration.assumption)
    if device.processes > 1:
        reason = "each has a context; what their communicators take is known of the one that trains alone"
        notes.append(("processes", str(device.processes), reason))
        low, high = found.context_interval
        context = Interval(device.processes * low, device.processes * high)
        talk = Interval(
            found.communication_interval.low_bytes, device.processes * found.communication_interval.high_bytes
        )
        found = found._replace(
            context_bytes=device.processes * found.context_bytes, context_interval=context, communication_interval=talk
        )
    return found


def _engine_bytes(device: Device, notes: list[Assumption]) -> int:
    if not device.engine_share:
        return 0
    reason = f"of the whole card, {'taken at start' if device.engine_beside is None else 'while it generates'}"
    reason += ", which is not named here" if device.gpu is None else ""
    notes.append(("inference_engine", f"{device.engine_share:.0%}", reason))
    return 0 if device.gpu is None else int(device.engine_share * device.gpu.usable_bytes)


def _while_generating(found: Estimate, live: _Live, beside: Sequence[str], added: dict[str, int]) -> Estimate:
    """The engine's share beside what of the training stays on the card, where that is more than training takes. What
    nobody uses is given back before (verl: ``aggressive_empty_cache``)."""
    kept = tuple(component for component in live.components if component.name in beside)
    whole = sum(component.size_bytes for component in kept) + sum(added.values())
    interval = Interval(*[max(whole, end) for end in found.device_interval])
    if whole <= found.device_bytes:
        return found._replace(device_interval=interval)
    components = _with_overhead(kept, added) if found.components else ()
    return found._replace(device_bytes=whole, peak_phase="generation", components=components, device_interval=interval)


def _on_its_card(
    recording: Recording,
    device: Device,
    allocated: int,
    served: _Reserved,
    fixed_bytes: int,
    warmed: int,
    notes: list[Assumption],
) -> _Reserved:
    """Several streams keep more than they need until the card is full."""
    if device.gpu is None or not recording.whole.streams or recording.framework == JAX:
        return served
    room = device.gpu.usable_bytes - fixed_bytes
    if allocated > room:  # what is live at once has to fit
        return served
    full = _on_a_full_card(recording.whole, device, served.reserved_bytes, room, warmed)
    if full >= served.reserved_bytes:
        return served
    reason = "on a full card the allocator gives back what streams keep free, before it fails"
    notes.append(("reserved memory", "the whole card", reason))
    return served._replace(reserved_bytes=full)


def _spread(live: _Live, served: _Reserved, has_card: bool, notes: list[Assumption]) -> _Spread:
    below, above = unexplained(has_card)
    states = sum(component.size_bytes for component in live.components if component.name in STATES)
    allocated, reserved = live.allocated_bytes - states, served.reserved_bytes - states
    cards = "" if has_card else ", on any card"
    reason = f"of all but the states: nine of ten published runs lie within it{cards}"
    notes.append(("unexplained", f"-{below:.0%} +{above:.0%}", reason))
    return _Spread(int(below * allocated), int(above * allocated), int(above * reserved))


def _intervals(allocated: int, served: _Reserved, spread: _Spread) -> tuple[Interval, Interval]:
    """Of what is allocated, and of what is reserved. The latter's low end is a perfect packing of the least that is
    live: without a term of the simulated one, it never falls where a batch grows."""
    low = allocated - spread.below_bytes
    high = max(served.allocated_high_bytes, allocated + spread.allocated_bytes)
    return Interval(low, high), Interval(low, served.reserved_bytes + max(served.unfused_bytes, spread.reserved_bytes))


def _device_interval(reserved: Interval, overhead: Overhead, engine_bytes: int) -> Interval:
    low = reserved.low_bytes + overhead.context_interval.low_bytes + overhead.workspace_interval.low_bytes
    high = reserved.high_bytes + overhead.context_interval.high_bytes + overhead.workspace_interval.high_bytes
    high += overhead.communication_interval.high_bytes
    return Interval(low + engine_bytes, high + engine_bytes)


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


def whole_tape(recording: Recording) -> Tape:
    """Event by event, of all layers."""
    tape = recording.whole
    return tape.unfold() if isinstance(tape, Folded) else tape


def _simulated(
    tape: Tape | Folded, conf: AllocatorConf, warmed: int, card_bytes: int, most_bytes: int | None = None
) -> AllocatorResult:
    """``card_bytes``: of the card whose shares the loop asks for; 0 where it is not known, and nothing is cleared.
    Raises ReservesMore."""
    whole = tape.unfold() if isinstance(tape, Folded) else tape
    events = _events(whole)
    clearing = _clearing(whole, events, card_bytes)
    return simulate(whole, conf, events=events, warmed_bytes=warmed, clearing=clearing, most_bytes=most_bytes)


def _clearing(tape: Tape, events: list[int] | None, card_bytes: int) -> Clearing | None:
    """Before the evaluation, which ends the events however often the steps come."""
    if not tape.clears_over or not card_bytes:
        return None
    begin = next((at for at, phase in tape.marks if phase == "evaluation"), len(tape.events))
    count = len(tape.events if events is None else events)
    return Clearing(count - len(tape.events) + begin, int(tape.clears_over * card_bytes))


def _on_a_full_card(tape: Tape | Folded, device: Device, reserved: int, room: int, warmed: int) -> int:
    """Reserved bytes where the driver can give ``room`` bytes in all; as without end if that is not enough."""
    if reserved <= room or room <= 0:
        return reserved
    if isinstance(tape, Folded):
        tape = tape.unfold()
    events = _events(tape)
    card_bytes = 0 if device.gpu is None else device.gpu.usable_bytes
    clearing = _clearing(tape, events, card_bytes)
    replay = simulate(tape, device.allocator_conf, room, events, warmed, clearing)
    return reserved if replay.oom_index is not None else replay.reserved_peak_bytes


def _from_loading_on(
    recording: Recording,
    device: Device,
    warmed: int,
    live: _Live,
    reserved_bytes: int,
    intervals: tuple[Interval, Interval],
) -> tuple[_Live, int, tuple[Interval, Interval]]:
    """What is live, reserved, and their intervals, where loading the model counts as well: what its own tape has,
    or what the loader takes at once."""
    loaded, taken = warmed, reserved_bytes
    if recording.loading is not None:
        loaded = _believable(find_peak(recording.loading).peak_bytes)
        taken = simulate(recording.loading, device.allocator_conf).reserved_peak_bytes
    if not loaded:
        return live, reserved_bytes, intervals
    allocated, reserved = intervals
    allocated = Interval(*[max(loaded, end) for end in allocated])
    reserved = Interval(max(loaded, reserved.low_bytes), max(taken, reserved.high_bytes))
    if loaded > reserved_bytes:  # no step takes as much
        live, reserved_bytes = _while_loading(live, loaded), taken
    return live, reserved_bytes, (allocated, reserved)


def _while_loading(live: _Live, loaded: int) -> _Live:
    """Whole parameters, and the buffers that stay."""
    phases = {**live.phases, SETUP: loaded}
    if not live.components:
        return _Live(loaded, SETUP, phases, ())
    kept = tuple(component for component in live.components if component.name == "buffers")
    size = loaded - sum(component.size_bytes for component in kept)
    whole = Component("parameters", size, (Part("before the first step", size),))
    return _Live(loaded, SETUP, phases, (whole, *kept))


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
