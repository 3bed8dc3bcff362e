"""Findings that are known: a baseline hides exactly what was there, and comments are written where findings are."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memlint import baseline
from memlint.cli.main import main
from memlint.documents.node import Span
from memlint.plugin import SEVERITIES, Finding
from memlint.reports.report import Report, RunReport

pytestmark = pytest.mark.usefixtures("answers_kept")

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def _no_outer_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("MEMLINT_CONFIG", raising=False)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of examples, which is the working folder."""
    made = tmp_path / "tree"
    shutil.copytree(EXAMPLES / "language_models", made / "configs")
    monkeypatch.chdir(made)
    return made


def memlint(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(main, ["check", *words])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    return done.exit_code, done.stdout, done.stderr


def findings(*words: str) -> list[dict[str, Any]]:
    data = json.loads(memlint("--output-format", "json", *words)[1])
    return [finding for file in data["files"] for finding in file["findings"]]


# -- baselines


def test_a_baseline_hides_exactly_what_was_there(folder: Path) -> None:
    before = findings("--budget", "24GB")
    assert len(before) > 8
    code, said, note = memlint("--budget", "24GB", "--write-baseline", "known.json")
    assert (code, said) == (0, "")
    assert f"{len(before)} findings written to known.json" in note
    assert findings("--budget", "24GB", "--baseline", "known.json") == []
    code, _, note = memlint("--budget", "24GB", "--baseline", "known.json")
    assert code == 0
    assert f"{len(before)} findings known (known.json)" in note


def test_moved_lines_do_not_matter(folder: Path) -> None:
    memlint("--budget", "24GB", "--write-baseline", "known.json")
    for path in (folder / "configs").glob("*.y*ml"):
        path.write_text("# moved\n" * 7 + path.read_text())
    assert findings("--budget", "24GB", "--baseline", "known.json") == []


def test_what_is_new_is_told_and_what_is_gone_is_counted(folder: Path) -> None:
    memlint("--write-baseline", "known.json")
    sft = folder / "configs" / "sft_trl.yaml"
    shutil.copy(sft, folder / "configs" / "new.yaml")
    told = findings("--baseline", "known.json")
    assert {finding["path"] for finding in told} == {"configs/new.yaml"}
    sft.write_text(sft.read_text().replace("gradient_checkpointing: false", "gradient_checkpointing: true"))
    _, _, note = memlint("configs/sft_trl.yaml", "--baseline", "known.json", "-v")
    assert "of known.json are there no more" in note


@pytest.mark.parametrize(
    ("was", "now", "told"),
    [("warning", "warning", 0), ("error", "warning", 0), ("warning", "error", 1), ("info", "warning", 1)],
)
def test_what_becomes_graver_is_told(was: str, now: str, told: int, tmp_path: Path) -> None:
    path = str(tmp_path / "known.json")
    Path(path).write_text(baseline.render(report_of([("MEM201", "a", was, 1)]), path))
    held = baseline.without(report_of([("MEM201", "a", now, 1)]), baseline.read(path), path)
    assert len(held.report.findings) == told
    assert held.gone == told


def test_it_holds_from_any_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memlint("--write-baseline", "known.json")
    monkeypatch.chdir(folder / "configs")
    assert findings("--baseline", "../known.json") == []
    assert findings(str(folder / "configs"), "--baseline", "../known.json") == []


def test_the_settings_of_a_tree_may_name_one_of_the_tree(folder: Path) -> None:
    memlint("--write-baseline", "known.json")
    (folder / "memlint.toml").write_text('baseline = "known.json"\n')
    (folder / ".git").mkdir()
    assert findings() == []
    (folder / "known.json").rename(folder.parent / "known.json")
    (folder / "memlint.toml").write_text('baseline = "../known.json"\n')
    code, _, note = memlint()
    assert code == 2
    assert "which is not in the tree" in note


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "--write-baseline makes it"),
        ("x", "is not JSON"),
        ("[]", "is no baseline of version 1"),
        ('{"version": 2, "findings": []}', "is no baseline of version 1"),
        ('{"version": 1, "findings": [{}]}', "entry 1 is damaged"),
        (
            '{"version": 1, "findings": [{"code": [], "path": "a", "key": "b", "severity": "info", "count": 1}]}',
            "entry 1 is damaged",
        ),
        (
            '{"version": 1, "findings": [{"code": "a", "path": "a", "key": "b", "severity": "info", "count": 0}]}',
            "entry 1 is damaged",
        ),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_a_file_that_is_none_is_said(text: str | None, said: str, folder: Path) -> None:
    if text is not None:
        (folder / "known.json").write_text(text)
    code, out, note = memlint("--baseline", "known.json")
    assert (code, out) == (2, "")
    assert said in note


def report_of(found: list[tuple[str, str, str, int]]) -> Report:
    made = tuple(
        Finding(code, "x", severity, "m", Span(path, line, 1, line, 2), key=path)
        for code, path, severity, line in found
    )
    return Report((RunReport("a", "train", "f", "m", None, "UNKNOWN", None, made),), 0.0)


FOUND = st.lists(
    st.tuples(
        st.sampled_from(["MEM101", "MEM201", "MEM001"]),
        st.sampled_from(["a", "b"]),
        st.sampled_from(SEVERITIES),
        st.integers(1, 9),
    ),
    max_size=8,
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(old=FOUND, new=FOUND, shift=st.integers(0, 5))
def test_laws(
    old: list[tuple[str, str, str, int]], new: list[tuple[str, str, str, int]], shift: int, tmp_path: Path
) -> None:
    """Itself is hidden whole; more findings hide no fewer; lines mean nothing; what cannot be hidden is not."""
    path = str(tmp_path / "known.json")
    Path(path).write_text(baseline.render(report_of(old), path))
    known = baseline.read(path)
    moved = [(code, name, severity, line + shift) for code, name, severity, line in old]
    held = baseline.without(report_of(moved), known, path)
    assert all(finding.code == "MEM001" for finding in held.report.findings)
    assert held.hidden == sum(code != "MEM001" for code, *_ in old)
    more = baseline.without(report_of([*moved, *new]), known, path)
    assert len(more.report.findings) >= len(new)
    assert more.hidden == held.hidden


# -- comments


def plain_texts(folder: Path) -> dict[str, Any]:
    return {path.name: yaml.safe_load(path.read_bytes()) for path in folder.glob("*.y*ml")}


def test_every_finding_that_can_is_silenced_and_no_value_changes(folder: Path) -> None:
    values = plain_texts(folder / "configs")
    before = findings("--budget", "24GB")
    code, said, note = memlint("--budget", "24GB", "--add-ignore", "known since spring")
    assert (code, said) == (0, "")
    assert f"{len(before)} findings silenced" in note
    assert findings("--budget", "24GB") == []
    assert plain_texts(folder / "configs") == values
    assert findings("--budget", "24GB", "--no-ignores") != []
    texts = {path: path.read_bytes() for path in (folder / "configs").iterdir()}
    memlint("--budget", "24GB", "--add-ignore", "known since spring")
    assert {path: path.read_bytes() for path in (folder / "configs").iterdir()} == texts


def only_comments(before: bytes, after: bytes) -> bool:
    """Whether each line is as it was, or as it was with a comment behind it, or a new line of a comment."""
    old = before.splitlines(keepends=True)
    for line in after.splitlines(keepends=True):
        said = old[0].rstrip(b"\r\n") if old else b""
        if old and (line == old[0] or (line.startswith(said) and b"# memlint: " in line[len(said) :])):
            old.pop(0)
        elif not line.lstrip().startswith(b"# memlint: "):
            return False
    return not old


@pytest.mark.parametrize(
    "change", [bytes, lambda data: b"\xef\xbb\xbf" + data, lambda data: data.replace(b"\n", b"\r\n")]
)
def test_only_comments_are_added_byte_for_byte(change: Callable[[bytes], bytes], folder: Path) -> None:
    paths = [path for path in (folder / "configs").iterdir() if path.suffix in (".yml", ".yaml", ".toml")]
    for path in paths:
        path.write_bytes(change(path.read_bytes()))
    old = {path: path.read_bytes() for path in paths}
    memlint("--add-ignore", "x", "--budget", "16GB")
    assert all(only_comments(old[path], path.read_bytes()) for path in paths)
    assert any(old[path] != path.read_bytes() for path in paths)


def test_a_script_stays_a_program(folder: Path) -> None:
    script = folder / "configs" / "run_clm.sh"
    script.chmod(0o755)
    memlint(str(script), "--add-ignore", "x")
    assert os.access(script, os.X_OK)
    assert "\n# memlint: ignore[" in script.read_text()


HEAD = "base_model: NousResearch/Meta-Llama-3.1-8B\nmicro_batch_size: 8\ngradient_checkpointing: false\nbf16: true\n"
TAIL = "sequence_len: 4096\ndatasets:\n  - path: a\nadapter: lora\nlora_r: 8\nlora_target_linear: true\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            HEAD + TAIL, "gradient_checkpointing: false  # memlint: ignore[MEM202] x", id="at the end of the line"
        ),
        pytest.param(
            HEAD.replace("false", "false  # tokens") + TAIL,
            "gradient_checkpointing: false  # tokens  # memlint: ignore[MEM202] x",
            id="behind another comment",
        ),
        pytest.param(
            HEAD.replace("false", "false  # memlint: ignore[MEM601] old") + TAIL,
            "gradient_checkpointing: false  # memlint: ignore[MEM601, MEM202] old",
            id="in the brackets of a comment that is there",
        ),
    ],
)
def test_a_comment_stands_where_the_finding_is(text: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "a.yml"
    path.write_text(text)
    memlint(str(path), "--select", "MEM202", "--add-ignore", "x")
    assert expected in path.read_text().splitlines()
    assert findings(str(path), "--select", "MEM202") == []


def test_a_text_of_several_lines_gets_its_comment_above(tmp_path: Path) -> None:
    path = tmp_path / "a.sh"
    path.write_text("#!/bin/bash\n" + (EXAMPLES / "language_models" / "run_clm.sh").read_text().partition("\n")[2])
    assert "\\\n" in path.read_text()
    memlint(str(path), "--add-ignore", "x")
    assert findings(str(path)) == []
    assert path.read_text().startswith("#!/bin/bash\n")


def test_what_has_no_comments_is_told_and_counts(folder: Path) -> None:
    data = yaml.safe_load(HEAD + TAIL)
    path = folder / "a.json"
    path.write_text(json.dumps(data))
    code, _, note = memlint("a.json", "--add-ignore", "x", "--budget", "8GB", "--fail-on", "warning")
    assert code == 1
    assert "JSON has no comments: per-file-ignores" in note
    assert json.loads(path.read_text()) == data


@pytest.mark.parametrize("reason", ["", " ", "a\nb", "a\x1b[31m"])
def test_a_reason_is_one_line_of_text(reason: str, folder: Path) -> None:
    before = (folder / "configs" / "lora_axolotl.yml").read_bytes()
    code = memlint("configs", "--add-ignore", reason)[0]
    assert (code == 2) == bool(reason)
    assert (folder / "configs" / "lora_axolotl.yml").read_bytes() == before


def test_standard_input_has_no_place_for_comments() -> None:
    done = CliRunner().invoke(main, ["check", "-", "--add-ignore", "x"], input=HEAD)
    assert done.exit_code == 2
    assert "writes into files" in done.output


def test_nothing_is_written_through_a_link(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.yml"
    shutil.copy(folder / "configs" / "lora_axolotl.yml", outside)
    before = outside.read_bytes()
    (folder / "link.yml").symlink_to(outside)
    code, _, note = memlint("link.yml", "--add-ignore", "x")
    assert code == 2
    assert "is a symbolic link" in note
    assert outside.read_bytes() == before
