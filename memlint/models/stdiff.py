"""STDiff: video prediction by a diffusion UNet that is steered by motion features.

    observed frames -> motion encoder -> ConvGRU -> SDE or ODE into the future -> motion of every predicted frame
    noisy frames + previous frames -> UNet2DMotionCond (a diffusers UNet2DModel with motion in each residual block)

Shapes: N videos, To observed and Tp predicted frames, C channels, H x W pixels. The UNet's batch is N * Tp images.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from memlint.facts.spec import HYPER, TrainingSpec
from memlint.meta import autograd
from memlint.meta import functional as F
from memlint.meta.amp import autocast, to
from memlint.meta.autograd import enable_grad, no_grad
from memlint.meta.checkpoint import checkpoint
from memlint.meta.nn import Activation, Conv, GroupNorm, Linear, Module, Sequential
from memlint.meta.tensor import DTYPES, Shape, Storage, Tensor, bfloat16, empty, empty_like, float32, int64
from memlint.models.system import System
from memlint.named_tuple import NamedTuple

NORM_GROUPS = 32  # diffusers' default for a UNet2DModel
TIME_EMBEDDING_FACTOR = 4  # UNet2DModel: time_embed_dim = block_out_channels[0] * 4
BROWNIAN_CACHE_SIZE = 45  # torchsde/_brownian/brownian_interval.py: cache_size


def conv3x3(inputs: int, outputs: int, stride: int = 1) -> Conv:
    return Conv(inputs, outputs, (3, 3), stride, 1)


# -- motion ------------------------------------------------------------------------------------------------------


class MaxPool(Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool(x, 2)


class MotionEncoder(Sequential):
    """(N, C, H, W) -> (N, width * 2**downs, H / 2**downs, W / 2**downs)."""

    def __init__(self, channels: int, width: int, downs: int) -> None:
        layers: list[Module] = [Conv(channels, width, (5, 5), 1, 2), Activation("relu")]
        for step in range(downs):
            kernel = 7 if step == downs - 1 else 5
            layers += [
                MaxPool(),
                Conv(width, 2 * width, (kernel, kernel), 1, kernel // 2),
                Activation("relu"),
            ]
            width *= 2
        super().__init__(*layers)


class ConvGRUCell(Module):
    def __init__(self, channels: int) -> None:
        self.gates = conv3x3(2 * channels, 2 * channels)
        self.candidate = conv3x3(2 * channels, channels)

    def forward(self, inputs: Tensor, state: Tensor) -> Tensor:
        update, reset = self.gates(F.cat((inputs, state), 1)).chunk(2, 1)
        update, reset = F.sigmoid(update), F.sigmoid(reset)
        candidate = F.tanh(self.candidate(F.cat((inputs, reset * state), 1)))
        return F.rsub(update, 1) * state + candidate


class DynamicsNet(Sequential):
    """Drift or diffusion: 3x3 convolutions with tanh between them."""

    def __init__(self, channels: int, layers: int) -> None:
        modules: list[Module] = [conv3x3(channels, channels)]
        for _ in range(layers + 1):
            modules += [Activation("tanh"), conv3x3(channels, channels)]
        super().__init__(*modules)


class MotionDynamics(Module):
    def __init__(self, channels: int, layers: int, stochastic: bool) -> None:
        self.drift = DynamicsNet(channels, layers)
        self.diffusion = DynamicsNet(channels, layers) if stochastic else None

    def f(self, state: Tensor) -> Tensor:
        out: Tensor = self.drift(state)
        return out

    def g(self, state: Tensor) -> Tensor:
        assert self.diffusion is not None
        return F.tanh(self.diffusion(state))


class BrownianMotion:
    """What torchsde's BrownianInterval holds: the whole path's increment, its Levy area (drawn, never used), and of
    each step its increment and the rest of the path after it, up to the size of the cache."""

    def __init__(self, shape: Shape, steps: int) -> None:
        self.shape = shape
        self.steps = steps
        self.held = [self.scaled_noise(), self.scaled_noise()]

    def noise(self) -> Tensor:
        return empty(self.shape)

    def scaled_noise(self) -> Tensor:
        return self.noise() * 1.0

    def bridge(self) -> Tensor:
        mean = self.held[0] * 1.0
        return mean + self.scaled_noise()

    @property
    def capacity(self) -> int:
        return 2 + min(BROWNIAN_CACHE_SIZE, 2 * (self.steps - 1))

    def increment(self) -> Tensor:
        """The next step's: two more tensors in the cache, the oldest ones dropped."""
        if self.steps == 1:
            return self.held[0]
        self.keep(self.held[-1] - self.bridge())
        return self.keep(self.bridge())

    def keep(self, piece: Tensor) -> Tensor:
        while len(self.held) >= self.capacity:
            del self.held[2]
        self.held.append(piece)
        return piece

    def fill(self) -> BrownianMotion:
        """As after all steps."""
        while len(self.held) < self.capacity:
            self.held.append(self.noise())
        return self


class Integration(NamedTuple):
    frames: int
    steps: int


def integrate(dynamics: MotionDynamics, start: Tensor, plan: Integration) -> tuple[Tensor, BrownianMotion | None]:
    """(N, ...) -> (frames + 1, N, ...), without a graph: backward solves the adjoint equation (torchsde's
    ``sdeint_adjoint``, torchdiffeq's ``odeint_adjoint``).

    Every step allocates what the one before it did, so two are recorded for all of them, forward and backward.
    Also returned: the Brownian path, which lives as long as the graph does.
    """
    leaves = [p for p in dynamics.parameters() if p.requires_grad]
    noise: BrownianMotion | None = None
    with no_grad():
        if dynamics.diffusion is not None:
            noise = BrownianMotion(start.shape, plan.steps)
        state = start
        for _ in range(min(plan.steps, 2)):
            state = forward_step(dynamics, state, noise)
        if noise is not None:
            noise.fill()
        trajectory = empty((plan.frames + 1, *start.shape), state.dtype)
        del state
    if leaves or start.requires_grad:
        autograd.record(
            trajectory,
            (start, *leaves),
            (trajectory,),
            lambda g: adjoint(dynamics, g, leaves, noise, plan),
        )
    return trajectory, noise


def forward_step(dynamics: MotionDynamics, state: Tensor, noise: BrownianMotion | None) -> Tensor:
    if noise is None:
        return state + dynamics.f(state) * 1.0
    increment = noise.increment()
    drift = dynamics.f(state)
    kick = dynamics.g(state) * increment
    kick_after = dynamics.g(state + kick) * increment
    return state + drift * 1.0 + (kick + kick_after) * 0.5


def adjoint(
    dynamics: MotionDynamics,
    trajectory: Tensor,
    leaves: Sequence[Tensor],
    noise: BrownianMotion | None,
    plan: Integration,
) -> list[Tensor | None]:
    """Backward in time: the state, its adjoint and every parameter's gradient as one vector, frame by frame.

    Two steps stand for all of a frame, two frames for all of them.
    """
    start = trajectory.shape[1:]
    pieces = [
        trajectory.alias(start, None),
        trajectory.alias(start, None),
        *(empty_like(leaf) for leaf in leaves),
    ]
    steps = max(1, plan.steps // plan.frames)
    for _ in range(min(plan.frames, 2)):
        vector = flatten(pieces)
        for _ in range(min(steps, 2)):
            increment = None if noise is None else noise.increment()
            slope, kick = flow(dynamics, vector, start, leaves, increment)
            if kick is None:
                vector = vector + slope * 1.0
                continue
            middle = vector + slope * 0.5 + kick * 0.5
            slope, kick = flow(dynamics, middle, start, leaves, increment)
            assert kick is not None
            vector = vector + slope * 1.0 + kick
        pieces = [
            trajectory.alias(start, None),
            vector.alias(start, None),
            *(vector.alias(leaf.shape, None) for leaf in leaves),
        ]
        pieces[1] = empty(start)  # plus the gradient that enters at this frame
    return list(pieces[1:])


def flatten(pieces: Sequence[Tensor]) -> Tensor:
    return F.cat([piece.reshape(-1) for piece in pieces])


def flow(
    dynamics: MotionDynamics,
    vector: Tensor,
    start: Shape,
    leaves: Sequence[Tensor],
    increment: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """Both graphs are kept (``retain_graph``) until the end."""
    state = vector.alias(start, None).requires_grad_()
    with enable_grad():
        drift = dynamics.f(state)
        kick = None if increment is None else dynamics.g(state) * increment
    kept = [saved_by(drift), [] if kick is None else saved_by(kick)]
    slope = pull_back(drift, state, leaves)
    response = None if kick is None else pull_back(kick, state, leaves)
    del kept
    return slope, response


def saved_by(output: Tensor) -> list[Sequence[Storage]]:
    """What the nodes behind a tensor hold."""
    found: list[Sequence[Storage]] = []
    stack = [] if output.node is None else [output.node]
    while stack:
        node = stack.pop()
        found.append(node.saved)
        stack.extend(edge[0] for edge in node.edges if isinstance(edge, tuple))
    return found


def pull_back(output: Tensor, state: Tensor, leaves: Sequence[Tensor]) -> Tensor:
    """``autograd.grad`` of one output: gradients are handed over, not added to those that parameters have."""
    own = [leaf.grad for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None
    assert output.node is not None
    autograd.run([(output.node, output.output_nr, empty_like(output))])
    found = [state.grad, *(leaf.grad for leaf in leaves)]
    state.grad = None
    for leaf, grad in zip(leaves, own):
        leaf.grad = grad
    pieces = [empty_like(x) if grad is None else grad for x, grad in zip((state, *leaves), found)]
    return flatten([F.neg(output.detach()), *pieces])


class MotionPredictor(Module):
    """(N, To, C, H, W) -> (Tp, N, m, H / 2**downs, W / 2**downs)."""

    def __init__(self, spec: TrainingSpec) -> None:
        downs, width = hyperparameter(spec, "n_downs"), hyperparameter(spec, "model_channels")
        self.learn_diff_image = hyperparameter(spec, "learn_diff_image")
        channels = width * 2**downs
        stochastic = hyperparameter(spec, "sde")
        step = hyperparameter(spec, "dt" if stochastic else "step_size")
        steps = max(1, round(hyperparameter(spec, "prediction_span") / step))
        self.plan = Integration(spec["predicted_frames"], steps)
        self.motion_encoder = MotionEncoder(hyperparameter(spec, "motion_in_channels"), width, downs)
        self.gru = ConvGRUCell(channels)
        self.dynamics = MotionDynamics(channels, hyperparameter(spec, "n_layers"), stochastic)
        # A path lives as long as the graph it belongs to, that as long as the loop's `loss`: until the next one is
        # there. So the first forward pass of a step meets the last path of the step before.
        self.paths: deque[BrownianMotion] = deque()
        if stochastic:
            like = (spec["micro_batch_size"], channels, *(size // 2**downs for size in motion_size(spec)))
            self.paths.append(BrownianMotion(like, steps).fill())

    def forward(self, observed: Tensor) -> Tensor:
        batch = observed.shape[0]
        if self.learn_diff_image:
            frames = observed.shape[1] - 1
            inputs = observed.narrow(1, frames) - observed.narrow(1, frames)
        else:
            inputs = observed
        features = self.motion_encoder(inputs.flatten(0, 1))
        features = features.view(batch, inputs.shape[1], *features.shape[1:])
        state = empty((batch, *features.shape[2:]))
        for _ in range(features.shape[1]):
            state = self.gru(features[:, 0], state)
        future, path = integrate(self.dynamics, state, self.plan)
        if path is not None:
            self.paths.append(path)
        out: Tensor = future.narrow(0, self.plan.frames)
        return out

    def loss_replaced(self) -> None:
        """The loop's `loss` is the new one now."""
        while len(self.paths) > 1:
            self.paths.popleft()


# -- the UNet ----------------------------------------------------------------------------------------------------


class TimeEmbedding(Module):
    """Timesteps (B,) -> (B, 4 * channels)."""

    def __init__(self, channels: int) -> None:
        self.channels = channels
        self.linear_1 = Linear(channels, TIME_EMBEDDING_FACTOR * channels)
        self.linear_2 = Linear(TIME_EMBEDDING_FACTOR * channels, TIME_EMBEDDING_FACTOR * channels)

    def forward(self, timesteps: Tensor) -> Tensor:
        frequencies = F.exp(empty((self.channels // 2,)) * 1.0)
        angles = to(timesteps.unsqueeze(1), float32) * frequencies.unsqueeze(0)
        waves = F.cat((F.cos(angles), F.sin(angles)), -1)
        out: Tensor = self.linear_2(F.silu(self.linear_1(waves)))
        return out


class MotionCond(Module):
    """Scale and shift every pixel by the motion features, which are brought to its resolution for that."""

    def __init__(self, motion_channels: int, channels: int) -> None:
        width = (motion_channels + channels) // 2
        self.shared = conv3x3(motion_channels, width)
        self.gamma = conv3x3(width, channels)
        self.beta = conv3x3(width, channels)

    def forward(self, hidden: Tensor, motion: Tensor) -> Tensor:
        normalized = F.instance_norm(hidden)
        motion = F.interpolate(motion, *hidden.shape[2:])
        shared = F.relu(self.shared(motion))
        gamma = self.gamma(shared)
        beta = self.beta(shared)
        out: Tensor = normalized * (gamma + 1) + beta
        return out


class ResnetBlock(Module):
    def __init__(self, channels: int, out_channels: int, time_channels: int, motion_channels: int) -> None:
        self.norm1 = GroupNorm(NORM_GROUPS, channels)
        self.conv1 = conv3x3(channels, out_channels)
        self.motion_cond = MotionCond(motion_channels, out_channels) if motion_channels else None
        self.time_emb_proj = Linear(time_channels, out_channels)
        self.norm2 = GroupNorm(NORM_GROUPS, out_channels)
        self.conv2 = conv3x3(out_channels, out_channels)
        self.conv_shortcut = Conv(channels, out_channels, (1, 1)) if channels != out_channels else None

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
        out: Tensor = (inputs + hidden) / 1.0
        return out


class AttentionBlock(Module):
    """Self-attention over all pixels with ``channels // head_dim`` heads. ``kind``: eager, sdpa, xformers."""

    def __init__(self, channels: int, head_dim: int | None, kind: str) -> None:
        self.heads = 1 if head_dim is None else channels // head_dim
        self.kind = kind
        self.group_norm = GroupNorm(NORM_GROUPS, channels)
        self.query = Linear(channels, channels)
        self.key = Linear(channels, channels)
        self.value = Linear(channels, channels)
        self.proj_attn = Linear(channels, channels)

    def forward(self, inputs: Tensor) -> Tensor:
        batch, channels, height, width = inputs.shape
        hidden = self.group_norm(inputs)
        hidden = hidden.view(batch, channels, height * width).transpose(1, 2)
        query, key, value = self.query(hidden), self.key(hidden), self.value(hidden)
        if self.kind in ("sdpa", "flash"):
            hidden = self.fused(query, key, value)
        else:
            query, key, value = (self.heads_to_batch(tokens) for tokens in (query, key, value))
            attend = plain if self.kind == "eager" else folded
            hidden = attend(query, key, value)
            hidden = self.batch_to_heads(hidden, batch)
        hidden = self.proj_attn(hidden)
        hidden = hidden.transpose(-1, -2).reshape(batch, channels, height, width)
        out: Tensor = (hidden + inputs) / 1.0
        return out

    def heads_to_batch(self, tokens: Tensor) -> Tensor:
        batch, length, channels = tokens.shape
        tokens = tokens.reshape(batch, length, self.heads, channels // self.heads)
        out: Tensor = tokens.permute(0, 2, 1, 3).reshape(batch * self.heads, length, channels // self.heads)
        return out

    def batch_to_heads(self, tokens: Tensor, batch: int) -> Tensor:
        _, length, head_dim = tokens.shape
        tokens = tokens.reshape(batch, self.heads, length, head_dim)
        out: Tensor = tokens.permute(0, 2, 1, 3).reshape(batch, length, head_dim * self.heads)
        return out

    def fused(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        batch, length, channels = query.shape
        query, key, value = (
            tokens.view(batch, length, self.heads, channels // self.heads).transpose(1, 2)
            for tokens in (query, key, value)
        )
        hidden = F.scaled_dot_product_attention(query, key, value)
        out: Tensor = hidden.transpose(1, 2).reshape(batch, length, channels)
        return out


def plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The scores, their softmax in fp32, and its copy in the scores' dtype where that is another one."""
    scores = F.baddbmm(query, key.transpose(-1, -2))
    probabilities = to(F.softmax(to(scores, float32)), scores.dtype)
    return F.bmm(probabilities, value)


def folded(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """xformers on (rows, length, head_dim): keeps what torch's fused kernels keep."""
    query, key, value = (tokens.unsqueeze(1) for tokens in (query, key, value))
    out: Tensor = F.scaled_dot_product_attention(query, key, value).squeeze(1)
    return out


class Upsample(Module):
    def __init__(self, channels: int) -> None:
        self.conv = conv3x3(channels, channels)

    def forward(self, hidden: Tensor) -> Tensor:
        dtype = hidden.dtype
        if dtype is bfloat16:  # diffusers goes through fp32 here
            hidden = to(hidden, float32)
        hidden = F.interpolate(hidden, hidden.shape[2] * 2, hidden.shape[3] * 2)
        if dtype is bfloat16:
            hidden = to(hidden, dtype)
        out: Tensor = self.conv(hidden)
        return out


class Shared(NamedTuple):
    """What all levels of a UNet have in common."""

    time_channels: int
    motion_channels: int
    checkpointing: str


Attention = Callable[[int], AttentionBlock]


class Level(Module):
    """Residual blocks of one resolution, each followed by attention where the level has it.

    The fork's checkpointing flag (``blocks``) reaches DownBlock2D and UpBlock2D only: levels without attention.
    With ``full`` every residual block is recomputed together with its attention.
    """

    def __init__(self, channels: Sequence[tuple[int, int]], attention: Attention | None, shared: Shared) -> None:
        self.resnets = [
            ResnetBlock(before, after, shared.time_channels, shared.motion_channels) for before, after in channels
        ]
        self.attentions = [attention(after) for _, after in channels] if attention is not None else None
        self.recompute = shared.checkpointing == "full" or (shared.checkpointing == "blocks" and attention is None)

    def layer(self, index: int, hidden: Tensor, time: Tensor, motion: Tensor) -> Tensor:
        hidden = self.resnets[index](hidden, time, motion)
        out: Tensor = hidden if self.attentions is None else self.attentions[index](hidden)
        return out

    def run(self, index: int, hidden: Tensor, time: Tensor, motion: Tensor) -> Tensor:
        if self.recompute:
            out: Tensor = checkpoint(self.layer, index, hidden, time, motion, use_reentrant=True)
            return out
        return self.layer(index, hidden, time, motion)


class DownLevel(Level):
    def __init__(
        self,
        channels: Sequence[tuple[int, int]],
        attention: Attention | None,
        shared: Shared,
        downsample: bool,
    ) -> None:
        super().__init__(channels, attention, shared)
        width = channels[-1][1]
        self.downsampler = conv3x3(width, width, 2) if downsample else None

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
    """Residual block, attention, residual block."""

    def __init__(self, channels: int, attention: Attention, shared: Shared) -> None:
        reached = "full" if shared.checkpointing == "full" else "none"
        super().__init__([(channels, channels)] * 2, None, shared._replace(checkpointing=reached))
        self.attention = attention(channels)

    def layer(self, index: int, hidden: Tensor, time: Tensor, motion: Tensor) -> Tensor:
        hidden = self.resnets[index](hidden, time, motion)
        out: Tensor = self.attention(hidden) if index == 0 else hidden
        return out

    def forward(self, hidden: Tensor, time: Tensor, motion: Tensor) -> Tensor:
        return self.run(1, self.run(0, hidden, time, motion), time, motion)


class UpLevel(Level):
    def __init__(
        self, channels: Sequence[tuple[int, int]], attention: Attention | None, shared: Shared, upsample: bool
    ) -> None:
        super().__init__(channels, attention, shared)
        self.upsampler = Upsample(channels[-1][1]) if upsample else None

    def forward(self, hidden: Tensor, skips: list[Tensor], time: Tensor, motion: Tensor) -> Tensor:
        for index in range(len(self.resnets)):
            hidden = F.cat((hidden, skips[-1 - index]), 1)
            hidden = self.run(index, hidden, time, motion)
        out: Tensor = hidden if self.upsampler is None else self.upsampler(hidden)
        return out


class MotionUNet(Module):
    """(B, in, H, W) -> (B, out, H, W). L levels halve the resolution L - 1 times."""

    def __init__(self, spec: TrainingSpec) -> None:
        widths = list(hyperparameter(spec, "block_out_channels"))
        levels, layers = len(widths), hyperparameter(spec, "layers_per_block")
        head_dims = hyperparameter(spec, "attention_head_dim")
        head_dims = list(head_dims) if isinstance(head_dims, (list, tuple)) else [head_dims] * levels
        kind = spec.get("attention", "eager")
        shared = Shared(
            TIME_EMBEDDING_FACTOR * widths[0],
            hyperparameter(spec, "m_channels"),
            spec.get("checkpointing", "none"),
        )

        def attention(block_type: str, head_dim: int | None) -> Attention | None:
            if not block_type.startswith("Attn"):
                return None
            return lambda channels: AttentionBlock(channels, head_dim, kind)

        self.conv_in = conv3x3(hyperparameter(spec, "in_channels"), widths[0])
        self.time_embedding = TimeEmbedding(widths[0])
        self.down_blocks = []
        for level, block_type in enumerate(hyperparameter(spec, "down_block_types")):
            before, after = widths[max(level - 1, 0)], widths[level]
            channels = [(before, after)] + [(after, after)] * (layers - 1)
            attend = attention(block_type, head_dims[level])
            self.down_blocks.append(DownLevel(channels, attend, shared, level < levels - 1))
        self.mid_block = MiddleLevel(widths[-1], lambda channels: AttentionBlock(channels, head_dims[-1], kind), shared)
        self.up_blocks = []
        upward = widths[::-1]
        for level, block_type in enumerate(hyperparameter(spec, "up_block_types")):
            previous, after = upward[max(level - 1, 0)], upward[level]
            skips = [after] * layers + [upward[min(level + 1, levels - 1)]]
            channels = [(previous + skips[0], after)] + [(after + skip, after) for skip in skips[1:]]
            attend = attention(block_type, head_dims[::-1][level])
            self.up_blocks.append(UpLevel(channels, attend, shared, level < levels - 1))
        self.conv_norm_out = GroupNorm(NORM_GROUPS, widths[0])
        self.conv_out = conv3x3(widths[0], hyperparameter(spec, "out_channels"))

    def forward(self, sample: Tensor, timesteps: Tensor, motion: Tensor) -> Tensor:
        time = self.time_embedding(timesteps)
        hidden = self.conv_in(sample)
        skips = [hidden]
        for down in self.down_blocks:
            hidden, own = down(hidden, time, motion)
            skips += own
        hidden = self.mid_block(hidden, time, motion)
        for up in self.up_blocks:
            own, skips = skips[-len(up.resnets) :], skips[: -len(up.resnets)]
            hidden = up(hidden, own, time, motion)
        out: Tensor = self.conv_out(F.silu(self.conv_norm_out(hidden)))
        return out


# -- the system --------------------------------------------------------------------------------------------------


class Batch(NamedTuple):
    """observed (N, To, C, h, w), clean (N, Tp, C, H, W), last observed (N, 1, C, H, W), and their masks."""

    observed: Tensor
    clean: Tensor
    last_observed: Tensor
    masks: tuple[Tensor, ...]


class STDiff(Module):
    def __init__(self, spec: TrainingSpec) -> None:
        dtype = spec.get("compute_dtype", "float32")
        self.autocast = DTYPES[dtype] if dtype != "float32" else None
        self.autoregressive = hyperparameter(spec, "autoregressive")
        self.prediction_type = spec.get(HYPER + "prediction_type", "epsilon")
        self.noise_steps = hyperparameter(spec, "diffusion_steps")
        self.tde_model = MotionPredictor(spec)
        self.diffusion_unet = MotionUNet(spec)

    def forward(self, observed: Tensor, noisy: Tensor, timesteps: Tensor, clean: Tensor, last: Tensor) -> Tensor:
        frames = clean.shape[1]
        motion = self.tde_model(observed)
        if self.autoregressive:
            previous = F.cat((last, clean.narrow(1, frames - 1)), 1)
            noisy = F.cat((noisy, previous.flatten(0, 1)), 1)
        else:
            context = observed.flatten(1, 2).unsqueeze(1).repeat(1, frames, 1, 1, 1).flatten(0, 1)
            noisy = F.cat((noisy, context * 1.0), 1)
        out: Tensor = self.diffusion_unet(noisy, timesteps, motion.permute(1, 0, 2, 3, 4).flatten(0, 1))
        return out

    def loss(self, batch: Batch) -> Tensor:
        """Autocast covers the model, and its output is brought back to fp32, as ``accelerate`` has it."""
        images = batch.clean.flatten(0, 1)
        noise = empty_like(images)
        timesteps = empty((images.shape[0],), int64)
        alphas = F.index_select(empty((self.noise_steps,)), 0, timesteps)[:, None, None, None]
        noisy = (alphas**0.5) * images + F.rsub(alphas, 1) ** 0.5 * noise
        with autocast(self.autocast):
            output = self(batch.observed, noisy, timesteps, batch.clean, batch.last_observed)
        output = to(output, float32)
        loss = self.compare(output, noise, images, alphas)
        self.tde_model.loss_replaced()
        return loss

    def compare(self, output: Tensor, noise: Tensor, images: Tensor, alphas: Tensor) -> Tensor:
        if self.prediction_type == "epsilon":  # l1_loss is a difference and its magnitude
            return F.mean(F.abs(output - noise))
        weights = alphas / F.rsub(alphas, 1)
        return F.mean(weights * F.abs(output - images))


def motion_size(spec: TrainingSpec) -> tuple[int, int]:
    """Height and width of what the motion encoder sees."""
    height, width = hyperparameter(spec, "motion_image_size")
    return height, width


def hyperparameter(spec: TrainingSpec, name: str) -> Any:
    return spec[HYPER + name]


def build(spec: TrainingSpec) -> System:
    """The System of an STDiff run. Facts: those of ``schemas/stdiff.schema.json``."""
    model = STDiff(spec)
    videos, observed, predicted = spec["micro_batch_size"], spec["observation_steps"], spec["predicted_frames"]
    channels = spec["channels"]
    small, large = motion_size(spec), tuple(spec["image_size"])

    def batch() -> Batch:
        masks: tuple[Tensor, ...] = ()
        if spec.get(HYPER + "masks", False):
            masks = (
                empty((videos, observed, *small)),
                empty((videos, predicted, *large)),
                empty((videos, 1, *large)),
            )
        return Batch(
            empty((videos, observed, channels, *small)),
            empty((videos, predicted, channels, *large)),
            empty((videos, 1, channels, *large)),
            masks,
        )

    return System(
        model=model,
        batch=batch,
        loss=model.loss,
        optimizer=spec.get("optimizer", "adamw"),
        optimizer_options={"implementation": spec.get("optimizer_implementation", "foreach")},
        accumulation=spec.get("gradient_accumulation_steps", 1),
        ema=(model,) if spec.get("ema", False) else (),
        uses=frozenset({"matmul", "convolution"}),
    )
