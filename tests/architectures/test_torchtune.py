"""torchtune's builders: published sizes, and component builders that are given their own."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from memlint.architectures.decoder import checked
from memlint.architectures.torchtune import BUILDERS, COMPONENTS, decoder
from memlint.facts.spec import UnknownModel
from memlint.models.language import implementations
from tests.architectures.counting import parameters, recorded

# A model builder -> parameters of what it makes, counted in torchtune 0.6.1 on the meta device; Qwen 3's as published.
COUNTS = {
    **{"code_llama2_7b": 6_738_546_688, "code_llama2_13b": 13_016_028_160, "code_llama2_70b": 68_976_910_336},
    **{"gemma_2b": 2_506_172_416, "gemma_7b": 8_537_680_896},
    **{"gemma2_2b": 2_614_341_888, "gemma2_9b": 9_241_705_984, "gemma2_27b": 27_227_128_320},
    **{"llama2_7b": 6_738_415_616, "llama2_13b": 13_015_864_320, "llama2_70b": 68_976_648_192},
    **dict.fromkeys(("llama3_8b", "llama3_1_8b"), 8_030_261_248),
    **dict.fromkeys(("llama3_70b", "llama3_1_70b", "llama3_3_70b"), 70_553_706_496),
    "llama3_1_405b": 405_853_388_800,
    **{"llama3_2_1b": 1_235_814_400, "llama3_2_3b": 3_212_749_824},
    "mistral_7b": 7_241_732_096,
    **{"phi3_mini": 3_821_079_552, "phi4_14b": 14_659_507_200},
    **dict.fromkeys(("qwen2_0_5b", "qwen2_5_0_5b"), 494_032_768),
    **dict.fromkeys(("qwen2_1_5b", "qwen2_5_1_5b_base", "qwen2_5_1_5b_instruct"), 1_543_714_304),
    "qwen2_5_3b": 3_085_938_688,
    **dict.fromkeys(("qwen2_7b", "qwen2_5_7b_base", "qwen2_5_7b_instruct"), 7_615_616_512),
    **dict.fromkeys(("qwen2_5_14b_base", "qwen2_5_14b_instruct"), 14_770_033_664),
    **dict.fromkeys(("qwen2_5_32b_base", "qwen2_5_32b_instruct"), 32_763_876_352),
    **dict.fromkeys(("qwen2_5_72b_base", "qwen2_5_72b_instruct"), 72_706_203_648),
    **dict.fromkeys(("qwen3_0_6b_base", "qwen3_0_6b_instruct"), 596_049_920),
    **dict.fromkeys(("qwen3_1_7b_base", "qwen3_1_7b_instruct"), 1_720_574_976),
    **dict.fromkeys(("qwen3_4b_base", "qwen3_4b_instruct"), 4_022_468_096),
    **dict.fromkeys(("qwen3_8b_base", "qwen3_8b_instruct"), 8_190_735_360),
    **dict.fromkeys(("qwen3_14b_base", "qwen3_14b_instruct"), 14_768_307_200),
    "qwen3_32b": 32_762_123_264,
}


@pytest.mark.parametrize("name", BUILDERS)
def test_a_model_builder_makes_as_many_parameters_as_torchtune_s_own(name: str) -> None:
    made = decoder(name, {})
    assert implementations.applies("torchtune", made)
    assert parameters(made, "torchtune") == COUNTS[name]


def test_a_builder_asks_for_a_tied_head_only_where_torchtune_s_own_does() -> None:
    untied = {"tie_word_embeddings": False}
    head = 128_256 * 2048
    assert parameters(decoder("llama3_2_1b", untied), "torchtune") == COUNTS["llama3_2_1b"] + head
    assert decoder("llama3_8b", {"tie_word_embeddings": True}).tied is False
    assert decoder("qwen2_0_5b", untied).tied is True


SMALL: dict[str, Any] = {
    **{"vocab_size": 100, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "embed_dim": 64, "max_seq_len": 32},
    "head_dim": 32,
}


def weights(name: str, given: dict[str, Any]) -> int:
    """Of two layers of LLaMA's kind, by their shapes."""
    width, heads, keys, inner = 64, 4, given["num_kv_heads"] or 4, given["intermediate_dim"] or 256
    head = 32 if name.startswith(("gemma", "qwen3")) else 16
    attention = 2 * width * heads * head + 2 * width * keys * head
    biases = (heads + 2 * keys) * head if name == "qwen2" else 0
    norms = 4 if name == "gemma2" else 2
    own = 2 * head if name.startswith("qwen3") else 0
    asked = given["tie_word_embeddings"]
    default = name == "llama3_2" or name.startswith("gemma")
    tied = asked if asked is not None and name in ("llama3_2", "qwen2", "qwen3 without biases") else default
    return 2 * (attention + biases + own + 3 * width * inner + norms * width) + width + 100 * width * (1 if tied else 2)


ASKED = list(itertools.product(COMPONENTS, (None, 1, 2), (None, 96), (None, True, False), (0.0, 0.1)))


@pytest.mark.parametrize(("name", "keys", "inner", "tied", "dropout"), ASKED)
def test_every_combination_is_a_model_or_names_what_it_is_not_given(
    name: str, keys: int | None, inner: int | None, tied: bool | None, dropout: float
) -> None:
    given = {"num_kv_heads": keys, "intermediate_dim": inner, "tie_word_embeddings": tied, "attn_dropout": dropout}
    if inner is None and not COMPONENTS[name].scales:
        with pytest.raises(UnknownModel, match=f"{name} is not given intermediate_dim"):
            decoder(name, {**SMALL, **given})
        return
    made = decoder(name, {**SMALL, **given})
    assert implementations.applies("torchtune", made)
    assert recorded(made, "torchtune").parameters == weights(name, given)


@pytest.mark.parametrize(
    ("name", "given", "reason"),
    [
        ("llama9_1b", {}, "llama9_1b is no builder of torchtune's that is known"),
        ("llama3", {}, "llama3 is not given embed_dim"),
        ("llama3", {**SMALL, "num_heads": 7}, "embed_dim 64 is no multiple of num_heads 7"),
        ("llama3", {**SMALL, "num_kv_heads": 3}, "4 is no multiple of num_key_value_heads 3"),
        ("llama3", {**SMALL, "num_layers": "two"}, "llama3: num_layers is 'two', not a whole number"),
        ("gemma", {**SMALL, "head_dim": None, "intermediate_dim": 96}, "gemma is not given head_dim"),
    ],
)
def test_a_size_that_cannot_be_is_named(name: str, given: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnknownModel, match=re.escape(reason)):
        checked(decoder(name, given), "")


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
def test_rows_of_capped_scores_cannot_be_packed(packed: bool) -> None:
    made = decoder("gemma2", {**SMALL, "intermediate_dim": 96})
    if not packed:
        assert recorded(made, "torchtune", packing=False).tape.sizes
        return
    with pytest.raises(UnknownModel, match="torchtune refuses packed rows where scores are capped"):
        recorded(made, "torchtune", packing=True)


@pytest.mark.parametrize(("name", "numbers"), [("llama3", 16), ("gemma", 32), ("qwen2", 32), ("phi3", 32)])
def test_the_table_of_rotations_is_twice_as_wide_where_halves_are_rotated(name: str, numbers: int) -> None:
    """Cosine and sine of each place in fp32: of half a head where pairs are rotated, else of a whole one."""
    tape = recorded(decoder(name, {**SMALL, "intermediate_dim": 96}), "torchtune").tape
    kept = [size for size, label in zip(tape.sizes, tape.labels) if label.component == "buffers"]
    assert kept == [SMALL["max_seq_len"] * numbers * 4]
