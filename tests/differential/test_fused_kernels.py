"""Kernels in place of parts of a layer: the static step against torch's run of functions that make, keep and overwrite
what the kernels of Liger, Unsloth and Axolotl do, bound to transformers' modules as these libraries bind theirs."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers.models.llama import modeling_llama

from tests.differential.test_adapters import adapted, lora
from tests.differential.test_language_models import (
    SIZES,
    TOLERANCE,
    Setting,
    adamw,
    in_transformers,
    spec_of,
    values_known,
)
from tests.differential.training import Comparison, compare, in_meta, in_torch

CONFIG = {"model_type": "llama", **SIZES}
OF_LIGER = ["rms_norm", "swiglu", "rotary"]
OF_ADAPTERS = ["lora_mlp", "lora_qkv", "lora_o"]


class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        out, scales = torch.empty_like(x), torch.empty(x.shape[:-1].numel())
        ctx.save_for_backward(x, weight, scales)
        return out

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:  # type: ignore[override]
        weight = ctx.saved_tensors[1]
        return g, torch.empty_like(weight) if weight.requires_grad else None


class Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gate, up)
        return torch.empty_like(gate)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:  # type: ignore[override]
        return ctx.saved_tensors


def product(x: torch.Tensor, layer: Any) -> torch.Tensor:
    out = x.detach() @ layer.base_layer.weight.detach().t()
    inner = x.detach() @ layer.lora_A.default.weight.detach().t().to(x.dtype)
    out.view(-1, out.shape[-1]).addmm_(
        inner.view(-1, inner.shape[-1]), layer.lora_B.default.weight.detach().t().to(x.dtype)
    )
    return out


def gradients(factors: Any, dtype: torch.dtype) -> list[torch.Tensor]:
    return [torch.empty(factor.shape, dtype=dtype) for factor in factors]


def factors_of(layers: Any) -> list[torch.Tensor]:
    return [one.default.weight for layer in layers for one in (layer.lora_A, layer.lora_B)]


class Perceptron(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, layers: Any, in_place: bool, *factors: torch.Tensor) -> torch.Tensor:
        gate, up = product(x, layers[0]), product(x, layers[1])
        out = product(torch.empty_like(gate), layers[2])
        ctx.save_for_backward(x, gate, up)
        ctx.layers, ctx.in_place, ctx.factors = layers, in_place, factors
        return out

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:  # type: ignore[override]
        x, gate, _ = ctx.saved_tensors
        between = g @ ctx.layers[2].base_layer.weight.detach()
        made = gradients(ctx.factors, x.dtype)
        entering = x if ctx.in_place else gate @ ctx.layers[1].base_layer.weight.detach()
        del between
        return entering, None, None, *made


class Queries(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, layers: Any, in_place: bool, *factors: torch.Tensor) -> Any:
        outs = tuple(product(x, layer) for layer in layers)
        ctx.save_for_backward(x)
        ctx.layers, ctx.in_place, ctx.factors = layers, in_place, factors
        return outs

    @staticmethod
    def backward(ctx: Any, *g: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        made = gradients(ctx.factors, x.dtype)
        entering = x if ctx.in_place else torch.empty_like(x)
        return entering, None, None, *made


class Single(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, layer: Any, *factors: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.factors = factors
        return product(x, layer)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return torch.empty_like(x), None, *gradients(ctx.factors, x.dtype)


def bind(model: Any, kernels: list[str]) -> Any:
    """As the libraries do: methods of modules, one by one."""
    in_place = "lora_in_place" in kernels
    for name, module in model.named_modules():
        kind = type(module).__name__
        if kind == "LlamaRMSNorm" and "rms_norm" in kernels:
            module.forward = partial(lambda module, x: Norm.apply(x, module.weight), module)
        elif kind == "LlamaMLP" and "lora_mlp" in kernels:
            layers = (module.gate_proj, module.up_proj, module.down_proj)
            module.forward = partial(
                lambda layers, x: Perceptron.apply(x, layers, in_place, *factors_of(layers)), layers
            )
        elif kind == "LlamaMLP" and "swiglu" in kernels:
            module.forward = partial(
                lambda module, x: module.down_proj(Gate.apply(module.gate_proj(x), module.up_proj(x))), module
            )
        elif name.endswith(".o_proj") and "lora_o" in kernels and hasattr(module, "lora_A"):
            module.forward = partial(lambda module, x: Single.apply(x, module, *factors_of((module,))), module)
        elif kind == "LlamaAttention" and "lora_qkv" in kernels:
            layers = (module.q_proj, module.k_proj, module.v_proj)
            shared: list[Any] = []

            def first(layers: Any, shared: list[Any], x: torch.Tensor) -> torch.Tensor:
                shared[:] = Queries.apply(x, layers, in_place, *factors_of(layers))
                return shared.pop(0)

            module.q_proj.forward = partial(first, layers, shared)
            module.k_proj.forward = partial(lambda shared, x: shared.pop(0), shared)
            module.v_proj.forward = partial(lambda shared, x: shared.pop(0), shared)
    return model


def fused(reference: SimpleNamespace, kernels: list[str]) -> SimpleNamespace:
    build = reference.build_model
    reference.build_model = lambda given: bind(build(given), kernels)
    return reference


def run(kernels: list[str], setting: Setting, rank: int, patch: pytest.MonkeyPatch) -> Comparison:
    facts: dict[str, Any] = {"fused_kernels": kernels}
    reference = in_transformers(CONFIG, setting)
    if rank:
        facts.update({"tuning": "lora", "lora.r": rank, "lora.targets": "all-linear", "frozen_dtype": setting.dtype})
        reference = adapted(reference, lora(r=rank, target_modules="all-linear"))
    ours = in_meta(spec_of({**setting.facts(CONFIG), **facts}))
    if "rotary" in kernels:
        patch.setattr(modeling_llama, "apply_rotary_pos_emb", lambda query, key, *_: (query, key))
    optimizer = adamw(setting.optimizer)
    with values_known(setting.padded):
        truth = in_torch(fused(reference, kernels), {}, optimizer, autocast=setting.autocast or "float32")
    return compare(f"{kernels} {setting}", ours, truth, setting.every > 0)


CASES: dict[str, tuple[list[str], Setting, int]] = {
    "a norm keeps its input and gives its gradient where the incoming one is": (
        ["rms_norm"], Setting(dtype="bfloat16"), 0,
    ),
    "a gate keeps two of a perceptron's inner width and their gradients go there": (
        ["swiglu"], Setting(dtype="bfloat16"), 0,
    ),
    "queries and keys are turned where they are": (["rotary"], Setting(dtype="bfloat16"), 0),
    "Liger's kernels together": (OF_LIGER, Setting(dtype="bfloat16"), 0),
    "Liger's kernels where layers are recomputed": (OF_LIGER, Setting(dtype="bfloat16", every=1), 0),
    "Liger's kernels beside adapters": (OF_LIGER, Setting(dtype="bfloat16", autocast="bfloat16"), 8),
    "a perceptron with its adapters keeps its input, gate and up": (
        ["lora_mlp"], Setting(dtype="bfloat16", autocast="bfloat16"), 8,
    ),
    "Axolotl's kernels for adapters": (OF_ADAPTERS, Setting(dtype="bfloat16", autocast="bfloat16"), 8),
    "Unsloth's kernels, whose gradients go where what they are of was kept": (
        [*OF_ADAPTERS, "lora_in_place", "rms_norm", "rotary"],
        Setting(dtype="bfloat16", autocast="bfloat16"),
        8,
    ),
    "Unsloth's kernels where layers are recomputed": (
        [*OF_ADAPTERS, "lora_in_place", "rms_norm", "rotary"],
        Setting(dtype="bfloat16", autocast="bfloat16", every=1, length=256),
        8,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("kernels", "setting", "rank"), CASES.values(), ids=CASES)
def test_a_step_in_kernels_takes_what_theirs_take(
    kernels: list[str], setting: Setting, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    comparison = run(kernels, setting, rank, monkeypatch)
    assert comparison.worst <= TOLERANCE, str(comparison)
