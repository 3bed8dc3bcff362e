"""The loss over shares of the vocabulary beside PyTorch's own, op by op."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as torch_functional
from torch._subclasses.fake_tensor import FakeTensorMode

from memlint.measure.distributed import Collectives
from memlint.measure.tracker import StorageTracker
from memlint.meta import autograd
from memlint.meta.tape import Tape
from memlint.meta.tensor import Tensor, bfloat16, empty, int64, recording
from memlint.models.split import shared_loss

ROWS, WORDS, RANKS = 48, 256, 4
SHARE = ROWS * WORDS // RANKS


def of_a_share(tape: Tape) -> list[int]:
    """Bytes of each event, negative for a free, of tensors as large as this rank's logits in 16 or 32 bits. On fake
    tensors PyTorch finds out shapes with tensors of the whole vocabulary, which no card sees."""
    sizes = [tape.sizes[event] if event >= 0 else -tape.sizes[~event] for event in tape.events]
    return [size for size in sizes if abs(size) in (2 * SHARE, 4 * SHARE)]


def in_torch() -> list[int]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
    from torch.distributed.tensor.parallel import loss_parallel
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    try:
        mesh = init_device_mesh("cpu", (RANKS,))
        with FakeTensorMode(allow_non_fake_inputs=True), StorageTracker() as tracker, Collectives(tracker):
            share = torch.zeros(1, ROWS, WORDS // RANKS, dtype=torch.bfloat16, requires_grad=True)
            labels = torch.zeros(1, ROWS, dtype=torch.int64)

            def compared() -> torch.Tensor:
                logits = DTensor.from_local(share * 1, mesh, [Shard(2)], run_check=False)
                return torch_functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))

            with loss_parallel():
                compared().backward()
        return of_a_share(tracker.tape)  # while the share and its gradient live
    finally:
        dist.destroy_process_group()


def in_meta() -> list[int]:
    with recording() as tape:
        share = empty((1, ROWS, WORDS // RANKS), bfloat16)
        share.requires_grad = True
        labels = empty((1, ROWS), int64)

        def compared() -> Tensor:
            logits = share * 1
            return shared_loss(logits, labels)

        autograd.backward(compared())
        return of_a_share(tape)


def test_the_same_tensors_come_and_go() -> None:
    found = in_meta()
    assert found == in_torch()
    assert found.count(4 * SHARE) == 8


@pytest.mark.parametrize("words", [64, 4096])
def test_four_tensors_in_fp32_live_at_once_in_the_backward_pass(words: int) -> None:
    """Log-probabilities, what the labels give, exponentials, then their sum and the product."""
    with recording() as tape:
        share = empty((2, 8, words), bfloat16)
        share.requires_grad = True
        loss = shared_loss(share * 1, empty((2, 8), int64))
        tape.mark("backward")
        autograd.backward(loss)
        begin = tape.marks[0][0]
        live = most = 0
        for number, event in enumerate(tape.events):
            size = tape.sizes[event if event >= 0 else ~event]
            if size == 2 * 8 * words * 4:
                live += size if event >= 0 else -size
            most = max(most, live if number >= begin else 0)
    assert most == 4 * 2 * 8 * words * 4
