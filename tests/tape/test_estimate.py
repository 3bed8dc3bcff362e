"""An estimate's own words: its verdict, and what runs are compared by."""

from __future__ import annotations

import pytest

from memlint.tape.estimate import Component, Estimate, Interval


def between(low: int, high: int) -> Estimate:
    span = Interval(low, high)
    components = (Component("activations", 60), Component("context", 30), Component("activations", 5))
    return Estimate("static", 1, 1, 60, 65, 95, 50, "forward", {}, components, span, span, span)


@pytest.mark.parametrize(
    ("budget", "verdict"),
    [
        pytest.param(None, "UNKNOWN", id="no budget"),
        pytest.param(89, "OOM", id="a byte below the interval"),
        pytest.param(90, "TIGHT", id="its low end"),
        pytest.param(99, "TIGHT", id="a byte below its high end"),
        pytest.param(100, "FITS", id="its high end"),
    ],
)
def test_verdict(budget: int | None, verdict: str) -> None:
    assert between(90, 100).verdict(budget) == verdict


def test_parts_of_one_name_are_one_component() -> None:
    assert between(0, 0).component_bytes("activations") == 65
    assert between(0, 0).component_bytes("gradients") == 0


def test_runs_are_compared_with_a_perfect_packing() -> None:
    assert between(0, 0).comparable_bytes == 90


def test_what_nobody_states_is_nothing() -> None:
    plain = between(0, 0)
    assert (plain.probabilities_kept_bytes, plain.probabilities_avoided_bytes, plain.host_bytes) == (0, 0, 0)
    assert (plain.assumptions, plain.modules) == ((), ())
