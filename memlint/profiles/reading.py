"""Reading a JSON file of ours that somebody may have changed by hand: what is wrong with it, and on which line."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, Union

from memlint import files, work

Key = Union[str, int]  # noqa: UP007
Read = TypeVar("Read")
MAX_FILE_BYTES = 4 << 20
MAX_REASON = 300  # characters: keys of the file are in it
CHARACTERS_PER_STEP = 8


class Wrong(Exception):
    """A value that is not what is expected; ``keys`` lead to it."""

    def __init__(self, reason: str, *keys: Key) -> None:
        super().__init__(reason)
        self.reason = reason
        self.keys = keys


class FileError(Exception):
    """A file that cannot be read: which one, on which line (0: none in particular), and why."""

    def __init__(self, path: str, reason: str, line: int = 0) -> None:
        reason = reason if len(reason) <= MAX_REASON else reason[: MAX_REASON - 3] + "..."
        super().__init__(f"{path}{f':{line}' if line else ''}: {reason}")
        self.path = path
        self.reason = reason
        self.line = line


def text_of(path: str, error: type[FileError]) -> str:
    """The text of a file. Raises ``error``."""
    try:
        return files.read(path, MAX_FILE_BYTES).decode("utf-8")
    except OSError as reason:
        raise error(path, f"cannot be read: {reason.strerror or reason}") from None
    except UnicodeDecodeError as reason:
        raise error(path, f"cannot be read: {reason}") from None


def loads(text: str, path: str, reader: Callable[[Any], Read], error: type[FileError], whole: str) -> Read:
    """What ``reader`` makes of a JSON text. Raises ``error``; ``whole`` is what the file is called where no key of it
    is at fault."""
    work.spend(len(text) // CHARACTERS_PER_STEP, "reading a JSON file")
    try:
        tree = json.loads(text)
    except RecursionError:
        raise error(path, "nested too deep") from None
    except ValueError as reason:
        raise error(path, f"not JSON: {getattr(reason, 'msg', reason)}", getattr(reason, "lineno", 0)) from None
    try:
        return reader(tree)
    except Wrong as wrong:
        raise located(wrong, text, path, error, whole) from None


def located(wrong: Wrong, text: str, path: str, error: type[FileError], whole: str) -> FileError:
    """What is wrong with a value of a JSON text, with its line."""
    return error(path, f"{_dotted(wrong.keys) or whole}: {wrong.reason}", _line(text, wrong.keys))


def expect(value: Any, kind: type, words: str, *keys: Key) -> Any:
    """``value``, if it is of a kind (no bool passes for an int). Raises Wrong."""
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise Wrong(f"{words} is expected", *keys)
    return value


def value_of(tree: dict[str, Any], key: str, kind: type, words: str, *above: Key) -> Any:
    """The value of a key that has to be there. Raises Wrong."""
    if key not in tree:
        raise Wrong(f"has no {key!r}", *above)
    return expect(tree[key], kind, words, *above, key)


def texts(tree: dict[str, Any], key: str, *above: Key) -> dict[str, str]:
    """An object of texts. Raises Wrong."""
    found: dict[str, str] = value_of(tree, key, dict, "an object", *above)
    for name, value in found.items():
        expect(value, str, "text", *above, key, name)
    return found


def _dotted(keys: Sequence[Key]) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).lstrip(".")


def _line(text: str, keys: Sequence[Key]) -> int:
    """The line of a value: only for messages, so the reader with positions is asked only now."""
    from memlint.documents.json import read

    try:
        node = read("", text).root
    except (ValueError, RecursionError):  # positions are a courtesy; the message stands without them
        return 0
    for key in keys:
        child: Any = None
        if isinstance(node.value, dict):
            child = node.value.get(str(key))
        elif isinstance(node.value, list) and isinstance(key, int) and key < len(node.value):
            child = node.value[key]
        if child is None:
            break
        node = child
    return (node.key_span or node.span).line
