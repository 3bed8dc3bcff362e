"""STDiff: predict video frames with a diffusion UNet that is steered by motion features.

A compact PyTorch model of the training system in this folder. It computes what the real code computes, operation
by operation, so that its memory is the real system's memory: motion encoder, ConvGRU, an SDE (or ODE) that is
integrated with the adjoint method, and a diffusers-style UNet whose residual blocks are modulated by the motion.

    config = yaml.safe_load(open("kitti_range_train_config.yaml"))
    model = build_model(config)
    loss = training_loss(model, make_batch(config, device="cuda"))
    loss.backward()

Shapes: N videos per batch, To observed and Tp predicted frames, C channels, H x W pixels. The UNet sees N * Tp
images: every predicted frame is an image of its own.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

NORM_GROUPS = 32  # diffusers' default for every GroupNorm of a UNet2DModel
TIME_EMBEDDING_FACTOR = 4  # the time embedding is four times as wide as the first level
BROWNIAN_CACHE_SIZE = 45  # torchsde.BrownianInterval keeps this many increments (its `cache_size`)
TIMESTEP_PERIOD = 10000

Config = dict[str, Any]


def pair(size: int | Sequence[int]) -> tuple[int, int]:
    """Height and width: ``image_size`` may be one number or a pair."""
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))


# -- motion: encoder, recurrent cell, differential equation


class MotionEncoder(nn.Sequential):
    """Images (N, C, H, W) -> motion features (N, width * 2**downs, H / 2**downs, W / 2**downs)."""

    def __init__(self, in_channels: int, width: int, downs: int) -> None:
        layers: list[nn.Module] = [nn.Conv2d(in_channels, width, 5, padding=2), nn.ReLU()]
        for step in range(downs):
            kernel = 7 if step == downs - 1 else 5
            layers += [nn.MaxPool2d(2), nn.Conv2d(width, 2 * width, kernel, padding=kernel // 2), nn.ReLU()]
            width *= 2
        super().__init__(*layers)


class ConvGRUCell(nn.Module):
    """A gated recurrent unit with 3x3 convolutions in place of matrices."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gates = nn.Conv2d(2 * channels, 2 * channels, 3, padding=1)
        self.candidate = nn.Conv2d(2 * channels, channels, 3, padding=1)

    def forward(self, inputs: Tensor, state: Tensor) -> Tensor:
        update, reset = self.gates(torch.cat((inputs, state), dim=1)).chunk(2, dim=1)
        update, reset = torch.sigmoid(update), torch.sigmoid(reset)
        candidate = torch.tanh(self.candidate(torch.cat((inputs, reset * state), dim=1)))
        return (1 - update) * state + candidate


class DynamicsNet(nn.Sequential):
    """Drift or diffusion of the motion features: 3x3 convolutions with tanh between them."""

    def __init__(self, channels: int, layers: int) -> None:
        modules: list[nn.Module] = [nn.Conv2d(channels, channels, 3, padding=1)]
        for _ in range(layers + 1):
            modules += [nn.Tanh(), nn.Conv2d(channels, channels, 3, padding=1)]
        super().__init__(*modules)


class MotionDynamics(nn.Module):
    """Right-hand side of the SDE ``dm = f(m) dt + g(m) dW``; of the ODE ``dm = f(m) dt`` when ``stochastic`` is off."""

    def __init__(self, channels: int, layers: int, stochastic: bool) -> None:
        super().__init__()
        self.drift = DynamicsNet(channels, layers)
        self.diffusion = DynamicsNet(channels, layers) if stochastic else None

    def f(self, state: Tensor) -> Tensor:
        return self.drift(state)

    def g(self, state: Tensor) -> Tensor:
        assert self.diffusion is not None
        return torch.tanh(self.diffusion(state))


class BrownianMotion:
    """Increments of one Brownian path over ``steps`` equal steps, the same ones forward and backward.

    As in torchsde, a bridge splits what is left of the path into the next step and the rest, the most recent
    ``BROWNIAN_CACHE_SIZE`` pieces stay in memory, and older ones are drawn again, from their seed, when the
    adjoint asks for them.
    """

    def __init__(self, like: Tensor, span: float, steps: int) -> None:
        self.like, self.span, self.steps = (like.shape, like.dtype, like.device), span, steps
        self.seed = random.getrandbits(31)
        self.cache: dict[tuple[str, int], Tensor] = {}
        self.whole = self.noise(steps) * math.sqrt(span)
        self.levy_area = self.noise(steps + 1) * math.sqrt(span / 12)  # torchsde draws it, diagonal noise never asks

    def noise(self, key: int) -> Tensor:
        shape, dtype, device = self.like
        generator = torch.Generator(device).manual_seed(self.seed + key)
        return torch.randn(shape, dtype=dtype, device=device, generator=generator)

    def increment(self, step: int) -> Tensor:
        """W over one step."""
        if step == self.steps - 1:
            return self.rest(step)
        found = self.cache.get(("step", step))
        return self.keep(("step", step), self.bridge(step)) if found is None else found

    def rest(self, step: int) -> Tensor:
        """W from the beginning of a step to the end of the path."""
        if step == 0:
            return self.whole
        found = self.cache.get(("rest", step))
        if found is not None:
            return found
        return self.keep(("rest", step), self.rest(step - 1) - self.bridge(step - 1))

    def bridge(self, step: int) -> Tensor:
        """W over one step, given the rest of the path from where it begins."""
        left, dt = self.steps - step, self.span / self.steps
        return self.rest(step) / left + math.sqrt(dt * (left - 1) / left) * self.noise(step)

    def keep(self, key: tuple[str, int], value: Tensor) -> Tensor:
        while len(self.cache) >= BROWNIAN_CACHE_SIZE:
            del self.cache[next(iter(self.cache))]
        self.cache[key] = value
        return value


class AdjointIntegration(torch.autograd.Function):
    """Integrate without a graph and keep only the states at the wanted times; backward solves the adjoint equation.

    forward   Euler-Heun steps (torchsde ``euler_heun``), or Euler steps of the ODE (torchdiffeq ``euler``)
    backward  midpoint steps (torchsde's choice for Stratonovich equations), or Euler, over state, adjoint and the
              gradients of all parameters, which are integrated as one long vector

    ``start`` (N, ...) at frame 0 -> states (frames + 1, N, ...), the last one ``span`` frames ahead.
    """

    @staticmethod
    def forward(
        context: Any,
        dynamics: MotionDynamics,
        start: Tensor,
        frames: int,
        span: int,
        steps: int,
        *parameters: Tensor,
    ) -> Tensor:
        dt = span / steps
        noise = BrownianMotion(start, float(span), steps) if dynamics.diffusion is not None else None
        stops = [round(steps * frame / frames) for frame in range(frames + 1)]
        state = start
        states = [start]
        for step in range(steps):
            if noise is None:
                state = state + dt * dynamics.f(state)
            else:
                increment = noise.increment(step)
                drift = dynamics.f(state)
                kick = dynamics.g(state) * increment
                kick_after = dynamics.g(state + kick) * increment
                state = state + dt * drift + (kick + kick_after) * 0.5
            states += [state] * stops.count(step + 1)
        trajectory = torch.stack(states, dim=0)
        context.dynamics, context.noise, context.dt, context.stops = dynamics, noise, dt, stops
        context.save_for_backward(trajectory, *parameters)
        return trajectory

    @staticmethod
    def backward(context: Any, *grads: Tensor) -> tuple[Any, ...]:
        trajectory, *parameters = context.saved_tensors
        dynamics, noise, dt, stops = context.dynamics, context.noise, context.dt, context.stops
        grad_trajectory = grads[0]
        shapes = [trajectory[0].shape, trajectory[0].shape, *(parameter.shape for parameter in parameters)]

        def flow(vector: Tensor, increment: Tensor | None) -> tuple[Tensor, Tensor | None]:
            """Time derivative of the augmented vector, and its response to the noise."""
            state, adjoint = split(vector, shapes[:2])
            state = state.detach().requires_grad_()
            with torch.enable_grad():
                drift = dynamics.f(state)
                kick = None if increment is None else dynamics.g(state) * increment
                slope = pull_back(drift, state, adjoint)
                return slope, None if kick is None else pull_back(kick, state, adjoint)

        def pull_back(output: Tensor, state: Tensor, adjoint: Tensor) -> Tensor:
            inputs = [state, *parameters]
            found = torch.autograd.grad(output, inputs, adjoint, allow_unused=True, retain_graph=True)
            pieces = [torch.zeros_like(x) if grad is None else grad for x, grad in zip(inputs, found)]
            return flatten([-output.detach(), *pieces])

        pieces = [trajectory[-1], grad_trajectory[-1], *(torch.zeros_like(parameter) for parameter in parameters)]
        for frame in range(len(stops) - 1, 0, -1):
            vector = flatten(pieces)
            for step in range(stops[frame] - 1, stops[frame - 1] - 1, -1):
                increment = None if noise is None else noise.increment(step)
                slope, kick = flow(vector, increment)
                if kick is None:
                    vector = vector + dt * slope
                    continue
                middle = vector + 0.5 * dt * slope + 0.5 * kick
                slope, kick = flow(middle, increment)
                vector = vector + dt * slope + kick
            pieces = split(vector, shapes)
            pieces[0] = trajectory[frame - 1]
            pieces[1] = pieces[1] + grad_trajectory[frame - 1]
        return (None, pieces[1], None, None, None, *pieces[2:])


def flatten(pieces: Sequence[Tensor]) -> Tensor:
    return torch.cat([piece.reshape(-1) for piece in pieces])


def split(vector: Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:
    pieces, start = [], 0
    for shape in shapes:
        pieces.append(vector[start : start + shape.numel()].view(shape))
        start += shape.numel()
    return pieces


class MotionPredictor(nn.Module):
    """Observed frames (N, To, C, H, W) -> motion features of the frames to come (Tp, N, m, H / 4, W / 4)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        encoder, integration = config["MotionEncoder"], config["Int"]
        self.learn_diff_image = encoder["learn_diff_image"]
        self.channels = encoder["model_channels"] * 2 ** encoder["n_downs"]
        stochastic = integration["sde"]
        step = integration["sde_options"]["dt"] if stochastic else integration["ode_options"]["step_size"]
        self.time_step = step
        self.motion_encoder = MotionEncoder(encoder["in_channels"], encoder["model_channels"], encoder["n_downs"])
        self.gru = ConvGRUCell(self.channels)
        self.dynamics = MotionDynamics(self.channels, config["DiffUnet"]["n_layers"], stochastic)

    def forward(self, observed: Tensor, frames: int, span: int) -> Tensor:
        """``span``: how many frames ahead the last predicted one lies; ``frames`` of these are wanted."""
        batch = observed.shape[0]
        inputs = observed[:, 1:] - observed[:, :-1] if self.learn_diff_image else observed
        features = self.motion_encoder(inputs.flatten(0, 1)).unflatten(0, (batch, -1))
        state = torch.zeros((batch, *features.shape[2:]), device=features.device)
        for step in range(features.shape[1]):
            state = self.gru(features[:, step], state)
        steps = max(1, round(span / self.time_step))
        return AdjointIntegration.apply(self.dynamics, state, frames, span, steps, *self.dynamics.parameters())[1:]


# -- the UNet


class TimeEmbedding(nn.Module):
    """Timesteps (B,) -> (B, 4 * channels): sine and cosine features, then a two-layer perceptron."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.linear_1 = nn.Linear(channels, TIME_EMBEDDING_FACTOR * channels)
        self.linear_2 = nn.Linear(TIME_EMBEDDING_FACTOR * channels, TIME_EMBEDDING_FACTOR * channels)

    def forward(self, timesteps: Tensor) -> Tensor:
        half = self.channels // 2
        rate = -math.log(TIMESTEP_PERIOD) / half
        frequencies = torch.exp(rate * torch.arange(half, dtype=torch.float32, device=timesteps.device))
        angles = timesteps[:, None].float() * frequencies[None, :]
        waves = torch.cat([torch.cos(angles), torch.sin(angles)], dim=-1)
        return self.linear_2(F.silu(self.linear_1(waves)))


class MotionCond(nn.Module):
    """Spatially adaptive normalisation: scale and shift every pixel by what the motion features say about it.

    The motion features are brought to the resolution of ``hidden``: 256 channels at full resolution, in every block.
    """

    def __init__(self, motion_channels: int, channels: int) -> None:
        super().__init__()
        width = (motion_channels + channels) // 2
        self.norm = nn.InstanceNorm2d(channels, affine=False)
        self.shared = nn.Sequential(nn.Conv2d(motion_channels, width, 3, padding=1), nn.ReLU())
        self.gamma = nn.Conv2d(width, channels, 3, padding=1)
        self.beta = nn.Conv2d(width, channels, 3, padding=1)

    def forward(self, hidden: Tensor, motion: Tensor) -> Tensor:
        normalized = self.norm(hidden)
        motion = F.interpolate(motion, size=hidden.shape[2:], mode="nearest")
        shared = self.shared(motion)
        gamma = self.gamma(shared)
        beta = self.beta(shared)
        return normalized * (1 + gamma) + beta


class ResnetBlock(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, time_channels: int, motion_channels: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(NORM_GROUPS, in_channels)
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.motion_cond = MotionCond(motion_channels, out_channels) if motion_channels else None
        self.time_emb_proj = nn.Linear(time_channels, out_channels)
        self.norm2 = nn.GroupNorm(NORM_GROUPS, out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1)
        self.conv_shortcut = nn.Conv2d(in_channels, out_channels, 1) if in_channels != out_channels else None

    def forward(self, inputs: Tensor, time: Tensor, motion: Tensor) -> Tensor:
        hidden = self.norm1(inputs)
        hidden = F.silu(hidden)
        hidden = self.conv1(hidden)
        if self.motion_cond is not None:
            hidden = self.motion_cond(hidden, motion)
        time = self.time_emb_proj(F.silu(time))[:, :, None, None]
        hidden = hidden + time
        hidden = self.norm2(hidden)
        hidden = F.silu(hidden)
        hidden = self.conv2(hidden)
        if self.conv_shortcut is not None:
            inputs = self.conv_shortcut(inputs)
        return (inputs + hidden) / 1.0  # diffusers divides by output_scale_factor, also where that is 1


class AttentionBlock(nn.Module):
    """Self-attention over all pixels. ``head_dim`` fixes the number of heads: channels // head_dim; None is one head.

    kind
        ``plain``     baddbmm, softmax in fp32, bmm: the matrix of probabilities exists
        ``sdpa``      torch's fused attention, heads as a view
        ``xformers``  memory-efficient attention on q, k, v that are copied with the heads folded into the batch
    """

    def __init__(self, channels: int, head_dim: int | None, kind: str) -> None:
        super().__init__()
        self.heads = 1 if head_dim is None else channels // head_dim
        self.kind = kind
        self.group_norm = nn.GroupNorm(NORM_GROUPS, channels)
        self.query = nn.Linear(channels, channels)
        self.key = nn.Linear(channels, channels)
        self.value = nn.Linear(channels, channels)
        self.proj_attn = nn.Linear(channels, channels)

    def heads_to_batch(self, tokens: Tensor) -> Tensor:
        batch, length, channels = tokens.shape
        tokens = tokens.reshape(batch, length, self.heads, channels // self.heads)
        return tokens.permute(0, 2, 1, 3).reshape(batch * self.heads, length, channels // self.heads)

    def batch_to_heads(self, tokens: Tensor) -> Tensor:
        rows, length, head_dim = tokens.shape
        tokens = tokens.reshape(rows // self.heads, self.heads, length, head_dim)
        return tokens.permute(0, 2, 1, 3).reshape(rows // self.heads, length, head_dim * self.heads)

    def forward(self, inputs: Tensor) -> Tensor:
        batch, channels, height, width = inputs.shape
        hidden = self.group_norm(inputs)
        hidden = hidden.view(batch, channels, height * width).transpose(1, 2)
        query, key, value = self.query(hidden), self.key(hidden), self.value(hidden)
        if self.kind == "sdpa":
            hidden = self.fused(query, key, value)
        else:
            query, key, value = (self.heads_to_batch(tokens) for tokens in (query, key, value))
            hidden = self.plain(query, key, value) if self.kind == "plain" else folded(query, key, value)
            hidden = self.batch_to_heads(hidden)
        hidden = self.proj_attn(hidden)
        hidden = hidden.transpose(-1, -2).reshape(batch, channels, height, width)
        return (hidden + inputs) / 1.0

    def plain(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = torch.baddbmm(
            torch.empty(query.shape[0], query.shape[1], key.shape[1], dtype=query.dtype, device=query.device),
            query,
            key.transpose(-1, -2),
            beta=0,
            alpha=1 / math.sqrt(query.shape[-1]),
        )
        probabilities = torch.softmax(scores.float(), dim=-1).type(scores.dtype)
        return torch.bmm(probabilities, value)

    def fused(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        batch, length, channels = query.shape
        query, key, value = (
            tokens.view(batch, length, self.heads, channels // self.heads).transpose(1, 2)
            for tokens in (query, key, value)
        )
        hidden = F.scaled_dot_product_attention(query, key, value)
        return hidden.transpose(1, 2).reshape(batch, length, channels)


def folded(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Memory-efficient attention of (rows, length, head_dim): xformers where it is installed.

    Elsewhere torch's fused kernel, which keeps the same tensors for backward.
    """
    if query.is_cuda:
        try:
            from xformers.ops import memory_efficient_attention  # type: ignore[import-not-found]
        except ImportError:
            pass
        else:
            return memory_efficient_attention(query, key, value)
    query, key, value = (tokens.unsqueeze(1) for tokens in (query, key, value))
    return F.scaled_dot_product_attention(query, key, value).squeeze(1)


class Downsample(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, stride=2, padding=1)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.conv(hidden)


class Upsample(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, hidden: Tensor) -> Tensor:
        dtype = hidden.dtype
        if dtype == torch.bfloat16:  # diffusers goes through fp32 here, for kernels that once lacked bf16
            hidden = hidden.to(torch.float32)
        hidden = F.interpolate(hidden, scale_factor=2.0, mode="nearest")
        if dtype == torch.bfloat16:
            hidden = hidden.to(dtype)
        return self.conv(hidden)


class Level(nn.Module):
    """Residual blocks of one resolution, each followed by attention where the level has it.

    checkpointing
        ``none``, ``selective`` (what the fork's flag does: only levels without attention are recomputed, because only
        DownBlock2D and UpBlock2D read it), ``full`` (every residual block with its attention is recomputed)
    """

    def __init__(
        self,
        channels: Sequence[tuple[int, int]],
        time_channels: int,
        motion_channels: int,
        attention: Callable[[int], AttentionBlock] | None,
        checkpointing: str,
    ) -> None:
        super().__init__()
        self.resnets = nn.ModuleList(
            ResnetBlock(before, after, time_channels, motion_channels) for before, after in channels
        )
        self.attentions = nn.ModuleList(attention(after) for _, after in channels) if attention else None
        self.recompute = checkpointing == "full" or (checkpointing == "selective" and attention is None)

    def layer(self, index: int, hidden: Tensor, time: Tensor, motion: Tensor) -> Tensor:
        hidden = self.resnets[index](hidden, time, motion)
        return hidden if self.attentions is None else self.attentions[index](hidden)

    def run(self, index: int, hidden: Tensor, time: Tensor, motion: Tensor) -> Tensor:
        if self.recompute and self.training:
            return checkpoint(self.layer, index, hidden, time, motion, use_reentrant=True)
        return self.layer(index, hidden, time, motion)


class DownLevel(Level):
    def __init__(self, *args: Any, downsample: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.downsampler = Downsample(self.resnets[-1].conv2.out_channels) if downsample else None

    def forward(self, hidden: Tensor, time: Tensor, motion: Tensor) -> tuple[Tensor, list[Tensor]]:
        skips = []
        for index in range(len(self.resnets)):
            hidden = self.run(index, hidden, time, motion)
            skips.append(hidden)
        if self.downsampler is not None:
            hidden = self.downsampler(hidden)
            skips.append(hidden)
        return hidden, skips


class MiddleLevel(Level):
    """Residual block, attention, residual block. The fork's checkpointing flag does not reach it."""

    def __init__(
        self,
        channels: int,
        time_channels: int,
        motion_channels: int,
        attention: Callable[[int], AttentionBlock],
        checkpointing: str,
    ) -> None:
        both = [(channels, channels)] * 2
        super().__init__(both, time_channels, motion_channels, None, "full" if checkpointing == "full" else "none")
        self.attention = attention(channels)

    def layer(self, index: int, hidden: Tensor, time: Tensor, motion: Tensor) -> Tensor:
        hidden = self.resnets[index](hidden, time, motion)
        return self.attention(hidden) if index == 0 else hidden

    def forward(self, hidden: Tensor, time: Tensor, motion: Tensor) -> Tensor:
        return self.run(1, self.run(0, hidden, time, motion), time, motion)


class UpLevel(Level):
    def __init__(self, *args: Any, upsample: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.upsampler = Upsample(self.resnets[-1].conv2.out_channels) if upsample else None

    def forward(self, hidden: Tensor, skips: list[Tensor], time: Tensor, motion: Tensor) -> Tensor:
        for index in range(len(self.resnets)):
            hidden = torch.cat([hidden, skips[-1 - index]], dim=1)
            hidden = self.run(index, hidden, time, motion)
        return hidden if self.upsampler is None else self.upsampler(hidden)


class MotionUNet(nn.Module):
    """diffusers' UNet2DModel with motion-conditioned residual blocks: (B, in, H, W) -> (B, out, H, W).

    The last level keeps the resolution of the one before it: L levels halve it L - 1 times.
    """

    def __init__(self, config: Config, attention_kind: str, checkpointing: str) -> None:
        super().__init__()
        widths: list[int] = list(config["block_out_channels"])
        levels, layers = len(widths), config["layers_per_block"]
        head_dims = config.get("attention_head_dim", 8)
        head_dims = [head_dims] * levels if isinstance(head_dims, int) else list(head_dims)
        motion_channels = config["m_channels"]
        time_channels = TIME_EMBEDDING_FACTOR * widths[0]
        shared = {
            "time_channels": time_channels,
            "motion_channels": motion_channels,
            "checkpointing": checkpointing,
        }

        def attention(block_type: str, head_dim: int | None) -> Callable[[int], AttentionBlock] | None:
            if not block_type.startswith("Attn"):
                return None
            return lambda channels: AttentionBlock(channels, head_dim, attention_kind)

        self.conv_in = nn.Conv2d(config["in_channels"], widths[0], 3, padding=1)
        self.time_embedding = TimeEmbedding(widths[0])
        self.down_blocks = nn.ModuleList()
        for level, block_type in enumerate(config["down_block_types"]):
            before, after = widths[max(level - 1, 0)], widths[level]
            channels = [(before, after)] + [(after, after)] * (layers - 1)
            attend = attention(block_type, head_dims[level])
            self.down_blocks.append(DownLevel(channels, attention=attend, downsample=level < levels - 1, **shared))
        self.mid_block = MiddleLevel(
            widths[-1],
            attention=lambda channels: AttentionBlock(channels, head_dims[-1], attention_kind),
            **shared,
        )
        self.up_blocks = nn.ModuleList()
        for level, block_type in enumerate(config["up_block_types"]):
            upward = widths[::-1]
            previous, after = upward[max(level - 1, 0)], upward[level]
            skips = [after] * layers + [upward[min(level + 1, levels - 1)]]
            channels = [(previous + skips[0], after)] + [(after + skip, after) for skip in skips[1:]]
            attend = attention(block_type, head_dims[::-1][level])
            self.up_blocks.append(UpLevel(channels, attention=attend, upsample=level < levels - 1, **shared))
        self.conv_norm_out = nn.GroupNorm(NORM_GROUPS, widths[0])
        self.conv_out = nn.Conv2d(widths[0], config["out_channels"], 3, padding=1)

    def forward(self, sample: Tensor, timesteps: Tensor, motion: Tensor) -> Tensor:
        time = self.time_embedding(timesteps)
        hidden = self.conv_in(sample)
        skips = [hidden]
        for block in self.down_blocks:
            hidden, own = block(hidden, time, motion)
            skips += own
        hidden = self.mid_block(hidden, time, motion)
        for block in self.up_blocks:
            own, skips = skips[-len(block.resnets) :], skips[: -len(block.resnets)]
            hidden = block(hidden, own, time, motion)
        return self.conv_out(F.silu(self.conv_norm_out(hidden)))


# -- the system


class STDiff(nn.Module):
    """Motion predictor and UNet, with the settings of the training loop that act inside the forward pass."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        diffusion, training = config["STDiff"]["Diffusion"], config["Training"]
        self.prediction_type = diffusion["prediction_type"]
        self.noise_steps = diffusion["ddpm_num_steps"]
        self.autoregressive = config["STDiff"]["DiffNet"]["autoregressive"]
        self.autocast_dtype = {"no": None, "fp16": torch.float16, "bf16": torch.bfloat16}[
            training.get("mixed_precision") or "no"
        ]
        self.tde_model = MotionPredictor(config["STDiff"]["DiffNet"])
        self.diffusion_unet = MotionUNet(
            diffusion["unet_config"], attention_kind(training), checkpointing_kind(training)
        )

    def forward(
        self,
        observed: Tensor,
        noisy: Tensor,
        timesteps: Tensor,
        clean: Tensor,
        last_observed: Tensor,
        span: int,
    ) -> Tensor:
        """observed (N, To, C, H, W), noisy (N * Tp, C, H, W), clean (N, Tp, C, H, W), last_observed (N, 1, C, H, W)."""
        motion = self.tde_model(observed, clean.shape[1], span)
        if self.autoregressive:
            previous = torch.cat([last_observed, clean[:, :-1]], dim=1)
            noisy = torch.cat([noisy, previous.flatten(0, 1)], dim=1)
        else:
            context = observed.flatten(1, 2).unsqueeze(1).repeat(1, clean.shape[1], 1, 1, 1).flatten(0, 1)
            noisy = torch.cat([noisy, context.clamp(-1, 1)], dim=1)
        return self.diffusion_unet(noisy, timesteps, motion.permute(1, 0, 2, 3, 4).flatten(0, 1))


def attention_kind(training: Config) -> str:
    """``Training.attention`` where it is given, else what ``Training.use_xformers`` says, else plain."""
    return training.get("attention") or ("xformers" if training.get("use_xformers") else "plain")


def checkpointing_kind(training: Config) -> str:
    flag = training.get("gradient_checkpointing")
    return "full" if flag == "all" else "selective" if flag else "none"


def frame_counts(config: Config) -> tuple[int, int, int]:
    """Observed frames, predicted frames of one training sample, and how far ahead the last of them lies."""
    dataset = config["Dataset"]
    observed, span = dataset["num_observed_frames"], dataset["num_predict_frames"]
    predicted = dataset["rand_Tp"] if dataset.get("rand_predict") else span
    if dataset.get("half_fps"):
        observed = math.ceil(observed / 2) if observed > 2 else observed
        predicted = math.ceil(predicted / 2)
    return observed, predicted, span


def build_model(config: Config) -> STDiff:
    """The system that a training config describes, in training mode, on the default device."""
    return STDiff(config)


def make_batch(config: Config, device: str | torch.device = "cpu") -> dict[str, Any]:
    """One batch as the data loader hands it over, with random content.

    Range images come with validity masks (N, T, H, W); other data sets have none.
    """
    dataset, diffusion = config["Dataset"], config["STDiff"]["Diffusion"]
    observed, predicted, span = frame_counts(config)
    videos, channels = dataset["batch_size"], dataset["num_channels"]
    small = pair(config["STDiff"]["DiffNet"]["MotionEncoder"]["image_size"])
    large = pair(diffusion["unet_config"]["sample_size"])
    batch: dict[str, Any] = {
        "observed": torch.rand(videos, observed, channels, *small, device=device),
        "clean": torch.rand(videos, predicted, channels, *large, device=device),
        "last_observed": torch.rand(videos, 1, channels, *large, device=device),
        "span": span,
    }
    if "RANGE" in dataset["name"].upper():
        batch["observed_mask"] = torch.ones(videos, observed, *small, device=device)
        batch["clean_mask"] = torch.ones(videos, predicted, *large, device=device)
        batch["last_mask"] = torch.ones(videos, 1, *large, device=device)
    return batch


def training_loss(model: STDiff, batch: dict[str, Any]) -> Tensor:
    """Loss of one micro-batch: add noise, predict it, compare. A scalar in fp32.

    Autocast covers the model's forward only, and its output is brought back to fp32, as ``accelerate`` does it.
    """
    clean = batch["clean"]
    images = clean.flatten(0, 1)
    noise = torch.randn_like(images)
    timesteps = torch.randint(0, model.noise_steps, (images.shape[0],), device=images.device)
    betas = torch.linspace(1e-4, 0.02, model.noise_steps, device=images.device)
    alphas = torch.cumprod(1 - betas, dim=0)[timesteps][:, None, None, None]
    noisy = alphas**0.5 * images + (1 - alphas) ** 0.5 * noise
    with torch.autocast(images.device.type, dtype=model.autocast_dtype, enabled=model.autocast_dtype is not None):
        output = model(batch["observed"], noisy, timesteps, clean, batch["last_observed"], batch["span"])
    output = output.float()
    if model.prediction_type == "epsilon":
        return F.l1_loss(output, noise, reduction="none").mean()
    weights = alphas / (1 - alphas)
    return (weights * F.l1_loss(output, images, reduction="none")).mean()
