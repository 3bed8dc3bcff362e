"""nanotron's decoders: the static step against torch models that compute as its code does, on one rank. flash-attn's
kernels are functions that allocate what these do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

from memlint.architectures.megatron import decoder
from memlint.facts.spec import Fact, TrainingSpec
from memlint.measure.tracker import StorageTracker
from tests.differential.training import fake_cuda, in_meta

LAYERS, W, HEADS, GROUPS, D, INNER, V = 3, 256, 8, 4, 32, 640, 4096
BF16, FP32 = torch.bfloat16, torch.float32


class Norm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        rows = torch.empty(x.numel() // W, dtype=FP32)
        ctx.save_for_backward(x, weight, rows)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


class Rotated(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.empty(x.shape, dtype=x.dtype)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        return torch.empty(g.shape, dtype=g.dtype)


class Attend(Function):
    """Queries (T, h, d) of so many rows; keys and values apart, or in one tensor (T, 2, g, d)."""

    @staticmethod
    def forward(ctx: Any, rows: int, query: Tensor, *both: Tensor) -> Tensor:
        out, sums = torch.empty(query.shape, dtype=BF16), torch.empty(HEADS, query.shape[0], dtype=FP32)
        ctx.save_for_backward(query, *both, out, sums)
        ctx.tokens = query.shape[0] + 128 * rows
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        *given, _, _ = ctx.saved_tensors
        gradients = [torch.empty(x.shape, dtype=x.dtype) for x in given]
        scratch = [torch.empty(HEADS, ctx.tokens, dtype=FP32), torch.empty(ctx.tokens, HEADS, D, dtype=FP32)]
        if given[1].shape[-2] != HEADS:
            scratch += [torch.empty(given[0].shape, dtype=BF16) for _ in range(2)]
        del scratch
        return (None, *gradients)


class Loss(Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        most = torch.max(logits, dim=-1)[0]
        softmax = logits - most.unsqueeze(-1)
        beyond, places = labels < 0, labels.clone().view(-1)
        torch.exp(softmax, out=softmax)
        ctx.save_for_backward(softmax, beyond, places)
        return softmax.sum(-1)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return ctx.saved_tensors[0].mul_(g.unsqueeze(-1)), None


class Layer(nn.Module):
    def __init__(self, packed: bool) -> None:
        super().__init__()
        self.packed = packed
        self.first, self.second = nn.Parameter(torch.empty(W, dtype=BF16)), nn.Parameter(torch.empty(W, dtype=BF16))
        sizes = (W, (HEADS + 2 * GROUPS) * D), (W, W), (W, 2 * INNER), (INNER, W)
        self.qkv, self.out, self.up, self.down = (nn.Linear(*size, bias=False, dtype=BF16) for size in sizes)

    def plain(self, x: Tensor) -> Tensor:
        x = x.to(FP32)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.first * x.to(BF16)

    def joined(self, x: Tensor, rows: int) -> Tensor:
        mixed = self.qkv(x)
        query, both = mixed[..., : HEADS * D], mixed[..., HEADS * D :]
        query = Rotated.apply(query.view(rows, -1, HEADS, D)).view(-1, HEADS, D)
        return self.out(Attend.apply(rows, query, both.view(-1, 2, GROUPS, D)).reshape(-1, W))

    def apart(self, x: Tensor) -> Tensor:
        mixed = self.qkv(x)
        length, rows, _ = mixed.shape
        query, key, value = torch.split(mixed, [HEADS * D, GROUPS * D, GROUPS * D], -1)
        query = query.transpose(0, 1).contiguous().view(rows, length, HEADS, D)
        key = key.transpose(0, 1).contiguous().view(rows, length, GROUPS, D)
        value = value.transpose(0, 1).contiguous().view(rows, length, GROUPS, D)
        return self.attended(query, key, value)

    def attended(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        rows, length = query.shape[:2]
        both = torch.cat([key.unsqueeze(0), value.unsqueeze(0)])
        both = both.permute(1, 2, 0, 3, 4).contiguous()
        query = Rotated.apply(query).view(-1, HEADS, D)
        key, value = (part.view(-1, GROUPS, D) for part in torch.split(both, 1, 2))
        return self.out(Attend.apply(rows, query, key, value).view(rows, length, W).transpose(0, 1))

    def fed(self, x: Tensor) -> Tensor:
        merged = self.up(x)
        gate, up = torch.split(merged, INNER, -1)
        return self.down(F.silu(gate) * up)

    def forward(self, x: Tensor, rows: int) -> Tensor:
        residual = x
        x = self.plain(x) if self.packed else Norm.apply(x, self.first)
        attended = self.joined(x, rows) if self.packed else self.apart(x)
        x = attended
        x = x + residual
        residual = x
        x = Norm.apply(x, self.second)
        x = self.fed(x)
        return x + residual


class Model(nn.Module):
    def __init__(self, packed: bool, recomputed: bool) -> None:
        super().__init__()
        self.packed, self.recomputed = packed, recomputed
        self.words = nn.Embedding(V, W, dtype=BF16)
        self.layers = nn.ModuleList(Layer(packed) for _ in range(LAYERS))
        self.last = nn.ParameterList([nn.Parameter(torch.empty(W, dtype=BF16))])
        self.head = nn.Linear(W, V, bias=False, dtype=BF16)

    def returned(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens.view(-1) if self.packed else tokens.transpose(0, 1))
        rows = tokens.shape[0]
        for layer in self.layers:
            x = checkpoint(layer, x, rows, use_reentrant=True) if self.recomputed else layer(x, rows)
        x = Norm.apply(x, self.last[0])
        logits = self.head(x)
        return logits if self.packed else logits.float()

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        logits = self.returned(tokens)
        if self.packed:
            found = self.of_copies(logits.view(*labels.shape, -1), labels)
        else:
            found = Loss.apply(logits, labels.transpose(0, 1).contiguous())
        return (found * torch.empty(found.shape, dtype=FP32)).sum()

    @staticmethod
    def of_copies(logits: Tensor, labels: Tensor) -> Tensor:
        return Loss.apply(logits.to(FP32), labels)


def step(rows: int, length: int, packed: bool, recomputed: bool, wide: bool) -> tuple[int, dict[str, int]]:
    """(parameters, peaks by phase) of a second step of two micro batches."""
    with fake_cuda() as tracker:
        model = Model(packed, recomputed)
        _ = [torch.empty(length, D // 2, dtype=BF16) for _ in range(2 * LAYERS)]  # each layer's tables
        own = list(model.parameters())
        count = sum(x.numel() for x in own)
        sums, copies = own, own
        if wide:
            pieces = [torch.empty(count, dtype=FP32) for _ in range(2)]
            sums, copies = (
                [part.view_as(x) for part, x in zip(piece.split([x.numel() for x in own]), own)] for piece in pieces
            )
        optimizer = torch.optim.AdamW([x.requires_grad_() for x in copies], foreach=False)
        for number in range(2):
            if number:
                tracker.reset_peak()
            one_step(tracker, model, rows, length, optimizer, own, sums, copies)
        return count, {name: tracker.phase_peaks[name] for name in ("forward", "backward", "optimizer_step")}


def one_step(
    tracker: StorageTracker,
    model: Model,
    rows: int,
    length: int,
    optimizer: torch.optim.Optimizer,
    own: list[nn.Parameter],
    sums: list[Any],
    copies: list[Any],
) -> None:
    for _ in range(2):
        with tracker.phase("forward"):
            tokens, labels, _mask = (torch.empty(rows, length, dtype=torch.int64) for _ in range(3))
            loss = model(tokens, labels)
        with tracker.phase("backward"):
            loss.backward()
            loss = loss.detach()
            for x, total in zip(own, sums):
                if total is not x:
                    total.add_(x.grad)
                    x.grad = None
    with tracker.phase("optimizer_step"):
        for copy, total in zip(copies, sums):
            if copy is not total:
                copy.grad = total
        optimizer.step()
        for state in optimizer.state.values():
            tracker.forget(state["step"])
        for copy in copies:
            copy.grad = None


WAYS = {
    "Llama": (False, False, True),
    "Llama, recomputed": (False, True, True),
    "Qwen2": (True, False, True),
    "Qwen2, gradients in 16 bits": (True, False, False),
}


@pytest.mark.parametrize(("packed", "recomputed", "wide"), WAYS.values(), ids=WAYS)
def test_a_step_takes_the_memory_that_nanotron_s_takes(packed: bool, recomputed: bool, wide: bool) -> None:
    rows, length = 2, 256
    made = decoder(
        layers=LAYERS, width=W, heads=HEADS, groups=GROUPS, inner=INNER, vocabulary=V, length=0, positions="rope",
        norm="rms", gated=True, activation="silu", biased=False, tied=False,
    )  # fmt: skip
    facts: dict[str, Any] = {
        "implementation": "nanotron qwen2" if packed else "nanotron", "decoder": made, "micro_batch_size": rows,
        "sequence_length": length, "parameter_dtype": "bfloat16", "compute_dtype": "bfloat16", "autocast": False,
        "attention": "flash", "checkpointing": "full" if recomputed else "none", "optimizer": "adamw",
        "optimizer_implementation": "loop", "optimizer_library": "nanotron", "master_weights": wide,
        "gradient_dtype": "float32" if wide else "bfloat16", "gradient_accumulation_steps": 2,
    }  # fmt: skip
    stated = {name: Fact(name, value) for name, value in facts.items()}  # type: ignore[arg-type]
    ours = in_meta(TrainingSpec("test", None, None, stated, "language_model"))  # type: ignore[arg-type]
    count, phases = step(rows, length, packed, recomputed, wide)
    assert ours.parameters == count
    for name, peak in phases.items():
        assert ours.phases[name] == pytest.approx(peak, rel=0.001), name
