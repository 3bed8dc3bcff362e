"""ZeRO, as DeepSpeed 0.18 and 0.19 have it: ``deepspeed/runtime/zero``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from memlint.facts.spec import Name, TrainingSpec
from memlint.meta import autograd
from memlint.meta.nn import Embedding, Module
from memlint.meta.optimizer import Optimizer
from memlint.meta.tape import Label, Tape
from memlint.meta.tensor import DTYPES, DType, Storage, Tensor, float32, state
from memlint.models.parallel.plan import Plan
from memlint.models.parallel.run import DEFAULT_STREAM, GATHERS, REDUCES, Spread, storage
from memlint.models.parallel.units import Unit, UnitRun, blocks_of, stored_elements
from memlint.models.system import System

# DeepSpeed's own choices, in elements (deepspeed/runtime/zero/config.py).
REDUCE_BUCKET = 500_000_000
PREFETCH_BUCKET = 50_000_000
LIVE_PARAMETERS = REUSE_DISTANCE = 1_000_000_000
PERSISTENCE = 100_000
SUB_GROUP = 1_000_000_000
REDUCED_AT_ONCE = 500_000_000  # without ZeRO (deepspeed/runtime/engine.py: buffered_allreduce_fallback)
ALIGNMENT = 2  # elements: nccl_start_alignment_factor


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
        self.kept_dtype = self._kept_dtype(spec)
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
            self.host_bytes = self.share * (3 * float32.itemsize + self.kept_dtype.itemsize)
        self.optimized = self.masters

    def _kept_dtype(self, spec: TrainingSpec) -> DType:
        """Of this rank's share of the gradients. Stages 1 and 2 ask for ``grad_accum_dtype`` in names alone:
        get_all_grad_tensors hands the gradients out as they are."""
        return self.dtype

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
        held = [storage(size, bucket) for _ in range(self.buckets)]
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
        return storage(self.share * self.kept_dtype.itemsize, Label("gradients", "", "partition"), stream)

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
        flat = storage(master.numel * self.kept_dtype.itemsize, label)
        if self.kept_dtype is not float32:
            flat = storage(master.nbytes, label)
        if self.plan.stage < 3:
            self.gradients = None
        master.grad = Tensor(master.shape, float32, flat)
        optimizer.step()


class WholeStates(Spread):
    """Stage 0, where nothing is shared: weights in 16 bits have one flat fp32 copy, and their gradients are copied to
    fp32 one by one and then into one piece, before those in 16 bits go. Devices reduce gradients when a step has all of
    them, in pieces. (DeepSpeed 0.19, ``fp16/fused_optimizer.py``: FP16_Optimizer; ``engine.py``: _configure_optimizer,
    buffered_allreduce_fallback)"""

    def __init__(self, ranks: int, spec: TrainingSpec, system: System, updated: Sequence[Tensor]) -> None:
        super().__init__(system, updated)
        self.ranks = ranks
        self.trained = [parameter for parameter in updated if parameter.requires_grad]
        self.master: Tensor | None = None
        narrow = any(parameter.dtype.itemsize == 2 for parameter in self.trained)
        if narrow and spec.get("master_weights", True):
            saved, state.label = state.label, Label("optimizer", "", "master weights")
            self.master = Tensor((_elements(self.trained),), float32)
            state.label = saved
            self.master.requires_grad = True
            self.optimized = [self.master]

    def step(self, optimizer: Optimizer) -> None:
        if self.ranks > 1:
            for size in self._pieces():
                storage(size, Label("communication", "", "reduced gradients"))
        if self.master is None:
            super().step(optimizer)
            return
        saved, state.label = state.label, Label("gradients", "", "fp32 copies")
        copies = [Tensor(parameter.shape, float32) for parameter in self.trained]
        flat = storage(self.master.nbytes, Label("gradients", "", "fp32 copies"))
        state.label = saved
        del copies
        for parameter in self.trained:
            parameter.grad = None
        self.master.grad = Tensor(self.master.shape, float32, flat)
        optimizer.step()
        self.master.grad = None

    def _pieces(self) -> list[int]:
        """Bytes of what is reduced at once: a piece ends with the parameter that makes it larger than so many."""
        found, elements, size = [], 0, 0
        for parameter in self.trained:
            elements, size = elements + parameter.numel, size + parameter.nbytes
            if elements > REDUCED_AT_ONCE:
                found.append(size)
                elements = size = 0
        return [*found, size] if size else found


class ZeroParameters(ZeroGradients, UnitRun):
    """ZeRO 3 (``stage3.py``, ``partitioned_param_coordinator.py``): parameters are gathered too.

    DeepSpeed fetches module by module; here it is layer by layer, which with activation checkpointing is what
    happens in the backward pass. A layer whose next use is near is not let go of (``stage3_max_reuse_distance``).
    """

    rows = False

    def __init__(
        self, plan: Plan, spec: TrainingSpec, system: System, updated: Sequence[Tensor], every: Sequence[Tensor]
    ) -> None:
        self.persistence = int(stated(spec, "parallelism.persistence_elements", PERSISTENCE))
        self.prefetch = int(stated(spec, "parallelism.prefetch_bucket_elements", PREFETCH_BUCKET))
        self.live = int(stated(spec, "parallelism.live_parameter_elements", LIVE_PARAMETERS))
        self.reuse = int(stated(spec, "parallelism.reuse_distance_elements", REUSE_DISTANCE))
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
        self.secondary = self._secondary(spec, updated)
        self.bucket = storage(self.bucket_elements * self.dtype.itemsize, Label("communication", "", "reduce bucket"))
        for parameter in self.kept:
            shard = self.shards.of[id(parameter)]
            module = state.tape.labels[shard.storage.index].module
            label = Label("parameters", module, "persistent")
            parameter.storage.index = state.tape.allocate(parameter.nbytes, label)

    def weights_dtype(self) -> DType | None:
        return None  # DeepSpeed's weights have the dtype of computation already

    def _kept_dtype(self, spec: TrainingSpec) -> DType:
        """Of ``grad_partitions_flat_buffer`` (``grad_accum_dtype``)."""
        return DTYPES.get(spec.get("gradient_dtype") or "", self.dtype)

    def _secondary(self, spec: TrainingSpec, updated: Sequence[Tensor]) -> Storage | None:
        """ZeRO++'s second partition of the weights (``zero_hpz_partition_size``), over ranks that are near each other:
        made with whatever is let go of first, where the first one is, and let go of itself after the step
        (partition_parameters.py, ``_partition_param_sec``; stage3.py, ``invalidate_secondary_tensor``). All of it is
        there when the backward pass begins; here, all the time."""
        stated = int(spec.get("parallelism.secondary_shard") or 1)
        if stated <= 1:
            return None
        group = min(stated, self.plan.shard)  # of one rank, it is a copy
        size = sum(-(-stored_elements(x) // group) * x.dtype.itemsize for x in updated)
        if self.plan.offload_parameters:
            self.host_bytes += size
            return None
        return storage(size, Label("parameters", "", "secondary partition"))

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
        blocks = blocks_of(model)
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

    def prefetch_forward(self, unit: Unit) -> Unit | None:
        if unit.place >= 0:
            self._ahead(range(unit.place + 1, len(self.course)))
        return None

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
            scattered = state.tape.allocate(elements * self.dtype.itemsize, label, self.reduce_stream)
            if self.kept_dtype is not self.dtype:  # __avg_scatter_grads: what this rank has of it, widened
                own = -(-elements // self.plan.shard) * self.kept_dtype.itemsize
                state.tape.free(state.tape.allocate(own, label, self.reduce_stream))
            state.tape.free(scattered)
            for parameter in trained:
                parameter.grad = None

    def backward(self, loss: Tensor) -> None:
        state.bucket = self.bucket
        UnitRun.backward(self, loss)
        state.bucket = None
        self._forget()


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


def _elements(tensors: Sequence[Tensor]) -> int:
    """Of all together; one that stands for several (:func:`memlint.models.depth.as_deep`) is looked at once."""
    which = list(map(id, tensors))
    elements = {number: tensor.numel for number, tensor in dict(zip(which, tensors)).items()}
    return sum(map(elements.__getitem__, which))


def stated(spec: TrainingSpec, name: Name, default: int) -> Any:
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
