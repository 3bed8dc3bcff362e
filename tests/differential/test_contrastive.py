"""Pairs of images and texts: the step of a small model that is known by its program, against the same step in torch."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from memlint.facts.spec import HYPER, Fact, TrainingSpec
from memlint.measure import forward
from memlint.models import contrastive
from memlint.models.step import record_step
from memlint.profiles import shipped
from memlint.profiles.program import read
from tests.differential.training import GRANULARITY_BYTES, adamw, in_torch, walk

PAIRS = 24
Config = dict[str, Any]


class Towers(nn.Module):
    """An image tower and a text tower that end in features of 64 numbers of length 1, and a scale."""

    def __init__(self) -> None:
        super().__init__()
        self.visual = nn.Sequential(nn.Conv2d(3, 32, 8, 8), nn.GELU(), nn.Flatten(1), nn.Linear(32 * 16, 64))
        self.words = nn.Embedding(500, 48)
        self.text = nn.Sequential(nn.LayerNorm(48), nn.Linear(48, 64))
        self.scale = nn.Parameter(torch.ones([]))

    def forward(self, image: torch.Tensor, text: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        images = nn.functional.normalize(self.visual(image), dim=-1)
        texts = nn.functional.normalize(self.text(self.words(text)).mean(1), dim=-1)
        return images, texts, self.scale.exp()


def inputs(sizes: Any) -> dict[str, torch.Tensor]:
    return {"image": torch.empty(sizes["B"], 3, 32, 32), "text": torch.zeros(sizes["B"], 64, dtype=torch.int64)}


def gathered(mine: tuple[torch.Tensor, ...], devices: int, tracks: bool) -> list[torch.Tensor]:
    """Features of all devices, where no process but this one is there."""
    every = [[torch.zeros_like(one.detach()) for _ in range(devices)] for one in mine]
    if tracks:
        for one, own in zip(every, mine):
            one[0] = own
    return [torch.cat(one) for one in every]


def logits(config: Config, out: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    images, texts, scale = out
    devices, local = config.get("world_size", 1), config.get("local_loss", False)
    if devices == 1:
        return scale * images @ texts.T, scale * texts @ images.T
    every_image, every_text = gathered((images, texts), devices, not local)
    if local:
        return scale * images @ every_text.T, scale * texts @ every_image.T
    by_image = scale * every_image @ every_text.T
    return by_image, by_image.T


def training_loss(model: Towers, batch: dict[str, Any]) -> torch.Tensor:
    """What ClipLoss computes; the loop names what the model returned."""
    batch["out"] = images, texts, scale = model(batch["image"], batch["text"])
    if "cached" in batch:
        for kept, mine in zip(batch["cached"], (images, texts)):
            kept += [torch.zeros_like(mine.detach()) for _ in range(batch["config"]["accumulated"])]
        images, texts = (torch.cat([*kept[1:], mine]) for kept, mine in zip(batch["cached"], (images, texts)))
    by_image, by_text = logits(batch["config"], (images, texts, scale))
    labels = torch.arange(len(by_image))
    return (nn.functional.cross_entropy(by_image, labels) + nn.functional.cross_entropy(by_text, labels)) / 2


def build_model(config: Config) -> Towers:
    model = Towers()
    if config.get("locked"):
        model.visual.requires_grad_(False)
    return model


def make_batch(config: Config) -> dict[str, Any]:
    """One batch; with those that a step goes back over one by one, all of them are there."""
    more = config.get("accumulated", 1) - 1
    cached: Any = {"cached": ([], []), "others": [inputs({"B": PAIRS}) for _ in range(more)]} if more else {}
    return {**inputs({"B": PAIRS}), **cached, "config": config}


MODULE: Any = SimpleNamespace(build_model=build_model, make_batch=make_batch, training_loss=training_loss)


@pytest.fixture(autouse=True)
def _recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    made = forward.program(Towers, inputs, {"B": 4}, "open_clip/Towers", "these tests", {})
    program = read(json.loads(json.dumps(made)))
    monkeypatch.setattr(shipped, "program", lambda name: program)


@pytest.mark.parametrize(
    "config",
    [
        pytest.param({}, id="one device"),
        pytest.param({"autocast": "float16"}, id="one device, float16"),
        pytest.param({"locked": True, "autocast": "bfloat16"}, id="a locked image tower"),
        pytest.param({"world_size": 8, "autocast": "bfloat16"}, id="logits of all devices by all"),
        pytest.param({"world_size": 8, "local_loss": True}, id="a local loss"),
        pytest.param({"accumulated": 3, "autocast": "bfloat16"}, id="a step of several batches"),
    ],
)
def test_a_step_takes_what_torchs_does(config: Config) -> None:
    autocast = config.get("autocast", "float32")
    batches = config.get("accumulated", 1)
    truth = in_torch(MODULE, config, adamw("foreach"), accumulation=batches, autocast=autocast)
    facts = {
        **{"model": "Towers", "micro_batch_size": PAIRS, "optimizer_implementation": "foreach"},
        **{"world_size": config.get("world_size", 1), HYPER + "local_loss": config.get("local_loss", False)},
        **{"compute_dtype": autocast, "autocast": autocast != "float32"},
        **({"frozen_parts": ["visual"]} if config.get("locked") else {}),
        "gradient_accumulation_steps": batches,
    }
    made = {name: Fact(name, value, "written") for name, value in facts.items()}  # type: ignore[arg-type]
    spec = TrainingSpec("open-clip", None, None, made, "contrastive")  # type: ignore[arg-type]
    phases, held = walk(record_step(contrastive.build, spec).tape)
    if batches == 1:
        phases["forward"] += GRANULARITY_BYTES  # the loop of the trace still names the loss of the step before
    assert {name: phases[name] for name in truth.phases} == truth.phases
    assert held == truth.held
