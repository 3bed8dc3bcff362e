"""More processes, the same report; and the cache from the command line."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memlint import models
from memlint.check import Wanted, check_paths, find_files, outcomes
from memlint.checking import judging
from memlint.checking.invocation import Asked
from memlint.cli import jobs as jobs_module
from memlint.cli import output, progress
from memlint.discover import Found
from memlint.estimates import EqualRuns, kept_in
from memlint.settings import Resolver, Settings

ROOT = Path(__file__).parents[2]
CONFIG = "model_name_or_path: Qwen/Qwen2.5-0.5B\nper_device_train_batch_size: 4\nmax_length: 512\noutput_dir: x\n"


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


def test_a_check_that_looks_closer_says_the_same(tree: Path) -> None:
    """A folder's text has fixes for its worst runs, which are judged once more."""
    command = [sys.executable, "-m", "memlint", "check", str(tree), "--budget", "4GB", "--no-cache", "--jobs"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    said = []
    for jobs in ("1", "2"):
        done = subprocess.run([*command, jobs], capture_output=True, text=True, env=environment, cwd=ROOT.parent)
        said.append((done.returncode, re.sub(r"\([\d.]+ m?s\)", "", done.stdout), done.stderr))
    assert said[0] == said[1]
    assert "fix" in said[0][1]


@contextlib.contextmanager
def elsewhere(tree: Path, folder: Path, jobs: int = 2) -> Iterator[tuple[list[Found], Any | None]]:
    resolver = Resolver({"budget": "8GB"})
    wanted = find_files([str(tree)], resolver.for_path)
    share = jobs_module.Jobs(jobs, [str(tree)], resolver, str(folder)).share
    with kept_in(str(folder)), share(wanted, wanted.found, Asked()) as outcome_of:
        yield wanted.found, outcome_of


def test_what_another_process_found_is_not_checked_here(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolver = Resolver({"budget": "8GB"})
    alone = check_paths([str(tree)], resolver)
    number = {found.path: at for at, found in enumerate(find_files([str(tree)], resolver.for_path).found)}

    class Pile(jobs_module.Pile):
        """The other process takes its share first."""

        def take(self, number: int) -> bool:
            while self._behind.value == len(files):
                time.sleep(0.01)
            return super().take(number)

    monkeypatch.setattr(jobs_module, "Pile", Pile)
    with elsewhere(tree, tmp_path / "c") as (files, outcome_of):
        assert outcome_of is not None
        behind = files[-1].path
        outcome = outcome_of(number[behind])
    assert outcome is not None

    @contextlib.contextmanager
    def given(*arguments: Any) -> Iterator[Any]:
        yield lambda at: outcome if at == number[behind] else None

    checked = []
    judged = judging.Judge.run
    monkeypatch.setattr(
        judging.Judge, "run", lambda self, spec: (checked.append(spec.document.path), judged(self, spec))
    )
    report = check_paths([str(tree)], resolver, share=given)
    assert behind not in checked
    assert len(checked) == 5
    assert report._replace(seconds=0.0, rule_seconds={}) == alone._replace(seconds=0.0, rule_seconds={})
    # What it estimated is in the cache, where a closer look finds it.
    recorded = []
    record = models.record

    def recording(*words: Any, **named: Any) -> Any:
        recorded.append(1)
        return record(*words, **named)

    monkeypatch.setattr(models, "record", recording)
    with kept_in(str(tmp_path / "c")):
        check_paths([behind], resolver)
    assert not recorded


@pytest.mark.parametrize(
    ("files", "name"),
    [
        pytest.param({"memlint.toml": "budgets = 3\n", "a.yaml": CONFIG}, "a.yaml", id="its settings cannot be used"),
        pytest.param(
            {
                "config.yaml": "defaults:\n  - group: a\n" + CONFIG,
                "group/a.yaml": "max_length: 64\n",
            },
            "group/a.yaml",
            id="it is a part of runs that others are a part of",
        ),
        pytest.param({"memlint.toml": "work-limit = 20_000\n", "a.yaml": CONFIG}, "a.yaml", id="its work runs out"),
    ],
)
def test_what_another_process_leaves_to_the_check(files: dict[str, str], name: str, tmp_path: Path) -> None:
    for path, text in files.items():
        place = tmp_path / path
        place.parent.mkdir(exist_ok=True)
        place.write_text(text)
    resolver = Resolver({})
    wanted = find_files([str(tmp_path / name)], lambda path: Settings())
    with outcomes([str(tmp_path / name)], resolver, Asked(), wanted, EqualRuns()) as outcome:
        assert outcome(wanted.found[0]) is None
        (tmp_path / "memlint.toml").unlink(missing_ok=True)


def test_a_process_that_ends_leaves_its_files_to_the_check(tree: Path, tmp_path: Path) -> None:
    with elsewhere(tree, tmp_path / "c", jobs=3) as (files, outcome_of):
        assert outcome_of is not None
        for process in multiprocessing.active_children():
            os.kill(process.pid or 0, signal.SIGKILL)
            process.join()
        taken = [at for at in range(len(files)) if outcome_of(at) is None]
    assert len(taken) >= len(files) - 2 * jobs_module.SENT_EVERY


def test_the_cache_is_made_before_another_process_asks_for_it(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there: list[list[str]] = []

    class Pile:
        def __init__(self, *arguments: Any) -> None:
            there.append(sorted(path.name for path in (tmp_path / "c").iterdir()))
            raise OSError

    monkeypatch.setattr(jobs_module, "Pile", Pile)
    with pytest.raises(OSError), elsewhere(tree, tmp_path / "c"):  # noqa: PT011
        pass
    assert there
    assert there[0]


def test_the_other_processes_end_with_the_check(tree: Path, tmp_path: Path) -> None:
    with elsewhere(tree, tmp_path / "c", jobs=3):
        assert len(multiprocessing.active_children()) == 2
    assert not multiprocessing.active_children()


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of the piles, in seconds."""
    found = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: found[0])
    return found


def test_what_the_check_will_soon_have_done_is_not_shared(now: list[float]) -> None:
    pile = jobs_module.Pile(multiprocessing.get_context("spawn"), 100, 2)
    assert all(pile.take(number) for number in range(50))
    now[0] = 0.5  # ten milliseconds a file
    shares = []
    while share := pile.share():
        shares.append(share)
    assert 8 <= shares[-1].start - 50 < 10
    now[0] = 50.0  # a second a file
    assert pile.share()


def test_shares_become_smaller_and_end_where_the_check_is(now: list[float]) -> None:
    pile = jobs_module.Pile(multiprocessing.get_context("spawn"), 100, 2)
    assert all(pile.take(number) for number in range(20))
    now[0] = 1000.0
    shares = list(iter(pile.share, range(20, 20)))
    assert [len(share) for share in shares[:3]] == [20, 15, 11]
    assert sorted(number for share in shares for number in share) == list(range(20, 100))
    assert not pile.take(20)


@pytest.mark.parametrize(
    ("files", "jobs", "asked"),
    [
        pytest.param(jobs_module.FEW - 1, 8, Asked(), id="a few files"),
        pytest.param(100, 1, Asked(), id="one job"),
    ],
)
def test_no_process_is_started_for(files: int, jobs: int, asked: Asked) -> None:
    found = [Found(f"{number}.yaml", False) for number in range(files)]
    share = jobs_module.Jobs(jobs, ["."], Resolver({}), "").share
    with share(Wanted(found, [], []), found, asked) as outcome_of:
        assert outcome_of is None
        assert not multiprocessing.active_children()


@pytest.mark.parametrize("asked", ["measure", "each", "look"])
def test_what_is_to_be_seen_here_is_checked_here(asked: str, tree: Path) -> None:
    def share(*arguments: Any) -> Any:
        raise AssertionError("given to another process")

    seen: list[Any] = []
    sees: Any = {asked: lambda *given: seen.append(given)}
    check_paths([str(tree)], Resolver({}), share=share, **sees)
    assert len(seen) == 6


def test_on_a_terminal_it_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []

    class Shown(progress.Progress):
        def __init__(self) -> None:
            super().__init__(quiet=False)
            self.on = True

        def __call__(self, line: str) -> None:
            lines.append(line)

    monkeypatch.setattr(progress, "SHOWN_EVERY_SECONDS", 0.0)
    tell = Shown().of_files()
    files = [Found(f"{n}.yaml", False) for n in range(5)]
    for done in range(5):
        tell(done, files)
    tell(0, files[: progress.FEW - 1])
    assert lines == [f"{n} of 5 files, {n}.yaml" for n in range(5)]


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
