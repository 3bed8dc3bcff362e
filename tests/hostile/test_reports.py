"""Reports of what strangers wrote: nothing that steers a reader, and no more of it than a reader takes in."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memlint.check import check_paths
from memlint.documents.node import Span
from memlint.plugin import ERROR, SAFE, Finding, Fix
from memlint.reports import concise, full, github, gitlab, json_lines, junit, markdown, rdjson, sarif
from memlint.reports import json as json_report
from memlint.reports.full import Style
from memlint.reports.report import (
    MAX_ENTRIES,
    MAX_OF_A_KIND,
    MAX_TEXT,
    Budget,
    Report,
    RunReport,
    StatedFact,
    UnresolvedValue,
    bounded,
)
from memlint.reports.text import clean, source_lines
from memlint.settings import Settings
from memlint.tape.estimate import Component, Estimate, Interval, Part

PLACE = Interval(10, 10)


def made_of(text: str, path: str = "") -> Report:
    """A report with one text wherever foreign text may stand; ``path``: another one for paths."""
    path = path or text or "x"
    estimate = Estimate(
        basis="static",
        parameters=1,
        trainable_parameters=1,
        allocated_bytes=10,
        reserved_bytes=10,
        device_bytes=10,
        saved_bytes=1,
        peak_phase=text,
        phases={"forward": 10},
        components=(
            Component("activations", 5, (Part(text, 4, text, ((text, "fact"),), text[:100]), Part("b", 1))),
            Component(text, 5),
        ),
        allocated_interval=PLACE,
        reserved_interval=PLACE,
        device_interval=PLACE,
        assumptions=((text, text, text),),
    )
    span = Span(path, 1, 1, 1, 3)
    finding = Finding(
        "MEM101",
        "name",
        ERROR,
        text,
        span,
        key=text,
        related=((Span(path + "2", 1, 1, 1, 2), text), (span, text)),
        fixes=(Fix(text, SAFE, ()),),
        notes=(text,),
    )
    run = RunReport(
        path=path,
        run=text,
        family=text[:100],
        model_name=text,
        estimate=estimate,
        verdict="OOM",
        budget=Budget(5, text),
        findings=(finding,),
        unresolved=(UnresolvedValue(text, 1, text, path),),
        facts={"fact": StatedFact(text, text, 1, path)},
        sources={path: text},
    )
    return Report((bounded(run),), 0.0)


FORMATS: dict[str, Callable[[Report], str]] = {
    "full": lambda report: full.render(report, Style(verbose=True)),
    "full in Actions": lambda report: full.render(report, Style(verbose=True, actions=True)),
    "concise": lambda report: concise.render(report),
    "concise in Actions": lambda report: concise.render(report, Style(actions=True)),
    "github": lambda report: github.render(report, {}),
    "summary": github.summary,
    "json": json_report.render,
    "JSON lines": json_lines.render,
    "SARIF": sarif.render,
    "GitLab": gitlab.render,
    "JUnit": junit.render,
    "rdjson": rdjson.render,
    "Markdown": markdown.render,
}
UNSEEN = [
    pytest.param("\x1b[2J\x1b]0;x\x07", id="escapes of a terminal"),
    pytest.param("\x9b31m\x7f\x00\r", id="other controls"),
    pytest.param("\u202ea\u2066b\u200f\u061c", id="bidirectional marks"),
    pytest.param("a\x85::error::b\u2028::error::c\u2029d", id="line breaks that are no newlines"),
    pytest.param("\U000e0041\U000e0001\ue000\U000e01ef", id="tags"),
    pytest.param("a\u200bb\u2060c\ufeffd\u200de\u00adf\ufe0fg\u3164h\u180ei\u2063", id="what has no width"),
    pytest.param("\ud800\udcff", id="surrogates"),
    pytest.param("\n::error::a\r::error::b\r\n\t::error::c", id="commands on lines of their own"),
    pytest.param("::error::a\n  ::stop-commands::b", id="commands at the start"),
    pytest.param("##[error]a ##vso[task.setvariable variable=x]y", id="commands of the older kind"),
    pytest.param("<img src=x onerror=alert(1)>|`x`|[a](javascript:x) www.x.example", id="HTML and Markdown"),
]


def harmless(shown: str, name: str) -> None:
    for char in shown:
        kind = unicodedata.category(char)
        assert char == "\n" or kind not in ("Cc", "Cs", "Zl", "Zp"), (name, ascii(char))
        assert kind != "Cf" or 0x600 <= ord(char) < 0x900 or 0x110BD <= ord(char) < 0x14000, (name, ascii(char))
    for line in re.split("[\n\r]", shown):
        if name in ("full in Actions", "concise in Actions", "github"):
            assert not line.lstrip().startswith("::") or re.match(r"::(error|warning|notice) (file|title)=", line), line
            assert not re.search(r"##(vso)?\[", line)
    if name in ("summary", "Markdown"):
        body = re.sub(r"(?m)^(### memlint|\|[-:|]+\|)$", "", shown)
        assert not re.search(r"[<>`\[\]]|www\.", body)


@pytest.mark.parametrize("text", UNSEEN)
@pytest.mark.parametrize("name", FORMATS)
def test_what_would_steer_a_reader_is_written_out(text: str, name: str) -> None:
    harmless(FORMATS[name](made_of(text)), name)


@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=30) | st.text(alphabet=":#[]\n\r vso\u2028\x85<|`", max_size=30))
def test_no_text_steers_a_reader_of_any_format(text: str) -> None:
    report = made_of(text)
    for name, render in FORMATS.items():
        harmless(render(report), name)


def test_json_says_what_it_was() -> None:
    text = "a\x7f\u202e\U000e0041\ud800"
    assert json.loads(json_report.render(made_of(text)))["files"][0]["findings"][0]["message"] == text


def test_clean_leaves_alone_what_can_be_seen() -> None:
    for text in ("abc \\ ", "\u540d\u524d", "caf\u00e9", "\U0001f40d", "\u0627\u0644\u0639", "\ue000"):
        assert clean(text) == text
    assert clean("a\tb") == "a b"
    assert clean("\u202e\U000e0041\x1b") == "\\u202e\\U000e0041\\x1b"


# -- size


def test_a_long_text_is_cut_in_every_format() -> None:
    report = made_of("x" * 1_000_000, "a.yaml")
    for name, render in FORMATS.items():
        assert len(render(report)) < 5_000 + 20 * MAX_TEXT, name


def test_long_lists_are_cut_with_a_word_of_the_rest() -> None:
    run = made_of("x").runs[0]
    finding = run.findings[0]
    assert run.estimate is not None
    parts = tuple(Part(f"p{number}", 1 + number % 7) for number in range(50_000))
    whole = sum(part.size_bytes for part in parts)
    component = Component("activations", whole, parts)
    run = bounded(
        run._replace(
            findings=(*[finding] * 50_000, finding._replace(code="MEM102")),
            unresolved=run.unresolved * 50_000,
            estimate=run.estimate._replace(components=(component,), assumptions=run.estimate.assumptions * 50_000),
        )
    )
    assert run.estimate is not None
    assert len(run.findings) == MAX_OF_A_KIND + 1
    assert run.findings[MAX_OF_A_KIND - 1].notes[-1] == "49,800 more findings of MEM101 in this file are left out"
    assert run.findings[-1].code == "MEM102"
    assert len(run.unresolved) == len(run.estimate.assumptions) == MAX_ENTRIES
    kept = run.estimate.components[0].parts
    assert (len(kept), kept[-1].name) == (MAX_ENTRIES + 1, "49000 more")
    assert sum(part.size_bytes for part in kept) == whole


def test_an_ordinary_run_is_reported_as_it_is() -> None:
    run = made_of("an ordinary text").runs[0]
    assert bounded(run) == run


def test_a_long_line_is_only_looked_at_where_it_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = 0

    def counting(text: str) -> str:
        nonlocal looked
        looked += len(text)
        return text

    report = made_of("x")
    run = report.runs[0]
    finding = run.findings[0]._replace(related=(), span=Span("x", 1, 400_000, 1, 600_000))
    run = run._replace(findings=(finding,) * 50, sources={"x": "x" * 1_000_000})
    monkeypatch.setattr(full, "clean", counting)
    source_lines.cache_clear()
    full.render(Report((run,), 0.0))
    assert looked < 50 * 1_000
    assert source_lines.cache_info().misses == 1, "and a file is cut into lines once"


def test_hostile_names_and_values_of_files_are_checked_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same as above from one end to the other: file names, keys, values, comments."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".git").mkdir()
    payload = "\u202e\x85\u2028\x7f ##[error]x \U000e0041\u200b"
    config = "model_name_or_path: gpt2\noutput_dir: x\nper_device_train_batch_size: 4\nmax_length: 128\n"
    names = (
        "a\nb.yaml",
        "::error::x.yaml",
        "\x1b[31m.yaml",
        "a\u202eb.yaml",
        "\r\n::warning::x.yaml",
        "##[error]x.yaml",
    )
    for name in names:
        (tmp_path / name).write_text("a: [\n")
    values = (config.replace("gpt2", f'"{payload}"'), config + f'optim: "{payload}"\n"{payload}": 1\n"{payload}": 2\n')
    for number, text in enumerate(values):
        (tmp_path / f"v{number}.yaml").write_text(text.encode("unicode_escape").decode().replace("\\n", "\n"))
        (tmp_path / f"w{number}.yaml").write_text(text)
    report = check_paths([*names, "."], Settings(budget="1GB"))
    assert len(report.findings) > 8
    for name, render in FORMATS.items():
        harmless(render(report), name)
