"""Which kind of model a ``config.json`` describes, and who reads it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from memlint.architectures.decoder import Decoder
from memlint.architectures.encoder import Encoder, ModernBert
from memlint.architectures.encoder_decoder import T5, EncoderDecoder
from memlint.architectures.huggingface import decoder
from memlint.architectures.huggingface_beside import BESIDE
from memlint.architectures.huggingface_encoder_decoders import ENCODER_DECODERS, T5_TYPES, encoder_decoder, t5
from memlint.architectures.huggingface_encoders import ENCODERS, MODERNBERT, encoder, modernbert
from memlint.architectures.huggingface_remote import REMOTE_TYPES
from memlint.architectures.huggingface_styles import ALIASES, STYLES
from memlint.architectures.huggingface_vision import CLASSIFIERS, tower
from memlint.architectures.huggingface_vision_language import llava, text_alone, vision_language
from memlint.architectures.recorded import MODEL_TYPE, TASKS, Recorded, recorded
from memlint.architectures.sizes import Sizes
from memlint.architectures.vision import Tower
from memlint.architectures.vision_language import Llava, TextAlone, VisionLanguage
from memlint.facts.spec import UnknownModel
from memlint.named_tuple import NamedTuple

Description = (
    Decoder | Encoder | ModernBert | EncoderDecoder | T5 | Tower | Llava | VisionLanguage | TextAlone | Recorded
)


class Kind(NamedTuple):
    """Models that one reader describes.

    types    their ``model_type``
    read     the contents of a ``config.json`` -> a description
    classes  what they may be asked for: values of the fact ``model_class``
    """

    types: Collection[str]
    read: Callable[[Mapping[str, Any]], Description]
    classes: tuple[str, ...]


_OF_ENCODERS = (
    *("sequence_classification", "token_classification", "question_answering", "masked_lm"),
    "embeddings",
)
_SEES = ("vision_language",)

# A model type may be of several kinds, and the class decides: Qwen3.5 is a whole that sees, or its decoder alone.
KINDS = (
    Kind(STYLES.keys() | ALIASES.keys(), decoder, ("causal_lm", "sequence_classification", "value_head", "embeddings")),
    Kind(REMOTE_TYPES, decoder, ("causal_lm",)),
    Kind(ENCODERS, encoder, _OF_ENCODERS),
    Kind((MODERNBERT,), modernbert, _OF_ENCODERS),
    Kind(ENCODER_DECODERS, encoder_decoder, ("seq2seq_lm",)),
    Kind(T5_TYPES, t5, ("seq2seq_lm",)),
    Kind(CLASSIFIERS, tower, ("image_classification",)),
    Kind(("gemma3", "glm4v", "glm46v", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"), vision_language, _SEES),
    Kind(BESIDE, text_alone, _SEES),
    Kind(("llava",), llava, _SEES),
    Kind((MODEL_TYPE,), recorded, TASKS),
)


def described(config: Mapping[str, Any], model_class: str) -> Description:
    """What the contents of a ``config.json`` describe, where the model is of this class.

    Raises UnknownModel where no such model is known, or a size is not.
    """
    sizes = Sizes(config)
    model_type = sizes.get("model_type")
    for kind in KINDS:
        if model_class in kind.classes and model_type in kind.types:
            return kind.read(sizes)
    raise UnknownModel(f"models of class {model_class!r} and type {model_type!r} are not known")
