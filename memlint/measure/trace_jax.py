"""A JAX training step without a device: the jaxpr of loss and gradients as a Tape.

``jax.eval_shape`` and ``jax.make_jaxpr`` only pass shapes through the user's code. The equations, with nested calls
written out, go through the liveness and fusion rules of :mod:`memlint.meta.jaxpr`, as the static models of JAX programs
do; the training state (parameters, and what the code's ``make_state`` adds, or Adam's two moments) lies there twice
while the step runs, since no buffer is donated. Figures are those of one device.

``lax.scan`` and ``lax.while_loop`` count with what goes in and comes out, not with the arrays of their bodies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax

from memlint.measure.child import MeasureError
from memlint.measure.factory import Workload, said, workload
from memlint.meta.jaxpr import CHEAP, COSTLY, PLAIN, PRODUCT, Program
from memlint.meta.tape import Label, Tape

# The same bytes under another shape.
RENAMED = {"reshape", "squeeze", "expand_dims", "stop_gradient", "copy", "copy_p", "optimization_barrier"}
PRODUCTS = {"dot_general", "conv_general_dilated"}
# xla/service/instruction_fusion.cc, InstructionFusion::IsExpensive
EXPENSIVE = {"exp", "exp2", "tanh", "logistic", "rsqrt", "sqrt", "cbrt", "log", "pow", "div", "rem", "atan2", "tan"}
# Loops, sorts, reductions, scatters and random bits are memory: XLA does not compute them inside a reader.
WRITTEN = {
    "reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "reduce_window", "cumsum",
    "cumprod", "cummax", "cummin", "cumlogsumexp", "gather", "scatter", "scatter_add", "scatter-add", "argmax",
    "argmin", "sort", "top_k", "while", "scan", "cond", "erf_inv", "log1p", "random_bits", "random_seed",
    "random_split", "random_wrap", "random_unwrap", "random_fold_in", "threefry2x32", "fft", "cholesky", "custom_call",
}  # fmt: skip


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """What the measuring process answers for a JAX config."""
    from memlint.data.catalogue import parse_gpu
    from memlint.models import Recording
    from memlint.tape.summary import Device, estimate

    share_devices(request)
    work = workload(request)
    try:
        tape, upper, elements = _traced(request, work)
    except MeasureError:
        raise
    except Exception as error:
        raise MeasureError(f"{work.source}: raised {said(error)}") from error
    recording = Recording(tape, elements, elements, framework="jax", has_convolution=True, upper=upper, basis="trace")
    found = estimate(
        recording,
        Device(parse_gpu(request["gpu"])[0] if request["gpu"] else None),
        assumptions=(
            *((str(k), str(v), str(r)) for k, v, r in request["assumed"]),
            ("jax", jax.__version__, "traced by shapes; the state is not donated, so old and new lie side by side"),
            ("evaluation", "not traced", "only the training step; models that the loop loads beside it are not seen"),
        ),
    )
    return {"estimate": found, "source": work.source}


def share_devices(request: dict[str, Any]) -> None:
    """Tell the code how many devices there are: the launch's environment states it, not the config, and a batch is
    one device's share of the config's."""
    devices = request["facts"].get("device_count")
    if isinstance(request["config"], dict) and isinstance(devices, int):
        request["config"].setdefault("device_count", devices)


def _traced(request: dict[str, Any], work: Workload) -> tuple[Tape, Tape, int]:
    """The step as XLA fuses it, without fusion, and the number of parameters."""
    model = jax.eval_shape(work.build)
    batch = jax.eval_shape(lambda: work.batch("cpu"))
    closed = jax.make_jaxpr(jax.value_and_grad(work.loss))(model, batch)
    state = _state(request, work, model)
    leaves = jax.tree.leaves(model)
    if not leaves:
        raise MeasureError(f"{work.source}: the model has no arrays")
    tapes = [_tape(closed, len(leaves), leaves, state, fuse) for fuse in (True, False)]
    tapes[0].saved_bytes = residual_bytes(work, model, batch)
    return tapes[0], tapes[1], sum(int(leaf.size) for leaf in leaves)


def _state(request: dict[str, Any], work: Workload, model: Any) -> list[tuple[str, Any]]:
    """(component, array) of what lies beside the parameters: optimizer states and averages."""
    make_state = getattr(work.module, "make_state", None)
    if make_state is None:
        return [(component, leaf) for component in copies(request["facts"]) for leaf in jax.tree.leaves(model)]
    found = []
    count = len(jax.tree.leaves(model))
    for path, leaf in jax.tree_util.tree_flatten_with_path(jax.eval_shape(make_state, model))[0]:
        found.append((component_of(path), leaf))
    return found[count:]  # the model itself comes first


def copies(facts: dict[str, Any]) -> list[str]:
    """Components of the copies of the parameters that a training state holds, for code that does not say."""
    moments = {"adamw": 2, "adam": 2}.get(str(facts.get("optimizer") or "adamw"), 1)
    return ["optimizer"] * moments + ["ema"] * bool(facts.get("ema"))


def component_of(path: Any) -> str:
    """The component of an entry of the training state beside the model, by what the code calls it."""
    name = jax.tree_util.keystr(path[:1]).lower()
    return "ema" if "ema" in name or "average" in name else "optimizer"


def residual_bytes(work: Workload, model: Any, batch: Any) -> int:
    """Distinct arrays that the function returned by ``jax.vjp`` holds, those that went in excluded."""
    program = jax.make_jaxpr(lambda m, b: jax.vjp(lambda x: work.loss(x, b), m))(model, batch).jaxpr
    given = set(program.invars)
    kept = dict.fromkeys(v for v in program.outvars[1:] if not _is_literal(v))
    return sum(_size(variable.aval) for variable in kept if variable not in given)


def _size(variable: Any) -> int:
    """Bytes; keys of random number generators are two words of four bytes."""
    return int(variable.size) * int(getattr(variable.dtype, "itemsize", 8))


def _tape(closed: Any, parameters: int, leaves: list[Any], state: list[tuple[str, Any]], fuse: bool) -> Tape:
    program = Program()
    written = _Writer(program)
    arguments = [written.number(variable) for variable in closed.jaxpr.invars]
    environment = dict(zip(closed.jaxpr.invars, arguments))
    environment.update({variable: written.number(variable) for variable in closed.jaxpr.constvars})
    placed = set(environment.values())
    written.equations(closed.jaxpr, environment)
    results = [environment[v] for v in closed.jaxpr.outvars if not _is_literal(v)]
    for result in results:
        program.write(PLAIN, -1, result)
    gradients = set(results[-parameters:])

    tape = Tape()
    tape.mark("setup")
    held = [tape.allocate(_size(leaf), Label("parameters", "")) for leaf in leaves]
    held += [tape.allocate(_size(leaf), Label(component, "")) for component, leaf in state]
    tape.mark("forward")
    for argument in arguments[parameters:]:
        held.append(tape.allocate(program.sizes[argument], Label("activations", "", "batch")))
    # XLA takes the results' buffers when the step begins; a gradient is built where the new parameter will be.
    for leaf in leaves:
        tape.allocate(_size(leaf), Label("gradients", "", "gradient, then new value"))
    for component, leaf in state:
        tape.allocate(_size(leaf), Label(component, "", "new value"))
    backward = written.backward if written.backward is not None else len(program.written)
    program.run(tape, [(backward, "backward")], placed | gradients, fuse)
    for number in held:
        tape.free(number)
    return tape


class _Writer:
    """Writes a jaxpr's equations into a Program, nested calls included."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.backward: int | None = None  # its first equation: JAX names what transposition writes

    def number(self, variable: Any) -> int:
        self.program.sizes.append(_size(variable.aval))
        self.program.labels.append(Label("activations", ""))
        return len(self.program.sizes) - 1

    def equations(self, jaxpr: Any, environment: dict[Any, int]) -> None:
        program = self.program
        for equation in jaxpr.eqns:
            if self.backward is None and "transpose" in str(equation.source_info.name_stack):
                self.backward = len(program.written)
            name = equation.primitive.name
            inner = next(_inner(equation.params), None) if name not in WRITTEN else None
            if inner is not None:
                outer = [self.number(v) if _is_literal(v) else environment[v] for v in equation.invars]
                local = dict(zip(inner.invars, outer[len(outer) - len(inner.invars) :]))
                local.update({variable: self.number(variable) for variable in inner.constvars})
                self.equations(inner, local)
                for out, variable in zip(equation.outvars, inner.outvars):
                    environment[out] = self.number(variable) if _is_literal(variable) else local[variable]
                continue
            reads = [environment[v] for v in equation.invars if not _is_literal(v)]
            if name in RENAMED and reads:
                environment[equation.outvars[0]] = reads[0]
                continue
            kind = _kind(equation)
            for variable in equation.outvars:
                var = environment[variable] = self.number(variable)
                if kind is None:
                    program.virtual.add(var)
                    program.write(PLAIN, var)
                else:
                    program.write(kind, var, *reads)


def _is_literal(variable: Any) -> bool:
    return hasattr(variable, "val")


def _inner(parameters: dict[str, Any]) -> Iterator[Any]:
    """The jaxpr of a nested call (jit, remat, custom derivatives)."""
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        inner = parameters.get(key)
        inner = getattr(inner, "jaxpr", inner)
        if hasattr(inner, "eqns"):
            yield inner


def _kind(equation: Any) -> int | None:
    """How XLA treats an equation; None for what is computed where it is read (constants)."""
    name = equation.primitive.name
    if name == "iota" or (name == "broadcast_in_dim" and not any(_is_array(v) for v in equation.invars)):
        return None
    if name in PRODUCTS:
        return PRODUCT
    if name == "div" and not _is_array(equation.invars[1]):
        return CHEAP  # a constant divisor becomes a factor
    if name in EXPENSIVE or (name == "integer_pow" and equation.params["y"] < 0):
        return COSTLY
    return PLAIN if name in WRITTEN else CHEAP


def _is_array(variable: Any) -> bool:
    return not _is_literal(variable) and int(variable.aval.size) > 1
