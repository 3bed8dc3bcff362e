"""How a config is launched, where people write that down: scripts and documents beside it or above it, and its own
comments.

A config of most trainers names neither the devices nor how they share the model: the command that starts it does. A
command counts where it names this very file; then the run is the command's, with the config as the file that it names.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from memlint import files, work
from memlint.dialects import called, companions, registry
from memlint.documents import load, remarks
from memlint.documents.node import Call, Command, Document, Node, Span
from memlint.facts.spec import TrainingSpec

# Where commands are kept: files of these suffixes in each folder from the config's to the repository's root, and in
# folders of these names there, and in theirs of the config's folder's name (configs/7b and scripts/7b).
SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch")
FOLDERS = ("scripts", "script", "slurm", "launch", "bin", "docs", os.path.join(".github", "workflows"))

MAX_CLIMB = 32
MAX_FILES = 200  # that are looked into, nearest first
MAX_PROGRAMS = 30  # of Python, whose docstrings and comments may say it
MAX_BYTES = 256 * 1024  # of one of them
MAX_BESIDE = 100  # configs of a folder, one of which a command may name
MAX_RUNS = 8  # of one config: who lists more lists a sweep

_MORE = re.compile(r" --?(?!config[ =])\w|\w=|\b(?:accelerate|deepspeed|torchrun|mpirun|srun)\b")
_PROGRAM = re.compile(r"(?<![\w./-])[\w./-]+\.py\b")
_CALL = re.compile(r"\.(?:sh|bash|slurm|sbatch)[\"']?[ \t]+[^\s`]")  # of a script, with an argument
_WORD = re.compile(r"[\w.-]+")
_SCRIPT = re.compile(r"\b(?:python3?|torchrun) (?:\S+/)?\w+\.py ")

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
    found = _Runs(overrides, own)
    tried: set[tuple[str, str]] = set()  # the same words in the same place need no second look
    texts = {path: text.decode("utf-8", "surrogatepass") for path, text in files.edition()}
    # The text at hand may be an editor's, and not the file's.
    near = list(_near(document.path))
    with files.edited({**texts, document.path: document.text}), companions.spelled(own, document.path):
        for script in _scripts_that_say(name, document, near):
            for command in script.commands:
                said = os.path.dirname(script.path), registry.text_of(command)
                if said in tried or not _says(command, name):
                    continue
                tried.add(said)
                if not found.add(script, command):
                    return found.specs
        if found.specs or not near:
            return found.specs
        return _by_a_script(document, overrides, near) or _as_one_beside(document, overrides, near)


class _Runs:
    """What commands start, each run once.

    own  the config that it has to be a run of, with links followed; "" for any
    """

    def __init__(self, overrides: Sequence[str], own: str = "") -> None:
        self._overrides = overrides
        self._own = own
        self._found: dict[tuple[object, ...], TrainingSpec] = {}

    @property
    def specs(self) -> list[TrainingSpec]:
        return list(self._found.values())

    def add(self, script: Document, command: Command) -> bool:
        """Whether there is room for more."""
        run = "train" if not self._found else f"train:{len(self._found) + 1}"
        spec = registry.started(script, command, self._overrides, run)
        if spec is not None and self._own in ("", os.path.realpath(spec.document.path)):
            self._found.setdefault(registry.identity(spec), spec)
        return len(self._found) < MAX_RUNS


def _by_a_script(document: Document, overrides: Sequence[str], near: Sequence[str]) -> list[TrainingSpec]:
    """The runs of a config whose path a script makes of its arguments (``configs/$MODEL/$TASK.yaml``), as commands near
    the config call it; empty where none does. They have a share of the work that is left, as scripts have that others
    call, and where it ends those before it stand."""
    found = _Runs(overrides, os.path.realpath(document.path))
    with contextlib.suppress(work.OutOfWork), work.limited(work.meter().left // called.SHARE):
        for script, command in _called_with(document.path, near):
            if not found.add(script, command):
                break
    return found.specs


def _called_with(path: str, near: Sequence[str]) -> Iterator[tuple[Document, Command]]:
    """The commands of scripts near a config that name it, where they are called with a part of its path."""
    for beside in near:
        caller = _read(beside, path, _calls_with_a_part)
        if caller is None:
            continue
        for call in caller.calls:
            words = [str(node.value) for node in call.arguments]
            at = companions.find(call.script, beside) if any(word and word in path for word in words) else None
            script = _called(call, caller, at) if at is not None else None
            if script is not None:
                name = os.path.basename(path)
                yield from ((script, command) for command in script.commands if _says(command, name))


def _calls_with_a_part(path: str, text: str, config: str) -> bool:
    """Whether a text may call a script with arguments, one of which is a part of a config's path."""
    if path.endswith(".py") or _CALL.search(text) is None:
        return False
    parts = re.split(r"[/\\]", config)
    return not _given(text).isdisjoint((*parts, os.path.splitext(parts[-1])[0]))


@lru_cache(maxsize=64)
def _given(text: str) -> frozenset[str]:
    """The words of all calls of scripts in a text, which is asked about each config below it."""
    work.spend(work.KILOBYTE * len(text) >> 10, "looking for the command that starts it")
    whole = text.replace("\\\n", " ").replace("\\\r\n", " ")
    calls = (line for line in whole.splitlines() if "memlint" not in line and _CALL.search(line) is not None)
    return frozenset(word for line in calls for word in _WORD.findall(line))


def _called(call: Call, caller: Document, path: str) -> Document | None:
    """A script as it is called, which is the same for each config that asks; None for one that cannot be read."""
    try:
        text = load.read_text(path)
    except (OSError, load.Unreadable):
        return None
    key = (caller.path, path, text, repr(call))
    if key not in _scripts:
        _keep(_scripts, key, called.as_called(call, caller, path, text)._replace(told=False))
    return _scripts[key]


def _as_one_beside(document: Document, overrides: Sequence[str], near: Sequence[str]) -> list[TrainingSpec]:
    """The run of a config that no command names, by the program of the repository that is started with the configs
    beside it; empty where there is none, and where several are, or one in several ways. ``near``: files that may hold
    the command."""
    own = os.path.realpath(document.path)
    folder, name = os.path.split(document.path)
    others = {other: os.path.join(folder, other) for other in _of_its_kind(folder, name)}
    found: dict[tuple[object, ...], TrainingSpec] = {}
    for path in near if others else ():
        script = _read(path, "", lambda path, text, _: _may_launch_any(path, text, others))
        for command in () if script is None else script.commands:
            said = [os.path.basename(str(node.value)) for word in command.words for node in _values(word)]
            other = next((one for one in said if one in others), None)
            if script is None or other is None or not _starts_with(command, script, others[other]):
                continue
            spec = registry.started(script, _with(command, other, name), overrides, "train")
            if spec is None or os.path.realpath(spec.document.path) != own:
                continue
            spec.launched_with = others[other]
            found.setdefault(registry.identity(spec), spec)
            if len(found) > 1:
                return []
    return list(found.values())


def _may_launch_any(path: str, text: str, configs: Iterable[str]) -> bool:
    """Whether a text may hold a command that starts a program of the repository with one of these configs."""
    if not any(_may_launch(path, text, one) for one in configs):
        return False
    return " -m " in text or any(companions.find(one, path) for one in dict.fromkeys(_PROGRAM.findall(text)))


def _of_its_kind(folder: str, name: str) -> list[str]:
    """The other files of a config's folder of its kind, if they are few."""
    suffix = os.path.splitext(name)[1]
    try:
        names = os.listdir(folder or os.curdir)
    except OSError:
        return []
    work.spend(1 + len(names) // 4, "looking for the command that starts it")
    others = sorted(one for one in names if one != name and one.endswith(suffix))
    return others if len(others) <= MAX_BESIDE else []


def _starts_with(command: Command, script: Document, config: str) -> bool:
    """Whether a command starts a program of the repository with this very file."""
    from memlint.dialects import scripts

    words = [str(node.value) for word in command.words for node in _values(word)]
    named = (companions.find(word, script.path) for word in words if word.endswith(os.path.basename(config)))
    is_named = any(at is not None and os.path.realpath(at) == os.path.realpath(config) for at in named)
    return is_named and scripts.file_of(command, script) is not None


def _with(command: Command, other: str, name: str) -> Command:
    """A command with one config in the place of another of its folder."""

    def put(node: Node) -> Node:
        value = node.value
        if isinstance(value, dict):
            value = {key: put(inner) for key, inner in value.items()}
        elif isinstance(value, list):
            value = [put(inner) for inner in value]
        elif isinstance(value, str) and os.path.basename(value) == other:
            value = value[: -len(other)] + name
        return Node(value, node.span, node.key_span, node.keys, node.via)

    return command._replace(
        words=tuple(put(word) for word in command.words),
        options=put(command.options),
        arguments=tuple(put(argument) for argument in command.arguments),
    )


def calls(document: Document, overrides: Sequence[str] = ()) -> list[TrainingSpec]:
    """The runs of a script that looks at its arguments, as scripts and documents near it call it, each once; empty
    where nobody does. Raises OutOfWork."""
    own, name = os.path.realpath(document.path), os.path.basename(document.path)
    found = _Runs(overrides)
    for path in _near(document.path):
        script = None if os.path.realpath(path) == own else _read(path, name, _calls)
        for call in script.calls if script is not None else ():
            at = (
                companions.find(call.script, path) if call.arguments and os.path.basename(call.script) == name else None
            )
            if script is None or at is None or os.path.realpath(at) != own:
                continue
            inner = called.as_called(call, script, document.path, document.text)._replace(told=False)
            if not all(found.add(inner, command) for command in inner.commands):
                return found.specs
    return found.specs


# hydra.main(config_path="config", ...): where a program of Hydra's keeps what it is run with.
_HYDRA = re.compile(r"hydra\.main\([^()]*?config_path\s*=\s*[\"']([\w/.-]+)[\"']")


def defaults_of(document: Document, family: str) -> str:
    """The folder whose program keeps its defaults where a config is, for families whose commands say what is trained
    (``primary``); "" for any other config. Raises OutOfWork.

    Such a config stands in the library's own package or in a copy of it, and names whatever model its authors had.
    """
    if "primary" not in registry.dialect(family).header or document.format != "yaml":
        return ""
    folder = os.path.dirname(document.path)
    above = os.path.normpath(os.path.join(folder, os.pardir))
    root = files.repository_root(folder or os.curdir)
    for path in [path for path in _listed(above) if path.endswith(".py") and files.inside(path, root)][:MAX_PROGRAMS]:
        try:
            text = load.read_text(path) if os.stat(path).st_size <= MAX_BYTES else ""
        except (OSError, load.Unreadable):
            continue
        work.spend(work.KILOBYTE * len(text) >> 10, "looking for the program of a config")
        named = _HYDRA.search(text)
        if named is not None and os.path.realpath(os.path.join(above, named[1])) == os.path.realpath(folder):
            return above
    return ""


def _scripts_that_say(name: str, document: Document, near: Sequence[str]) -> Iterator[Document]:
    if _has_command(document.text, name):
        yield remarks.read(document)
    for path in near:
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
    own = os.path.basename(os.path.abspath(folder))
    inners = ("", *(inner for kept in FOLDERS for inner in (kept, os.path.join(kept, own))))
    left, programs = MAX_FILES, MAX_PROGRAMS
    for above in files.above(folder, MAX_CLIMB):
        for inner in inners:
            for found in _listed(os.path.normpath(os.path.join(above, inner))):
                program = found.endswith(".py")
                if files.inside(found, root) and (programs or not program):
                    yield found
                    left -= 1
                    programs -= program
                    if not left:
                        return


_listings: dict[tuple[str, int], tuple[int, list[str]]] = {}


def _listed(folder: str) -> list[str]:
    """The files of a folder that may hold a command, programs last. All configs of a folder ask for the same ones."""
    try:
        key = (folder, os.stat(folder).st_mtime_ns)
        if key not in _listings:
            names = os.listdir(folder)
            _keep(_listings, key, (len(names), _may_hold(folder, names)))
    except OSError:
        return []
    count, paths = _listings[key]
    work.spend(1 + count // 4, "looking for the command that starts it")
    return paths


def _may_hold(folder: str, names: list[str]) -> list[str]:
    paths = [os.path.normpath(os.path.join(folder, name)) for name in sorted(names)]
    paths = [path for path in paths if path.lower().endswith((*SCRIPTS, ".py")) or load.quoting(path) is not None]
    return sorted(paths, key=lambda path: path.endswith(".py"))


def _read(path: str, name: str, may: Callable[[str, str, str], bool] | None = None) -> Document | None:
    """A script or document that has a file's name in it; None for any other one, and what cannot be read.

    may  whether a file (its path, its text) may start or call the file of that name
    """
    try:
        status = os.stat(path)
        if status.st_size > MAX_BYTES:
            return None
        key = (path, status.st_mtime_ns, status.st_size, *(text for other, text in files.edition() if other == path))
        if key not in _texts:
            _keep(_texts, key, load.read_text(path))
        if not (may or _may_launch)(path, _texts[key], name):
            return None
        if key not in _scripts:
            _keep(_scripts, key, _loaded(path, _texts[key]))
    except (OSError, load.Unreadable):
        return None
    return _scripts[key]


def _loaded(path: str, text: str) -> Document:
    if not path.endswith(".py"):
        return load.load(path, text)
    span = Span(path, 1, 1, 1, 1)
    return remarks.read(Document(path, "python", text, Node({}, span)))


def _may_launch(path: str, text: str, name: str) -> bool:
    """Whether a text may hold a command that starts a config and says something of the run besides. In a script the
    name may come by a variable, as in a recipe; in a document it stands in the command."""
    if name not in text:
        return False
    if load.quoting(path) in (None, "makefile", "dockerfile") and not path.endswith(".py"):
        return remarks.PROGRAM.search(text) is not None
    return _has_command(text, name)


def _calls(path: str, text: str, name: str) -> bool:
    """Whether a text may call a script with arguments."""
    return not path.endswith(".py") and re.search(rf"{re.escape(name)}[\"']?[ \t]+[^\s`]", text) is not None


def _has_command(text: str, name: str) -> bool:
    """Whether a line, with those that it goes on in, names a file and says how it is started."""
    whole = text.replace("\\\n", " ").replace("\\\r\n", " ")
    return any(_starts(line) for line in whole.splitlines() if name in line and "memlint" not in line)


def _starts(line: str) -> bool:
    """Whether a line starts something with more than a config, or a program, which says whose run it is."""
    return remarks.PROGRAM.search(line) is not None and (_MORE.search(line) or _SCRIPT.search(line)) is not None


def _keep(kept: dict[Any, Any], key: tuple[object, ...], value: object) -> None:
    if len(kept) >= _MOST_KEPT:
        kept.clear()
    kept[key] = value
