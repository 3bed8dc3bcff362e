"""Shards of parameters, and the modules around whose calls they are gathered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from memlint.facts.spec import TrainingSpec
from memlint.meta import autograd
from memlint.meta.amp import to
from memlint.meta.nn import Embedding, Module
from memlint.meta.tape import Label
from memlint.meta.tensor import DType, Gathered, Shape, Storage, Tensor, state
from memlint.models.parallel.plan import Plan
from memlint.models.parallel.run import Loss, Spread
from memlint.models.system import System

Args = TypeVar("Args")

# What a unit is doing
IDLE, FORWARD, PRE_BACKWARD, POST_BACKWARD = "idle", "forward", "before backward", "after backward"


class Shards:
    """Shards of parameters in place of the parameters, whose contents are gathered by command.

    A shard takes the storage, and the number on the tape, that the whole parameter had.
    """

    def __init__(
        self,
        every: Sequence[Tensor],
        compute: DType | None,
        ranks: int,
        rows: bool,
        on_host: bool,
        split: dict[int, int],
    ) -> None:
        self.of: dict[int, Tensor] = {}
        self.padded: dict[int, int] = {}  # elements that are gathered, as every rank's part is as large as the largest
        everywhere = ranks
        self.host_bytes = 0
        tape = state.tape
        for parameter in {id(x): x for x in every}.values():
            storage = parameter.storage
            ranks = max(1, everywhere // split.get(id(parameter), 1))
            whole = stored_elements(parameter)
            by_rows = rows and whole == parameter.numel
            shape = row_shard(parameter.shape, ranks) if by_rows else (-(-whole // ranks),)
            shard = Tensor(shape, parameter.dtype, storage)
            shard.is_view = False
            shard.requires_grad = parameter.requires_grad
            storage.nbytes = shard.nbytes
            if on_host:
                self.host_bytes += shard.nbytes
            tape.sizes[storage.index] = 0 if on_host else shard.nbytes
            if tape.shapes is not None:
                tape.shapes[storage.index] = None
            if compute is not None and parameter.dtype.is_floating:
                parameter.dtype = compute
            parameter.storage = Gathered(whole * parameter.dtype.itemsize, storage.index)
            self.of[id(parameter)] = shard
            self.padded[id(parameter)] = shard.numel * ranks


def stored_elements(parameter: Tensor) -> int:
    """Weights packed into 4 bits (bitsandbytes' ``Params4bit``, one column of bytes) have fewer than their shape."""
    return min(parameter.numel, parameter.storage.nbytes // parameter.dtype.itemsize)


def row_shard(shape: Shape, ranks: int) -> Shape:
    """FSDP2 cuts the first dimension: as many whole rows as the fullest rank gets."""
    return (-(-int(shape[0]) // ranks), *shape[1:]) if shape else (1,)


class Unit:
    """Parameters that are gathered together, around the calls of one module (FSDP2's ``FSDPParamGroup``)."""

    def __init__(self, run: UnitRun, parameters: list[Tensor], path: str, root: bool = False) -> None:
        self.run = run
        self.parameters = parameters
        self.path = path
        self.root = root
        self.in_layers = not root  # whether it is that of one of the repeated blocks
        self.stays = root  # gathered between the passes
        self.phase = IDLE
        self.indices: list[int] = []
        self.gathered = False
        self.pending: int | None = None  # the flat buffer of an all-gather that nobody waited for yet
        self.waits = False  # whether its gradients are whole only after the backward pass of who gathered it ahead
        self.shards = [run.shards.of[id(parameter)] for parameter in parameters]
        self.elements = sum(stored_elements(parameter) for parameter in parameters)
        self.ahead = 0  # elements that are gathered already, before the unit's turn
        padded = run.shards.padded
        self.padded_bytes = sum(padded[id(parameter)] * parameter.dtype.itemsize for parameter in parameters)
        # Of each parameter as it is gathered: bytes, and whose they are.
        module = state.tape.labels
        self.pieces = [
            (padded[id(p)] * p.dtype.itemsize, Label("communication", module[s.storage.index].module, "unsharded"))
            for p, s in zip(parameters, self.shards)
        ]
        self.place, self.behind = -1, 0  # among ZeRO-3's units, and elements of those that run after it
        self.held: Storage | None = None
        self.whole: list[int] = []

    # around a call of the module

    def before(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The module's arguments, as it gets them."""
        if self.phase == PRE_BACKWARD:
            self.unshard()
            self.wait()
            return self.cast(args)
        args = self.cast(args)
        self.phase = FORWARD
        self.unshard()
        self.wait()
        ahead = self.run.prefetch_forward(self)
        if not state.grad_enabled:
            return args
        if not self.waits:
            args = _hooked(args, self.post_backward)
        self.waits = False
        if ahead is not None:
            ahead.waits = True
            args = _hooked(args, ahead.post_backward)
        return args

    def after(self, out: Any) -> Any:
        handed = self._left(out)
        # FSDPState._post_forward ends in the cast (MixedPrecisionPolicy.output_dtype), in front of no hook.
        return handed if self.run.plan.output is None or self.root else _cast(handed, self.run.plan.output)

    def _left(self, out: Any) -> Any:
        if self.phase == PRE_BACKWARD:
            return out
        if not self.run.in_backward:
            if self.run.frees_after_forward(self):
                self.run.free(self)
            self.indices.append(len(self.run.order))
            self.run.order.append(self)
        self.phase = IDLE
        if state.grad_enabled:
            if type(out) is tuple:
                return _hooked(out, self.pre_backward, before=True)
            return _hooked((out,), self.pre_backward, before=True)[0]
        return out

    def cast(self, args: Args) -> Args:
        dtype = self.run.plan.compute
        return args if dtype is None else _cast(args, dtype)

    # in the backward pass

    def pre_backward(self) -> None:
        if self.phase == PRE_BACKWARD:
            return
        self.phase = PRE_BACKWARD
        self.unshard()
        self.wait()
        self.run.prefetch_backward(self)

    def post_backward(self) -> None:
        self.phase = POST_BACKWARD
        self.run.reduce(self)

    # collectives

    def unshard(self) -> None:
        if not self.gathered and self.pending is None:
            self.run.gather(self)

    def wait(self) -> None:
        if self.pending is not None:
            self.run.copy_out(self)
            self.gathered = True

    def gradients(self) -> list[Tensor]:
        """Those that autograd left, no longer held by their parameters."""
        found = []
        for parameter in self.parameters:
            if parameter.grad is not None:
                found.append(parameter.grad)
                parameter.grad = None
        return found


class _Opening:
    """Around the first of two modules that are one unit, and :class:`_Closing` around the last
    (``_register_group_forward_hooks`` in ``torch/distributed/fsdp/_fully_shard/_fsdp_state.py``)."""

    def __init__(self, unit: Unit) -> None:
        self.group, self.run = unit, unit.run

    def before(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return self.group.before(args)

    def after(self, out: Any) -> Any:
        return out


class _Closing(_Opening):
    def before(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return self.group.cast(args)

    def after(self, out: Any) -> Any:
        return self.group.after(out)


def _cast(args: Any, dtype: DType) -> Any:
    if type(args) is Tensor:
        return to(args, dtype) if args.dtype.is_floating else args
    return tuple([_cast(item, dtype) for item in args]) if type(args) is tuple else args


def _hooked(args: tuple[Any, ...], hook: Callable[[], None], before: bool = False) -> tuple[Any, ...]:
    """The same tensors behind a node that calls ``hook`` when their gradients are there: once all of them are, or,
    with ``before``, for each."""
    found: list[Tensor] = []
    _tracked(args, found)
    if not found:
        return args
    made = []
    for x in found:
        alias = Tensor(x.shape, x.dtype, x.storage, x.strides)
        alias.is_view = x.is_view
        made.append(alias)

    def one(gradient: Tensor) -> list[Tensor | None]:
        hook()
        return [gradient]

    def several(gradients: list[Tensor | None]) -> list[Tensor | None]:
        hook()
        return list(gradients)

    if before or len(made) == 1:
        for alias, x in zip(made, found):
            autograd.record(alias, (x,), (), one)
    else:
        autograd.record(made, found, (), several)
    replacement = iter(made)
    return tuple([_replaced(item, replacement) for item in args])


def _tracked(args: tuple[Any, ...], found: list[Tensor]) -> None:
    for item in args:
        if type(item) is Tensor:
            if item.requires_grad:
                found.append(item)
        elif type(item) is tuple:
            _tracked(item, found)


def _replaced(item: Any, replacement: Iterator[Tensor]) -> Any:
    if type(item) is Tensor:
        return next(replacement) if item.requires_grad else item
    return tuple([_replaced(part, replacement) for part in item]) if type(item) is tuple else item


def units_of(model: Module, plan: Plan) -> list[Module]:
    """The modules below the root that are gathered one at a time.

    Without a word those of lists of equal blocks; what a config calls its layers' class are these too, as models of
    this package have names of their own; a part of the model may be named beside them (``lm_head``).
    ``parallelism.wrap_elements``: modules of so many parameters, inner first.
    """
    if plan.wrap_elements and plan.wrap is None:
        return _large(model, plan.wrap_elements)
    if plan.wrap == ():
        return []
    found: list[Module] = []
    if plan.wrap is not None and any(name.endswith("Embedding") for name in plan.wrap):
        found += [module for module in model.modules() if isinstance(module, Embedding)]
    if plan.wrap is None or not all(name.endswith("Embedding") for name in plan.wrap):
        found += blocks_of(model)
    return found + [part for name, part in model.children() if name in (plan.wrap or ())]


def blocks_of(module: Module) -> list[Module]:
    found: list[Module] = []
    for value in module.__dict__.values():
        if isinstance(value, (list, tuple)) and value and all(isinstance(item, Module) for item in value):
            alike = len(value) > 1 and len({type(item) for item in value}) == 1
            for item in value:
                found += [item] if alike and item.tensors() else blocks_of(item)
        elif isinstance(value, Module):
            found += blocks_of(value)
    return found


def _large(model: Module, least: int) -> list[Module]:
    """torch/distributed/fsdp/wrap.py, size_based_auto_wrap_policy: what is left of a module, once its large children
    are units."""
    found: list[Module] = []

    def left(module: Module, root: bool) -> int:
        own = [x.numel for x in module.__dict__.values() if type(x) is Tensor and x.requires_grad]
        rest = sum(own) + sum(left(child, False) for _, child in module.children())
        if rest >= least and not root:
            found.append(module)
            return 0
        return rest

    left(model, True)
    return found


class UnitRun(Spread):
    """A run whose parameters are gathered unit by unit."""

    unit: type[Unit] = Unit
    rows = True

    def __init__(
        self, plan: Plan, spec: TrainingSpec, system: System, updated: Sequence[Tensor], every: Sequence[Tensor]
    ) -> None:
        super().__init__(system, updated)
        self.plan = plan
        self.order: list[Unit] = []
        self.in_backward = False
        self.reduces = True
        self.completed: Sequence[Unit] = ()  # the units whose gradients the next backward pass completes
        self.retained: int | None = None  # FSDP2's all_gather_state: freed by the next copy-out
        if plan.compute is not None and not spec.get("autocast", False):
            self.autocast = None  # what is gathered, and what goes into a unit, is cast already
        split = {
            id(parameter): plan.expert
            for module in system.model.modules()
            if getattr(module, "dispatches", False)
            for parameter in module.parameters()
        }
        # TRL shards the reference model as it shards the policy (``prepare_fsdp``, ``prepare_deepspeed``).
        copies = list(system.helpers) if spec.get("reference_model") == "copy" else []
        own = {id(tensor) for tensor in system.model.tensors()}
        beside = [parameter for parameter in every if id(parameter) not in own] if copies else []
        every = [parameter for parameter in every if id(parameter) in own]
        self.shards = Shards(
            [*every, *beside], self.weights_dtype(), plan.shard, self.rows, plan.offload_parameters, split
        )
        self.host_bytes = self.shards.host_bytes
        self.copies = [self._make_units(copy, beside)[-1] for copy in copies]
        self.units = self._make_units(system.model, list({id(x): x for x in every}.values()))
        self.optimized = self.optimizer_parameters(updated)

    def weights_dtype(self) -> DType | None:
        return self.plan.compute

    def optimizer_parameters(self, updated: Sequence[Tensor]) -> Sequence[Tensor]:
        shards = [self.shards.of[id(x)] for x in updated]
        if not self.plan.offload_optimizer:
            return shards
        self.host_bytes += sum(2 * shard.nbytes for shard in shards if shard.requires_grad)
        return ()

    def _make_units(self, model: Module, every: list[Tensor]) -> list[Unit]:
        """The root's last."""
        left = {id(x): x for x in every}
        found: list[Unit] = []
        # A head whose weight the model multiplies by itself is never called: it stays with the root.
        chosen = [module for module in units_of(model, self.plan) if module is not getattr(model, "lm_head", None)]
        for module in reversed(chosen):  # inner ones, which come later, before outer ones
            own = [left.pop(id(x)) for x in module.tensors() if id(x) in left]
            if own:
                module.unit = self.unit(self, own, module.path)
                found.insert(0, module.unit)
        if self.plan.last_stays and found:
            found[-1].stays = True
        if self.plan.ends:
            self._ends(model, left, found)
        self.root = self.unit(self, list(left.values()), model.path, root=True)
        return [*found, self.root]

    def _ends(self, model: Module, left: dict[int, Tensor], found: list[Unit]) -> None:
        """The embedding, and the last norm with the head, where those are modules that are called with weights of
        their own. The latter stay gathered until the backward pass."""
        table, norm, head = (getattr(model, name, None) for name in ("embed_tokens", "norm", "lm_head"))
        if isinstance(table, Module) and head is not None:
            own = [left.pop(id(x)) for x in table.tensors() if id(x) in left]
            if own:
                table.unit = self.unit(self, own, table.path)
                table.unit.in_layers = False
                found.insert(0, table.unit)
        if isinstance(norm, Module) and isinstance(head, Module):
            own = [left.pop(id(x)) for module in (norm, head) for x in module.tensors() if id(x) in left]
            if own:
                unit = self.unit(self, own, head.path)
                unit.in_layers, unit.stays = False, True
                norm.unit, head.unit = _Opening(unit), _Closing(unit)
                found.append(unit)

    def forward(self, loss: Loss, batch: Any, last: bool) -> Tensor:
        self.reduces = last or not self.plan.synchronises_last_only
        root = self.root
        for copy in self.copies:
            copy.before(())
        if self.rooted:
            root.before(())
        out = loss(root.cast(batch))
        for copy in self.copies:
            self.free(copy)
        if root.parameters and self.rooted:
            out = root.after(out)
        self.finish_forward()
        return out

    def evaluate(self, work: Callable[[], Any]) -> Any:
        self.root.before(())
        out = work()
        self.root.phase = IDLE
        self.finish_forward()
        return out

    def finish_forward(self) -> None:
        if self.retained is not None:
            state.tape.free(self.retained)
            self.retained = None

    def complete(self, modules: Sequence[Module] = (), root: bool = True) -> None:
        self.reduces = True
        every = self.root, *self.units[:-1]
        chosen = {id(module.unit) for module in modules} if modules else set(map(id, every))
        self.completed = [unit for unit in every if (id(unit) in chosen if unit.in_layers else root)]

    def backward(self, loss: Tensor) -> None:
        self.in_backward = True
        try:
            autograd.backward(loss)
            self.after_graph()
            for unit in self.finishing:
                if unit.phase != POST_BACKWARD:
                    unit.post_backward()
                unit.phase = IDLE
                unit.indices.clear()
                if unit.pending is not None:
                    state.tape.free(unit.pending)
                    unit.pending = None
            self.finish_backward()
        finally:
            self.in_backward = False
        self.order.clear()

    def shard_of(self, tensor: Tensor) -> Tensor:
        return self.shards.of.get(id(tensor), tensor)

    # what strategies do differently

    @property
    def finishing(self) -> Sequence[Unit]:
        """All, in the order in which those are reduced that nothing behind them asked for a gradient."""
        return (self.root, *self.units[:-1])

    def prefetch_forward(self, unit: Unit) -> Unit | None:
        """The unit that is gathered ahead, where views of it are made there: autograd runs nodes in the order opposite
        to that in which they were made, so that its gradients are whole once ``unit`` has been through backward."""
        return None

    def frees_after_forward(self, unit: Unit) -> bool:
        return self.plan.reshard and not unit.stays

    def prefetch_backward(self, unit: Unit) -> None:
        if unit.indices:
            index = unit.indices.pop()
            if index > 0:
                self.order[index - 1].unshard()

    def free(self, unit: Unit) -> None:
        if unit.gathered:
            for index in unit.whole:
                state.tape.free(index)
            unit.whole = []
            for parameter, shard in zip(unit.parameters, unit.shards):
                parameter.storage.index = shard.storage.index
            unit.gathered = False

    def gather(self, unit: Unit) -> None:
        raise NotImplementedError

    def copy_out(self, unit: Unit) -> None:
        raise NotImplementedError

    def reduce(self, unit: Unit) -> None:
        raise NotImplementedError

    def after_graph(self) -> None:
        """Nothing."""

    def finish_backward(self) -> None:
        """Nothing."""


def reduced_label(unit: Unit) -> Label:
    return Label("communication", unit.path, "reduced")
