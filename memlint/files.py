"""Which files may be read, and how one is read: in one place for every reader.

*Which*: a config speaks for its own repository. What it names (group files, companions, models, pins, profiles) is read
where it lies in that repository, links followed, and elsewhere only where the user named it on the command line.

*How*: a regular file, whole, up to a number of bytes. A pipe waits for a writer, and a device may answer without end
or do something when it is opened, so neither is ever opened.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from errno import EFBIG, EINVAL
from typing import Any

from memlint import work
from memlint.named_tuple import NamedTuple
from memlint.trust import is_within

MAX_CLIMB = 4
BYTES_PER_STEP = 256


# -- which -----------------------------------------------------------------------------------------------------------


class _Invocation(NamedTuple):
    """What the user named on the command line, links followed: paths, with all that is below them, and values, which
    may be a file, or a folder with a file in it. ``roots``: folder -> its repository, or ""; ``asked``: folder as it is
    given -> how far its project reaches; ``kept``: what :func:`kept` gives. All are taken to stay as they are
    meanwhile."""

    paths: tuple[str, ...]
    values: frozenset[str]
    roots: dict[str, str]
    asked: dict[str, str]
    kept: dict[str, dict[Any, Any]]


_invocation: ContextVar[_Invocation | None] = ContextVar("memlint_invocation", default=None)
_edited: ContextVar[tuple[tuple[str, bytes], ...]] = ContextVar("memlint_edited", default=())


@contextmanager
def named(paths: Iterable[str], values: Iterable[str] = ()) -> Iterator[None]:
    """While it lasts, these are what the user named on the command line: paths, and values of ``-o``."""
    token = _invocation.set(_Invocation(tuple(_resolved(paths)), frozenset(_resolved(values)), {}, {}, {}))
    try:
        yield
    finally:
        _invocation.reset(token)


def kept(what: str) -> dict[Any, Any] | None:
    """What the readers of this invocation keep of files, for whoever asks again; None where there is no invocation, or
    where texts are read as if they were edited. ``what``: tells readers apart."""
    invocation = _invocation.get()
    if invocation is None or _edited.get():
        return None
    return invocation.kept.setdefault(what, {})


def _resolved(paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        try:
            if path:
                yield os.path.realpath(os.path.expanduser(path))
        except (OSError, ValueError):  # no working directory, a null character: no path
            continue


def repository_root(folder: str) -> str:
    """How far the project of a folder reaches: to the nearest folder at or above it that holds ``.git``; else to the
    folder above it that is named on the command line, else to the working directory where that is above it; else,
    where nothing says how far, four levels up."""
    invocation = _invocation.get() or _Invocation((), frozenset(), {}, {}, {})
    if folder not in invocation.asked:
        invocation.asked[folder] = _reach(os.path.realpath(folder or "."), invocation)
    return invocation.asked[folder]


def _reach(folder: str, invocation: _Invocation) -> str:
    roots = invocation.roots
    passed = [folder]
    while passed[-1] not in roots:
        at = passed[-1]
        parent = os.path.dirname(at)
        if os.path.lexists(os.path.join(at, ".git")):
            roots[at] = at
        elif parent == at:
            roots[at] = ""  # no repository
        else:
            passed.append(parent)
    root = roots[passed[-1]]
    roots.update(dict.fromkeys(passed, root))
    if root:
        return root
    above = [path for path in invocation.paths if is_within(folder, path) and os.path.isdir(path)]
    for path in (*sorted(above, key=len), *_resolved([os.curdir])):
        if is_within(folder, path):
            return path
    for _ in range(MAX_CLIMB):
        folder = os.path.dirname(folder)
    return folder


def above(folder: str, most: int = 64) -> Iterator[str]:
    """A folder and those above it, up to the root of its repository, at most so many. A path from the working directory
    stays one."""
    root, real = repository_root(folder or "."), os.path.realpath(folder or ".")
    linked = real != os.path.abspath(folder or ".")
    for _ in range(most):
        yield folder
        if real == root:
            return
        folder = os.path.normpath(os.path.join(folder, os.pardir))
        # To follow a path costs as much again for each folder on it, so a deep one is followed once.
        real = os.path.realpath(folder) if linked else os.path.dirname(real)


def inside(path: str, root: str) -> bool:
    """Whether a path may be read by a project that reaches to ``root``: with its links followed it is below that, or
    the user named it on the command line."""
    try:
        real = os.path.realpath(path)
    except (OSError, ValueError):  # a null character, or one that no path can hold
        return False
    if is_within(real, root):
        return True
    known = _invocation.get()
    if known is None:
        return False
    return any(is_within(real, one) for one in known.paths) or not known.values.isdisjoint(
        (real, os.path.dirname(real))
    )


# -- how -------------------------------------------------------------------------------------------------------------


class TooLarge(OSError):
    """A file of more bytes than its reader takes."""

    def __init__(self, limit: int) -> None:
        size = f"{limit // 2**20} MiB" if limit % 2**20 == 0 else f"{limit // 1024} KiB"
        super().__init__(EFBIG, f"larger than {size}")


@contextmanager
def edited(texts: Mapping[str, str]) -> Iterator[None]:
    """While it lasts, these files (named as they were when they were read) have other texts: a fix that is tried. Files
    that have other texts already keep theirs."""
    own = tuple((path, text.encode("utf-8", "surrogatepass")) for path, text in sorted(texts.items()))
    token = _edited.set((*own, *(entry for entry in _edited.get() if entry[0] not in texts)))
    try:
        yield
    finally:
        _edited.reset(token)


def edition() -> tuple[tuple[str, bytes], ...]:
    """The texts that stand for files at the moment, for those who keep what they have read: () for none."""
    return _edited.get()


def read(path: str, limit: int, follow: bool = True) -> bytes:
    """The bytes of a regular file. Raises OSError for anything else, TooLarge for more than ``limit`` bytes.

    follow  False: a link is no regular file either
    """
    for name, content in _edited.get():
        if name == path or _same(name, path):
            work.spend(1 + len(content) // BYTES_PER_STEP, "reading a file")
            return content
    try:
        # Asked before it is opened: to open a device is already to use it.
        _regular(os.stat(path) if follow else os.lstat(path))
        flags = os.O_RDONLY
        for name in ("O_NONBLOCK", "O_NOCTTY", "O_BINARY", *(() if follow else ("O_NOFOLLOW",))):
            flags |= getattr(os, name, 0)
        handle = os.open(path, flags)
    except ValueError:  # a null character, or one that no path can hold
        raise OSError(EINVAL, "not a path") from None
    try:
        size = _regular(os.fstat(handle))  # again: it may have been exchanged
        if size > limit:
            raise TooLarge(limit)
        work.spend(1 + size // BYTES_PER_STEP, "reading a file")
        parts: list[bytes] = []
        left = limit + 1
        while left > 0:
            part = os.read(handle, min(left, 1 << 20))
            if not part:
                return b"".join(parts)
            parts.append(part)
            left -= len(part)
        raise TooLarge(limit)  # it grows, or says nothing of its size
    finally:
        os.close(handle)


def _same(one: str, other: str) -> bool:
    """Whether two paths lead to one file, by whatever names."""
    try:
        return os.path.basename(one) == os.path.basename(other) and os.path.realpath(one) == os.path.realpath(other)
    except (OSError, ValueError):
        return False


def _regular(status: os.stat_result) -> int:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(EINVAL, "not a regular file")
    return status.st_size
