"""Experts whose common weights are quantised, in transformers' own mixtures: torch's parametrisations unpack them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from memlint.models import UnknownModel, language, record
from memlint.models.language import packed_experts
from tests.differential.test_language_models import (
    CONFIGS,
    TOLERANCE,
    Setting,
    adamw,
    in_transformers,
    spec_of,
    values_known,
)
from tests.differential.training import compare, in_meta, in_torch


class Unpacked(nn.Module):
    """bitsandbytes' ``Bnb4bitParametrization`` and Axolotl's for 8 bits, by what they allocate."""

    def __init__(self, weight: torch.Tensor, bits: int, double: bool) -> None:
        super().__init__()
        self.sizes, self.kept, self.bits, self.double = tuple(weight.shape), weight.dtype, bits, double
        self.blocks = -(-weight.numel() // 64)
        made = [(weight.numel() // weight.shape[-1], torch.float32)]
        if bits == 4:
            made = [(16, torch.float32), (self.blocks, torch.uint8 if double else torch.float32)]
        if bits == 4 and double:
            made.append((-(-self.blocks // 256), torch.float32))
        for number, (size, dtype) in enumerate(made):
            self.register_buffer(f"part{number}", torch.empty(size, dtype=dtype))

    @torch.no_grad()
    def forward(self, packed: torch.Tensor) -> torch.Tensor:
        if self.bits == 8:
            return packed * torch.empty((*self.sizes[:-1], 1)) * 7.874e-3
        scales = None
        if self.double:
            plain = torch.empty(self.blocks)
            scales = plain + 1.0
            del plain
        weight = torch.empty(self.sizes, dtype=self.kept)
        del scales
        return weight


def counted(by: int) -> Any:
    """The hook that turns torch's cache of parametrisations on, or off and empty."""

    def hook(*_: Any) -> None:
        parametrize._cache_enabled += by
        if not parametrize._cache_enabled:
            parametrize._cache = {}

    return hook


def packed(model: Any, bits: int, double: bool) -> Any:
    """Adapters of the queries train, and nothing else."""
    model.requires_grad_(False)
    for layer in model.model.layers:
        experts = layer.mlp.experts
        for name in ("gate_up_proj", "down_proj"):
            whole = getattr(experts, name)
            count = whole.numel()
            shape, dtype = (((count + 1) // 2, 1), torch.uint8) if bits == 4 else (tuple(whole.shape), torch.int8)
            setattr(experts, name, nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False))
            parametrize.register_parametrization(experts, name, Unpacked(whole, bits, double), unsafe=True)
        experts.register_forward_pre_hook(counted(1))
        experts.register_forward_hook(counted(-1))
        layer.self_attn.q_proj.requires_grad_(True)
    return model


def facts_of(config: dict[str, Any], setting: Setting, bits: int, double: bool) -> dict[str, Any]:
    return {
        **setting.facts(config),
        "quantization.bits": bits,
        "quantization.kind": "nf4" if bits == 4 else "int8",
        "quantization.double": double,
        "quantization.experts": True,
    }


# Qwen3's experts are the last of their layer; a shared one follows them in Qwen2's.
CASES = {
    "4 bits": ("qwen3_moe", 4, False, Setting(dtype="bfloat16")),
    "4 bits, nested scales": ("qwen2_moe", 4, True, Setting(dtype="bfloat16")),
    "8 bits": ("qwen3_moe", 8, False, Setting(dtype="bfloat16")),
    "4 bits, checkpointed": ("qwen2_moe", 4, False, Setting(dtype="bfloat16", every=1)),
    "8 bits, checkpointed, of which one stays": ("qwen3_moe", 8, False, Setting(dtype="bfloat16", every=2)),
    "4 bits, checkpointed, of which all stay": ("qwen3_moe", 4, True, Setting(dtype="bfloat16", every=1)),
    "4 bits, the older checkpointing": ("qwen3_moe", 4, True, Setting(dtype="bfloat16", every=1, reentrant=True)),
}


@pytest.mark.parametrize(("name", "bits", "double", "setting"), CASES.values(), ids=CASES)
def test_common_weights_of_experts_are_unpacked_until_their_mixture_is_done(
    name: str, bits: int, double: bool, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"model_type": name, **CONFIGS[name], "decoder_sparse_step": 1}

    def quantise(model: Any, spec: Any, *_: Any) -> list[int]:
        """The experts alone, and queries train as they are: linear layers in few bits have tests of their own."""
        packed_experts.pack([layer.mlp for layer in model.layers], spec)
        model.freeze()
        for layer in model.layers:
            layer.self_attn.q_proj.weight.requires_grad = True
            if layer.self_attn.q_proj.bias is not None:
                layer.self_attn.q_proj.bias.requires_grad = True
        return []

    monkeypatch.setattr(language, "_quantise", quantise)
    monkeypatch.setattr(parametrize, "_cache_enabled", 0)
    monkeypatch.setattr(parametrize, "_cache", {})
    ours = in_meta(spec_of(facts_of(config, setting, bits, double)))
    with values_known(False):
        reference = in_transformers(config, setting)
        build = reference.build_model
        reference.build_model = lambda given: packed(build(given), bits, double)
        truth = in_torch(reference, {}, adamw("foreach"))
    comparison = compare(f"{bits} {double} {setting}", ours, truth._replace(parameters=ours.parameters), True)
    assert comparison.worst <= TOLERANCE, str(comparison)


def test_a_whole_quantised_mixture_has_the_parameters_that_it_had() -> None:
    config = {"model_type": "qwen3_moe", **CONFIGS["qwen3_moe"]}
    setting = Setting(dtype="bfloat16")
    facts = {"tuning": "lora", "lora.r": 8, "lora.targets": ["q_proj"], "frozen_dtype": "bfloat16"}
    plain = record(spec_of({**setting.facts(config), **facts}))
    small = record(spec_of({**facts_of(config, setting, 4, True), **facts}))
    assert small.parameters == plain.parameters
    assert small.trainable_parameters == plain.trainable_parameters


@pytest.mark.parametrize(
    ("name", "targets", "reason"),
    [
        ("gpt_oss", ["q_proj"], "experts like BiasedExperts in 4 bits"),
        ("qwen3_moe", "all-linear", "adapters of experts in few bits"),
        ("qwen3_moe", ["down_proj"], "adapters of experts in few bits"),
    ],
)
def test_what_is_not_known_of_such_experts_is_said(name: str, targets: Any, reason: str) -> None:
    config = {"model_type": name, **CONFIGS[name]}
    facts = {"tuning": "lora", "lora.r": 8, "lora.targets": targets, "frozen_dtype": "bfloat16"}
    with pytest.raises(UnknownModel, match=reason):
        record(spec_of({**facts_of(config, Setting(dtype="bfloat16"), 4, True), **facts}))
