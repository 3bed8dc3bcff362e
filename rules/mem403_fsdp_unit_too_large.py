from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from memlint.facts.spec import Name
from memlint.fixes import levers
from memlint.plugin import NOTABLE_SHARE, UNSAFE, Example, Finding, Rule, Run
from memlint.units import format_bytes


class FsdpUnitTooLarge(Rule):
    """fsdp-unit-too-large: without a wrap policy the whole model is gathered at once.

    ## What it does
    Re-estimates a run under FSDP whose model is one unit with a unit per layer, and fires when that saves a notable
    part of the peak.

    ## Why it matters
    A unit's weights are gathered together and its gradients reduced together. One unit for everything shards the
    optimizer's states and little else.

    ## Example
    `fsdp_auto_wrap_policy: NO_WRAP`

    ## Use instead
    `fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP`

    ## Fix safety
    Unsafe: the same numbers, more and smaller collectives.

    ## References
    Zhao et al., "PyTorch FSDP", arXiv 2304.11277, section 3.2.
    """

    code = "MEM403"
    name = "fsdp-unit-too-large"
    facts = ("parallelism.strategy", "parallelism.wrap")
    saves = True
    invalid = (Example("language_models/train_fsdp.sh", expect="fsdp_auto_wrap_policy"),)
    valid = (Example("language_models/torchtitan_llama3_8b.toml"),)

    def check(self, run: Run) -> Iterator[Finding]:
        if run.estimate is None or run.value("parallelism.strategy") not in ("fsdp1", "fsdp2"):
            return
        if run.value("parallelism.wrap") != "none":
            return
        changes: dict[Name, Any] = {"parallelism.wrap": None}
        saved = run.saved_if(changes, NOTABLE_SHARE)
        if not saved:
            return
        fixes = [run.fix(levers.describe(run, changes), UNSAFE, changes)] if run.edits(changes) else []
        yield self.finding(
            run,
            f"the whole model is one unit: a unit per layer would save {format_bytes(saved)}",
            "parallelism.wrap",
            size_bytes=saved,
            fixes=fixes,
            notes=[] if fixes else ["name a policy that makes a unit of each layer, by the class of the layers"],
        )
