"""A video language model: precomputed frame features, a linear projector, and a decoder that reads them.

Shapes: B videos, S = frames x tokens per frame + text tokens, at most the maximum sequence length.
"""

from __future__ import annotations

from typing import Any

from memlint.architectures import huggingface
from memlint.architectures.decoder import Decoder
from memlint.data import decoders
from memlint.facts.spec import HYPER, TrainingSpec
from memlint.meta import functional as F
from memlint.meta.amp import to
from memlint.meta.nn import Linear, Module
from memlint.meta.tensor import DTYPES, Tensor, default_dtype, empty, float32
from memlint.models import UnknownModel
from memlint.models.depth import Stack, shortened, stack_of
from memlint.models.language.decoder import LanguageModel
from memlint.models.language.losses import token_numbers
from memlint.models.system import System
from memlint.named_tuple import NamedTuple


class Batch(NamedTuple):
    """features (B, frame tokens, F), tokens (B, text), labels (B, S)."""

    features: Tensor
    tokens: Tensor
    labels: Tensor


class VideoLanguageModel(Module):
    def __init__(self, spec: TrainingSpec) -> None:
        decoder = shortened(spec, decoder_of(spec))
        with default_dtype(DTYPES[spec.get("parameter_dtype", "float32")]):
            self.projector = Linear(hyperparameter(spec, "feature_dim"), decoder.width)
            checkpointed = int(spec.get("checkpointing", "none") == "full")
            self.llm = LanguageModel(decoder, spec.get("attention", "sdpa"), checkpointed)
        if spec.get(HYPER + "freeze", False):
            self.llm.freeze()

    def forward(self, batch: Batch) -> Tensor:
        frames = self.projector(to(batch.features, self.projector.weight.dtype))
        embedded = F.cat((frames, self.llm.embed(batch.tokens)), 1)
        loss: Tensor = self.llm(embedded, batch.labels)
        return loss


def decoder_of(spec: TrainingSpec) -> Decoder:
    """Raises UnknownModel."""
    name = hyperparameter(spec, "decoder")
    config = decoders.find(name)
    if config is None:
        raise UnknownModel(f"{name!r} is not in the catalogue of decoders")
    return huggingface.decoder(config)


def stack(spec: TrainingSpec) -> Stack:
    """How the decoder's layers repeat."""
    return stack_of(decoder_of(spec))


def token_counts(spec: TrainingSpec) -> tuple[int, int]:
    """Frame tokens and text tokens of the longest sample. Raises UnknownModel where nothing bounds it."""
    text = hyperparameter(spec, "max_text_length")
    limit = spec.get(HYPER + "max_seq_length")
    frames = spec.get("frames")
    if frames is None:
        if limit is None:
            raise UnknownModel("data.max_frames has no bound, and neither has the sequence: max_seq_length is not set")
        return limit - text, text
    tokens = frames * hyperparameter(spec, "tokens_per_frame")
    return (tokens, text) if limit is None or tokens + text <= limit else (limit - text, text)


def hyperparameter(spec: TrainingSpec, name: str) -> Any:
    return spec[HYPER + name]


def build(spec: TrainingSpec) -> System:
    """The System of a video language model. Facts: those of ``schemas/video-llm.schema.json``."""
    videos = spec["micro_batch_size"]
    frames, text = token_counts(spec)
    model = VideoLanguageModel(spec)
    width = hyperparameter(spec, "feature_dim")

    def batch() -> Batch:
        tokens = token_numbers(videos, text)
        ignored = token_numbers(videos, frames)
        labels = token_numbers(videos, frames + text)
        del ignored
        return Batch(empty((videos, frames, width), float32), tokens, labels)

    # A what-if of 16-bit compute over fp32 weights means autocast, whether or not the switch is in the config.
    compute, weights = spec.get("compute_dtype", "float32"), spec.get("parameter_dtype", "float32")
    autocast = compute in ("bfloat16", "float16") and (spec.get("autocast", False) or weights == "float32")
    return System(
        model=model,
        batch=batch,
        loss=model,
        optimizer=spec.get("optimizer", "adamw"),
        optimizer_options=optimizer_options(spec),
        accumulation=spec.get("gradient_accumulation_steps", 1),
        autocast=DTYPES[compute] if autocast else None,
    )


def optimizer_options(spec: TrainingSpec) -> dict[str, Any]:
    options: dict[str, Any] = {"implementation": spec.get("optimizer_implementation", "foreach")}
    if spec.get("optimizer") == "sgd":
        options["momentum"] = bool(spec.get(HYPER + "momentum", 0))
        options["weight_decay"] = bool(spec.get(HYPER + "weight_decay", 0))
    return options
