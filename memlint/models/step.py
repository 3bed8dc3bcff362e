"""The training loop: what every run does around its model, in the order in which real loops do it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from memlint.dialects.spec import TrainingSpec
from memlint.meta import optim
from memlint.meta.amp import autocast
from memlint.meta.autograd import no_grad, saved_storages
from memlint.meta.dims import symbol
from memlint.meta.nn import Module, count
from memlint.meta.tape import Label
from memlint.meta.tensor import Block, Tensor, block_like, recording, state
from memlint.models import Recording, parallel
from memlint.models.system import System

# Facts that stand for a dimension, and their letter in formulas.
SYMBOLS = {
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
    changes = {
        name: symbol(spec[name], letter, name)
        for name, letter in SYMBOLS.items()
        if isinstance(spec.get(name), int) and not isinstance(spec.get(name), bool)
    }
    renamed = spec.with_facts(**changes)
    for name in changes:
        renamed.facts[name] = spec.facts[name]._replace(value=changes[name])
    return renamed


def record_step(
    build: Callable[[TrainingSpec], System], spec: TrainingSpec, symbolic: bool = False, named: bool = True
) -> Recording:
    """Record one steady step: optimizer state exists already, gradients do not (``zero_grad`` made them None).

    Without ``named`` the events are the same, but storages do not know their modules: enough for a total.
    """
    if symbolic:
        spec = symbolic_spec(spec)
    with recording(symbolic) as tape:
        tape.mark("setup")
        system = build(spec)
        if named:
            system.model.name()
        parameters = system.model.parameters()
        for helper in system.helpers:
            helper.name(helper.path or type(helper).__name__.lower(), "helper_models")
        every = [*parameters, *(p for helper in system.helpers for p in helper.parameters())]
        counts = count(every), count(p for p in parameters if p.requires_grad)
        unused = {id(parameter) for parameter in system.unused}
        updated = [parameter for parameter in parameters if id(parameter) not in unused]
        run = parallel.spread(spec, system, updated, parameters)
        ema = _copy_for_ema(system.ema, run)
        optimizer = optim.OPTIMIZERS[system.optimizer](run.optimized, **system.optimizer_options)
        optimizer.allocate_state()
        # The second micro-batch meets the gradients of the first; a third would look like the second.
        micro_batches = min(system.accumulation, 2)
        for micro_batch in range(micro_batches):
            last = micro_batch == micro_batches - 1
            tape.mark("forward")
            tape.probabilities_kept_bytes = tape.probabilities_avoided_bytes = 0
            batch = system.batch()
            with autocast(run.autocast):
                loss = run.forward(system.loss, batch, last)
            if last:
                tape.saved_bytes = _saved_bytes(loss, tape.labels)
                probabilities = tape.probabilities_kept_bytes, tape.probabilities_avoided_bytes
            tape.mark("backward")
            run.backward(loss)
        tape.probabilities_kept_bytes, tape.probabilities_avoided_bytes = probabilities
        if named:
            tape.titles = {module.path: module.title for module in system.model.modules() if module.title}
        if symbolic:
            tape.parameter_counts = _parameter_counts(system.model, *system.helpers)
        tape.mark("optimizer_step")
        run.step(optimizer)
        if system.after_step is not None:
            system.after_step()
        if system.evaluate is not None:
            del batch, loss
            tape.mark("evaluation")
            with no_grad(), autocast(run.autocast):
                run.evaluate(system.evaluate)
        # What follows the step in a real loop still has these alive.
        del ema
    return Recording(
        tape,
        parameters=counts[0],
        trainable_parameters=counts[1],
        framework=system.framework,
        has_matmul="matmul" in system.uses,
        has_convolution="convolution" in system.uses,
    )


def record_forward(build: Callable[[TrainingSpec], System], spec: TrainingSpec) -> int:
    """Only a forward pass: the bytes that autograd holds at its end."""
    with recording() as tape:
        system = build(spec)
        parameters = system.model.parameters()
        run = parallel.spread(spec, system, parameters, parameters)
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


def _copy_for_ema(modules: Sequence[Module], run: parallel.Spread) -> Block:
    """``copy.deepcopy(model)``: every parameter and buffer once more, as far as this rank has them."""
    plain = Label("ema", "")
    tensors = (run.shard_of(tensor) for module in modules for tensor in module.tensors())
    originals = {id(tensor): tensor for tensor in tensors}.values()
    labels = []
    for _, module, name in map(state.tape.labels.__getitem__, [tensor.storage.index for tensor in originals]):
        labels.append(Label("ema", module, name) if module or name else plain)
    return block_like(list(originals), None, labels)
