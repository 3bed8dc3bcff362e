"""Writing a key that is absent: after the last entry of its nearest existing parent, in that file's own style."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from memlint.dialects.rendering import (
    SourceText,
    json_value,
    python_value,
    rendered,
    shell_word,
    text_of,
    toml_value,
    yaml_value,
)
from memlint.dialects.schema import Key
from memlint.documents.lines import bounds, line_starts, position
from memlint.documents.node import Command, Edit, Node, Span
from memlint.facts.spec import TrainingSpec


def add(spec: TrainingSpec, key: Key, value: Any) -> list[Edit]:
    """Write an absent key. The nearest parent that exists decides where, and in which file."""
    if isinstance(value, tuple):
        value = list(value)
    if spec.launch is not None and spec.document.format == "shell":
        return _add_option(spec, key, value)
    parent, missing = _nearest_parent(spec.root, key)
    if parent is None:
        return []
    if not missing:  # an empty value stands there: `key:`
        return _fill(spec, parent, value)
    place = _own_file(spec, parent)
    if place is None:
        return []
    text, anchor = place
    adders: dict[str, Callable[[SourceText, Node, Node | None, tuple[str, ...], Any], list[Edit]]] = {
        "yaml": _add_yaml,
        "json": _add_json,
        "toml": _add_toml,
        "python": _add_python,
    }
    adder = adders.get(text.format)
    return adder(text, parent, anchor, missing, value) if adder is not None else []


def together(edits: Sequence[Edit]) -> tuple[Edit, ...]:
    """Edits as one change: of the lines that are added at one place, those of the innermost section come first, and a
    section that several of them begin is begun once. () where that cannot be written."""
    groups: dict[Span, list[Edit]] = {}
    for edit in edits:
        groups.setdefault(edit.span, []).append(edit)
    done: list[Edit] = []
    for group in groups.values():
        if len(group) == 1:
            done += group
        elif all(_is_block(edit) for edit in group):
            done += _blocks(group)
        else:
            opened = [edit.text.partition("{")[0] for edit in group if "{" in edit.text]
            if len(set(opened)) < len(opened):
                return ()  # one section twice, in JSON or a dict
            done += group
    return tuple(done)


def _is_block(edit: Edit) -> bool:
    """Whether whole lines are inserted, and nothing is replaced."""
    text = edit.text
    return edit.span[1:3] == edit.span[3:5] and (text[:1] in ("\r", "\n") or text[-1:] in ("\r", "\n"))


def _blocks(group: Sequence[Edit]) -> list[Edit]:
    found: list[Edit] = []
    for edit in sorted(group, key=_order):
        lines = _lines(edit.text)
        for number, before in enumerate(found):
            shared = _shared(_lines(before.text), lines)
            if shared:
                found[number] = Edit(edit.span, before.text + "".join(lines[shared:]))
                break
        else:
            found.append(edit)
    return found


def _order(edit: Edit) -> tuple[int, bool]:
    """Deeper lines first; a table of TOML after the keys of the one before it."""
    first = edit.text.lstrip("\r\n")
    return len(first.lstrip(" \t")) - len(first), first.startswith("[")


def _lines(text: str) -> list[str]:
    """Lines with the line breaks that they bring: after them, or before them where the text does not end in one."""
    if text[-1:] in ("\r", "\n"):
        return text.splitlines(keepends=True)
    newline, *lines = text.splitlines(keepends=True)
    return [newline + line.rstrip("\r\n") for line in lines]


def _shared(one: list[str], other: list[str]) -> int:
    """How many lines at the start are the same: the headers of sections, never the key itself."""
    count = 0
    while count < min(len(one), len(other)) - 1 and one[count] == other[count]:
        count += 1
    return count


def _nearest_parent(root: Node, key: Key) -> tuple[Node | None, tuple[str, ...]]:
    """(the deepest mapping on the way to the key, the parts of the key that are missing below it)."""
    node = root
    for depth, part in enumerate(key.path):
        if not isinstance(node.value, dict):
            return None, ()
        names = key.names if depth == len(key.path) - 1 else (part,)
        found = next((node.value[name] for name in names if name in node.value), None)
        if found is None:
            return node, key.path[depth:]
        if found.value is None:
            rest = key.path[depth + 1 :]
            return (found, ()) if not rest else (None, ())
        node = found
    return None, ()


def _fill(spec: TrainingSpec, node: Node, value: Any) -> list[Edit]:
    text = text_of(spec, node.span.path)
    if text is None:
        return []
    new = rendered(text, node.span, text.at(node.span), value)
    return [Edit(node.span, new)] if new is not None else []


def _own_file(spec: TrainingSpec, parent: Node) -> tuple[SourceText, Node | None] | None:
    """The file that most of a mapping's keys stand in, and the key that stands last there.

    A composed mapping may hold keys of several files, and of places outside of it (merge keys).
    """
    assert isinstance(parent.value, dict)
    children = [node for node in parent.value.values() if node.key_span is not None]
    counts: dict[str, int] = {}
    for node in children:
        assert node.key_span is not None
        counts[node.key_span.path] = counts.get(node.key_span.path, 0) + 1
    based = spec.document.format == "python"  # what a config says of a section goes before what its bases say
    for path in sorted(
        counts, key=lambda path: (based and path != spec.document.path, -counts[path], path != spec.document.path)
    ):
        text = text_of(spec, path)
        if text is not None:
            own = [node for node in children if node.key_span is not None and node.key_span.path == path]
            return text, max(own, key=lambda node: (node.key_span or node.span)[1:3])
    text = text_of(spec, parent.span.path)
    return (text, None) if text is not None else None


def _nested(parts: tuple[str, ...], value: Any) -> Any:
    for part in reversed(parts):
        value = {part: value}
    return value


def _block(parts: tuple[str, ...], value: Any, indent: str, step: str, newline: str) -> str:
    """``a:`` / ``  b: 1`` for the parts a, b: YAML block style."""
    lines = [indent + step * depth + yaml_value(part) + ":" for depth, part in enumerate(parts)]
    return newline.join(lines) + " " + yaml_value(value)


class _Shape:
    """Where a YAML node stands. Offsets of its text; ``items`` of a mapping are key, value, key, value."""

    __slots__ = ("end", "flow", "is_mapping", "items", "start")

    def __init__(self, start: int, end: int, is_mapping: bool = False, flow: bool = False) -> None:
        self.start = start
        self.end = end
        self.is_mapping = is_mapping
        self.flow = flow
        self.items: list[_Shape] = []


@lru_cache(maxsize=2)  # every fix of a file asks for it
def _yaml_shape(path: str, text: str) -> _Shape | None:
    """The shape of the first document; None where there is none. Raises yaml.YAMLError.

    Made of events, not of nodes: an alias is where it stands, not where its anchor does.
    """
    starts = line_starts(text, path)
    import yaml

    def offset(mark: Any) -> int:
        return starts[mark.line] + int(mark.column) if mark.line < len(starts) else len(text)

    open_: list[_Shape] = []
    for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        kind = type(event).__name__
        if kind in ("MappingEndEvent", "SequenceEndEvent"):
            shape = open_.pop()
            if shape.flow or not shape.items:
                shape.end = offset(event.end_mark)
            else:  # the end of a block collection overshoots to the next token
                shape.end = shape.items[-1].end
            if not open_:
                return shape
            continue
        if kind not in ("ScalarEvent", "AliasEvent", "MappingStartEvent", "SequenceStartEvent"):
            continue
        start, end = offset(event.start_mark), min(offset(event.end_mark), len(text))
        shape = _Shape(start, end, kind == "MappingStartEvent", bool(getattr(event, "flow_style", False)))
        if getattr(event, "style", None) in ("|", ">"):
            shape.end = max(len(text[:end].rstrip("\r\n \t")), start)
        if open_:
            open_[-1].items.append(shape)
        if kind in ("MappingStartEvent", "SequenceStartEvent"):
            open_.append(shape)
        elif not open_:
            return shape
    return None


def _add_yaml(text: SourceText, parent: Node, anchor: Node | None, missing: tuple[str, ...], value: Any) -> list[Edit]:
    """After the last entry of the mapping that the anchor key stands in, as PyYAML sees the file."""
    import yaml

    try:
        shape = _yaml_shape(text.path, text.text)
    except yaml.YAMLError:
        return []
    if shape is None:
        lead = "" if not text.text or text.text.endswith(("\n", "\r")) else text.newline
        block = _block(missing, value, "", "  ", text.newline)
        return [text.insertion(len(text.text), lead + block + text.newline)]
    place = anchor.key_span if anchor is not None and anchor.key_span is not None else parent.span
    mapping = _mapping_at(shape, bounds(text.starts, place)[0], anchor is not None)
    if mapping is None:
        return []
    if mapping.flow:
        entry = ", ".join(f"{yaml_value(name)}: {yaml_value(item)}" for name, item in _nested(missing, value).items())
        if mapping.items:
            return [text.insertion(mapping.items[-1].end, ", " + entry)]
        return [text.insertion(text.text.index("{", mapping.start) + 1, entry)]
    if not mapping.items:
        return []
    indent = "".join("\t" if character == "\t" else " " for character in text.line_before(mapping.items[0].start))
    block = _block(missing, value, indent, "  ", text.newline)
    line, _ = position(text.starts, mapping.end)
    return [text.insertion(text.line_end(line), text.newline + block)]


def _mapping_at(shape: _Shape, offset: int, by_key: bool) -> _Shape | None:
    """The mapping that has a key at an offset, or (not ``by_key``) that starts there."""
    stack = [shape]
    while stack:
        found = stack.pop()
        if found.is_mapping:
            if by_key and any(key.start == offset for key in found.items[::2]):
                return found
            if not by_key and found.start == offset:
                return found
        stack.extend(found.items)
    return None


def _add_json(text: SourceText, parent: Node, anchor: Node | None, missing: tuple[str, ...], value: Any) -> list[Edit]:
    """After the last entry, with a comma; on a line of its own where the entries have theirs."""
    name, item = missing[0], _nested(missing[1:], value)
    entry = f"{json_value(name)}: {json_value(item)}"
    if anchor is None or anchor.key_span is None:
        start, end = bounds(text.starts, parent.span)
        if text.text[start : start + 1] != "{" or text.text[start + 1 : end - 1].strip():
            return []
        return [text.insertion(start + 1, entry)]
    key_start, _ = bounds(text.starts, anchor.key_span)
    _, end = bounds(text.starts, anchor.span)
    before = text.line_before(key_start)
    separator = text.newline + before if not before.strip() else " "
    return [text.insertion(end, "," + separator + entry)]


def _add_toml(text: SourceText, parent: Node, anchor: Node | None, missing: tuple[str, ...], value: Any) -> list[Edit]:
    """After the last key of the parent's own table; a table of its own where the parent is missing too."""
    assert isinstance(parent.value, dict)
    name, item = missing[0], _nested(missing[1:], value)
    plain = [node for node in parent.value.values() if node.key_span is not None and not _is_toml_table(node, text)]
    plain = [node for node in plain if node.key_span is not None and node.key_span.path == text.path]
    inline = not _is_toml_table(parent, text) and parent.key_path != ""
    if inline:
        start, _ = bounds(text.starts, parent.span)
        entry = f"{_toml_key(name)} = {toml_value(item)}"
        if not plain:
            return [text.insertion(start + 1, entry)]
        _, last_end = bounds(text.starts, max(plain, key=lambda node: node.span[3:5]).span)
        return [text.insertion(last_end, ", " + entry)]
    if len(missing) > 1 and not parent.key_path:
        header = ".".join(map(_toml_key, missing[:-1]))
        body = f"[{header}]{text.newline}{_toml_key(missing[-1])} = {toml_value(value)}"
        ended = not text.text or text.text.endswith("\n")
        return [text.insertion(len(text.text), body + text.newline if ended else text.newline + body)]
    if plain:
        last = max(plain, key=lambda node: node.span[3:5])
        assert last.key_span is not None
        start, _ = bounds(text.starts, last.key_span)
        prefix = text.line_before(start)  # indentation, or the front of a dotted key
        dotted = ".".join(map(_toml_key, missing))
        return [
            text.insertion(text.line_end(last.span.end_line), f"{text.newline}{prefix}{dotted} = {toml_value(value)}")
        ]
    dotted = ".".join(map(_toml_key, missing))
    if not parent.key_path:
        return [text.insertion(0, f"{dotted} = {toml_value(value)}{text.newline}")]
    if parent.key_span is None or parent.key_span.path != text.path:
        return []
    end_of_header = text.line_end(parent.key_span.line)
    return [text.insertion(end_of_header, f"{text.newline}{dotted} = {toml_value(value)}")]


def _is_toml_table(node: Node, text: SourceText) -> bool:
    """A mapping that is not written inline."""
    if not isinstance(node.value, dict):
        return (
            isinstance(node.value, list)
            and any(item.is_mapping for item in node.value)
            and not (text.at(node.span).startswith("[") and "=" in text.at(node.span) and "{" in text.at(node.span))
        )
    return not text.at(node.span).startswith("{")


def _toml_key(name: str) -> str:
    bare = name and all(c.isascii() and (c.isalnum() or c in "_-") for c in name)
    return name if bare else json_value(name)


def _add_python(
    text: SourceText, parent: Node, anchor: Node | None, missing: tuple[str, ...], value: Any
) -> list[Edit]:
    """After the last statement of the class or module that the keys are assigned in."""
    import ast

    try:
        module = ast.parse(text.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    body: list[ast.stmt] = module.body
    if parent.key_path:
        classes = {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}
        if parent.key_path not in classes:
            return _add_python_entry(text, parent, anchor, missing, value)
        body = classes[parent.key_path].body
    name, item = missing[0], _nested(missing[1:], value)
    constants = [node for node in body if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign))]
    statement = f"{name} = {python_value(item)}"
    if not constants:
        if not body or body[0].lineno == 0:
            return []
        first = body[0]
        indent = text.text[text.starts[first.lineno - 1] :][: first.col_offset]
        return [text.insertion(text.starts[first.lineno - 1], indent + statement + text.newline)]
    last = constants[-1]
    line = last.end_lineno or last.lineno
    start = text.starts[last.lineno - 1]
    indent = text.text[start : start + last.col_offset]
    if indent.strip():  # several statements on one line
        return [text.insertion(text.line_end(line), "; " + statement)]
    return [text.insertion(text.line_end(line), text.newline + indent + statement)]


def _add_python_entry(
    text: SourceText, parent: Node, anchor: Node | None, missing: tuple[str, ...], value: Any
) -> list[Edit]:
    """Into a dict: ``{"a": 1}`` or ``dict(a=1)``, after its last entry."""
    if anchor is None or anchor.key_span is None:
        return []
    item = _nested(missing[1:], value)
    key_start, _ = bounds(text.starts, anchor.key_span)
    _, end = bounds(text.starts, anchor.via[0] if anchor.via else anchor.span)  # a name's value is elsewhere
    quoted = text.text[key_start : key_start + 1] in ("'", '"')
    entry = f"{missing[0]!r}: {python_value(item)}" if quoted else f"{missing[0]}={python_value(item)}"
    if quoted and text.text[key_start] == '"':
        entry = f"{json_value(missing[0])}: {python_value(item)}"
    before = text.line_before(key_start)
    separator = text.newline + before if not before.strip() else " "
    return [text.insertion(end, "," + separator + entry)]


def _by_dots(spec: TrainingSpec) -> bool:
    from memlint.dialects import registry

    return bool(registry.dialect(spec.family).header.get("dotted"))


def _overrides(spec: TrainingSpec, key: Key) -> bool:
    """Whether a command changes values of the program's own config by words ``section.key=value``, and has done so of
    this section: a program has the sections of its recipe alone."""
    from memlint.dialects import registry

    section = spec.root.get(key.path[0])
    return registry.dialect(spec.family).header.get("overrides") is True and section is not None and section.is_mapping


def _is_of_another_style(spec: TrainingSpec, key: Key) -> bool:
    """Where releases had flat options, and others have options with dots: a command is read by one of the parsers."""
    from memlint.dialects import registry

    if registry.dialect(spec.family).header.get("dotted") != "or flat" or not isinstance(spec.root.value, dict):
        return False
    return any(node.is_mapping for node in spec.root.value.values()) != (len(key.path) > 1)


def _dashed(spec: TrainingSpec) -> bool:
    from memlint.dialects import registry

    return bool(registry.dialect(spec.family).header.get("dashed"))


def _add_option(spec: TrainingSpec, key: Key, value: Any) -> list[Edit]:
    """After the command's last word, on a line of its own where the options have theirs."""
    command = spec.launch
    assert command is not None
    overrides = len(key.path) != 1 and _overrides(spec, key)
    if len(key.path) != 1 and not _by_dots(spec) and not overrides:
        return []
    if _is_of_another_style(spec, key):
        return []
    last = command.words[-1] if command.words else command.program
    span = last.via[0] if last.via else last.span  # where the command uses it
    text = text_of(spec, span.path)
    if text is None:
        return []
    name = key.dotted.replace("_", "-") if _dashed(spec) else key.dotted
    option = ("--" if len(name) > 1 else "-") + name
    if overrides:
        word = shell_word(value)
        if word is None:
            return []
        words = f"{key.dotted}={word}"
    elif key.annotation.get("flag"):
        if value is not True:
            return []
        words = option
    else:
        word = shell_word(value)
        if word is None:
            return []
        words = option + ("=" if _assigns(command, text) else " ") + word
    _, end = bounds(text.starts, span)
    before = text.line_before(bounds(text.starts, span)[0])
    indent = before[: len(before) - len(before.lstrip(" \t"))]
    first_line = command.span.line
    if span.line > first_line and _continued(text, span.line):
        return [text.insertion(end, f" \\{text.newline}{indent}{words}")]
    return [text.insertion(end, " " + words)]


def _assigns(command: Command, text: SourceText) -> bool:
    """Whether a command writes ``--key=value``, which some programs read alone (nanoGPT), and never ``--key value``."""
    written = []
    for word in command.words:
        span = word.via[0] if word.via else word.span
        start, end = bounds(text.starts, span)
        written.append(text.text[start:end] if span.path == text.path else "")
    if any(word.startswith("--") and "=" not in word for word in written):
        return False
    return any(word.startswith("--") for word in written)


def _continued(text: SourceText, line: int) -> bool:
    """Whether the line before a 1-based line ends in a continuation."""
    return line > 1 and text.text[text.starts[line - 2] : text.line_end(line - 1)].endswith("\\")
