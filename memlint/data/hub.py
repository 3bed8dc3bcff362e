"""From the name of a model to its ``config.json``: the catalogue, a folder, the local hub cache; never the network.

Files are read as JSON and nothing else: one file of a fixed name, regular, of bounded size. A folder that a config
names lies in the config's own repository, or is named on the command line as well.
"""

from __future__ import annotations

import json
import os
from typing import Any

from memlint import files
from memlint.data import models
from memlint.named_tuple import NamedTuple

CONFIG = "config.json"
MAX_BYTES = 2**20  # real ones take a few KiB
CACHE = "local hub cache"
CATALOGUE = "catalogue"
OUTSIDE = "lies outside of this repository, and is read only where the command line names it (-o KEY=FOLDER)"


class Resolved(NamedTuple):
    """A model that was found.

    config  its hyper-parameters under the names of ``config.json``; empty where the file cannot be used
    source  where they are from: ``catalogue``, ``path/config.json``, ``local hub cache``
    reason  why there are none, though the file is there; else ""
    """

    config: dict[str, Any]
    source: str
    reason: str = ""


def resolve(name: str, beside: str = "") -> Resolved | None:
    """The model that a config means by ``name``; None where it is nowhere to be found on this machine.

    ``beside`` is the config that names it, or its folder ("": the user does). A relative folder is looked for there,
    then from the working directory, where the run itself would look for it. Contents that cannot be used are no
    exception but a ``reason``, and so is a folder outside of the config's repository.
    """
    known = models.find(name)
    if known is not None:
        return Resolved(known.config, CATALOGUE)
    if not name or "\0" in name:
        return None
    found = _folder(name, beside) or _cached(name)
    if found is None and (copy := models.quantised(name)) is not None:
        found = Resolved(copy.config, f"{CATALOGUE}: {copy.name}, quantised")
    if found is None and not _may_be_read(path := _places(name, beside)[0], beside):
        found = Resolved({}, path, OUTSIDE)
    return found


def unknown(name: str) -> str:
    """Why there is no model of this name, and what would make it known."""
    return (
        f"{name!r} is not in the catalogue (`memlint models` lists it), is no folder with a {CONFIG}, "
        "and is not in the local hub cache; memlint downloads nothing"
    )


def _folder(name: str, beside: str) -> Resolved | None:
    for path in _places(name, beside):
        if _may_be_read(path, beside) and os.path.isfile(path):
            return _read(path, path)
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


def _cached(name: str) -> Resolved | None:
    """``models--org--name/refs/main`` names the revision, ``snapshots/<revision>`` holds its files."""
    parts = name.split("/")
    if len(parts) > 2 or not all(_is_name(part) for part in parts):
        return None
    folder = os.path.join(cache_folder(), "--".join(("models", *parts)))
    try:
        revision = files.read(os.path.join(folder, "refs", "main"), MAX_BYTES).decode("ascii").strip()
    except (OSError, ValueError):
        return None
    if not _is_name(revision):
        return None
    path = os.path.join(folder, "snapshots", revision, CONFIG)
    return _read(path, CACHE) if os.path.isfile(path) else None


def _is_name(text: str) -> bool:
    """One part of a hub id or a revision: it cannot leave the folder that it is joined to."""
    return text.isascii() and text.strip(".") != "" and all(c.isalnum() or c in "._-" for c in text)


def _read(path: str, source: str) -> Resolved:
    try:
        config = json.loads(files.read(path, MAX_BYTES).decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        return Resolved({}, source, f"{path}:{error.lineno}: not JSON: {error.msg}")
    except OSError as error:
        return Resolved({}, source, f"{path}: {error.strerror or error}")
    except RecursionError:
        return Resolved({}, source, f"{path}: nested too deeply")
    except ValueError as error:
        return Resolved({}, source, f"{path}: {error}")
    if not isinstance(config, dict):
        return Resolved({}, source, f"{path}:1: holds a {type(config).__name__} where a model's settings should be")
    if not isinstance(config.get("model_type"), str):
        return Resolved({}, source, f"{path}: names no model_type")
    return Resolved(config, source)
