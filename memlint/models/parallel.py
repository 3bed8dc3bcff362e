"""Runs on several devices: what one rank keeps, gathers and sends while it takes a step.

A :class:`Spread` stands between the training loop (:mod:`memlint.models.step`) and a System. It makes shards of the
parameters' storages, and gives modules a ``unit`` that runs around each of their calls: outside of what is replayed
from a template, so a model of 126 equal layers costs what a small one does. Collectives are what they allocate.

Where ranks differ, the one with the largest shards is meant (rank 0). Sources: ``torch/nn/parallel``,
``torch/distributed/fsdp`` of torch 2.13, and DeepSpeed 0.18, ``deepspeed/runtime/zero``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any, TypeVar

from memlint.dialects.spec import TrainingSpec
from memlint.meta import autograd
from memlint.meta.amp import to
from memlint.meta.nn import Embedding, Module
from memlint.meta.optim import Optimizer
from memlint.meta.tape import Label, Tape
from memlint.meta.tensor import DTYPES, DType, Gathered, Shape, Storage, Tensor, float32, state
from memlint.models import UnknownModel
from memlint.models.split import FIRST, degree
from memlint.models.system import System
from memlint.named_tuple import NamedTuple

MIB = 1 << 20
# torch/csrc/distributed/c10d/reducer.hpp: the first bucket is small, so that communication starts early.
FIRST_BUCKET_BYTES = MIB

# The caching allocator keeps the blocks of each CUDA stream apart, and a block belongs to the stream that was current
# when it was allocated. These are numbers for the ones that wrappers make; autograd's thread runs in the default one.
DEFAULT_STREAM, GATHERS, REDUCES, REPLICAS, CASTS = range(5)

# DeepSpeed's own choices, in elements (deepspeed/runtime/zero/config.py).
REDUCE_BUCKET = 500_000_000
PREFETCH_BUCKET = 50_000_000
LIVE_PARAMETERS = REUSE_DISTANCE = 1_000_000_000
PERSISTENCE = 100_000
SUB_GROUP = 1_000_000_000
ALIGNMENT = 2  # elements: nccl_start_alignment_factor

Loss = Callable[[Any], Tensor]
Args = TypeVar("Args")


class Plan(NamedTuple):
    """How states are spread, from the facts of ``docs/facts.md``, Parallelism.

    ranks     data-parallel degree: replicas of the batch
    shard     ranks that hold the states between them
    compute   dtype of gathered weights, None where it is that of the weights
    reduce    dtype in which gradients are reduced, None where it is that of the gradients
    """

    strategy: str
    stage: int
    ranks: int
    shard: int
    compute: DType | None
    reduce: DType | None
    reshard: bool
    wrap: tuple[str, ...] | None
    wrap_elements: int
    offload_parameters: bool
    offload_optimizer: bool
    synchronises_last_only: bool
    expert: int = 1
    staged: bool = False  # a pipeline's stage: what is gathered stays for the step, reductions come after it
    ends: bool = False  # whether the embedding is a unit, and the last norm with the head


def plan_of(spec: TrainingSpec) -> Plan | None:
    """None for a run whose states are on one device. Raises UnknownModel for numbers that do not fit."""
    strategy = spec.get("parallelism.strategy") or "none"
    stage = spec.get("parallelism.zero_stage")
    if strategy == "none" or (strategy == "zero" and stage == 0):
        strategy = "none" if strategy == "none" else "ddp"
    if strategy not in ("none", "ddp", "fsdp1", "fsdp2", "zero"):
        raise UnknownModel(f"how {strategy!r} spreads a run is not known")
    if strategy == "zero" and stage not in (1, 2, 3):
        raise UnknownModel(f"ZeRO has stages 0 to 3, not {stage!r}")
    replicas, shard = degree(spec, "replicas"), spec.get("parallelism.shard")
    ranks = data_degree(spec)
    if strategy == "none" or (strategy == "ddp" and ranks == 1):
        return None
    shard = int(shard or max(1, ranks // replicas))
    if ranks % shard:
        raise UnknownModel(f"parallelism.shard = {shard} does not divide the {ranks} data-parallel ranks")
    # Ranks that share a sequence have the same weights, and share those too.
    beside = degree(spec, "context") * degree(spec, "ulysses")
    ranks, shard = ranks * beside, shard * beside
    stored, compute = spec.get("parameter_dtype", "float32"), spec.get("compute_dtype", "float32")
    reduce = spec.get("parallelism.reduce_dtype")
    wrap = spec.get("parallelism.wrap")
    offloaded = spec.get("parallelism.cpu_offload", False)
    return Plan(
        strategy,
        stage or 0,
        ranks,
        shard,
        DTYPES[compute] if compute != stored else None,
        DTYPES[reduce] if reduce in DTYPES and reduce != compute else None,
        spec.get("parallelism.reshard_after_forward", True),
        None if wrap is None else () if wrap == "none" else (wrap,) if isinstance(wrap, str) else tuple(wrap),
        spec.get("parallelism.wrap_elements", 0),
        offloaded or spec.get("parallelism.offload_parameters", False),
        offloaded or spec.get("parallelism.offload_optimizer", False),
        # transformers' Trainer leaves gradients unreduced until the last micro-batch; torch's own default reduces each.
        spec.get("framework") in ("transformers", "trl") or degree(spec, "pipeline") > 1,
        degree(spec, "expert"),
        strategy == "fsdp2" and degree(spec, "pipeline") > 1,
        strategy == "fsdp2" and bool(spec.get("parallelism.wrap_ends", False)),
    )


def data_degree(spec: TrainingSpec) -> int:
    """Data-parallel ranks: what is stated, or what the other degrees leave of the devices."""
    stated = spec.get("parallelism.data")
    if stated:
        return int(stated)
    devices = spec.get("device_count") or spec.get("world_size")
    if not devices:
        return int(spec.get("parallelism.shard") or 1) * degree(spec, "replicas")
    others = prod(degree(spec, kind) for kind in ("tensor", "pipeline", "context", "ulysses"))
    return max(1, int(devices) // others)


def process_groups(spec: TrainingSpec) -> tuple[tuple[str, int], ...]:
    """Groups that a rank talks in: one per kind of parallelism, and one of all where there are several kinds."""
    plan = plan_of(spec)
    found: list[tuple[str, int]] = []
    if plan is not None:
        found = [("data", plan.shard)] if plan.strategy != "ddp" else [("data", plan.ranks)]
        if plan.strategy != "ddp" and plan.ranks > plan.shard:
            found.append(("replicas", plan.ranks // plan.shard))
    for kind in ("tensor", "pipeline", "context", "ulysses", "expert"):
        found.append((kind, degree(spec, kind)))
    found = [(kind, size) for kind, size in found if size > 1]
    # DeepSpeed shares states in a copy of the group of all (deepspeed/utils/groups.py, _clone_world_group), and the
    # trainer gathers losses in that group itself.
    copied = plan is not None and plan.strategy == "zero" and spec.get("optimizer_library") != "megatron"
    if len(found) > 1 or (found and copied):
        found.append(("all", prod(size for kind, size in found if kind != "expert")))
    return tuple(found)


def assumptions(spec: TrainingSpec, stage: str = "") -> tuple[tuple[str, str, str], ...]:
    """What the report says about the rank that is meant."""
    plan = plan_of(spec)
    found: list[tuple[str, str, str]] = []
    stages = degree(spec, "pipeline")
    if stage:
        why = "it has the embedding, and most micro-batches in flight" if stage == FIRST else "it has the head"
        found.append(("rank", f"the {stage} of {stages} stages", f"the fullest: {why}"))
    if plan is not None and plan.strategy != "ddp" and plan.shard > 1:
        found.append(("rank", f"0 of {plan.ranks}", "its shards are the largest: others get the padding"))
    if plan is not None and plan.strategy in ("fsdp1", "fsdp2"):
        reason = "collectives' streams keep blocks of their own; optimizer states get what the first step left"
        found.append(("reserved memory", "after two steps", reason))
    if plan is not None and plan.stage == 3:
        reason = "DeepSpeed fetches module by module; the estimate, layer by layer"
        found.append(("ZeRO-3 fetches", "by layer", reason))
    return tuple(found)


# -- the run as a whole


class Spread:
    """A run on one device; the others change what is theirs.

    optimized   what the optimizer gets
    autocast    compute dtype of autocast, None for none
    rooted      whether the next forward pass is of what has the weights that lie in no unit
    loading     the whole model on its way to the card, where it is sharded only there
    """

    host_bytes = 0
    loading: Tape | None = None
    rooted = True

    def __init__(self, system: System, updated: Sequence[Tensor]) -> None:
        self.optimized: Sequence[Tensor] = updated
        self.autocast = system.autocast

    def forward(self, loss: Loss, batch: Any, last: bool) -> Tensor:
        """``last``: the gradients of this micro-batch complete those of the step."""
        return loss(batch)

    def evaluate(self, work: Callable[[], Any]) -> Any:
        return work()

    def backward(self, loss: Tensor) -> None:
        autograd.backward(loss)

    def complete(self, modules: Sequence[Module] = (), root: bool = True) -> None:
        """The next backward pass completes gradients of the step, where several forward passes came before: those of
        these modules (of all if there are none), and of what lies in none of them if ``root``."""

    def step(self, optimizer: Optimizer) -> None:
        optimizer.step()
        optimizer.zero_grad()

    def shard_of(self, tensor: Tensor) -> Tensor:
        """What this rank keeps of a parameter or buffer."""
        return tensor


def spread(spec: TrainingSpec, system: System, updated: Sequence[Tensor], every: Sequence[Tensor]) -> Spread:
    """Take a system apart for one rank; call it before anything but parameters is on the tape.

    ``updated`` are the parameters that train, ``every`` are all of the model's and of its helpers'.
    """
    plan = plan_of(spec)
    if (plan is None or plan.strategy == "ddp") and AddedGradients.applies(spec):
        return AddedGradients(spec, system, updated)
    if plan is None:
        return Spread(system, updated)
    if plan.strategy == "ddp":
        return Ddp(spec, system, updated)
    if plan.strategy == "zero":
        half = any(x.dtype.itemsize == 2 for x in updated)
        added = AddedGradients.applies(spec) or (half and spec.get("gradient_dtype") == "float32")
        if plan.stage == 1 and added:
            return MainGradients(plan, spec, system, updated, every)
        kind: type[ZeroGradients] = ZeroParameters if plan.stage == 3 else ZeroGradients
        return kind(plan, spec, system, updated, every)
    return (FlatlySharded if plan.strategy == "fsdp1" else Sharded)(plan, spec, system, updated, every)


class Ddp(Spread):
    """Every rank has everything, and buckets that gradients are reduced in: copies of them, or what they are views
    of (PyTorch pull request 41954)."""

    def __init__(self, spec: TrainingSpec, system: System, updated: Sequence[Tensor]) -> None:
        super().__init__(system, updated)
        views = bool(spec.get("parallelism.gradient_as_bucket_view", False))
        cap = int(float(spec.get("parallelism.bucket_mb") or 25) * MIB)
        label = Label("gradients" if views else "communication", "", "bucket")
        trained = [parameter for parameter in updated if parameter.requires_grad]
        self.buckets = [_storage(size, label) for size in bucket_bytes(trained, cap)]
        if views and self.buckets:
            state.bucket = self.buckets[0]
        if spec.get("parallelism.zero_redundancy", False):
            self.optimized = fullest_share(updated, data_degree(spec))


def fullest_share(parameters: Sequence[Tensor], ranks: int) -> list[Tensor]:
    """Of whole parameters, the largest first, each to the rank that has least (torch 2.13,
    ``distributed/optim/zero_redundancy_optimizer.py``: _partition_parameters): those of the rank that has most."""
    shares: list[list[Tensor]] = [[] for _ in range(max(ranks, 1))]
    sizes = [0] * len(shares)
    for parameter in sorted(parameters, key=lambda x: x.numel, reverse=True):
        least = sizes.index(min(sizes))
        shares[least].append(parameter)
        sizes[least] += parameter.numel
    return shares[sizes.index(max(sizes))]


def bucket_bytes(trained: Sequence[Tensor], cap_bytes: int) -> list[int]:
    """A bucket is closed once it holds its cap. Gradients come in about the reverse of the order of definition."""
    found: list[int] = []
    open_bytes, limit = 0, FIRST_BUCKET_BYTES
    for parameter in reversed(trained):
        open_bytes += parameter.nbytes
        if open_bytes >= limit:
            found.append(open_bytes)
            open_bytes, limit = 0, cap_bytes
    return [*found, open_bytes] if open_bytes else found


def _storage(size_bytes: int, label: Label, stream: int = DEFAULT_STREAM) -> Storage:
    saved, state.label = state.label, label
    made = Storage(size_bytes, (size_bytes,), 1)
    state.label = saved
    if stream:
        state.tape.streams[made.index] = stream
    return made


# -- shards and units


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


IDLE, FORWARD, PRE_BACKWARD, POST_BACKWARD = "idle", "forward", "before backward", "after backward"


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
        self.run.prefetch_forward(self)
        return _hooked(args, self.post_backward) if state.grad_enabled else args

    def after(self, out: Any) -> Any:
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
    this package have names of their own. ``parallelism.wrap_elements``: modules of so many parameters, inner first.
    """
    if plan.wrap_elements and plan.wrap is None:
        return _large(model, plan.wrap_elements)
    if plan.wrap == ():
        return []
    found: list[Module] = []
    if plan.wrap is not None and any(name.endswith("Embedding") for name in plan.wrap):
        found += [module for module in model.modules() if isinstance(module, Embedding)]
    if plan.wrap is None or not all(name.endswith("Embedding") for name in plan.wrap):
        found += _blocks(model)
    return found


def _blocks(module: Module) -> list[Module]:
    found: list[Module] = []
    for value in module.__dict__.values():
        if isinstance(value, (list, tuple)) and value and all(isinstance(item, Module) for item in value):
            alike = len(value) > 1 and len({type(item) for item in value}) == 1
            for item in value:
                found += [item] if alike and item.tensors() else _blocks(item)
        elif isinstance(value, Module):
            found += _blocks(value)
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
        self.nested = bool(plan.wrap_elements)  # whether a unit may lie within another
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
        if self.plan.ends:
            self._ends(model, left, found)
        _no_template_around(model)
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
            for unit in (self.root, *self.units[:-1]):
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

    def prefetch_forward(self, unit: Unit) -> None:
        """Nothing."""

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


def _no_template_around(module: Module) -> bool:
    """What a unit does has no place in a template: modules that contain one are simulated. Whether there is one."""
    if module.unit is not None and module.replay_after is not None and not module.unit.run.nested:
        return True
    inside = [_no_template_around(child) for _, child in module.children()]
    if any(inside):
        module.replay_after = None
    return any(inside) or module.unit is not None


# -- FSDP2


class Sharded(UnitRun):
    """``fully_shard``: ``torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py`` and ``_fsdp_collectives.py``."""

    def __init__(
        self, plan: Plan, spec: TrainingSpec, system: System, updated: Sequence[Tensor], every: Sequence[Tensor]
    ) -> None:
        self.scattered: int | None = None  # the last unit's reduce-scatter input
        self.staged_end = False  # whether a pipeline's stage has run its last backward pass
        state.tape.states_late = True
        super().__init__(plan, spec, system, updated, every)

    def gather(self, unit: Unit) -> None:
        if not unit.parameters:
            return
        tape, ranks = state.tape, self.plan.shard
        label = Label("communication", unit.path, "all_gather")
        whole = unit.padded_bytes
        if ranks == 1:
            unit.pending = tape.allocate(0, label)
            return
        # foreach_all_gather, under all_gather_copy_in_stream; what is copied out of it is the default stream's.
        cast = None
        if self.plan.compute is not None or self.plan.offload_parameters:
            cast = tape.allocate(whole // ranks, Label("communication", unit.path, "cast"), GATHERS)
        unit.pending = tape.allocate(whole, label, GATHERS)
        if cast is not None:
            tape.free(cast)

    def copy_out(self, unit: Unit) -> None:
        tape = state.tape
        assert unit.pending is not None
        before = None
        if unit.phase == FORWARD:
            before, self.retained = self.retained, None  # a local name holds it until wait_for_unshard returns
        for parameter, (size, label) in zip(unit.parameters, unit.pieces):
            parameter.storage.index = tape.allocate(size, label)
            unit.whole.append(parameter.storage.index)
        if unit.phase == FORWARD:
            self.retained = unit.pending
        else:
            tape.free(unit.pending)
        if before is not None:
            tape.free(before)
        unit.pending = None

    def reduce(self, unit: Unit) -> None:
        tape = state.tape
        if self.plan.staged and not self.staged_end:
            self._widen(unit)
            return
        if not self.reduces:
            self.free(unit)
            self._widen(unit)
            return
        trained = [(p, s) for p, s in zip(unit.parameters, unit.shards) if p.grad is not None]
        gradients = unit.gradients()
        self.free(unit)
        self._finish_scatter()
        if not gradients:
            return
        dtype = self.plan.reduce or gradients[0].dtype
        padded = sum(self.shards.padded[id(parameter)] for parameter, _ in trained)
        kept = sum(shard.numel for _, shard in trained)
        self.scattered = tape.allocate(padded * dtype.itemsize, Label("communication", unit.path, "reduce_scatter"))
        gradients.clear()
        stored = trained[0][1].dtype
        same = dtype is stored
        label = Label("gradients", unit.path, "shard")
        # foreach_reduce: the input is the default stream's, the output is reduce_scatter_stream's, and a copy of it in
        # the parameters' dtype is that of the stream of the last collective.
        hybrid = self.plan.ranks > self.plan.shard
        reduced = _storage(kept * dtype.itemsize, label if same else _reduced(unit), REDUCES)
        if not same:
            narrow, reduced = reduced, _storage(kept * stored.itemsize, label, REPLICAS if hybrid else REDUCES)
            if hybrid:
                unit.held = narrow  # FSDPParamGroup._all_reduce_state
            del narrow
        if self.plan.offload_parameters:
            return
        for _, shard in trained:
            if shard.grad is None:
                shard.grad = Tensor(shard.shape, stored, reduced)

    def _widen(self, unit: Unit) -> None:
        """Gradients that wait for the last micro-batch are kept in the dtype of reduction."""
        dtype = self.plan.reduce
        for parameter in unit.parameters:
            if parameter.grad is not None and dtype is not None and parameter.grad.dtype is not dtype:
                kept = _storage(parameter.numel * dtype.itemsize, Label("gradients", unit.path, "unsharded"))
                parameter.grad = Tensor(parameter.shape, dtype, kept)
                parameter.grad.is_view = False

    def after_graph(self) -> None:
        """``PipelineStage``: no unit reduces or reshards in a backward pass; after the last one all do, in a row
        (``torch/distributed/pipelining/stage.py``, ``perform_reduce_grad``)."""
        if self.plan.staged and self.reduces:
            self.staged_end = True
            for unit in self.completed or (self.root, *self.units[:-1]):
                unit.post_backward()
            self.staged_end = False
            if self.completed:
                self.reduces, self.completed = False, ()

    def _finish_scatter(self) -> None:
        if self.scattered is not None:
            state.tape.free(self.scattered)
            self.scattered = None

    def finish_backward(self) -> None:
        self._finish_scatter()
        for unit in (self.root, *self.units[:-1]):
            unit.held = None


def _reduced(unit: Unit) -> Label:
    return Label("communication", unit.path, "reduced")


# -- FSDP1


class FlatlySharded(UnitRun):
    """``FullyShardedDataParallel``: the parameters of a unit are one flat parameter
    (``torch/distributed/fsdp/_flat_param.py`` and ``_runtime_utils.py``)."""

    rows = False

    def __init__(
        self, plan: Plan, spec: TrainingSpec, system: System, updated: Sequence[Tensor], every: Sequence[Tensor]
    ) -> None:
        self.backward_prefetch = str(spec.get("parallelism.backward_prefetch") or "BACKWARD_PRE").upper()
        self.forward_prefetch = bool(spec.get("parallelism.forward_prefetch", False))
        self.forward_order: list[Unit] = []  # of the steps before
        state.tape.states_late = True
        super().__init__(plan, spec, system, updated, every)
        self.forward_order = [unit for unit in self.units if not unit.root and unit.parameters]

    def gather(self, unit: Unit) -> None:
        if not unit.parameters:
            return
        tape = state.tape
        whole = unit.padded_bytes
        cast = None
        on_host = self.plan.offload_parameters
        pairs = zip(unit.parameters, unit.shards)
        # What has its dtype already (frozen weights beside adapters that train in fp32) is gathered as it is.
        moved = sum(shard.numel * p.dtype.itemsize for p, shard in pairs if on_host or shard.dtype is not p.dtype)
        if moved:
            # _pre_unshard_stream; then _unshard_stream
            cast = tape.allocate(moved, Label("communication", unit.path, "cast"), CASTS)
        unit.pending = tape.allocate(whole, Label("communication", unit.path, "unsharded"), GATHERS)
        if cast is not None:
            tape.free(cast)

    def copy_out(self, unit: Unit) -> None:
        """Parameters are views of what was gathered."""
        assert unit.pending is not None
        unit.whole = [unit.pending]
        for parameter in unit.parameters:
            parameter.storage.index = unit.pending
        unit.pending = None

    def prefetch_forward(self, unit: Unit) -> None:
        if self.forward_prefetch and unit in self.forward_order:
            place = self.forward_order.index(unit) + 1
            if place < len(self.forward_order):
                self.forward_order[place].unshard()

    def prefetch_backward(self, unit: Unit) -> None:
        if self.backward_prefetch.endswith("PRE"):
            super().prefetch_backward(unit)

    def reduce(self, unit: Unit) -> None:
        padded = self.shards.padded
        trained = [shard for p, shard in zip(unit.parameters, unit.shards) if p.grad is not None]
        elements = sum(padded[id(parameter)] for parameter in unit.parameters if parameter.grad is not None)
        if not self.reduces:
            if self.plan.reshard:
                self.free(unit)
            return
        gradients = unit.gradients()
        if not gradients:
            self.free(unit)
            return
        compute = gradients[0].dtype
        flat = _storage(elements * compute.itemsize, Label("gradients", unit.path, "unsharded"))
        gradients.clear()
        self.free(unit)
        if self.backward_prefetch.endswith("POST"):
            super().prefetch_backward(unit)
        # From here on _post_backward_stream, and _all_reduce_stream after the second collective of hybrid sharding.
        dtype = self.plan.reduce or compute
        computed = flat  # _post_backward_hook names what autograd has computed to its end
        if dtype is not compute:
            flat = _storage(elements * dtype.itemsize, Label("communication", unit.path, "reduce_scatter"), REDUCES)
        stored = trained[0].dtype
        label = Label("gradients", unit.path, "shard")
        size = sum(shard.numel for shard in trained)
        reduced = _storage(size * dtype.itemsize, label if dtype is stored else _reduced(unit), REDUCES)
        if dtype is not stored:
            last = REPLICAS if self.plan.ranks > self.plan.shard else REDUCES
            reduced = _storage(size * stored.itemsize, label, last)
        del flat, computed
        if self.plan.offload_parameters:
            return
        for shard in trained:
            if shard.grad is None:
                shard.grad = Tensor(shard.shape, stored, reduced)


# -- ZeRO


def _elements(tensors: Sequence[Tensor]) -> int:
    """Of all together; one that stands for several (:func:`memlint.models.depth.as_deep`) is looked at once."""
    known: dict[int, int] = {}
    total = 0
    for tensor in tensors:
        number = known.get(id(tensor))
        if number is None:
            number = known[id(tensor)] = tensor.numel
        total += number
    return total


class ZeroGradients(Spread):
    """ZeRO 1 and 2 (``stage_1_and_2.py``): whole weights; an fp32 copy of a share of them, which the optimizer works
    on; in stage 2 gradients go through a bucket as they come, and only this rank's share of them stays."""

    def __init__(
        self, plan: Plan, spec: TrainingSpec, system: System, updated: Sequence[Tensor], every: Sequence[Tensor]
    ) -> None:
        Spread.__init__(self, system, updated)
        self.plan = plan
        if type(self) is ZeroGradients:
            state.tape.states_late = True
        trained = self.trained = [parameter for parameter in updated if parameter.requires_grad]
        self.dtype = trained[0].dtype if trained else float32
        total = _elements(trained)
        self.share = self.share_of(trained, total)
        elements = int(spec.get("parallelism.reduce_bucket_elements") or REDUCE_BUCKET)
        self.contiguous = spec.get("parallelism.contiguous_gradients", True) or plan.offload_optimizer
        self.bucket_elements = elements if self.contiguous else min(elements, total)
        overlaps = bool(spec.get("parallelism.overlap", plan.stage == 3))
        self.buckets = 2 if overlaps and self.contiguous else 1
        # DeepSpeed's own streams are the default one, where communication is not to overlap with computation.
        self.gather_stream, self.reduce_stream = (GATHERS, REDUCES) if overlaps else (DEFAULT_STREAM, DEFAULT_STREAM)
        self.gradients: Storage | None = None
        self.masters = self._masters(spec)
        if plan.offload_optimizer:
            self.host_bytes = self.share * (3 * float32.itemsize + self.dtype.itemsize)
        self.optimized = self.masters

    def share_of(self, trained: Sequence[Tensor], total: int) -> int:
        """Elements that this rank's optimizer works on."""
        aligned = ALIGNMENT * self.plan.shard
        return -(-total // aligned) * ALIGNMENT

    def _masters(self, spec: TrainingSpec) -> list[Tensor]:
        """The fp32 copies, by sub-group in stage 3."""
        if self.plan.offload_optimizer:
            return []
        most = int(spec.get("parallelism.sub_group_elements") or SUB_GROUP) if self.plan.stage == 3 else self.share
        left, found = self.share, []
        saved, state.label = state.label, Label("optimizer", "", "master weights")
        while left > 0:
            master = Tensor((min(left, most),), float32)
            master.requires_grad = True
            found.append(master)
            left -= most
        state.label = saved
        return found

    def backward(self, loss: Tensor) -> None:
        bucket = Label("communication", "", "reduce bucket")
        size = self.bucket_elements * self.dtype.itemsize
        held = [_storage(size, bucket) for _ in range(self.buckets)]
        second = self.plan.stage == 2
        share = None
        if second:
            state.bucket = held[0]
            if not self.plan.offload_optimizer:
                share = self._share(self.reduce_stream)  # copy_grads_in_partition, called by reduce_ipg_grads
        autograd.backward(loss)
        state.bucket = None
        if second:
            self._forget()
            self.gradients = self.gradients or share
        del held, share

    def _share(self, stream: int = DEFAULT_STREAM) -> Storage:
        return _storage(self.share * self.dtype.itemsize, Label("gradients", "", "partition"), stream)

    def _forget(self) -> None:
        for parameter in self.trained:
            parameter.grad = None

    def step(self, optimizer: Optimizer) -> None:
        if self.plan.stage == 1 and not self.plan.offload_optimizer:
            self.gradients = self._share()  # the rest is reduced, and let go of
        self._forget()
        if not self.masters:
            return
        if self.plan.stage < 3:
            self._update(optimizer, self.masters[0])
            self.gradients = None
            self.masters[0].grad = None
            return
        for master in self.masters:
            self._update(optimizer, master)
            master.grad = None

    def _update(self, optimizer: Optimizer, master: Tensor) -> None:
        """The share of the gradients in one piece, then in fp32."""
        label = Label("gradients", "", "fp32 partition")
        flat = _storage(master.numel * self.dtype.itemsize, label)
        if self.dtype is not float32:
            flat = _storage(master.nbytes, label)
        if self.plan.stage < 3:
            self.gradients = None
        master.grad = Tensor(master.shape, float32, flat)
        optimizer.step()


class MainGradients(ZeroGradients):
    """Megatron-LM's distributed optimizer (``core/distributed``, ``core/optimizer/distrib_optimizer.py``): every
    gradient is added at once to a buffer that stays, and the optimizer reads this rank's part of it; where the buffer
    has 16 bits, an fp32 copy of that part.

    Its precision-aware form (Transformer Engine's ``FusedAdam`` with ``store_param_remainders``) takes gradients as
    they are, and of the fp32 copies of 16-bit weights keeps the half that those do not have."""

    def __init__(
        self, plan: Plan, spec: TrainingSpec, system: System, updated: Sequence[Tensor], every: Sequence[Tensor]
    ) -> None:
        # Experts are the same on fewer ranks than everything else: those that share one copy of the model's experts.
        routed = (module for module in system.model.modules() if getattr(module, "dispatches", False))
        self.experts = sum(x.numel for module in routed for x in module.parameters() if x.requires_grad)
        self.copies = max(1, plan.shard * degree(spec, "tensor") // (plan.expert * degree(spec, "expert_tensor")))
        self.aware = bool(spec.get("optimizer_precision_aware", False))
        super().__init__(plan, spec, system, updated, every)
        self.wide = _main_dtype(spec, self.trained) is float32
        self.main = _main_gradients(spec, self.trained)

    def share_of(self, trained: Sequence[Tensor], total: int) -> int:
        return super().share_of(trained, total - self.experts) + -(-self.experts // self.copies)

    def _masters(self, spec: TrainingSpec) -> list[Tensor]:
        if not self.aware or spec.get("float8_weights", False) or self.plan.offload_optimizer:
            return super()._masters(spec)
        saved, state.label = state.label, Label("optimizer", "", "master weights")
        master = Tensor((self.share,), self.dtype)
        state.label = saved
        return [master.requires_grad_()]

    def backward(self, loss: Tensor) -> None:
        state.bucket = self.main
        autograd.backward(loss)
        state.bucket = None
        self._forget()

    def step(self, optimizer: Optimizer) -> None:
        for master in self.masters:
            grad = self.main
            if not self.wide and not self.aware:
                grad = _storage(master.nbytes, Label("gradients", "", "fp32 partition"))
            master.grad = Tensor(master.shape, float32, grad)
            del grad
        optimizer.step()
        for master in self.masters:
            master.grad = None


class AddedGradients(Spread):
    """Megatron-LM without its distributed optimizer: the same buffer, which is reduced in place, and an optimizer that
    reads all of it (``core/distributed/param_and_grad_buffer.py``, ``core/optimizer/optimizer.py``). It is there on
    one device as well, and torch's DDP with its buckets is not (``DistributedDataParallel`` of ``core/distributed``).
    """

    def __init__(self, spec: TrainingSpec, system: System, updated: Sequence[Tensor]) -> None:
        super().__init__(system, updated)
        self.trained = [parameter for parameter in updated if parameter.requires_grad]
        self.dtype = _main_dtype(spec, self.trained)
        self.main = _main_gradients(spec, self.trained)

    @staticmethod
    def applies(spec: TrainingSpec) -> bool:
        return bool(spec.get("optimizer_library") == "megatron")

    def backward(self, loss: Tensor) -> None:
        state.bucket = self.main
        autograd.backward(loss)
        state.bucket = None
        self.give(None)

    def give(self, main: Storage | None) -> None:
        for parameter in self.trained:
            parameter.grad = None if main is None else Tensor(parameter.shape, self.dtype, main)

    def step(self, optimizer: Optimizer) -> None:
        self.give(self.main)
        optimizer.step()
        self.give(None)


def _main_dtype(spec: TrainingSpec, trained: Sequence[Tensor]) -> DType:
    """Of Megatron's buffer of gradients: fp32, or that of the parameters (``grad_reduce_in_fp32``)."""
    stated = spec.get("gradient_dtype")
    return DTYPES[stated] if stated in DTYPES else trained[0].dtype if trained else float32


def _main_gradients(spec: TrainingSpec, trained: Sequence[Tensor]) -> Storage:
    """The buffer with a place for every trained parameter."""
    elements = sum(parameter.numel for parameter in trained)
    return _storage(elements * _main_dtype(spec, trained).itemsize, Label("gradients", "", "main gradients"))


def _loading(model: Any, built: Tape, resized: bool) -> Tape:
    """A built model as it comes to a card: one storage after the other, and what is to be packed first as it is
    (bitsandbytes' ``Params4bit._quantize``). Where it is ``resized``, input and output embeddings are then made anew,
    each beside the old one (transformers' ``_get_resized_embeddings``)."""
    kinds = [module for module in model.modules() if hasattr(module, "unpacked_bytes")]
    unpacked = {module.weight.storage.index: module.unpacked_bytes for module in kinds}
    rows = next((module.weight.storage.index for module in model.modules() if isinstance(module, Embedding)), None)
    tables: list[int] = []
    found = Tape()
    found.mark("setup")
    before: int | None = None  # what the last weight was packed from: its scales are made before it goes
    for event in built.events:
        if event < 0:
            continue
        label = built.labels[event]
        if before is not None and label.component == "parameters":
            found.free(before)
            before = None
        if event in unpacked:
            before = found.allocate(unpacked[event], label)
        number = found.allocate(built.sizes[event], label)
        if rows is not None and label.component == "parameters" and built.sizes[event] == built.sizes[rows]:
            tables.append(number)
    if before is not None:
        found.free(before)
    for number in tables if resized else ():
        found.allocate(found.sizes[number], found.labels[number])
        found.free(number)
    return found


class ZeroParameters(ZeroGradients, UnitRun):
    """ZeRO 3 (``stage3.py``, ``partitioned_param_coordinator.py``): parameters are gathered too.

    DeepSpeed fetches module by module; here it is layer by layer, which with activation checkpointing is what
    happens in the backward pass. A layer whose next use is near is not let go of (``stage3_max_reuse_distance``).
    """

    rows = False

    def __init__(
        self, plan: Plan, spec: TrainingSpec, system: System, updated: Sequence[Tensor], every: Sequence[Tensor]
    ) -> None:
        self.persistence = int(_stated(spec, "parallelism.persistence_elements", PERSISTENCE))
        self.prefetch = int(_stated(spec, "parallelism.prefetch_bucket_elements", PREFETCH_BUCKET))
        self.live = int(_stated(spec, "parallelism.live_parameter_elements", LIVE_PARAMETERS))
        self.reuse = int(_stated(spec, "parallelism.reuse_distance_elements", REUSE_DISTANCE))
        self.fetched: dict[int, int] = {}
        self.kept: list[Tensor] = []
        if spec.get("parallelism.loaded_whole", False):
            # engine.py, _configure_distributed_model: what zero.Init has not sharded is moved to the card first, and
            # stage3.py empties the cache once it is sharded (_create_fp16_partitions_with_defragmentation).
            self.loading = _loading(system.model, state.tape, bool(spec.get("embeddings_resized", False)))
        self.alive = 0  # elements that are gathered
        UnitRun.__init__(self, plan, spec, system, updated, every)
        self.course = [unit for unit in self.units if unit.parameters]
        behind = 0
        for place, unit in reversed(list(enumerate(self.course))):
            unit.place, unit.behind = place, behind
            behind += unit.elements
        ZeroGradients.__init__(self, plan, spec, system, updated, every)
        self.host_bytes += self.shards.host_bytes
        if not plan.offload_optimizer:
            self.gradients = self._share()
        self.bucket = _storage(self.bucket_elements * self.dtype.itemsize, Label("communication", "", "reduce bucket"))
        for parameter in self.kept:
            shard = self.shards.of[id(parameter)]
            module = state.tape.labels[shard.storage.index].module
            label = Label("parameters", module, "persistent")
            parameter.storage.index = state.tape.allocate(parameter.nbytes, label)

    def weights_dtype(self) -> DType | None:
        return None  # DeepSpeed's weights have the dtype of computation already

    def optimizer_parameters(self, updated: Sequence[Tensor]) -> Sequence[Tensor]:
        return ()

    def share_of(self, trained: Sequence[Tensor], total: int) -> int:
        shards = self.shards.of
        return _elements([shards[id(parameter)] for parameter in trained])

    def _make_units(self, model: Module, every: list[Tensor]) -> list[Unit]:
        """Embeddings and layers; what is left comes with the first module that has some of it, after the layers."""
        self.kept += [x for x in every if stored_elements(x) <= self.persistence]
        left = {id(x): x for x in every if stored_elements(x) > self.persistence}
        found: list[Unit] = []
        blocks = _blocks(model)
        known = {id(block) for block in blocks}
        upper = list(_above(model, known))
        tied = _shared(upper)
        tables = [module for module in upper if isinstance(module, Embedding) and id(module.weight) not in tied]
        for module in (*tables, *blocks):
            own = [left.pop(id(x)) for x in module.tensors() if id(x) in left]
            if own:
                module.unit = self.unit(self, own, module.path)
                found.append(module.unit)
        self.root = self.unit(self, [], model.path, root=True)
        rest = list(left.values())
        after = [
            child
            for _, child in model.children()
            if child.unit is None and child is not getattr(model, "lm_head", None) and _has_weights(child)
        ]
        if rest and after and not any(id(x) in tied for x in rest):
            after[0].unit = self.unit(self, rest, after[0].path)
            found.append(after[0].unit)
        else:
            self.root = self.unit(self, rest, model.path, root=True)
        _no_template_around(model)
        return [*found, self.root]

    def gather(self, unit: Unit) -> None:
        if unit.parameters:
            whole = unit.padded_bytes - unit.ahead * unit.parameters[0].dtype.itemsize
            label = Label("communication", unit.path, "all_gather")
            unit.pending = state.tape.allocate(max(whole, 0), label, self.gather_stream)

    def copy_out(self, unit: Unit) -> None:
        tape = state.tape
        assert unit.pending is not None
        self.alive += unit.elements
        for parameter, (_, label) in zip(unit.parameters, unit.pieces):
            # fetch_sub_module waits, and puts parameters together, in the stream of the all-gather.
            parameter.storage.index = tape.allocate(parameter.storage.nbytes, label, self.gather_stream)
            unit.whole.append(parameter.storage.index)
        tape.free(unit.pending)
        unit.pending = None
        self._let_go(unit)

    def _let_go(self, unit: Unit) -> None:
        if unit.ahead:
            state.tape.free(self.fetched.pop(unit.place))
            self.alive -= unit.ahead
            unit.ahead = 0

    def _ahead(self, places: range) -> None:
        """Gather what comes next, parameter by parameter, until the prefetch bucket is full or enough are alive."""
        most, ahead = min(self.prefetch, self.live - self.alive), 0
        for place in places:
            if ahead >= most:
                return
            unit = self.course[place]
            if unit.gathered or unit.pending is not None or unit.ahead:
                continue
            before = ahead
            for parameter in unit.parameters:
                if ahead < most:
                    ahead += stored_elements(parameter)
            unit.ahead = ahead - before
            self.alive += unit.ahead
            size = unit.ahead * unit.parameters[0].dtype.itemsize
            label = Label("communication", unit.path, "all_gather")
            self.fetched[unit.place] = state.tape.allocate(size, label, self.gather_stream)

    def prefetch_forward(self, unit: Unit) -> None:
        if unit.place >= 0:
            self._ahead(range(unit.place + 1, len(self.course)))

    def prefetch_backward(self, unit: Unit) -> None:
        if unit.place >= 0:
            self._ahead(range(unit.place - 1, -1, -1))

    def frees_after_forward(self, unit: Unit) -> bool:
        if unit.root or not state.grad_enabled:
            return not unit.root
        return 2 * unit.behind >= self.reuse

    def free(self, unit: Unit) -> None:
        if unit.gathered:
            self.alive -= unit.elements
        super().free(unit)

    def reduce(self, unit: Unit) -> None:
        self.free(unit)
        trained = [parameter for parameter in unit.parameters if parameter.grad is not None]
        if trained:
            # reduce_scatter_coalesced sorts what is in the bucket by rank, in a copy
            elements = min(sum(parameter.numel for parameter in trained), self.bucket_elements)
            label = Label("communication", unit.path, "reduce_scatter")
            state.tape.free(state.tape.allocate(elements * self.dtype.itemsize, label, self.reduce_stream))
            for parameter in trained:
                parameter.grad = None

    def backward(self, loss: Tensor) -> None:
        state.bucket = self.bucket
        UnitRun.backward(self, loss)
        state.bucket = None
        self._forget()


def _stated(spec: TrainingSpec, name: str, default: int) -> Any:
    value = spec.get(name)
    return default if value is None or isinstance(value, str) else value


def _has_weights(module: Module) -> bool:
    return any(x.requires_grad for x in module.tensors())


def _above(module: Module, blocks: set[int]) -> Iterator[Module]:
    """The modules around those blocks."""
    if id(module) not in blocks:
        yield module
        for _, child in module.children():
            yield from _above(child, blocks)


def _shared(modules: Sequence[Module]) -> set[int]:
    """Tensors that more than one of these modules has, or that a model without a head multiplies by in its place."""
    seen: set[int] = set()
    found: set[int] = set()
    for module in modules:
        own = {id(value) for value in module.__dict__.values() if type(value) is Tensor}
        found |= own & seen
        seen |= own
        if getattr(module, "lm_head", True) is None:
            found.update(id(other.weight) for other in modules if isinstance(other, Embedding))
    return found
