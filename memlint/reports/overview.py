"""A folder at a glance: a table of its runs and one of its findings, the worst first, equal ones in one row."""

from __future__ import annotations

import os
from collections.abc import Iterator

from memlint.plugin import Finding
from memlint.reports.report import Report, RunReport
from memlint.reports.style import BOLD, DIM, SEVERITY_COLOR, Style
from memlint.reports.text import clean, head, tail, width
from memlint.reports.verdict import (
    WORST_FIRST,
    action,
    gravity,
    name_of,
    one_line,
    painted,
    verdict_of,
    why_unknown,
    worst_first,
)
from memlint.tape.estimate import OOM, TIGHT
from memlint.units import format_bytes

DETAILED = 3  # runs of a folder whose findings are told one by one, without being asked
# Rows of the table, ways out below them, and rules: together they are one screen of 30 lines.
MAX_ROWS = 12
MAX_ACTIONS = 4
MAX_RULES = 5
NAME_COLUMNS = 60  # of a row's runs, where no terminal says how many
SAID_COLUMNS = 140  # of its last column


def sorted_runs(report: Report) -> list[RunReport]:
    """Worst first: by verdict, then by how far over its budget a run is, the largest peak first."""

    def key(run: RunReport) -> tuple[int, int, int, str, str]:
        size = 0 if run.estimate is None else run.estimate.device_bytes
        budget = 0 if run.budget is None else run.budget.size_bytes
        findings = worst_first(run.findings)
        worst = gravity(findings[0])[0] if findings else len(SEVERITY_COLOR)
        return (WORST_FIRST.index(verdict_of(run)), budget - size, worst, run.path, run.run)

    return sorted(report.runs, key=key)


def grouped(report: Report) -> list[list[RunReport]]:
    """Runs of one folder of which the table would say the same, in the order of their first."""
    groups: dict[tuple[object, ...], list[RunReport]] = {}
    for run in sorted_runs(report):
        key = (
            os.path.dirname(run.path),
            verdict_of(run),
            run.companion,
            _size(run),
            _budget(run),
            _said(run),
        )
        groups.setdefault(key, []).append(run)
    return list(groups.values())


def looked_at(report: Report) -> set[str]:
    """The files whose fixes and notes are shown: of a few runs all, of a folder those of its worst rows."""
    if len(report.runs) <= DETAILED:
        return {run.path for run in report.runs}
    failing = [group[0].path for group in grouped(report) if group[0].verdict in (OOM, TIGHT)]
    return set(failing[:MAX_ACTIONS])


def table(report: Report, style: Style) -> Iterator[str]:
    """``verdict  peak  budget  run  worst finding``, a row for each group of equal runs. Below the
    worst, as many as are looked at first, stands what to do."""
    groups = grouped(report)
    shown = groups if style.verbose else groups[:MAX_ROWS]
    rows = [(_size(group[0]), _budget(group[0]), _name(group), _said(group[0])) for group in shown]
    verdicts = [verdict_of(group[0]) for group in shown]
    ways = [action(group[0]) for group in shown]
    first_ways = [number for number, way in enumerate(ways) if way][: None if style.verbose else MAX_ACTIONS]
    if not rows:
        return
    headers = ("peak", "budget", "run", "worst finding")
    sizes = [max(width(row[column]) for row in (headers, *rows)) for column in range(3)]
    first = max(map(len, ("verdict", *verdicts)))
    room = style.columns - first - sizes[0] - sizes[1] - 8 if style.columns >= 60 else 0
    sizes[2] = min(sizes[2], room // 2 if room else NAME_COLUMNS)
    rest = room - sizes[2] - 1 if room else SAID_COLUMNS
    header = f"{'verdict':<{first}}  {'peak':>{sizes[0]}}  {'budget':>{sizes[1]}}  {'run':<{sizes[2]}}  {headers[3]}"
    yield style.paint(header.rstrip(), DIM)
    for number, (verdict, (peak, budget, name, said)) in enumerate(zip(verdicts, rows)):
        name = tail(name, sizes[2])
        line = f"  {peak:>{sizes[0]}}  {budget:>{sizes[1]}}  {name}{' ' * (sizes[2] - width(name))}"
        yield painted(verdict, style, first) + f"{line}  {head(said, rest)}".rstrip()
        if number in first_ways:
            way = f"{' ' * first}  {ways[number]}"
            yield style.paint(head(way, style.columns - 1) if style.columns >= 60 else way, BOLD)
    left = [run for group in groups[len(shown) :] for run in group]
    if left:
        yield style.paint(f"and {_counts(left)} more run{'s' * (len(left) > 1)} (-v shows every one)", DIM)


def by_rule(report: Report, style: Style) -> Iterator[str]:
    """How often each rule spoke, with the worst it said and where; the gravest rule first."""
    rules: dict[tuple[str, str], list[Finding]] = {}
    for finding in worst_first(report.findings):
        rules.setdefault((finding.severity, finding.code), []).append(finding)
    for (severity, code), findings in list(rules.items())[:MAX_RULES]:
        first = findings[0]
        count = f" x {len(findings)}" if len(findings) > 1 else ""
        place = f"{clean(first.span.path)}:{first.span.line}"
        plain = f"{severity} {code} {first.name}{count}"
        said = f": {one_line(first)}, in {place}" + (" and others" if len(findings) > 1 else "")
        room = (style.columns - width(plain) - 1) if style.columns >= 60 else SAID_COLUMNS
        yield style.paint(severity, BOLD, SEVERITY_COLOR[severity]) + plain[len(severity) :] + head(said, room)
    left = list(rules.values())[MAX_RULES:]
    if left:
        number = sum(map(len, left))
        said = f"and {number} finding{'s' * (number > 1)} of {len(left)} more rule{'s' * (len(left) > 1)}"
        yield style.paint(said, DIM)
    if rules:
        yield style.paint("(-v tells each finding with its line and fixes, as `memlint check FILE` does)", DIM)


def counted(report: Report, style: Style) -> str:
    """``2 OOM, 1 FITS; `` for the closing line; "" of one run, whose verdict stands above it."""
    if len(report.runs) < 2:
        return ""
    verdicts = [verdict_of(run) for run in report.runs]
    said = [f"{verdicts.count(verdict)} {painted(verdict, style)}" for verdict in WORST_FIRST if verdict in verdicts]
    return ", ".join(said) + "; "


def _counts(runs: list[RunReport]) -> str:
    verdicts = [verdict_of(run) for run in runs]
    return ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in WORST_FIRST if verdict in verdicts)


def _size(run: RunReport) -> str:
    if run.estimate is not None:
        return format_bytes(run.estimate.device_bytes)
    if run.partial is None:
        return "unknown"
    sizes = sorted(row.device_bytes for row in run.partial.rows)
    least, most = format_bytes(sizes[0]), format_bytes(sizes[-1])
    return f"over {least}" if run.partial.at_least else least if least == most else f"{least} to {most}"


def _budget(run: RunReport) -> str:
    return "" if run.budget is None else format_bytes(run.budget.size_bytes)


def _name(group: list[RunReport]) -> str:
    more = f" and {len(group) - 1} more" if len(group) > 1 else ""
    return name_of(group[0]) + more


def _said(run: RunReport) -> str:
    """The gravest finding of a run; why its peak is unknown."""
    if run.estimate is None:
        return why_unknown(run)
    findings = worst_first(run.findings)
    return f"{findings[0].code} {findings[0].name}" if findings else ""
