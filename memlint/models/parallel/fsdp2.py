"""FSDP2 of torch 2.13, ``torch/distributed/fsdp/_fully_shard``."""

from __future__ import annotations

from collections.abc import Sequence

from memlint.facts.spec import TrainingSpec
from memlint.meta.tape import Label
from memlint.meta.tensor import Tensor, state
from memlint.models.parallel.plan import Plan
from memlint.models.parallel.run import GATHERS, REDUCES, REPLICAS, storage
from memlint.models.parallel.units import FORWARD, Unit, UnitRun, reduced_label
from memlint.models.system import System


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
        reduced = storage(kept * dtype.itemsize, label if same else reduced_label(unit), REDUCES)
        if not same:
            narrow, reduced = reduced, storage(kept * stored.itemsize, label, REPLICAS if hybrid else REDUCES)
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
                kept = storage(parameter.numel * dtype.itemsize, Label("gradients", unit.path, "unsharded"))
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
