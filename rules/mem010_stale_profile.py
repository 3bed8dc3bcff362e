from __future__ import annotations

from collections.abc import Iterator

from memlint.plugin import WARNING, Finding, Rule, Run


class StaleProfile(Rule):
    """stale-profile: the model's code has changed since its profile was recorded.

    ## What it does
    Compares the source files of the model with their digests in the profile that the estimate comes from. (Where a
    setting that the code reads has changed, there is no estimate, and MEM007 says so.)

    ## Why it matters
    The estimate is that of the code as it was.

    ## Example
    `model.py` gained a layer; `train.yaml.memlint.json` was recorded before.

    ## Use instead
    `memlint record train.yaml`, and commit the new profile with the change.

    ## Fix safety
    No fix.

    ## References
    `memlint record --help`
    """

    code = "MEM010"
    name = "stale-profile"
    severity = WARNING
    facts = ("profile",)

    def check(self, run: Run) -> Iterator[Finding]:
        from memlint.profiles.profile import load
        from memlint.profiles.runs import stale

        profile = load(run.value("profile"))
        changed = [entry.what for entry in stale(run.spec, profile) if not entry.fatal]
        if changed:
            yield self.finding(
                run,
                f"the estimate is that of the recorded code: {', '.join(changed)}",
                notes=[f"memlint record {run.spec.document.path} brings {profile.path} up to date"],
            )
