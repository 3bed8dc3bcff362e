"""A step of kohya's scripts that train adapters, against the same step in torch: sd-scripts' LoRA module, written here
after networks/lora.py, beside the linear layers and convolutions of a narrow UNet and of CLIP."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from memlint.architectures.sd_scripts import MODELS, Model
from memlint.dialects import registry
from memlint.documents.load import load
from memlint.measure.libraries import AsWithRealTensors
from memlint.measure.trace import converting_in_place
from memlint.meta import autograd
from memlint.models import sd_scripts
from tests.differential.test_diffusion import program_of, text, unet
from tests.differential.training import Step, adamw, in_meta, in_torch

BATCH, SIDE, TOKENS, RANK = 3, 64, 77, 4
COMMAND = (
    "accelerate launch train_network.py --pretrained_model_name_or_path a.safetensors --network_module networks.lora "
    f"--resolution {SIDE * 8} --train_batch_size {BATCH} --network_dim {RANK} --mixed_precision bf16 --cache_latents "
    "--sdpa --network_args conv_dim=2"
)
BY_RANK: list[bool] = []  # whether the adapters leave out ranks of each sample
WIDER = ("ResnetBlock2D", "Downsample2D", "Upsample2D")


class Lora(nn.Module):
    def __init__(self, layer: nn.Module, rank: int) -> None:
        super().__init__()
        if isinstance(layer, nn.Conv2d):
            size: Any = layer.kernel_size, layer.stride, layer.padding
            self.down: nn.Module = nn.Conv2d(layer.in_channels, rank, *size, bias=False)
            self.up: nn.Module = nn.Conv2d(rank, layer.out_channels, 1, bias=False)
        else:
            assert isinstance(layer, nn.Linear)
            self.down = nn.Linear(layer.in_features, rank, bias=False)
            self.up = nn.Linear(rank, layer.out_features, bias=False)
        layer.forward = partial(self.around, layer.forward)  # type: ignore[method-assign]

    def around(self, before: Any, x: torch.Tensor) -> Any:
        result = before(x)
        low = self.down(x)
        if BY_RANK:
            mask = torch.rand((low.size(0), low.size(1 if low.ndim == 4 else -1))) > 0.1
            if low.ndim > 2:
                mask = mask.unsqueeze(1) if low.ndim == 3 else mask.unsqueeze(-1).unsqueeze(-1)
            low = low * mask
        low = self.up(low)
        return result + low * 1.0 * 1.0


def network(model: nn.Module, kinds: tuple[str, ...]) -> list[Lora]:
    made = []
    for outer in [module for module in model.modules() if type(module).__name__ in kinds]:
        for layer in outer.modules():
            if isinstance(layer, (nn.Linear, nn.Conv2d)):
                small = isinstance(layer, nn.Linear) or layer.kernel_size == (1, 1)
                made.append(Lora(layer, RANK if small else 2))
    return made


class Models(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with AsWithRealTensors():
            self.unet, self.text = unet(), text()
        self.to(torch.bfloat16).requires_grad_(False)
        with AsWithRealTensors():
            made = network(self.unet, ("Transformer2DModel", *WIDER))
            made += network(self.text, ("CLIPAttention", "CLIPMLP"))
            self.network = nn.ModuleList(made)
        self.train()


def step(models: Models, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    latents, ids = batch
    latents = latents * 0.2
    with torch.autocast("cpu", torch.bfloat16):
        context = models.text(ids)[0]
    context = context.float()
    noise = torch.empty_like(latents)
    noisy = (latents * 1.0 + noise * 1.0).requires_grad_(True)
    with torch.autocast("cpu", torch.bfloat16):
        prediction = models.unet(noisy, torch.empty(len(ids), dtype=torch.int64), context, return_dict=False)[0]
    return nn.functional.mse_loss(prediction.float(), noise)


def traced() -> Step:
    module: Any = SimpleNamespace(
        build_model=lambda _: Models(),
        make_batch=lambda _: (torch.empty(BATCH, 4, SIDE, SIDE), torch.empty(BATCH, TOKENS, dtype=torch.int64)),
        training_loss=step,
    )
    with converting_in_place():
        return in_torch(module, {}, adamw("foreach"))


@pytest.mark.parametrize("words", ["", " rank_dropout=0.1 module_dropout=0.2"], ids=["all ranks", "ranks left out"])
def test_a_step_takes_what_the_script_s_step_takes(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "BY_RANK", [True] if words else [])
    monkeypatch.setattr(autograd, "ACCUMULATE_IN_PLACE", False)
    monkeypatch.setitem(MODELS, "sd1", Model("narrow", "unet", ("text",), "vae"))
    monkeypatch.setattr(sd_scripts.shipped, "program", lambda name: program_of(name.rpartition("/")[2]))
    monkeypatch.setattr(sd_scripts.Step, "_caching", lambda self: None)
    (spec,) = registry.specs(load("train.sh", COMMAND + words + "\n"))
    assert not spec.unknown_reason
    ours, truth = in_meta(spec), traced()
    assert (ours.parameters, ours.trainable) == (truth.parameters, truth.trainable)
    assert ours.saved == pytest.approx(truth.saved, rel=0.002)
    assert ours.peak == pytest.approx(truth.peak, rel=0.01)
