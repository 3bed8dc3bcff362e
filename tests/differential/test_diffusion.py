"""A step of diffusers' training scripts, autoencoder and text encoder included, against the same step in torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._dispatch.python import enable_python_dispatcher

from memlint.architectures.diffusion import Pipeline
from memlint.dialects import registry
from memlint.documents.load import load
from memlint.measure import forward
from memlint.measure.libraries import AsWithRealTensors
from memlint.measure.trace import converting_in_place
from memlint.meta import autograd
from memlint.models import diffusion
from memlint.profiles.program import Program, read
from tests.differential.training import Step, adamw, in_meta, in_torch
from tools.diffusion_programs import Encoding

BATCH, SIDE, TOKENS, RANK = 3, 64, 77, 4
NARROW = Pipeline("sd1", "narrow", "unet", "vae", ("text",), TOKENS, 4, 2, edited="unet-edit")
COMMAND = (
    "accelerate launch train_text_to_image{kind}.py --pretrained_model_name_or_path runwayml/stable-diffusion-v1-5 "
    f"--resolution {SIDE} --train_batch_size {BATCH} --rank {RANK}"
)


def unet(channels: int = 4) -> nn.Module:
    diffusers = pytest.importorskip("diffusers")
    model: nn.Module = diffusers.UNet2DConditionModel(
        in_channels=channels,
        block_out_channels=(64, 128),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        layers_per_block=1,
        cross_attention_dim=96,
    )
    return model


def vae() -> nn.Module:
    diffusers = pytest.importorskip("diffusers")
    model: nn.Module = diffusers.AutoencoderKL(
        block_out_channels=(32, 64),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        layers_per_block=1,
    )
    return model


def text() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.CLIPTextConfig(
        hidden_size=96, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4, vocab_size=1000
    )
    model: nn.Module = transformers.CLIPTextModel(config)
    return model


def given(channels: int) -> Callable[[Mapping[str, int]], dict[str, Any]]:
    return lambda s: {
        "sample": torch.empty(s["B"], channels, s["H"], s["W"]),
        "timestep": torch.empty(s["B"], dtype=torch.int64),
        "encoder_hidden_states": torch.empty(s["B"], s["L"], 96),
        "return_dict": False,
    }


RECIPES: dict[str, Any] = {
    "unet": (unet, given(4), {"B": 2, "H": 24, "W": 40, "L": 77}),
    "unet-edit": (lambda: unet(8), given(8), {"B": 2, "H": 24, "W": 40, "L": 77}),
    "vae": (
        lambda: Encoding(vae()),
        lambda s: {"pixels": torch.empty(s["B"], 3, s["H"], s["W"])},
        {"B": 2, "H": 48, "W": 80},
    ),
    "text": (
        text,
        lambda s: {"input_ids": torch.empty(s["B"], s["L"], dtype=torch.int64)},
        {"B": 2, "L": 77},
    ),
}


@cache
def program_of(name: str) -> Program:
    with enable_python_dispatcher():
        made = forward.program(*RECIPES[name], name, "the test")
    return read(json.loads(json.dumps(made)))


class Models(nn.Module):
    """``trains``: what of the text encoder does, "" for nothing. ``edits``: the UNet is given two images' latents."""

    def __init__(self, low: bool, adapted: bool, checkpointed: bool, trains: str = "", edits: bool = False) -> None:
        super().__init__()
        weights = torch.bfloat16 if low else torch.float32
        with AsWithRealTensors():
            self.unet, self.vae, self.text = unet(8 if edits else 4), vae(), text()
        self.vae.to(weights).requires_grad_(False)
        self.text.to(weights).requires_grad_(False)
        if adapted:
            peft = pytest.importorskip("peft")
            self.unet.to(weights).requires_grad_(False)
            config = peft.LoraConfig(
                r=RANK, lora_alpha=RANK, target_modules=["to_k", "to_q", "to_v", "to_out.0"], init_lora_weights=True
            )
            self.unet = peft.inject_adapter_in_model(config, self.unet)
        if trains:
            self._train_text(trains, weights)
        if checkpointed:
            self.unet.enable_gradient_checkpointing()
            if trains:
                self.text.gradient_checkpointing_enable()
        self.unet.train()
        self.low = low
        self.weights = weights
        self.trains = trains

    def _train_text(self, trains: str, weights: torch.dtype) -> None:
        if trains == "adapters":
            peft = pytest.importorskip("peft")
            targets = ["q_proj", "k_proj", "v_proj", "out_proj"]
            config = peft.LoraConfig(r=RANK, lora_alpha=RANK, target_modules=targets, init_lora_weights=True)
            self.text = peft.inject_adapter_in_model(config, self.text)
        else:
            self.text.to(torch.float32).requires_grad_(trains == "full")
        if trains == "tokens":
            table = self.text.get_input_embeddings().weight.requires_grad_(True)
            self.unet.to(weights).requires_grad_(False)
            self.kept = nn.Parameter(torch.empty_like(table), requires_grad=False)
        self.text.train()


def encoded(models: Models, images: torch.Tensor) -> torch.Tensor:
    moments = models.vae.encode(images.to(models.weights)).latent_dist.parameters
    mean, logarithm = moments.chunk(2, dim=1)
    return mean + torch.exp(0.5 * logarithm) * torch.empty_like(mean)


def step(models: Models, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    images, ids, *before = batch
    latents = encoded(models, images)
    noise = torch.empty_like(latents)
    noisy = latents * 1.0 + noise * 1.0
    with torch.autocast("cpu", torch.bfloat16, enabled=models.low and models.trains != ""):
        embedded = models.text(ids, return_dict=False)[0]
    if models.trains:
        embedded = embedded.float()
    if models.trains == "tokens":
        embedded = embedded.to(models.weights)
    if before:
        original = encoded(models, before[0])
        noisy = torch.cat([noisy, original], dim=1)
    steps = torch.empty(len(ids), dtype=torch.int64)
    with torch.autocast("cpu", torch.bfloat16, enabled=models.low and models.trains != "tokens"):
        prediction = models.unet(noisy, steps, embedded, return_dict=False)[0]
    return nn.functional.mse_loss(prediction.float(), noise.float())


def traced(low: bool, adapted: bool, checkpointed: bool, trains: str = "", edits: bool = False) -> Step:
    def batch(_: Any) -> tuple[torch.Tensor, ...]:
        images = [torch.empty(BATCH, 3, SIDE, SIDE) for _ in range(2 if edits else 1)]
        return images[0], torch.empty(BATCH, TOKENS, dtype=torch.int64), *images[1:]

    module: Any = SimpleNamespace(
        build_model=lambda _: Models(low, adapted, checkpointed, trains, edits),
        make_batch=batch,
        training_loss=step,
    )
    with converting_in_place():
        return in_torch(module, {}, adamw("foreach"))


@pytest.mark.parametrize("checkpointed", [False, True], ids=["keeping activations", "checkpointed"])
@pytest.mark.parametrize("adapted", [False, True], ids=["in full", "LoRA"])
@pytest.mark.parametrize("low", [False, True], ids=["fp32", "bf16"])
def test_a_step_takes_what_the_script_s_step_takes(
    low: bool, adapted: bool, checkpointed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autograd, "ACCUMULATE_IN_PLACE", False)
    monkeypatch.setattr(diffusion, "pipeline", lambda name: NARROW)
    monkeypatch.setattr(diffusion.shipped, "program", lambda name: program_of(name.rpartition("/")[2]))
    command = COMMAND.format(kind="_lora" if adapted else "")
    command += " --mixed_precision bf16" if low else ""
    command += " --gradient_checkpointing" if checkpointed else ""
    (spec,) = registry.specs(load("train.sh", command + "\n"))
    ours, truth = in_meta(spec), traced(low, adapted, checkpointed)
    assert (ours.parameters, ours.trainable) == (truth.parameters, truth.trainable)
    # Besides the models there are some tensors of a latent's size: their number is the script's, and theirs here.
    assert ours.saved == pytest.approx(truth.saved, rel=0.002)
    assert ours.peak == pytest.approx(truth.peak, rel=0.01)


@pytest.mark.parametrize("low", [False, True], ids=["fp32", "bf16"])
def test_an_image_that_is_edited_is_encoded_as_well(low: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autograd, "ACCUMULATE_IN_PLACE", False)
    monkeypatch.setattr(diffusion, "pipeline", lambda name: NARROW)
    monkeypatch.setattr(diffusion.shipped, "program", lambda name: program_of(name.rpartition("/")[2]))
    command = COMMAND.format(kind="").replace("train_text_to_image.py", "train_instruct_pix2pix.py")
    (spec,) = registry.specs(load("train.sh", command + (" --mixed_precision bf16" if low else "") + "\n"))
    ours, truth = in_meta(spec), traced(low, False, False, edits=True)
    assert (ours.parameters, ours.trainable) == (truth.parameters, truth.trainable)
    assert ours.saved == pytest.approx(truth.saved, rel=0.002)
    assert ours.peak == pytest.approx(truth.peak, rel=0.01)


@pytest.mark.parametrize(
    ("script", "trains", "low", "checkpointed"),
    [
        ("train_dreambooth.py --train_text_encoder", "full", True, False),
        ("train_dreambooth_lora.py --train_text_encoder", "adapters", True, True),
        ("textual_inversion.py", "tokens", True, True),
    ],
    ids=["DreamBooth", "adapters", "textual inversion"],
)
def test_a_text_encoder_that_trains_takes_what_it_takes_in_the_script_s_step(
    script: str, trains: str, low: bool, checkpointed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autograd, "ACCUMULATE_IN_PLACE", False)
    monkeypatch.setattr(diffusion, "pipeline", lambda name: NARROW)
    monkeypatch.setattr(diffusion.shipped, "program", lambda name: program_of(name.rpartition("/")[2]))
    command = COMMAND.format(kind="").replace("train_text_to_image.py", script)
    command += " --mixed_precision bf16" if low else ""
    command += " --gradient_checkpointing" if checkpointed else ""
    (spec,) = registry.specs(load("train.sh", command + "\n"))
    assert not spec.unknown_reason
    ours, truth = in_meta(spec), traced(low, trains == "adapters", checkpointed, trains)
    assert (ours.parameters, ours.trainable) == (truth.parameters, truth.trainable)
    assert ours.saved == pytest.approx(truth.saved, rel=0.002)
    assert ours.peak == pytest.approx(truth.peak, rel=0.01)
