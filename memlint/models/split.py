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

from collections.abc import Sequence
from typing import Any, Literal, TypeVar

from memlint.facts.spec import Name, TrainingSpec, named
from memlint.meta import autograd
from memlint.meta.amp import to
from memlint.meta.nn import Module
from memlint.meta.tape import Label
from memlint.meta.tensor import DType, Storage, Tensor, empty, float32, int64, state
from memlint.models import UnknownModel
from memlint.models.system import Part, System

FIRST, SECOND, LAST = "first", "second", "last"
Kind = Literal["tensor", "pipeline", "context", "ulysses", "expert", "expert_tensor", "replicas"]
SIZES: tuple[Kind, ...] = ("tensor", "pipeline", "context", "ulysses", "expert")
Sizes = TypeVar("Sizes", bound=Any)


def fact_of(kind: Kind) -> Name:
    """The fact that says of how many devices it is."""
    return named(f"parallelism.{kind}")


def degree(spec: TrainingSpec, kind: Kind) -> int:
    """How many devices share what the kind of parallelism splits."""
    return int(spec.get(fact_of(kind)) or 1)


def is_split(spec: TrainingSpec) -> bool:
    return any(degree(spec, kind) > 1 for kind in SIZES)


def whole(spec: TrainingSpec) -> TrainingSpec:
    """The run on one device."""
    return spec.replaced({fact_of(kind): 1 for kind in SIZES})


def candidates(spec: TrainingSpec) -> tuple[str, ...]:
    """Ranks of which one is the fullest: the stage with the embedding, which has most micro-batches in flight, the one
    with the head, or, where it has more layers than they, the one behind the first."""
    stages = degree(spec, "pipeline")
    if stages == 1:
        return ("",)
    if stages > 2 and layers_of(spec, SECOND) > max(layers_of(spec, FIRST), layers_of(spec, LAST)):
        return (FIRST, SECOND, LAST)
    return (FIRST, LAST)


def layers_of(spec: TrainingSpec, stage: str) -> int:
    """How many layers a rank has, where ``parallelism.stage_layers`` says it for each stage; else 0. Ranks take stages
    in turn, so that the first has the first of every round. Ranks between the first and the last are as the fullest."""
    stated = spec.get("parallelism.stage_layers")
    stages = degree(spec, "pipeline")
    if not stated:
        return 0
    ranks = [sum(stated[rank::stages]) for rank in range(stages)]
    return int(ranks[0] if stage == FIRST else ranks[-1] if stage == LAST else max(ranks[1:-1], default=0))


# -- before the model is built


def divide(spec: TrainingSpec, sizes: Sizes) -> Sizes:
    """The sizes of one rank's part of a language model (``memlint.architectures.decoder``).

    Raises UnknownModel where a degree does not divide what it splits.
    """
    tensor, stages, experts = degree(spec, "tensor"), degree(spec, "pipeline"), degree(spec, "expert")
    if tensor > 1:
        sizes = sizes._replace(
            heads=_share(spec, "tensor", sizes.heads, tensor, "num_attention_heads"),
            key_value_heads=max(1, sizes.key_value_heads // tensor),
            intermediate=_share(spec, "tensor", sizes.intermediate, tensor, "intermediate_size"),
            vocabulary=-(-sizes.vocabulary // tensor),
        )
        if sizes.experts is not None:
            kind: Kind = "expert_tensor" if spec.get("parallelism.expert_tensor") else "tensor"
            each = int(spec.get("parallelism.expert_tensor") or (tensor if experts == 1 else 1))
            width = _share(spec, kind, sizes.experts.intermediate, each, "rows of an expert")
            shared = _share(spec, "tensor", sizes.experts.shared, tensor, "rows of the shared expert")
            sizes = sizes._replace(experts=sizes.experts._replace(intermediate=width, shared=shared))
    if experts > 1:
        if sizes.experts is None:
            raise UnknownModel(f"{spec.spelled('parallelism.expert')} splits experts, and the model has none")
        own = _share(spec, "expert", sizes.experts.number, experts, "num_experts")
        sizes = sizes._replace(experts=sizes.experts._replace(number=own))
    if stages > 1:
        if stages > sizes.layers:
            key = spec.spelled("parallelism.pipeline")
            raise UnknownModel(f"{key} {stages:,} is more than num_hidden_layers {sizes.layers:,}")
        layers = -(-sizes.layers // stages)
        if spec.get("parallelism.stage_layers"):
            layers = max(layers_of(spec, stage) for stage in (FIRST, SECOND, LAST))
        sizes = sizes._replace(layers=layers, windows=sizes.windows[:layers])
    return sizes


def _share(spec: TrainingSpec, kind: Kind, total: int, ranks: int, what: str) -> int:
    if total % ranks:
        raise UnknownModel(f"{spec.spelled(fact_of(kind))} {ranks:,} does not divide {what} {total:,}")
    return total // ranks


# Whose code refuses a sequence that leaves a rest (torchtitan: ParallelDims.seq_len_divisor; Megatron: its mappings).
WITHOUT_REST = ("torchtitan", "megatron")


def shorten(spec: TrainingSpec) -> TrainingSpec:
    """With the tokens of one rank, where sequences are shared. Raises UnknownModel where they cannot be."""
    ranks = degree(spec, "context") * degree(spec, "ulysses")
    code, length = spec.get("implementation"), spec.get("sequence_length")
    if code in WITHOUT_REST and length is not None:
        together = ranks * (degree(spec, "tensor") if code == "torchtitan" else _token_ranks(spec))
        if length % together:
            key, kinds = spec.spelled("sequence_length"), (kind for kind in SIZES if degree(spec, kind) > 1)
            degrees = ", ".join(f"{spec.spelled(fact_of(kind))} {degree(spec, kind):,}" for kind in kinds)
            raise UnknownModel(
                f"{key} {length:,}: {code} does not divide it among {together:,} devices without a rest ({degrees})"
            )
    changed: dict[Name, int] = {}
    name: Name
    for name in ("sequence_length", "evaluation_sequence_length"):
        length = spec.get(name)
        if ranks > 1 and length is not None:
            changed[name] = -(-length // ranks)
    return spec.sized(changed) if changed else spec


def in_flight(spec: TrainingSpec, stage: str) -> int:
    """Micro-batches whose activations a stage keeps at once. By GPipe all of a step, if it is the only stage as well.

    1F1B: as many as there are stages from it to the last. Interleaved: the first stage warms up with
    ``2 (p - 1) + (v - 1) p`` pieces of ``1 / v`` of its layers, and adds one (arXiv 2104.04473, section 2.2); each
    stage behind it with two less.
    """
    stages = degree(spec, "pipeline")
    schedule = str(spec.get("parallelism.schedule") or "1f1b").lower()
    pieces = int(spec.get("parallelism.virtual_stages") or 1)
    total = spec.get("gradient_accumulation_steps", 1)
    if schedule == "gpipe":
        return max(int(total), 1)
    if stages == 1:
        return 1
    behind = stages - 1 if stage == FIRST else stages - 2 if stage == SECOND else 0
    if "interleaved" in schedule and pieces > 1:
        warm = 2 * behind + (pieces - 1) * stages + 1
        most = -(-warm // pieces)
    else:
        most = behind + 1
    return min(most, int(total)) if total > 1 else most


# -- after it is built


def split(spec: TrainingSpec, system: System, stage: str) -> System:
    """Put around the modules what collectives need; cut out one pipeline stage."""
    model: Any = system.model
    if not is_split(spec):
        return system
    if not hasattr(model, "hidden") or not hasattr(model, "layers"):
        kind = next(kind for kind in SIZES if degree(spec, kind) > 1)
        raise UnknownModel(f"{spec.spelled(fact_of(kind))}: how it splits this model is not known")
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
    if tensor > 1 and model.loss == "full" and model.lm_head is not None:
        compared = spec.get("parallelism.loss")
        if compared is False:
            model.lm_head = AllWords(model.lm_head, tensor)
        elif compared and not model.compile_loss and hasattr(model, "compare"):
            model.compare = shared_loss
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


class AllWords(_Around):
    """(B, S, V / n) -> (B, S, V)."""

    def __init__(self, inner: Module, ranks: int) -> None:
        super().__init__(inner, ranks)
        self.bias = getattr(inner, "bias", None)

    def forward(self, x: Tensor) -> Tensor:
        return _resized(self.inner(x), 2, self.ranks, 1)


def shared_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """(B, S, V / n), (B, S) -> (): ``torch/distributed/tensor/parallel/loss.py``, op by op. Maxima and sums of rows are
    reduced over the ranks, and the gradient of both steps is computed in the second one."""
    logits = to(logits, float32)
    shape = logits.shape
    rows = empty((shape[0] * shape[1],), int64)  # _nll_loss_forward, safe_target
    shifted = empty(shape, float32)
    powers = empty(shape, float32)
    del powers
    result = empty(shape, float32)
    del shifted
    out = empty((), float32)

    def backward(_: Tensor) -> tuple[Tensor]:
        gradient = empty(shape, float32)
        powers = empty(shape, float32)
        both = empty(shape, float32)
        del powers
        whole = empty(shape, float32)
        del both, gradient
        return (whole,)

    autograd.record(out, (logits,), (result, rows), backward)
    return out


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
    """Context parallelism with gathered keys and values, torch's default, on rank 0 of a causal model, whose turns
    after the first one are half of the queries against all keys (``_templated_ring_attention`` and its backward
    function in ``torch/distributed/tensor/experimental/_context_parallel/_attention.py``)."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Any:
        sent = (key.numel + value.numel) * key.dtype.itemsize
        gathered = sent * self.ranks
        queries, pairs = (numel * float32.itemsize for numel in (query.numel, key.numel + value.numel))
        # _SDPAMerger: the sum so far, a turn's result and what it makes of half of the sum, and the sum anew.
        held = _buffers((gathered, queries, queries // 2, queries // 2, queries))
        # Gradients of queries so far, half of them with a turn's, and both halves anew; gradients of keys and values as
        # they were received, as they are sent on, and where the next are received; keys and values that are sent.
        sizes = gathered, queries, queries // 2, queries, pairs, pairs, pairs, sent
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


class _KeptOutput(_Around):
    """A head whose result the schedule keeps until the step's last micro-batch is done, to return all of them together
    (``torch/distributed/pipelining/stage.py``, ``output_chunks``). Of ``micro_batches`` so many are recorded: the
    last one finds the results of all others."""

    def __init__(self, inner: Module, micro_batches: int, recorded: int) -> None:
        super().__init__(inner, 1)
        self.bias = getattr(inner, "bias", None)
        self.micro_batches, self.recorded = micro_batches, recorded
        self.kept: list[Storage] = []

    def forward(self, x: Tensor) -> Tensor:
        missing = self.micro_batches - self.recorded if len(self.kept) == self.recorded - 1 else 0
        out: Tensor = self.inner(x)
        saved, state.label = state.label, Label("logits", state.label.module, "kept output")
        self.kept += [Storage(out.nbytes, (out.nbytes,), 1) for _ in range(missing)]
        state.label = saved
        self.kept.append(out.storage)
        return out

    def clear(self) -> None:
        self.kept.clear()


def _places(spec: TrainingSpec, width: int, dtype: DType, number: int) -> list[Storage]:
    """Room for so many hidden states of a micro-batch."""
    rows, length = spec.get("micro_batch_size"), spec.get("sequence_length")
    if not rows or not length:
        return []
    size = int(rows) * -(-int(length) // _token_ranks(spec)) * width * dtype.itemsize
    saved, state.label = state.label, Label("communication", "", "received")
    made = [Storage(size, (size,), 1) for _ in range(number)]
    state.label = saved
    return made


def _token_ranks(spec: TrainingSpec) -> int:
    """Ranks that share the tokens of what goes from stage to stage."""
    return degree(spec, "tensor") if spec.get("parallelism.sequence", False) else 1


class _Received:
    """A micro-batch as it comes from the stage before, in the type of computation."""

    def __init__(self, spec: TrainingSpec, width: int, dtype: DType, places: list[Storage]) -> None:
        self.ranks, self.width, self.dtype, self.places = _token_ranks(spec), width, dtype, places
        self.number = 0

    def __call__(self, given: Any) -> Tensor:
        rows, length = given.tokens.shape
        shape = rows, -(-length // self.ranks), self.width
        if self.places:
            out = Tensor(shape, self.dtype, self.places[self.number % len(self.places)])
            out.is_view = False
            self.number += 1
        else:
            out = empty(shape, self.dtype)
        out.requires_grad = True
        return out


def _in_parts(spec: TrainingSpec, system: System, stage: str, micro_batches: int, inputs: list[Storage]) -> System:
    """A rank of an interleaved pipeline with fewer micro-batches than make two rounds: one stage after the other
    (``torch/distributed/pipelining/schedules.py``, ``ScheduleInterleaved1F1B``)."""
    model: Any = system.model
    layers, stages = model.layers, degree(spec, "pipeline")
    pieces = int(spec.get("parallelism.virtual_stages") or 1)
    stated = spec.get("parallelism.stage_layers")
    behind = stages - 1 if stage == FIRST else stages - 2 if stage == SECOND else 0
    if stated:
        counts = stated[stages - 1 - behind :: stages] if stage != SECOND else _fullest(stated, stages)
    else:
        counts = [(len(layers) + place) // pieces for place in range(pieces)]
    width, dtype = model.config.width, system.autocast or model.embed_tokens.weight.dtype
    embedding, norm = model.embed_tokens, model.norm
    if stage != FIRST and (stage == SECOND or model.lm_head is not None):
        embedding = model.embed_tokens = _Nothing()
    kept = None
    if stage == LAST and model.lm_head is not None:
        model.lm_head = kept = _KeptOutput(model.lm_head, micro_batches, micro_batches)
    parts: list[Part] = []
    end = 0
    for number, count in enumerate(counts):
        begin, end = end, end + int(count)
        first, last = stage == FIRST and number == 0, stage == LAST and number == len(counts) - 1
        place = (number - (stage == FIRST)) * micro_batches
        received = None if first else _Received(spec, width, dtype, inputs[max(place, 0) : place + micro_batches])

        def loss(
            given: Any, own: Any = layers[begin:end], received: _Received | None = received, last: bool = last
        ) -> Tensor:
            model.layers = own
            model.norm = norm if last else _Nothing()
            model.embed_tokens = embedding if received is None else _Nothing()
            x = given.tokens if received is None else received(given)
            out: Tensor = model(x, given.labels) if last else model.hidden(x)
            model.layers, model.norm, model.embed_tokens = layers, norm, embedding
            return out

        parts.append(Part(loss, layers[begin:end], first or last))
    return system._replace(
        parts=parts,
        accumulation=micro_batches,
        in_flight=min(2 * behind + 1, micro_batches),
        after_backward=None if kept is None else kept.clear,
    )


def _fullest(stated: Sequence[int], stages: int) -> Sequence[int]:
    """Layers of the stages of the fullest rank between the first and the last."""
    return max((stated[rank::stages] for rank in range(1, stages - 1)), key=sum)


def _stage(spec: TrainingSpec, system: System, stage: str) -> System:
    """One rank of a pipeline. Where it has several stages, they are one model here."""
    model: Any = system.model
    own = layers_of(spec, stage)
    if own:
        model.layers = model.layers[:own]
    width, dtype = model.config.width, system.autocast or model.embed_tokens.weight.dtype
    # torch.distributed.pipelining (torchtitan's schedules) makes room for all that a step receives, once: for each
    # micro-batch of each stage an input, unless it is the very first, and a gradient, unless it is the very last
    # (``args_recv_info``, ``grad_recv_info``).
    micro_batches = int(spec.get("parallelism.micro_batches") or 0)
    pieces = int(spec.get("parallelism.virtual_stages") or 1)
    inputs = _places(spec, width, dtype, micro_batches * (pieces - (stage == FIRST)))
    gradients = _places(spec, width, dtype, micro_batches * (pieces - (stage == LAST)))
    system = system._replace(in_flight=in_flight(spec, stage), evaluate=None, resident=(*inputs, *gradients))
    if stage != LAST:
        model.norm, model.lm_head, model.head_bias = _Nothing(), None, None
    if 0 < micro_batches < 2 * degree(spec, "pipeline") and pieces > 1 and not system.offloads:
        return _in_parts(spec, system, stage, micro_batches, inputs)
    if stage == FIRST:
        return system._replace(loss=lambda given: model.hidden(given.tokens))
    received = _Received(spec, width, dtype, inputs)
    if stage == SECOND:
        model.embed_tokens = _Nothing()
        return system._replace(loss=lambda given: model.hidden(received(given)))
    if model.lm_head is not None:  # else its weight is the embedding's
        model.embed_tokens = _Nothing()
        if micro_batches:
            recorded = 1 if system.in_flight > 1 else min(micro_batches, 2)
            model.lm_head = kept = _KeptOutput(model.lm_head, micro_batches, recorded)
            system = system._replace(after_backward=kept.clear)

    def loss(given: Any) -> Tensor:
        out: Tensor = model(received(given), given.labels)
        return out

    def ahead(given: Any) -> Tensor:
        """What stages before the very last one do: no norm."""
        norm, model.norm = model.norm, _Nothing()
        out: Tensor = model.hidden(received(given))
        model.norm = norm
        return out

    return system._replace(loss=loss, ahead=ahead)
