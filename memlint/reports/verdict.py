"""What a person wants to know first: does the run fit, by how much, and what to change if it does not."""

from __future__ import annotations

from memlint.documents.node import Span
from memlint.plugin import DISPLAY, SAFE, SEVERITIES, UNSAFE, Finding, Fix
from memlint.reports.report import RunReport
from memlint.reports.style import BOLD, DIM, VERDICT_COLOR, Style
from memlint.reports.text import clean, folded, shorten
from memlint.tape.estimate import FITS, MEASURED, OOM, TIGHT, UNKNOWN
from memlint.units import format_bytes

NO_BUDGET = "NO BUDGET"  # the verdict of a run whose peak is known, and nothing to hold it against
WORST_FIRST = (OOM, TIGHT, UNKNOWN, NO_BUDGET, FITS)

# What applying a fix of each kind means, least intrusive first: the words stand nowhere else in a report.
MEANING = {
    SAFE: "safe: the run learns the same",
    UNSAFE: "unsafe: may change numerics or speed",
    DISPLAY: "changes the optimisation",
}
_INTRUSION = tuple(MEANING)

LINES_SHOWN = 4  # of the commands that start the same run
REASON_CHARACTERS = 240  # of why a peak is unknown


def verdict_of(run: RunReport) -> str:
    """The verdict as it is shown: UNKNOWN means that the peak is, and no budget is told apart from it."""
    return NO_BUDGET if run.verdict == UNKNOWN and run.estimate is not None else run.verdict


def painted(verdict: str, style: Style, columns: int = 0) -> str:
    code = VERDICT_COLOR.get(verdict)
    return style.paint(verdict, BOLD, *(() if code is None else (code,))) + " " * (columns - len(verdict))


def name_of(run: RunReport) -> str:
    return clean(run.path) + ("" if run.run == "train" else f" [{clean(run.run)}]")


def gravity(finding: Finding) -> tuple[int, bool, int, str, int]:
    """Worst first: by severity, then what holds the peak against the budget, then by the bytes at stake."""
    return (
        SEVERITIES.index(finding.severity),
        not finding.code.startswith("MEM1"),
        -finding.size_bytes,
        finding.span.path,
        finding.span.line,
    )


def worst_first(findings: tuple[Finding, ...]) -> list[Finding]:
    return sorted(findings, key=gravity)


def way_out(run: RunReport) -> Fix | None:
    """The least intrusive fix after which the run fits: safe before unsafe before what changes the optimisation, then
    the one with the fewest edits. None where the run fits as it is, or where no fix is known to be enough."""
    if run.verdict not in (OOM, TIGHT):
        return None
    fits = [fix for finding in run.findings for fix in finding.fixes if fix.fits and fix.device_bytes_after is not None]
    return min(
        fits, key=lambda fix: (_INTRUSION.index(fix.safety), len(fix.edits), -(fix.saved_bytes or 0)), default=None
    )


def peak(run: RunReport) -> str:
    """``peak 29.1 GiB (28.4 GiB to 29.9 GiB)``"""
    estimate = run.estimate
    if estimate is None:
        return f"peak unknown, {why_unknown(run)}"
    low, high = estimate.device_interval
    within = "" if low == high else f" ({format_bytes(low)} to {format_bytes(high)})"
    return f"peak {format_bytes(estimate.device_bytes)}{within}"


def why_unknown(run: RunReport) -> str:
    """In a line's length."""
    return clean(shorten(whole_reason(run), REASON_CHARACTERS))


def whole_reason(run: RunReport) -> str:
    """Why a run has no estimate."""
    if run.companion:
        return "it says how a launcher runs others and is no run of its own"
    said = next((finding.message for finding in run.findings if finding.code == "MEM007"), run.unknown)
    if not said:
        worst = worst_first(run.findings)
        said = worst[0].message if worst else "the model is not known"
    return " ".join(said.removeprefix("no estimate: ").split())


def margin(run: RunReport) -> str:
    """How far the peak is from the budget, and for TIGHT what that means."""
    assert run.budget is not None
    assert run.estimate is not None
    spare = run.budget.size_bytes - run.estimate.device_bytes
    said = f"{format_bytes(spare)} free" if spare >= 0 else f"over by {format_bytes(-spare)}"
    if run.verdict == TIGHT:
        beyond = run.estimate.device_interval.high_bytes - run.budget.size_bytes
        said += f"; may not fit: the upper end of the interval is {format_bytes(beyond)} over"
    return said


def verdict_line(run: RunReport) -> str:
    """``OOM configs/a.yaml: peak 29.1 GiB (28.4 GiB to 29.9 GiB), budget 16.0 GiB (--gpu v100): over by 13.1 GiB``"""
    return f"{verdict_of(run)} {name_of(run)}: {reason(run)}"


def reason(run: RunReport) -> str:
    """What a verdict rests on: peak, interval, budget and margin."""
    said = peak(run)
    if run.estimate is None:
        return said + _over_already(run)
    if run.estimate.basis.endswith(MEASURED):
        said += ", narrowed by a measurement"
    if run.budget is None:
        return f"{said}; --gpu NAME or --budget SIZE says whether it fits"
    source = f" ({clean(run.budget.source)})" if run.budget.source else ""
    return f"{said}, budget {format_bytes(run.budget.size_bytes)}{source}: {margin(run)}"


def _over_already(run: RunReport) -> str:
    """Where weights, gradients and states alone are more than the budget."""
    least = None if run.partial is None else run.partial.least_bytes
    if least is None or run.budget is None or run.verdict != OOM:
        return ""
    size_bytes = run.budget.size_bytes
    return f"; budget {format_bytes(size_bytes)}: over by {format_bytes(least - size_bytes)} already"


def action(run: RunReport) -> str:
    """What to do about a run that does not fit for sure; "" where there is nothing to be done."""
    if run.verdict not in (OOM, TIGHT):
        return ""
    fix = way_out(run)
    if fix is not None:
        after = format_bytes(fix.device_bytes_after or 0)
        return f"to fit: {clean(fix.title)} ({MEANING[fix.safety]}), peak {after} after"
    known = [
        (fix.device_bytes_after, fix.title)
        for finding in run.findings
        for fix in finding.fixes
        if fix.device_bytes_after is not None
    ]
    if not known:
        return ""
    least, name = min(known, key=lambda fix: fix[0])
    return (
        f"no single fix here fits for sure, `memlint fit` looks for several; the most is saved by {clean(name)}, "
        f"peak {format_bytes(least)} after"
    )


def again(lines: tuple[int, ...]) -> str:
    """``, the same run 4 times: also on lines 12, 30 and 41``: where a script starts the same run again."""
    if not lines:
        return ""
    listed = ", ".join(str(line) for line in lines[:LINES_SHOWN])
    more = f" and {len(lines) - LINES_SHOWN:,} more" if len(lines) > LINES_SHOWN else ""
    return f"the same run {len(lines) + 1:,} times: also on line{'s' if len(lines) > 1 else ''} {listed}{more}"


def headline(run: RunReport, style: Style) -> str:
    """The verdict line, what to do, and a line about the run."""
    verdict = verdict_of(run)
    lines = folded(verdict_line(run), style.columns, 2)
    lines[0] = painted(verdict, style) + lines[0][len(verdict) :]
    lines += ["  " + line for line in opening_action(run, style)]
    about = [clean(shorten(text, 80)) for text in (run.family, run.model_name) if text]
    estimate = run.estimate
    if estimate is not None:
        count = f"{estimate.parameters:,} parameters"
        if estimate.trainable_parameters != estimate.parameters:
            count += f", {estimate.trainable_parameters:,} trainable"
        about += [count, f"peak in {title(estimate.peak_phase)}"]
    if run.also_lines:
        about.append(again(run.also_lines))
    if run.launch is not None:
        what = f"{clean(shorten(run.launched_with, 80))} beside it" if run.launched_with else "it"
        about.append(f"as {place(run.launch)} starts {what}")
    for fact, value, why in () if estimate is None else estimate.assumptions:
        if fact == "same_model_as":
            name = "whose name the folder has" if why.startswith("the folder has its name") else clean(why)
            about.append(f"taken for {clean(shorten(value, 80))}, {name}")
        elif fact == "devices":
            about.append(f"on one device, as {why}")
    if about:
        lines += [style.paint("  " + line, DIM) for line in folded(", ".join(about), style.columns - 2, 0)]
    return "\n".join(lines)


def opening_action(run: RunReport, style: Style) -> list[str]:
    said = action(run)
    return [style.paint(line, BOLD) for line in folded(said, style.columns - 2, 2)] if said else []


def place(span: Span) -> str:
    return f"{clean(shorten(span.path, 120))}:{span.line}"


def title(name: str) -> str:
    """A phase's or a component's name for people; those of measurements are whatever their file says."""
    return clean(shorten(name.replace("_", " "), 60))


def one_line(finding: Finding) -> str:
    return clean(" ".join(finding.message.split()))
