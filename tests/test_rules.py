"""Every rule against its own examples: the invalid ones are found at the right place, the valid ones are left alone."""

from __future__ import annotations

import shutil
from importlib import import_module
from pathlib import Path

import pytest

import memlint
from memlint import rules_registry
from memlint.plugin import Example, Finding, Rule
from tests.text import selected

EXAMPLES = Path(__file__).parent.parent / "examples"
HEADINGS = ("What it does", "Why it matters", "Example", "Use instead", "Fix safety", "References")
# Made by check itself, not by a rule's `check`: their tests are tests/test_check.py and tests/test_suppress.py.
ELSEWHERE = ("MEM001", "MEM002", "MEM005")
# Needs files beside the config: tests/profiles/test_recorded_runs.py.
ELSEWHERE += ("MEM010",)


def _rule(info: rules_registry.RuleInfo) -> type[Rule]:
    module = import_module(info.module)
    found = [
        item
        for item in vars(module).values()
        if isinstance(item, type) and issubclass(item, Rule) and item.__module__ == info.module
    ]
    assert len(found) == 1, f"{info.module} must hold exactly one rule"
    return found[0]


RULES = [(info, _rule(info)) for info in rules_registry.built_in()]
CASES = [
    pytest.param(
        rule, example, fires, id=f"{rule.code} {'fires on' if fires else 'leaves alone'} {example.path} {number}"
    )
    for _, rule in RULES
    for fires, examples in ((True, rule.invalid), (False, rule.valid))
    for number, example in enumerate(examples)
]


def check_example(rule: type[Rule], example: Example, folder: Path) -> tuple[list[Finding], Path]:
    """Write the example into a folder of its own and check it with this rule alone."""
    if example.text:
        path = folder / example.path
        path.write_text(example.text, encoding="utf-8")
    else:
        source = EXAMPLES / example.path
        shutil.copytree(source.parent, folder / source.parent.name)
        path = folder / example.path
    text = path.read_text(encoding="utf-8")
    for old, new in example.replace:
        assert old in text, f"{example.path} does not hold {old!r}"
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")
    options = {
        "select": [rule.code],
        "preview": True,
        "isolated": True,
        "override": list(example.overrides),
    }
    if example.budget:
        options["budget"] = example.budget
    if example.host_budget:
        options["host_budget"] = example.host_budget
    report = memlint.check(str(path), **options)
    assert not report.crashed, [finding.message for finding in report.findings]
    return [finding for finding in report.findings if finding.code == rule.code], path


@pytest.mark.parametrize(("rule", "example", "fires"), CASES)
def test_example(rule: type[Rule], example: Example, fires: bool, tmp_path: Path) -> None:
    findings, _ = check_example(rule, example, tmp_path)
    if not fires:
        assert not findings, findings[0].message
        return
    assert findings, "nothing was found"
    if example.expect:
        assert selected(findings[0].span) == example.expect
    assert findings[0].severity == rule.severity or rule.code == "MEM201"


@pytest.mark.parametrize(("info", "rule"), RULES, ids=[info.code for info, _ in RULES])
def test_a_rule_is_what_its_file_says(info: rules_registry.RuleInfo, rule: type[Rule]) -> None:
    assert (rule.code, rule.name) == (info.code, info.name)
    assert rule.severity in ("error", "warning", "info")


@pytest.mark.parametrize(("info", "rule"), RULES, ids=[info.code for info, _ in RULES])
def test_a_rule_has_a_manual_page_and_examples(info: rules_registry.RuleInfo, rule: type[Rule]) -> None:
    page = rule.__doc__ or ""
    assert page.startswith(f"{rule.name}: ")
    assert [line.strip()[3:] for line in page.splitlines() if line.strip().startswith("## ")] == list(HEADINGS)
    if rule.code not in ELSEWHERE:
        assert rule.invalid, "a rule needs an example on which it fires"
        assert rule.valid, "a rule needs an example which it leaves alone"
