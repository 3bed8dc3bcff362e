"""Shape-only tensors. A tensor is a shape, strides, a dtype and a storage; a storage is an entry on the tape.

Storages are reference counted by Python itself, as eager PyTorch's are, so local variables, saved tensors and
in-place operations live exactly as long as they do in a real step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, wraps
from math import prod
from typing import TYPE_CHECKING, Any, TypeVar, cast

from memlint.meta.dims import bare
from memlint.meta.sizes import now
from memlint.meta.tape import Label, Tape
from memlint.named_tuple import NamedTuple

if TYPE_CHECKING:
    from memlint.meta.autograd import Node

Shape = tuple[int, ...]


class DType(NamedTuple):
    name: str
    itemsize: int
    is_floating: bool = True


float64 = DType("float64", 8)
float32 = DType("float32", 4)
bfloat16 = DType("bfloat16", 2)
float16 = DType("float16", 2)
int64 = DType("int64", 8, False)
int32 = DType("int32", 4, False)
uint8 = DType("uint8", 1, False)
int8 = DType("int8", 1, False)
bool_ = DType("bool", 1, False)

DTYPES = {d.name: d for d in (float64, float32, bfloat16, float16, int64, int32, uint8, int8, bool_)}
DTYPES.update({"fp32": float32, "bf16": bfloat16, "fp16": float16, "half": float16, "float": float32})


class State:
    """What the ops look at while they run: one recording at a time, in one thread."""

    __slots__ = (
        "adds_apart",
        "autocast",
        "bucket",
        "cast_cache",
        "compiled",
        "default_dtype",
        "frame",
        "fusing",
        "grad_enabled",
        "group_norm_in_two",
        "label",
        "offload",
        "sequence",
        "softmax_keeps_input",
        "tape",
        "transforms_tiles",
        "unpacked",
        "updated",
        "without_flash",
    )

    def __init__(self) -> None:
        self.tape: Tape = Tape()
        self.label = Label("activations", "")
        self.grad_enabled = True
        self.autocast: DType | None = None
        self.cast_cache: dict[int, tuple[Tensor, Tensor]] = {}
        self.default_dtype = float32
        self.sequence = 0
        self.adds_apart = False  # two gradients of one tensor make a third one: torch before 2.0 (pull request 88339)
        self.group_norm_in_two = False  # torch before 1.6 (pull request 28204)
        self.softmax_keeps_input = False  # torch before 1.11 (pull request 65242)
        # Convolutions of 3x3 in fp32 on a card without TF32: as products of transformed tiles.
        self.transforms_tiles = False
        # A card before compute capability 8, which FlashAttention does not run on, nor the memory-efficient kernel in
        # bfloat16 (native/transformers/cuda/sdp_utils.cpp: check_sm_version, less_than_sm80_mem_efficient_dtypes).
        self.without_flash = False
        self.frame: Any = None  # the checkpoint frame that is being recorded or recomputed
        # The node whose formula runs, where it has recomputed what it saved: nothing else holds that any more.
        self.unpacked: Any = None
        self.offload: Any = None  # what takes saved tensors to the host (memlint.meta.offload)
        # What a parameter is given to as soon as its gradient is there (a hook after accumulation).
        self.updated: Callable[[Tensor], None] | None = None
        self.fusing = False  # in a compiled function: results are not there until somebody needs them in memory
        self.compiled = False  # whether there was one in this recording
        self.bucket: Storage | None = None  # where gradients of leaves are moved to as soon as they are there


state = State()


@contextmanager
def recording(symbolic: bool = False) -> Iterator[Tape]:
    """Ops inside write a fresh tape. What dies after the block is not on it."""
    global state
    saved = {name: getattr(state, name) for name in State.__slots__}
    State.__init__(state)
    state.tape = tape = Tape(symbolic)
    try:
        yield tape
    finally:
        tape.events = list(tape.events)  # storages still alive write their free into the list left behind
        for name, value in saved.items():
            setattr(state, name, value)


@contextmanager
def component(name: str) -> Iterator[None]:
    """Storages made inside belong to this component (``logits``, ``ema``, ``helper_models``, ...)."""
    saved = state.label
    state.label = Label(name, saved.module)
    try:
        yield
    finally:
        state.label = saved


@contextmanager
def default_dtype(dtype: DType) -> Iterator[None]:
    saved = state.default_dtype
    state.default_dtype = dtype
    try:
        yield
    finally:
        state.default_dtype = saved


class Storage:
    """Bytes on the card. Its birth and its death are events on the tape."""

    # What the compiler knows of it (memlint.meta.compiled) is set where it compiles: what it was cast to, and whether
    # a kernel of its own reads something that is made of it.
    __slots__ = ("__weakref__", "events", "index", "lowered", "nbytes", "passed")
    lowered: Any
    passed: bool

    def __init__(self, nbytes: int, shape: Shape, itemsize: int) -> None:
        tape = state.tape
        self.index = index = len(tape.sizes)
        self.nbytes = nbytes
        self.events = events = tape.events
        if index >= tape.paid:
            tape.pay()
        tape.sizes.append(nbytes)
        tape.labels.append(state.label)
        events.append(index)
        if tape.shapes is not None:
            tape.shapes.append((shape, itemsize))

    def __del__(self) -> None:
        self.events.append(~self.index)


class Gathered(Storage):
    """A sharded parameter's whole contents, which come and go by command (:mod:`memlint.models.parallel`), whoever
    holds them. While they are away, ``index`` is that of this rank's shard."""

    __slots__ = ()

    def __init__(self, nbytes: int, index: int) -> None:
        self.nbytes = nbytes
        self.index = index
        self.events = []

    def __del__(self) -> None:
        """Its end is no event."""


class Deferred(Storage):
    """Of a result that a compiler fuses into the kernels that read it: in memory only where somebody asks for that.

    ``sources``: storages from which it can be made, in memory or not, which it keeps alive until then.
    """

    __slots__ = ("itemsize", "label", "shape", "sources")

    def __init__(self, nbytes: int, shape: Shape, itemsize: int) -> None:
        self.index = -1
        self.nbytes = nbytes
        self.shape, self.itemsize = shape, itemsize
        self.label = state.label
        self.events = []
        self.sources: tuple[Storage, ...] = ()

    def store(self) -> None:
        """From here on it is in memory."""
        if self.index < 0:
            saved, state.label = state.label, self.label
            Storage.__init__(self, self.nbytes, self.shape, self.itemsize)
            state.label = saved
            self.sources = ()

    def __del__(self) -> None:
        if self.index >= 0:
            self.events.append(~self.index)


def stored(x: Tensor) -> Tensor:
    """``x``, which is in memory from here on."""
    if type(x.storage) is Deferred:
        x.storage.store()
    return x


def origins(storages: Iterable[Storage]) -> tuple[Storage, ...]:
    """The storages themselves, where they are in memory; otherwise those that they are made from."""
    found: dict[int, Storage] = {}
    stack, seen = list(storages), set()
    while stack:
        storage = stack.pop()
        if id(storage) in seen:
            continue
        seen.add(id(storage))
        if type(storage) is Deferred and storage.index < 0:
            stack += storage.sources
        else:
            found[id(storage)] = storage
    return tuple(found.values())


class Block:
    """Storages that are born together and die together, such as an optimizer's states: one object for all."""

    __slots__ = ("count", "events", "first")

    def __init__(self, sizes: list[int], labels: list[Label], shapes: list[tuple[Shape, int]]) -> None:
        tape = state.tape
        self.first = first = len(tape.sizes)
        self.count = len(sizes)
        self.events = tape.events
        if first >= tape.paid:
            tape.pay()
        self.events = tape.events
        tape.sizes += sizes
        tape.labels += labels
        if tape.shapes is not None:
            tape.shapes += shapes
        tape.events.extend(range(first, first + self.count))

    def __del__(self) -> None:
        self.events.extend(range(~self.first, ~(self.first + self.count), -1))


def block_like(tensors: Sequence[Tensor], dtype: DType | None, labels: list[Label]) -> Block:
    """One storage per tensor, of its size in ``dtype`` (its own where None)."""
    shapes = []
    if dtype is None:
        sizes = [tensor.nbytes if tensor.is_view else tensor.storage.nbytes for tensor in tensors]
    else:
        sizes = [tensor.numel * dtype.itemsize for tensor in tensors]
    if state.tape.shapes is not None:
        shapes = [(tensor.shape, (dtype or tensor.dtype).itemsize) for tensor in tensors]
    return Block(sizes, labels, shapes)


def relabel(storage: Storage, label: Label) -> None:
    """Say after the fact whose memory this is (a gradient that a parameter keeps)."""
    state.tape.labels[storage.index] = label


Function = TypeVar("Function", bound=Callable[..., Any])


def _remembered(function: Function) -> Function:
    """With its latest results, but for sizes that are followed: looking these up would ask for their values."""
    kept = lru_cache(maxsize=4096)(function)

    @wraps(function)
    def result(*arguments: Any) -> Any:
        return kept(*arguments) if now.program is None else function(*arguments)

    return cast("Function", result)


@_remembered
def contiguous_strides(shape: Shape) -> Shape:
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step = step * max(bare(size), 1)
    return tuple(reversed(strides))


@_remembered
def is_contiguous(shape: Shape, strides: Shape) -> bool:
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides)):
        if size != 1:
            if stride != expected:
                return False
            expected = expected * bare(size)
    return True


def is_dense(shape: Shape, strides: Shape) -> bool:
    """Non-overlapping and dense: some permutation of the dimensions is contiguous."""
    expected = 1
    for stride, size in sorted((stride, bare(size)) for size, stride in zip(shape, strides) if size != 1):
        if stride != expected:
            return False
        expected *= size
    return True


@_remembered
def view_strides(shape: Shape, strides: Shape, new_shape: Shape) -> Shape | None:
    """Strides of a view with a new shape, or None where only a copy can have it (as torch decides it)."""
    if 0 in shape:
        return contiguous_strides(new_shape)
    # Merge the old dimensions into runs that are contiguous in memory, then cut each run anew.
    result = [0] * len(new_shape)
    view_d = len(new_shape) - 1
    base = strides[-1] if strides else 1
    run = 1
    view_run = 1
    for d in range(len(shape) - 1, -1, -1):
        run *= bare(shape[d])
        if d == 0 or (shape[d - 1] != 1 and strides[d - 1] != run * base):
            while view_d >= 0 and (view_run < run or new_shape[view_d] == 1):
                result[view_d] = view_run * base
                view_run *= bare(new_shape[view_d])
                view_d -= 1
            if view_run != run:
                return None
            if d > 0:
                base = strides[d - 1]
                run = 1
                view_run = 1
    if not shape:
        return (1,) * len(new_shape)
    return tuple(result) if view_d < 0 else None


class Tensor:
    """``strides`` is None when contiguous. ``node`` is the autograd node that made it; leaves have none. A view keeps
    the tensor that it is a view of, so its storage is never its own alone."""

    __slots__ = (
        "__weakref__",
        "dtype",
        "grad",
        "is_view",
        "node",
        "output_nr",
        "requires_grad",
        "shape",
        "storage",
        "strides",
    )

    def __init__(
        self, shape: Shape, dtype: DType, storage: Storage | None = None, strides: Shape | None = None
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.strides = strides
        if storage is None:
            kind = Deferred if state.fusing else Storage
            self.storage: Storage = kind(bare(prod(shape)) * dtype.itemsize, shape, dtype.itemsize)
        else:
            self.storage = storage
        self.is_view = storage is not None
        self.requires_grad = False
        self.node: Node | None = None
        self.output_nr = 0
        self.grad: Tensor | None = None

    def __repr__(self) -> str:
        return f"Tensor({'x'.join(str(int(d)) for d in self.shape)} {self.dtype.name})"

    # -- facts

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> int:
        return bare(prod(self.shape))

    @property
    def nbytes(self) -> int:
        return bare(prod(self.shape)) * self.dtype.itemsize

    @property
    def is_contiguous(self) -> bool:
        return self.strides is None

    def full_strides(self) -> Shape:
        return self.strides if self.strides is not None else contiguous_strides(self.shape)

    def alias(self, shape: Shape, strides: Shape | None) -> Tensor:
        """Another tensor over the same storage, without history."""
        if strides is not None and is_contiguous(shape, strides):
            strides = None
        return Tensor(shape, self.dtype, self.storage, strides)

    def detach(self) -> Tensor:
        return Tensor(self.shape, self.dtype, self.storage, self.strides)

    def requires_grad_(self, value: bool = True) -> Tensor:
        self.requires_grad = value
        return self

    # -- ops (memlint.meta.functional holds them; imported on first use because it imports this module)

    def __getattr__(self, name: str) -> Any:
        from memlint.meta import functional

        operation = functional.METHODS.get(name)
        if operation is None:
            raise AttributeError(f"meta tensors have no {name!r}")
        # Found once, then an ordinary method.
        setattr(Tensor, name, operation)
        return operation.__get__(self, Tensor)

    def __add__(self, other: Any) -> Tensor:
        return self.add(other)  # type: ignore[no-any-return]

    __radd__ = __add__

    def __sub__(self, other: Any) -> Tensor:
        return self.sub(other)  # type: ignore[no-any-return]

    def __rsub__(self, other: Any) -> Tensor:
        return self.rsub(other)  # type: ignore[no-any-return]

    def __mul__(self, other: Any) -> Tensor:
        return self.mul(other)  # type: ignore[no-any-return]

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Tensor:
        return self.div(other)  # type: ignore[no-any-return]

    def __neg__(self) -> Tensor:
        return self.neg()  # type: ignore[no-any-return]

    def __pow__(self, exponent: float) -> Tensor:
        return self.pow(exponent)  # type: ignore[no-any-return]

    def __matmul__(self, other: Tensor) -> Tensor:
        return self.matmul(other)  # type: ignore[no-any-return]

    def __getitem__(self, index: Any) -> Tensor:
        return self.select_index(index)  # type: ignore[no-any-return]


def empty(shape: Sequence[int], dtype: DType | None = None) -> Tensor:
    """A fresh contiguous tensor: one allocation."""
    return Tensor(tuple(shape), dtype or state.default_dtype)


def empty_like(x: Tensor, dtype: DType | None = None) -> Tensor:
    """A fresh tensor with x's memory layout where x is dense; contiguous-in-order otherwise (torch's rule)."""
    out = Tensor(x.shape, dtype or x.dtype)
    if x.strides is not None:
        out.strides = preserved_strides(x.shape, x.strides)
    return out


def preserved_strides(shape: Shape, strides: Shape) -> Shape | None:
    """Strides of a fresh tensor made like one that has these: kept where it is dense, else packed in their order."""
    if is_dense(shape, strides):
        return None if is_contiguous(shape, strides) else strides
    return iterated_strides(shape, ((shape, strides),))


@_remembered
def iterated_strides(shape: Shape, operands: tuple[tuple[Shape, Shape | None], ...]) -> Shape | None:
    """Strides of an elementwise kernel's result, from its operands' shapes and strides; None for contiguous.

    The dimension with the smallest step comes last; the first operand in which two dimensions both have a step decides
    (``TensorIterator::reorder_dimensions``, and ``infer_dense_strides`` for a single operand).
    """
    ndim = len(shape)
    steps = []
    for own, strides in operands:
        full = contiguous_strides(own) if strides is None else strides
        offset = ndim - len(own)
        steps.append(
            (0,) * offset
            + tuple(0 if n == 1 and shape[offset + d] != 1 else step for d, (n, step) in enumerate(zip(own, full)))
        )
    order = list(range(ndim - 1, -1, -1))  # fastest first

    def slower(first: int, second: int) -> int:
        for step in steps:
            if step[first] == 0 or step[second] == 0:
                continue
            if step[first] != step[second]:
                return 1 if step[first] > step[second] else -1
            if shape[first] > shape[second]:
                return 1
        return 0

    for start in range(1, ndim):
        place = start
        for before in range(start - 1, -1, -1):
            comparison = slower(order[before], order[place])
            if comparison > 0:
                order[before], order[place] = order[place], order[before]
                place = before
            elif comparison < 0:
                break
    packed = [0] * ndim
    step = 1
    for d in order:
        packed[d] = step
        step *= max(bare(shape[d]), 1)
    result = tuple(packed)
    return None if is_contiguous(shape, result) else result
