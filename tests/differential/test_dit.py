"""DiT's and SiT's programs against torch: the published classes' operations, in steps as their loops take them."""

from __future__ import annotations

import gc
import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from memlint.dialects import registry
from memlint.documents.load import load
from memlint.facts.spec import TrainingSpec
from memlint.measure.tracker import SavedTensors
from tests.differential.training import Step, adamw, fake_cuda, in_meta

STEPS = 1000
SIZES = {"S": (384, 12, 6), "B": (768, 12, 12)}
COMMAND = "torchrun --nproc_per_node 1 train.py --data-path data --global-batch-size 3"
FAST = "accelerate launch --mixed_precision fp16 --num_processes 1 train.py --feature-path data --global-batch-size 3"


def modulated(x: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class Attention(nn.Module):
    """timm 1.0's."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        parts = self.qkv(x).reshape(rows, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind(0)
        x = F.scaled_dot_product_attention(q, k, v)
        return self.proj(x.transpose(1, 2).reshape(rows, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.attn = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(c).chunk(6, dim=1)
        x = x + gate1.unsqueeze(1) * self.attn(modulated(self.norm1(x), shift1, scale1))
        return x + gate2.unsqueeze(1) * self.mlp(modulated(self.norm2(x), shift2, scale2))


class Denoiser(nn.Module):
    def __init__(self, size: str, patch: int, side: int, checkpointed: bool, halves: bool) -> None:
        super().__init__()
        width, depth, heads = SIZES[size]
        self.patch, self.grid, self.checkpointed, self.halves = patch, side // patch, checkpointed, halves
        self.embed = nn.Conv2d(4, width, patch, patch)
        self.of_time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.of_class = nn.Embedding(1001, width)
        self.places = nn.Parameter(torch.zeros(1, self.grid**2, width), requires_grad=False)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.last, self.modulation = (
            nn.Linear(width, patch**2 * 8),
            nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width)),
        )

    def waves(self, step: torch.Tensor) -> torch.Tensor:
        rates = torch.exp(-math.log(10000) * torch.arange(0, 128, dtype=torch.float32) / 128)
        angles = step[:, None].float() * rates[None]
        return torch.cat([torch.cos(angles), torch.sin(angles)], dim=-1)

    def forward(self, x: torch.Tensor, step: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        x = self.embed(x).flatten(2).transpose(1, 2) + self.places
        time = self.of_time(self.waves(step))
        dropped = torch.rand(label.shape[0]) < 0.1
        c = time + self.of_class(torch.where(dropped, 1000, label))
        for block in self.blocks:
            if self.checkpointed:
                x = torch.utils.checkpoint.checkpoint(block, x, c, use_reentrant=True)
            else:
                x = block(x, c)
        shift, scale = self.modulation(c).chunk(2, dim=1)
        x = self.last(modulated(self.norm(x), shift, scale))
        x = x.reshape(x.shape[0], self.grid, self.grid, self.patch, self.patch, 8)
        x = torch.einsum("nhwpqc->nchpwq", x)
        x = x.reshape(x.shape[0], 8, self.grid * self.patch, self.grid * self.patch)
        return x.chunk(2, dim=1)[0] if self.halves else x


def number(shape: torch.Size) -> torch.Tensor:
    found = torch.rand(shape[0])
    return found[:, None, None, None] + torch.zeros(shape)


def flat(x: torch.Tensor) -> torch.Tensor:
    return x.mean(dim=list(range(1, x.ndim)))


def posterior(start: torch.Tensor, noisy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    mean = number(start.shape) * start + number(start.shape) * noisy
    return mean, number(start.shape), number(start.shape)


def cumulative(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * (1.0 + torch.tanh(0.8 * (x + 0.044715 * torch.pow(x, 3))))


def likelihood(x: torch.Tensor, means: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    centered = x - means
    inverse = torch.exp(-scales)
    above = inverse * (centered + 1 / 255)
    below_above = cumulative(above)
    below = inverse * (centered - 1 / 255)
    below_below = cumulative(below)
    last = torch.log(below_above.clamp(min=1e-12))
    first = torch.log((1.0 - below_below).clamp(min=1e-12))
    between = below_above - below_below
    inner = torch.log(between.clamp(min=1e-12))
    return torch.where(x < -0.999, last, torch.where(x > 0.999, first, inner))


def bound(given: torch.Tensor, start: torch.Tensor, noisy: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    mean, _, logs = posterior(start, noisy)
    given, values = torch.split(given, 4, dim=1)
    least, most = number(start.shape), number(start.shape)
    share = (values + 1) / 2
    their_logs = share * most + (1 - share) * least
    variance = torch.exp(their_logs)
    predicted = number(start.shape) * noisy - number(start.shape) * given
    their_mean, *others = posterior(predicted, noisy)
    del variance, others, predicted, given, values, share, least, most
    apart = 0.5 * (
        -1.0 + their_logs - logs + torch.exp(logs - their_logs) + ((mean - their_mean) ** 2) * torch.exp(-their_logs)
    )
    apart = flat(apart) / math.log(2.0)
    nll = -likelihood(start, their_mean, 0.5 * their_logs)
    nll = flat(nll) / math.log(2.0)
    return torch.where(step == 0, nll, apart)


def diffused(model: Any, start: torch.Tensor, step: torch.Tensor, label: torch.Tensor) -> dict[str, torch.Tensor]:
    noise = torch.randn_like(start)
    noisy = number(start.shape) * start + number(start.shape) * noise
    terms: dict[str, torch.Tensor] = {}
    given = model(noisy, torch.arange(STEPS)[step], label)
    given, values = torch.split(given, 4, dim=1)
    frozen = torch.cat([given.detach(), values], dim=1)
    terms["vb"] = bound(frozen, start, noisy, step)
    terms["mse"] = flat((noise - given) ** 2)
    terms["loss"] = terms["mse"] + terms["vb"]
    return terms


def interpolated(model: Any, start: torch.Tensor, step: torch.Tensor, label: torch.Tensor) -> dict[str, torch.Tensor]:
    noise, time = torch.randn_like(start), torch.rand(start.shape[0])
    column = time[:, None, None, None]
    path = column * start + (1 - column) * noise
    velocity = 1 * start + -1 * noise
    given = model(path, time, label)
    return {"pred": given, "loss": flat((given - velocity) ** 2)}


def autoencoder() -> Any:
    from diffusers import AutoencoderKL

    widths = (128, 256, 512, 512)
    down, up = ("DownEncoderBlock2D",) * 4, ("UpDecoderBlock2D",) * 4
    return AutoencoderKL(
        block_out_channels=widths, down_block_types=down, up_block_types=up, layers_per_block=2, latent_channels=4
    )


def in_torch(spec: TrainingSpec, mixed: str) -> Step:
    """The second of two steps of the loop: gradients of the first one are there until the forward pass is over."""
    name, patch = spec["model"].split("-")[1].split("/")
    halves, checkpointed = spec["model"].startswith("SiT"), spec.get("checkpointing") == "full"
    features, pixels, rows = spec["hyperparameters.features"], spec["image_size"], spec["micro_batch_size"]
    losses = interpolated if halves else diffused
    with fake_cuda() as tracker:
        model, vae = Denoiser(name, int(patch), pixels // 8, checkpointed, halves), autoencoder()
        copies = [torch.empty_like(p) for p in model.parameters()]
        trained = [p for p in model.parameters() if p.requires_grad]
        weights = [*model.parameters(), *vae.parameters()]
        update = adamw("foreach")(trained)

        def denoise(*given: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.float16, enabled=mixed != "float32"):
                made = model(*given)
            return made.float()

        held = saved_bytes = 0
        for turn in range(2):
            if turn == 1:
                gc.collect(1)
                tracker.reset_peak()
            with tracker.phase("forward"):
                x = torch.empty(rows, 4, pixels // 8, pixels // 8) if features else torch.empty(rows, 3, pixels, pixels)
                y = torch.empty(rows, dtype=torch.int64)
                if not features:
                    with torch.no_grad():
                        x = vae.encode(x).latent_dist.sample().mul_(0.18215)
                step = torch.randint(0, STEPS, (rows,))
                with SavedTensors(weights, tracker) as saved:
                    terms = losses(denoise, x, step, y)
                    loss = terms["loss"].mean()
                held, saved_bytes = tracker.live_bytes, saved.bytes
            with tracker.phase("backward"):
                update.zero_grad()
                loss.backward()
            with tracker.phase("optimizer_step"):
                update.step()
                for state in update.state.values():
                    tracker.forget(state["step"])
            if halves and turn == 0:  # SiT draws images, and decodes them with a graph, which goes with their name
                drawn = vae.decode(torch.empty(rows, 4, pixels // 8, pixels // 8), return_dict=False)[0]
                assert drawn.requires_grad
        del copies
        phases = {name: tracker.phase_peaks[name] for name in ("forward", "backward", "optimizer_step")}
        every = sum(p.numel() for p in weights)
        return Step(every, sum(p.numel() for p in trained), max(phases.values()), held, saved_bytes, phases)


def run_of(command: str) -> TrainingSpec:
    (spec,) = registry.specs(load("run.sh", f"{command}\n"))
    return spec


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(f"{COMMAND} --model DiT-S/4", id="images that are encoded"),
        pytest.param(f"{COMMAND} --model DiT-B/2 --image-size 512", id="four times as many tokens"),
        pytest.param(f"{FAST} --model DiT-S/2", id="features, under accelerate"),
        pytest.param(f"{COMMAND} --model SiT-S/2", id="interpolants, after images were drawn"),
        pytest.param(f"{FAST.replace('fp16', 'no')} --model DiT-B/4", id="features, in fp32"),
    ],
)
def test_a_step_takes_the_memory_that_torch_takes(command: str) -> None:
    spec = run_of(command)
    assert spec.unknown_reason == ""
    theirs, ours = in_torch(spec, spec["compute_dtype"]), in_meta(spec)
    assert (ours.parameters, ours.trainable) == (theirs.parameters, theirs.trainable)
    if spec.get("checkpointing") != "full":  # its own hooks hide what it packs
        assert ours.saved == pytest.approx(theirs.saved, rel=0.001)
    assert ours.held == pytest.approx(theirs.held, rel=0.001)
    assert ours.peak == pytest.approx(theirs.peak, rel=0.001)
    for phase, size in theirs.phases.items():
        assert ours.phases[phase] == pytest.approx(size, rel=0.001), phase
