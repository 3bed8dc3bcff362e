"""Recomputed blocks hold what they keep no longer than their results are asked for."""

from __future__ import annotations

import gc
from weakref import ref

import pytest

from memlint.meta.checkpoint import checkpoint
from memlint.meta.nn import Linear
from memlint.meta.tensor import Tensor, empty, recording


@pytest.mark.parametrize("reentrant", [False, True], ids=["torch's newer implementation", "the older one"])
def test_a_result_that_nobody_asks_for_lets_go_of_what_its_block_kept(reentrant: bool) -> None:
    gc.disable()  # which would find a circle some time, and write the release at some place of the tape
    try:
        with recording() as tape:
            layer, given = Linear(8, 8), empty((4, 8)).requires_grad_()
            out: Tensor = checkpoint(layer, given, use_reentrant=reentrant)
            assert out.node is not None
            node = ref(out.node)
            before = len(tape.events)
            del out
            assert node() is None
            assert len(tape.events) > before
    finally:
        gc.enable()
