"""PYTORCH_ALLOC_CONF at its bounds: the numbers of a size_t, and where a text ends too early."""

from __future__ import annotations

import pytest

from memlint.tape.allocator_conf import AllocatorConf, parse_conf
from memlint.units import MiB
from tests.tape.test_allocator_conf import refusal

SIZE_MAX = 2**64 - 1


@pytest.mark.parametrize(
    ("text", "size_mb"),
    [
        pytest.param(str(SIZE_MAX), SIZE_MAX // MiB, id="the largest number, in bytes that a size_t holds"),
        pytest.param(str(SIZE_MAX // MiB), SIZE_MAX // MiB, id="just as many as it holds"),
        pytest.param(str(SIZE_MAX // MiB - 1), SIZE_MAX // MiB - 1, id="one less"),
        pytest.param(f"-{SIZE_MAX + 1 - 64}", 64, id="a minus wraps around"),
        pytest.param("+64", 64, id="a plus changes nothing"),
        pytest.param("00064", 64, id="zeros in front"),
        pytest.param("0" * 40 + "64", 64, id="many of them"),
    ],
)
def test_a_number(text: str, size_mb: int) -> None:
    assert parse_conf(f"max_split_size_mb:{text}").max_split_bytes == size_mb * MiB


@pytest.mark.parametrize("text", [str(SIZE_MAX + 1), "9" * 21, "+", "-", "x"])
def test_no_number(text: str) -> None:
    refused = refusal(f"max_split_size_mb:{text}")
    assert refused is not None
    assert repr(text) in str(refused)


@pytest.mark.parametrize(
    ("text", "share"),
    [("+0.5", 0.5), ("0.25", 0.25), ("5e-1", 0.5), ("5E-1x", 0.5), ("50e-2", 0.5), ("0.5e", 0.5), ("0.5e+", 0.5)],
)
def test_a_share(text: str, share: float) -> None:
    assert parse_conf(f"garbage_collection_threshold:{text}").garbage_collection_threshold == share


@pytest.mark.parametrize(
    ("text", "divisions"),
    [
        pytest.param("2", (2,) * 16, id="two for all sizes"),
        pytest.param("1", (), id="one is none"),
        pytest.param("[1:1,>:2]", (1, *(2,) * 15), id="two from some size on"),
    ],
)
def test_divisions(text: str, divisions: tuple[int, ...]) -> None:
    assert parse_conf(f"roundup_power2_divisions:{text}").roundup_power2_divisions == divisions


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("[4", "without divisions", id="a list that ends with an interval"),
        pytest.param("[4:", "without divisions", id="a list that ends with a colon"),
        pytest.param("[4:3]", "not '3'", id="three divisions"),
        pytest.param("[3:4]", "not '3'", id="an interval of three"),
        pytest.param("3", "not '3'", id="three for all sizes"),
    ],
)
def test_no_divisions(text: str, said: str) -> None:
    refused = refusal(f"roundup_power2_divisions:{text}")
    assert refused is not None
    assert said in str(refused)


def test_the_default_keeps_segments_as_they_are() -> None:
    assert AllocatorConf() == parse_conf("")
    assert AllocatorConf().expandable_segments is False
