"""DeiT's program against torch: the published model's operations, in steps as its engine takes them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from memlint.dialects import registry
from memlint.documents.load import load
from memlint.facts.spec import TrainingSpec
from tests.differential import test_mae as mae
from tests.differential.training import in_meta, in_torch

COMMAND = "python -m torch.distributed.launch --nproc_per_node=1 --use_env main.py --data-path data --nb-classes 10"


class Attention(mae.Attention):
    """timm's from 0.9 on."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        parts = self.qkv(x).reshape(rows, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind(0)
        x = F.scaled_dot_product_attention(q, k, v)
        return self.proj(x.transpose(1, 2).reshape(rows, length, width))


def build_model(config: dict[str, Any]) -> nn.Module:
    model = mae.Classifier(pooled=False)
    if config["fused"]:
        for block in model.blocks:
            block.attn = Attention(768, 12)
    return model


MODULE: Any = SimpleNamespace(build_model=build_model, make_batch=mae.make_batch, training_loss=mae.training_loss)


def grouped(parameters: Any) -> torch.optim.Optimizer:
    """timm's two groups: what decays by no weight, and the rest; the token and the positions come first."""
    vectors = [one for number, one in enumerate(parameters) if one.ndim == 1 or number < 2]
    rest = [one for number, one in enumerate(parameters) if one.ndim > 1 and number >= 2]
    return torch.optim.AdamW([{"params": vectors}, {"params": rest}], lr=1e-4, foreach=True)


def run_of(command: str, folder: Path, pins: str = "") -> TrainingSpec:
    (folder / ".git").mkdir()
    (folder / "run.sh").write_text(f"{command}\n")
    (folder / "requirements.txt").write_text(pins)
    (spec,) = registry.specs(load(str(folder / "run.sh")))
    return spec


@pytest.mark.parametrize(
    ("options", "pins"),
    [
        pytest.param("--batch-size 4", "", id="mixed images"),
        pytest.param("--batch-size 3 --mixup 0 --cutmix 0", "", id="smoothed labels"),
        pytest.param("--batch-size 3", "timm==0.4.12\n", id="attention that is written out"),
    ],
)
def test_a_step_takes_the_memory_that_torch_takes(options: str, pins: str, tmp_path: Path) -> None:
    spec = run_of(f"{COMMAND} --model deit_base_patch16_224 {options}", tmp_path, pins)
    assert (spec.unknown_reason, spec["ema"]) == ("", True)
    config = {
        **{"command": "--nb_classes", "rows": spec["micro_batch_size"], "mixed": "--mixup 0" not in options},
        "fused": not pins,
    }
    theirs = in_torch(MODULE, config, grouped, 1, True, "float16", keeps_loss=True, clears_late=True)
    ours = in_meta(spec)
    assert (ours.parameters, ours.trainable) == (theirs.parameters, theirs.trainable)
    assert ours.saved == pytest.approx(theirs.saved, rel=0.001)
    assert ours.held == pytest.approx(theirs.held, rel=0.001)
    assert ours.peak == pytest.approx(theirs.peak, rel=0.001)
    for phase, size in theirs.phases.items():
        assert ours.phases[phase] == pytest.approx(size, rel=0.001), phase
