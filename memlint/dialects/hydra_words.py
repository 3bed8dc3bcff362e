"""Words behind a program of Hydra's: some choose the files of a group, the others set values."""

from __future__ import annotations

import os
import re

from memlint import files, work
from memlint.dialects import companions
from memlint.dialects.trees import overlaid, why_unknown
from memlint.documents.hydra import composition as hydra
from memlint.documents.node import Command, Document, Node, Unresolved
from memlint.documents.overrides import OverrideError
from memlint.facts.spec import Missing
from memlint.named_tuple import NamedTuple


class Composed(NamedTuple):
    """A config as a command's words make it; ``missing``: words whose choice is not known, or refused."""

    document: Document
    missing: tuple[Missing, ...] = ()


def compose(document: Document, words: list[Node], script: Document) -> Composed:
    """A config that a command starts, with what its words choose and set; ``document`` is what it is without them."""
    from memlint.documents import interpolation, load

    if not words:
        return Composed(document)
    groups, values, missing = [], [], []
    for word in words:
        unknown = isinstance(word.value, Unresolved)
        text = word.value.text.strip("\"'") if isinstance(word.value, Unresolved) else str(word.value)
        key = text.partition("=")[0].lstrip("+~")
        if not hydra.is_group(document, key):
            values.append(word)
        elif unknown:
            missing.append(Missing(key, word.span, why_unknown(word)))
        else:
            groups.append(text)
    try:
        made = hydra.compose(load.load(document.path), overrides=groups)
    except (OverrideError, OSError, load.Unreadable) as error:
        missing.append(Missing(str(words[0].value), words[0].span, str(error)))
        return Composed(document, tuple(missing))
    root = interpolation.resolve(overlaid(made.root, values, script))
    return Composed(made._replace(root=root), tuple(missing))


# hydra.main(config_path=str(pathlib.Path(__file__).parent.joinpath("package", "config"))), or the folder as a text. No
# part of either pattern goes past a bracket, so that a text is read once however often it begins like one.
_KEY = r"hydra\.main\([^()]*?\bconfig_path\s*=\s*"
_JOINED = re.compile(_KEY + r"(?:str\(\s*)?(?:pathlib\.)?Path\(\s*__file__\s*\)\.parent\.joinpath\(([^()]*)\)")
_STATED = re.compile(_KEY + r"[\"']([\w/.-]+)[\"']")
_WORD = re.compile(r"[\"']([\w/.-]+)[\"']")
MAX_BYTES = 100_000


def folder_of(program: str, beside: str) -> str:
    """Where a program of Hydra's keeps its configs, as a command beside a file sees it; "" where it does not say."""
    from memlint.documents import load

    path = companions.find(program, beside) if program.endswith(".py") else None
    if path is None:
        return ""
    try:
        text = load.read_text(path) if os.stat(path).st_size <= MAX_BYTES else ""
    except (OSError, load.Unreadable):
        return ""
    work.spend(work.KILOBYTE * len(text) >> 10, "looking for the folder of a program's configs")
    joined, stated = _JOINED.search(text), _STATED.search(text)
    parts = _WORD.findall(joined[1]) if joined is not None else [stated[1]] if stated is not None else []
    return os.path.join(os.path.dirname(program), *parts) if parts else ""


# @hydra.main(config_path="config", config_name="ppo_trainer"), the two in either order.
_MAIN = re.compile(r"hydra\.main\(([^()]*)\)")
_TOLD = re.compile(r"\bconfig_(path|name)\s*=\s*[\"']([\w/.-]+)[\"']")


def own_config(command: Command, script: Document, words: list[Node]) -> Composed | None:
    """The config that the program of a command names itself, before its values are followed; None where the program is
    not in the repository, or names none that is there. Raises OutOfWork."""
    from memlint.dialects import scripts
    from memlint.documents import load

    path = scripts.file_of(command, script)
    try:
        text = load.read_text(path) if path is not None and os.stat(path).st_size <= MAX_BYTES else ""
    except (OSError, load.Unreadable):
        return None
    work.spend(work.KILOBYTE * len(text) >> 10, "looking for the folder of a program's configs")
    main = _MAIN.search(text)
    told = dict(_TOLD.findall(main[1])) if main is not None else {}
    named, folder = command.options.get("config-name"), command.options.get("config-path")
    name = told.get("name", "") if named is None else named.value
    if path is None or "path" not in told or not isinstance(name, str) or not name or folder is not None:
        return None
    config = os.path.normpath(os.path.join(os.path.dirname(path), told["path"], name.removesuffix(".yaml") + ".yaml"))
    root = files.repository_root(os.path.dirname(path) or os.curdir)
    if not os.path.isfile(config) or not files.inside(config, root):
        return None
    try:
        chosen = [one for word in words if (one := _choice(word)) and "." not in one.partition("=")[0]]
        document = load.load(config)
        if not isinstance(document.root.value, dict):
            return None
        groups = [one for one in chosen if hydra.is_group(document, one.partition("=")[0])]
        if "defaults" in document.root.value:
            document = hydra.compose(document, overrides=groups)
    except (OverrideError, OSError, load.Unreadable):
        return None
    return Composed(document) if isinstance(document.root.value, dict) else None


def _choice(word: Node) -> str:
    return word.value.lstrip("+~") if isinstance(word.value, str) and "=" in word.value else ""


def laid(root: Node, words: list[Node], script: Document, beneath: frozenset[str]) -> Node:
    """A program's own config with the words of its command on top. What of the config is not known, or asks for what
    nobody gives, is left out: nobody has chosen it."""
    from memlint.documents import interpolation

    return _known(interpolation.resolve(overlaid(root, words, script)), beneath)


def _known(node: Node, beneath: frozenset[str]) -> Node:
    if not isinstance(node.value, dict):
        return node
    kept = {
        name: _known(child, beneath)
        for name, child in node.value.items()
        if not (child.is_unresolved and child.span.path in beneath)
    }
    return Node(kept, node.span, node.key_span, node.keys, node.via)


def place(name: str, folders: list[str], beside: str) -> str:
    """The path of a primary config in one of these folders, as a command beside a file names it; "" for one in none."""
    plain = name.removesuffix(".yaml")
    for folder in folders:
        path = f"{folder}/{plain}.yaml"
        if companions.find(path, beside) is not None:
            return path
    return ""
