"""A file to a Document: which reader, and the bounds that hold for every file."""

from __future__ import annotations

import os

from memlint import files
from memlint.documents.node import Document, Fault, Node, Span

MAX_BYTES = 2**20  # a training config of a mebibyte is a data set
MAX_NOTEBOOK_BYTES = 8 * 2**20  # which keeps the pictures that its cells drew

# Texts in which commands stand among other things: the reader of each. Commands are all that is read of them.
_QUOTING = {
    **dict.fromkeys((".md", ".markdown", ".mdx"), "markdown"),
    ".ipynb": "notebook",
    ".mk": "makefile",
    ".dockerfile": "dockerfile",
}
_QUOTING_NAMES = {
    **dict.fromkeys(("makefile", "gnumakefile", "justfile", ".justfile"), "makefile"),
    **dict.fromkeys(("dockerfile", "containerfile"), "dockerfile"),
    ".gitlab-ci.yml": "workflow",
}
_WORKFLOWS = "/.github/workflows/"

_FORMATS = {
    ".yaml": "yaml",
    ".yml": "yaml",
    ".json": "json",
    ".jsonc": "json",
    ".toml": "toml",
    ".py": "python",
    ".sh": "shell",
    ".bash": "shell",
    ".slurm": "shell",
    ".sbatch": "shell",
}


class Unreadable(Exception):
    """A file that the system does not let us read. ``reason`` says why, without the path."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class _NotText(Exception):
    """A file that is there, but is no text of a config."""


def format_of(path: str, text: str | None = None) -> str | None:
    """``yaml``, ``json``, ``toml``, ``python`` or ``shell``; None for what memlint does not read.

    Goes by suffix; a file without a known one is shell if its first line (``text``) calls a shell.
    """
    if quoting(path) is not None:
        return "shell"
    suffix = os.path.splitext(path)[1].lower()
    if suffix in _FORMATS:
        return _FORMATS[suffix]
    if text is not None and text.startswith("#!"):
        words = text.split("\n", 1)[0][2:].replace("/", " ").split()
        if any(word in ("sh", "bash", "zsh", "dash", "ksh") for word in words):
            return "shell"
    return None


def quoting(path: str) -> str | None:
    """The reader of a text in which commands stand among other things; None for a config or a script."""
    name = os.path.basename(path).lower()
    if name.endswith((".yml", ".yaml")) and _WORKFLOWS in "/" + path.replace(os.sep, "/"):
        return "workflow"
    return _QUOTING_NAMES.get(name) or _QUOTING.get(os.path.splitext(name)[1])


def read_text(path: str) -> str:
    """The text of a file, with its line breaks as they are and without a byte order mark.

    Raises Unreadable, also for what is no file, no text, or larger than a config is.
    """
    try:
        return _text(path)
    except _NotText as error:
        raise Unreadable(path, str(error)) from None


def load(path: str, text: str | None = None) -> Document:
    """Read a file (or ``text`` in its place: an editor's buffer, standard input) into a Document.

    What is wrong with the content is a fault in the document. Raises Unreadable where the system gives no content.
    """
    if text is None:
        try:
            text = _text(path)
        except _NotText as error:
            return _faulty(path, str(error))
    else:
        text = text.removeprefix("\ufeff")
        if len(text) > limit_bytes(path):
            return _faulty(path, _too_large(path))
        if "\0" in text:
            return _faulty(path, _BINARY)
        try:
            text.encode()
        except UnicodeEncodeError as error:  # half of a surrogate pair, which no file holds
            return _faulty(path, _not_utf8(text.count("\n", 0, error.start)))
    reader = quoting(path)
    if reader is not None:
        found: Document = __import__(f"memlint.documents.{reader}", fromlist=["read"]).read(path, text)
        return found
    kind = format_of(path, text)
    if kind == "yaml":
        from memlint.documents import workflow, yaml

        if workflow.is_job(text):
            return workflow.read_job(path, text)
        return yaml.read(path, text)
    if kind == "json":
        from memlint.documents import json

        return json.read(path, text)
    if kind == "toml":
        from memlint.documents import toml

        return toml.read(path, text)
    if kind == "python":
        from memlint.documents.python import reader as python

        return python.read(path, text)
    if kind == "shell":
        from memlint.documents.shell import reader as shell

        return shell.read(path, text)
    return _faulty(
        path,
        "not a kind of file that memlint reads (YAML, JSON, TOML, shell, Python, Markdown)",
    )


def limit_bytes(path: str) -> int:
    """How large a file of this name may be."""
    return MAX_NOTEBOOK_BYTES if quoting(path) == "notebook" else MAX_BYTES


def _too_large(path: str) -> str:
    return f"larger than {limit_bytes(path) // 2**20} MiB: not read"


_BINARY = "binary content: not a text file"


def _text(path: str) -> str:
    try:
        content = files.read(path, limit_bytes(path))
    except files.TooLarge:
        raise _NotText(_too_large(path)) from None
    except OSError as error:
        raise Unreadable(path, error.strerror or str(error)) from None
    if b"\0" in content:
        raise _NotText(_BINARY)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _NotText(_not_utf8(content.count(b"\n", 0, error.start))) from None


def _not_utf8(lines_before: int) -> str:
    return f"not UTF-8 (line {lines_before + 1})"


def _faulty(path: str, message: str) -> Document:
    span = Span(path, 1, 1, 1, 1)
    suffix = os.path.splitext(path)[1].lower()
    faults = (Fault("MEM003", message, span),)
    return Document(path, _FORMATS.get(suffix, "yaml"), "", Node({}, span), faults, (), {path: ""})
