"""Nothing of a linted tree is imported, however memlint is started and wherever the tree lies on the path."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from memlint.trust import import_nothing_of, tree_of
from tests.hostile.test_settings import CONFIG

ROOT = Path(__file__).parents[2]
SCRIPT = os.path.join(os.path.dirname(sys.executable), "memlint")
# Modules that a check imports, of Python's library and of other packages; beside a rule of nobody's.
TRAPS = ("click", "difflib", "evil", "gc", "json", "signal", "sysconfig", "tomllib", "typing", "yaml")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    (tree / ".git").mkdir(parents=True)
    (tree / "sub").mkdir()
    (tree / "sub" / "t.yaml").write_text(CONFIG)
    (tree / "memlint.toml").write_text('budget = "80GB"\n')
    for name in TRAPS:
        (tree / f"{name}.py").write_text(f"open({str(tmp_path / 'CANARY')!r}, 'a').write('{name} ')\n")
    info = tree / "evil-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[memlint.rules]\nevil = evil\n")
    (tmp_path / "own.toml").write_text('plugins = ["evil"]\n')
    return tree


STARTS = [
    pytest.param([sys.executable, "-m", "memlint"], None, id="python -m memlint"),
    pytest.param([SCRIPT], ".", id="the current folder on the path"),
    pytest.param([SCRIPT], "{tree}", id="the tree on the path"),
    pytest.param([SCRIPT], "{tree}/sub/..", id="the tree on the path in other words"),
    pytest.param([sys.executable, "-m", "memlint"], ".", id="both"),
]


def started(
    start: list[str], path: str | None, tree: Path, *arguments: str, cwd: Path
) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(tree.parent / "home")}
    if path is not None:
        environment["PYTHONPATH"] = path.format(tree=tree)
    return subprocess.run([*start, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize(("start", "path"), STARTS)
@pytest.mark.parametrize("options", [[], ["--statistics"]], ids=["understood by itself", "understood by click"])
def test_no_module_of_the_tree_is_imported(tree: Path, start: list[str], path: str | None, options: list[str]) -> None:
    done = started(start, path, tree, "check", *options, ".", cwd=tree)
    assert not (tree.parent / "CANARY").exists(), (tree.parent / "CANARY").read_text()
    assert done.returncode == 0, done.stderr


def test_the_tree_is_that_of_the_paths_too(tree: Path) -> None:
    done = started([SCRIPT], "{tree}", tree, "check", str(tree / "sub" / "t.yaml"), cwd=tree.parent)
    assert not (tree.parent / "CANARY").exists()
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("start", "path"), STARTS)
def test_no_plugin_of_the_tree_is_loaded_even_if_its_name_is_asked_for(
    tree: Path, start: list[str], path: str | None
) -> None:
    done = started(start, path, tree, "check", "--config", "../own.toml", "sub/t.yaml", cwd=tree)
    assert not (tree.parent / "CANARY").exists()
    assert done.returncode == 2
    assert "plugin 'evil' is not installed" in done.stderr


def test_the_traps_would_be_sprung(tree: Path) -> None:
    started([sys.executable, "-c", "import yaml, evil"], ".", tree, cwd=tree)
    assert (tree.parent / "CANARY").read_text() == "yaml evil "


def test_memlint_runs_in_a_checkout_of_its_own(tmp_path: Path) -> None:
    config = "examples/uni3d_dp/uni3d+dp.yaml"
    for start, path in (([sys.executable, "-m", "memlint"], None), ([sys.executable, "-m", "memlint"], str(ROOT))):
        assert started(start, path, tmp_path, "check", config, "--budget", "80GB", cwd=ROOT).returncode == 0


def test_what_runs_before_the_path_is_safe_imports_nothing_that_is_not_loaded() -> None:
    loaded = {"os", "sys", "gc"}  # by Python itself, or a part of it
    for name in ("__init__", "__main__", "trust", "cli/__init__", "cli/plain"):
        body = ast.parse((ROOT / "memlint" / f"{name}.py").read_text()).body
        found = {alias.name for node in body if isinstance(node, ast.Import) for alias in node.names}
        found |= {str(node.module) for node in body if isinstance(node, ast.ImportFrom)}
        assert {module for module in found if not module.startswith("memlint.")} <= loaded, name


# -- what stays on the path


@pytest.fixture
def path(tree: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tree)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return tree


def left(entries: list[Path | str], monkeypatch: pytest.MonkeyPatch, *words: str) -> list[str]:
    monkeypatch.setattr(sys, "path", [str(entry) for entry in entries])
    import_nothing_of(list(words))
    return sys.path


def test_an_environment_within_the_tree_stays(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = path / ".venv" / "lib" / "python3" / "site-packages"
    monkeypatch.setenv("PYTHONPATH", str(path / "src"))
    assert left([path, path / "src", packages, "", "lib"], monkeypatch) == [str(packages)]


def test_what_was_installed_to_be_edited_stays(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert left([path / "src"], monkeypatch) == [str(path / "src")]


def test_what_is_on_the_path_and_in_no_linted_tree_stays(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = path.parent / "other"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(other), str(path)]))
    assert left([other, path], monkeypatch) == [str(other)]


def test_the_folder_that_holds_memlint_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert left([ROOT, ROOT / "tests"], monkeypatch) == [str(ROOT), str(ROOT / "tests")]
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    assert left([ROOT, ROOT / "tests"], monkeypatch) == [str(ROOT)]


def test_a_link_to_the_tree_is_the_tree(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = path.parent / "link"
    link.symlink_to(path)
    monkeypatch.setenv("PYTHONPATH", str(link))
    assert left([link], monkeypatch) == []


def test_at_the_root_of_the_disk_only_the_root_goes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    other = path.parent / "other"
    monkeypatch.setenv("PYTHONPATH", str(other))
    assert left(["/", other], monkeypatch) == [str(other)]


def test_where_the_working_folder_is_gone_nothing_relative_stays(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert left(["", "lib", path.parent], monkeypatch, "x") == [str(path.parent)]
    monkeypatch.chdir(path)


def test_the_tree_of_a_folder_is_its_repository_or_where_it_was_called(path: Path) -> None:
    assert tree_of(str(path / "sub")) == str(path)
    loose = path.parent / "loose" / "deep"
    loose.mkdir(parents=True)
    os.chdir(loose.parent)
    assert tree_of(str(loose)) == str(loose.parent)
    assert tree_of(str(path.parent)) == str(path.parent)
