from __future__ import annotations

from collections.abc import Iterator

from memlint.fixes import levers
from memlint.plugin import INFO, NOTABLE_SHARE, Example, Finding, Rule, Run
from memlint.tape.summary import LIBRARY_PARTS
from memlint.units import format_bytes


class ReferenceModel(Rule):
    """reference-model: a second copy of the weights is on the card for comparison.

    ## What it does
    Where the budget is short, re-estimates the run with log-probabilities of the reference that were computed
    beforehand, and fires when that saves a notable part of the peak.

    ## Why it matters
    Preference methods compare the policy with where it started. The copy trains nothing and stays all the time.

    ## Example
    DPO of a whole model without adapters.

    ## Use instead
    Log-probabilities computed once before training; or an adapter, without which the policy is its own reference. Where
    the policy writes the samples as it trains (GRPO) nothing can be computed before: there a `beta` of 0 needs no
    reference.

    ## Fix safety
    Unsafe: one more pass over the data set before training.

    ## References
    TRL documentation, `DPOConfig.precompute_ref_log_probs`; Rafailov et al., arXiv 2305.18290.
    """

    code = "MEM704"
    name = "reference-model"
    severity = INFO
    facts = ("reference_model", "method")
    saves = True
    invalid = (Example("language_models/dpo_trl.yaml", budget="1GB", expect="model_name_or_path"),)
    valid = (
        Example("language_models/dpo_trl.yaml", note="no budget is short"),
        Example("language_models/dpo_trl.yaml", replace=(("beta: 0.1", "beta: 0.1\nprecompute_ref_log_probs: true"),)),
        Example(
            "language_models/dpo_trl.yaml",
            replace=(("beta: 0.1", "beta: 0.1\nuse_peft: true\nlora_r: 16\nlora_target_modules: all-linear"),),
        ),
        Example("language_models/sft_trl.yaml"),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        if run.estimate is None or run.value("reference_model") != "copy" or not run.is_short:
            return
        saved = run.saved_if({"reference_model": "precomputed"}, NOTABLE_SHARE)
        if not saved:
            return
        stated = run.those("reference_model", "model")
        place = next((fact for fact in stated if fact.node is not None), stated[0])
        beside = (part for component in run.estimate.components for part in component.parts)
        engine = sum(part.size_bytes for part in beside if part.name == LIBRARY_PARTS["helper_models"])
        copied = run.estimate.component_bytes("helper_models") - engine
        yield self.finding(
            run,
            f"a copy of the weights is the reference of {run.value('method')}: {format_bytes(copied)}, and "
            f"{format_bytes(saved)} of the peak",
            place,
            size_bytes=saved,
            fixes=lambda: levers.fixes(run, levers.precomputed_reference),
        )
