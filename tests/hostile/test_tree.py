"""Trees of strangers: what is met in a walk, what stands in place of a known file, and what leads out of the tree."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from memlint import files, work
from memlint.check import check_paths
from memlint.reports.report import Report
from memlint.settings import Resolver, Settings

CONFIG = """\
model_name_or_path: gpt2
dataset_name: wikitext
output_dir: out
max_length: 128
per_device_train_batch_size: 4
"""
SECRET = "hunter2"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one config, and the working directory in it."""
    root = tmp_path / "repository"
    (root / ".git").mkdir(parents=True)
    (root / "t.yaml").write_text(CONFIG)
    monkeypatch.chdir(root)
    return root


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder beside the repository."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    return folder


def check(*paths: str) -> Report:
    return check_paths(paths or (".",), Settings())


def read(report: Report) -> list[str]:
    return [run.path for run in report.runs]


def said(report: Report) -> str:
    """All that a reader sees of it."""
    from memlint.reports import full, json
    from memlint.reports.full import Style

    notes = [f"{path}: {why}" for path, why in (*report.errors, *report.skipped, *report.unparsed)]
    return "\n".join([full.render(report, Style(verbose=True)), json.render(report), *notes])


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(path))


ENTRIES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a pipe": (lambda path: os.mkfifo(path), "not a regular file"),
    "a socket": (_socket, "not a regular file"),
    "a link to a device": (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
    "a link to itself": (lambda path: path.symlink_to(path.name), "a link that leads nowhere"),
    "a link to nothing": (lambda path: path.symlink_to("nothing"), "a link that leads nowhere"),
    "a link below a file": (lambda path: path.symlink_to("t.yaml/x.yaml"), "a link that leads nowhere"),
    "a link to a name that is too long": (lambda path: path.symlink_to("x" * 300), "a link that leads nowhere"),
    "a link out of the repository": (
        lambda path: path.symlink_to("../elsewhere/a.yaml"),
        "a link that leads out of this repository",
    ),
}


@pytest.mark.parametrize(("make", "why"), ENTRIES.values(), ids=ENTRIES)
def test_one_bad_entry_costs_that_entry_and_is_named(
    tree: Path, elsewhere: Path, make: Callable[[Path], None], why: str
) -> None:
    (elsewhere / "a.yaml").write_text(CONFIG + f"# {SECRET}\nmax_length: 1\n")
    make(tree / "a.yaml")
    report = check()
    assert read(report) == ["t.yaml"]
    assert report.skipped == (("a.yaml", why),)
    assert SECRET not in said(report)
    assert report.exit_code() != 2


def test_links_within_the_repository_are_followed_to_files_and_not_to_folders(tree: Path) -> None:
    (tree / "conf").mkdir()
    (tree / "conf" / "b.yaml").write_text(CONFIG)
    (tree / "a.yaml").symlink_to("conf/b.yaml")
    (tree / "up").symlink_to("..")
    (tree / "c.yaml").symlink_to("conf")
    report = check()
    assert read(report) == ["a.yaml", "t.yaml"], "each file once"
    assert not report.skipped


def test_names_that_are_not_utf8_are_names(tree: Path) -> None:
    (tree / os.fsdecode(b"\xff\xfe.yaml")).write_text(CONFIG)
    (tree / ".gitignore").write_bytes(b"\xfe*.yaml\n")
    (tree / os.fsdecode(b"\xfe.yaml")).write_text(CONFIG)
    report = check()
    assert read(report) == ["t.yaml", os.fsdecode(b"\xff\xfe.yaml")]


def test_a_folder_deeper_than_any_path_may_be_is_one_error(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "d" * 200
    for _ in range(25):
        os.mkdir(name)
        os.chdir(name)
    os.chdir(tree)
    report = check_paths(["."], Settings())
    assert read(report) == ["t.yaml"]
    [(path, why)] = report.errors
    assert path.startswith(name)
    assert "too long" in why
    assert report.exit_code() == 2
    for _ in range(25):  # no path reaches what has to go again
        os.chdir(name)
    for _ in range(25):
        os.chdir("..")
        os.rmdir(name)


SPECIAL = (
    ".gitignore",
    "requirements.txt",
    "uv.lock",
    "Pipfile.lock",
    "environment.yml",
    "t.yaml.memlint-measured.json",
    "t.yaml.memlint.json",
)
PLACES: dict[str, Callable[[Path], None]] = {
    "a pipe": lambda path: os.mkfifo(path),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a folder": lambda path: path.mkdir(),
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "bytes": lambda path: path.write_bytes(b"\xff\xfe\x00bin" * 100) and None,
    "more than any may have": lambda path: path.write_bytes(b"\n" * (9 << 20)) and None,
}


@pytest.mark.parametrize("make", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("name", SPECIAL)
def test_whatever_stands_in_place_of_a_known_file_is_not_waited_for(
    tree: Path, name: str, make: Callable[[Path], None]
) -> None:
    make(tree / name)
    report = check()
    assert read(report) == ["t.yaml"]
    assert report.runs[0].estimate is not None
    assert "MEM001" not in {finding.code for finding in report.findings}


def test_pipes_and_devices_are_never_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    monkeypatch.setattr(os, "open", lambda *_: pytest.fail("it was opened"))
    for name in ("pipe", "zero", ""):
        with pytest.raises(OSError, match="not a regular file"):
            files.read(str(tmp_path / name), 100)


def test_a_link_is_no_regular_file_where_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").symlink_to("a")
    assert files.read(str(tmp_path / "b"), 1) == b"a"
    with pytest.raises(OSError, match="not a regular file"):
        files.read(str(tmp_path / "b"), 1, follow=False)
    with pytest.raises(files.TooLarge):
        files.read(str(tmp_path / "b"), 0)
    with pytest.raises(OSError, match="not a path"):
        files.read("a\0b", 1)


# -- out of the tree


def _outside(folder: Path) -> None:
    (folder / "m").mkdir()
    (folder / "m" / "config.json").write_text(json.dumps({"model_type": SECRET}))
    (folder / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 3, "offload_param": SECRET}}))
    (folder / "base.yaml").write_text(f"name: {SECRET}\nmax_length: 1\nmax_length: 2\n")
    (folder / "requirements.txt").write_text(f"torch==1.0.{SECRET}\n")
    (folder / "t.yaml.memlint-measured.json").write_text(f'{{"version": "{SECRET}"}}')
    (folder / "profile.json").write_text(f'{{"version": "{SECRET}"}}')


WAYS: dict[str, Callable[[Path, Path], None]] = {
    "a model's folder by its absolute path": lambda tree, out: _write(tree, CONFIG.replace("gpt2", str(out / "m"))),
    "a model's folder by the way up": lambda tree, out: _write(tree, CONFIG.replace("gpt2", "../elsewhere/m")),
    "a model's folder that is a link": lambda tree, out: (
        _write(tree, CONFIG.replace("gpt2", "./m")),
        (tree / "m").symlink_to(out / "m"),
    )[0],
    "a model's config that is a link": lambda tree, out: (
        _write(tree, CONFIG.replace("gpt2", "./m")),
        (tree / "m").mkdir(),
        (tree / "m" / "config.json").symlink_to(out / "m" / "config.json"),
    )[0],
    "a companion": lambda tree, out: _write(tree, CONFIG + f"deepspeed: {out / 'ds.json'}\n"),
    "a companion that is a link": lambda tree, out: (
        _write(tree, CONFIG + "deepspeed: ds.json\n"),
        (tree / "ds.json").symlink_to(out / "ds.json"),
    )[0],
    "a config to compose": lambda tree, out: _write(tree, f"defaults:\n  - {out / 'base'}\n  - _self_\n" + CONFIG),
    "pins that are a link": lambda tree, out: (tree / "requirements.txt").symlink_to(out / "requirements.txt"),
    "measurements that are a link": lambda tree, out: (tree / "t.yaml.memlint-measured.json").symlink_to(
        out / "t.yaml.memlint-measured.json"
    ),
    "a profile that is a link": lambda tree, out: (
        _write(tree, "my_own: 1\n"),
        (tree / "t.yaml.memlint.json").symlink_to(out / "profile.json"),
    )[0],
    "a config that is a link": lambda tree, out: (tree / "b.yaml").symlink_to(out / "base.yaml"),
}


def _write(tree: Path, text: str) -> None:
    (tree / "t.yaml").write_text(text)


@pytest.mark.parametrize("lead", WAYS.values(), ids=WAYS)
def test_no_way_leads_out_of_the_tree(tree: Path, elsewhere: Path, lead: Callable[[Path, Path], None]) -> None:
    _outside(elsewhere)
    lead(tree, elsewhere)
    report = check()
    assert SECRET not in said(report)
    assert not any(str(elsewhere) in os.path.realpath(path) for run in report.runs for path in run.sources)
    assert "MEM001" not in {finding.code for finding in report.findings}


def test_nothing_above_the_repository_pins_or_profiles(tree: Path) -> None:
    (tree.parent / "requirements.txt").write_text("torch==1.0.0\n")
    place = tree.parent / ".memlint" / "profiles" / "repository" / "t.yaml.memlint.json"
    place.parent.mkdir(parents=True)
    place.write_text("{")
    [run] = check().runs
    assert "profile" not in run.facts
    assert run.facts["framework_version"].value != "torch 1.0.0"


def test_a_model_outside_is_refused_in_words_and_read_where_the_command_line_names_it(
    tree: Path, elsewhere: Path
) -> None:
    from memlint.data import models

    known = models.find("gpt2")
    assert known is not None
    (elsewhere / "m").mkdir()
    (elsewhere / "m" / "config.json").write_text(json.dumps(known.config))
    _write(tree, CONFIG.replace("gpt2", str(elsewhere / "m")))

    [run] = check().runs
    [finding] = [finding for finding in run.findings if finding.code == "MEM007"]
    assert "lies outside of this repository" in finding.message
    assert "-o KEY=FOLDER" in finding.message

    given = {"override": [f"model_name_or_path={elsewhere / 'm'}"]}
    assert check_paths(["t.yaml"], Resolver(given, isolated=True)).runs[0].estimate is not None
    assert check("t.yaml", str(elsewhere)).runs[0].estimate is not None


def test_an_override_of_the_tree_s_own_settings_names_nothing(tree: Path, elsewhere: Path) -> None:
    _outside(elsewhere)
    (tree / "memlint.toml").write_text(f'override = ["model_name_or_path={elsewhere / "m"}"]\n')
    assert SECRET not in said(check_paths(["."], Resolver()))


@pytest.mark.parametrize(
    ("named", "where", "root"),
    [
        pytest.param([], "repository/a/b", "repository", id="the nearest folder with a .git"),
        pytest.param(["loose"], "loose/a/b", "loose", id="without one the folder that is named"),
        pytest.param(["loose/a", "loose"], "loose/a/b", "loose", id="the widest of several"),
        pytest.param(["loose/a/t.yaml"], "loose/a/b", "", id="else the working directory"),
    ],
)
def test_a_project_reaches_to(
    tree: Path, monkeypatch: pytest.MonkeyPatch, named: list[str], where: str, root: str
) -> None:
    top = tree.parent
    monkeypatch.chdir(top)
    os.makedirs(where, exist_ok=True)
    with files.named(named):
        for _ in range(2):  # and remembers it
            assert files.repository_root(where) == os.path.realpath(root or ".")


def test_a_name_that_no_path_can_hold_is_a_model_that_is_not_found(tmp_path: Path) -> None:
    text = '{"model_name_or_path": "\\ud800", "max_length": 64, "per_device_train_batch_size": 1, "output_dir": "x"}'
    (tmp_path / "t.json").write_text(text)
    (run,) = check_paths([str(tmp_path / "t.json")], Settings()).runs
    assert {finding.code for finding in run.findings} == {"MEM007"}


def test_files_that_a_check_has_no_work_left_for_are_told_in_one_line(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        (tree / f"more{number:02}.yaml").write_text(CONFIG.replace("128", str(256 + number)))
    whole = check_paths(["."], Resolver())
    assert len(whole.runs) == 21
    with monkeypatch.context() as patched:
        patched.setattr(work, "INVOCATION_STEPS", 400_000)
        part = check_paths(["."], Resolver())
    assert part.crashed
    ends = [finding for finding in part.findings if finding.code == "MEM011"]
    assert len(ends) <= 1
    [(first, why)] = part.errors
    left = int(why.split(" more")[0].split()[-1])
    assert left + 1 + len(part.runs) == 21
    assert first.startswith("more")
    assert "--work-limit" in why
