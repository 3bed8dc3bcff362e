from __future__ import annotations

from collections.abc import Iterator

from memlint.fixes import levers
from memlint.plugin import NOTABLE_SHARE, SAFE, Example, Finding, Fix, Rule, Run
from memlint.tape.estimate import OOM, TIGHT
from memlint.units import format_bytes


class EvalPeak(Rule):
    """eval-peak: evaluation needs more memory than training.

    ## What it does
    Compares the peak of an evaluation batch with the peaks of the training step. It fires where it is higher by a
    notable part of the peak, or by any part where the run does not surely fit the budget. What asks a policy for
    log-probabilities in turns with an engine on the same card is free up to that engine's share of it (without a
    budget: of 80 GB).

    ## Why it matters
    Training runs for an hour, then the first evaluation ends it.

    ## Example
    An evaluation batch sixteen times the training batch.

    ## Use instead
    A smaller evaluation batch: it changes no result.

    ## Fix safety
    Safe.

    ## References
    tensorflow/tensor2tensor issue 581.
    """

    code = "MEM701"
    name = "eval-peak"
    facts = ("evaluation_batch_size",)
    invalid = (
        Example(
            "uni3d_dp/uni3d+dp.yaml",
            replace=(("val_dataloader:\n  batch_size: 128", "val_dataloader:\n  batch_size: 8192"),),
            expect="batch_size",
        ),
    )
    valid = (Example("uni3d_dp/uni3d+dp.yaml"),)

    def check(self, run: Run) -> Iterator[Finding]:
        if run.estimate is None:
            return
        evaluation = run.estimate.phases.get("evaluation", 0)
        training = max((size for phase, size in run.estimate.phases.items() if phase != "evaluation"), default=0)
        higher = evaluation - training
        if higher <= 0 or not (run.is_large(higher, NOTABLE_SHARE) or run.verdict in (OOM, TIGHT)):
            return
        if not run.is_short and evaluation <= (run.value("engine_share") or 0) * run.card_bytes:
            return
        fact = run.fact("evaluation_batch_size")
        assert fact is not None
        asked = "log_prob" in (fact.key or "")  # of generated samples, before a policy learns from them
        what = f"log-probabilities of {fact.value} samples peak" if asked else "evaluation peaks"
        yield self.finding(
            run,
            f"{what} at {format_bytes(evaluation)}, training at {format_bytes(training)}",
            fact,
            size_bytes=higher,
            fixes=lambda: self._fixes(run, fact.value),
        )

    def _fixes(self, run: Run, batch: int) -> list[Fix]:
        while batch > 1:
            batch //= 2
            if not run.can_set("evaluation_batch_size", batch):
                return []
            phases = run.what_if(evaluation_batch_size=batch).phases
            if phases.get("evaluation", 0) <= max(size for phase, size in phases.items() if phase != "evaluation"):
                break
        return levers.fix(run, levers.Lever(SAFE, {"evaluation_batch_size": batch}))
