"""What a check imports: click, PyYAML, json and this package, because a hook pays for the rest on every commit."""

from __future__ import annotations

import os
import re
import shutil
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


# To read the command that starts a config takes the reader of scripts, and what that imports.
READER = {"pathlib", "tempfile", "tree_sitter"}
LAUNCHED = ("grpo_trl.yaml", "kitti_range_train_config.yaml")
CONFIGS = sorted((ROOT / "examples").glob("*/*.yaml"))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_checking_a_yaml_config_imports_nothing_heavy(config: Path, tmp_path: Path) -> None:
    arguments = ("check", str(config), "--isolated", "--budget", "80GB", "--exit-zero")
    modules = imported(*arguments, cwd=tmp_path, code=0)
    assert {"click", "yaml", "memlint.check"} <= modules
    assert modules & HEAVY == (READER if config.name in LAUNCHED else set())


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


# -- nothing of the linted tree is imported or run

# Every import passes the finder; every piece of code that is run passes the audit hook, whichever way it came in.
# A linted file may be read, and parsed into a syntax tree.
GUARD = """
import os, sys
from importlib.machinery import PathFinder
linted, foreign = os.path.realpath(sys.argv.pop(1)) + os.sep, sys.argv.pop(1).split(",")

def inside(name):
    return isinstance(name, str) and name[:1] != "<" and os.path.realpath(name).startswith(linted)

class Guard:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in foreign:
            raise RuntimeError(f"GUARD: import of {name}")
        found = PathFinder.find_spec(name, path, target)
        places = [] if found is None else [found.origin, *(found.submodule_search_locations or ())]
        if any(map(inside, places)):
            raise RuntimeError(f"GUARD: import of {name} from the linted tree")
        return None

def audit(event, arguments):
    if event == "exec" and inside(getattr(arguments[0], "co_filename", None)):
        raise RuntimeError(f"GUARD: running {arguments[0].co_filename}")
    if event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "ctypes.dlopen"):
        raise RuntimeError(f"GUARD: {event} {arguments!r}")

sys.meta_path.insert(0, Guard)
sys.addaudithook(audit)
"""
FOREIGN = ("torch", "jax", "jaxlib", "numpy", "transformers", "diffusers", "hydra", "omegaconf")
EXAMPLES = sorted(
    path
    for pattern in ("*.yaml", "*/*.yaml", "*/*/*.yaml", "*/config*.py", "*/*.sh")
    for path in (ROOT / "examples").glob(pattern)
)


def guarded(*arguments: str, linted: Path, script: str = SCRIPT) -> subprocess.CompletedProcess[str]:
    """Run a command where the linted folder is on the path, so that importing from it would succeed."""
    path = [str(ROOT), *(entry for entry in sys.path if "site-packages" in entry), str(linted)]
    setup = f"import sys; sys.path[:0] = {path!r}\n"
    command = [sys.executable, "-S", "-E", "-c", setup + GUARD + script, str(linted), ",".join(FOREIGN), *arguments]
    return subprocess.run(command, cwd=linted, capture_output=True, text=True)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The examples, with traps beside the configs: modules that a program in that folder would take for its own."""
    tree = tmp_path_factory.mktemp("linted") / "examples"
    shutil.copytree(ROOT / "examples", tree, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in (tree, *(path for path in tree.iterdir() if path.is_dir())):
        for name in ("sitecustomize", "torch", "jax", "numpy", "utils", "conftest"):
            (folder / f"{name}.py").write_text("raise SystemExit('a trap was imported')\n")
    return tree


def test_all_examples_are_tried() -> None:
    assert {path.relative_to(ROOT / "examples").parts[0] for path in EXAMPLES} == {
        "dit3d",
        "lag_mode",
        "language_models",
        "stdiff",
        "uni3d_dp",
        "video_llm",
    }
    assert {path.suffix for path in EXAMPLES} == {".yaml", ".py", ".sh"}


@pytest.mark.parametrize("system", ["dit3d", "lag_mode", "stdiff", "uni3d_dp", "video_llm"])
def test_checking_imports_and_runs_nothing_of_the_linted_tree(system: str, tree: Path) -> None:
    paths = [path.relative_to(ROOT / "examples") for path in EXAMPLES]
    configs = [str(tree / path) for path in paths if path.parts[0] == system]
    done = guarded("check", *configs, "--isolated", "--budget", "80GB", "--exit-zero", linted=tree)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "GUARD" not in done.stdout + done.stderr
    modules = set(done.stdout.rpartition("-- modules\n")[2].split())
    assert "memlint.check" in modules
    assert not {module.partition(".")[0] for module in modules} & {*FOREIGN, "model", "config", "utils"}


def test_walking_a_folder_and_explaining_import_nothing_of_it_either(tree: Path) -> None:
    for arguments in (("check", "video_llm", "--budget", "16GB", "--exit-zero"), ("explain", "dit3d/config.py")):
        done = guarded(*arguments, linted=tree)
        assert "GUARD" not in done.stdout + done.stderr, arguments
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("attempt", "said"),
    [
        pytest.param("import model", "import of model from the linted tree", id="importing a model"),
        pytest.param("import torch", "import of torch", id="importing torch"),
        pytest.param("import runpy; runpy.run_path('dit3d/config.py')", "running .*config.py", id="running a config"),
        pytest.param("import os; os.system('true')", "os.system", id="running a command"),
    ],
)
def test_the_guard_guards(attempt: str, said: str, tree: Path) -> None:
    setup = "sys.path.append('dit3d')\n"
    done = guarded(linted=tree, script=setup + attempt)
    assert done.returncode != 0
    assert re.search(f"GUARD: {said}", done.stderr)
