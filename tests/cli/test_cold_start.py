"""What a check imports: click, PyYAML, json and this package, because a hook pays for the rest on every commit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

HEAVY = {
    "asyncio",
    "concurrent.futures",
    "dataclasses",
    "hydra",
    "importlib.metadata",
    "jax",
    "jsonschema",
    "logging",
    "numpy",
    "omegaconf",
    "pathlib",
    "rich",
    "tempfile",
    "tomllib",
    "torch",
    "tree_sitter",
    "unittest",
    "urllib.request",
}

SCRIPT = """
import sys
from memlint.cli.main import main
try:
    main(sys.argv[1:], prog_name="memlint")
finally:
    print("\\n".join(["", "-- modules", *sorted(sys.modules)]))
"""


def imported(*arguments: str, cwd: Path, code: int) -> set[str]:
    """The modules that a command imported. ``-S -E``: what site and .pth files bring is not ours."""
    path = os.pathsep.join([str(ROOT), *(entry for entry in sys.path if "site-packages" in entry)])
    setup = f"import sys; sys.path[:0] = {path.split(os.pathsep)!r}\n"
    done = subprocess.run(
        [sys.executable, "-S", "-E", "-c", setup + SCRIPT, *arguments], cwd=cwd, capture_output=True, text=True
    )
    assert done.returncode == code, done.stdout + done.stderr
    return set(done.stdout.rpartition("-- modules\n")[2].split())


CONFIGS = sorted((ROOT / "examples").glob("*/*.yaml"))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_checking_a_yaml_config_imports_nothing_heavy(config: Path, tmp_path: Path) -> None:
    arguments = ("check", str(config), "--isolated", "--budget", "80GB", "--exit-zero")
    modules = imported(*arguments, cwd=tmp_path, code=0)
    assert {"click", "yaml", "memlint.check"} <= modules
    assert modules & HEAVY == set()


def test_there_are_configs_to_try() -> None:
    assert CONFIGS


def test_a_pyproject_without_our_table_does_not_load_a_toml_parser(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\n')
    (tmp_path / "x.yaml").write_text("x: 1\n")
    modules = imported("check", ".", cwd=tmp_path, code=0)
    assert modules & HEAVY == set()


@pytest.mark.parametrize(
    ("arguments", "unwanted"),
    [
        pytest.param(["--version"], {"yaml", "json", "memlint.check"}, id="the version"),
        pytest.param(["--help"], {"yaml", "json", "memlint.check"}, id="the help"),
        pytest.param(["check", "--help"], {"yaml", "memlint.check"}, id="the help of check"),
    ],
)
def test_help_imports_even_less(arguments: list[str], unwanted: set[str], tmp_path: Path) -> None:
    modules = imported(*arguments, cwd=tmp_path, code=0)
    assert modules & (HEAVY | unwanted) == set()
