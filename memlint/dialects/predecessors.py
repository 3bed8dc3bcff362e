"""The run that makes the model of another one: what a run writes to its output folder has the shapes of its own model.

Who aligns what was tuned before names a folder that no repository holds. The config or the script that writes it often
does lie there, and says which model it started from.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from memlint import files, work
from memlint.documents import load
from memlint.documents.node import Node

SUFFIXES = (".yaml", ".yml", ".json", ".toml", ".sh", ".bash", ".slurm", ".sbatch")
MAX_FILES = 200  # that are looked into, nearest first
MAX_BYTES = 256 * 1024  # of one of them
MAX_CHAIN = 8  # runs after one another: a context that is lengthened step by step

# Where a run writes to, on disk or in the hub, and what it starts from: transformers and TRL (model_name_or_path,
# output_dir, hub_model_id), Axolotl (base_model), OpenRLHF (pretrain, save_path), ms-swift and programs of people's own
# (model).
_WRITES = ("output_dir", "save_path", "hub_model_id")
_READS = ("model_name_or_path", "base_model", "pretrain", "model")
# A folder of the run's own, below the one that it writes to.
_PART = re.compile(r"/(?:(?:checkpoint|step|epoch)[-_]\d+|(?:final|last|best|merged)(?:[-_](?:checkpoint|model))?)/?$")


def origin(name: str, beside: str) -> tuple[str, str] | None:
    """(the model that a run near ``beside`` starts from which writes the folder ``name``, the file that says so); None
    where none does, and where several do that start from different ones. Raises OutOfWork."""
    first = ""
    for _ in range(MAX_CHAIN):
        made = _made(name, beside)
        if len({model for model, _ in made}) != 1:
            break
        name, path = made[0]
        first = first or path
    else:
        return None
    return (name, first) if first else None


def _made(name: str, beside: str) -> list[tuple[str, str]]:
    """(the model that a run starts from, its file) of each run that writes a folder."""
    wanted = _folder(name)
    if "/" not in wanted and not name.startswith("./"):
        return []  # a name of the hub, or one that any run may have
    return [
        (model, path)
        for path in _near(beside)
        for model, folders in _runs(path)
        if wanted in folders and _folder(model) != wanted
    ]


# (the model that a run starts from, the folders that it writes) of each run of a file, while it stays as it is: all
# configs of a folder ask for the same ones.
_Runs = tuple[tuple[str, frozenset[str]], ...]
_kept: dict[tuple[object, ...], _Runs] = {}
_MOST_KEPT = 1024  # files


def _runs(path: str) -> _Runs:
    try:
        status = os.stat(path)
        if status.st_size > MAX_BYTES:
            return ()
        work.spend(work.KILOBYTE * status.st_size >> 10, "looking for the run that makes its model")
        key = (path, status.st_mtime_ns, status.st_size, *(text for other, text in files.edition() if other == path))
        if key not in _kept:
            if len(_kept) >= _MOST_KEPT:
                _kept.clear()
            _kept[key] = tuple(_read(path))
        return _kept[key]
    except (OSError, load.Unreadable):
        return ()


def _read(path: str) -> Iterator[tuple[str, frozenset[str]]]:
    text = load.read_text(path)
    if not any(key in text or key.replace("_", "-") in text for key in _WRITES):
        return
    document = load.load(path, text)
    for tree in (document.root, *(command.options for command in document.commands)):
        if not isinstance(tree.value, dict):
            continue
        stated = {str(name).replace("-", "_"): node for name, node in tree.value.items()}
        model = _first(stated, _READS)
        if model is not None:
            yield model, frozenset(map(_folder, _texts(stated, _WRITES)))


def _first(stated: dict[str, Node], names: tuple[str, ...]) -> str | None:
    return next(iter(_texts(stated, names)), None)


def _texts(stated: dict[str, Node], names: tuple[str, ...]) -> list[str]:
    values = (stated[name].value for name in names if name in stated)
    return [value for value in values if isinstance(value, str) and value]


def _folder(name: str) -> str:
    return os.path.normpath(_PART.sub("", name.replace(os.sep, "/"))).replace(os.sep, "/")


def _near(beside: str) -> Iterator[str]:
    """Files that may state the run: those of the folder, of the folders beside it, and of those above."""
    folder = os.path.dirname(beside)
    root = files.repository_root(folder or os.curdir)
    left = MAX_FILES
    for above in files.above(folder):
        inners = ("", *_folders(above)) if above != folder or os.path.realpath(above) == root else ("",)
        for inner in inners:
            for path in _listed(os.path.normpath(os.path.join(above, inner))):
                if files.inside(path, root):
                    yield path
                    left -= 1
                    if not left:
                        return


def _folders(folder: str) -> list[str]:
    try:
        names = sorted(name for name in os.listdir(folder or os.curdir) if not name.startswith("."))
    except OSError:
        return []
    work.spend(1 + len(names), "looking for the run that makes its model")
    return [name for name in names if os.path.isdir(os.path.join(folder, name))]


def _listed(folder: str) -> list[str]:
    try:
        names = sorted(os.listdir(folder or os.curdir))
    except OSError:
        return []
    work.spend(1 + len(names) // 4, "looking for the run that makes its model")
    return [os.path.normpath(os.path.join(folder, name)) for name in names if name.lower().endswith(SUFFIXES)]
