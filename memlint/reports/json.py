"""The JSON report, version 1: ``schemas/report.schema.json``. Lines and columns are 1-based, ends exclusive."""

from __future__ import annotations

from typing import Any

from memlint import __version__
from memlint.documents.node import Span
from memlint.partial import Partial
from memlint.plugin import ERROR, INFO, WARNING, Finding, Fix
from memlint.reports.report import Budget, Measured, Report, RunReport, StatedFact
from memlint.reports.verdict import whole_reason
from memlint.tape.estimate import UNKNOWN, Estimate, Interval, Part

VERSION = 1
PHASES = ("forward", "backward", "optimizer_step", "evaluation")
SOMETIMES = ("generation", "setup")  # of runs that learn from their own samples; where loading takes the most


def render(report: Report) -> str:
    import json

    text = json.dumps(as_dict(report), indent=2, ensure_ascii=True) + "\n"
    return text.replace("\x7f", "\\u007f")  # the one control that JSON lets pass


def as_dict(report: Report) -> dict[str, Any]:
    """The report as plain dicts and lists."""
    return {
        "version": VERSION,
        "tool": {"name": "memlint", "version": __version__},
        "files": [_run(run) for run in report.runs],
        "summary": {
            "files": len({run.path for run in report.runs}),
            "errors": report.count(ERROR),
            "warnings": report.count(WARNING),
            "infos": report.count(INFO),
            "fixable": sum(1 for finding in report.findings if finding.fixes),
            "seconds": round(report.seconds, 4),
        },
    }


def _launch(run: RunReport, at: Span) -> dict[str, Any]:
    return {"path": at.path, "line": at.line, **({"with": run.launched_with} if run.launched_with else {})}


def _run(run: RunReport) -> dict[str, Any]:
    estimate = run.estimate
    budget = None
    if run.budget is not None:
        headroom = None if estimate is None else run.budget.size_bytes - estimate.device_bytes
        budget = {"bytes": run.budget.size_bytes, "source": run.budget.source, "headroom_bytes": headroom}
    return {
        "path": run.path,
        "run": run.run,
        **({"launch": _launch(run, run.launch)} if run.launch is not None else {}),
        **({"also_lines": list(run.also_lines)} if run.also_lines else {}),
        "family": run.family or None,
        "model": {
            "name": run.model_name or None,
            "parameters": None if estimate is None else estimate.parameters,
            "trainable_parameters": None if estimate is None else estimate.trainable_parameters,
            "parts": [
                {"name": name, "parameters": parameters, "trainable_parameters": trained}
                for name, parameters, trained in (() if estimate is None else estimate.modules)
            ],
        },
        "estimate": None if estimate is None else _estimate(estimate, run.verdict, run),
        **({"unknown": whole_reason(run)} if estimate is None else {}),
        **({} if run.partial is None else {"partial": _partial(run.partial, run.budget)}),
        "budget": budget,
        "measured": None if run.measured is None else _measured(run.measured, run),
        "findings": [_finding(finding) for finding in run.findings],
    }


def _partial(partial: Partial, budget: Budget | None) -> dict[str, Any]:
    return {
        "open": [{"fact": name, "key": key} for name, key in zip(partial.names, partial.keys)],
        "rows": [
            {
                **dict(zip(partial.names, row.values)),
                "device_bytes": row.device_bytes,
                "low_bytes": row.device_interval.low_bytes,
                "high_bytes": row.device_interval.high_bytes,
                "verdict": None if budget is None or row.verdict == UNKNOWN else row.verdict,
            }
            for row in partial.rows
        ],
        "fits_up_to": partial.most,
        "at_least": partial.at_least,
    }


def _measured(measured: Measured, run: RunReport) -> dict[str, Any]:
    difference = measured.difference(run.estimate)
    return {
        **_estimate(measured.estimate, measured.verdict, run),
        "source": measured.source,
        "notes": list(measured.notes),
        "difference": None if run.estimate is None else difference,
    }


def _estimate(estimate: Estimate, verdict: str, run: RunReport) -> dict[str, Any]:
    return {
        "basis": estimate.basis,
        "verdict": verdict,
        "peak_phase": estimate.peak_phase,
        "allocated_bytes": estimate.allocated_bytes,
        "reserved_bytes": estimate.reserved_bytes,
        "device_bytes": estimate.device_bytes,
        "saved_bytes": estimate.saved_bytes,
        "attention": {
            "kept_bytes": estimate.probabilities_kept_bytes,
            "avoided_bytes": estimate.probabilities_avoided_bytes,
        },
        "low_bytes": estimate.device_interval.low_bytes,
        "high_bytes": estimate.device_interval.high_bytes,
        "interval": {
            "allocated": _interval(estimate.allocated_interval),
            "reserved": _interval(estimate.reserved_interval),
            "device": _interval(estimate.device_interval),
        },
        "components": [
            {
                "name": component.name,
                "bytes": component.size_bytes,
                "parts": [_part(part, run) for part in component.parts],
            }
            for component in estimate.components
        ],
        "phases": {
            **{phase: estimate.phases.get(phase, 0) for phase in PHASES},
            **{phase: size for phase, size in estimate.phases.items() if phase in SOMETIMES},
        },
        "assumptions": [
            {"fact": fact, "value": plain(value), "reason": reason} for fact, value, reason in estimate.assumptions
        ],
        "unresolved": [
            {"key": value.key, "line": _line(value.line, value.path, run), "reason": value.reason}
            for value in run.unresolved
        ],
    }


def _interval(interval: Interval) -> list[int]:
    return [interval.low_bytes, interval.high_bytes]


def _part(part: Part, run: RunReport) -> dict[str, Any]:
    return {
        "name": part.name,
        "bytes": part.size_bytes,
        "formula": part.formula,
        "facts": [
            {"key": fact.key, "value": plain(fact.value), "line": _line(fact.line, fact.path, run)}
            for fact in facts_behind(part, run)
        ],
    }


def _line(line: int, path: str, run: RunReport) -> int | None:
    """A line of the run's own file; None for what another file states, or none."""
    return line if line and path == run.path else None


def facts_behind(part: Part, run: RunReport) -> list[StatedFact]:
    """The facts in a part's formula, each once."""
    names = dict.fromkeys(fact for _, fact in part.symbols)
    return [run.facts[name] for name in names if name in run.facts]


def plain(value: object) -> Any:
    """A fact's value as JSON can hold it; anything that is not plain data as text."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        # JSON has no infinities and no NaN.
        return value if value - value == 0 else str(value)
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return [plain(entry) for entry in value]
    return str(value)


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "name": finding.name,
        "severity": finding.severity,
        "message": finding.message,
        **_place(finding.span),
        "key": finding.key or None,
        "related": [{**_place(span), "message": said} for span, said in finding.related],
        "bytes": finding.size_bytes,
        "confidence": finding.confidence,
        "fingerprint": finding.fingerprint,
        "url": None,  # the manual pages have no address yet; `memlint rule CODE` prints them
        "fixes": [_fix(fix) for fix in finding.fixes],
    }


def _place(span: Span) -> dict[str, Any]:
    return {
        "path": span.path,
        "line": span.line,
        "column": span.column,
        "end_line": span.end_line,
        "end_column": span.end_column,
    }


def _fix(fix: Fix) -> dict[str, Any]:
    return {
        "title": fix.title,
        "safety": fix.safety,
        "edits": [{**_place(edit.span), "text": edit.text} for edit in fix.edits],
        "device_bytes_after": fix.device_bytes_after,
        "saved_bytes": fix.saved_bytes,
        "fits": fix.fits,
    }
