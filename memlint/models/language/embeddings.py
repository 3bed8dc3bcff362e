"""Embeddings of queries and passages, which learn to tell a query's own passage from the others of a batch; and models
that score pairs of both.

    queries (B, Q), passages (B x G, S) -> states of the model without a head -> a vector of each -> products -> loss

Both go through the same weights, one after the other, and each as a whole or in pieces. Sources: FlagEmbedding 1.4
``abc/finetune/embedder/AbsModeling.py``, ``finetune/embedder/{encoder_only,decoder_only}/base/modeling.py``,
``abc/finetune/reranker/AbsModeling.py``, ``finetune/reranker/{encoder_only,decoder_only}/base/modeling.py``;
FlagEmbedding 1.2 ``baai_general_embedding/finetune/modeling.py``; Tevatron at dd06310
``retriever/modeling/{encoder,dense}.py``, ``reranker/modeling.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from memlint.architectures.decoder import Decoder
from memlint.architectures.encoder import Encoder, ModernBert
from memlint.facts.spec import TrainingSpec
from memlint.meta import functional as F
from memlint.meta.autograd import no_grad
from memlint.meta.nn import Linear, Module
from memlint.meta.tensor import DType, Tensor, bool_, component, default_dtype, empty, empty_like, float32, int64
from memlint.models import UnknownModel
from memlint.models.language import Task, fitted, language_model, sequence_length
from memlint.models.language.encoder import EncoderTask, Pooler
from memlint.named_tuple import NamedTuple

POOLINGS = ("cls", "mean", "masked_mean", "last", "end")
NEGATIVES = ("in_batch", "across_devices", "own")
DISTILLATIONS = ("", "kl_div", "m3_kd_loss")

Batch = tuple[list[tuple[Tensor, ...]], list[tuple[Tensor, ...]]]


class EncoderBody(Module):
    """An encoder as ``AutoModel`` makes it: what it pools of the first token is made, and nothing asks for it."""

    def __init__(self, body: Module, pooler: Pooler | None) -> None:
        self.body, self.pooler = body, pooler

    def forward(self, tokens: Tensor, *types: Tensor) -> Tensor:
        x: Tensor = self.body(tokens, *types)
        if self.pooler is not None:
            pooled = self.pooler(x)
            del pooled
        return x


class Way(NamedTuple):
    """What is made of states, and of vectors.

    pooling     one of POOLINGS
    normalized  vectors have length 1
    tempered    scores are divided
    negatives   one of NEGATIVES
    ranks       processes whose vectors are gathered
    distils     one of DISTILLATIONS: what is learnt from a teacher's scores, which are data
    """

    pooling: str
    normalized: bool
    tempered: bool
    negatives: str
    ranks: int
    distils: str


def _way(spec: TrainingSpec) -> Way:
    made = Way(
        spec.get("embedding_pooling", "cls"),
        spec.get("embedding_normalized", False),
        spec.get("embedding_tempered", True),
        spec.get("negatives", "in_batch"),
        spec.get("world_size") or spec.get("device_count") or 1,
        spec.get("distillation", ""),
    )
    for value, known in ((made.pooling, POOLINGS), (made.negatives, NEGATIVES), (made.distils, DISTILLATIONS)):
        if value not in known:
            raise UnknownModel(f"{value!r} of embeddings is not known")
    return made


def normalized(x: Tensor) -> Tensor:
    """(N, W), each row of length 1: ``torch.nn.functional.normalize``."""
    lengths = F.clamp(F.vector_norm(x, -1, keepdim=True)).expand(*x.shape)
    return F.div(x, lengths)


def pooled(way: Way, x: Tensor, mask: Tensor) -> Tensor:
    """(N, S, W), (N, S) -> (N, W)."""
    if way.pooling in ("cls", "last"):
        return x[:, 0 if way.pooling == "cls" else -1]
    if way.pooling == "mean":
        summed = F.sum(x * empty((*mask.shape, 1), float32), 1)
        return summed / empty((x.shape[0], 1), float32)
    if way.pooling == "masked_mean":
        left = F.masked_fill(x, empty((*mask.shape, 1), bool_))
        return F.sum(left, 1) / empty((x.shape[0], 1), int64)
    ends = empty((x.shape[0],), int64)
    return F.index(x, empty((x.shape[0],), int64), ends)


def vectors(way: Way, hidden: Callable[..., Tensor], pieces: list[tuple[Tensor, ...]]) -> Tensor:
    """Of all texts that a batch has of one kind: (N, W)."""
    found = []
    for tokens, mask, *types in pieces:
        x = hidden(tokens, *types)
        found.append(pooled(way, x, mask))
        del x
    made = found[0] if len(found) == 1 else F.cat(found, 0)
    del found
    if way.normalized:
        made = normalized(made)
    out: Tensor = made.contiguous()
    return out


def gathered(x: Tensor, ranks: int) -> Tensor:
    """(N, W) -> (ranks x N, W): those of the other processes are data, and one's own are put in their place."""
    x = x.contiguous()
    every = [empty_like(x) for _ in range(ranks)]
    every[0] = x
    return F.cat(every, 0)


def loss_of(way: Way, queries: Tensor, passages: Tensor, group: int) -> Tensor:
    """(B, W), (B x G, W) -> scalar."""
    teacher = _teacher(way, queries.shape[0], group)
    if way.negatives == "across_devices":
        queries, passages = gathered(queries, way.ranks), gathered(passages, way.ranks)
    if way.negatives == "own":
        passages = passages.view(queries.shape[0], group, -1)
        scores = F.matmul(queries.unsqueeze(1), passages.transpose(-2, -1)).squeeze(1)
    else:
        scores = F.matmul(queries, passages.transpose(0, 1))
    if way.tempered:
        scores = scores / 1.0
    scores = scores.view(queries.shape[0], -1)
    rows = queries.shape[0]
    if teacher is None:
        return F.cross_entropy(scores, targets(rows))
    if way.distils == "m3_kd_loss":
        return _from_teacher(scores, gathered(teacher, way.ranks) if way.negatives == "across_devices" else teacher)
    own = _of_own_passages(scores, group)
    if way.negatives == "across_devices":
        own = own[: teacher.shape[0]]
    loss = F.neg(F.mean(F.sum(F.log_softmax(own, -1) * teacher, -1)))
    return loss + F.cross_entropy(scores, targets(rows))


def targets(rows: int) -> Tensor:
    """The place of each row's own passage, a multiple of the group."""
    numbers = empty((rows,), int64)
    return empty_like(numbers)


def _teacher(way: Way, rows: int, group: int) -> Tensor | None:
    """(B, G), a softmax of what the data say."""
    return empty((rows, group), float32) if way.distils else None


def _of_own_passages(scores: Tensor, group: int) -> Tensor:
    """(B, N) -> (B, G), one column after the other."""
    rows = scores.shape[0]
    first = empty((rows,), int64)
    columns = []
    for _ in range(group):
        columns.append(F.index(scores, empty((rows,), int64), empty_like(first)))
    out: Tensor = F.stack(columns, 1).view(rows, -1)
    return out


def _from_teacher(scores: Tensor, teacher: Tensor) -> Tensor:
    """BGE-M3's loss of a teacher: a cross entropy for each passage of a group, without those before it."""
    rows, group = teacher.shape
    total: Tensor | None = None
    mask = empty_like(scores)
    for number in range(group):
        target = empty((rows,), int64)
        part = F.mean(teacher[:, number] * F.cross_entropy(scores + mask, target, "none"))
        total = part if total is None else total + part
        mask = empty_like(scores)
    assert total is not None
    return total


def texts(rows: int, length: int, piece: int, segments: bool) -> list[tuple[Tensor, ...]]:
    """What the collator makes: token numbers, the mask of padding, and segments where the tokenizer tells them, (n, S)
    int64 each, of all rows or of ``piece`` at a time."""
    sizes = [min(piece, rows - start) for start in range(0, rows, piece)] if piece else [rows]
    return [tuple(empty((size, length), int64) for _ in range(2 + segments)) for size in sizes]


def task(
    spec: TrainingSpec,
    model: Module,
    hidden: Callable[..., Tensor],
    adapted: Any,
    segments: bool = False,
    unused: Sequence[Tensor] = (),
) -> Task:
    """Facts: ``query_length``, ``sequences_per_sample`` (passages of a query), ``sub_batch_size``, and those of Way.

    hidden    (tokens, segments where there are any) -> states (N, S, W)
    segments  whether the tokenizer tells them
    """
    way, group = _way(spec), spec.get("sequences_per_sample", 1)
    rows, length = spec["micro_batch_size"], sequence_length(spec)
    asked, piece = spec.get("query_length") or length, spec.get("sub_batch_size") or 0

    def given(rows: int, length: int) -> Batch:
        return texts(rows, asked, piece, segments), texts(rows * group, length, piece, segments)

    def loss(batch: Batch) -> Tensor:
        queries = vectors(way, hidden, batch[0])
        passages = vectors(way, hidden, batch[1])
        return loss_of(way, queries, passages, group)

    def evaluate(rows: int, length: int) -> tuple[Tensor, Tensor]:
        batch = given(max(rows // group, 1), length)
        with no_grad():
            return vectors(way, hidden, batch[0]), vectors(way, hidden, batch[1])

    return Task(model, adapted, lambda: given(rows, length), loss, evaluate, (), unused=unused)


def of_encoder(spec: TrainingSpec, config: Encoder | ModernBert, body: Any, adapted: Any) -> Task:
    """``body``: the encoder without a head."""
    segments, pooler = False, None
    if isinstance(config, Encoder):
        segments = config.token_types > 1 and config.layer != "deberta"
        with default_dtype(body.embeddings.word_embeddings.weight.dtype):
            pooler = Pooler(config) if config.pools else None
        if "positions" in (spec.get("frozen_parts") or ()) and config.layer != "deberta":
            body.embeddings.position_embeddings.freeze()
    model = EncoderBody(body, pooler)
    return task(spec, model, model, adapted, segments, pooler.parameters() if pooler is not None else ())


def of_decoder(spec: TrainingSpec, config: Decoder, dtype: DType, autocast: bool) -> Task:
    config = fitted(spec, config)._replace(tied=True, head_bias=False)  # there is no head over the vocabulary
    model = language_model(spec, config, dtype, autocast)
    return task(spec, model, model.hidden, config)


# ----------------------------------------------------------------------------------------------------------- pairs


class PairTask(EncoderTask):
    """One score of each pair of a query and a passage, and the softmax of a query's own."""

    group = 1
    distils = False

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return of_groups(logits.view(-1, self.group), self.distils)


def of_groups(scores: Tensor, distils: bool) -> Tensor:
    """(B, G) -> scalar; the first of each group is the right one."""
    rows = scores.shape[0]
    loss = F.cross_entropy(scores, empty((rows,), int64))
    if not distils:
        return loss
    teacher = empty(scores.shape, float32)
    return loss + F.neg(F.mean(F.sum(F.log_softmax(scores, -1) * teacher, -1)))


def pairs_of_encoder(spec: TrainingSpec, config: Encoder, body: Any, adapted: Any) -> Task:
    """A classifier of one class over pairs, ``sequences_per_sample`` of which belong to a query."""
    with default_dtype(body.embeddings.word_embeddings.weight.dtype):
        model = PairTask(config, body, "sequence_classification", 1)
    model.group, model.distils = spec.get("sequences_per_sample", 1), bool(spec.get("distillation", ""))
    segments = config.token_types > 1 and config.layer != "deberta"
    rows, length = spec["micro_batch_size"] * model.group, sequence_length(spec)

    def given(rows: int, length: int) -> tuple[Tensor, ...]:
        return texts(rows, length, 0, segments)[0]

    def loss(batch: tuple[Tensor, ...]) -> Tensor:
        return model.run(batch[0], batch[1], *batch[2:])[0]

    def evaluate(rows: int, length: int) -> tuple[Tensor, ...]:
        with no_grad():
            return model.run(*given(rows, length))[1]

    heads = ("classifier", "pooler")
    return Task(model, adapted, lambda: given(rows, length), loss, evaluate, heads, ("classifier",))


def pairs_of_classifier(spec: TrainingSpec, config: Decoder, dtype: DType, autocast: bool) -> Task:
    """A decoder with a head of one class: every token gets a score, and that of the last one is the pair's."""
    config = fitted(spec, config)._replace(tied=True, head_bias=False)  # there is no head over the vocabulary
    model = language_model(spec, config, dtype, autocast)
    with default_dtype(dtype):
        setattr(model, "score", Linear(config.width, 1, bias=False))  # noqa: B010 - a part, by which it is counted
    head: Any = model
    group, distils = spec.get("sequences_per_sample", 1), bool(spec.get("distillation", ""))
    rows, length = spec["micro_batch_size"] * group, sequence_length(spec)

    def scores(batch: tuple[Tensor, ...]) -> Tensor:
        x = model.hidden(batch[0])
        with component("logits"):
            logits = head.score(x)  # or the copy that an adapter trains
            return F.index(logits, empty((logits.shape[0],), int64), empty((logits.shape[0],), int64))

    def given(rows: int, length: int) -> tuple[Tensor, ...]:
        return texts(rows, length, 0, False)[0]

    def loss(batch: tuple[Tensor, ...]) -> Tensor:
        return of_groups(scores(batch).view(-1, group), distils)

    def evaluate(rows: int, length: int) -> Tensor:
        with no_grad():
            return scores(given(rows, length))

    return Task(model, config, lambda: given(rows, length), loss, evaluate, ("score",), ("score",))


def pairs_of_decoder(spec: TrainingSpec, config: Decoder, dtype: DType, autocast: bool) -> Task:
    """A language model that says Yes at the end of a pair: the score is one of the last token's logits. All logits are
    made, and all hidden states are named until the score is taken."""
    config = fitted(spec, config)
    model = language_model(spec, config, dtype, autocast)
    group, distils = spec.get("sequences_per_sample", 1), bool(spec.get("distillation", ""))
    rows, length = spec["micro_batch_size"] * group, sequence_length(spec)
    states: list[Tensor] = []  # while they are named
    through = model.through

    def named(layer: Module, recomputed: bool, x: Tensor, tables: Any, mask: Tensor | None) -> Tensor:
        states.append(x)
        return through(layer, recomputed, x, tables, mask)

    setattr(model, "through", named)  # noqa: B010 - of this model alone

    def scores(batch: tuple[Tensor, ...]) -> Tensor:
        x = model.hidden(batch[0])
        with component("logits"):
            logits = model.logits(x)
            found: Tensor = logits[:, -1, 0].contiguous()
        states.clear()
        return found

    def given(rows: int, length: int) -> tuple[Tensor, ...]:
        return texts(rows, length, 0, False)[0]

    def loss(batch: tuple[Tensor, ...]) -> Tensor:
        found = scores(batch)
        return of_groups(found.view(-1, group), distils)

    def evaluate(rows: int, length: int) -> Tensor:
        with no_grad():
            return scores(given(rows, length))

    return Task(model, config, lambda: given(rows, length), loss, evaluate)
