"""The architectures that are measured: published sizes, and the switches that a case sets."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.gpu import cases, models
from benchmarks.gpu.cases import REAL, SMALL_SCALE

# Published counts: torchvision's weights (resnet, vit), the DiT paper's table (to the million).
PUBLISHED = {
    "resnet/18/fp32": 11_689_512,
    "resnet/50/fp32": 25_557_032,
    "resnet/101/autocast-bf16": 44_549_160,
    "vit/b16/fp32": 86_567_656,
}
IN_MILLIONS = {"dit/s2/fp32": 33, "dit/b2/fp32": 130, "dit/xl2/autocast-bf16": 675}


def parameters(name: str) -> int:
    with torch.device("meta"):
        model = models.build_model(cases.find(name, REAL).config)
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(("name", "published"), PUBLISHED.items(), ids=PUBLISHED)
def test_published_parameter_counts(name: str, published: int) -> None:
    assert parameters(name) == published


@pytest.mark.parametrize(("name", "millions"), IN_MILLIONS.items(), ids=IN_MILLIONS)
def test_parameter_counts_of_the_diffusion_transformers(name: str, millions: int) -> None:
    assert parameters(name) == pytest.approx(millions * 1e6, rel=0.02)


def config(name: str, **changes: Any) -> dict[str, Any]:
    return {**cases.find(name, SMALL_SCALE).config, "any_kernel": True, **changes}


def loss(settings: dict[str, Any]) -> tuple[float, dict[str, torch.Tensor]]:
    """With the same weights and the same batch, whatever the settings."""
    torch.manual_seed(0)
    model = models.build_model(settings)
    torch.manual_seed(1)
    result = models.training_loss(model, models.make_batch(settings, "cpu"))
    result.backward()
    return result.item(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


SMALLEST = {
    "decoder": "decoder/110m/fp32",
    "encoder": "encoder/base/fp32",
    "vit": "vit/b16/fp32",
    "unet": "unet/64px/fp32",
    "dit": "dit/b2/fp32",
    "resnet": "resnet/50/fp32",
}


@pytest.mark.parametrize("family", SMALLEST)
@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"checkpointing": "full"}, id="recomputed"),
        pytest.param({"checkpointing": "reentrant"}, id="recomputed the older way"),
        pytest.param({"attention": "math"}, id="another kernel"),
        pytest.param({"attention": "eager"}, id="attention written out"),
        pytest.param({"channels_last": True}, id="another memory format"),
    ],
)
def test_a_switch_changes_memory_and_not_what_is_learned(family: str, change: dict[str, Any]) -> None:
    plain = config(SMALLEST[family])
    expected, gradients = loss(plain)
    found, others = loss({**plain, **change})
    assert found == pytest.approx(expected, rel=1e-4)
    assert others.keys() == gradients.keys()
    largest = max(gradient.abs().max().item() for gradient in gradients.values())
    for key, gradient in gradients.items():
        # A bias before a norm has a gradient of zero, and what is left of it is rounding.
        assert torch.allclose(others[key], gradient, rtol=1e-3, atol=1e-5 * largest), key


def test_the_weights_are_of_the_dtype_that_is_asked_for() -> None:
    model = models.build_model(config("decoder/110m/bf16"))
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert torch.get_default_dtype() is torch.float32


def test_a_kernel_that_the_device_lacks_is_replaced_only_where_that_is_allowed() -> None:
    settings = config("decoder/110m/efficient")
    assert loss(settings)[0] > 0
    with pytest.raises(RuntimeError):
        loss({**settings, "any_kernel": False})
