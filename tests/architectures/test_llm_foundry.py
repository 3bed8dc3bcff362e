"""llm-foundry's ``MPTConfig``: published models, and every combination of its switches."""

from __future__ import annotations

import itertools
import random
import re
from typing import Any

import pytest

from memlint.architectures.decoder import checked
from memlint.architectures.llm_foundry import decoder
from memlint.data import models
from memlint.facts.spec import UnknownModel
from memlint.models.language import llm_foundry
from tests.architectures.counting import parameters

ALIBI = {"alibi": True}
# Hub id -> what its config.json says in MPT's terms, and parameters of the published weights.
PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "mosaicml/mpt-7b": ({"d_model": 4096, "n_heads": 32, "n_layers": 32}, 6_649_286_656),
    "mosaicml/mpt-30b": ({"d_model": 7168, "n_heads": 64, "n_layers": 48}, 29_957_200_896),
}


@pytest.mark.parametrize(("sizes", "count"), PUBLISHED.values(), ids=PUBLISHED)
def test_the_published_sizes_have_the_parameters_of_the_published_weights(sizes: dict[str, Any], count: int) -> None:
    made = decoder({**sizes, "vocab_size": 50432, "no_bias": True, "attn_config": ALIBI})
    assert llm_foundry.applies(made)
    assert parameters(made, "llm_foundry") == count


@pytest.mark.parametrize("name", [name for name in PUBLISHED if models.find(name)])
def test_a_config_json_of_mpt_has_the_same_terms(name: str) -> None:
    found = models.find(name)
    assert found is not None
    assert parameters(decoder(found.config), "llm_foundry") == PUBLISHED[name][1]


SMALL = {"d_model": 64, "n_heads": 4, "n_layers": 2, "vocab_size": 128, "max_seq_len": 32}
# Where a switch stands, its name, and its values, the first of which is the default.
SWITCHES: dict[tuple[str, str], tuple[Any, ...]] = {
    ("", "norm_type"): ("low_precision_layernorm", "layernorm", "rmsnorm", "low_precision_rmsnorm", "triton_rmsnorm"),
    ("", "no_bias"): (False, True),
    ("", "attention_bias"): (None, True, False),
    ("", "learned_pos_emb"): (True, False),
    ("", "tie_word_embeddings"): (True, False),
    ("", "expansion_ratio"): (4, 2.5),
    ("", "logit_scale"): (None, "inv_sqrt_d_model"),
    ("", "final_logit_softcapping"): (None, 30.0),
    ("", "fc_type"): ("torch", "te"),
    ("attn_config", "attn_type"): (
        *("multihead_attention", "multiquery_attention", "grouped_query_attention", "sparse_attention"),
    ),
    ("attn_config", "kv_n_heads"): (None, 2),
    ("attn_config", "qk_ln"): (False, True),
    ("attn_config", "qk_gn"): (False, True),
    ("attn_config", "alibi"): (False, True),
    ("attn_config", "rope"): (False, True),
    ("attn_config", "rope_impl"): ("dail", "hf"),
    ("attn_config", "clip_qkv"): (None, 6.0),
    ("attn_config", "fused_qkv"): (True, False),
    ("attn_config", "sliding_window_size"): (-1, 16),
    ("ffn_config", "ffn_type"): ("mptmlp", "mptglu", "te_ln_mlp"),
    ("ffn_config", "ffn_hidden_size"): (None, 96),
    ("ffn_config", "ffn_act_fn"): (None, {"name": "silu"}, {"name": "mish"}),
}
Chosen = dict[tuple[str, str], Any]


def config(chosen: Chosen) -> dict[str, Any]:
    whole: dict[str, Any] = {**SMALL, "attn_config": {}, "ffn_config": {}}
    for (room, name), value in chosen.items():
        if value is not None:
            (whole[room] if room else whole)[name] = value
    return whole


def drawn(number: int) -> list[Chosen]:
    dice = random.Random(5)
    return [
        {switch: dice.choice(values) if dice.random() < 0.25 else values[0] for switch, values in SWITCHES.items()}
        for _ in range(number)
    ]


def weights(chosen: Chosen) -> int:
    """Of the same layers, as anybody would write them in torch."""
    from torch import nn

    given = {name: value for (_, name), value in chosen.items()}
    width, heads, head, bias = 64, 4, 16, not given["no_bias"]
    keys = {"multiquery_attention": 1}.get(given["attn_type"], given["kv_n_heads"] or heads)
    inner = given["ffn_hidden_size"] or int(width * given["expansion_ratio"])

    def norm(size: int) -> Any:
        return nn.RMSNorm(size) if "rms" in given["norm_type"] else nn.LayerNorm(size, bias=bias)

    parts: list[Any] = [nn.Embedding(128, width), norm(width)]
    if given["learned_pos_emb"] and not given["alibi"] and not given["rope"]:
        parts.append(nn.Embedding(32, width))
    if not given["tie_word_embeddings"]:
        parts.append(nn.Linear(width, 128, bias=False))
    for _ in range(2):
        qkv = bias if given["attention_bias"] is None else given["attention_bias"]
        parts += [norm(width), norm(width), nn.Linear(width, (heads + 2 * keys) * head, bias=qkv)]
        parts += [nn.Linear(width, width, bias=bias), nn.Linear(inner, width, bias=bias)]
        parts += [nn.Linear(width, inner, bias=bias) for _ in range(1 + (given["ffn_type"] == "mptglu"))]
        if given["qk_ln"]:
            parts += [norm(heads * head), norm(keys * head)]
        elif given["qk_gn"]:
            parts += [norm(head), norm(head)]
    return sum(parameter.numel() for part in parts for parameter in part.parameters())


def reason(chosen: Chosen) -> str:
    """Why there is no model; "" where there is one."""
    try:
        decoder(config(chosen))
    except UnknownModel as error:
        return str(error)
    return ""


@pytest.mark.parametrize("chosen", drawn(150), ids=lambda chosen: "-".join(map(str, chosen.values())))
def test_a_combination_is_a_model_of_as_many_weights_or_names_one_switch(chosen: Chosen) -> None:
    why = reason(chosen)
    if not why:
        assert parameters(decoder(config(chosen)), "llm_foundry") == weights(chosen)
        return
    named = re.split(r"[ .]", why.removeprefix("attn_config.").removeprefix("ffn_config."))[0]
    [set_so] = [value != SWITCHES[switch][0] for switch, value in chosen.items() if switch[1] == named]
    assert set_so


def test_nine_of_ten_pairs_of_switches_that_are_known_alone_are_known_together() -> None:
    plain = {switch: values[0] for switch, values in SWITCHES.items()}
    alone = [(switch, value) for switch, values in SWITCHES.items() for value in values[1:]]
    known = [one for one in alone if not reason({**plain, one[0]: one[1]})]
    pairs = [(one, other) for one, other in itertools.combinations(known, 2) if one[0] != other[0]]
    found = [reason({**plain, one[0]: one[1], other[0]: other[1]}) for one, other in pairs]
    assert {why for why in found if why} == {
        "attn_config.rope beside alibi is not known",
        "attn_config.qk_gn beside qk_ln: llm-foundry refuses both",
    }
    assert found.count("") == len(pairs) - 2


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        pytest.param({"d_model": 66}, "d_model 66 is not shared among n_heads 4", id="a width"),
        pytest.param({"head_dim": 8}, "d_model 64 is not shared among n_heads 4", id="narrow heads"),
        pytest.param({"vocab_size": None}, "vocab_size is not stated", id="no vocabulary"),
        pytest.param({"n_layers": 0}, "n_layers is 0, not a whole number", id="no layers"),
        pytest.param({"attn_config": {"kv_n_heads": 3}}, "4 is no multiple of num_key_value_heads 3", id="groups"),
        pytest.param(
            {"attn_config": {"rope": True, "rope_dail_config": {"type": "xpos"}}},
            "attn_config.rope_dail_config.type xpos is not known",
            id="scaled rotations",
        ),
    ],
)
def test_a_size_that_cannot_be_is_named(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(UnknownModel, match=re.escape(why)):
        checked(decoder({**SMALL, **changed}), "")
