"""FSDP1 of torch 2.13, ``torch/distributed/fsdp``."""

from __future__ import annotations

from collections.abc import Sequence

from memlint.facts.spec import TrainingSpec
from memlint.meta.tape import Label
from memlint.meta.tensor import Storage, Tensor, state
from memlint.models.parallel.plan import Plan
from memlint.models.parallel.run import CASTS, GATHERS, REDUCES, REPLICAS, storage
from memlint.models.parallel.units import Unit, UnitRun, reduced_label
from memlint.models.system import System


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
        self.waiting: dict[int, Storage] = {}  # unit -> what its flat gradient has accumulated, unsharded
        # Frozen weights beside what trains are units of their own, but where a flat parameter has both.
        mixed = bool(spec.get("parallelism.mixed_units", False))
        self.keeps_frozen = not mixed and spec.does("torch.fsdp_keeps_frozen_units")
        state.tape.states_late = True
        super().__init__(plan, spec, system, updated, every)
        if mixed:
            self._train_whole_units()
        if spec.get("parallelism.as_stored", False):
            # What a module computes with are views of the flat parameter, whose casts autocast never keeps.
            for parameter in every:
                parameter.is_view = True
        self.forward_order = [unit for unit in self.units if not unit.root and unit.parameters]

    def _train_whole_units(self) -> None:
        """Where a part of a flat parameter trains, all of it asks for gradients: frozen weights are views of it, and
        autograd computes theirs as well (``_use_unsharded_views``; the warning of ``_validate_frozen_params``). No
        optimizer updates them."""
        self.optimized = [shard for shard in self.optimized if shard.requires_grad]
        for unit in self.units:
            if any(parameter.requires_grad for parameter in unit.parameters):
                for tensor in (*unit.parameters, *unit.shards):
                    tensor.requires_grad = tensor.dtype.is_floating

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

    @property
    def finishing(self) -> Sequence[Unit]:
        # Autograd hands gradients to the views that the root made first when all others have theirs.
        return (*self.units[:-1], self.root)

    def prefetch_forward(self, unit: Unit) -> Unit | None:
        # A unit is gathered ahead once a pass (FlatParamHandle._needs_pre_forward_unshard): not where it is recomputed.
        if not self.forward_prefetch or self.in_backward or unit not in self.forward_order:
            return None
        place = self.forward_order.index(unit) + 1
        if place == len(self.forward_order):
            return None
        ahead = self.forward_order[place]
        ahead.unshard()
        return ahead

    def prefetch_backward(self, unit: Unit) -> None:
        if self.backward_prefetch.endswith("PRE"):
            super().prefetch_backward(unit)

    def finish_backward(self) -> None:
        if self.keeps_frozen:  # _catch_all_reshard
            for unit in self.units:
                self.free(unit)

    def reshard(self, unit: Unit) -> None:
        """Of a unit that is through backward: no hook of it runs where its weights are frozen."""
        if not (self.keeps_frozen and any(not parameter.requires_grad for parameter in unit.parameters)):
            self.free(unit)

    def reduce(self, unit: Unit) -> None:
        padded = self.shards.padded
        trained = [shard for p, shard in zip(unit.parameters, unit.shards) if p.grad is not None]
        elements = sum(padded[id(parameter)] for parameter in unit.parameters if parameter.grad is not None)
        gradients = unit.gradients()
        compute = gradients[0].dtype if gradients else None
        if compute is not None:
            # Autograd makes the flat parameter's gradient of those of its views, and adds it to the one that waits.
            flat = storage(elements * compute.itemsize, Label("gradients", unit.path, "unsharded"))
            gradients.clear()
            flat = self.waiting.pop(id(unit), flat)
        if not self.reduces:
            if compute is not None:
                self.waiting[id(unit)] = flat
            if self.plan.reshard:
                self.reshard(unit)
            return
        self.reshard(unit)
        if compute is None:
            return
        if self.backward_prefetch.endswith("POST"):
            super().prefetch_backward(unit)
        # From here on _post_backward_stream, and _all_reduce_stream after the second collective of hybrid sharding.
        dtype = self.plan.reduce or compute
        computed = flat  # _post_backward_hook names what autograd has computed to its end
        if dtype is not compute:
            flat = storage(elements * dtype.itemsize, Label("communication", unit.path, "reduce_scatter"), REDUCES)
        stored = trained[0].dtype
        label = Label("gradients", unit.path, "shard")
        size = sum(shard.numel for shard in trained)
        reduced = storage(size * dtype.itemsize, label if dtype is stored else reduced_label(unit), REDUCES)
        if dtype is not stored:
            last = REPLICAS if self.plan.ranks > self.plan.shard else REDUCES
            reduced = storage(size * stored.itemsize, label, last)
        del flat, computed
        if self.plan.offload_parameters:
            return
        for shard in trained:
            if shard.grad is None:
                shard.grad = Tensor(shard.shape, stored, reduced)
