"""A fix does what it says: its edits give the settings that it names, the peak that it promises, and nothing else."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import memlint
from memlint.dialects import registry
from memlint.facts.spec import NOTHING, Name
from memlint.fixes.edits import apply_edits
from memlint.plugin import Edit, Example, Fix, Rule, Run
from memlint.reports.report import RunReport
from memlint.tape.estimate import FITS
from tests.test_rules import CASES, EXAMPLES, check_example
from tests.test_spans import CONFIGS, SHELL_WAYS, Tree

pytestmark = pytest.mark.usefixtures("answers_kept")

# A rule's fix may edit the text itself, without a fact behind it: a name put right.
ABOUT_TEXT = ("MEM008", "MEM009", "MEM602")

# What is right as it is, has no estimate (a launcher's config, GRPO), or needs what its family has no key for.
NOTHING_TO_FIX = (
    "dit3d/config.py",
    "language_models/fsdp_accelerate.yaml",
    "language_models/grpo_trl.yaml",
    "language_models/run_clm_ddp.sh",
    "language_models/train_fsdp.sh",
    "uni3d_dp/uni3d+dp_after.yaml",
    "uni3d_dp/uni3d+dp_balanced.yaml",
    "uni3d_dp/uni3d+dp_ultra_low.yaml",
)

_COMMENT = re.compile(r"(?:^|\s)(#.*)$", re.MULTILINE)


@pytest.fixture
def promised(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Fix, dict[str, Any]]]:
    """Every fix that is made, with the facts that it is made of."""
    made: list[tuple[Fix, dict[str, Any]]] = []
    original = Run.fix

    def fix(self: Run, title: str, safety: str, changes: Mapping[Name, Any] = NOTHING, /, **more: Any) -> Fix:
        found = original(self, title, safety, changes, **more)
        made.append((found, {**changes, **more}))
        return found

    monkeypatch.setattr(Run, "fix", fix)
    return made


def facts_of(path: Path, run: str) -> RunReport:
    """The run again, judged by no rule that could slow it down."""
    report = memlint.check(str(path), isolated=True, select=["MEM003"])
    assert report.findings == ()
    return next(entry for entry in report.runs if entry.run == run)


def with_edits(edits: tuple[Edit, ...]) -> dict[Path, str]:
    """The original text of every file that the edits change, after changing it."""
    originals: dict[Path, str] = {}
    for path in dict.fromkeys(Path(edit.span.path) for edit in edits):
        before = path.read_text(encoding="utf-8")
        after = apply_edits(before, [edit for edit in edits if edit.span.path == str(path)])
        assert after != before
        assert _COMMENT.findall(after) == _COMMENT.findall(before), "a comment was lost"
        originals[path] = before
        path.write_text(after, encoding="utf-8")
    return originals


def with_edits_undone(edits: tuple[Edit, ...]) -> None:
    """Edits of one file that change something, and leave its comments as they were."""
    for path, text in with_edits(edits).items():
        path.write_text(text, encoding="utf-8")


def same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, (list, tuple)) and isinstance(found, (list, tuple)):
        return list(found) == list(wanted)
    return type(found) is type(wanted) and found == wanted


def assert_kept(run: RunReport, path: Path, fix: Fix, changes: dict[str, Any]) -> str:
    """Apply a fix, check again, and put the files back. The verdict with it, against the run's budget."""
    before = facts_of(path, run.run)
    originals = with_edits(fix.edits)
    try:
        after = facts_of(path, run.run)
    finally:
        for name, text in originals.items():
            name.write_text(text, encoding="utf-8")
    assert after.estimate is not None
    assert after.estimate.device_bytes == fix.device_bytes_after, fix.title
    for name, value in changes.items():
        assert same(after.facts[name].value, value), f"{fix.title}: {name} is {after.facts[name].value}"
    # What the config states besides stays: other facts change only where they are made of these.
    stated = {key.annotation.get("fact") for key in registry.dialect(run.family).keys}
    keys = {after.facts[name].key for name in changes} | {
        before.facts[name].key for name in changes if name in before.facts
    }
    for name, fact in after.facts.items():
        old = before.facts.get(name)
        if name in stated and name not in changes and not any(_belongs(fact.key, key) for key in keys):
            if old is None and not fact.line:
                continue  # a default that comes with a switch
            assert old is not None
            assert old.value == fact.value, f"{fix.title}: {fact.key} went from {old.value} to {fact.value}"
    return after.estimate.verdict(run.budget.size_bytes if run.budget is not None else None)


def _belongs(one: str, other: str) -> bool:
    return one == other or one.startswith(other + ".") or other.startswith(one + ".")


def check_fixes(report: Any, path: Path, promised: list[tuple[Fix, dict[str, Any]]]) -> int:
    made = dict(promised)
    kept: dict[tuple[Edit, ...], Fix] = {}
    for run in report.runs:
        for finding in run.findings:
            for fix in finding.fixes:
                if finding.code in ABOUT_TEXT or not fix.edits:
                    continue
                if fix.edits in kept:  # offered by two rules
                    assert kept[fix.edits].device_bytes_after == fix.device_bytes_after
                    continue
                kept[fix.edits] = fix
                if run.estimate is None:  # a fix of what has no figure promises none
                    assert (fix.device_bytes_after, fix.saved_bytes, fix.fits) == (None, None, None)
                    with_edits_undone(fix.edits)
                    continue
                assert fix.device_bytes_after is not None
                assert fix.saved_bytes == run.estimate.device_bytes - fix.device_bytes_after
                verdict = assert_kept(run, path, fix, made[fix])
                if run.budget is not None:
                    assert fix.fits == (verdict == FITS), f"{fix.title}: {verdict}"
    return len(kept)


@pytest.mark.parametrize("config", CONFIGS)
def test_fixes_of_the_examples(config: str, tmp_path: Path, promised: list[tuple[Fix, dict[str, Any]]]) -> None:
    shutil.copytree((EXAMPLES / config).parent, tmp_path / "config")
    path = tmp_path / "config" / Path(config).name
    report = memlint.check(str(path), isolated=True, budget="16GB")
    number = check_fixes(report, path, promised)
    assert number > 0 or config in NOTHING_TO_FIX, "only where nothing is found there is nothing to fix"


@pytest.mark.parametrize(
    ("rule", "example", "fires"), [case for case in CASES if case.values[2] and case.values[0].code not in ABOUT_TEXT]
)
def test_fixes_of_the_rules_examples(
    rule: type[Rule], example: Example, fires: bool, tmp_path: Path, promised: list[tuple[Fix, dict[str, Any]]]
) -> None:
    if example.overrides:
        pytest.fail("an example with overrides cannot be checked again from its file alone")
    findings, path = check_example(rule, example, tmp_path)
    offered = [fix for finding in findings for fix in finding.fixes if fix.edits]
    if not offered:
        return
    options = {"budget": example.budget} if example.budget else {}
    report = memlint.check(str(path), isolated=True, select=[rule.code], preview=True, **options)
    assert check_fixes(report, path, promised) == len(offered)


@pytest.mark.parametrize(("changes", "line"), SHELL_WAYS)
def test_fixes_of_an_option_whose_value_comes_from_elsewhere(
    changes: tuple[tuple[str, str], ...], line: str, tmp_path: Path, promised: list[tuple[Fix, dict[str, Any]]]
) -> None:
    tree = Tree("lag_mode", tmp_path)
    tree.edit("train_lag_mode.sh", *changes)
    path = tree.folder / "train_lag_mode.sh"
    report = memlint.check(str(path), isolated=True, budget="16GB", select=["MEM101", "MEM201", "MEM213"])
    assert check_fixes(report, path, promised) == 3  # the loop's is the product's


def test_fixes_of_values_in_other_files_and_behind_interpolations(
    tmp_path: Path, promised: list[tuple[Fix, dict[str, Any]]]
) -> None:
    tree = Tree("uni3d_dp", tmp_path)
    tree.write("size/large.yaml", "# @package _global_\ndataloader:\n  batch_size: 256  # too many\n")
    tree.edit(
        "uni3d+dp.yaml",
        ("  - task: adroit_hammer\n", "  - task: adroit_hammer\n  - _self_\n  - size: large\n"),
        ("    num_group: 64", "    num_group: ${groups}"),
        ("\nhorizon: 16\n", "\ngroups: 64  # tokens\nhorizon: 16\n"),
    )
    path = tree.folder / "uni3d+dp.yaml"
    report = memlint.check(str(path), isolated=True, budget="16GB", select=["MEM101", "MEM201"])
    edited = {edit.span.path for finding in report.findings for fix in finding.fixes for edit in fix.edits}
    assert {Path(name).name for name in edited} == {"large.yaml", "uni3d+dp.yaml"}
    assert check_fixes(report, path, promised) == 4


def test_a_fix_of_the_frames_changes_every_number_that_states_them(
    tmp_path: Path, promised: list[tuple[Fix, dict[str, Any]]]
) -> None:
    tree = Tree("dit3d", tmp_path)
    path = tree.folder / "config_before.py"
    report = memlint.check(str(path), isolated=True, select=["MEM201"])
    [fix] = [fix for finding in report.findings for fix in finding.fixes if "DIT_VIDEO_SIZE" in fix.title]
    assert len(fix.edits) == 3
    with_edits(fix.edits)
    after = memlint.check(str(path), isolated=True, select=["MEM801"])
    assert after.findings == (), "the shapes contradict each other"
