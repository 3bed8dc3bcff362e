"""litgpt's ``Config``: published models, and every combination of its switches."""

from __future__ import annotations

import itertools
import random
import re
from typing import Any

import pytest

from memlint.architectures import huggingface
from memlint.architectures.decoder import Decoder, checked
from memlint.architectures.litgpt import decoder, published
from memlint.data import models
from memlint.dialects import language_model as lm
from memlint.facts.spec import UnknownModel
from memlint.models.language import implementations
from tests.architectures.counting import parameters

# A hub id -> parameters of litgpt 0.5.13's own GPT(Config.from_name(...)), made on the meta device. Its head is never
# the embedding, so that models whose publishers tie both are larger here.
COUNTS = {
    "EleutherAI/pythia-160m": 162_322_944,
    "EleutherAI/pythia-6.9b": 6_857_302_016,
    "microsoft/phi-2": 2_779_683_840,
    "microsoft/phi-4": 14_659_507_200,
    "meta-llama/Llama-2-7b-hf": 6_738_415_616,
    "meta-llama/Llama-3.2-1B": 1_498_482_688,
    "google/gemma-2b": 3_030_460_416,
    "google/gemma-2-9b": 10_159_209_984,
    "tiiuae/falcon-7b": 7_217_189_760,
    "tiiuae/falcon-40b": 41_835_970_560,
    "allenai/OLMo-1B-hf": 1_279_787_008,
    "allenai/OLMo-2-1124-7B": 7_298_617_344,
    "Qwen/Qwen2.5-0.5B": 630_167_424,
    "Qwen/Qwen3-0.6B": 751_632_384,
    "Qwen/Qwen3-30B-A3B": 30_532_122_624,
    "mistralai/Mixtral-8x7B-v0.1": 46_702_792_704,
    "mistralai/Mistral-7B-v0.1": 7_241_732_096,
    "stabilityai/stablelm-3b-4e1t": 2_795_443_200,
}


@pytest.mark.parametrize(("name", "count"), COUNTS.items(), ids=COUNTS)
def test_a_hub_id_has_the_parameters_of_litgpt_s_own_model(name: str, count: int) -> None:
    found = models.find(name)
    assert found is not None
    made = published(huggingface.decoder(lm.text_config(found.config)))._replace(tied=False)
    assert implementations.applies("litgpt", made)
    assert parameters(made, "litgpt") == count


# The same sizes as litgpt's config.py states them.
CONFIGS: dict[str, dict[str, Any]] = {
    "EleutherAI/pythia-160m": {"block_size": 2048, "n_layer": 12, "n_embd": 768, "n_head": 12, "padding_multiple": 128},
    "microsoft/phi-2": {
        **{"vocab_size": 50257, "padded_vocab_size": 51200, "block_size": 2048, "n_embd": 2560, "n_layer": 32},
        **{"rotary_percentage": 0.4, "shared_attention_norm": True, "lm_head_bias": True, "gelu_approximate": "tanh"},
    },
    "tiiuae/falcon-7b": {
        **{"block_size": 2048, "vocab_size": 65024, "padded_vocab_size": 65024, "n_layer": 32, "n_head": 71},
        **{"n_embd": 4544, "rotary_percentage": 1.0, "n_query_groups": 1, "bias": False, "shared_attention_norm": True},
    },
    "google/gemma-2-9b": {
        **{"name": "Gemma-2-9b", "vocab_size": 256000, "block_size": 8192, "n_layer": 42, "n_head": 16},
        **{"n_embd": 3584, "n_query_groups": 8, "head_size": 256, "intermediate_size": 14336, "padding_multiple": 64},
        **{"bias": False, "parallel_residual": False, "rotary_percentage": 1.0, "norm_class_name": "RMSNorm"},
        **{"mlp_class_name": "GemmaMLP", "scale_embeddings": True, "post_attention_norm": True, "post_mlp_norm": True},
        **{"attention_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "sliding_window_size": 4096},
        "sliding_window_indices": [(number % 2 == 0 and 1) or 0 for number in range(42)],
    },
    "allenai/OLMo-2-1124-7B": {
        **{"vocab_size": 100278, "padded_vocab_size": 100352, "block_size": 4096, "n_embd": 4096, "n_layer": 32},
        **{"n_head": 32, "intermediate_size": 11008, "bias": False, "parallel_residual": False, "norm_1": False},
        **{"rotary_percentage": 1.0, "norm_class_name": "RMSNorm", "mlp_class_name": "LLaMAMLP", "norm_2": False},
        **{"norm_qk": True, "norm_qk_type": "olmo2", "post_attention_norm": True, "post_mlp_norm": True},
    },
}


@pytest.mark.parametrize("name", CONFIGS)
def test_litgpt_s_own_terms_describe_what_the_hub_id_does(name: str) -> None:
    stated = CONFIGS[name]
    made = decoder({"name": name.partition("/")[2], **stated})
    found = models.find(name)
    assert found is not None
    other = published(huggingface.decoder(found.config))
    shared = ("width", "layers", "heads", "key_value_heads", "head_dim", "intermediate", "norm", "residual", "windows")
    switches = ("qkv_bias", "output_bias", "query_norm", "rotary_dim", "scaled", "score_cap", "logit_cap", "head_bias")
    for field in (*shared, *switches):
        assert getattr(made, field) == getattr(other, field), field
    assert parameters(made, "litgpt") == COUNTS[name]


# ---------------------------------------------------------------------------------------------- switches

SMALL: dict[str, Any] = {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 128, "padding_multiple": 8}
SWITCHES: dict[str, tuple[Any, ...]] = {
    "norm_class_name": ("LayerNorm", "RMSNorm"),
    "mlp_class_name": ("GptNeoxMLP", "LLaMAMLP", "GemmaMLP", "LLaMAMoE"),
    "bias": (True, False),
    "attn_bias": (False, True),
    "parallel_residual": (True, False),
    "shared_attention_norm": (False, True),
    "norm_qk": (False, True),
    "norm_qk_type": ("default", "olmo2"),
    "n_query_groups": (None, 1, 2),
    "rotary_percentage": (0.25, 0.0, 1.0),
    "post_attention_norm": (False, True),
    "post_mlp_norm": (False, True),
    "norm_1": (True, False),
    "norm_2": (True, False),
    "lm_head_bias": (False, True),
    "sliding_window_size": (None, 8),
    "attention_logit_softcapping": (None, 50.0),
    "final_logit_softcapping": (None, 30.0),
    "scale_embeddings": (False, True),
    "rope_local_base_freq": (None, 10000.0),
    "rope_interleave": (False, True),
}


def weights(given: dict[str, Any]) -> int:
    """Of the same layers, as anybody would write them in torch."""
    from torch import nn

    width, inner, heads, keys = 64, 96, 4, given["n_query_groups"] or 4
    bias, head = given["bias"], 16

    def norm(size: int) -> Any:
        return nn.LayerNorm(size) if given["norm_class_name"] == "LayerNorm" else nn.RMSNorm(size)

    def linear(inputs: int, outputs: int, bias: bool = bias) -> Any:
        return nn.Linear(inputs, outputs, bias, device="meta")

    def perceptron() -> list[Any]:
        gated = given["mlp_class_name"] != "GptNeoxMLP"
        return [linear(width, inner) for _ in range(1 + gated)] + [linear(inner, width)]

    parts: list[Any] = [nn.Embedding(128, width), linear(width, 128, given["lm_head_bias"]), norm(width)]
    for _ in range(2):
        parts.append(linear(width, (heads + 2 * keys) * head, bias or given["attn_bias"]))
        parts.append(linear(heads * head, width))
        if given["norm_qk"]:
            whole = given["norm_qk_type"] == "olmo2"
            parts += [norm(heads * head if whole else head), norm(keys * head if whole else head)]
        if given["mlp_class_name"] == "LLaMAMoE":
            parts += [linear(width, 4), *(part for _ in range(4) for part in perceptron())]
        else:
            parts += perceptron()
        wanted = (given["norm_1"], given["norm_2"] and not given["shared_attention_norm"])
        wanted += (given["post_attention_norm"], given["post_mlp_norm"])
        parts += [norm(width) for there in wanted if there]
    return sum(parameter.numel() for part in parts for parameter in part.parameters())


def drawn(number: int) -> list[dict[str, Any]]:
    """Combinations, of which most set few switches otherwise than the default."""
    dice = random.Random(11)
    return [
        {name: dice.choice(values) if dice.random() < 0.3 else values[0] for name, values in SWITCHES.items()}
        for _ in range(number)
    ]


def read(given: dict[str, Any]) -> Decoder | str:
    """The model, or the switch that the reason names."""
    try:
        return decoder({**SMALL, **given, "intermediate_size": 96, "n_expert": 4, "n_expert_per_token": 2})
    except UnknownModel as error:
        named = re.match(r"model_config\.yaml: (\w+) ", str(error))
        return "" if named is None else named[1]


# A reason may name a switch that is left as it is: what is set beside it needs it otherwise.
NEEDED = ("bias", "norm_2", "post_mlp_norm")


@pytest.mark.parametrize("given", drawn(150), ids=lambda given: "-".join(map(str, given.values())))
def test_a_combination_is_a_model_of_as_many_weights_or_names_one_switch(given: dict[str, Any]) -> None:
    made = read(given)
    if isinstance(made, str):
        assert made in SWITCHES
        assert given[made] != SWITCHES[made][0] or made in NEEDED
    else:
        assert implementations.applies("litgpt", made)
        assert parameters(made, "litgpt") == weights(given)


def test_every_other_pair_of_switches_is_a_model() -> None:
    """What is not: a mixture with biases, and norms of which one is there and its twin is not."""
    plain = {name: values[0] for name, values in SWITCHES.items()} | {"parallel_residual": False}
    pairs = list(itertools.combinations(SWITCHES, 2))
    found = [read({**plain, one: SWITCHES[one][-1], other: SWITCHES[other][-1]}) for one, other in pairs]
    assert sum(isinstance(made, Decoder) for made in found) > len(pairs) / 2
    refused = {made for made in found if isinstance(made, str)}
    assert refused == {"bias", "shared_attention_norm", "post_mlp_norm", "norm_1", "norm_2"}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        pytest.param({"n_embd": 63}, "n_embd 63 is no multiple of n_head 4", id="a width"),
        pytest.param({"n_layer": "two"}, "n_layer is 'two', not a whole number", id="a word"),
        pytest.param({"vocab_size": None}, "vocab_size is None, not a whole number", id="no vocabulary"),
        pytest.param({"n_embd": 0}, "n_embd is 0, not a whole number", id="nothing"),
        pytest.param({"norm_class_name": "BatchNorm"}, "norm_class_name BatchNorm is not known", id="a norm"),
        pytest.param({"mlp_class_name": "LLaMAMoE", "bias": False}, "n_expert is not stated", id="no experts"),
        pytest.param({"sliding_window_size": 8, "sliding_window_indices": [1]}, "of 1 layers, of 2", id="few layers"),
        pytest.param({"n_query_groups": 3}, "4 is no multiple of num_key_value_heads 3", id="groups"),
    ],
)
def test_a_size_that_cannot_be_is_named(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnknownModel, match=re.escape(reason)):
        checked(decoder({**SMALL, **given}), "")
