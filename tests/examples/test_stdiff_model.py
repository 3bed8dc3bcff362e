"""The torch model of examples/stdiff computes: real numbers on the CPU, at a toy size."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml

FOLDER = Path(__file__).parents[2] / "examples" / "stdiff"


@pytest.fixture(scope="module")
def model() -> ModuleType:
    spec = importlib.util.spec_from_file_location("example_stdiff", FOLDER / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def toy(**training: Any) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load((FOLDER / "kitti_range_train_config.yaml").read_text())
    config["Dataset"].update(batch_size=2, num_observed_frames=3, num_predict_frames=2, rand_Tp=2)
    config["STDiff"]["Diffusion"]["unet_config"].update(
        sample_size=[8, 16],
        m_channels=16,
        layers_per_block=1,
        block_out_channels=[32, 64],
        down_block_types=["DownBlock2D", "AttnDownBlock2D"],
        up_block_types=["AttnUpBlock2D", "UpBlock2D"],
        attention_head_dim=[None, 16],
    )
    dynamics = config["STDiff"]["DiffNet"]
    dynamics["MotionEncoder"].update(image_size=[8, 16], model_channels=4)
    dynamics["Int"]["sde_options"]["dt"] = 0.5
    config["Training"].update(training)
    return config


@pytest.mark.parametrize("attention", ["plain", "sdpa", "xformers"])
@pytest.mark.parametrize("checkpointing", [False, True, "all"])
def test_every_kind_of_attention_and_checkpointing_gives_the_same_gradients(
    attention: str, checkpointing: bool | str, model: ModuleType
) -> None:
    def gradients(**training: Any) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        system = model.build_model(toy(**training))
        batch = model.make_batch(toy())
        model.random.seed(1)
        torch.manual_seed(2)
        model.training_loss(system, batch).backward()
        return {name: p.grad for name, p in system.named_parameters()}

    expected = gradients(attention="plain", gradient_checkpointing=False)
    found = gradients(attention=attention, gradient_checkpointing=checkpointing)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-6, msg=name)


def test_training_lowers_the_loss(model: ModuleType) -> None:
    torch.manual_seed(0)
    system, batch = model.build_model(toy()), model.make_batch(toy())
    optimizer = torch.optim.AdamW(system.parameters(), lr=1e-3)
    losses = []
    for _ in range(15):
        torch.manual_seed(1)
        loss = model.training_loss(system, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]


def test_the_adjoint_gives_the_gradient_of_the_integral(model: ModuleType) -> None:
    torch.manual_seed(0)
    dynamics = model.MotionDynamics(4, 1, stochastic=False).double()
    start = torch.randn(2, 4, 5, 5, dtype=torch.double, requires_grad=True)
    weights = torch.randn(3, 2, 4, 5, 5, dtype=torch.double)
    inputs = [start, *dynamics.parameters()]

    def euler(steps: int) -> torch.Tensor:
        state, states = start, [start]
        for step in range(steps):
            state = state + 2 / steps * dynamics.f(state)
            if (step + 1) % (steps // 2) == 0:
                states.append(state)
        return torch.stack(states)

    steps = 2000
    expected = torch.autograd.grad((euler(steps) * weights).sum(), inputs)
    solved = model.AdjointIntegration.apply(dynamics, start, 2, 2, steps, *dynamics.parameters())
    found = torch.autograd.grad((solved * weights).sum(), inputs)
    for exact, adjoint in zip(expected, found):
        torch.testing.assert_close(adjoint, exact, rtol=2e-2, atol=2e-2 * exact.abs().max().item())


def test_brownian_increments_add_up_and_are_the_same_when_drawn_again(model: ModuleType) -> None:
    path = model.BrownianMotion(torch.zeros(3, 5, dtype=torch.double), 4.0, 60)
    forward = [path.increment(step) for step in range(60)]
    torch.testing.assert_close(torch.stack(forward).sum(0), path.whole)
    assert len(path.cache) == model.BROWNIAN_CACHE_SIZE
    for step in reversed(range(60)):
        torch.testing.assert_close(path.increment(step), forward[step])


def test_brownian_increments_have_the_variance_of_their_step(model: ModuleType) -> None:
    model.random.seed(0)
    path = model.BrownianMotion(torch.zeros(200_000), 3.0, 6)
    for step in range(6):
        assert path.increment(step).var().item() == pytest.approx(0.5, rel=0.03)
