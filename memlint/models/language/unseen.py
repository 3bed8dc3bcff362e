"""Qwen3.5 and Llama 4 among text alone: the decoder trains, and the vision tower lies beside it, never asked.

Source: ``transformers`` 5.23, ``models/{qwen3_5,qwen3_5_moe,llama4}/modeling_*.py``.
"""

from __future__ import annotations

from typing import Any

from memlint.architectures.vision import Llama4Tower, Qwen35Tower
from memlint.architectures.vision_language import TextAlone
from memlint.facts.spec import TrainingSpec
from memlint.meta.autograd import no_grad
from memlint.meta.nn import Conv, Embedding, LayerNorm, Linear, Module, parameter
from memlint.meta.tensor import DType, Tensor, component, default_dtype, empty, int64
from memlint.models import UnknownModel
from memlint.models.language import Task, language_model, losses, sequence_length


class Attention(Module):
    def __init__(self, width: int) -> None:
        self.qkv = Linear(width, 3 * width)
        self.proj = Linear(width, width)


class Perceptron(Module):
    def __init__(self, width: int, inner: int, out: int) -> None:
        self.linear_fc1 = Linear(width, inner)
        self.linear_fc2 = Linear(inner, out)


class Block(Module):
    def __init__(self, width: int, inner: int) -> None:
        self.norm1, self.norm2 = LayerNorm(width), LayerNorm(width)
        self.attn = Attention(width)
        self.mlp = Perceptron(width, inner, width)


class Merger(Perceptron):
    def __init__(self, width: int, joined: int, out: int) -> None:
        super().__init__(joined, joined, out)
        self.norm = LayerNorm(width)


class QwenTower(Module):
    def __init__(self, config: Qwen35Tower) -> None:
        width = config.width
        self.patch_embed = Conv(config.channels, width, config.patch, config.patch)
        self.pos_embed = Embedding(config.positions, width)
        self.blocks = [Block(width, config.intermediate) for _ in range(config.layers)]
        self.merger = Merger(width, width * config.merge**2, config.out)


class LlamaBlock(Module):
    def __init__(self, width: int, inner: int) -> None:
        self.q_proj, self.k_proj = Linear(width, width), Linear(width, width)
        self.v_proj, self.o_proj = Linear(width, width), Linear(width, width)
        self.fc1, self.fc2 = Linear(width, inner), Linear(inner, width)
        self.input_layernorm, self.post_attention_layernorm = LayerNorm(width), LayerNorm(width)


class LlamaTower(Module):
    def __init__(self, config: Llama4Tower) -> None:
        width, inner, patch = config.width, config.intermediate, config.patch
        given, made = config.given, config.made
        self.class_embedding = parameter(width)
        self.positional_embedding_vlm = parameter((config.image // patch) ** 2 + 1, width)
        self.patch_embedding = Linear(config.channels * patch * patch, width, bias=False)
        self.layernorm_pre, self.layernorm_post = LayerNorm(width), LayerNorm(width)
        self.layers = [LlamaBlock(width, inner) for _ in range(config.layers)]
        self.fc1, self.fc2 = Linear(inner, given, bias=False), Linear(made, made, bias=False)


class Sight(Module):
    def __init__(self, config: Qwen35Tower | Llama4Tower, width: int) -> None:
        llama = isinstance(config, Llama4Tower)
        self.visual: Module = LlamaTower(config) if isinstance(config, Llama4Tower) else QwenTower(config)
        self.multi_modal_projector = Linear(config.out, width, bias=False) if llama else None


def task(spec: TrainingSpec, described: TextAlone, dtype: DType, autocast: bool) -> Task:
    """Facts: ``images_per_sample`` (0: nothing else is known here), ``frozen_parts``."""
    if spec.get("images_per_sample", 0):
        raise UnknownModel(f"images that {described.name!r} looks at are not known, text alone is")
    config = described.decoder
    model: Any = language_model(spec, config, dtype, autocast)
    with default_dtype(dtype):
        sight = Sight(described.tower, config.width)
    model.sight = sight  # a part of the model, by which it is counted and named
    frozen = spec.get("frozen_parts") or ()
    if "language_model" in frozen:
        raise UnknownModel("what trains is a vision tower that no data are for")
    if "vision_tower" in frozen:
        sight.freeze()
    rows, length = spec["micro_batch_size"] * spec.get("sequences_per_sample", 1), sequence_length(spec)

    def given(rows: int, length: int) -> tuple[Tensor, ...]:
        """Tokens, the mask of padding, labels."""
        return tuple(empty((rows, length), int64) for _ in range(3))

    def loss(batch: tuple[Tensor, ...]) -> Tensor:
        out: Tensor = model(batch[0], batch[2])
        return out

    def evaluate(rows: int, length: int) -> Tensor:
        batch = given(rows, length)
        with no_grad():
            x = model.hidden(batch[0])
            with component("logits"):
                logits: Tensor = model.logits(x)
                losses.full(logits, batch[2])
        return logits

    kept = ("lm_head", "sight")
    return Task(model, config, lambda: given(rows, length), loss, evaluate, kept, unused=sight.parameters)
