"""Models other than decoders, with what each is given and asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memlint.dialects.spec import TrainingSpec
from memlint.meta.autograd import no_grad
from memlint.meta.tensor import DType, Tensor, default_dtype, empty, float32, int64
from memlint.models import UnknownModel
from memlint.models.language import Task, attention, checkpointed, older, sequence_length
from memlint.models.language.encoder import ENCODERS, EncoderModel, EncoderTask, encoder
from memlint.models.language.encoder_decoder import (
    ENCODER_DECODERS,
    EncoderDecoderModel,
    encoder_decoder,
    spectrogram,
)
from memlint.models.language.t5 import SDPA_SINCE, T5_TYPES, T5Model, t5
from memlint.models.language.vision import CLASSIFIERS, ImageClassifier, VisionTower, tower

# The release of transformers in which encoders were first given no mask where nothing is padded (pull request 41265).
BIDIRECTIONAL_SINCE = (5, 0)

ENCODER_TASKS = ("sequence_classification", "token_classification", "question_answering", "masked_lm")


def task(kind: str, spec: TrainingSpec, contents: Mapping[str, Any], dtype: DType, autocast: bool) -> Task:
    """``kind``: the fact ``model_class``. Raises UnknownModel where the model, or the task, is not known."""
    model_type = contents.get("model_type")
    if kind in ENCODER_TASKS and model_type in ENCODERS:
        return _encoder(kind, spec, contents, dtype, autocast)
    if kind == "seq2seq_lm" and (model_type in ENCODER_DECODERS or model_type in T5_TYPES):
        return _encoder_decoder(spec, contents, dtype, autocast)
    if kind == "image_classification" and model_type in CLASSIFIERS:
        return _image_classifier(spec, contents, dtype, autocast)
    raise UnknownModel(f"models of class {kind!r} and type {model_type!r} are not known")


def _encoder(kind: str, spec: TrainingSpec, contents: Mapping[str, Any], dtype: DType, autocast: bool) -> Task:
    config = encoder(contents)
    if spec.get("vocabulary_size") is not None:
        config = config._replace(vocabulary=spec["vocabulary_size"])
    every = checkpointed(spec)
    if every and config.layer in ("albert", "mpnet"):
        raise UnknownModel(f"transformers cannot recompute the layers of {config.model_type}")
    # MPNet has no other attention, whatever is asked for.
    how = attention(spec, dtype, autocast) if config.layer != "mpnet" else "eager"
    if how == "eager" and older(spec.get("transformers_version"), BIDIRECTIONAL_SINCE):
        how = "eager_masked"
    labels = spec.get("labels", 2)
    with default_dtype(dtype):
        body = EncoderModel(config, how, every, spec.get("checkpointing_reentrant", False), spec.get("padding", False))
        model = EncoderTask(config, body, kind, labels)

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
        return logits

    # PEFT trains the classifier in full (SEQ_CLS, TOKEN_CLS) or the layer of spans (QUESTION_ANS).
    head = {"question_answering": ("qa_outputs",), "masked_lm": ()}.get(kind, ("classifier",))
    return Task(
        model,
        config,
        lambda: given(rows, length),
        loss,
        evaluate,
        ("classifier", "qa_outputs", "predictions", "pooler"),
        head,
    )


def _encoder_decoder(spec: TrainingSpec, contents: Mapping[str, Any], dtype: DType, autocast: bool) -> Task:
    """BART and its kin, Whisper, T5."""
    relative = contents.get("model_type") in T5_TYPES
    config: Any = t5(contents) if relative else encoder_decoder(contents)
    if spec.get("vocabulary_size") is not None:
        config = config._replace(vocabulary=spec["vocabulary_size"])
    how = attention(spec, dtype, autocast)
    if relative and how == "sdpa" and older(spec.get("transformers_version"), SDPA_SINCE):
        how = "eager"
    if relative and (how == "flash" or dtype.name == "float16"):
        raise UnknownModel(f"T5 with {'FlashAttention' if how == 'flash' else 'weights in float16'} is not known")
    sound = not relative and config.mel_bins > 0
    padded = spec.get("padding", False) and not sound
    build = T5Model if relative else EncoderDecoderModel
    with default_dtype(dtype):
        model: Any = build(config, how, checkpointed(spec), spec.get("checkpointing_reentrant", False), padded)
    target = spec.get("target_length")
    if target is None:
        raise UnknownModel("nothing bounds the length of an output")

    def given(rows: int, length: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Input, labels, the mask of padding."""
        labels = empty((rows, target), int64)
        if sound:
            return spectrogram(config, rows, dtype), labels, None
        return empty((rows, length), int64), labels, empty((rows, length), int64)

    rows = spec["micro_batch_size"]
    length = 0 if sound else sequence_length(spec)

    def loss(batch: tuple[Tensor, Tensor, Tensor | None]) -> Tensor:
        out: Tensor = model(batch[0], batch[1])
        return out

    def evaluate(rows: int, length: int) -> Tensor:
        batch = given(rows, length)
        with no_grad():
            _, logits = model.run(batch[0], batch[1])
        out: Tensor = logits
        return out

    return Task(model, config, lambda: given(rows, length), loss, evaluate)


def _image_classifier(spec: TrainingSpec, contents: Mapping[str, Any], dtype: DType, autocast: bool) -> Task:
    config = tower(contents)
    how = attention(spec, dtype, autocast)
    labels = spec.get("labels", contents.get("num_labels") or 2)
    with default_dtype(dtype):
        body = VisionTower(config, how, checkpointed(spec), spec.get("checkpointing_reentrant", False))
        model = ImageClassifier(config, body, labels)
    size = spec.get("image_size")
    if size is not None and (size, size) != config.image and config.model_type != "dinov2":
        raise UnknownModel(f"{config.model_type} takes images of {config.image[0]} pixels, not of {size}")
    height, width = config.image if size is None else (size, size)
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

    return Task(model, config, lambda: given(rows), loss, evaluate, ("classifier",), ("classifier",))
