"""The torch model of examples/video_llm computes: real numbers on the CPU, at a toy size."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml

FOLDER = Path(__file__).parents[2] / "examples" / "video_llm"


@pytest.fixture(scope="module")
def model() -> ModuleType:
    spec = importlib.util.spec_from_file_location("example_video_llm", FOLDER / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    module.DECODERS["toy/gemma"] = module.Decoder(97, 32, 2, 4, 1, 8, 64, "gemma")
    module.DECODERS["toy/qwen2"] = module.Decoder(97, 32, 2, 4, 2, 8, 64, "qwen2")
    return module


def toy(name: str, **llm: Any) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load((FOLDER / "config.yaml").read_text())
    config["data"].update(max_frames=3, tokens_per_frame=2, max_text_length=6)
    config["model"]["vision"]["feature_dim"] = 12
    config["model"]["llm"].update(name=name, dtype="float32", use_gradient_checkpointing=False, **llm)
    config["training"].update(batch_size=2, use_mixed_precision=False)
    return config


@pytest.mark.parametrize("name", ["toy/gemma", "toy/qwen2"])
@pytest.mark.parametrize(
    "llm",
    [{"attn_implementation": "eager"}, {"use_gradient_checkpointing": True}],
    ids=["eager attention", "checkpointing"],
)
def test_neither_attention_nor_checkpointing_changes_the_gradients(
    name: str, llm: dict[str, Any], model: ModuleType
) -> None:
    def gradients(**changes: Any) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        config = toy(name)
        config["model"]["llm"].update(changes)
        system = model.build_model(config)
        model.training_loss(system, model.make_batch(config)).backward()
        return {key: p.grad for key, p in system.named_parameters()}

    expected, found = gradients(attn_implementation="sdpa"), gradients(**llm)
    for key, gradient in expected.items():
        torch.testing.assert_close(found[key], gradient, rtol=1e-3, atol=1e-6, msg=key)


@pytest.mark.parametrize("name", ["toy/gemma", "toy/qwen2"])
def test_training_lowers_the_loss(name: str, model: ModuleType) -> None:
    torch.manual_seed(0)
    config = toy(name)
    system, batch = model.build_model(config), model.make_batch(config)
    optimizer = torch.optim.AdamW(system.parameters(), lr=3e-3)
    losses = []
    for _ in range(40):
        loss = model.training_loss(system, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_a_token_sees_nothing_that_comes_after_it(model: ModuleType) -> None:
    torch.manual_seed(0)
    layer = model.Layer(model.DECODERS["toy/qwen2"], "sdpa")
    x = torch.randn(1, 9, 32)
    tables = model.RotaryTables(8)(torch.arange(9).unsqueeze(0), x.dtype)
    changed = x.clone()
    changed[:, 6:] += 1
    before, after = layer(x, tables, None), layer(changed, tables, None)
    torch.testing.assert_close(after[:, :6], before[:, :6])
    assert not torch.allclose(after[:, 6:], before[:, 6:])


def test_frames_have_no_targets(model: ModuleType) -> None:
    batch = model.make_batch(toy("toy/gemma"))
    assert batch["labels"].shape == (2, 3 * 2 + 6)
    assert (batch["labels"][:, :6] == model.IGNORED_LABEL).all()
    assert torch.equal(batch["labels"][:, 6:], batch["tokens"])


def test_a_frozen_decoder_leaves_only_the_projector_to_train(model: ModuleType) -> None:
    system = model.build_model(toy("toy/gemma", freeze=True))
    model.training_loss(system, model.make_batch(toy("toy/gemma"))).backward()
    trained = [name for name, p in system.named_parameters() if p.grad is not None]
    assert trained == ["projector.weight", "projector.bias"]


def test_a_sequence_without_any_bound_is_refused(model: ModuleType) -> None:
    config = toy("toy/gemma")
    config["data"]["max_frames"] = None
    with pytest.raises(ValueError, match="max_seq_length"):
        model.make_batch(config)
