"""Files that a config names: found beside it or above it, and never outside its repository."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from memlint import tracked, work
from memlint.documents.node import Command, Document, Node, Unresolved
from memlint.facts.spec import Fact, Missing
from memlint.files import above, edition, inside, kept, repository_root
from memlint.named_tuple import NamedTuple


class Companion(NamedTuple):
    """What a file beside the config says about the same run, and the texts of the files that it names in turn."""

    facts: dict[str, Fact]
    missing: tuple[Missing, ...] = ()
    sources: dict[str, str] = {}  # noqa: RUF012  (never mutated: each reader passes its own)


# (a file with its links followed, how the user spells it), while its launch is looked for: what names it in another
# way still means the file that the report is about.
_spelling: ContextVar[tuple[str, str]] = ContextVar("memlint_spelling", default=("", ""))

_last: dict[tuple[object, ...], Document] = {}  # the file read last, as it then was

# A document's path -> its commands, and the programs that they start.
_started: dict[str, tuple[tuple[Command, ...], frozenset[str]]] = {}
_MOST_STARTED = 4096
_indexes: dict[tuple[object, ...], tracked.Tracked] = {}  # the one that was read last


@contextmanager
def spelled(real: str, path: str) -> Iterator[None]:
    """While it lasts, the file ``real`` is called ``path`` whoever names it."""
    token = _spelling.set((real, path))
    try:
        yield
    finally:
        _spelling.reset(token)


def find(reference: str, beside: str) -> str | None:
    """The path of the file ``reference`` as named in the file ``beside``; None where there is none inside.

    Looked for from the folder of ``beside``, then from each folder above it up to the root of the repository, and last
    where the programs are that it starts (:func:`starts`). A check asks for the same modules with each command.
    """
    known = kept("companions")
    if known is None:
        return _looked_for(reference, beside)
    programs = _started.get(beside, ((), frozenset[str]()))[1]
    key = reference, beside if programs else os.path.dirname(beside), programs, _spelling.get()
    if key not in known:
        known[key] = _looked_for(reference, beside)
    found: str | None = known[key]
    return found


def _looked_for(reference: str, beside: str) -> str | None:
    folder = os.path.dirname(beside) or "."
    root = repository_root(folder)
    for at in above(folder):
        candidate = os.path.normpath(os.path.join(at, reference))
        if os.path.isfile(candidate):
            real, path = _spelling.get()
            if real and os.path.realpath(candidate) == real:
                return path
            return candidate if inside(candidate, root) else None
        if os.path.isabs(reference):
            return None
    found = {os.path.normpath(os.path.join(at, reference)) for at in _working_folders(beside, root)}
    found = {path for path in found if os.path.isfile(path) and inside(path, root)}
    return found.pop() if len(found) == 1 else None


def starts(document: Document) -> None:
    """Note the programs that a document's commands start. Who is told to start ``train.py`` is in the folder that has
    it, wherever the document is, and names files from there."""
    known = _started.get(document.path)
    if known is not None and known[0] is document.commands:
        return
    if len(_started) >= _MOST_STARTED:
        _started.clear()
    values = (command.program.value for command in document.commands)
    programs = frozenset(value for value in values if isinstance(value, str) and value.endswith(".py"))
    _started[document.path] = (document.commands, programs)


def _working_folders(beside: str, root: str) -> set[str]:
    """Where the programs are started that a file names: each program that git tracks once, below the file's folder."""
    _, names = _started.get(beside, ((), frozenset[str]()))
    if not names:
        return set()
    top = os.path.realpath(os.path.dirname(beside) or ".")
    known = _tracked(root).paths
    folders: set[str] = set()
    for name in names:
        name = os.path.normpath(name).replace(os.sep, "/")
        found = [path for path in known if path.endswith("/" + name)]
        if len(found) == 1:
            folder = os.path.join(root, found[0][: -len(name)])
            if folder.startswith(os.path.join(top, "")):
                folders.add(os.path.join(os.path.dirname(beside), os.path.relpath(folder, top)))
    return folders


def elsewhere(reference: str, beside: str) -> str | None:
    """The one file that git tracks whose path ends as a reference does, however much of its beginning is another: who
    copies a project into another one leaves its folders behind. None where none does, or several do."""
    folder = os.path.dirname(beside) or "."
    root = repository_root(folder)
    parts = os.path.normpath(reference).replace(os.sep, "/").strip("/").split("/")
    known = _tracked(root).paths
    for first in range(len(parts)):
        ending = "/" + "/".join(parts[first:])
        found = [path for path in known if f"/{path}".endswith(ending)]
        if found:
            if len(found) > 1:
                return None
            path = os.path.join(root, found[0])
            here = os.path.realpath(folder)
            return os.path.normpath(os.path.join(folder, os.path.relpath(path, here))) if os.path.isfile(path) else None
    return None


_FROM_HERE = ("./", "../")
_CONFIGS = (".json", ".yaml", ".yml", ".toml")


def settle(command: Command, document: Document) -> None:
    """Give a command's words that end as one file of the repository does that file, where what they begin with is a
    folder that only the shell finds (``$(git rev-parse --show-toplevel)/configs/zero3.json``), or the script's own, and
    the file is not there: who moves a script leaves it behind."""
    trees = (command.options, *command.words, *(launcher.options for launcher in command.launchers))
    known: tuple[str, ...] | None = None
    for node in (node for tree in trees for node in tree.walk()):
        ending = node.value.ending if isinstance(node.value, Unresolved) else ""
        if (
            isinstance(node.value, str)
            and node.value.startswith(_FROM_HERE)
            and find(node.value, document.path) is None
        ):
            ending = f"/{node.value.lstrip('./')}"
        if not ending.endswith(_CONFIGS) or ending[:1] != "/" or ending.count("/") < 2:
            continue
        if known is None:
            known = tuple(_tracked(repository_root(os.path.dirname(document.path) or ".")).paths)
        work.spend(1 + len(known) // 64, "looking for the file that a command names")
        found = [path for path in known if f"/{path}".endswith(ending)]
        if len(found) == 1:
            node.value = found[0]


def below(folder: str, name: str, beside: str) -> str | None:
    """The one file of a name that git tracks below a folder of the repository, from the folder of ``beside``."""
    root = repository_root(os.path.dirname(beside) or ".")
    found = [path for path in _tracked(root).paths if path.startswith(folder) and path.endswith("/" + name)]
    if len(found) != 1:
        return None
    here = os.path.realpath(os.path.dirname(beside) or ".")
    return os.path.relpath(os.path.join(root, found[0]), here)


def _tracked(root: str) -> tracked.Tracked:
    try:
        status = os.stat(os.path.join(root, ".git", "index"))
    except OSError:
        return tracked.NOTHING
    state = (root, status.st_mtime_ns, status.st_size)
    if state not in _indexes:
        _indexes.clear()
        _indexes[state] = tracked.read(root)
    return _indexes[state]


def read(reference: str, beside: str) -> tuple[Document | None, str]:
    """The file that a config names, read and composed; or None and the reason.

    What is in the file is not executed, whatever its format.
    """
    from memlint.documents import load

    if "\0" in reference:
        return None, "not a file name"
    path = find(reference, beside)
    if path is None and (told := _shown(reference, beside)) is not None:
        return told, ""
    if path is None:
        return None, f"no file {reference} in this repository"
    try:
        status = os.stat(path)
        state = (path, status.st_mtime_ns, status.st_size, edition())
        if state not in _last:  # every family asks for the same file
            document = prepared(_loaded(path))
            if document.faults and document.format == "yaml" and not document.text:
                return None, f"{path}: {document.faults[0].message}"  # nothing of it was read
            _last.clear()
            _last[state] = document
    except OSError as error:
        return None, f"{path} cannot be read: {error.strerror or error}"
    except load.Unreadable as error:
        return None, f"{path} cannot be read: {error}"
    return _last[state], ""


def _shown(reference: str, beside: str) -> Document | None:
    """A config that a document shows in a block of its own, and whose file a command of the document names."""
    from memlint.documents import load

    name = reference.rpartition("/")[2]
    if load.quoting(beside) != "markdown" or not name.endswith((".yaml", ".yml")):
        return None
    from memlint.documents import markdown, yaml

    try:
        text = load.read_text(beside)
    except load.Unreadable:
        return None
    block = markdown.shown(text, name)
    found = yaml.read(beside, block) if block else None
    if found is None or found.faults:
        return None
    return prepared(found._replace(text=text, sources={beside: text}, told=True))


def _loaded(path: str) -> Document:
    """A file by its suffix. Where that says nothing (``stage3.conf``), what begins as JSON does is JSON: a program goes
    by the key that names the file."""
    from memlint.documents import load

    if load.format_of(path) is None:
        text = load.read_text(path)
        if text.lstrip().startswith("{"):
            from memlint.documents import json

            return json.read(path, text)
    return load.load(path)


def unresolved(document: Document) -> Node:
    """The tree of a prepared YAML document before its ``${...}`` were followed; as it is where that makes no
    difference, or where it was composed of several files."""
    from memlint.documents import load

    texts = (document.text, *document.sources.values())
    if document.format != "yaml" or document.root.get("defaults") is not None or not any("${" in t for t in texts):
        return document.root
    return _laid_over(load.load(document.path, document.text)).root


def _laid_over(document: Document) -> Document:
    if document.root.get("defaults") is None:
        return document
    from memlint.documents import inherited

    return inherited.inherit(document) if inherited.has_parent(document) else document


def prepared(document: Document) -> Document:
    """A YAML document with its defaults list composed and its ``${...}`` followed."""
    if document.format != "yaml":
        return document
    defaults = document.root.get("defaults")
    if defaults is not None and defaults.is_list:
        from memlint.documents.hydra import composition as hydra

        document = hydra.compose(document)
    else:
        document = _laid_over(document)
    from memlint.documents import interpolation

    return document._replace(root=interpolation.resolve(document.root))
