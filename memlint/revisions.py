"""Trees of a git repository as they were: read through git's plumbing, and nothing of the repository is run.

A repository is a stranger's as much as the files in it: its ``.git/config`` can name programs (``core.fsmonitor``,
``filter.*``, ``diff.*.textconv``, ``core.hooksPath``, ``remote.*.url = ext::...``), and ``.gitattributes`` says when.
Four commands of git are called, and none of them looks at the working tree, which is where filters, hooks and the file
system's monitor come in:

    git rev-parse --verify --quiet NAME^{commit}
    git merge-base A B
    git ls-tree -r -z -l --full-tree COMMIT
    git cat-file --batch                     contents as they are stored: no filter, no textconv, no attributes

each with the settings of :data:`SAFE`, without a pager, without a terminal, and with every transport forbidden, so that
an object that a partial clone lacks is an error and no download. Files are written by this module itself, into a folder
of its own.
"""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from memlint.named_tuple import NamedTuple
from memlint.trust import ancestors, is_within

# What a repository's own settings may not say, whatever it says.
SAFE = (
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "core.pager=cat",
    "core.alternateRefsCommand=",
    "protocol.allow=never",
    "maintenance.auto=false",
    "gc.auto=0",
)
ENVIRONMENT = {
    "GIT_ALLOW_PROTOCOL": "",  # no transport at all
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_PAGER": "cat",
    "LC_ALL": "C",
}
# Of the caller's environment, what would make git look elsewhere or run something.
DROPPED = ("GIT_EXTERNAL_DIFF", "GIT_SSH", "GIT_SSH_COMMAND", "GIT_ASKPASS", "GIT_TRACE", "GIT_CONFIG_PARAMETERS")

SECONDS = 120  # that one command of git may take
MAX_NAME = 250  # characters of a revision's name
MAX_FILE_BYTES = 8 << 20  # the largest file that any reader of memlint takes (a lock file)
MAX_FILES = 100_000
MAX_BYTES = 1 << 30  # of a tree
MAX_DEPTH = 100  # folders in each other
# Of what one command answers: a listing of half a million files. Ten small trees can stand for 10^10 of them.
MAX_ANSWER_BYTES = 64 << 20
BATCH_BYTES = 32 << 20  # of contents that are asked for at a time, as long as one file is not larger
BATCH = 500  # files
MAX_MESSAGE_BYTES = 4096

# Files of which memlint reads nothing, however small they are.
UNREAD = frozenset(
    (
        ".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".svg", ".ico", ".pdf", ".mp3", ".mp4", ".mov", ".wav",
        ".avi", ".gz", ".zip", ".tar", ".xz", ".bz2", ".whl", ".so", ".a", ".o", ".dll", ".exe", ".pt", ".pth",
        ".ckpt", ".bin", ".safetensors", ".npy", ".npz", ".h5", ".hdf5", ".onnx", ".pkl", ".parquet", ".arrow",
        ".ipynb", ".csv", ".tsv", ".jsonl", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".rs", ".go", ".java",
        ".js", ".jsx", ".ts", ".tsx", ".css", ".html", ".woff", ".woff2", ".ttf", ".ply", ".obj", ".stl",
    )
)  # fmt: skip


class RevisionError(ValueError):
    """A revision, or a repository, that cannot be read; the message says why."""


class _TooLong(RevisionError):
    """An answer of git's that is longer than anything that is read."""


class Entry(NamedTuple):
    """One file of a tree. ``mode``: as git writes it; ``size`` in bytes."""

    path: str
    mode: str
    identity: str
    size: int

    @property
    def is_link(self) -> bool:
        return self.mode == "120000"


class Repository:
    """A repository by its root, the folder that holds ``.git``."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._git = _program(root)

    @staticmethod
    def of(folder: str) -> Repository:
        """The one that a folder is in. Raises RevisionError."""
        for above in ancestors(os.path.abspath(folder)):
            if os.path.lexists(os.path.join(above, ".git")):
                return Repository(above)
        raise RevisionError(f"{folder} is in no git repository")

    def commit(self, name: str) -> str:
        """The commit that a name means. Raises RevisionError."""
        shown = name if len(name) <= MAX_NAME else name[:MAX_NAME] + "..."
        # What begins with "-" would be an option, and "@{-1}" is fine.
        if not name or name.startswith("-") or len(name) > MAX_NAME or any(character in name for character in "\0\n\r"):
            raise RevisionError(f"{shown!r} is no revision")
        try:
            return self._run("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}").decode("ascii").strip()
        except RevisionError as error:
            raise RevisionError(f"{shown!r} is neither a file or folder nor a revision of {self.root}{error}") from None

    def merge_base(self, one: str, other: str) -> str:
        """Where two commits parted. Raises RevisionError where their histories do not meet, as in a shallow clone."""
        try:
            found = self._run("merge-base", one, other).decode("ascii").split()
        except RevisionError:
            found = []
        if not found:
            raise RevisionError(
                f"{one[:12]} and {other[:12]} have no commit in common here: a shallow clone lacks it "
                "(in CI fetch the whole history, fetch-depth: 0), or compare the two as they are: A..B"
            )
        return found[0]

    def entries(self, commit: str) -> list[Entry]:
        """The files and links of a commit's tree, by path; submodules are none. Raises RevisionError."""
        found = []
        try:
            listing = self._run("ls-tree", "-r", "-z", "-l", "--full-tree", commit)
        except _TooLong:
            raise RevisionError(f"the tree of {commit[:12]} is larger than memlint reads") from None
        for record in listing.split(b"\0"):
            head, _, path = record.partition(b"\t")
            words = head.decode("ascii", "replace").split()
            if len(words) == 4 and words[1] == "blob":
                # Of what this clone lacks no size is known; it is missed where it is read.
                size = int(words[3]) if words[3].isdigit() else 0
                found.append(Entry(os.fsdecode(path), words[0], words[2], size))
        return found

    def extract(self, commit: str, folder: str) -> None:
        """Write what memlint may read of a commit's tree into an empty folder, which becomes a repository's root of
        its own for whoever asks how far a config's project reaches. Raises RevisionError.
        """
        entries = [entry for entry in self.entries(commit) if _is_read(entry)]
        if len(entries) > MAX_FILES or sum(entry.size for entry in entries) > MAX_BYTES:
            raise RevisionError(f"the tree of {commit[:12]} is larger than memlint reads ({MAX_FILES:,} files, 1 GiB)")
        if any(entry.path.count("/") > MAX_DEPTH for entry in entries):
            raise RevisionError(f"the tree of {commit[:12]} is deeper than memlint reads ({MAX_DEPTH} folders)")
        os.mkdir(os.path.join(folder, ".git"))
        made = {""}
        # Links last: no file is written through one, and no link is made through another.
        for links in (False, True):
            for entry, content in self._contents([entry for entry in entries if entry.is_link == links]):
                try:
                    _make_folders(folder, os.path.dirname(entry.path), made)
                    (_link if links else _write)(os.path.join(folder, *entry.path.split("/")), content)
                except OSError as error:
                    why = f"{entry.path} is there twice" if isinstance(error, FileExistsError) else error.strerror
                    raise RevisionError(f"{entry.path} of {commit[:12]} cannot be written: {why}") from None

    def changed_since(self, commit: str) -> frozenset[str]:
        """Absolute paths of the files that are not what they were in a commit: changed, new or gone.

        Found without git looking at the working tree: its files are compared with what is stored, as they are and with
        line ends of Unix. One that git's filters would take for the same counts as changed.
        """
        stored = {entry.path: entry for entry in self.entries(commit) if _is_read(entry)}
        changed = set()
        for path, entry in stored.items():
            absolute = os.path.join(self.root, path)
            if not entry.is_link and not _is_same(absolute, entry):
                changed.add(absolute)
        for absolute in _below(self.root):
            if os.path.relpath(absolute, self.root).replace(os.sep, "/") not in stored:
                changed.add(absolute)
        return frozenset(changed)

    def _contents(self, entries: list[Entry]) -> Iterator[tuple[Entry, bytes]]:
        """The contents of files, as they are stored. Raises RevisionError."""
        for part in _batches(entries):
            wanted = "".join(f"{entry.identity}\n" for entry in part).encode("ascii")
            answer = self._run("cat-file", "--batch", given=wanted)
            at = 0
            for entry in part:
                end = answer.find(b"\n", at)
                head = answer[at:end].split()
                if len(head) != 3 or head[1] != b"blob":
                    raise RevisionError(f"{entry.path}: its content is not in this clone")
                size = int(head[2])
                yield entry, answer[end + 1 : end + 1 + size]
                at = end + 1 + size + 1

    def _run(self, *words: str, given: bytes = b"") -> bytes:
        """What a command of git answers. Raises RevisionError, _TooLong of more than MAX_ANSWER_BYTES."""
        import tempfile
        from threading import Timer

        settings = [word for setting in SAFE for word in ("-c", setting)]
        environment = {name: value for name, value in os.environ.items() if name not in DROPPED}
        environment.update(ENVIRONMENT)
        words = (self._git, "--no-pager", *settings, "-C", self.root, *words)
        with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as said:
            asked.write(given)
            asked.seek(0)
            try:
                process = subprocess.Popen(words, stdin=asked, stdout=subprocess.PIPE, stderr=said, env=environment)
            except OSError as error:
                raise RevisionError(f": git cannot be started: {error.strerror}") from None
            began = time.monotonic()
            late = Timer(SECONDS, process.kill)
            late.start()
            try:
                assert process.stdout is not None
                answer = process.stdout.read(MAX_ANSWER_BYTES + 1)
                if len(answer) > MAX_ANSWER_BYTES:
                    raise _TooLong(f": git answers more than {MAX_ANSWER_BYTES >> 20} MiB")
                process.wait()
            finally:
                late.cancel()
                with process:
                    process.kill()
            if process.returncode and time.monotonic() - began >= SECONDS:
                raise RevisionError(f": git took more than {SECONDS} seconds")
            if process.returncode:
                said.seek(0)
                told = said.read(MAX_MESSAGE_BYTES).decode("utf-8", "replace").strip().split("\n")[0][:300]
                raise RevisionError(f": {told}" if told else "")
        return answer


def _program(root: str) -> str:
    """git, as the search path has it; never one of the linted tree or of the folder one happens to be in."""
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        for name in ("git", "git.exe") if os.name == "nt" else ("git",):
            found = os.path.join(folder, name)
            is_there = os.path.isabs(folder) and os.path.isfile(found) and os.access(found, os.X_OK)
            if is_there and not is_within(os.path.realpath(found), os.path.realpath(root)):
                return found
    raise RevisionError("git is not installed: revisions cannot be read")


def _is_read(entry: Entry) -> bool:
    """Whether memlint may read a file, and may write it where it says: no path that leads out of its folder."""
    names = entry.path.split("/")
    if any(name in ("", ".", "..") or name.lower() == ".git" or "\\" in name or ":" in name for name in names):
        return False
    return entry.size <= MAX_FILE_BYTES and os.path.splitext(names[-1])[1].lower() not in UNREAD


def _batches(entries: list[Entry]) -> Iterator[list[Entry]]:
    """Files to be asked for together: so many, and so many bytes."""
    part: list[Entry] = []
    size = 0
    for entry in entries:
        if part and (len(part) == BATCH or size + entry.size > BATCH_BYTES):
            yield part
            part, size = [], 0
        part.append(entry)
        size += entry.size
    if part:
        yield part


def _make_folders(root: str, path: str, made: set[str]) -> None:
    """The folders of a path below ``root``; ``made`` are those that are there. None is a link, or reached through one.
    Raises OSError."""
    if path in made:
        return
    names = path.split("/")
    for length in range(1, len(names) + 1):
        part = "/".join(names[:length])
        if part not in made:
            try:
                os.mkdir(os.path.join(root, *names[:length]))
            except FileExistsError:
                # Where names are compared in any case, it may be one of those that were made.
                if not stat.S_ISDIR(os.lstat(os.path.join(root, *names[:length])).st_mode):
                    raise
            made.add(part)


def _write(target: str, content: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    with open(os.open(target, flags, 0o600), "wb") as file:
        file.write(content)


def _link(target: str, content: bytes) -> None:
    if b"\0" not in content and content:
        os.symlink(os.fsdecode(content), target)


def _is_same(path: str, entry: Entry) -> bool:
    from memlint import files

    try:
        data = files.read(path, MAX_FILE_BYTES, follow=False)
    except OSError:
        return False
    make = hashlib.sha256 if len(entry.identity) == 64 else hashlib.sha1
    for text in (data, data.replace(b"\r\n", b"\n")):
        if make(b"blob %d\0" % len(text) + text).hexdigest() == entry.identity:
            return True
    return False


def _below(root: str) -> Iterator[str]:
    """Files below a folder that memlint may read, whoever names them; not in folders that never hold a config."""
    from memlint.discover import NEVER

    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in NEVER]
        for name in names:
            if os.path.splitext(name)[1].lower() not in UNREAD:
                yield os.path.join(folder, name)


@contextmanager
def extracted(repository: Repository, commit: str) -> Iterator[str]:
    """A commit's tree in a folder that is there as long as it lasts. Raises RevisionError."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="memlint-") as folder:
        # Where the path of temporary files is a link (macOS), the paths of reports begin with what it leads to.
        folder = os.path.realpath(folder)
        repository.extract(commit, folder)
        yield folder
