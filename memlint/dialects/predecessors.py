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
from memlint.documents.node import Document, Node

SUFFIXES = (".yaml", ".yml", ".json", ".toml", ".sh", ".bash", ".slurm", ".sbatch")
MAX_FILES = 200  # that are looked into, nearest first
MAX_BYTES = 256 * 1024  # of one of them
MAX_CHAIN = 3  # runs after one another

# Where a run writes to, and what it starts from: transformers and TRL (model_name_or_path, output_dir), Axolotl
# (base_model), OpenRLHF (pretrain, save_path).
_WRITES = ("output_dir", "save_path")
_READS = ("model_name_or_path", "base_model", "pretrain")
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
    last = wanted.rpartition("/")[2]
    if "/" not in wanted or not last:
        return []  # a name of the hub, or one that any run may have
    found: list[tuple[str, str]] = []
    for path in _near(beside):
        try:
            text = load.read_text(path) if os.stat(path).st_size <= MAX_BYTES else ""
        except (OSError, load.Unreadable):
            continue
        work.spend(work.KILOBYTE * len(text) >> 10, "looking for the run that makes its model")
        if last not in text or not any(key in text for key in _WRITES):
            continue
        document = load.load(path, text)
        found += ((model, path) for model in _models(document, wanted) if _folder(model) != wanted)
    return found


def _models(document: Document, wanted: str) -> Iterator[str]:
    """The models that the runs of a document start from which write a folder."""
    for tree in (document.root, *(command.options for command in document.commands)):
        if not isinstance(tree.value, dict):
            continue
        stated = {str(name).replace("-", "_"): node for name, node in tree.value.items()}
        model = _first(stated, _READS)
        if model is not None and any(_folder(folder) == wanted for folder in _texts(stated, _WRITES)):
            yield model


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
