"""The walk and its globs, against git itself."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memlint.discover import WALK_LIMIT_BYTES, Pattern, Refused, matches, walk

TREE = (
    "a.yaml",
    "b.yaml",
    "build/a.yaml",
    "build/keep.yaml",
    "conf/a.yaml",
    "conf/model/a.yaml",
    "conf/model/build/a.yaml",
    "conf/model/x1.yaml",
    "conf/model/x2.yaml",
    "conf/a b.yaml",
    "conf/[a].yaml",
    "deep/one/two/three/a.yaml",
)

IGNORES = [
    pytest.param(("a.yaml",), id="a bare name is ignored at every depth"),
    pytest.param(("/a.yaml",), id="a leading slash anchors"),
    pytest.param(("conf/a.yaml",), id="a slash in the middle anchors"),
    pytest.param(("build/",), id="a trailing slash means folders only"),
    pytest.param(("a.yaml/",), id="a trailing slash spares files"),
    pytest.param(("*.yaml", "!keep.yaml"), id="a later exclamation mark takes back"),
    pytest.param(("build/", "!build/keep.yaml"), id="nothing comes back from an ignored folder"),
    pytest.param(("build/*", "!build/keep.yaml"), id="a file comes back if its folder was not ignored"),
    pytest.param(("**/model",), id="two stars lead to any depth"),
    pytest.param(("conf/**",), id="two stars at the end take everything inside"),
    pytest.param(("conf/**/a.yaml",), id="two stars in the middle take any number of folders"),
    pytest.param(("x?.yaml",), id="a question mark is one character"),
    pytest.param(("x[12].yaml",), id="brackets list characters"),
    pytest.param(("x[!1].yaml",), id="an exclamation mark inverts brackets"),
    pytest.param(("\\[a\\].yaml",), id="a backslash takes the meaning away"),
    pytest.param(("x[1.yaml",), id="an open bracket matches nothing"),
    pytest.param(("# a comment", "", "  ", "b.yaml   "), id="comments blanks and trailing spaces say nothing"),
    pytest.param(("conf/*",), id="one star stays within its folder"),
    pytest.param(("*/a.yaml",), id="one star is exactly one folder"),
    pytest.param(("deep/*/two",), id="a star can stand for a folder in the middle"),
]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name in TREE:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x: 1\n")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    return tmp_path


def kept_by_git(root: Path) -> set[str]:
    command = ["git", "-c", "core.quotepath=off", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    return {name for name in listed.split("\0") if name.endswith(".yaml")}


def walked(root: Path, *exclude: str) -> set[str]:
    patterns = [Pattern(str(root), glob) for glob in exclude]
    return {os.path.relpath(path, root) for path in walk(str(root), patterns)}


@pytest.mark.parametrize("lines", IGNORES)
def test_walk_keeps_what_git_keeps(repository: Path, lines: tuple[str, ...]) -> None:
    (repository / ".gitignore").write_text("\n".join(lines) + "\n")
    assert walked(repository) == kept_by_git(repository)


@pytest.mark.parametrize("lines", IGNORES)
def test_exclude_speaks_the_language_of_gitignore(repository: Path, lines: tuple[str, ...]) -> None:
    before = kept_by_git(repository)
    (repository / ".gitignore").write_text("\n".join(lines) + "\n")
    wanted = kept_by_git(repository)
    (repository / ".gitignore").unlink()
    assert walked(repository, *lines) == wanted
    patterns = [Pattern(str(repository), glob) for glob in lines]
    named = {name for name in before if not matches(patterns, str(repository / name))}
    assert named == wanted


PARTS = st.sampled_from(["a", "b", "*", "**", "?", "[ab]", "[!a]", "conf", "model", "*.yaml", "a.yaml", "x*"])
LINES = st.lists(
    st.tuples(st.sampled_from(["", "!", "/"]), st.lists(PARTS, min_size=1, max_size=3), st.sampled_from(["", "/"])).map(
        lambda drawn: drawn[0] + "/".join(drawn[1]) + drawn[2]
    ),
    max_size=4,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(top=LINES, inner=LINES)
def test_walk_agrees_with_git_on_drawn_gitignores(repository: Path, top: list[str], inner: list[str]) -> None:
    (repository / ".gitignore").write_text("\n".join(top) + "\n")
    (repository / "conf" / ".gitignore").write_text("\n".join(inner) + "\n")
    assert walked(repository) == kept_by_git(repository)


TRACKED = ("a.yaml", "build/keep.yaml", "conf/model/x1.yaml", "deep/one/two/three/a.yaml")


@pytest.mark.parametrize("version", ["2", "3", "4"])
@pytest.mark.parametrize("lines", [("*.yaml",), ("build/", "deep/", "conf/model"), ("*", "!b.yaml")], ids=" ".join)
def test_a_walk_meets_what_git_tracks_though_it_is_ignored(
    repository: Path, lines: tuple[str, ...], version: str
) -> None:
    (repository / ".gitignore").write_text("\n".join(lines) + "\n")
    git = ["git", "-c", f"index.version={version}"]
    subprocess.run([*git, "add", "--force", *TRACKED], cwd=repository, check=True)
    if version == "3":  # an entry with further flags
        subprocess.run([*git, "add", "--force", "--intent-to-add", "conf/a.yaml"], cwd=repository, check=True)
    subprocess.run([*git, "update-index", f"--index-version={version}"], cwd=repository, check=True)
    assert set(TRACKED) <= walked(repository) == kept_by_git(repository)
    inner = {os.path.basename(path) for path in walk(str(repository / "conf"))}
    assert "x1.yaml" in inner
    assert "x1.yaml" not in walked(repository, "conf/model")  # settings of ours exclude it all the same


@pytest.mark.parametrize(
    "index",
    [b"", b"DIRC", b"DIRC\0\0\0\2\0\0\1\0", b"DIRC\0\0\0\4\0\0\0\1" + b"\xff" * 90],
    ids=["empty", "cut short in its header", "without its entries", "with a number that does not end"],
)
def test_an_index_that_cannot_be_read_tracks_nothing(repository: Path, index: bytes) -> None:
    (repository / ".gitignore").write_text("conf/\n")
    (repository / ".git" / "index").write_bytes(index)
    assert not any(name.startswith("conf") for name in walked(repository))


def test_gitignore_above_the_folder_counts_up_to_the_repository(repository: Path) -> None:
    (repository / ".gitignore").write_text("conf/model/x1.yaml\n")
    assert "x1.yaml" not in {os.path.basename(path) for path in walk(str(repository / "conf" / "model"))}


def test_gitignore_does_nothing_outside_a_repository_above_it(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("*.yaml\n")
    below = tmp_path / "below"
    below.mkdir()
    (below / "a.yaml").write_text("x: 1\n")
    assert list(walk(str(below))) == [str(below / "a.yaml")]


def test_a_folder_that_is_named_is_walked_even_if_it_is_ignored(repository: Path) -> None:
    (repository / ".gitignore").write_text("build/\n")
    assert {os.path.basename(path) for path in walk(str(repository / "build"))} == {"a.yaml", "keep.yaml"}


def test_info_exclude_counts(repository: Path) -> None:
    (repository / ".git" / "info" / "exclude").write_text("b.yaml\n")
    assert walked(repository) == kept_by_git(repository)
    assert "b.yaml" not in walked(repository)


def test_walk_leaves_links_to_folders_large_files_and_other_suffixes(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("x: 1\n")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "tokenizer.json").write_text(" " * (WALK_LIMIT_BYTES + 1))
    (tmp_path / "notes.rst").write_text("# notes\n")
    os.mkfifo(tmp_path / "pipe.yaml")
    assert walked(tmp_path) == {"a.yaml"}


def test_a_notebook_may_be_as_large_as_its_pictures_and_what_is_too_large_is_said(tmp_path: Path) -> None:
    for name in ("a.ipynb", "b.sh", "tokenizer.json"):
        (tmp_path / name).write_text(" " * (WALK_LIMIT_BYTES + 1))
    refused: list[Refused] = []
    found = [os.path.basename(path) for path in walk(str(tmp_path), refused=refused)]
    assert found == ["a.ipynb"]
    assert [(os.path.basename(one.path), one.why, one.is_error) for one in refused] == [
        ("b.sh", "larger than 1 MiB", False)
    ]


def test_walk_is_in_order_and_shows_paths_as_given(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository)
    found = list(walk("."))
    assert found == list(walk("./"))
    assert found[:2] == ["a.yaml", "b.yaml"]
    assert all(not path.startswith("./") for path in found)
    assert found[2:5] == ["build/a.yaml", "build/keep.yaml", "conf/[a].yaml"]
    assert len(found) == len(set(found)) == len(TREE)


def test_what_wandb_keeps_of_a_run_is_not_walked(tmp_path: Path) -> None:
    for name in ("wandb/run-20230317_114745-l6aahv3a/files/config.yaml", "runs/run-1/config.yaml"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("a: 1\n")
    assert [Path(path).relative_to(tmp_path).as_posix() for path in walk(str(tmp_path))] == ["runs/run-1/config.yaml"]
