"""YAML text to a Document, from PyYAML's events: they alone say where an alias stands.

Plain scalars get the type that OmegaConf (hence Hydra) gives them: YAML 1.1 as PyYAML has it, plus ``1e-4`` as a
float and minus timestamps. Nothing is ever constructed from a tag.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from memlint import work
from memlint.documents.lines import Lines
from memlint.documents.node import MAX_DIGITS, Document, Fault, Faults, Keys, Node, Span, Unresolved, shown, too_long

# Bounds, far above any training config: what an alias bomb or a machine-made nest runs into.
MAX_DEPTH = 100
MAX_NODES = 100_000

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_CONSTANTS: dict[str, bool | None] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
for _word in ("yes", "true", "on"):
    _CONSTANTS.update(dict.fromkeys((_word, _word.title(), _word.upper()), True))
for _word in ("no", "false", "off"):
    _CONSTANTS.update(dict.fromkeys((_word, _word.title(), _word.upper()), False))

# As text: compiled for the first number that is not written in the plainest way.
_INT = r"[-+]?(?:0b[01_]+|0[0-7_]+|0x[0-9a-fA-F_]+|0|[1-9][0-9_]*(?::[0-5]?[0-9])*)"
_FLOAT = r"""(?x)[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?
      | [-+]?[0-9]+(?:_[0-9]+)*\.[0-9_]*(?:[eE][-+]?[0-9]+)?
      | [-+]?[0-9]+(?:_[0-9]+)*[eE][-+]?[0-9]+
      | \.[0-9][0-9_]*(?:[eE][-+][0-9]+)?
      | [-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+\.[0-9_]*
      | [-+]?\.(?:inf|Inf|INF)
      | \.(?:nan|NaN|NAN)"""

_CORE = "tag:yaml.org,2002:"
_PLAIN_TAGS = {
    "str": "str",
    "int": "int",
    "float": "float",
    "bool": "bool",
    "null": "null",
    "python/str": "str",
    "python/unicode": "str",
    "python/int": "int",
    "python/long": "int",
    "python/float": "float",
    "python/bool": "bool",
    "python/none": "null",
}
_LIST_TAGS = {"seq", "python/tuple", "python/list"}
_MAPPING_TAGS = {"map", "python/dict"}


def scalar(text: str) -> str | int | float | bool | None:
    """What a plain (unquoted) YAML scalar means to OmegaConf."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text[0] in "+-.0123456789" and len(text) <= MAX_DIGITS:
        plain = _plain_number(text)
        if plain is not None:
            return plain
        try:
            if re.fullmatch(_INT, text):
                number = _int(text)
                return text if too_long(number) else number
            if re.fullmatch(_FLOAT, text):
                return _float(text)
        except ValueError:  # "0x_", which YAML 1.1 calls an integer without digits
            return text
    return text


def _plain_number(text: str) -> int | float | None:
    """``128``, ``0.5``, ``1.0e-4``: what Python and the expressions above read alike; None for all else."""
    if not text.isascii():
        return None
    if text.isdigit():
        return int(text) if text[0] != "0" or text == "0" else None
    whole, _, rest = text.partition(".")
    mantissa, exponent, power = rest.partition("e")
    if exponent:
        power = power[1:] if power[:1] in ("+", "-") else power
        if not power.isdigit():
            return None
    return float(text) if whole.isdigit() and mantissa.isdigit() else None


def _int(text: str) -> int:
    digits = text.replace("_", "")
    sign = -1 if digits.startswith("-") else 1
    digits = digits.lstrip("+-")
    if digits.startswith("0b"):
        return sign * int(digits[2:], 2)
    if digits.startswith("0x"):
        return sign * int(digits[2:], 16)
    if ":" in digits:
        total = 0
        for part in digits.split(":"):
            total = total * 60 + int(part)
        return sign * total
    if digits.startswith("0") and digits != "0":
        return sign * int(digits, 8)
    return sign * int(digits)


def _float(text: str) -> float:
    digits = text.replace("_", "").lower()
    sign = -1.0 if digits.startswith("-") else 1.0
    digits = digits.lstrip("+-")
    if digits == ".inf":
        return sign * float("inf")
    if digits == ".nan":
        return float("nan")
    if ":" in digits:
        total = 0.0
        for part in digits.split(":"):
            total = total * 60 + float(part)
        return sign * total
    return sign * float(digits)


def read(path: str, text: str) -> Document:
    """Read YAML. The root is the first document that is not empty; what follows it is another program's.

    A text that is not YAML yields MEM003 and an empty root; a key written twice yields MEM006, and the later
    one wins, as in PyYAML.
    """
    if text.startswith("\ufeff"):
        text = text[1:]
    reader = _Reader(path, text)
    root = reader.read()
    return Document(path, "yaml", text, root, reader.faults.told(), (), {path: text})


def value(path: str, text: str) -> tuple[Node, tuple[Fault, ...]]:
    """The value, of whatever kind, that a YAML text holds: None where it holds none or is no YAML."""
    reader = _Reader(path, text)
    node = reader.node() or Node(None, Span(path, 1, 1, 1, 1))
    return node, reader.faults.told()


class _Stop(Exception):
    """The document cannot be used; the argument is its fault."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


class _Reader:
    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text
        self.faults = Faults()
        self.anchors: dict[str, Node | None] = {}  # None: its value is still being read
        self.nodes = 0
        self.spend = work.meter().spend
        self._lines: Lines | None = None
        # PyYAML also breaks lines at these; then its line numbers are not an editor's, and offsets decide.
        self.other_breaks = any(mark in text for mark in "\x85\u2028\u2029")

    @property
    def lines(self) -> Lines:
        if self._lines is None:
            self._lines = Lines(self.path, self.text)
        return self._lines

    def read(self) -> Node:
        root = self.node()
        if root is not None and root.is_mapping:
            return root
        return Node({}, Span(self.path, 1, 1, 1, 1))

    def node(self) -> Node | None:
        try:
            self.spend(work.KILOBYTE * len(self.text) >> 10, "reading YAML")
            self.loader = _LOADER(self.text)
            return self.document()
        except _Stop as stop:
            self.faults.append(stop.fault)
        except yaml.YAMLError as error:
            self.faults.append(self.parse_fault(error))
        return None

    def document(self) -> Node | None:
        next_event = self.loader.get_event
        while True:
            event = next_event()
            if isinstance(event, yaml.StreamEndEvent):
                return None
            if isinstance(event, (yaml.StreamStartEvent, yaml.DocumentStartEvent, yaml.DocumentEndEvent)):
                continue
            self.anchors = {}
            node, _ = self.value(event, "", None, 0)
            if node.value is not None:
                return node

    # -- values. With each node comes the place it takes in the text: an alias stands elsewhere than its value.

    def value(self, event: Any, keys: Keys, key_span: Span | None, depth: int) -> tuple[Node, Span]:
        self.nodes += 1
        self.spend(work.NODE, "reading YAML")
        if self.nodes > MAX_NODES:
            raise _Stop(Fault("MEM003", f"more than {MAX_NODES:,} values: not read any further", self.span(event)))
        kind = type(event)
        if kind is yaml.ScalarEvent:
            node = self.scalar(event, keys, key_span)
            if event.anchor is not None:
                self.anchors[event.anchor] = node
            return node, node.span
        if kind is yaml.AliasEvent:
            return self.alias(event, keys, key_span, depth)
        if depth >= MAX_DEPTH:
            raise _Stop(Fault("MEM003", f"nested deeper than {MAX_DEPTH} levels", self.span(event)))
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        if kind is yaml.SequenceStartEvent:
            node = self.sequence(event, keys, key_span, depth)
        else:
            node = self.mapping(event, keys, key_span, depth)
        if event.tag is not None and event.tag != "!":
            self.apply_tag(event, node)
        if event.anchor is not None:
            self.anchors[event.anchor] = node
        return node, node.span

    def scalar(self, event: Any, keys: Keys, key_span: Span | None) -> Node:
        tag = event.tag
        if tag is None:
            if not event.style:
                place = self.span(event) if event.anchor is None else self.scalar_span(event)
                return Node(scalar(event.value), place, key_span, keys)
            return Node(event.value, self.scalar_span(event), key_span, keys)
        if tag == "!":
            return Node(event.value, self.scalar_span(event), key_span, keys)
        kind = _PLAIN_TAGS.get(tag[len(_CORE) :]) if tag.startswith(_CORE) else None
        if kind is None:
            value: Any = Unresolved(f"the tag {shown(_tag_name(tag))} is not executed", self.source(event))
            return Node(value, self.span(event), key_span, keys)
        try:
            value = _typed(kind, event.value)
        except (ValueError, OverflowError):
            message = f"{shown(event.value)!r} is not a value of type {kind}"
            raise _Stop(Fault("MEM003", message, self.span(event))) from None
        return Node(value, self.scalar_span(event), key_span, keys)

    def sequence(self, event: Any, keys: Keys, key_span: Span | None, depth: int) -> Node:
        items: list[Node] = []
        end = None
        while type(child := self.loader.get_event()) is not yaml.SequenceEndEvent:
            node, end = self.value(child, (keys, len(items)), None, depth + 1)
            items.append(node)
        if event.flow_style or end is None:
            span = self.between(self.content_start(event), self.mark(child.end_mark))
        else:
            span = self.between(self.content_start(event), (end.end_line, end.end_column))
        return Node(items, span, key_span, keys)

    def mapping(self, event: Any, keys: Keys, key_span: Span | None, depth: int) -> Node:
        children: dict[str, Node] = {}
        written: dict[str, Span] = {}
        merged: list[tuple[Node, Span]] = []
        start: tuple[int, int] | None = None
        end: Span | None = None
        get_event = self.loader.get_event
        while type(key := get_event()) is not yaml.MappingEndEvent:
            if type(key) is not yaml.ScalarEvent or key.style or key.tag is not None or key.anchor is not None:
                name, key_place = self.key(key, event, depth)
            else:
                name, key_place = key.value, self.span(key)
                if name == "<<":
                    node, end = self.value(get_event(), keys, None, depth + 1)
                    merged.append((node, end))
                    start = start or (key_place.line, key_place.column)
                    continue
            start = start or (key_place.line, key_place.column)
            node, end = self.value(get_event(), (keys, name), key_place, depth + 1)
            first = written.get(name)
            if first is not None:
                message = f"{shown(name)!r} is written twice in this mapping: this one wins over line {first.line}"
                self.faults.append(Fault("MEM006", message, key_place, (first,)))
            written[name] = key_place
            children[name] = node
        if event.flow_style or start is None or end is None:
            span = self.between(self.content_start(event), self.mark(key.end_mark))
        else:
            span = self.between(start, (end.end_line, end.end_column))
        if merged:
            children = self.merge(children, merged, keys)
        return Node(children, span, key_span, keys)

    def key(self, event: Any, mapping: Any, depth: int) -> tuple[str, Span]:
        """A key that is quoted, tagged, an alias or a collection."""
        if type(event) is yaml.ScalarEvent:
            place = self.scalar_span(event)
            if event.anchor is not None:
                self.anchors[event.anchor] = Node(event.value, place)
            return event.value, place
        node, end = self.value(event, "", None, depth + 1)
        if type(event) is yaml.AliasEvent and isinstance(node.value, (str, int, float)):
            return str(node.value), end
        place = self.between(self.mark(event.start_mark), (end.end_line, end.end_column))
        if mapping.flow_style and isinstance(event, yaml.MappingStartEvent):
            outer = self.mark(mapping.start_mark)
            raise _Stop(Fault("MEM003", _TEMPLATE, place._replace(line=outer[0], column=outer[1])))
        return self.lines.slice(place), place

    def merge(self, own: dict[str, Node], merged: list[tuple[Node, Span]], keys: Keys) -> dict[str, Node]:
        """``<<``: own keys win; within one ``<<`` list the earlier mapping, of several ``<<`` the later one."""
        result: dict[str, Node] = {}
        for source, place in merged:
            parts = source.value if isinstance(source.value, list) else [source]
            for part in reversed(parts):
                if not isinstance(part.value, dict):
                    raise _Stop(Fault("MEM003", "'<<' takes a mapping or a list of mappings", place))
                for name, node in part.value.items():
                    result[name] = self.copy(node, (keys, name), node.key_span, ())
        result.update(own)
        return result

    def alias(self, event: Any, keys: Keys, key_span: Span | None, depth: int) -> tuple[Node, Span]:
        place = self.span(event)
        if event.anchor not in self.anchors:
            raise _Stop(Fault("MEM003", f"the alias *{shown(event.anchor)} has no anchor before it", place))
        target = self.anchors[event.anchor]
        if target is None:
            self.faults.append(Fault("MEM003", f"the alias *{shown(event.anchor)} stands inside its own value", place))
            cycle = Unresolved("an alias that contains itself", f"*{event.anchor}")
            return Node(cycle, place, key_span, keys), place
        return self.copy(target, keys, key_span, (place,), depth), place

    def copy(self, node: Node, keys: Keys, key_span: Span | None, via: tuple[Span, ...], depth: int = 0) -> Node:
        self.nodes += 1
        self.spend(work.NODE, "expanding YAML's aliases")
        if self.nodes > MAX_NODES or depth > MAX_DEPTH:
            place = via[0] if via else node.span
            raise _Stop(Fault("MEM003", f"aliases expand to more than {MAX_NODES:,} values", place))
        value = node.value
        if isinstance(value, dict):
            value = {
                name: self.copy(child, (keys, name), child.key_span, via, depth + 1) for name, child in value.items()
            }
        elif isinstance(value, list):
            value = [self.copy(child, (keys, index), None, via, depth + 1) for index, child in enumerate(value)]
        return Node(value, node.span, key_span, keys, via + node.via)

    def apply_tag(self, event: Any, node: Node) -> None:
        name = event.tag[len(_CORE) :] if event.tag.startswith(_CORE) else ""
        if isinstance(node.value, list) and name in _LIST_TAGS:
            return
        if isinstance(node.value, dict) and name in _MAPPING_TAGS:
            return
        start = self.mark(event.start_mark)
        place = Span(self.path, *start, node.span.end_line, node.span.end_column)
        text = self.lines.slice(place)
        node.value = Unresolved(f"the tag {shown(_tag_name(event.tag))} is not executed", text)

    # -- places

    def mark(self, mark: Any) -> tuple[int, int]:
        # libyaml begins a new line where the text ends, whether or not there is one.
        if self.other_breaks or mark.index >= len(self.text):
            return self.lines.position(min(mark.index, len(self.text)))
        return mark.line + 1, mark.column + 1

    def span(self, event: Any) -> Span:
        start, end = event.start_mark, event.end_mark
        if self.other_breaks or end.index >= len(self.text):
            return self.lines.span(min(start.index, len(self.text)), min(end.index, len(self.text)))
        return Span(self.path, start.line + 1, start.column + 1, end.line + 1, end.column + 1)

    def between(self, start: tuple[int, int], end: tuple[int, int]) -> Span:
        return Span(self.path, start[0], start[1], end[0], end[1])

    def scalar_span(self, event: Any) -> Span:
        """A scalar without its tag and anchor, and a block scalar without the line break behind it."""
        if event.style in ("|", ">"):
            start, end = event.start_mark.index, event.end_mark.index
            end = start + len(self.text[start:end].rstrip())
            if event.tag is not None or event.anchor is not None:
                start = self.skip_properties(start, end)
            return self.lines.span(start, end)
        if event.tag is None and event.anchor is None:
            return self.span(event)
        start = self.skip_properties(event.start_mark.index, event.end_mark.index)
        return self.lines.span(start, event.end_mark.index)

    def content_start(self, event: Any) -> tuple[int, int]:
        if event.tag is None and event.anchor is None:
            return self.mark(event.start_mark)
        if not event.flow_style:
            return self.mark(event.end_mark)
        return self.lines.position(self.skip_properties(event.start_mark.index, event.end_mark.index))

    def skip_properties(self, offset: int, end: int) -> int:
        """Behind ``&anchor``, ``!tag``, blanks and comments."""
        text = self.text
        while offset < end:
            character = text[offset]
            if character in "&!":
                while offset < end and not text[offset].isspace():
                    offset += 1
            elif character == "#":
                while offset < end and text[offset] not in "\r\n":
                    offset += 1
            elif character.isspace():
                offset += 1
            else:
                break
        return offset

    def source(self, event: Any) -> str:
        return self.text[event.start_mark.index : event.end_mark.index]

    # -- what is wrong

    def parse_fault(self, error: yaml.YAMLError) -> Fault:
        template = _template_at(self.text)
        if template is not None:
            return Fault("MEM003", _TEMPLATE, self.lines.span(*template))
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        if mark is not None:
            offset = min(mark.index, len(self.text))
        else:  # ReaderError: a character that YAML forbids
            offset = min(getattr(error, "position", 0) or 0, len(self.text))
            for index, character in enumerate(self.text):
                if (character < " " and character not in "\t\n\r") or character in "\x7f\ufffe\uffff":
                    offset = index
                    break
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "unreadable text"
        context = getattr(error, "context", None)
        message = f"not valid YAML: {problem}"
        if context:
            message += f" {context}"
        if self.text[offset : offset + 1] == "\t" or _indented_by_tab(self.text, self.lines, offset):
            message += " (YAML is indented with spaces, never tabs)"
        end = offset + 1 if offset < len(self.text) and self.text[offset] not in "\r\n" else offset
        return Fault("MEM003", message, self.lines.span(offset, end))


_TEMPLATE = "this is a template, not YAML: memlint reads the rendered file"


def _template_at(text: str) -> tuple[int, int] | None:
    """Where the first Jinja tag outside a comment line stands, if there is one."""
    offset = 0
    for line in text.splitlines(keepends=True):
        if not line.lstrip().startswith("#"):
            for opening, closing in (("{%", "%}"), ("{{", "}}")):
                start = line.find(opening)
                if start >= 0 and line[start - 1 : start] != "$":
                    end = line.find(closing, start)
                    return offset + start, offset + (end + 2 if end >= 0 else len(line.rstrip()))
        offset += len(line)
    return None


def _indented_by_tab(text: str, lines: Lines, offset: int) -> bool:
    line, _ = lines.position(offset)
    start = lines.starts[line - 1]
    end = lines.starts[line] if line < len(lines.starts) else len(text)
    content = text[start:end]
    return "\t" in content[: len(content) - len(content.lstrip(" \t"))]


def _tag_name(tag: str) -> str:
    return f"!!{tag[len(_CORE) :]}" if tag.startswith(_CORE) else tag


def _typed(kind: str, text: str) -> str | int | float | bool | None:
    if kind == "str":
        return text
    if kind == "null":
        return None
    value = scalar(text)
    if kind == "bool":
        if isinstance(value, bool):
            return value
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        return int(value) if kind == "int" else float(value)
    raise ValueError(text)
