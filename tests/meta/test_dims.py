"""Formulas of sizes: as short as they can be, and none that nobody could read."""

from __future__ import annotations

from memlint.meta import functional as F
from memlint.meta.dims import LONGEST_EXPRESSION, Dim, symbol
from memlint.meta.tensor import empty, recording


def test_a_size_that_a_view_infers_is_a_quotient_without_common_factors() -> None:
    batch, length = symbol(4, "B", "batch_size"), symbol(128, "S", "sequence_length")
    with recording(True):
        by_head = empty((batch, length, 64)).view(batch, length, 8, -1)
        assert [str(getattr(size, "expr", size)) for size in by_head.shape] == ["B", "S", "8", "8"]
        whole = by_head.view(-1, length, 64)
        assert [str(getattr(size, "expr", size)) for size in whole.shape] == ["B", "S", "64"]


def test_formulas_of_layer_over_layer_do_not_double() -> None:
    batch, heads = symbol(4, "B", "batch_size"), 8
    with recording(True):
        x = empty((batch * heads, 16, 4))
        for _ in range(200):  # to heads and back, as attention does
            x = x.view(-1, heads, 16, 4).contiguous().view(-1, 16, 4)
            x = F.dropout(x, 0.1, True)
        assert x.shape == (32, 16, 4)
        assert len(x.shape[0].expr if isinstance(x.shape[0], Dim) else "") <= LONGEST_EXPRESSION


def test_a_size_whose_formula_nobody_would_read_is_a_number() -> None:
    size: int = symbol(2, "B", "batch_size")
    while isinstance(size, Dim):
        assert len(size.expr) <= LONGEST_EXPRESSION
        size = size + size
    assert size > 2
