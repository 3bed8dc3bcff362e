"""DDP and FSDP2 on one machine without a card: a process group that only pretends, around PyTorch's own wrappers.

The wrappers are the real ones; collectives do nothing, and one rank is seen: rank 0, whose shards are the largest
(FSDP2 pads the first dimension up to a multiple of the ranks, and the last ranks get the padding). What collectives
need on the card is booked because the wrappers allocate it: DDP's buckets, FSDP2's gathered weights, the flat buffers
that it gathers into and scatters from.

FSDP2 works in streams of its own, on the host in those of ``torch.cpu``, which do nothing but are there: the tracker
sees in which one a tensor is made. PyTorch's counters do not ask: a tensor counts as allocated until Python lets go of
it, so allocated bytes are those of a card. For reserved bytes the streams matter, since the caching allocator keeps the
blocks of each apart. NCCL's own buffers are outside of the allocator.

The facts are those of ``docs/facts.md``, Parallelism.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._guards import active_fake_mode
from torch.utils._python_dispatch import TorchDispatchMode

from memlint.measure.child import MeasureError
from memlint.measure.tracker import StorageTracker
from memlint.meta.tape import Label
from memlint.named_tuple import NamedTuple

# torch/nn/parallel/distributed.py, _DEFAULT_BUCKET_CAP_MB
BUCKET_MIB = 25
MIB = 1 << 20

OTHER_DEGREES = {
    "parallelism.tensor": "splits layers",
    "parallelism.pipeline": "splits the model",
    "parallelism.context": "splits sequences",
    "parallelism.expert": "splits the experts",
}


class Sharding(NamedTuple):
    """How a run is spread over devices.

    strategy  ddp or fsdp2
    ranks     data-parallel degree
    shard     ranks that hold the states between them; fewer than ``ranks`` for hybrid sharding
    wrap      class names of the units, none for one unit; None where the config leaves it to the model
    """

    strategy: str
    ranks: int
    shard: int
    bucket_mib: float
    gradient_as_bucket_view: bool
    wrap: tuple[str, ...] | None
    reshard_after_forward: bool
    parameter_dtype: torch.dtype | None
    reduce_dtype: torch.dtype | None


class Parallel(NamedTuple):
    """A model that has been spread.

    loss             (model, batch) -> loss, through the wrapper
    notes            what the report says about it
    label            after a backward pass: whose memory gradients and buffers are
    after_first_step what PyTorch does between the first step and the second
    """

    loss: Callable[[Any, Any], Any]
    notes: Callable[[], Iterator[tuple[str, str, str]]]
    label: Callable[[], None]
    after_first_step: Callable[[], None]


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor; the tensor itself where it is not distributed."""
    part: Tensor = getattr(tensor, "_local_tensor", tensor)
    return part


# -- the facts


def strategy_of(facts: dict[str, Any]) -> str:
    return str(facts.get("parallelism.strategy") or "none").lower()


def is_spread(facts: dict[str, Any]) -> bool:
    return strategy_of(facts) not in ("none", "no")


def sharding_of(request: dict[str, Any]) -> Sharding | None:
    """How the facts spread a run; None for one process. Raises MeasureError for what cannot be shown."""
    facts, keys = request["facts"], request["keys"]
    strategy = strategy_of(facts)
    if not is_spread(facts):
        return None

    def stated(name: str) -> str:
        return f"{keys.get(name, name)} = {facts[name]}"

    if strategy not in ("ddp", "fsdp2"):
        raise MeasureError(
            f"{stated('parallelism.strategy')}: a trace follows ddp and fsdp2; fsdp1 and ZeRO shard alike but have "
            "buffers of their own"
        )
    for name, what in OTHER_DEGREES.items():
        if facts.get(name) not in (None, 1):
            raise MeasureError(f"{stated(name)} {what} over several processes, which a trace does not follow")
    if facts.get("parallelism.cpu_offload"):
        raise MeasureError(
            f"{stated('parallelism.cpu_offload')} moves states to the host, which a trace does not follow"
        )
    if not torch.distributed.is_available():
        raise MeasureError(f"{stated('parallelism.strategy')} needs torch.distributed, which this PyTorch lacks")

    devices = "device_count" if facts.get("device_count") else "world_size"
    counts = {name: _count(facts, keys, name) for name in (devices, "parallelism.data", "parallelism.shard")}
    ranks = counts["parallelism.data"] or counts[devices] or 1
    if counts[devices] and ranks != counts[devices]:
        raise MeasureError(
            f"{stated('parallelism.data')} does not fit {stated(devices)}: without other kinds of parallelism both are "
            "the number of ranks"
        )
    shard = counts["parallelism.shard"] or ranks
    if ranks % shard:
        raise MeasureError(f"{stated('parallelism.shard')} does not divide the {ranks} ranks")
    compute, stored = facts.get("compute_dtype"), facts.get("parameter_dtype") or "float32"
    wrap = facts.get("parallelism.wrap")
    return Sharding(
        strategy=strategy,
        ranks=ranks,
        shard=shard,
        bucket_mib=float(facts.get("parallelism.bucket_mb") or BUCKET_MIB),
        gradient_as_bucket_view=bool(facts.get("parallelism.gradient_as_bucket_view")),
        wrap=None if wrap is None else () if wrap == "none" else (wrap,) if isinstance(wrap, str) else tuple(wrap),
        reshard_after_forward=bool(facts.get("parallelism.reshard_after_forward", True)),
        parameter_dtype=_dtype(compute) if compute and compute != stored else None,
        reduce_dtype=_dtype(facts.get("parallelism.reduce_dtype")),
    )


def _count(facts: dict[str, Any], keys: dict[str, str], name: str) -> int:
    value = facts.get(name)
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise MeasureError(f"{keys.get(name, name)} = {value}: a number of devices is needed")
    return value


def _dtype(name: Any) -> torch.dtype | None:
    dtype = getattr(torch, name, None) if isinstance(name, str) else None
    if name is not None and not isinstance(dtype, torch.dtype):
        raise MeasureError(f"{name} is not a dtype of PyTorch")
    return dtype


def assumptions(
    sharding: Sharding | None, parallel: Parallel | None, accumulation: int
) -> Iterator[tuple[str, str, str]]:
    """What the report says about the way the run was spread."""
    if sharding is None or parallel is None:
        return
    yield "parallelism.strategy", sharding.strategy, f"rank 0 of {sharding.ranks}; NCCL's own buffers are not in it"
    if accumulation > 1:
        yield "gradient synchronisation", "every micro batch", "PyTorch's default, without no_sync()"
    yield from parallel.notes()


# -- the process group


@contextmanager
def process_group(sharding: Sharding | None) -> Iterator[Any]:
    """A fake group of the run's ranks while the block lasts, and the mesh over it. Enter it before any mode: the mesh
    computes with real numbers."""
    if sharding is None:
        yield None
        return
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise MeasureError("a process group exists already (torch.distributed): the trace makes its own")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=sharding.ranks)
    try:
        shape = (sharding.ranks,)
        if sharding.shard != sharding.ranks:
            shape = sharding.ranks // sharding.shard, sharding.shard  # type: ignore[assignment]
        names = ("replicate", "shard")[-len(shape) :]
        yield init_device_mesh("cpu", shape, mesh_dim_names=names)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def spread(sharding: Sharding, mesh: Any, model: nn.Module, work_loss: Any, tracker: StorageTracker) -> Parallel:
    """Wrap a model. Its parameters are this rank's from now on."""
    if sharding.strategy == "ddp":
        return _ddp(sharding, model, work_loss, tracker)
    return _fsdp2(sharding, mesh, model, work_loss, tracker)


# -- DDP


class Step(nn.Module):  # type: ignore[misc]
    """The model with its loss as one module: whichever of the model's methods the loss calls, DDP sees it."""

    def __init__(self, model: nn.Module, loss: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.model = model
        self._loss = loss

    def forward(self, batch: Any) -> Any:
        return self._loss(self.model, batch)


class _Reducer:
    """DDP's reducer without its own way of rebuilding buckets, which sends numbers to the other ranks."""

    def __init__(self, reducer: Any) -> None:
        self._reducer = reducer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reducer, name)

    def _rebuild_buckets(self) -> bool:
        return False


def _ddp(sharding: Sharding, model: nn.Module, loss: Callable[[Any, Any], Any], tracker: StorageTracker) -> Parallel:
    """The first step runs without DDP and shows in which order gradients come, as DDP's own first step does; its
    buckets are those that DDP rebuilds before its second one (torch/csrc/distributed/c10d/reducer.cpp)."""
    from torch.nn.parallel import DistributedDataParallel

    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    ready: dict[int, None] = {}
    as_views = sharding.gradient_as_bucket_view
    label = Label("gradients" if as_views else "communication", "", "bucket")
    buckets: dict[int, Tensor] = {}
    wrapped: list[Any] = []
    unused: list[Tensor] = []

    def came(number: int) -> Callable[[Tensor], None]:
        return lambda _: ready.setdefault(number, None)

    watching = [parameter.register_post_accumulate_grad_hook(came(n)) for n, parameter in enumerate(trained)]

    def reduced(bucket: Any) -> Any:
        buckets[bucket.index()] = bucket.buffer()
        future: Any = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    def wrap() -> None:
        for handle in watching:
            handle.remove()
        step = Step(model, loss)
        # Parameters without a gradient have their place in the buckets, but DDP would wait for them.
        idle = [parameter for number, parameter in enumerate(trained) if number not in ready]
        unused.extend(torch.empty_like(parameter, requires_grad=False) for parameter in idle)
        for tensor in unused:
            tracker.label(tensor, label)
        names = [name for name, parameter in step.named_parameters() if any(parameter is one for one in idle)]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(step, names)
        with _bucketed_in_order([trained[number] for number in ready], sharding.bucket_mib):
            ddp = DistributedDataParallel(
                step,
                bucket_cap_mb=sharding.bucket_mib,
                gradient_as_bucket_view=as_views,
                init_sync=False,  # the first broadcast compares values
            )
        ddp.register_comm_hook(None, lambda state, bucket: reduced(bucket))
        ddp.reducer = _Reducer(ddp.reducer)
        wrapped.append(ddp)

    def run(_: nn.Module, batch: Any) -> Any:
        return wrapped[0](batch) if wrapped else loss(model, batch)

    def label_buckets() -> None:
        for buffer in buckets.values():
            tracker.label(buffer, label)
        buckets.clear()

    def notes() -> Iterator[tuple[str, str, str]]:
        if unused:
            yield "find_unused_parameters", "true", f"{len(unused)} parameters get no gradient; without it DDP stops"

    return Parallel(run, notes, label_buckets, wrap)


@contextmanager
def _bucketed_in_order(order: list[Tensor], bucket_mib: float) -> Iterator[None]:
    import torch.distributed as dist

    plain = dist._compute_bucket_assignment_by_size
    limits = [dist._DEFAULT_FIRST_BUCKET_BYTES, int(bucket_mib * MIB)]

    def assigned(tensors: list[Tensor], _: list[int], sparse: list[bool]) -> Any:
        place = {id(tensor): number for number, tensor in enumerate(tensors)}
        numbers = [place[id(tensor)] for tensor in order]
        found, sizes = plain([tensors[n] for n in numbers], limits, [sparse[n] for n in numbers], numbers)
        return list(reversed(found)), list(reversed(sizes))  # DDP turns them round

    dist._compute_bucket_assignment_by_size = assigned
    try:
        yield
    finally:
        dist._compute_bucket_assignment_by_size = plain


# -- FSDP2


def units_of(model: nn.Module, wrap: tuple[str, ...] | None) -> list[tuple[str, nn.Module]]:
    """The modules below the root that are gathered one at a time, with their paths, inner ones first.

    Those of the named classes; where no class is named, those that the model says are never split
    (``_no_split_modules`` of transformers), else the members of its lists of equal blocks. Raises MeasureError for a
    class that the model does not have.
    """
    names = wrap if wrap is not None else tuple(sorted(getattr(model, "_no_split_modules", None) or ()))
    paths = {module: path for path, module in model.named_modules()}
    if names:
        found = [module for module in paths if type(module).__name__ in names and module is not model]
        missing = set(names) - {type(module).__name__ for module in paths}
        if missing and (wrap is not None or not found):
            repeated = sorted({type(m).__name__ for m in paths if any(True for _ in m.parameters())})
            raise MeasureError(
                f"no module of class {', '.join(sorted(missing))} to shard by (parallelism.wrap): the model has "
                + ", ".join(repeated)
            )
    elif wrap is None:
        found = [
            block
            for module in paths
            if isinstance(module, (nn.ModuleList, nn.Sequential))
            and len(module) > 1
            and len({type(block) for block in module}) == 1
            and module is not model
            for block in module
        ]
    else:
        found = []
    held = [module for module in dict.fromkeys(found) if any(True for _ in module.parameters())]
    return [(paths[module], module) for module in sorted(held, key=lambda m: -paths[m].count("."))]


def _fsdp2(
    sharding: Sharding, mesh: Any, model: nn.Module, loss: Callable[[Any, Any], Any], tracker: StorageTracker
) -> Parallel:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=sharding.parameter_dtype, reduce_dtype=sharding.reduce_dtype)
    chosen = units_of(model, sharding.wrap)
    counts: dict[str, int] = {}
    for _, module in reversed(chosen):
        counts[type(module).__name__] = counts.get(type(module).__name__, 0) + 1
    labels = {
        id(parameter): label for parameter in model.parameters() if (label := tracker.label_of(parameter)) is not None
    }
    owners: list[tuple[nn.Module, str, str, Label | None]] = []
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            owners.append((module, path, name, labels.get(id(parameter))))
    for _, module in chosen:
        fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=sharding.reshard_after_forward)
    # The root's own choice is to keep what backward needs first; one unit in all is still what the config says.
    fully_shard(
        model, mesh=mesh, mp_policy=policy, reshard_after_forward=None if sharding.reshard_after_forward else False
    )
    for module, path, name, label in owners:
        tracker.label(local(getattr(module, name)), label or Label("parameters", path, name))
    units = [path for path, _ in chosen]

    def label_gradients() -> None:
        """One flat storage holds the gradients of a unit."""
        for module, path, name, _ in owners:
            gradient = getattr(module, name).grad
            if gradient is not None:
                inside = [unit for unit in units if f"{path}.".startswith(f"{unit}.")]
                tracker.label(local(gradient), Label("gradients", max(inside, key=len, default=""), "shard"))

    def notes() -> Iterator[tuple[str, str, str]]:
        found = ", ".join(f"{count} x {name}" for name, count in counts.items()) or "the whole model at once"
        yield "parallelism.wrap", found, "the units that are gathered one at a time"
        yield (
            "reserved memory",
            "after two steps",
            "FSDP2's streams keep blocks of their own; optimizer states get what the first step left",
        )

    return Parallel(loss, notes, label_gradients, lambda: None)


class Collectives(TorchDispatchMode):  # type: ignore[misc]
    """Above everything else in a run that is spread: lets distributed tensors take themselves apart, keeps what they
    only compute shapes with off the books, and labels what collectives need."""

    def __init__(self, tracker: StorageTracker) -> None:
        super().__init__()
        from torch.distributed.tensor import DTensor

        self._tracker = tracker
        self._distributed = DTensor
        self._fake_mode: Any = None

    def __enter__(self) -> Collectives:
        self._fake_mode = active_fake_mode()
        super().__enter__()
        return self

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(issubclass(kind, self._distributed) for kind in types):
            return NotImplemented
        kwargs = kwargs or {}
        if active_fake_mode() is not self._fake_mode:
            with self._tracker.paused():
                return func(*args, **kwargs)
        result = func(*args, **kwargs)
        if func.namespace in ("fsdp", "c10d"):
            self._label(func._opname, args, kwargs)
        return result

    def _label(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py defines them
        if name == "all_gather_copy_in":
            self._mark(args[1], "all_gather")
            for shard in args[0]:
                self._mark(shard, "cast", of="activations")  # else it is the parameter itself
        elif name == "split_with_sizes_copy":
            for gathered in kwargs["out"]:
                self._mark(gathered, "unsharded")
        elif name == "chunk_cat":
            self._mark(kwargs["out"] if "out" in kwargs else args[3], "reduce_scatter")
            for gradient in args[0]:
                self._mark(gradient, "unsharded", "gradients")
        elif name == "_reduce_scatter_base_":
            self._mark(args[0], "reduced")

    def _mark(self, tensor: Tensor, name: str, component: str = "communication", of: str = "") -> None:
        old = self._tracker.label_of(tensor)
        if old is not None and (not of or old.component == of):
            self._tracker.label(tensor, Label(component, old.module, name))


@contextmanager
def _watching_resizes(tracker: StorageTracker) -> Iterator[None]:
    """FSDP2 frees what it gathered by resizing its storage to nothing, and allocates it again the same way."""
    plain = torch.UntypedStorage.resize_
    labels: dict[int, Label] = {}

    def resize(storage: Any, size: int) -> Any:
        label = tracker.label_of_storage(storage)
        if label is not None:
            labels[storage._cdata] = label
        result = plain(storage, size)
        tracker.book_storage(storage, labels.pop(storage._cdata, None) if size else None)
        return result

    torch.UntypedStorage.resize_ = resize
    try:
        yield
    finally:
        torch.UntypedStorage.resize_ = plain


@contextmanager
def watching(sharding: Sharding | None, tracker: StorageTracker) -> Iterator[None]:
    """Around everything that a spread run does, inside the other modes."""
    if sharding is None:
        yield
        return
    with _watching_resizes(tracker), Collectives(tracker):
        yield
