"""Where the linted tree ends. Strangers may have written what lies in it, so that it is obeyed less than what whoever
runs memlint says, and never imported.
"""

# No `from __future__ import annotations`: it imports a module, and this one runs before the path is safe for that.
import os
import sys


def is_within(path: str, folder: str) -> bool:
    """Whether an absolute path is the folder or lies below it, as both are spelled."""
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def ancestors(folder: str) -> list[str]:
    """An absolute folder and those above it, innermost first."""
    found = [folder]
    while os.path.dirname(found[-1]) != found[-1]:
        found.append(os.path.dirname(found[-1]))
    return found


def tree_of(folder: str) -> str:
    """The tree that an absolute folder is a part of: its repository; outside of one the working folder, where the
    folder lies below it; else the folder itself."""
    for above in ancestors(folder):
        if os.path.lexists(os.path.join(above, ".git")):
            return above
    here = os.getcwd()
    return here if is_within(folder, here) and here != os.path.dirname(here) else folder


def import_nothing_of(words: list[str]) -> None:
    """Take the linted trees off ``sys.path``, those of the working folder and of each of the words that is a path.

    What ``PYTHONPATH``, ``python -m`` or the script's own place brought goes, where it lies in a linted tree; what is
    installed stays, an environment within the tree included, and so does the folder that holds memlint itself.
    """
    try:
        here = os.getcwd()
    except OSError:  # deleted: there is nothing in it
        here = ""
    script = os.path.dirname(os.path.realpath(sys.argv[0])) if here or os.path.isabs(sys.argv[0]) else ""
    brought = {here, script}
    trees = {here}
    if here:
        brought.update(os.path.realpath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep))
        paths = [os.path.abspath(word) for word in words if "\0" not in word and os.path.exists(word)]
        folders = [here, *(path if os.path.isdir(path) else os.path.dirname(path) for path in paths)]
        trees.update(os.path.realpath(tree_of(folder)) for folder in folders)
    trees = {tree for tree in trees if tree != os.path.dirname(tree)}  # of the whole disk nothing would stay
    own = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))

    def stays(entry: str) -> bool:
        if not os.path.isabs(entry):
            return bool(here) and os.path.realpath(entry) == own
        place = os.path.realpath(entry)
        if place == own or place not in brought:
            return True
        return place != here and not any(is_within(place, tree) for tree in trees)

    sys.path[:] = [entry for entry in sys.path if stays(entry)]
