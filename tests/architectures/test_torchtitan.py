"""torchtitan's flavors."""

from __future__ import annotations

import pytest

from memlint.architectures.torchtitan import KERNELS, NAMES, decoder
from memlint.facts.spec import UnknownModel
from memlint.models.language import implementations
from tests.architectures.counting import parameters, recorded

# A flavor -> its parameters, counted in torchtitan 0.2.0 on the meta device, with one weight for heads that are tied.
# Those of 1B and 3B, which are of 0.3 alone, and of GPT-OSS are those of the published weights.
COUNTS = {
    ("llama3", "debugmodel"): 6_163_712,
    ("llama3", "1B"): 1_235_814_400,
    ("llama3", "3B"): 3_212_749_824,
    ("llama3", "8B"): 8_030_261_248,
    ("llama3", "70B"): 70_553_706_496,
    ("llama3", "405B"): 405_853_388_800,
    ("qwen3", "debugmodel"): 31_987_968,
    ("qwen3", "0.6B"): 596_049_920,
    ("qwen3", "1.7B"): 1_720_574_976,
    ("qwen3", "4B"): 4_022_468_096,
    ("qwen3", "8B"): 8_190_735_360,
    ("qwen3", "14B"): 14_768_307_200,
    ("qwen3", "32B"): 32_762_123_264,
    ("qwen3", "debugmodel_moe"): 315_758_848,
    ("qwen3", "30B-A3B"): 30_532_122_624,
    ("qwen3", "235B-A22B"): 235_093_634_560,
    ("deepseek_v3", "debugmodel"): 33_014_016,
    ("deepseek_v3", "16B"): 15_706_484_224,
    ("deepseek_v3", "236B"): 235_741_434_880,
    ("deepseek_v3", "671B"): 671_026_404_352,
    ("gpt_oss", "20b"): 20_914_757_184,
    ("gpt_oss", "120b"): 116_829_156_672,
}


@pytest.mark.parametrize(("model", "flavor"), COUNTS)
def test_a_flavor_has_the_parameters_of_torchtitan_s_own(model: str, flavor: str) -> None:
    assert parameters(decoder(model, flavor), "torchtitan") == COUNTS[model, flavor]


@pytest.mark.parametrize("model", NAMES)
def test_every_model_has_a_small_flavor_to_try(model: str) -> None:
    assert recorded(decoder(model, "debugmodel"), "torchtitan").tape.sizes


@pytest.mark.parametrize(("model", "own"), [("llama3", True), ("qwen3", True), ("deepseek_v3", False)])
@pytest.mark.parametrize("release", ["torchtitan", "torchtitan registry"])
def test_dense_models_are_computed_in_torchtitan_s_own_code(release: str, model: str, own: bool) -> None:
    assert implementations.applies(release, decoder(model, "debugmodel")) is own


def test_a_kernel_s_name_behind_a_flavor_is_no_other_size() -> None:
    for ending in KERNELS:
        assert decoder("llama3", f"8B{ending}") == decoder("llama3", "8B")


@pytest.mark.parametrize(("model", "flavor"), [("llama3", "9B"), ("llama9", "8B"), ("qwen3", "20b")])
def test_a_flavor_that_is_not_there_is_named(model: str, flavor: str) -> None:
    with pytest.raises(UnknownModel, match=f"no flavor of {model} whose sizes are known"):
        decoder(model, flavor)
