"""Which releases a run is made with, where a file of the project pins them.

A config rarely says which PyTorch will run it, and the same config takes different memory under different releases.
What an environment is installed from says it: a lock file, ``requirements.txt``, conda's ``environment.yml``,
``pyproject.toml``. They are looked for beside the config and in the folders above it, up to the root of the
repository. Only one exact release counts; a lower bound, or two pins that disagree, say nothing.
"""

from __future__ import annotations

import os
import re
from typing import Any

from memlint.dialects.spec import WRITTEN, Fact
from memlint.documents.node import Node, Span
from memlint.documents.places import inside, repository_root
from memlint.named_tuple import NamedTuple

# What is installed goes before what is asked for.
LOCKS = ("uv.lock", "poetry.lock", "Pipfile.lock")
REQUIREMENTS = ("requirements.txt", "environment.yml", "environment.yaml", "pyproject.toml")
# package -> the fact that its release is; torch and jax are one, named in its value
PACKAGES = {
    "torch": "framework_version",
    "pytorch": "framework_version",
    "jax": "framework_version",
    "transformers": "transformers_version",
    "torchtune": "implementation_version",  # of runs that are torchtune's
}
MAX_BYTES = 8 << 20
MAX_CLIMB = 64

_NAMES = "|".join(PACKAGES)
_RELEASE = r"(?P<release>\d+(?:\.\d+)+[\w.+!-]*)"
_FORMS = {
    # torch==2.1.0+cu118 ; python_version < "3.13"
    "requirements.txt": rf"^\s*(?P<name>{_NAMES})\s*(?:\[[^\]\n]*\])?\s*===?\s*{_RELEASE}",
    # - pytorch=1.10.1=py3.8_cuda11.3, and pip's lines below it
    "environment.yml": rf"^\s*-\s*[\"']?(?P<name>{_NAMES})\s*={{1,3}}\s*{_RELEASE}",
    # name = "torch", and the line after it
    "uv.lock": rf"^name = \"(?P<name>{_NAMES})\"\s*\nversion = \"{_RELEASE}\"",
    # "torch": {"hashes": [...], ..., "version": "==2.1.0"}
    "Pipfile.lock": rf"^\s*\"(?P<name>{_NAMES})\": \{{[^{{}}]*?\"version\": \"==?=?{_RELEASE}\"",
}
# "torch == 2.1.0" or torch = "2.1.0", with extras or without
_MAY_PIN = rf"(?:{_NAMES})[\"']?\s*(?:\[[^\]\n]*\])?\s*={{1,3}}\s*[\"']?[=\s]*\d"
_FORMS["environment.yaml"] = _FORMS["environment.yml"]
_FORMS["poetry.lock"] = _FORMS["uv.lock"]


class Pin(NamedTuple):
    """A release, and where it stands."""

    release: str
    span: Span


def state(facts: dict[str, Fact], path: str) -> None:
    """Add to the facts of a run, whose config is ``path``, the releases that its project pins."""
    framework, library = facts.get("framework"), facts.get("implementation")
    if not path or framework is None:
        return
    found = pins(os.path.dirname(path))  # a path from the working directory stays one in the report
    for package, pin in found.items():
        name = PACKAGES[package]
        here = "torch" if package == "pytorch" else package
        if name == "framework_version" and here != framework.value:
            continue
        if name == "implementation_version" and (library is None or library.value != package):
            continue
        old = facts.get(name)
        if old is not None and old.node is not None:
            continue
        value = pin.release if name != "framework_version" else f"{here} {pin.release}"
        facts[name] = Fact(name, value, WRITTEN, package, Node(value, pin.span, pin.span, package))


def pins(folder: str) -> dict[str, Pin]:
    """Package -> its release, as the nearest file that pins it has it."""
    found: dict[str, Pin] = {}
    root = repository_root(folder)
    at = folder or "."
    for _ in range(MAX_CLIMB):
        for name in (*LOCKS, *REQUIREMENTS):
            for package, pin in _read(os.path.normpath(os.path.join(at, name)), name, root).items():
                found.setdefault(package, pin)
        if os.path.realpath(at) == root or len(found) == len(PACKAGES):
            break
        at = os.path.join(at, os.pardir)
    return found


_read_before: dict[tuple[str, int, int], dict[str, Pin]] = {}


def _read(path: str, name: str, root: str) -> dict[str, Pin]:
    """The pins of one file; none where it is missing, too large, outside of the repository, or cannot be read."""
    try:
        status = os.stat(path)
        if status.st_size > MAX_BYTES or not inside(os.path.realpath(path), root):
            return {}
        state = (path, status.st_mtime_ns, status.st_size)
        if state not in _read_before:
            with open(path, encoding="utf-8", errors="replace") as file:
                text = file.read()
            _read_before[state] = _project(text, path) if name == "pyproject.toml" else _matched(text, path, name)
    except (OSError, ValueError):
        return {}
    return _read_before[state]


def _matched(text: str, path: str, name: str) -> dict[str, Pin]:
    found: dict[str, Pin] = {}
    several: set[str] = set()
    for match in re.finditer(_FORMS[name], text, re.MULTILINE):
        line = text.count("\n", 0, match.start("release")) + 1
        begin = match.start("release") - text.rfind("\n", 0, match.start("release"))
        release = match["release"]
        pin = Pin(release, Span(path, line, begin, line, begin + len(release)))
        package = match["name"]
        if _series(found.setdefault(package, pin).release) != _series(release):
            several.add(package)
    return {package: pin for package, pin in found.items() if package not in several}


def _project(text: str, path: str) -> dict[str, Pin]:
    """``[project] dependencies``, or Poetry's. Extras are not what a run is installed with."""
    if not _may_pin(text):
        return {}  # which spares most projects a TOML parser
    from memlint.documents import toml

    document = toml.read(path, text)
    found: dict[str, Pin] = {}
    listed = _at(document.root, "project", "dependencies")
    for node in listed.value if listed is not None and listed.is_list else ():
        match = re.match(_FORMS["requirements.txt"], str(node.value))
        if match:
            found[match["name"]] = Pin(match["release"], node.span)
    table = _at(document.root, "tool", "poetry", "dependencies")
    for package in PACKAGES if table is not None and table.is_mapping else ():
        node = table.get(package)
        match = re.fullmatch(rf"(?:===?\s*)?{_RELEASE}", str(node.value)) if node is not None else None
        if match and node is not None:
            found[package] = Pin(match["release"], node.span)
    return found


def _may_pin(text: str) -> bool:
    """Whether a table of a pyproject that may hold dependencies has something like a pin."""
    kept, keeps = [], True
    for line in text.splitlines():
        header = re.match(r"\s*\[\[?([\w.\"' -]+)\]\]?\s*(?:#.*)?$", line)
        if header:
            table = re.sub(r"[\"'\s]", "", header[1])
            keeps = table in ("project", "tool", "tool.poetry", "tool.poetry.dependencies")
        elif keeps:
            kept.append(line)
    return re.search(_MAY_PIN, "\n".join(kept)) is not None


def _at(node: Node, *names: str) -> Any:
    for name in names:
        if not node.is_mapping or node.get(name) is None:
            return None
        node = node.get(name)  # type: ignore[assignment]
    return node


def _series(release: str) -> list[str]:
    return release.split("+")[0].split(".")[:2]


def older(version: Any, than: tuple[int, int]) -> bool:
    """Whether a release comes before another: ``4.50.0``, ``torch 2.6``. No release is older than any."""
    release = str(version or "").rpartition(" ")[2]
    numbers = tuple(int(part) for part in release.split(".")[:2] if part.isdigit())
    return len(numbers) == 2 and numbers < than
