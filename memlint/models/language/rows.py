"""Rows that are asked for one thing each, in place of their next tokens: a vector, a score, or which of two words comes
next. All rows of a batch go through the model at once, whatever they are to each other.

    tokens (N, S) -> states (N, S, W) -> of each token what is asked -> that of each row's last token -> loss

A sample is several rows (``sequences_per_sample``): an anchor and its passages, or a query with each of its documents.
Source: ms-swift 4.6 ``model/patcher.py`` (``patch_output_normalizer``, ``transformers_seq_cls_forward``,
``revert_padding_free``), ``utils/torch_utils.py`` (``get_generative_reranker_logits``) and
``loss/{embedding,reranker}.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memlint.architectures.decoder import Decoder
from memlint.facts.spec import TrainingSpec
from memlint.meta import functional as F
from memlint.meta.amp import to
from memlint.meta.autograd import no_grad
from memlint.meta.nn import Linear
from memlint.meta.tensor import DType, Tensor, component, default_dtype, empty, float32, int64
from memlint.models import UnknownModel
from memlint.models.language import Task, fitted, language_model, losses, sequence_length
from memlint.models.language.decoder import LanguageModel
from memlint.models.language.embeddings import gathered, normalized
from memlint.named_tuple import NamedTuple

LOSSES = {
    "vector": ("contrast", "similarity", "distance"),
    "score": ("classes", "numbers", "labels", "pairs", "group", "preferred"),
    "choice": ("pairs", "group"),
}


class Asked(NamedTuple):
    """What is asked of rows.

    output   "vector", "score" or "choice"
    kind     of LOSSES
    sample   rows of a sample
    labels   numbers of a score
    ranks    processes whose vectors are gathered
    flat     samples are joined to one row, and taken apart behind the model
    """

    output: str
    kind: str
    sample: int
    labels: int
    ranks: int
    flat: bool


def asked(spec: TrainingSpec) -> Asked:
    output = spec["row_output"]
    if output not in LOSSES:
        raise UnknownModel(f"{output!r} of rows is not known")
    labels = spec.get("labels", 1 if spec.get("method") == "rerank" else 2)
    kind = spec.get("row_loss") or ("contrast" if output == "vector" else "numbers" if labels == 1 else "classes")
    if kind not in LOSSES[output]:
        raise UnknownModel(f"the loss {kind!r} of rows is not known")
    ranks = spec.get("world_size") or spec.get("device_count") or 1
    sample = spec.get("sequences_per_sample", 1)
    return Asked(output, kind, sample, labels, ranks, bool(spec.get("padding_free", False)))


def without_head(spec: TrainingSpec, config: Decoder) -> Decoder:
    """A score takes the place of the head over the vocabulary; Megatron's model of vectors has none either
    (mcore-bridge 1.6, ``gpt_model.py``)."""
    headless = spec["row_output"] == "score" or (spec["row_output"] == "vector" and _by_megatron(spec))
    return config._replace(tied=True, head_bias=False) if headless else config


def _by_megatron(spec: TrainingSpec) -> bool:
    return bool(spec.get("implementation") == "megatron")


def add_head(spec: TrainingSpec, model: LanguageModel, width: int, dtype: DType) -> None:
    """In the dtype of the model's own weights."""
    way = asked(spec)
    if way.output == "score":
        with default_dtype(dtype):
            setattr(model, "score", Linear(width, way.labels, bias=False))  # noqa: B010 - a part, by which it is counted


def saved(spec: TrainingSpec) -> tuple[str, ...]:
    """What PEFT trains in full beside adapters (``SEQ_CLS``)."""
    return ("score",) if spec["row_output"] == "score" else ()


def outputs(way: Asked, model: Any, tokens: Tensor) -> Tensor:
    """(N, S) -> a vector (N, W), scores (N, labels), or (N, 1) of each row."""
    x = model.hidden(tokens)
    if way.flat and way.output != "choice":
        x = _apart(x)
    with component("logits"):
        if way.output == "vector":
            vectors: Tensor = normalized(_last(x)).contiguous()
            return vectors
        if way.output == "score":
            scores: Tensor = model.score(x)  # or the copy that an adapter trains
            return _last(scores)
        head = model.embed_tokens.weight if model.lm_head is None else model.lm_head.weight
        both = F.linear(x, F.index(head, empty((2,), int64)))
        del x
        return _last(both[..., 0:1] - both[..., 1:2])


def _apart(x: Tensor) -> Tensor:
    """Rows that are one behind the other get a tensor each, filled up to the longest, and then one together."""
    rows = [F.cat((empty((0, x.shape[2]), x.dtype), x[number]), 0) for number in range(x.shape[0])]
    return F.stack(rows, 0)


def _last(x: Tensor) -> Tensor:
    places = empty((x.shape[0],), int64)
    return F.index(x, empty((x.shape[0],), int64), places)


def loss_of(way: Asked, found: Tensor) -> Tensor:
    """(N, ...) -> scalar."""
    rows = found.shape[0]
    if way.output == "vector":
        return _of_vectors(way, found)
    if way.kind == "preferred":
        chosen, rejected = F.split(found, (rows // 2, rows - rows // 2), 0)
        return F.mean(F.neg(F.sigmoid(chosen - rejected)))
    if way.kind == "classes":
        return F.cross_entropy(found, empty((rows,), int64))
    if way.kind in ("numbers", "labels"):  # of labels, too, a loss of each number keeps both (binary cross entropy)
        return F.mse_loss(found, empty(found.shape, float32))
    scores = found.view(-1)
    if way.kind == "pairs":
        return F.mse_loss(scores, to(empty((rows,), int64), scores.dtype))
    total: Tensor | None = None
    group = min(way.sample, rows)
    for start in range(0, rows - group + 1, group):
        tempered = scores[start : start + group] / 1.0
        one = F.cross_entropy(tempered.unsqueeze(0), empty((1,), int64))
        total = one if total is None else total + one
    assert total is not None
    return total / 1.0


def _of_vectors(way: Asked, found: Tensor) -> Tensor:
    if way.kind != "contrast":
        rows = found.shape[0] // 2
        first, second = (F.index(found, empty((rows,), int64)) for _ in range(2))
        lengths = [F.vector_norm(x, -1, keepdim=True) for x in (first, second)]
        same = F.sum((first / lengths[0]) * (second / lengths[1]), 1)
        target = to(empty((rows,), float32), same.dtype)
        if way.kind == "similarity":
            return F.mse_loss(same, target)
        far = 1.0 - same
        near = target * (far * far)
        return F.mean((near + (1.0 - target) * F.relu(0.5 - far)) * 0.5)
    if way.ranks > 1:
        found = gathered(found, way.ranks)
    rows = found.shape[0]
    samples = F.stack([found[start : start + way.sample] for start in range(0, rows, way.sample)], 0)
    queries, passages = samples[:, 0], samples[:, 1:].reshape(-1, samples.shape[2])
    scores = F.cat((F.matmul(queries, passages.transpose(0, 1)),), 1) / 0.1
    return F.cross_entropy(scores, empty((scores.shape[0],), int64))


def losses_of(
    spec: TrainingSpec, model: Any, tokens_of: Callable[[Any], Tensor], batch: Callable[[int, int], Any]
) -> tuple[Callable[[Any], Tensor], Callable[[int, int], Tensor]]:
    """The loss of a batch, and what evaluation makes of one of so many rows."""
    way = asked(spec)
    made: Callable[[Any, Tensor], Tensor] = lambda one, tokens: outputs(way, one, tokens)  # noqa: E731
    if _by_megatron(spec):
        from memlint.models.language import megatron_rlhf  # transformers' models do without

        made = lambda one, tokens: megatron_rlhf.outputs(way.output, one, tokens)  # noqa: E731

    def loss(given: Any) -> Tensor:
        found = made(model, tokens_of(given))
        with component("logits"):
            return loss_of(way, found)

    def evaluate(rows: int, length: int) -> Tensor:
        with no_grad():
            return made(model, tokens_of(batch(rows, length)))

    return loss, evaluate


def unused(spec: TrainingSpec, model: LanguageModel) -> list[Tensor]:
    """A head over the vocabulary that nothing is asked of."""
    return model.lm_head.parameters() if model.lm_head is not None and spec["row_output"] == "vector" else []


def task(spec: TrainingSpec, config: Decoder, dtype: DType, autocast: bool) -> Task:
    """Of a decoder. Facts: ``row_output``, ``row_loss``, ``labels``, ``sequences_per_sample``, ``padding_free``."""
    config = without_head(spec, fitted(spec, config))
    model = language_model(spec, config, dtype, autocast)
    add_head(spec, model, config.width, dtype)
    rows, length = spec["micro_batch_size"] * spec.get("sequences_per_sample", 1), sequence_length(spec)

    def given(rows: int, length: int) -> tuple[Tensor, ...]:
        """Tokens, the mask of padding, labels."""
        return losses.token_numbers(rows, length), losses.token_numbers(rows, length), empty((rows,), int64)

    loss, evaluate = losses_of(spec, model, lambda batch: batch[0], given)
    kept = ("lm_head", "score")
    return Task(
        model, config, lambda: given(rows, length), loss, evaluate, kept, saved(spec), lambda: unused(spec, model)
    )
