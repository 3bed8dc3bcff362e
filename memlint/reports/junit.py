"""JUnit's XML, as CI servers read it: a test suite for each file and a test case for each finding and each verdict."""

from __future__ import annotations

import re

from memlint.plugin import INFO, Finding
from memlint.reports.report import Report, RunReport
from memlint.reports.text import clean
from memlint.reports.verdict import action, verdict_line, verdict_of, worst_first
from memlint.tape.estimate import OOM

# What no XML 1.0 document may hold, however it is written (chapter 2.2); cleaned text has no other controls.
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(report: Report) -> str:
    """A finding fails its case unless it is a note; so does an OOM verdict. What could not be read is an error."""
    suites = [_suite(path, [run for run in report.runs if run.path == path]) for path in _paths(report)]
    suites += [(path, [_case("read", path, "error", why)], (1, 0, 1)) for path, why in report.errors]
    if not suites:
        suites = [("memlint", [_case("no training configs", "memlint", "", "")], (1, 0, 0))]
    lines = ['<?xml version="1.0" encoding="utf-8"?>']
    totals = [sum(counts[at] for _, _, counts in suites) for at in range(3)]
    lines.append(f'<testsuites name="memlint" tests="{totals[0]}" failures="{totals[1]}" errors="{totals[2]}">')
    for name, cases, (tests, failures, errors) in suites:
        lines.append(f'<testsuite name={quoted(name)} tests="{tests}" failures="{failures}" errors="{errors}">')
        lines += [*cases, "</testsuite>"]
    return "\n".join([*lines, "</testsuites>"]) + "\n"


def _paths(report: Report) -> list[str]:
    return list(dict.fromkeys(run.path for run in report.runs))


def _suite(path: str, runs: list[RunReport]) -> tuple[str, list[str], tuple[int, int, int]]:
    cases, failures = [], 0
    for run in runs:
        said = "\n".join(filter(None, (verdict_line(run), action(run))))
        failed = verdict_of(run) == OOM
        cases.append(_case(f"verdict {run.run}", path, "failure" if failed else "", said))
        failures += failed
        for finding in worst_first(run.findings):
            failed = finding.severity != INFO
            cases.append(_case(_name(finding), finding.span.path, "failure" if failed else "", finding.message))
            failures += failed
    return path, cases, (len(cases), failures, 0)


def _name(finding: Finding) -> str:
    return f"{finding.code} {finding.name} line {finding.span.line}"


def _case(name: str, place: str, outcome: str, said: str) -> str:
    """One test case: failed or broken with what is said, or passed with it as its output."""
    begin = f"<testcase name={quoted(name)} classname={quoted(place)}>"
    if outcome:
        return f'{begin}<{outcome} type="memlint" message={quoted(said)}>{escaped(said)}</{outcome}></testcase>'
    return f"{begin}<system-out>{escaped(said)}</system-out></testcase>"


def escaped(text: str) -> str:
    """Text that is nothing but text in an XML document: as content, and between quotes."""
    text = _NO_XML.sub("\ufffd", "\n".join(map(clean, text.split("\n"))))
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def quoted(text: str) -> str:
    return '"' + escaped(" ".join(text.split("\n"))) + '"'
