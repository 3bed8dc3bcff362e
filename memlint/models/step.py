"""The training loop: what every run does around its model, in the order in which real loops do it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, cast

from memlint.facts.spec import Name, TrainingSpec
from memlint.meta import optim
from memlint.meta.amp import autocast
from memlint.meta.autograd import no_grad, saved_storages
from memlint.meta.dims import symbol
from memlint.meta.nn import Module, count
from memlint.meta.offload import Offload
from memlint.meta.optimizer import FOREACH, LOOP, Optimizer
from memlint.meta.tape import Label
from memlint.meta.tensor import Block, Tensor, block_like, recording, state
from memlint.models import Recording, UnknownModel, depth, parallel, split
from memlint.models.pipeline_engine import keep_outputs
from memlint.models.system import System

# Facts that stand for a dimension, and their letter in formulas.
SYMBOLS: dict[Name, str] = {
    "micro_batch_size": "B",
    "observation_steps": "T",
    "frames": "F",
    "predicted_frames": "P",
    "sequence_length": "S",
    "groups": "G",
    "group_size": "M",
    "points": "N",
    "sample_size": "K",
}


def symbolic_spec(spec: TrainingSpec) -> TrainingSpec:
    """The same run with its sizes as named dimensions."""
    changes: dict[Name, Any] = {
        name: symbol(cast("int", spec[name]), letter, name)
        for name, letter in SYMBOLS.items()
        if isinstance(spec.get(name), int) and not isinstance(spec.get(name), bool)
    }
    renamed = spec.sized(changes)
    for name in changes:
        renamed.facts[name] = spec.facts[name]._replace(value=changes[name])
    return renamed


def record_step(build: Callable[[TrainingSpec], System], spec: TrainingSpec, symbolic: bool = False) -> Recording:
    """Record one steady step of the fullest rank: optimizer state exists already, gradients do not (``zero_grad`` made
    them None).
    """
    stages = split.candidates(spec)
    if len(stages) == 1:
        return _record(build, spec, symbolic, stages[0])
    return max((_record(build, spec, symbolic, stage) for stage in stages), key=_most)


def _forget_temporaries(events: list[int], let_go: Sequence[int]) -> None:
    """What is made and thrown away while a model is built is how this package builds it, not how a run loads it, but
    for what a run lets go of as well."""
    freed = {~event for event in events if event < 0}.difference(let_go)
    if freed:
        events[:] = [event for event in events if (event if event >= 0 else ~event) not in freed]


def _most(made: Recording) -> int:
    """Peak of a tape, in bytes as they were asked for."""
    sizes = made.tape.sizes
    return max(accumulate(sizes[event] if event >= 0 else -sizes[~event] for event in made.tape.events))


def _optimizer(spec: TrainingSpec, name: str) -> type[Optimizer]:
    if name not in optim.OPTIMIZERS:
        stated = spec.fact("optimizer")
        key = stated.key if stated is not None and stated.key else "optimizer"
        raise UnknownModel(f"{key} {name} is not known")
    return optim.OPTIMIZERS[name]


def _of_release(spec: TrainingSpec, kind: type[Optimizer], options: dict[str, Any]) -> dict[str, Any]:
    """Options of an optimizer of torch's, as the run's torch takes those that nothing states."""
    if not issubclass(kind, optim.HAS_FOREACH) or options.get("implementation", FOREACH) != FOREACH:
        return options
    stated = spec.fact("optimizer_implementation")
    if (stated is None or stated.node is None) and not spec.does("torch.foreach_is_a_default"):
        return {**options, "implementation": LOOP}
    if issubclass(kind, optim.AdamW) and spec.does("torch.foreach_adam_keeps_roots"):
        return {**options, "keeps_roots": True}
    return options


def _record(build: Callable[[TrainingSpec], System], spec: TrainingSpec, symbolic: bool, stage: str) -> Recording:
    stated = spec
    spec = split.shorten(spec)
    if symbolic:
        spec = symbolic_spec(spec)
    with recording(symbolic) as tape:
        tape.mark("setup")
        system = split.split(spec, build(spec), stage)
        keep_outputs(spec, system, stage)
        kind = _optimizer(spec, system.optimizer)
        system.model.name()
        run, counts = _spread_out(spec, system)
        ema = _copy_for_ema(system.ema, run)
        optimizer = _with_its_states(spec, kind, system, run)
        _generation(system, run)
        batch, loss, offload = _passes(system, run)
        tape.titles = {module.path: module.title for module in system.model.modules() if module.title}
        if symbolic:
            tape.parameter_counts = _parameter_counts(system.model, *system.helpers)
        if system.after_backward is not None:
            system.after_backward()
        tape.mark("optimizer_step")
        run.step(optimizer)
        if system.after_step is not None:
            system.after_step()
        if system.evaluate is not None:
            del batch, loss
            tape.mark("evaluation")
            tape.clears_over = system.clears_over
            with no_grad(), autocast(run.autocast):
                run.evaluate(system.evaluate)
        # What follows the step in a real loop still has these alive.
        del ema
    if split.is_split(stated):
        counts = _whole_counts(build, stated)
    return Recording(
        tape,
        parameters=counts[0],
        trainable_parameters=counts[1],
        framework=system.framework,
        has_matmul="matmul" in system.uses,
        has_convolution="convolution" in system.uses,
        host_bytes=run.host_bytes + (0 if offload is None else offload.host_bytes),
        loading=run.loading or system.loading,
        warmed_bytes=system.warmed_bytes,
        process_groups=parallel.process_groups(spec),
        assumptions=parallel.assumptions(spec, stage),
    )


def _spread_out(spec: TrainingSpec, system: System) -> tuple[parallel.Spread, tuple[int, int]]:
    """The states of a run, shared among its devices, and how many parameters it has before, and of them trains."""
    parameters = system.model.parameters()
    # Before they are named: then their buffers are labelled as their parameters are.
    every = [*parameters, *(p for helper in system.helpers for p in helper.parameters())]
    for helper in system.helpers:
        helper.name(helper.path or type(helper).__name__.lower(), "helper_models")
    counts = count(every), count(p for p in parameters if p.requires_grad)
    unused = {id(parameter) for parameter in system.unused}
    updated = [parameter for parameter in parameters if id(parameter) not in unused]
    if spec.get("parallelism.strategy") == "zero":
        updated = list(depth.as_deep(spec, system.model, updated))
    _forget_temporaries(state.tape.events, system.let_go)
    return parallel.spread(spec, system, updated, every), counts


def _with_its_states(spec: TrainingSpec, kind: type[Optimizer], system: System, run: parallel.Spread) -> Optimizer:
    """The optimizer as a first step leaves it, and gradients where the last step's are kept."""
    options = _of_release(spec, kind, system.optimizer_options)
    if system.master_weights:
        optimizer: Optimizer = optim.MasterWeights(run.optimized, kind, options)
    else:
        optimizer = kind(run.optimized, **options)
        optimizer.groups = system.groups  # a device's parts are in none of these
    optimizer.allocate_state()
    if system.keeps_gradients or system.clears_late:
        _allocate_gradients(run.optimized)
    if system.optimizer_in_backward:
        state.updated = optimizer.step_of
    return optimizer


def _generation(system: System, run: parallel.Spread) -> None:
    """What a run does before it trains: texts that its policy writes, weights that it hands to an engine."""
    if system.generate is not None:
        state.tape.mark("generation")
        with no_grad(), autocast(run.autocast):
            run.evaluate(system.generate)
    if system.hand_over is not None:
        state.tape.mark("generation")
        system.hand_over()


def _passes(system: System, run: parallel.Spread) -> tuple[Any, Any, Offload | None]:
    """Forward and backward passes of a step. Returns what the loop still names after them, and what has sent to the
    host what the last one saved."""
    tape = state.tape
    offload: Offload | None = None
    if system.parts:
        batch, loss, probabilities = _part_by_part(system, run)
        tape.probabilities_kept_bytes, tape.probabilities_avoided_bytes = probabilities
        return batch, loss, offload
    # The second micro-batch meets the gradients of the first; a third would look like the second.
    micro_batches = max(min(system.accumulation, 2), system.in_flight)
    # One at a time; of a pipeline's stage, as many as it has in flight before the first backward pass.
    flying: list[tuple[Any, Tensor]] = []
    for micro_batch in range(micro_batches):
        last = micro_batch == micro_batches - 1
        tape.mark("forward")
        tape.probabilities_kept_bytes = tape.probabilities_avoided_bytes = 0
        batch = system.batch()
        state.offload = offload = Offload() if system.offloads else None
        work = system.loss if last or system.ahead is None or system.in_flight == 1 else system.ahead
        with autocast(run.autocast):
            loss = run.forward(work, batch, last and system.in_flight == 1)
            casts = [*state.cast_cache.values()] if system.apex else []
        state.offload = None
        if last:
            tape.saved_bytes = _saved_bytes(loss, tape.labels)
            probabilities = tape.probabilities_kept_bytes, tape.probabilities_avoided_bytes
        if system.in_flight > 1:
            flying.append((batch, loss))
            continue
        tape.mark("backward")
        if system.clears_late and not system.keeps_gradients and micro_batch == 0:
            for parameter in run.optimized:
                parameter.grad = None
        aside = _put_aside(run.optimized) if system.apex else []
        run.backward(loss)
        del casts, aside
    if flying:
        batch, loss = _in_flight(system, run, flying)
    tape.probabilities_kept_bytes, tape.probabilities_avoided_bytes = probabilities
    return batch, loss, offload


def _put_aside(parameters: Sequence[Tensor]) -> list[Tensor | None]:
    """What apex does with gradients that are there before a backward pass: new ones are made beside them, into which
    they are added at its end. (``amp/_process_optimizer.py``: prepare_backward_no_master_weights)"""
    aside = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    return aside


def _in_flight(system: System, run: parallel.Spread, flying: list[tuple[Any, Tensor]]) -> tuple[Any, Tensor]:
    """One forward, one backward: the oldest micro-batch goes, a new one meets the gradients that it left, and all end,
    last the one that has a loss. Returns the last one's batch and loss, which the loop still names."""
    tape = state.tape
    tape.mark("backward")
    oldest = flying.pop(0)
    run.backward(oldest[1])
    del oldest
    if system.accumulation > system.in_flight:
        tape.mark("forward")
        with autocast(run.autocast):
            batch = system.batch()
            made = batch, run.forward(system.ahead or system.loss, batch, False)
        flying.insert(len(flying) if system.ahead is None else -1, made)
        tape.mark("backward")
    while len(flying) > 1:
        oldest = flying.pop(0)
        run.backward(oldest[1])
        del oldest
    run.complete()
    run.backward(flying[0][1])
    return flying.pop()


def _part_by_part(system: System, run: parallel.Spread) -> tuple[Any, Any, tuple[int, int]]:
    """A rank with several stages, one round: all micro-batches go forward through one after the other, and back in the
    reverse order; in the last stage some go back before others have come. The gradients of a stage are complete once
    its last micro-batch is back. Returns what the loop still names, and a micro-batch's attention probabilities."""
    tape = state.tape
    *early, final = system.parts
    tape.mark("forward")
    through: list[tuple[Any, list[Tensor]]] = []
    kept, avoided, saved = 0, 0, 0
    for _ in range(system.accumulation):
        tape.probabilities_kept_bytes = tape.probabilities_avoided_bytes = 0
        batch = system.batch()
        outs = []
        for part in early:
            run.rooted = part.is_root
            with autocast(run.autocast):
                outs.append(run.forward(part.loss, batch, False))
        through.append((batch, outs))
        del outs
    run.rooted = final.is_root
    kept, avoided = tape.probabilities_kept_bytes, tape.probabilities_avoided_bytes
    waiting = [batch for batch, _ in through]
    started: list[Tensor] = []
    while waiting or started:
        if waiting and len(started) < system.in_flight:
            tape.mark("forward")
            tape.probabilities_kept_bytes = tape.probabilities_avoided_bytes = 0
            with autocast(run.autocast):
                started.append(run.forward(final.loss, waiting.pop(0), False))
            saved = _saved_bytes(started[-1], tape.labels)
            continue
        if not waiting and len(started) == 1:
            run.complete(final.modules, final.is_root)
        tape.mark("backward")
        loss = started.pop(0)
        run.backward(loss)
    kept += tape.probabilities_kept_bytes
    avoided += tape.probabilities_avoided_bytes
    tape.saved_bytes = saved + sum(_saved_bytes(out, tape.labels) for out in through[-1][1])
    for part in reversed(early):
        for number, (_, outs) in enumerate(through, start=1):
            if number == len(through):
                run.complete(part.modules, part.is_root)
            out = outs.pop()
            run.backward(out)
            del out
    return through[-1][0], loss, (kept, avoided)


def _whole_counts(build: Callable[[TrainingSpec], System], spec: TrainingSpec) -> tuple[int, int]:
    """Parameters, and of which trained, of the model that a rank has a part of."""
    with recording():
        system = build(split.whole(spec))
        parameters = system.model.parameters()
        every = [*parameters, *(p for helper in system.helpers for p in helper.parameters())]
        return count(every), count(p for p in parameters if p.requires_grad)


def record_forward(build: Callable[[TrainingSpec], System], spec: TrainingSpec) -> int:
    """Only a forward pass: the bytes that autograd holds at its end."""
    spec = split.shorten(spec)
    with recording() as tape:
        stage = split.candidates(spec)[0]
        system = split.split(spec, build(spec), stage)
        parameters = system.model.parameters()
        every = [*parameters, *(p for helper in system.helpers for p in helper.parameters())]
        run = parallel.spread(spec, system, parameters, every)
        batch = system.batch()
        with autocast(run.autocast):
            loss = run.forward(system.loss, batch, True)
            return _saved_bytes(loss, tape.labels)


def _saved_bytes(loss: Tensor, labels: list[Label]) -> int:
    """Distinct storages that the graph holds, without parameters and buffers."""
    weights = ("parameters", "buffers", "helper_models", "communication")
    return sum(size for index, size in saved_storages(loss).items() if labels[index].component not in weights)


def _parameter_counts(*models: Module) -> list[tuple[str, int, int]]:
    """Of every module down to the fourth level, items of lists left out: those have the same counts again."""
    found = []
    for model in models:
        for module in model.modules():
            names = module.path.split(".")
            if module.path and len(names) <= 4 and not any(name.isdigit() for name in names):
                parameters = module.parameters()
                if parameters:
                    trained = count(p for p in parameters if p.requires_grad)
                    found.append((module.path, count(parameters), trained))
    return found


def _allocate_gradients(parameters: Sequence[Tensor]) -> None:
    """Those of the last step, zeros now: this step adds to them in place."""
    saved = state.label
    for parameter in parameters:
        if parameter.requires_grad:
            old = state.tape.labels[parameter.storage.index]
            state.label = Label("gradients", old.module, old.name)
            parameter.grad = Tensor(parameter.shape, parameter.dtype)
    state.label = saved


def _copy_for_ema(modules: Sequence[Module], run: parallel.Spread) -> Block:
    """``copy.deepcopy(model)``: every parameter and buffer once more, as far as this rank has them."""
    plain = Label("ema", "")
    tensors = (run.shard_of(tensor) for module in modules for tensor in module.tensors())
    originals = {id(tensor): tensor for tensor in tensors}.values()
    labels = []
    for _, module, name in map(state.tape.labels.__getitem__, [tensor.storage.index for tensor in originals]):
        labels.append(Label("ema", module, name) if module or name else plain)
    return block_like(list(originals), None, labels)
