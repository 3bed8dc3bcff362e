"""What JAX itself says about a training step, without running or allocating any of it.

``residuals``: the arrays that ``jax.vjp`` keeps. ``peak_of_arrays``: the most that is live at once when the jaxpr of loss
and gradients is run equation by equation. ``compiled_step_bytes``: what XLA's CPU backend needs for the whole step.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import jax

MODEL = Path(__file__).parents[2] / "examples" / "lag_mode" / "model.py"

# Not memory, on any backend: the same bytes under another shape, or a constant that is fused into its readers.
RESHAPES = {"reshape", "squeeze", "expand_dims", "stop_gradient", "copy", "convert_element_type"}
CONSTANTS = {"broadcast_in_dim", "iota"}


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


def peak_of_arrays(config: dict[str, Any]) -> int:
    """Bytes of arrays live at once while loss and gradients are computed, each from its equation to its last reader;
    arguments and results excluded."""
    model, batch = shapes(config)
    program = jax.make_jaxpr(jax.value_and_grad(LAG.training_loss))(model, batch).jaxpr
    sizes: list[int] = []
    equations: list[tuple[str, list[int], list[int]]] = []

    def variable(aval_of: Any) -> int:
        elements, itemsize = size_of(aval_of)
        sizes.append(elements * itemsize)
        return len(sizes) - 1

    def inline(jaxpr: Any, environment: dict[Any, int]) -> None:
        for equation in jaxpr.eqns:
            reads = [environment[v] for v in equation.invars if not is_literal(v)]
            inner = equation.params.get("jaxpr") or equation.params.get("call_jaxpr")
            if inner is not None and hasattr(getattr(inner, "jaxpr", inner), "eqns"):
                inner = getattr(inner, "jaxpr", inner)
                outer = (environment[v] if not is_literal(v) else variable(v) for v in equation.invars)
                local = dict(zip(inner.invars, outer))
                local.update({v: variable(v) for v in inner.constvars})
                inline(inner, local)
                for out, v in zip(equation.outvars, inner.outvars):
                    environment[out] = variable(v) if is_literal(v) else local[v]
            else:
                outs = [variable(v) for v in equation.outvars]
                environment.update(zip(equation.outvars, outs))
                equations.append((equation.primitive.name, reads, outs))

    environment = {v: variable(v) for v in (*program.invars, *program.constvars)}
    given = set(environment.values())
    inline(program, environment)
    results = {environment[v] for v in program.outvars if not is_literal(v)}

    # Which arrays stand behind a value: itself, what it is a view of, or nothing.
    behind: dict[int, int | None] = {}
    for name, reads, outs in equations:
        for out in outs:
            if name in CONSTANTS:
                behind[out] = None
            elif name in RESHAPES and reads and sizes[out] == sizes[reads[0]]:
                behind[out] = behind.get(reads[0], reads[0])
            else:
                behind[out] = out
    elsewhere = given | {behind.get(result) or result for result in results} | results
    last: dict[int, int] = {}
    kept = []
    needed = set(results)
    for index in range(len(equations) - 1, -1, -1):
        _, reads, outs = equations[index]
        if not needed.intersection(outs):
            continue
        needed.update(reads)
        kept.append(index)
        for read in (behind.get(read, read) for read in reads):
            if read is not None:
                last.setdefault(read, index)
    live = peak = 0
    for index in reversed(kept):
        _, reads, outs = equations[index]
        made = [out for out in outs if behind[out] == out and out not in elsewhere]
        live += sum(sizes[out] for out in made)
        peak = max(peak, live)
        over = {behind.get(read, read) for read in reads} | set(made)
        live -= sum(sizes[v] for v in over if v is not None and v not in elsewhere and last.get(v, index) == index)
    return peak


def compiled_step_bytes(config: dict[str, Any]) -> int:
    """Arguments, results and temporaries of the jitted training step on XLA's CPU backend."""
    model, batch = shapes(config)
    state = jax.eval_shape(LAG.make_state, model)
    memory = jax.jit(LAG.train_step).lower(state, batch).compile().memory_analysis()
    return int(
        memory.temp_size_in_bytes
        + memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
    )
