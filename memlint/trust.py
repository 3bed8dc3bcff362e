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

    What ``PYTHONPATH`` or ``python -m`` brought goes, where it lies in a linted tree; what is installed stays, an
    environment within the tree included, and so does the folder that holds memlint itself.
    """
    try:
        here = os.getcwd()
    except OSError:  # deleted: there is nothing in it
        here = ""
    own = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    named = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    brought = {here, *(os.path.abspath(entry) for entry in named if here or os.path.isabs(entry))}
    suspects = {entry for entry in sys.path if entry in brought or not os.path.isabs(entry)}
    if not suspects:  # most calls
        return
    paths = [os.path.abspath(word) for word in words if "\0" not in word and os.path.exists(word)] if here else []
    folders = [path if os.path.isdir(path) else os.path.dirname(path) for path in paths]
    trees = {os.path.realpath(tree_of(folder)) for folder in (here, *folders) if folder}
    trees = {tree for tree in trees if tree != os.path.dirname(tree)}  # of the whole disk nothing would stay

    def goes(entry: str) -> bool:
        if not (here or os.path.isabs(entry)):
            return True
        place = os.path.realpath(entry)
        if place == own:
            return False
        return not os.path.isabs(entry) or place == here or any(is_within(place, tree) for tree in trees)

    gone = {entry for entry in suspects if goes(entry)}
    sys.path[:] = [entry for entry in sys.path if entry not in gone]
