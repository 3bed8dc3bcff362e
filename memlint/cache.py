"""What earlier checks estimated, kept between invocations: ``answers.sqlite`` in the user's cache folder.

The key is what an estimate is made of, and all of it: the facts of the run, the card, and this very memlint. What lies
around a config (companions, pins, settings, the command that starts it) is read afresh each time and reaches the
estimate as facts, so that nothing of it can be out of date. Rules, verdicts and fixes are worked out afresh as well.

A cache is a convenience: whatever goes wrong with it (no folder, no rights, a full disk, a damaged file, another
process that holds it) means working without one. It lies where no linted tree can put a file, and what is read from it
can make nothing but the numbers and texts of an estimate.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import pickle
import sqlite3
import stat
import sys
from collections.abc import Iterable
from typing import Any

import memlint
from memlint.tape import estimate

FILE = "answers.sqlite"
MOST = 5_000  # runs that are kept, of which the latest; some 5 KB each
DIGEST_BYTES = 32
WAIT_SECONDS = 1.0  # for another process that writes

_CLASSES = {
    (estimate.__name__, made.__name__): made
    for made in (estimate.Component, estimate.Estimate, estimate.Interval, estimate.Part)
}


class Cache:
    """Answers by run. ``put`` collects, ``save`` writes; neither ever raises, nor does ``get``.

    folder  an absolute path, made where it is missing; Cache.of(...) is None where it cannot be used
    """

    def __init__(self, folder: str, database: sqlite3.Connection) -> None:
        self.folder = folder
        self._database = database
        self._version = _this_memlint()
        self._new: dict[str, bytes] = {}

    @classmethod
    def of(cls, folder: str) -> Cache | None:
        """The cache of a folder; None where there is none to be had."""
        if not folder:
            return None
        path = os.path.join(folder, FILE)
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            if not _is_ours(folder):
                return None
            found = _opened(path)
        except sqlite3.OperationalError:  # it is held, or cannot be written
            return None
        except sqlite3.DatabaseError:  # it is damaged: nothing in it is worth more than the trouble
            with contextlib.suppress(OSError, sqlite3.Error):
                os.unlink(path)
                return cls(folder, _opened(path))
            return None
        except (OSError, ValueError):
            return None
        return cls(folder, found)

    def get(self, identity: str) -> Any:
        """What was put for a run; None for nothing that can be used."""
        key = self._key(identity)
        try:
            data = self._new.get(key)
            if data is None:
                row = self._database.execute("SELECT answers FROM runs WHERE run = ?", (key,)).fetchone()
                data = row[0] if row else None
            if data is None or data[:DIGEST_BYTES] != _digest(key, data[DIGEST_BYTES:]):
                return None
            return _Reader(io.BytesIO(data[DIGEST_BYTES:])).load()
        except Exception:  # whatever a damaged database makes of itself
            return None

    def put(self, identity: str, answers: Any) -> None:
        key, data = self._key(identity), pickle.dumps(answers, protocol=4)
        self._new[key] = _digest(key, data) + data

    def save(self) -> None:
        """Write what was put, and let the oldest go where there is more than is kept."""
        if not self._new:
            return
        with contextlib.suppress(sqlite3.Error), self._database:
            self._database.executemany("REPLACE INTO runs (run, answers) VALUES (?, ?)", self._new.items())
            newest = self._database.execute("SELECT max(rowid) FROM runs").fetchone()[0] or 0
            self._database.execute("DELETE FROM runs WHERE rowid <= ?", (newest - MOST,))
        self._new.clear()

    def close(self) -> None:
        self.save()
        with contextlib.suppress(sqlite3.Error):
            self._database.close()

    def _key(self, identity: str) -> str:
        text = f"{self._version}\n{identity}"
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _digest(key: str, data: bytes) -> bytes:
    """What tells an entry from a damaged one, or from another one's."""
    return hashlib.sha256(key.encode() + data).digest()


def _opened(path: str) -> sqlite3.Connection:
    if os.path.lexists(path) and not _is_ours(path):
        raise OSError("not a file of this user")
    made = sqlite3.connect(path, timeout=WAIT_SECONDS)
    # What a crash of the machine loses is worked out again.
    made.execute("PRAGMA synchronous = OFF")
    made.execute("PRAGMA journal_mode = WAL")
    made.execute("CREATE TABLE IF NOT EXISTS runs (run TEXT PRIMARY KEY, answers BLOB)")
    # A view or a trigger of somebody else's would run its own queries, without an end if it likes.
    held = made.execute("SELECT type, name FROM sqlite_master").fetchall()
    if not {("table", "runs")} <= {*held} <= {("table", "runs"), ("index", "sqlite_autoindex_runs_1")}:
        made.close()
        raise sqlite3.DatabaseError("it holds more than answers")
    return made


def _is_ours(path: str) -> bool:
    """Whether a folder or a file is no link, belongs to whoever runs this, and can be written by nobody else."""
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        return False
    return not hasattr(os, "geteuid") or (status.st_uid == os.geteuid() and not status.st_mode & 0o022)


class _Reader(pickle.Unpickler):
    """Makes numbers, texts, their collections and the parts of an estimate, and refuses everything else."""

    def find_class(self, module: str, name: str) -> Any:
        found = _CLASSES.get((module, name))
        if found is None:
            raise pickle.UnpicklingError(f"{module}.{name} is no part of an estimate")
        return found


def _this_memlint() -> str:
    """The release and, for who works on memlint, the state of its files."""
    own = hashlib.sha256(f"{memlint.__version__} {sys.version_info[:2]}".encode())
    for path, size_bytes, changed_ns in sorted(_stamps(memlint.__path__[0])):
        own.update(f"{path} {size_bytes} {changed_ns}\n".encode("utf-8", "surrogatepass"))
    return own.hexdigest()


def _stamps(folder: str) -> Iterable[tuple[str, int, int]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.name != "__pycache__":
                    yield from _stamps(entry.path)
            elif entry.name.endswith((".py", ".json")):
                status = entry.stat(follow_symlinks=False)
                yield entry.path, status.st_size, status.st_mtime_ns
