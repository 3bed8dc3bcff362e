"""Gradients that are zeroed where they lie, as a step that is captured as a CUDA graph asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from memlint.models import record
from tests.differential.implementations import reference
from tests.differential.test_implementations import CONFIG, spec
from tests.differential.test_language_models import TOLERANCE, Setting
from tests.differential.training import compare, in_meta, in_torch, walk


class Zeroing(torch.optim.AdamW):
    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none=False)


@pytest.mark.parametrize("every", [0, 1], ids=["", "checkpointed"])
def test_they_are_there_while_the_next_step_runs(every: int) -> None:
    setting = Setting(dtype="bfloat16", every=every)
    ours = in_meta(spec("torchtitan", setting, False, 0, gradients_kept=True))

    def optimizer(parameters: Sequence[Any]) -> torch.optim.Optimizer:
        return Zeroing(parameters, foreach=True)

    truth = in_torch(reference("torchtitan", CONFIG, setting, False, False, 0), {}, optimizer)
    comparison = compare(f"{setting}", ours, truth, bool(every))
    assert comparison.worst <= TOLERANCE, str(comparison)
    assert ours.phases["forward"] == pytest.approx(truth.phases["forward"], rel=TOLERANCE)


@pytest.mark.parametrize("ranks", [2, 4])
def test_of_what_is_sharded_each_rank_keeps_its_shard(ranks: int) -> None:
    facts: dict[str, Any] = {"parallelism.strategy": "fsdp2", "parallelism.shard": ranks, "device_count": ranks}
    setting = Setting(dtype="float32", every=1)
    peaks = []
    for kept in (False, True):
        made = record(spec("torchtitan", setting, False, 0, gradients_kept=kept, **facts))
        peaks.append(walk(made.tape)[0]["forward"])
    more, whole = peaks[1] - peaks[0], made.parameters * 4
    assert more == pytest.approx(whole / ranks, rel=0.01)  # what rounding to blocks makes of small shards
