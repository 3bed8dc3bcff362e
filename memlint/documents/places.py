"""Where a config may send its reader: files of its own repository, and no others."""

from __future__ import annotations

import os

MAX_CLIMB = 4


def repository_root(folder: str) -> str:
    """The nearest folder at or above ``folder`` that holds ``.git``; else the working directory where that is
    above ``folder``; else, where nothing says how far a project reaches, the folder four levels up."""
    folder = os.path.realpath(folder or ".")
    at = folder
    while True:
        if os.path.exists(os.path.join(at, ".git")):
            return at
        parent = os.path.dirname(at)
        if parent == at:
            break
        at = parent
    here = os.path.realpath(os.getcwd())
    if inside(folder, here):
        return here
    for _ in range(MAX_CLIMB):
        folder = os.path.dirname(folder)
    return folder


def inside(path: str, root: str) -> bool:
    """Whether a resolved path is ``root`` or below it."""
    return path == root or path.startswith(root.rstrip(os.sep) + os.sep)
