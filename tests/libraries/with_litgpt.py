"""litgpt's own GPT and loss, against ``memlint.models.language.implementations`` and ``schemas/litgpt.schema.json``."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from litgpt import GPT, Config
from litgpt.finetune import lora
from litgpt.utils import chunked_cross_entropy

from memlint.data import models
from tests.libraries import sources
from tests.libraries.common import CONFIG, LENGTH, hold, spec
from tests.libraries.defaults import stated


def build() -> GPT:
    return GPT(
        Config(
            block_size=LENGTH,
            padded_vocab_size=CONFIG["vocab_size"],
            n_layer=CONFIG["num_hidden_layers"],
            n_head=CONFIG["num_attention_heads"],
            n_query_groups=CONFIG["num_key_value_heads"],
            n_embd=CONFIG["hidden_size"],
            intermediate_size=CONFIG["intermediate_size"],
            rotary_percentage=1.0,
            parallel_residual=False,
            bias=False,
            norm_class_name="RMSNorm",
            mlp_class_name="LLaMAMLP",
        )
    )


def finetuning_loss(model: Any, batch: Any) -> Any:
    """``fit`` of litgpt/finetune/full.py."""
    model.loop = logits = model(batch["tokens"])
    return chunked_cross_entropy(logits[..., :-1, :], batch["labels"][..., 1:])


def chunked_finetuning_loss(model: Any, batch: Any) -> Any:
    """``fit`` of litgpt/finetune/lora.py: the head gives 128 tokens at a time."""
    model.loop = logits = model(batch["tokens"], lm_head_chunk_size=128)
    logits[-1] = logits[-1][..., :-1, :]
    return chunked_cross_entropy(logits, batch["labels"][..., 1:])


def pretraining_loss(model: Any, batch: Any) -> Any:
    """``fit`` of litgpt/pretrain.py: the data loader has shifted the labels."""
    model.loop = logits = model(batch["tokens"])
    return chunked_cross_entropy(logits, batch["labels"])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("loss", "facts"),
    [
        pytest.param(finetuning_loss, {}, id="finetune full"),
        pytest.param(chunked_finetuning_loss, {"loss": "chunked"}, id="finetune lora"),
        pytest.param(pretraining_loss, {"packing": True}, id="pretrain"),
    ],
)
def test_a_training_step_takes_what_ours_takes(dtype: str, loss: Any, facts: dict[str, Any]) -> None:
    hold(spec("litgpt", dtype, **facts), build, dtype, loss)


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("pythia-160m", "EleutherAI/pythia-160m"),
        ("Llama-3.2-1B", "meta-llama/Llama-3.2-1B"),
        ("Qwen2.5-0.5B", "Qwen/Qwen2.5-0.5B"),
        ("gemma-2-2b", "google/gemma-2-2b"),
        ("phi-2", "microsoft/phi-2"),
        ("Mistral-7B-v0.3", "mistralai/Mistral-7B-v0.3"),
    ],
)
def test_litgpts_names_have_the_sizes_of_ours(name: str, ours: str) -> None:
    theirs = Config.from_name(name)
    found = models.find(ours)
    assert found is not None
    config = dict(found.config)
    assert (theirs.n_layer, theirs.n_embd, theirs.n_head) == (
        config["num_hidden_layers"],
        config["hidden_size"],
        config["num_attention_heads"],
    )
    assert theirs.n_query_groups == config.get("num_key_value_heads", theirs.n_head)
    assert theirs.intermediate_size == config["intermediate_size"]


def test_defaults_are_those_of_finetune_lora() -> None:
    given = {name: one.default for name, one in inspect.signature(lora.setup).parameters.items()}
    for key, default in stated("litgpt", "litgpt 0.5: finetune").items():
        group, _, name = key.rpartition(".")
        theirs = getattr(given[group], name) if group else given[name]
        assert theirs == default, key


def test_it_has_what_the_table_of_releases_names() -> None:
    sources.hold("litgpt")
