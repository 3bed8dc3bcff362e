from __future__ import annotations

from collections.abc import Iterator

from memlint.facts.spec import Name
from memlint.plugin import Example, Finding, Rule, Run
from memlint.units import format_bytes

OFFLOADS: tuple[Name, ...] = (
    "parallelism.offload_optimizer",
    "parallelism.offload_parameters",
    "parallelism.cpu_offload",
)


class OffloadHostMemory(Rule):
    """offload-host-memory: what is offloaded does not fit the host.

    ## What it does
    With `--host-budget`, multiplies the states that one rank keeps in host memory by the ranks of a machine.

    ## Why it matters
    Offloading moves weights, gradients and optimizer states to the host; it makes none of them smaller. All ranks of a
    machine share its memory.

    ## Example
    ZeRO-3 with `offload_optimizer` of an eight-billion-parameter model on four cards: 12 bytes per parameter, 90 GiB.

    ## Use instead
    More machines, an optimizer with smaller states, or no offload of what fits.

    ## Fix safety
    No fix.

    ## References
    Ren et al., "ZeRO-Offload", arXiv 2101.06840.
    """

    code = "MEM407"
    name = "offload-host-memory"
    facts = ("parallelism.strategy",)
    invalid = (
        Example(
            "language_models/run_clm.sh",
            replace=(("--gradient_accumulation_steps 4", "--gradient_accumulation_steps 1"),),
            host_budget="8GB",
            files=(
                (
                    "ds_zero2.json",
                    '"stage": 2,',
                    '"stage": 2,\n    "offload_optimizer": {"device": "cpu"},',
                ),
            ),
            expect='"device"',
        ),
    )
    valid = (
        Example("language_models/run_clm.sh", host_budget="8GB"),
        Example(
            "language_models/run_clm.sh",
            host_budget="64GB",
            files=(("ds_zero2.json", '"stage": 2,', '"stage": 2,\n    "offload_optimizer": {"device": "cpu"},'),),
        ),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        if run.estimate is None or run.host_budget_bytes is None or not run.estimate.host_bytes:
            return
        machines = run.value("machines", 1)
        ranks = max(1, run.value("device_count", 1) // max(machines, 1))
        total = run.estimate.host_bytes * ranks
        if total <= run.host_budget_bytes:
            return
        facts = [fact for fact in run.those(*OFFLOADS) if fact.value]
        yield self.finding(
            run,
            f"{ranks} ranks keep {format_bytes(run.estimate.host_bytes)} each in host memory: {format_bytes(total)}, "
            f"{format_bytes(run.host_budget_bytes)} are there",
            next(iter(facts), None),
            size_bytes=total - run.host_budget_bytes,
            related=facts[1:],
        )
