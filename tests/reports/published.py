"""The formats against the schemas that their readers publish, which are fetched and not kept here.

    python -m tests.reports.published FOLDER        # a folder with the files of PUBLISHED

Reports of all examples, of hand-made runs and of hostile texts are rendered and validated: the weekly workflow
(.github/workflows/libraries.yml) fetches the schemas at the commits named there. ``test_machine_formats`` holds the
same formats in each run of the tests, to what these schemas ask in our own words. Needs jsonschema and xmlschema.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import xmlschema
from jsonschema.validators import validator_for

import memlint
from memlint.reports import junit, rdjson, sarif
from memlint.reports.report import Report
from tests.reports.conftest import make_run
from tests.reports.test_machine_formats import HOSTILE, of

EXAMPLES = Path(__file__).parents[2] / "examples"
PUBLISHED = {
    "sarif-schema-2.1.0.json": sarif.render,  # oasis-tcs/sarif-spec
    "DiagnosticResult.json": rdjson.render,  # reviewdog/reviewdog
    "junit-10.xsd": junit.render,  # jenkinsci/xunit-plugin
}


def validator(schema: Path) -> Callable[[str], list[str]]:
    """Rendered text -> what is wrong with it."""
    if schema.suffix == ".xsd":
        found = xmlschema.XMLSchema(str(schema))
        return lambda text: [str(error.reason) for error in found.iter_errors(text)]
    read = json.loads(schema.read_text(encoding="utf-8"))
    known = validator_for(read)(read)
    return lambda text: [f"{error.json_path}: {error.message}" for error in known.iter_errors(json.loads(text))]


def reports() -> Iterator[tuple[str, Report]]:
    yield "nothing", Report((), 0.0)
    yield "a run by hand", Report((make_run(),), 0.1)
    yield "a crash", Report((), 0.0, errors=(("a.yaml", "cannot be read"),), crashed=True)
    for text in HOSTILE:
        yield str(text.id), of(str(text.values[0]))
    for budget in ("1GB", "16GB", "80GB"):
        yield f"the examples with {budget}", memlint.check(str(EXAMPLES), isolated=True, budget=budget)


def main(folder: str) -> int:
    wrong = 0
    every = list(reports())
    for name, render in PUBLISHED.items():
        validate = validator(Path(folder, name))
        for title, report in every:
            errors = validate(render(report))
            wrong += bool(errors)
            for error in errors[:3]:
                print(f"{name}: {title}: {error}")
        print(f"{name}: {len(every)} reports, {sum(len(report.runs) for _, report in every)} runs")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
