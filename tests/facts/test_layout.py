"""Which devices take samples of their own, and which share states."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.facts.layout import Layout, layout_of
from tests.models.test_parallel import run


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        pytest.param({}, Layout(0, 1), id="nothing is stated: one rank"),
        pytest.param({"device_count": 8}, Layout(8, 8, shard=8), id="devices are data-parallel"),
        pytest.param(
            {"device_count": 64, "parallelism.tensor": 4, "parallelism.pipeline": 2, "parallelism.context": 2},
            Layout(64, 4, 4, 2, 2, shard=4),
            id="what other kinds leave of the devices is data-parallel",
        ),
        pytest.param(
            {"device_count": 8, "parallelism.expert": 4},
            Layout(8, 8, expert=4, shard=8),
            id="experts are shared by data-parallel ranks",
        ),
        pytest.param(
            {"device_count": 16, "parallelism.replicas": 2},
            Layout(16, 16, shard=8, replicas=2),
            id="groups that replicate each other",
        ),
        pytest.param({"parallelism.shard": 4}, Layout(0, 4, shard=4), id="shards without a number of devices"),
        pytest.param(
            {"device_count": 8, "parallelism.data": 2, "parallelism.shard": 2},
            Layout(8, 2, shard=2),
            id="what is stated goes before what is left",
        ),
        pytest.param(
            {"device_count": 4, "parallelism.tensor": 8},
            Layout(4, 1, 8),
            id="fewer devices than one copy takes are one copy",
        ),
    ],
)
def test_a_layout_is_what_the_facts_state(facts: dict[str, Any], expected: Layout) -> None:
    assert layout_of(run(**facts)) == expected


def test_states_are_shared_by_ranks_that_share_sequences_as_well() -> None:
    layout = layout_of(run(**{"device_count": 16, "parallelism.context": 2, "parallelism.ulysses": 2}))
    assert (layout.data, layout.of_one_copy, layout.states) == (4, 4, 16)
