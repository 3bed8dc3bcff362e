"""Real training steps of a JAX config, and what they took.

The step is compiled as the user's loop compiles it (``train_step`` of the module that builds the model, under
``jax.jit``; without one, loss, gradients, Adam and EMA), run once to warm up and once to be measured. What is read:

- the live buffers while the step's arguments and results are both held (``jax.live_arrays``), each buffer once;
- what the compiler assigned to temporaries (``memory_analysis()``), which no counter of the CPU shows;
- on a card, ``Device.memory_stats()``, whose peak is the truth where the two above do not add up to it.

A compiled step is one program: its peak has no phase.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from memlint.measure.child import MeasureError
from memlint.measure.device import CPU, process_bytes, reconciled
from memlint.measure.factory import Workload, said, workload
from memlint.measure.worker import tell
from memlint.meta.tape import COMPONENTS
from memlint.tape.estimate import OOM, Component, Estimate, Interval, Part
from memlint.units import format_bytes

LEARNING_RATE = 1e-4  # of no account for memory, as are the next ones
DECAY, EPSILON = 0.9, 1e-8
STEP = "step"
# The CPU's machine code may be slow: it is run twice. Buffers are assigned before there is any.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
ON_THE_CPU = "counted on the CPU: XLA compiles other kernels for it and fuses less than on a card"


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """What the measuring process answers to a probe of a JAX config, as :func:`memlint.measure.probe.answer`."""
    kind = request["device"]
    if request.get("snapshot"):
        raise MeasureError("a snapshot is the history of PyTorch's allocator; a JAX step has none")
    # Read when the backend starts. Without it JAX takes three quarters of a card, and no figure says what was needed.
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    if kind == CPU:
        os.environ["JAX_PLATFORMS"] = CPU
    else:
        os.environ.pop("JAX_PLATFORMS", None)  # a backend that is named and missing ends in an assertion of JAX's
    try:
        import jax
    except ImportError as error:
        raise MeasureError(f"needs JAX, which cannot be imported ({error})") from None
    from memlint.measure import trace_jax

    try:
        device = jax.devices(kind)[0]
    except RuntimeError as error:
        if kind == CPU:
            raise MeasureError(f"JAX has no CPU backend ({error})") from None
        raise MeasureError(
            f"found no GPU (jax {jax.__version__}); --trace needs none, and --probe-device cpu runs the same step on "
            "the CPU"
        ) from None
    trace_jax.share_devices(request)
    work = workload(request)
    try:
        with jax.default_device(device):
            return _measured(request, work, device)
    except MeasureError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            return _died(request, work, device, error)
        raise MeasureError(f"{work.source}: raised {said(error)}") from error


def is_out_of_memory(error: BaseException) -> bool:
    """XLA's status for it, on a card and on the CPU alike, or Python's own."""
    return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error) or "Out of memory" in str(error)


def _measured(request: dict[str, Any], work: Workload, device: Any) -> dict[str, Any]:
    import jax

    from memlint.measure import trace_jax

    tell(request, "building the model")
    options = QUICK if device.platform == CPU else None
    # One program, instead of one for every array.
    model = jax.jit(work.build).lower().compile(compiler_options=options)()
    sizes = [int(leaf.size) for leaf in jax.tree.leaves(model)]
    if not sizes:
        raise MeasureError(f"{work.source}: the model has no arrays")
    make_state, step = _step(request, work)
    state = jax.jit(make_state)(model)
    del model
    batch = work.batch("cpu")
    tell(request, "compiling the step")
    lowered = (step if hasattr(step, "lower") else jax.jit(step)).lower(state, batch)
    compiled = lowered.compile(compiler_options=options)
    assigned = compiled.memory_analysis()
    tell(request, "warm-up step")
    state, _ = compiled(state, batch)
    jax.block_until_ready(state)
    tell(request, "measured step")
    before = _named(state, len(sizes), batch, "")
    given = dict(before)
    result = compiled(state, batch)
    jax.block_until_ready(result)
    after = _named(result[0], len(sizes), None, "new value")
    found = _live(jax.live_arrays(), {**after, **given})
    if assigned is not None:
        _add(found, "activations", "temporaries of the program", int(assigned.temp_size_in_bytes))
        _add(found, "workspace", "machine code", int(assigned.generated_code_size_in_bytes))
    live = _components(found)
    allocated = sum(component.size_bytes for component in live)
    complete = False
    notes = [
        f"live buffers: {format_bytes(sum(size for entry in found.values() for size in entry.values()))}, of which "
        f"{format_bytes(int(assigned.temp_size_in_bytes) if assigned is not None else 0)} temporaries as XLA assigned "
        "them (memory_analysis)"
    ]
    reserved = held = allocated
    if device.platform != CPU:
        allocated, reserved, held, source, complete = _counters(device)
        notes.append(f"device bytes: {source}; {device.device_kind}, without preallocation")
        live = reconciled(live, allocated, reserved, held)
    else:
        notes.append(ON_THE_CPU)
    saved = trace_jax.residual_bytes(work, *jax.eval_shape(lambda: (work.build(), work.batch("cpu"))))
    estimate = _estimate(sum(sizes), allocated, reserved, held, saved, live)
    return {
        "estimate": estimate,
        "source": work.source,
        "notes": notes,
        "made_with": {"jax": jax.__version__},
        "card": device.device_kind if device.platform != CPU else "",
        "context_bytes": held - reserved if complete else None,
    }


def _step(request: dict[str, Any], work: Workload) -> tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]:
    """(model -> state, (state, batch) -> (state, loss)): the module's own, or Adam and EMA as the facts say."""
    import jax
    import jax.numpy as jnp

    from memlint.measure import trace_jax

    own_state, own_step = getattr(work.module, "make_state", None), getattr(work.module, "train_step", None)
    if own_state is not None and own_step is not None:
        return own_state, own_step
    copies = trace_jax.copies(request["facts"])
    moments = copies.count("optimizer")

    def make_state(model: Any) -> Any:
        return model, [jax.tree.map(jnp.zeros_like, model) for _ in copies]

    def step(state: Any, batch: Any) -> Any:
        model, kept = state
        loss, gradients = jax.value_and_grad(work.loss)(model, batch)
        kept = [
            jax.tree.map(lambda m, g: DECAY * m + (1 - DECAY) * g, kept[0], gradients),
            *(jax.tree.map(lambda v, g: DECAY * v + (1 - DECAY) * g * g, v, gradients) for v in kept[1:moments]),
            *kept[moments:],
        ]
        second = kept[1 if moments > 1 else 0]
        model = jax.tree.map(
            lambda w, m, v: w - LEARNING_RATE * m / (jnp.sqrt(jnp.abs(v)) + EPSILON), model, kept[0], second
        )
        kept[moments:] = [
            jax.tree.map(lambda old, new: DECAY * old + (1 - DECAY) * new, average, model) for average in kept[moments:]
        ]
        return (model, kept), loss

    return make_state, step


def _named(state: Any, count: int, batch: Any, suffix: str) -> dict[int, tuple[str, str]]:
    """(component, part) of each buffer of a training state, and of a batch, by address.

    New values of the parameters take the place of the gradients, as in a trace: XLA builds the one in the other.
    """
    import jax

    from memlint.measure import trace_jax

    named: dict[int, tuple[str, str]] = {}
    for at, (path, leaf) in enumerate(jax.tree_util.tree_flatten_with_path(state)[0]):
        component = trace_jax.component_of(path) if at >= count else "gradients" if suffix else "parameters"
        named[_address(leaf)] = component, suffix if component != "gradients" else "gradient, then new value"
    for leaf in jax.tree.leaves(batch):
        named[_address(leaf)] = "activations", "batch"
    return named


def _address(array: Any) -> int:
    """Of an array's first buffer: arrays may share one. Host arrays (a NumPy batch) have none on the device."""
    try:
        return int(array.addressable_shards[0].data.unsafe_buffer_pointer())
    except (AttributeError, IndexError):
        return id(array)


def _live(arrays: Iterable[Any], named: dict[int, tuple[str, str]]) -> dict[str, dict[str, int]]:
    """Bytes of live buffers by component and part, each once. What is no one's is a constant of the code."""
    found: dict[str, dict[str, int]] = {}
    seen: set[int] = set()
    for array in arrays:
        address = _address(array)
        if array.is_deleted() or address in seen:
            continue
        seen.add(address)
        component, part = named.get(address, ("buffers", "constants"))
        _add(found, component, part, int(array.addressable_shards[0].data.nbytes))
    return found


def _add(found: dict[str, dict[str, int]], component: str, part: str, size: int) -> None:
    if size:
        entry = found.setdefault(component, {})
        entry[part] = entry.get(part, 0) + size


def _components(found: dict[str, dict[str, int]]) -> tuple[Component, ...]:
    made = []
    for name in COMPONENTS:
        parts = [Part(part or "values", size) for part, size in found.get(name, {}).items()]
        if parts:
            parts.sort(key=lambda part: (-part.size_bytes, part.name))
            made.append(Component(name, sum(part.size_bytes for part in parts), tuple(parts)))
    return tuple(made)


def _counters(device: Any) -> tuple[int, int, int, str, bool]:
    """(allocated, reserved, device, who says so, whether with the context) of a card, from the allocator's statistics
    and the driver."""
    stats = device.memory_stats() or {}
    allocated = int(stats.get("peak_bytes_in_use", 0))
    reserved = max(int(stats.get("peak_pool_bytes") or stats.get("pool_bytes") or 0), allocated)
    held = process_bytes()
    if held is not None:
        return allocated, reserved, max(held[0], reserved), held[1], True
    return allocated, reserved, reserved, "the allocator's pool (memory_stats), without the CUDA context", False


def _estimate(
    elements: int, allocated: int, reserved: int, held: int, saved: int, components: tuple[Component, ...]
) -> Estimate:
    import jax

    return Estimate(
        "probe",
        elements,
        elements,
        allocated,
        reserved,
        held,
        saved,
        STEP,
        {},
        components,
        Interval(allocated, allocated),
        Interval(reserved, reserved),
        Interval(held, held),
        (("jax", jax.__version__, "measured"),),
    )


def _died(request: dict[str, Any], work: Workload, device: Any, error: BaseException) -> dict[str, Any]:
    """The answer of a step that ran out of memory: what was alive then."""
    import jax

    wanted = " ".join(str(error).split())[:300] or type(error).__name__
    live = _components(_live(jax.live_arrays(), {}))
    allocated = reserved = held = sum(component.size_bytes for component in live)
    if device.platform != CPU:
        allocated, reserved, held, _, _ = _counters(device)
        live = reconciled(live, allocated, reserved, held)
    notes = [f"out of memory in the step: {wanted}", f"{format_bytes(allocated)} were alive then"]
    if device.platform == CPU:
        notes.append(ON_THE_CPU)
    found = _estimate(0, allocated, reserved, held, 0, live)
    return {"estimate": found, "source": work.source, "notes": notes, "verdict": OOM}
