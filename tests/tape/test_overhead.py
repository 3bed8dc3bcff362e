"""Context and workspaces: where each figure comes from, and that nothing is scaled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import memlint.data
from memlint.data.catalogue import cards, gpu
from memlint.tape.overhead import device_overhead, dynamic_share, unexplained
from memlint.units import format_bytes

MiB, GiB = 2**20, 2**30
FIGURES: dict[str, Any] = json.loads((Path(memlint.data.__file__).parent / "overhead.json").read_text())
CONTEXTS = [figure["bytes"] for figure in FIGURES["context"]["figures"]]


@pytest.mark.parametrize(
    ("card", "context", "lowest", "said"),
    [
        pytest.param("rtx3090", 256 * MiB, 256 * MiB, "published for this card", id="a card with a figure of its own"),
        pytest.param("rtx3080", 256 * MiB, min(CONTEXTS), "same compute capability", id="a card with the same chip"),
        pytest.param("h100-80gb", 300_000_000, min(CONTEXTS), "not measured on h100-80gb", id="a card without"),
        pytest.param("mi300x", 300_000_000, min(CONTEXTS), "all of NVIDIA cards", id="a card of another vendor"),
        pytest.param(None, 300_000_000, min(CONTEXTS), "no card is given", id="no card"),
    ],
)
def test_the_context_is_a_published_figure(card: str | None, context: int, lowest: int, said: str) -> None:
    overhead = device_overhead(gpu(card) if card else None, "torch", True, False)
    assert overhead.context_bytes == context
    assert overhead.context_bytes in CONTEXTS
    assert overhead.context_interval.low_bytes == lowest
    assert overhead.context_interval.high_bytes == max(CONTEXTS)
    [(fact, _, reason)] = overhead.assumptions
    assert fact == "cuda_context"
    assert said in reason
    if "median" in reason:
        assert f"{format_bytes(min(CONTEXTS))} to {format_bytes(max(CONTEXTS))}" in reason


@pytest.mark.parametrize(
    ("card", "version", "context", "said"),
    [
        pytest.param("v100-16gb", "torch 1.10.1", 1341 * MiB, "published for this card", id="a card with a figure"),
        pytest.param("rtx3080", "torch 1.12", 1486 * MiB, "same compute capability", id="a card with the same chip"),
        pytest.param(None, "torch 1.8", 1341 * MiB, "torch 1.8 loads every kernel at start", id="no card"),
        pytest.param("v100-16gb", "torch 1.13.1", 300_000_000, "not measured on", id="the first with lazy loading"),
        pytest.param("v100-16gb", "jax 0.7", 300_000_000, "not measured on", id="another framework's release"),
        pytest.param("v100-16gb", "", 300_000_000, "not measured on", id="no release stated"),
    ],
)
def test_before_torch_1_13_every_kernel_is_in_the_context(
    card: str | None, version: str, context: int, said: str
) -> None:
    overhead = device_overhead(gpu(card) if card else None, "torch", True, False, version=version)
    assert overhead.context_bytes == context
    assert said in overhead.assumptions[0][2]
    low, high = overhead.context_interval
    assert low <= context <= high


def test_on_any_card_a_run_may_take_more_than_on_one_that_is_named() -> None:
    (below, above), (of_any, above_any) = unexplained(True), unexplained(False)
    assert 0 < below == of_any < above < above_any < 1


@pytest.mark.parametrize(
    ("card", "framework", "point", "low", "high"),
    [
        pytest.param(
            "t4", "torch", 2 * 8_519_680, 8_519_680, 2 * 8_519_680, id="8.125 MiB before Hopper, for two handles"
        ),
        pytest.param("a100-80gb", "torch", 2 * 8_519_680, 8_519_680, 2 * 8_519_680, id="Ampere as well"),
        pytest.param("h100-80gb", "torch", 64 * MiB, 32 * MiB, 64 * MiB, id="32 MiB on Hopper"),
        pytest.param("rtx5090", "torch", 64 * MiB, 32 * MiB, 64 * MiB, id="and on Blackwell"),
        pytest.param("b200-180gb", "torch", 64 * MiB, 32 * MiB, 64 * MiB, id="and on Blackwell of data centres"),
        pytest.param("mi250x", "torch", 64 * MiB, 32 * MiB, 64 * MiB, id="32 MiB on ROCm"),
        pytest.param("mi300x", "torch", 256 * MiB, 128 * MiB, 256 * MiB, id="128 MiB on gfx94x"),
        pytest.param(None, "torch", 2 * 8_519_680, 8_519_680, 64 * MiB, id="without a card the interval holds both"),
        pytest.param("t4", "jax", 4 * MiB, 4 * MiB, 4 * MiB, id="4 MiB in XLA"),
        pytest.param("h100-80gb", "jax", 32 * MiB, 32 * MiB, 32 * MiB, id="32 MiB in XLA on Hopper"),
    ],
)
def test_the_cublas_workspace(card: str | None, framework: str, point: int, low: int, high: int) -> None:
    overhead = device_overhead(gpu(card) if card else None, framework, True, False)
    assert (overhead.workspace_bytes, *overhead.workspace_interval) == (point, low, high)


def test_a_run_without_matmuls_has_no_cublas_workspace() -> None:
    overhead = device_overhead(gpu("t4"), "torch", False, False)
    assert (overhead.workspace_bytes, *overhead.workspace_interval) == (0, 0, 0)


def test_convolutions_widen_the_interval_upwards_only_and_say_so() -> None:
    without = device_overhead(gpu("t4"), "torch", True, False)
    with_them = device_overhead(gpu("t4"), "torch", True, True)
    assert with_them.workspace_bytes == without.workspace_bytes
    assert with_them.workspace_interval.low_bytes == without.workspace_interval.low_bytes
    assert with_them.workspace_interval.high_bytes == without.workspace_interval.high_bytes + GiB
    assert [fact for fact, _, _ in with_them.assumptions] == ["cuda_context", "cudnn_workspace"]


def test_jax_preallocation_is_a_note_not_a_figure() -> None:
    torch, jax = (device_overhead(gpu("t4"), framework, False, False) for framework in ("torch", "jax"))
    assert jax[:4] == torch[:4]
    assert ("preallocation", "75%") in [assumption[:2] for assumption in jax.assumptions]


@pytest.mark.parametrize("card", [None, *cards()], ids=lambda card: card.name if card else "no card")
def test_every_point_lies_in_its_interval(card: Any) -> None:
    for framework in ("torch", "jax"):
        overhead = device_overhead(card, framework, True, True)
        for point, (low, high) in (
            (overhead.context_bytes, overhead.context_interval),
            (overhead.workspace_bytes, overhead.workspace_interval),
        ):
            assert 0 <= low <= point <= high
        assert all(isinstance(size, int) for size in (*overhead[:1], *overhead[1], *overhead[2:3], *overhead[3]))


def test_every_figure_cites_its_source() -> None:
    entries = [*FIGURES["context"]["figures"], FIGURES["context"]["every_kernel_loaded"], FIGURES["cudnn"]]
    entries += [*FIGURES["context"]["every_kernel_at_start"]["figures"]]
    entries += [*FIGURES["cublas"].values(), FIGURES["jax"]]
    assert all(entry["source"].startswith("https://") for entry in entries)
    assert "benchmarks.accuracy.unexplained" in FIGURES["libraries"]["unexplained"]["source"]
    named = {figure["card"] for figure in FIGURES["context"]["figures"] if figure["card"]}
    assert named <= {card.name for card in cards()}


COMMUNICATION: dict[str, Any] = FIGURES["communication"]
PAIR, GROUP = COMMUNICATION["nccl"]["pair"]["bytes"], COMMUNICATION["nccl"]["group"]["bytes"]


@pytest.mark.parametrize(
    ("card", "groups", "point", "high"),
    [
        pytest.param("a100-80gb", [], 0, 0, id="one process"),
        pytest.param("a100-80gb", [("data", 1)], 0, 0, id="a group of one"),
        pytest.param("a100-80gb", [("data", 2)], 544 * MiB, 544 * MiB, id="a pair"),
        pytest.param("h100-80gb", [("data", 8), ("tensor", 2)], PAIR + GROUP, PAIR + GROUP, id="one for each group"),
        pytest.param(None, [("data", 8), ("expert", 8)], 2 * GROUP, GROUP + 3_280_000_000, id="experts: all to all"),
        pytest.param("mi250x", [("data", 8)], GiB, GiB, id="RCCL's first"),
        pytest.param("mi250x", [("data", 8), ("all", 16)], GiB + 697_932_185, GiB + 697_932_185, id="and each more"),
    ],
)
def test_each_process_group_has_a_communicator(
    card: str | None, groups: list[tuple[str, int]], point: int, high: int
) -> None:
    overhead = device_overhead(gpu(card) if card else None, "torch", True, False, process_groups=groups)
    assert overhead.communication_bytes == point
    assert overhead.communication_interval == (0, high)
    said = [entry for entry in overhead.assumptions if entry[0] == "communicators"]
    assert bool(said) == bool(point)
    assert all("published for" in reason for _, _, reason in said)


def test_weights_in_unsloth_s_dynamic_4_bits_are_larger_by_a_share() -> None:
    assert 0 < dynamic_share() < 0.5
