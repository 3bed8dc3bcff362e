"""PEFT's other adapters: the static step against their own code on a small LLaMA, traced with CUDA's semantics.

Within two thousandths; AdaLoRA, whose penalty for factors that are not orthogonal is not modelled, in a hundredth.
"""

from __future__ import annotations

from typing import Any

import peft
import pytest
import torch

from memlint.models import record
from tests.differential.test_adapters import EVERY, PLAIN, run, with_adapter
from tests.differential.test_language_models import CONFIGS, Setting, adamw, spec_of, values_known
from tests.differential.training import compare, in_meta, in_torch

TASK: dict[str, Any] = {"task_type": "CAUSAL_LM"}
QV = ["q_proj", "v_proj"]
PSOFT = {
    "psoft_orth": True,
    "psoft_mag_a": True,
    "psoft_mag_b": True,
    "use_cayley_neumann": False,
    "num_cayley_neumann_terms": 5,
    "cayley_neumann_eps": None,
}
PADDED = PLAIN._replace(padded=True)

# facts, what PEFT is given, setting
CASES: dict[str, tuple[dict[str, Any], peft.PeftConfig, Setting]] = {
    "VeRA": ({"tuning": "vera", "lora.r": 16}, peft.VeraConfig(**TASK, r=16, target_modules=QV), PLAIN),
    "VeRA with dropout, checkpointed": (
        {"tuning": "vera", "lora.r": 16, "lora.dropout": 0.1},
        peft.VeraConfig(**TASK, r=16, vera_dropout=0.1, target_modules=QV),
        PLAIN._replace(every=1),
    ),
    "RandLoRA": ({"tuning": "randlora", "lora.r": 8}, peft.RandLoraConfig(**TASK, r=8, target_modules=QV), PLAIN),
    "DeLoRA": ({"tuning": "delora", "lora.r": 8}, peft.DeloraConfig(**TASK, r=8, target_modules=QV), PLAIN),
    "GraLoRA": (
        {"tuning": "gralora", "lora.r": 8, "adapter.options": {"gralora_k": 2, "hybrid_r": 0}},
        peft.GraloraConfig(**TASK, r=8, gralora_k=2, target_modules=QV),
        PLAIN,
    ),
    "GraLoRA with a plain part": (
        {"tuning": "gralora", "lora.r": 8, "adapter.options": {"gralora_k": 2, "hybrid_r": 4}},
        peft.GraloraConfig(**TASK, r=8, gralora_k=2, hybrid_r=4, target_modules=QV),
        PLAIN,
    ),
    "LoHa": ({"tuning": "loha", "lora.r": 8}, peft.LoHaConfig(**TASK, r=8, alpha=8, target_modules=QV), PLAIN),
    "LoKr": (
        {"tuning": "lokr", "lora.r": 4, "adapter.options": {"decompose_factor": 4}},
        peft.LoKrConfig(**TASK, r=4, alpha=8, decompose_factor=4, target_modules=QV),
        PLAIN,
    ),
    "LoKr of both factors": (
        {"tuning": "lokr", "lora.r": 2, "adapter.options": {"decompose_both": True, "decompose_factor": -1}},
        peft.LoKrConfig(**TASK, r=2, alpha=2, decompose_both=True, target_modules=QV),
        PLAIN,
    ),
    "FourierFT": (
        {"tuning": "fourierft", "lora.r": 50}, peft.FourierFTConfig(**TASK, n_frequency=50, target_modules=QV), PLAIN,
    ),
    "OFT by the number of blocks": (
        {"tuning": "oft_input", "lora.r": 4, "adapter.options": {"oft_block_size": 0}},
        peft.OFTConfig(**TASK, r=4, oft_block_size=0, target_modules=QV),
        PLAIN,
    ),
    "OFT by their size": (
        {"tuning": "oft_input", "lora.r": 0, "lora.targets": EVERY, "adapter.options": {"oft_block_size": 16}},
        peft.OFTConfig(**TASK, oft_block_size=16, target_modules=list(EVERY)),
        PLAIN,
    ),
    "BOFT": ({"tuning": "boft", "lora.r": 4}, peft.BOFTConfig(**TASK, boft_block_size=4, target_modules=QV), PLAIN),
    "PSOFT": (
        {"tuning": "psoft", "lora.r": 8, "adapter.options": PSOFT},
        peft.PsoftConfig(**TASK, r=8, psoft_alpha=8, target_modules=QV),
        PLAIN,
    ),
    "PSOFT by a series": (
        {"tuning": "psoft", "lora.r": 8, "adapter.options": {**PSOFT, "use_cayley_neumann": True}},
        peft.PsoftConfig(**TASK, r=8, psoft_alpha=8, use_cayley_neumann=True, target_modules=QV),
        PLAIN,
    ),
    "LN tuning": (
        {"tuning": "ln_tuning", "lora.targets": ["input_layernorm", "post_attention_layernorm", "norm"]},
        peft.LNTuningConfig(**TASK, target_modules=["input_layernorm", "post_attention_layernorm", "norm"]),
        PLAIN,
    ),
    "prefix tuning": (
        {"tuning": "prefix", "adapter.virtual_tokens": 12},
        peft.PrefixTuningConfig(**TASK, num_virtual_tokens=12),
        PLAIN,
    ),
    "prefix tuning of a padded batch": (
        {"tuning": "prefix", "adapter.virtual_tokens": 12},
        peft.PrefixTuningConfig(**TASK, num_virtual_tokens=12),
        PADDED,
    ),
    "adaption prompt": (
        {"tuning": "adaption_prompt", "adapter.options": {"adapter_len": 10, "adapter_layers": 2}},
        peft.AdaptionPromptConfig(**TASK, adapter_len=10, adapter_layers=2),
        PLAIN,
    ),
    "trainable tokens": (
        {"tuning": "trainable_tokens", "lora.targets": ["embed_tokens"], "adapter.options": {"token_indices": [1, 2]}},
        peft.TrainableTokensConfig(**TASK, token_indices=[1, 2], target_modules=["embed_tokens"]),
        PLAIN,
    ),
    "IA3 of named feed-forward layers": (
        {"tuning": "ia3", "lora.targets": EVERY, "ia3.feedforward": ["gate_proj", "up_proj", "down_proj"]},
        peft.IA3Config(**TASK, target_modules=list(EVERY), feedforward_modules=["gate_proj", "up_proj", "down_proj"]),
        PLAIN,
    ),
    "p-tuning through a wider encoder, padded": (
        {"tuning": "p_tuning", "adapter.virtual_tokens": 20, "adapter.options": {"encoder_hidden_size": 96}},
        peft.PromptEncoderConfig(**TASK, num_virtual_tokens=20, encoder_hidden_size=96),
        PADDED,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_each_method_takes_the_memory_that_peft_takes(case: str) -> None:
    facts, adapter, setting = CASES[case]
    if facts["tuning"] not in ("ln_tuning", "prefix", "adaption_prompt", "trainable_tokens", "ia3", "p_tuning"):
        facts = {"lora.targets": QV, **facts}
    comparison = run("llama", facts, adapter, setting)
    assert comparison.worst <= 0.002, str(comparison)


def test_a_tied_head_makes_its_own_copy_of_trainable_tokens() -> None:
    facts = {"tuning": "trainable_tokens", "adapter.options": {"token_indices": [1, 2]}}
    adapter = peft.TrainableTokensConfig(**TASK, token_indices=[1, 2], target_modules=["embed_tokens"])
    comparison = run("qwen2", facts, adapter, PLAIN)
    assert comparison.worst <= 0.002, str(comparison)


def test_adalora_keeps_three_statistics_of_each_trained_number() -> None:
    """The rank allocator makes them after the first step; here they are there from the start, as in every other."""
    config = {"model_type": "llama", **CONFIGS["llama"]}
    facts = {"tuning": "adalora", "lora.r": 8, "lora.targets": QV, "frozen_dtype": "bfloat16"}
    ours = in_meta(spec_of({**PLAIN.facts(config), **facts}))
    with values_known(False):
        adapter = peft.AdaLoraConfig(**TASK, init_r=8, target_modules=QV, total_step=100, orth_reg_weight=0.5)
        reference = with_adapter(config, PLAIN, adapter)
        build = reference.build_model

        def remembering(given: Any) -> Any:
            model = build(given)
            for name, trained in list(model.named_parameters()):
                if "ranknum" in name:  # update_layer freezes it; enabling the adapter of a fake model undoes that
                    trained.requires_grad_(False)
                for kind in ("ipt", "mean", "uncertainty") if trained.requires_grad else ():
                    model.register_buffer(f"{kind}_{name.replace('.', '_')}", torch.empty_like(trained))
            return model

        reference.build_model = remembering
        truth = in_torch(reference, {}, adamw("foreach"))
    comparison = compare("AdaLoRA", ours, truth)
    assert comparison.worst <= 0.01, str(comparison)


def whole(tuning: str, rank: int, options: dict[str, Any]) -> int:
    """Bytes of buffers of a small model with that adapter."""
    facts = {"tuning": tuning, "lora.r": rank, "lora.targets": QV, "adapter.options": options}
    config = {"model_type": "llama", **CONFIGS["llama"]}
    tape = record(spec_of({**PLAIN.facts(config), "frozen_dtype": PLAIN.dtype, **facts})).tape
    return sum(size for size, label in zip(tape.sizes, tape.labels) if label.component == "buffers")


@pytest.mark.parametrize(
    ("svd", "init", "keeps"),
    [
        pytest.param("full", "psoft_init", True, id="all vectors of a full decomposition"),
        pytest.param("lowrank", "psoft_init", False, id="as many as were asked for"),
        pytest.param("full", "pissa_init", False, id="a product is a tensor of its own"),
    ],
)
def test_psoft_keeps_on_a_card(svd: str, init: str, keeps: bool) -> None:
    config, rank = CONFIGS["llama"], 8
    width, layers = config["hidden_size"], config["num_hidden_layers"]
    keys = width // config["num_attention_heads"] * config["num_key_value_heads"]
    least = whole("psoft", rank, PSOFT)
    more = layers * 4 * width * (width - rank + min(width, keys) - rank)
    assert whole("psoft", rank, {**PSOFT, "psoft_svd": svd, "ab_svd_init": init}) == least + keeps * more


def test_bofts_permutation_stays_on_the_host_where_the_model_was_placed_before() -> None:
    config = CONFIGS["llama"]
    placed = whole("boft", 4, {"permutation_on_host": True})
    assert whole("boft", 4, {}) - placed == config["num_hidden_layers"] * 2 * 4 * config["hidden_size"] ** 2
