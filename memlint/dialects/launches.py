"""How a config is launched, where people write that down: scripts and documents beside it or above it, and its own
comments.

A config of most trainers names neither the devices nor how they share the model: the command that starts it does. A
command counts where it names this very file; then the run is the command's, with the config as the file that it names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from memlint import files, work
from memlint.dialects import companions, registry
from memlint.documents.node import Command, Document, Node
from memlint.facts.spec import TrainingSpec

# Where commands are kept: files of these suffixes in each folder from the config's to the repository's root, and in
# folders of these names there.
SUFFIXES = (".md", ".markdown", ".mdx", ".sh", ".bash", ".slurm", ".sbatch")
FOLDERS = ("scripts", "script", "slurm", "launch", "bin", "docs")

MAX_CLIMB = 32
MAX_FILES = 200  # that are looked into, nearest first
MAX_BYTES = 256 * 1024  # of one of them
MAX_RUNS = 8  # of one config: who lists more lists a sweep

_COMMENT = re.compile(r"[ \t]*(?:#|//)[ \t]*")
# What a training command begins with, or has in it, and what it says besides the name of a config.
_PROGRAM = re.compile(
    r"\b(?:accelerate|torchrun|deepspeed|python3?|axolotl|composer|litgpt|llamafactory-cli|swift|trl|tune|xtuner)\b|\.py\b"
)
_TYPED = re.compile(r"(?:\$ )?(?:[A-Z][A-Z0-9_]*=\S+ )*(?:" + _PROGRAM.pattern + ")")
_MORE = re.compile(r" --?(?!config[ =])\w|\w=|\b(?:accelerate|deepspeed|torchrun|mpirun|srun)\b")

_Key = tuple[object, ...]
_texts: dict[_Key, str] = {}  # of files that were looked into, while they stay as they are
_scripts: dict[_Key, Document] = {}
_MOST_KEPT = 256


def of(document: Document, overrides: Sequence[str] = ()) -> list[TrainingSpec]:
    """The runs that commands near a config start with it, each once; empty where nobody wrote one down.

    document  a config, not a script. Raises OutOfWork.
    """
    own = os.path.realpath(document.path)
    name = os.path.basename(document.path)
    found: dict[tuple[object, ...], TrainingSpec] = {}
    texts = {path: text.decode("utf-8", "surrogatepass") for path, text in files.edition()}
    # The text at hand may be an editor's, and not the file's.
    with files.edited({**texts, document.path: document.text}), companions.spelled(own, document.path):
        for script in _scripts_that_say(name, document):
            for command in script.commands:
                if not _says(command, name):
                    continue
                run = "train" if not found else f"train:{len(found) + 1}"
                spec = registry.started(script, command, overrides, run)
                if spec is not None and os.path.realpath(spec.document.path) == own:
                    found.setdefault(registry.identity(spec), spec)
                    if len(found) == MAX_RUNS:
                        return list(found.values())
    return list(found.values())


def _scripts_that_say(name: str, document: Document) -> Iterator[Document]:
    commented = _commented(document, name)
    if commented is not None:
        yield commented
    for path in _near(document.path):
        script = _read(path, name)
        if script is not None:
            yield script


def _says(command: Command, name: str) -> bool:
    return any(name in str(node.value) for word in command.words for node in _values(word))


def _values(word: Node) -> Iterator[Node]:
    return iter(word.value.values()) if isinstance(word.value, dict) else iter((word,))


def _near(path: str) -> Iterator[str]:
    """Files that may hold the command, the nearest first."""
    folder = os.path.dirname(path)
    root = files.repository_root(folder or os.curdir)
    left = MAX_FILES
    for _ in range(MAX_CLIMB):
        for inner in ("", *FOLDERS):
            for found in _listed(os.path.normpath(os.path.join(folder, inner))):
                if files.inside(found, root):
                    yield found
                    left -= 1
                    if not left:
                        return
        if os.path.realpath(folder or os.curdir) == root:
            return
        folder = os.path.normpath(os.path.join(folder, os.pardir))


def _listed(folder: str) -> list[str]:
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    work.spend(1 + len(names) // 4, "looking for the command that starts it")
    return [os.path.normpath(os.path.join(folder, name)) for name in names if name.lower().endswith(SUFFIXES)]


def _read(path: str, name: str) -> Document | None:
    """A script or document that has a file's name in it; None for any other one, and what cannot be read."""
    from memlint.documents import load

    try:
        status = os.stat(path)
        if status.st_size > MAX_BYTES:
            return None
        key = (path, status.st_mtime_ns, status.st_size, *(text for other, text in files.edition() if other == path))
        if key not in _texts:
            _keep(_texts, key, load.read_text(path))
        if not _may_launch(path, _texts[key], name):
            return None
        if key not in _scripts:
            _keep(_scripts, key, load.load(path, _texts[key]))
    except (OSError, load.Unreadable):
        return None
    return _scripts[key]


def _may_launch(path: str, text: str, name: str) -> bool:
    """Whether a text may hold a command that starts a config and says something of the run besides. In a script the
    name may come by a variable; in a document it stands in the command."""
    from memlint.documents.load import is_markdown

    if name not in text:
        return False
    if not is_markdown(path):
        return _PROGRAM.search(text) is not None
    return _has_command(text, name)


def _has_command(text: str, name: str) -> bool:
    """Whether a line, with those that it goes on in, names a file and says how it is started."""
    whole = text.replace("\\\n", " ").replace("\\\r\n", " ")
    return any(_starts(line) for line in whole.splitlines() if name in line and "memlint" not in line)


def _starts(line: str) -> bool:
    return _PROGRAM.search(line) is not None and _MORE.search(line) is not None


def _keep(kept: dict[_Key, object] | dict[_Key, str] | dict[_Key, Document], key: _Key, value: object) -> None:
    if len(kept) >= _MOST_KEPT:
        kept.clear()
    kept[key] = value  # type: ignore[assignment]


def _commented(document: Document, name: str) -> Document | None:
    """The commands in a config's comments, as a script in which they stand where they do in the config."""
    from memlint.documents import shell

    lines = document.text.splitlines(keepends=True)
    shown, goes_on, some = [], False, ""
    for line in lines:
        mark = _COMMENT.match(line)
        rest = line[mark.end() :] if mark is not None else ""
        kept = mark is not None and (goes_on or _TYPED.match(rest) is not None)
        some += rest if kept else ""
        goes_on = kept and rest.rstrip().endswith("\\")
        bare = line.rstrip("\r\n")
        shown.append(" " * (len(line) - len(rest)) + rest if kept else " " * len(bare) + line[len(bare) :])
    if not _has_command(some, name):
        return None
    script = shell.read(document.path, "".join(shown))
    return script._replace(text=document.text, faults=(), sources={document.path: document.text})
