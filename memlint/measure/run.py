"""``--trace`` and ``--probe`` for :mod:`memlint.check`: one run in, a Measured out. No torch in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from memlint.measure.child import measure
from memlint.measure.request import PROBE, estimate_from, request_for
from memlint.reports.report import Machine, Measured

if TYPE_CHECKING:
    from memlint.facts.spec import TrainingSpec
    from memlint.settings import Allowance, Settings


def measurer(
    kind: str,
    *,
    timeout_s: float | None = None,
    progress: Callable[[str], None] | None = None,
    **options: Any,
) -> Callable[[TrainingSpec, Settings, Allowance], Measured]:
    """What ``check_paths(measure=...)`` takes. ``kind``: trace or probe; ``options`` go to the measuring process.

    The function that is returned runs the user's code, in a process of its own, and raises MeasureError.
    """

    def one(spec: TrainingSpec, settings: Settings, allowed: Allowance) -> Measured:
        def told(line: str) -> None:
            if progress is not None:
                progress(f"{spec.document.path}: {line}")

        answer = measure(request_for(kind, spec, settings, allowed, **options), timeout_s, told)
        estimate = estimate_from(answer["estimate"])
        verdict = answer.get("verdict") or estimate.verdict(allowed.size_bytes)
        machine = None
        if kind == PROBE:
            machine = Machine(
                options["device"],
                answer.get("card", ""),
                answer.get("made_with", {}),
                answer.get("context_bytes"),
                answer.get("library_workspace_bytes"),
                "verdict" in answer,
            )
        return Measured(estimate, verdict, answer["source"], tuple(answer.get("notes", ())), machine)

    return one
