"""torchtune's own decoder and losses, against ``memlint.models.language.implementations`` and
``schemas/torchtune.schema.json``."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torchtune.models.gemma import gemma
from torchtune.models.gemma2 import gemma2
from torchtune.models.llama2 import llama2
from torchtune.models.llama3 import llama3
from torchtune.models.llama3_2 import llama3_2_1b, lora_llama3_2_1b
from torchtune.models.mistral import mistral
from torchtune.models.phi3 import phi3
from torchtune.models.qwen2 import qwen2
from torchtune.models.qwen2_5 import qwen2_5_0_5b
from torchtune.modules.loss import CEWithChunkedOutputLoss

from memlint.architectures.torchtune import decoder
from memlint.data import models
from tests.libraries import sources
from tests.libraries.common import CONFIG, ROWS, hold, spec
from tests.libraries.defaults import stated


def build() -> Any:
    return llama3(
        vocab_size=CONFIG["vocab_size"],
        num_layers=CONFIG["num_hidden_layers"],
        num_heads=CONFIG["num_attention_heads"],
        num_kv_heads=CONFIG["num_key_value_heads"],
        embed_dim=CONFIG["hidden_size"],
        max_seq_len=CONFIG["max_position_embeddings"],
        intermediate_dim=CONFIG["intermediate_size"],
    )


def in_chunks() -> Any:
    model = build()
    model.set_num_output_chunks(8)
    return model


def step_loss(function: Any) -> Any:
    """``_loss_step`` of recipes/full_finetune_single_device.py."""

    def loss(model: Any, batch: dict[str, torch.Tensor]) -> Any:
        labels = batch.pop("labels")
        logits = model(**batch)
        labels = torch.hstack((labels[..., 1:], torch.full((ROWS, 1), -100)))
        if not isinstance(logits, list):
            labels = labels.reshape(-1)
            logits = logits.reshape(-1, logits.size(-1))
        found = function(logits, labels)
        del logits
        return found

    return loss


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_training_step_takes_what_ours_takes(dtype: str) -> None:
    whole = step_loss(torch.nn.CrossEntropyLoss(ignore_index=-100))
    hold(spec("torchtune", dtype), build, dtype, whole)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_training_step_with_a_loss_in_chunks_takes_what_ours_takes(dtype: str) -> None:
    chunked = step_loss(CEWithChunkedOutputLoss())
    hold(spec("torchtune", dtype, loss="chunked", loss_chunks=8), in_chunks, dtype, chunked)


SMALL = {
    **{"vocab_size": 1000, "num_layers": 3, "num_heads": 8, "num_kv_heads": 2, "embed_dim": 128, "max_seq_len": 256},
    "intermediate_dim": 352,
}
COMPONENTS: dict[str, tuple[Any, dict[str, int]]] = {
    **{"llama2": (llama2, {}), "mistral": (mistral, {}), "phi3": (phi3, {}), "qwen2": (qwen2, {})},
    **{"gemma": (gemma, {"head_dim": 16}), "gemma2": (gemma2, {"head_dim": 16})},
}


@pytest.mark.parametrize("name", COMPONENTS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_each_component_builder_takes_what_ours_takes(name: str, dtype: str) -> None:
    builder, more = COMPONENTS[name]
    made = decoder(name, {**SMALL, **more})
    whole = step_loss(torch.nn.CrossEntropyLoss(ignore_index=-100))
    hold(spec("torchtune", dtype, decoder=made), lambda: builder(**SMALL, **more), dtype, whole)


@pytest.mark.parametrize(
    ("builder", "ours"),
    [(llama3_2_1b, "meta-llama/Llama-3.2-1B"), (qwen2_5_0_5b, "Qwen/Qwen2.5-0.5B")],
    ids=["Llama 3.2 1B", "Qwen 2.5 0.5B"],
)
def test_builders_make_as_many_parameters_as_the_catalogue_says(builder: Any, ours: str) -> None:
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in builder().parameters())
    found = models.find(ours)
    assert found is not None
    assert count == found.parameters


def test_defaults_are_those_of_the_builders_and_the_losses() -> None:
    given = {name: one.default for name, one in inspect.signature(lora_llama3_2_1b).parameters.items()}
    lora = stated("torchtune", "torchtune 0.6: lora builders")
    assert {key: given[key.removeprefix("model.")] for key in lora} == lora
    chunks = inspect.signature(CEWithChunkedOutputLoss).parameters["num_output_chunks"].default
    assert stated("torchtune", "torchtune 0.6: chunked losses") == {"loss.num_output_chunks": chunks}


def test_it_has_what_the_table_of_releases_names() -> None:
    sources.hold("torchtune")
