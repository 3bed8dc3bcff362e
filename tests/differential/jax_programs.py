"""What JAX itself says about a training step, without running or allocating any of it.

``residuals``: the arrays that ``jax.vjp`` keeps. ``peak_of_arrays``: the most that is live at once when loss and
gradients are computed, from the jaxpr and XLA's rule of what to fuse. ``compiled_step_bytes``: what XLA itself needs.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import jax

MODEL = Path(__file__).parents[2] / "examples" / "lag_mode" / "model.py"

# The same bytes under another shape, and constants: no memory.
RESHAPES = {"reshape", "squeeze", "expand_dims", "stop_gradient", "copy"}
CONSTANTS = {"broadcast_in_dim", "iota"}
# xla/service/instruction_fusion.cc, InstructionFusion::IsExpensive
COSTLY = {"exp", "tanh", "logistic", "rsqrt", "sqrt", "log", "pow", "div"}
PRODUCTS = {"dot_general", "conv_general_dilated"}
UNFUSED = {"reduce_sum", "reduce_max", "cumsum", "gather", "scatter", "random_bits", "random_unwrap", "random_split"}
UNFUSED |= {"random_wrap", "random_seed", "threefry2x32", "while", "scan", "erf_inv", "log1p", "argmax", "sort"}


def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference_lag_mode", MODEL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LAG = reference()


def shapes(config: dict[str, Any]) -> tuple[Any, Any]:
    """Model and batch as shapes."""
    return jax.eval_shape(lambda: LAG.build_model(config)), jax.eval_shape(lambda: LAG.make_batch(config))


def is_literal(variable: Any) -> bool:
    return hasattr(variable, "val")


def size_of(variable: Any) -> tuple[int, int]:
    """(elements, bytes per element); keys of random number generators count as their two words."""
    itemsize = getattr(variable.aval.dtype, "itemsize", 8)
    return int(variable.aval.size), int(itemsize)


def residuals(config: dict[str, Any]) -> Counter[tuple[int, int]]:
    """(elements, bytes per element) of the distinct arrays that the function returned by ``jax.vjp`` holds, those that
    went in (parameters, batch) excluded."""
    model, batch = shapes(config)
    program = jax.make_jaxpr(lambda m, b: jax.vjp(lambda x: LAG.training_loss(x, b), m))(model, batch).jaxpr
    given = set(program.invars)
    kept = {variable for variable in program.outvars[1:] if not is_literal(variable) and variable not in given}
    return Counter(map(size_of, kept))


def bytes_of(arrays: Counter[tuple[int, int]]) -> int:
    return sum(elements * itemsize * count for (elements, itemsize), count in arrays.items())


class Equation(NamedTuple):
    kind: str  # constant, view, cheap, costly, product, plain
    reads: list[int]
    out: int


def kind_of(equation: Any) -> str:
    name = equation.primitive.name
    if name in CONSTANTS:
        return "constant"
    if name in RESHAPES:
        return "view"
    if name in PRODUCTS:
        return "product"
    if name == "div" and (is_literal(equation.invars[1]) or equation.invars[1].aval.size == 1):
        return "cheap"  # a constant divisor becomes a factor
    if name in COSTLY or (name == "integer_pow" and equation.params["y"] < 0):
        return "costly"
    return "plain" if name in UNFUSED else "cheap"


class Listing:
    """A jaxpr as one list of equations over numbered arrays, nested calls and rematerialised blocks written out."""

    def __init__(self, program: Any) -> None:
        self.sizes: list[int] = []
        self.equations: list[Equation] = []
        environment = {v: self.number(v) for v in (*program.invars, *program.constvars)}
        self.given = set(environment.values())
        self.inline(program, environment)
        self.results = {environment[v] for v in program.outvars if not is_literal(v)}

    def number(self, variable: Any) -> int:
        elements, itemsize = size_of(variable)
        self.sizes.append(elements * itemsize)
        return len(self.sizes) - 1

    def inline(self, jaxpr: Any, environment: dict[Any, int]) -> None:
        for equation in jaxpr.eqns:
            inner = equation.params.get("jaxpr") or equation.params.get("call_jaxpr")
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                outer = [self.number(v) if is_literal(v) else environment[v] for v in equation.invars]
                local = dict(zip(inner.invars, outer))
                local.update({v: self.number(v) for v in inner.constvars})
                self.inline(inner, local)
                for out, v in zip(equation.outvars, inner.outvars):
                    environment[out] = self.number(v) if is_literal(v) else local[v]
                continue
            reads = [environment[v] for v in equation.invars if not is_literal(v)]
            for v in equation.outvars:
                environment[v] = self.number(v)
                self.equations.append(Equation(kind_of(equation), reads, environment[v]))


def peak_of_arrays(config: dict[str, Any]) -> int:
    """Bytes live at once while loss and gradients are computed, each array from its equation to its last reader, with
    XLA's fusion; arguments and results excluded."""
    model, batch = shapes(config)
    listing = Listing(jax.make_jaxpr(jax.value_and_grad(LAG.training_loss))(model, batch).jaxpr)
    sizes, equations = listing.sizes, listing.equations

    same: dict[int, int] = {}  # a view's number -> the array that it is a view of
    for kind, reads, out in equations:
        if kind == "view" and reads:
            same[out] = same.get(reads[0], reads[0])
    free = {out for kind, _, out in equations if kind == "constant"}
    elsewhere = listing.given | {same.get(result, result) for result in listing.results} | free

    def arrays(reads: list[int]) -> list[int]:
        return [same.get(read, read) for read in reads]

    needed = {same.get(result, result) for result in listing.results}
    readers: Counter[int] = Counter()
    multiplied: set[int] = set()
    running = []
    for kind, reads, out in reversed(equations):
        if kind in ("view", "constant") or out not in needed:
            continue
        running.append((kind, arrays(reads), out))
        needed.update(arrays(reads))
        readers.update(arrays(reads))
        if kind == "product":
            multiplied.update(arrays(reads))
    running.reverse()

    sources: dict[int, set[int]] = {}  # a fused array -> what is read in its place
    for kind, reads, out in running:
        if kind not in ("cheap", "costly") or out in elsewhere or out in multiplied:
            continue
        large = [read for read in reads if sizes[read] >= sizes[out] and read not in elsewhere]
        if readers[out] == 1 or (kind == "cheap" and len(large) <= 1):
            sources[out] = set().union(*(sources.get(read, {read}) for read in reads))

    steps = [
        (out, set().union(*(sources.get(read, {read}) for read in reads)) - elsewhere)
        for _, reads, out in running
        if out not in sources
    ]
    last = {read: index for index, (_, reads) in enumerate(steps) for read in reads}
    live = peak = 0
    for index, (out, reads) in enumerate(steps):
        if out not in elsewhere:
            live += sizes[out]
            peak = max(peak, live)
        live -= sum(sizes[read] for read in reads if last[read] == index)
    return peak


def compiled_step_bytes(config: dict[str, Any]) -> int:
    """Arguments, results and temporaries of the jitted training step on XLA's CPU backend."""
    model, batch = shapes(config)
    state = jax.eval_shape(LAG.make_state, model)
    lowered = jax.jit(LAG.train_step).lower(state, batch)
    try:
        # The CPU backend of JAX 0.10 hands softmax to a library that wants its broadcast operands written out.
        compiled = lowered.compile(compiler_options={"xla_cpu_experimental_ynn_fusion_type": ""})
    except Exception:  # an older XLA does not know the option, nor the library
        compiled = lowered.compile()
    memory = compiled.memory_analysis()
    return int(
        memory.temp_size_in_bytes
        + memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
    )
