"""litgpt's own GPT and loss, against ``memlint.models.language.implementations`` and ``schemas/litgpt.schema.json``."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from litgpt import GPT, Config
from litgpt.config import configs
from litgpt.finetune import lora
from litgpt.utils import chunked_cross_entropy

from memlint.architectures.litgpt import decoder
from memlint.data import models
from tests.architectures.counting import parameters
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


SMALL: dict[str, Any] = {
    **{"name": "small", "n_layer": 3, "n_embd": 128, "n_head": 8, "vocab_size": 1000, "padding_multiple": 8},
    **{"block_size": LENGTH, "intermediate_size": 352},
}
LLAMA = {
    **{"norm_class_name": "RMSNorm", "mlp_class_name": "LLaMAMLP", "bias": False, "parallel_residual": False},
    "rotary_percentage": 1.0,
}
BEHIND = {"post_attention_norm": True, "post_mlp_norm": True}
WINDOWS = {"sliding_window_size": 64, "sliding_window_indices": [1, 0, 1]}
GEMMA = {**LLAMA, "mlp_class_name": "GemmaMLP", "scale_embeddings": True, "head_size": 32}
SWITCHES: dict[str, dict[str, Any]] = {
    "parts beside each other": {},
    "parts that share a norm, and a head with biases": {"shared_attention_norm": True, "lm_head_bias": True},
    "parts that share a norm, one head of keys": {"shared_attention_norm": True, "bias": False, "n_query_groups": 1},
    "parts in turn": {"parallel_residual": False},
    "biases of queries, keys and values alone": {**LLAMA, "attn_bias": True},
    "norms of queries and keys": {**LLAMA, "norm_qk": True},
    "norms behind the parts alone": {
        **{**LLAMA, **BEHIND, "norm_qk": True, "norm_qk_type": "olmo2", "norm_1": False, "norm_2": False},
    },
    "Gemma": {**GEMMA, "name": "Gemma"},
    "Gemma 2": {
        **{**GEMMA, **BEHIND, **WINDOWS, "name": "Gemma-2"},
        **{"attention_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    },
    "Gemma 3": {
        **{**GEMMA, **BEHIND, **WINDOWS, "name": "Gemma-3", "norm_qk": True},
        **{"rope_local_base_freq": 10000.0, "rope_indices": [0, 1, 1]},
    },
    "pairs of neighbours": {**LLAMA, "rope_interleave": True},
    "norms without weights": {**LLAMA, "norm_class_name": "LayerNorm", "name": "OLMo"},
}


@pytest.mark.parametrize("switches", SWITCHES.values(), ids=SWITCHES)
def test_each_switch_of_a_config_takes_what_ours_takes(switches: dict[str, Any]) -> None:
    given = {**SMALL, **switches}
    ours = spec("litgpt", "bfloat16", decoder=decoder(given), packing=True)
    hold(ours, lambda: GPT(Config(**given)), "bfloat16", pretraining_loss)


@pytest.mark.parametrize("given", configs, ids=lambda given: str(given["name"]))
def test_each_config_that_litgpt_ships_has_as_many_parameters_as_ours(given: dict[str, Any]) -> None:
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in GPT(Config(**given)).parameters())
    assert parameters(decoder(given), "litgpt") == count


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
