"""Files that a config names: found beside it or above it, and never outside its repository."""

from __future__ import annotations

import os

from memlint.dialects.spec import Fact, Missing
from memlint.documents.node import Document, Node
from memlint.files import edition, inside, repository_root
from memlint.named_tuple import NamedTuple


class Companion(NamedTuple):
    """What a file beside the config says about the same run, and the texts of the files that it names in turn."""

    facts: dict[str, Fact]
    missing: tuple[Missing, ...] = ()
    sources: dict[str, str] = {}  # noqa: RUF012  (never mutated: each reader passes its own)


_last: dict[tuple[object, ...], Document] = {}  # the file read last, as it then was


def find(reference: str, beside: str) -> str | None:
    """The path of the file ``reference`` as named in the file ``beside``; None where there is none inside.

    Looked for from the folder of ``beside``, then from each folder above it up to the root of the repository.
    """
    folder = os.path.dirname(beside) or "."
    root = repository_root(folder)
    at = folder
    for _ in range(64):
        candidate = os.path.normpath(os.path.join(at, reference))
        if os.path.isfile(candidate):
            return candidate if inside(candidate, root) else None
        if os.path.realpath(at) == root or os.path.isabs(reference):
            return None
        at = os.path.normpath(os.path.join(at, os.pardir))
    return None


def read(reference: str, beside: str) -> tuple[Document | None, str]:
    """The file that a config names, read and composed; or None and the reason.

    What is in the file is not executed, whatever its format.
    """
    from memlint.documents import load

    if "\0" in reference:
        return None, "not a file name"
    path = find(reference, beside)
    if path is None:
        return None, f"no file {reference} in this repository"
    try:
        status = os.stat(path)
        state = (path, status.st_mtime_ns, status.st_size, edition())
        if state not in _last:  # every family asks for the same file
            document = prepared(load.load(path))
            _last.clear()
            _last[state] = document
    except OSError as error:
        return None, f"{path} cannot be read: {error.strerror or error}"
    except load.Unreadable as error:
        return None, f"{path} cannot be read: {error}"
    return _last[state], ""


def unresolved(document: Document) -> Node:
    """The tree of a prepared YAML document before its ``${...}`` were followed; as it is where that makes no
    difference, or where it was composed of several files."""
    from memlint.documents import load

    if document.format != "yaml" or "${" not in document.text or document.root.get("defaults") is not None:
        return document.root
    return load.load(document.path, document.text).root


def prepared(document: Document) -> Document:
    """A YAML document with its defaults list composed and its ``${...}`` followed."""
    if document.format != "yaml":
        return document
    defaults = document.root.get("defaults")
    if defaults is not None and defaults.is_list:
        from memlint.documents import hydra

        document = hydra.compose(document)
    from memlint.documents import interpolation

    return document._replace(root=interpolation.resolve(document.root))
