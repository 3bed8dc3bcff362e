"""Family program: a command whose program says that it trains, and that is of no other family.

Nothing is known of its options. It is named all the same: who checks a folder learns which runs have no estimate.
"""

from __future__ import annotations

from memlint.dialects.key_facts import WAY_OUT
from memlint.documents.node import Unresolved
from memlint.facts.spec import TrainingSpec


def complete(spec: TrainingSpec) -> TrainingSpec:
    assert spec.launch is not None
    spec.architecture = None
    value = spec.launch.program.value
    name = value.text if isinstance(value, Unresolved) else value
    spec.unknown_reason = f"{name} is a program of no known family, whose own code makes the model: {WAY_OUT}"
    return spec
