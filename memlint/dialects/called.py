"""The scripts that a script starts with arguments, or with variables that it exports.

A script that is told its model by ``$1`` is no run that anybody can judge; who calls it with all of them states one,
and is where the run is reported. What is given keeps the place where the caller wrote it.
"""

from __future__ import annotations

import contextlib
import re

from memlint import work
from memlint.dialects import companions
from memlint.documents.node import Call, Command, Document, Unresolved

MAX_DEPTH = 3  # scripts that call scripts
MAX_SCRIPTS = 64  # of one script's, and theirs
SHARE = 4
_ARGUMENT = re.compile(r"\$(?:[1-9@*#]|\{[1-9@*#])")
_CONFIG = re.compile(r"-{1,2}(?:cfg|config)(?:[-_](?:name|file|path))?")


def documents(document: Document) -> list[Document]:
    """The scripts that a script calls, each read with what it is given, where that says anything to it. They have a
    share of the work that is left, and where it ends those before it stand."""
    found: list[Document] = []
    with contextlib.suppress(work.OutOfWork), work.limited(work.meter().left // SHARE):
        _follow(document, found, 0)
    return found


def _follow(document: Document, found: list[Document], depth: int) -> None:
    from memlint.documents import load

    for call in document.calls if depth < MAX_DEPTH else ():
        path = companions.find(call.script, document.path)
        if path is None or path == document.path:
            continue
        try:
            text = load.read_text(path)
        except load.Unreadable:
            continue
        if not _tells(call, text):
            continue
        inner = as_called(call, document, path, text)
        if inner.commands:
            found.append(inner)
        if len(found) >= MAX_SCRIPTS:
            return
        _follow(inner, found, depth + 1)


def as_called(call: Call, caller: Document, path: str, text: str) -> Document:
    """A script, read with what a call of ``caller``'s gives it."""
    from memlint.documents.shell import reader as shell

    inner = shell.read(path, text, call)
    return inner._replace(sources={**caller.sources, caller.path: caller.text, path: text}, told=caller.told)


def asks(text: str) -> bool:
    """Whether a script looks at its arguments."""
    return _ARGUMENT.search(text) is not None


def is_told_its_config(command: Command) -> bool:
    """Whether the config that a command starts is an argument of the script that it stands in: ``train.py $1``."""
    from memlint.documents.shell.expansion import ARGUMENT

    option = ""
    for at, word in enumerate(command.words):
        stated = list(word.value.items()) if isinstance(word.value, dict) else [(option, word)]
        for name, node in stated:
            if not isinstance(node.value, Unresolved) or not node.value.reason.startswith(ARGUMENT):
                continue
            if (at == 0 and name == "") or _CONFIG.fullmatch(str(name)):
                return True
        option = word.value if isinstance(word.value, str) else ""
    return False


def _tells(call: Call, text: str) -> bool:
    """Whether a script looks at what it is given."""
    if call.arguments and asks(text):
        return True
    names = [re.escape(name) for name in call.environment]
    return bool(names) and re.search(rf"\$\{{?(?:{'|'.join(names)})\b", text) is not None
