"""Which files git tracks, read from the repository's index: what is tracked is no less a project's own for being named
in a .gitignore, which speaks of untracked files alone (gitignore(5)).

The format is git's ``Documentation/gitformat-index.txt``, versions 2 to 4, with hashes of 20 bytes. An index that is
elsewhere (a linked worktree's), of another format, or cut short tracks nothing here, and .gitignore has the last word.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_left

from memlint import files, work
from memlint.named_tuple import NamedTuple

MAX_BYTES = 32 << 20  # some 300,000 files
MAX_NAME_BYTES = 4096  # Linux' PATH_MAX
MAX_NAMES_BYTES = 64 << 20  # of all names, of which an index of version 4 says only how each differs from the last
BYTES_PER_STEP = 256

_HEADER = struct.Struct(">4sII")
_STATUS_BYTES = 40  # ctime, mtime, device, inode, mode, owner, group, size
_HASH_BYTES = 20
_EXTENDED = 0x4000  # of an entry's flags, from version 3 on: two bytes of flags more


class Tracked(NamedTuple):
    """Paths from the repository's root, with forward slashes, in order."""

    paths: tuple[str, ...]

    def holds(self, path: str, is_folder: bool) -> bool:
        """Whether git tracks a file, or a file below a folder."""
        start = path + "/" if is_folder else path
        at = bisect_left(self.paths, start)
        return at < len(self.paths) and (self.paths[at].startswith(start) if is_folder else self.paths[at] == path)


NOTHING = Tracked(())


def read(root: str) -> Tracked:
    """What the repository at ``root`` tracks. Raises OutOfWork."""
    if not root or os.path.islink(os.path.join(root, ".git")):
        return NOTHING
    try:
        names = _names(files.read(os.path.join(root, ".git", "index"), MAX_BYTES, follow=False))
    except (OSError, ValueError, IndexError, struct.error):
        return NOTHING
    return Tracked(tuple(sorted(names)))


def _names(index: bytes) -> list[str]:
    """The paths of an index's entries. Raises ValueError, IndexError or struct.error where it is none that
    is known."""
    signature, version, count = _HEADER.unpack_from(index)
    if signature != b"DIRC" or version not in (2, 3, 4):
        raise ValueError("not an index of git's")
    names: list[str] = []
    name, at = b"", _HEADER.size
    left = MAX_NAMES_BYTES
    for _ in range(count):
        work.spend(1 + len(name) // BYTES_PER_STEP, "reading what git tracks")
        start = at
        at += _STATUS_BYTES + _HASH_BYTES
        (flags,) = struct.unpack_from(">H", index, at)
        at += 4 if version > 2 and flags & _EXTENDED else 2
        if version == 4:  # the name as what it does not share with the one before
            dropped, at = _number(index, at)
            name = name[: len(name) - dropped]
        else:
            name = b""
        end = index.index(b"\0", at)
        name += index[at:end]
        # Entries of the older versions are padded with 1 to 8 zeros to a multiple of eight bytes.
        at = end + 1 if version == 4 else start + (end - start) // 8 * 8 + 8
        left -= len(name)
        if len(name) > MAX_NAME_BYTES or left < 0:
            raise ValueError("a name that no file has, or more of them than a project has")
        names.append(name.decode("utf-8", "surrogateescape"))
    return names


def _number(index: bytes, at: int) -> tuple[int, int]:
    """(a number of variable length, as in packs' offsets; where it ends)"""
    byte = index[at]
    value = byte & 0x7F
    while byte & 0x80:
        at += 1
        byte = index[at]
        value = (value + 1) << 7 | byte & 0x7F
        if value > MAX_BYTES:
            raise ValueError("a length that no name has")
    return value, at + 1
