"""Decoder language models: published parameter counts, and what their logits cost."""

from __future__ import annotations

import pytest

from memlint.data import decoders
from memlint.meta.nn import count
from memlint.meta.tensor import bfloat16, default_dtype, recording
from memlint.models.decoder import LanguageModel, hyperparameters

PUBLISHED = {  # elements of the safetensors files on the hub
    "google/gemma-2b": 2_506_172_416,
    "google/gemma-7b": 8_537_680_896,
    "Qwen/Qwen2-0.5B": 494_032_768,
    "Qwen/Qwen2-1.5B": 1_543_714_304,
    "Qwen/Qwen2-7B": 7_615_616_512,
    "Qwen/Qwen2.5-3B": 3_085_938_688,
    "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    "meta-llama/Llama-2-7b-hf": 6_738_415_616,
    "meta-llama/Meta-Llama-3-8B": 8_030_261_248,
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "meta-llama/Llama-3.2-3B": 3_212_749_824,
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": 1_100_048_384,
    "HuggingFaceTB/SmolLM2-1.7B": 1_711_376_384,
}


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED.items(), ids=PUBLISHED)
def test_each_decoder_has_its_published_number_of_parameters(name: str, parameters: int) -> None:
    config = decoders.find(name)
    assert config is not None
    with recording(), default_dtype(bfloat16):
        model = LanguageModel(hyperparameters(config))
        assert count(model.parameters()) == parameters


def test_every_entry_of_the_catalogue_builds_with_plausible_shapes() -> None:
    for name in decoders.names():
        config = decoders.find(name)
        assert config is not None, name
        decoder = hyperparameters(config)
        assert decoder.heads % decoder.key_value_heads == 0, name


def test_an_alias_is_the_model_it_stands_for() -> None:
    assert decoders.find("google/gemma-2b-it") == decoders.find("google/gemma-2b")


def test_hub_ids_are_found_in_any_case() -> None:
    assert decoders.find("qwen/qwen2-1.5b") == decoders.find("Qwen/Qwen2-1.5B")


def test_a_model_outside_the_catalogue_is_not_found() -> None:
    assert decoders.find("nobody/nothing") is None


def test_another_architecture_is_refused_by_name() -> None:
    with pytest.raises(KeyError, match="mamba"):
        hyperparameters({"model_type": "mamba"})


def test_a_tied_head_is_no_parameter_of_its_own() -> None:
    config = decoders.find("Qwen/Qwen2-0.5B")
    assert config is not None
    decoder = hyperparameters(config)
    with recording():
        tied = count(LanguageModel(decoder).parameters())
    with recording():
        untied = count(LanguageModel(decoder._replace(tied=False)).parameters())
    assert untied - tied == decoder.vocabulary * decoder.width
