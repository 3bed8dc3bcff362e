"""Sizes as they are written, at the borders of units and digits."""

from __future__ import annotations

import pytest

from memlint.units import GiB, KiB, MiB, format_bytes


@pytest.mark.parametrize(
    ("size", "written"),
    [
        pytest.param(0, "0 B", id="nothing"),
        pytest.param(1023, "1023 B", id="bytes are counted"),
        pytest.param(KiB, "1.00 KiB", id="the first of a unit"),
        pytest.param(10 * KiB, "10.0 KiB", id="three digits with one behind the point"),
        pytest.param(100 * MiB, "100 MiB", id="three digits with none"),
        pytest.param(1000 * GiB, "1,000 GiB", id="a fourth one before the next unit"),
        pytest.param(2048 * 1024 * GiB, "2,048 TiB", id="there is no unit above"),
        pytest.param(-1.5 * GiB, "-1.50 GiB", id="less than nothing"),
        pytest.param(GiB - 1, "1.00 GiB", id="a byte less than a unit is rounded to it"),
        pytest.param(1 - GiB, "-1.00 GiB", id="so is one below nothing"),
        pytest.param(10 * GiB - 1, "10.0 GiB", id="a byte less than ten is rounded to three digits"),
        pytest.param(100 * GiB - 1, "100 GiB", id="so is a byte less than a hundred"),
        pytest.param(1023 * MiB, "1,023 MiB", id="what is not rounded to a unit stays below it"),
    ],
)
def test_a_size_is_written_with_three_digits(size: float, written: str) -> None:
    assert format_bytes(size) == written
