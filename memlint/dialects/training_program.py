"""Family program: a command whose program says that it trains, and that is of no other family.

Nothing is known of its options. It is named all the same: who checks a folder learns which runs have no estimate.
"""

from __future__ import annotations

from memlint.dialects.key_facts import WAY_OUT
from memlint.facts.spec import TrainingSpec


def complete(spec: TrainingSpec) -> TrainingSpec:
    assert spec.launch is not None
    spec.architecture = None
    spec.unknown_reason = (
        f"{spec.launch.program.value} is a program of no known family, whose own code makes the model: {WAY_OUT}"
    )
    return spec
