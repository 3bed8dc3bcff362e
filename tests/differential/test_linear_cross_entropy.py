"""torchtune's loss that makes the logits of each chunk itself, against torch's run of the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.differential.implementations import reference
from tests.differential.test_implementations import CONFIG, spec
from tests.differential.test_language_models import TOLERANCE, Setting, adamw
from tests.differential.training import compare, in_meta, in_torch

CHUNKS = 8


class Picked(torch.autograd.Function):
    """``x[mask]`` by what ATen allocates, where the mask is true everywhere: fake tensors do not know how much."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        places = torch.empty(mask.numel(), 2, dtype=torch.int64)
        out = torch.empty(mask.numel(), x.shape[-1], dtype=x.dtype)
        del places
        ctx.save_for_backward(mask)
        ctx.shape, ctx.dtype = x.shape, x.dtype
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        places = torch.empty(ctx.saved_tensors[0].numel(), 2, dtype=torch.int64)
        out = torch.empty(ctx.shape, dtype=ctx.dtype)
        del places
        return out, None


def of_chunk(model: Any, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    mask = targets != -100
    targets = targets.reshape(-1).clone()
    hidden = Picked.apply(hidden, mask)  # type: ignore[no-untyped-call]
    logits = model.head(hidden)
    return F.cross_entropy(logits.float(), targets, reduction="sum")


def linear_loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    hidden = model.hidden(batch["tokens"], batch["places"])
    labels = batch["labels"]
    labels = torch.hstack((labels[..., 1:], labels[..., :1]))
    total: Any = 0.0
    for piece, target in zip(hidden.tensor_split(CHUNKS, dim=1), labels.tensor_split(CHUNKS, dim=1)):
        total += of_chunk(model, piece, target)
    return total / 2  # type: ignore[no-any-return]


@pytest.mark.parametrize("every", [0, 1], ids=["", "checkpointed"])
def test_logits_of_a_chunk_live_no_longer_than_its_loss_is_made(every: int) -> None:
    config = {**CONFIG, "vocab_size": 20_000}
    setting = Setting(dtype="bfloat16", every=every, length=160, optimizer="fused")
    facts = {"hyperparameters.config": config, "head_in_loss": True}
    ours = in_meta(spec("torchtune", setting, False, CHUNKS, **facts))
    model = reference("torchtune", config, setting, False, False, CHUNKS)
    model.training_loss = linear_loss
    truth = in_torch(model, {}, adamw("fused"))
    comparison = compare(f"{every}", ours, truth, bool(every))
    assert comparison.worst <= TOLERANCE, str(comparison)
    assert ours.phases["forward"] == pytest.approx(truth.phases["forward"], rel=TOLERANCE)
    lists = in_meta(spec("torchtune", setting, False, CHUNKS, **{**facts, "head_in_loss": False}))
    kept = setting.rows * setting.length * config["vocab_size"] * 2
    assert lists.phases["forward"] - ours.phases["forward"] > kept * 0.8  # all but the last chunk's
