"""Models that are split over devices: one rank's part under tensor, sequence, context, pipeline and expert
parallelism.

Where ranks differ, the fullest is meant: :func:`memlint.models.step.record_step` records each candidate and keeps the
one with the highest peak. Sizes that decide are divided before the model is built (:func:`divide`); what collectives
need besides is put around its modules afterwards (:func:`split`). All tensors' shapes: B rows, S tokens, W width.

Sources: Megatron-LM (column and row parallel layers, vocabulary parallel embedding and loss, sequence parallelism:
arXiv 2205.05198; 1F1B and interleaved schedules: arXiv 2104.04473), torch 2.13 ``torch/distributed/tensor/parallel``
and ``torch/distributed/tensor/experimental/_context_parallel``, DeepSpeed-Ulysses (arXiv 2309.14509).
"""

from __future__ import annotations

from typing import Any, TypeVar

from memlint.dialects.spec import TrainingSpec
from memlint.meta import autograd
from memlint.meta.nn import Module
from memlint.meta.tape import Label
from memlint.meta.tensor import Storage, Tensor, empty, float32, int64, state
from memlint.models import UnknownModel
from memlint.models.system import System

FIRST, LAST = "first", "last"
SIZES = ("tensor", "pipeline", "context", "ulysses", "expert")
Sizes = TypeVar("Sizes", bound=Any)


def degree(spec: TrainingSpec, kind: str) -> int:
    """How many devices share what the kind of parallelism splits."""
    return int(spec.get("parallelism." + kind) or 1)


def is_split(spec: TrainingSpec) -> bool:
    return any(degree(spec, kind) > 1 for kind in SIZES)


def whole(spec: TrainingSpec) -> TrainingSpec:
    """The run on one device."""
    return spec.with_facts(**{"parallelism." + kind: 1 for kind in SIZES})


def candidates(spec: TrainingSpec) -> tuple[str, ...]:
    """Ranks of which one is the fullest: the stage with the embedding, which has most micro-batches in flight, or the
    one with the head."""
    return (FIRST, LAST) if degree(spec, "pipeline") > 1 else ("",)


# -- before the model is built


def divide(spec: TrainingSpec, sizes: Sizes) -> Sizes:
    """The sizes of one rank's part of a language model (``memlint.models.language.hyperparameters``).

    Raises UnknownModel where a degree does not divide what it splits.
    """
    tensor, stages, experts = degree(spec, "tensor"), degree(spec, "pipeline"), degree(spec, "expert")
    if tensor > 1:
        sizes = sizes._replace(
            heads=_share(sizes.heads, tensor, "attention heads"),
            key_value_heads=max(1, sizes.key_value_heads // tensor),
            intermediate=_share(sizes.intermediate, tensor, "rows of the perceptron"),
            vocabulary=-(-sizes.vocabulary // tensor),
        )
        if sizes.experts is not None and experts == 1:
            width = _share(sizes.experts.intermediate, tensor, "rows of an expert")
            sizes = sizes._replace(experts=sizes.experts._replace(intermediate=width))
    if experts > 1:
        if sizes.experts is None:
            raise UnknownModel("parallelism.expert splits experts, and the model has none")
        own = _share(sizes.experts.number, experts, "experts")
        sizes = sizes._replace(experts=sizes.experts._replace(number=own))
    if stages > 1:
        if stages > sizes.layers:
            raise UnknownModel(f"{sizes.layers} layers have no {stages} stages")
        layers = -(-sizes.layers // stages)
        sizes = sizes._replace(layers=layers, windows=sizes.windows[:layers])
    return sizes


def _share(total: int, ranks: int, what: str) -> int:
    if total % ranks:
        raise UnknownModel(f"{ranks} devices do not divide {total} {what}")
    return total // ranks


def shorten(spec: TrainingSpec) -> TrainingSpec:
    """With the tokens of one rank, where sequences are shared."""
    ranks = degree(spec, "context") * degree(spec, "ulysses")
    changed = {}
    for name in ("sequence_length", "evaluation_sequence_length"):
        length = spec.get(name)
        if ranks > 1 and length is not None:
            changed[name] = -(-length // ranks)
    return spec.with_facts(**changed) if changed else spec


def in_flight(spec: TrainingSpec, stage: str) -> int:
    """Micro-batches whose activations a stage keeps at once.

    1F1B: as many as there are stages from it to the last. Interleaved: the first stage warms up with
    ``2 (p - 1) + (v - 1) p`` pieces of ``1 / v`` of its layers, and adds one (arXiv 2104.04473, section 2.2).
    """
    stages = degree(spec, "pipeline")
    if stages == 1:
        return 1
    schedule = str(spec.get("parallelism.schedule") or "1f1b").lower()
    pieces = int(spec.get("parallelism.virtual_stages") or 1)
    total = spec.get("gradient_accumulation_steps", 1)
    if schedule == "gpipe":
        return max(int(total), 1)
    if "interleaved" in schedule and pieces > 1:
        warm = (2 * (stages - 1) if stage == FIRST else 0) + (pieces - 1) * stages + 1
        most = -(-warm // pieces)
    else:
        most = stages if stage == FIRST else 1
    return min(most, int(total)) if total > 1 else most


# -- after it is built


def split(spec: TrainingSpec, system: System, stage: str) -> System:
    """Put around the modules what collectives need; cut out one pipeline stage."""
    model: Any = system.model
    if not is_split(spec):
        return system
    if not hasattr(model, "hidden") or not hasattr(model, "layers"):
        kind = next(kind for kind in SIZES if degree(spec, kind) > 1)
        raise UnknownModel(f"how parallelism.{kind} splits this model is not known")
    tensor, context, ulysses = (degree(spec, kind) for kind in ("tensor", "context", "ulysses"))
    for layer in model.layers:
        attention = layer.self_attn
        if context > 1 and hasattr(attention, "scores"):
            attention.scores = RingScores(attention.scores, context)
        if ulysses > 1 and hasattr(attention, "scores"):
            attention.scores = HeadScores(attention.scores, ulysses)
        if degree(spec, "expert") > 1 and hasattr(layer.mlp, "experts"):
            _dispatch(layer.mlp.experts)
    if tensor > 1 and spec.get("parallelism.sequence", False) and not getattr(model, "splits_tokens", False):
        if model.kind == "eager":
            raise UnknownModel("sequence parallelism beside eager attention is not known")
        for layer in model.layers:
            layer.self_attn = AllTokens(layer.self_attn, tensor)
            layer.mlp = AllTokens(layer.mlp, tensor)
        model.embed_tokens = OwnTokens(model.embed_tokens, tensor)
        model.norm = Gathered(model.norm, tensor)
        for name in ("rotary_emb", "local_rotary_emb"):
            if getattr(model, name) is not None:
                setattr(model, name, AllPositions(getattr(model, name), tensor))
    if stage:
        system = _stage(spec, system, stage)
    return system


class _Around(Module):
    """A module with a collective over so many ranks before or after it. A weight that others share has its name."""

    def __init__(self, inner: Module, ranks: int) -> None:
        self.inner, self.ranks = inner, ranks
        weight = getattr(inner, "weight", None)
        if weight is not None:
            self.weight = weight


class AllTokens(_Around):
    """Tokens are gathered for the module; its result is reduced and scattered: (B, S / n, W) -> (B, S / n, W)."""

    def forward(self, x: Tensor, *rest: Any) -> Any:
        out = self.inner(_gather(x, self.ranks), *rest)
        if type(out) is tuple:
            return (_scatter(out[0], self.ranks), *out[1:])
        return _scatter(out, self.ranks)


class OwnTokens(_Around):
    """(B, S) -> (B, S / n, W): the embedding's partial sums are reduced and scattered."""

    def forward(self, x: Tensor) -> Tensor:
        return _scatter(self.inner(x), self.ranks)


class Gathered(_Around):
    """(B, S / n, W) -> (B, S, W)."""

    def forward(self, x: Tensor) -> Tensor:
        return _gather(self.inner(x), self.ranks)


class AllPositions(_Around):
    """Tables for all tokens, as attention sees all of them."""

    def forward(self, positions: Tensor, *rest: Any) -> Any:
        everywhere = empty((positions.shape[0], positions.shape[1] * self.ranks), int64)
        return self.inner(everywhere, *rest)


def _gather(x: Tensor, ranks: int) -> Tensor:
    return _resized(x, 1, ranks, 1)


def _scatter(x: Tensor, ranks: int) -> Tensor:
    return _resized(x, 1, 1, ranks)


def _resized(x: Tensor, dim: int, times: int, parts: int) -> Tensor:
    """A collective's result: another tensor with more or fewer rows, and one like ``x`` for the gradient."""
    shape, dtype = x.shape, x.dtype
    out = empty((*shape[:dim], -(-shape[dim] * times // parts), *shape[dim + 1 :]), dtype)
    if autograd.tracked(x):
        autograd.record(out, (x,), (), lambda g: (empty(shape, dtype),))
    return out


class HeadScores(_Around):
    """DeepSpeed-Ulysses: all-to-all turns a share of the tokens of all heads into all tokens of a share of heads."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Any:
        query, key, value = (self.turned(x) for x in (query, key, value))
        output, weights = self.inner(query, key, value, mask)
        batch, length, heads, head_dim = output.shape
        return _moved(output, (batch, length // self.ranks, heads * self.ranks, head_dim)), weights

    def turned(self, x: Tensor) -> Tensor:
        batch, heads, length, head_dim = x.shape
        return _moved(x, (batch, max(1, heads // self.ranks), length * self.ranks, head_dim))


def _moved(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """An all-to-all's result."""
    old, dtype = x.shape, x.dtype
    out = empty(shape, dtype)
    if autograd.tracked(x):
        autograd.record(out, (x,), (), lambda g: (empty(old, dtype),))
    return out


class RingScores(_Around):
    """Context parallelism with gathered keys and values, torch's default: while attention runs there are those of all
    ranks beside its own, and a sum of results in fp32 (``_AllGatherRotater``, ``_SDPAMerger``)."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Any:
        elements = (key.numel + value.numel) * self.ranks
        sizes = elements * key.dtype.itemsize, query.numel * float32.itemsize
        held = _buffers(sizes)
        stack: list[list[Storage]] = []
        query = _passed(query, stack, ())
        output, weights = self.inner(query, key, value, mask)
        output = _passed(output, stack, sizes)
        del held
        return output, weights


def _buffers(sizes: tuple[int, ...]) -> list[Storage]:
    saved, state.label = state.label, Label("communication", state.label.module, "ring")
    made = [Storage(size, (size,), 1) for size in sizes]
    state.label = saved
    return made


def _passed(x: Tensor, stack: list[list[Storage]], sizes: tuple[int, ...]) -> Tensor:
    """The same tensor; its gradient takes the buffers of a backward pass that begins here, or lets go of them."""
    out = Tensor(x.shape, x.dtype, x.storage, x.strides)
    out.is_view = x.is_view
    if autograd.tracked(x):

        def backward(gradient: Tensor) -> tuple[Tensor]:
            if sizes:
                stack.append(_buffers(sizes))
            elif stack:
                stack.pop()
            return (gradient,)

        autograd.record(out, (x,), (), backward)
    return out


_dispatching: dict[type[Any], type[Any]] = {}


def _dispatch(experts: Any) -> None:
    """Rows go to the ranks of their experts and come back; with balanced routing as many come as go."""
    kind = type(experts)
    if kind not in _dispatching:

        class Dispatching(kind):  # type: ignore[misc, valid-type]
            dispatches = True

            def enter(self, x: Tensor, expert_of: Tensor, offsets: Tensor) -> Tensor:
                received = _moved(x, x.shape)
                out: Tensor = super().enter(received, expert_of, offsets)
                return out

            def leave(self, x: Tensor, expert_of: Tensor, offsets: Tensor) -> Tensor:
                return _moved(made := super().leave(x, expert_of, offsets), made.shape)

        _dispatching[kind] = Dispatching
    experts.__class__ = _dispatching[kind]


# -- pipeline stages


class _Nothing(Module):
    """In place of a module that another stage has."""

    def forward(self, x: Tensor) -> Tensor:
        return x


def _stage(spec: TrainingSpec, system: System, stage: str) -> System:
    model: Any = system.model
    flights = in_flight(spec, stage)
    if stage == FIRST:
        model.norm, model.lm_head, model.head_bias = _Nothing(), None, None
        return system._replace(loss=lambda given: model.hidden(given.tokens), in_flight=flights, evaluate=None)
    width = model.config.width
    tied = model.lm_head is None
    dtype = model.embed_tokens.weight.dtype
    if not tied:
        model.embed_tokens = _Nothing()
    shape = system.batch
    received_dtype = system.autocast or dtype

    def batch() -> Any:
        return shape()

    def loss(given: Any) -> Tensor:
        rows, length = given.tokens.shape
        ranks = degree(spec, "tensor") if spec.get("parallelism.sequence", False) else 1
        received = empty((rows, -(-length // ranks), width), received_dtype)
        received.requires_grad = True
        out: Tensor = model(received, given.labels)
        return out

    return system._replace(batch=batch, loss=loss, in_flight=flights, evaluate=None)
