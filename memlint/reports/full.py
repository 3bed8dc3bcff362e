"""The report for people: peak and verdict of each run, where the bytes are, and findings on their source lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from memlint.documents.node import Span
from memlint.partial import MODEL, SHARDING, Partial
from memlint.plugin import ERROR, INFO, WARNING, Finding, Fix
from memlint.reports import overview
from memlint.reports.equal import Equal
from memlint.reports.report import Budget, Measured, Report, RunReport
from memlint.reports.style import BLUE as BLUE
from memlint.reports.style import BOLD as BOLD
from memlint.reports.style import DIM as DIM
from memlint.reports.style import GREEN, RED, SEVERITY_COLOR, VERDICT_COLOR, YELLOW
from memlint.reports.style import Style as Style
from memlint.reports.text import clean, folded, harmless_in_actions, head, lines_of, shorten, source_lines, tail, width
from memlint.reports.verdict import MEANING, opening_action, painted, reason, title, verdict_of, worst_first
from memlint.reports.verdict import headline as headline
from memlint.tape.estimate import UNKNOWN, Estimate
from memlint.units import format_bytes

BAR_COLUMNS = 32
EXCERPT_LINES = 6
LINE_COLUMNS = 160
PARTS_SHOWN = 3
SCREEN_LINES = 24  # of a terminal as it opens
EIGHTHS = ("", "\u258f", "\u258e", "\u258d", "\u258c", "\u258b", "\u258a", "\u2589")


def render(report: Report, style: Style = Style()) -> str:  # noqa: B008  (immutable)
    """The whole report as text, ending in a newline unless it is empty: verdicts first. Of a folder they are a table;
    its findings are told one by one where that is asked for or the runs are few, and counted by rule otherwise."""
    lines: list[str] = []
    several = len(report.runs) > 1
    if several:
        lines += [*overview.table(report, style), ""]
    if style.verbose or len(report.runs) <= overview.DETAILED:
        equal = Equal(report)
        for run in overview.sorted_runs(report):
            shown = list(_run(run, report, equal, style))
            if shown:
                lines += [*shown, ""]
    else:
        lines += [*overview.by_rule(report, style), ""]
    if not style.quiet:
        if not several and sum(block.count("\n") + 1 for block in lines) >= SCREEN_LINES:
            lines += _verdict_again(report.runs[0], style)
        lines.append(closing(report, style))
    return finish(lines, style)


def _verdict_again(run: RunReport, style: Style) -> list[str]:
    """Where a terminal ends up after a report that has rolled its first lines away: the verdict, and what to do."""
    verdict = verdict_of(run)
    first, *rest = folded(f"{verdict}: {reason(run)}", style.columns, 2)
    return [painted(verdict, style) + first[len(verdict) :], *rest, *opening_action(run, style)]


def finish(lines: Sequence[str], style: Style) -> str:
    while lines and not lines[-1]:
        lines = lines[:-1]
    if style.actions:
        # A block of several lines is one entry here, and each of its lines could be taken for a command.
        lines = [harmless_in_actions(line) for block in lines for line in block.split("\n")]
    return "\n".join(lines) + "\n" if lines else ""


def _run(run: RunReport, report: Report, equal: Equal, style: Style) -> Iterator[str]:
    findings = worst_first(run.findings)
    if not style.verbose:
        findings = [finding for finding in findings if equal.is_first(finding)]
    if len(report.runs) > 1 and not findings and not style.verbose and run.measured is None and run.partial is None:
        return  # the table says all of it
    yield headline(run, style)
    if not style.quiet:
        if run.partial is not None and not run.partial.at_least:
            yield from table(run.partial, run.budget, style)
        if run.estimate is not None and (findings or len(report.runs) == 1):
            yield ""
            yield from breakdown(run.estimate, style, folds=not style.verbose)
        if run.measured is not None:
            yield ""
            yield from side_by_side(run.measured, run.estimate, style)
        if style.verbose:
            yield from _fine_print(run)
    for finding in findings:
        if not style.quiet:
            yield ""
        yield from _finding(finding, run, "" if style.verbose else equal.others(finding), style)


def table(partial: Partial, budget: Budget | None, style: Style) -> Iterator[str]:
    """The peak as a function of what is not stated, a line for each size."""
    keys = " and ".join(clean(shorten(key, 80)) for key in partial.keys)
    yield "  " + style.paint("peak", BOLD) + f" unknown without {keys}:"
    named = [row.told(partial.names).removeprefix("with ") for row in partial.rows]
    columns = max(map(len, named))
    aligned = str.ljust if {MODEL, SHARDING} & {*partial.names} else str.rjust
    for name, row in zip(named, partial.rows):
        low, high = row.device_interval
        within = "" if low == high else f" ({format_bytes(low)} to {format_bytes(high)})"
        verdict = "" if budget is None else "  " + style.paint(row.verdict, BOLD, VERDICT_COLOR[row.verdict])
        yield f"    {aligned(name, columns)}  {format_bytes(row.device_bytes)}{within}{verdict}"
    if budget is not None and partial.most is not None:
        size = format_bytes(budget.size_bytes)
        yield f"  fits {size} up to {partial.most:,} tokens" if partial.most else f"  does not fit {size} at any length"


def bar(share: float, style: Style, columns: int = BAR_COLUMNS) -> str:
    """A bar of ``share`` (0 to 1) of the columns, in eighths where the terminal has them."""
    if not style.unicode:
        return "#" * max(int(share * columns + 0.5), int(share > 0))
    whole, eighths = divmod(max(int(share * columns * 8 + 0.5), int(share > 0)), 8)
    return "\u2588" * whole + EIGHTHS[eighths]


def breakdown(estimate: Estimate, style: Style, parts: int = PARTS_SHOWN, folds: bool = False) -> Iterator[str]:
    """The components at the peak, largest first, each with its largest parts; ``folds`` those of the first alone."""
    whole = max(estimate.device_bytes, 1)
    ordered = sorted(estimate.components, key=lambda component: -component.size_bytes)
    names = [title(component.name) for component in ordered]
    columns = max(map(width, names), default=0)
    for name, component in zip(names, ordered):
        share = component.size_bytes / whole
        drawn = style.paint(bar(share, style).ljust(BAR_COLUMNS), BLUE)
        yield f"  {name}{' ' * (columns - width(name))}  {format_bytes(component.size_bytes):>10}  {drawn} {share:5.1%}"
        if len(component.parts) > 1 and share >= 0.05 and (component is ordered[0] or not folds):
            largest = sorted(component.parts, key=lambda part: -part.size_bytes)
            for part in largest[:parts]:
                label = shorten(clean(part.name or "(top)"), 60) + (f" ({clean(part.title)})" if part.title else "")
                yield style.paint(f"    {format_bytes(part.size_bytes):>10}  {label}", DIM)
            rest = largest[parts:]
            if rest:
                size = format_bytes(sum(part.size_bytes for part in rest))
                yield style.paint(f"    {size:>10}  {len(rest)} more module{'s' * (len(rest) != 1)}", DIM)
        if component.name == "activations":
            yield from _attention(estimate, component.size_bytes, style)


def _attention(estimate: Estimate, activation_bytes: int, style: Style) -> Iterator[str]:
    """The true size of what every hand-made analysis blames first: where they are gone by the peak, nothing."""
    kept, avoided = estimate.probabilities_kept_bytes, estimate.probabilities_avoided_bytes
    if kept > activation_bytes:
        return
    if kept:
        yield style.paint(f"    {format_bytes(kept):>10}  of all this is attention probabilities", DIM)
    elif avoided:
        text = f"attention probabilities: the kernel is fused (plain attention would keep {format_bytes(avoided)})"
        yield style.paint(f"    {format_bytes(0):>10}  {text}", DIM)


def _fine_print(run: RunReport) -> Iterator[str]:
    for fact, value, why in run.estimate.assumptions if run.estimate is not None else ():
        yield f"  assumed: {clean(fact)} = {clean(value)}" + (f" ({clean(why)})" if why else "")
    for entry in run.unresolved:
        yield f"  unresolved: {clean(entry.key)} in {clean(entry.path)}:{entry.line}: {clean(entry.reason)}"


TIERS = ("allocated", "reserved", "device")
BASES = {"trace": "traced", "probe": "measured"}


def side_by_side(
    measured: Measured, static: Estimate | None, style: Style, traced: Estimate | None = None
) -> Iterator[str]:
    """What was traced or measured, beside the static estimate, component by component and tier by tier. ``traced``: a
    trace of the same run, in a column between the two."""
    found = measured.estimate
    word = BASES.get(found.basis, found.basis)
    verdict = ""
    if measured.verdict != UNKNOWN:
        verdict = ": " + style.paint(measured.verdict, BOLD, VERDICT_COLOR[measured.verdict])
    peak = style.paint(f"{word} peak {format_bytes(found.device_bytes)}", BOLD)
    yield f"  {peak} in {title(found.peak_phase)} ({clean(shorten(measured.source, 100))}){verdict}"
    others = [estimate for estimate in (traced, static) if estimate is not None]
    names = dict.fromkeys(component.name for estimate in (*others[::-1], found) for component in estimate.components)
    rows = sorted(names, key=lambda name: -found.component_bytes(name))
    if others:
        header = f"  {'':<15} {word:>10}"
        for other in others:
            basis = other.basis.partition("+")[0]
            header += f" {BASES.get(basis, basis):>10} {'difference':>12}"
        yield style.paint(header, DIM)
    for name in (*rows, *TIERS):
        size = _row(found, name)
        line = f"  {title(name):<15} {format_bytes(size):>10}"
        for other in others:
            before = _row(other, name)
            line += f" {format_bytes(before):>10} {_difference(size - before, before):>12}"
        yield line
    for note in measured.notes:
        yield style.paint(f"  note: {clean(note)}", DIM)
    if style.verbose:
        for fact, value, why in found.assumptions:
            yield style.paint(f"  {word}: {clean(fact)} = {clean(value)} ({clean(why)})", DIM)


def _row(estimate: Estimate, name: str) -> int:
    """A tier's or a component's bytes."""
    if name in TIERS:
        size: int = getattr(estimate, f"{name}_bytes")
        return size
    return estimate.component_bytes(name)


def _difference(size: int, before: int) -> str:
    """``+1.2 %``, or bytes where there was nothing."""
    if not size:
        return "="
    if not before:
        return "+" + format_bytes(size)
    return f"{size / before:+.2%}"


# -- findings ----------------------------------------------------------------------------------------


def _finding(finding: Finding, run: RunReport, others: str, style: Style) -> Iterator[str]:
    severity = style.paint(finding.severity, BOLD, SEVERITY_COLOR[finding.severity])
    code = style.paint(f"{finding.code} {finding.name}", BOLD)
    head, *more = lines_of(finding.message)
    plain = f"{finding.severity} {finding.code} {finding.name}:"
    first, *rest = folded(f"{plain} {head}", style.columns, 4)
    yield f"{severity} {code}:{first[len(plain) :]}"
    yield from rest
    gutter, excerpt = _excerpt(finding.span, run.sources, style, SEVERITY_COLOR[finding.severity])
    place = f"{clean(finding.span.path)}:{finding.span.line}:{finding.span.column}"
    yield f"{' ' * gutter}{style.paint('-->', BLUE)} {place}"
    yield from excerpt
    pad = " " * (gutter + 1)

    def told(mark: str, text: str, *codes: int) -> Iterator[str]:
        first, *rest = folded(mark + text, style.columns - gutter - 3, 4)
        yield f"{pad}{style.paint('=', BLUE)} {style.paint(mark, *codes)}{first[len(mark) :]}"
        for line in rest:
            yield f"{pad}  {line}"

    for line in more:
        yield from told("", line)
    for span, said in finding.related:
        where = f"line {span.line}" if span.path == finding.span.path else f"{clean(span.path)}:{span.line}"
        yield from told("", f"{where}: {clean(said)}")
    if others:
        yield from told("", others)
    for note in finding.notes:
        for line in lines_of(note):
            yield from told("note:", f" {line}")
    for fix in finding.fixes:
        yield from told("fix", f" ({MEANING[fix.safety]}): {describe_fix(fix)}", GREEN)


def describe_fix(fix: Fix) -> str:
    """``batch_size 128 -> 32: peak 14.2 GiB after, 15.0 GiB less, fits``"""
    said = clean(fix.title)
    if fix.device_bytes_after is None:
        return said
    said += f": peak {format_bytes(fix.device_bytes_after)} after"
    if fix.saved_bytes:
        word = "less" if fix.saved_bytes > 0 else "more"
        said += f", {format_bytes(abs(fix.saved_bytes))} {word}"
    if fix.fits is not None:
        said += ", fits" if fix.fits else ", does not surely fit yet"
    return said


def _excerpt(span: Span, sources: dict[str, str], style: Style, color: int) -> tuple[int, list[str]]:
    """The width of the line numbers, and the lines of a span behind a gutter with the span underlined."""
    text = sources.get(span.path)
    lines = () if text is None else source_lines(text, span.path)
    if not 1 <= span.line <= len(lines):
        return 2, []
    last = min(max(span.end_line, span.line), len(lines))
    if span.end_column == 1 and last > span.line:
        last -= 1
    shown = list(range(span.line, last + 1))
    cut = len(shown) > EXCERPT_LINES
    gutter = len(str(last)) + 1
    bar_ = style.paint("|", BLUE)
    excerpt = []
    for number in shown[: EXCERPT_LINES - 1] if cut else shown:
        line = lines[number - 1]
        begin = span.column - 1 if number == span.line else len(line) - len(line.lstrip())
        end = span.end_column - 1 if number == span.end_line else len(line.rstrip())
        begin = min(max(begin, 0), len(line))
        end = min(max(end, begin), len(line))
        room = LINE_COLUMNS
        # Of a long line no more is looked at than may be shown, and the character that tells that there is more.
        before = tail(clean(line[max(begin - room, 0) : begin]), room // 2)
        whole = clean(line[begin : min(end, begin + room + 1)])
        marked = head(whole, room - width(before))
        after = clean(line[end : end + room + 1]) if marked == whole else ""
        after = head(after, room - width(before) - width(marked))
        excerpt.append(f"{number:>{gutter}} {bar_} {before}{marked}{after}".rstrip())
        carets = style.paint("^" * max(width(marked), 1), color)
        excerpt.append(f"{' ' * gutter} {bar_} {' ' * width(before)}{carets}")
    if cut:
        excerpt.append(f"{' ' * gutter} {bar_} ... to line {last}")
    return gutter, excerpt


def closing(report: Report, style: Style) -> str:
    """``1 OOM, 3 FITS; 2 errors, 1 warning in 3 files, 4 runs (41 ms)``"""
    counts = [(report.count(severity), severity if severity != INFO else "note") for severity in (ERROR, WARNING, INFO)]
    said = ", ".join(f"{number} {word}{'s' * (number != 1)}" for number, word in counts if number)
    files = len({run.path for run in report.runs})
    runs = len(report.runs)
    told = style.verbose or runs <= overview.DETAILED  # else those of a few runs alone are made
    fixable = sum(1 for finding in report.findings if finding.fixes) if told else 0
    tail = f" in {files} file{'s' * (files != 1)}"
    if runs != files:
        tail += f", {runs} runs"
    tail += f" ({report.seconds * 1000:.0f} ms)"
    if fixable:
        tail += f", {fixable} with a fix"
    color = RED if report.count(ERROR) else YELLOW if said else GREEN
    return overview.counted(report, style) + style.paint(said or "no findings", BOLD, color) + tail


def statistics(report: Report) -> str:
    """Findings and time per rule, most findings first, then slowest."""
    counts: dict[str, int] = {}
    names: dict[str, str] = {}
    for finding in report.findings:
        counts[finding.code] = counts.get(finding.code, 0) + 1
        names[finding.code] = finding.name
    seconds = report.rule_seconds
    codes = sorted({*counts, *seconds}, key=lambda code: (-counts.get(code, 0), -seconds.get(code, 0.0), code))
    return "".join(
        f"{counts.get(code, 0):>6}  {seconds.get(code, 0.0) * 1000:>8.1f} ms  {code}"
        + (f" {names[code]}" if code in names else "")
        + "\n"
        for code in codes
    )
