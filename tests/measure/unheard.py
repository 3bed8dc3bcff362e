"""A model that memlint has never heard of, in a config of a family that it knows: what `memlint record` is for."""

from __future__ import annotations

from pathlib import Path

MODEL = '''
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, tokens):
        rows, length, width = tokens.shape
        qkv = self.qkv(self.norm(tokens)).view(rows, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(rows, length, width)
        return tokens + self.drop(self.out(mixed))


class Cell(nn.Module):
    """A gated cell, written by hand."""

    def __init__(self, width):
        super().__init__()
        self.gate = nn.Linear(2 * width, width)
        self.candidate = nn.Linear(2 * width, width)

    def forward(self, state, seen):
        both = torch.cat([state, seen], -1)
        gate = torch.sigmoid(self.gate(both))
        return gate * state + (1 - gate) * torch.tanh(self.candidate(both))


class Watcher(nn.Module):
    """Frames -> patches -> attention, recomputed in backward -> a loop over time -> LSTM -> classes."""

    def __init__(self, width, heads, depth, classes):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 16, 16)
        self.blocks = nn.ModuleList(Attention(width, heads) for _ in range(depth))
        self.cell = Cell(width)
        self.memory = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, video):
        batch, frames = video.shape[:2]
        tokens = self.stem(video.flatten(0, 1)).flatten(2).transpose(1, 2)
        for block in self.blocks:
            tokens = checkpoint(block, tokens, use_reentrant=False)
        seen = tokens.mean(1).unflatten(0, (batch, frames))
        state = torch.zeros_like(seen[:, 0])
        states = []
        for time in range(frames):
            state = self.cell(state, seen[:, time])
            states.append(state)
        remembered, _ = self.memory(torch.stack(states, 1))
        return self.head(remembered[:, -1])


def build_model(config):
    return Watcher(config["model"]["vision"]["feature_dim"], 2, 1, 10)


def make_batch(config, device="cpu"):
    batch, size = config["training"]["batch_size"], config["data"]["image_size"]
    video = torch.rand(batch, config["data"]["max_frames"], 3, size, size, device=device)
    return {"video": video, "labels": torch.zeros(batch, dtype=torch.long, device=device)}


def training_loss(model, batch):
    return F.cross_entropy(model(batch["video"]), batch["labels"])
'''
CONFIG = """\
# Video classification with a model of our own.
data:
  features_dir: data/clips
  max_frames: 6
  tokens_per_frame: 16
  max_text_length: 8
  image_size: 64
model:
  vision:
    feature_dim: 32
  projector:
    type: linear
  llm:
    name: ours/watcher
    dtype: float32
    use_gradient_checkpointing: false
training:
  batch_size: 8
  gradient_accumulation_steps: 2
  use_mixed_precision: false
  optimizer: adamw
"""
SETTINGS = '[probe]\nmodel = "watcher:build_model"\n'
DIMS = ("training.batch_size", "data.max_frames", "data.image_size")


def project(folder: Path) -> Path:
    """The config, with its model and settings beside it."""
    folder.mkdir(exist_ok=True)
    (folder / "watcher.py").write_text(MODEL, encoding="utf-8")
    (folder / "memlint.toml").write_text(SETTINGS, encoding="utf-8")
    path = folder / "train.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    return path
