"""Where a config may send its reader: files of its own repository, and no others."""

from __future__ import annotations

import os


def repository_root(folder: str) -> str:
    """The nearest folder at or above ``folder`` that holds ``.git``; else the working directory where that is
    above ``folder``; else ``folder`` itself."""
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
    return here if inside(folder, here) else folder


def inside(path: str, root: str) -> bool:
    """Whether a resolved path is ``root`` or below it."""
    return path == root or path.startswith(root.rstrip(os.sep) + os.sep)
