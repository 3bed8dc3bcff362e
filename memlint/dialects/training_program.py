"""Family program: a command whose program says that it trains, and that is of no other family.

Nothing is known of its options. It is named all the same: who checks a folder learns which runs have no estimate.
"""

from __future__ import annotations

from memlint.dialects.key_facts import WAY_OUT
from memlint.documents.node import Command, Unresolved
from memlint.facts.spec import TrainingSpec


def complete(spec: TrainingSpec) -> TrainingSpec:
    assert spec.launch is not None
    spec.architecture = None
    spec.unknown_reason = of_no_family(spec.launch)
    return spec


def of_no_family(command: Command) -> str:
    """Why there is no estimate of what a command starts."""
    program = command.program.value
    if isinstance(program, Unresolved) and "/" not in program.ending:
        return f"which program {program.text} is, is not known: {program.reason}"
    name = program.text if isinstance(program, Unresolved) else program
    return f"{name} is a program of no known family, whose own code makes the model: {WAY_OUT}"
