"""What is installed is what is in the tree, and the project says so of itself."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel and an sdist of the working tree, made outside of it."""
    copy = tmp_path_factory.mktemp("tree")
    files = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True
    ).stdout.decode()
    names = [name for name in files.split("\0") if name] or [
        str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file() and ".venv" not in path.parts
    ]
    for name in names:
        source = ROOT / name
        if source.is_file():
            target = copy / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(out), str(copy)], check=True, capture_output=True, text=True
    )
    return out


def _shipped(folder: str, suffixes: tuple[str, ...]) -> set[str]:
    return {
        str(path.relative_to(ROOT))
        for path in (ROOT / folder).rglob("*")
        if path.suffix in suffixes and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_every_module_rule_and_schema(built: Path) -> None:
    (wheel,) = built.glob("memlint_train-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = _shipped("memlint", (".py", ".json", ".typed"))
    expected |= {f"memlint/{name}" for name in _shipped("rules", (".py",)) | _shipped("schemas", (".py", ".json"))}
    assert not expected - names
    assert not any(name.startswith(("tests/", "examples/")) for name in names)


def test_the_sdist_can_build_the_same_wheel(built: Path) -> None:
    (sdist,) = built.glob("memlint_train-*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert _shipped("rules", (".py",)) | _shipped("schemas", (".json",)) <= names
    assert {"README.md", "LICENSE", "pyproject.toml"} <= names


def _papers() -> list[Path]:
    found = [path for pattern in ("*.md", "*.yml", "*.yaml", "*.toml") for path in ROOT.glob(pattern)]
    found += [path for folder in ("docs", ".github", "examples", "benchmarks") for path in (ROOT / folder).rglob("*.*")]
    found += [path for folder in ("memlint", "rules", "schemas") for path in (ROOT / folder).rglob("*.py")]
    return [path for path in found if path.is_file() and path.suffix not in (".pyc", ".png")]


# `memlint-train` and `memlint.git`, paths and the command itself are ours; the bare name on the index is not. Neither
# is there a distribution of ours on an index, or a tag, until the first release.
PROMISES = re.compile(
    r"(?:pip|pipx|uv|uvx|poetry|conda)\s+(?:\w+\s+)*['\"]?memlint(?![-\w./])"
    r"|(?:pip|pipx|uv|uvx|poetry|conda)\s+(?:[-\w]+\s+)*['\"]?memlint-train"
    r"|rev: v\d"
)


def test_no_file_tells_anyone_to_install_what_is_not_there() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {promise.group()}"
        for path in _papers()
        for promise in PROMISES.finditer(path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("pip install memlint", True),
        ("uvx memlint check .", True),
        ("pip install 'memlint-train[torch]'", True),
        ("pip install --quiet memlint-train", True),
        ("    rev: v0.1.0", True),
        ("pip install .", False),
        ("pip install '.[torch]'", False),
        ("pip install git+https://host/memlint.git", False),
        ("    rev: <a commit of it, until there is a release>", False),
    ],
)
def test_what_is_promised_is_told_apart(text: str, wrong: bool) -> None:
    assert bool(PROMISES.search(text)) == wrong


def test_runtime_dependencies_stay_few_and_hold_no_torch() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    block = text.partition("\ndependencies = [")[2].partition("]")[0]
    names = re.findall(r'"([A-Za-z0-9_-]+)', block)
    assert sorted(names) == ["PyYAML", "click", "jsonschema", "tomli", "tree-sitter", "tree-sitter-bash"]
