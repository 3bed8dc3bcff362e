"""Git's storage as no git would write it: trees are a stranger's bytes, and what is read of them is bounded."""

from __future__ import annotations

import hashlib
import subprocess
import zlib
from pathlib import Path

import pytest

from memlint import revisions, tracked
from memlint.revisions import Repository, RevisionError, extracted

FILE, FOLDER, LINK = "100644", "40000", "120000"


class Storage:
    """A repository whose objects are written as they are told, whatever git would say of them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        subprocess.run(["git", "init", "-q", str(root)], check=True)

    def stored(self, kind: str, data: bytes) -> str:
        raw = b"%s %d\0%s" % (kind.encode(), len(data), data)
        name = hashlib.sha1(raw).hexdigest()
        path = self.root / ".git" / "objects" / name[:2] / name[2:]
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(zlib.compress(raw))
        return name

    def blob(self, text: bytes = b"a: 1\n") -> str:
        return self.stored("blob", text)

    def tree(self, *entries: tuple[str, str, str]) -> str:
        data = b"".join(b"%s %s\0" % (mode.encode(), name.encode()) + bytes.fromhex(of) for mode, name, of in entries)
        return self.stored("tree", data)

    def commit(self, *entries: tuple[str, str, str]) -> str:
        text = f"tree {self.tree(*entries)}\nauthor a <a@b> 1 +0000\ncommitter a <a@b> 1 +0000\n\nx\n"
        return self.stored("commit", text.encode())

    def nested(self, depth: int) -> str:
        inner = self.tree((FILE, "t.yaml", self.blob()))
        for _ in range(depth):
            inner = self.tree((FOLDER, "d", inner))
        return inner

    def refusal(self, commit: str) -> str:
        with pytest.raises(RevisionError) as caught, extracted(Repository(str(self.root)), commit):
            pass
        return str(caught.value)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(tmp_path / "repository")


def test_no_link_is_made_through_a_link(storage: Storage, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    inner = storage.tree((LINK, "made", storage.blob(b"/dev/null")))
    commit = storage.commit((LINK, "a", storage.blob(str(outside).encode())), (FOLDER, "a", inner))
    assert "cannot be written" in storage.refusal(commit)
    assert list(outside.iterdir()) == []


def test_what_is_there_twice_or_cannot_be_written_is_no_tree_to_compare(storage: Storage) -> None:
    blob, link = storage.blob(), storage.blob(b"x" * 5000)
    inner = storage.tree((FILE, "b.yaml", blob))
    told = {
        "a file twice": ((FILE, "t.yaml", blob), (FILE, "t.yaml", blob)),
        "a file and a folder": ((FILE, "a", blob), (FOLDER, "a", inner)),
        "a folder and a file": ((FOLDER, "a", inner), (FILE, "a", blob)),
        "a name that no disk has": ((FILE, "x" * 300 + ".yaml", blob),),
        "a link that no disk has": ((LINK, "a", link),),
    }
    for case, entries in told.items():
        assert "cannot be written" in storage.refusal(storage.commit(*entries)), case


def test_a_tree_of_very_many_folders_in_each_other_is_refused(storage: Storage) -> None:
    commit = storage.commit((FOLDER, "d", storage.nested(revisions.MAX_DEPTH)))
    assert "deeper than memlint reads" in storage.refusal(commit)
    commit = storage.commit((FOLDER, "d", storage.nested(revisions.MAX_DEPTH - 2)))
    with extracted(Repository(str(storage.root)), commit) as folder:
        assert Path(folder, "d/" * (revisions.MAX_DEPTH - 1) + "t.yaml").is_file()


def test_a_tree_that_holds_itself_over_and_over_is_not_listed_to_its_end(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten folders of ten folders, ten levels of them, in ten objects: 10^10 files."""
    monkeypatch.setattr(revisions, "MAX_ANSWER_BYTES", 1 << 20)
    inner = storage.tree(*[(FILE, f"{at}.yaml", storage.blob()) for at in range(10)])
    for _ in range(9):
        inner = storage.tree(*[(FOLDER, f"d{at}", inner) for at in range(10)])
    assert "larger than memlint reads" in storage.refusal(storage.commit((FOLDER, "d", inner)))


def test_large_files_are_read_a_few_at_a_time(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    blob = storage.blob(b"#" * 2000)
    commit = storage.commit(*[(FILE, f"{at:02}.yaml", blob) for at in range(40)], (FILE, "z.yaml", storage.blob()))
    answers = []
    run = Repository._run

    def seen(self: Repository, *words: str, **given: object) -> bytes:
        answers.append(run(self, *words, **given))  # type: ignore[arg-type]
        return answers[-1]

    monkeypatch.setattr(Repository, "_run", seen)
    monkeypatch.setattr(revisions, "BATCH_BYTES", 10_000)
    with extracted(Repository(str(storage.root)), commit) as folder:
        assert len(list(Path(folder).glob("*.yaml"))) == 41
        assert Path(folder, "39.yaml").read_bytes() == b"#" * 2000
    assert max(map(len, answers)) < 12_000


def test_an_index_that_says_little_of_very_many_long_names_tracks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 4: how much of the name before is left out, and what follows. 30 MiB can stand for 2 GB of names."""
    monkeypatch.setattr(tracked, "MAX_NAMES_BYTES", 50_000)

    def index(count: int) -> bytes:
        start = b"DIRC" + (4).to_bytes(4, "big") + count.to_bytes(4, "big")
        names = (b"\0" * 62 + (b"\6" if at else b"\0" + b"a" * 994) + b"%06d\0" % at for at in range(count))
        return start + b"".join(names)

    (tmp_path / ".git").mkdir()
    for count, known in ((50, 50), (51, 0)):
        (tmp_path / ".git" / "index").write_bytes(index(count))
        assert len(tracked.read(str(tmp_path)).paths) == known
