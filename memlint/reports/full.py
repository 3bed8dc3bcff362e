"""The report for people: peak and verdict of each run, where the bytes are, and findings on their source lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from memlint.documents.node import Span
from memlint.named_tuple import NamedTuple
from memlint.partial import Partial
from memlint.plugin import ERROR, INFO, WARNING, Finding, Fix
from memlint.reports.equal import Equal
from memlint.reports.report import Budget, Measured, Report, RunReport
from memlint.reports.text import clean, harmless_in_actions, lines_of, shorten, source_lines, width
from memlint.tape.estimate import FITS, MEASURED, OOM, TIGHT, UNKNOWN, Estimate
from memlint.units import format_bytes

BAR_COLUMNS = 32
EXCERPT_LINES = 6
LINE_COLUMNS = 160
LINES_SHOWN = 4  # of the commands that start the same run
PARTS_SHOWN = 3
EIGHTHS = ("", "\u258f", "\u258e", "\u258d", "\u258c", "\u258b", "\u258a", "\u2589")


class Style(NamedTuple):
    """How to print: ``color`` sends ANSI colours, ``unicode`` draws with block characters, ``actions`` keeps
    every line from being a workflow command, ``verbose`` adds assumptions, ``quiet`` leaves findings alone."""

    color: bool = False
    unicode: bool = True
    actions: bool = False
    verbose: bool = False
    quiet: bool = False

    def paint(self, text: str, *codes: int) -> str:
        return f"\x1b[{';'.join(map(str, codes))}m{text}\x1b[0m" if self.color and codes else text


BOLD, DIM, RED, GREEN, YELLOW, BLUE, CYAN = 1, 2, 31, 32, 33, 34, 36
SEVERITY_COLOR = {ERROR: RED, WARNING: YELLOW, INFO: CYAN}
VERDICT_COLOR = {OOM: RED, TIGHT: YELLOW, FITS: GREEN, UNKNOWN: DIM}


def render(report: Report, style: Style = Style()) -> str:  # noqa: B008  (immutable)
    """The whole report as text, ending in a newline unless it is empty."""
    lines: list[str] = []
    equal = Equal(report)
    for run in report.runs:
        shown = list(_run(run, report, equal, style))
        if shown:
            lines += [*shown, ""]
    if not style.quiet:
        lines.append(closing(report, style))
    return finish(lines, style)


def finish(lines: Sequence[str], style: Style) -> str:
    while lines and not lines[-1]:
        lines = lines[:-1]
    if style.actions:
        lines = [harmless_in_actions(line) for line in lines]
    return "\n".join(lines) + "\n" if lines else ""


def _run(run: RunReport, report: Report, equal: Equal, style: Style) -> Iterator[str]:
    if not style.quiet:
        yield headline(run, style)
        if run.estimate is not None and (run.findings or len(report.runs) == 1):
            yield ""
            yield from breakdown(run.estimate, style)
        if run.measured is not None:
            yield ""
            yield from side_by_side(run.measured, run.estimate, style)
        if style.verbose:
            yield from _fine_print(run)
    for finding in run.findings:
        if not style.verbose and not equal.is_first(finding):
            continue
        if not style.quiet:
            yield ""
        yield from _finding(finding, run, "" if style.verbose else equal.others(finding), style)


def headline(run: RunReport, style: Style) -> str:
    """``configs/a.yaml: peak 29.1 GiB (28.4 to 29.9) in backward, budget 16.0 GiB: OOM, over by 13.1 GiB``"""
    name = clean(run.path) + ("" if run.run == "train" else f" [{clean(run.run)}]")
    pieces = [style.paint(name, BOLD) + _again(run.also_lines)]
    about = [clean(shorten(text, 80)) for text in (run.family, run.model_name) if text]
    estimate = run.estimate
    started = "" if run.launch is None else "\n  " + style.paint(f"as {_place(run.launch)} starts it", DIM)
    if estimate is not None:
        count = f"{estimate.parameters:,} parameters"
        if estimate.trainable_parameters != estimate.parameters:
            count += f", {estimate.trainable_parameters:,} trainable"
        about.append(count)
    if about:
        pieces.append(style.paint("  " + ", ".join(about), DIM))
    pieces.append(started)
    for fact, value, _ in () if estimate is None else estimate.assumptions:
        if fact == "same_model_as":
            pieces.append(
                "\n  " + style.paint(f"taken for {clean(shorten(value, 80))}, whose name the folder has", DIM)
            )
    if estimate is None:
        if run.partial is not None:
            pieces += [f"\n{line}" for line in table(run.partial, run.budget, style)]
        elif run.family:
            pieces.append("\n  peak unknown")
        return "".join(pieces)
    low, high = estimate.device_interval
    within = "" if low == high else f" ({format_bytes(low)} to {format_bytes(high)})"
    if estimate.basis.endswith(MEASURED):
        within += ", narrowed by a measurement"
    peak = style.paint(f"peak {format_bytes(estimate.device_bytes)}", BOLD)
    pieces.append(f"\n  {peak}{within} in {_title(estimate.peak_phase)}")
    if run.budget is not None:
        spare = run.budget.size_bytes - estimate.device_bytes
        margin = f"{format_bytes(spare)} free" if spare >= 0 else f"over by {format_bytes(-spare)}"
        source = "" if not run.budget.source else f" ({clean(run.budget.source)})"
        verdict = style.paint(run.verdict, BOLD, VERDICT_COLOR[run.verdict])
        pieces.append(f", budget {format_bytes(run.budget.size_bytes)}{source}: {verdict}, {margin}")
    return "".join(pieces)


def table(partial: Partial, budget: Budget | None, style: Style) -> Iterator[str]:
    """The peak as a function of what is not stated, a line for each size."""
    keys = " and ".join(clean(shorten(key, 80)) for key in partial.keys)
    yield "  " + style.paint("peak", BOLD) + f" unknown without {keys}:"
    named = [row.named(partial.names) for row in partial.rows]
    columns = max(map(len, named))
    for name, row in zip(named, partial.rows):
        low, high = row.device_interval
        within = "" if low == high else f" ({format_bytes(low)} to {format_bytes(high)})"
        verdict = "" if budget is None else "  " + style.paint(row.verdict, BOLD, VERDICT_COLOR[row.verdict])
        yield f"    {name.rjust(columns)}  {format_bytes(row.device_bytes)}{within}{verdict}"
    if budget is not None and partial.most is not None:
        size = format_bytes(budget.size_bytes)
        yield f"  fits {size} up to {partial.most:,} tokens" if partial.most else f"  does not fit {size} at any length"


def _place(span: Span) -> str:
    return f"{clean(shorten(span.path, 120))}:{span.line}"


def _title(name: str) -> str:
    """A phase's or a component's name for people; those of measurements are whatever their file says."""
    return clean(shorten(name.replace("_", " "), 60))


def _again(lines: tuple[int, ...]) -> str:
    """``, also on lines 12, 30 and 2,997 more``: where a script starts the same run again."""
    if not lines:
        return ""
    listed = ", ".join(str(line) for line in lines[:LINES_SHOWN])
    more = f" and {len(lines) - LINES_SHOWN:,} more" if len(lines) > LINES_SHOWN else ""
    return f", the same run {len(lines) + 1:,} times: also on line{'s' if len(lines) > 1 else ''} {listed}{more}"


def bar(share: float, style: Style, columns: int = BAR_COLUMNS) -> str:
    """A bar of ``share`` (0 to 1) of the columns, in eighths where the terminal has them."""
    if not style.unicode:
        return "#" * max(int(share * columns + 0.5), int(share > 0))
    whole, eighths = divmod(max(int(share * columns * 8 + 0.5), int(share > 0)), 8)
    return "\u2588" * whole + EIGHTHS[eighths]


def breakdown(estimate: Estimate, style: Style, parts: int = PARTS_SHOWN) -> Iterator[str]:
    """The components at the peak, largest first, each with its largest parts."""
    whole = max(estimate.device_bytes, 1)
    ordered = sorted(estimate.components, key=lambda component: -component.size_bytes)
    names = max([len(component.name) for component in ordered], default=0)
    for component in ordered:
        share = component.size_bytes / whole
        drawn = style.paint(bar(share, style).ljust(BAR_COLUMNS), BLUE)
        title = _title(component.name).ljust(names)
        yield f"  {title}  {format_bytes(component.size_bytes):>10}  {drawn} {share:5.1%}"
        if len(component.parts) > 1 and share >= 0.05:
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
    for fact, value, reason in run.estimate.assumptions if run.estimate is not None else ():
        yield f"  assumed: {clean(fact)} = {clean(value)}" + (f" ({clean(reason)})" if reason else "")
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
    yield f"  {peak} in {_title(found.peak_phase)} ({clean(shorten(measured.source, 100))}){verdict}"
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
        line = f"  {_title(name):<15} {format_bytes(size):>10}"
        for other in others:
            before = _row(other, name)
            line += f" {format_bytes(before):>10} {_difference(size - before, before):>12}"
        yield line
    for note in measured.notes:
        yield style.paint(f"  note: {clean(note)}", DIM)
    if style.verbose:
        for fact, value, reason in found.assumptions:
            yield style.paint(f"  {word}: {clean(fact)} = {clean(value)} ({clean(reason)})", DIM)


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
        return ("+" if size > 0 else "") + format_bytes(size)
    return f"{size / before:+.2%}"


# -- findings ----------------------------------------------------------------------------------------


def _finding(finding: Finding, run: RunReport, others: str, style: Style) -> Iterator[str]:
    severity = style.paint(finding.severity, BOLD, SEVERITY_COLOR[finding.severity])
    code = style.paint(f"{finding.code} {finding.name}", BOLD)
    head, *more = lines_of(finding.message)
    yield f"{severity} {code}: {head}"
    gutter, excerpt = _excerpt(finding.span, run.sources, style, SEVERITY_COLOR[finding.severity])
    place = f"{clean(finding.span.path)}:{finding.span.line}:{finding.span.column}"
    yield f"{' ' * gutter}{style.paint('-->', BLUE)} {place}"
    yield from excerpt
    pad = " " * (gutter + 1)
    for line in more:
        yield f"{pad}{style.paint('=', BLUE)} {line}"
    for span, said in finding.related:
        where = f"line {span.line}" if span.path == finding.span.path else f"{clean(span.path)}:{span.line}"
        yield f"{pad}{style.paint('=', BLUE)} {where}: {clean(said)}"
    if others:
        yield f"{pad}{style.paint('=', BLUE)} {others}"
    for note in finding.notes:
        for line in lines_of(note):
            yield f"{pad}{style.paint('=', BLUE)} note: {line}"
    for fix in finding.fixes:
        yield f"{pad}{style.paint('=', BLUE)} {style.paint('fix', GREEN)} ({fix.safety}): {describe_fix(fix)}"


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
        said += ", fits" if fix.fits else ", does not fit yet"
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
        # No more of a long line than may be shown is looked at.
        before = clean(line[max(begin - room, 0) : begin])
        marked, after = clean(line[begin : min(end, begin + room)]), clean(line[end : end + room])
        if width(before) > room // 2:
            before = "..." + before[-(room // 2 - 3) :]
        marked = shorten(marked, room - len(before))
        after = shorten(after, max(room - len(before) - len(marked), 3))
        excerpt.append(f"{number:>{gutter}} {bar_} {before}{marked}{after}".rstrip())
        carets = style.paint("^" * max(width(marked), 1), color)
        excerpt.append(f"{' ' * gutter} {bar_} {' ' * width(before)}{carets}")
    if cut:
        excerpt.append(f"{' ' * gutter} {bar_} ... to line {last}")
    return gutter, excerpt


def closing(report: Report, style: Style) -> str:
    """``2 errors, 1 warning in 3 files, 4 runs (41 ms)``"""
    counts = [(report.count(severity), severity if severity != INFO else "note") for severity in (ERROR, WARNING, INFO)]
    said = ", ".join(f"{number} {word}{'s' * (number != 1)}" for number, word in counts if number)
    files = len({run.path for run in report.runs})
    runs = len(report.runs)
    fixable = sum(1 for finding in report.findings if finding.fixes)
    tail = f" in {files} file{'s' * (files != 1)}"
    if runs != files:
        tail += f", {runs} runs"
    tail += f" ({report.seconds * 1000:.0f} ms)"
    if fixable:
        tail += f", {fixable} with a fix"
    color = RED if report.count(ERROR) else YELLOW if said else GREEN
    return style.paint(said or "no findings", BOLD, color) + tail


def statistics(report: Report) -> str:
    """Findings and time per rule, most findings first, then slowest."""
    counts: dict[str, int] = {}
    names: dict[str, str] = {}
    for finding in report.findings:
        counts[finding.code] = counts.get(finding.code, 0) + 1
        names[finding.code] = finding.name
    codes = sorted({*counts, *report.rule_seconds}, key=lambda code: (-counts.get(code, 0), code))
    return "".join(
        f"{counts.get(code, 0):>6}  {report.rule_seconds.get(code, 0.0) * 1000:>8.1f} ms  {code}"
        + (f" {names[code]}" if code in names else "")
        + "\n"
        for code in codes
    )
