"""Which rules exist: file names as the manifest, and plugins of other distributions."""

from __future__ import annotations

import sys
from pathlib import Path

import memlint.rules
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memlint import rules_registry
from memlint.check import check_text
from memlint.rules_registry import RuleError, RuleInfo, UnknownRule, built_in, find, known, load, reason, require
from memlint.settings import Settings, SettingsError
from tests import demo_family

RULE = '''
from memlint.plugin import Rule

class {class_name}(Rule):
    """{name}: made for a test."""

    code = "{code}"
    name = "{name}"
    needs_estimate = False

    def check(self, run):
        for fault in run.faults:
            yield self.finding(run, "seen by a plugin", span=fault.span)
'''


def rule_text(code: str, name: str, class_name: str = "Mine") -> str:
    return RULE.format(code=code, name=name, class_name=class_name)


def test_the_manifest_is_the_folder() -> None:
    folder = Path(memlint.rules.__file__).parent
    files = sorted(path.stem for path in folder.glob("mem*_*.py"))
    assert [info.module.rpartition(".")[2] for info in built_in()] == files
    assert all(info.rule is None for info in built_in())


def test_listing_rules_imports_none() -> None:
    import subprocess

    code = (
        "import sys; from memlint.rules_registry import built_in; assert built_in();"
        "assert not [name for name in sys.modules if name.startswith('memlint.rules.')]"
    )
    root = Path(memlint.__file__).parents[1]
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root)


@pytest.mark.parametrize("info", built_in(), ids=lambda info: info.code)
def test_every_rule_loads_under_both_of_its_names(info: RuleInfo) -> None:
    rule = load(info)
    assert (rule.code, rule.name) == (info.code, info.name)
    assert find(info.code.lower(), built_in()) == find(info.name, built_in()) == info


@pytest.fixture
def rules_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is looked at as if it were a second half of ``rules/``."""
    monkeypatch.setattr(memlint.rules, "__path__", [*memlint.rules.__path__, str(tmp_path)])
    monkeypatch.setattr(rules_registry, "_BUILT_IN", None)
    for name in [name for name in sys.modules if name.startswith("memlint.rules.mem97")]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


def test_a_rule_is_a_file(rules_folder: Path) -> None:
    (rules_folder / "mem970_demo_rule.py").write_text(rule_text("MEM970", "demo-rule"))
    (rules_folder / "notes.py").write_text("")
    info = find("demo-rule", built_in())
    assert info.code == "MEM970"
    assert load(info).name == "demo-rule"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(rule_text("MEM972", "other"), "its file name says MEM971 demo-rule", id="another code"),
        pytest.param("", "exactly one rule, not 0", id="no rule"),
        pytest.param(
            rule_text("MEM971", "demo-rule") + rule_text("MEM971", "demo-rule", "Two"), "exactly one", id="two rules"
        ),
    ],
)
def test_a_rule_file_must_be_one_rule_of_its_name(rules_folder: Path, text: str, message: str) -> None:
    (rules_folder / "mem971_demo_rule.py").write_text(text)
    sys.modules.pop("memlint.rules.mem971_demo_rule", None)
    with pytest.raises(RuleError, match=message):
        load(find("MEM971", built_in()))


def test_one_code_in_two_files_is_an_error(rules_folder: Path) -> None:
    (rules_folder / "mem003_again.py").write_text(rule_text("MEM003", "again"))
    with pytest.raises(RuleError, match="MEM003 is claimed twice"):
        built_in()


# -- plugins


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed distribution with entry points of our group; returns the folder of its modules."""
    info = tmp_path / "demo_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: demo-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[memlint.rules]\nmodule = demo_plugin_rules\nclass = demo_plugin_rules:Mine\n"
        "list = demo_plugin_rules:RULES\nbroken = demo_plugin_missing\nnothing = demo_plugin_empty\n"
    )
    (tmp_path / "demo_plugin_rules.py").write_text(rule_text("XY100", "my-rule") + "\nRULES = [Mine]\n")
    (tmp_path / "demo_plugin_empty.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(rules_registry, "site_folders", lambda: [str(tmp_path)])
    for name in ("demo_plugin_rules", "demo_plugin_empty"):
        sys.modules.pop(name, None)
    return tmp_path


DOUBLED = "demo:\n  batch: 1\n  batch: 1\n"


@pytest.mark.parametrize("name", ["module", "class", "list"])
def test_a_plugin_brings_its_rules(plugin: Path, name: str) -> None:
    info = find("XY100", known((name,)))
    assert (info.name, info.distribution) == ("my-rule", "demo-plugin")
    assert load(info).code == "XY100"


def test_a_plugin_that_is_on_the_path_and_not_installed_is_none(plugin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.syspath_prepend(str(plugin))
    with pytest.raises(RuleError, match="plugin 'module' is not installed"):
        known(("module",))
    assert "demo_plugin_rules" not in sys.modules


def test_a_plugin_is_not_loaded_unless_it_is_named(plugin: Path) -> None:
    with pytest.raises(UnknownRule):
        find("XY100", known())
    assert "demo_plugin_rules" not in sys.modules


def test_rules_of_a_plugin_are_selected_suppressed_and_re_levelled_like_ours(
    plugin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo_family.install(monkeypatch)

    def codes(text: str = DOUBLED, **options: object) -> list[tuple[str, str]]:
        report = check_text("x.yaml", text, Settings(plugins=("module",), **options))  # type: ignore[arg-type]
        return [(finding.code, finding.severity) for finding in report.findings]

    assert codes() == [("MEM006", "warning"), ("XY100", "warning")]
    assert codes(select=("XY",)) == [("XY100", "warning")]
    assert codes(ignore=("my-rule",)) == [("MEM006", "warning")]
    assert codes(select=("XY1",), rules={"my-rule": {"severity": "error"}}) == [("XY100", "error")]
    assert codes("demo:\n  batch: 1\n  batch: 1  # memlint: ignore[MEM006, my-rule] both\n") == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param("absent", "plugin 'absent' is not installed", id="not installed"),
        pytest.param("broken", "plugin 'broken' cannot be loaded: ModuleNotFoundError", id="cannot be imported"),
        pytest.param("nothing", "plugin 'nothing' of demo-plugin holds no rule", id="without rules"),
    ],
)
def test_a_plugin_that_does_not_work_is_an_error_of_the_call(plugin: Path, name: str, message: str) -> None:
    with pytest.raises(SettingsError) as raised:
        check_text("x.yaml", DOUBLED, Settings(plugins=(name,)))
    assert message in str(raised.value)


@pytest.mark.parametrize(("code", "name"), [("MEM006", "mine"), ("XY100", "duplicate-key")])
def test_a_clash_names_both_distributions(plugin: Path, code: str, name: str) -> None:
    (plugin / "demo_plugin_rules.py").write_text(rule_text(code, name))
    with pytest.raises(RuleError) as raised:
        known(("module",))
    assert "of demo-plugin clashes with MEM006 (duplicate-key) of memlint" in str(raised.value)


# -- selectors

INFOS = (RuleInfo("MEM001", "internal-error", ""), RuleInfo("MEM201", "token-explosion", ""), RuleInfo("XY1", "x", ""))
SELECTORS = st.lists(st.sampled_from(["ALL", "MEM", "MEM2", "MEM201", "token-explosion", "XY", "XY1"]), max_size=3)


@given(SELECTORS, SELECTORS)
def test_laws_of_selection(select: list[str], ignore: list[str]) -> None:
    require(select + ignore, INFOS)
    for info in INFOS:
        on, why = reason(select, ignore, info)
        assert why
        if info.code == "MEM001":
            assert on
            continue
        # Naming a rule exactly decides, and ignoring it wins.
        exact = {info.code, info.name}
        if exact & set(ignore):
            assert not on
        elif exact & set(select):
            assert on
        # Without selectors that touch it, a rule is on by default and off beside others.
        if not ignore and not select:
            assert on
        assert reason(select[::-1], ignore[::-1], info)[0] == on


@pytest.mark.parametrize("selector", ["", "MEM9", "2", "MEM2*", "token", "ALLES"])
def test_unknown_selectors(selector: str) -> None:
    with pytest.raises(UnknownRule):
        require((selector,), INFOS)
