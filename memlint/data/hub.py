"""From the name of a model to its ``config.json``: the catalogue, a folder, the local hub cache; never the network.

Files are read as JSON and nothing else: one file of a fixed name, regular, of bounded size.
"""

from __future__ import annotations

import json
import os
import stat
from typing import Any

from memlint.data import models
from memlint.named_tuple import NamedTuple

CONFIG = "config.json"
MAX_BYTES = 2**20  # real ones take a few KiB
CACHE = "local hub cache"
CATALOGUE = "catalogue"


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

    ``beside`` is the config that names it, or its folder. A relative folder is looked for there, then from the
    working directory, where the run itself would look for it. Contents that cannot be used are no exception but a
    ``reason``.
    """
    known = models.find(name)
    if known is not None:
        return Resolved(known.config, CATALOGUE)
    if not name or "\0" in name:
        return None
    found = _folder(name, beside) or _cached(name)
    if found is None and (copy := models.quantised(name)) is not None:
        found = Resolved(copy.config, f"{CATALOGUE}: {copy.name}, quantised")
    return found


def unknown(name: str) -> str:
    """Why there is no model of this name, and what would make it known."""
    return (
        f"{name!r} is not in the catalogue (`memlint models` lists it), is no folder with a {CONFIG}, "
        "and is not in the local hub cache; memlint downloads nothing"
    )


def _folder(name: str, beside: str) -> Resolved | None:
    folder = beside if os.path.isdir(beside) else os.path.dirname(beside)
    for base in dict.fromkeys((folder, "")):
        path = os.path.normpath(os.path.join(base, os.path.expanduser(name), CONFIG))
        if os.path.isfile(path):
            return _read(path, path)
    return None


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
        revision = _bytes(os.path.join(folder, "refs", "main")).decode("ascii").strip()
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
        config = json.loads(_bytes(path).decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        return Resolved({}, source, f"{path}:{error.lineno}: not JSON: {error.msg}")
    except OSError as error:
        return Resolved({}, source, f"{path} cannot be read: {error.strerror or error}")
    except RecursionError:
        return Resolved({}, source, f"{path}: nested too deeply")
    except ValueError as error:
        return Resolved({}, source, f"{path}: {error}")
    if not isinstance(config, dict):
        return Resolved({}, source, f"{path}:1: holds a {type(config).__name__} where a model's settings should be")
    if not isinstance(config.get("model_type"), str):
        return Resolved({}, source, f"{path}: names no model_type")
    return Resolved(config, source)


def _bytes(path: str) -> bytes:
    """Raises OSError, and ValueError for what is larger than ``MAX_BYTES``. A pipe or device is never waited for."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError("not a regular file")
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"larger than {MAX_BYTES // 1024} KiB")
    return content
