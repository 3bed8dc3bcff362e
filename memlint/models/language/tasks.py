"""Models other than decoders, with what each is given and asked."""

from __future__ import annotations

from typing import Any

from memlint.architectures.adapters import Adapters
from memlint.architectures.decoder import Decoder
from memlint.architectures.encoder import Encoder, ModernBert
from memlint.architectures.encoder_decoder import T5, EncoderDecoder
from memlint.architectures.internvl import InternVl
from memlint.architectures.kinds import described
from memlint.architectures.recorded import Recorded
from memlint.architectures.vision import Tower
from memlint.architectures.vision_language import Llava, LlavaScript, TextAlone, VisionLanguage
from memlint.facts.spec import TrainingSpec
from memlint.meta import functional as F
from memlint.meta.autograd import no_grad
from memlint.meta.nn import Linear
from memlint.meta.tensor import DType, Tensor, component, default_dtype, empty, float32, int64
from memlint.models import UnknownModel
from memlint.models.language import (
    Task,
    adapters,
    attention,
    checkpointed,
    contents_of,
    language_model,
    losses,
    sequence_length,
    smooths_labels,
)
from memlint.models.language.encoder import EncoderModel, EncoderTask
from memlint.models.language.encoder_decoder import EncoderDecoderModel, spectrogram
from memlint.models.language.t5 import T5Model
from memlint.models.language.vision import ImageClassifier, VisionTower, recomputation
from memlint.models.language.vision_language import LlavaTower, Projector, Sight, look
from memlint.named_tuple import NamedTuple


class Adapted(NamedTuple):
    """What an adapter asks of a model that is no decoder."""

    adapters: Adapters
    width: int
    experts: None = None


def task(kind: str, spec: TrainingSpec, dtype: DType, autocast: bool) -> Task:
    """``kind``: the fact ``model_class``. Raises UnknownModel where the model, or the task, is not known."""
    made = _task(kind, spec, dtype, autocast)
    if not hasattr(made.model, "originals"):
        made.model.originals = []  # where an adapter puts the modules that a trained copy stands in for
    return made


def _task(kind: str, spec: TrainingSpec, dtype: DType, autocast: bool) -> Task:
    tuning = spec.get("tuning", "full")
    nothing_trains = tuning == "freeze" and spec.get("freeze.modules") == ("none",)  # as a bound asks
    if tuning != "full" and tuning not in adapters.LINEAR_METHODS and not nothing_trains:
        raise UnknownModel(f"tuning of kind {tuning!r} is known for decoders alone")
    config = spec.get("llava") or described(contents_of(spec), kind)
    if kind == "embeddings" or spec.get("method") == "rerank":
        return _embeddings(kind, spec, config, dtype, autocast)
    if isinstance(config, Decoder) and kind == "sequence_classification":
        return _row_classifier(spec, config, dtype, autocast)
    if isinstance(config, (Encoder, ModernBert)):
        return _encoder(kind, spec, config, dtype, autocast)
    if isinstance(config, (EncoderDecoder, T5)):
        return _encoder_decoder(spec, config, dtype, autocast)
    if isinstance(config, Tower):
        return _image_classifier(spec, config, dtype, autocast)
    if isinstance(config, Llava):
        return _llava(spec, config, dtype, autocast)
    if isinstance(config, Recorded):
        from memlint.models.language import recorded

        return recorded.task(spec, config, dtype)
    return _imported(config, spec, dtype, autocast)


def _imported(
    config: Decoder | VisionLanguage | TextAlone | LlavaScript | InternVl,
    spec: TrainingSpec,
    dtype: DType,
    autocast: bool,
) -> Task:
    """Tasks that other runs do without, in modules of their own."""
    if isinstance(config, Decoder):
        from memlint.models.language import value_head

        return value_head.task(spec, config, dtype, autocast)
    if isinstance(config, VisionLanguage):
        from memlint.models.language import multimodal

        return multimodal.task(spec, config, dtype, autocast)
    if isinstance(config, TextAlone):
        from memlint.models.language import multimodal_on_text

        return multimodal_on_text.task(spec, config, dtype, autocast)
    if isinstance(config, InternVl):
        from memlint.models.language import internvl

        return internvl.task(spec, config, dtype, autocast)
    from memlint.models.language import llava

    return llava.task(spec, config, dtype, autocast)


def _embeddings(kind: str, spec: TrainingSpec, config: Any, dtype: DType, autocast: bool) -> Task:
    """Models of queries and passages: vectors of both, or a score of each pair."""
    from memlint.models.language import embeddings

    if isinstance(config, Decoder) and kind == "embeddings":
        return embeddings.of_decoder(spec, config, dtype, autocast)
    if isinstance(config, Decoder) and kind == "causal_lm":
        return embeddings.pairs_of_decoder(spec, config, dtype, autocast)
    if isinstance(config, Decoder):
        return embeddings.pairs_of_classifier(spec, config, dtype, autocast)
    if isinstance(config, Encoder) or (isinstance(config, ModernBert) and kind == "embeddings"):
        adapted = Adapted(config.adapters, config.width)
        if spec.get("vocabulary_size") is not None:
            config = config._replace(vocabulary=spec["vocabulary_size"])
        if isinstance(config, ModernBert):
            return embeddings.of_encoder(spec, config, _modern_body(spec, config, dtype, autocast), adapted)
        body = _classic_body(spec, config, dtype, autocast)
        made = embeddings.of_encoder if kind == "embeddings" else embeddings.pairs_of_encoder
        return made(spec, config, body, adapted)
    raise UnknownModel(f"scores of pairs by {config.adapters.name or 'such a model'} are not known")


def _encoder(kind: str, spec: TrainingSpec, config: Encoder | ModernBert, dtype: DType, autocast: bool) -> Task:
    labels = spec.get("labels", 2)
    if spec.get("vocabulary_size") is not None:
        config = config._replace(vocabulary=spec["vocabulary_size"])
    model: Any
    if isinstance(config, ModernBert):
        model = _modern(kind, spec, config, dtype, autocast, labels)
    else:
        model = _classic(kind, spec, config, dtype, autocast, labels)

    def given(rows: int, length: int) -> tuple[Tensor, ...]:
        """Tokens, the mask of padding, labels."""
        batch = empty((rows, length), int64), empty((rows, length), int64)
        if kind == "question_answering":
            return *batch, empty((rows,), int64), empty((rows,), int64)
        if kind == "sequence_classification":
            return *batch, empty((rows,), float32 if labels == 1 else int64)
        return *batch, empty((rows, length), int64)

    rows, length = spec["micro_batch_size"] * spec.get("sequences_per_sample", 1), sequence_length(spec)

    def loss(batch: tuple[Tensor, ...]) -> Tensor:
        out: Tensor = model(batch[0], *batch[2:])
        return out

    def evaluate(rows: int, length: int) -> tuple[Tensor, ...]:
        batch = given(rows, length)
        with no_grad():
            _, logits = model.run(batch[0], *batch[2:])
        found: tuple[Tensor, ...] = logits
        return found

    # PEFT trains the classifier in full (SEQ_CLS, TOKEN_CLS) or the layer of spans (QUESTION_ANS).
    head = {"question_answering": ("qa_outputs",), "masked_lm": ()}.get(kind, ("classifier",))
    return Task(
        model,
        Adapted(config.adapters, config.width),
        lambda: given(rows, length),
        loss,
        evaluate,
        ("classifier", "qa_outputs", "predictions", "pooler"),
        head,
    )


def _encoder_decoder(spec: TrainingSpec, config: EncoderDecoder | T5, dtype: DType, autocast: bool) -> Task:
    """BART and its kin, Whisper, T5."""
    if spec.get("vocabulary_size") is not None:
        config = config._replace(vocabulary=spec["vocabulary_size"])
    how = attention(spec, dtype, autocast)
    relative = isinstance(config, T5)
    if relative and how == "sdpa" and not spec.does("transformers.t5_has_sdpa"):
        how = "eager"
    if relative and how == "flash":
        raise UnknownModel("T5 with FlashAttention is not known")
    sound = config if isinstance(config, EncoderDecoder) and config.mel_bins else None  # whose input is sound
    padded = spec.get("padding", False) and sound is None
    options = how, checkpointed(spec), spec.get("checkpointing_reentrant", False), padded
    with default_dtype(dtype):
        model: Any = T5Model(config, *options) if isinstance(config, T5) else EncoderDecoderModel(config, *options)
    model.smooths = smooths_labels(spec)
    target = spec.get("target_length") or (sound.positions[1] if sound is not None else None)
    if target is None:
        raise UnknownModel("nothing bounds the length of an output")

    def given(rows: int, length: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Input, labels, the mask of padding."""
        labels = empty((rows, target), int64)
        if sound is not None:
            return spectrogram(sound, rows, dtype), labels, None
        return empty((rows, length), int64), labels, empty((rows, length), int64)

    rows = spec["micro_batch_size"]
    length = sequence_length(spec) if sound is None else 0

    def loss(batch: tuple[Tensor, Tensor, Tensor | None]) -> Tensor:
        out: Tensor = model(batch[0], batch[1])
        return out

    def evaluate(rows: int, length: int) -> Tensor:
        batch = given(rows, length)
        with no_grad():
            _, logits = model.run(batch[0], batch[1])
        out: Tensor = logits
        return out

    unused = () if relative else model.unused
    adapted = Adapted(config.adapters, config.width)
    return Task(model, adapted, lambda: given(rows, length), loss, evaluate, unused=unused)


def _pixels(size: Any, default: tuple[int, int]) -> tuple[int, int]:
    """Height and width from the fact ``image_size``: the largest of those that occur."""
    if size is None:
        return default
    if isinstance(size, (list, tuple)):
        return (size[0], size[1]) if len(size) == 2 else (max(size),) * 2
    return size, size


def _image_classifier(spec: TrainingSpec, config: Tower, dtype: DType, autocast: bool) -> Task:
    how = attention(spec, dtype, autocast)
    labels = spec.get("labels", config.labels)
    with default_dtype(dtype):
        body = VisionTower(config, how, checkpointed(spec), spec.get("checkpointing_reentrant", False))
        model = ImageClassifier(config, body, labels)
    height, width = _pixels(spec.get("image_size"), config.image)
    if (height, width) != config.image and not config.resized:
        raise UnknownModel(f"{config.adapters.name} takes images of {config.image[0]} pixels, not of {height}")
    rows = spec["micro_batch_size"]

    def given(rows: int) -> tuple[Tensor, Tensor]:
        """Pixels, labels."""
        answers = empty((rows,), float32 if labels == 1 else int64)
        return empty((rows, config.channels, height, width), float32), answers

    def loss(batch: tuple[Tensor, Tensor]) -> Tensor:
        out: Tensor = model(*batch)
        return out

    def evaluate(rows: int, _: int) -> Tensor:
        with no_grad():
            _loss, logits = model.run(*given(rows))
        return logits

    adapted, head = Adapted(config.adapters, config.width), ("classifier",)
    return Task(model, adapted, lambda: given(rows), loss, evaluate, head, head)


def _llava(spec: TrainingSpec, described: Llava, dtype: DType, autocast: bool) -> Task:
    """Facts: ``images_per_sample`` [1; 0 where the data have none], ``frozen_parts``: of ``vision_tower``,
    ``projector``, ``language_model``."""
    config, tower_config = described.decoder, described.tower
    how = attention(spec, dtype, autocast)
    model = language_model(spec, config, dtype, autocast)
    with default_dtype(dtype):
        again = recomputation(spec)
        tower = LlavaTower(tower_config, how, again.of_whole(spec), again.reentrant, again.asks_gradient)
        projector = Projector(tower_config.width, config.width, described.activation, described.projector_bias)
        sight = Sight(tower, projector, described.layer, described.without_first)
    setattr(model, "sight", sight)  # noqa: B010 - a part of the model, by which it is counted and named
    frozen = spec.get("frozen_parts") or ()
    parts = {"vision_tower": tower, "projector": sight.multi_modal_projector}
    if "language_model" in frozen:
        model.freeze()
        for part in parts.values():
            for tensor in part.parameters():
                tensor.requires_grad = True
    for name, part in parts.items():
        if name in frozen:
            part.freeze()
    rows, length = spec["micro_batch_size"] * spec.get("sequences_per_sample", 1), sequence_length(spec)
    images = spec.get("images_per_sample", 1)

    def given(rows: int, length: int) -> tuple[Tensor, ...]:
        """Tokens, the mask of padding, labels, pixels."""
        tokens = [empty((rows, length), int64) for _ in range(3)]
        return *tokens, *([empty((rows * images, tower_config.channels, *tower_config.image), dtype)] if images else [])

    def seen(batch: tuple[Tensor, ...]) -> tuple[Tensor, Tensor | None]:
        return look(model, sight, batch[0], batch[3] if images else None)

    def loss(batch: tuple[Tensor, ...]) -> Tensor:
        x, features = seen(batch)
        with component("logits"):
            out = model.cross_entropy(x, batch[2])
        del features
        return out

    def evaluate(rows: int, length: int) -> Tensor:
        batch = given(rows, length)
        with no_grad():
            x, features = seen(batch)
            with component("logits"):
                logits = model.logits(x)
                losses.full(logits, batch[2])
        del features
        return logits

    kept = ("lm_head", "sight")
    unused = tower.unused(described.layer) if images else sight.parameters()
    return Task(model, config, lambda: given(rows, length), loss, evaluate, kept, unused=unused)


def _row_classifier(spec: TrainingSpec, config: Decoder, dtype: DType, autocast: bool) -> Task:
    """A decoder whose last token classifies, or rewards, the row: every token gets logits, one per row is taken."""
    config = config._replace(tied=True, head_bias=False)  # there is no head over the vocabulary
    if spec.get("vocabulary_size") is not None:
        config = config._replace(vocabulary=spec["vocabulary_size"])
    model = language_model(spec, config, dtype, autocast)
    labels = spec.get("labels", 1 if spec.get("method") == "reward" else 2)
    with default_dtype(dtype):
        score = Linear(config.width, labels, bias=False)
    head: Any = model
    head.score = score  # a part of the model, by which it is counted and named
    rows, length = spec["micro_batch_size"] * spec.get("sequences_per_sample", 1), sequence_length(spec)

    def given(rows: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens, the mask of padding, labels."""
        answers = empty((rows,), float32 if labels == 1 else int64)
        return empty((rows, length), int64), empty((rows, length), int64), answers

    def run(batch: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x = model.hidden(batch[0])
        with component("logits"):
            logits = head.score(x)  # or the copy that an adapter trains
            taken = F.index(logits, empty((logits.shape[0],), int64), empty((logits.shape[0],), int64))
            if labels == 1:
                return F.mse_loss(taken.view(-1), batch[2]), taken
            return F.cross_entropy(taken, batch[2]), taken

    passes = spec.get("forward_passes", 1)

    def batches() -> list[tuple[Tensor, Tensor, Tensor]]:
        """One for each forward pass."""
        return [given(rows // passes, length) for _ in range(passes)]

    def loss(batches: list[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
        total = run(batches[0])[0]
        for batch in batches[1:]:
            total = total + run(batch)[0]
        return total

    def evaluate(rows: int, length: int) -> Tensor:
        with no_grad():
            return run(given(rows, length))[1]

    return Task(model, config, batches, loss, evaluate, ("score",), ("score",))


def _classic(kind: str, spec: TrainingSpec, config: Encoder, dtype: DType, autocast: bool, labels: int) -> EncoderTask:
    body = _classic_body(spec, config, dtype, autocast)
    with default_dtype(dtype):
        return EncoderTask(config, body, kind, labels)


def _classic_body(spec: TrainingSpec, config: Encoder, dtype: DType, autocast: bool) -> Any:
    every = checkpointed(spec)
    if every and config.layer in ("albert", "mpnet"):
        raise UnknownModel(f"transformers cannot recompute the layers of {config.adapters.name}")
    # MPNet and DeBERTa have no other attention, whatever is asked for.
    how = attention(spec, dtype, autocast) if config.layer not in ("mpnet", "deberta") else "eager"
    if how == "eager" and spec.does("transformers.masks_encoders"):
        how = "eager_masked"
    reentrant = spec.get("checkpointing_reentrant", False)
    with default_dtype(dtype):
        if config.layer == "deberta":
            from memlint.models.language.deberta import DebertaModel

            return DebertaModel(config, every, reentrant)
        return EncoderModel(config, how, every, reentrant, spec.get("padding", False))


def _modern(kind: str, spec: TrainingSpec, config: ModernBert, dtype: DType, autocast: bool, labels: int) -> Any:
    from memlint.models.language.modernbert import ModernBertTask

    body = _modern_body(spec, config, dtype, autocast)
    with default_dtype(dtype):
        return ModernBertTask(config, body, kind, labels)


def _modern_body(spec: TrainingSpec, config: ModernBert, dtype: DType, autocast: bool) -> Any:
    from memlint.models.language.modernbert import Body

    how = attention(spec, dtype, autocast)
    reentrant, padded = spec.get("checkpointing_reentrant", False), spec.get("padding", False)
    with default_dtype(dtype):
        return Body(config, how, checkpointed(spec), reentrant, padded)
