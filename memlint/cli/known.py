"""What ``memlint check`` does with findings that are known, or are to be: baselines and suppression comments."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from memlint.cli import output

if TYPE_CHECKING:
    from memlint.plugin import Finding
    from memlint.reports.report import Report
    from memlint.settings import Resolver, Settings


def held_against(report: Report, settings: Settings) -> Report:
    """The report without what the baseline of the settings knows, which is said. Raises Stop."""
    if not settings.baseline:
        return report
    from memlint import baseline
    from memlint.settings import SettingsError

    try:
        path = baseline.stated(settings)
        held = baseline.without(report, baseline.read(path), path)
    except SettingsError as error:
        raise output.Stop(str(error)) from None
    except baseline.BaselineError as error:
        raise output.Stop(f"baseline {error}") from None
    path = _shown(path)
    if held.hidden and not settings.quiet:
        output.note(f"memlint: {_findings(held.hidden)} known ({path})")
    if held.gone and settings.verbose:
        output.note(f"memlint: {_findings(held.gone)} of {path} are there no more: write it again")
    return held.report


def write(report: Report, settings: Settings) -> int:
    """Write all findings to a baseline: 0, or 2 where something could not be checked, which is written as well."""
    from memlint import baseline

    path = settings.write_baseline
    text = baseline.render(report, path)
    _tell_errors(report)
    output.write_file(path, text)
    if not settings.quiet:
        output.note(f"memlint: {_findings(sum(baseline_counts(text)))} written to {path}")
    return 2 if report.crashed else 0


def baseline_counts(text: str) -> list[int]:
    import json

    return [entry["count"] for entry in json.loads(text)["findings"]]


def silence(report: Report, settings: Settings, resolver: Resolver) -> int:
    """Write comments at all findings, and say which have no place for one. The exit code is that of a check of what is
    left."""
    from memlint import files
    from memlint.documents.load import Unreadable, read_text
    from memlint.ignores import add
    from memlint.selection import known_rules

    report = held_against(report, settings)
    by_path: dict[str, list[Finding]] = {}
    for finding in report.findings:
        by_path.setdefault(finding.span.path, []).append(finding)
    left: list[Finding] = []
    written = 0
    for path, findings in by_path.items():
        try:
            text = read_text(path)
            added = add(path, text, findings, settings.add_ignore, known_rules(resolver.for_path(path)))
            if added.text != text:
                _replace(path, added.text, files.read(path, 1 << 24).startswith(b"\xef\xbb\xbf"))
        except (Unreadable, OSError) as error:
            output.note(f"memlint: error: {error}")
            left += findings
            continue
        written += added.silenced
        for finding, why in added.left:
            output.note(f"memlint: {path}:{finding.span.line}: {finding.code} has no comment, {why}")
            left.append(finding)
    _tell_errors(report)
    if not settings.quiet:
        output.note(f"memlint: {_findings(written)} silenced")
    runs = tuple(
        run._replace(findings=tuple(finding for finding in run.findings if finding in left)) for run in report.runs
    )
    return report._replace(runs=runs).exit_code(settings.fail_on, settings.exit_zero)


def _replace(path: str, text: str, has_mark: bool) -> None:
    """Put a text in the place of a config's, whose rights and byte order mark it keeps. Raises Stop."""
    rights = stat.S_IMODE(os.stat(path).st_mode)
    output.write_file(path, ("\ufeff" if has_mark else "") + text)
    os.chmod(path, rights)


def _shown(path: str) -> str:
    """Relative to the working folder where it is below it."""
    relative = os.path.relpath(path)
    return path if relative.startswith(os.pardir) else relative


def _tell_errors(report: Report) -> None:
    for path, why in report.errors:
        output.note(f"memlint: error: {path}: {why}")


def _findings(count: int) -> str:
    return "1 finding" if count == 1 else f"{count} findings"
