"""JSON lines: what the JSON report has under ``files``, a run on each line, and its summary on the last."""

from __future__ import annotations

from memlint.reports.json import as_dict
from memlint.reports.report import Report


def render(report: Report) -> str:
    import json

    whole = as_dict(report)
    entries = [{"type": "run", **entry} for entry in whole["files"]]
    summary = {"type": "summary", "version": whole["version"], "tool": whole["tool"], **whole["summary"]}
    text = "".join(json.dumps(entry, ensure_ascii=True) + "\n" for entry in [*entries, summary])
    return text.replace("\x7f", "\\u007f")
