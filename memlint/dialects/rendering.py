"""How a value is written in each format, and the text that it is written into."""

from __future__ import annotations

from typing import Any

from memlint.dialects.base import file_text
from memlint.documents.lines import bounds, line_starts, position
from memlint.documents.node import Edit, Span
from memlint.facts.spec import TrainingSpec


class SourceText:
    """A file's text with its lines, and the format that its values are rendered in."""

    def __init__(self, path: str, text: str, format_: str) -> None:
        self.path = path
        self.text = text
        self.format = format_
        self.starts = line_starts(text, path)

    def at(self, span: Span) -> str:
        start, end = bounds(self.starts, span)
        return self.text[start:end]

    def insertion(self, offset: int, text: str) -> Edit:
        line, column = position(self.starts, offset)
        return Edit(Span(self.path, line, column, line, column), text)

    def line_end(self, line: int) -> int:
        """Offset of the end of a 1-based line, before its line break."""
        end = self.starts[line] if line < len(self.starts) else len(self.text)
        start = self.starts[line - 1]
        while end > start and self.text[end - 1] in "\r\n\x85\u2028\u2029":
            end -= 1
        return end

    def line_before(self, offset: int) -> str:
        """The text of the line from its start up to an offset."""
        line, _ = position(self.starts, offset)
        return self.text[self.starts[line - 1] : offset]

    @property
    def newline(self) -> str:
        return "\r\n" if "\r\n" in self.text else "\n"


def text_of(spec: TrainingSpec, path: str) -> SourceText | None:
    """The text of a file that the run was read from; None for a place that is no file (an override)."""
    document = spec.document
    text = document.text if path == document.path else document.sources.get(path)
    if text is None:
        return None
    return SourceText(path, text, _format_of(spec, path))


def _format_of(spec: TrainingSpec, path: str) -> str:
    if path == spec.document.path:
        return spec.document.format
    suffix = path.rsplit(".", 1)[-1].lower()
    known = {"yml": "yaml", "yaml": "yaml", "json": "json", "toml": "toml", "py": "python"}
    return known.get(suffix, "shell")


def rendered(text: SourceText, span: Span, old: str, value: Any) -> str | None:
    """A value in place of ``old``, in the style of what stood there; None where it cannot be written there."""
    if text.format == "shell":
        return shell_value(value, old)
    if text.format == "yaml" and not old:  # `key:` without a value
        start, _ = bounds(text.starts, span)
        before = text.text[start - 1 : start]
        return ("" if before in (" ", "\t") else " ") + yaml_value(value)
    return _render(text.format, value, old)


def _render(format_: str, value: Any, old: str = "") -> str:
    if format_ == "yaml":
        return yaml_value(value, old)
    if format_ == "python":
        return python_value(value, old)
    return toml_value(value) if format_ == "toml" else json_value(value)


def json_value(value: Any) -> str:
    import json

    return json.dumps(value, ensure_ascii=False)


def _float_text(value: float) -> str:
    """A float that every reader takes for one: PyYAML wants a point in the mantissa (``1.0e-05``)."""
    text = repr(value)
    mantissa, exponent, power = text.partition("e")
    return text if not exponent or "." in mantissa else f"{mantissa}.0e{power}"


def yaml_value(value: Any, old: str = "") -> str:
    if isinstance(value, bool) or value is None:
        return file_text(value)
    if isinstance(value, float):
        return {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}.get(repr(value)) or _float_text(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(yaml_value, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{yaml_value(name)}: {yaml_value(item)}" for name, item in value.items()) + "}"
    if not isinstance(value, str):
        return str(value)
    if old[:1] == "'" and value.isprintable():
        return "'" + value.replace("'", "''") + "'"
    if old[:1] == '"' or not _is_plain_yaml(value):
        return _double_quoted(value)
    return value


def _double_quoted(value: str) -> str:
    """A text in double quotes with the escapes that YAML and TOML share."""
    text = json_value(value)
    if value.isprintable():
        return text
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in text)


_PLAIN_FIRST = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_/.")
_PLAIN = _PLAIN_FIRST | frozenset("0123456789-+")


def _is_plain_yaml(value: str) -> bool:
    """Whether a text needs no quotes: plain characters, and no reader takes it for a number or a constant."""
    if not value or value[0] not in _PLAIN_FIRST or not _PLAIN.issuperset(value):
        return False
    if value.lower() in ("true", "false", "null", "yes", "no", "on", "off", "y", "n", ".inf", ".nan"):
        return False
    return value[0] != "."


def toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return file_text(value)
    if isinstance(value, str):
        return _double_quoted(value)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json_value(name)} = {toml_value(item)}" for name, item in value.items()) + "}"
    return str(value)


def python_value(value: Any, old: str = "") -> str:
    if isinstance(value, str) and old[:1] == '"' and value.isprintable():
        return json_value(value)
    if isinstance(value, list) and old[:1] == "(":
        inner = ", ".join(map(python_value, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return repr(value)


_SHELL_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+./:,=@%")


def shell_value(value: Any, old: str = "") -> str | None:
    """A value as a word in place of ``old``; None where it would need quotes inside of other quotes."""
    if isinstance(value, bool):
        lower = old.strip("'\"").islower()
        word = ("true" if value else "false") if lower else str(value)
    elif isinstance(value, (list, tuple)):
        words = [shell_value(item) for item in value]
        return None if None in words else " ".join(word for word in words if word is not None)
    else:
        word = "None" if value is None else str(value)
    if len(old) > 1 and old[0] == old[-1] and old[0] in "'\"":
        quote = old[0]
        special = "'" if quote == "'" else '"\\$`!'
        return quote + word + quote if not any(mark in word for mark in special) else None
    return word if word and _SHELL_PLAIN.issuperset(word) else None


def shell_word(value: Any) -> str | None:
    """A value as a new word of a command."""
    plain = shell_value(value)
    if plain is not None or isinstance(value, (list, tuple)):
        return plain
    return "'" + str(value).replace("'", "'\\''") + "'"
