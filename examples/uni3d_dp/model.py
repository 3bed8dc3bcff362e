"""Reference model of this folder's configs: a diffusion policy on point clouds, with a PointNet or a Uni3D encoder.

What `memlint check --probe` instantiates, and what memlint's static estimate is tested against. It computes, op by
op, what a 3D Diffusion Policy with a Uni3D encoder computes in training:

    observations -> normalise -> point encoder (PointNet, or groups of points -> mini-PointNet -> EVA transformer)
                              -> + state MLP -> condition of a 1-D UNet over the action sequence -> squared error

Written for memory fidelity, not for training: weights are left uninitialised where torch allows it.

Parameters, for the task `adroit_hammer` (26 actions, 24 joint positions):

    ConditionalUnet1D                       255,153,306
    with PointNet (59,072) and state MLP    255,218,138
    Uni3D encoder, eva02_tiny                 6,384,448
    with Uni3D and its 1024 -> 64 projection 261,609,114

Shapes: B samples, O = n_obs_steps, N points, G = num_group, M = group_size, E = pc_encoder_dim, D = transformer width.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

CLIP_EMBED_DIM = 1024  # the encoder's output where the config names no embed_dim: Uni3D's pretrained checkpoints
DIFFUSION_STEPS = 100


# -- the configs' keys ------------------------------------------------------------------------------------------


def option(config: dict[str, Any], path: str, default: Any = None) -> Any:
    """The value at a dotted path of the composed config, or ``default`` where a part of the path is missing."""
    value: Any = config
    for key in path.split("."):
        if not isinstance(value, dict) or value.get(key) is None:
            return default
        value = value[key]
    return value


def shapes(config: dict[str, Any]) -> tuple[int, int, int, int]:
    """(points, channels per point, state size, action size) from ``shape_meta``."""
    meta = option(config, "task.shape_meta") or config["shape_meta"]
    points, channels = meta["obs"]["point_cloud"]["shape"]
    if option(config, "policy.use_pc_color", False):
        channels = max(channels, 6)  # colours travel with the points whatever shape_meta says
    return points, channels, meta["obs"]["agent_pos"]["shape"][0], math.prod(meta["action"]["shape"])


def robot_shape(config: dict[str, Any]) -> tuple[int, int] | None:
    """(points, channels) of the robot's own points, which some tasks append to each cloud."""
    meta = option(config, "task.shape_meta") or config["shape_meta"]
    robot = meta["obs"].get("imagin_robot")
    return tuple(robot["shape"]) if robot else None


# -- EVA transformers, as timm builds them ----------------------------------------------------------------------


class EvaSize(NamedTuple):
    """``head_classes`` is 0 where timm's default weights of that name have no classifier."""

    width: int
    depth: int
    heads: int
    hidden: int
    image_size: int
    swiglu: bool
    packed_qkv: bool
    mlp_norm: bool
    rotary: bool
    head_classes: int


EVA = {
    "eva02_tiny_patch14_224": EvaSize(192, 12, 3, 512, 224, True, True, False, True, 0),
    "eva02_small_patch14_224": EvaSize(384, 12, 6, 1024, 224, True, True, False, True, 0),
    "eva02_base_patch14_448": EvaSize(768, 12, 12, 2048, 448, True, False, True, True, 1000),
    "eva02_large_patch14_448": EvaSize(1024, 24, 16, 2730, 448, True, False, True, True, 1000),
    "eva_giant_patch14_560": EvaSize(1408, 40, 16, 6144, 560, False, True, False, False, 1000),
}


class EvaAttention(nn.Module):
    """Self-attention on (B, T, D) through PyTorch's fused kernel. Rotary embeddings are not passed by Uni3D."""

    def __init__(self, size: EvaSize) -> None:
        super().__init__()
        width = size.width
        self.heads = size.heads
        self.packed = size.packed_qkv
        if self.packed:
            self.qkv = nn.Linear(width, 3 * width, bias=False)
            self.q_bias = nn.Parameter(torch.zeros(width))
            self.register_buffer("k_bias", torch.zeros(width), persistent=False)
            self.v_bias = nn.Parameter(torch.zeros(width))
        else:
            self.q_proj = nn.Linear(width, width)
            self.k_proj = nn.Linear(width, width, bias=False)
            self.v_proj = nn.Linear(width, width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        if self.packed:
            bias = torch.cat((self.q_bias, self.k_bias, self.v_bias))
            qkv = F.linear(x, self.qkv.weight, bias).reshape(batch, tokens, 3, self.heads, -1)
            q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        else:
            q, k, v = (
                projection(x).reshape(batch, tokens, self.heads, -1).transpose(1, 2)
                for projection in (self.q_proj, self.k_proj, self.v_proj)
            )
        x = F.scaled_dot_product_attention(q, k, v)
        return self.proj(x.transpose(1, 2).reshape(batch, tokens, width))


class PackedSwiGLU(nn.Module):
    """Gate and value in one matrix: (…, D) -> (…, 2H) -> (…, H) -> (…, D)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, 2 * hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.fc1(x).chunk(2, dim=-1)
        return self.fc2(F.silu(gate) * value)


class SwiGLU(nn.Module):
    """Gate and value in two matrices, with a norm before the way back."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1_g = nn.Linear(width, hidden)
        self.fc1_x = nn.Linear(width, hidden)
        self.norm = nn.LayerNorm(hidden, eps=1e-6)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.fc1_g(x)
        x = self.fc1_x(x)
        return self.fc2(self.norm(F.silu(gate) * x))


class Mlp(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class DropPath(nn.Module):
    """Drop a whole residual branch per sample (stochastic depth)."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.keep = 1.0 - rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        kept = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(self.keep)
        return x * kept.div_(self.keep)


class EvaBlock(nn.Module):
    def __init__(self, size: EvaSize, drop_path: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(size.width, eps=1e-6)
        self.attn = EvaAttention(size)
        self.norm2 = nn.LayerNorm(size.width, eps=1e-6)
        if not size.swiglu:
            self.mlp: nn.Module = Mlp(size.width, size.hidden)
        elif size.mlp_norm:
            self.mlp = SwiGLU(size.width, size.hidden)
        else:
            self.mlp = PackedSwiGLU(size.width, size.hidden)
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_path(self.attn(self.norm1(x)))
        return x + self.drop_path(self.mlp(self.norm2(x)))


class EvaTransformer(nn.Module):
    """The whole image transformer that timm makes. A point cloud uses ``blocks`` and ``fc_norm`` only; the image stem,
    its class token, positions and classifier are on the card all the same (without ever getting a gradient)."""

    def __init__(self, size: EvaSize, drop_path_rate: float) -> None:
        super().__init__()
        width = size.width
        grid = size.image_size // 14
        self.patch_embed = nn.Conv2d(3, width, 14, stride=14)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, grid * grid + 1, width))
        if size.rotary:  # sine and cosine per image patch
            self.register_buffer("rope", torch.zeros(grid * grid, 2 * width // size.heads), persistent=False)
        rates = [drop_path_rate * i / max(size.depth - 1, 1) for i in range(size.depth)]
        self.blocks = nn.ModuleList(EvaBlock(size, rate) for rate in rates)
        self.fc_norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, size.head_classes) if size.head_classes else nn.Identity()


# -- Uni3D ------------------------------------------------------------------------------------------------------


def square_distance(a: Tensor, b: Tensor) -> Tensor:
    """Squared distances of (B, G, 3) to (B, N, 3): (B, G, N), by the binomial formula."""
    distance = -2 * torch.matmul(a, b.permute(0, 2, 1))
    distance += torch.sum(a**2, -1).view(a.shape[0], a.shape[1], 1)
    distance += torch.sum(b**2, -1).view(b.shape[0], 1, b.shape[1])
    return distance


def farthest_points(xyz: Tensor, count: int) -> Tensor:
    """Indices (B, count) of points that lie far from each other."""
    batch, points, _ = xyz.shape
    chosen = torch.zeros(batch, count, dtype=torch.long, device=xyz.device)
    nearest = torch.full((batch, points), 1e10, device=xyz.device)
    farthest = torch.randint(0, points, (batch,), device=xyz.device)
    rows = torch.arange(batch, device=xyz.device)
    for i in range(count):
        chosen[:, i] = farthest
        centre = xyz[rows, farthest].view(batch, 1, 3)
        nearest = torch.minimum(nearest, torch.sum((xyz - centre) ** 2, -1))
        farthest = torch.max(nearest, -1)[1]
    return chosen


class Group(nn.Module):
    """(B, N, 3) positions and colours -> centres (B, G, 3) and features (B, G, M, 6). Without gradients."""

    def __init__(self, groups: int, group_size: int) -> None:
        super().__init__()
        self.groups = groups
        self.group_size = group_size

    def forward(self, xyz: Tensor, color: Tensor) -> tuple[Tensor, Tensor]:
        batch, points, _ = xyz.shape
        index = farthest_points(xyz, self.groups)
        center = torch.gather(xyz, 1, index.unsqueeze(-1).expand(-1, -1, 3))
        distance = square_distance(center, xyz)
        index = torch.topk(distance, self.group_size, dim=-1, largest=False, sorted=False)[1]
        del distance
        index = index + torch.arange(0, batch, device=xyz.device).view(-1, 1, 1) * points
        index = index.view(-1)
        shape = (batch, self.groups, self.group_size, 3)
        near = xyz.view(batch * points, 3)[index, :].view(shape).contiguous()
        near_color = color.view(batch * points, 3)[index, :].view(shape).contiguous()
        near = near - center.unsqueeze(2)
        return center, torch.cat((near, near_color), dim=-1)


class GroupEncoder(nn.Module):
    """A small PointNet per group: (B, G, M, 6) -> (B, G, E)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first_conv = nn.Sequential(
            nn.Conv1d(6, 128, 1), nn.BatchNorm1d(128), nn.ReLU(inplace=True), nn.Conv1d(128, 256, 1)
        )
        self.second_conv = nn.Sequential(
            nn.Conv1d(512, 512, 1), nn.BatchNorm1d(512), nn.ReLU(inplace=True), nn.Conv1d(512, channels, 1)
        )

    def forward(self, features: Tensor) -> Tensor:
        batch, groups, size, _ = features.shape
        x = self.first_conv(features.reshape(batch * groups, size, 6).transpose(2, 1))
        overall = torch.max(x, dim=2, keepdim=True)[0]
        x = torch.cat([overall.expand(-1, -1, size), x], dim=1)
        x = self.second_conv(x)
        return torch.max(x, dim=2)[0].reshape(batch, groups, -1)


class PatchDropout(nn.Module):
    """Keep a random part of the tokens after the first one."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        cls_token, x = x[:, :1], x[:, 1:]
        batch, tokens, _ = x.shape
        kept = max(1, int(tokens * (1 - self.rate)))
        rows = torch.arange(batch, device=x.device)[..., None]
        columns = torch.randn(batch, tokens, device=x.device).topk(kept, dim=-1).indices
        return torch.cat((cls_token, x[rows, columns]), dim=1)


class PointcloudEncoder(nn.Module):
    """(B, N, 3) positions and colours -> (B, embed_dim)."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__()
        size = EVA[settings.get("pc_model", "eva02_tiny_patch14_224")]
        channels = settings.get("pc_encoder_dim", 512)
        patch_dropout = settings.get("patch_dropout", 0.0)
        self.use_checkpoint = bool(settings.get("use_checkpoint", False))
        self.group_divider = Group(settings.get("num_group", 512), settings.get("group_size", 32))
        self.encoder = GroupEncoder(channels)
        self.encoder2trans = nn.Linear(channels, size.width)
        self.trans2embed = nn.Linear(size.width, settings.get("embed_dim", CLIP_EMBED_DIM))
        self.cls_token = nn.Parameter(torch.zeros(1, 1, size.width))
        self.cls_pos = nn.Parameter(torch.zeros(1, 1, size.width))
        self.pos_embed = nn.Sequential(nn.Linear(3, 128), nn.GELU(), nn.Linear(128, size.width))
        self.patch_dropout = PatchDropout(patch_dropout) if patch_dropout > 0 else nn.Identity()
        self.visual = EvaTransformer(size, settings.get("drop_path_rate", 0.0))

    def forward(self, xyz: Tensor, color: Tensor) -> Tensor:
        center, features = self.group_divider(xyz, color)
        tokens = self.encoder2trans(self.encoder(features))
        batch = tokens.shape[0]
        position = self.pos_embed(center)
        x = torch.cat((self.cls_token.expand(batch, -1, -1), tokens), dim=1)
        position = torch.cat((self.cls_pos.expand(batch, -1, -1), position), dim=1)
        x = self.patch_dropout(x + position)
        for block in self.visual.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.use_checkpoint else block(x)
        return self.trans2embed(self.visual.fc_norm(x[:, 0, :]))


class Uni3D(nn.Module):
    """(B, N, 6) -> (B, output_dim). ``freeze_weights`` stops the gradients of everything but the projection; the
    batch norms stay in train mode, since nobody calls ``.eval()`` on a part of the policy."""

    def __init__(self, settings: dict[str, Any], output_dim: int) -> None:
        super().__init__()
        self.point_encoder = PointcloudEncoder(settings)
        if settings.get("freeze_weights", False):
            self.point_encoder.requires_grad_(False)
        embed_dim = settings.get("embed_dim", CLIP_EMBED_DIM)
        self.projection = nn.Linear(embed_dim, output_dim) if embed_dim != output_dim else nn.Identity()

    def forward(self, points: Tensor) -> Tensor:
        if points.shape[-1] == 3:
            points = torch.cat([points, torch.zeros_like(points)], dim=-1)  # no colours: black
        xyz, color = points[:, :, :3].contiguous(), points[:, :, 3:6].contiguous()
        return self.projection(self.point_encoder(xyz, color))


# -- PointNet ---------------------------------------------------------------------------------------------------


class PointNet(nn.Module):
    """An MLP per point, the maximum over the points, a projection: (B, N, 3 or 6) -> (B, out_channels)."""

    def __init__(self, settings: dict[str, Any], channels: int, out_channels: int) -> None:
        super().__init__()
        norm = bool(settings.get("use_layernorm", False))
        widths = [channels, 64, 128, 256] + ([512] if channels == 6 else [])
        layers: list[nn.Module] = []
        for index, (narrow, wide) in enumerate(pairwise(widths)):
            layers.append(nn.Linear(narrow, wide))
            if index < 3:  # the fourth layer, which only coloured clouds have, stands alone
                layers += [nn.LayerNorm(wide)] if norm else []
                layers.append(nn.ReLU())
        self.mlp = nn.Sequential(*layers)
        self.final_projection: nn.Module = nn.Linear(widths[-1], out_channels)
        if settings.get("final_norm", "none") == "layernorm":
            self.final_projection = nn.Sequential(self.final_projection, nn.LayerNorm(out_channels))
        if channels == 3 and not settings.get("use_projection", True):
            self.final_projection = nn.Identity()

    def forward(self, points: Tensor) -> Tensor:
        return self.final_projection(torch.max(self.mlp(points), 1)[0])


# -- the policy -------------------------------------------------------------------------------------------------


class ObservationEncoder(nn.Module):
    """Point cloud (B, N, C) and robot state (B, S) -> (B, encoder_output_dim + 64)."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        settings = option(config, "policy.pointcloud_encoder_cfg", {})
        out_channels = option(config, "policy.encoder_output_dim", 256)
        _, _, state, _ = shapes(config)
        kind = option(config, "policy.pointnet_type", "pointnet")
        color = bool(option(config, "policy.use_pc_color", False))
        if kind in ("uni3d", "uni3d_pretrained"):
            self.extractor: nn.Module = Uni3D(settings, out_channels)
        elif kind == "pointnet":
            self.extractor = PointNet(settings, 6 if color else 3, settings.get("out_channels", 1024))
        else:
            raise ValueError(f"pointnet_type: {kind} is neither pointnet nor uni3d")
        self.state_mlp = nn.Sequential(nn.Linear(state, 64), nn.ReLU(), nn.Linear(64, 64))
        self.width = out_channels + 64

    def forward(self, points: Tensor, state: Tensor) -> Tensor:
        features = self.extractor(points)
        return torch.cat([features, self.state_mlp(state)], dim=-1)


class ConvBlock(nn.Sequential):
    """(B, C, T): convolution, group norm, Mish."""

    def __init__(self, channels: int, out_channels: int, kernel_size: int, groups: int = 8) -> None:
        super().__init__(
            nn.Conv1d(channels, out_channels, kernel_size, padding=kernel_size // 2),
            nn.GroupNorm(groups, out_channels),
            nn.Mish(),
        )


class ConditionalBlock(nn.Module):
    """Two convolution blocks; in between, the condition (B, K) scales and shifts the channels (film, mlp_film) or is
    added to them (add)."""

    def __init__(self, channels: int, out_channels: int, condition: int, config: dict[str, Any]) -> None:
        super().__init__()
        kernel_size = option(config, "policy.kernel_size", 5)
        groups = option(config, "policy.n_groups", 8)
        kind = option(config, "policy.condition_type", "film")
        self.out_channels = out_channels
        self.films = kind != "add"
        self.blocks = nn.ModuleList(
            (
                ConvBlock(channels, out_channels, kernel_size, groups),
                ConvBlock(out_channels, out_channels, kernel_size, groups),
            )
        )
        if kind == "film":
            self.cond_encoder = nn.Sequential(nn.Mish(), nn.Linear(condition, 2 * out_channels))
        elif kind == "mlp_film":
            hidden = nn.Linear(condition, condition)
            self.cond_encoder = nn.Sequential(nn.Mish(), hidden, nn.Mish(), nn.Linear(condition, 2 * out_channels))
        elif kind == "add":
            self.cond_encoder = nn.Sequential(nn.Mish(), nn.Linear(condition, out_channels))
        else:
            raise ValueError(f"condition_type: {kind} is none of film, mlp_film and add")
        self.residual_conv = nn.Conv1d(channels, out_channels, 1) if channels != out_channels else nn.Identity()

    def forward(self, x: Tensor, condition: Tensor | None) -> Tensor:
        out = self.blocks[0](x)
        if condition is not None and self.films:
            embed = self.cond_encoder(condition).reshape(x.shape[0], 2, self.out_channels, 1)
            out = embed[:, 0] * out + embed[:, 1]
        elif condition is not None:
            out = out + self.cond_encoder(condition).unsqueeze(-1)
        out = self.blocks[1](out)
        return out + self.residual_conv(x)


class SinusoidalPosition(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, step: Tensor) -> Tensor:
        half = self.width // 2
        scale = math.log(10000) / (half - 1)
        frequency = torch.exp(torch.arange(half, device=step.device) * -scale)
        angle = step[:, None] * frequency[None, :]
        return torch.cat((angle.sin(), angle.cos()), dim=-1)


class ConditionalUnet1D(nn.Module):
    """Noisy actions (B, T, A), diffusion step (B,), condition (B, K) -> (B, T, A)."""

    def __init__(self, actions: int, condition: int, config: dict[str, Any]) -> None:
        super().__init__()
        step = option(config, "policy.diffusion_step_embed_dim", 256)
        down_dims = list(option(config, "policy.down_dims", [256, 512, 1024]))
        self.condition_down = option(config, "policy.use_down_condition", True)
        self.condition_mid = option(config, "policy.use_mid_condition", True)
        self.condition_up = option(config, "policy.use_up_condition", True)
        simple = option(config, "policy._target_", "").endswith("SimpleDP3")  # one block instead of two

        def blocks(channels: int, out_channels: int) -> nn.ModuleList:
            first = ConditionalBlock(channels, out_channels, condition + step, config)
            if simple:
                return nn.ModuleList([first])
            return nn.ModuleList([first, ConditionalBlock(out_channels, out_channels, condition + step, config)])

        self.diffusion_step_encoder = nn.Sequential(
            SinusoidalPosition(step), nn.Linear(step, 4 * step), nn.Mish(), nn.Linear(4 * step, step)
        )
        widths = [actions, *down_dims]
        pairs = list(pairwise(widths))
        self.mid_modules = blocks(widths[-1], widths[-1])
        self.down_modules = nn.ModuleList(
            nn.ModuleList(
                (
                    blocks(narrow, wide),
                    nn.Conv1d(wide, wide, 3, 2, 1) if i < len(pairs) - 1 else nn.Identity(),
                )
            )
            for i, (narrow, wide) in enumerate(pairs)
        )
        self.up_modules = nn.ModuleList(
            nn.ModuleList((blocks(2 * wide, narrow), nn.ConvTranspose1d(narrow, narrow, 4, 2, 1)))
            for narrow, wide in reversed(pairs[1:])
        )
        kernel_size = option(config, "policy.kernel_size", 5)
        self.final_conv = nn.Sequential(
            ConvBlock(down_dims[0], down_dims[0], kernel_size), nn.Conv1d(down_dims[0], actions, 1)
        )

    def forward(self, sample: Tensor, step: Tensor, condition: Tensor) -> Tensor:
        x = sample.permute(0, 2, 1)
        condition = torch.cat([self.diffusion_step_encoder(step), condition], dim=-1)
        skips = []
        for blocks, downsample in self.down_modules:
            for block in blocks:
                x = block(x, condition if self.condition_down else None)
            skips.append(x)
            x = downsample(x)
        for block in self.mid_modules:
            x = block(x, condition if self.condition_mid else None)
        for blocks, upsample in self.up_modules:
            x = torch.cat((x, skips.pop()), dim=1)
            for block in blocks:
                x = block(x, condition if self.condition_up else None)
            x = upsample(x)
        return self.final_conv(x).permute(0, 2, 1)


class Normalizer(nn.Module):
    """Per channel: x * scale + offset. Fitted on the data set, never trained."""

    def __init__(self, channels: dict[str, int]) -> None:
        super().__init__()
        for name, count in channels.items():
            self.register_buffer(f"{name}_scale", torch.ones(count))
            self.register_buffer(f"{name}_offset", torch.zeros(count))

    def forward(self, x: Tensor, name: str) -> Tensor:
        scale, offset = getattr(self, f"{name}_scale"), getattr(self, f"{name}_offset")
        return (x.reshape(-1, x.shape[-1]) * scale + offset).reshape(x.shape)


class DiffusionPolicy(nn.Module):
    """The policy; called with a batch it gives the training loss (a scalar)."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        _, channels, state, actions = shapes(config)
        self.n_obs_steps = option(config, "n_obs_steps", 2)
        self.use_pc_color = bool(option(config, "policy.use_pc_color", False))
        self.obs_encoder = ObservationEncoder(config)
        self.model = ConditionalUnet1D(actions, self.obs_encoder.width * self.n_obs_steps, config)
        names = {"point_cloud": channels, "agent_pos": state, "action": actions}
        robot = robot_shape(config)
        if robot is not None:
            names["imagin_robot"] = robot[1]
        self.normalizer = Normalizer(names)
        self.register_buffer("signal_rate", torch.ones(DIFFUSION_STEPS), persistent=False)
        self.register_buffer("noise_rate", torch.ones(DIFFUSION_STEPS), persistent=False)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        points = self.normalizer(batch["point_cloud"], "point_cloud")
        state = self.normalizer(batch["agent_pos"], "agent_pos")
        actions = self.normalizer(batch["action"], "action")
        if not self.use_pc_color:
            points = points[..., :3]

        # (B, horizon, ...) -> (B * n_obs_steps, ...): every observed step is a cloud of its own
        observed = points[:, : self.n_obs_steps].reshape(-1, *points.shape[2:])
        observed_state = state[:, : self.n_obs_steps].reshape(-1, *state.shape[2:])
        if "imagin_robot" in batch:
            robot = self.normalizer(batch["imagin_robot"], "imagin_robot")
            robot = robot[:, : self.n_obs_steps].reshape(-1, *robot.shape[2:])
            observed = torch.cat([observed, robot[..., : observed.shape[-1]]], dim=1)
        features = self.obs_encoder(observed, observed_state)
        condition = features.reshape(actions.shape[0], -1)

        noise = torch.randn(actions.shape, device=actions.device)
        step = torch.randint(0, DIFFUSION_STEPS, (actions.shape[0],), device=actions.device)
        signal_rate = self.signal_rate[step].view(-1, 1, 1)
        noise_rate = self.noise_rate[step].view(-1, 1, 1)
        noisy = signal_rate * actions + noise_rate * noise
        predicted = self.model(noisy, step, condition)
        loss = F.mse_loss(predicted, actions, reduction="none")
        return loss.reshape(loss.shape[0], -1).mean()


def build_model(config: dict[str, Any]) -> nn.Module:
    """The policy of a composed config (its interpolations resolved), on torch's default device."""
    return DiffusionPolicy(config)


def make_batch(config: dict[str, Any], device: str = "cpu") -> dict[str, Tensor]:
    """A batch as the data loader hands it over: whole action horizons with their observations."""
    points, channels, state, actions = shapes(config)
    lead = (option(config, "dataloader.batch_size", 1), option(config, "horizon", 16))
    batch = {
        "point_cloud": torch.rand(*lead, points, channels, device=device),
        "agent_pos": torch.rand(*lead, state, device=device),
        "action": torch.rand(*lead, actions, device=device),
    }
    robot = robot_shape(config)
    if robot is not None:
        batch["imagin_robot"] = torch.rand(*lead, *robot, device=device)
    return batch


def training_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """The scalar to call ``backward()`` on."""
    loss: Tensor = model(batch)
    return loss
