from __future__ import annotations

import os
from pathlib import Path

import pytest

from memlint.documents.load import MAX_BYTES, Unreadable, format_of, load, read_text


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("a.yaml", "a: 1", "yaml"),
        ("a.YML", "a: 1", "yaml"),
        ("a.json", '{"a": 1}', "json"),
        ("a.jsonc", '{"a": 1} // x', "json"),
        ("a.toml", "a = 1", "toml"),
        ("a.py", "a = 1", "python"),
    ],
)
def test_the_suffix_decides(tmp_path: Path, name: str, text: str, kind: str) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    document = load(str(path))
    assert (document.format, document.faults) == (kind, ())
    assert document.root.plain() == {"a": 1}
    assert document.sources == {str(path): text}
    assert document.path == document.root.span.path == str(path)


@pytest.mark.parametrize(
    ("path", "text", "kind"),
    [
        pytest.param("train", "#!/bin/bash\nx", "shell", id="a shell by its first line"),
        pytest.param("train", "#!/usr/bin/env -S bash -e\n", "shell", id="a shell found through env"),
        pytest.param("train", "#!/usr/bin/env python\n", None, id="no shell"),
        pytest.param("train", "bash\n", None, id="a word that is no first line of a script"),
        pytest.param("run.slurm", None, "shell", id="a batch script"),
        pytest.param("run.sbatch", None, "shell", id="another batch script"),
        pytest.param("a.txt", "a: 1", None, id="an unknown suffix"),
    ],
)
def test_formats(path: str, text: str | None, kind: str | None) -> None:
    assert format_of(path, text) == kind


def test_text_may_come_from_elsewhere() -> None:
    document = load("not/there.yaml", "\ufeffa: 1\n")
    assert document.text == "a: 1\n"
    assert document.root.plain() == {"a": 1}


def test_line_breaks_stay_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: 2\r")
    assert read_text(str(path)) == "a: 1\r\nb: 2\r"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(b"a: \xff\xfe\n", "UTF-8 (line 1)", id="no UTF-8"),
        pytest.param(b"a: 1\nb: \xe4\n", "line 2", id="Latin-1, with its line"),
        pytest.param(b"a\0b", "binary", id="binary"),
        pytest.param(b"a: 1\n" * (MAX_BYTES // 4), "larger than 1 MiB", id="too large"),
    ],
)
def test_what_is_no_text_of_a_config_is_a_fault(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(content)
    (fault,) = load(str(path)).faults
    assert fault.code == "MEM003"
    assert words in fault.message
    with pytest.raises(Unreadable):
        read_text(str(path))


def test_given_text_has_the_same_bounds() -> None:
    assert "larger" in load("a.yaml", "a" * (MAX_BYTES + 1)).faults[0].message
    assert not load("a.ipynb", " " * (MAX_BYTES + 1)).faults  # which keeps pictures
    assert "binary" in load("a.yaml", "a\0").faults[0].message


@pytest.mark.parametrize("name", ["a.yaml", "a.json", "a.toml", "a.py", "a.sh"])
def test_given_text_that_no_file_can_hold_is_a_fault(name: str) -> None:
    """A Python text may have half of a surrogate pair in it."""
    (fault,) = load(name, "# one\na = 'x\ud800'\n").faults
    assert (fault.code, fault.message) == ("MEM003", "not UTF-8 (line 2)")
    assert "not a kind" in load("a.txt", "a").faults[0].message


@pytest.mark.parametrize(
    ("make", "words"),
    [
        pytest.param(lambda path: None, "No such file", id="a file that is not there"),
        pytest.param(lambda path: path.mkdir(), "not a regular file", id="a folder"),
        pytest.param(lambda path: os.mkfifo(path), "not a regular file", id="a named pipe, which would block"),
        pytest.param(lambda path: path.symlink_to(path), "symbolic links", id="a link to itself"),
        pytest.param(lambda path: path.symlink_to("/dev/zero"), "not a regular file", id="an endless device"),
    ],
)
def test_what_the_system_does_not_give_raises(tmp_path: Path, make, words: str) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "a.yaml"
    make(path)
    with pytest.raises(Unreadable) as caught:
        load(str(path))
    assert words in caught.value.reason
    assert caught.value.path == str(path)


def test_a_path_with_a_null_character_raises() -> None:
    with pytest.raises(Unreadable):
        load("a\0b.yaml")


def test_every_file_of_the_corpus_loads(corpus: Path) -> None:
    suffixes = {".yaml", ".yml", ".json", ".toml", ".py", ".sh", ".slurm", ".sbatch"}
    count = 0
    for path in sorted(corpus.rglob("*")):
        if path.suffix in suffixes and path.is_file():
            load(str(path)).root.plain()
            count += 1
    assert count > 300
