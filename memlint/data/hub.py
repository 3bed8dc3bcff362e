"""From the name of a model to its ``config.json``, and never by the network (that is ``download.py``, on demand).

It is looked for in what ``memlint models add`` fetched, in the catalogue, in a folder of this name, and in the local
hub cache. Files are read as JSON and nothing else: one file, regular, of bounded size. A folder that a config names
lies in the config's own repository, or is named on the command line as well. What ``--model-config`` names goes before
all of it, for the model that is trained and for no other (a tower, a teacher).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from memlint import files
from memlint.data import models
from memlint.named_tuple import NamedTuple

CONFIG = "config.json"
MAX_BYTES = 2**20  # real ones take a few KiB
CACHE = "local hub cache"
CATALOGUE = "catalogue"
ADDED = "memlint models add"
STATED = "--model-config"
BY_NAME = ", whose name the folder has"
OUTSIDE = "lies outside of this repository, and is read only where the command line names it (-o KEY=FOLDER)"


# A document's ``[meta-llama/Llama-3.1-8B-Instruct]``: what its reader is to put there.
_FILLED_IN = re.compile(r"\[[^\[\]<>]*\]|<[^\[\]<>]*>")


class Resolved(NamedTuple):
    """A model that was found.

    config  its hyper-parameters under the names of ``config.json``; empty where the file cannot be used
    source  where they are from: ``catalogue``, ``path/config.json``, ``local hub cache``, a model's name and BY_NAME
    reason  why there are none, though the model is known to be there; else ""
    """

    config: dict[str, Any]
    source: str
    reason: str = ""


_stated: ContextVar[Resolved | None] = ContextVar("memlint_model_config", default=None)


@contextmanager
def stating(found: Resolved) -> Iterator[None]:
    """While it lasts, this is the model that every run trains, whatever its config calls it."""
    token = _stated.set(found)
    try:
        yield
    finally:
        _stated.reset(token)


def stated() -> Resolved | None:
    """The model that :func:`stating` names."""
    return _stated.get()


def resolve(name: str, beside: str = "") -> Resolved | None:
    """The model that a config means by ``name``; None where it is nowhere to be found on this machine.

    ``beside`` is the config that names it, or its folder ("": the user does). A relative folder is looked for there,
    then from the working directory, where the run itself would look for it. Contents that cannot be used are no
    exception but a ``reason``, and so is a folder outside of the config's repository.
    """
    if _FILLED_IN.fullmatch(name):
        name = name[1:-1]
    if (own := _added(name)) is not None:
        return own
    known = models.find(name)
    if known is not None:
        return Resolved(known.config, CATALOGUE)
    if not name or "\0" in name:
        return None
    found = _folder(name, beside) or _cached(name)
    if found is None and (copy := models.quantised(name)) is not None:
        found = Resolved(copy.config, f"{CATALOGUE}: {copy.name}, quantised")
    if found is None and (kind := models.undescribed(name)):
        it = kind if " " in kind else f"of type {kind}"
        found = Resolved({}, CATALOGUE, f"it is {it}, whose layers memlint does not describe")
    if found is None and (kind := models.unlisted(name)):
        told = f"it is of type {kind}, in a size that is not there: {ways_out(name)}"
        found = Resolved({}, CATALOGUE, told)
    if found is None and (model := models.named(name)) is not None:
        found = Resolved(model.config, f"{model.name}{BY_NAME}")
    if found is None and not _may_be_read(path := _places(name, beside)[0], beside):
        found = Resolved({}, path, OUTSIDE)
    return found


def resembling(name: str, beside: str = "") -> tuple[str, ...]:
    """Hub ids of models after which one is called that is nowhere to be found; () where it is found, or broken."""
    from memlint.data import resemblance

    found = resolve(name, beside)
    return resemblance.resembling(name) if found is None or found.reason == OUTSIDE else ()


def unknown(name: str) -> str:
    """Why there is no model of this name, and what would make it known."""
    return (
        f"{name!r} is not in the catalogue (`memlint models` lists it), is no folder with a {CONFIG}, "
        f"and is not in the local hub cache: {ways_out(name)}"
    )


def ways_out(name: str) -> str:
    """What makes a model known that is not: the command that fetches its ``config.json``, the option that names it."""
    named = f"`{STATED} FILE` names its {CONFIG}"
    return f"`{ADDED} {name}` fetches its {CONFIG}, {named}" if name.count("/") == 1 and is_id(name) else named


def is_id(name: str) -> bool:
    """Whether the hub may have a model of this name: one part, or two with a slash between them."""
    parts = name.split("/")
    return len(parts) <= 2 and all(_is_name(part) for part in parts)


def _folder(name: str, beside: str) -> Resolved | None:
    for path in _places(name, beside):
        if _may_be_read(path, beside) and os.path.isfile(path):
            return read_file(path, path)
    return None


def _places(name: str, beside: str) -> list[str]:
    """Where the ``config.json`` of a folder would be: beside the config first."""
    folder = beside if os.path.isdir(beside) else os.path.dirname(beside)
    name = os.path.expanduser(name)
    return [os.path.normpath(os.path.join(base, name, CONFIG)) for base in dict.fromkeys((folder, ""))]


def _may_be_read(path: str, beside: str) -> bool:
    """Whether a config may send its reader there. What lies elsewhere is not even looked for."""
    folder = beside if os.path.isdir(beside) else os.path.dirname(beside)
    return not beside or files.inside(path, files.repository_root(folder))


def cache_folder() -> str:
    """Where ``huggingface_hub`` keeps what was downloaded, from its own environment variables, in its own order."""
    environment = os.environ
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environment.get(variable):
            return os.path.expanduser(environment[variable])
    home = environment.get("HF_HOME")
    if not home:
        home = os.path.join(environment.get("XDG_CACHE_HOME") or os.path.join("~", ".cache"), "huggingface")
    return os.path.join(os.path.expanduser(home), "hub")


def added_folder() -> str:
    """Where ``memlint models add`` keeps what it fetched: ``$XDG_CACHE_HOME/memlint/models``, by default below
    ``~/.cache``. A relative path would be a part of the linted tree, and is not taken."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(home):
        home = os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(home, "memlint", "models")


def added_path(name: str) -> str:
    """Where the ``config.json`` of an id is kept: ids are compared in any case."""
    return os.path.join(added_folder(), "--".join(name.lower().split("/")), CONFIG)


def _added(name: str) -> Resolved | None:
    path = added_path(name) if is_id(name) else ""
    return read_file(path, ADDED) if os.path.isabs(path) and os.path.isfile(path) else None


def _cached(name: str) -> Resolved | None:
    """``models--org--name/refs/main`` names the revision, ``snapshots/<revision>`` holds its files."""
    if not is_id(name):
        return None
    folder = os.path.join(cache_folder(), "--".join(("models", *name.split("/"))))
    try:
        revision = files.read(os.path.join(folder, "refs", "main"), MAX_BYTES).decode("ascii").strip()
    except (OSError, ValueError):
        return None
    if not _is_name(revision):
        return None
    path = os.path.join(folder, "snapshots", revision, CONFIG)
    return read_file(path, CACHE) if os.path.isfile(path) else None


def _is_name(text: str) -> bool:
    """One part of a hub id or a revision: it cannot leave the folder that it is joined to."""
    return text.isascii() and text.strip(".") != "" and all(c.isalnum() or c in "._-" for c in text)


def read_file(path: str, source: str) -> Resolved:
    """The model that a ``config.json`` describes, whatever the file is called."""
    try:
        return parsed(files.read(path, MAX_BYTES), path, source)
    except OSError as error:
        return Resolved({}, source, f"{path}: {error.strerror or error}")


def parsed(content: bytes, place: str, source: str) -> Resolved:
    """The model that the bytes of a ``config.json`` describe; ``place`` is what a reason calls them."""
    try:
        config = json.loads(content.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        return Resolved({}, source, f"{place}:{error.lineno}: not JSON: {error.msg}")
    except RecursionError:
        return Resolved({}, source, f"{place}: nested too deeply")
    except ValueError as error:
        return Resolved({}, source, f"{place}: {error}")
    if not isinstance(config, dict):
        return Resolved({}, source, f"{place}:1: holds a {type(config).__name__} where a model's settings should be")
    if not isinstance(config.get("model_type"), str):
        return Resolved({}, source, f"{place}: names no model_type")
    return Resolved(config, source)
