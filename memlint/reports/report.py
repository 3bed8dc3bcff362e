"""What a check found: the Report that every output format prints."""

from __future__ import annotations

from collections.abc import Iterable

from memlint.documents.node import Span
from memlint.named_tuple import NamedTuple
from memlint.partial import Partial
from memlint.plugin import ERROR, SEVERITIES, Finding
from memlint.tape.estimate import OOM, TIGHT, UNKNOWN, Estimate, Part


class Budget(NamedTuple):
    size_bytes: int
    source: str


class UnresolvedValue(NamedTuple):
    key: str
    line: int
    reason: str
    path: str


class StatedFact(NamedTuple):
    """A fact as a reader finds it: the key as the config spells it, and where. Line 0 and path "" if nowhere."""

    key: str
    value: object
    line: int
    path: str


class Machine(NamedTuple):
    """What a measurement was made on.

    device     cuda or cpu
    card       as the driver names it; "" on the CPU
    made_with  versions, by program
    context_bytes, library_workspace_bytes   None where they were not told apart
    ran_out    the step ended for want of memory
    """

    device: str
    card: str
    made_with: dict[str, str]
    context_bytes: int | None = None
    library_workspace_bytes: int | None = None
    ran_out: bool = False


class Measured(NamedTuple):
    """A run that was traced or measured.

    estimate  the same sums as the static ones, from what the user's own code does; its ``basis`` says how
    verdict   against the same budget
    source    what was instantiated
    notes     what a reader should know besides
    machine   of a real run; None for a trace
    """

    estimate: Estimate
    verdict: str
    source: str
    notes: tuple[str, ...] = ()
    machine: Machine | None = None

    def difference(self, static: Estimate | None) -> dict[str, int]:
        """Bytes by component at the peak, these minus the static ones; {} without a static estimate."""
        if static is None:
            return {}
        names = dict.fromkeys(entry.name for entry in (*static.components, *self.estimate.components))
        return {name: self.estimate.component_bytes(name) - static.component_bytes(name) for name in names}


class RunReport(NamedTuple):
    """One run found in one file. ``estimate`` is None with a MEM007 finding where the model is unknown.

    facts   by fact name, for the parts of explain and json
    sources text of every file that a finding may point into, by path
    measured only where it was asked for
    also_lines  where a script starts the same run again; what the run needs, and what is said of it, holds there too
    launched_with  the config beside this one that ``launch`` names, where no command names this one
    partial     the peak as a function of what is not stated, where that is a size and there is no estimate
    launch      the command near a config that starts this run with it; None where there is none, and for scripts
    companion   a launcher's settings (DeepSpeed, accelerate): read by whatever run names it, and no run of its own
    unknown     why there is no estimate; the finding that says so is reported once for several runs
    """

    path: str
    run: str
    family: str
    model_name: str
    estimate: Estimate | None
    verdict: str
    budget: Budget | None
    findings: tuple[Finding, ...]
    unresolved: tuple[UnresolvedValue, ...] = ()
    facts: dict[str, StatedFact] = {}  # noqa: RUF012
    sources: dict[str, str] = {}  # noqa: RUF012
    measured: Measured | None = None
    also_lines: tuple[int, ...] = ()
    launch: Span | None = None
    launched_with: str = ""
    partial: Partial | None = None
    companion: bool = False
    unknown: str = ""


# What one run may put into a report, which a stranger's config is not to fill: no honest one comes near.
MAX_TEXT = 2_000  # characters of a message, a name, a value
MAX_OF_A_KIND = 200  # findings of one code in one file
MAX_ENTRIES = 1_000  # values that were not resolved, parts of a component
MAX_RELATED = 100  # other places of one finding


def shortened(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 3] + "..."


def bounded(run: RunReport) -> RunReport:
    """A run as it is reported: long texts cut, long lists cut with a word of what was in them."""
    estimate, measured = run.estimate, run.measured
    return run._replace(
        run=shortened(run.run),
        model_name=shortened(run.model_name),
        budget=run.budget and run.budget._replace(source=shortened(run.budget.source)),
        estimate=estimate and _estimate(estimate),
        measured=measured and measured._replace(estimate=_estimate(measured.estimate)),
        findings=bounded_findings(run.findings),
        unknown=shortened(run.unknown),
        unresolved=tuple(
            entry._replace(key=shortened(entry.key), reason=shortened(entry.reason))
            for entry in run.unresolved[:MAX_ENTRIES]
        ),
        facts={
            name: fact._replace(key=shortened(fact.key), value=_value(fact.value)) for name, fact in run.facts.items()
        },
    )


def bounded_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """So many findings of each code in each file, the gravest of them; the last one counts those that are left out."""
    findings = list(findings)
    kinds: dict[tuple[str, str], list[int]] = {}
    for index, finding in enumerate(findings):
        kinds.setdefault((finding.code, finding.span.path), []).append(index)
    left_out: set[int] = set()
    for (code, _), same in kinds.items():
        gravest = sorted(same, key=lambda index: SEVERITIES.index(findings[index].severity))
        beyond = gravest[MAX_OF_A_KIND:]
        if beyond:
            left_out.update(beyond)
            last = max(gravest[:MAX_OF_A_KIND])
            said, left = ("findings", "are") if len(beyond) > 1 else ("finding", "is")
            note = f"{len(beyond):,} more {said} of {code} in this file {left} left out"
            findings[last] = findings[last]._replace(notes=(*findings[last].notes, note))
    return tuple(_finding(finding) for index, finding in enumerate(findings) if index not in left_out)


def _finding(finding: Finding) -> Finding:
    return finding._replace(
        message=shortened(finding.message),
        key=shortened(finding.key),
        related=tuple((span, shortened(said)) for span, said in finding.related[:MAX_RELATED]),
        fixes=tuple(fix._replace(title=shortened(fix.title)) for fix in finding.fixes),
        notes=tuple(shortened(note) for note in finding.notes),
    )


def _estimate(estimate: Estimate) -> Estimate:
    return estimate._replace(
        peak_phase=shortened(estimate.peak_phase),
        components=tuple(
            component._replace(name=shortened(component.name), parts=_parts(component.parts))
            for component in estimate.components
        ),
        assumptions=tuple(
            (shortened(fact), shortened(value), shortened(reason)) for fact, value, reason in estimate.assumptions
        )[:MAX_ENTRIES],
        modules=estimate.modules[:MAX_ENTRIES],
    )


def _parts(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """The largest ones, and one for the rest: they add up to what they did."""
    if len(parts) > MAX_ENTRIES:
        ordered = sorted(parts, key=lambda part: -part.size_bytes)
        rest = ordered[MAX_ENTRIES:]
        parts = (*ordered[:MAX_ENTRIES], Part(f"{len(rest)} more", sum(part.size_bytes for part in rest)))
    return tuple(
        part
        if len(part.name) + len(part.formula) <= MAX_TEXT
        else part._replace(name=shortened(part.name), formula=shortened(part.formula))
        for part in parts
    )


def _value(value: object) -> object:
    """A fact's value: those behind formulas are numbers, and of the others as much as a reader looks at."""
    if isinstance(value, str):
        return shortened(value)
    if isinstance(value, (list, tuple, dict)):
        text = str(value)
        return value if len(text) <= MAX_TEXT else shortened(text)
    return value


# Policies about verdicts, each with those that fail besides findings that are errors.
VERDICTS_FAILING = {"tight": (OOM, TIGHT), "unknown": (OOM, TIGHT, UNKNOWN)}


class Report(NamedTuple):
    """All runs of one invocation, in the order of the paths given.

    crashed       a rule raised (MEM001) or a file could not be read: exit code 2
    skipped       (path, why) of files named on the command line that are no training config, and of entries met in a
                  walk that are called like one and are no file of this repository
    unparsed      (path, why) of files met in a walk that could not be parsed, so that no family was recognised
    errors        (path, why) of files that could not be read
    unlisted      (path and line, why) of commands in documents met in a walk that have no estimate: a reader is told
                  how it goes, and nobody runs them as they stand
    rule_seconds  time spent in each rule, by code
    empty         files met in a walk, in a format of configs, that hold nothing
    """

    runs: tuple[RunReport, ...]
    seconds: float
    crashed: bool = False
    skipped: tuple[tuple[str, str], ...] = ()
    unparsed: tuple[tuple[str, str], ...] = ()
    errors: tuple[tuple[str, str], ...] = ()
    rule_seconds: dict[str, float] = {}  # noqa: RUF012
    unlisted: tuple[tuple[str, str], ...] = ()
    empty: tuple[str, ...] = ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(finding for run in self.runs for finding in run.findings)

    def __str__(self) -> str:
        """As the command prints it, without colours and not folded to a terminal."""
        from memlint.reports import full

        return full.render(self) if self.runs else "no training configs found"

    def count(self, severity: str) -> int:
        return sum(finding.severity == severity for finding in self.findings)

    def exit_code(self, fail_on: str = ERROR, exit_zero: bool = False, strict: bool = False) -> int:
        """0 nothing that fails the check, 1 something does (:meth:`failures`), 2 something broke (which wins)."""
        if self.crashed:
            return 2
        return int(not exit_zero and bool(self.failures(fail_on, strict)))

    def failures(self, fail_on: str = ERROR, strict: bool = False) -> tuple[str, ...]:
        """What fails the check, in words with counts; () where nothing does.

        fail_on  a severity: findings from it upwards; ``tight``: errors, and runs that are OOM or TIGHT; ``unknown``:
                 these, and runs whose verdict is UNKNOWN, for want of an estimate or of a budget
        strict   what was not looked at fails as well: runs that are UNKNOWN, files that could not be parsed or hold
                 nothing, named files that are no training config, and paths without any. Launchers' settings are no
                 runs.
        A run that was traced or measured not to fit fails under every policy.
        """
        least = fail_on if fail_on in SEVERITIES else ERROR
        failing = SEVERITIES[: SEVERITIES.index(least) + 1]
        runs = [run for run in self.runs if not run.companion]
        counts = [(severity, sum(one.severity == severity for one in self.findings)) for severity in failing]
        measured = [run.measured.verdict for run in runs if run.measured is not None]
        counts.append(("measured not to fit", measured.count(OOM)))
        for verdict in VERDICTS_FAILING.get(fail_on, ()):
            counts.append((verdict, sum(run.verdict == verdict for run in runs)))
        if strict:
            if fail_on != "unknown":
                counts.append((UNKNOWN, sum(run.verdict == UNKNOWN for run in runs)))
            counts += [("not parsed", len(self.unparsed)), ("empty", len(self.empty)), ("skipped", len(self.skipped))]
        failures = [f"{count} {what}{'s' * (what in SEVERITIES and count > 1)}" for what, count in counts if count]
        if strict and not self.runs:
            failures.append("no training configs")
        return tuple(failures)
