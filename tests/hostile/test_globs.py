"""Globs of strangers: what git says of the same paths, and no more work than their characters."""

from __future__ import annotations

import os
import random
import re
import subprocess
from pathlib import Path

import pytest

from memlint import work
from memlint.discover import Pattern, Refused, matches, walk
from memlint.globs import Globs, parse

PIECES = (
    *("a", "b", "x.y", ".", " ", "!", "#", "]", "[a", "\\", "\\a", "\\*"),
    *("*", "**", "***", "?", "/", "/", "/**/", "**/"),
    *("[ab]", "[!a]", "[a-b]", "[b-a]", "[^-a]", "[]a]", "[a/]", "[\\]]", "[[:alpha:]]", "[[:no:]]", "[[:al]"),
)
LETTERS = "aab*x.y] [!-"


def ours(globs: Globs, path: str) -> bool:
    """Whether a path is ignored, by its own name or by a folder's."""
    names = path.split("/")
    return any(
        globs.says(names[end - 1], "/".join(names[:end]), end < len(names)) is True for end in range(1, len(names) + 1)
    )


def gits(folder: Path, lines: list[str], paths: list[str]) -> set[str]:
    (folder / ".gitignore").write_text("\n".join(lines) + "\n")
    command = ["git", "check-ignore", "--no-index", "-z", "--stdin"]
    done = subprocess.run(command, input="\0".join(paths), cwd=folder, capture_output=True, text=True, check=False)
    return set(done.stdout.split("\0")) - {""}


@pytest.mark.parametrize("seed", range(4))
def test_lists_of_globs_mean_what_they_mean_to_git(tmp_path: Path, seed: int) -> None:
    """A hundred drawn lists for each seed, on thirty paths each.

    Left out are stars that follow letters in the first part of a path ("b**/a"): gitignore(5) calls them regular
    asterisks, and git, which compares the letters first and forgets them, takes them for two that lead to any depth.
    """
    drawn = random.Random(seed)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    ignored = 0
    for _ in range(100):
        lines = ["".join(drawn.choices(PIECES, k=drawn.randint(1, 7))) for _ in range(drawn.randint(1, 3))]
        lines = [line for line in lines if not re.search(r"[^/*]\*\*", line)]
        words = ["".join(drawn.choices(LETTERS, k=drawn.randint(1, 3))) for _ in range(80)]
        paths = ["/".join(drawn.sample(words, drawn.randint(1, 4))) for _ in range(30)]
        paths = sorted({path for path in paths if not {".", ".."} & set(path.split("/"))})
        said = gits(tmp_path, lines, paths)
        ignored += len(said)
        globs = Globs(lines)
        assert {path for path in paths if ours(globs, path)} == said, lines
    assert ignored > 100


@pytest.mark.parametrize(
    ("line", "path", "covered"),
    [
        pytest.param("a\\ ", "a ", True, id="an escaped blank at the end counts"),
        pytest.param("a\\\\ ", "a\\", True, id="one behind an escaped backslash does not"),
        pytest.param("caf?", "caf\u00e9", True, id="a question mark is a character and not a byte"),
        pytest.param("[[:upper:]-z]", "-", True, id="behind a class a hyphen is a hyphen"),
        pytest.param("[\u00e0-\u00ff]", "\u00e9", True, id="a range of letters with accents"),
        pytest.param("a\udcff", "a\udcff", True, id="a byte that is not UTF-8"),
        pytest.param("a/**/**/b", "a/b", True, id="two pairs of stars for no folder at all"),
        pytest.param("a/**", "a", False, id="two stars at the end are not the folder"),
    ],
)
def test_a_glob_means(line: str, path: str, covered: bool) -> None:
    assert ours(Globs([line]), path) is covered


BOMBS = {
    "thirty stars and a name that nearly fits": ("*a" * 30 + "b", "a" * 200),
    "six stars": ("*a" * 6 + "b", "a" * 200),
    "stars and question marks": ("*?" * 60 + "b", "a" * 255),
    "brackets between stars": ("*[ab]" * 60 + "c", "ab" * 120),
    "any depth, twenty-five times": ("**/" * 25 + "*.q", "/".join("a" * 60)),
    "any depth between names": ("**/a/" * 25 + "b", "/".join("a" * 60)),
    "a glob of a megabyte": ("*a" * 500_000, "a" * 200),
    "brackets of a megabyte": ("*[" + "a-b" * 300_000 + "]*c", "a" * 200),
    "a thousand folders": ("**/a/**/b?", "/".join("a" * 1000)),
}


@pytest.mark.parametrize(("glob", "path"), BOMBS.values(), ids=BOMBS)
def test_a_match_takes_at_most_the_glob_times_the_path(glob: str, path: str) -> None:
    globs = Globs([glob])
    with work.limited(work.FILE_STEPS) as meter:
        assert not ours(globs, path.rpartition("/")[2])
        globs.says(path.rpartition("/")[2], path, False)
    assert meter.used < 100 + 2 * min(len(glob), 255) * len(path)


def test_spaces_without_end_are_read_once() -> None:
    assert parse("a" + " " * 1_000_000) == parse("a")
    assert parse("\\" * 1_000_000 + " ") is not None


LISTS = {
    "names": "x{}",
    "endings": "*.x{}",
    "beginnings": "x{}*",
    "paths": "a/b/x{}",
    "folders": "x{}/",
}


@pytest.mark.parametrize("line", LISTS.values(), ids=LISTS)
def test_a_long_list_of_what_is_spelled_out_costs_a_path_no_more_than_a_short_one(line: str) -> None:
    costs = []
    for length in (10, 10_000):
        globs = Globs(line.format(number) for number in range(length))
        with work.limited(work.FILE_STEPS) as meter:
            assert not ours(globs, "some/other/name.yaml")
            assert ours(
                globs, "a/b/x7/y" if line.endswith("/") else "a/b/" + line.rpartition("/")[2].format(7).replace("*", "")
            )
        costs.append(meter.used)
    assert costs[0] == costs[1]


def test_a_list_without_end_ends_the_walk_in_one_word_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from memlint.check import check_paths
    from memlint.settings import Settings

    (tmp_path / ".git").mkdir()
    (tmp_path / "a.yaml").write_text("a: [\n")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / ".gitignore").write_text("".join(f"?x*{number}*?\n" for number in range(2_000)))
    for number in range(20):
        (tmp_path / "b" / f"x{number}-a-b.yaml").write_text("a: 1\n")
    monkeypatch.setattr(Settings, "file_steps", 20_000)
    report = check_paths([str(tmp_path)], Settings())
    [(path, why)] = report.errors
    assert path == str(tmp_path)
    assert "the files that were not reached by then are not checked" in why
    assert [entry for entry, _ in report.unparsed] == [os.path.join(str(tmp_path), "a.yaml")], (
        "what was found is checked"
    )
    assert report.exit_code() == 2


def test_as_many_excludes_as_one_likes(tmp_path: Path) -> None:
    patterns = tuple(Pattern(str(tmp_path), f"x{number}*") for number in range(20_000))
    for name in ("x19999.yaml", "y.yaml"):
        (tmp_path / name).write_text("a: 1\n")
    assert matches(patterns, str(tmp_path / "x19999.yaml"))
    with work.limited(work.FILE_STEPS) as meter:
        assert [os.path.basename(path) for path in walk(str(tmp_path), patterns)] == ["y.yaml"]
    assert meter.used < 500, "they are read once, and looked up"


def test_a_gitignore_in_each_of_many_folders_is_paid_for_by_name(tmp_path: Path) -> None:
    folder = tmp_path
    (tmp_path / ".git").mkdir()
    for _ in range(60):
        folder = folder / "d"
        folder.mkdir()
        (folder / ".gitignore").write_text("*.x\n" * 200)
        (folder / "t.yaml").write_text("a: 1\n")
    refused: list[Refused] = []
    with work.limited(work.FILE_STEPS) as meter:
        assert len(list(walk(str(tmp_path), (), refused))) == 60
    assert not refused
    assert meter.used < 60 * 60 * 2 * 4 + 60 * 200 * 4
