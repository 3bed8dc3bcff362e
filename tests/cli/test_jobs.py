"""More processes, the same report; and the cache from the command line."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from memlint import models
from memlint.check import check_paths
from memlint.cli import ahead, output
from memlint.estimates import kept_in
from memlint.settings import Resolver

ROOT = Path(__file__).parents[2]
CONFIG = "model_name_or_path: Qwen/Qwen2.5-0.5B\nper_device_train_batch_size: 4\nmax_length: 512\noutput_dir: x\n"
EVERYTHING = ahead.Wants(formulas=False, details=True, glances=False)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    folder.mkdir()
    for number in range(6):
        (folder / f"f{number}.yaml").write_text(CONFIG.replace("512", str(512 + 8 * number)))
    (folder / "broken.yaml").write_text("model_name_or_path: [\n")
    return folder


def memlint(*words: str, **variables: str) -> tuple[int, Any, str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    done = subprocess.run(
        [sys.executable, "-m", "memlint", "check", *words, "--output-format", "json", "--budget", "8GB"],
        capture_output=True, text=True, env=environment, cwd=ROOT.parent,
    )  # fmt: skip
    report = json.loads(done.stdout)
    report["summary"].pop("seconds")
    return done.returncode, report, done.stderr


def test_the_report_is_the_same_whatever_the_number_of_processes(tree: Path, tmp_path: Path) -> None:
    alone = memlint(str(tree))
    assert len(alone[1]["files"]) == 6
    assert memlint(str(tree), "--jobs", "3") == alone
    assert memlint(str(tree), "-j", "2", "--cache-dir", str(tmp_path / "c")) == alone
    assert memlint(str(tree), "--cache-dir", str(tmp_path / "c")) == alone
    assert sorted(path.name for path in tree.iterdir()) == ["broken.yaml", *(f"f{n}.yaml" for n in range(6))]


def test_what_another_process_estimated_is_not_recorded_again(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = sorted(str(path) for path in tree.iterdir())
    folder = str(tmp_path / "c")
    resolver = Resolver({"budget": "8GB"})
    context = multiprocessing.get_context("spawn")
    pile = ahead.Pile(context, files, 2)
    pile.done.value = 3
    process = context.Process(target=ahead._estimate, args=(pile, [str(tree)], resolver, folder, EVERYTHING))
    process.start()
    process.join()
    assert process.exitcode == 0
    recorded = []
    record = models.record

    def counted(*arguments: Any, **options: Any) -> Any:
        recorded.append(1)
        return record(*arguments, **options)

    monkeypatch.setattr(models, "record", counted)
    with kept_in(folder):
        check_paths(files[3:], resolver)
        assert not recorded
        check_paths(files[:3], resolver)
    assert recorded


def test_the_cache_is_made_before_another_process_asks_for_it(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there: list[list[str]] = []

    def started(*arguments: Any) -> list[Any]:
        there.append(sorted(path.name for path in (tmp_path / "c").iterdir()))
        return []

    monkeypatch.setattr(ahead, "_started", started)
    found = [ahead_file(str(path)) for path in sorted(tree.iterdir())]
    with ahead.watching(str(tmp_path / "c"), 2, [str(tree)], Resolver({}), EVERYTHING, True) as watch:
        watch(0, found)
    assert there
    assert there[0]


def test_the_other_processes_end_with_the_check(tree: Path, tmp_path: Path) -> None:
    files = [str(path) for path in sorted(tree.iterdir())]
    with ahead.watching(str(tmp_path / "c"), 3, [str(tree)], Resolver({}), EVERYTHING, True) as watch:
        watch(0, [ahead_file(path) for path in files])
        started = multiprocessing.active_children()
        assert len(started) == 2
    assert not multiprocessing.active_children()


def test_shares_become_smaller_and_end_where_the_check_is() -> None:
    files = [str(number) for number in range(100)]
    pile = ahead.Pile(multiprocessing.get_context("spawn"), files, 2)
    pile.done.value = 20
    shares = list(iter(pile.take, []))
    assert [len(share) for share in shares[:3]] == [20, 15, 11]
    assert [name for share in shares for name in share] == files[20:][::-1]
    pile.done.value = 90
    assert pile.take() == []


def ahead_file(path: str) -> Any:
    from memlint.discover import Found

    return Found(path, False)


@pytest.mark.parametrize("files", [0, 1, ahead.FEW - 1])
def test_for_a_few_files_no_process_is_started(files: int, tmp_path: Path) -> None:
    with ahead.watching("", 8, ["."], Resolver({}), EVERYTHING, True) as watch:
        for done in range(files):
            watch(done, [ahead_file(f"{n}.yaml") for n in range(files)])
        assert not multiprocessing.active_children()


def test_on_a_terminal_it_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []

    class Shown:
        on = True

        def __init__(self, quiet: bool) -> None:
            assert not quiet

        def __call__(self, line: str) -> None:
            lines.append(line)

        def clear(self) -> None:
            lines.append("")

    monkeypatch.setattr(ahead, "Progress", Shown)
    monkeypatch.setattr(ahead, "SHOWN_EVERY_SECONDS", 0.0)
    with ahead.watching("", 1, ["."], Resolver({}), EVERYTHING, False) as watch:
        files = [ahead_file(f"{n}.yaml") for n in range(5)]
        for done in range(5):
            watch(done, files)
    assert lines == [*(f"{n} of 5 files, {n}.yaml" for n in range(5)), ""]


# -- where the cache is ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        pytest.param({}, "/home/me/.cache/memlint", id="by default"),
        pytest.param({"XDG_CACHE_HOME": "/x"}, "/x/memlint", id="XDG_CACHE_HOME"),
        pytest.param({"XDG_CACHE_HOME": "x"}, "/home/me/.cache/memlint", id="a relative XDG_CACHE_HOME is none"),
        pytest.param({"MEMLINT_CACHE_DIR": "/y", "XDG_CACHE_HOME": "/x"}, "/y", id="MEMLINT_CACHE_DIR"),
        pytest.param({"MEMLINT_CACHE_DIR": ""}, "", id="an empty one switches it off"),
        pytest.param({"MEMLINT_CACHE_DIR": "y"}, "", id="a relative one could lie in the tree"),
        pytest.param({"HOME": "me"}, "", id="no home"),
    ],
)
def test_the_folder(variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MEMLINT_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert output.cache_folder("", off=False) == expected
    assert output.cache_folder("", off=True) == output.cache_folder("here", off=True) == ""
    assert output.cache_folder("here", off=False) == os.path.abspath("here")


def test_a_folder_in_a_linted_tree_is_not_taken_unless_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repository that is checked out into the home folder brings what lies in it."""
    monkeypatch.delenv("MEMLINT_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "tree" / ".cache"))
    (tmp_path / "tree" / ".git").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    found = str(tmp_path / "tree" / ".cache" / "memlint")
    assert output.cache_folder("", off=False) == found
    assert output.cache_folder("", off=False, paths=(str(tmp_path / "tree" / "configs" / "a.yaml"),)) == ""
    assert output.cache_folder(found, off=False, paths=(str(tmp_path / "tree"),)) == found
    monkeypatch.chdir(tmp_path / "tree")
    assert output.cache_folder("", off=False) == ""


def test_a_tree_s_settings_say_nothing_of_it(tree: Path) -> None:
    (tree / "memlint.toml").write_text('cache-dir = "/tmp/elsewhere"\n')
    report = check_paths([str(tree)], Resolver({"budget": "8GB"}))
    assert report.crashed
    assert any("cache-dir" in why for _, why in report.errors)


@pytest.mark.parametrize("words", [("fit", "--gpu", "t4"), ("explain",)], ids=["fit", "explain"])
def test_other_commands_use_it(words: tuple[str, ...], tree: Path, tmp_path: Path) -> None:
    said = []
    for options in (["--no-cache"], ["--cache-dir", str(tmp_path / "c")], ["--cache-dir", str(tmp_path / "c")]):
        command = [sys.executable, "-m", "memlint", words[0], str(tree / "f0.yaml"), *words[1:], *options]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT.parent)
        said.append((done.returncode, done.stdout, done.stderr))
    assert said[0] == said[1] == said[2]
    assert (tmp_path / "c" / "answers.sqlite").exists()
