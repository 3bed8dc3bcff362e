"""Models whose code comes with their weights: deep ones, formulas, names that adapters go by, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.architectures import huggingface
from memlint.models import UnknownModel, record
from tests.models.remote_models import BAICHUAN, CONFIGS, FIRST_GLM, GLM
from tests.models.test_depth import same_tape
from tests.models.test_language_models import spec_of

ADAPTED = {"tuning": "lora", "lora.targets": "all-linear", "checkpointing": "full"}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_deep_model_is_the_sum_of_its_layers_in_numbers_and_in_formulas(name: str) -> None:
    config = {**CONFIGS[name], "num_layers" if "num_layers" in CONFIGS[name] else "num_hidden_layers": 17}
    spec = spec_of(config, autocast=True, compute_dtype="bfloat16", parameter_dtype="bfloat16", **ADAPTED)
    short, whole = record(spec, folded=True), record(spec)
    assert short.folded is not None
    same_tape(short.folded.unfold(), whole.tape)
    assert record(spec, symbolic=True).tape.sizes == whole.tape.sizes


@pytest.mark.parametrize(
    ("name", "targets", "saved", "trained"),
    [
        ("qwen", ["c_attn"], [], 3 * 8 * (128 + 384)),
        ("qwen", ["attn.c_proj"], [], 3 * 8 * (128 + 128)),
        ("qwen", ["mlp.c_proj"], [], 3 * 8 * (256 + 128)),
        ("qwen", ["c_attn"], ["wte", "lm_head"], 3 * 8 * (128 + 384) + 2 * 1000 * 128),
        ("chatglm", ["attention.dense"], [], 3 * 8 * (128 + 128)),
        ("chatglm2", None, [], 3 * 8 * (128 + 256)),
        ("baichuan of 7B", ["W_pack"], [], 3 * 8 * (128 + 384)),
        ("baichuan2 of 7B", "all-linear", [], 3 * 8 * (64 + 192 + 64 + 64 + 3 * (64 + 200))),
    ],
    ids=[
        *("Qwen's attention", "one of two of a name", "the other one", "embedding and head"),
        *("ChatGLM's attention", "PEFT's default", "Baichuan", "a head that is no linear layer"),
    ],
)
def test_adapters_go_by_the_names_of_the_models_own_code(
    name: str, targets: Any, saved: list[str], trained: int
) -> None:
    facts = {"tuning": "lora", "lora.r": 8, "lora.targets": targets, "lora.modules_to_save": saved}
    if targets is None:
        del facts["lora.targets"]
    assert record(spec_of(CONFIGS[name], **facts)).trainable_parameters == trained


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({**CONFIGS["qwen"], "rotary_pct": 0.5}, "rotates part of a head"),
        ({**CONFIGS["qwen"], "visual": {"layers": 2}}, "image encoder"),
        ({**GLM, "padded_vocab_size": 1000, "pre_seq_len": 8}, "pre_seq_len"),
        ({**GLM, "padded_vocab_size": 1000, "rmsnorm": False}, "rmsnorm"),
        ({**FIRST_GLM, "position_encoding_2d": False}, "position_encoding_2d"),
        ({**BAICHUAN, "num_attention_heads": 5}, "num_attention_heads"),
        ({**CONFIGS["minicpm"], "num_experts": 8}, "experts"),
        ({"model_type": "qwen", "hidden_size": 64}, "num_attention_heads"),
    ],
    ids=[
        *("part of a head", "images", "a prefix", "another norm", "one count of places", "heads that do not fit"),
        *("experts", "a size that is not stated"),
    ],
)
def test_what_the_code_can_do_and_is_not_described_is_refused(config: dict[str, Any], why: str) -> None:
    with pytest.raises(UnknownModel, match=why):
        huggingface.decoder(config)
