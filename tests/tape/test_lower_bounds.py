"""Two bounds that spare a simulation: the first micro-batch alone, and a perfect packing of each pool."""

from __future__ import annotations

import pytest

from memlint.meta.tape import Label, Tape
from memlint.tape.phases import first_pass_bytes, packed_bytes
from memlint.tape.summary import first_pass, packed
from tests.tape.test_phases import tape_of

LABEL = Label("activations", "model")
KiB, MiB = 2**10, 2**20


@pytest.mark.parametrize(
    ("steps", "most"),
    [
        pytest.param(("forward", 1024, "backward", 512), 0, id="one micro-batch"),
        pytest.param((1024,), 0, id="no micro-batch"),
        pytest.param(("setup", 1024, "backward", 512, "backward", 512), 0, id="other phases are no micro-batch"),
        pytest.param(
            ("setup", 1024, "forward", 2048, 512, "backward", ~1, ~2, "forward", 8192),
            3584,
            id="what is live before the second begins",
        ),
        pytest.param(
            ("setup", 1024, "forward", 512, "forward", 1024, "forward", 8192), 1536, id="of three the first counts"
        ),
        pytest.param(("forward", 5, ~0, 513, ~1, "forward", 1), 1024, id="each storage is rounded by itself"),
        pytest.param(
            ("forward", 4096, 512, ~1, 512, 1024, "forward", 8192), 5632, id="what is freed is what is taken off"
        ),
    ],
)
def test_the_first_micro_batch(steps: tuple[int | str, ...], most: int) -> None:
    assert first_pass_bytes(tape_of(*steps)) == most
    assert first_pass(tape_of(*steps)) == most


def pooled(*blocks: tuple[int, int]) -> Tape:
    """Blocks of (bytes, stream), one after the other: none is live beside another."""
    tape = Tape()
    for size, stream in blocks:
        tape.free(tape.allocate(size, LABEL, stream))
    return tape


@pytest.mark.parametrize(
    ("blocks", "size"),
    [
        pytest.param([], 0, id="nothing"),
        pytest.param([(3 * MiB, 0), (2 * MiB, 0)], 3 * MiB, id="a block serves the next one"),
        pytest.param([(768 * KiB, 0), (MiB, 0)], MiB, id="up to a MiB blocks are small"),
        pytest.param([(MiB, 0), (2 * MiB, 0)], 3 * MiB, id="a small block serves no large one"),
        pytest.param([(MiB, 0), (MiB + 512, 0)], 2 * MiB + 512, id="a MiB and a bit is large"),
        pytest.param([(2 * MiB, 0), (2 * MiB, 1)], 4 * MiB, id="a block serves no other stream"),
        pytest.param([(2 * MiB, 1), (2 * MiB, 2), (MiB, 1)], 5 * MiB, id="each stream has small and large ones"),
    ],
)
def test_a_perfect_packing(blocks: list[tuple[int, int]], size: int) -> None:
    assert packed_bytes(pooled(*blocks)) == size
    assert packed(pooled(*blocks)) == size


def test_blocks_that_are_live_together_add_up() -> None:
    tape = tape_of(2 * MiB, 4 * MiB, ~0, 8 * MiB, ~1, ~2, 5 * MiB)
    assert packed_bytes(tape) == 12 * MiB
