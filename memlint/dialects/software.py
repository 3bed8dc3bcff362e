"""Which releases a run is made with, where a file of the project pins them.

A config rarely says which PyTorch will run it, and the same config takes different memory under different releases.
What an environment is installed from says it: a lock file, ``requirements.txt``, conda's ``environment.yml``,
``pyproject.toml``, ``setup.py``, a ``Dockerfile``. They are looked for beside the config and in the folders above it,
up to the root of the repository; before all of them goes what a notebook installs itself, and the library that the
repository is, or has a copy of. Only one exact release counts; two pins that disagree say nothing, and a lower bound
that nothing older is installed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import Any

from memlint import files, releases, work
from memlint.documents.node import Node, Span
from memlint.facts.spec import WRITTEN, Fact, Name, named
from memlint.files import inside, repository_root
from memlint.named_tuple import NamedTuple

# What is installed goes before what is asked for.
LOCKS = ("uv.lock", "poetry.lock", "Pipfile.lock")
REQUIREMENTS = (
    *("requirements.txt", "environment.yml", "environment.yaml", "pyproject.toml", "setup.py", "setup.cfg"),
    "Dockerfile",
)
# What a library is installed under -> the library
PACKAGES = {package: name for name, library in releases.LIBRARIES.items() for package in library.distributions}
# A fact that several libraries' releases are -> the one that says whose it is here
OWNERS: dict[str, Name] = {"framework_version": "framework", "implementation_version": "implementation"}
AT_LEAST = ">="  # before the name of a package: of its lower bound
_BOUNDS = (AT_LEAST, "~=")
NOTEBOOK = ".ipynb"
MAX_BYTES = 8 << 20
MAX_CLIMB = 64

MAX_PROJECT_BYTES = 1 << 20  # what a pyproject.toml may have, which goes through a reader of TOML
MAX_RELEASE = 64  # characters: "2.7.0a0+79aa17489c.nv25.04" has 26
MAX_PINS = 1_000  # lines of one file that may pin something
MAX_ENTRY = 1 << 15  # characters of one package in a Pipfile.lock, its hashes included
CLIMB = 20  # steps: a folder in which the files are looked for
PIN = 5  # steps: a line that names a package, taken apart

_MENTION = re.compile("|".join(PACKAGES))
_BLANKS = re.compile(r"[ \t]*")
_SIGNS = re.compile(r"[= ]*")
_NAME = re.compile(r"[A-Za-z0-9._-]*")
_RELEASE = re.compile(r"[0-9]+(?:\.[0-9]+)+[A-Za-z0-9_.+!-]*")
_NUMBERS = re.compile(r"[0-9]+(?:\.[0-9]+)+")
_OF_A_WORD = re.compile(r"[^\s\"';&|\\]*")
# Where a library's own source says its release, below the folder that has its package.
_OWN_RELEASE = {
    package: tuple(
        f"{folder}{package}/{name}"
        for folder in ("", "src/")
        for name in ("__init__.py", "version.py", "version/version")
    )
    for package, library in PACKAGES.items()
    if releases.LIBRARIES[library].fact != "framework_version"
}
_BESIDE = "VERSION"  # beside the package, of the project whose name pyproject.toml has
_OWN_NAME = re.compile(r"^name = [\"']([\w.-]+)[\"']", re.MULTILINE)
_SAYS_ITS_RELEASE = re.compile(r"^(?:__version__\s*=\s*[\"'])?([0-9]+(?:\.[0-9]+)+[A-Za-z0-9_.+!-]*)", re.MULTILINE)
MAX_SOURCE_BYTES = 1 << 18
IMAGE = "pytorch/pytorch:"  # whose tags begin with PyTorch's release
_HEADER = re.compile(r"\s*\[\[?([\w.\"' -]+)\]\]?\s*(?:#.*)?$")


class Pin(NamedTuple):
    """A release, and where it stands."""

    release: str
    span: Span


def state(facts: dict[str, Fact], path: str) -> None:
    """Add to the facts of a run, whose config is ``path``, the releases that its project pins."""
    if not path or "framework" not in facts:
        return
    folder = os.path.dirname(path)  # a path from the working directory stays one in the report
    own = _read(path, NOTEBOOK, repository_root(folder)) if path.lower().endswith(NOTEBOOK) else {}
    exact, least = _apart({**_asked_for(folder), **own})
    for package, pin in exact.items():
        library = PACKAGES[package]
        fact = releases.LIBRARIES[library].fact
        owner, old = OWNERS.get(fact), facts.get(fact)
        if owner is not None and (owner not in facts or facts[owner].value != library):
            continue
        if old is not None and old.node is not None:
            continue
        value = f"{library} {pin.release}" if fact == "framework_version" else pin.release
        facts[fact] = Fact(named(fact), value, WRITTEN, package, Node(value, pin.span, pin.span, package))
    if least:
        oldest = {PACKAGES[package]: pin.release for package, pin in least.items()}
        reason = "the project asks for no older ones"
        facts["oldest_releases"] = Fact("oldest_releases", oldest, WRITTEN, "", reason=reason)


def pins(folder: str) -> dict[str, Pin]:
    """Package -> its release, as the nearest file that pins it has it."""
    return _apart(_asked_for(folder))[0]


def bounds(folder: str) -> dict[str, Pin]:
    """Package -> the release that it is no older than, as the nearest file that says so has it."""
    return _apart(_asked_for(folder))[1]


def _apart(found: dict[str, Pin]) -> tuple[dict[str, Pin], dict[str, Pin]]:
    """Pins, and lower bounds."""
    least = {name.removeprefix(AT_LEAST): pin for name, pin in found.items() if name.startswith(AT_LEAST)}
    return {name: pin for name, pin in found.items() if not name.startswith(AT_LEAST)}, least


def _asked_for(folder: str) -> dict[str, Pin]:
    """Both, a lower bound under ``AT_LEAST`` and the name of its package."""
    found: dict[str, Pin] = {}
    root = repository_root(folder)
    for at in files.above(folder, MAX_CLIMB):
        work.spend(CLIMB, "looking for the releases that are pinned")
        for package in _OWN_RELEASE:
            if package not in found and (own := _copy(at, package, root)) is not None:
                found[package] = own
        for name in (*LOCKS, *REQUIREMENTS):
            for package, pin in _read(os.path.normpath(os.path.join(at, name)), name, root).items():
                found.setdefault(package, pin)
    return found


def _copy(folder: str, package: str, root: str) -> Pin | None:
    """The release of the library whose package is in a folder; None where it is not, or does not say."""
    if not os.path.isdir(os.path.join(folder, package)) and not os.path.isdir(os.path.join(folder, "src", package)):
        return None
    project = _OWN_NAME.search(_source(os.path.join(folder, "pyproject.toml"), root))
    beside = (_BESIDE,) if project is not None and project[1] == package else ()
    for name in (*_OWN_RELEASE[package], *beside):
        path = os.path.normpath(os.path.join(folder, name))
        text = _source(path, root)
        said = _SAYS_ITS_RELEASE.search(text)
        if said is not None and len(said[1]) <= MAX_RELEASE:
            line = text.count("\n", 0, said.start(1)) + 1
            column = said.start(1) - text.rfind("\n", 0, said.start(1))
            return Pin(said[1], Span(path, line, column, line, column + len(said[1])))
    return None


def _source(path: str, root: str) -> str:
    """The text of a file of a copy; "" where it cannot be read, or is too long for one that says a release."""
    try:
        if not inside(path, root) or os.stat(path).st_size > MAX_SOURCE_BYTES:
            return ""
        text = files.read(path, MAX_SOURCE_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""
    work.spend(PIN, "reading the release of a copy")
    return text


MAX_MODULES = 400  # of a copy, which are looked into


def copy_says(path: str, package: str, word: str) -> bool:
    """Whether the library's package is in the repository of a config, and has a text in its code. Raises OutOfWork."""
    folder = os.path.dirname(path)
    root = repository_root(folder)
    said = re.compile(f"[\"']{re.escape(word)}[\"']")
    for at in files.above(folder, MAX_CLIMB):
        for source in (os.path.join(at, package), os.path.join(at, "src", package)):
            for module in _modules(source, root):
                try:
                    text = files.read(module, MAX_SOURCE_BYTES).decode("utf-8", "replace")
                except (OSError, ValueError):
                    continue
                work.spend(1 + (work.KILOBYTE * len(text) >> 10), "looking for a word in a copy of a library")
                if said.search(text) is not None:
                    return True
    return False


def _modules(folder: str, root: str) -> Iterator[str]:
    """Python files of a package, up to a number. Raises OutOfWork: a folder may have millions of others."""
    left = MAX_MODULES
    for at, folders, names in os.walk(folder):
        work.spend(1 + (len(folders) + len(names)) // 4, "looking for a word in a copy of a library")
        folders.sort()
        for name in sorted(names):
            path = os.path.join(at, name)
            if name.endswith(".py") and inside(path, root):
                yield path
                left -= 1
            if not left:
                return


_read_before: dict[tuple[str, int, int], dict[str, Pin]] = {}


def _read(path: str, name: str, root: str) -> dict[str, Pin]:
    """The pins of one file; none where it is missing, too large, outside of the repository, or cannot be read."""
    try:
        status = os.stat(path)
        if not inside(path, root):
            return {}
        state = (path, status.st_mtime_ns, status.st_size)
        if state not in _read_before:
            data = files.read(path, MAX_PROJECT_BYTES if name == "pyproject.toml" else MAX_BYTES)
            text = data.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
            _read_before[state] = _project(text, path) if name == "pyproject.toml" else _matched(text, path, name)
    except (OSError, ValueError):
        return {}
    return _read_before[state]


class _Found(NamedTuple):
    """A pin in a text, or a lower bound: the release stands from ``begin`` to ``end``."""

    package: str
    begin: int
    end: int


def _required(text: str, at: int, end: int, fewest: int = 2) -> _Found | None:
    """``torch[extra] == 2.1.0+cu118 ; python_version < "3.13"`` between two places of a text, or ``torch>=2.1``, blanks
    before it passed over. ``fewest``: signs of equality."""
    at = _past(text, at, end)
    name = _NAME.match(text, at, end)
    if name is None or name[0] not in PACKAGES:
        return None
    at = _past(text, name.end(), end)
    if text.startswith("[", at, end):
        at = _past(text, text.find("]", at, end) + 1 or end, end)
    if text.startswith(_BOUNDS, at, end):
        return _released(text, AT_LEAST + name[0], _past(text, at + len(AT_LEAST), end), end)
    signs = at
    while text.startswith("=", at, end) and at - signs <= 3:
        at += 1
    if not fewest <= at - signs <= 3:
        return None
    return _released(text, name[0], _past(text, at, end), end)


def _past(text: str, at: int, end: int, blanks: re.Pattern[str] = _BLANKS) -> int:
    blank = blanks.match(text, at, end)
    return blank.end() if blank is not None else at


def _released(text: str, package: str, at: int, end: int) -> _Found | None:
    """A release that begins at ``at``."""
    release = _RELEASE.match(text, at, min(end, at + MAX_RELEASE + 1))
    if release is None or len(release[0]) > MAX_RELEASE or text[release.end() : release.end() + 1].isalnum():
        return None
    return _Found(package, at, release.end())


def _conda(text: str, at: int, end: int) -> _Found | None:
    """``- pytorch=1.10.1=py3.8_cuda11.3``, and pip's lines below it."""
    at = _past(text, at, end)
    if not text.startswith("-", at, end):
        return None
    at = _past(text, at + 1, end)
    return _required(text, at + text.startswith(("'", '"'), at, end), end, fewest=1)


def _locked(text: str, at: int, end: int) -> _Found | None:
    """``name = "torch"``, and the version on the line after it."""
    package = text[at:end].rstrip().removeprefix('name = "').removesuffix('"')
    version = '\nversion = "'
    if package not in PACKAGES or not text.startswith(version, end):
        return None
    return _released(text, package, end + len(version), len(text))


def _pipenv(text: str, at: int, end: int) -> _Found | None:
    """``"torch": {"hashes": [...], ..., "version": "==2.1.0"}``, over several lines."""
    at = _past(text, at, end)
    package = text[at : at + MAX_RELEASE].removeprefix('"').partition('": {')[0]
    begin = at + len(package) + len('"": {')
    if package not in PACKAGES or not text.startswith(f'"{package}": {{', at):
        return None
    close = text.find("}", begin, begin + MAX_ENTRY)
    version = text.find('"version": "==', begin, max(close, begin))
    if version < 0 or text.find("{", begin, version) >= 0:
        return None
    return _released(text, package, _past(text, version + len('"version": "=='), close, _SIGNS), close)


def _installed(text: str, at: int, end: int) -> _Found | None:
    """A word of ``RUN pip install torch==2.1.0 "trl==0.12.0"``, or of ``FROM pytorch/pytorch:2.1.0-cuda12.1``."""
    if text.startswith(IMAGE, at, end):
        tag = _NUMBERS.match(text, at + len(IMAGE), end)
        return None if tag is None else _Found("pytorch", tag.start(), tag.end())
    return _required(text, at, end)


_FORMS: dict[str, Callable[[str, int, int], _Found | None]] = {
    "requirements.txt": _required,
    "environment.yml": _conda,
    "environment.yaml": _conda,
    "uv.lock": _locked,
    "poetry.lock": _locked,
    "Pipfile.lock": _pipenv,
    "Dockerfile": _installed,
    "setup.cfg": _required,
    "setup.py": _installed,  # its lists of strings, whatever it does with them
    NOTEBOOK: _installed,
}


def _matched(text: str, path: str, name: str) -> dict[str, Pin]:
    """The pins of a file of lines: only those lines are looked at that mention a package, each once."""
    found: dict[str, Pin] = {}
    several: set[str] = set()
    line, counted, end, seen = 1, 0, -1, 0
    for mention in _MENTION.finditer(text):
        if mention.start() < end:
            continue  # on the same line
        begin, end = _around(text, mention, name)
        seen += 1
        if seen > MAX_PINS:
            return {}
        work.spend(PIN, "reading which releases are pinned")
        one = _FORMS[name](text, begin, end)
        if one is None:
            continue
        line += text.count("\n", counted, one.begin)
        counted = one.begin
        column = one.begin - text.rfind("\n", 0, one.begin)
        release = text[one.begin : one.end]
        pin = Pin(release, Span(path, line, column, line, column + len(release)))
        known = found.setdefault(one.package, pin)
        if not one.package.startswith(AT_LEAST):
            if _series(known.release) != _series(release):
                several.add(one.package)
        elif (releases.series(release) or ()) < (releases.series(known.release) or ()):
            found[one.package] = pin  # the least of several bounds
    return {package: pin for package, pin in found.items() if package not in several}


def _around(text: str, mention: re.Match[str], name: str) -> tuple[int, int]:
    """Where the line of a mention begins and ends; its word, where lines install several (a Dockerfile, a notebook,
    a setup.py)."""
    begin = text.rfind("\n", 0, mention.start()) + 1
    if _FORMS[name] is _installed:
        if text[begin : mention.start()].lstrip(' \t"').startswith("#"):
            return mention.end(), mention.end()
        before = _OF_A_WORD.match(text[begin : mention.start()][-MAX_RELEASE:][::-1])
        rest = _OF_A_WORD.match(text, mention.end())
        assert before is not None
        assert rest is not None
        return mention.start() - len(before[0]), rest.end()
    end = text.find("\n", mention.end())
    return begin, len(text) if end < 0 else end


def _project(text: str, path: str) -> dict[str, Pin]:
    """``[project] dependencies``, or Poetry's. Extras are not what a run is installed with."""
    found = _listed_bounds(text, path)
    if not _may_pin(text):
        return found  # which spares most projects a TOML parser
    from memlint.documents import toml

    document = toml.read(path, text)
    listed = _at(document.root, "project", "dependencies")
    for node in listed.value if listed is not None and listed.is_list else ():
        text = node.value if isinstance(node.value, str) else ""
        one = _required(text, 0, len(text))
        if one is not None:
            found[one.package] = Pin(text[one.begin : one.end], node.span)
    table = _at(document.root, "tool", "poetry", "dependencies")
    for package in PACKAGES if table is not None and table.is_mapping else ():
        node = table.get(package)
        text = node.value if node is not None and isinstance(node.value, str) else ""
        one = _released(text, package, _past(text, 0, len(text), _SIGNS), len(text))
        if one is not None and one.end == len(text):
            found[package] = Pin(text[one.begin : one.end], node.span)
    return found


def _may_pin(text: str) -> bool:
    """Whether a table of a pyproject that may hold dependencies has something like a pin: ``torch == 2.1.0``, or
    ``torch = "2.1.0"``."""
    keeps = True
    for line in text.split("\n") if _MENTION.search(text) else ():
        work.spend(1, "reading which releases are pinned")
        header = _HEADER.match(line)
        if header:
            table = re.sub(r"[\"'\s]", "", header[1])
            keeps = table in ("project", "tool", "tool.poetry", "tool.poetry.dependencies")
        for mention in _MENTION.finditer(line) if keeps and not header else ():
            rest = line[mention.end() : mention.end() + 2 * MAX_RELEASE].lstrip("\"' ")
            rest = rest.partition("]")[2].lstrip() if rest.startswith("[") else rest
            if rest.startswith("=") and rest.lstrip("=\"' ")[:1].isdigit():
                return True
    return False


def _listed_bounds(text: str, path: str) -> dict[str, Pin]:
    """Lower bounds among the strings of ``[project]``, looked for line by line: to parse the file takes longer."""
    found: dict[str, Pin] = {}
    table = ""
    for number, line in enumerate(text.split("\n") if _MENTION.search(text) else (), start=1):
        work.spend(1, "reading which releases are pinned")
        header = _HEADER.match(line)
        table = header[1].strip() if header else table
        for mention in _MENTION.finditer(line) if table == "project" and not header else ():
            if line[mention.start() - 1 : mention.start()] not in ("'", '"') or "#" in line[: mention.start()]:
                continue
            one = _required(line, mention.start(), len(line))
            if one is not None and one.package.startswith(AT_LEAST):
                column = one.begin + 1
                span = Span(path, number, column, number, column + one.end - one.begin)
                found.setdefault(one.package, Pin(line[one.begin : one.end], span))
    return found


def _at(node: Node, *names: str) -> Any:
    for name in names:
        if not node.is_mapping or node.get(name) is None:
            return None
        node = node.get(name)  # type: ignore[assignment]
    return node


def _series(release: str) -> list[str]:
    return release.split("+", 1)[0].split(".", 2)[:2]
