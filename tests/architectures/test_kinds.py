"""Which kind of model a ``config.json`` describes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from memlint.architectures.decoder import Decoder
from memlint.architectures.encoder import Encoder, ModernBert
from memlint.architectures.encoder_decoder import T5, EncoderDecoder
from memlint.architectures.kinds import KINDS, described
from memlint.architectures.vision import Tower
from memlint.architectures.vision_language import Llava, TextAlone, VisionLanguage
from memlint.data import models as catalogue
from memlint.models import UnknownModel

# A model of the catalogue and what it is asked for -> what describes it.
DESCRIBED = {
    "an encoder of words hidden": ("google-bert/bert-base-uncased", "masked_lm", Encoder),
    "ModernBERT, which classifies rows": ("answerdotai/ModernBERT-base", "sequence_classification", ModernBert),
    "an encoder-decoder": ("facebook/bart-base", "seq2seq_lm", EncoderDecoder),
    "Whisper, whose input is sound": ("openai/whisper-tiny", "seq2seq_lm", EncoderDecoder),
    "T5": ("google-t5/t5-small", "seq2seq_lm", T5),
    "a vision transformer": ("google/vit-base-patch16-224", "image_classification", Tower),
    "LLaVA": ("llava-hf/llava-1.5-7b-hf", "vision_language", Llava),
    "Gemma 3 with its eyes": ("google/gemma-3-4b-it", "vision_language", VisionLanguage),
    "Gemma 3 with eyes that are not asked": ("google/gemma-3-4b-it", "causal_lm", UnknownModel),
    "Gemma 3 of words alone": ("google/gemma-3-1b-it", "sequence_classification", Decoder),
    "Qwen3-VL": ("Qwen/Qwen3-VL-4B-Instruct", "vision_language", VisionLanguage),
    "Qwen2.5-VL": ("Qwen/Qwen2.5-VL-3B-Instruct", "vision_language", VisionLanguage),
    "Qwen3.5 among text": ("Qwen/Qwen3.5-4B", "vision_language", TextAlone),
    "Qwen3.5, the decoder alone": ("Qwen/Qwen3.5-4B", "causal_lm", Decoder),
    "a decoder": ("openai-community/gpt2", "causal_lm", Decoder),
    "a decoder of rewards": ("openai-community/gpt2", "value_head", Decoder),
    "an encoder as a decoder": ("google-bert/bert-base-uncased", "causal_lm", UnknownModel),
    "a decoder that hides words": ("openai-community/gpt2", "masked_lm", UnknownModel),
    "a class that there is not": ("openai-community/gpt2", "next_word", UnknownModel),
}


@pytest.mark.parametrize(("name", "model_class", "kind"), DESCRIBED.values(), ids=DESCRIBED)
def test_a_config_and_the_class_say_what_describes_a_model(name: str, model_class: str, kind: type[Any]) -> None:
    model = catalogue.find(name)
    assert model is not None
    if issubclass(kind, UnknownModel):
        with pytest.raises(UnknownModel):
            described(model.config, model_class)
    else:
        assert type(described(model.config, model_class)) is kind


def test_a_model_type_is_of_one_kind_for_each_class() -> None:
    found = Counter((name, asked) for kind in KINDS for name in kind.types for asked in kind.classes)
    assert [pair for pair, count in found.items() if count > 1] == []


def test_what_no_kind_takes_is_named_with_what_it_was_asked_for() -> None:
    with pytest.raises(UnknownModel, match="models of class 'seq2seq_lm' and type 'led' are not known"):
        described({"model_type": "led"}, "seq2seq_lm")
    with pytest.raises(UnknownModel, match=r"model_type is \[1\], not a word"):
        described({"model_type": [1]}, "seq2seq_lm")


CATALOGUED = sorted({str(model.config["model_type"]) for model in map(catalogue.find, catalogue.names()) if model})


@pytest.mark.parametrize("model_type", [name for name in CATALOGUED if any(name in kind.types for kind in KINDS)])
def test_a_description_holds_what_peft_calls_the_model(model_type: str) -> None:
    models = [model for model in map(catalogue.find, catalogue.names()) if model]
    config = next(model.config for model in models if model.config["model_type"] == model_type)
    for kind in KINDS:
        if model_type in kind.types and ("causal_lm" not in kind.classes or "vision_config" not in config):
            made: Any = kind.read(config)
            if hasattr(made, "adapters"):
                assert made.adapters.name in (model_type, f"{model_type}_text")
            else:  # of models that see, the decoder is adapted
                assert made.decoder.adapters.name
